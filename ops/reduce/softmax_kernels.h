// Kernels of softmax, its logarithm and logsumexp, on lines of contiguous float32 or float64 tensors.
#pragma once

#include <cstdint>

#include "tapir/core/dtype.h"
#include "tapir/ops/cpu/isa.h"
#include "tapir/ops/kernels/gpu.h"

namespace tapir::kernels {

/// Contiguous tensors seen as (outer, size, inner); lines are counted as outer * inner.
struct SoftmaxArgs {
    DType dtype;
    bool log;
    std::int64_t size, inner;
    const void* x;  // backward: the forward result
    const void* g;  // backward only
    void* out;
    /// Causal rows (softmax only, inner 1, not log), in groups of `queries`: row r of a group takes its first first + r + 1
    /// elements, and 0 behind them. queries 0: all of every line.
    std::int64_t queries = 0, first = 0;
};

/// Returns the number of elements that line `line` takes, at least one.
constexpr std::int64_t seen_by(const SoftmaxArgs& args, std::int64_t line) {
    if (args.queries == 0) return args.size;
    const std::int64_t seen = args.first + line % args.queries + 1;
    return seen < args.size ? seen : args.size;
}

}  // namespace tapir::kernels

/// `count` lines. On the CPU of float32 and float64; on a GPU of any floating dtype, which the result has too.
TAPIR_KERNEL(softmax, const tapir::kernels::SoftmaxArgs& args)
TAPIR_KERNEL(softmax_backward, const tapir::kernels::SoftmaxArgs& args)
/// out has one element a line. On the CPU inner is 1.
TAPIR_KERNEL(logsumexp, const tapir::kernels::SoftmaxArgs& args)
/// out = g exp(x - y), 0 where y is -inf; g and y have one element a line. On the CPU inner is 1.
TAPIR_KERNEL(logsumexp_backward, const tapir::kernels::SoftmaxArgs& args, const void* y)
