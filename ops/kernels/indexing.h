// The loops of indexing: one run of elements at a time; dimensions, checks and dtypes are the callers' matter.
// Elements are told apart by their size in bytes (1, 2, 4 or 8) unless they are added. Steps are in elements.
#pragma once

#include <cstdint>

#include "tapir/ops/kernels/elementwise.h"

/// to[i] = mask[i] ? a[i] : b[i]
TAPIR_CPU_KERNEL(choose_run, void(unsigned size, std::int64_t n, const std::uint8_t* mask, std::int64_t mask_step,
                                  const void* a, std::int64_t a_step, const void* b, std::int64_t b_step, void* to))

// Elements at computed positions: number i is at index[i] * stride + i * step.

/// to[i] = from[position(i)]
TAPIR_CPU_KERNEL(gather_run, void(unsigned size, std::int64_t n, void* to, const void* from, const std::int64_t* index,
                                  std::int64_t stride, std::int64_t step))
/// to[position(i)] = from[i], in order: of equal positions the last wins.
TAPIR_CPU_KERNEL(scatter_run, void(unsigned size, std::int64_t n, void* to, const std::int64_t* index,
                                   std::int64_t stride, std::int64_t step, const void* from, std::int64_t from_step))
/// Takes back what scatter_run wrote: from the last to the first, to[i] = from[position(i)], which becomes 0. So of
/// equal positions the last gets the value, the others 0.
TAPIR_CPU_KERNEL(take_run, void(unsigned size, std::int64_t n, void* to, void* from, const std::int64_t* index,
                                std::int64_t stride, std::int64_t step))
/// to[position(i)] += from[i], in order.
TAPIR_CPU_KERNEL(scatter_add_run,
                 void(tapir::kernels::Compute type, std::int64_t n, void* to, const std::int64_t* index,
                      std::int64_t stride, std::int64_t step, const void* from, std::int64_t from_step))
/// to[i] += from[i]
TAPIR_CPU_KERNEL(add_run, void(tapir::kernels::Compute type, std::int64_t n, void* to, std::int64_t to_step,
                               const void* from, std::int64_t from_step))
/// The smallest and the largest of n > 0 indices.
TAPIR_CPU_KERNEL(index_range, void(const std::int64_t* index, std::int64_t n, std::int64_t* low, std::int64_t* high))
