// Gradients of element-wise rows as functions of g and of the saved tensors, in the order a, b, c, y.
#pragma once

#include "tapir/cuda/elementwise.cuh"

namespace tapir::gpu {

#define TAPIR_SCALAR __device__ __forceinline__
#include "tapir/ops/kernels/rule_functions.h"
#undef TAPIR_SCALAR

// Returns the place of a saved operand among the kernel's; 0, which is g, if it is not saved.
constexpr int place_of(int saves, int operand) {
    int place = 1;
    for (int lower = 1; lower < operand; lower <<= 1) place += (saves & lower) != 0;
    return saves & operand ? place : 0;
}
constexpr int count_of(int saves) { return (saves & 1) + (saves >> 1 & 1) + (saves >> 2 & 1) + (saves >> 3 & 1); }

template <class K, int saves, int operand, int N>
__device__ __forceinline__ K saved(const K (&in)[N]) {
    if constexpr ((saves & operand) != 0) {
        constexpr int place = place_of(saves, operand);
        return in[place];
    } else {
        return K(0);
    }
}

}  // namespace tapir::gpu

#define ZeroGrad K(0)
#define TAPIR_GRADIENT(function, saves, count, a, p0, p1, expression)                                                                \
    struct function {                                                                                                                \
        static constexpr int operands = 1 + count_of(saves), params = count;                                                         \
        static constexpr bool to_bool = false;                                                                                       \
        template <class K>                                                                                                           \
        __device__ __forceinline__ static K apply(const K (&in)[operands], [[maybe_unused]] K p0, [[maybe_unused]] K p1) {           \
            [[maybe_unused]] const Flow<K> g{in[0], in[0]};                                                                          \
            [[maybe_unused]] const K a = saved<K, saves, SaveA>(in), b = saved<K, saves, SaveB>(in), c = saved<K, saves, SaveC>(in), \
                                     y = saved<K, saves, SaveY>(in);                                                                 \
            return expression;                                                                                                       \
        }                                                                                                                            \
    };
#define TAPIR_PAIR(function) {launch_row<function, float>, launch_row<function, double>}
