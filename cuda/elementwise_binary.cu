// Forward kernels of the rows with two and three operands.
#include "tapir/cuda/elementwise.cuh"
#include "tapir/cuda/elementwise_functions.cuh"

namespace tapir::gpu {

extern const ForwardLaunchers binary_launchers = {{
#define TAPIR_UNARY0(...) TAPIR_NONE
#define TAPIR_UNARY1(...) TAPIR_NONE
#define TAPIR_UNARY2(...) TAPIR_NONE
#define TAPIR_PREDICATE(...) TAPIR_NONE
#define TAPIR_BINARY(name, types, ...) TAPIR_ROW_##types(name)
#define TAPIR_COMPARE(name, ...) TAPIR_ROW_Number(name)
#define TAPIR_TERNARY(name, types, ...) TAPIR_ROW_##types(name)
#define TAPIR_RULE_ROWS
#include "tapir/ops/elementwise/elementwise.def"
}};

}  // namespace tapir::gpu
