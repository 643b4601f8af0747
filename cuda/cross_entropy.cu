// Cross-entropy and nll_loss with class indices: the losses and the gradient in one pass over the logits, the sum of the
// losses, and backward's data.
#include "tapir/cuda/lines.cuh"
#include "tapir/cuda/totals.cuh"
#include "tapir/ops/loss/loss_kernels.h"

namespace tapir::gpu {
namespace {

using kernels::CrossEntropyArgs;
using kernels::DistributionArgs;

constexpr char kTargetFault[] = "target {0} is out of range for {3} classes";

// Reads the targets; see CrossEntropyArgs for the formula.
template <class T>
struct Targets {
    using C = Computed<T>;
    const i64* index;
    const T* weight;
    const C* weights_total;  // of all classes; null: their number
    i64 classes, ignore;
    C hard, soft;
    FaultSlot* fault;

    __device__ C weight_of(i64 c) const { return weight ? convert<C>(weight[c]) : C(1); }
    __device__ C total() const { return weights_total ? *weights_total : static_cast<C>(classes); }
    /// Returns the class of a position, or -1 if it is not counted. The thread that `reports` notes one that is out of range.
    __device__ i64 at(i64 position, bool reports) const {
        const i64 t = index[position];
        if (t == ignore) return -1;
        if (t >= 0 && t < classes) return t;
        if (reports) report(fault, t);
        return -1;
    }
};

template <class T>
Targets<T> targets_of(const CrossEntropyArgs& args, const Computed<T>* weights_total, FaultSlot* fault) {
    using C = Computed<T>;
    return {args.targets,
            static_cast<const T*>(args.weight),
            weights_total,
            args.classes,
            args.ignore_index,
            static_cast<C>(1 - args.smoothing),
            static_cast<C>(args.smoothing / static_cast<double>(args.classes)),
            fault};
}

// --- Losses and gradient ---------------------------------------------------------------------------------------------------

template <class T>
struct CrossEntropy : LineOp<T, 1> {
    using C = Computed<T>;
    struct Stats {
        MaxSum<C> exponentials;
        C spread = C(0);  // sum_c weight[c] (x[c] - reference), for smoothing
    };
    Targets<T> targets;
    C* losses;

    // Returns some element of the line: relative to it the sum above stays small if all logits are large.
    template <class Line>
    __device__ C reference(const Line& line) const {
        const C x = convert<C>(this->in[0][line.offset]);
        return is_finite(x) ? x : C(0);
    }
    template <class Line>
    __device__ C own_spread(Line& line) const {
        C sum = 0;
        if (targets.soft == C(0) || line.is_empty()) return sum;
        const C from = reference(line);
        line.each(*this, [&](i64 c, C(&x)[1]) { sum += targets.weight_of(c) * (x[0] - from); });
        return sum;
    }

    __device__ Stats identity() const { return {}; }
    template <class Line>
    __device__ Stats local(Line& line) const {
        return {max_and_sum_of_own(*this, line), own_spread(line)};
    }
    template <class Team>
    __device__ Stats merge(Stats mine, const Team& team) const {
        return {mine.exponentials.merged(team), merged_spread(mine.spread, team)};
    }
    template <class Line, class Team>
    __device__ Stats held(Line& line, const Team& team) const {
        const C spread = merged_spread(own_spread(line), team);  // before the elements are overwritten
        return {max_and_sum(*this, line, team, this->out != nullptr), spread};
    }
    template <class Team>
    __device__ C merged_spread(C own, const Team& team) const {
        return targets.soft == C(0) ? C(0) : team.reduce(own, Sum{}, C(0));
    }

