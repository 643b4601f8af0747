// The element-wise kernels and how one is launched. The functions come from elementwise.def, in elementwise_*.cu; each row
// there makes launchers, one for each type that it is computed in, which are found through the tables below.
#pragma once

#include <algorithm>
#include <cstring>

#include "tapir/cuda/math.cuh"
#include "tapir/cuda/unroll.cuh"
#include "tapir/ops/kernels/elementwise.h"

namespace tapir::gpu {

using kernels::ElementwiseArgs;
using Launcher = void (*)(const ElementwiseArgs& args);

// By op; by what it is computed in (i32, i64, f32, f64; gradients: by operand, and f32 or f64). Null where there is none.
struct ForwardLaunchers {
    Launcher of[kElementwiseOps][4];
};
struct GradientLaunchers {
    Launcher of[kElementwiseOps][3][2];
};
extern const ForwardLaunchers unary_launchers, binary_launchers;
extern const GradientLaunchers unary_gradient_launchers, binary_gradient_launchers;

// --- Contiguous operands -------------------------------------------------------------------------------------------------

enum class Source : u32 { array, one, number };  // elements, one element for all, a number that came with the launch

template <class C, int N>
struct FlatOperands {
    const void* data[N];
    Source source[N];
    C number[N];
};

/// Packs of 16 bytes, a thread: one where a pack has many elements, so that long functions stay in registers.
template <class T>
constexpr int kFlatPacks = sizeof(T) == 2 ? 1 : 2;
/// Elements of a block of flat_kernel.
template <class T>
constexpr i64 kFlatBlock = i64{kThreads} * (16 / sizeof(T)) * kFlatPacks<T>;

/// out[i] = F(in[0][i], ...), computed in C; T: the element type in memory, R: the result's.
template <class F, class C, class T, class R>
__global__ void __launch_bounds__(kThreads)
    flat_kernel(i64 n, R* out, FlatOperands<C, F::operands> in, C p0, C p1, bool aligned) {
    constexpr int N = F::operands, V = 16 / sizeof(T), packs = kFlatPacks<T>;
    constexpr i64 per_block = kFlatBlock<T>;
    C fixed[N];
    TAPIR_UNROLL
    for (int k = 0; k < N; ++k) {
        fixed[k] = in.source[k] == Source::one ? convert<C>(*static_cast<const T*>(in.data[k])) : in.number[k];
    }
    const i64 first = blockIdx.x * per_block;
    if (aligned && first + per_block <= n) {
        Pack<T, V> x[packs][N];
        TAPIR_UNROLL
        for (int p = 0; p < packs; ++p) {
            const i64 at = first / V + p * kThreads + threadIdx.x;
            TAPIR_UNROLL
            for (int k = 0; k < N; ++k) {
                if (in.source[k] == Source::array) x[p][k] = static_cast<const Pack<T, V>*>(in.data[k])[at];
            }
        }
        TAPIR_UNROLL
        for (int p = 0; p < packs; ++p) {
            Pack<R, V> y;
            TAPIR_UNROLL
            for (int v = 0; v < V; ++v) {
                C values[N];
                TAPIR_UNROLL
                for (int k = 0; k < N; ++k) {
                    values[k] = in.source[k] == Source::array ? convert<C>(x[p][k].value[v]) : fixed[k];
                }
                y.value[v] = convert<R>(F::apply(values, p0, p1));
            }
            store_pack(out + first + (p * kThreads + threadIdx.x) * V, y);
        }
        return;
    }
    const i64 end = first + per_block < n ? first + per_block : n;
    for (i64 i = first + threadIdx.x; i < end; i += kThreads) {
        C values[N];
        TAPIR_UNROLL
        for (int k = 0; k < N; ++k) {
            values[k] = in.source[k] == Source::array ? convert<C>(static_cast<const T*>(in.data[k])[i]) : fixed[k];
        }
        out[i] = convert<R>(F::apply(values, p0, p1));
    }
}

// --- Any strides and dtypes ----------------------------------------------------------------------------------------------

template <class C, int N>
struct StridedOperands {
    void* out;
    DType out_dtype;
    const void* data[N];  // null: the number
    DType dtype[N];
    C number[N];
    Offsets<N + 1> offsets;  // of the operands, then of the result
};

inline constexpr int kPerThread = 4;

template <class F, class C>
__global__ void __launch_bounds__(kThreads) strided_kernel(u32 n, StridedOperands<C, F::operands> args, C p0, C p1) {
    constexpr int N = F::operands;
    u32 position = blockIdx.x * (kThreads * kPerThread) + threadIdx.x;
    for (int e = 0; e < kPerThread && position < n; ++e, position += kThreads) {
        i64 offset[N + 1];
        args.offsets.at(position, offset);
        C values[N];
        for (int k = 0; k < N; ++k) {
            values[k] = args.data[k] ? load_as<C>(args.data[k], args.dtype[k], offset[k]) : args.number[k];
        }
        store_as(args.out, args.out_dtype, offset[N], F::apply(values, p0, p1));
    }
}

// --- Launching -----------------------------------------------------------------------------------------------------------

// Calls f with args, or with parts of them that have at most kMostPositions elements.
template <class F>
void in_parts(const ElementwiseArgs& args, const F& f) {
    if (args.numel <= kMostPositions) return f(args);
    int d = 0;  // the first dimension that can be halved
    while (args.sizes[d] == 1) ++d;
    ElementwiseArgs parts[2] = {args, args};
    const i64 half = args.sizes[d] / 2;
    parts[0].sizes[d] = half;
    parts[1].sizes[d] -= half;
    for (ElementwiseArgs& part : parts) part.numel = args.numel / args.sizes[d] * part.sizes[d];
    parts[1].out = static_cast<std::byte*>(args.out) + half * args.out_strides[d] * static_cast<i64>(itemsize(args.out_dtype));
    for (int k = 0; k < args.operands; ++k) {
        if (!args.in[k].data) continue;
        const i64 bytes = half * args.in[k].strides[d] * static_cast<i64>(itemsize(args.in[k].dtype));
        parts[1].in[k].data = static_cast<const std::byte*>(args.in[k].data) + bytes;
    }
    for (const ElementwiseArgs& part : parts) in_parts(part, f);
}

/// Row-major without gaps; with rank 0 or where every stride is 0 (`one`), one element.
inline bool is_flat(const ElementwiseArgs& args, const i64* strides) {
    return args.rank == 0 || (args.rank == 1 && (strides[0] == 1 || args.sizes[0] == 1));
}
inline bool is_one(const ElementwiseArgs& args, const i64* strides) {
    for (int d = 0; d < args.rank; ++d) {
        if (strides[d] != 0 && args.sizes[d] != 1) return false;
    }
    return true;
}

template <int N>
void set_offsets(const ElementwiseArgs& args, Offsets<N>& offsets) {
    offsets.rank = args.rank;
    for (int d = 0; d < args.rank; ++d) {
        offsets.sizes[d] = Divider(args.sizes[d]);
        for (int k = 0; k + 1 < N; ++k) offsets.strides[d][k] = args.in[k].strides[d];
        offsets.strides[d][N - 1] = args.out_strides[d];
    }
}

template <class C>
C number_of(const kernels::Operand& operand) {
    C value;
    std::memcpy(&value, &operand.number, sizeof(C));
    return value;
}

// Whether all operands are flat arrays of this dtype, single elements of it, or numbers.
template <int N>
bool is_flat_of(const ElementwiseArgs& args, DType dtype, DType out_dtype) {
    if (args.out_dtype != out_dtype || !is_flat(args, args.out_strides)) return false;
    for (int k = 0; k < N; ++k) {
        if (!args.in[k].data) continue;
        if (args.in[k].dtype != dtype) return false;
        if (!is_flat(args, args.in[k].strides) && !is_one(args, args.in[k].strides)) return false;
    }
    return true;
}

template <class F, class C, class T, class R>
void launch_flat(const ElementwiseArgs& args, C p0, C p1) {
    constexpr int N = F::operands;
    FlatOperands<C, N> in;
    bool aligned = is_aligned(args.out, 16);
    for (int k = 0; k < N; ++k) {
        const kernels::Operand& operand = args.in[k];
        const bool is_array = operand.data && is_flat(args, operand.strides) && args.numel > 1;
        in.data[k] = operand.data;
        in.source[k] = !operand.data ? Source::number : is_array ? Source::array : Source::one;
        in.number[k] = operand.data ? C(0) : number_of<C>(operand);
        aligned = aligned && (!is_array || is_aligned(operand.data, 16));
    }
    launch(flat_kernel<F, C, T, R>, blocks_for(args.numel, kFlatBlock<T>), kThreads, args.numel, static_cast<R*>(args.out), in, p0,
           p1, aligned);
}

// A constant of a loop; integers saturate, because a bound may be infinite.
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
        if (is_flat_of<N>(args, dtype, DType::boolean)) return launch_flat<F, C, C, Bool>(args, p0, p1);
        if constexpr (std::is_same_v<C, float>) {
            if (is_flat_of<N>(args, float16, DType::boolean)) return launch_flat<F, C, Half, Bool>(args, p0, p1);
            if (is_flat_of<N>(args, bfloat16, DType::boolean)) return launch_flat<F, C, BFloat16, Bool>(args, p0, p1);
        }
    } else {
        if (is_flat_of<N>(args, dtype, dtype)) return launch_flat<F, C, C, C>(args, p0, p1);
        if constexpr (std::is_same_v<C, float>) {
            if (is_flat_of<N>(args, float16, float16)) return launch_flat<F, C, Half, Half>(args, p0, p1);
            if (is_flat_of<N>(args, bfloat16, bfloat16)) return launch_flat<F, C, BFloat16, BFloat16>(args, p0, p1);
        }
    }
    in_parts(args, [&](const ElementwiseArgs& part) {
        StridedOperands<C, N> in;
        in.out = part.out;
        in.out_dtype = part.out_dtype;
        for (int k = 0; k < N; ++k) {
            in.data[k] = part.in[k].data;
            in.dtype[k] = part.in[k].dtype;
            in.number[k] = part.in[k].data ? C(0) : number_of<C>(part.in[k]);
        }
        set_offsets(part, in.offsets);
        launch(strided_kernel<F, C>, blocks_for(part.numel, kThreads * kPerThread), kThreads, static_cast<u32>(part.numel), in,
               p0, p1);
    });
}

}  // namespace tapir::gpu

// A row of ForwardLaunchers, by the types that the op takes.
#define TAPIR_ROW_Float(name) {nullptr, nullptr, launch_row<name##_forward, float>, launch_row<name##_forward, double>},
#define TAPIR_ROW_Number(name)                                                                             \
    {launch_row<name##_forward, i32>, launch_row<name##_forward, i64>, launch_row<name##_forward, float>,  \
     launch_row<name##_forward, double>},
#define TAPIR_NONE {},
