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
tapir break topk
run ops
# A name that no op has is refused, with those that are near; other names that ops have, and functions of the program's, are not.
python
for wrong in ("nosuchop", "sigmoyd", "sigmoyd backward", "linaer"):
    try:
        gdb.execute("tapir break " + wrong)
    except gdb.error as error:
        print("error:", str(error).split(" or ")[0].split(";")[0])
end
delete
tapir break dropout2d
tapir break Clip
tapir break nosuch*
set breakpoint pending on
tapir break nosuchop
set breakpoint pending auto
# gdb's own list says what each stops at, and counts.
tapir break shape (*, 3)
tapir break program.cpp:31
tapir break module head
tapir break-nonfinite
run train
info breakpoints
delete 15
tapir break
