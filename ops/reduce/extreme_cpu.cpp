// Finds the largest or smallest element of each line, and its index. A nan is larger and smaller than everything else; of
// equal elements the first counts.
#include "tapir/ops/reduce/reduce_kernels.h"
#include "tapir/ops/reduce/reduce_simd_cpu.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

constexpr i64 kColumns = 512;

// For numbers or vectors: equal, or both nan.
template <class X>
[[gnu::always_inline]] inline auto same(X a, X b) {
    return (a == b) | ((a != a) & (b != b));
}

// Returns the first index of `value` (or of a nan, if it is one), which must occur.
template <class T>
i64 find(const T* x, i64 n, T value) {
    constexpr int step = 64;
    i64 i = 0;
    for (; i + step <= n; i += step) {
        int first = step;
#pragma omp simd reduction(min : first)
        for (int j = 0; j < step; ++j) first = same(x[i + j], value) && j < first ? j : first;
        if (first < step) return i + first;
    }
    while (i < n - 1 && !same(x[i], value)) ++i;
    return i;
}

template <class Op, class T>
void extreme_rows(const LineArgs& args, i64* indices, i64 begin, i64 end) {
    const T* x = static_cast<const T*>(args.x) + begin * args.size;
    for (i64 line = begin; line < end; ++line, x += args.size) {
        const T value = static_cast<T>(fold<Op>(x, args.size));
        if (args.out) static_cast<T*>(args.out)[line] = value;
        indices[line] = find(x, args.size, value);
    }
}

// The best of each column so far, and its row, counted from the first of these `rows`; -1 if it does not change.
template <class Op, class T>
void update_columns(const T* x, i64 stride, MaskInt<T> rows, i64 width, T* best, MaskInt<T>* found) {
    for (MaskInt<T> r = 0; r < rows; ++r, x += stride) {
        const auto update = [&](i64 j, Vector<T> value) __attribute__((always_inline)) {
            const Vector<T> old = load(best + j), now = Op::combine(old, value);
            const Vector<MaskInt<T>> row = Vector<MaskInt<T>>{} + r;
            const Vector<MaskInt<T>> where = same(now, old) ? load(found + j) : row;
            store(best + j, now);
            store(found + j, where);
        };
        i64 j = 0;
        for (; j + kWidth<T> <= width; j += kWidth<T>) update(j, load(x + j));
        if (j < width) update(j, load_first(x + j, width - j));
    }
}

template <class Op, class T>
void extreme_columns(const LineArgs& args, i64* indices, i64 begin, i64 end) {
    alignas(64) T best[kColumns];  // whole vectors: the lanes behind the last column do not matter
    alignas(64) MaskInt<T> found[kColumns];
    constexpr i64 most_rows = i64{1} << 30;
    for (i64 line = begin; line < end;) {
        const i64 column = line % args.inner;
        const i64 width = smaller(smaller(args.inner - column, kColumns), end - line);
        const T* x = static_cast<const T*>(args.x) + (line / args.inner) * args.size * args.inner + column;
        for (i64 j = 0; j < width; ++j) {
            best[j] = x[j];
            indices[line + j] = 0;
        }
        for (i64 r = 0; r < args.size; r += most_rows) {
            const i64 rows = smaller(args.size - r, most_rows);
            for (i64 j = 0; j < width; ++j) found[j] = -1;
            update_columns<Op>(x + r * args.inner, args.inner, static_cast<MaskInt<T>>(rows), width, best, found);
            for (i64 j = 0; j < width; ++j) {
                if (found[j] >= 0) indices[line + j] = r + found[j];
            }
        }
        if (args.out) {
            for (i64 j = 0; j < width; ++j) static_cast<T*>(args.out)[line + j] = best[j];
        }
        line += width;
    }
}

template <class Op, class T>
void extreme_with(const LineArgs& args, i64* indices, i64 begin, i64 end) {
    if (args.inner == 1) {
        extreme_rows<Op, T>(args, indices, begin, end);
    } else {
        extreme_columns<Op, T>(args, indices, begin, end);
    }
}

template <class Op>
void extreme_as(const LineArgs& args, i64* indices, i64 begin, i64 end) {
    switch (args.dtype) {
        case DType::float32: return extreme_with<Op, float>(args, indices, begin, end);
        case DType::float64: return extreme_with<Op, double>(args, indices, begin, end);
        default: return extreme_with<Op, i64>(args, indices, begin, end);
    }
}

}  // namespace

void extreme(const LineArgs& args, bool largest, i64* indices, i64 begin, i64 end) {
    if (largest) {
        extreme_as<Max>(args, indices, begin, end);
    } else {
        extreme_as<Min>(args, indices, begin, end);
    }
}

void put_picked(const PickedArgs& args, i64 begin, i64 end) {
    for (i64 i = begin; i < end; ++i) {
        const i64 outer = i / (args.picked * args.inner), inner = i % args.inner;
        const auto at = static_cast<std::size_t>((outer * args.size + args.indices[i]) * args.inner + inner);
        const auto* from = static_cast<const std::byte*>(args.from) + static_cast<std::size_t>(i) * args.bytes;
        __builtin_memcpy(static_cast<std::byte*>(args.to) + at * args.bytes, from, args.bytes);
    }
}

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
