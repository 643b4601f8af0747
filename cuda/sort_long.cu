// Sorts long lines by radix, with CUB.
//
// Many lines are sorted as one array, by (line, key): the line's number stands above the key's bits. If both
// do not fit into 64 bits, a second, stable sort groups the lines. Elements are taken in the order of memory,
// which is also that of each line, so that equal ones keep it.
#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "tapir/cuda/sort.cuh"
#include "tapir/cuda/wide_divider.cuh"

namespace tapir::gpu {
namespace {

constexpr i64 kMostTogether = i64{1} << 26;  // elements of several lines

// A group of lines: all of some outer positions, or some columns of one.
struct LineGroup {
    i64 outer, outers, column, width;
    i64 size, inner;  // of the whole tensor
    i64 lines() const { return outers * width; }
    i64 positions() const { return lines() * size; }
};

template <class K, class V>
struct Buffers {
    Scratch key_memory, value_memory;
    cub::DoubleBuffer<K> keys;
    cub::DoubleBuffer<V> values;

    explicit Buffers(i64 n)
        : key_memory(static_cast<std::size_t>(2 * n) * sizeof(K)), value_memory(static_cast<std::size_t>(2 * n) * sizeof(V)),
          keys(key_memory.as<K>(), key_memory.as<K>() + n), values(value_memory.as<V>(), value_memory.as<V>() + n) {}
};

// Sorts stably by the lower `bits` of the keys.
template <class K, class V>
void radix_sort(cub::DoubleBuffer<K>& keys, cub::DoubleBuffer<V>& values, i64 n, int bits) {
    Stream& stream = current();
    const auto count = static_cast<V>(n);  // positions fit into V
    std::size_t bytes = 0;
    TAPIR_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, values, count, 0, bits, stream.handle));
    const Scratch scratch(bytes);
    launched(stream, cub::DeviceRadixSort::SortPairs(scratch.as<>(), bytes, keys, values, count, 0, bits, stream.handle));
}

template <class V>
struct Split {  // positions of a group: (outers, size, width) in memory; (lines, size) when sorted
    std::conditional_t<sizeof(V) == 4, Divider, WideDivider> width, size, k;
};

// Returns the quotient and leaves the remainder.
template <class D, class V>
__device__ __forceinline__ V split_off(const D& divider, V& n) {
    const V quotient = divider.quotient(n);
    n -= quotient * static_cast<V>(divider.divisor);
    return quotient;
}

// kApart: the keys lack the line's number; values are then positions (line, j) instead of j.
template <class T, class K, class V, bool kApart>
__global__ void __launch_bounds__(kThreads)
    make_keys_kernel(SortKey<T> sort_key, const T* x, V count, LineGroup group, Split<V> split, K* keys, V* values) {
    const i64 index = global_index();
    if (index >= static_cast<i64>(count)) return;
    V column = static_cast<V>(index);
    V j = split_off(split.width, column);
    const V outer = split_off(split.size, j);
    const i64 from = ((group.outer + outer) * group.size + j) * group.inner + group.column + column;
    const V line = outer * static_cast<V>(group.width) + column;
    const K key = sort_key.of(x[from]);
    if constexpr (kApart) {
        keys[index] = key;
        values[index] = line * static_cast<V>(group.size) + j;
    } else {
        keys[index] = sizeof(T) == sizeof(K) ? key : static_cast<K>(line) << (SortKey<T>::bits % (sizeof(K) * 8)) | key;
        values[index] = j;
    }
}

template <class V>
__global__ void __launch_bounds__(kThreads) line_numbers_kernel(const V* values, V count, Split<V> split, V* lines) {
    const i64 index = global_index();
    if (index < static_cast<i64>(count)) lines[index] = split.size.quotient(values[index]);
}

template <class T>
struct Results {
    T* values;  // may be null
    i64* indices;
    i64 k;
};

