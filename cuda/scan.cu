// Running sums, products, extremes and logarithms of sums of exponentials along lines, and the gradients of products.
// They accumulate in float64 and 64-bit integers.
// An operation defines what is combined; it is passed to the kernels by value:
//
//     State, identity(), combine(earlier, later)
//     kItems                                    elements that a thread reads at a time
//     read<N>(at, step, count, states)          of elements at, at + step, ...: `count` of them; for the others
//     identity() write<N>(at, step, count, before, upto)   `before`, `upto`: all elements before and up to each one,
//     combined
//
// Positions are counted in the order of the scan, so a reverse scan is one with negative steps.
//
// Note [Scans of long lines]
// If there are too few lines to keep the device busy, they are cut into parts. A first launch combines each part, a
// second one scans these totals, and a third scans every part from what comes before it. The order is fixed, unlike in
// one-pass scans, whose sums depend on the progress of other blocks.
#include "tapir/cuda/reduce.cuh"
#include "tapir/ops/scan/scan_kernels.h"

namespace tapir::gpu {
namespace {

using kernels::LineArgs;
using kernels::Scan;

struct LinesShape {
    i64 lines, size, inner;
    bool reverse;
    i64 per_part;  // positions

    // Return the element at position j of a line, and the step to the next.
    __device__ __forceinline__ i64 at(i64 line, i64 j) const {
        const i64 k = reverse ? size - 1 - j : j;
        if (inner == 1) return line * size + k;
        const i64 outer = line / inner;
        return (outer * size + k) * inner + (line - outer * inner);
    }
    __device__ __forceinline__ i64 step() const { return reverse ? -inner : inner; }
};

template <class State>
__device__ __forceinline__ State shuffle_up(State state, unsigned lanes, unsigned width) {
    u32 words[sizeof(State) / 4];
    memcpy(words, &state, sizeof(State));
    for (u32& word : words) word = __shfl_up_sync(0xffffffffu, word, lanes, static_cast<int>(width));
    memcpy(&state, words, sizeof(State));
    return state;
}

// Combines the states of the earlier threads in this one's group, and those of all its threads. A group is up to 32 threads (a
// power of two), or the block. `phase` alternates between 0 and 1 from call to call.
template <class Op>
__device__ __forceinline__ void scan_group(const Op& op, const typename Op::State& own, unsigned group, int phase, typename Op::State& before,
                                           typename Op::State& all) {
    using State = typename Op::State;
    const unsigned width = group < 32 ? group : 32, lane = threadIdx.x & (width - 1);
    State upto = own;
    for (unsigned lanes = 1; lanes < width; lanes *= 2) {
        const State other = shuffle_up(upto, lanes, width);
        if (lane >= lanes) upto = op.combine(other, upto);
    }
    before = shuffle_up(upto, 1, width);
    if (lane == 0) before = op.identity();
    if (group <= 32) {
        u32 words[sizeof(State) / 4];
        memcpy(words, &upto, sizeof(State));
        for (u32& word : words) word = __shfl_sync(0xffffffffu, word, static_cast<int>(width) - 1, static_cast<int>(width));
        memcpy(&all, words, sizeof(State));
        return;
    }
    __shared__ State of_warp[2][kThreads / 32];
    const unsigned warp = threadIdx.x / 32;
    if (lane == 31) of_warp[phase][warp] = upto;
    __syncthreads();
    State earlier = op.identity();
    all = op.identity();
    for (unsigned w = 0; w < kThreads / 32; ++w) {
        if (w == warp) earlier = all;
        all = op.combine(all, of_warp[phase][w]);
    }
    before = op.combine(earlier, before);
}

// Each group of threads scans (a part of) a line by tiles of group * kItems elements. With `totals` it only combines the part,
// into [line][part]. `carries` holds what comes before the part, in the same layout; null if nothing does.
template <class Op>
__global__ void __launch_bounds__(kThreads)
    scan_rows_kernel(Op op, LinesShape shape, unsigned group, const typename Op::State* carries, typename Op::State* totals) {
    using State = typename Op::State;
    constexpr int N = Op::kItems;
    const i64 line = static_cast<i64>(blockIdx.x) * (kThreads / group) + threadIdx.x / group;
    const bool valid = line < shape.lines;
    const i64 place = line * gridDim.y + blockIdx.y, step = shape.step();
    State carry = carries && valid ? carries[place] : op.identity();
    i64 first = blockIdx.y * shape.per_part, end = first + shape.per_part;
    if (end > shape.size) end = shape.size;
    int phase = 0;
    for (; first < end; first += group * N, phase ^= 1) {
        const i64 own = first + (threadIdx.x & (group - 1)) * N, left = end - own;
        const int count = !valid || left <= 0 ? 0 : left < N ? static_cast<int>(left) : N;
        const i64 at = count > 0 ? shape.at(line, own) : 0;
        State states[N];
        op.template read<N>(at, step, count, states);
        for (int k = 1; k < N; ++k) states[k] = op.combine(states[k - 1], states[k]);
        State before, all;
        scan_group(op, states[N - 1], group, phase, before, all);
        before = op.combine(carry, before);
        carry = op.combine(carry, all);
        if (totals) continue;
        State earlier[N];
        earlier[0] = before;
        for (int k = 0; k < N; ++k) {
            states[k] = op.combine(before, states[k]);
            if (k + 1 < N) earlier[k + 1] = states[k];
        }
        op.template write<N>(at, step, count, earlier, states);
    }
    if (totals && valid && (threadIdx.x & (group - 1)) == 0) totals[place] = carry;
}

// One thread scans (a part of) a line; neighbouring threads are on neighbouring lines.
template <class Op>
__global__ void __launch_bounds__(kThreads)
    scan_columns_kernel(Op op, LinesShape shape, const typename Op::State* carries, typename Op::State* totals) {
    using State = typename Op::State;
    constexpr int N = 4;
    const i64 line = global_index();
    if (line >= shape.lines) return;
    const i64 place = line * gridDim.y + blockIdx.y, step = shape.step();
    State carry = carries ? carries[place] : op.identity();
    i64 first = blockIdx.y * shape.per_part, end = first + shape.per_part;
    if (end > shape.size) end = shape.size;
    i64 at = shape.at(line, first);
    for (; first < end; first += N, at += N * step) {
        const int count = end - first < N ? static_cast<int>(end - first) : N;
        State states[N], earlier[N];
        op.template read<N>(at, step, count, states);
        for (int k = 0; k < N; ++k) {
            earlier[k] = carry;
            states[k] = carry = op.combine(carry, states[k]);
        }
        if (!totals) op.template write<N>(at, step, count, earlier, states);
    }
    if (totals) totals[place] = carry;
}

// --- Launching -------------------------------------------------------------------------------------------------------

// Turns the totals of parts into what comes before each part, by a scan in place.
template <class Op>
struct CarryOp {
    using State = typename Op::State;
    static constexpr int kItems = 2;
    Op op;
    State* states;

