// TAPIR_UNROLL before a loop makes each round code of its own, so that arrays indexed by it can stay in registers.
// TAPIR_ROLLED prevents that: it keeps code small that is in hundreds of kernels.
#pragma once

#ifdef __CUDACC__
#define TAPIR_UNROLL _Pragma("unroll")
#define TAPIR_ROLLED _Pragma("unroll 1")
#else
#define TAPIR_UNROLL
#define TAPIR_ROLLED
#endif
