// Running sums, products, extremes and logarithms of sums of exponentials along lines, and the gradients of products. float32 accumulates in float64.
#include "tapir/ops/cpu/math_impl.h"
#include "tapir/ops/reduce/reduce_simd_cpu.h"
#include "tapir/ops/scan/scan_kernels.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

constexpr i64 kColumns = 512;

#define TAPIR_SCALAR [[gnu::always_inline]] inline
#define TAPIR_SCAN_HOST inline
#include "tapir/ops/kernels/scan_functions.h"
#undef TAPIR_SCALAR
#undef TAPIR_SCAN_HOST

template <class Op, class T>
void scan_row(const Op& op, const T* x, T* y, i64 n, i64 step) {
    auto state = op.identity();
    for (i64 i = 0; i < n; ++i, x += step, y += step) {
        state = op.combine(state, op.of(static_cast<Wide<T>>(*x)));
        *y = static_cast<T>(op.value(state));
    }
}

// `step`: the distance of a line's elements, negative for reverse scans.
template <class Op, class T>
void scan_columns(const Op& op, const T* x, T* y, i64 n, i64 step, i64 width) {
    alignas(64) typename Op::State states[kColumns];
    for (i64 j = 0; j < width; ++j) states[j] = op.identity();
    for (i64 i = 0; i < n; ++i, x += step, y += step) {
#pragma omp simd
        for (i64 j = 0; j < width; ++j) {
            states[j] = op.combine(states[j], op.of(static_cast<Wide<T>>(x[j])));
            y[j] = static_cast<T>(op.value(states[j]));
        }
    }
}

template <class T>
void scan_lines(const LineArgs& args, const Scan& scan, i64 begin, i64 end) {
    with_scan<Wide<T>>(scan, [&](const auto& op) {
        const i64 step = scan.reverse ? -args.inner : args.inner;
        for (i64 line = begin; line < end;) {
            const i64 column = line % args.inner;
            const i64 width = smaller(smaller(args.inner - column, kColumns), end - line);
            const i64 first = scan.reverse ? args.size - 1 : 0;
            const i64 offset = ((line / args.inner) * args.size + first) * args.inner + column;
            const T* x = static_cast<const T*>(args.x) + offset;
            T* y = static_cast<T*>(args.out) + offset;
            if (width == 1) {
                scan_row(op, x, y, args.size, step);
            } else {
                scan_columns(op, x, y, args.size, step, width);
            }
            line += width;
        }
    });
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

void scan(const LineArgs& args, const Scan& scan, i64 begin, i64 end) {
    switch (args.dtype) {
        case DType::float32: return scan_lines<float>(args, scan, begin, end);
        case DType::float64: return scan_lines<double>(args, scan, begin, end);
        default: return scan_lines<u64>(args, scan, begin, end);  // wraps around
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
