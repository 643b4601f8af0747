// Functions of numbers for the rows of elementwise.def, NAME_forward::apply: for nvcc's kernels, and for those that NVRTC compiles.
#pragma once

#include "tapir/cuda/scalar.cuh"

namespace tapir::gpu {

#define TAPIR_FUNCTION(name, result, bool_result, count, parameters, expression)       \
    struct name##_forward {                                                            \
        static constexpr int operands = 1, params = count;                             \
        static constexpr bool to_bool = bool_result;                                   \
        template <class K>                                                             \
        __device__ __forceinline__ static result apply(const K (&in)[1], parameters) { \
            const K x = in[0];                                                         \
            return result(expression);                                                 \
        }                                                                              \
    };
#define TAPIR_TWO(a, b) [[maybe_unused]] K a, [[maybe_unused]] K b
#define TAPIR_UNARY0(name, types, saves, onnx, low, high, doc, forward, ...) TAPIR_FUNCTION(name, K, false, 0, TAPIR_TWO(unused0, unused1), forward)
#define TAPIR_UNARY1(name, p0, d0, types, saves, onnx, low, high, doc, forward, ...) \
    TAPIR_FUNCTION(name, K, false, 1, TAPIR_TWO(p0, unused1), forward)
#define TAPIR_UNARY2(name, p0, d0, p1, d1, types, saves, onnx, low, high, doc, forward, ...) \
    TAPIR_FUNCTION(name, K, false, 2, TAPIR_TWO(p0, p1), forward)
#define TAPIR_PREDICATE(name, onnx, doc, forward) TAPIR_FUNCTION(name, bool, true, 0, TAPIR_TWO(unused0, unused1), forward)
#define TAPIR_FUNCTION2(name, result, bool_result, expression)                   \
    struct name##_forward {                                                      \
        static constexpr int operands = 2, params = 0;                           \
        static constexpr bool to_bool = bool_result;                             \
        template <class K>                                                       \
        __device__ __forceinline__ static result apply(const K (&in)[2], K, K) { \
            const K a = in[0], b = in[1];                                        \
            return result(expression);                                           \
        }                                                                        \
    };
#define TAPIR_BINARY(name, types, saves, onnx, low, high, doc, forward, ...) TAPIR_FUNCTION2(name, K, false, forward)
#define TAPIR_COMPARE(name, onnx, doc, forward) TAPIR_FUNCTION2(name, bool, true, forward)
#define TAPIR_TERNARY(name, types, saves, onnx, low, high, doc, forward, ...) \
    struct name##_forward {                                                   \
        static constexpr int operands = 3, params = 0;                        \
        static constexpr bool to_bool = false;                                \
        template <class K>                                                    \
        __device__ __forceinline__ static K apply(const K (&in)[3], K, K) {   \
            const K a = in[0], b = in[1], c = in[2];                          \
            return K(forward);                                                \
        }                                                                     \
    };
#define TAPIR_RULE_ROWS
#include "tapir/ops/elementwise/elementwise.def"

#undef TAPIR_FUNCTION
#undef TAPIR_FUNCTION2
#undef TAPIR_TWO

}  // namespace tapir::gpu
