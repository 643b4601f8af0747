// Sums over whole arrays, as double. The sums of blocks are added in the order of the blocks, so they are the same each time.
//
//     struct Terms {
//         static constexpr int count;                                         // of sums
//         void add(i64 first, i64 step, i64 n, double (&sum)[count]) const;   // a thread's: first, first + step, ... < n
//         void finish(const double (&sum)[count]) const;                      // one thread writes the result
//     };
#pragma once

#include <algorithm>

#include "tapir/cuda/allocator.h"
#include "tapir/cuda/device.cuh"

namespace tapir::gpu {

template <class Terms>
__device__ __forceinline__ void finish_totals(const Terms& terms, double (&sum)[Terms::count], double* of_blocks) {
    for (int s = 0; s < Terms::count; ++s) sum[s] = block_reduce(sum[s], Sum{}, 0.0);
    if (threadIdx.x != 0) return;
    if (!of_blocks) return terms.finish(sum);
    for (int s = 0; s < Terms::count; ++s) of_blocks[blockIdx.x * Terms::count + s] = sum[s];
}

/// of_blocks is null if there is one block.
template <class Terms>
__global__ void __launch_bounds__(kThreads) total_kernel(Terms terms, i64 n, double* of_blocks) {
    double sum[Terms::count] = {};
    terms.add(global_index(), global_threads(), n, sum);
    finish_totals(terms, sum, of_blocks);
}

template <class Terms>
__global__ void __launch_bounds__(kThreads) total_of_blocks_kernel(Terms terms, int blocks, const double* of_blocks) {
    double sum[Terms::count] = {};
    for (int b = static_cast<int>(threadIdx.x); b < blocks; b += kThreads) {
        for (int s = 0; s < Terms::count; ++s) sum[s] += of_blocks[b * Terms::count + s];
    }
    finish_totals(terms, sum, nullptr);
}

/// n is the number of steps in all; it may be 0.
template <class Terms>
void run_totals(const Terms& terms, i64 n) {
    constexpr i64 steps_of_thread = 4;  // at least, except for the last threads
    const i64 wanted = (n + kThreads * steps_of_thread - 1) / (kThreads * steps_of_thread);
    const auto blocks = static_cast<unsigned>(std::clamp<i64>(wanted, 1, 8 * i64{multiprocessors()}));
    if (blocks == 1) return launch(total_kernel<Terms>, 1, kThreads, terms, n, nullptr);
    const Scratch of_blocks(blocks * Terms::count * sizeof(double));
    launch(total_kernel<Terms>, blocks, kThreads, terms, n, of_blocks.as<double>());
    launch(total_of_blocks_kernel<Terms>, 1, kThreads, terms, static_cast<int>(blocks), of_blocks.as<double>());
}

}  // namespace tapir::gpu
