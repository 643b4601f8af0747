// Pooling: a thread for each element that is written. Gradients are gathered: each element of the input reads the windows that
// contain it, so that no two threads write to one place.
#include <limits>

#include "tapir/cuda/device.cuh"
#include "tapir/cuda/math.cuh"
#include "tapir/ops/pooling/pooling_kernels.h"

namespace tapir::gpu {
namespace {

using kernels::PoolArgs;
using kernels::PoolShape;

// Converts an element's number to its place and back. I must be unsigned and hold the number of elements.
template <class I>
struct Places {
    I channels, sizes[3];
    bool channels_last;

    __device__ __forceinline__ void split(I number, i64& image, i64& channel, i64 (&at)[3]) const {
        if (channels_last) {
            channel = static_cast<i64>(number % channels);
            number /= channels;
        }
        for (int d = 2; d >= 0; --d) {
            at[d] = static_cast<i64>(number % sizes[d]);
            number /= sizes[d];
        }
        if (!channels_last) {
            channel = static_cast<i64>(number % channels);
            number /= channels;
        }
        image = static_cast<i64>(number);
    }
};

// Where a channel of an image begins, and the distance of its elements.
struct Channel {
    i64 first, step;
    __device__ __forceinline__ Channel(i64 image, i64 channel, i64 channels, i64 volume, bool channels_last)
        : first(channels_last ? image * volume * channels + channel : (image * channels + channel) * volume), step(channels_last ? channels : 1) {}
    __device__ __forceinline__ i64 operator[](i64 place) const { return first + place * step; }
};

// Calls f(place in the channel) for the elements of the window at `at`.
template <class F>
__device__ __forceinline__ void for_window(const PoolShape& s, const i64 (&at)[3], const F& f) {
    i64 begin[3], end[3];
    for (int d = 0; d < 3; ++d) s.dims[d].window(at[d], begin[d], end[d]);
    for (i64 i = begin[0]; i < end[0]; i += s.dims[0].dilation) {
        for (i64 j = begin[1]; j < end[1]; j += s.dims[1].dilation) {
            for (i64 k = begin[2]; k < end[2]; k += s.dims[2].dilation) f((i * s.dims[1].in + j) * s.dims[2].in + k);
        }
    }
}

// Calls f(place of a window in the channel, its place by dimension) for the windows that can contain the element at `at`.
template <class F>
__device__ __forceinline__ void for_windows_of(const PoolShape& s, const i64 (&at)[3], const F& f) {
    i64 first[3], end[3];
    for (int d = 0; d < 3; ++d) s.dims[d].windows_of(at[d], first[d], end[d]);
    for (i64 a = first[0]; a < end[0]; ++a) {
        for (i64 b = first[1]; b < end[1]; ++b) {
            for (i64 c = first[2]; c < end[2]; ++c) f((a * s.dims[1].out + b) * s.dims[2].out + c, a, b, c);
        }
    }
}

// Work of a thread for the written element `number`, which is at `at` in its channel of an image.
template <class T>
struct MaxPool {
    static constexpr bool kOfInput = false;
    static __device__ __forceinline__ void run(const PoolArgs& args, i64 number, i64 image, i64 channel, const i64 (&at)[3]) {
        const PoolShape& s = args.shape;
        const Channel in(image, channel, s.channels, s.in_volume(), args.channels_last);
        const T* x = static_cast<const T*>(args.from);
        auto largest = -std::numeric_limits<Computed<T>>::infinity();
        std::int32_t index = -1;
        for_window(s, at, [&](i64 place) {
            const auto value = convert<Computed<T>>(x[in[place]]);
            if (index >= 0 && !(value > largest) && value == value) return;
            largest = value;
            index = static_cast<std::int32_t>(place);
        });
        static_cast<T*>(args.to)[number] = convert<T>(largest);
        args.index[number] = index;
    }
};

template <class T>
struct MaxPoolBackward {
    static constexpr bool kOfInput = true;
    static __device__ __forceinline__ void run(const PoolArgs& args, i64 number, i64 image, i64 channel, const i64 (&at)[3]) {
        const PoolShape& s = args.shape;
        const Channel out(image, channel, s.channels, s.out_volume(), args.channels_last);
        const T* g = static_cast<const T*>(args.from);
        const auto here = static_cast<std::int32_t>((at[0] * s.dims[1].in + at[1]) * s.dims[2].in + at[2]);
        Computed<T> sum = 0;
        for_windows_of(s, at, [&](i64 window, i64, i64, i64) {
            if (args.index[out[window]] == here) sum += convert<Computed<T>>(g[out[window]]);
        });
        static_cast<T*>(args.to)[number] = convert<T>(sum);
    }
};

template <class T>
struct AvgPool {
    static constexpr bool kOfInput = false;
    static __device__ __forceinline__ void run(const PoolArgs& args, i64 number, i64 image, i64 channel, const i64 (&at)[3]) {
        const PoolShape& s = args.shape;
        const Channel in(image, channel, s.channels, s.in_volume(), args.channels_last);
        const T* x = static_cast<const T*>(args.from);
        Computed<T> sum = 0;
        for_window(s, at, [&](i64 place) { sum += convert<Computed<T>>(x[in[place]]); });
        static_cast<T*>(args.to)[number] = convert<T>(sum / static_cast<Computed<T>>(s.divisor_of(at[0], at[1], at[2])));
    }
};

template <class T>
struct AvgPoolBackward {
    static constexpr bool kOfInput = true;
    static __device__ __forceinline__ void run(const PoolArgs& args, i64 number, i64 image, i64 channel, const i64 (&at)[3]) {
        const PoolShape& s = args.shape;
        const Channel out(image, channel, s.channels, s.out_volume(), args.channels_last);
        const T* g = static_cast<const T*>(args.from);
        Computed<T> sum = 0;
        for_windows_of(s, at, [&](i64 window, i64 a, i64 b, i64 c) {
            sum += convert<Computed<T>>(g[out[window]]) / static_cast<Computed<T>>(s.divisor_of(a, b, c));
        });
        static_cast<T*>(args.to)[number] = convert<T>(sum);
    }
};

template <class Pool, class I>
__global__ void __launch_bounds__(kThreads) pool_kernel(I n, PoolArgs args, Places<I> places) {
    const I number = static_cast<I>(global_index());
    if (number >= n) return;
    i64 image, channel, at[3];
    places.split(number, image, channel, at);
    Pool::run(args, static_cast<i64>(number), image, channel, at);
}

template <class Pool, class I>
void launch_pool(const PoolArgs& args, i64 n) {
    Places<I> places{static_cast<I>(args.shape.channels), {}, args.channels_last};
    for (int d = 0; d < 3; ++d) {
        places.sizes[d] = static_cast<I>(Pool::kOfInput ? args.shape.dims[d].in : args.shape.dims[d].out);
    }
    launch(pool_kernel<Pool, I>, blocks_for(n, kThreads), kThreads, static_cast<I>(n), args, places);
}

template <template <class> class Pool>
void pool(const PoolArgs& args) {
    const PoolShape& s = args.shape;
    with_floating(args.dtype, [&]<class T>() {
        const i64 n = s.batch * s.channels * (Pool<T>::kOfInput ? s.in_volume() : s.out_volume());
        n <= kMostPositions ? launch_pool<Pool<T>, u32>(args, n) : launch_pool<Pool<T>, u64>(args, n);
    });
}

}  // namespace

void max_pool(const PoolArgs& args) { pool<MaxPool>(args); }
void max_pool_backward(const PoolArgs& args) { pool<MaxPoolBackward>(args); }
void avg_pool(const PoolArgs& args) { pool<AvgPool>(args); }
void avg_pool_backward(const PoolArgs& args) { pool<AvgPoolBackward>(args); }

}  // namespace tapir::gpu
