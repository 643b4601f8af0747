// Kernels that fill arrays with random numbers. Note [The numbers of a draw] in core/generator.h states their order.
#pragma once

#include <cstdint>

#include "tapir/core/dtype.h"
#include "tapir/ops/cpu/isa.h"
#include "tapir/ops/kernels/gpu.h"

namespace tapir::kernels {

/// A draw, or a part of one: `counter` is the counter of its first element.
struct Draw {
    std::uint64_t seed;
    std::uint64_t counter;
};

/// y[i] = keep[i] ? x[i] * scale : 0, floating dtypes, where keep[i] is 1 with probability p_keep.
struct DropoutArgs {
    DType dtype;
    const void* x;
    std::uint8_t* keep;  // null: not wanted
    void* y;
    std::int64_t n;  // not 0
    Draw draw;
    double p_keep, scale;
};

}  // namespace tapir::kernels

/// Writes the first n 32-bit words.
TAPIR_CPU_KERNEL(random_words, void(tapir::kernels::Draw draw, std::uint32_t* out, std::int64_t n))
/// These fill floating dtypes.
TAPIR_CPU_KERNEL(random_uniform, void(tapir::kernels::Draw draw, tapir::DType dtype, void* out, std::int64_t n))
TAPIR_CPU_KERNEL(random_normal, void(tapir::kernels::Draw draw, tapir::DType dtype, void* out, std::int64_t n))
/// Writes 1 with probability p, else 0.
TAPIR_CPU_KERNEL(random_bernoulli, void(tapir::kernels::Draw draw, double p, std::uint8_t* out, std::int64_t n))
/// Writes low + [0, range); range 0 stands for 2^64.
TAPIR_CPU_KERNEL(random_integers, void(tapir::kernels::Draw draw, std::int64_t low, std::uint64_t range, std::int64_t* out, std::int64_t n))

/// y[i] = keep[i] ? x[i] * scale : 0, floating dtypes. y may be x.
TAPIR_KERNEL(masked_scale, tapir::DType dtype, const void* x, const std::uint8_t* keep, void* y, double scale)

// On a GPU n is not 0, and the whole draw is made at once.
TAPIR_GPU_KERNEL(random_uniform, void(tapir::kernels::Draw draw, tapir::DType dtype, void* out, std::int64_t n))
TAPIR_GPU_KERNEL(random_normal, void(tapir::kernels::Draw draw, tapir::DType dtype, void* out, std::int64_t n))
/// Writes to any dtype.
TAPIR_GPU_KERNEL(random_bernoulli, void(tapir::kernels::Draw draw, double p, tapir::DType dtype, void* out, std::int64_t n))
TAPIR_GPU_KERNEL(random_integers,
                 void(tapir::kernels::Draw draw, std::int64_t low, std::uint64_t range, tapir::DType dtype, void* out, std::int64_t n))
/// Writes 1 with probability p[i]; p is of the same dtype, a floating one.
TAPIR_GPU_KERNEL(random_bernoulli_of, void(tapir::kernels::Draw draw, const void* p, tapir::DType dtype, void* out, std::int64_t n))
TAPIR_GPU_KERNEL(dropout, void(const tapir::kernels::DropoutArgs& args))
