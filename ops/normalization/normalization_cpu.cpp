// The kernels of layer normalisation and of normalisation by root mean squares.
//
// The mean is computed relative to a row's first element, and the variance around the mean in a second pass over a row that is
// in cache by then: rows of large numbers that hardly differ keep all of their digits. For sums see Note [Accuracy of
// sums]. A row whose squares leave the range of T is computed once more, in float64 and scaled.
#include "tapir/ops/normalization/normalization_kernels.h"

#include "tapir/ops/cpu/math_impl.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/reduce/reduce_simd_cpu.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

template <class T>
constexpr Wide<T> kLargest = static_cast<Wide<T>>(__FLT_MAX__);
template <>
constexpr double kLargest<double> = __DBL_MAX__;
template <class T>
constexpr Wide<T> kSmallestNormal = static_cast<Wide<T>>(__FLT_MIN__);
template <>
constexpr double kSmallestNormal<double> = __DBL_MIN__;

// True if a mean of squares has its digits: overflow gives inf or nan, and squares that underflowed do not count
// beside an eps that is large enough.
template <class T>
bool is_in_range(T squares, T with_eps) {
    return squares <= kLargest<T> && with_eps >= kSmallestNormal<T>;
}

// Returns a power of two that brings n numbers of at most this size to [1, 2).
double scale_for(double largest) {
    if (!(largest <= __DBL_MAX__)) return 1;
    const i64 exponent = 2046 - static_cast<i64>(__builtin_bit_cast(u64, largest) >> 52);
    return __builtin_bit_cast(double, static_cast<u64>(exponent < 1 ? 1 : exponent > 2045 ? 2045 : exponent) << 52);
}

// Normalises a row whose squares do not fit T.
template <class T>
[[gnu::noinline]] void normalize_scaled(const LayerNorm<T>& args, i64 row, bool is_centred) {
    const i64 width = args.width;
    const T* x = args.x + row * width;
    double largest = 0;
    for (i64 j = 0; j < width; ++j) {
        const double size = __builtin_fabs(static_cast<double>(x[j]));
        largest = size > largest ? size : largest;
    }
    const double scale = scale_for(largest), n = static_cast<double>(width), first = is_centred ? static_cast<double>(x[0]) * scale : 0.0;
    const auto at = [&](i64 j) { return static_cast<double>(x[j]) * scale - first; };
    double sum = 0, squares = 0;
    for (i64 j = 0; is_centred && j < width; ++j) sum += at(j);
    const double mean = sum / n;
    for (i64 j = 0; j < width; ++j) squares += (at(j) - mean) * (at(j) - mean);
    const double rstd = 1 / sqrt(squares / n + args.eps * scale * scale);
    if (args.mean) args.mean[row] = static_cast<T>(mean / scale);
    if (args.rstd) args.rstd[row] = static_cast<T>(rstd * scale);
    for (i64 j = 0; j < width; ++j) {
        const double normal = (at(j) - mean) * rstd * (args.weight ? static_cast<double>(args.weight[j]) : 1.0);
        args.y[row * width + j] = static_cast<T>(normal + (args.bias ? static_cast<double>(args.bias[j]) : 0.0));
    }
}

template <class T>
void forward(const LayerNorm<T>& args, i64 begin, i64 end) {
    const i64 width = args.width;
    const T share = 1 / static_cast<T>(width), eps = static_cast<T>(args.eps);
    for (i64 row = begin; row < end; ++row) {
        const T* x = args.x + row * width;
        T* y = args.y + row * width;
        const T first = x[0];
        const T mean = rounded_sum_of<T>(width, [&](auto at) __attribute__((always_inline)) { return at(x) - first; }) * share;
        const T squares = rounded_sum_of<T>(width, [&](auto at) __attribute__((always_inline)) {
            const Vector<T> d = (at(x) - first) - mean;
            return d * d;
        });
        const T variance = squares * share + eps;
        if (!is_in_range(squares, variance)) {
            normalize_scaled(args, row, /*is_centred=*/true);
            continue;
        }
        const T rstd = 1 / sqrt(variance);
        if (args.mean) {
            args.mean[row] = mean;
            args.rstd[row] = rstd;
        }
        const T *w = args.weight, *b = args.bias;
        if (w && b) {
#pragma omp simd
            for (i64 j = 0; j < width; ++j) y[j] = ((x[j] - first) - mean) * rstd * w[j] + b[j];
        } else if (w) {
#pragma omp simd
            for (i64 j = 0; j < width; ++j) y[j] = ((x[j] - first) - mean) * rstd * w[j];
        } else if (b) {
#pragma omp simd
            for (i64 j = 0; j < width; ++j) y[j] = ((x[j] - first) - mean) * rstd + b[j];
        } else {
#pragma omp simd
            for (i64 j = 0; j < width; ++j) y[j] = ((x[j] - first) - mean) * rstd;
        }
    }
}

