# The table is that of Tape::str(), which the program has printed.
break look
run train
up-silently
tapir tape
tapir tape forget
tapir tape program.cpp:84
python
listed = gdb.parse_and_eval("listed").format_string(max_elements=0, repeat_threshold=0)
said = gdb.execute("tapir tape", to_string=True)
print("the same:", listed.strip('"').encode().decode("unicode_escape") == said)
end
# A tape in a tape, then the outer one alone.
run written
continue
up-silently
tapir tape
print inner
print tape
continue
tapir tape
# Threads have their own.
run threads
tapir tape
continue
tapir tape
