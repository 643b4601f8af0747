// Resampling: adds up the input rows that a result row is made of; then resamples along it.
#include "tapir/ops/image/interpolate_kernels.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

using i64 = std::int64_t;

// line = the weighted sum of the rows at (o, taps of a, taps of b); returns the row itself if it is a single one with weight 1.
template <class T>
const T* mix_rows(const Resample<T>& args, T* line, i64 o, i64 a, i64 b) {
    const Taps<T>&up = args.taps[0], &down = args.taps[1];
    const i64 n = args.from_sizes[2] * args.inner;
    bool is_first = true;
    for (i64 i = up.begin[a]; i < up.begin[a + 1]; ++i) {
        for (i64 j = down.begin[b]; j < down.begin[b + 1]; ++j) {
            const i64 row = (o * args.from_sizes[0] + up.first[a] + i - up.begin[a]) * args.from_sizes[1] + down.first[b] + j - down.begin[b];
            const T* x = args.from + row * n;
            const T w = up.weights[i] * down.weights[j];
            if (is_first && w == 1 && up.begin[a + 1] - up.begin[a] == 1 && down.begin[b + 1] - down.begin[b] == 1) return x;
            if (is_first) {
#pragma omp simd
                for (i64 k = 0; k < n; ++k) line[k] = w * x[k];
            } else {
#pragma omp simd
                for (i64 k = 0; k < n; ++k) line[k] += w * x[k];
            }
            is_first = false;
        }
    }
    if (is_first) {
        for (i64 k = 0; k < n; ++k) line[k] = 0;
    }
    return line;
}

template <class T>
void mix_elements(const Resample<T>& args, const T* line, T* y) {
    const Taps<T>& taps = args.taps[2];
    const i64 n = args.to_sizes[2];
    const i64* first = taps.first;
    if (taps.alike == 1) {
        for (i64 c = 0; c < n; ++c) y[c] = line[first[c]];
        return;
    }
    if (taps.alike == 2) {
        for (i64 c = 0; c < n; ++c) y[c] = taps.weights[2 * c] * line[first[c]] + taps.weights[2 * c + 1] * line[first[c] + 1];
        return;
    }
    for (i64 c = 0; c < n; ++c) {
        const T* x = line + taps.first[c];
        const T* w = taps.weights + taps.begin[c];
        const i64 count = taps.begin[c + 1] - taps.begin[c];
        T sum = 0;
        for (i64 k = 0; k < count; ++k) sum += w[k] * x[k];
        y[c] = sum;
    }
}

// As above, but each element is an array of `inner`.
template <class T>
void mix_arrays(const Resample<T>& args, const T* line, T* y) {
    const Taps<T>& taps = args.taps[2];
    const i64 n = args.to_sizes[2], inner = args.inner;
    for (i64 c = 0; taps.alike == 1 && c < n; ++c, y += inner)
        __builtin_memcpy(y, line + taps.first[c] * inner, static_cast<unsigned long>(inner) * sizeof(T));
    for (i64 c = 0; taps.alike != 1 && c < n; ++c, y += inner) {
        const T* x = line + taps.first[c] * inner;
        const T* w = taps.weights + taps.begin[c];
        const i64 count = taps.begin[c + 1] - taps.begin[c];
        if (count == 0) {
            for (i64 k = 0; k < inner; ++k) y[k] = 0;
            continue;
        }
#pragma omp simd
        for (i64 k = 0; k < inner; ++k) y[k] = w[0] * x[k];
        for (i64 t = 1; t < count; ++t) {
#pragma omp simd
            for (i64 k = 0; k < inner; ++k) y[k] += w[t] * x[t * inner + k];
        }
    }
}

template <class T>
void resample_rows(const Resample<T>& args, T* line, i64 begin, i64 end) {
    const i64 n = args.to_sizes[2] * args.inner;
    const T* before = nullptr;
    for (i64 row = begin; row < end; ++row) {
        const i64 b = row % args.to_sizes[1], rest = row / args.to_sizes[1];
        const T* mixed = mix_rows(args, line, rest / args.to_sizes[0], rest % args.to_sizes[0], b);
        if (mixed == before && mixed != line) {  // nearest: same as the row above
            __builtin_memcpy(args.to + row * n, args.to + (row - 1) * n, static_cast<unsigned long>(n) * sizeof(T));
            continue;
        }
        before = mixed;
        args.inner == 1 ? mix_elements(args, mixed, args.to + row * n) : mix_arrays(args, mixed, args.to + row * n);
    }
}

}  // namespace

void resample_f32(const Resample<float>& args, float* line, i64 begin, i64 end) { resample_rows(args, line, begin, end); }
void resample_f64(const Resample<double>& args, double* line, i64 begin, i64 end) { resample_rows(args, line, begin, end); }

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