// With n = (x - mean) rstd and d = grad * weight:  grad_x = rstd (d - mean(d) - n mean(d n)).
template <class T, bool weighted>
void grad_input(const LayerNormBackward<T>& args, i64 row, Wide<T> share) {
    const i64 width = args.width;
    const T *x = args.x + row * width, *g = args.grad + row * width, *w = args.weight;
    const T first = x[0], mean = args.mean[row], rstd = args.rstd[row];
    const Sums<T> sums = sums_of<T>(width, [&](auto at) __attribute__((always_inline)) {
        Vector<T> d = at(g);
        if constexpr (weighted) d *= at(w);
        return Terms<T>{d, d * (((at(x) - first) - mean) * rstd)};
    });
    const T mean_d = static_cast<T>(sums.first * share);
    const T mean_dn = static_cast<T>(sums.second * share);
    T* out = args.grad_x + row * width;
#pragma omp simd
    for (i64 j = 0; j < width; ++j) {
        const T d = weighted ? g[j] * w[j] : g[j];
        out[j] = rstd * (d - mean_d - ((x[j] - first) - mean) * rstd * mean_dn);
    }
}

// The values of a row's elements: x, and n = ((x - first) - mean) rstd.
template <class T>
struct Row {
    const T *g, *x;
    T first, mean, rstd;

    Row(const LayerNormBackward<T>& args, i64 row)
        : g(args.grad + row * args.width), x(args.x + row * args.width), first(args.mean ? x[0] : T(0)), mean(args.mean ? args.mean[row] : T(0)),
          rstd(args.rstd[row]) {}
    [[gnu::always_inline]] T by_weight(i64 j) const { return g[j] * (((x[j] - first) - mean) * rstd); }
};

// Adds the rows' gradients of the weight and the bias, four rows together before they are added to the wider sums.
template <class T>
void add_parameters(const LayerNormBackward<T>& args, i64 begin, i64 end) {
    const i64 width = args.width;
    i64 row = begin;
    for (; row + 4 <= end; row += 4) {
        const Row<T> a(args, row), b(args, row + 1), c(args, row + 2), d(args, row + 3);
        if (double* sums = args.grad_weight) {
#pragma omp simd
            for (i64 j = 0; j < width; ++j) {
                sums[j] += static_cast<double>((a.by_weight(j) + b.by_weight(j)) + (c.by_weight(j) + d.by_weight(j)));
            }
        }
        if (double* sums = args.grad_bias) {
#pragma omp simd
            for (i64 j = 0; j < width; ++j) sums[j] += static_cast<double>((a.g[j] + b.g[j]) + (c.g[j] + d.g[j]));
        }
    }
    for (; row < end; ++row) {
        const Row<T> a(args, row);
        if (double* sums = args.grad_weight) {
#pragma omp simd
            for (i64 j = 0; j < width; ++j) sums[j] += static_cast<double>(a.by_weight(j));
        }
        if (double* sums = args.grad_bias) {
#pragma omp simd
            for (i64 j = 0; j < width; ++j) sums[j] += static_cast<double>(a.g[j]);
        }
    }
}

