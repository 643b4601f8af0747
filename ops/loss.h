// Losses and dropout. Predictions come first, targets second; names, argument order and defaults are PyTorch's.
#pragma once

#include "tapir/core/generator.h"
#include "tapir/core/tensor.h"

namespace tapir {

enum class Reduction : std::uint8_t { none, mean, sum };

struct CrossEntropyOptions {
    Tensor weight{};                           ///< (classes,) or undefined
    std::int64_t ignore_index = -100;          ///< targets of this value count for nothing
    Reduction reduction = Reduction::mean;     ///< mean: divided by the summed weights of the targets
    double label_smoothing = 0;                ///< in [0, 1]
};
/// -log softmax(logits)[target]. logits: (n, classes, ...) or (classes,); targets: class indices (n, ...) or (), or
/// probabilities of logits' shape. Throws IndexError for a class out of range (on a CUDA device when something waits).
Tensor cross_entropy(In logits, In targets, const CrossEntropyOptions& options = {});
/// The same from log-probabilities.
Tensor nll_loss(In log_probs, In targets, const CrossEntropyOptions& options = {});

/// (input - target)^2. Shapes broadcast.
Tensor mse_loss(In input, In target, Reduction reduction = Reduction::mean);
/// |input - target|
Tensor l1_loss(In input, In target, Reduction reduction = Reduction::mean);
/// Quadratic within delta, linear beyond (Huber 1964).
Tensor huber_loss(In input, In target, Reduction reduction = Reduction::mean, double delta = 1);
/// huber_loss / beta; l1_loss for beta 0 (Girshick 2015).
Tensor smooth_l1_loss(In input, In target, Reduction reduction = Reduction::mean, double beta = 1);
/// max(0, 1 - input * target), targets -1 or 1.
Tensor hinge_loss(In input, In target, Reduction reduction = Reduction::mean);
/// -(target log(input) + (1 - target) log(1 - input)), logarithms kept above -100. weight broadcasts. Throws ValueError
/// for an input outside [0, 1], on a CUDA device at the next call that waits for it.
Tensor binary_cross_entropy(In input, In target, const Tensor& weight = {}, Reduction reduction = Reduction::mean);
/// The same of sigmoid(logits), without overflow. pos_weight multiplies the positive part.
Tensor binary_cross_entropy_with_logits(In logits, In target, const Tensor& weight = {}, const Tensor& pos_weight = {},
                                        Reduction reduction = Reduction::mean);
/// target * (log(target) - input), input: log-probabilities. log_target: the target is too.
Tensor kl_div(In input, In target, Reduction reduction = Reduction::mean, bool log_target = false);

/// Zero with probability p, else x / (1 - p); x itself when not training. Throws ValueError for p outside [0, 1].
Tensor dropout(In x, double p = 0.5, bool training = true);
Tensor dropout(In x, double p, bool training, Generator& generator);

}  // namespace tapir
