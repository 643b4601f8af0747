// Several element-wise ops as one kernel, which is compiled while the program runs. fused.cpp writes only
//
//     #include "tapir/cuda/fused.cuh"
//     namespace tapir::gpu {
//     struct Body {
//         template <class K>
//         static void apply(const K (&in)[2], const FusedLaunch& args, K (&out)[1]) { const K v2 = mul_forward::apply<K>({in[0], in[1]}, 0, 0); ... }
//     };
//     }
//     TAPIR_FUSED_KERNEL(float)
//
// with the functions of elementwise_functions.cuh. The library carries these headers as text; the host reads this one for FusedLaunch.
#pragma once

#include "tapir/cuda/positions.cuh"

namespace tapir::gpu {

/// Launch arguments of a fused kernel. They include constants and parameters of ops, so that other numbers need no other kernel.
struct FusedLaunch {
    static constexpr int kMostInputs = 16, kMostOutputs = 8, kMostNumbers = 80;
    enum class Way : u32 { array, repeated, one };  // what an operand gives a pack: elements, one for all of it, one for all packs

    u32 n;          // elements
    bool in_packs;  // of 16 bytes; else a pack is one element
    const void* in[kMostInputs];
    Way way[kMostInputs];
    void* out[kMostOutputs];            // contiguous
    u64 number[kMostNumbers];           // bits in the computed type
    Offsets<kMostInputs, i32> offsets;  // of the operands' packs; rank 0: all arrays have no gaps
};

inline constexpr unsigned kFusedThreads = 256;

}  // namespace tapir::gpu

#ifdef TAPIR_IN_FUSED_KERNEL
#include "tapir/cuda/elementwise_functions.cuh"

namespace tapir::gpu {

template <class K>
__device__ __forceinline__ K number(const FusedLaunch& args, int i) {
    return *reinterpret_cast<const K*>(&args.number[i]);
}

// Rounds an op's result as in memory. Without this a product and a sum of two ops would be rounded only once.
__device__ __forceinline__ float rounded(float x) {
#ifdef __CUDA_ARCH__
    asm("" : "+f"(x));
#endif
    return x;
}
__device__ __forceinline__ double rounded(double x) {
#ifdef __CUDA_ARCH__
    asm("" : "+d"(x));
#endif
    return x;
}
__device__ __forceinline__ i32 rounded(i32 x) { return x; }
__device__ __forceinline__ i64 rounded(i64 x) { return x; }

// Each thread processes a pack of 16 bytes, or as many elements one by one.
template <class Body, class K>
__device__ __forceinline__ void run_fused(const FusedLaunch& args) {
    constexpr int N = Body::inputs, M = Body::outputs;
    constexpr u32 V = 16 / sizeof(K);
    using Way = FusedLaunch::Way;
    K in[N], out[M];
    TAPIR_UNROLL
    for (int k = 0; k < N; ++k) in[k] = args.way[k] == Way::one ? *static_cast<const K*>(args.in[k]) : K(0);
    const u32 first = blockIdx.x * (kFusedThreads * V);
    i32 at[FusedLaunch::kMostInputs];
    if (args.in_packs && first + kFusedThreads * V <= args.n) {
        const u32 pack = first / V + threadIdx.x;
        if (args.offsets.rank > 0) args.offsets.at<N>(pack, at);
        Pack<K, V> x[N], y[M];
        TAPIR_UNROLL
        for (int k = 0; k < N; ++k) {
            const K* from = static_cast<const K*>(args.in[k]) + (args.offsets.rank > 0 ? at[k] : static_cast<i32>(pack * V));
            if (args.way[k] == Way::array) {
                x[k] = *reinterpret_cast<const Pack<K, V>*>(from);
            } else {
                const K value = args.way[k] == Way::repeated ? *from : in[k];
                TAPIR_UNROLL
                for (u32 v = 0; v < V; ++v) x[k].value[v] = value;
            }
        }
        TAPIR_UNROLL
        for (u32 v = 0; v < V; ++v) {
            TAPIR_UNROLL
            for (int k = 0; k < N; ++k) in[k] = x[k].value[v];
            Body::template apply<K>(in, args, out);
            TAPIR_UNROLL
            for (int k = 0; k < M; ++k) y[k].value[v] = out[k];
        }
        TAPIR_UNROLL
        for (int k = 0; k < M; ++k) store_pack(static_cast<K*>(args.out[k]) + static_cast<u64>(pack) * V, y[k]);
        return;
    }
    const u32 end = first + kFusedThreads * V < args.n ? first + kFusedThreads * V : args.n;
    for (u32 i = first + threadIdx.x; i < end; i += kFusedThreads) {
        const u32 within = args.in_packs ? i % V : 0;
        if (args.offsets.rank > 0) args.offsets.at<N>(args.in_packs ? i / V : i, at);
        TAPIR_UNROLL
        for (int k = 0; k < N; ++k) {
            if (args.way[k] == Way::one) continue;
            const i32 place = args.offsets.rank == 0 ? static_cast<i32>(i) : args.way[k] == Way::array ? at[k] + static_cast<i32>(within) : at[k];
            in[k] = static_cast<const K*>(args.in[k])[place];
        }
        Body::template apply<K>(in, args, out);
        TAPIR_UNROLL
        for (int k = 0; k < M; ++k) static_cast<K*>(args.out[k])[i] = out[k];
    }
}

}  // namespace tapir::gpu

#define TAPIR_FUSED_KERNEL(K)                                                                                           \
    extern "C" __global__ void __launch_bounds__(tapir::gpu::kFusedThreads) tapir_fused(tapir::gpu::FusedLaunch args) { \
        tapir::gpu::run_fused<tapir::gpu::Body, K>(args);                                                               \
    }
#endif