    __device__ State identity() const { return op.identity(); }
    __device__ __forceinline__ State combine(const State& a, const State& b) const { return op.combine(a, b); }
    template <int N>
    __device__ __forceinline__ void read(i64 at, i64 step, int count, State (&to)[N]) const {
        for (int k = 0; k < N; ++k) to[k] = k < count ? states[at + k * step] : op.identity();
    }
    template <int N>
    __device__ __forceinline__ void write(i64 at, i64 step, int count, const State (&before)[N], const State (&)[N]) const {
        for (int k = 0; k < N; ++k) {
            if (k < count) states[at + k * step] = before[k];
        }
    }
};

constexpr unsigned kColumnsFrom = 16;  // lines beside each other

template <class Op>
void launch_scan(const Op& op, const LinesShape& shape, i64 parts, const typename Op::State* carries, typename Op::State* totals) {
    const auto parts_ = static_cast<unsigned>(parts);
    if (shape.inner >= kColumnsFrom) {
        const dim3 grid(blocks_for(shape.lines, kThreads), parts_);
        return launch(scan_columns_kernel<Op>, grid, kThreads, op, shape, carries, totals);
    }
    const i64 items = (shape.size + Op::kItems - 1) / Op::kItems;
    const unsigned group = items <= 32 ? power_of_two_from(items) : kThreads;
    launch(scan_rows_kernel<Op>, dim3(blocks_for(shape.lines, kThreads / group), parts_), kThreads, op, shape, group, carries, totals);
}

template <class Op>
void scan_lines(const Op& op, const LineArgs& args, i64 lines, bool reverse) {
    typename Op::State* const none = nullptr;
    LinesShape shape{lines, args.size, args.inner, reverse, args.size};
    const i64 busy = multiprocessors();
    i64 parts = 1, unit = 1;
    if (args.inner >= kColumnsFrom) {
        if (lines < busy * 512) parts = std::min((busy * 1024 + lines - 1) / lines, args.size / 64);
    } else if (lines < 2 * busy) {
        unit = kThreads * Op::kItems;
        parts = std::min((busy * 8 + lines - 1) / lines, args.size / (4 * unit));
    }
    if (parts <= 1) return launch_scan(op, shape, 1, none, none);
    parts = std::min<i64>(parts, 65535);
    shape.per_part = ((shape.size + parts - 1) / parts + unit - 1) / unit * unit;
    parts = (shape.size + shape.per_part - 1) / shape.per_part;
    const Scratch scratch(static_cast<std::size_t>(lines * parts) * sizeof(typename Op::State));
    auto* const totals = scratch.as<typename Op::State>();
    launch_scan(op, shape, parts, none, totals);
    const CarryOp<Op> carry{op, totals};
    launch_scan(carry, {lines, parts, 1, false, parts}, 1, none, none);
    launch_scan(op, shape, parts, totals, none);
}

// --- Sums and products -----------------------------------------------------------------------------------------------

#define TAPIR_SCALAR __device__ __forceinline__
#define TAPIR_SCAN_HOST
#include "tapir/ops/kernels/scan_functions.h"
#undef TAPIR_SCALAR
#undef TAPIR_SCAN_HOST

template <class T>
using Wide = std::conditional_t<is_real<T>, double, u64>;  // integers wrap around

// A scan of scan_functions.h.
template <class T, class Functions>
struct RunningOp : Functions {
    using Result = std::conditional_t<is_real<T>, T, i64>;
    using State = typename Functions::State;
    static constexpr int kItems = sizeof(T) == 8 ? 4 : 8, kPack = kPackOf<T>;
    const T* x;
    Result* out;
    bool aligned;  // all lines are runs of whole packs

