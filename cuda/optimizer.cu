// The optimizers' steps, each over many tensors in one launch; and sums of repeated rows.
#include "tapir/cuda/math.cuh"
#include "tapir/cuda/shares.cuh"
#include "tapir/ops/kernels/optimizer.h"

namespace tapir::gpu {
namespace {

using kernels::AdagradStep;
using kernels::AdamStep;
using kernels::GpuSteps;
using kernels::SgdStep;

// One element; the same arithmetic as on the CPU (ops/cpu/optimizer.cpp).
template <class T>
__device__ __forceinline__ void update(const SgdStep& s, T& p, T g, T* const* buffers, i64 at) {
    const T lr = static_cast<T>(s.lr), momentum = static_cast<T>(s.momentum);
    const T d = g + static_cast<T>(s.weight_decay) * p;
    if (!buffers[0]) {
        p -= lr * d;
        return;
    }
    T& buffer = buffers[0][at];
    buffer = s.first ? d : momentum * buffer + static_cast<T>(1 - s.dampening) * d;
    p -= lr * (s.nesterov ? d + momentum * buffer : buffer);
}

template <class T>
__device__ __forceinline__ void update(const AdagradStep& s, T& p, T g, T* const* buffers, i64 at) {
    const T d = g + static_cast<T>(s.weight_decay) * p;
    T& sum = buffers[0][at];
    sum += d * d;
    p -= static_cast<T>(s.lr) * d / (sqrt(sum) + static_cast<T>(s.eps));
}

template <class T>
__device__ __forceinline__ void update(const AdamStep& s, T& p, T g, T* const* buffers, i64 at) {
    const T d = g + static_cast<T>(s.weight_decay) * p;
    T &m = buffers[0][at], &v = buffers[1][at];
    m += static_cast<T>(1 - s.beta1) * (d - m);
    v = static_cast<T>(s.beta2) * v + static_cast<T>(1 - s.beta2) * d * d;
    T largest = v;
    if (buffers[2]) {
        largest = buffers[2][at] > largest ? buffers[2][at] : largest;
        buffers[2][at] = largest;
    }
    p = static_cast<T>(s.decay) * p - static_cast<T>(s.step_size) * m / (sqrt(largest) * static_cast<T>(s.v_scale) + static_cast<T>(s.eps));
}

// In one: nvcc copies a small parameter that is indexed to local memory.
template <class Step>
struct SharedSteps {
    GpuSteps<Step> steps;
    Shares<GpuSteps<Step>::most> shares;
};

template <class Step, class T>
__global__ void __launch_bounds__(kThreads) steps_kernel(SharedSteps<Step> work) {
    i64 first;
    const auto& entry = work.steps.entry[work.shares.array(first)];
    const i64 end = first + work.shares.kOfBlock < entry.n ? first + work.shares.kOfBlock : entry.n;
    T* p = static_cast<T*>(entry.p);
    const T* g = static_cast<const T*>(entry.g);
    T* const buffers[3] = {static_cast<T*>(entry.buffers[0]), static_cast<T*>(entry.buffers[1]), static_cast<T*>(entry.buffers[2])};
    for (i64 i = first + threadIdx.x; i < end; i += kThreads) {
        i64 at = i;
        if (entry.rows) {
            const i64 row = i / entry.width;
            if (row > 0 && entry.rows[row] == entry.rows[row - 1]) continue;
            at = entry.rows[row] * entry.width + i % entry.width;
        }
        update(entry.step, p[at], g[i], buffers, at);
    }
}

template <class Step>
void run_steps(const GpuSteps<Step>& steps) {
    SharedSteps<Step> work{steps, {}};
    for (int i = 0; i < steps.count; ++i) work.shares.add(steps.entry[i].n);
    if (work.shares.blocks() == 0) return;
    launch(steps.dtype == float64 ? steps_kernel<Step, double> : steps_kernel<Step, float>, work.shares.blocks(), kThreads, work);
}

// blockIdx.x: a row of the sums.
template <class T>
__global__ void __launch_bounds__(kThreads) row_sums_kernel(kernels::RowSums args) {
    const i64 row = blockIdx.x, width = args.width;
    const bool is_first = row == 0 || args.index[row] != args.index[row - 1];
    const T* values = static_cast<const T*>(args.values);
    for (i64 j = threadIdx.x; j < width; j += kThreads) {
        T sum = 0;
        for (i64 other = row; is_first && other < args.rows && args.index[other] == args.index[row]; ++other) {
            sum += values[args.order[other] * width + j];
        }
        static_cast<T*>(args.sums)[row * width + j] = sum;
    }
}

}  // namespace

void sgd_steps(const GpuSteps<SgdStep>& steps) { run_steps(steps); }
void adagrad_steps(const GpuSteps<AdagradStep>& steps) { run_steps(steps); }
void adam_steps(const GpuSteps<AdamStep>& steps) { run_steps(steps); }

void row_sums(const kernels::RowSums& args) {
    if (args.dtype == float64) {
        launch(row_sums_kernel<double>, static_cast<unsigned>(args.rows), kThreads, args);
    } else {
        launch(row_sums_kernel<float>, static_cast<unsigned>(args.rows), kThreads, args);
    }
}

}  // namespace tapir::gpu
