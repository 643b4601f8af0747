// The cross-entropy of classes.
#pragma once

#include <type_traits>

#include "tapir/core/tensor.h"
#include "tapir/ops/loss/loss.h"

namespace tapir {

struct CrossEntropyOptions {
    Tensor weight{};                        ///< (classes,) or undefined
    std::int64_t ignore_index = -100;       ///< targets of this value are left out
    Reduction reduction = Reduction::mean;  ///< mean: divided by the summed weights of the targets
    double label_smoothing = 0;             ///< in [0, 1]
};
/// Returns -log softmax(logits)[target]. logits: (n, classes, ...) or (classes,); targets: class indices (n, ...) or (), or probabilities
/// of logits' shape (0 is left out, even beside a logit of -inf; PyTorch: nan). IndexError: a class out of range (on CUDA when something waits).
Tensor cross_entropy(In logits, In targets, const CrossEntropyOptions& options = {});
template <class R>  // a template, so that {} stays the options
    requires(std::is_same_v<R, Reduction>)
Tensor cross_entropy(In logits, In targets, R reduction) {
    return cross_entropy(logits, targets, CrossEntropyOptions{.reduction = reduction});
}
/// Overload for log-probabilities.
Tensor nll_loss(In log_probs, In targets, const CrossEntropyOptions& options = {});
template <class R>
    requires(std::is_same_v<R, Reduction>)
Tensor nll_loss(In log_probs, In targets, R reduction) {
    return nll_loss(log_probs, targets, CrossEntropyOptions{.reduction = reduction});
}

}  // namespace tapir
