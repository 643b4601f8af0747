// mse_loss and binary_cross_entropy, element by element.
#include "tapir/cuda/elementwise.cuh"
#include "tapir/cuda/totals.cuh"
#include "tapir/cuda/unroll.cuh"
#include "tapir/ops/loss/loss_kernels.h"

namespace tapir::gpu {
namespace {

// --- mse_loss --------------------------------------------------------------------------------------------------------------

// Steps by packs if the arrays are aligned, else by elements. A pack's sum is taken in C: double is slow on many
// devices.
template <class T>
struct SquaredDistance {
    using C = Computed<T>;
    static constexpr int count = 1, V = 16 / sizeof(T), at_once = 4;
    const T *a, *b;
    i64 n;
    double scale;
    bool aligned;
    T* out;

    __device__ static C square_of(T x, T y) {
        const C d = convert<C>(x) - convert<C>(y);
        return d * d;
    }
    __device__ void add(i64 first, i64 step, i64 steps, double (&sum)[1]) const {
        if (aligned) add_packs(first, step, steps, sum);
        const i64 done = aligned ? steps * V : 0;
        for (i64 i = done + first; i < n; i += step) sum[0] += static_cast<double>(square_of(a[i], b[i]));
    }
    __device__ void add_packs(i64 first, i64 step, i64 packs, double (&sum)[1]) const {
        for (i64 p = first; p < packs; p += at_once * step) {
            Pack<T, V> x[at_once], y[at_once];
            TAPIR_UNROLL
            for (int u = 0; u < at_once; ++u) {
                if (p + u * step >= packs) continue;
                x[u] = reinterpret_cast<const Pack<T, V>*>(a)[p + u * step];
                y[u] = reinterpret_cast<const Pack<T, V>*>(b)[p + u * step];
            }
            TAPIR_UNROLL
            for (int u = 0; u < at_once; ++u) {
                if (p + u * step >= packs) continue;
                C squares = 0;
                TAPIR_UNROLL
                for (int v = 0; v < V; ++v) squares += square_of(x[u].value[v], y[u].value[v]);
                sum[0] += static_cast<double>(squares);
            }
        }
    }
    __device__ void finish(const double (&sum)[1]) const { *out = convert<T>(sum[0] * scale); }
};

// Functions for alike_kernel; p0 and p1 are constants.
struct ScaledDifference {  // takes a, b, the gradient of the loss
    static constexpr int operands = 3;
    template <class C>
    __device__ static C apply(const C (&x)[3], C factor, C) {
        return (x[0] - x[1]) * (x[2] * factor);
    }
};

template <class C>
__device__ __forceinline__ C limited_log(C x) {
    const C y = log(x);
    return y < C(-100) ? C(-100) : y;  // nan stays
}

struct BinaryCrossEntropyGradient {  // takes g, x, t
    static constexpr int operands = 3;
    template <class C>
    __device__ static C apply(const C (&x)[3], C, C) {
        const C spread = x[1] * (C(1) - x[1]);
        return x[0] * (x[1] - x[2]) / (spread < C(1e-12) ? C(1e-12) : spread);
    }
};

// out[i] = F(in[0][i], ...); an in[k] with one_for_all[k] has one element.
template <class F>
void run_flat(DType dtype, i64 n, const void* const (&in)[F::operands], const bool (&one_for_all)[F::operands], void* out, double p0) {
    ElementwiseArgs args{};
    args.operands = F::operands;
    args.rank = 1;
    args.numel = args.sizes[0] = n;
    for (int k = 0; k < F::operands; ++k) args.in[k] = {in[k], dtype, {one_for_all[k] ? 0 : 1}};
    args.out = out;
    args.out_dtype = dtype;
    args.out_strides[0] = 1;
    with_floating(dtype, [&]<class T>() {
        using C = Computed<T>;
        in_parts(args, [p0](const ElementwiseArgs& part) { launch_alike<F, C, T, T>(part, static_cast<C>(p0), C(0)); });
    });
}

// A block processes kThreads packs of 16 bytes.
template <class T>
__global__ void __launch_bounds__(kThreads) binary_cross_entropy_kernel(i64 n, const T* x, const T* t, T* y, FaultSlot* fault, bool aligned) {
    using C = Computed<T>;
    constexpr int V = 16 / sizeof(T);
    const auto loss = [fault](C p, C q) {
        if (!(p >= C(0) && p <= C(1))) report(fault, static_cast<double>(p));
        return convert<T>(-(q * limited_log(p) + (C(1) - q) * limited_log(C(1) - p)));
    };
    const i64 first = static_cast<i64>(blockIdx.x) * (kThreads * V);
    if (aligned && first + kThreads * V <= n) {
        const i64 at = first / V + threadIdx.x;
        const auto xs = reinterpret_cast<const Pack<T, V>*>(x)[at], ts = reinterpret_cast<const Pack<T, V>*>(t)[at];
        Pack<T, V> ys;
        TAPIR_UNROLL
        for (int v = 0; v < V; ++v) ys.value[v] = loss(convert<C>(xs.value[v]), convert<C>(ts.value[v]));
        reinterpret_cast<Pack<T, V>*>(y)[at] = ys;
        return;
    }
    const i64 end = first + kThreads * V < n ? first + kThreads * V : n;
    for (i64 i = first + threadIdx.x; i < end; i += kThreads) y[i] = loss(convert<C>(x[i]), convert<C>(t[i]));
}

}  // namespace

void squared_distance(DType dtype, const void* a, const void* b, i64 n, double scale, void* out) {
    with_floating(dtype, [&]<class T>() {
        const bool aligned = is_aligned(a, 16) && is_aligned(b, 16);
        const auto *x = static_cast<const T*>(a), *y = static_cast<const T*>(b);
        const i64 steps = aligned ? n / (16 / static_cast<i64>(sizeof(T))) : n;
        run_totals(SquaredDistance<T>{x, y, n, scale, aligned, static_cast<T*>(out)}, steps);
    });
}

void scaled_difference(DType dtype, const void* a, const void* b, const void* g, double factor, void* out, i64 count) {
    run_flat<ScaledDifference>(dtype, count, {a, b, g}, {false, false, true}, out, factor);
}

void binary_cross_entropy(DType dtype, const void* x, const void* t, void* y, i64 n) {
    const OpenFault fault("the input must be in [0, 1]; for logits there is binary_cross_entropy_with_logits()");
    with_floating(dtype, [&]<class T>() {
        const bool aligned = is_aligned(x, 16) && is_aligned(t, 16) && is_aligned(y, 16);
        launch(binary_cross_entropy_kernel<T>, blocks_for(n, kThreads * (16 / sizeof(T))), kThreads, n, static_cast<const T*>(x),
               static_cast<const T*>(t), static_cast<T*>(y), fault.slot(), aligned);
    });
}

void binary_cross_entropy_grad(DType dtype, const void* g, const void* x, const void* t, void* out, i64 count) {
    run_flat<BinaryCrossEntropyGradient>(dtype, count, {g, x, t}, {false, false, false}, out, 0);
}

}  // namespace tapir::gpu
