// Functions whose loops have no branches for most numbers. A block of numbers among which there are others is computed one by one.
// For elementwise_forward_cpu.cpp.
#pragma once

#include "tapir/ops/cpu/math_impl.h"
#include "tapir/ops/elementwise/elementwise_kernels.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

template <class T>
constexpr bool is_floating_type = __is_same(T, float) || __is_same(T, double);

// fmod(a, b) of finite numbers whose quotient is below 1 / epsilon. The rounded quotient is at most one too large; the rest has no
// rounding error, as a fused multiply-add computes it.
template <class T>
bool has_short_quotient(T a, T b) {
    constexpr bool is_float = __is_same(T, float);
    constexpr T limit = is_float ? T(0x1p23) : T(0x1p52), largest = is_float ? T(__FLT_MAX__) : T(__DBL_MAX__);
    return abs(a / b) < limit && abs(b) <= largest;
}
template <class T>
T short_fmod(T a, T b) {
    const T quotient = trunc(a / b);
    T rest;
    if constexpr (__is_same(T, float)) {
        rest = __builtin_fmaf(-quotient, b, a);
    } else {
        rest = __builtin_fma(-quotient, b, a);
    }
    const bool is_beyond = rest != 0 && (rest < 0) != (a < 0);
    return copysign(is_beyond ? abs(b) - abs(rest) : abs(rest), a);
}

// log(gamma(x)) for x > 0, in double: x < 8 is moved up by 8 first, then Stirling's series (NIST Digital Library of Mathematical Functions,
// 5.11.1), of which 7 terms leave 1e-15.
inline double positive_lgamma(double x) {
    const bool is_small = x < 8;
    const double product = x * (x + 1) * ((x + 2) * (x + 3)) * ((x + 4) * (x + 5) * ((x + 6) * (x + 7)));
    const double z = is_small ? x + 8 : x, inverse = 1 / z, s = inverse * inverse;
    const double series =
        inverse * (1.0 / 12 - s * (1.0 / 360 - s * (1.0 / 1260 - s * (1.0 / 1680 - s * (1.0 / 1188 - s * (691.0 / 360360 - s * (1.0 / 156)))))));
    constexpr double half_log_2pi = 0.91893853320467274178;
    return (z - 0.5) * log(z) - z + (half_log_2pi + series) - log(is_small ? product : 1.0);
}

// The derivative of log(gamma(x)) for x > 0, in double: x < 10 is moved up by 10. The sum of 1 / (x + k) is p' / p, where p is their product.
inline double positive_digamma(double x) {
    const bool is_small = x < 10;
    double product = x, slope = 1;
    for (int k = 1; k < 10; ++k) {
        slope = slope * (x + k) + product;
        product *= x + k;
    }
    const double z = is_small ? x + 10 : x, inverse = 1 / z;
    return log(z) - 0.5 * inverse - digamma_series(inverse * inverse) - (is_small ? slope / product : 0.0);
}

// The functions of the rows, which elementwise_forward_cpu.cpp makes.
struct fmod_forward;
struct remainder_forward;
struct floor_divide_forward;
struct lgamma_forward;
struct digamma_forward;

// Quick<F, T>: is_there, fits(numbers), and apply(numbers) for those that fit, with the result of F::apply but for the last digits.
template <class F, class T>
struct Quick {
    static constexpr bool is_there = false;
};

#if defined(__FMA__)
#define TAPIR_QUICK_DIVISION(name, result)                              \
    template <class T>                                                  \
        requires is_floating_type<T>                                    \
    struct Quick<name##_forward, T> {                                   \
        static constexpr bool is_there = true;                          \
        static bool fits(T a, T b) { return has_short_quotient(a, b); } \
        static T apply(T a, T b) {                                      \
            const T rest = short_fmod(a, b);                            \
            return result;                                              \
        }                                                               \
    };
TAPIR_QUICK_DIVISION(fmod, rest)
TAPIR_QUICK_DIVISION(remainder, remainder_of(rest, b))
TAPIR_QUICK_DIVISION(floor_divide, floor_of_quotient(a, b, rest))
#undef TAPIR_QUICK_DIVISION
#endif

// Float32 alone: double has no digits to spare. Near its zeros 1 and 2 lgamma loses digits to cancellation.
template <>
struct Quick<lgamma_forward, float> {
    static constexpr bool is_there = true;
    static bool fits(float x) { return x > 0 && x < 1e30f && abs(x - 1) > 0x1p-10f && abs(x - 2) > 0x1p-10f; }
    static float apply(float x) { return static_cast<float>(positive_lgamma(static_cast<double>(x))); }
};
template <>
struct Quick<digamma_forward, float> {
    static constexpr bool is_there = true;
    static bool fits(float x) { return x > 0 && x < 1e30f; }
    static float apply(float x) { return static_cast<float>(positive_digamma(static_cast<double>(x))); }
};

// y[i] = F::apply(x[i]...) for a block of kLanes numbers after the other.
template <class F, class T, class... In>
void in_quick_blocks(std::int64_t n, T* y, const In*... x) {
    for (std::int64_t first = 0; first < n; first += kLanes) {
        int others = 0;
#pragma omp simd reduction(+ : others)
        for (int i = 0; i < kLanes; ++i) others += !Quick<F, T>::fits(x[first + i]...);
        if (others == 0) {
#pragma omp simd
            for (int i = 0; i < kLanes; ++i) y[first + i] = Quick<F, T>::apply(x[first + i]...);
        } else {
            for (int i = 0; i < kLanes; ++i) y[first + i] = F::apply(x[first + i]...);
        }
    }
}

}  // namespace
}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
