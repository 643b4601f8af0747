// The element-wise kernels and their launching. The functions come from elementwise.def, in elementwise_*.cu; each row
// there makes a launcher for each type that it is computed in. The tables below find them.
#pragma once

#include <cstring>
#include <functional>

#include "tapir/cuda/math.cuh"
#include "tapir/cuda/unroll.cuh"
#include "tapir/ops/elementwise/elementwise_kernels.h"

namespace tapir::gpu {

using kernels::ElementwiseArgs;
using Launcher = void (*)(const ElementwiseArgs& args);

// Indexed by op and by the computed type (i32, i64, f32, f64; gradients: by operand, and f32 or f64). Null if there is no kernel.
struct ForwardLaunchers {
    Launcher of[kElementwiseOps][4];
};
struct GradientLaunchers {
    Launcher of[kElementwiseOps][3][2];
};
extern const ForwardLaunchers unary_launchers, binary_launchers;
extern const GradientLaunchers unary_gradient_launchers, binary_gradient_launchers;

// --- Operands of one dtype -----------------------------------------------------------------------------------------------

/// Form of an operand's elements in a pack: one element each, one element for all of them, one for all packs, a number that came with
/// the launch.
enum class Source : u32 { array, repeated, one, number };

template <class C, int N>
struct AlikeOperands {
    const void* data[N];
    Source source[N];
    C number[N];
    Offsets<N + 1, i32> offsets;  // of the operands' packs, then of the result's; rank 0: all arrays have no gaps
};

/// Packs of 16 bytes for each thread: one if a pack has many elements, so that long functions stay in registers.
template <class T>
constexpr int kPacks = sizeof(T) == 2 ? 1 : 2;
/// Elements that a block of alike_kernel processes.
template <class T>
constexpr u32 kAlikeBlock = kThreads * (16 / sizeof(T)) * kPacks<T>;

/// out[i] = F(in[0][i], ...), computed in C. T is the element type in memory, R the result's. Unless in_packs, a pack is one
/// element.
template <class F, class C, class T, class R>
__global__ void __launch_bounds__(kThreads) alike_kernel(u32 n, R* out, AlikeOperands<C, F::operands> in, C p0, C p1, bool in_packs) {
    constexpr int N = F::operands, packs = kPacks<T>;
    constexpr u32 V = 16 / sizeof(T), per_block = kAlikeBlock<T>;
    C fixed[N];
    TAPIR_UNROLL
    for (int k = 0; k < N; ++k) {
        fixed[k] = in.source[k] == Source::one ? convert<C>(*static_cast<const T*>(in.data[k])) : in.number[k];
    }
    const auto is_fixed = [&](int k) { return in.source[k] == Source::one || in.source[k] == Source::number; };
    const u32 first = blockIdx.x * per_block;
    if (in_packs && first + per_block <= n) {
        Pack<T, V> x[packs][N];
        i32 to[packs];
        TAPIR_UNROLL
        for (int p = 0; p < packs; ++p) {
            const u32 pack = first / V + p * kThreads + threadIdx.x;
            i32 at[N + 1];
            if (in.offsets.rank == 0) {
                TAPIR_UNROLL
                for (int k = 0; k <= N; ++k) at[k] = static_cast<i32>(pack * V);
            } else {
                in.offsets.at(pack, at);
            }
            TAPIR_UNROLL
            for (int k = 0; k < N; ++k) {
                const T* from = static_cast<const T*>(in.data[k]) + at[k];
                if (in.source[k] == Source::array) {
                    x[p][k] = *reinterpret_cast<const Pack<T, V>*>(from);
                } else if (in.source[k] == Source::repeated) {
                    const T value = *from;
                    TAPIR_UNROLL
                    for (u32 v = 0; v < V; ++v) x[p][k].value[v] = value;
                }
            }
            to[p] = at[N];
        }
        TAPIR_UNROLL
        for (int p = 0; p < packs; ++p) {
            Pack<R, V> y;
            TAPIR_UNROLL
            for (u32 v = 0; v < V; ++v) {
                C values[N];
                TAPIR_UNROLL
                for (int k = 0; k < N; ++k) values[k] = is_fixed(k) ? fixed[k] : convert<C>(x[p][k].value[v]);
                y.value[v] = convert<R>(F::apply(values, p0, p1));
            }
            store_pack(out + to[p], y);
        }
        return;
    }
    const u32 end = first + per_block < n ? first + per_block : n;
    for (u32 i = first + threadIdx.x; i < end; i += kThreads) {
        i32 at[N + 1];
        if (in.offsets.rank == 0) {
            TAPIR_UNROLL
            for (int k = 0; k <= N; ++k) at[k] = static_cast<i32>(i);
        } else {
            const i32 within = in_packs ? static_cast<i32>(i % V) : 0;
            in.offsets.at(in_packs ? i / V : i, at);
            TAPIR_UNROLL
            for (int k = 0; k < N; ++k) at[k] += in.source[k] == Source::array ? within : 0;
            at[N] += within;
        }
        C values[N];
        TAPIR_UNROLL
        for (int k = 0; k < N; ++k) {
            values[k] = is_fixed(k) ? fixed[k] : convert<C>(static_cast<const T*>(in.data[k])[at[k]]);
        }
        out[at[N]] = convert<R>(F::apply(values, p0, p1));
    }
}

// --- Operands of several dtypes ------------------------------------------------------------------------------------------

template <class C, int N>
struct MixedOperands {
    void* out;
    DType out_dtype;
    const void* data[N];  // null: the number
    DType dtype[N];
    C number[N];
    Offsets<N + 1, i32> offsets;  // of the operands, then of the result
};

inline constexpr int kPerThread = 4;

template <class F, class C>
__global__ void __launch_bounds__(kThreads) mixed_kernel(u32 n, MixedOperands<C, F::operands> args, C p0, C p1) {
    constexpr int N = F::operands;
    u32 position = blockIdx.x * (kThreads * kPerThread) + threadIdx.x;
    for (int e = 0; e < kPerThread && position < n; ++e, position += kThreads) {
        i32 offset[N + 1];
        args.offsets.at(position, offset);
        C values[N];
        for (int k = 0; k < N; ++k) {
            values[k] = args.data[k] ? load_as<C>(args.data[k], args.dtype[k], offset[k]) : args.number[k];
        }
        store_as(args.out, args.out_dtype, offset[N], F::apply(values, p0, p1));
    }
}

// --- Launching -----------------------------------------------------------------------------------------------------------

/// Calls f with args, or with parts of them whose elements all lie less than kMostPositions from the first, as the launchers
/// require. Strides may be negative.
void in_parts(const ElementwiseArgs& args, const std::function<void(const ElementwiseArgs&)>& f);

/// True if the array is row-major without gaps.
inline bool is_flat(const ElementwiseArgs& args, const i64* strides) {
    return args.rank == 0 || (args.rank == 1 && (strides[0] == 1 || args.sizes[0] == 1));
}

/// How alike_kernel walks through the operands.
struct AlikeLayout {
    Source source[kernels::kMaxOperands];
    bool is_flat = true, in_packs = true;
};
/// V is the elements of a pack, out_size the bytes of an element of the result.
AlikeLayout layout_of(const ElementwiseArgs& args, i64 V, std::size_t out_size);

/// Counts offsets in steps of `pack` elements of the innermost dimension.
template <int N>
[[gnu::noinline]] void set_offsets(const ElementwiseArgs& args, Offsets<N, i32>& offsets, i64 pack = 1) {
    offsets.rank = args.rank;
    for (int d = 0; d < args.rank; ++d) {
        const i64 step = d + 1 == args.rank ? pack : 1;
        offsets.sizes[d] = Divider(args.sizes[d] / step);
        for (int k = 0; k + 1 < N; ++k) offsets.strides[d][k] = static_cast<i32>(args.in[k].strides[d] * step);
        offsets.strides[d][N - 1] = static_cast<i32>(args.out_strides[d] * step);
    }
}

template <class C>
C number_of(const kernels::Operand& operand) {
    C value;
    std::memcpy(&value, &operand.number, sizeof(C));
    return value;
}

// True if all operands that are not numbers have this dtype.
template <int N>
bool are_of(const ElementwiseArgs& args, DType dtype, DType out_dtype) {
    bool are = args.out_dtype == out_dtype;
    for (int k = 0; k < N; ++k) are = are && (!args.in[k].data || args.in[k].dtype == dtype);
    return are;
}

template <class F, class C, class T, class R>
void launch_alike(const ElementwiseArgs& args, C p0, C p1) {
    constexpr int N = F::operands, V = 16 / sizeof(T);
    const AlikeLayout layout = layout_of(args, V, sizeof(R));
    AlikeOperands<C, N> in;
    for (int k = 0; k < N; ++k) {
        in.data[k] = args.in[k].data;
        in.source[k] = layout.source[k];
        in.number[k] = args.in[k].data ? C(0) : number_of<C>(args.in[k]);
    }
    if (!layout.is_flat) set_offsets(args, in.offsets, layout.in_packs ? V : 1);
    launch(alike_kernel<F, C, T, R>, blocks_for(args.numel, kAlikeBlock<T>), kThreads, static_cast<u32>(args.numel), static_cast<R*>(args.out), in,
           p0, p1, layout.in_packs);
}

// Converts a constant of a loop; integers saturate, because a bound may be infinite.
template <class C>
C parameter(double value) {
    if constexpr (std::is_same_v<C, i32>) {
        return value >= 0x1p31 ? INT32_MAX : value <= -0x1p31 ? INT32_MIN : static_cast<C>(value);
    } else if constexpr (std::is_same_v<C, i64>) {
        return value >= 0x1p63 ? INT64_MAX : value <= -0x1p63 ? INT64_MIN : static_cast<C>(value);
    } else {
        return static_cast<C>(value);
    }
}

template <class F, class C>
void launch_row(const ElementwiseArgs& args) {
    constexpr int N = F::operands;
    const double* params = args.kernel.params;
    const C p0 = F::params > 0 ? parameter<C>(params[0]) : C(0), p1 = F::params > 1 ? parameter<C>(params[1]) : C(0);
    constexpr DType dtype = dtype_of<C>;
    if constexpr (F::to_bool) {
        if (are_of<N>(args, dtype, DType::boolean)) return launch_alike<F, C, C, Bool>(args, p0, p1);
        if constexpr (std::is_same_v<C, float>) {
            if (are_of<N>(args, float16, DType::boolean)) return launch_alike<F, C, Half, Bool>(args, p0, p1);
            if (are_of<N>(args, bfloat16, DType::boolean)) return launch_alike<F, C, BFloat16, Bool>(args, p0, p1);
        }
    } else {
        if (are_of<N>(args, dtype, dtype)) return launch_alike<F, C, C, C>(args, p0, p1);
        if constexpr (std::is_same_v<C, float>) {
            if (are_of<N>(args, float16, float16)) return launch_alike<F, C, Half, Half>(args, p0, p1);
            if (are_of<N>(args, bfloat16, bfloat16)) return launch_alike<F, C, BFloat16, BFloat16>(args, p0, p1);
        }
    }
    MixedOperands<C, N> in;
    in.out = args.out;
    in.out_dtype = args.out_dtype;
    for (int k = 0; k < N; ++k) {
        in.data[k] = args.in[k].data;
        in.dtype[k] = args.in[k].dtype;
        in.number[k] = args.in[k].data ? C(0) : number_of<C>(args.in[k]);
    }
    set_offsets(args, in.offsets);
    launch(mixed_kernel<F, C>, blocks_for(args.numel, kThreads * kPerThread), kThreads, static_cast<u32>(args.numel), in, p0, p1);
}

}  // namespace tapir::gpu

// A row of ForwardLaunchers, by the types that the op takes.
#define TAPIR_ROW_Float(name) {nullptr, nullptr, launch_row<name##_forward, float>, launch_row<name##_forward, double>},
#define TAPIR_ROW_Number(name) \
    {launch_row<name##_forward, i32>, launch_row<name##_forward, i64>, launch_row<name##_forward, float>, launch_row<name##_forward, double>},
#define TAPIR_ROW_Integral(name) {launch_row<name##_forward, i32>, launch_row<name##_forward, i64>, nullptr, nullptr},
#define TAPIR_NONE {},
