// Broadcast checks for messages that say more than those of broadcast_shapes().
#pragma once

#include "tapir/core/shape.h"

namespace tapir::detail {

/// True if broadcast_shapes() accepts both. For messages that say more than which dimensions differ.
inline bool do_broadcast(const Shape& a, const Shape& b) noexcept {
    for (int i = 1; i <= a.rank() && i <= b.rank(); ++i) {
        const std::int64_t m = a.raw(a.rank() - i), n = b.raw(b.rank() - i);
        if (m != n && m != 1 && n != 1) return false;
    }
    return true;
}

/// True if a tensor of shape `from` can be expanded to `to`; then a gradient of shape `to` can be summed to `from`.
inline bool broadcasts_to(const Shape& from, const Shape& to) noexcept {
    const int extra = to.rank() - from.rank();
    bool fits = extra >= 0;
    for (int d = 0; d < from.rank() && fits; ++d) fits = from.raw(d) == 1 || from.raw(d) == to.raw(d + extra);
    return fits;
}

}  // namespace tapir::detail
