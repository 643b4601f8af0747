# Methods of tensors in expressions, and a backtrace that begins with the program's frame.
tapir break cat
run ops
print x.shape()
print x.sizes()
print x.strides()
print x.size(-1)
print x.stride(0)
print x.dim()
print x.numel()
print x.dtype()
print x.is_contiguous()
print x[1]
python
for wrong in ("x.size(2)", "x.item()", "x[5]"):
    try:
        gdb.execute("print " + wrong)
    except gdb.error as error:
        print("error:", error)
end
bt
