// Resampling: a thread for each element that is written. Gradients are gathered, as in pooling.
#include "tapir/cuda/device.cuh"
#include "tapir/ops/image/interpolate_kernels.h"

namespace tapir::gpu {
namespace {

using kernels::ResampleArgs;
using kernels::ResampleDim;

// The source elements of a written element along one dimension: [begin, end) and their weights.
struct Taps {
    i64 begin, end;
    double weights[4];  // forward only

    __device__ __forceinline__ Taps(const ResampleDim& dim, i64 at, bool is_transposed) {
        if (is_transposed) {
            dim.made_of(at, begin, end);
        } else {
            const int count = dim.taps(at, begin, weights);
            end = begin + count;
        }
    }
    __device__ __forceinline__ double weight(const ResampleDim& dim, i64 at, i64 i, bool is_transposed) const {
        return is_transposed ? dim.weight_of(at, i) : weights[i - begin];
    }
};

template <class T, class I>
__global__ void __launch_bounds__(kThreads) resample_kernel(I n, ResampleArgs args) {
    const I number = static_cast<I>(global_index());
    if (number >= n) return;
    const kernels::ResampleShape& s = args.shape;
    const auto inner = static_cast<I>(s.inner);
    const auto channel = static_cast<i64>(number % inner);
    I rest = number / inner;
    i64 at[3];
    for (int d = 2; d >= 0; --d) {
        const auto size = static_cast<I>(s.to(d));
        at[d] = static_cast<i64>(rest % size);
        rest /= size;
    }
    const T* x = static_cast<const T*>(args.from) + static_cast<i64>(rest) * s.from(0) * s.from(1) * s.from(2) * s.inner + channel;
    const Taps a(s.dims[0], at[0], s.is_transposed), b(s.dims[1], at[1], s.is_transposed), c(s.dims[2], at[2], s.is_transposed);
    Computed<T> sum = 0;
    for (i64 i = a.begin; i < a.end; ++i) {
        const double wa = a.weight(s.dims[0], at[0], i, s.is_transposed);
        for (i64 j = b.begin; j < b.end; ++j) {
            const double wb = wa * b.weight(s.dims[1], at[1], j, s.is_transposed);
            for (i64 k = c.begin; k < c.end; ++k) {
                const auto w = static_cast<Computed<T>>(wb * c.weight(s.dims[2], at[2], k, s.is_transposed));
                sum += w * convert<Computed<T>>(x[((i * s.from(1) + j) * s.from(2) + k) * s.inner]);
            }
        }
    }
    static_cast<T*>(args.to)[number] = convert<T>(sum);
}

}  // namespace

void resample(const ResampleArgs& args) {
    const kernels::ResampleShape& s = args.shape;
    const i64 n = s.outer * s.to(0) * s.to(1) * s.to(2) * s.inner;
    with_floating(args.dtype, [&]<class T>() {
        if (n <= kMostPositions) {
            launch(resample_kernel<T, u32>, blocks_for(n, kThreads), kThreads, static_cast<u32>(n), args);
        } else {
            launch(resample_kernel<T, u64>, blocks_for(n, kThreads), kThreads, static_cast<u64>(n), args);
        }
    });
}

}  // namespace tapir::gpu
