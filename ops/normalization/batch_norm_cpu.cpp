// Sums per channel, and maps that differ per channel, for channels that are last and for those that are not.
//
// Sums of channels start from a number near their mean, so that large numbers that hardly differ keep their digits;
// maps subtract that number first, too. For sums see Note [Accuracy of sums].
#include "tapir/ops/normalization/batch_norm_kernels.h"

#include "tapir/ops/reduce/reduce_simd_cpu.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

template <class T, bool kHasGradient>
void sums_of_last(const ChannelSums<T>& s, i64 begin, i64 end) {
    const i64 channels = s.channels;
    T *first = s.scratch, *second = s.scratch + channels;
    const T *shift = s.shift, *scale = s.scale;
    for (i64 block = begin; block < end; block += 2 * kSumRows) {
        for (i64 c = 0; c < 2 * channels; ++c) first[c] = 0;
        const i64 last = block + 2 * kSumRows < end ? block + 2 * kSumRows : end;
        for (i64 row = block; row < last; ++row) {
            const T *x = s.x + row * channels, *g = kHasGradient ? s.g + row * channels : nullptr;
#pragma omp simd
            for (i64 c = 0; c < channels; ++c) {
                const T d = x[c] - shift[c];
                if constexpr (kHasGradient) {
                    first[c] += g[c];
                    second[c] += g[c] * (d * scale[c]);
                } else {
                    first[c] += d;
                    second[c] += d * d;
                }
            }
        }
        for (i64 c = 0; c < channels; ++c) {
            s.first[c] += static_cast<double>(first[c]);
            s.second[c] += static_cast<double>(second[c]);
        }
    }
}

template <class T, bool kHasGradient>
void sums_of_rows(const ChannelSums<T>& s, i64 begin, i64 end) {
    for (i64 row = begin * s.channels; row < end * s.channels; ++row) {
        const i64 c = row % s.channels;
        const T shift = s.shift[c], scale = kHasGradient ? s.scale[c] : T(1);
        const T *x = s.x + row * s.inner, *g = kHasGradient ? s.g + row * s.inner : nullptr;
        const Sums<T> sums = sums_of<T>(s.inner, [&](auto at) __attribute__((always_inline)) {
            fetch_ahead(x + at.i);
            const Vector<T> d = at(x) - shift;
            if constexpr (kHasGradient) {
                const Vector<T> by = at(g);
                return Terms<T>{by, by * (d * scale)};
            } else {
                return Terms<T>{d, d * d};
            }
        });
        s.first[c] += sums.first;
        s.second[c] += sums.second;
    }
}

template <class T>
void sums(const ChannelSums<T>& s, i64 begin, i64 end) {
    if (s.inner == 1) {
        s.g ? sums_of_last<T, true>(s, begin, end) : sums_of_last<T, false>(s, begin, end);
    } else {
        s.g ? sums_of_rows<T, true>(s, begin, end) : sums_of_rows<T, false>(s, begin, end);
    }
}

template <class T, bool kHasGradient>
void map_rows(const ChannelMap<T>& m, i64 begin, i64 end) {
    if (m.inner == 1) {
        const T *shift = m.shift, *scale = m.scale, *a = m.a, *b = m.b, *w = m.c;
        for (i64 row = begin; row < end; ++row) {
            const T *x = m.x + row * m.channels, *g = kHasGradient ? m.g + row * m.channels : nullptr;
            T* y = m.y + row * m.channels;
#pragma omp simd
            for (i64 c = 0; c < m.channels; ++c) {
                if constexpr (kHasGradient) {
                    y[c] = g[c] * w[c] + ((x[c] - shift[c]) * scale[c] * a[c] + b[c]);
                } else {
                    y[c] = (x[c] - shift[c]) * a[c] + b[c];
                }
            }
        }
        return;
    }
    for (i64 row = begin * m.channels; row < end * m.channels; ++row) {
        const i64 c = row % m.channels;
        const T shift = m.shift[c], a = m.a[c], b = m.b[c], scale = kHasGradient ? m.scale[c] : T(0), w = kHasGradient ? m.c[c] : T(0);
        const T *x = m.x + row * m.inner, *g = kHasGradient ? m.g + row * m.inner : nullptr;
        T* y = m.y + row * m.inner;
#pragma omp simd
        for (i64 i = 0; i < m.inner; ++i) {
            if constexpr (kHasGradient) {
                y[i] = g[i] * w + ((x[i] - shift) * scale * a + b);
            } else {
                y[i] = (x[i] - shift) * a + b;
            }
        }
    }
}

template <class T>
void map(const ChannelMap<T>& m, i64 begin, i64 end) {
    m.g ? map_rows<T, true>(m, begin, end) : map_rows<T, false>(m, begin, end);
}

}  // namespace

void channel_sums_f32(const ChannelSums<float>& args, i64 begin, i64 end) { sums(args, begin, end); }
void channel_sums_f64(const ChannelSums<double>& args, i64 begin, i64 end) { sums(args, begin, end); }
void channel_map_f32(const ChannelMap<float>& args, i64 begin, i64 end) { map(args, begin, end); }
void channel_map_f64(const ChannelMap<double>& args, i64 begin, i64 end) { map(args, begin, end); }

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
