// Divides large positions.
#pragma once

#include "tapir/cuda/device.cuh"

namespace tapir::gpu {

/// Divider for numbers below 2^63.
struct WideDivider {
    u64 divisor = 1, multiplier = 0, shift = 0;
    WideDivider() = default;
    explicit WideDivider(i64 d) : divisor(static_cast<u64>(d)) {
        __extension__ typedef unsigned __int128 Wide;
        while ((u64{1} << shift) < divisor) ++shift;
        multiplier = static_cast<u64>((static_cast<Wide>((u64{1} << shift) - divisor) << 64) / divisor + 1);
    }
    __device__ __forceinline__ u64 quotient(u64 n) const { return (__umul64hi(n, multiplier) + n) >> shift; }
};

}  // namespace tapir::gpu
