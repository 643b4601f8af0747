// Reductions over any dimensions, by any operation. For cuda/*.cu.
//
// An operation says what is accumulated and how; it is passed to the kernels by value, and has
//
//     Element                          x's element type
//     kPack                            the most elements to load at once: kPackOf<Element>, or 1
//     Thread                           what one thread accumulates; made by begin()
//     add(thread, packs, positions)    adds packs[p].value[v], element positions[p] + v of those that are reduced
//     State, end(thread)               what threads and blocks exchange; plain data of whole 4-byte words
//     identity(), combine(a, b)        of states
//     store<N>(first, states)          writes N results that follow each other
//
// Everything is combined in an order that depends on the sizes alone, so results are the same each time.
//
// Note [Ways to reduce]
// Rows: memory runs along the reduced elements. 1 to 1024 threads take a row, by packs of 8 or 16 bytes wherever they
// are aligned; what is before the first and behind the last pack of a row is added one by one. Columns: memory runs
// along the results. Neighbouring threads take neighbouring (packs of) results; the rows of threads of a block share
// out the positions. Where there are too few results to keep the device busy, the reduced positions are cut into parts
// for blocks of their own, which leave their states in memory, and a second launch combines these.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>

#include "tapir/cuda/allocator.h"
#include "tapir/cuda/device.cuh"
#include "tapir/cuda/wide_divider.cuh"
#include "tapir/ops/reduce/reduce_kernels.h"

namespace tapir::gpu {

using kernels::ReduceArgs;

template <class T>
inline constexpr bool is_real = std::is_floating_point_v<T> || std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

/// Offsets of the positions in some dimensions, which are counted in row-major order.
struct Layout {
    int rank = 0;
    bool is_wide = false;  // 2^31 positions or more
    Divider sizes[8];
    WideDivider wide_sizes[8];
    i64 strides[8] = {};

