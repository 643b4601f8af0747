// Layer normalisation (Ba et al. 2016).
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

/// Computes (x - mean) / sqrt(variance + eps) * weight + bias, with mean and (biased) variance over the last dimensions, which must
/// be `normalized_shape` (ShapeError); weight and bias have that shape or are undefined (Ba et al. 2016).
Tensor layer_norm(In x, const Shape& normalized_shape, const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5);

}  // namespace tapir
