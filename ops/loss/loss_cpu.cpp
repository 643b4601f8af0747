// Losses: each is one pass over the data, forward and gradient together if that saves one. For sums see Note [Accuracy
// of sums].
#include "tapir/ops/loss/loss_kernels.h"

#include <cstring>

#include "tapir/ops/cpu/math_impl.h"
#include "tapir/ops/loss/cross_entropy.h"
#include "tapir/ops/loss/loss.h"
#include "tapir/ops/reduce/reduce_simd_cpu.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

// --- Cross-entropy
// -------------------------------------------------------------------------------------------------------
//
// There are three ways through the same formulas:
//   rows   one position after the other, vectors along the classes (inner == 1, many classes)
//   lanes  vectors along positions that lie side by side (inner > 1)
//   tiles  16 rows are transposed into a buffer of lanes (inner == 1, few classes): a row of 5 would leave most of a
//          vector empty

constexpr i64 kTile = 16;         // rows of a tile
constexpr i64 kTileClasses = 64;  // at most, in a tile
constexpr i64 kLanesMax = 64;     // positions side by side at a time

// The targets and their weights, typed.
template <class T>
struct Targets {
    const i64* index;
    const T* weight;
    i64 ignore;
    T hard, soft;  // 1 - smoothing; smoothing / classes
    T scale;
    T total;  // the sum of the weights, for smoothing

    explicit Targets(const CrossEntropyArgs& args)
        : index(args.targets), weight(static_cast<const T*>(args.weight)), ignore(args.ignore_index), hard(static_cast<T>(1 - args.smoothing)),
          soft(static_cast<T>(args.smoothing / static_cast<double>(args.classes))), scale(static_cast<T>(args.scale)),
          total(static_cast<T>(args.classes)) {
        if (!weight || soft == 0) return;
        total = static_cast<T>(fold<Sum>(weight, args.classes));
    }
    T weight_of(i64 c) const { return weight ? weight[c] : T(1); }
};

template <class T>
constexpr T kInfinity = static_cast<T>(__builtin_inf());

// Computes positions p, p + 1, ... whose class c is at x[c * stride + lane]; likewise grad (may be null). Count: 0 for a number
// of lanes known only at run time.
template <class T, int Count>
inline void lanes(const Targets<T>& targets, i64 classes, const T* x, i64 stride, i64 count, const i64* target, T* loss, T* grad) {
    const i64 n = Count ? Count : count;
    T top[kLanesMax], sum[kLanesMax], hard[kLanesMax];
    Wide<T> before[kLanesMax];  // the sums of the classes before the last kSumRows or fewer, which are in `sum`
    for (i64 j = 0; j < n; ++j) {
        top[j] = -kInfinity<T>;
        sum[j] = 0;
        before[j] = 0;
    }
    for (i64 c = 0; c < classes; ++c) {
#pragma omp simd
        for (i64 j = 0; j < n; ++j) top[j] = x[c * stride + j] > top[j] ? x[c * stride + j] : top[j];
    }
    for (i64 c = 0; c < classes; ++c) {
        const T* from = x + c * stride;
        if (c > 0 && c % kSumRows == 0) {
#pragma omp simd
            for (i64 j = 0; j < n; ++j) {
                before[j] += static_cast<Wide<T>>(sum[j]);
                sum[j] = 0;
            }
        }
        if (grad) {
            T* e = grad + c * stride;
#pragma omp simd
            for (i64 j = 0; j < n; ++j) {
                e[j] = exp(from[j] - top[j]);
                sum[j] += e[j];
            }
        } else {
#pragma omp simd
            for (i64 j = 0; j < n; ++j) sum[j] += exp(from[j] - top[j]);
        }
    }
    T log_sum[kLanesMax];
#pragma omp simd
    for (i64 j = 0; j < n; ++j) sum[j] = static_cast<T>(before[j] + static_cast<Wide<T>>(sum[j]));
#pragma omp simd
    for (i64 j = 0; j < n; ++j) log_sum[j] = log(sum[j]);
    bool any_ignored = false;
    for (i64 j = 0; j < n; ++j) {
        const bool live = target[j] != targets.ignore;
        const i64 t = live ? target[j] : 0;
        any_ignored |= !live;
        hard[j] = live ? targets.hard * targets.weight_of(t) : T(0);
        loss[j] = live ? hard[j] * (log_sum[j] - (x[t * stride + j] - top[j])) : T(0);
    }
    if (targets.soft != 0) {
        for (i64 j = 0; j < n; ++j) {
            if (target[j] == targets.ignore) continue;
            Wide<T> shifted = 0;
            for (i64 c = 0; c < classes; ++c) shifted += static_cast<Wide<T>>(targets.weight_of(c) * (x[c * stride + j] - top[j]));
            loss[j] += targets.soft * (targets.total * log_sum[j] - static_cast<T>(shifted));
        }
    }
    if (!grad) return;
#pragma omp simd
    for (i64 j = 0; j < n; ++j) sum[j] = targets.scale * (hard[j] + targets.soft * targets.total) / sum[j];
    for (i64 c = 0; c < classes; ++c) {
        const T spread = targets.soft * targets.weight_of(c) * targets.scale;
        T* e = grad + c * stride;
#pragma omp simd
        for (i64 j = 0; j < n; ++j) e[j] = e[j] * sum[j] - spread;
    }
    for (i64 j = 0; j < n; ++j) {
        if (target[j] != targets.ignore) grad[target[j] * stride + j] -= hard[j] * targets.scale;
    }
    if (!any_ignored) return;
    for (i64 j = 0; j < n; ++j) {
        if (target[j] != targets.ignore) continue;
        for (i64 c = 0; c < classes; ++c) grad[c * stride + j] = 0;
    }
}

