// Packs of elements, and positions of the elements of arrays with strides. NVRTC compiles it too (fused.cuh), so it includes nothing
// that NVRTC lacks.
#pragma once

#ifdef __CUDACC_RTC__
namespace std {
using int32_t = int;
using int64_t = long;
using uint32_t = unsigned;
using uint64_t = unsigned long;
}  // namespace std
#else
#include <cstdint>
#include <cstring>
#endif

#include "tapir/cuda/unroll.cuh"

namespace tapir::gpu {

using i32 = std::int32_t;
using i64 = std::int64_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

/// N elements that are loaded and stored at once, 16 bytes at most.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
    T value[N];
};
/// Stores a pack at once: nvcc splits assignments element by element. kStream: it is not read again soon.
template <bool kStream = false, class T, int N>
__device__ __forceinline__ void store_pack(T* to, const Pack<T, N>& pack) {
#ifdef __CUDA_ARCH__
    if constexpr (sizeof(pack) == 16) {
        uint4 bits;
        memcpy(&bits, &pack, 16);
        if constexpr (kStream) {
            __stcs(reinterpret_cast<uint4*>(to), bits);
        } else {
            *reinterpret_cast<uint4*>(to) = bits;
        }
        return;
    }
#endif
    *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

/// Divides a number below 2^31 by one that is known before the launch (Granlund & Montgomery 1994).
struct Divider {
    u32 divisor = 1, multiplier = 0, shift = 0;
    Divider() = default;
#ifndef __CUDACC_RTC__
    explicit Divider(i64 d) : divisor(static_cast<u32>(d)) {
        while (shift < 32 && (u64{1} << shift) < divisor) ++shift;
        multiplier = static_cast<u32>(((u64{1} << 32) * ((u64{1} << shift) - divisor)) / divisor + 1);
    }
#endif
    __device__ __forceinline__ u32 quotient(u32 n) const {
#ifdef __CUDA_ARCH__
        return (__umulhi(n, multiplier) + n) >> shift;
#else
        return (static_cast<u32>(u64{n} * multiplier >> 32) + n) >> shift;
#endif
    }
};

/// Offsets of the elements of arrays with strides; positions are below 2^31, counted in row-major order. Use i32 as Offset if all
/// offsets are known to fit: it takes half the instructions.
template <int Operands, class Offset = i64>
struct Offsets {
    int rank = 0;
    Divider sizes[8];
    Offset strides[8][Operands];  // in elements

    /// Count: only the first `Count` operands.
    template <int Count = Operands>
    __device__ __forceinline__ void at(u32 position, Offset (&offset)[Operands]) const {
        for (int k = 0; k < Count; ++k) offset[k] = 0;
        TAPIR_ROLLED
        for (int d = rank; d-- > 0;) {
            const u32 rest = sizes[d].quotient(position);
            const Offset here = static_cast<i32>(position - rest * sizes[d].divisor);
            for (int k = 0; k < Count; ++k) offset[k] += here * strides[d][k];
            position = rest;
        }
    }
};

}  // namespace tapir::gpu
