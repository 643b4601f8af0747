// TAPIR_UNROLL before a loop: each of its rounds becomes code of its own, so that what it indexes can stay in registers.
#pragma once

#ifdef __CUDACC__
#define TAPIR_UNROLL _Pragma("unroll")
#else
#define TAPIR_UNROLL
#endif
