// Recompute-checkpointing: memory for time.
#pragma once

#include <functional>
#include <vector>

#include "tapir/core/tensor.h"

namespace tapir {

/// Runs fn(inputs) without recording its ops; backward runs it again, recorded, to get at its intermediate values
/// (Chen et al. 2016, "Training deep nets with sublinear memory cost"). Random ops draw the same numbers the second
/// time. fn must depend on nothing but its inputs and leaves. Gradients flow to the inputs and to the leaves fn uses.
Tensor checkpoint(std::function<Tensor(const std::vector<Tensor>&)> fn, const std::vector<Tensor>& inputs,
                  Loc loc = Loc::current());

}  // namespace tapir
