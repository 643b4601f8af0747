// Scalar functions as the rows of elementwise.def name them, for float, double and integers.
#pragma once

#include <cmath>

#include "tapir/cuda/device.cuh"

namespace tapir::gpu {

#define TAPIR_WRAP1(name)                                                              \
    __device__ __forceinline__ float name(float x) { return ::name##f(x); }           \
    __device__ __forceinline__ double name(double x) { return ::name(x); }
#define TAPIR_WRAP2(name)                                                                      \
    __device__ __forceinline__ float name(float a, float b) { return ::name##f(a, b); }       \
    __device__ __forceinline__ double name(double a, double b) { return ::name(a, b); }
TAPIR_WRAP1(exp) TAPIR_WRAP1(exp2) TAPIR_WRAP1(expm1) TAPIR_WRAP1(log) TAPIR_WRAP1(log2) TAPIR_WRAP1(log10)
TAPIR_WRAP1(log1p) TAPIR_WRAP1(sin) TAPIR_WRAP1(cos) TAPIR_WRAP1(tan) TAPIR_WRAP1(asin) TAPIR_WRAP1(acos)
TAPIR_WRAP1(atan) TAPIR_WRAP1(sinh) TAPIR_WRAP1(cosh) TAPIR_WRAP1(tanh) TAPIR_WRAP1(asinh) TAPIR_WRAP1(acosh)
TAPIR_WRAP1(atanh) TAPIR_WRAP1(erf) TAPIR_WRAP1(erfc) TAPIR_WRAP1(sqrt) TAPIR_WRAP1(floor) TAPIR_WRAP1(ceil)
TAPIR_WRAP1(trunc)
TAPIR_WRAP2(pow) TAPIR_WRAP2(atan2) TAPIR_WRAP2(hypot) TAPIR_WRAP2(fmod)
#undef TAPIR_WRAP1
#undef TAPIR_WRAP2
__device__ __forceinline__ float round(float x) { return ::rintf(x); }  // halves to even
__device__ __forceinline__ double round(double x) { return ::rint(x); }
__device__ __forceinline__ float rsqrt(float x) { return ::rsqrtf(x); }
__device__ __forceinline__ double rsqrt(double x) { return ::rsqrt(x); }

template <class T>
concept Int = std::is_same_v<T, i32> || std::is_same_v<T, i64>;
#define TAPIR_UNCHANGED(name)                                                \
    template <Int T>                                                         \
    __device__ __forceinline__ T name(T x) {                                 \
        return x;                                                            \
    }
TAPIR_UNCHANGED(floor) TAPIR_UNCHANGED(ceil) TAPIR_UNCHANGED(trunc) TAPIR_UNCHANGED(round)
#undef TAPIR_UNCHANGED
// Division by zero gives 0, as on the CPU.
template <Int T>
__device__ __forceinline__ T fmod(T a, T b) {
    return b == 0 || b == T(-1) ? T(0) : static_cast<T>(a % b);
}
template <class T>  // Python's %: the sign of b
__device__ __forceinline__ T remainder(T a, T b) {
    const T r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? static_cast<T>(r + b) : r;
}
template <class T>  // Python's //
__device__ __forceinline__ T floor_divide(T a, T b) {
    if constexpr (Int<T>) {
        if (b == 0) return 0;
        if (b == T(-1)) return static_cast<T>(-a);  // which wraps, where the division would trap
        return static_cast<T>(a / b - (a % b != 0 && (a < 0) != (b < 0)));
    } else {
        if (b == 0) return a / b;
        const T rest = fmod(a, b), whole = (a - rest) / b;  // nearly
        const T quotient = rest != 0 && (rest < 0) != (b < 0) ? whole - 1 : whole, down = floor(quotient);
        return quotient - down > T(0.5) ? down + 1 : down;
    }
}
template <Int T>
__device__ __forceinline__ T pow(T base, T exponent) {
    if (exponent < 0) return base == 1 ? T(1) : base == T(-1) ? (exponent & 1 ? T(-1) : T(1)) : T(0);
    T result = 1;
    for (; exponent; exponent = static_cast<T>(exponent >> 1)) {
        if (exponent & 1) result = static_cast<T>(result * base);
        base = static_cast<T>(base * base);
    }
    return result;
}

template <class T>
__device__ __forceinline__ T where(bool condition, T a, T b) {
    return condition ? a : b;
}
template <class T>
__device__ __forceinline__ T abs(T x) {
    return x < T(0) ? static_cast<T>(-x) : static_cast<T>(x + T(0));
}
template <class T>
__device__ __forceinline__ T sign(T x) {
    return x > T(0) ? T(1) : x < T(0) ? T(-1) : T(0);
}
template <class T>
__device__ __forceinline__ T square(T x) {
    return static_cast<T>(x * x);
}
template <class T>
__device__ __forceinline__ T sigmoid(T x) {
    return T(1) / (T(1) + exp(-x));
}
template <class T>
__device__ __forceinline__ T softplus(T x) {
    return x > T(20) ? x : log1p(exp(x));
}
template <class T>
__device__ __forceinline__ bool is_infinite(T x) {
    if constexpr (Int<T>) {
        return false;
    } else {
        return abs(x) == static_cast<T>(__builtin_inf());
    }
}
template <class T>
__device__ __forceinline__ bool is_finite(T x) {
    if constexpr (Int<T>) {
        return true;
    } else {
        return abs(x) < static_cast<T>(__builtin_inf());
    }
}

}  // namespace tapir::gpu
