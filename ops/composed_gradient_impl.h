// The rule of an op that is itself a gradient, computed by one kernel: the rule differentiates the composition that it stands for.
#pragma once

#include <vector>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/tape.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/reduce/reduce.h"

namespace tapir {

/// Computes all inputs' gradients, to any order: composition(inputs) makes the op's outputs of public ops. Saved: the inputs, in order.
template <class Composition>
void differentiate(Backward& b, const Composition& composition) {
    Tape tape(TapeOptions{}, b.record().loc);
    std::vector<Tensor> inputs, wanted;
    std::vector<int> places;
    for (int i = 0; i < b.input_count(); ++i) {
        Tensor x = b.saved(i);
        if (b.needs(i)) {
            // This tape gets a record of its own; while recording, one that the outer tape follows.
            x = b.recording() ? clone(x) : x.detach().requires_grad_();
            wanted.push_back(x);
            places.push_back(i);
        }
        inputs.push_back(x);
    }
    const std::vector<Tensor> outputs = composition(inputs);
    Tensor total;
    for (int k = 0; k < b.output_count(); ++k) {
        if (!b.grad(k).defined()) continue;
        const Tensor part = sum(outputs[static_cast<std::size_t>(k)] * b.grad(k));
        total = total.defined() ? total + part : part;
    }
    if (!total.defined()) return;
    const std::vector<Tensor> gradients = tape.gradient(total, wanted);
    for (std::size_t i = 0; i < places.size(); ++i) b.give(places[i], gradients[i]);
}

}  // namespace tapir