// Computes rows [begin, end) of few classes.
template <class T>
void tiles(const Targets<T>& targets, i64 classes, const T* x, i64 begin, i64 end, T* losses, T* grad) {
    alignas(64) T logits[kTileClasses * kTile], gradients[kTileClasses * kTile];
    for (i64 row = begin; row < end; row += kTile) {
        const i64 rows = smaller(kTile, end - row);
        i64 target[kTile];
        T loss[kTile];
        for (i64 j = 0; j < kTile; ++j) {
            const i64 from = row + (j < rows ? j : 0);
            target[j] = targets.index[from];
            for (i64 c = 0; c < classes; ++c) logits[c * kTile + j] = x[from * classes + c];
        }
        lanes<T, kTile>(targets, classes, logits, kTile, kTile, target, loss, grad ? gradients : nullptr);
        for (i64 j = 0; j < rows; ++j) {
            losses[row + j] = loss[j];
            if (!grad) continue;
            T* to = grad + (row + j) * classes;
            for (i64 c = 0; c < classes; ++c) to[c] = gradients[c * kTile + j];
        }
    }
}

// Writes exp(x - top) of n numbers to e (may be null), and returns their sum.
template <class T>
inline T exponentials(const T* x, T top, T* e, i64 n) {
    Wide<T> total = 0;
    for (i64 begin = 0; begin < n; begin += kFoldBlock) {
        const i64 end = smaller(begin + kFoldBlock, n);
        T sum = 0;
        if (e) {
#pragma omp simd reduction(+ : sum)
            for (i64 c = begin; c < end; ++c) {
                e[c] = exp(x[c] - top);
                sum += e[c];
            }
        } else {
#pragma omp simd reduction(+ : sum)
            for (i64 c = begin; c < end; ++c) sum += exp(x[c] - top);
        }
        total += static_cast<Wide<T>>(sum);
    }
    return static_cast<T>(total);
}

template <class T>
inline T largest(const T* x, i64 n) {
    T top = -kInfinity<T>;
#pragma omp simd reduction(max : top)
    for (i64 c = 0; c < n; ++c) top = x[c] > top ? x[c] : top;
    return top;
}

