// The update rules of the optimizers, each as one in-place pass over a parameter's elements.
#pragma once

#include <cstdint>
#include <vector>

#include "tapir/ops/cpu/isa.h"
#include "tapir/ops/kernels/gpu.h"

namespace tapir::kernels {

// A step's numbers for one parameter. Its arithmetic, shared by CPU and CUDA, is in optimizer_rules.def, which also says what
// the buffers are; those whose bits are in `always` must exist, those in `sometimes` may. A further optimizer needs a
// struct here, its name in the list below, and its rule.

/// g += weight_decay p;  buffer = momentum buffer + (1 - dampening) g (or g, the first time);
/// p -= lr (nesterov ? g + momentum buffer : buffer). Without momentum p -= lr g.
struct SgdStep {
    static constexpr unsigned always = 0, sometimes = 1;
    double lr, momentum, dampening, weight_decay;
    bool nesterov, first;
};

/// g += weight_decay p;  sum += g^2;  p -= lr g / (sqrt(sum) + eps)
struct AdagradStep {
    static constexpr unsigned always = 1, sometimes = 0;
    double lr, weight_decay, eps;
};

/// sum += g;  squares += g^2;  p = -lr sign(sum) max(|sum| - l1, 0) / (sqrt(squares) + lr l2); l1 and l2 times the step count
struct AdagradDAStep {
    static constexpr unsigned always = 3, sometimes = 0;
    double lr, l1, l2;
};

/// g += weight_decay p;  v = rho v + (1 - rho) g^2;  d = g sqrt(u + eps) / sqrt(v + eps);  u = rho u + (1 - rho) d^2;
/// p -= lr d
struct AdadeltaStep {
    static constexpr unsigned always = 3, sometimes = 0;
    double lr, rho, eps, weight_decay;
};

/// g += weight_decay p;  v = alpha v + (1 - alpha) g^2;  with a mean: mean = alpha mean + (1 - alpha) g, and v - mean^2 below;
/// d = g / (sqrt(v) + eps);  with a buffer: buffer = momentum buffer + d;  p -= lr (buffer or d)
struct RMSpropStep {
    static constexpr unsigned always = 1, sometimes = 6;  // v, buffer, mean
    double lr, alpha, eps, weight_decay, momentum;
};

/// decay: p *= decay before, weight_decay: g += weight_decay p;  m += (1 - beta1) (g - m);  v = beta2 v + (1 - beta2) g^2;
/// p -= step_size m / (sqrt(max_v or v) * v_scale + eps)
struct AdamStep {
    static constexpr unsigned always = 3, sometimes = 4;
    double step_size, beta1, beta2, eps, weight_decay, decay, v_scale;
};

/// g += weight_decay p;  m = beta1 m + (1 - beta1) g;  u = max(beta2 u, |g| + eps);  p -= step_size m / u
struct AdamaxStep {
    static constexpr unsigned always = 3, sometimes = 0;
    double step_size, beta1, beta2, eps, weight_decay;
};

/// m and v as Adam's;  p -= (g_size g + m_size m) / (sqrt(v) * v_scale + eps)
struct NAdamStep {
    static constexpr unsigned always = 3, sometimes = 0;
    double g_size, m_size, beta1, beta2, eps, weight_decay, v_scale;
};

/// m and v as Adam's;  p -= step_size m / (adaptive ? sqrt(v) + eps : 1)
struct RAdamStep {
    static constexpr unsigned always = 3, sometimes = 0;
    double step_size, beta1, beta2, eps, weight_decay;
    bool adaptive;
};

/// p = decay p - lr sign(beta1 m + (1 - beta1) g);  m = beta2 m + (1 - beta2) g
struct LionStep {
    static constexpr unsigned always = 1, sometimes = 0;
    double lr, beta1, beta2, decay;
};

/// s = limited(s (eta_plus where g prev > 0, eta_minus where it is < 0, and g = 0 there));  p -= s sign(g);  prev = g
struct RpropStep {
    static constexpr unsigned always = 3, sometimes = 0;  // prev, s
    double eta_minus, eta_plus, least, most;
};

/// g += weight_decay p;  p = decay p - eta g;  average += mu (p - average)
struct ASGDStep {
    static constexpr unsigned always = 1, sometimes = 0;
    double eta, decay, weight_decay, mu;
};

/// p += weight (g - p): p is a weighted average of the values g. With weight 1 p becomes g.
struct AverageStep {
    static constexpr unsigned always = 0, sometimes = 0;
    double weight;
};

/// The part of a step that covers several tensors on a CUDA device. All have one dtype, float32 or float64.
template <class Step>
struct GpuSteps {
    struct Entry {
        Step step;
        void* p;
        const void* g;
        void* buffers[3];
        std::int64_t n;            // elements of g
        const std::int64_t* rows;  // ascending; of equal ones the first counts. Null: g is dense
        std::int64_t width;        // of a row
    };
    static constexpr int most = 24;  // the parameters of a kernel have room for as many
    DType dtype;
    int count = 0;
    Entry entry[most];
};

/// One of many gradients that are clipped or unscaled together on a CUDA device.
struct GpuGradient {
    DType dtype;  // a floating one
    std::int64_t n;
    const void* from;
    void* to;  // the changed elements are written here; may be `from`
};

/// Row order[i] of values belongs to index[i], which ascends: the first of equal ones gets the sum, in order, the others zeros.
struct RowSums {
    DType dtype;  // float32 or float64
    std::int64_t rows, width;
    const std::int64_t *index, *order;
    const void* values;
    void* sums;  // (rows, width)
};

}  // namespace tapir::kernels

