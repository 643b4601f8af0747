# An op that failed does not hide the next of its name.
tapir break matmul
run caught
continue
continue
