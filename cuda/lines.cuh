// Kernels that walk over each line of an array twice: first for a few numbers about it (a maximum, sums), then to write
// results. Softmax, cross-entropy and layer normalisation are ops of this kind, and so are their gradients.
//
// An array is seen as (outer, size, inner): outer * inner lines of `size` elements that lie `inner` apart. The method for
// a line depends on its length:
//   held      up to 1024 elements by a part of a warp, up to 16384 by a block: read once, kept in registers
//   streamed  longer ones: read twice, the second time from the last element to the first, as the last ones are in cache
//   in parts  long ones that are too few to fill the device: each by several blocks, with the numbers of the parts between
// Lines with inner > 1 go to neighbouring threads, side by side, so that a warp reads whole sectors.
//
// An op derives from LineOp and has (Line: HeldLine or StreamedLine; Team: the threads that share a line):
//     struct Stats;                                         // the numbers
//     Stats identity() const;                               // of no elements
//     Stats local(Line& line) const;                        // of a thread's own elements
//     Stats merge(Stats mine, const Team& team) const;      // of all threads' together
//     Stats held(Line& line, const Team& team) const;       // both, of a held line, whose elements it may change
//     void finish(Line& line, const Stats& stats) const;            // writes what is wanted
#pragma once

#include <algorithm>

#include "tapir/cuda/allocator.h"
#include "tapir/cuda/math.cuh"
#include "tapir/cuda/unroll.cuh"

namespace tapir::gpu {

/// N operands of the array's shape and a result, in one element type; up to two arrays with one element for each position in
/// a line, read with the operands (ReadColumns) or with the result's elements (WriteColumns). Null columns are not read.
template <class Type, int N, int ReadColumns = 0, int WriteColumns = 0>
struct LineOp {
    using T = Type;
    using C = Computed<T>;
    static constexpr int operands = N, read_columns = ReadColumns, write_columns = WriteColumns;
    const T* in[N];
    T* out = nullptr;
    const T* column[2] = {};

    bool has_alignment(std::size_t bytes) const {
        bool result = is_aligned(out, bytes) && is_aligned(column[0], bytes) && is_aligned(column[1], bytes);
        for (const T* p : in) result = result && is_aligned(p, bytes);
        return result;
    }
};

/// An op that needs to know nothing of a line before it writes.
template <class Type, int N>
struct ElementOp : LineOp<Type, N> {
    struct Stats {};
    __device__ Stats identity() const { return {}; }
    template <class Line>
    __device__ Stats local(Line&) const {
        return {};
    }
    template <class Team>
    __device__ Stats merge(Stats, const Team&) const {
        return {};
    }
    template <class Line, class Team>
    __device__ Stats held(Line&, const Team&) const {
        return {};
    }
};

// --- Lines ---------------------------------------------------------------------------------------------------------------

// Loads V neighbouring elements of some columns. The op chooses the value of a missing one: value[m] is not changed.
template <int Count, class Op, int V>
__device__ __forceinline__ void load_columns(const Op& op, i64 i, typename Op::C (&value)[V][Count]) {
    using T = typename Op::T;
    TAPIR_UNROLL
    for (int m = 0; m < Count; ++m) {
        if (!op.column[m]) {
            TAPIR_UNROLL
            for (int v = 0; v < V; ++v) value[v][m] = Op::missing_column(m);
            continue;
        }
        const auto pack = *reinterpret_cast<const Pack<T, V>*>(op.column[m] + i);
        TAPIR_UNROLL
        for (int v = 0; v < V; ++v) value[v][m] = convert<typename Op::C>(pack.value[v]);
    }
}

// Converts elements i, i + 1, ... from their form in memory to the op's.
template <class Op, int V>
__device__ __forceinline__ void unpack(const Op& op, i64 i, const Pack<typename Op::T, V> (&pack)[Op::operands],
                                       typename Op::C (&x)[V][Op::operands]) {
    TAPIR_UNROLL
    for (int v = 0; v < V; ++v) {
        TAPIR_UNROLL
        for (int k = 0; k < Op::operands; ++k) x[v][k] = convert<typename Op::C>(pack[k].value[v]);
    }
    if constexpr (Op::read_columns > 0) {
        typename Op::C column[V][Op::read_columns];
        load_columns<Op::read_columns>(op, i, column);
        TAPIR_UNROLL
        for (int v = 0; v < V; ++v) op.loaded(x[v], column[v]);
    }
}

// Writes value(i + v, x[v]) or, with columns, value(i + v, x[v], column[v]) to `to`.
template <bool kStream, class Op, int V, class Value>
__device__ __forceinline__ void write_pack(const Op& op, typename Op::T* to, i64 i, typename Op::C (&x)[V][Op::operands], const Value& value) {
    Pack<typename Op::T, V> pack;
    if constexpr (Op::write_columns > 0) {
        typename Op::C column[V][Op::write_columns];
        load_columns<Op::write_columns>(op, i, column);
        TAPIR_UNROLL
        for (int v = 0; v < V; ++v) pack.value[v] = convert<typename Op::T>(value(i + v, x[v], column[v]));
    } else {
        TAPIR_UNROLL
        for (int v = 0; v < V; ++v) pack.value[v] = convert<typename Op::T>(value(i + v, x[v]));
    }
    store_pack<kStream>(to, pack);
}

/// A line in the registers of its threads: a thread has K packs of V elements, V > 1 where stride is 1.
template <class Op, int V, int K>
struct HeldLine {
    using C = typename Op::C;
    static constexpr bool is_held = true;

