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
TAPIR_WRAP1(trunc) TAPIR_WRAP1(lgamma)
TAPIR_WRAP2(pow) TAPIR_WRAP2(atan2) TAPIR_WRAP2(hypot) TAPIR_WRAP2(fmod) TAPIR_WRAP2(copysign)
#undef TAPIR_WRAP1
#undef TAPIR_WRAP2
__device__ __forceinline__ float round(float x) { return ::rintf(x); }  // halves to even
__device__ __forceinline__ double round(double x) { return ::rint(x); }
__device__ __forceinline__ float rsqrt(float x) { return ::rsqrtf(x); }
__device__ __forceinline__ double rsqrt(double x) { return ::rsqrt(x); }

#define TAPIR_SCALAR __device__ __forceinline__
#include "tapir/ops/kernels/scalar_functions.h"
#undef TAPIR_SCALAR

}  // namespace tapir::gpu
