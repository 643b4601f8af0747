break look
run tensors
up-silently
tapir tensor x
tapir tensor x [1]
tapir tensor x[0, :2]
tapir tensor &x [..., -1]
tapir tensor x [0, 1]
tapir tensor x [:, ::2]
tapir tensor x.impl_
tapir tensor brain
tapir tensor mask
tapir tensor turned
tapir tensor scalar
tapir tensor empty
tapir tensor none
tapir tensor large
tapir tensor large [0, 1, :4]
tapir tensor every
python
# What goes wrong is said, and the next command works.
for wrong in ("x [2]", "x [0, 0, 0]", "shape", "", "nobody"):
    try:
        gdb.execute("tapir tensor " + wrong)
    except gdb.error as error:
        print("error:", error)
end
# A tensor elsewhere says where it is. (It is a lie here; what --copy calls works on any device.)
tapir break to
python
import tapir_gdb
impl = tapir_gdb.impl_of(gdb.parse_and_eval("turned"))
print("a copy:", tapir_gdb.tensor_text(tapir_gdb.TensorCommand.copy(impl)), tapir_gdb.Tensor(impl).contiguous())
x = tapir_gdb.impl_of(gdb.parse_and_eval("x"))
gdb.selected_inferior().write_memory(x + tapir_gdb.offset("TensorImpl.device"), bytes([1, 2]))
end
print x
tapir tensor x
delete 2
run train
up-silently
tapir tensor y
tapir tensor model.cell.forget.weight
