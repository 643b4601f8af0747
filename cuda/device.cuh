// Common parts of the kernels in cuda/*.cu: element types, launching, reductions within a warp and a block.
//
// Kernels are plain `__global__` function templates, launched with launch(). They take raw pointers and small structs by
// value. Static shared memory only. (The sources also compile as C++, see tests/cuda_emulator: so no `<<<>>>`.)
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "tapir/core/dtype.h"
#include "tapir/cuda/context.h"
#include "tapir/cuda/positions.cuh"
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace tapir::gpu {

// --- Element types -------------------------------------------------------------------------------------------------------
// Half and BFloat16 are stored as such and computed in float; bool is a byte of which any but 0 means true.

struct Bool {
    std::uint8_t value;
};

__device__ __forceinline__ float to_float(Half x) {
#ifdef __CUDA_ARCH__
    return __half2float(__ushort_as_half(x.bits));
#else
    return static_cast<float>(x);
#endif
}
__device__ __forceinline__ float to_float(BFloat16 x) { return __int_as_float(static_cast<int>(u32{x.bits} << 16)); }

__device__ __forceinline__ Half to_half(float x) {
#ifdef __CUDA_ARCH__
    Half h;
    h.bits = __half_as_ushort(__float2half_rn(x));
    return h;
#else
    return Half(x);
#endif
}
__device__ __forceinline__ BFloat16 to_bfloat16(float x) {
#ifdef __CUDA_ARCH__
    BFloat16 b;
    b.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
    return b;
#else
    return BFloat16(x);
#endif
}

// Values out of range and nan give the smallest integer, as on the CPU.
template <class I, class F>
__device__ __forceinline__ I to_integer(F x) {
    if constexpr (sizeof(I) == 8) {
        return x >= F(-0x1p63) && x < F(0x1p63) ? static_cast<I>(x) : static_cast<I>(INT64_MIN);
    } else if constexpr (sizeof(I) == 4) {
        return x >= F(-0x1p31) && x < F(0x1p31) ? static_cast<I>(x) : static_cast<I>(INT32_MIN);
    } else {
        return static_cast<I>(to_integer<i64>(x));
    }
}

template <class To, class From>
__device__ __forceinline__ To convert(From x) {
    constexpr bool from_real = std::is_floating_point_v<From>, to_real = std::is_floating_point_v<To>;
    if constexpr (std::is_same_v<From, To>) {
        return x;
    } else if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>) {
        return convert<To>(to_float(x));
    } else if constexpr (std::is_same_v<From, Bool>) {
        return convert<To>(static_cast<i32>(x.value != 0));
    } else if constexpr (std::is_same_v<To, Bool>) {
        return Bool{static_cast<std::uint8_t>(x != From(0) ? 1 : 0)};
    } else if constexpr (std::is_same_v<To, Half>) {
        return to_half(static_cast<float>(x));
    } else if constexpr (std::is_same_v<To, BFloat16>) {
        return to_bfloat16(static_cast<float>(x));
    } else if constexpr (from_real && !to_real) {
        return to_integer<To>(x);
    } else {
        return static_cast<To>(x);
    }
}

/// The type in which an element type is computed.
template <class T>
using Computed = std::conditional_t<std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>, float,
                                    std::conditional_t<std::is_same_v<T, Bool> || std::is_same_v<T, std::uint8_t>, i32, T>>;

/// Calls f.template operator()<T>() with the element type of a dtype.
template <class F>
decltype(auto) with_dtype(DType dtype, F&& f) {
    switch (dtype) {
        case DType::boolean: return f.template operator()<Bool>();
        case DType::uint8: return f.template operator()<std::uint8_t>();
        case DType::int32: return f.template operator()<i32>();
        case DType::int64: return f.template operator()<i64>();
        case DType::float16: return f.template operator()<Half>();
        case DType::bfloat16: return f.template operator()<BFloat16>();
        case DType::float32: return f.template operator()<float>();
        default: return f.template operator()<double>();
    }
}
/// Like with_dtype, for floating dtypes only.
template <class F>
decltype(auto) with_floating(DType dtype, F&& f) {
    switch (dtype) {
        case DType::float16: return f.template operator()<Half>();
        case DType::bfloat16: return f.template operator()<BFloat16>();
        case DType::float64: return f.template operator()<double>();
        default: return f.template operator()<float>();
    }
}
/// Selects by the size of an element: an unsigned integer of 1, 2, 4 or 8 bytes.
template <class F>
decltype(auto) with_size(std::size_t bytes, F&& f) {
    switch (bytes) {
        case 1: return f.template operator()<std::uint8_t>();
        case 2: return f.template operator()<std::uint16_t>();
        case 4: return f.template operator()<u32>();
        default: return f.template operator()<u64>();
    }
}

