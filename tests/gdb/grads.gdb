break look
run train
up-silently
tapir grads
continue
up-silently
tapir grads
tapir grads model
tapir grads model.cell
tapir grads model.cell.scale
run sparse
up-silently
tapir grads
python
try:
    gdb.execute("tapir grads 3")
except gdb.error as error:
    print("error:", error)
end
