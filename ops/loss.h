// Losses and dropout. Predictions come first, targets second; names, argument order and defaults are PyTorch's.
#pragma once

#include <functional>

#include "tapir/core/generator.h"
#include "tapir/core/tensor.h"

namespace tapir {

/// batchmean, the sum divided by the first size, is only for kl_div; other losses throw ValueError for it.
enum class Reduction : std::uint8_t { none, mean, sum, batchmean };

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
/// target * (log(target) - input), 0 where the target is 0 (PyTorch: nan for infinite logs), input: log-probabilities. log_target: the target is too. Of (n, classes) the divergence by its
/// definition, averaged over the n examples, is Reduction::batchmean; mean divides by the number of elements. Throws ShapeError for the
/// batchmean of an input without dimensions.
Tensor kl_div(In input, In target, Reduction reduction = Reduction::mean, bool log_target = false);

/// log(1 + exp(-target * input)), targets -1 or 1.
Tensor soft_margin_loss(In input, In target, Reduction reduction = Reduction::mean);
/// max(0, margin - target * (input1 - input2)), targets -1 or 1: whether input1 shall be ranked above input2.
Tensor margin_ranking_loss(In input1, In input2, In target, double margin = 0, Reduction reduction = Reduction::mean);
/// input where the target is 1, max(0, margin - input) where it is -1; input: a distance.
Tensor hinge_embedding_loss(In input, In target, double margin = 1, Reduction reduction = Reduction::mean);
/// 1 - cos(input1, input2) where the target is 1, max(0, cos - margin) where it is -1. Inputs (n, d) and target (n,), or (d,) and
/// ().
Tensor cosine_embedding_loss(In input1, In input2, In target, double margin = 0, Reduction reduction = Reduction::mean);
/// sum over classes other than the target of max(0, margin - input[target] + input[class])^p / classes, times weight[target].
/// input: (n, classes) or (classes,); target: class indices (n,) or (); p: 1 or 2; weight: (classes,). Throws IndexError for a
/// class out of range (on a CUDA device when something waits).
Tensor multi_margin_loss(In input, In target, int p = 1, double margin = 1, const Tensor& weight = {}, Reduction reduction = Reduction::mean);
/// sum over targets t and other classes c of max(0, 1 - input[t] + input[c]) / classes. input: (n, classes) or (classes,); target, of
/// the same shape: class indices up to the first -1.
Tensor multilabel_margin_loss(In input, In target, Reduction reduction = Reduction::mean);
/// The mean over the last dimension of binary_cross_entropy_with_logits, times weight, which broadcasts.
Tensor multilabel_soft_margin_loss(In input, In target, const Tensor& weight = {}, Reduction reduction = Reduction::mean);
/// max(0, |anchor - positive| - |anchor - negative| + margin), with pairwise_distance's p and eps over the last dimension. swap: the
/// negative's distance is the smaller of those from anchor and positive (Balntas et al. 2016).
Tensor triplet_margin_loss(In anchor, In positive, In negative, double margin = 1, double p = 2, double eps = 1e-6, bool swap = false,
                           Reduction reduction = Reduction::mean);
/// The same with another distance, of two tensors to one of a number for each pair; none: pairwise_distance.
Tensor triplet_margin_with_distance_loss(In anchor, In positive, In negative,
                                         const std::function<Tensor(const Tensor&, const Tensor&)>& distance = {}, double margin = 1,
                                         bool swap = false, Reduction reduction = Reduction::mean);
/// exp(input) - target * input, or input - target * log(input + eps) unless log_input. full: also Stirling's approximation of
/// log(target!) where the target is above 1.
Tensor poisson_nll_loss(In input, In target, bool log_input = true, bool full = false, double eps = 1e-8, Reduction reduction = Reduction::mean);
/// (log(var) + (input - target)^2 / var) / 2, var kept above eps, whose gradient is passed on all the same; full: plus
/// log(2 pi) / 2. var: of input's shape, or with a last dimension that is 1 or missing (Nix and Weigend 1994). Throws ValueError for
/// a negative var, on the CPU.
Tensor gaussian_nll_loss(In input, In target, In var, bool full = false, double eps = 1e-6, Reduction reduction = Reduction::mean);

/// x1 . x2 / (max(|x1|, eps) max(|x2|, eps)) along a dimension. Shapes broadcast.
Tensor cosine_similarity(In x1, In x2, Dim dim = 1, double eps = 1e-8);
/// The p-norm of x1 - x2 + eps over the last dimension. Shapes broadcast.
Tensor pairwise_distance(In x1, In x2, double p = 2, double eps = 1e-6, Flag keepdim = false);

struct CTCLossOptions {
    std::int64_t blank = 0;                 ///< the class that stands for no label
    Reduction reduction = Reduction::mean;  ///< mean: each loss is divided by its target's length (at least 1) before
    bool zero_infinity = false;             ///< losses of targets that do not fit into their input are 0, not infinite
};
/// -log of the summed probability of all paths that spell the target, repeats merged and blanks dropped: Graves et al. 2006,
/// "Connectionist temporal classification". log_probs: (time, n, classes), or (time, classes) of one; targets: classes (n, longest), or all
/// behind one another (sum of target_lengths,); lengths: integers (n,) or (), read on the host. The gradient is that of log_probs as they
/// are, normalised or not; of an infinite loss it is nan, or 0 where that loss is not used (PyTorch: nan). Throws IndexError for a target out of range or blank (on a CUDA device when something waits), ValueError for
/// lengths that do not fit.
Tensor ctc_loss(In log_probs, In targets, In input_lengths, In target_lengths, const CTCLossOptions& options = {});

/// Zero with probability p, else x / (1 - p); x itself when not training. Throws ValueError for p outside [0, 1].
Tensor dropout(In x, double p = 0.5, bool training = true);
Tensor dropout(In x, double p, bool training, Generator& generator);

}  // namespace tapir
