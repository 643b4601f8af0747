// Shared code of the losses.
#pragma once

#include <array>

#include "tapir/autograd/result_types.h"
#include "tapir/ops/autocast_impl.h"
#include "tapir/ops/loss/loss.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/view/view.h"

namespace tapir {

[[noreturn]] void fail_batchmean(const char* op, const Loc& loc);

/// Throws ValueError for batchmean, which only kl_div has.
inline void check_reduction(const char* op, Reduction reduction, const Loc& loc) {
    if (reduction == Reduction::batchmean) [[unlikely]]
        fail_batchmean(op, loc);
}

/// Returns all losses, their mean or their sum.
inline Tensor reduce_losses(const Tensor& losses, Reduction reduction) {
    if (reduction == Reduction::none) return losses;
    return reduction == Reduction::mean ? mean(losses) : sum(losses);
}

/// The same for each instance of a group in batch(), whose losses are (count, ...).
inline Tensor reduced_each(const Tensor& losses, Reduction reduction) {
    if (reduction == Reduction::none) return losses;
    const Tensor rows = reshape(losses, {losses.size(0), -1});
    return reduction == Reduction::mean ? mean(rows, {1}) : sum(rows, {1});
}

/// Returns x, or x in float32 if an AutocastScope keeps losses from 16 bits.
inline Tensor wide(const In& x) {
    Tensor w = detail::autocast_wide(x);
    return w.defined() ? w : x.tensor;
}

/// Returns the floating dtype that these promote to: 0-d ones count if no other is floating, the default dtype if none is.
DType float_dtype_of(const Tensor* operands, std::size_t count);

/// Converts a loss's operands to the floating dtype that they promote to: as integers they would make float16 float32, and wrap around.
template <class... Ins>
std::array<Tensor, sizeof...(Ins)> in_one_dtype(const Ins&... operands) {
    std::array<Tensor, sizeof...(Ins)> all{wide(operands)...};
    const DType dtype = float_dtype_of(all.data(), all.size());
    for (Tensor& x : all) {
        if (x.dtype() != dtype) x = to(x, dtype);
    }
    return all;
}

/// Converts losses to the input's dtype, whatever the target's is, as PyTorch's huber_loss and soft_margin_loss do.
inline Tensor in_dtype_of(const In& input, const Tensor& losses) {
    return is_floating(input->dtype) && input->dtype != losses.dtype() && !detail::thread.autocast ? to(losses, input->dtype) : losses;
}

/// Returns the type of reduce_losses().
inline ValueType reduced_type(const ValueType& losses, Reduction reduction) {
    return reduction == Reduction::none ? losses : types::shaped(losses, {});
}

/// Returns the type of losses of pairs, where one operand broadcasts to the other.
inline ValueType pair_type(const TypeCall& t, DType dtype) {
    std::vector<SymInt> both = types::broadcast(t, 0, 2);
    types::need(may_equal(both, t[0].shape) || may_equal(both, t[1].shape), "input and target make a third shape");
    return types::shaped(t[0], std::move(both), dtype);
}

}  // namespace tapir
