// Norms, clipping and unscaling of gradients, many of them in one launch.
#include <cmath>

#include "tapir/cuda/allocator.h"
#include "tapir/cuda/math.cuh"
#include "tapir/cuda/shares.cuh"
#include "tapir/ops/kernels/optimizer.h"

namespace tapir::gpu {
namespace {

using kernels::GpuGradient;
using Gradients = std::vector<GpuGradient>;

// As many gradients as fit into the parameters of a kernel.
struct Batch {
    static constexpr int most = 96;
    GpuGradient gradient[most];
    Shares<most> shares;
};
static_assert(sizeof(Batch) < 4000);

template <class F>
void in_batches(const Gradients& gradients, const F& f) {
    Batch batch;
    for (const GpuGradient& g : gradients) {
        if (g.n == 0) continue;
        batch.gradient[batch.shares.count()] = g;
        batch.shares.add(g.n);
        if (batch.shares.count() < Batch::most) continue;
        f(batch);
        batch.shares = {};
    }
    if (batch.shares.count() > 0) f(batch);
}

// --- Norms ---------------------------------------------------------------------------------------------------------------

// Computes a thread's part of sum |x|^p, or of the largest |x| for infinity. In double, where no square of a float overflows.
template <class T>
__device__ __forceinline__ double powers_of(const GpuGradient& gradient, i64 first, i64 end, double p) {
    const T* x = static_cast<const T*>(gradient.from);
    double sum = 0;
    for (i64 i = first + threadIdx.x; i < end; i += kThreads) {
        const double a = abs(convert<double>(x[i]));
        if (p == 2) {
            sum += a * a;
        } else if (is_infinite(p)) {
            sum = Max{}(a, sum);
        } else {
            sum += p == 1 ? a : pow(a, p);
        }
    }
    return sum;
}

__device__ __forceinline__ double add_up(double x, double p) { return is_infinite(p) ? block_reduce(x, Max{}, 0.0) : block_reduce(x, Sum{}, 0.0); }

__global__ void __launch_bounds__(kThreads) powers_kernel(Batch batch, double p, double* of_blocks) {
    i64 first;
    const GpuGradient& g = batch.gradient[batch.shares.array(first)];
    const i64 end = first + batch.shares.kOfBlock < g.n ? first + batch.shares.kOfBlock : g.n;
    double sum;
    switch (g.dtype) {
        case DType::float16: sum = powers_of<Half>(g, first, end, p); break;
        case DType::bfloat16: sum = powers_of<BFloat16>(g, first, end, p); break;
        case DType::float32: sum = powers_of<float>(g, first, end, p); break;
        default: sum = powers_of<double>(g, first, end, p); break;
    }
    sum = add_up(sum, p);
    if (threadIdx.x == 0) of_blocks[blockIdx.x] = sum;
}

// Runs as one block. Adds in the order of the blocks, so that the norm is the same each time.
__global__ void __launch_bounds__(kThreads) norm_kernel(u32 blocks, const double* of_blocks, double p, double* norm) {
    double sum = 0;
    for (u32 b = threadIdx.x; b < blocks; b += kThreads) sum = is_infinite(p) ? Max{}(of_blocks[b], sum) : sum + of_blocks[b];
    sum = add_up(sum, p);
    if (threadIdx.x == 0) *norm = p == 2 ? sqrt(sum) : p == 1 || is_infinite(p) ? sum : pow(sum, 1 / p);
}

// --- Changing them -------------------------------------------------------------------------------------------------------

template <class T>
__device__ __forceinline__ void scale(const GpuGradient& gradient, i64 first, i64 end, double factor, bool* not_finite) {
    using C = Computed<T>;
    const T* from = static_cast<const T*>(gradient.from);
    T* to = static_cast<T*>(gradient.to);
    bool finite = true;
    for (i64 i = first + threadIdx.x; i < end; i += kThreads) {
        const T y = convert<T>(convert<C>(from[i]) * static_cast<C>(factor));
        finite = finite && is_finite(convert<C>(y));
        to[i] = y;
    }
    if (not_finite && !finite) *not_finite = true;
}

// Scales by `factor` or, if there is a norm, so that it becomes at most max_norm.
__global__ void __launch_bounds__(kThreads) scale_kernel(Batch batch, double factor, const double* norm, double max_norm, bool* not_finite) {
    if (norm) {
        factor = max_norm / (*norm + 1e-6);
        if (factor >= 1) return;
    }
    i64 first;
    const GpuGradient& g = batch.gradient[batch.shares.array(first)];
    const i64 end = first + batch.shares.kOfBlock < g.n ? first + batch.shares.kOfBlock : g.n;
    switch (g.dtype) {
        case DType::float16: return scale<Half>(g, first, end, factor, not_finite);
        case DType::bfloat16: return scale<BFloat16>(g, first, end, factor, not_finite);
        case DType::float32: return scale<float>(g, first, end, factor, not_finite);
        default: return scale<double>(g, first, end, factor, not_finite);
    }
}

template <class T>
__device__ __forceinline__ void limit(const GpuGradient& gradient, i64 first, i64 end, double bound) {
    using C = Computed<T>;
    const T* from = static_cast<const T*>(gradient.from);
    T* to = static_cast<T*>(gradient.to);
    const C most = static_cast<C>(bound);
    for (i64 i = first + threadIdx.x; i < end; i += kThreads) {
        const C x = convert<C>(from[i]);
        to[i] = convert<T>(x > most ? most : x < -most ? -most : x);  // nan stays
    }
}

__global__ void __launch_bounds__(kThreads) limit_kernel(Batch batch, double bound) {
    i64 first;
    const GpuGradient& g = batch.gradient[batch.shares.array(first)];
    const i64 end = first + batch.shares.kOfBlock < g.n ? first + batch.shares.kOfBlock : g.n;
    switch (g.dtype) {
        case DType::float16: return limit<Half>(g, first, end, bound);
        case DType::bfloat16: return limit<BFloat16>(g, first, end, bound);
        case DType::float32: return limit<float>(g, first, end, bound);
        default: return limit<double>(g, first, end, bound);
    }
}

}  // namespace

void gradient_norm(const Gradients& gradients, double p, double* norm) {
    u32 blocks = 0;
    in_batches(gradients, [&](const Batch& batch) { blocks += batch.shares.blocks(); });
    const Scratch of_blocks(blocks * sizeof(double));
    u32 done = 0;
    in_batches(gradients, [&](const Batch& batch) {
        launch(powers_kernel, batch.shares.blocks(), kThreads, batch, p, of_blocks.as<double>() + done);
        done += batch.shares.blocks();
    });
    launch(norm_kernel, 1, kThreads, blocks, of_blocks.as<double>(), p, norm);
}

void clip_gradients(const Gradients& gradients, const double* norm, double max_norm) {
    in_batches(gradients, [&](const Batch& batch) { launch(scale_kernel, batch.shares.blocks(), kThreads, batch, 1.0, norm, max_norm, nullptr); });
}

void scale_gradients(const Gradients& gradients, double factor, bool* not_finite) {
    in_batches(gradients,
               [&](const Batch& batch) { launch(scale_kernel, batch.shares.blocks(), kThreads, batch, factor, nullptr, 0.0, not_finite); });
}

void limit_gradients(const Gradients& gradients, double bound) {
    in_batches(gradients, [&](const Batch& batch) { launch(limit_kernel, batch.shares.blocks(), kThreads, batch, bound); });
}

}  // namespace tapir::gpu
