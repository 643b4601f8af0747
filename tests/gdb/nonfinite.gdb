tapir break-nonfinite
run nonfinite
continue
continue
continue
delete
run nonfinite
