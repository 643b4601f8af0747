// TAPIR_UNROLL before a loop: each of its rounds becomes code of its own, so that what it indexes can stay in registers.
// TAPIR_ROLLED: none does, which keeps code small that is in hundreds of kernels.
#pragma once

#ifdef __CUDACC__
#define TAPIR_UNROLL _Pragma("unroll")
#define TAPIR_ROLLED _Pragma("unroll 1")
#else
#define TAPIR_UNROLL
#define TAPIR_ROLLED
#endif