/// Lists all steps with the names of their kernels.
#define TAPIR_STEPS(ROW)          \
    ROW(SgdStep, sgd)             \
    ROW(AdagradStep, adagrad)     \
    ROW(AdagradDAStep, adagradda) \
    ROW(AdadeltaStep, adadelta)   \
    ROW(RMSpropStep, rmsprop)     \
    ROW(AdamStep, adam)           \
    ROW(AdamaxStep, adamax)       \
    ROW(NAdamStep, nadam)         \
    ROW(RAdamStep, radam)         \
    ROW(LionStep, lion)           \
    ROW(RpropStep, rprop)         \
    ROW(ASGDStep, asgd)           \
    ROW(AverageStep, average)

// n elements each; buffers: three, null where the rule has none.
#define TAPIR_STEP_KERNELS(Step, name)                                                                                                         \
    TAPIR_GPU_KERNEL(name##_steps, void(const tapir::kernels::GpuSteps<tapir::kernels::Step>& steps))                                          \
    TAPIR_CPU_KERNEL(name##_step_f32, void(const tapir::kernels::Step& step, std::int64_t n, float* p, const float* g, float* const* buffers)) \
    TAPIR_CPU_KERNEL(name##_step_f64, void(const tapir::kernels::Step& step, std::int64_t n, double* p, const double* g, double* const* buffers))
TAPIR_STEPS(TAPIR_STEP_KERNELS)
#undef TAPIR_STEP_KERNELS

TAPIR_GPU_KERNEL(row_sums, void(const tapir::kernels::RowSums& args))
/// Computes the p-norm of all gradients, taken as one vector.
TAPIR_GPU_KERNEL(gradient_norm, void(const std::vector<tapir::kernels::GpuGradient>& gradients, double p, double* norm))
/// Multiplies by max_norm / (norm + 1e-6) if that is below 1.
TAPIR_GPU_KERNEL(clip_gradients, void(const std::vector<tapir::kernels::GpuGradient>& gradients, const double* norm, double max_norm))
/// Multiplies by factor; *not_finite becomes true if a product is infinite or nan. It may be null.
TAPIR_GPU_KERNEL(scale_gradients, void(const std::vector<tapir::kernels::GpuGradient>& gradients, double factor, bool* not_finite))
/// Limits the gradients to [-bound, bound].
TAPIR_GPU_KERNEL(limit_gradients, void(const std::vector<tapir::kernels::GpuGradient>& gradients, double bound))

/// Computes for a gradient the sum of |g|^p, or the largest |g| for infinity (nan if one is), for a few thousand elements; scales; limits.
TAPIR_CPU_KERNEL(power_sum_f32, double(std::int64_t n, const float* g, double p))
TAPIR_CPU_KERNEL(power_sum_f64, double(std::int64_t n, const double* g, double p))
TAPIR_CPU_KERNEL(scale_f32, void(std::int64_t n, float* g, double factor))
TAPIR_CPU_KERNEL(scale_f64, void(std::int64_t n, double* g, double factor))
TAPIR_CPU_KERNEL(limit_f32, void(std::int64_t n, float* g, double bound))
TAPIR_CPU_KERNEL(limit_f64, void(std::int64_t n, double* g, double bound))

namespace tapir::kernels {
#define TAPIR_STEP_OVERLOADS(Step, name)                                                                                                       \
    inline void launch_steps(const GpuSteps<Step>& s) { gpu::name##_steps(s); }                                                                \
    inline void step(const Step& s, std::int64_t n, float* p, const float* g, float* const* buffers) { name##_step_f32(s, n, p, g, buffers); } \
    inline void step(const Step& s, std::int64_t n, double* p, const double* g, double* const* buffers) { name##_step_f64(s, n, p, g, buffers); }
TAPIR_STEPS(TAPIR_STEP_OVERLOADS)
#undef TAPIR_STEP_OVERLOADS
inline double power_sum(std::int64_t n, const float* g, double p) { return power_sum_f32(n, g, p); }
inline double power_sum(std::int64_t n, const double* g, double p) { return power_sum_f64(n, g, p); }
inline void scale(std::int64_t n, float* g, double factor) { scale_f32(n, g, factor); }
inline void scale(std::int64_t n, double* g, double factor) { scale_f64(n, g, factor); }
inline void limit(std::int64_t n, float* g, double bound) { limit_f32(n, g, bound); }
inline void limit(std::int64_t n, double* g, double bound) { limit_f64(n, g, bound); }
}  // namespace tapir::kernels
