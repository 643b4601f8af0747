// Largest and smallest elements, and products. See reduce.cuh.
#include "tapir/cuda/reduce.cuh"

namespace tapir::gpu {
namespace {

using kernels::Reduction;

// Finds the largest element; with `flip` the smallest, as the largest in the opposite order. A nan wins.
template <class T>
struct MaxOp {
    using Element = T;
    static constexpr int kPack = kPackOf<T>;
    using State = Computed<T>;
    using Thread = State;
    T* out;
    bool flip;

    __device__ __forceinline__ State flipped(State x) const { return flip ? reversed(x) : x; }
    __device__ Thread begin() const { return identity(); }
    template <int P, int V>
    __device__ __forceinline__ void add(Thread& thread, const Pack<T, V> (&packs)[P], const i64 (&)[P]) const {
        thread = Max()(thread, fold_packs<State>(packs, [this](T x) { return flipped(convert<State>(x)); }, Max()));
    }
    __device__ State end(Thread thread) const { return thread; }
    __device__ State identity() const { return lowest<State>(); }
    __device__ State combine(State a, State b) const { return Max()(a, b); }
    template <int N>
    __device__ __forceinline__ void store(i64 first, const State (&states)[N]) const {
        T results[N];
        for (int k = 0; k < N; ++k) results[k] = convert<T>(flipped(states[k]));
        store_results(out, first, results);
    }
};

template <class T>
struct ProductOp {
    using Element = T;
    static constexpr int kPack = kPackOf<T>;
    using Result = std::conditional_t<is_real<T>, T, i64>;
    using State = std::conditional_t<is_real<T>, double, u64>;  // integers wrap around
    using Thread = State;
    Result* out;

    __device__ Thread begin() const { return 1; }
    template <int P, int V>
    __device__ __forceinline__ void add(Thread& thread, const Pack<T, V> (&packs)[P], const i64 (&)[P]) const {
        thread *= fold_packs<State>(packs, [](T x) { return convert<State>(x); }, [](State a, State b) { return a * b; });
    }
    __device__ State end(Thread thread) const { return thread; }
    __device__ State identity() const { return 1; }
    __device__ State combine(State a, State b) const { return a * b; }
    template <int N>
    __device__ __forceinline__ void store(i64 first, const State (&states)[N]) const {
        Result results[N];
        for (int k = 0; k < N; ++k) {
            if constexpr (is_real<T>) {
                results[k] = convert<Result>(states[k]);
            } else {
                results[k] = static_cast<i64>(states[k]);
            }
        }
        store_results(out, first, results);
    }
};

}  // namespace

void reduce_extreme(const ReduceArgs& args, i64 outputs) {
    with_dtype(args.dtype, [&]<class T>() {
        if (args.reduction == Reduction::prod) {
            reduce_by(ProductOp<T>{static_cast<typename ProductOp<T>::Result*>(args.out)}, args, outputs);
        } else {
            reduce_by(MaxOp<T>{static_cast<T*>(args.out), args.reduction == Reduction::min}, args, outputs);
        }
    });
}

}  // namespace tapir::gpu
