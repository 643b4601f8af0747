tapir break-nonfinite
run nonfinite
continue
continue
continue
delete
run nonfinite
# The op at which it has stopped is looked at too, and the rule.
tapir break log
run nonfinite
tapir break-nonfinite
continue
continue
delete
tapir break sum backward
run nonfinite
tapir next
tapir break-nonfinite
delete 4
continue
continue
continue
delete
# But not one that has begun without being asked.
break run_contiguous
run nonfinite
tapir break-nonfinite
