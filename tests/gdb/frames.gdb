# Between a user's a + b and the kernel stand at most three frames of the library, those that were inlined among them.
break look
run plus
delete
break run_contiguous
continue
python
frame, count = gdb.newest_frame().older(), 0
while frame.name() != "plus":
    frame, count = frame.older(), count + 1
print("frames between:", count if count > 3 else "at most three")
end
