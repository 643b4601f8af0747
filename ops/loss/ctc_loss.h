// A loss for sequences whose alignment is not known.
#pragma once

#include "tapir/core/tensor.h"
#include "tapir/ops/loss/loss.h"

namespace tapir {

struct CTCLossOptions {
    std::int64_t blank = 0;                 ///< the class that stands for no label
    Reduction reduction = Reduction::mean;  ///< mean: each loss is divided by its target's length (at least 1) before
    bool zero_infinity = false;             ///< losses of targets that do not fit into their input are 0, not infinite
};
/// Returns -log of the summed probability of all paths that spell the target, repeats merged and blanks dropped: Graves et al. 2006,
/// "Connectionist temporal classification". log_probs: (time, n, classes), or (time, classes) for one; targets: classes (n, longest), or all
/// behind one another (sum of target_lengths,); lengths: integers (n,) or (), read on the host. The gradient takes log_probs as they are,
/// normalised or not; for an infinite loss it is nan, or 0 if that loss is not used (PyTorch: nan). Throws ValueError for lengths that do
/// not fit, IndexError for a target out of range or blank (on a CUDA device when something waits).
Tensor ctc_loss(In log_probs, In targets, In input_lengths, In target_lengths, const CTCLossOptions& options = {});

}  // namespace tapir
