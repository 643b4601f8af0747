# Further outputs of an op; what nothing matches; a Function's object is gone after backward.
break look
run outputs
tapir tape
tapir tape pieces
tapir tape nothing
tapir record 0
tapir record 3
tapir record 4
continue
tapir record 4
# Optimizers, in a line.
run optimizers
up-silently
print sgd
print adam
# Lines and modules that are not there.
tapir break nofile.cpp:3
tapir break values.cpp:99999
tapir break values.cpp:43
tapir break ues.cpp:43
python
try:
    gdb.execute("tapir break module enc")
except gdb.error as error:
    print("error:", error)
end
tapir break module encoder
tapir break module *
delete
# Before the program runs, no module is known.
kill
tapir break module enc
run outputs
