# Instances of batch(): one runs, the others wait, each on a stack of its own.
python
def run(command):
    print(">", command)
    try:
        gdb.execute(command)
    except gdb.error as error:
        print("error:", error)
end
break look_at
python run("tapir fibers")
run fibers
python run("tapir fibers")
python run("tapir fibers 0")
python run("tapir fibers 0 print x")
python run("tapir fibers 1")
python run("tapir fibers 2")
python run("tapir fibers 3")
python run("tapir fibers 4")
python run("tapir fibers 9")
# The whole stack of the one that runs, and nothing else.
python
frame, names = gdb.newest_frame(), []
while frame is not None:
    names.append(frame.name() or "?")
    last, frame = frame, frame.older()
print([name for name in names if "look_at" in name or "encoded" in name or "run_item" in name])
print("ends in", names[-1].split("(")[0], last.unwind_stop_reason() == gdb.FRAME_UNWIND_OUTERMOST)
end
# Nothing has changed: the frame that was selected, registers.
python
gdb.newest_frame().older().select()
before = gdb.execute("info registers", to_string=True)
gdb.execute("tapir fibers 3", to_string=True)
after = gdb.execute("info registers", to_string=True)
print(before == after, gdb.selected_frame().level())
end
# Of the group that was computed, two are ready.
continue 3
python run("tapir fibers")
python run("tapir fibers 5")
# A core dump says the same.
gcore core
kill
core-file core
python run("tapir fibers")
python run("tapir fibers 3")
# While a group is computed, none of them runs.
delete
break tapir::detail::stacked_rows
run fibers
python run("tapir fibers")
python run("tapir fibers 0")
# An op that stops as it begins, in the instance.
delete
tapir break exp
run fibers
python run("tapir fibers")
