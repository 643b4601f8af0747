// Losses of pairs (input, target) that are one pass on the CPU, forward and backward: see kernels::PairLoss.
#pragma once

#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/loss/loss.h"
#include "tapir/ops/make/copy.h"

namespace tapir {

/// Makes a kernel's operand: contiguous, and not recorded.
inline Tensor plain(const Tensor& x, const Loc& loc = {}) {
    const detail::UnrecordedPartsOf parts(loc);
    return contiguous(x);
}

/// True if both are on the CPU and of one floating dtype: the functions below need that. Shapes broadcast.
bool is_fused_pair(const In& input, const In& target);

Tensor huber_loss_of(const In& input, const In& target, double delta, Reduction reduction);
Tensor smooth_l1_loss_of(const In& input, const In& target, double beta, Reduction reduction);
/// Computes binary_cross_entropy_with_logits without weights.
Tensor logits_loss_of(const In& logits, const In& target, Reduction reduction);

}  // namespace tapir
