help tapir
help tapir tape
help tapir record
help tapir tensor
help tapir break
help tapir break-nonfinite
help tapir next
help tapir grads
help tapir memory
