// Sorts along lines. Results are those of a stable sort.
//
// Short lines are sorted by comparing (key, position) within a block. The first few elements of a long line are selected, part by
// part, and sorted as a short line. Otherwise long lines are sorted by radix, in sort_long.cu.
//
// Note [Selecting the first k]
// A block takes a part of a line and keeps its k first elements, in the order of the line. They form a
// shorter line, which is cut into parts again, until it is short enough to be sorted. Within a part the k-th key is
// found digit by digit: a histogram of the next digit, over the keys that agree with it so far, determines that digit.
#include <algorithm>
#include <memory>

#include "tapir/cuda/sort.cuh"

namespace tapir::gpu {
namespace {

constexpr i64 kShortLine = 1024;    // lines of this length and less are sorted within a block
constexpr i64 kMostSelected = 512;  // up to this many elements of longer lines are selected

template <class T>
using KeyOf = typename SortKey<T>::Key;

// Reads the elements of a tensor.
template <class T>
struct TensorLines {
    SortKey<T> sort_key;
    const T* x;
    i64 lines, size, inner;

    __device__ __forceinline__ KeyOf<T> key(i64 line, i64 j) const { return sort_key.of(x[element_at(line, j, size, inner)]); }
    __device__ __forceinline__ i64 index(i64, i64 j) const { return j; }
};

// Reads the selected elements.
template <class T>
struct SelectedLines {
    const KeyOf<T>* keys;
    const i64* indices;
    i64 lines, size;

    __device__ __forceinline__ KeyOf<T> key(i64 line, i64 j) const { return keys[line * size + j]; }
    __device__ __forceinline__ i64 index(i64 line, i64 j) const { return indices[line * size + j]; }
};

template <class T>
struct SortedLines {
    const T* x;  // (outer, size, inner)
    T* values;   // (outer, k, inner), may be null
    i64* indices;
    i64 size, inner, k;

    __device__ __forceinline__ void put(i64 line, i64 j, i64 index) const {
        const i64 to = element_at(line, j, k, inner);
        indices[to] = index;
        if (values) values[to] = x[element_at(line, index, size, inner)];
    }
};

// --- Sorting within a block ------------------------------------------------------------------------------------------

constexpr unsigned kBlockItems = static_cast<unsigned>(kShortLine);

// Sorts each run of `length` items (a power of two) by (key, position): a bitonic sort (Batcher 1968).
template <class Key>
__device__ __forceinline__ void sort_runs(Key* keys, std::uint16_t* positions, unsigned length) {
    for (unsigned sorted = 2; sorted <= length; sorted *= 2) {
        for (unsigned distance = sorted / 2; distance > 0; distance /= 2) {
            for (unsigned pair = threadIdx.x; pair < kBlockItems / 2; pair += kThreads) {
                const unsigned i = pair / distance * 2 * distance + pair % distance, j = i + distance;
                const bool upward = (i & (length - 1) & sorted) == 0;
                const Key a = keys[i], b = keys[j];
                const std::uint16_t p = positions[i], q = positions[j];
                const bool in_order = a != b ? a < b : p < q;
                if (in_order != upward) {
                    keys[i] = b;
                    keys[j] = a;
                    positions[i] = q;
                    positions[j] = p;
                }
            }
            // A warp's pairs cover 64 consecutive items, as long as the two items of a pair are at most 32 apart.
            const unsigned next = distance > 1 ? distance / 2 : sorted;
            if (distance > 32 || next > 32) {
                __syncthreads();
            } else {
                __syncwarp();
            }
        }
    }
    __syncthreads();
}

// `run` is source.size or the next power of two; a block sorts kBlockItems / run lines.
template <class T, class Source>
__global__ void __launch_bounds__(kThreads) sort_short_kernel(Source source, SortedLines<T> out, unsigned run) {
    __shared__ KeyOf<T> keys[kBlockItems];
    __shared__ std::uint16_t positions[kBlockItems];
    const unsigned lines = kBlockItems / run;
    const i64 first = static_cast<i64>(blockIdx.x) * lines;
    const bool along = out.inner == 1;  // true: memory runs along the lines
    for (unsigned i = threadIdx.x; i < kBlockItems; i += kThreads) {
        const unsigned line = along ? i / run : i % lines, j = along ? i % run : i / lines, at = line * run + j;
        const bool valid = first + line < source.lines && j < source.size;
        keys[at] = valid ? source.key(first + line, j) : static_cast<KeyOf<T>>(~KeyOf<T>{0});
        positions[at] = static_cast<std::uint16_t>(j);
    }
    __syncthreads();
    sort_runs(keys, positions, run);
    for (unsigned i = threadIdx.x; i < kBlockItems; i += kThreads) {
        const unsigned line = along ? i / run : i % lines, j = along ? i % run : i / lines;
        if (first + line >= source.lines || j >= out.k) continue;
        out.put(first + line, j, source.index(first + line, positions[line * run + j]));
    }
}

template <class T, class Source>
void sort_short(const Source& source, const SortedLines<T>& out) {
    unsigned run = 2;
    while (run < source.size) run *= 2;
    launch(sort_short_kernel<T, Source>, blocks_for(source.lines, kBlockItems / run), kThreads, source, out, run);
}

// --- Selecting -------------------------------------------------------------------------------------------------------

constexpr int kPart = 4096, kPerThread = kPart / static_cast<int>(kThreads);

// Shared memory has a gap after each kPerThread items, to avoid bank conflicts between threads that read items of their own.
__device__ __forceinline__ int place_of(int i) { return i + i / kPerThread; }

// Returns the sum of the earlier threads' numbers; must be called by all threads of a block.
__device__ __forceinline__ u32 sum_before(u32 own, u32& all) {
    __shared__ u32 of_warp[kThreads / 32];
    u32 upto = own;
    for (unsigned lanes = 1; lanes < 32; lanes *= 2) {
        const u32 other = __shfl_up_sync(0xffffffffu, upto, lanes);
        if (threadIdx.x % 32 >= lanes) upto += other;
    }
    __syncthreads();  // an earlier call's sums have been read
    if (threadIdx.x % 32 == 31) of_warp[threadIdx.x / 32] = upto;
    __syncthreads();
    u32 before = upto - own;
    all = 0;
    for (unsigned w = 0; w < kThreads / 32; ++w) {
        if (w < threadIdx.x / 32) before += of_warp[w];
        all += of_warp[w];
    }
    return before;
}

// Returns the k-th smallest of `count` keys of `bits` bits; `wanted` is how many of those equal to it are among the first
// k.
template <class Key>
__device__ __forceinline__ Key find_kth(const Key* keys, int count, u32 k, int bits, u32& wanted) {
    __shared__ u32 histogram[kThreads];
    __shared__ u32 found[2];  // the digit; how many of those with it are wanted
    Key kth = 0;
    wanted = k;
    for (int shift = bits - 8; shift >= 0; shift -= 8) {
        histogram[threadIdx.x] = 0;
        __syncthreads();
        for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(kThreads)) {
            const Key digits = keys[place_of(i)] >> shift;  // 256 digits: one for each thread
            if (digits >> 8 == kth) atomicAdd(&histogram[digits & 255], 1u);
        }
        __syncthreads();
        u32 all;
        const u32 own = histogram[threadIdx.x], before = sum_before(own, all);
        if (before < wanted && wanted <= before + own) {
            found[0] = threadIdx.x;
            found[1] = wanted - before;
        }
        __syncthreads();
        kth = kth << 8 | found[0];
        wanted = found[1];
    }
    return kth;
}

// Keeps the k first elements of each part of kPart, or all of a last part that has fewer, in the order of the line.
// A line's parts are consecutive: `kept` elements in all.
template <class T, class Source>
__global__ void __launch_bounds__(kThreads) select_kernel(Source source, i64 parts, u32 k, i64 kept, KeyOf<T>* to_keys, i64* to_indices) {
    using Key = KeyOf<T>;
    __shared__ Key keys[kPart + kPart / kPerThread];
    const i64 line = blockIdx.x / parts, part = blockIdx.x - line * parts, first = part * kPart;
    const int count = source.size - first < kPart ? static_cast<int>(source.size - first) : kPart;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(kThreads)) {
        keys[place_of(i)] = source.key(line, first + i);
    }
    __syncthreads();
    u32 wanted;
    const u32 most = static_cast<u32>(count);
    const Key kth = find_kth(keys, count, k < most ? k : most, SortKey<T>::bits, wanted);
    const int begin = static_cast<int>(threadIdx.x) * kPerThread, end = begin + kPerThread < count ? begin + kPerThread : count;
    u32 found = 0;  // smaller keys, and in the upper half those equal to the k-th
    for (int i = begin; i < end; ++i) {
        const Key key = keys[place_of(i)];
        found += key < kth ? 1u : key == kth ? 0x10000u : 0u;
    }
    u32 all;
    const u32 before = sum_before(found, all);
    u32 equal = before >> 16, smaller = before & 0xffff;
    const i64 to = line * kept + part * k;
    for (int i = begin; i < end; ++i) {
        const Key key = keys[place_of(i)];
        if (key < kth || (key == kth && equal < wanted)) {
            const i64 at = to + smaller + (equal < wanted ? equal : wanted);
            to_keys[at] = key;
            to_indices[at] = source.index(line, first + i);
        }
        if (key < kth) ++smaller;
        if (key == kth) ++equal;
    }
}

