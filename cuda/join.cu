// cat and stack, and the gradients of rows: many inputs in one launch.
#include <bit>

#include "tapir/cuda/indexing.cuh"

namespace tapir::gpu {

using kernels::AddPartsArgs;
using kernels::JoinArgs;

namespace {

// Sizes are in units of T; a block copies kPerBlock of them, of one part. Most is the limit of parts; with a small one a launch
// passes less data.
template <class T, int Most>
struct Parts {
    int count;
    i64 row;  // of the result
    struct Part {
        const T* from;
        i64 units, start;
        u32 first_block;
        RowSplit runs;
    } part[Most];
};

// The part that the block works on.
template <class List>
__device__ __forceinline__ const auto& part_of_block(const List& parts) {
    int low = 0, high = parts.count;  // it is in [low, high)
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        (parts.part[middle].first_block <= blockIdx.x ? low : high) = middle;
    }
    return parts.part[low];
}

template <class T, int Most>
__global__ void __launch_bounds__(kThreads) join_kernel(T* out, Parts<T, Most> parts) {
    const auto& part = part_of_block(parts);
    const i64 first = (blockIdx.x - part.first_block) * kPerBlock + threadIdx.x;
    T value[kPerThread];
    for (int e = 0; e < kPerThread; ++e) {
        if (const i64 i = first + e * kThreads; i < part.units) value[e] = part.from[i];
    }
    for (int e = 0; e < kPerThread; ++e) {
        const i64 i = first + e * kThreads;
        if (i >= part.units) return;
        i64 row, column;
        part.runs.split(i, row, column);
        out[row * parts.row + part.start + column] = value[e];
    }
}

template <class T, int Most>
void launch_parts(const JoinArgs& args) {
    constexpr i64 unit = sizeof(T);
    Parts<T, Most> parts;
    parts.count = args.parts;
    parts.row = args.row / unit;
    u32 blocks = 0;
    for (int p = 0; p < args.parts; ++p) {
        const JoinArgs::Part& part = args.part[p];
        const i64 run = part.run / unit, units = args.outer * run;
        parts.part[p] = {static_cast<const T*>(part.from), units, part.start / unit, blocks, RowSplit(run, units)};
        blocks += blocks_for(units, kPerBlock);
    }
    launch(join_kernel<T, Most>, blocks, kThreads, static_cast<T*>(args.out), parts);
}

template <class T>
void launch_join(const JoinArgs& args) {
    args.parts <= 4 ? launch_parts<T, 4>(args) : launch_parts<T, JoinArgs::kMaxParts>(args);
}

template <class T, int Most>
struct Terms {
    int count;
    bool writes;
    struct Term {
        const T* from;
        i64 numel, start;
        u32 first_block;
    } part[Most];
};

template <class T, int Most>
__global__ void __launch_bounds__(kThreads) add_parts_kernel(T* x, Terms<T, Most> terms) {
    const auto& part = part_of_block(terms);
    const i64 first = (blockIdx.x - part.first_block) * kPerBlock + threadIdx.x;
    for (int e = 0; e < kPerThread; ++e) {
        const i64 i = first + e * kThreads;
        if (i >= part.numel) return;
        T& to = x[part.start + i];
        const T from = part.from[i];
        to = terms.writes ? from : convert<T>(convert<Computed<T>>(to) + convert<Computed<T>>(from));
    }
}

template <class T, int Most>
void launch_terms(const AddPartsArgs& args) {
    Terms<T, Most> terms;
    terms.count = args.parts;
    terms.writes = args.writes;
    u32 blocks = 0;
    for (int p = 0; p < args.parts; ++p) {
        const AddPartsArgs::Part& part = args.part[p];
        terms.part[p] = {static_cast<const T*>(part.from), part.numel, part.start, blocks};
        blocks += blocks_for(part.numel, kPerBlock);
    }
    launch(add_parts_kernel<T, Most>, blocks, kThreads, static_cast<T*>(args.x), terms);
}

// Returns the most bytes, at most 16, that divide all sizes and addresses.
std::uintptr_t common_unit(const JoinArgs& args) {
    std::uintptr_t bits = 16 | reinterpret_cast<std::uintptr_t>(args.out);
    for (int p = 0; p < args.parts; ++p) {
        const JoinArgs::Part& part = args.part[p];
        bits |= reinterpret_cast<std::uintptr_t>(part.from) | static_cast<std::uintptr_t>(part.run | part.start);
    }
    if (args.outer > 1) bits |= static_cast<std::uintptr_t>(args.row);
    return std::uintptr_t{1} << std::countr_zero(bits);
}

}  // namespace

void join(const JoinArgs& args) {
    const std::uintptr_t unit = common_unit(args);
    if (unit == 16) return launch_join<Pack<u64, 2>>(args);
    with_size(unit, [&]<class T>() { launch_join<T>(args); });
}

void add_parts(const AddPartsArgs& args) {
    with_floating(args.dtype, [&]<class T>() { args.parts <= 4 ? launch_terms<T, 4>(args) : launch_terms<T, AddPartsArgs::kMaxParts>(args); });
}

}  // namespace tapir::gpu
