// Batch normalisation, and normalisation across channels.
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

struct BatchNormOptions {
    bool training = false;
    double momentum = 0.1;
    double eps = 1e-5;
};
/// Normalises each channel (dimension 1) to mean 0 and variance 1 over the batch and the other dimensions, then * weight + bias, both
/// (channels,) or undefined (Ioffe and Szegedy 2015). Training uses the mean and the (biased) variance of x; the running
/// ones, if defined, become (1 - momentum) running + momentum of x, with the unbiased variance. Evaluation uses the running
/// ones. x: (n, channels, ...), floating; the others of its dtype, or float32 beside 16-bit floats. Throws ShapeError, DTypeError,
/// and ValueError if a channel has one element in training, or in evaluation running statistics are undefined.
Tensor batch_norm(In x, const Tensor& running_mean, const Tensor& running_var, const Tensor& weight = {}, const Tensor& bias = {},
                  const BatchNormOptions& options = {});
/// Computes x / (k + alpha * mean of x^2 over `size` channels around each)^beta (Krizhevsky et al. 2012). x: (n, channels, ...).
Tensor local_response_norm(In x, std::int64_t size, double alpha = 1e-4, double beta = 0.75, double k = 1);

}  // namespace tapir
