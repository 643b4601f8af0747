// Common parts of the ways to sort. See sort.cu.
#pragma once

#include "tapir/cuda/allocator.h"
#include "tapir/cuda/sort_keys.cuh"
#include "tapir/ops/arrange/sort_kernels.h"

namespace tapir::gpu {

using kernels::SortArgs;

/// Returns where an element of a line is, in x or (with k for size) in the results.
__device__ __forceinline__ i64 element_at(i64 line, i64 j, i64 size, i64 inner) {
    if (inner == 1) return line * size + j;
    const i64 outer = line / inner;
    return (outer * size + j) * inner + (line - outer * inner);
}

void sort_long_lines(const SortArgs& args);

}  // namespace tapir::gpu