/// Reads an element of any dtype and converts it. The switch is the same for all threads.
template <class To>
__device__ __forceinline__ To load_as(const void* p, DType dtype, i64 i) {
    switch (dtype) {
        case DType::boolean: return convert<To>(static_cast<const Bool*>(p)[i]);
        case DType::uint8: return convert<To>(static_cast<const std::uint8_t*>(p)[i]);
        case DType::int32: return convert<To>(static_cast<const i32*>(p)[i]);
        case DType::int64: return convert<To>(static_cast<const i64*>(p)[i]);
        case DType::float16: return convert<To>(static_cast<const Half*>(p)[i]);
        case DType::bfloat16: return convert<To>(static_cast<const BFloat16*>(p)[i]);
        case DType::float32: return convert<To>(static_cast<const float*>(p)[i]);
        default: return convert<To>(static_cast<const double*>(p)[i]);
    }
}
template <class From>
__device__ __forceinline__ void store_as(void* p, DType dtype, i64 i, From x) {
    switch (dtype) {
        case DType::boolean: static_cast<Bool*>(p)[i] = convert<Bool>(x); break;
        case DType::uint8: static_cast<std::uint8_t*>(p)[i] = convert<std::uint8_t>(x); break;
        case DType::int32: static_cast<i32*>(p)[i] = convert<i32>(x); break;
        case DType::int64: static_cast<i64*>(p)[i] = convert<i64>(x); break;
        case DType::float16: static_cast<Half*>(p)[i] = convert<Half>(x); break;
        case DType::bfloat16: static_cast<BFloat16*>(p)[i] = convert<BFloat16>(x); break;
        case DType::float32: static_cast<float*>(p)[i] = convert<float>(x); break;
        default: static_cast<double*>(p)[i] = convert<double>(x); break;
    }
}

inline bool is_aligned(const void* p, std::size_t bytes) { return reinterpret_cast<std::uintptr_t>(p) % bytes == 0; }

inline constexpr i64 kMostPositions = INT32_MAX;

// --- Launching -----------------------------------------------------------------------------------------------------------

/// Puts a kernel on the current stream.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, Arguments&&... arguments) {
    Stream& stream = current();
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.stream = stream.handle;
    launched(stream, cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

inline constexpr unsigned kThreads = 256;  // threads of a block, unless a kernel needs others

/// Returns how many blocks of `per_block` items n items need.
inline unsigned blocks_for(i64 n, i64 per_block) { return static_cast<unsigned>((n + per_block - 1) / per_block); }

/// Returns the smallest power of two that is not below n.
inline unsigned power_of_two_from(i64 n) { return n <= 1 ? 1u : 1u << (64 - std::countl_zero(static_cast<u64>(n - 1))); }

__device__ __forceinline__ i64 global_index() { return static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ __forceinline__ i64 global_threads() { return static_cast<i64>(gridDim.x) * blockDim.x; }

// --- Numbers that an op does not take: see Note [Errors of a stream] -----------------------------------------------------

__device__ __forceinline__ void report(FaultSlot* fault, i64 index) {
    fault->index = index;
    fault->is_set = true;
}
__device__ __forceinline__ void report(FaultSlot* fault, double value) {
    fault->value = value;
    fault->is_set = true;
}

// --- Within a warp and a block -------------------------------------------------------------------------------------------

struct Sum {
    template <class T>
    __device__ __forceinline__ T operator()(T a, T b) const {
        return a + b;
    }
};
struct Max {  // nan wins
    template <class T>
    __device__ __forceinline__ T operator()(T a, T b) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        if constexpr (std::is_same_v<T, float>) {
            float result;
            asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
            return result;
        }
#endif
        return a > b || a != a ? a : b;
    }
};
struct Min {
    template <class T>
    __device__ __forceinline__ T operator()(T a, T b) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        if constexpr (std::is_same_v<T, float>) {
            float result;
            asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
            return result;
        }
#endif
        return a < b || a != a ? a : b;
    }
};

/// Every lane gets the warp's result. The order is fixed, so that it is the same each time.
template <class T, class Op>
__device__ __forceinline__ T warp_reduce(T x, Op op) {
    for (int lanes = 16; lanes > 0; lanes /= 2) x = op(x, __shfl_xor_sync(0xffffffffu, x, lanes));
    return x;
}

/// Every thread gets the block's result. The block is a whole number of warps, at most 1024 threads; all threads must call it.
template <class T, class Op>
__device__ __forceinline__ T block_reduce(T x, Op op, T identity) {
    __shared__ T of_warp[32];
    x = warp_reduce(x, op);
    if (blockDim.x <= 32) return x;
    __syncthreads();  // waits until an earlier call's results have been read
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    const unsigned warps = blockDim.x / 32;
    return warp_reduce(threadIdx.x % 32 < warps ? of_warp[threadIdx.x % 32] : identity, op);
}

}  // namespace tapir::gpu
