break look
run written
tapir record 0
tapir record 1
tapir record 2
tapir record 5
python
for wrong in ("6", "-1", "exp", ""):
    try:
        gdb.execute("tapir record " + wrong)
    except gdb.error as error:
        print("error:", error)
end
run train
tapir record 2
continue
tapir record 2
