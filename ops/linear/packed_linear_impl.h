// Weights that are packed once, for products with one row.
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

/// Packs a float32 weight (n, k) on the CPU for packed_linear: one dimension, in a layout of this processor's.
Tensor packed_weight(const Tensor& weight);

}  // namespace tapir
