// Clips gradients, between backward and step. Skips parameters without a gradient; row-sparse gradients stay
// sparse (repeated rows are summed first).
#pragma once

#include <vector>

#include "tapir/core/tensor.h"

namespace tapir::optim {

/// Scales all gradients together so that their norm, taken as one vector, is at most max_norm. norm_type is p; it may be infinity.
/// Returns the norm before scaling, 0-d float64. If all gradients are on one device it is there, and nothing waits until
/// somebody reads it; else it is on the CPU. Throws ValueError for a negative max_norm or p <= 0 (Pascanu et al. 2013).
Tensor clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm, double norm_type = 2, Loc loc = Loc::current());

/// Limits every element of the gradients to [-bound, bound]. Throws ValueError for a negative bound.
void clip_grad_value_(const std::vector<Tensor>& parameters, double bound, Loc loc = Loc::current());

}  // namespace tapir::optim
