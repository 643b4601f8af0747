// Forward kernels of the rows with one operand.
#include "tapir/cuda/elementwise.cuh"
#include "tapir/cuda/elementwise_functions.cuh"

namespace tapir::gpu {

extern const ForwardLaunchers unary_launchers = {{
#define TAPIR_UNARY0(name, types, ...) TAPIR_ROW_##types(name)
#define TAPIR_UNARY1(name, p0, d0, types, ...) TAPIR_ROW_##types(name)
#define TAPIR_UNARY2(name, p0, d0, p1, d1, types, ...) TAPIR_ROW_##types(name)
#define TAPIR_PREDICATE(name, ...) TAPIR_ROW_Number(name)
#define TAPIR_BINARY(...) TAPIR_NONE
#define TAPIR_COMPARE(...) TAPIR_NONE
#define TAPIR_TERNARY(...) TAPIR_NONE
#define TAPIR_RULE_ROWS
#include "tapir/ops/elementwise/elementwise.def"
}};

}  // namespace tapir::gpu
