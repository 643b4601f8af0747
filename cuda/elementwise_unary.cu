// Forward kernels of the rows with one operand.
#include "tapir/cuda/elementwise.cuh"

namespace tapir::gpu {
namespace {

#define TAPIR_FUNCTION(name, result, bool_result, count, parameters, expression)                    \
    struct name##_forward {                                                                         \
        static constexpr int operands = 1, params = count;                                          \
        static constexpr bool to_bool = bool_result;                                                \
        template <class K>                                                                          \
        __device__ __forceinline__ static result apply(const K (&in)[1], parameters) {              \
            const K x = in[0];                                                                      \
            return result(expression);                                                              \
        }                                                                                           \
    };
#define TAPIR_TWO(a, b) [[maybe_unused]] K a, [[maybe_unused]] K b
#define TAPIR_UNARY0(name, types, saves, onnx, low, high, doc, forward, ...) \
    TAPIR_FUNCTION(name, K, false, 0, TAPIR_TWO(unused0, unused1), forward)
#define TAPIR_UNARY1(name, p0, d0, types, saves, onnx, low, high, doc, forward, ...) \
    TAPIR_FUNCTION(name, K, false, 1, TAPIR_TWO(p0, unused1), forward)
#define TAPIR_UNARY2(name, p0, d0, p1, d1, types, saves, onnx, low, high, doc, forward, ...) \
    TAPIR_FUNCTION(name, K, false, 2, TAPIR_TWO(p0, p1), forward)
#define TAPIR_PREDICATE(name, onnx, doc, forward) \
    TAPIR_FUNCTION(name, bool, true, 0, TAPIR_TWO(unused0, unused1), forward)
#include "tapir/ops/elementwise.def"

}  // namespace

extern const ForwardLaunchers unary_launchers = {{
#define TAPIR_UNARY0(name, types, ...) TAPIR_ROW_##types(name)
#define TAPIR_UNARY1(name, p0, d0, types, ...) TAPIR_ROW_##types(name)
#define TAPIR_UNARY2(name, p0, d0, p1, d1, types, ...) TAPIR_ROW_##types(name)
#define TAPIR_PREDICATE(name, ...) TAPIR_ROW_Number(name)
#define TAPIR_BINARY(...) TAPIR_NONE
#define TAPIR_COMPARE(...) TAPIR_NONE
#define TAPIR_TERNARY(...) TAPIR_NONE
#include "tapir/ops/elementwise.def"
}};

}  // namespace tapir::gpu
