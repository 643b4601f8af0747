// Losses and dropout. Predictions come first, targets second; names, argument order and defaults are PyTorch's.
#pragma once

#include "tapir/core/generator.h"
#include "tapir/core/tensor.h"

namespace tapir {

/// batchmean, the sum divided by the first size, is only for kl_div; other losses throw ValueError for it.
enum class Reduction : std::uint8_t { none, mean, sum, batchmean };

/// Computes (input - target)^2. Shapes broadcast.
Tensor mse_loss(In input, In target, Reduction reduction = Reduction::mean);
/// Computes |input - target|.
Tensor l1_loss(In input, In target, Reduction reduction = Reduction::mean);
/// Quadratic within delta, linear beyond (Huber 1964).
Tensor huber_loss(In input, In target, Reduction reduction = Reduction::mean, double delta = 1);
/// Computes huber_loss / beta; l1_loss for beta 0 (Girshick 2015).
Tensor smooth_l1_loss(In input, In target, Reduction reduction = Reduction::mean, double beta = 1);
/// Computes max(0, 1 - input * target), targets -1 or 1.
Tensor hinge_loss(In input, In target, Reduction reduction = Reduction::mean);
/// Computes -(target log(input) + (1 - target) log(1 - input)), logarithms kept above -100. weight broadcasts. Throws ValueError
/// for an input outside [0, 1], on a CUDA device at the next call that waits for it.
Tensor binary_cross_entropy(In input, In target, const Tensor& weight = {}, Reduction reduction = Reduction::mean);
/// Computes binary_cross_entropy of sigmoid(logits), without overflow. pos_weight multiplies the positive part.
Tensor binary_cross_entropy_with_logits(In logits, In target, const Tensor& weight = {}, const Tensor& pos_weight = {},
                                        Reduction reduction = Reduction::mean);
/// Computes target * (log(target) - input), 0 where the target is 0 (PyTorch: nan for infinite logs). input: log-probabilities;
/// log_target: the target's too. For (n, classes) Reduction::batchmean is the divergence by its definition, averaged over the n examples;
/// mean divides by the number of elements. Throws ShapeError for the batchmean of an input without dimensions.
Tensor kl_div(In input, In target, Reduction reduction = Reduction::mean, bool log_target = false);

}  // namespace tapir
