// y = W x for one x, with W packed: its rows as lanes of vectors, so that it is one stream of memory and no sums across lanes are needed.
#pragma once

#include <cstdint>

#include "tapir/ops/cpu/isa.h"

/// How many floats W with n rows of k takes when packed: n is rounded up to whole vectors. Each instruction set has its own layout.
TAPIR_CPU_KERNEL(packed_size, std::int64_t(std::int64_t k, std::int64_t n))
/// W's row j at w + j * k.
TAPIR_CPU_KERNEL(pack_weight, void(const float* w, std::int64_t k, std::int64_t n, float* packed))
/// y[j] = sum over p of W[j][p] x[p], + bias[j] where there is one.
TAPIR_CPU_KERNEL(packed_product, void(const float* packed, const float* x, const float* bias, std::int64_t k, std::int64_t n, float* y))
