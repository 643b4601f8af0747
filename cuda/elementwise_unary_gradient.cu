// Gradient kernels of the rows with one operand.
#include "tapir/cuda/elementwise_gradient.cuh"

namespace tapir::gpu {
namespace {

#define TAPIR_UNARY0(name, types, saves, onnx, low, high, doc, forward, backward) \
    TAPIR_GRADIENT(name##_backward, saves, 0, x, unused0, unused1, backward)
#define TAPIR_UNARY1(name, p0, d0, types, saves, onnx, low, high, doc, forward, backward) \
    TAPIR_GRADIENT(name##_backward, saves, 1, x, p0, unused1, backward)
#define TAPIR_UNARY2(name, p0, d0, p1, d1, types, saves, onnx, low, high, doc, forward, backward) \
    TAPIR_GRADIENT(name##_backward, saves, 2, x, p0, p1, backward)
#define TAPIR_RULE_ROWS
#include "tapir/ops/elementwise/elementwise.def"

}  // namespace

extern const GradientLaunchers unary_gradient_launchers = {{
#define TAPIR_UNARY0(name, ...) {TAPIR_PAIR(name##_backward)},
#define TAPIR_UNARY1(name, ...) {TAPIR_PAIR(name##_backward)},
#define TAPIR_UNARY2(name, ...) {TAPIR_PAIR(name##_backward)},
#define TAPIR_PREDICATE(...) {},
#define TAPIR_BINARY(...) {},
#define TAPIR_COMPARE(...) {},
#define TAPIR_TERNARY(...) {},
#define TAPIR_RULE_ROWS
#include "tapir/ops/elementwise/elementwise.def"
}};

}  // namespace tapir::gpu
