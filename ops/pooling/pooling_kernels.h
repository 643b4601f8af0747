// Kernels of pooling: the largest or the mean element of each window. The CPU's take arrays whose channels are last.
#pragma once

#include <cstdint>

#include "tapir/core/dtype.h"
#include "tapir/ops/cpu/isa.h"
#include "tapir/ops/kernels/gpu.h"

#ifdef __CUDACC__
#define TAPIR_BOTH __host__ __device__ __forceinline__
#else
#define TAPIR_BOTH [[gnu::always_inline]] inline  // none is left for the linker to merge between instruction sets
#endif

namespace tapir::kernels {

/// One dimension: windows of `kernel` elements `dilation` apart, one every `stride`, the first `before` elements before the
/// array; or `out` windows that cover it evenly.
struct PoolDim {
    std::int64_t in = 1, out = 1, kernel = 1, stride = 1, before = 0, dilation = 1;
    bool is_adaptive = false;

    /// Finds the elements of a window: [begin, end) in steps of `dilation`, all in the array.
    TAPIR_BOTH void window(std::int64_t o, std::int64_t& begin, std::int64_t& end) const {
        if (is_adaptive) {
            begin = o * in / out;
            end = ((o + 1) * in + out - 1) / out;
            return;
        }
        begin = o * stride - before;
        end = begin + (kernel - 1) * dilation + 1;
        if (end > in) end = in;
        if (begin < 0) begin += (-begin + dilation - 1) / dilation * dilation;
    }
    /// Returns the number of elements of a window, those of the padding included.
    TAPIR_BOTH std::int64_t padded_size(std::int64_t o) const {
        if (is_adaptive) {
            std::int64_t begin, end;
            window(o, begin, end);
            return end - begin;
        }
        const std::int64_t begin = o * stride - before, most = in + before - begin;
        return kernel < most ? kernel : most;
    }
    /// Finds the windows that an element can be in: [first, end).
    TAPIR_BOTH void windows_of(std::int64_t i, std::int64_t& first, std::int64_t& end) const {
        if (is_adaptive) {
            first = i * out / in;
            end = ((i + 1) * out + in - 1) / in;
            return;
        }
        const std::int64_t reach = i + before - (kernel - 1) * dilation;
        first = reach <= 0 ? 0 : (reach + stride - 1) / stride;
        end = (i + before) / stride + 1;
        if (end > out) end = out;
    }
};

/// Windows over `dims`; arrays of (batch, channels, dims...).
struct PoolShape {
    std::int64_t batch = 0, channels = 0;
    PoolDim dims[3];
    bool counts_padding = true;  // means: the zeros around the array are elements, too
    std::int64_t divisor = 0;    // means: sums are divided by this; 0: by the number of elements

    TAPIR_BOTH std::int64_t in_volume() const { return dims[0].in * dims[1].in * dims[2].in; }
    TAPIR_BOTH std::int64_t out_volume() const { return dims[0].out * dims[1].out * dims[2].out; }
    /// Returns the number of elements of window o in dimension d, as means count them.
    TAPIR_BOTH double size_of(int d, std::int64_t o) const {
        std::int64_t begin, end;
        dims[d].window(o, begin, end);
        return static_cast<double>(counts_padding ? dims[d].padded_size(o) : end - begin);
    }
    /// Returns the divisor of the sum over the window (a, b, c).
    TAPIR_BOTH double divisor_of(std::int64_t a, std::int64_t b, std::int64_t c) const {
        return divisor != 0 ? static_cast<double>(divisor) : size_of(0, a) * size_of(1, b) * size_of(2, c);
    }
};

/// A range of elements, or of windows.
struct PoolRange {
    std::int64_t begin, end;
};

/// Elements that have room in Pool::columns: with what they are made of, they stay in the nearer caches.
constexpr std::int64_t kPoolRoom = 8192;

/// x and y, or their gradients; index: the place of each largest element in its channel of x, -1 in a window of padding only.
template <class T>
struct Pool {
    PoolShape shape;
    const T* from;
    T* to;
    std::int32_t* index;         // max only; forward null if nobody wants it
    T* columns;                  // max without indices: of kPoolRoom elements
    const PoolRange* ranges[3];  // by dimension: each window's elements; backward each element's windows
    const double* sizes[3];      // means only: each window's size; null: all sums are divided by shape.divisor
};
struct PoolArgs {
    PoolShape shape;
    DType dtype;
    bool channels_last;
    const void* from;
    void* to;
    std::int32_t* index;
};

}  // namespace tapir::kernels

// Forward: compute the output's places [begin, end), which are (batch, dims...); backward: the input's.
TAPIR_CPU_KERNEL(max_pool_f32, void(const tapir::kernels::Pool<float>& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(max_pool_f64, void(const tapir::kernels::Pool<double>& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(max_pool_backward_f32, void(const tapir::kernels::Pool<float>& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(max_pool_backward_f64, void(const tapir::kernels::Pool<double>& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(avg_pool_f32, void(const tapir::kernels::Pool<float>& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(avg_pool_f64, void(const tapir::kernels::Pool<double>& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(avg_pool_backward_f32, void(const tapir::kernels::Pool<float>& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(avg_pool_backward_f64, void(const tapir::kernels::Pool<double>& args, std::int64_t begin, std::int64_t end))
TAPIR_GPU_KERNEL(max_pool, void(const tapir::kernels::PoolArgs& args))
TAPIR_GPU_KERNEL(max_pool_backward, void(const tapir::kernels::PoolArgs& args))
TAPIR_GPU_KERNEL(avg_pool, void(const tapir::kernels::PoolArgs& args))
TAPIR_GPU_KERNEL(avg_pool_backward, void(const tapir::kernels::PoolArgs& args))
