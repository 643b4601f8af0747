# By op, with a pattern, by a rule's name.
tapir break mat*
tapir break sigmoid backward
tapir break linear
run train
tapir break
continue
delete 3
continue
delete
# By line, shape, module; a number of gdb's own, which can be disabled.
tapir break program.cpp:149
tapir break shape (2, 4)
run ops
continue
continue
disable 4
continue
delete
continue
tapir break module cell.*
tapir break backward
run train
continue
continue
delete
continue
python
for wrong in ("shape x", "one two", "module"):
    try:
        gdb.execute("tapir break " + wrong)
    except gdb.error as error:
        print("error:", error)
end
# What never came is said.
delete
tapir break matmull
run ops
