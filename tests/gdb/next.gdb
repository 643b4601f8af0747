tapir break zeros
run ops
continue
tapir next
tapir next
tapir next 3
tapir next
tapir next
delete
tapir break backward
run train
tapir next
tapir next
tapir next
delete
continue
