// Variances and deviations, in float64 and one pass over memory. See reduce.cuh.
#include "tapir/cuda/reduce.cuh"

namespace tapir::gpu {
namespace {

using kernels::Finish;

struct Moments {
    double count, mean, squares;  // squares: summed squares of the distances from the mean
};

// Chan, Golub & LeVeque 1979.
__device__ __forceinline__ Moments merged(const Moments& a, const Moments& b) {
    const double count = a.count + b.count, share = count > 0 ? b.count / count : 0, delta = b.mean - a.mean;
    return {count, a.mean + delta * share, a.squares + b.squares + delta * delta * (a.count * share)};
}

template <class T>
struct MomentsOp {
    using Element = T;
    static constexpr int kPack = sizeof(T) == 8 ? 2 : 4;
    using State = Moments;
    using Thread = Moments;
    T* out;
    double divisor;
    bool root;

    __device__ Thread begin() const { return identity(); }
    // Computes mean and distances of the elements in flight in two passes over registers, then merges them.
    template <int P, int V>
    __device__ __forceinline__ void add(Thread& thread, const Pack<T, V> (&packs)[P], const i64 (&)[P]) const {
        constexpr double count = P * V;
        const double mean = fold_packs<double>(packs, [](T x) { return convert<double>(x); }, Sum()) / count;
        const double squares = fold_packs<double>(packs, [mean](T x) { return (convert<double>(x) - mean) * (convert<double>(x) - mean); }, Sum());
        thread = merged(thread, {count, mean, squares});
    }
    __device__ State end(const Thread& thread) const { return thread; }
    __device__ State identity() const { return {0, 0, 0}; }
    __device__ State combine(const State& a, const State& b) const { return merged(a, b); }
    template <int N>
    __device__ __forceinline__ void store(i64 first, const State (&states)[N]) const {
        T results[N];
        for (int k = 0; k < N; ++k) {
            const double variance = states[k].squares / divisor;
            results[k] = convert<T>(root ? sqrt(variance) : variance);
        }
        store_results(out, first, results);
    }
};

}  // namespace

void moments(const ReduceArgs& args, i64 outputs) {
    with_floating(args.dtype,
                  [&]<class T>() { reduce_by(MomentsOp<T>{static_cast<T*>(args.out), args.divisor, args.finish == Finish::sqrt}, args, outputs); });
}

}  // namespace tapir::gpu
