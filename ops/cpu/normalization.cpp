// The kernels of layer normalisation. The variance is summed up around the mean, in a second pass over a row that is in
// cache by then: the one-pass formula loses all digits where the mean is large.
#include "tapir/ops/kernels/normalization.h"

#include "tapir/ops/cpu/math_impl.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

using i64 = std::int64_t;

template <class T>
void forward(const LayerNorm<T>& args, i64 begin, i64 end) {
    const i64 width = args.width;
    const T scale = T(1) / static_cast<T>(width);
    for (i64 row = begin; row < end; ++row) {
        const T* x = args.x + row * width;
        T* y = args.y + row * width;
        T sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
        for (i64 j = 0; j < width; ++j) sum += x[j];
        const T mean = sum * scale;
#pragma omp simd reduction(+ : squares)
        for (i64 j = 0; j < width; ++j) squares += (x[j] - mean) * (x[j] - mean);
        const T rstd = T(1) / sqrt(squares * scale + static_cast<T>(args.eps));
        if (args.mean) {
            args.mean[row] = mean;
            args.rstd[row] = rstd;
        }
        const T *w = args.weight, *b = args.bias;
        if (w && b) {
#pragma omp simd
            for (i64 j = 0; j < width; ++j) y[j] = (x[j] - mean) * rstd * w[j] + b[j];
        } else if (w) {
#pragma omp simd
            for (i64 j = 0; j < width; ++j) y[j] = (x[j] - mean) * rstd * w[j];
        } else if (b) {
#pragma omp simd
            for (i64 j = 0; j < width; ++j) y[j] = (x[j] - mean) * rstd + b[j];
        } else {
#pragma omp simd
            for (i64 j = 0; j < width; ++j) y[j] = (x[j] - mean) * rstd;
        }
    }
}

// With n = (x - mean) rstd and d = grad * weight:  grad_x = rstd (d - mean(d) - n mean(d n)).
template <class T, bool weighted>
void grad_input(const LayerNormBackward<T>& args, i64 row) {
    const i64 width = args.width;
    const T *x = args.x + row * width, *g = args.grad + row * width, *w = args.weight;
    const T mean = args.mean[row], rstd = args.rstd[row];
    T sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
    for (i64 j = 0; j < width; ++j) {
        const T d = weighted ? g[j] * w[j] : g[j];
        sum += d;
        product += d * (x[j] - mean) * rstd;
    }
    const T scale = T(1) / static_cast<T>(width);
    const T mean_d = sum * scale, mean_dn = product * scale;
    T* out = args.grad_x + row * width;
#pragma omp simd
    for (i64 j = 0; j < width; ++j) {
        const T d = weighted ? g[j] * w[j] : g[j];
        out[j] = rstd * (d - mean_d - (x[j] - mean) * rstd * mean_dn);
    }
}

template <class T>
void backward(const LayerNormBackward<T>& args, i64 begin, i64 end) {
    const i64 width = args.width;
    for (i64 row = begin; row < end; ++row) {
        if (args.grad_x && args.weight) grad_input<T, true>(args, row);
        if (args.grad_x && !args.weight) grad_input<T, false>(args, row);
        const T *x = args.x + row * width, *g = args.grad + row * width;
        const T mean = args.mean[row], rstd = args.rstd[row];
        if (T* grad_weight = args.grad_weight) {
#pragma omp simd
            for (i64 j = 0; j < width; ++j) grad_weight[j] += g[j] * (x[j] - mean) * rstd;
        }
        if (T* grad_bias = args.grad_bias) {
#pragma omp simd
            for (i64 j = 0; j < width; ++j) grad_bias[j] += g[j];
        }
    }
}

template <class T>
void forward_rms(const LayerNorm<T>& args, i64 begin, i64 end) {
    const i64 width = args.width;
    for (i64 row = begin; row < end; ++row) {
        const T *x = args.x + row * width, *w = args.weight;
        T* y = args.y + row * width;
        T squares = 0;
#pragma omp simd reduction(+ : squares)
        for (i64 j = 0; j < width; ++j) squares += x[j] * x[j];
        const T rstd = T(1) / sqrt(squares / static_cast<T>(width) + static_cast<T>(args.eps));
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
void grad_input_rms(const LayerNormBackward<T>& args, i64 row) {
    const i64 width = args.width;
    const T *x = args.x + row * width, *g = args.grad + row * width, *w = args.weight;
    const T rstd = args.rstd[row];
    T product = 0;
#pragma omp simd reduction(+ : product)
    for (i64 j = 0; j < width; ++j) product += (weighted ? g[j] * w[j] : g[j]) * (x[j] * rstd);
    const T mean_dn = product / static_cast<T>(width);
    T* out = args.grad_x + row * width;
#pragma omp simd
    for (i64 j = 0; j < width; ++j) out[j] = rstd * ((weighted ? g[j] * w[j] : g[j]) - x[j] * rstd * mean_dn);
}

template <class T>
void backward_rms(const LayerNormBackward<T>& args, i64 begin, i64 end) {
    const i64 width = args.width;
    for (i64 row = begin; row < end; ++row) {
        if (args.grad_x && args.weight) grad_input_rms<T, true>(args, row);
        if (args.grad_x && !args.weight) grad_input_rms<T, false>(args, row);
        const T *x = args.x + row * width, *g = args.grad + row * width;
        const T rstd = args.rstd[row];
        if (T* grad_weight = args.grad_weight) {
#pragma omp simd
            for (i64 j = 0; j < width; ++j) grad_weight[j] += g[j] * (x[j] * rstd);
        }
    }
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