    __device__ __forceinline__ i64 at(i64 position) const {
        if (rank <= 1) return position * strides[0];
        i64 offset = 0;
        if (is_wide) {
            for (int d = rank; d-- > 0;) {
                const i64 rest = static_cast<i64>(wide_sizes[d].quotient(static_cast<u64>(position)));
                offset += (position - rest * static_cast<i64>(wide_sizes[d].divisor)) * strides[d];
                position = rest;
            }
            return offset;
        }
        u32 left = static_cast<u32>(position);
        for (int d = rank; d-- > 0;) {
            const u32 rest = sizes[d].quotient(left);
            offset += static_cast<i64>(left - rest * sizes[d].divisor) * strides[d];
            left = rest;
        }
        return offset;
    }
};

/// Layout of packs: the last dimension's size is a multiple of `pack`, or there is one dimension at most.
inline Layout layout_of(int rank, const i64* sizes, const i64* strides, i64 pack) {
    Layout layout;
    layout.rank = rank;
    i64 positions = 1;
    for (int d = 0; d < rank; ++d) positions *= sizes[d];
    layout.is_wide = positions > kMostPositions;
    for (int d = 0; d < rank; ++d) {
        const i64 unit = d == rank - 1 ? pack : 1, size = (sizes[d] + unit - 1) / unit;
        if (layout.is_wide) {
            layout.wide_sizes[d] = WideDivider(size);
        } else {
            layout.sizes[d] = Divider(size);
        }
        layout.strides[d] = strides[d] * unit;
    }
    return layout;
}

/// Elements of a pack: at most 16 bytes and 8 elements.
template <class T>
inline constexpr int kPackOf = sizeof(T) == 1 ? 8 : 16 / static_cast<int>(sizeof(T));

// --- States between threads ------------------------------------------------------------------------------------------

template <class State>
__device__ __forceinline__ State shuffle_xor(State state, int lanes) {
    if constexpr (sizeof(State) <= 8) {
        return __shfl_xor_sync(0xffffffffu, state, lanes);
    } else {
        u32 words[sizeof(State) / 4];
        memcpy(words, &state, sizeof(State));
        for (u32& word : words) word = __shfl_xor_sync(0xffffffffu, word, lanes);
        memcpy(&state, words, sizeof(State));
        return state;
    }
}

// Combines over groups of `group` consecutive threads (a power of two); all threads of the block must call it,
// once.
template <class Op>
__device__ __forceinline__ typename Op::State combine_group(const Op& op, typename Op::State state, unsigned group) {
    using State = typename Op::State;
    for (unsigned lanes = group < 32 ? group / 2 : 16; lanes > 0; lanes /= 2) {
        state = op.combine(state, shuffle_xor(state, static_cast<int>(lanes)));
    }
    if (group <= 32) return state;
    __shared__ State of_warp[32];
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = state;
    __syncthreads();
    const unsigned warps = group / 32, lane = threadIdx.x % 32, first = threadIdx.x / group * warps;
    state = lane < warps ? of_warp[first + lane] : op.identity();
    for (unsigned lanes = 16; lanes > 0; lanes /= 2) state = op.combine(state, shuffle_xor(state, static_cast<int>(lanes)));
    return state;
}

/// Writes N consecutive results; at once if they make up to 16 bytes.
template <int N, class R>
__device__ __forceinline__ void store_results(R* out, i64 first, const R (&values)[N]) {
    if constexpr (N > 1 && sizeof(R) * N <= 16) {
        Pack<R, N> pack;
        for (int k = 0; k < N; ++k) pack.value[k] = values[k];
        reinterpret_cast<Pack<R, N>*>(out)[first / N] = pack;
    } else {
        for (int k = 0; k < N; ++k) out[first + k] = values[k];
    }
}

/// Combines of(x) of all elements in a tree.
template <class A, class T, int P, int V, class Of, class Combine>
__device__ __forceinline__ A fold_packs(const Pack<T, V> (&packs)[P], const Of& of, const Combine& combine) {
    A columns[V];
    for (int v = 0; v < V; ++v) {
        A column[P];
        for (int p = 0; p < P; ++p) column[p] = of(packs[p].value[v]);
        for (int half = P / 2; half > 0; half /= 2) {
            for (int p = 0; p < half; ++p) column[p] = combine(column[p], column[p + half]);
        }
        columns[v] = column[0];
    }
    for (int half = V / 2; half > 0; half /= 2) {
        for (int v = 0; v < half; ++v) columns[v] = combine(columns[v], columns[v + half]);
    }
    return columns[0];
}

/// Reverses the order of numbers: the largest becomes the smallest. Nan stays nan.
template <class C>
__device__ __forceinline__ C reversed(C x) {
    if constexpr (std::is_floating_point_v<C>) {
        return -x;
    } else {
        return ~x;
    }
}
/// The lowest value: nothing is smaller.
template <class C>
__device__ __forceinline__ constexpr C lowest() {
    if constexpr (std::is_floating_point_v<C>) {
        return -static_cast<C>(INFINITY);
    } else {
        return sizeof(C) == 8 ? static_cast<C>(INT64_MIN) : static_cast<C>(INT32_MIN);
    }
}

// --- Rows ------------------------------------------------------------------------------------------------------------

inline constexpr int kInFlight = 4;  // packs that a thread loads at a time

struct RowsShape {
    i64 outputs, size;     // elements of a row
    unsigned group;        // threads of a row, a power of two
    Layout kept, reduced;  // of rows; of packs within a row
    i64 packs_per_part;    // of blockIdx.y
};

template <class Op>
__device__ __forceinline__ void add_element(const Op& op, typename Op::Thread& thread, const typename Op::Element* row, i64 i) {
    const Pack<typename Op::Element, 1> x[1] = {{{row[i]}}};
    const i64 position[1] = {i};
    op.template add<1, 1>(thread, x, position);
}

// With V > 1 the row is one run, or all its runs are aligned and a multiple of V long.
template <class Op, int V>
__global__ void __launch_bounds__(1024) rows_kernel(Op op, const typename Op::Element* x, RowsShape shape, typename Op::State* partial) {
    using T = typename Op::Element;
    const unsigned group = shape.group, t = threadIdx.x & (group - 1);
    const i64 row = static_cast<i64>(blockIdx.x) * (blockDim.x / group) + threadIdx.x / group;
    typename Op::Thread thread = op.begin();
    if (row < shape.outputs) {
        const T* from = x + shape.kept.at(row);
        // Packs are counted from the last aligned place; `before` is how many elements of the first belong to another row.
        i64 first = 0, end = shape.size / V, before = 0;
        if constexpr (V > 1) {
            if (shape.reduced.rank <= 1) {
                before = static_cast<i64>(reinterpret_cast<std::uintptr_t>(from) / sizeof(T) % V);
                first = before > 0;
                end = (before + shape.size) / V;
                if (blockIdx.y == 0) {
                    const i64 head = before == 0 ? 0 : shape.size < V - before ? shape.size : V - before;
                    const i64 tail = end < first ? shape.size : end * V - before;
                    for (i64 i = t; i < head; i += group) add_element(op, thread, from, i);
                    for (i64 i = tail + t; i < shape.size; i += group) add_element(op, thread, from, i);
                }
            }
        }
        const T* const aligned = from - before;
        i64 q = first + blockIdx.y * shape.packs_per_part;
        if (end > q + shape.packs_per_part) end = q + shape.packs_per_part;
        for (q += t; q < end; q += kInFlight * group) {
            const bool all = q + (kInFlight - 1) * group < end;
            Pack<T, V> packs[kInFlight];
            i64 positions[kInFlight];
            for (int p = 0; p < kInFlight; ++p) {
                const i64 at = q + p * static_cast<i64>(group);
                positions[p] = at * V - before;
                if (all || at < end) packs[p] = *reinterpret_cast<const Pack<T, V>*>(aligned + shape.reduced.at(at));
            }
            if (all) {
                op.template add<kInFlight, V>(thread, packs, positions);
            } else {
                for (int p = 0; p < kInFlight - 1; ++p) {
                    const Pack<T, V> one[1] = {packs[p]};
                    const i64 position[1] = {positions[p]};
                    if (q + p * static_cast<i64>(group) < end) op.template add<1, V>(thread, one, position);
                }
            }
        }
    }
    const typename Op::State state[1] = {combine_group(op, op.end(thread), group)};
    if (t != 0 || row >= shape.outputs) return;
    if (partial) {
        partial[row * gridDim.y + blockIdx.y] = state[0];
    } else {
        op.template store<1>(row, state);
    }
}

// --- Columns ---------------------------------------------------------------------------------------------------------

struct ColumnsShape {
    i64 packs, size;       // packs of results; reduced positions
    unsigned across;       // threads along the results, a power of two
    Layout kept, reduced;  // of packs; of positions
    i64 size_per_part;     // of blockIdx.y
};

// Combines the states of the threads of a block with the same threadIdx.x % across, and stores those of the first
// `packs`.
template <class Op, int V>
__device__ __forceinline__ void store_columns(const Op& op, typename Op::State (&states)[V], unsigned across, i64 first_pack, i64 packs,
                                              typename Op::State* partial) {
    using State = typename Op::State;
    constexpr int most = 32768 / (kThreads * static_cast<int>(sizeof(State))), at_once = most < V ? most : V;
    __shared__ State shared[at_once][kThreads];
    const unsigned own = threadIdx.x & (across - 1);
    if (across < 32) {
        for (unsigned lanes = across; lanes < 32; lanes *= 2) {
            for (int v = 0; v < V; ++v) states[v] = op.combine(states[v], shuffle_xor(states[v], static_cast<int>(lanes)));
        }
    }
    const unsigned rows = across < 32 ? kThreads / 32 : kThreads / across;
    const unsigned at = across < 32 ? threadIdx.x / 32 * across + own : threadIdx.x;
    if (rows > 1) {
        for (int begin = 0; begin < V; begin += at_once) {
            if (begin > 0) __syncthreads();
            for (int v = begin; v < V && v < begin + at_once; ++v) {
                if (across >= 32 || threadIdx.x % 32 < across) shared[v - begin][at] = states[v];
            }
            __syncthreads();
            if (threadIdx.x >= across) continue;
            for (int v = begin; v < V && v < begin + at_once; ++v) {
                for (unsigned r = 1; r < rows; ++r) states[v] = op.combine(states[v], shared[v - begin][r * across + own]);
            }
        }
    }
    if (threadIdx.x >= across || first_pack + own >= packs) return;
    const i64 first = (first_pack + own) * V;
    if (partial) {
        for (int v = 0; v < V; ++v) partial[blockIdx.y * (packs * V) + first + v] = states[v];
    } else {
        op.template store<V>(first, states);
    }
}

template <class Op, int V>
__global__ void __launch_bounds__(kThreads) columns_kernel(Op op, const typename Op::Element* x, ColumnsShape shape, typename Op::State* partial) {
    using T = typename Op::Element;
    const i64 first_pack = static_cast<i64>(blockIdx.x) * shape.across, pack = first_pack + (threadIdx.x & (shape.across - 1));
    const unsigned step = kThreads / shape.across;
    typename Op::Thread threads[V];
    for (int v = 0; v < V; ++v) threads[v] = op.begin();
    if (pack < shape.packs) {
        const T* const from = x + shape.kept.at(pack);
        i64 r = blockIdx.y * shape.size_per_part, end = r + shape.size_per_part;
        if (end > shape.size) end = shape.size;
        for (r += threadIdx.x / shape.across; r < end; r += kInFlight * step) {
            const bool all = r + (kInFlight - 1) * step < end;
            Pack<T, V> packs[kInFlight];
            i64 positions[kInFlight];
            for (int p = 0; p < kInFlight; ++p) {
                positions[p] = r + p * static_cast<i64>(step);
                if (all || positions[p] < end) {
                    packs[p] = *reinterpret_cast<const Pack<T, V>*>(from + shape.reduced.at(positions[p]));
                }
            }
            for (int v = 0; v < V; ++v) {
                Pack<T, 1> column[kInFlight];
                for (int p = 0; p < kInFlight; ++p) column[p].value[0] = packs[p].value[v];
                if (all) {
                    op.template add<kInFlight, 1>(threads[v], column, positions);
                } else {
                    for (int p = 0; p < kInFlight - 1; ++p) {
                        const Pack<T, 1> one[1] = {column[p]};
                        const i64 position[1] = {positions[p]};
                        if (positions[p] < end) op.template add<1, 1>(threads[v], one, position);
                    }
                }
            }
        }
    }
    typename Op::State states[V];
    for (int v = 0; v < V; ++v) states[v] = op.end(threads[v]);
    store_columns<Op, V>(op, states, shape.across, first_pack, shape.packs, partial);
}

// --- States of parts -------------------------------------------------------------------------------------------------

// State p of result o is at o * output_stride + p * part_stride. A block processes `across` results.
template <class Op>
__global__ void __launch_bounds__(kThreads)
    parts_kernel(Op op, const typename Op::State* partial, i64 outputs, i64 parts, i64 output_stride, i64 part_stride, unsigned across) {
    const i64 first = static_cast<i64>(blockIdx.x) * across, output = first + (threadIdx.x & (across - 1));
    typename Op::State states[1] = {op.identity()};
    if (output < outputs) {
        for (i64 p = threadIdx.x / across; p < parts; p += kThreads / across) {
            states[0] = op.combine(states[0], partial[output * output_stride + p * part_stride]);
        }
    }
    store_columns<Op, 1>(op, states, across, first, outputs, nullptr);
}

// --- Launching -------------------------------------------------------------------------------------------------------

inline i64 positions_of(int rank, const i64* sizes) {
    i64 n = 1;
    for (int d = 0; d < rank; ++d) n *= sizes[d];
    return n;
}

inline bool all_multiples(const i64* strides, int count, i64 of) {
    for (int d = 0; d < count; ++d) {
        if (strides[d] % of != 0) return false;
    }
    return true;
}

template <class Op, int V>
void reduce_rows(const Op& op, const ReduceArgs& args, i64 outputs) {
    RowsShape shape;
    shape.outputs = outputs;
    shape.size = positions_of(args.reduced, args.reduced_sizes);
    shape.kept = layout_of(args.kept, args.kept_sizes, args.kept_strides, 1);
    shape.reduced = layout_of(args.reduced, args.reduced_sizes, args.reduced_strides, V);
    const i64 packs = (shape.size + V - 1) / V, busy = multiprocessors();
    // A few packs for each thread; more threads if there are few rows.
    unsigned group = packs <= 32 ? power_of_two_from(packs) : packs <= 256 ? 32 : 256, threads = kThreads;
    if (packs >= 4096 && outputs < 4 * busy) group = threads = outputs < busy ? 1024 : 512;
    i64 parts = 1;
    if (packs > 16384 && outputs < 2 * busy) {
        group = threads = kThreads;
        parts = std::min((16 * busy + outputs - 1) / outputs, packs / 2048);
    }
    shape.group = group;
    shape.packs_per_part = (packs + parts) / parts;  // a row that is not aligned touches one more
    const auto* x = static_cast<const typename Op::Element*>(args.x);
    const dim3 grid(blocks_for(outputs, threads / group), static_cast<unsigned>(parts));
    typename Op::State* const none = nullptr;
    if (parts == 1) return launch(rows_kernel<Op, V>, grid, threads, op, x, shape, none);
    const Scratch scratch(static_cast<std::size_t>(outputs * parts) * sizeof(typename Op::State));
    auto* partial = scratch.as<typename Op::State>();
    launch(rows_kernel<Op, V>, grid, threads, op, x, shape, partial);
    launch(parts_kernel<Op>, static_cast<unsigned>(outputs), kThreads, op, partial, outputs, parts, parts, i64{1}, 1u);
}

template <class Op, int V>
void reduce_columns(const Op& op, const ReduceArgs& args, i64 outputs) {
    ColumnsShape shape;
    shape.packs = outputs / V;
    shape.size = positions_of(args.reduced, args.reduced_sizes);
    shape.kept = layout_of(args.kept, args.kept_sizes, args.kept_strides, V);
    shape.reduced = layout_of(args.reduced, args.reduced_sizes, args.reduced_strides, 1);
    const i64 busy = multiprocessors();
    const auto blocks_of = [&](unsigned across) { return (shape.packs + across - 1) / across; };
    // Wide blocks if there are many results; down to 128 bytes of a row if there are few.
    unsigned across = std::min(power_of_two_from(shape.packs), kThreads);
    const unsigned narrow = std::min(across, V > 1 ? 8u : 32u);
    const auto is_few = [&](i64 blocks) { return blocks < (across > 32 ? 8 * busy : busy); };
    while (across > narrow && kThreads / across < shape.size && is_few(blocks_of(across))) across /= 2;
    shape.across = across;
    const i64 blocks = blocks_of(across), rows = kThreads / across;
    i64 parts = 1;
    if (shape.size > 32 * rows && blocks < 4 * busy) {
        parts = std::clamp<i64>(std::min((8 * busy + blocks - 1) / blocks, shape.size / (16 * rows)), 1, 65535);
    }
    shape.size_per_part = (shape.size + parts - 1) / parts;
    const auto* x = static_cast<const typename Op::Element*>(args.x);
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(parts));
    typename Op::State* const none = nullptr;
    if (parts == 1) return launch(columns_kernel<Op, V>, grid, kThreads, op, x, shape, none);
    const Scratch scratch(static_cast<std::size_t>(outputs * parts) * sizeof(typename Op::State));
    auto* partial = scratch.as<typename Op::State>();
    launch(columns_kernel<Op, V>, grid, kThreads, op, x, shape, partial);
    const unsigned together = std::min(power_of_two_from(outputs), 32u);
    launch(parts_kernel<Op>, blocks_for(outputs, together), kThreads, op, partial, outputs, parts, i64{1}, outputs, together);
}

