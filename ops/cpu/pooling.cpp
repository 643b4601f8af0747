// Pooling of arrays whose channels are last: the innermost loops go along them.
#include "tapir/ops/kernels/pooling.h"

#include <limits>

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

using i64 = std::int64_t;

// Calls f(place, image, o0, o1, o2) for the places [begin, end) of (batch, sizes...).
template <class F>
void for_places(const i64 (&sizes)[3], i64 begin, i64 end, const F& f) {
    i64 rest = begin;
    i64 c = rest % sizes[2];
    rest /= sizes[2];
    i64 b = rest % sizes[1];
    rest /= sizes[1];
    i64 a = rest % sizes[0], image = rest / sizes[0];
    for (i64 place = begin; place < end; ++place) {
        f(place, image, a, b, c);
        if (++c < sizes[2]) continue;
        c = 0;
        if (++b < sizes[1]) continue;
        b = 0;
        if (++a < sizes[0]) continue;
        a = 0;
        ++image;
    }
}

// Calls f(place in a channel) for the elements of a window.
template <class T, class F>
void for_window(const Pool<T>& args, i64 a, i64 b, i64 c, const F& f) {
    const PoolDim(&dims)[3] = args.shape.dims;
    const PoolRange rows = args.ranges[0][a], columns = args.ranges[1][b], last = args.ranges[2][c];
    for (i64 i = rows.begin; i < rows.end; i += dims[0].dilation) {
        for (i64 j = columns.begin; j < columns.end; j += dims[1].dilation) {
            for (i64 k = last.begin; k < last.end; k += dims[2].dilation) f((i * dims[1].in + j) * dims[2].in + k);
        }
    }
}

// Calls f(place of a window in a channel, o0, o1, o2) for the windows that an element can be in.
template <class T, class F>
void for_windows_of(const Pool<T>& args, i64 i, i64 j, i64 k, const F& f) {
    const PoolDim(&dims)[3] = args.shape.dims;
    const PoolRange rows = args.ranges[0][i], columns = args.ranges[1][j], last = args.ranges[2][k];
    for (i64 a = rows.begin; a < rows.end; ++a) {
        for (i64 b = columns.begin; b < columns.end; ++b) {
            for (i64 c = last.begin; c < last.end; ++c) f((a * dims[1].out + b) * dims[2].out + c, a, b, c);
        }
    }
}

template <class T>
T divisor_of(const Pool<T>& args, i64 a, i64 b, i64 c) {
    if (!args.sizes[0]) return static_cast<T>(args.shape.divisor);
    return static_cast<T>(args.sizes[0][a] * args.sizes[1][b] * args.sizes[2][c]);
}

template <class T>
void max_of_windows(const Pool<T>& args, i64 begin, i64 end) {
    const PoolShape& s = args.shape;
    const i64 channels = s.channels;
    for_places({s.dims[0].out, s.dims[1].out, s.dims[2].out}, begin, end, [&](i64 place, i64 image, i64 a, i64 b, i64 c) {
        T* y = args.to + place * channels;
        std::int32_t* index = args.index + place * channels;
        const T* channel = args.from + image * s.in_volume() * channels;
        bool is_first = true;
        for_window(args, a, b, c, [&](i64 i) {
            const T* x = channel + i * channels;
            const auto here = static_cast<std::int32_t>(i);
            if (is_first) {
                is_first = false;
                for (i64 k = 0; k < channels; ++k) {
                    y[k] = x[k];
                    index[k] = here;
                }
                return;
            }
#pragma omp simd
            for (i64 k = 0; k < channels; ++k) {
                const bool is_larger = x[k] > y[k] || x[k] != x[k];
                y[k] = is_larger ? x[k] : y[k];
                index[k] = is_larger ? here : index[k];
            }
        });
        if (!is_first) return;
        for (i64 k = 0; k < channels; ++k) {
            y[k] = -std::numeric_limits<T>::infinity();
            index[k] = -1;
        }
    });
}

template <class T>
void max_to_elements(const Pool<T>& args, i64 begin, i64 end) {
    const PoolShape& s = args.shape;
    const i64 channels = s.channels, outputs = s.out_volume();
    for_places({s.dims[0].in, s.dims[1].in, s.dims[2].in}, begin, end, [&](i64 place, i64 image, i64 i, i64 j, i64 k) {
        T* to = args.to + place * channels;
        const auto here = static_cast<std::int32_t>(place - image * s.in_volume());
        for (i64 n = 0; n < channels; ++n) to[n] = 0;
        for_windows_of(args, i, j, k, [&](i64 window, i64, i64, i64) {
            const T* g = args.from + (image * outputs + window) * channels;
            const std::int32_t* index = args.index + (image * outputs + window) * channels;
#pragma omp simd
            for (i64 n = 0; n < channels; ++n) to[n] += index[n] == here ? g[n] : T(0);
        });
    });
}

template <class T>
void mean_of_windows(const Pool<T>& args, i64 begin, i64 end) {
    const PoolShape& s = args.shape;
    const i64 channels = s.channels;
    for_places({s.dims[0].out, s.dims[1].out, s.dims[2].out}, begin, end, [&](i64 place, i64 image, i64 a, i64 b, i64 c) {
        T* y = args.to + place * channels;
        const T* channel = args.from + image * s.in_volume() * channels;
        for (i64 k = 0; k < channels; ++k) y[k] = 0;
        for_window(args, a, b, c, [&](i64 i) {
            const T* x = channel + i * channels;
#pragma omp simd
            for (i64 k = 0; k < channels; ++k) y[k] += x[k];
        });
        const T divisor = divisor_of(args, a, b, c);
#pragma omp simd
        for (i64 k = 0; k < channels; ++k) y[k] /= divisor;
    });
}

template <class T>
void mean_to_elements(const Pool<T>& args, i64 begin, i64 end) {
    const PoolShape& s = args.shape;
    const i64 channels = s.channels, outputs = s.out_volume();
    for_places({s.dims[0].in, s.dims[1].in, s.dims[2].in}, begin, end, [&](i64 place, i64 image, i64 i, i64 j, i64 k) {
        T* to = args.to + place * channels;
        for (i64 n = 0; n < channels; ++n) to[n] = 0;
        for_windows_of(args, i, j, k, [&](i64 window, i64 a, i64 b, i64 c) {
            const T* g = args.from + (image * outputs + window) * channels;
            const T divisor = divisor_of(args, a, b, c);
#pragma omp simd
            for (i64 n = 0; n < channels; ++n) to[n] += g[n] / divisor;
        });
    });
}

}  // namespace

void max_pool_f32(const Pool<float>& args, i64 begin, i64 end) { max_of_windows(args, begin, end); }
void max_pool_f64(const Pool<double>& args, i64 begin, i64 end) { max_of_windows(args, begin, end); }
void max_pool_backward_f32(const Pool<float>& args, i64 begin, i64 end) { max_to_elements(args, begin, end); }
void max_pool_backward_f64(const Pool<double>& args, i64 begin, i64 end) { max_to_elements(args, begin, end); }
void avg_pool_f32(const Pool<float>& args, i64 begin, i64 end) { mean_of_windows(args, begin, end); }
void avg_pool_f64(const Pool<double>& args, i64 begin, i64 end) { mean_of_windows(args, begin, end); }
void avg_pool_backward_f32(const Pool<float>& args, i64 begin, i64 end) { mean_to_elements(args, begin, end); }
void avg_pool_backward_f64(const Pool<double>& args, i64 begin, i64 end) { mean_to_elements(args, begin, end); }

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
