// Formulas of sizes. Ops compute them of numbers, and graphs of SymInt, formulas of named dimensions: these are templates on the integer, so
// that both have the same ones.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tapir/core/index.h"

namespace tapir {

/// The part of `size` elements that a slice takes: the first one, and how many, a step apart.
struct Taken {
    std::int64_t start, length;
};
inline Taken taken_by(const Slice& range, std::int64_t size) {
    const auto position = [size](std::int64_t p, std::int64_t open) {
        return p == Slice::kOpen ? open : std::clamp<std::int64_t>(p < 0 ? p + size : p, 0, size);
    };
    const std::int64_t start = position(range.start, 0), reach = std::max(position(range.stop, size), start) - start;
    return {start, reach / range.step + (reach % range.step != 0)};
}

namespace detail {

/// Rounds towards minus infinity; b > 0.
inline std::int64_t floor_div(std::int64_t a, std::int64_t b) noexcept { return a / b - (a % b < 0 ? 1 : 0); }

// --- Windows that move along a dimension: of convolutions, pooling, unfold ------------------------------------------------------------

/// The elements from the first to the last one of a kernel whose elements are `dilation` apart.
template <class Int>
Int window_reach(const Int& kernel, const Int& dilation) {
    return dilation * (kernel - Int(1)) + Int(1);
}
/// The number of windows that fit into `room` elements, padding included, one every `stride`. Needs reach <= room.
template <class Int>
Int window_count(const Int& room, const Int& reach, std::int64_t stride) {
    return floor_div(room - reach, stride) + Int(1);
}
/// The elements that so many windows reach over.
template <class Int>
Int window_span(const Int& count, const Int& reach, const Int& stride) {
    return (count - Int(1)) * stride + reach;
}
/// As window_count() for `size` elements with `padding` more at each end, rounded up: the last window may end behind them, but begins in the
/// elements or in the padding before them. Needs 2 padding <= reach.
template <class Int>
Int window_count_up(const Int& size, std::int64_t padding, std::int64_t reach, std::int64_t stride) {
    // Where the padding is short beside the step, the last window cannot begin in the padding at the end.
    if (stride <= reach - padding) return window_count(size + Int(2 * padding + stride - 1), Int(reach), stride);
    return floor_div(size + Int(padding - 1), stride) + Int(1);
}

}  // namespace detail
}  // namespace tapir