    __device__ __forceinline__ State read_one(T value) const { return this->of(convert<Wide<T>>(value)); }
    template <int N>
    __device__ __forceinline__ void read(i64 at, i64 step, int count, State (&states)[N]) const {
        if constexpr (N % kPack == 0) {
            if (aligned && count == N) {
                const i64 first = step < 0 ? at - (N - 1) : at;
                for (int p = 0; p < N / kPack; ++p) {
                    const auto pack = *reinterpret_cast<const Pack<T, kPack>*>(x + first + p * kPack);
                    for (int v = 0; v < kPack; ++v) {
                        const int k = p * kPack + v;
                        states[step < 0 ? N - 1 - k : k] = read_one(pack.value[v]);
                    }
                }
                return;
            }
        }
        for (int k = 0; k < N; ++k) states[k] = k < count ? read_one(x[at + k * step]) : this->identity();
    }
    template <int N>
    __device__ __forceinline__ void write(i64 at, i64 step, int count, const State (&)[N], const State (&upto)[N]) const {
        if constexpr (N % kPackOf<Result> == 0) {
            constexpr int V = kPackOf<Result>;
            if (aligned && count == N) {
                const i64 first = step < 0 ? at - (N - 1) : at;
                for (int p = 0; p < N / V; ++p) {
                    Pack<Result, V> pack;
                    for (int v = 0; v < V; ++v) {
                        const int k = p * V + v;
                        pack.value[v] = convert<Result>(this->value(upto[step < 0 ? N - 1 - k : k]));
                    }
                    *reinterpret_cast<Pack<Result, V>*>(out + first + p * V) = pack;
                }
                return;
            }
        }
        for (int k = 0; k < N; ++k) {
            if (k < count) out[at + k * step] = convert<Result>(this->value(upto[k]));
        }
    }
};

template <class T>
void run_scan(const LineArgs& args, const Scan& scan, i64 lines) {
    with_scan<Wide<T>>(scan, [&]<class Functions>(const Functions& functions) {
        using Op = RunningOp<T, Functions>;
        using Result = typename Op::Result;
        const bool aligned = args.inner == 1 && args.size % Op::kItems == 0 && is_aligned(args.x, 16) && is_aligned(args.out, 16);
        scan_lines(Op{functions, static_cast<const T*>(args.x), static_cast<Result*>(args.out), aligned}, args, lines, scan.reverse);
    });
}

// --- Extremes --------------------------------------------------------------------------------------------------------

template <class V>
struct Placed {
    V value;
    i64 index;  // -1: none yet
};

template <class T, bool kLargest>
struct ExtremeOp {
    using Value = std::conditional_t<is_real<T>, double, i64>;
    using State = Placed<Value>;
    static constexpr int kItems = 4;
    const T* x;
    T* out;
    i64* indices;
    i64 size, inner;