// Calls input(row) for all rows, and adds their part of the parameters' gradients while the rows are in cache.
template <class T, class Input>
void for_rows(const LayerNormBackward<T>& args, i64 begin, i64 end, const Input& input) {
    for (i64 row = begin; row < end; row += 4) {
        const i64 last = smaller(row + 4, end);
        for (i64 i = row; args.grad_x && i < last; ++i) input(i);
        if (args.grad_weight || args.grad_bias) add_parameters(args, row, last);
    }
}

template <class T>
void backward(const LayerNormBackward<T>& args, i64 begin, i64 end) {
    const Wide<T> share = 1 / static_cast<Wide<T>>(args.width);
    for_rows(args, begin, end, [&](i64 row) { args.weight ? grad_input<T, true>(args, row, share) : grad_input<T, false>(args, row, share); });
}

template <class T>
void forward_rms(const LayerNorm<T>& args, i64 begin, i64 end) {
    const i64 width = args.width;
    const T share = 1 / static_cast<T>(width), eps = static_cast<T>(args.eps);
    for (i64 row = begin; row < end; ++row) {
        const T *x = args.x + row * width, *w = args.weight;
        T* y = args.y + row * width;
        const T squares = rounded_sum_of<T>(width, [&](auto at) __attribute__((always_inline)) { return at(x) * at(x); });
        const T with_eps = squares * share + eps;
        if (!is_in_range(squares, with_eps)) {
            normalize_scaled(args, row, /*is_centred=*/false);
            continue;
        }
        const T rstd = 1 / sqrt(with_eps);
        args.rstd[row] = rstd;
        if (w) {
#pragma omp simd
            for (i64 j = 0; j < width; ++j) y[j] = x[j] * rstd * w[j];
        } else {
#pragma omp simd
            for (i64 j = 0; j < width; ++j) y[j] = x[j] * rstd;
        }
    }
}

// With n = x rstd and d = grad * weight:  grad_x = rstd (d - n mean(d n)).
template <class T, bool weighted>
void grad_input_rms(const LayerNormBackward<T>& args, i64 row, Wide<T> share) {
    const i64 width = args.width;
    const T *x = args.x + row * width, *g = args.grad + row * width, *w = args.weight;
    const T rstd = args.rstd[row];
    const Wide<T> product = sum_of<T>(width, [&](auto at) __attribute__((always_inline)) {
        Vector<T> d = at(g);
        if constexpr (weighted) d *= at(w);
        return d * (at(x) * rstd);
    });
    const T mean_dn = static_cast<T>(product * share);
    T* out = args.grad_x + row * width;
#pragma omp simd
    for (i64 j = 0; j < width; ++j) out[j] = rstd * ((weighted ? g[j] * w[j] : g[j]) - x[j] * rstd * mean_dn);
}

template <class T>
void backward_rms(const LayerNormBackward<T>& args, i64 begin, i64 end) {
    const Wide<T> share = 1 / static_cast<Wide<T>>(args.width);
    for_rows(args, begin, end,
             [&](i64 row) { args.weight ? grad_input_rms<T, true>(args, row, share) : grad_input_rms<T, false>(args, row, share); });
}

}  // namespace

void layer_norm_f32(const LayerNorm<float>& args, i64 begin, i64 end) { forward(args, begin, end); }
void layer_norm_f64(const LayerNorm<double>& args, i64 begin, i64 end) { forward(args, begin, end); }
void layer_norm_backward_f32(const LayerNormBackward<float>& args, i64 begin, i64 end) { backward(args, begin, end); }
void layer_norm_backward_f64(const LayerNormBackward<double>& args, i64 begin, i64 end) { backward(args, begin, end); }
void rms_norm_f32(const LayerNorm<float>& args, i64 begin, i64 end) { forward_rms(args, begin, end); }
void rms_norm_f64(const LayerNorm<double>& args, i64 begin, i64 end) { forward_rms(args, begin, end); }
void rms_norm_backward_f32(const LayerNormBackward<float>& args, i64 begin, i64 end) { backward_rms(args, begin, end); }
void rms_norm_backward_f64(const LayerNormBackward<double>& args, i64 begin, i64 end) { backward_rms(args, begin, end); }

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
