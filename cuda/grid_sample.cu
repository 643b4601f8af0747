// grid_sample: a thread for each element of the result. Another thread sums the gradient of each place in the grid.
#include "tapir/cuda/indexing.cuh"
#include "tapir/ops/image/grid_sample_kernels.h"

namespace tapir::gpu {
namespace {

using kernels::GridPlaces;
using kernels::GridSample;
using kernels::GridSampleShape;
using kernels::GridTaps;

// The channel of the batch, and the place in the batch's grids, of element i of the result.
template <class I>
struct At {
    i64 channel, place;
    __device__ __forceinline__ At(const GridSampleShape& s, I i) {
        const I places = static_cast<I>(s.places()), all = i / places;
        channel = static_cast<i64>(all);
        place = static_cast<i64>(all / static_cast<I>(s.channels)) * s.places() + static_cast<i64>(i - all * places);
    }
};

template <class T, class I>
__global__ void __launch_bounds__(kThreads) sample_kernel(I n, GridSample<T> args) {
    const I i = static_cast<I>(global_index());
    if (i >= n) return;
    const At<I> at(args.shape, i);
    const GridTaps<T> taps(args.shape, args.grid + 2 * at.place);
    const T* x = args.x + at.channel * args.shape.pixels();
    T sum = 0;
    for (int k = 0; k < 4; ++k) {
        if (taps.weight[k] != 0) sum += taps.weight[k] * x[taps.offset[k]];
    }
    args.out[i] = sum;
}

template <class T, class I>
__global__ void __launch_bounds__(kThreads) input_gradient_kernel(I n, GridSample<T> args) {
    const I i = static_cast<I>(global_index());
    if (i >= n) return;
    const At<I> at(args.shape, i);
    const GridTaps<T> taps(args.shape, args.grid + 2 * at.place);
    T* dx = args.out + at.channel * args.shape.pixels();
    for (int k = 0; k < 4; ++k) {
        if (taps.weight[k] != 0) atomic_add(dx + taps.offset[k], taps.weight[k] * args.g[i]);
    }
}

template <class T>
__global__ void __launch_bounds__(kThreads) grid_gradient_kernel(i64 n, GridSample<T> args) {
    const i64 i = global_index();
    if (i >= n) return;
    const GridSampleShape& s = args.shape;
    const GridTaps<T> taps(s, args.grid + 2 * i);
    const i64 example = i / s.places(), place = i - example * s.places();
    const T* x = args.x + example * s.channels * s.pixels();
    const T* g = args.g + example * s.channels * s.places() + place;
    T along = 0, down = 0;
    for (i64 c = 0; c < s.channels; ++c, x += s.pixels(), g += s.places()) {
        T by_x = 0, by_y = 0;
        for (int k = 0; k < 4; ++k) {
            if (taps.by_x[k] != 0) by_x += taps.by_x[k] * x[taps.offset[k]];
            if (taps.by_y[k] != 0) by_y += taps.by_y[k] * x[taps.offset[k]];
        }
        along += *g * by_x;
        down += *g * by_y;
    }
    args.out[2 * i] = along;
    args.out[2 * i + 1] = down;
}

template <class T>
__global__ void __launch_bounds__(kThreads) places_kernel(i64 n, GridPlaces<T> args) {
    const i64 i = global_index();
    if (i < n) args.find(i);
}

template <class T>
void by_elements(void (*few)(u32, GridSample<T>), void (*many)(u64, GridSample<T>), const GridSample<T>& args) {
    const i64 n = args.shape.batch * args.shape.channels * args.shape.places();
    if (n == 0) return;
    if (n <= kMostPositions) {
        launch(few, blocks_for(n, kThreads), kThreads, static_cast<u32>(n), args);
    } else {
        launch(many, blocks_for(n, kThreads), kThreads, static_cast<u64>(n), args);
    }
}

template <class Args>
void by_places(void (*kernel)(i64, Args), const Args& args, i64 n) {
    launch(kernel, blocks_for(n, kThreads), kThreads, n, args);
}

}  // namespace

template <class T>
void grid_sample(const GridSample<T>& args, i64 /*places*/) {
    by_elements(sample_kernel<T, u32>, sample_kernel<T, u64>, args);
}
template <class T>
void grid_sample_dx(const GridSample<T>& args, i64 /*channels*/) {
    by_elements(input_gradient_kernel<T, u32>, input_gradient_kernel<T, u64>, args);
}
template <class T>
void grid_sample_dgrid(const GridSample<T>& args, i64 count) {
    by_places(grid_gradient_kernel<T>, args, count);
}
template <class T>
void grid_places(const GridPlaces<T>& args, i64 count) {
    by_places(places_kernel<T>, args, count);
}

#define TAPIR_INSTANTIATE(T)                                    \
    template void grid_sample(const GridSample<T>&, i64);       \
    template void grid_sample_dx(const GridSample<T>&, i64);    \
    template void grid_sample_dgrid(const GridSample<T>&, i64); \
    template void grid_places(const GridPlaces<T>&, i64);
TAPIR_INSTANTIATE(float)
TAPIR_INSTANTIATE(double)
#undef TAPIR_INSTANTIATE

}  // namespace tapir::gpu
