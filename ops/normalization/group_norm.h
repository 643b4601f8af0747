// Group and instance normalisation.
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

/// Normalises groups of channels of each example to mean 0 and variance 1 (Wu and He 2018). x: (n, channels, ...); groups divide the channels,
/// and in a batch of one example have more than one element each (ValueError).
Tensor group_norm(In x, std::int64_t groups, const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5);
/// Normalises each channel of each example by itself (Ulyanov et al. 2016). x: (n, channels, ...) with a dimension behind the channels.
Tensor instance_norm(In x, const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5);

}  // namespace tapir