template <class T>
void row(const Targets<T>& targets, i64 classes, const T* x, i64 target, T* loss, T* grad) {
    if (target == targets.ignore) {
        *loss = 0;
        if (grad) std::memset(grad, 0, static_cast<std::size_t>(classes) * sizeof(T));
        return;
    }
    T top, sum;
    if (classes <= kTile) {
        // One full vector replaces a scalar loop. It is filled up with a number that occurs anyway: libmvec would
        // take its slow path for -infinity.
        alignas(64) T padded[kTile], e[kTile];
        for (i64 c = 0; c < kTile; ++c) padded[c] = x[c < classes ? c : 0];
        top = largest(padded, kTile);
        sum = 0;
#pragma omp simd reduction(+ : sum)
        for (i64 c = 0; c < kTile; ++c) {
            e[c] = exp(padded[c] - top);
            sum += c < classes ? e[c] : T(0);
        }
        if (grad) {
            for (i64 c = 0; c < classes; ++c) grad[c] = e[c];
        }
    } else {
        top = largest(x, classes);
        sum = exponentials(x, top, grad, classes);
    }
    const T hard = targets.hard * targets.weight_of(target), log_sum = log(sum);
    *loss = hard * (log_sum - (x[target] - top));
    if (targets.soft != 0) {
        Wide<T> shifted = 0;
        for (i64 c = 0; c < classes; ++c) shifted += static_cast<Wide<T>>(targets.weight_of(c) * (x[c] - top));
        *loss += targets.soft * (targets.total * log_sum - static_cast<T>(shifted));
    }
    if (!grad) return;
    const T factor = targets.scale * (hard + targets.soft * targets.total) / sum;
#pragma omp simd
    for (i64 c = 0; c < classes; ++c) grad[c] *= factor;
    if (targets.soft != 0) {
        for (i64 c = 0; c < classes; ++c) grad[c] -= targets.soft * targets.weight_of(c) * targets.scale;
    }
    grad[target] -= hard * targets.scale;
}

template <class T>
void run_cross_entropy(const CrossEntropyArgs& args, i64 begin, i64 end) {
    const Targets<T> targets(args);
    const i64 classes = args.classes, inner = args.inner;
    const auto* x = static_cast<const T*>(args.logits);
    auto* losses = static_cast<T*>(args.losses);
    auto* grad = static_cast<T*>(args.grad);
    if (inner == 1) {
        if (classes <= kTileClasses && end - begin >= 4) return tiles(targets, classes, x, begin, end, losses, grad);
        for (i64 i = begin; i < end; ++i) {
            row(targets, classes, x + i * classes, targets.index[i], losses + i, grad ? grad + i * classes : nullptr);
        }
        return;
    }
    for (i64 i = begin; i < end;) {
        const i64 outer = i / inner, lane = i % inner;
        const i64 count = smaller(smaller(kLanesMax, inner - lane), end - i);
        const i64 offset = outer * classes * inner + lane;
        lanes<T, 0>(targets, classes, x + offset, inner, count, targets.index + i, losses + i, grad ? grad + offset : nullptr);
        i += count;
    }
}

template <class T>
void run_scale_classes(const T* d, const T* g, bool of_lines, T scale, T* out, i64 begin, i64 end, i64 classes, i64 inner) {
    const i64 size = classes * inner;
    if (!of_lines) {
        const T factor = *g * scale;
        for (i64 i = begin * size; i < end * size; ++i) out[i] = d[i] * factor;
    } else if (inner == 1) {
        for (i64 o = begin; o < end; ++o) {
            const T factor = g[o] * scale;
            for (i64 c = 0; c < classes; ++c) out[o * classes + c] = d[o * classes + c] * factor;
        }
    } else {
        for (i64 o = begin; o < end; ++o) {
            for (i64 c = 0; c < classes; ++c) {
                const i64 first = o * size + c * inner;
                for (i64 i = 0; i < inner; ++i) out[first + i] = d[first + i] * (g[o * inner + i] * scale);
            }
        }
    }
}

// --- Element by element ------------------------------------------------------------------------------------------------------

template <class T>
double run_squared_distance(const T* a, const T* b, i64 n) {
    return sum_of<T>(n, [&](auto at) __attribute__((always_inline)) {
        const Vector<T> d = at(a) - at(b);
        return d * d;
    });
}

template <class T>
void run_scaled_difference(const T* a, const T* b, const T* g, double factor, T* out, i64 begin, i64 end) {
    const T scale = static_cast<T>(static_cast<double>(*g) * factor);
    for (i64 i = begin; i < end; ++i) out[i] = (a[i] - b[i]) * scale;
}

