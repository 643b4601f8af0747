// Softmax, its logarithm, logsumexp, and their gradients, along rows and along columns.
#include "tapir/ops/reduce/softmax_kernels.h"

#include "tapir/ops/cpu/math_impl.h"
#include "tapir/ops/linear/matmul.h"
#include "tapir/ops/reduce/reduce_simd_cpu.h"
#include "tapir/ops/reduce/softmax.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

constexpr i64 kTile = 16;           // tails are widened to this many elements, so that no exp is computed alone
constexpr i64 kBlock = kFoldBlock;  // elements whose sum is taken in T; blocks add up in float64
constexpr i64 kColumns = 256;

template <class T>
constexpr T kSmallest = T(-87.0);
template <>
constexpr double kSmallest<double> = -708.0;

// Returns e^x for x <= 0. Results below any normal number become 0: the vector library computes such values one by one,
// and masked positions are -inf by habit.
template <class T>
[[gnu::always_inline]] inline T exp_below(T x) {
    const T y = exp(x < kSmallest<T> ? kSmallest<T> : x);
    return x < kSmallest<T> ? T(0) : y;
}

template <class T>
void copy(T* to, const T* from, i64 n) {
    for (i64 i = 0; i < n; ++i) to[i] = from[i];
}

// A row's last elements; the lanes behind them repeat the first.
template <class T>
struct Tail {
    alignas(64) T values[kTile];
    Tail(const T* x, i64 n) {
        for (i64 i = 0; i < kTile; ++i) values[i] = x[i < n ? i : 0];
    }
};

// y = e^y for n elements that are at most 0.
template <class T>
void exp_in_place(T* y, i64 n) {
    const i64 whole = n / kTile * kTile;
#pragma omp simd
    for (i64 i = 0; i < whole; ++i) y[i] = exp_below(y[i]);
    if (whole == n) return;
    Tail<T> tail(y + whole, n - whole);
#pragma omp simd
    for (i64 i = 0; i < kTile; ++i) tail.values[i] = exp_below(tail.values[i]);
    copy(y + whole, tail.values, n - whole);
}

// y = e^(x - max), where y is not null; the sum of these.
template <class T>
double exp_row(const T* x, T* y, i64 n, T max) {
    double total = 0;
    const i64 whole = n / kTile * kTile;
    for (i64 begin = 0; begin < whole; begin += kBlock) {
        const i64 end = smaller(begin + kBlock, whole);
        T sum = 0;
        if (y) {
#pragma omp simd reduction(+ : sum)
            for (i64 i = begin; i < end; ++i) sum += y[i] = exp_below(x[i] - max);
        } else {
#pragma omp simd reduction(+ : sum)
            for (i64 i = begin; i < end; ++i) sum += exp_below(x[i] - max);
        }
        total += static_cast<double>(sum);
    }
    const i64 rest = n - whole;
    if (rest == 0) return total;
    Tail<T> tail(x + whole, rest);
#pragma omp simd
    for (i64 i = 0; i < kTile; ++i) tail.values[i] = exp_below(tail.values[i] - max);
    T sum = 0;
    for (i64 i = 0; i < rest; ++i) sum += tail.values[i];
    if (y) copy(y + whole, tail.values, rest);
    return total + static_cast<double>(sum);
}

// --- Short rows: several at a time, so that exp and log run over full vectors ------------------------------------------

constexpr i64 kShort = 64;   // a longer row is handled by itself
constexpr i64 kGroup = 512;  // elements taken at a time

template <class T>
struct Group {
    alignas(64) T exps[kGroup + kTile];  // e^(x - max)
    alignas(64) T max[kGroup + kTile];   // by row
    alignas(64) T sum[kGroup + kTile];   // of the exps

    // Applies fn to n elements of values, and to those that follow up to a whole vector.
    template <class Fn>
    [[gnu::always_inline]] static void apply(T* values, i64 n, const Fn& fn) {
        for (i64 i = n; i % kTile; ++i) values[i] = values[0];
        for (i64 i = 0; i < n; i += kTile) {
#pragma omp simd
            for (i64 j = 0; j < kTile; ++j) values[i + j] = fn(values[i + j]);
        }
    }

    Group(const T* x, i64 rows, i64 n) {
        for (i64 r = 0; r < rows; ++r) {
            max[r] = fold_block<Max>(x + r * n, n);
            const Vector<T> shift = Vector<T>{} + max[r];
            for_vectors(x + r * n, exps + r * n, n, [&](Vector<T> v) __attribute__((always_inline)) { return v - shift; });
        }
        apply(exps, rows * n, [](T v) __attribute__((always_inline)) { return exp_below(v); });
        for (i64 r = 0; r < rows; ++r) sum[r] = fold_block<Sum>(exps + r * n, n);
    }
    void take_log_of_sums(i64 rows) {
        apply(sum, rows, [](T v) __attribute__((always_inline)) { return log(v); });
    }
};

