// Softmax, its logarithm and logsumexp.
#include "tapir/cuda/lines.cuh"
#include "tapir/ops/reduce/softmax_kernels.h"

namespace tapir::gpu {
namespace {

using kernels::SoftmaxArgs;

// kCausal: only over the elements that seen_by() counts; 0 behind them.
template <class T, bool kCausal>
struct Softmax : LineOp<T, 1> {
    using C = Computed<T>;
    using Stats = MaxSum<C>;
    bool log;
    SoftmaxArgs args;

    // Returns element i of a line, -inf if it does not count.
    template <class Line>
    __device__ C counted(const Line& line, i64 i, C x) const {
        return i < seen_by(args, line.number) ? x : -static_cast<C>(__builtin_inf());
    }

    __device__ Stats identity() const { return {}; }
    template <class Line>
    __device__ Stats local(Line& line) const {
        if constexpr (!kCausal) return max_and_sum_of_own(*this, line);
        Stats own;
        line.each(*this, [&](i64 i, C(&x)[1]) {
            const C one[1][1] = {{counted(line, i, x[0])}};
            own.add(one);
        });
        return own;
    }
    template <class Team>
    __device__ Stats merge(Stats mine, const Team& team) const {
        return mine.merged(team);
    }
    template <class Line, class Team>
    __device__ Stats held(Line& line, const Team& team) const {
        if constexpr (kCausal) line.each(*this, [&](i64 i, C(&x)[1]) { x[0] = counted(line, i, x[0]); });
        return max_and_sum(*this, line, team, !log);
    }
    template <class Line>
    __device__ void finish(Line& line, const Stats& stats) const {
        const C max = stats.max;
        if (log) {
            const C log_sum = gpu::log(stats.sum);
            return line.write(*this, [&](i64, C(&x)[1]) { return (x[0] - max) - log_sum; });
        }
        const C scale = C(1) / stats.sum;
        line.write(*this, [&](i64 i, C(&x)[1]) {
            if constexpr (kCausal && !Line::is_held) x[0] = counted(line, i, x[0]);
            return (Line::is_held ? x[0] : exp_in<T>(x[0] - max)) * scale;
        });
    }
};

template <class T, bool kCausal>
void run_softmax(const SoftmaxArgs& args, i64 lines) {
    Softmax<T, kCausal> op{};
    op.in[0] = static_cast<const T*>(args.x);
    op.out = static_cast<T*>(args.out);
    op.log = args.log;
    op.args = args;
    run_lines<!kCausal>(op, lines, args.size, args.inner);
}

template <class T>
struct LogSumExp : LineOp<T, 1> {
    using C = Computed<T>;
    using Stats = MaxSum<C>;
    T* result;

    __device__ Stats identity() const { return {}; }
    template <class Line>
    __device__ Stats local(Line& line) const {
        return max_and_sum_of_own(*this, line);
    }
    template <class Team>
    __device__ Stats merge(Stats mine, const Team& team) const {
        return mine.merged(team);
    }
    template <class Line, class Team>
    __device__ Stats held(Line& line, const Team& team) const {
        return max_and_sum(*this, line, team, false);
    }
    // If the maximum is not finite it is the result: all are -inf, or one is inf or nan.
    template <class Line>
    __device__ void finish(Line& line, const Stats& stats) const {
        if (line.leads()) result[line.number] = convert<T>(is_finite(stats.max) ? stats.max + log(stats.sum) : stats.max);
    }
};

}  // namespace

void softmax(const SoftmaxArgs& args, i64 lines) {
    with_floating(args.dtype, [&]<class T>() { args.queries > 0 ? run_softmax<T, true>(args, lines) : run_softmax<T, false>(args, lines); });
}

void logsumexp(const SoftmaxArgs& args, i64 lines) {
    with_floating(args.dtype, [&]<class T>() {
        LogSumExp<T> op{};
        op.in[0] = static_cast<const T*>(args.x);
        op.result = static_cast<T*>(args.out);
        run_lines<true>(op, lines, args.size, args.inner);
    });
}

}  // namespace tapir::gpu
