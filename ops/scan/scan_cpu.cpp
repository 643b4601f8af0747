// Running sums, products, extremes and logarithms of sums of exponentials along lines, and the gradients of products. float32 accumulates in float64.
#include "tapir/ops/cpu/math_impl.h"
#include "tapir/ops/reduce/reduce_kernels.h"
#include "tapir/ops/reduce/reduce_simd_cpu.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

constexpr i64 kColumns = 512;

// Combines to log(e^a + e^b). A nan stays, once it was met.
struct LogAddExp {
    template <class T>
    static constexpr T identity() {
        return -static_cast<T>(__builtin_inf());
    }
    template <class X>
    [[gnu::always_inline]] static X combine(X a, X b) {
        const X larger = Max::combine(a, b), apart = a == b ? X(0) : a > b ? b - a : a - b;
        return larger + log1p(exp(apart));
    }
};

template <class Op, class T>
void scan_row(const T* x, T* y, i64 n, i64 step) {
    Wide<T> sum = Op::template identity<Wide<T>>();
    for (i64 i = 0; i < n; ++i, x += step, y += step) {
        sum = Op::combine(sum, static_cast<Wide<T>>(*x));
        *y = static_cast<T>(sum);
    }
}

// `step`: the distance of a line's elements, negative for reverse scans.
template <class Op, class T>
void scan_columns(const T* x, T* y, i64 n, i64 step, i64 width) {
    alignas(64) Wide<T> sums[kColumns];
    for (i64 j = 0; j < width; ++j) sums[j] = Op::template identity<Wide<T>>();
    for (i64 i = 0; i < n; ++i, x += step, y += step) {
#pragma omp simd
        for (i64 j = 0; j < width; ++j) {
            sums[j] = Op::combine(sums[j], static_cast<Wide<T>>(x[j]));
            y[j] = static_cast<T>(sums[j]);
        }
    }
}

template <class Op, class T>
void scan_lines(const LineArgs& args, bool reverse, i64 begin, i64 end) {
    const i64 step = reverse ? -args.inner : args.inner;
    for (i64 line = begin; line < end;) {
        const i64 column = line % args.inner;
        const i64 width = smaller(smaller(args.inner - column, kColumns), end - line);
        const i64 first = reverse ? args.size - 1 : 0;
        const i64 offset = ((line / args.inner) * args.size + first) * args.inner + column;
        const T* x = static_cast<const T*>(args.x) + offset;
        T* y = static_cast<T*>(args.out) + offset;
        if (width == 1) {
            scan_row<Op>(x, y, args.size, step);
        } else {
            scan_columns<Op>(x, y, args.size, step, width);
        }
        line += width;
    }
}

template <class Op>
void scan_as(const LineArgs& args, bool reverse, i64 begin, i64 end) {
    switch (args.dtype) {
        case DType::float32: return scan_lines<Op, float>(args, reverse, begin, end);
        case DType::float64: return scan_lines<Op, double>(args, reverse, begin, end);
        default: return scan_lines<Op, u64>(args, reverse, begin, end);  // wraps around
    }
}

// Scans `width` lines beside each other. Better: is the new element as good as the best so far, or nan?
template <class Better, class T>
void extreme_columns(const T* x, T* y, i64* indices, i64 n, i64 step, i64 width) {
    for (i64 j = 0; j < width; ++j) {
        y[j] = x[j];
        indices[j] = 0;
    }
    for (i64 i = 1; i < n; ++i) {
        const T* before = y;
        const i64* places = indices;
        x += step;
        y += step;
        indices += step;
#pragma omp simd
        for (i64 j = 0; j < width; ++j) {
            const T value = x[j], best = before[j];
            const i64 place = places[j];
            const bool is_better = Better::than(value, best);
            y[j] = is_better ? value : best;
            indices[j] = is_better ? i : place;
        }
    }
}

struct NotBelow {
    template <class T>
    static bool than(T value, T best) {
        return (value >= best) | (value != value);
    }
};
struct NotAbove {
    template <class T>
    static bool than(T value, T best) {
        return (value <= best) | (value != value);
    }
};

template <class Better, class T>
void extreme_lines(const LineArgs& args, i64* indices, i64 begin, i64 end) {
    for (i64 line = begin; line < end;) {
        const i64 column = line % args.inner, width = smaller(smaller(args.inner - column, kColumns), end - line);
        const i64 offset = (line / args.inner) * args.size * args.inner + column;
        extreme_columns<Better>(static_cast<const T*>(args.x) + offset, static_cast<T*>(args.out) + offset, indices + offset, args.size, args.inner,
                                width);
        line += width;
    }
}

template <class Better>
void extreme_as(const LineArgs& args, i64* indices, i64 begin, i64 end) {
    switch (args.dtype) {
        case DType::float32: return extreme_lines<Better, float>(args, indices, begin, end);
        case DType::float64: return extreme_lines<Better, double>(args, indices, begin, end);
        default: return extreme_lines<Better, i64>(args, indices, begin, end);
    }
}

// dL/dx[k] = before[k] * after[k], with before[k] = x[0] ... x[k-1] and after[k] = g[k] + x[k+1] after[k+1]: no division,
// so zeros need no special care.
template <class T>
void prod_gradient_lines(const LineArgs& args, const T* g, bool whole, i64 begin, i64 end) {
    const i64 step = args.inner;
    for (i64 line = begin; line < end; ++line) {
        const i64 offset = (line / args.inner) * args.size * args.inner + line % args.inner;
        const T* x = static_cast<const T*>(args.x) + offset;
        T* out = static_cast<T*>(args.out) + offset;
        Wide<T> before = 1, after = whole ? static_cast<Wide<T>>(g[line]) : 0;
        for (i64 k = 0; k < args.size; ++k) {
            out[k * step] = static_cast<T>(before);
            before *= static_cast<Wide<T>>(x[k * step]);
        }
        for (i64 k = args.size; k-- > 0;) {
            if (!whole) after += static_cast<Wide<T>>(g[offset + k * step]);
            out[k * step] = static_cast<T>(static_cast<Wide<T>>(out[k * step]) * after);
            after *= static_cast<Wide<T>>(x[k * step]);
        }
    }
}

}  // namespace

void scan(const LineArgs& args, Scan kind, i64 begin, i64 end) {
    switch (kind) {
        case Scan::sum: return scan_as<Sum>(args, false, begin, end);
        case Scan::reverse_sum: return scan_as<Sum>(args, true, begin, end);
        case Scan::prod: return scan_as<Prod>(args, false, begin, end);
        case Scan::log_of_exps:
        case Scan::reverse_log_of_exps: break;
    }
    const bool reverse = kind == Scan::reverse_log_of_exps;
    if (args.dtype == DType::float32) {
        scan_lines<LogAddExp, float>(args, reverse, begin, end);
    } else {
        scan_lines<LogAddExp, double>(args, reverse, begin, end);
    }
}

void scan_extreme(const LineArgs& args, bool largest, i64* indices, i64 begin, i64 end) {
    largest ? extreme_as<NotBelow>(args, indices, begin, end) : extreme_as<NotAbove>(args, indices, begin, end);
}

void prod_gradient(const LineArgs& args, const void* g, bool whole, i64 begin, i64 end) {
    if (args.dtype == DType::float32) {
        prod_gradient_lines(args, static_cast<const float*>(g), whole, begin, end);
    } else {
        prod_gradient_lines(args, static_cast<const double*>(g), whole, begin, end);
    }
}

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
