// Arrays of random numbers. Which number stands where: see Note [The numbers of a draw] in core/generator.h.
#pragma once

#include <cstdint>

#include "tapir/core/dtype.h"
#include "tapir/ops/cpu/isa.h"

namespace tapir::kernels {

/// A draw, or a part of one: `counter` is the counter of its first element.
struct Draw {
    std::uint64_t seed;
    std::uint64_t counter;
};

}  // namespace tapir::kernels

/// The n first 32-bit words.
TAPIR_CPU_KERNEL(random_words, void(tapir::kernels::Draw draw, std::uint32_t* out, std::int64_t n))
/// Floating dtypes.
TAPIR_CPU_KERNEL(random_uniform, void(tapir::kernels::Draw draw, tapir::DType dtype, void* out, std::int64_t n))
TAPIR_CPU_KERNEL(random_normal, void(tapir::kernels::Draw draw, tapir::DType dtype, void* out, std::int64_t n))
/// 1 with probability p, else 0.
TAPIR_CPU_KERNEL(random_bernoulli, void(tapir::kernels::Draw draw, double p, std::uint8_t* out, std::int64_t n))
/// low + [0, range); range 0 stands for 2^64.
TAPIR_CPU_KERNEL(random_integers, void(tapir::kernels::Draw draw, std::int64_t low, std::uint64_t range, std::int64_t* out,
                                       std::int64_t n))

/// y[i] = keep[i] ? x[i] * scale : 0, floating dtypes. y may be x.
TAPIR_CPU_KERNEL(masked_scale, void(tapir::DType dtype, const void* x, const std::uint8_t* keep, void* y, std::int64_t n,
                                    double scale))
