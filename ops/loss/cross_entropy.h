// The cross-entropy of classes.
#pragma once

#include <type_traits>

#include "tapir/core/tensor.h"
#include "tapir/ops/loss/loss.h"

namespace tapir {

struct CrossEntropyOptions {
    Tensor weight{};                        ///< (classes,) or undefined
    std::int64_t ignore_index = -100;       ///< targets of this value count for nothing
    Reduction reduction = Reduction::mean;  ///< mean: divided by the summed weights of the targets
    double label_smoothing = 0;             ///< in [0, 1]
};
/// -log softmax(logits)[target]. logits: (n, classes, ...) or (classes,); targets: class indices (n, ...) or (), or
/// probabilities of logits' shape, of which 0 counts for nothing, beside a logit of -inf too (PyTorch: nan). Throws IndexError for a class out of range (on a CUDA device when something waits).
Tensor cross_entropy(In logits, In targets, const CrossEntropyOptions& options = {});
template <class R>  // so that {} stays the options
    requires(std::is_same_v<R, Reduction>)
Tensor cross_entropy(In logits, In targets, R reduction) {
    return cross_entropy(logits, targets, CrossEntropyOptions{.reduction = reduction});
}
/// The same from log-probabilities.
Tensor nll_loss(In log_probs, In targets, const CrossEntropyOptions& options = {});
template <class R>
    requires(std::is_same_v<R, Reduction>)
Tensor nll_loss(In log_probs, In targets, R reduction) {
    return nll_loss(log_probs, targets, CrossEntropyOptions{.reduction = reduction});
}

}  // namespace tapir
