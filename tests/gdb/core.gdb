# A core dump says the same.
break look
run train
gcore core
kill
core-file core
up-silently
print x
print tape
print model.cell
tapir tape
tapir record 2
tapir tensor model.cell.forget.weight
tapir grads
python
for needs_program in ("tapir next", "tapir tensor y --copy"):
    try:
        gdb.execute(needs_program)
    except gdb.error as error:
        print("error:", error)
end
