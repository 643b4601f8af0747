#include "tapir/ops/join/fused_join_kernels.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

using i64 = std::int64_t;

// The numbers are those of channel_map and of relu.
template <bool kHasNorm, bool kHasRelu>
void join_rows(const JoinedChannels& j, i64 begin, i64 end) {
    constexpr i64 floats_at_once = 4096;  // a few rows of the result at a time from all parts, so that it is written in order
    const i64 rows_at_once = j.total < floats_at_once ? floats_at_once / j.total : 1;
    for (i64 first = begin; first < end; first += rows_at_once) {
        const i64 last = first + rows_at_once < end ? first + rows_at_once : end;
        i64 start = 0;
        for (int p = 0; p < j.count; ++p) {
            const i64 channels = j.parts[p].channels;
            const float *shift = nullptr, *a = nullptr, *b = nullptr;
            if constexpr (kHasNorm) shift = j.shift + start, a = j.a + start, b = j.b + start;
            for (i64 row = first; row < last; ++row) {
                const float* x = j.parts[p].data + row * channels;
                float* y = j.y + row * j.total + start;
#pragma omp simd
                for (i64 c = 0; c < channels; ++c) {
                    float v = x[c];
                    if constexpr (kHasNorm) v = (v - shift[c]) * a[c] + b[c];
                    y[c] = kHasRelu && v < 0 ? 0 : v;
                }
            }
            start += channels;
        }
    }
}

}  // namespace

void joined_channels(const JoinedChannels& j, i64 begin, i64 end) {
    if (j.shift) {
        j.has_relu ? join_rows<true, true>(j, begin, end) : join_rows<true, false>(j, begin, end);
    } else {
        j.has_relu ? join_rows<false, true>(j, begin, end) : join_rows<false, false>(j, begin, end);
    }
}

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