    i64 number = 0, offset = 0, stride = 1;  // of the line; of its first element; from one element to the next
    int size = 0, lanes = 1, lane = 0;
    C x[K][V][Op::operands];

    __device__ __forceinline__ int first_of(int k) const { return (k * lanes + lane) * V; }
    __device__ __forceinline__ bool is_empty() const { return size == 0; }  // one beyond the last line
    __device__ __forceinline__ bool leads() const { return lane == 0 && size > 0; }

    __device__ __forceinline__ void load(const Op& op) {
        using Packs = Pack<typename Op::T, V>;
        Packs packs[K][Op::operands];
        TAPIR_UNROLL
        for (int k = 0; k < K; ++k) {
            const int i = first_of(k);
            TAPIR_UNROLL
            for (int n = 0; n < Op::operands; ++n) {
                if (i < size) packs[k][n] = *reinterpret_cast<const Packs*>(op.in[n] + offset + i * stride);
            }
        }
        TAPIR_UNROLL
        for (int k = 0; k < K; ++k) {
            const int i = first_of(k);
            if (i < size) unpack<Op, V>(op, i, packs[k], x[k]);
        }
    }
    /// Calls body(i, x) for each of the thread's elements; x are the operands, which may be changed.
    template <class Body>
    __device__ __forceinline__ void each(const Op&, const Body& body) {
        TAPIR_UNROLL
        for (int k = 0; k < K; ++k) {
            const int i = first_of(k);
            if (i >= size) continue;
            TAPIR_UNROLL
            for (int v = 0; v < V; ++v) body(i + v, x[k][v]);
        }
    }
    template <class Value>
    __device__ __forceinline__ void write(const Op& op, const Value& value) {
        TAPIR_UNROLL
        for (int k = 0; k < K; ++k) {
            const int i = first_of(k);
            if (i < size) write_pack<false, Op, V>(op, op.out + offset + i * stride, i, x[k], value);
        }
    }
};

/// A line, or elements [begin, end) of it, in memory. V is the elements of a pack, 1 unless stride is 1.
template <class Op, int V>
struct StreamedLine {
    using C = typename Op::C;
    using T = typename Op::T;
    static constexpr bool is_held = false;

    i64 number, offset, stride, begin, end;
    int lanes, lane;
    bool is_aligned;  // the arrays are aligned to whole packs

    __device__ __forceinline__ bool is_empty() const { return end == 0; }
    __device__ __forceinline__ bool leads() const { return lane == 0 && begin == 0 && end > 0; }

    // Takes the elements before the first whole pack and after the last one by one.
    template <class Body>
    __device__ __forceinline__ void in_packs(const Op& op, bool backwards, const Body& body) const {
        i64 head = begin;
        if (V > 1) head = is_aligned ? begin + (V - (offset + begin) % V) % V : end;
        if (head > end) head = end;
        const i64 packs = (end - head) / V, tail = head + packs * V;
        take<V>(op, packs, backwards, [&](i64 p) { return head + p * V; }, body);
        if (V == 1) return;
        const i64 before = head - begin;
        take<1>(op, before + end - tail, backwards, [&](i64 j) { return j < before ? begin + j : tail + j - before; }, body);
    }

