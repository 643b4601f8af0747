// Kernels of batch normalisation on the CPU: arrays of (outer, channels, inner), of which each channel is normalised for itself.
#pragma once

#include <cstdint>

#include "tapir/ops/cpu/isa.h"

namespace tapir::kernels {

template <class T>
struct ChannelSums {
    std::int64_t channels, inner;
    const T *x, *g;            // g: null for sums of x alone
    const T *shift, *scale;    // [channels]
    double *first, *second;    // [channels], added to: sums of x - shift and of its square; or of g and of g * (x - shift) * scale
    T* scratch;                // [2 * channels]
};
/// y = x * a + b, or g * c + x * a + b.
template <class T>
struct ChannelMap {
    std::int64_t channels, inner;
    const T *x, *g;        // g: may be null
    const T *a, *b, *c;    // [channels]
    T* y;
};

}  // namespace tapir::kernels

// For the rows [begin, end) of the outer dimension.
TAPIR_CPU_KERNEL(channel_sums_f32, void(const tapir::kernels::ChannelSums<float>& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(channel_sums_f64, void(const tapir::kernels::ChannelSums<double>& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(channel_map_f32, void(const tapir::kernels::ChannelMap<float>& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(channel_map_f64, void(const tapir::kernels::ChannelMap<double>& args, std::int64_t begin, std::int64_t end))

namespace tapir::kernels {
inline void channel_sums(const ChannelSums<float>& a, std::int64_t begin, std::int64_t end) { channel_sums_f32(a, begin, end); }
inline void channel_sums(const ChannelSums<double>& a, std::int64_t begin, std::int64_t end) { channel_sums_f64(a, begin, end); }
inline void channel_map(const ChannelMap<float>& a, std::int64_t begin, std::int64_t end) { channel_map_f32(a, begin, end); }
inline void channel_map(const ChannelMap<double>& a, std::int64_t begin, std::int64_t end) { channel_map_f64(a, begin, end); }
}  // namespace tapir::kernels