    template <class Line>
    __device__ void finish(Line& line, const Stats& stats) const {
        if (line.is_empty()) return;
        const i64 t = targets.at(line.number, line.leads());
        const C hard = t >= 0 ? targets.hard * targets.weight_of(t) : C(0);
        if (line.leads()) losses[line.number] = t >= 0 ? loss(line, t, hard, stats) : C(0);
        if (!this->out) return;
        const C max = stats.exponentials.max, soft = targets.soft;
        const C factor = (hard + (soft != C(0) ? soft * targets.total() : C(0))) / stats.exponentials.sum;
        line.write(*this, [&](i64 c, C(&x)[1]) {
            C g = (Line::is_held ? x[0] : exp(x[0] - max)) * factor;
            if (soft != C(0)) g -= soft * targets.weight_of(c);
            if (c == t) g -= hard;
            return t >= 0 ? g : C(0);
        });
    }
    template <class Line>
    __device__ C loss(const Line& line, i64 t, C hard, const Stats& stats) const {
        const C max = stats.exponentials.max, log_sum = log(stats.exponentials.sum);
        C result = hard * (log_sum - (convert<C>(this->in[0][line.offset + t * line.stride]) - max));
        if (targets.soft == C(0)) return result;
        const C total = targets.total(), shifted = stats.spread + (reference(line) - max) * total;
        return result + targets.soft * (total * log_sum - shifted);
    }
};

// Takes log-probabilities, with one thread for each position.
template <class T>
__global__ void __launch_bounds__(kThreads) nll_kernel(const T* x, Targets<T> targets, i64 positions, i64 inner, Computed<T>* losses) {
    using C = Computed<T>;
    const i64 i = global_index();
    if (i >= positions) return;
    const i64 t = targets.at(i, true);
    const T* at = x + i / inner * targets.classes * inner + i % inner;
    C loss = 0;
    if (t >= 0) loss = -targets.hard * targets.weight_of(t) * convert<C>(at[t * inner]);
    if (t >= 0 && targets.soft != C(0)) {
        for (i64 c = 0; c < targets.classes; ++c) loss -= targets.soft * targets.weight_of(c) * convert<C>(at[c * inner]);
    }
    losses[i] = loss;
}

template <class T>
struct TotalWeight {
    static constexpr int count = 1;
    const T* weight;
    Computed<T>* result;
    __device__ void add(i64 first, i64 step, i64 n, double (&sum)[1]) const {
        for (i64 i = first; i < n; i += step) sum[0] += static_cast<double>(convert<Computed<T>>(weight[i]));
    }
    __device__ void finish(const double (&sum)[1]) const { *result = static_cast<Computed<T>>(sum[0]); }
};

template <class T>
void launch_nll(const CrossEntropyArgs& args, i64 positions, const Targets<T>& targets) {
    launch(nll_kernel<T>, blocks_for(positions, kThreads), kThreads, static_cast<const T*>(args.logits), targets, positions, args.inner,
           static_cast<Computed<T>*>(args.losses));
}

// --- Their sum ---------------------------------------------------------------------------------------------------------------

// Sums the losses; for the mean it divides by the sum of the targets' weights.
template <class T>
struct LossTotal {
    static constexpr int count = 2;
    const Computed<T>* losses;
    Targets<T> targets;
    bool is_mean;
    T* out;
    double* scale;  // 1 / the summed weights; null: not wanted

    __device__ void add(i64 first, i64 step, i64 n, double (&sum)[2]) const {
        for (i64 i = first; i < n; i += step) {
            sum[0] += static_cast<double>(losses[i]);
            const i64 t = targets.at(i, false);
            if (t >= 0) sum[1] += static_cast<double>(targets.weight_of(t));
        }
    }
    __device__ void finish(const double (&sum)[2]) const {
        *out = convert<T>(is_mean ? sum[0] / sum[1] : sum[0]);
        if (scale) *scale = sum[1] != 0 ? 1 / sum[1] : 0;  // if nothing counts, the gradient is 0
    }
};

// --- Backward ----------------------------------------------------------------------------------------------------------------

// out = d * g * scale; g is one number for all.
template <class T>
__global__ void __launch_bounds__(kThreads) scale_all_kernel(i64 n, const T* d, const T* g, const double* scale, T* out, bool aligned) {
    using C = Computed<T>;
    constexpr int V = 16 / sizeof(T), at_once = 4;
    const C factor = convert<C>(*g) * (scale ? static_cast<C>(*scale) : C(1));
    const i64 packs = aligned ? n / V : 0, first = static_cast<i64>(blockIdx.x) * (kThreads * at_once) + threadIdx.x;
    Pack<T, V> x[at_once];
    TAPIR_UNROLL
    for (int u = 0; u < at_once; ++u) {
        if (first + u * kThreads < packs) x[u] = reinterpret_cast<const Pack<T, V>*>(d)[first + u * kThreads];
    }
    TAPIR_UNROLL
    for (int u = 0; u < at_once; ++u) {
        if (first + u * kThreads >= packs) continue;
        TAPIR_UNROLL
        for (int v = 0; v < V; ++v) x[u].value[v] = convert<T>(convert<C>(x[u].value[v]) * factor);
        reinterpret_cast<Pack<T, V>*>(out)[first + u * kThreads] = x[u];
    }
    for (i64 i = packs * V + global_index(); i < n; i += global_threads()) out[i] = convert<T>(convert<C>(d[i]) * factor);
}

// Like scale_all_kernel, with a g for each line.
template <class T>
struct ScaleLines : ElementOp<T, 1> {
    using C = Computed<T>;
    const T* g;
    const double* scale;