template <class T>
inline T limited_log(T x) {
    const T y = log(x);
    return y < T(-100) ? T(-100) : y;
}

template <class T>
bool run_binary_cross_entropy(const T* x, const T* t, T* y, i64 n) {
    int wrong = 0;
#pragma omp simd reduction(| : wrong)
    for (i64 i = 0; i < n; ++i) {
        wrong |= !(x[i] >= T(0) && x[i] <= T(1));
        y[i] = -(t[i] * limited_log(x[i]) + (T(1) - t[i]) * limited_log(T(1) - x[i]));
    }
    return !wrong;
}

template <class T>
void run_binary_cross_entropy_grad(const T* g, const T* x, const T* t, T* out, i64 begin, i64 end) {
    for (i64 i = begin; i < end; ++i) {
        const T spread = x[i] * (T(1) - x[i]);
        out[i] = g[i] * (x[i] - t[i]) / (spread < T(1e-12) ? T(1e-12) : spread);
    }
}

template <class T>
const T* as(const void* p) {
    return static_cast<const T*>(p);
}
template <class T>
T* as(void* p) {
    return static_cast<T*>(p);
}

// Losses of pairs: see kernels/loss.h. by_x, by_t: derivatives.
template <class T>
struct Huber {
    T beta;
    explicit Huber(double b) : beta(static_cast<T>(b)) {}
    T loss(T x, T t) const {
        const T d = x - t, far = d < T(0) ? -d : d;
        return far <= beta ? T(0.5) * far * far : beta * (far - T(0.5) * beta);
    }
    T by_x(T x, T t) const {
        const T d = x - t;
        return d > beta ? beta : d < -beta ? -beta : d;
    }
    T by_t(T x, T t) const { return -by_x(x, t); }
};

template <class T>
struct SmoothL1 {
    T beta, rate;
    explicit SmoothL1(double b) : beta(static_cast<T>(b)), rate(static_cast<T>(1 / b)) {}
    T loss(T x, T t) const {
        const T d = x - t, far = d < T(0) ? -d : d;
        return far < beta ? T(0.5) * rate * far * far : far - T(0.5) * beta;
    }
    T by_x(T x, T t) const {
        const T d = x - t;
        return d >= beta ? T(1) : d <= -beta ? T(-1) : d * rate;
    }
    T by_t(T x, T t) const { return -by_x(x, t); }
};

template <class T>
struct Logits {
    explicit Logits(double) {}
    T loss(T x, T t) const {  // (1 - t) x - log(sigmoid(x))
        const T far = x < T(0) ? -x : x;
        return (T(1) - t) * x - ((x < T(0) ? x : T(0)) - log1p(exp(-far)));
    }
    T by_x(T x, T t) const { return sigmoid(x) - t; }
    T by_t(T x, T) const { return -x; }
};

template <class T, class Loss>
double run_pair_sum(const Loss& loss, const PairLossArgs& args) {
    const T *x = as<T>(args.x), *t = as<T>(args.t);
    constexpr i64 width = kWidth<T>;
    double total = 0;
    for (i64 done = 0; done < args.n; done += kSimdBlock) {
        const i64 end = smaller(args.n, done + kSimdBlock);
        T lanes[width] = {};  // written out, so that the digits are the same if the compiler makes no vectors
        i64 i = done;
        for (; i + width <= end; i += width) {
#pragma omp simd
            for (i64 j = 0; j < width; ++j) lanes[j] += loss.loss(x[i + j], t[i + j]);
        }
        for (i64 j = 0; i + j < end; ++j) lanes[j] += loss.loss(x[i + j], t[i + j]);
        for (const T lane : lanes) total += static_cast<double>(lane);
    }
    return total;
}

template <class T, class Derivative>
void run_pair_grad(const Derivative& derivative, const PairLossArgs& args, const void* gs, double scale, void* outs) {
    const T *x = as<T>(args.x), *t = as<T>(args.t), *g = as<T>(gs), factor = static_cast<T>(scale);
    T* out = as<T>(outs);
    if (g) {
#pragma omp simd
        for (i64 i = 0; i < args.n; ++i) out[i] = derivative(x[i], t[i]) * g[i] * factor;
    } else {
#pragma omp simd
        for (i64 i = 0; i < args.n; ++i) out[i] = derivative(x[i], t[i]) * factor;
    }
}

