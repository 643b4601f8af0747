// y = W x for one x, with W packed: its rows are lanes of vectors, so that it is one stream of memory and needs no sums across lanes.
#pragma once

#include <cstdint>

#include "tapir/ops/cpu/isa.h"

/// Returns the number of floats of a packed W with n rows of k: n is rounded up to whole vectors. Each instruction set has its own layout.
TAPIR_CPU_KERNEL(packed_size, std::int64_t(std::int64_t k, std::int64_t n))
/// Reads W's row j at w + j * k.
TAPIR_CPU_KERNEL(pack_weight, void(const float* w, std::int64_t k, std::int64_t n, float* packed))
/// y[j] = sum over p of W[j][p] x[p], + bias[j] if there is one.
TAPIR_CPU_KERNEL(packed_product, void(const float* packed, const float* x, const float* bias, std::int64_t k, std::int64_t n, float* y))
