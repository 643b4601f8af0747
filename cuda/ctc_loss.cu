// Connectionist temporal classification: a block for each example, a thread for each place between and on its labels.
#include "tapir/cuda/math.cuh"
#include "tapir/ops/loss/loss_kernels.h"

namespace tapir::gpu {
namespace {

using kernels::CtcArgs;

template <class T>
__device__ __forceinline__ T log_add(T a, T b) {
    constexpr T never = -static_cast<T>(INFINITY);
    if (a == never && b == never) return never;
    const T high = a > b ? a : b, low = a > b ? b : a;  // nan stays
    return high + log1p(exp(low - high));
}

// One example.
template <class T>
struct Ctc {
    const T* log_probs;
    const i64* target;
    i64 n, example, classes, blank, steps, labels, row;  // row: from one step to the next in alpha
    T *alpha, *grad;

    __device__ i64 class_of(i64 k) const {  // of a label; the blank if it is out of range
        const i64 c = target[k];
        return c >= 0 && c < classes ? c : blank;
    }
    __device__ i64 label(i64 s) const { return s % 2 ? class_of(s / 2) : blank; }
    __device__ i64 place(i64 t, i64 c) const { return (t * n + example) * classes + c; }
    __device__ T emission(i64 t, i64 s) const { return log_probs[place(t, label(s))]; }
    __device__ bool may_skip_to(i64 s) const { return s % 2 && s >= 3 && label(s) != label(s - 2); }

    __device__ void forward() const {
        for (i64 s = threadIdx.x; s < labels; s += blockDim.x) alpha[s] = s < 2 ? emission(0, s) : -static_cast<T>(INFINITY);
        for (i64 t = 1; t < steps; ++t) {
            __syncthreads();
            const T* before = alpha + (t - 1) * row;
            for (i64 s = threadIdx.x; s < labels; s += blockDim.x) {
                T sum = before[s];
                if (s >= 1) sum = log_add(sum, before[s - 1]);
                if (may_skip_to(s)) sum = log_add(sum, before[s - 2]);
                alpha[t * row + s] = sum + emission(t, s);
            }
        }
        __syncthreads();
    }
    // Replaces alpha by the logarithm of the probability that the path is there, given the target. beta: two rows.
    __device__ void backward(T* beta, T loss) const {
        const T never = -static_cast<T>(INFINITY);
        for (i64 t = steps; t-- > 0;) {
            T *now = beta + (t & 1) * row, *after = beta + (1 - (t & 1)) * row;
            for (i64 s = threadIdx.x; s < labels; s += blockDim.x) {
                T sum = never;
                if (t == steps - 1) {
                    sum = s >= labels - 2 ? T(0) : never;
                } else {
                    sum = after[s];
                    if (s + 1 < labels) sum = log_add(sum, after[s + 1]);
                    if (s + 2 < labels && may_skip_to(s + 2)) sum = log_add(sum, after[s + 2]);
                }
                const T own = emission(t, s);
                now[s] = sum + own;
                T& path = alpha[t * row + s];
                path = loss == -never ? static_cast<T>(NAN) : path == never || now[s] == never ? never : path + sum + loss;
            }
            __syncthreads();
        }
    }
    // Sums the paths of each class, always in the same order: for the blank, and for each label at its first place.
    __device__ void write_gradient() const {
        const i64 count = labels / 2;
        for (i64 item = threadIdx.x; item < steps * (count + 1); item += blockDim.x) {
            const i64 t = item / (count + 1), k = item % (count + 1) - 1;
            const T* paths = alpha + t * row;
            T sum = 0;
            if (k < 0) {
                for (i64 s = 0; s < labels; s += 2) sum += exp(paths[s]);
                grad[place(t, blank)] = -sum;
                continue;
            }
            const i64 c = class_of(k);
            bool is_first = true;
            for (i64 other = 0; other < k && is_first; ++other) is_first = class_of(other) != c;
            if (!is_first || c == blank) continue;
            for (i64 other = k; other < count; ++other) sum += class_of(other) == c ? exp(paths[2 * other + 1]) : T(0);
            grad[place(t, c)] = -sum;
        }
    }
};

template <class T>
__global__ void __launch_bounds__(kThreads) ctc_kernel(CtcArgs args, FaultSlot* fault) {
    const i64 i = blockIdx.x, count = args.lengths[args.n + i], row = 2 * args.longest + 1;
    const Ctc<T> ctc{static_cast<const T*>(args.log_probs),
                     args.targets + args.lengths[2 * args.n + i],
                     args.n,
                     i,
                     args.classes,
                     args.blank,
                     args.lengths[i],
                     2 * count + 1,
                     row,
                     static_cast<T*>(args.alpha) + i * args.time * row,
                     static_cast<T*>(args.grad)};
    for (i64 k = threadIdx.x; k < count; k += blockDim.x) {
        const i64 c = ctc.target[k];
        if (c < 0 || c >= args.classes || c == args.blank) report(fault, c);
    }
    T loss = count == 0 ? T(0) : static_cast<T>(INFINITY);
    if (ctc.steps > 0) {
        ctc.forward();
        const T* last = ctc.alpha + (ctc.steps - 1) * row + ctc.labels - 1;
        loss = -(count > 0 ? log_add(last[0], last[-1]) : last[0]);
    }
    const bool is_dropped = args.zero_infinity && loss == static_cast<T>(INFINITY);
    if (threadIdx.x == 0) static_cast<T*>(args.losses)[i] = is_dropped ? T(0) : loss;
    if (!args.grad || is_dropped || ctc.steps == 0) return;
    __syncthreads();  // all have read the loss
    ctc.backward(static_cast<T*>(args.beta) + i * 2 * row, loss);
    ctc.write_gradient();
}

}  // namespace

void ctc_loss(const CtcArgs& args, const Shape& shape) {
    const OpenFault fault(2, shape, "target {0} is out of range for {3} classes, or the blank");
    const auto blocks = static_cast<unsigned>(args.n);
    if (args.dtype == float64) {
        launch(ctc_kernel<double>, blocks, kThreads, args, fault.slot());
    } else {
        launch(ctc_kernel<float>, blocks, kThreads, args, fault.slot());
    }
}

}  // namespace tapir::gpu