// Calls run(loss, T()) with the loss that args name.
template <class Run>
auto with_loss(const PairLossArgs& args, const Run& run) {
    if (args.dtype == DType::float64) {
        if (args.kind == PairLoss::huber) return run(Huber<double>(args.beta), double());
        if (args.kind == PairLoss::smooth_l1) return run(SmoothL1<double>(args.beta), double());
        return run(Logits<double>(args.beta), double());
    }
    if (args.kind == PairLoss::huber) return run(Huber<float>(args.beta), float());
    if (args.kind == PairLoss::smooth_l1) return run(SmoothL1<float>(args.beta), float());
    return run(Logits<float>(args.beta), float());
}

}  // namespace

void cross_entropy(const CrossEntropyArgs& args, i64 begin, i64 end) {
    if (args.dtype == DType::float64) return run_cross_entropy<double>(args, begin, end);
    run_cross_entropy<float>(args, begin, end);
}

void scale_classes(DType dtype, const void* d, const void* g, bool of_lines, const double* scale, void* out, i64 classes, i64 inner, i64 begin,
                   i64 end) {
    const double factor = scale ? *scale : 1;
    if (dtype == DType::float64) {
        return run_scale_classes(as<double>(d), as<double>(g), of_lines, factor, as<double>(out), begin, end, classes, inner);
    }
    run_scale_classes(as<float>(d), as<float>(g), of_lines, static_cast<float>(factor), as<float>(out), begin, end, classes, inner);
}

double squared_distance(DType dtype, const void* a, const void* b, i64 n) {
    if (dtype == DType::float64) return run_squared_distance(as<double>(a), as<double>(b), n);
    return run_squared_distance(as<float>(a), as<float>(b), n);
}

void scaled_difference(DType dtype, const void* a, const void* b, const void* g, double factor, void* out, i64 begin, i64 end) {
    if (dtype == DType::float64) {
        return run_scaled_difference(as<double>(a), as<double>(b), as<double>(g), factor, as<double>(out), begin, end);
    }
    run_scaled_difference(as<float>(a), as<float>(b), as<float>(g), factor, as<float>(out), begin, end);
}

double pair_loss_sum(const PairLossArgs& args) {
    return with_loss(args, [&](const auto& loss, auto t) { return run_pair_sum<decltype(t)>(loss, args); });
}

void pair_losses(const PairLossArgs& args, void* outs) {
    with_loss(args, [&](const auto& loss, auto zero) {
        using T = decltype(zero);
        const T *x = as<T>(args.x), *t = as<T>(args.t);
        T* out = as<T>(outs);
#pragma omp simd
        for (i64 i = 0; i < args.n; ++i) out[i] = loss.loss(x[i], t[i]);
    });
}

void pair_loss_grad(const PairLossArgs& args, int input, const void* g, double scale, void* out) {
    with_loss(args, [&](const auto& loss, auto zero) {
        using T = decltype(zero);
        if (input == 0) return run_pair_grad<T>([&](T x, T t) { return loss.by_x(x, t); }, args, g, scale, out);
        run_pair_grad<T>([&](T x, T t) { return loss.by_t(x, t); }, args, g, scale, out);
    });
}

bool binary_cross_entropy(DType dtype, const void* x, const void* t, void* y, i64 n) {
    if (dtype == DType::float64) return run_binary_cross_entropy(as<double>(x), as<double>(t), as<double>(y), n);
    return run_binary_cross_entropy(as<float>(x), as<float>(t), as<float>(y), n);
}

void binary_cross_entropy_grad(DType dtype, const void* g, const void* x, const void* t, void* out, i64 begin, i64 end) {
    if (dtype == DType::float64) {
        return run_binary_cross_entropy_grad(as<double>(g), as<double>(x), as<double>(t), as<double>(out), begin, end);
    }
    run_binary_cross_entropy_grad(as<float>(g), as<float>(x), as<float>(t), as<float>(out), begin, end);
}

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
