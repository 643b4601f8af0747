// Weights that are packed once, for products with one row.
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

/// What packed_linear reads of a float32 weight (n, k) on the CPU: one dimension, in a layout of this processor's.
Tensor packed_weight(const Tensor& weight);

}  // namespace tapir
