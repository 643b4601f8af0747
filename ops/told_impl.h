// For ops without gradients: tells watchers of any number of operands and results.
#pragma once

#include <vector>

#include "tapir/autograd/log_impl.h"

namespace tapir {

/// Tells watchers that `op` has run, and how it was called. record() does this for one result.
template <class Call>
void tell_of(const OpInfo& op, const Loc& loc, const std::vector<Tensor>& operands, const std::vector<Tensor>& results, const Call& call) {
    if (!detail::is_watched()) return;
    std::vector<const Tensor*> inputs;
    std::vector<TensorImpl*> outputs;
    for (const Tensor& operand : operands) inputs.push_back(&operand);
    for (const Tensor& result : results) outputs.push_back(result.impl());
    finish_op(
        {op, loc, inputs.data(), static_cast<int>(inputs.size()), outputs.data(), static_cast<int>(outputs.size()), nullptr, 0, &call, sizeof(Call)},
        /*recorded=*/false);
}

}  // namespace tapir
