# The frame is that of the op's line also where the optimizer has put a lambda into a thread's, or a call into a template.
tapir break exp
tapir break exp backward
run bodies
continue
continue
continue
continue
continue
continue
continue
continue
continue
continue
continue
continue
continue
