// What the losses share.
#pragma once

#include <array>

#include "tapir/autograd/result_types.h"
#include "tapir/ops/autocast_impl.h"
#include "tapir/ops/loss/loss.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/reduce/reduce.h"

namespace tapir {

[[noreturn]] void fail_batchmean(const char* op, const Loc& loc);

/// Throws ValueError for the reduction that only kl_div has.
inline void check_reduction(const char* op, Reduction reduction, const Loc& loc) {
    if (reduction == Reduction::batchmean) [[unlikely]]
        fail_batchmean(op, loc);
}

/// All losses, their mean or their sum.
inline Tensor reduce_losses(const Tensor& losses, Reduction reduction) {
    if (reduction == Reduction::none) return losses;
    return reduction == Reduction::mean ? mean(losses) : sum(losses);
}

/// x, or x in float32 where an AutocastScope keeps losses from 16 bits.
inline Tensor wide(const In& x) {
    Tensor w = detail::autocast_wide(x);
    return w.defined() ? w : x.tensor;
}

/// The floating dtype that these promote to: 0-d ones count where no other is floating, the default dtype where none is.
DType float_dtype_of(const Tensor* operands, std::size_t count);

/// The operands of a loss in the floating dtype that they promote to: as integers they would make float16 float32, and wrap around.
template <class... Ins>
std::array<Tensor, sizeof...(Ins)> in_one_dtype(const Ins&... operands) {
    std::array<Tensor, sizeof...(Ins)> all{wide(operands)...};
    const DType dtype = float_dtype_of(all.data(), all.size());
    for (Tensor& x : all) {
        if (x.dtype() != dtype) x = to(x, dtype);
    }
    return all;
}

/// As PyTorch, whose huber_loss and soft_margin_loss are in the dtype of the input, whatever the target's is.
inline Tensor in_dtype_of(const In& input, const Tensor& losses) {
    return is_floating(input->dtype) && input->dtype != losses.dtype() && !detail::thread.autocast ? to(losses, input->dtype) : losses;
}

/// The type of what reduce_losses() gives.
inline ValueType reduced_type(const ValueType& losses, Reduction reduction) {
    return reduction == Reduction::none ? losses : types::shaped(losses, {});
}

/// Of losses of pairs, where one broadcasts to the other.
inline ValueType pair_type(const TypeCall& t, DType dtype) {
    std::vector<SymInt> both = types::broadcast(t, 0, 2);
    types::need(may_equal(both, t[0].shape) || may_equal(both, t[1].shape), "input and target make a third shape");
    return types::shaped(t[0], std::move(both), dtype);
}

inline bool is_half(DType dtype) { return dtype == float16 || dtype == bfloat16; }

}  // namespace tapir
