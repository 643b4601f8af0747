// Normalisation by the root of the mean square.
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

/// Computes x / sqrt(mean(x^2) + eps) * weight over the last dimensions, which must be `normalized_shape`; eps < 0: the dtype's epsilon
/// (Zhang and Sennrich 2019).
Tensor rms_norm(In x, const Shape& normalized_shape, const Tensor& weight = {}, double eps = -1);

}  // namespace tapir
