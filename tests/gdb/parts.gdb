break look
run parts
up-silently
print states
print both[1].bias
print both[1].count
print states[1].c
print both
python print("parameter = float32 (3,)" in gdb.execute("print adam.groups_", to_string=True))
