// Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): the words of Note [The numbers of a
// draw] in core/generator.h.
#pragma once

#include "tapir/cuda/device.cuh"
#include "tapir/cuda/unroll.cuh"
#include "tapir/ops/random/random_kernels.h"

namespace tapir::gpu {

/// Computes the four words of one counter, of stream 0.
__device__ __forceinline__ void philox(u64 seed, u64 counter, u32* words) {
    u32 c0 = static_cast<u32>(counter), c1 = static_cast<u32>(counter >> 32), c2 = 0, c3 = 0;
    u32 k0 = static_cast<u32>(seed), k1 = static_cast<u32>(seed >> 32);
    TAPIR_UNROLL
    for (int round = 0; round < 10; ++round) {
        const u64 p0 = u64{0xD2511F53} * c0, p1 = u64{0xCD9E8D57} * c2;
        c0 = static_cast<u32>(p1 >> 32) ^ c1 ^ k0;
        c2 = static_cast<u32>(p0 >> 32) ^ c3 ^ k1;
        c1 = static_cast<u32>(p1);
        c3 = static_cast<u32>(p0);
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

/// Holds the words of `Counters` counters, from counter number `first` of a draw on.
template <int Counters>
__device__ __forceinline__ void draw_words(const kernels::Draw& draw, i64 first, u32 (&words)[4 * Counters]) {
    TAPIR_UNROLL
    for (int c = 0; c < Counters; ++c) philox(draw.seed, draw.counter + static_cast<u64>(first + c), words + 4 * c);
}

}  // namespace tapir::gpu
