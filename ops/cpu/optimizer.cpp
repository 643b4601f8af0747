// The update rules of the optimizers.
#include "tapir/ops/kernels/optimizer.h"

#include "tapir/ops/cpu/math_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/reduce/reduce_simd_cpu.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

#define TAPIR_RULE [[gnu::always_inline]] inline
#include "tapir/ops/kernels/optimizer_rules.def"
#undef TAPIR_RULE

// has: the existing buffers.
template <unsigned has, class Step, class T>
void run(const Step& step, i64 n, T* p, const T* g, T* const* buffers) {
    const Step s = step;  // a copy, which no write through p can change
    T *const b0 = buffers[0], *const b1 = buffers[1], *const b2 = buffers[2];
#pragma omp simd
    for (i64 i = 0; i < n; ++i) {
        T b[3] = {};
        if constexpr (has & 1) b[0] = b0[i];
        if constexpr (has & 2) b[1] = b1[i];
        if constexpr (has & 4) b[2] = b2[i];
        update(s, p[i], g[i], b, has);
        if constexpr (has & 1) b0[i] = b[0];
        if constexpr (has & 2) b1[i] = b[1];
        if constexpr (has & 4) b2[i] = b[2];
    }
}

// Chooses the kernel: checks for each buffer that the step may have whether it exists.
template <class Step, unsigned has = Step::always, unsigned open = Step::sometimes, class T>
void choose(const Step& step, i64 n, T* p, const T* g, T* const* buffers) {
    if constexpr (open == 0) {
        run<has>(step, n, p, g, buffers);
    } else {
        constexpr int next = __builtin_ctz(open);
        constexpr unsigned bit = 1u << next;
        if (buffers[next]) {
            choose<Step, has | bit, open & ~bit>(step, n, p, g, buffers);
        } else {
            choose<Step, has, open & ~bit>(step, n, p, g, buffers);
        }
    }
}

template <class T>
double squares(i64 n, const T* g) {
    const Wide<T> sum = sum_of<T>(n, [&](auto at) __attribute__((always_inline)) { return at(g) * at(g); });
    // Squares above or below the float range are summed as doubles.
    if constexpr (sizeof(T) == 4) {
        if (!(sum <= __FLT_MAX__ && sum >= __FLT_MIN__)) {
            double wide = 0;
#pragma omp simd reduction(+ : wide)
            for (i64 i = 0; i < n; ++i) wide += static_cast<double>(g[i]) * static_cast<double>(g[i]);
            return wide;
        }
    }
    return sum;
}

template <class T>
double largest(i64 n, const T* g) {
    T most = 0;
    int nans = 0;
#pragma omp simd reduction(max : most) reduction(| : nans)
    for (i64 i = 0; i < n; ++i) {
        const T a = g[i] < 0 ? -g[i] : g[i];
        most = a > most ? a : most;
        nans |= g[i] != g[i] ? 1 : 0;
    }
    return nans ? __builtin_nan("") : static_cast<double>(most);
}

template <class T>
double powers(i64 n, const T* g, double p) {
    if (p == 2) return squares(n, g);
    if (p == __builtin_inf()) return largest(n, g);
    double sum = 0;
    if (p == 1) {
#pragma omp simd reduction(+ : sum)
        for (i64 i = 0; i < n; ++i) sum += static_cast<double>(g[i] < 0 ? -g[i] : g[i]);
    } else {
#pragma omp simd reduction(+ : sum)
        for (i64 i = 0; i < n; ++i) sum += pow(static_cast<double>(g[i] < 0 ? -g[i] : g[i]), p);
    }
    return sum;
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

#define TAPIR_STEP_KERNELS(Step, name)                                                                                           \
    void name##_step_f32(const Step& s, i64 n, float* p, const float* g, float* const* buffers) { choose(s, n, p, g, buffers); } \
    void name##_step_f64(const Step& s, i64 n, double* p, const double* g, double* const* buffers) { choose(s, n, p, g, buffers); }
TAPIR_STEPS(TAPIR_STEP_KERNELS)
#undef TAPIR_STEP_KERNELS
double power_sum_f32(i64 n, const float* g, double p) { return powers(n, g, p); }
double power_sum_f64(i64 n, const double* g, double p) { return powers(n, g, p); }
void scale_f32(i64 n, float* g, double factor) { multiply(n, g, factor); }
void scale_f64(i64 n, double* g, double factor) { multiply(n, g, factor); }
void limit_f32(i64 n, float* g, double bound) { clamp(n, g, bound); }
void limit_f64(i64 n, double* g, double bound) { clamp(n, g, bound); }

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
