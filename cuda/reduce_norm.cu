// Sums and extremes of powers of the absolute values, in float64. See reduce.cuh.
#include <cmath>

#include "tapir/cuda/reduce.cuh"

namespace tapir::gpu {
namespace {

using kernels::Finish;
using kernels::Map;
using kernels::Reduction;

// kMap is the value of `map` if it is known at compile time; Map::none: not known.
template <class T, Map kMap>
struct PowerSumOp {
    using Element = T;
    static constexpr int kPack = kMap == Map::none ? 1 : kPackOf<T>;
    using State = double;
    using Thread = double;
    T* out;
    Map map;
    Finish finish;
    double exponent;

    __device__ __forceinline__ double mapped(T x) const {
        const double value = convert<double>(x);
        if constexpr (kMap == Map::square) return value * value;
        if constexpr (kMap == Map::abs) return fabs(value);
        if (map == Map::not_zero) return value != 0 ? 1 : 0;
        return pow(fabs(value), exponent);
    }
    __device__ Thread begin() const { return 0; }
    template <int P, int V>
    __device__ __forceinline__ void add(Thread& thread, const Pack<T, V> (&packs)[P], const i64 (&)[P]) const {
        thread += fold_packs<double>(packs, [this](T x) { return mapped(x); }, Sum());
    }
    __device__ State end(Thread thread) const { return thread; }
    __device__ State identity() const { return 0; }
    __device__ State combine(State a, State b) const { return a + b; }
    template <int N>
    __device__ __forceinline__ void store(i64 first, const State (&states)[N]) const {
        T results[N];
        for (int k = 0; k < N; ++k) {
            const double sum = states[k];
            results[k] = convert<T>(finish == Finish::sqrt ? sqrt(sum) : finish == Finish::root ? pow(sum, 1 / exponent) : sum);
        }
        store_results(out, first, results);
    }
};

// Finds the largest absolute value; with `sign` -1 the smallest, as the largest of the negated ones.
template <class T>
struct AbsoluteOp {
    using Element = T;
    static constexpr int kPack = kPackOf<T>;
    using State = Computed<T>;
    using Thread = State;
    T* out;
    State sign;

    __device__ Thread begin() const { return identity(); }
    template <int P, int V>
    __device__ __forceinline__ void add(Thread& thread, const Pack<T, V> (&packs)[P], const i64 (&)[P]) const {
        const State sign_ = sign;
        thread = Max()(thread, fold_packs<State>(packs, [sign_](T x) { return sign_ * std::fabs(convert<State>(x)); }, Max()));
    }
    __device__ State end(Thread thread) const { return thread; }
    __device__ State identity() const { return lowest<State>(); }
    __device__ State combine(State a, State b) const { return Max()(a, b); }
    template <int N>
    __device__ __forceinline__ void store(i64 first, const State (&states)[N]) const {
        T results[N];
        for (int k = 0; k < N; ++k) results[k] = convert<T>(sign * states[k]);
        store_results(out, first, results);
    }
};

template <class T, Map kMap>
void power_sum(const ReduceArgs& args, i64 outputs) {
    reduce_by(PowerSumOp<T, kMap>{static_cast<T*>(args.out), args.map, args.finish, args.exponent}, args, outputs);
}

}  // namespace

void reduce_norm(const ReduceArgs& args, i64 outputs) {
    with_floating(args.dtype, [&]<class T>() {
        if (args.reduction != Reduction::sum) {
            const int sign = args.reduction == Reduction::max ? 1 : -1;
            reduce_by(AbsoluteOp<T>{static_cast<T*>(args.out), static_cast<Computed<T>>(sign)}, args, outputs);
        } else if (args.map == Map::square) {
            power_sum<T, Map::square>(args, outputs);
        } else if (args.map == Map::abs) {
            power_sum<T, Map::abs>(args, outputs);
        } else {
            power_sum<T, Map::none>(args, outputs);
        }
    });
}

}  // namespace tapir::gpu
