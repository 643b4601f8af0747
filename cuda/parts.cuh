// Arrays with strides: tests if they can be processed in packs, and cuts them into parts if they have more elements than a launch
// counts, or elements further apart than 32 bits reach.
#pragma once

#include <algorithm>
#include <cstdlib>

#include "tapir/cuda/device.cuh"

namespace tapir::gpu {

/// Returns the first dimension that can be halved if there are more than kMostPositions positions; else -1.
template <class Args>
int too_many(const Args& args, i64 positions) {
    if (positions <= kMostPositions) return -1;
    int d = 0;
    while (args.sizes[d] == 1) ++d;
    return d;
}

/// Returns the dimension that contributes most to the offsets, if they reach kMostPositions; else -1. For a result, whose elements are
/// all distinct, the offsets bound the number of elements, too.
inline int too_wide(int rank, const i64* sizes, const i64* strides) {
    i64 last = 0, most = 0;
    int dimension = -1;
    for (int d = 0; d < rank; ++d) {
        const i64 reach = (sizes[d] - 1) * std::abs(strides[d]);
        last += reach;
        if (reach > most) dimension = d;
        most = std::max(most, reach);
    }
    return last < kMostPositions ? -1 : dimension;
}

/// True if each row of an array with these strides consists of packs of V elements that are as aligned as the first.
inline bool has_packs(int rank, const i64* strides, i64 V) {
    for (int d = 0; d + 1 < rank; ++d) {
        if (strides[d] % V != 0) return false;
    }
    return strides[rank - 1] == 1;
}

enum class Order { forwards, backwards };

/// Calls f with args if dimension(args) is -1, else with two halves of them in that dimension, and so on.
/// begin_at(part, d, first) changes the rest of a half, whose sizes and numel are set, for its begin at `first` of dimension d.
template <class Args, class Dimension, class BeginAt, class F>
void in_halves(const Args& args, Order order, const Dimension& dimension, const BeginAt& begin_at, const F& f) {
    const int d = dimension(args);
    if (d < 0) return f(args);
    Args halves[2] = {args, args};
    i64 first = args.sizes[d] / 2;
    if (first > 16) first -= first % 16;  // packs stay aligned
    halves[0].sizes[d] = first;
    halves[1].sizes[d] -= first;
    for (int k = 0; k < 2; ++k) {
        halves[k].numel = args.numel / args.sizes[d] * halves[k].sizes[d];
        begin_at(halves[k], d, k == 0 ? 0 : first);
    }
    if (order == Order::backwards) std::swap(halves[0], halves[1]);
    for (const Args& half : halves) in_halves(half, order, dimension, begin_at, f);
}

/// Returns the address `bytes` further on; null stays null.
inline std::byte* moved(void* p, i64 bytes) { return p ? static_cast<std::byte*>(p) + bytes : nullptr; }
inline const std::byte* moved(const void* p, i64 bytes) { return p ? static_cast<const std::byte*>(p) + bytes : nullptr; }

}  // namespace tapir::gpu