template <class T>
struct Selected {
    Scratch keys, indices;
    i64 lines, size;

    Selected(i64 lines_, i64 size_)
        : keys(static_cast<std::size_t>(lines_ * size_) * sizeof(KeyOf<T>)), indices(static_cast<std::size_t>(lines_ * size_) * sizeof(i64)),
          lines(lines_), size(size_) {}
    SelectedLines<T> elements() const { return {keys.template as<KeyOf<T>>(), indices.template as<i64>(), lines, size}; }
};

template <class T, class Source>
std::unique_ptr<Selected<T>> select(const Source& source, i64 k) {
    const i64 parts = (source.size + kPart - 1) / kPart;
    const i64 kept = (parts - 1) * k + std::min(k, source.size - (parts - 1) * kPart);
    auto selected = std::make_unique<Selected<T>>(source.lines, kept);
    launch(select_kernel<T, Source>, static_cast<unsigned>(source.lines * parts), kThreads, source, parts, static_cast<u32>(k), kept,
           selected->keys.template as<KeyOf<T>>(), selected->indices.template as<i64>());
    return selected;
}

}  // namespace

void sort(const SortArgs& args) {
    const bool is_short = args.size <= kShortLine;
    if (!is_short && args.k > kMostSelected) return sort_long_lines(args);
    with_sorted_dtype(args.dtype, [&]<class T>() {
        const auto* x = static_cast<const T*>(args.x);
        const TensorLines<T> elements{{args.descending}, x, args.lines, args.size, args.inner};
        const SortedLines<T> out{x, static_cast<T*>(args.values), args.indices, args.size, args.inner, args.k};
        if (is_short) return sort_short(elements, out);
        auto selected = select<T>(elements, args.k);
        while (selected->size > kShortLine) selected = select<T>(selected->elements(), args.k);
        sort_short(selected->elements(), out);
    });
}

}  // namespace tapir::gpu
