// Custom functions in batch().
#include "tapir/autograd/function.h"

#include <stdexcept>

#include "tapir/ops/batch/batched_impl.h"

namespace tapir {

std::vector<Tensor> CustomFunction::apply_in_group(const OpInfo& op, OfGroup of_group, std::uint64_t shared, const std::vector<Tensor>& inputs,
                                                   const Loc& loc) {
    if (!detail::in_batch() || is_traced()) [[likely]]
        return {};
    for (const Tensor& x : inputs) {
        if (!x.defined()) return {};  // its own check tells
    }
    constexpr std::size_t most = 8;  // outputs
    Tensor y[most];
    std::vector<const Tensor*> operands;
    for (const Tensor& x : inputs) operands.push_back(&x);
    const auto rule = [&](const detail::Batched& in, Tensor* made) {
        const std::vector<Tensor> blocks(&in[0], &in[0] + inputs.size());
        std::vector<Tensor> outputs = of_group(blocks, loc);
        if (outputs.size() > most) throw std::length_error("a function with so many outputs runs alone");
        std::move(outputs.begin(), outputs.end(), made);
    };
    const detail::BatchCall call(op, loc, operands.data(), static_cast<int>(operands.size()), {}, {.shared = shared});
    if (!detail::batched(call, rule, {&y[0], &y[1], &y[2], &y[3], &y[4], &y[5], &y[6], &y[7]})) return {};
    std::vector<Tensor> outputs;
    for (Tensor& one : y) {
        if (one.defined()) outputs.push_back(std::move(one));
    }
    return outputs;
}

}  // namespace tapir
