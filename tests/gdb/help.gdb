help tapir
help tapir tape
help tapir record
help tapir tensor
help tapir break
help tapir break-nonfinite
help tapir next
help tapir grads
help tapir memory
help tapir fibers
tapir
python
for wrong in ("tapir mem", "tapir memori", "tapir memory x"):
    try:
        gdb.execute(wrong)
    except gdb.error as error:
        print("error:", error)
end
