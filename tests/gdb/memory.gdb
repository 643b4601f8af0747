# The numbers are those of memory_stats(), which the program has asked for just before.
break look
run memory
up-silently
python
import tapir_gdb
stats = gdb.parse_and_eval("stats")
for name, count in tapir_gdb.MemoryCommand.counts().items():
    print(name, "as memory_stats() says" if int(stats[name]) == count else "%d, memory_stats() says %d" % (count, int(stats[name])))
end
run train
python
import re
first = gdb.execute("tapir memory", to_string=True).split("\n", 1)[0]
print(re.sub(r"[\d.]+ (B|KiB|MiB)|\d+(?= blocks| taken)", "N", first))
print(gdb.execute("tapir memory", to_string=True).split("\n", 1)[1], end="")
end
