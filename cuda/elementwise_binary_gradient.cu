// Gradient kernels of the rows with two and three operands.
#include "tapir/cuda/elementwise_gradient.cuh"

namespace tapir::gpu {
namespace {

#define TAPIR_BINARY(name, types, saves, onnx, low, high, doc, forward, backward_a, backward_b) \
    TAPIR_GRADIENT(name##_backward_a, saves, 0, a, unused0, unused1, backward_a)                \
    TAPIR_GRADIENT(name##_backward_b, saves, 0, a, unused0, unused1, backward_b)
#define TAPIR_TERNARY(name, types, saves, onnx, low, high, doc, forward, backward_a, backward_b, backward_c) \
    TAPIR_GRADIENT(name##_backward_a, saves, 0, a, unused0, unused1, backward_a)                             \
    TAPIR_GRADIENT(name##_backward_b, saves, 0, a, unused0, unused1, backward_b)                             \
    TAPIR_GRADIENT(name##_backward_c, saves, 0, a, unused0, unused1, backward_c)
#define TAPIR_RULE_ROWS
#include "tapir/ops/elementwise/elementwise.def"

}  // namespace

extern const GradientLaunchers binary_gradient_launchers = {{
#define TAPIR_UNARY0(...) {},
#define TAPIR_UNARY1(...) {},
#define TAPIR_UNARY2(...) {},
#define TAPIR_PREDICATE(...) {},
#define TAPIR_BINARY(name, ...) {TAPIR_PAIR(name##_backward_a), TAPIR_PAIR(name##_backward_b)},
#define TAPIR_COMPARE(...) {},
#define TAPIR_TERNARY(name, ...) {TAPIR_PAIR(name##_backward_a), TAPIR_PAIR(name##_backward_b), TAPIR_PAIR(name##_backward_c)},
#define TAPIR_RULE_ROWS
#include "tapir/ops/elementwise/elementwise.def"
}};

}  // namespace tapir::gpu
