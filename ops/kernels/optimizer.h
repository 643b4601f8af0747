// The update rules of the optimizers, each as one pass over a parameter's elements, in place.
#pragma once

#include <cstdint>
#include <vector>

#include "tapir/ops/cpu/isa.h"
#include "tapir/ops/kernels/gpu.h"

namespace tapir::kernels {

/// g += weight_decay p;  buffer = momentum buffer + (1 - dampening) g (or g, the first time);
/// p -= lr (nesterov ? g + momentum buffer : buffer). Without momentum p -= lr g.
struct SgdStep {
    double lr, momentum, dampening, weight_decay;
    bool nesterov, first;
};

/// g += weight_decay p;  sum += g^2;  p -= lr g / (sqrt(sum) + eps)
struct AdagradStep {
    double lr, weight_decay, eps;
};

/// decay: p *= decay before, weight_decay: g += weight_decay p;  m += (1 - beta1) (g - m);  v = beta2 v + (1 - beta2) g^2;
/// p -= step_size m / (sqrt(max_v or v) * v_scale + eps)
struct AdamStep {
    double step_size, beta1, beta2, eps, weight_decay, decay, v_scale;
};

/// Several tensors' share of a step on a CUDA device. All of one dtype, float32 or float64.
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
    static constexpr int most = 24;  // which the parameters of a kernel have room for
    DType dtype;
    int count = 0;
    Entry entry[most];
};

/// One of many gradients that are clipped or unscaled together on a CUDA device.
struct GpuGradient {
    DType dtype;  // a floating one
    std::int64_t n;
    const void* from;
    void* to;  // where the changed elements go; may be `from`
};

/// Row order[i] of values belongs to index[i], ascending: of equal ones the first gets the sum, in order, the others zeros.
struct RowSums {
    DType dtype;  // float32 or float64
    std::int64_t rows, width;
    const std::int64_t *index, *order;
    const void* values;
    void* sums;  // (rows, width)
};

}  // namespace tapir::kernels

TAPIR_GPU_KERNEL(sgd_steps, void(const tapir::kernels::GpuSteps<tapir::kernels::SgdStep>& steps))
TAPIR_GPU_KERNEL(adagrad_steps, void(const tapir::kernels::GpuSteps<tapir::kernels::AdagradStep>& steps))
TAPIR_GPU_KERNEL(adam_steps, void(const tapir::kernels::GpuSteps<tapir::kernels::AdamStep>& steps))
TAPIR_GPU_KERNEL(row_sums, void(const tapir::kernels::RowSums& args))
/// The p-norm of all of them as one vector.
TAPIR_GPU_KERNEL(gradient_norm, void(const std::vector<tapir::kernels::GpuGradient>& gradients, double p, double* norm))
/// Times max_norm / (norm + 1e-6) where that is below 1.
TAPIR_GPU_KERNEL(clip_gradients,
                 void(const std::vector<tapir::kernels::GpuGradient>& gradients, const double* norm, double max_norm))
/// Times factor; *not_finite becomes true where a product is infinite or nan. It may be null.
TAPIR_GPU_KERNEL(scale_gradients,
                 void(const std::vector<tapir::kernels::GpuGradient>& gradients, double factor, bool* not_finite))
/// Limits them to [-bound, bound].
TAPIR_GPU_KERNEL(limit_gradients, void(const std::vector<tapir::kernels::GpuGradient>& gradients, double bound))

// n elements each. `buffer` and `max_v` may be null where the rule does not use them.
TAPIR_CPU_KERNEL(sgd_step_f32, void(const tapir::kernels::SgdStep& step, std::int64_t n, float* p, const float* g, float* buffer))
TAPIR_CPU_KERNEL(sgd_step_f64, void(const tapir::kernels::SgdStep& step, std::int64_t n, double* p, const double* g, double* buffer))
TAPIR_CPU_KERNEL(adagrad_step_f32,
                 void(const tapir::kernels::AdagradStep& step, std::int64_t n, float* p, const float* g, float* sum))
TAPIR_CPU_KERNEL(adagrad_step_f64,
                 void(const tapir::kernels::AdagradStep& step, std::int64_t n, double* p, const double* g, double* sum))
TAPIR_CPU_KERNEL(adam_step_f32, void(const tapir::kernels::AdamStep& step, std::int64_t n, float* p, const float* g, float* m,
                                     float* v, float* max_v))
TAPIR_CPU_KERNEL(adam_step_f64, void(const tapir::kernels::AdamStep& step, std::int64_t n, double* p, const double* g,
                                     double* m, double* v, double* max_v))
/// Of a gradient: the sum of squares (accumulated in double every few thousand elements), scaling, and limiting.
TAPIR_CPU_KERNEL(sum_squares_f32, double(std::int64_t n, const float* g))
TAPIR_CPU_KERNEL(sum_squares_f64, double(std::int64_t n, const double* g))
TAPIR_CPU_KERNEL(scale_f32, void(std::int64_t n, float* g, double factor))
TAPIR_CPU_KERNEL(scale_f64, void(std::int64_t n, double* g, double factor))
TAPIR_CPU_KERNEL(limit_f32, void(std::int64_t n, float* g, double bound))
TAPIR_CPU_KERNEL(limit_f64, void(std::int64_t n, double* g, double bound))

namespace tapir::kernels {
inline void launch_steps(const GpuSteps<SgdStep>& s) { gpu::sgd_steps(s); }
inline void launch_steps(const GpuSteps<AdagradStep>& s) { gpu::adagrad_steps(s); }
inline void launch_steps(const GpuSteps<AdamStep>& s) { gpu::adam_steps(s); }
inline void step(const SgdStep& s, std::int64_t n, float* p, const float* g, float* const* buffers) {
    sgd_step_f32(s, n, p, g, buffers[0]);
}
inline void step(const SgdStep& s, std::int64_t n, double* p, const double* g, double* const* buffers) {
    sgd_step_f64(s, n, p, g, buffers[0]);
}
inline void step(const AdagradStep& s, std::int64_t n, float* p, const float* g, float* const* buffers) {
    adagrad_step_f32(s, n, p, g, buffers[0]);
}
inline void step(const AdagradStep& s, std::int64_t n, double* p, const double* g, double* const* buffers) {
    adagrad_step_f64(s, n, p, g, buffers[0]);
}
inline void step(const AdamStep& s, std::int64_t n, float* p, const float* g, float* const* buffers) {
    adam_step_f32(s, n, p, g, buffers[0], buffers[1], buffers[2]);
}
inline void step(const AdamStep& s, std::int64_t n, double* p, const double* g, double* const* buffers) {
    adam_step_f64(s, n, p, g, buffers[0], buffers[1], buffers[2]);
}
inline double sum_squares(std::int64_t n, const float* g) { return sum_squares_f32(n, g); }
inline double sum_squares(std::int64_t n, const double* g) { return sum_squares_f64(n, g); }
inline void scale(std::int64_t n, float* g, double factor) { scale_f32(n, g, factor); }
inline void scale(std::int64_t n, double* g, double factor) { scale_f64(n, g, factor); }
inline void limit(std::int64_t n, float* g, double bound) { limit_f32(n, g, bound); }
inline void limit(std::int64_t n, double* g, double bound) { limit_f64(n, g, bound); }
}  // namespace tapir::kernels
