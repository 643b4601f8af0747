// Forward kernels of the rows with two and three operands.
#include "tapir/cuda/elementwise.cuh"

namespace tapir::gpu {
namespace {

#define TAPIR_FUNCTION2(name, result, bool_result, expression)                               \
    struct name##_forward {                                                                  \
        static constexpr int operands = 2, params = 0;                                       \
        static constexpr bool to_bool = bool_result;                                         \
        template <class K>                                                                   \
        __device__ __forceinline__ static result apply(const K (&in)[2], K, K) {             \
            const K a = in[0], b = in[1];                                                    \
            return result(expression);                                                       \
        }                                                                                    \
    };
#define TAPIR_BINARY(name, types, saves, onnx, low, high, doc, forward, ...) TAPIR_FUNCTION2(name, K, false, forward)
#define TAPIR_COMPARE(name, onnx, doc, forward) TAPIR_FUNCTION2(name, bool, true, forward)
#define TAPIR_TERNARY(name, types, saves, onnx, low, high, doc, forward, ...)                \
    struct name##_forward {                                                                  \
        static constexpr int operands = 3, params = 0;                                       \
        static constexpr bool to_bool = false;                                               \
        template <class K>                                                                   \
        __device__ __forceinline__ static K apply(const K (&in)[3], K, K) {                  \
            const K a = in[0], b = in[1], c = in[2];                                         \
            return K(forward);                                                               \
        }                                                                                    \
    };
#include "tapir/ops/elementwise.def"

}  // namespace

extern const ForwardLaunchers binary_launchers = {{
#define TAPIR_UNARY0(...) TAPIR_NONE
#define TAPIR_UNARY1(...) TAPIR_NONE
#define TAPIR_UNARY2(...) TAPIR_NONE
#define TAPIR_PREDICATE(...) TAPIR_NONE
#define TAPIR_BINARY(name, types, ...) TAPIR_ROW_##types(name)
#define TAPIR_COMPARE(name, ...) TAPIR_ROW_Number(name)
#define TAPIR_TERNARY(name, types, ...) TAPIR_ROW_##types(name)
#include "tapir/ops/elementwise.def"
}};

}  // namespace tapir::gpu