template <class T>
void softmax_short_rows(const T* x, T* y, i64 rows, i64 n, bool as_log) {
    Group<T> group(x, rows, n);
    if (as_log) group.take_log_of_sums(rows);
    for (i64 r = 0; r < rows; ++r, x += n, y += n) {
        if (as_log) {
            const Vector<T> max = Vector<T>{} + group.max[r], log_sum = Vector<T>{} + group.sum[r];
            for_vectors(x, y, n, [&](Vector<T> v) __attribute__((always_inline)) { return (v - max) - log_sum; });
        } else {
            const Vector<T> scale = Vector<T>{} + 1 / group.sum[r];
            for_vectors(group.exps + r * n, y, n, [&](Vector<T> v) __attribute__((always_inline)) { return v * scale; });
        }
    }
}

template <class T>
void logsumexp_short_rows(const T* x, T* out, i64 rows, i64 n) {
    Group<T> group(x, rows, n);
    group.take_log_of_sums(rows);
    for (i64 r = 0; r < rows; ++r) out[r] = is_finite(group.max[r]) ? group.max[r] + group.sum[r] : group.max[r];
}

template <class T>
void log_softmax_backward_short_rows(const T* y, const T* g, T* out, i64 rows, i64 n) {
    alignas(64) T exps[kGroup + kTile];
    copy(exps, y, rows * n);
    Group<T>::apply(exps, rows * n, [](T v) __attribute__((always_inline)) { return exp_below(v); });
    for (i64 r = 0; r < rows; ++r) {
        const T sum = fold_block<Sum>(g + r * n, n);
        for (i64 i = r * n; i < (r + 1) * n; ++i) out[i] = g[i] - exps[i] * sum;
    }
}

// --- Rows ----------------------------------------------------------------------------------------------------------------

template <class T>
void softmax_row(const T* x, T* y, i64 n, bool as_log) {
    const T max = static_cast<T>(fold<Max>(x, n));
    const double sum = exp_row(x, as_log ? nullptr : y, n, max);
    if (as_log) {
        const Vector<T> shift = Vector<T>{} + max, log_sum = Vector<T>{} + static_cast<T>(log(sum));
        for_vectors(x, y, n, [&](Vector<T> v) __attribute__((always_inline)) { return (v - shift) - log_sum; });
    } else {
        const Vector<T> scale = Vector<T>{} + static_cast<T>(1 / sum);
        for_vectors(y, y, n, [&](Vector<T> v) __attribute__((always_inline)) { return v * scale; });
    }
}

// Computes `count` rows from line `line` on, each over the elements that it sees.
template <class T>
void softmax_causal_rows(const SoftmaxArgs& args, i64 line, i64 count) {
    const i64 n = args.size;
    const auto* x = static_cast<const T*>(args.x) + line * n;
    auto* y = static_cast<T*>(args.out) + line * n;
    if (n > kShort) {
        for (i64 r = 0; r < count; ++r, x += n, y += n) {
            const i64 seen = seen_by(args, line + r);
            softmax_row(x, y, seen, false);
            for (i64 i = seen; i < n; ++i) y[i] = 0;
        }
        return;
    }
    alignas(64) T masked[kGroup];
    for (i64 r = 0; r < count; ++r) {
        const i64 seen = seen_by(args, line + r);
        copy(masked + r * n, x + r * n, seen);
        for (i64 i = seen; i < n; ++i) masked[r * n + i] = -static_cast<T>(__builtin_inf());
    }
    softmax_short_rows(masked, y, count, n, false);
}

// Sums by column: rows are added to `narrow`, and after kSumRows rows that is added to the wider sums.
template <class T>
struct ColumnSums {
    alignas(64) T narrow[kColumns];
    alignas(64) Wide<T> wide[kColumns];
    i64 width, rows = 0;

    explicit ColumnSums(i64 n) : width(n) {
        for (i64 j = 0; j < width; ++j) narrow[j] = 0, wide[j] = 0;
    }
    // Call it before `count` rows, at most kSumRows, are added.
    void make_room_for(i64 count) {
        rows += count;
        if (rows <= kSumRows) return;
        rows = count;
#pragma omp simd
        for (i64 j = 0; j < width; ++j) {
            wide[j] += static_cast<Wide<T>>(narrow[j]);
            narrow[j] = 0;
        }
    }
    // Adds all, into `narrow`.
    void finish() {
        for (i64 j = 0; j < width; ++j) narrow[j] = static_cast<T>(wide[j] + static_cast<Wide<T>>(narrow[j]));
    }
};

