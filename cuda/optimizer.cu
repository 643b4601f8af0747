// The optimizers' steps, each over many tensors in one launch; and sums of repeated rows.
#include "tapir/cuda/math.cuh"
#include "tapir/cuda/shares.cuh"
#include "tapir/cuda/unroll.cuh"
#include "tapir/ops/kernels/optimizer.h"

namespace tapir::gpu {
namespace {

using kernels::GpuSteps;

#define TAPIR_RULE __device__ __forceinline__
#include "tapir/ops/kernels/optimizer_rules.def"
#undef TAPIR_RULE

// Both in one parameter: nvcc copies a small parameter that is indexed to local memory.
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
    unsigned has = Step::always;
    TAPIR_UNROLL
    for (int k = 0; k < 3; ++k) has |= buffers[k] ? Step::sometimes & 1u << k : 0u;
    for (i64 i = first + threadIdx.x; i < end; i += kThreads) {
        i64 at = i;
        if (entry.rows) {
            const i64 row = i / entry.width;
            if (row > 0 && entry.rows[row] == entry.rows[row - 1]) continue;
            at = entry.rows[row] * entry.width + i % entry.width;
        }
        T b[3];
        TAPIR_UNROLL
        for (int k = 0; k < 3; ++k) b[k] = has & 1u << k ? buffers[k][at] : T(0);
        update(entry.step, p[at], g[i], b, has);
        TAPIR_UNROLL
        for (int k = 0; k < 3; ++k) {
            if (has & 1u << k) buffers[k][at] = b[k];
        }
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

#define TAPIR_STEP_KERNELS(Step, name) \
    void name##_steps(const GpuSteps<kernels::Step>& steps) { run_steps(steps); }
TAPIR_STEPS(TAPIR_STEP_KERNELS)
#undef TAPIR_STEP_KERNELS

void row_sums(const kernels::RowSums& args) {
    if (args.dtype == float64) {
        launch(row_sums_kernel<double>, static_cast<unsigned>(args.rows), kThreads, args);
    } else {
        launch(row_sums_kernel<float>, static_cast<unsigned>(args.rows), kThreads, args);
    }
}

}  // namespace tapir::gpu