    __device__ State identity() const { return {0, -1}; }
    __device__ __forceinline__ State combine(const State& earlier, const State& later) const {
        if (later.index < 0) return earlier;
        if (earlier.index < 0) return later;
        const bool is_as_good = kLargest ? later.value >= earlier.value : later.value <= earlier.value;
        return is_as_good || later.value != later.value ? later : earlier;
    }
    template <int N>
    __device__ __forceinline__ void read(i64 at, i64 step, int count, State (&states)[N]) const {
        const i64 row = at / inner, first = row - row / size * size;
        for (int k = 0; k < N; ++k) {
            states[k] = identity();
            if (k < count) states[k] = {convert<Value>(x[at + k * step]), first + k};
        }
    }
    template <int N>
    __device__ __forceinline__ void write(i64 at, i64 step, int count, const State (&)[N], const State (&upto)[N]) const {
        for (int k = 0; k < N; ++k) {
            if (k >= count) continue;
            out[at + k * step] = convert<T>(upto[k].value);
            indices[at + k * step] = upto[k].index;
        }
    }
};

// --- Gradients of products -------------------------------------------------------------------------------------------

// out[k] = x[0] ... x[k-1]
template <class T>
struct ProductBeforeOp {
    using State = double;
    static constexpr int kItems = 4;
    const T* x;
    T* out;

    __device__ State identity() const { return 1; }
    __device__ __forceinline__ State combine(State a, State b) const { return a * b; }
    template <int N>
    __device__ __forceinline__ void read(i64 at, i64 step, int count, State (&states)[N]) const {
        for (int k = 0; k < N; ++k) states[k] = k < count ? static_cast<double>(x[at + k * step]) : 1;
    }
    template <int N>
    __device__ __forceinline__ void write(i64 at, i64 step, int count, const State (&before)[N], const State (&)[N]) const {
        for (int k = 0; k < N; ++k) {
            if (k < count) out[at + k * step] = static_cast<T>(before[k]);
        }
    }
};

struct Affine {  // y -> factor * y + constant
    double factor, constant;
};

// Runs from the end: after[k] = g[k] + x[k+1] after[k+1], by composing these maps; multiplies it into out.
template <class T>
struct RecurrenceAfterOp {
    using State = Affine;
    static constexpr int kItems = 4;
    const T* x;
    const T* g;
    T* out;
    i64 size, inner;
    bool whole;  // g has one element a line, which counts at the last position

    __device__ State identity() const { return {1, 0}; }
    __device__ __forceinline__ State combine(const State& earlier, const State& later) const {
        return {later.factor * earlier.factor, later.factor * earlier.constant + later.constant};
    }
    template <int N>
    __device__ __forceinline__ void read(i64 at, i64 step, int count, State (&states)[N]) const {
        const i64 row = at / inner, outer = row / size, line = outer * inner + (at - row * inner);
        i64 position = row - outer * size;
        for (int k = 0; k < N; ++k, --position, at += step) {
            states[k] = identity();
            if (k >= count) continue;
            const bool last = position == size - 1;
            if (!last) states[k].factor = static_cast<double>(x[at + inner]);
            states[k].constant = !whole ? static_cast<double>(g[at]) : last ? static_cast<double>(g[line]) : 0;
        }
    }
    template <int N>
    __device__ __forceinline__ void write(i64 at, i64 step, int count, const State (&)[N], const State (&upto)[N]) const {
        for (int k = 0; k < N; ++k, at += step) {
            if (k < count) out[at] = static_cast<T>(static_cast<double>(out[at]) * upto[k].constant);
        }
    }
};

template <class T>
void run_prod_gradient(const LineArgs& args, const void* g, bool whole, i64 lines) {
    const auto* x = static_cast<const T*>(args.x);
    auto* out = static_cast<T*>(args.out);
    scan_lines(ProductBeforeOp<T>{x, out}, args, lines, false);
    scan_lines(RecurrenceAfterOp<T>{x, static_cast<const T*>(g), out, args.size, args.inner, whole}, args, lines, true);
}

}  // namespace

void scan(const LineArgs& args, const Scan& scan, i64 lines) {
    with_dtype(args.dtype, [&]<class T>() { run_scan<T>(args, scan, lines); });
}

void scan_extreme(const LineArgs& args, bool largest, i64* indices, i64 lines) {
    with_dtype(args.dtype, [&]<class T>() {
        const auto* x = static_cast<const T*>(args.x);
        auto* out = static_cast<T*>(args.out);
        if (largest) {
            scan_lines(ExtremeOp<T, true>{x, out, indices, args.size, args.inner}, args, lines, false);
        } else {
            scan_lines(ExtremeOp<T, false>{x, out, indices, args.size, args.inner}, args, lines, false);
        }
    });
}

void prod_gradient(const LineArgs& args, const void* g, bool whole, i64 lines) {
    if (args.dtype == DType::float32) {
        run_prod_gradient<float>(args, g, whole, lines);
    } else {
        run_prod_gradient<double>(args, g, whole, lines);
    }
}

}  // namespace tapir::gpu