// Computes `width` columns of `size` rows that are `inner` apart.
template <class T>
void softmax_columns(const T* x, T* y, i64 size, i64 inner, i64 width, bool as_log) {
    alignas(64) T max[kColumns];
    copy(max, x, width);
    fold_rows<Max>(max, x + inner, inner, size - 1, width);
    ColumnSums<T> sums(width);
    T* const sum = sums.narrow;
    // Whole rows lie behind each other: exp runs over several of them at once.
    const i64 group = width == inner ? smaller((1024 + width - 1) / width, kSumRows) : 1;
    for (i64 begin = 0; begin < size; begin += group) {
        const i64 rows = smaller(group, size - begin);
        for (i64 r = begin; r < begin + rows; ++r) {
            const T* from = x + r * inner;
            T* to = y + r * inner;
#pragma omp simd
            for (i64 j = 0; j < width; ++j) to[j] = from[j] - max[j];
        }
        exp_in_place(y + begin * inner, rows * width);
        sums.make_room_for(rows);
        fold_rows<Sum>(sum, y + begin * inner, inner, rows, width);
    }
    sums.finish();
    if (as_log) {
#pragma omp simd
        for (i64 j = 0; j < width; ++j) sum[j] = log(sum[j]);
    } else {
#pragma omp simd
        for (i64 j = 0; j < width; ++j) sum[j] = 1 / sum[j];
    }
    for (i64 r = 0; r < size; ++r) {
        const T* from = x + r * inner;
        T* to = y + r * inner;
        if (as_log) {
#pragma omp simd
            for (i64 j = 0; j < width; ++j) to[j] = (from[j] - max[j]) - sum[j];
        } else {
#pragma omp simd
            for (i64 j = 0; j < width; ++j) to[j] *= sum[j];
        }
    }
}

// Returns the sum of a[i] * b[i].
template <class T>
T dot(const T* a, const T* b, i64 n) {
    return static_cast<T>(sum_of<T>(n, [&](auto at) __attribute__((always_inline)) { return at(a) * at(b); }));
}

template <class T>
void softmax_backward_row(const T* y, const T* g, T* out, i64 n) {
    const T sum = dot(y, g, n);
    i64 i = 0;
    for (; i + kWidth<T> <= n; i += kWidth<T>) store(out + i, load(y + i) * (load(g + i) - sum));
    if (i < n) store_first(out + i, load_first(y + i, n - i) * (load_first(g + i, n - i) - sum), n - i);
}

template <class T>
void log_softmax_backward_row(const T* y, const T* g, T* out, i64 n) {
    const T sum = static_cast<T>(fold<Sum>(g, n));
    const i64 whole = n / kTile * kTile;
#pragma omp simd
    for (i64 i = 0; i < whole; ++i) out[i] = g[i] - exp_below(y[i]) * sum;
    if (whole == n) return;
    Tail<T> tail(y + whole, n - whole);
#pragma omp simd
    for (i64 i = 0; i < kTile; ++i) tail.values[i] = exp_below(tail.values[i]);
    for (i64 i = whole; i < n; ++i) out[i] = g[i] - tail.values[i - whole] * sum;
}

template <class T>
void softmax_backward_columns(const T* y, const T* g, T* out, i64 size, i64 inner, i64 width, bool as_log) {
    ColumnSums<T> sums(width);
    T* const sum = sums.narrow;
    for (i64 r = 0; r < size; ++r) {
        const T *a = y + r * inner, *b = g + r * inner;
        sums.make_room_for(1);
        if (as_log) {
#pragma omp simd
            for (i64 j = 0; j < width; ++j) sum[j] += b[j];
        } else {
#pragma omp simd
            for (i64 j = 0; j < width; ++j) sum[j] += a[j] * b[j];
        }
    }
    sums.finish();
    for (i64 r = 0; r < size; ++r) {
        const T *a = y + r * inner, *b = g + r * inner;
        T* to = out + r * inner;
        if (as_log) {
#pragma omp simd
            for (i64 j = 0; j < width; ++j) to[j] = b[j] - exp_below(a[j]) * sum[j];
        } else {
#pragma omp simd
            for (i64 j = 0; j < width; ++j) to[j] = a[j] * (b[j] - sum[j]);
        }
    }
}

// Calls rows(offset, count) for groups of short rows and for single long ones, or columns(offset, width) for blocks of
// neighbouring columns.
template <class Rows, class Columns>
[[gnu::always_inline]] inline void for_lines(const SoftmaxArgs& args, i64 begin, i64 end, Rows rows, Columns columns) {
    const i64 group = args.size <= kShort ? kGroup / args.size : 1;
    for (i64 line = begin; line < end;) {
        if (args.inner == 1) {
            const i64 count = smaller(group, end - line);
            rows(line * args.size, count);
            line += count;
            continue;
        }
        const i64 column = line % args.inner;
        const i64 width = smaller(smaller(args.inner - column, kColumns), end - line);
        columns((line / args.inner) * args.size * args.inner + column, width);
        line += width;
    }
}

