// Sums, means, all and any. See reduce.cuh.
#include "tapir/cuda/reduce.cuh"

namespace tapir::gpu {
namespace {

// Note [Accuracy of sums on a device]
// The elements that a thread has in flight are added in float32, in a tree of up to 32 elements; these sums are added in
// float64. So the error does not grow with the number of elements.
template <class T>
struct SumOp {
    using Element = T;
    static constexpr int kPack = kPackOf<T>;
    using Result = std::conditional_t<is_real<T>, T, i64>;
    using State = std::conditional_t<is_real<T>, double, u64>;  // integers wrap around
    using Thread = State;
    using Few = std::conditional_t<is_real<T> || sizeof(T) == 1, Computed<T>, u64>;  // holds the sum of a few elements
    Result* out;
    double divisor;  // 0: none

    __device__ Thread begin() const { return 0; }
    template <int P, int V>
    __device__ __forceinline__ void add(Thread& thread, const Pack<T, V> (&packs)[P], const i64 (&)[P]) const {
        thread += static_cast<Thread>(fold_packs<Few>(packs, [](T x) { return convert<Few>(x); }, Sum()));
    }
    __device__ State end(Thread thread) const { return thread; }
    __device__ State identity() const { return 0; }
    __device__ State combine(State a, State b) const { return a + b; }
    template <int N>
    __device__ __forceinline__ void store(i64 first, const State (&states)[N]) const {
        Result results[N];
        for (int k = 0; k < N; ++k) {
            if constexpr (is_real<T>) {
                results[k] = convert<Result>(divisor == 0 ? states[k] : states[k] / divisor);
            } else {
                results[k] = static_cast<i64>(states[k]);
            }
        }
        store_results(out, first, results);
    }
};

// Tests if an element is not 0; with `flip` if none is 0, by "not any is 0".
template <class T>
struct AnyOp {
    using Element = T;
    static constexpr int kPack = kPackOf<T>;
    using State = i32;
    using Thread = i32;
    Bool* out;
    i32 flip;

    __device__ Thread begin() const { return 0; }
    template <int P, int V>
    __device__ __forceinline__ void add(Thread& thread, const Pack<T, V> (&packs)[P], const i64 (&)[P]) const {
        using C = Computed<T>;
        for (const Pack<T, V>& pack : packs) {
            for (int v = 0; v < V; ++v) thread |= (convert<C>(pack.value[v]) != C(0)) ^ flip;
        }
    }
    __device__ State end(Thread thread) const { return thread; }
    __device__ State identity() const { return 0; }
    __device__ State combine(State a, State b) const { return a | b; }
    template <int N>
    __device__ __forceinline__ void store(i64 first, const State (&states)[N]) const {
        Bool results[N];
        for (int k = 0; k < N; ++k) results[k] = Bool{static_cast<std::uint8_t>(states[k] ^ flip)};
        store_results(out, first, results);
    }
};

}  // namespace

void reduce(const ReduceArgs& args, i64 outputs) {
    if (args.map != kernels::Map::none) return reduce_norm(args, outputs);
    switch (args.reduction) {
        case kernels::Reduction::sum:
            with_dtype(args.dtype, [&]<class T>() {
                const double divisor = args.finish == kernels::Finish::divide ? args.divisor : 0;
                reduce_by(SumOp<T>{static_cast<typename SumOp<T>::Result*>(args.out), divisor}, args, outputs);
            });
            return;
        case kernels::Reduction::all:
        case kernels::Reduction::any:
            with_dtype(args.dtype, [&]<class T>() {
                reduce_by(AnyOp<T>{static_cast<Bool*>(args.out), args.reduction == kernels::Reduction::all}, args, outputs);
            });
            return;
        default: return reduce_extreme(args, outputs);
    }
}

}  // namespace tapir::gpu
