// Recompute-checkpointing: trades time for memory.
#pragma once

#include <vector>

#include "tapir/autograd/traced_function.h"
#include "tapir/core/std_function.h"
#include "tapir/core/tensor.h"

namespace tapir {

/// Runs fn(inputs) without recording its ops; backward runs it again, recorded, to get at its intermediate values
/// (Chen et al. 2016, "Training deep nets with sublinear memory cost"). Random ops draw the same numbers the second
/// time. fn must depend on nothing but its inputs and leaves. Gradients flow to the inputs and to the leaves fn uses.
Tensor checkpoint(std::function<Tensor(const std::vector<Tensor>&)> fn, const std::vector<Tensor>& inputs, Loc loc = Loc::current());
/// fn takes its inputs one by one: checkpoint([&](const Tensor& h, const Tensor& c) { return layer(h) + c; }, {h, c}).
template <detail::FunctionOfTensors Fn>
Tensor checkpoint(const Fn& fn, const std::vector<Tensor>& inputs, Loc loc = Loc::current()) {
    return checkpoint(detail::of_list("checkpoint", fn, loc), inputs, loc);
}

}  // namespace tapir