    template <class Line>
    __device__ void finish(Line& line, const typename ElementOp<T, 1>::Stats&) const {
        if (line.is_empty()) return;
        const C factor = convert<C>(g[line.number]) * (scale ? static_cast<C>(*scale) : C(1));
        line.write(*this, [&](i64, C(&x)[1]) { return x[0] * factor; });
    }
};

template <class T>
struct Distribution {
    const i64* targets;
    const T* weight;
    const T* weights_total;  // null: their number
    const double* scale;     // null: 1
    i64 classes, inner, ignore;
    T hard, soft;
    T *q, *mass;
};

// Writes elements (o, c, i) of q; those of class 0 write mass as well.
template <class T>
__global__ void __launch_bounds__(kThreads) distribution_kernel(i64 n, Distribution<T> d) {
    const T scale = d.scale ? static_cast<T>(*d.scale) : T(1);
    const T total = d.weights_total ? *d.weights_total : static_cast<T>(d.classes);
    for (i64 at = global_index(); at < n; at += global_threads()) {
        const i64 row = at / d.inner, c = row % d.classes, position = row / d.classes * d.inner + at % d.inner;
        const i64 t = d.targets[position];
        const bool live = t != d.ignore && t >= 0 && t < d.classes;
        const T hard = live ? d.hard * (d.weight ? d.weight[t] : T(1)) : T(0), soft = live ? d.soft : T(0);
        d.q[at] = scale * (soft * (d.weight ? d.weight[c] : T(1)) + (c == t ? hard : T(0)));
        if (c == 0) d.mass[position] = live ? scale * (hard + soft * total) : T(0);
    }
}

}  // namespace

void cross_entropy(const CrossEntropyArgs& args, i64 positions, int dim, const Shape& shape) {
    with_floating(args.dtype, [&]<class T>() {
        using C = Computed<T>;
        const bool needs_total = args.weight && args.smoothing != 0;
        const Scratch total(sizeof(C));
        if (needs_total) run_totals(TotalWeight<T>{static_cast<const T*>(args.weight), total.as<C>()}, args.classes);
        const OpenFault fault(dim, shape, kTargetFault);
        const auto targets = targets_of<T>(args, needs_total ? total.as<C>() : nullptr, fault.slot());
        if (args.classes == 0) return launch_nll(args, positions, targets);
        CrossEntropy<T> op{};
        op.in[0] = static_cast<const T*>(args.logits);
        op.out = static_cast<T*>(args.grad);
        op.targets = targets;
        op.losses = static_cast<C*>(args.losses);
        run_lines<true>(op, positions, args.classes, args.inner);
    });
}

void nll_loss(const CrossEntropyArgs& args, i64 positions, int dim, const Shape& shape) {
    with_floating(args.dtype, [&]<class T>() {
        const OpenFault fault(dim, shape, kTargetFault);
        launch_nll(args, positions, targets_of<T>(args, nullptr, fault.slot()));
    });
}

void total_loss(const CrossEntropyArgs& args, i64 positions, bool is_mean, void* out, double* scale) {
    with_floating(args.dtype, [&]<class T>() {
        run_totals(
            LossTotal<T>{static_cast<const Computed<T>*>(args.losses), targets_of<T>(args, nullptr, nullptr), is_mean, static_cast<T*>(out), scale},
            positions);
    });
}

void scale_classes(DType dtype, const void* d, const void* g, bool of_lines, const double* scale, void* out, i64 classes, i64 inner, i64 outer) {
    with_floating(dtype, [&]<class T>() {
        const auto *from = static_cast<const T*>(d), *factor = static_cast<const T*>(g);
        auto* to = static_cast<T*>(out);
        if (of_lines) {
            ScaleLines<T> op{};
            op.in[0] = from;
            op.out = to;
            op.g = factor;
            op.scale = scale;
            return run_lines<true>(op, outer * inner, classes, inner);
        }
        const i64 n = outer * classes * inner;
        launch(scale_all_kernel<T>, blocks_for(n, kThreads * 4 * (16 / sizeof(T))), kThreads, n, from, factor, scale, to,
               is_aligned(d, 16) && is_aligned(out, 16));
    });
}

void distribution(const DistributionArgs& args) {
    const auto fill = [&]<class T>() {
        const Scratch total(sizeof(T));
        const bool needs_total = args.weight && args.smoothing != 0;
        if (needs_total) run_totals(TotalWeight<T>{static_cast<const T*>(args.weight), total.as<T>()}, args.classes);
        const Distribution<T> d{args.targets,
                                static_cast<const T*>(args.weight),
                                needs_total ? total.as<T>() : nullptr,
                                args.scale,
                                args.classes,
                                args.inner,
                                args.ignore_index,
                                static_cast<T>(1 - args.smoothing),
                                static_cast<T>(args.smoothing / static_cast<double>(args.classes)),
                                static_cast<T*>(args.q),
                                static_cast<T*>(args.mass)};
        const i64 n = args.outer * args.classes * args.inner;
        const unsigned blocks = std::min(blocks_for(n, kThreads), 1u << 20);
        launch(distribution_kernel<T>, blocks, kThreads, n, d);
    };
    args.dtype == DType::float64 ? fill.operator()<double>() : fill.operator()<float>();
}

}  // namespace tapir::gpu
