// Kernels of batch normalisation: arrays of (outer, channels, inner), where each channel is normalised by itself.
#pragma once

#include <cstdint>

#include "tapir/core/dtype.h"
#include "tapir/ops/cpu/isa.h"
#include "tapir/ops/kernels/gpu.h"

namespace tapir::kernels {

template <class T>
struct ChannelSums {
    std::int64_t channels, inner;
    const T *x, *g;          // g: null for sums of x alone
    const T *shift, *scale;  // [channels]
    double *first, *second;  // [channels], added to: sums of x - shift and of its square; or of g and of g * (x - shift) * scale
    T* scratch;              // [2 * channels]
};
/// y = (x - shift) * a + b, or g * c + (x - shift) * scale * a + b.
template <class T>
struct ChannelMap {
    std::int64_t channels, inner;
    const T *x, *g;                      // g: may be null
    const T *shift, *scale, *a, *b, *c;  // [channels]; scale, c: null without g
    T* y;
};

/// A number for each channel, `stride` elements apart; null data: there are none.
struct ChannelArray {
    void* data;
    DType dtype;  // floating; float64 only beside float64
    std::int64_t stride;
};
/// Normalises all channels on a GPU: x and y have one floating dtype; stats the computed one, float32 for 16-bit floats.
struct BatchNormArgs {
    DType dtype;
    std::int64_t outer, channels, inner;  // not 0
    double eps, momentum;
    bool training;  // uses x's statistics, and the running ones follow these; else uses the running ones
    const void* x;
    void* y;
    void* stats;  // [2 * channels], written: mean and 1 / sqrt(variance + eps)
    ChannelArray weight, bias, running_mean, running_var;
};
struct BatchNormBackwardArgs {
    DType dtype;
    std::int64_t outer, channels, inner;  // not 0
    bool training;
    const void *grad, *x, *stats;
    ChannelArray weight;
    void* grad_x;                         // null: not wanted
    ChannelArray grad_weight, grad_bias;  // null: not wanted
};

}  // namespace tapir::kernels

// These compute the rows [begin, end) of the outer dimension.
TAPIR_CPU_KERNEL(channel_sums_f32, void(const tapir::kernels::ChannelSums<float>& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(channel_sums_f64, void(const tapir::kernels::ChannelSums<double>& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(channel_map_f32, void(const tapir::kernels::ChannelMap<float>& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(channel_map_f64, void(const tapir::kernels::ChannelMap<double>& args, std::int64_t begin, std::int64_t end))
TAPIR_GPU_KERNEL(batch_norm, void(const tapir::kernels::BatchNormArgs& args))
TAPIR_GPU_KERNEL(batch_norm_backward, void(const tapir::kernels::BatchNormBackwardArgs& args))

namespace tapir::kernels {
inline void channel_sums(const ChannelSums<float>& a, std::int64_t begin, std::int64_t end) { channel_sums_f32(a, begin, end); }
inline void channel_sums(const ChannelSums<double>& a, std::int64_t begin, std::int64_t end) { channel_sums_f64(a, begin, end); }
inline void channel_map(const ChannelMap<float>& a, std::int64_t begin, std::int64_t end) { channel_map_f32(a, begin, end); }
inline void channel_map(const ChannelMap<double>& a, std::int64_t begin, std::int64_t end) { channel_map_f64(a, begin, end); }
}  // namespace tapir::kernels
