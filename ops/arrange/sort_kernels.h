// Sorting along one dimension, on devices; the CPU's is in ops/sort.cpp.
#pragma once

#include <cstdint>

#include "tapir/core/dtype.h"
#include "tapir/ops/kernels/gpu.h"

namespace tapir::kernels {

/// The first k of the sorted elements of each line of x, which is contiguous: (outer, size, inner), outer * inner
/// lines.
struct SortArgs {
    DType dtype;
    const void* x;
    void* values;  // (outer, k, inner), may be null
    std::int64_t* indices;
    std::int64_t lines, size, inner;
    std::int64_t k;  // not 0
    bool descending;
};

}  // namespace tapir::kernels

TAPIR_GPU_KERNEL(sort, void(const tapir::kernels::SortArgs& args))
