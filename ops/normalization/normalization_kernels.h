// Kernels of layer normalisation: rows of `width` elements, each normalised by itself.
#pragma once

#include <cstdint>

#include "tapir/core/dtype.h"
#include "tapir/ops/cpu/isa.h"
#include "tapir/ops/kernels/gpu.h"

namespace tapir::kernels {

template <class T>
struct LayerNorm {
    std::int64_t width;
    double eps;
    const T* x;
    const T *weight, *bias;  // [width] or null
    T* y;
    Kept<T>* mean;  // [rows], from each row's first element on; null: not wanted, and rstd neither
    Kept<T>* rstd;
};

template <class T>
struct LayerNormBackward {
    std::int64_t width;
    const T *grad, *x, *weight, *mean, *rstd;  // weight may be null
    T* grad_x;                                 // null: not wanted
    double *grad_weight, *grad_bias;           // [width], added to; null: not wanted
};

/// All rows, for a GPU: arrays have one floating dtype; mean and rstd the computed one, float32 for 16-bit floats.
struct LayerNormBackwardArgs {
    DType dtype;
    std::int64_t rows, width;  // not 0
    const void *grad, *x, *weight, *mean, *rstd;
    void *grad_x, *grad_weight, *grad_bias;  // null: not wanted
};

}  // namespace tapir::kernels

TAPIR_TYPED_KERNEL(layer_norm, LayerNorm)
TAPIR_CPU_KERNEL(layer_norm_backward_f32, void(const tapir::kernels::LayerNormBackward<float>& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(layer_norm_backward_f64, void(const tapir::kernels::LayerNormBackward<double>& args, std::int64_t begin, std::int64_t end))
// As above without the mean: `mean` and the bias are not read or written, rstd is 1 / sqrt(mean(x^2) + eps), always wanted.
TAPIR_CPU_KERNEL(rms_norm_f32, void(const tapir::kernels::LayerNorm<float>& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(rms_norm_f64, void(const tapir::kernels::LayerNorm<double>& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(rms_norm_backward_f32, void(const tapir::kernels::LayerNormBackward<float>& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(rms_norm_backward_f64, void(const tapir::kernels::LayerNormBackward<double>& args, std::int64_t begin, std::int64_t end))
TAPIR_GPU_KERNEL(layer_norm_backward, void(const tapir::kernels::LayerNormBackwardArgs& args))

namespace tapir::kernels {
inline void layer_norm_backward(const LayerNormBackward<float>& a, std::int64_t begin, std::int64_t end) { layer_norm_backward_f32(a, begin, end); }
inline void layer_norm_backward(const LayerNormBackward<double>& a, std::int64_t begin, std::int64_t end) { layer_norm_backward_f64(a, begin, end); }
inline void rms_norm(const LayerNorm<float>& a, std::int64_t begin, std::int64_t end) { rms_norm_f32(a, begin, end); }
inline void rms_norm(const LayerNorm<double>& a, std::int64_t begin, std::int64_t end) { rms_norm_f64(a, begin, end); }
inline void rms_norm_backward(const LayerNormBackward<float>& a, std::int64_t begin, std::int64_t end) { rms_norm_backward_f32(a, begin, end); }
inline void rms_norm_backward(const LayerNormBackward<double>& a, std::int64_t begin, std::int64_t end) { rms_norm_backward_f64(a, begin, end); }
}  // namespace tapir::kernels
