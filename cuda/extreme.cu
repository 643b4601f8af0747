// The largest or smallest elements and their positions, and the way back of their gradients. See reduce.cuh.
#include "tapir/cuda/reduce.cuh"

namespace tapir::gpu {
namespace {

template <class C>
__device__ __forceinline__ bool is_nan(C x) {
    return x != x;
}

template <class C>
struct Found {
    i64 index;
    C value;
};

// Nan is larger than everything else; of equal elements the first wins.
template <class C>
__device__ __forceinline__ bool comes_before(C value, i64 index, const Found<C>& other) {
    if (value > other.value || (is_nan(value) && !is_nan(other.value))) return true;
    return (value == other.value || is_nan(value)) && index < other.index;
}

// Finds the largest element; with `flip` the smallest, as the largest in the opposite order.
template <class T>
struct ExtremeOp {
    using Element = T;
    static constexpr int kPack = sizeof(T) == 8 ? 2 : 4;
    using C = Computed<T>;
    using State = Found<C>;
    using Thread = State;
    T* values;  // may be null
    i64* indices;
    bool flip;

    __device__ __forceinline__ C flipped(C x) const { return flip ? reversed(x) : x; }
    __device__ Thread begin() const { return identity(); }
    // The largest element in flight is seldom larger than all before: only then it is searched. If values are
    // equal, the positions decide, and those in flight all lie on one side of thread.index.
    template <int P, int V>
    __device__ __forceinline__ void add(Thread& thread, const Pack<T, V> (&packs)[P], const i64 (&positions)[P]) const {
        const C largest = fold_packs<C>(packs, [this](T x) { return flipped(convert<C>(x)); }, Max());
        if (!comes_before(largest, positions[0], thread)) return;
        thread.value = largest;
        for (int p = P - 1; p >= 0; --p) {
            for (int v = V - 1; v >= 0; --v) {
                const C value = flipped(convert<C>(packs[p].value[v]));
                if (value == largest || is_nan(value)) thread.index = positions[p] + v;
            }
        }
    }
    __device__ State end(const Thread& thread) const { return thread; }
    __device__ State identity() const { return {INT64_MAX, lowest<C>()}; }
    __device__ State combine(const State& a, const State& b) const { return comes_before(b.value, b.index, a) ? b : a; }
    template <int N>
    __device__ __forceinline__ void store(i64 first, const State (&states)[N]) const {
        if (values) {
            T results[N];
            for (int k = 0; k < N; ++k) results[k] = convert<T>(flipped(states[k].value));
            store_results(values, first, results);
        }
        for (int k = 0; k < N; ++k) indices[first + k] = states[k].index;
    }
};

// I must be unsigned and hold the number of elements.
template <class T, class I>
__global__ void __launch_bounds__(kThreads) put_picked_kernel(I count, I picked, I inner, i64 size, const i64* indices, const T* from, T* to) {
    const I i = static_cast<I>(global_index());
    if (i >= count) return;
    const auto outer = static_cast<i64>(i / (picked * inner)), column = static_cast<i64>(i % inner);
    to[(outer * size + indices[i]) * static_cast<i64>(inner) + column] = from[i];
}

template <class T, class I>
void launch_put_picked(const kernels::PickedArgs& args, i64 count) {
    launch(put_picked_kernel<T, I>, blocks_for(count, kThreads), kThreads, static_cast<I>(count), static_cast<I>(args.picked),
           static_cast<I>(args.inner), args.size, args.indices, static_cast<const T*>(args.from), static_cast<T*>(args.to));
}

}  // namespace

void extreme(const ReduceArgs& args, i64* indices, i64 outputs) {
    with_dtype(args.dtype, [&]<class T>() {
        reduce_by(ExtremeOp<T>{static_cast<T*>(args.out), indices, args.reduction == kernels::Reduction::min}, args, outputs);
    });
}

void put_picked(const kernels::PickedArgs& args, i64 count) {
    with_size(args.bytes, [&]<class T>() {
        if (count <= kMostPositions) {
            launch_put_picked<T, u32>(args, count);
        } else {
            launch_put_picked<T, u64>(args, count);
        }
    });
}

}  // namespace tapir::gpu