template <class T>
void softmax_lines(const SoftmaxArgs& args, i64 begin, i64 end) {
    const auto* x = static_cast<const T*>(args.x);
    auto* y = static_cast<T*>(args.out);
    const auto rows = [&](i64 at, i64 count) {
        if (args.queries > 0) {
            softmax_causal_rows<T>(args, at / args.size, count);
        } else if (args.size <= kShort) {
            softmax_short_rows(x + at, y + at, count, args.size, args.log);
        } else {
            softmax_row(x + at, y + at, args.size, args.log);
        }
    };
    for_lines(args, begin, end, rows, [&](i64 at, i64 width) { softmax_columns(x + at, y + at, args.size, args.inner, width, args.log); });
}

template <class T>
void softmax_backward_lines(const SoftmaxArgs& args, i64 begin, i64 end) {
    const auto *y = static_cast<const T*>(args.x), *g = static_cast<const T*>(args.g);
    auto* out = static_cast<T*>(args.out);
    const auto rows = [&](i64 at, i64 count) {
        if (!args.log) {
            for (i64 r = 0; r < count; ++r, at += args.size) softmax_backward_row(y + at, g + at, out + at, args.size);
        } else if (args.size <= kShort) {
            log_softmax_backward_short_rows(y + at, g + at, out + at, count, args.size);
        } else {
            log_softmax_backward_row(y + at, g + at, out + at, args.size);
        }
    };
    for_lines(args, begin, end, rows,
              [&](i64 at, i64 width) { softmax_backward_columns(y + at, g + at, out + at, args.size, args.inner, width, args.log); });
}

template <class T>
void logsumexp_lines(const SoftmaxArgs& args, i64 begin, i64 end) {
    const auto* x = static_cast<const T*>(args.x);
    auto* out = static_cast<T*>(args.out);
    const auto rows = [&](i64 at, i64 count) {
        T* to = out + at / args.size;
        if (args.size <= kShort) {
            logsumexp_short_rows(x + at, to, count, args.size);
            return;
        }
        const T max = static_cast<T>(fold<Max>(x + at, args.size));
        const bool finite = is_finite(max);  // else max is the result: all are -inf, or one is inf or nan
        const double sum = finite ? exp_row(x + at, static_cast<T*>(nullptr), args.size, max) : 1;
        *to = static_cast<T>(static_cast<double>(max) + log(sum));
    };
    for_lines(args, begin, end, rows, [](i64, i64) {});
}

template <class T>
void logsumexp_backward_lines(const SoftmaxArgs& args, const T* y, i64 begin, i64 end) {
    const auto *x = static_cast<const T*>(args.x), *g = static_cast<const T*>(args.g);
    auto* out = static_cast<T*>(args.out);
    const i64 n = args.size;
    const auto rows = [&](i64 at, i64 count) {
        const i64 line = at / n;
        for (i64 r = 0; r < count; ++r) {
            const T of_row = y[line + r];
            const Vector<T> shift = Vector<T>{} + (of_row == -static_cast<T>(__builtin_inf()) ? T(0) : of_row);
            for_vectors(x + at + r * n, out + at + r * n, n, [&](Vector<T> v) __attribute__((always_inline)) { return v - shift; });
        }
        exp_in_place(out + at, count * n);
        for (i64 r = 0; r < count; ++r) {
            const Vector<T> scale = Vector<T>{} + g[line + r];
            for_vectors(out + at + r * n, out + at + r * n, n, [&](Vector<T> v) __attribute__((always_inline)) { return v * scale; });
        }
    };
    for_lines(args, begin, end, rows, [](i64, i64) {});
}

}  // namespace

void softmax(const SoftmaxArgs& args, i64 begin, i64 end) {
    if (args.dtype == DType::float32) {
        softmax_lines<float>(args, begin, end);
    } else {
        softmax_lines<double>(args, begin, end);
    }
}

void softmax_backward(const SoftmaxArgs& args, i64 begin, i64 end) {
    if (args.dtype == DType::float32) {
        softmax_backward_lines<float>(args, begin, end);
    } else {
        softmax_backward_lines<double>(args, begin, end);
    }
}

void logsumexp(const SoftmaxArgs& args, i64 begin, i64 end) {
    if (args.dtype == DType::float32) {
        logsumexp_lines<float>(args, begin, end);
    } else {
        logsumexp_lines<double>(args, begin, end);
    }
}

void logsumexp_backward(const SoftmaxArgs& args, const void* y, i64 begin, i64 end) {
    if (args.dtype == DType::float32) {
        logsumexp_backward_lines(args, static_cast<const float*>(y), begin, end);
    } else {
        logsumexp_backward_lines(args, static_cast<const double*>(y), begin, end);
    }
}

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
