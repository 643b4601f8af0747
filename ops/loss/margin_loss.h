// Losses of margins, ranks and distances, and the distances. Targets come last.
#pragma once

#include "tapir/core/std_function.h"
#include "tapir/core/tensor.h"
#include "tapir/ops/loss/loss.h"

namespace tapir {

/// Computes log(1 + exp(-target * input)), targets -1 or 1.
Tensor soft_margin_loss(In input, In target, Reduction reduction = Reduction::mean);
/// Computes max(0, margin - target * (input1 - input2)), targets -1 or 1: 1 if input1 shall be ranked above input2.
Tensor margin_ranking_loss(In input1, In input2, In target, double margin = 0, Reduction reduction = Reduction::mean);
/// Returns input where the target is 1, max(0, margin - input) where it is -1; input: a distance.
Tensor hinge_embedding_loss(In input, In target, double margin = 1, Reduction reduction = Reduction::mean);
/// Returns 1 - cos(input1, input2) where the target is 1, max(0, cos - margin) where it is -1. Inputs (n, d) and target (n,), or (d,) and
/// ().
Tensor cosine_embedding_loss(In input1, In input2, In target, double margin = 0, Reduction reduction = Reduction::mean);
/// Returns the sum over classes other than the target of max(0, margin - input[target] + input[class])^p / classes, times weight[target].
/// input: (n, classes) or (classes,); target: class indices (n,) or (); p: 1 or 2; weight: (classes,). Throws IndexError for a
/// class out of range (on a CUDA device when something waits).
Tensor multi_margin_loss(In input, In target, int p = 1, double margin = 1, const Tensor& weight = {}, Reduction reduction = Reduction::mean);
/// Returns the sum over targets t and other classes c of max(0, 1 - input[t] + input[c]) / classes. input: (n, classes) or (classes,); target, of
/// the same shape: class indices up to the first -1.
Tensor multilabel_margin_loss(In input, In target, Reduction reduction = Reduction::mean);
/// Returns the mean over the last dimension of binary_cross_entropy_with_logits, times weight, which broadcasts.
Tensor multilabel_soft_margin_loss(In input, In target, const Tensor& weight = {}, Reduction reduction = Reduction::mean);
/// Computes max(0, |anchor - positive| - |anchor - negative| + margin), with pairwise_distance's p and eps over the last dimension. swap: the
/// negative's distance is the smaller of those from anchor and positive (Balntas et al. 2016).
Tensor triplet_margin_loss(In anchor, In positive, In negative, double margin = 1, double p = 2, double eps = 1e-6, bool swap = false,
                           Reduction reduction = Reduction::mean);
/// Overload with another distance: it maps two tensors to one with a number for each pair; undefined: pairwise_distance.
Tensor triplet_margin_with_distance_loss(In anchor, In positive, In negative,
                                         const std::function<Tensor(const Tensor&, const Tensor&)>& distance = {}, double margin = 1,
                                         bool swap = false, Reduction reduction = Reduction::mean);
/// Computes exp(input) - target * input, or input - target * log(input + eps) unless log_input. full: also Stirling's approximation of
/// log(target!) where the target is above 1.
Tensor poisson_nll_loss(In input, In target, bool log_input = true, bool full = false, double eps = 1e-8, Reduction reduction = Reduction::mean);
/// (log(var) + (input - target)^2 / var) / 2, var kept above eps, whose gradient is passed on all the same; full: plus
/// log(2 pi) / 2. var: of input's shape, or with a last dimension that is 1 or missing (Nix and Weigend 1994). Throws ValueError for
/// a negative var, on the CPU.
Tensor gaussian_nll_loss(In input, In target, In var, bool full = false, double eps = 1e-6, Reduction reduction = Reduction::mean);
/// Computes x1 . x2 / (max(|x1|, eps) max(|x2|, eps)) along a dimension. Shapes broadcast.
Tensor cosine_similarity(In x1, In x2, Dim dim = 1, double eps = 1e-8);
/// Returns the p-norm of x1 - x2 + eps over the last dimension. Shapes broadcast.
Tensor pairwise_distance(In x1, In x2, double p = 2, double eps = 1e-6, Flag keepdim = false);

}  // namespace tapir
