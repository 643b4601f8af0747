# A tensor on a device says where it is, and is copied on request; no breakpoint stops at that.
break look
run device
up-silently
print x
tapir break to
tapir tensor x
tapir tensor x --copy
tapir tensor x [1:, 0] --copy
tapir grads
python
import re
print(re.sub(r"[\d.]+ (B|KiB|MiB)|\d+(?= blocks| taken)", "N", gdb.execute("tapir memory", to_string=True).split("\n")[1]))
end
run device
continue