    /// Calls body(x), x[W][operands], with the elements that the thread has loaded at a time.
    template <class Body>
    __device__ __forceinline__ void each_pack(const Op& op, const Body& body) const {
        in_packs(op, false, [&]<int W>(i64, C(&x)[W][Op::operands]) { body(x); });
    }
    template <class Body>
    __device__ __forceinline__ void each(const Op& op, const Body& body) const {
        in_packs(op, false, [&]<int W>(i64 i, C(&x)[W][Op::operands]) {
            TAPIR_UNROLL
            for (int w = 0; w < W; ++w) body(i + w, x[w]);
        });
    }
    template <class Value>
    __device__ __forceinline__ void write(const Op& op, const Value& value) const {
        in_packs(op, true, [&]<int W>(i64 i, C(&x)[W][Op::operands]) { write_pack<true, Op, W>(op, op.out + offset + i * stride, i, x, value); });
    }

 private:
    // Takes packs 0 ... count-1 of W elements, pack p at element place(p), with several loads at a time.
    template <int W, class Place, class Body>
    __device__ __forceinline__ void take(const Op& op, i64 count, bool backwards, const Place& place, const Body& body) const {
        constexpr int at_once = (V == 1 ? 4 : 2) / Op::operands;
        const i64 step = static_cast<i64>(lanes) * at_once, chunks = (count + step - 1) / step;
        for (i64 c = 0; c < chunks; ++c) {
            const i64 first = (backwards ? chunks - 1 - c : c) * step + lane;
            Pack<T, W> packs[at_once][Op::operands];
            TAPIR_UNROLL
            for (int u = 0; u < at_once; ++u) {
                const i64 p = first + u * lanes;
                TAPIR_UNROLL
                for (int n = 0; n < Op::operands; ++n) {
                    if (p < count) packs[u][n] = *reinterpret_cast<const Pack<T, W>*>(op.in[n] + offset + place(p) * stride);
                }
            }
            TAPIR_UNROLL
            for (int u = 0; u < at_once; ++u) {
                const i64 p = first + u * lanes;
                if (p >= count) continue;
                C x[W][Op::operands];
                unpack<Op, W>(op, place(p), packs[u], x);
                body.template operator()<W>(place(p), x);
            }
        }
    }
};

// --- Teams ---------------------------------------------------------------------------------------------------------------

/// Neighbouring lanes of a warp; their number is a power of two.
struct LaneTeam {
    int lanes;
    template <class C, class Op>
    __device__ __forceinline__ C reduce(C x, Op op, C) const {
        for (int apart = lanes / 2; apart > 0; apart /= 2) x = op(x, __shfl_xor_sync(0xffffffffu, x, apart));
        return x;
    }
};
struct BlockTeam {
    template <class C, class Op>
    __device__ __forceinline__ C reduce(C x, Op op, C identity) const {
        return block_reduce(x, op, identity);
    }
};
/// The threads of a block with the same threadIdx.x, 32 of them unless blockDim.y is 1.
struct ColumnTeam {
    template <class C, class Op>
    __device__ __forceinline__ C reduce(C x, Op op, C) const {
        __shared__ C part[32][32];
        if (blockDim.y == 1) return x;
        __syncthreads();  // waits until an earlier call's results have been read
        part[threadIdx.y][threadIdx.x] = x;
        __syncthreads();
        x = part[0][threadIdx.x];
        for (unsigned y = 1; y < blockDim.y; ++y) x = op(x, part[y][threadIdx.x]);
        return x;
    }
};

// --- Kernels -------------------------------------------------------------------------------------------------------------

constexpr unsigned kBlockThreads = 512;  // at most for a line: each may have 128 registers
constexpr unsigned kLaneThreads = 128;   // for a block of several lines

template <class Op>
struct LineShape {
    static constexpr int pack = 16 / static_cast<int>(sizeof(typename Op::T));
    // The most elements that a thread holds: 256 bytes in the computed type.
    static constexpr int bytes = Op::operands * static_cast<int>(sizeof(typename Op::C));
    static constexpr int most = std::min(32, 256 / bytes), most_in_column = std::min(32, 128 / bytes);
};

/// `lanes` of a warp share a line; a warp has several lines in flight if each is short.
template <class Op, int V, int K>
__global__ void __launch_bounds__(kLaneThreads) held_by_lanes(Op op, i64 lines, int size, int lanes) {
    constexpr int bytes = V * K * Op::operands * static_cast<int>(sizeof(typename Op::T));
    constexpr int in_flight = bytes >= 16 ? 1 : bytes >= 8 ? 2 : 4;
    const int teams = static_cast<int>(blockDim.x) / lanes, team = static_cast<int>(threadIdx.x) / lanes;
    const i64 first = static_cast<i64>(blockIdx.x) * teams * in_flight + team;
    HeldLine<Op, V, K> line[in_flight];
    TAPIR_UNROLL
    for (int r = 0; r < in_flight; ++r) {
        line[r].number = first + r * teams;
        line[r].offset = line[r].number * size;
        line[r].size = line[r].number < lines ? size : 0;
        line[r].lanes = lanes;
        line[r].lane = static_cast<int>(threadIdx.x) % lanes;
        line[r].load(op);
    }
    TAPIR_UNROLL
    for (int r = 0; r < in_flight; ++r) {
        const auto stats = op.held(line[r], LaneTeam{lanes});
        op.finish(line[r], stats);
    }
}

template <class Op, int V, int K>
__global__ void __launch_bounds__(kBlockThreads) held_by_block(Op op, int size) {
    HeldLine<Op, V, K> line;
    line.number = blockIdx.x;
    line.offset = line.number * size;
    line.size = size;
    line.lanes = static_cast<int>(blockDim.x);
    line.lane = static_cast<int>(threadIdx.x);
    line.load(op);
    const auto stats = op.held(line, BlockTeam{});
    op.finish(line, stats);
}

template <class Op, int V>
__device__ __forceinline__ StreamedLine<Op, V> streamed_line(i64 number, i64 size, i64 begin, i64 end, bool is_aligned) {
    return {number, number * size, 1, begin, end, static_cast<int>(blockDim.x), static_cast<int>(threadIdx.x), is_aligned};
}

template <class Op, int V>
__global__ void __launch_bounds__(kBlockThreads, 2) streamed_by_block(Op op, i64 size, bool is_aligned) {
    auto line = streamed_line<Op, V>(blockIdx.x, size, 0, size, is_aligned);
    const auto stats = op.merge(op.local(line), BlockTeam{});
    op.finish(line, stats);
}

/// Block number * parts + part processes a part of a line.
template <class Op, int V>
__global__ void __launch_bounds__(kBlockThreads)
    stats_of_parts(Op op, i64 size, int parts, i64 part_size, bool is_aligned, typename Op::Stats* result) {
    const unsigned number = blockIdx.x / static_cast<unsigned>(parts);
    const i64 begin = blockIdx.x % static_cast<unsigned>(parts) * part_size, end = begin + part_size;
    auto line = streamed_line<Op, V>(number, size, begin, end < size ? end : size, is_aligned);
    const auto stats = op.merge(op.local(line), BlockTeam{});
    if (threadIdx.x == 0) result[blockIdx.x] = stats;
}
template <class Op, int V>
__global__ void __launch_bounds__(kBlockThreads)
    finish_parts(Op op, i64 size, int parts, i64 part_size, bool is_aligned, const typename Op::Stats* of_parts) {
    const unsigned number = blockIdx.x / static_cast<unsigned>(parts);
    const bool has_one = static_cast<int>(threadIdx.x) < parts;
    const auto stats = op.merge(has_one ? of_parts[number * static_cast<unsigned>(parts) + threadIdx.x] : op.identity(), BlockTeam{});
    const i64 begin = blockIdx.x % static_cast<unsigned>(parts) * part_size, end = begin + part_size;
    auto line = streamed_line<Op, V>(number, size, begin, end < size ? end : size, is_aligned);
    op.finish(line, stats);
}

// Returns where line `number` of (outer, size, inner) begins.
__device__ __forceinline__ i64 column_offset(i64 number, i64 size, i64 inner) {
    if (number <= UINT32_MAX && inner <= UINT32_MAX) {
        const u32 outer = static_cast<u32>(number) / static_cast<u32>(inner);
        return static_cast<i64>(outer) * (size - 1) * inner + number;
    }
    return number / inner * (size - 1) * inner + number;
}

template <class Op, int K>
__global__ void __launch_bounds__(kBlockThreads) held_columns(Op op, i64 lines, int size, i64 inner) {
    const i64 number = global_index();
    HeldLine<Op, 1, K> line;
    line.number = number;
    line.offset = column_offset(number, size, inner);
    line.stride = inner;
    line.size = number < lines ? size : 0;
    line.lanes = static_cast<int>(blockDim.y);
    line.lane = static_cast<int>(threadIdx.y);
    line.load(op);
    const auto stats = op.held(line, ColumnTeam{});
    op.finish(line, stats);
}

template <class Op>
__global__ void __launch_bounds__(kBlockThreads, 2) streamed_columns(Op op, i64 lines, i64 size, i64 inner) {
    const i64 number = global_index();
    StreamedLine<Op, 1> line{
        number, column_offset(number, size, inner), inner, 0, number < lines ? size : 0, static_cast<int>(blockDim.y), static_cast<int>(threadIdx.y),
        true};
    const auto stats = op.merge(op.local(line), ColumnTeam{});
    op.finish(line, stats);
}

// --- Launching -----------------------------------------------------------------------------------------------------------

template <class Op, int V, int K>
void launch_held_by_lanes(const Op& op, i64 lines, i64 size, int lanes) {
    constexpr int bytes = V * K * Op::operands * static_cast<int>(sizeof(typename Op::T));
    constexpr int in_flight = bytes >= 16 ? 1 : bytes >= 8 ? 2 : 4;
    // Uses small blocks if there are few lines: they reach more multiprocessors.
    const unsigned threads = lines * lanes >= 256 * i64{multiprocessors()} ? kLaneThreads : 32;
    launch(held_by_lanes<Op, V, K>, blocks_for(lines, static_cast<i64>(threads) / lanes * in_flight), threads, op, lines, static_cast<int>(size),
           lanes);
}

template <int V, class Op>
void run_lines_by_lanes(const Op& op, i64 lines, i64 size) {
    constexpr int most = LineShape<Op>::most / V, middle = V == 1 ? 8 : most / 2;
    const i64 packs = size / V;
    const int lanes = static_cast<int>(std::min(32u, power_of_two_from(packs)));
    if (packs <= lanes) return launch_held_by_lanes<Op, V, 1>(op, lines, size, lanes);
    if (packs <= lanes * middle) return launch_held_by_lanes<Op, V, middle>(op, lines, size, lanes);
    launch_held_by_lanes<Op, V, most>(op, lines, size, lanes);
}

template <int V, class Op>
void run_lines_by_blocks(const Op& op, i64 lines, i64 size) {
    constexpr int by_thread = LineShape<Op>::most;
    const unsigned threads = blocks_for(size, 32 * by_thread) * 32;
    launch(held_by_block<Op, V, by_thread / V>, static_cast<unsigned>(lines), threads, op, static_cast<int>(size));
}

template <class Op>
void run_long_lines(const Op& op, i64 lines, i64 size) {
    constexpr int V = LineShape<Op>::pack;
    const bool aligned = op.has_alignment(16);
    const i64 wanted = 4 * i64{multiprocessors()};  // blocks
    const i64 parts = std::min({wanted / lines, size / 8192, i64{kBlockThreads}});
    if (parts < 2) {
        return launch(streamed_by_block<Op, V>, static_cast<unsigned>(lines), kBlockThreads, op, size, aligned);
    }
    const i64 part_size = (size / parts + 1024) / 1024 * 1024;  // at least size / parts
    const int count = static_cast<int>((size + part_size - 1) / part_size);
    const auto blocks = static_cast<unsigned>(lines * count);
    const Scratch scratch(blocks * sizeof(typename Op::Stats));
    auto* stats = scratch.template as<typename Op::Stats>();
    launch(stats_of_parts<Op, V>, blocks, kBlockThreads, op, size, count, part_size, aligned, stats);
    launch(finish_parts<Op, V>, blocks, kBlockThreads, op, size, count, part_size, aligned, stats);
}

template <class Op>
void run_columns(const Op& op, i64 lines, i64 size, i64 inner) {
    constexpr int most = LineShape<Op>::most_in_column, few = 8;
    constexpr i64 rows = kBlockThreads / 32;
    const auto block_of = [&](i64 threads_by_line) { return threads_by_line > 1 ? dim3(32, static_cast<unsigned>(threads_by_line)) : dim3(128); };
    if (size <= rows * most) {
        const dim3 block = block_of((size + most - 1) / most);
        const auto kernel = size <= few ? held_columns<Op, few> : held_columns<Op, most>;
        return launch(kernel, blocks_for(lines, block.x), block, op, lines, static_cast<int>(size), inner);
    }
    const dim3 block = block_of(lines < 64 * i64{multiprocessors()} ? rows : 8);
    launch(streamed_columns<Op>, blocks_for(lines, block.x), block, op, lines, size, inner);
}

/// Runs op on all lines of (outer, size, inner), at least one. Columns: true if inner may be other than 1.
template <bool Columns, class Op>
void run_lines(const Op& op, i64 lines, i64 size, i64 inner) {
    using Shape = LineShape<Op>;
    if constexpr (Columns) {
        if (inner > 1) return run_columns(op, lines, size, inner);
    }
    const bool in_packs = size % Shape::pack == 0 && op.has_alignment(16);
    if (size <= 32 * Shape::most) {
        return in_packs ? run_lines_by_lanes<Shape::pack>(op, lines, size) : run_lines_by_lanes<1>(op, lines, size);
    }
    if (size <= kBlockThreads * Shape::most) {
        return in_packs ? run_lines_by_blocks<Shape::pack>(op, lines, size) : run_lines_by_blocks<1>(op, lines, size);
    }
    run_long_lines(op, lines, size);
}

// --- What several ops need -----------------------------------------------------------------------------------------------

template <class C>
constexpr C kLowest = static_cast<C>(sizeof(C) == 8 ? -1.7976931348623157e308 : -3.4028234663852886e38);

/// Returns e^x, x <= 0, with the digits that a T has: ex2.approx is right to 22 bits, which is more than the 16-bit floats have.
template <class T, class C>
__device__ __forceinline__ C exp_in(C x) {
#ifdef __CUDA_ARCH__
    if constexpr (sizeof(T) == 2) {
        float result;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.44269504f));
        return result;
    }
