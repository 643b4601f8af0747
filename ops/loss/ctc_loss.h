// The loss of sequences whose alignment is not known.
#pragma once

#include "tapir/core/tensor.h"
#include "tapir/ops/loss/loss.h"

namespace tapir {

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

}  // namespace tapir
