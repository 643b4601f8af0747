// Scalar functions for kernels, in the namespace of the instruction set; loops over them are vectorised.
//
// gcc calls glibc's vector library (libmvec) for functions that are declared with the simd attribute, at 1 to 4 units
// in the last place and right at nan, infinities and the ends. These declarations stand in for <cmath>, which must not
// be included beside them.
#pragma once

#include <cstdint>

#ifndef TAPIR_ISA
#error "for files of ops/cpu/ only"
#endif

#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TAPIR_VECTOR __attribute__((simd("notinbranch"), const))
#else
#define TAPIR_VECTOR __attribute__((const))
#endif
#define TAPIR_DECLARE1(name)                         \
    TAPIR_VECTOR float name##f(float) noexcept;      \
    TAPIR_VECTOR double name(double) noexcept;
#define TAPIR_DECLARE2(name)                              \
    TAPIR_VECTOR float name##f(float, float) noexcept;    \
    TAPIR_VECTOR double name(double, double) noexcept;
extern "C" {
TAPIR_DECLARE1(exp) TAPIR_DECLARE1(exp2) TAPIR_DECLARE1(expm1) TAPIR_DECLARE1(log) TAPIR_DECLARE1(log2)
TAPIR_DECLARE1(log10) TAPIR_DECLARE1(log1p) TAPIR_DECLARE1(sin) TAPIR_DECLARE1(cos) TAPIR_DECLARE1(tan)
TAPIR_DECLARE1(asin) TAPIR_DECLARE1(acos) TAPIR_DECLARE1(atan) TAPIR_DECLARE1(sinh) TAPIR_DECLARE1(cosh)
TAPIR_DECLARE1(tanh) TAPIR_DECLARE1(asinh) TAPIR_DECLARE1(acosh) TAPIR_DECLARE1(atanh) TAPIR_DECLARE1(erf)
TAPIR_DECLARE1(erfc) TAPIR_DECLARE2(pow) TAPIR_DECLARE2(atan2) TAPIR_DECLARE2(hypot)
}

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

#define TAPIR_WRAP1(name)                                               \
    inline float name(float x) { return ::name##f(x); }                 \
    inline double name(double x) { return ::name(x); }
#define TAPIR_WRAP2(name)                                               \
    inline float name(float a, float b) { return ::name##f(a, b); }     \
    inline double name(double a, double b) { return ::name(a, b); }
TAPIR_WRAP1(exp) TAPIR_WRAP1(exp2) TAPIR_WRAP1(expm1) TAPIR_WRAP1(log) TAPIR_WRAP1(log2) TAPIR_WRAP1(log10)
TAPIR_WRAP1(log1p) TAPIR_WRAP1(sin) TAPIR_WRAP1(cos) TAPIR_WRAP1(tan) TAPIR_WRAP1(asin) TAPIR_WRAP1(acos)
TAPIR_WRAP1(atan) TAPIR_WRAP1(sinh) TAPIR_WRAP1(cosh) TAPIR_WRAP1(tanh) TAPIR_WRAP1(asinh) TAPIR_WRAP1(acosh)
TAPIR_WRAP1(atanh) TAPIR_WRAP1(erf) TAPIR_WRAP1(erfc)
TAPIR_WRAP2(pow) TAPIR_WRAP2(atan2) TAPIR_WRAP2(hypot)
#undef TAPIR_WRAP1
#undef TAPIR_WRAP2
#undef TAPIR_DECLARE1
#undef TAPIR_DECLARE2

inline float sqrt(float x) { return __builtin_sqrtf(x); }
inline double sqrt(double x) { return __builtin_sqrt(x); }
inline float floor(float x) { return __builtin_floorf(x); }
inline double floor(double x) { return __builtin_floor(x); }
inline float ceil(float x) { return __builtin_ceilf(x); }
inline double ceil(double x) { return __builtin_ceil(x); }
inline float trunc(float x) { return __builtin_truncf(x); }
inline double trunc(double x) { return __builtin_trunc(x); }
inline float round(float x) { return __builtin_rintf(x); }  // the default rounding mode: halves to even
inline double round(double x) { return __builtin_rint(x); }
inline float fmod(float a, float b) { return __builtin_fmodf(a, b); }
inline double fmod(double a, double b) { return __builtin_fmod(a, b); }

template <class T>
concept Int = __is_same(T, std::int32_t) || __is_same(T, std::int64_t);
template <Int T> inline T floor(T x) { return x; }
template <Int T> inline T ceil(T x) { return x; }
template <Int T> inline T trunc(T x) { return x; }
template <Int T> inline T round(T x) { return x; }
// Division by zero gives 0 (and -1 is kept from trapping on the smallest integer).
template <Int T> inline T fmod(T a, T b) { return b == 0 || b == T(-1) ? T(0) : static_cast<T>(a % b); }
template <Int T>
inline T remainder(T a, T b) {
    const T r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? static_cast<T>(r + b) : r;
}
// Python's %: the sign of b. Unlike a - b * floor(a / b) right for large quotients.
inline float remainder(float a, float b) {
    const float r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
inline double remainder(double a, double b) {
    const double r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
// Python's //. By way of the remainder: the rounded quotient can be a whole number too large.
template <class T>
inline T floor_divide(T a, T b) {
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
inline T pow(T base, T exponent) {  // negative exponents: 1, -1 or 0, as the truncated result
    if (exponent < 0) return base == 1 ? T(1) : base == T(-1) ? (exponent & 1 ? T(-1) : T(1)) : T(0);
    T result = 1;
    for (; exponent; exponent = static_cast<T>(exponent >> 1)) {
        if (exponent & 1) result = static_cast<T>(result * base);
        base = static_cast<T>(base * base);
    }
    return result;
}

template <class T> inline T where(bool condition, T a, T b) { return condition ? a : b; }
template <class T> inline T abs(T x) { return where(x < T(0), static_cast<T>(-x), static_cast<T>(x + T(0))); }
template <class T> inline T sign(T x) { return where(x > T(0), T(1), where(x < T(0), T(-1), T(0))); }
template <class T> inline T square(T x) { return static_cast<T>(x * x); }
template <class T> inline T rsqrt(T x) { return T(1) / sqrt(x); }
template <class T> inline T sigmoid(T x) { return T(1) / (T(1) + exp(-x)); }
template <class T> inline T softplus(T x) { return where(x > T(20), x, log1p(exp(x))); }

template <class T> inline bool is_infinite(T x) {
    if constexpr (Int<T>) {
        return false;
    } else {
        return abs(x) == static_cast<T>(__builtin_inf());
    }
}
template <class T> inline bool is_finite(T x) {
    if constexpr (Int<T>) {
        return true;
    } else {
        return abs(x) < static_cast<T>(__builtin_inf());
    }
}

}  // namespace
}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
