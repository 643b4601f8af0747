// What the losses share.
#pragma once

#include "tapir/ops/autocast_impl.h"
#include "tapir/ops/loss.h"
#include "tapir/ops/reduce.h"

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

inline bool is_half(DType dtype) { return dtype == float16 || dtype == bfloat16; }

}  // namespace tapir
