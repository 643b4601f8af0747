// Normalisation. Rows whose squares leave the dtype's range are scaled first: of +-1e30 in float32 comes +-1 (PyTorch: 0).
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

/// (x - mean) / sqrt(variance + eps) * weight + bias, with mean and (biased) variance over the last dimensions, which must
/// be `normalized_shape` (ShapeError); weight and bias have that shape or are undefined (Ba et al. 2016).
Tensor layer_norm(In x, const Shape& normalized_shape, const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5);

struct BatchNormOptions {
    bool training = false;
    double momentum = 0.1;
    double eps = 1e-5;
};
/// Each channel (dimension 1) to mean 0 and variance 1 over the batch and the other dimensions, then * weight + bias, both
/// (channels,) or undefined (Ioffe and Szegedy 2015). In training with the mean and the (biased) variance of x, and the running
/// ones, where they are defined, become (1 - momentum) running + momentum of x, with the unbiased variance; else with the running
/// ones. x: (n, channels, ...), floating; the others of its dtype, or float32 beside 16-bit floats. Throws ShapeError, DTypeError,
/// and ValueError where a channel has one element in training, or neither statistics.
Tensor batch_norm(In x, const Tensor& running_mean, const Tensor& running_var, const Tensor& weight = {}, const Tensor& bias = {},
                  const BatchNormOptions& options = {});
/// Groups of channels of each example to mean 0 and variance 1 (Wu and He 2018). x: (n, channels, ...); groups divide the channels,
/// and of a single example have more than one element each (ValueError).
Tensor group_norm(In x, std::int64_t groups, const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5);
/// Each channel of each example by itself (Ulyanov et al. 2016). x: (n, channels, ...) with a dimension behind the channels.
Tensor instance_norm(In x, const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5);
/// x / sqrt(mean(x^2) + eps) * weight over the last dimensions, which must be `normalized_shape`; eps < 0: the dtype's epsilon
/// (Zhang and Sennrich 2019).
Tensor rms_norm(In x, const Shape& normalized_shape, const Tensor& weight = {}, double eps = -1);
/// x / (k + alpha * mean of x^2 over `size` channels around each)^beta (Krizhevsky et al. 2012). x: (n, channels, ...).
Tensor local_response_norm(In x, std::int64_t size, double alpha = 1e-4, double beta = 0.75, double k = 1);

}  // namespace tapir
