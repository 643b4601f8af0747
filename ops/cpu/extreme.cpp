// The largest or smallest element of each line, and where it is. A nan is larger and smaller than everything else; of
// equal elements the first counts.
#include "tapir/ops/cpu/reduce.h"
#include "tapir/ops/cpu/reduce_simd.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

constexpr i64 kColumns = 512;

template <class T>
[[gnu::always_inline]] inline bool same(T a, T b) {
    return (a == b) | ((a != a) & (b != b));
}

// Where `value` (or a nan, if it is one) is first met; it is there.
template <class T>
i64 find(const T* x, i64 n, T value) {
    constexpr i64 step = 64;
    i64 i = 0;
    for (; i + step <= n; i += step) {
        int any = 0;
#pragma omp simd reduction(| : any)
        for (i64 j = 0; j < step; ++j) any |= same(x[i + j], value);
        if (any) break;
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

template <class Op, class T>
void extreme_columns(const LineArgs& args, i64* indices, i64 begin, i64 end) {
    alignas(64) T best[kColumns];
    for (i64 line = begin; line < end;) {
        const i64 column = line % args.inner;
        const i64 width = smaller(smaller(args.inner - column, kColumns), end - line);
        const T* x = static_cast<const T*>(args.x) + (line / args.inner) * args.size * args.inner + column;
        i64* index = indices + line;
        for (i64 j = 0; j < width; ++j) {
            best[j] = x[j];
            index[j] = 0;
        }
        for (i64 r = 1; r < args.size; ++r) {
            x += args.inner;
#pragma omp simd
            for (i64 j = 0; j < width; ++j) {
                const T value = Op::combine(best[j], x[j]);
                index[j] = same(value, best[j]) ? index[j] : r;
                best[j] = value;
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

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