#endif
    return exp(x);
}

/// The largest element and the sum of exp(x - largest).
template <class C>
struct MaxSum {
    C max = kLowest<C>, sum = C(0);

    /// Adds the first operand of some elements, without a branch. A nan stays; an infinity makes the sum nan.
    template <int N, int Operands>
    __device__ __forceinline__ void add(const C (&x)[N][Operands]) {
        C up = max, more = C(0);
        TAPIR_UNROLL
        for (int i = 0; i < N; ++i) up = Max{}(x[i][0], up);
        TAPIR_UNROLL
        for (int i = 0; i < N; ++i) more += exp(x[i][0] - up);
        sum = sum * exp(max - up) + more;
        max = up;
    }
    template <class Team>
    __device__ __forceinline__ MaxSum merged(const Team& team) const {
        MaxSum all;
        all.max = team.reduce(max, Max{}, kLowest<C>);
        all.sum = team.reduce(sum * exp(max - all.max), Sum{}, C(0));
        return all;
    }
};

/// Computes them for a thread's own elements of a line's first operand.
template <class Op, class Line>
__device__ __forceinline__ MaxSum<typename Op::C> max_and_sum_of_own(const Op& op, Line& line) {
    MaxSum<typename Op::C> own;
    line.each_pack(op, [&](const auto& x) { own.add(x); });
    return own;
}

/// Computes them for a whole held line's first operand, which becomes exp(x - largest) if `keep` is set.
template <class Op, class Line, class Team>
__device__ __forceinline__ MaxSum<typename Op::C> max_and_sum(const Op& op, Line& line, const Team& team, bool keep) {
    using C = typename Op::C;
    MaxSum<C> all;
    C max = -static_cast<C>(__builtin_inf()), sum = C(0);
    line.each(op, [&](i64, C(&x)[Op::operands]) { max = Max{}(x[0], max); });
    all.max = max = team.reduce(max, Max{}, -static_cast<C>(__builtin_inf()));
    line.each(op, [&](i64, C(&x)[Op::operands]) {
        const C e = exp_in<typename Op::T>(x[0] - max);
        sum += e;
        if (keep) x[0] = e;
    });
    all.sum = team.reduce(sum, Sum{}, C(0));
    return all;
}

}  // namespace tapir::gpu
