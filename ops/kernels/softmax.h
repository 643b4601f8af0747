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
    const void* x;  // backward: the result of the forward pass
    const void* g;  // backward only
    void* out;
};

}  // namespace tapir::kernels

TAPIR_CPU_KERNEL(softmax, void(const tapir::kernels::SoftmaxArgs& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(softmax_backward, void(const tapir::kernels::SoftmaxArgs& args, std::int64_t begin, std::int64_t end))
/// inner is 1, and out has one element a line.
TAPIR_CPU_KERNEL(logsumexp, void(const tapir::kernels::SoftmaxArgs& args, std::int64_t begin, std::int64_t end))

/// Of any floating dtype, which the result has too. `lines`: all of them. logsumexp takes any inner.
TAPIR_GPU_KERNEL(softmax, void(const tapir::kernels::SoftmaxArgs& args, std::int64_t lines))
TAPIR_GPU_KERNEL(softmax_backward, void(const tapir::kernels::SoftmaxArgs& args, std::int64_t lines))
TAPIR_GPU_KERNEL(logsumexp, void(const tapir::kernels::SoftmaxArgs& args, std::int64_t lines))
/// out = g exp(x - y), 0 where y is -inf; g and y have one element a line.
TAPIR_GPU_KERNEL(logsumexp_backward, void(const tapir::kernels::SoftmaxArgs& args, const void* y, std::int64_t lines))
