// See grid_sample.h. Handles a few positions at a time: their taps are computed once, and each channel uses them.
#include "tapir/ops/image/grid_sample_kernels.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

using i64 = std::int64_t;

constexpr i64 kPlaces = 64;

template <class T>
struct Taps {
    i64 offset[4][kPlaces];
    T weight[4][kPlaces], by_x[4][kPlaces], by_y[4][kPlaces];

    Taps(const GridSample<T>& args, i64 first, i64 n) {
        for (i64 j = 0; j < n; ++j) {
            const GridTaps<T> taps(args.shape, args.grid + 2 * (first + j));
            for (int k = 0; k < 4; ++k) {
                offset[k][j] = taps.offset[k];
                weight[k][j] = taps.weight[k];
                by_x[k][j] = taps.by_x[k];
                by_y[k][j] = taps.by_y[k];
            }
        }
    }
};

// Calls body(example, place in its grid, number) for runs of the positions [begin, end), each within one example.
template <class Body>
void runs(const GridSampleShape& s, i64 begin, i64 end, const Body& body) {
    while (begin < end) {
        const i64 example = begin / s.places(), place = begin - example * s.places();
        i64 n = s.places() - place;
        if (n > end - begin) n = end - begin;
        if (n > kPlaces) n = kPlaces;
        body(example, place, n);
        begin += n;
    }
}

template <class T>
void sample(const GridSample<T>& args, i64 begin, i64 end) {
    const GridSampleShape& s = args.shape;
    runs(s, begin, end, [&](i64 example, i64 place, i64 n) {
        const Taps<T> taps(args, example * s.places() + place, n);
        for (i64 c = example * s.channels; c < (example + 1) * s.channels; ++c) {
            const T* x = args.x + c * s.pixels();
            T* y = args.out + c * s.places() + place;
#pragma omp simd
            for (i64 j = 0; j < n; ++j) {
                T sum = 0;
                for (int k = 0; k < 4; ++k) {
                    const T product = taps.weight[k][j] * x[taps.offset[k][j]];
                    sum += taps.weight[k][j] == 0 ? T(0) : product;  // elements outside count as 0, even beside infinite pixels
                }
                y[j] = sum;
            }
        }
    });
}

template <class T>
void grid_gradient(const GridSample<T>& args, i64 begin, i64 end) {
    const GridSampleShape& s = args.shape;
    runs(s, begin, end, [&](i64 example, i64 place, i64 n) {
        const Taps<T> taps(args, example * s.places() + place, n);
        T along[kPlaces] = {}, down[kPlaces] = {};
        for (i64 c = example * s.channels; c < (example + 1) * s.channels; ++c) {
            const T* x = args.x + c * s.pixels();
            const T* g = args.g + c * s.places() + place;
#pragma omp simd
            for (i64 j = 0; j < n; ++j) {
                T by_x = 0, by_y = 0;
                for (int k = 0; k < 4; ++k) {
                    const T pixel = x[taps.offset[k][j]];
                    by_x += taps.by_x[k][j] == 0 ? T(0) : taps.by_x[k][j] * pixel;
                    by_y += taps.by_y[k][j] == 0 ? T(0) : taps.by_y[k][j] * pixel;
                }
                along[j] += g[j] * by_x;
                down[j] += g[j] * by_y;
            }
        }
        T* out = args.out + 2 * (example * s.places() + place);
        for (i64 j = 0; j < n; ++j) {
            out[2 * j] = along[j];
            out[2 * j + 1] = down[j];
        }
    });
}

template <class T>
void input_gradient(const GridSample<T>& args, i64 begin, i64 end) {
    const GridSampleShape& s = args.shape;
    while (begin < end) {
        const i64 example = begin / s.channels, last = (example + 1) * s.channels < end ? (example + 1) * s.channels : end;
        runs(s, example * s.places(), (example + 1) * s.places(), [&](i64, i64 place, i64 n) {
            const Taps<T> taps(args, example * s.places() + place, n);
            for (i64 c = begin; c < last; ++c) {
                T* dx = args.out + c * s.pixels();
                const T* g = args.g + c * s.places() + place;
                for (i64 j = 0; j < n; ++j) {
                    for (int k = 0; k < 4; ++k) {
                        if (taps.weight[k][j] != 0) dx[taps.offset[k][j]] += taps.weight[k][j] * g[j];
                    }
                }
            }
        });
        begin = last;
    }
}

template <class T>
void places(const GridPlaces<T>& args, i64 begin, i64 end) {
    for (i64 i = begin; i < end; ++i) args.find(i);
}

}  // namespace

void grid_sample_f32(const GridSample<float>& args, i64 begin, i64 end) { sample(args, begin, end); }
void grid_sample_f64(const GridSample<double>& args, i64 begin, i64 end) { sample(args, begin, end); }
void grid_sample_dgrid_f32(const GridSample<float>& args, i64 begin, i64 end) { grid_gradient(args, begin, end); }
void grid_sample_dgrid_f64(const GridSample<double>& args, i64 begin, i64 end) { grid_gradient(args, begin, end); }
void grid_places_f32(const GridPlaces<float>& args, i64 begin, i64 end) { places(args, begin, end); }
void grid_places_f64(const GridPlaces<double>& args, i64 begin, i64 end) { places(args, begin, end); }
void grid_sample_dx_f32(const GridSample<float>& args, i64 begin, i64 end) { input_gradient(args, begin, end); }
void grid_sample_dx_f64(const GridSample<double>& args, i64 begin, i64 end) { input_gradient(args, begin, end); }

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