template <class T, class K, class V, bool kApart>
__global__ void __launch_bounds__(kThreads)
    put_sorted_kernel(SortKey<T> sort_key, const T* x, V count, LineGroup group, Split<V> split, const K* keys, const V* values, Results<T> out) {
    const i64 index = global_index();
    if (index >= static_cast<i64>(count)) return;
    V column = static_cast<V>(index);
    V rank = split_off(split.width, column);
    const V outer = split_off(split.k, rank);
    const V first = (outer * static_cast<V>(group.width) + column) * static_cast<V>(group.size), at = first + rank;
    const i64 j = values[at] - (kApart ? first : 0);
    const i64 to = ((group.outer + outer) * out.k + rank) * group.inner + group.column + column;
    out.indices[to] = j;
    if (!out.values) return;
    if constexpr (!kApart) {
        const auto key = static_cast<typename SortKey<T>::Key>(keys[at]);
        if (sort_key.tells(key)) {
            out.values[to] = sort_key.element(key);
            return;
        }
    }
    out.values[to] = x[((group.outer + outer) * group.size + j) * group.inner + group.column + column];
}

template <class T, class K, class V, bool kApart>
void sort_group(const SortArgs& args, const LineGroup& group, int line_bits) {
    const i64 n = group.positions();
    const SortKey<T> sort_key{args.descending};
    const auto* x = static_cast<const T*>(args.x);
    using D = decltype(Split<V>::size);
    const Split<V> split{D(group.width), D(group.size), D(args.k)};
    Buffers<K, V> sorted(n);
    launch(make_keys_kernel<T, K, V, kApart>, blocks_for(n, kThreads), kThreads, sort_key, x, static_cast<V>(n), group, split, sorted.keys.Current(),
           sorted.values.Current());
    radix_sort(sorted.keys, sorted.values, n, SortKey<T>::bits + (kApart ? 0 : line_bits));
    if constexpr (kApart) {
        cub::DoubleBuffer<V> lines(reinterpret_cast<V*>(sorted.keys.Current()), reinterpret_cast<V*>(sorted.keys.Alternate()));
        launch(line_numbers_kernel<V>, blocks_for(n, kThreads), kThreads, sorted.values.Current(), static_cast<V>(n), split, lines.Current());
        radix_sort(lines, sorted.values, n, line_bits);
    }
    const i64 results = group.lines() * args.k;
    launch(put_sorted_kernel<T, K, V, kApart>, blocks_for(results, kThreads), kThreads, sort_key, x, static_cast<V>(results), group, split,
           sorted.keys.Current(), sorted.values.Current(), Results<T>{static_cast<T*>(args.values), args.indices, args.k});
}

template <class T>
void sort_group(const SortArgs& args, const LineGroup& group) {
    const i64 lines = group.lines();
    const int line_bits = 64 - std::countl_zero(static_cast<u64>(lines - 1)), bits = SortKey<T>::bits + line_bits;
    if (group.positions() > kMostPositions) return sort_group<T, u64, u64, false>(args, group, 0);  // a single line
    if constexpr (sizeof(T) == 8) {
        if (lines > 1) return sort_group<T, u64, u32, true>(args, group, line_bits);
    } else {
        if (bits <= 32) return sort_group<T, u32, u32, false>(args, group, line_bits);
    }
    sort_group<T, u64, u32, false>(args, group, line_bits);
}

}  // namespace

void sort_long_lines(const SortArgs& args) {
    with_sorted_dtype(args.dtype, [&]<class T>() {
        const i64 outers = args.lines / args.inner, together = std::max<i64>(kMostTogether / args.size, 1);
        if (together < args.inner) {
            for (i64 line = 0; line < args.lines;) {
                const i64 column = line % args.inner, width = std::min(together, args.inner - column);
                sort_group<T>(args, {line / args.inner, 1, column, width, args.size, args.inner});
                line += width;
            }
            return;
        }
        const i64 step = together / args.inner;
        for (i64 outer = 0; outer < outers; outer += step) {
            sort_group<T>(args, {outer, std::min(step, outers - outer), 0, args.inner, args.size, args.inner});
        }
    });
}

}  // namespace tapir::gpu
