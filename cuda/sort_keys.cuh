// Elements as unsigned keys in the same order: nan the largest, both zeros equal. As in ops/sort.cpp.
#pragma once

#include <cstring>

#include "tapir/cuda/device.cuh"

namespace tapir::gpu {

template <class T>
struct SortKey {
    static constexpr bool is_float = std::is_floating_point_v<T> || std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;
    static constexpr bool is_signed = is_float || std::is_same_v<T, i32> || std::is_same_v<T, i64>;
    static constexpr int bits = sizeof(T) * 8;
    using Bits = std::conditional_t<sizeof(T) == 8, u64,
                                    std::conditional_t<sizeof(T) == 4, u32, std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint8_t>>>;
    using Key = std::conditional_t<sizeof(T) == 8, u64, u32>;  // holds Bits
    static constexpr Bits all = static_cast<Bits>(~Bits{0});
    static constexpr Bits sign = static_cast<Bits>(Bits{1} << (bits - 1));

    static constexpr Bits infinity() {
        if constexpr (std::is_same_v<T, Half>) return 0x7c00;
        if constexpr (std::is_same_v<T, BFloat16>) return 0x7f80;
        if constexpr (std::is_same_v<T, float>) return 0x7f800000;
        return static_cast<Bits>(0x7ff0000000000000);
    }

    bool descending;

    __device__ __forceinline__ Key of(T x) const {
        Bits b;
        memcpy(&b, &x, sizeof(T));
        if constexpr (is_float) {
            if (static_cast<Bits>(b & ~sign) > infinity()) {
                b = all;
            } else {
                b = (b & sign) && b != sign ? static_cast<Bits>(~b) : static_cast<Bits>(b | sign);
            }
        } else if constexpr (is_signed) {
            b ^= sign;
        }
        return descending ? static_cast<Bits>(~b) : b;
    }

    /// True if the key determines the element: not for zeros and nan.
    __device__ __forceinline__ bool tells(Key key) const {
        const Bits b = static_cast<Bits>(descending ? ~key : key);
        return !is_float || (b != sign && b != all);
    }
    __device__ __forceinline__ T element(Key key) const {
        Bits b = static_cast<Bits>(descending ? ~key : key);
        if constexpr (is_float) {
            b = b & sign ? static_cast<Bits>(b ^ sign) : static_cast<Bits>(~b);
        } else if constexpr (is_signed) {
            b ^= sign;
        }
        T x;
        memcpy(static_cast<void*>(&x), &b, sizeof(T));
        return x;
    }
};

/// with_dtype() with bool as bytes, which sort like it.
template <class F>
void with_sorted_dtype(DType dtype, F&& f) {
    switch (dtype) {
        case DType::boolean:
        case DType::uint8: return f.template operator()<std::uint8_t>();
        case DType::int32: return f.template operator()<i32>();
        case DType::int64: return f.template operator()<i64>();
        case DType::float16: return f.template operator()<Half>();
        case DType::bfloat16: return f.template operator()<BFloat16>();
        case DType::float32: return f.template operator()<float>();
        default: return f.template operator()<double>();
    }
}

}  // namespace tapir::gpu
