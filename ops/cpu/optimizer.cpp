// The update rules of the optimizers.
#include "tapir/ops/kernels/optimizer.h"

#include "tapir/ops/cpu/math_impl.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

using i64 = std::int64_t;

template <class T>
void sgd(const SgdStep& s, i64 n, T* p, const T* g, T* buffer) {
    const T lr = static_cast<T>(s.lr), momentum = static_cast<T>(s.momentum), decay = static_cast<T>(s.weight_decay);
    const T keep = static_cast<T>(1 - s.dampening);
    if (!buffer) {
#pragma omp simd
        for (i64 i = 0; i < n; ++i) p[i] -= lr * (g[i] + decay * p[i]);
    } else if (s.first) {
        const T factor = s.nesterov ? T(1) + momentum : T(1);
#pragma omp simd
        for (i64 i = 0; i < n; ++i) {
            buffer[i] = g[i] + decay * p[i];
            p[i] -= lr * (factor * buffer[i]);
        }
    } else if (s.nesterov) {
#pragma omp simd
        for (i64 i = 0; i < n; ++i) {
            const T d = g[i] + decay * p[i];
            buffer[i] = momentum * buffer[i] + keep * d;
            p[i] -= lr * (d + momentum * buffer[i]);
        }
    } else {
#pragma omp simd
        for (i64 i = 0; i < n; ++i) {
            buffer[i] = momentum * buffer[i] + keep * (g[i] + decay * p[i]);
            p[i] -= lr * buffer[i];
        }
    }
}

template <class T>
void adagrad(const AdagradStep& s, i64 n, T* p, const T* g, T* sum) {
    const T lr = static_cast<T>(s.lr), decay = static_cast<T>(s.weight_decay), eps = static_cast<T>(s.eps);
#pragma omp simd
    for (i64 i = 0; i < n; ++i) {
        const T d = g[i] + decay * p[i];
        sum[i] += d * d;
        p[i] -= lr * d / (sqrt(sum[i]) + eps);
    }
}

template <class T, bool amsgrad>
void adam(const AdamStep& s, i64 n, T* p, const T* g, T* m, T* v, [[maybe_unused]] T* max_v) {
    const T size = static_cast<T>(s.step_size), rest1 = static_cast<T>(1 - s.beta1), beta2 = static_cast<T>(s.beta2);
    const T rest2 = static_cast<T>(1 - s.beta2), eps = static_cast<T>(s.eps), scale = static_cast<T>(s.v_scale);
    const T weight_decay = static_cast<T>(s.weight_decay), decay = static_cast<T>(s.decay);
#pragma omp simd
    for (i64 i = 0; i < n; ++i) {
        const T d = g[i] + weight_decay * p[i];
        m[i] += rest1 * (d - m[i]);
        v[i] = beta2 * v[i] + rest2 * d * d;
        T largest = v[i];
        if constexpr (amsgrad) {
            largest = max_v[i] > largest ? max_v[i] : largest;
            max_v[i] = largest;
        }
        p[i] = decay * p[i] - size * m[i] / (sqrt(largest) * scale + eps);
    }
}

template <class T>
double squares(i64 n, const T* g) {
    constexpr i64 block = 4096;
    double total = 0;
    for (i64 begin = 0; begin < n; begin += block) {
        const i64 count = n - begin < block ? n - begin : block;
        T sum = 0;
#pragma omp simd reduction(+ : sum)
        for (i64 i = 0; i < count; ++i) sum += g[begin + i] * g[begin + i];
        // Squares beyond the float range are summed as doubles.
        if constexpr (sizeof(T) == 4) {
            if (!is_finite(sum)) {
                double wide = 0;
#pragma omp simd reduction(+ : wide)
                for (i64 i = 0; i < count; ++i) wide += static_cast<double>(g[begin + i]) * static_cast<double>(g[begin + i]);
                total += wide;
                continue;
            }
        }
        total += static_cast<double>(sum);
    }
    return total;
}

template <class T>
void multiply(i64 n, T* g, double factor) {
    const T f = static_cast<T>(factor);
#pragma omp simd
    for (i64 i = 0; i < n; ++i) g[i] *= f;
}

template <class T>
void clamp(i64 n, T* g, double bound) {
    const T b = static_cast<T>(bound);
#pragma omp simd
    for (i64 i = 0; i < n; ++i) {
        const T low = g[i] < -b ? -b : g[i];  // nan stays
        g[i] = low > b ? b : low;
    }
}

}  // namespace

void sgd_step_f32(const SgdStep& s, i64 n, float* p, const float* g, float* buffer) { sgd(s, n, p, g, buffer); }
void sgd_step_f64(const SgdStep& s, i64 n, double* p, const double* g, double* buffer) { sgd(s, n, p, g, buffer); }
void adagrad_step_f32(const AdagradStep& s, i64 n, float* p, const float* g, float* sum) { adagrad(s, n, p, g, sum); }
void adagrad_step_f64(const AdagradStep& s, i64 n, double* p, const double* g, double* sum) { adagrad(s, n, p, g, sum); }
void adam_step_f32(const AdamStep& s, i64 n, float* p, const float* g, float* m, float* v, float* max_v) {
    max_v ? adam<float, true>(s, n, p, g, m, v, max_v) : adam<float, false>(s, n, p, g, m, v, max_v);
}
void adam_step_f64(const AdamStep& s, i64 n, double* p, const double* g, double* m, double* v, double* max_v) {
    max_v ? adam<double, true>(s, n, p, g, m, v, max_v) : adam<double, false>(s, n, p, g, m, v, max_v);
}
double sum_squares_f32(i64 n, const float* g) { return squares(n, g); }
double sum_squares_f64(i64 n, const double* g) { return squares(n, g); }
void scale_f32(i64 n, float* g, double factor) { multiply(n, g, factor); }
void scale_f64(i64 n, double* g, double factor) { multiply(n, g, factor); }
void limit_f32(i64 n, float* g, double bound) { clamp(n, g, bound); }
void limit_f64(i64 n, double* g, double bound) { clamp(n, g, bound); }

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
