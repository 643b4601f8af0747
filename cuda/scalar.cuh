// Scalar functions by the names in elementwise.def's rows, without what NVRTC lacks: math.cuh for nvcc, fused.cuh for NVRTC.
#pragma once

#include "tapir/cuda/positions.cuh"

#ifdef __CUDACC_RTC__  // it has none of these
namespace tapir::gpu {
template <class A, class B>
inline constexpr bool are_same = false;
template <class A>
inline constexpr bool are_same<A, A> = true;
}  // namespace tapir::gpu
#define __is_same(A, B) ::tapir::gpu::are_same<A, B>
#define __builtin_inf() __longlong_as_double(0x7ff0000000000000ll)
#define __builtin_nan(text) __longlong_as_double(0x7ff8000000000000ll)
#endif

namespace tapir::gpu {

#define TAPIR_WRAP1(name)                                                   \
    __device__ __forceinline__ float name(float x) { return ::name##f(x); } \
    __device__ __forceinline__ double name(double x) { return ::name(x); }
#define TAPIR_WRAP2(name)                                                               \
    __device__ __forceinline__ float name(float a, float b) { return ::name##f(a, b); } \
    __device__ __forceinline__ double name(double a, double b) { return ::name(a, b); }
// clang-format off
TAPIR_WRAP1(exp) TAPIR_WRAP1(exp2) TAPIR_WRAP1(expm1) TAPIR_WRAP1(log) TAPIR_WRAP1(log2) TAPIR_WRAP1(log10)
TAPIR_WRAP1(log1p) TAPIR_WRAP1(sin) TAPIR_WRAP1(cos) TAPIR_WRAP1(tan) TAPIR_WRAP1(asin) TAPIR_WRAP1(acos)
TAPIR_WRAP1(atan) TAPIR_WRAP1(sinh) TAPIR_WRAP1(cosh) TAPIR_WRAP1(tanh) TAPIR_WRAP1(asinh) TAPIR_WRAP1(acosh)
TAPIR_WRAP1(atanh) TAPIR_WRAP1(erf) TAPIR_WRAP1(erfc) TAPIR_WRAP1(sqrt) TAPIR_WRAP1(floor) TAPIR_WRAP1(ceil)
TAPIR_WRAP1(trunc) TAPIR_WRAP1(lgamma)
TAPIR_WRAP2(pow) TAPIR_WRAP2(atan2) TAPIR_WRAP2(hypot) TAPIR_WRAP2(fmod) TAPIR_WRAP2(copysign)
#undef TAPIR_WRAP1
#undef TAPIR_WRAP2
__device__ __forceinline__ float round(float x) { return ::rintf(x); }  // halves to even
__device__ __forceinline__ double round(double x) { return ::rint(x); }
__device__ __forceinline__ float rsqrt(float x) { return ::rsqrtf(x); }
__device__ __forceinline__ double rsqrt(double x) { return ::rsqrt(x); }

// clang-format on
#define TAPIR_SCALAR __device__ __forceinline__
#include "tapir/ops/kernels/scalar_functions.h"
#undef TAPIR_SCALAR

}  // namespace tapir::gpu
