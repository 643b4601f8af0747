// Scalar functions for kernels, in the namespace of the instruction set; loops over them are vectorised.
//
// gcc calls glibc's vector library (libmvec) for functions declared with the simd attribute; they err by 1 to 4 units
// in the last place, and are right at nan, infinities and the ends. These declarations replace <cmath>, which must not
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
#define TAPIR_DECLARE1(name)                    \
    TAPIR_VECTOR float name##f(float) noexcept; \
    TAPIR_VECTOR double name(double) noexcept;
#define TAPIR_DECLARE2(name)                           \
    TAPIR_VECTOR float name##f(float, float) noexcept; \
    TAPIR_VECTOR double name(double, double) noexcept;
extern "C" {
// clang-format off
TAPIR_DECLARE1(exp) TAPIR_DECLARE1(exp2) TAPIR_DECLARE1(expm1) TAPIR_DECLARE1(log) TAPIR_DECLARE1(log2)
TAPIR_DECLARE1(log10) TAPIR_DECLARE1(log1p) TAPIR_DECLARE1(sin) TAPIR_DECLARE1(cos) TAPIR_DECLARE1(tan)
TAPIR_DECLARE1(asin) TAPIR_DECLARE1(acos) TAPIR_DECLARE1(atan) TAPIR_DECLARE1(sinh) TAPIR_DECLARE1(cosh)
TAPIR_DECLARE1(tanh) TAPIR_DECLARE1(asinh) TAPIR_DECLARE1(acosh) TAPIR_DECLARE1(atanh) TAPIR_DECLARE1(erf)
TAPIR_DECLARE1(erfc) TAPIR_DECLARE2(pow) TAPIR_DECLARE2(atan2) TAPIR_DECLARE2(hypot)
float lgammaf_r(float, int*) noexcept;
double lgamma_r(double, int*) noexcept;
// clang-format on
}

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

#define TAPIR_WRAP1(name)                               \
    inline float name(float x) { return ::name##f(x); } \
    inline double name(double x) { return ::name(x); }
#define TAPIR_WRAP2(name)                                           \
    inline float name(float a, float b) { return ::name##f(a, b); } \
    inline double name(double a, double b) { return ::name(a, b); }
// clang-format off
TAPIR_WRAP1(exp) TAPIR_WRAP1(exp2) TAPIR_WRAP1(expm1) TAPIR_WRAP1(log) TAPIR_WRAP1(log2) TAPIR_WRAP1(log10)
TAPIR_WRAP1(log1p) TAPIR_WRAP1(sin) TAPIR_WRAP1(cos) TAPIR_WRAP1(tan) TAPIR_WRAP1(asin) TAPIR_WRAP1(acos)
TAPIR_WRAP1(atan) TAPIR_WRAP1(sinh) TAPIR_WRAP1(cosh) TAPIR_WRAP1(tanh) TAPIR_WRAP1(asinh) TAPIR_WRAP1(acosh)
TAPIR_WRAP1(atanh) TAPIR_WRAP1(erfc)
TAPIR_WRAP2(pow) TAPIR_WRAP2(atan2) TAPIR_WRAP2(hypot)
#undef TAPIR_WRAP1
#undef TAPIR_WRAP2
#undef TAPIR_DECLARE1
#undef TAPIR_DECLARE2

inline float sqrt(float x) { return __builtin_sqrtf(x); }
// clang-format on
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
inline float copysign(float a, float b) { return __builtin_copysignf(a, b); }
inline double copysign(double a, double b) { return __builtin_copysign(a, b); }
inline double erf(double x) { return ::erf(x); }
// x times a rational function of x^2, fitted to erf on [0, 3.93], where float32 rounds to 1: it errs by less than 5 * 2^-24 of the result,
// and takes a third of libmvec's time.
inline float erf(float x) {
    const float s = x * x;
    float p = 2.041957249163839e-06f;
    p = p * s + 2.847853757479417e-04f;
    p = p * s + 3.778971341089711e-03f;
    p = p * s + 5.278827176845534e-02f;
    p = p * s + 1.9077022987204195e-01f;
    p = p * s + 1.1283791455518577f;
    float q = 3.800272285907303e-05f;
    q = q * s + 1.1650417930831848e-03f;
    q = q * s + 1.499616077093599e-02f;
    q = q * s + 1.1425170715519466e-01f;
    q = q * s + 5.023984371258302e-01f;
    q = q * s + 1.0f;
    const float y = x * p / q;
    return x > 3.92f ? 1.0f : x < -3.92f ? -1.0f : y;
}
// lgamma itself writes the sign to a variable that all threads share.
inline float lgamma(float x) {
    int sign;
    return ::lgammaf_r(x, &sign);
}
inline double lgamma(double x) {
    int sign;
    return ::lgamma_r(x, &sign);
}

template <class T>
inline T rsqrt(T x) {
    return T(1) / sqrt(x);
}

#define TAPIR_SCALAR inline
#include "tapir/ops/kernels/scalar_functions.h"
#undef TAPIR_SCALAR

}  // namespace
}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