/// Reduces args.x into `outputs` results; the operation interprets args.reduction, map and finish.
template <class Op>
void reduce_by(const Op& op, const ReduceArgs& args, i64 outputs) {
    constexpr int V = Op::kPack;
    const bool aligned = is_aligned(args.x, V * sizeof(typename Op::Element));
    if (args.columns) {
        const int last = args.kept - 1;
        const bool packs = args.kept_strides[last] == 1 && args.kept_sizes[last] % V == 0 && aligned && all_multiples(args.kept_strides, last, V) &&
            all_multiples(args.reduced_strides, args.reduced, V);
        return packs ? reduce_columns<Op, V>(op, args, outputs) : reduce_columns<Op, 1>(op, args, outputs);
    }
    const int last = args.reduced - 1;
    bool packs = args.reduced > 0 && args.reduced_strides[last] == 1;
    if (packs && (args.reduced > 1 || args.reduced_sizes[0] < 8 * V)) {  // too short for odd ends
        packs = args.reduced_sizes[last] % V == 0 && aligned && all_multiples(args.reduced_strides, last, V) &&
            all_multiples(args.kept_strides, args.kept, V);
    }
    return packs ? reduce_rows<Op, V>(op, args, outputs) : reduce_rows<Op, 1>(op, args, outputs);
}

// The reductions of kernels::reduce that are not in reduce.cu: norms, in reduce_norm.cu; extremes and products, in
// reduce_extreme.cu.
void reduce_norm(const ReduceArgs& args, i64 outputs);
void reduce_extreme(const ReduceArgs& args, i64 outputs);

}  // namespace tapir::gpu
