// The questions of ops about mixed precision. Each costs one thread-local read if no AutocastScope is alive.
#pragma once

#include "tapir/core/autocast.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/elementwise/elementwise_kernels.h"

namespace tapir::detail {

[[gnu::cold]] Tensor autocast_to_float32(const In& x);
[[gnu::cold]] Tensor autocast_to_low(const In& x);
[[gnu::cold]] bool autocast_lowers(const Tensor& x);

/// Returns x in float32 if an op of that list must compute on it; returns an undefined tensor if x is to be used as it is.
///     if (const Tensor wide = detail::autocast_wide(x); wide.defined()) return softmax(In(wide, x.loc), dim);
inline Tensor autocast_wide(const In& x) { return thread.autocast ? autocast_to_float32(x) : Tensor(); }

/// True if autocast must widen an operand of an op of two tensors:
///     if (detail::autocast_widens(a, b)) return mse_loss(In(detail::widened(a), a.loc), In(detail::widened(b), b.loc), reduction);
inline bool autocast_widens(const In& a, const In& b) {
    const auto is_low = [](const Tensor& x) { return x.defined() && (x.dtype() == float16 || x.dtype() == bfloat16); };
    return thread.autocast && (is_low(a.tensor) || is_low(b.tensor));
}
inline Tensor widened(const In& x) {
    Tensor wide = autocast_to_float32(x);
    return wide.defined() ? wide : x.tensor;
}

/// True if a product of these operands is computed in 16 bits after converting at least one of them.
inline bool autocast_low(const Tensor& a, const Tensor& b) { return thread.autocast && (autocast_lowers(a) || autocast_lowers(b)); }

/// True if an element-wise op is on the float32 list.
bool wants_float32(Elementwise op) noexcept;

}  // namespace tapir::detail
