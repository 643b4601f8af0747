// Softmax, its logarithm and logsumexp.
#include "tapir/cuda/lines.cuh"
#include "tapir/ops/kernels/softmax.h"

namespace tapir::gpu {
namespace {

using kernels::SoftmaxArgs;

template <class T>
struct Softmax : LineOp<T, 1> {
    using C = Computed<T>;
    using Stats = MaxSum<C>;
    bool log;

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
        line.write(*this, [&](i64, C(&x)[1]) { return (Line::is_held ? x[0] : exp(x[0] - max)) * scale; });
    }
};

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
    // A maximum that is not finite is the result: all are -inf, or one is inf or nan.
    template <class Line>
    __device__ void finish(Line& line, const Stats& stats) const {
        if (line.leads()) result[line.number] = convert<T>(is_finite(stats.max) ? stats.max + log(stats.sum) : stats.max);
    }
};

}  // namespace

void softmax(const SoftmaxArgs& args, i64 lines) {
    with_floating(args.dtype, [&]<class T>() {
        Softmax<T> op{};
        op.in[0] = static_cast<const T*>(args.x);
        op.out = static_cast<T*>(args.out);
        op.log = args.log;
        run_lines<true>(op, lines, args.size, args.inner);
    });
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
