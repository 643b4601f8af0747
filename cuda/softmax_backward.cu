// The gradients of softmax, its logarithm and logsumexp.
#include "tapir/cuda/lines.cuh"
#include "tapir/ops/reduce/softmax_kernels.h"

namespace tapir::gpu {
namespace {

using kernels::SoftmaxArgs;

// in: the result of the forward pass, its gradient.
template <class T>
struct SoftmaxGradient : LineOp<T, 2> {
    using C = Computed<T>;
    struct Stats {
        C sum;
    };
    bool log;

    __device__ Stats identity() const { return {C(0)}; }
    template <class Line>
    __device__ Stats local(Line& line) const {
        C sum = 0;
        line.each(*this, [&](i64, C(&x)[2]) { sum += log ? x[1] : x[0] * x[1]; });
        return {sum};
    }
    template <class Team>
    __device__ Stats merge(Stats mine, const Team& team) const {
        return {team.reduce(mine.sum, Sum{}, C(0))};
    }
    template <class Line, class Team>
    __device__ Stats held(Line& line, const Team& team) const {
        return merge(local(line), team);
    }
    template <class Line>
    __device__ void finish(Line& line, const Stats& stats) const {
        const C sum = stats.sum;
        if (log) return line.write(*this, [&](i64, C(&x)[2]) { return x[1] - exp(x[0]) * sum; });
        line.write(*this, [&](i64, C(&x)[2]) { return x[0] * (x[1] - sum); });
    }
};

template <class T>
struct LogSumExpGradient : ElementOp<T, 1> {
    using C = Computed<T>;
    const T *y, *g;

    template <class Line>
    __device__ void finish(Line& line, const typename ElementOp<T, 1>::Stats&) const {
        if (line.is_empty()) return;
        const C scale = convert<C>(g[line.number]), of_line = convert<C>(y[line.number]);
        const C shift = of_line == -static_cast<C>(__builtin_inf()) ? C(0) : of_line;
        line.write(*this, [&](i64, C(&x)[1]) { return scale * exp(x[0] - shift); });
    }
};

}  // namespace

void softmax_backward(const SoftmaxArgs& args, i64 lines) {
    with_floating(args.dtype, [&]<class T>() {
        SoftmaxGradient<T> op{};
        op.in[0] = static_cast<const T*>(args.x);
        op.in[1] = static_cast<const T*>(args.g);
        op.out = static_cast<T*>(args.out);
        op.log = args.log;
        run_lines<true>(op, lines, args.size, args.inner);
    });
}

void logsumexp_backward(const SoftmaxArgs& args, const void* y, i64 lines) {
    with_floating(args.dtype, [&]<class T>() {
        LogSumExpGradient<T> op{};
        op.in[0] = static_cast<const T*>(args.x);
        op.g = static_cast<const T*>(args.g);
        op.y = static_cast<const T*>(y);
        op.out = static_cast<T*>(args.out);
        run_lines<true>(op, lines, args.size, args.inner);
    });
}

}  // namespace tapir::gpu
