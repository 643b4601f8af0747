// Kernels of grid_sample: they read images between pixels, at positions that a grid names, and compute the gradients.
#pragma once

#include <cstdint>

#include "tapir/core/dtype.h"
#include "tapir/ops/cpu/isa.h"
#include "tapir/ops/kernels/gpu.h"

#ifndef TAPIR_BOTH
#ifdef __CUDACC__
#define TAPIR_BOTH __host__ __device__ __forceinline__
#else
#define TAPIR_BOTH [[gnu::always_inline]] inline  // none is left for the linker to merge between instruction sets
#endif
#endif

namespace tapir::kernels {

enum class GridPadding : std::uint8_t { zeros, border, reflection };

/// A number of the grid as a position along an image's dimension: pixel `below` and, with weight t, the next one.
template <class T>
struct GridPlace {
    std::int64_t below;  // kNowhere: none; or one whose neighbour, or itself, is outside
    T t;                 // 0 for "nearest"
    T slope;             // the derivative of the position for the number
};

struct GridSampleShape {
    static constexpr std::int64_t kNowhere = -2;

    std::int64_t batch, channels, height, width, out_height, out_width;
    GridPadding padding;
    bool nearest, align_corners;

    TAPIR_BOTH std::int64_t pixels() const { return height * width; }
    TAPIR_BOTH std::int64_t places() const { return out_height * out_width; }

    template <class T>
    TAPIR_BOTH GridPlace<T> place(T number, std::int64_t size) const {
        const bool is_nan = number != number;
        const T n = static_cast<T>(size);
        T from = is_nan ? T(0) : number + 1, slope = is_nan ? T(0) : align_corners ? (n - 1) / 2 : n / 2;  // the image is 0 to 2
        if (padding == GridPadding::border) from = from < 0 ? T(0) : from > 2 ? T(2) : from;
        if (padding == GridPadding::reflection) reflect(from, slope);
        T at = align_corners ? from / 2 * (n - 1) : (from * n - 1) / 2;
        if (padding != GridPadding::zeros) {  // at the edge itself there is no slope, as in PyTorch
            if (at <= 0) at = slope = 0;
            if (at >= n - 1) at = n - 1, slope = 0;
        }
        if (!(at > -2 && at < n + 1)) return {kNowhere, 0, 0};
        std::int64_t below = static_cast<std::int64_t>(at);
        if (static_cast<T>(below) > at) --below;
        T t = at - static_cast<T>(below);
        if (nearest) {
            if (t > T(0.5) || (t == T(0.5) && below % 2 != 0)) ++below;
            return {below < 0 || below >= size ? kNowhere : below, 0, 0};
        }
        return {below, t, slope};
    }

 private:
    // Mirrors at 0 and at 2, as often as needed: exact for all finite numbers, even if their pixel would be infinite. Infinite
    // numbers become nan.
    template <class T>
    TAPIR_BOTH static void reflect(T& from, T& slope) {
        if (from < 0) {
            from = -from;
            slope = -slope;
        }
        T turns = from / 4;
        if (turns < T(0x1p62)) turns = static_cast<T>(static_cast<std::int64_t>(turns));  // larger ones are whole already
        from -= 4 * turns;
        if (from > 2) {
            from = 4 - from;
            slope = -slope;
        }
    }
};

/// All are contiguous: x and dx (batch, channels, height, width), y and g (batch, channels, out_height, out_width), grid and dgrid
/// (batch, out_height, out_width, 2).
template <class T>
struct GridSample {
    GridSampleShape shape;
    const T* x;
    const T* grid;
    const T* g;  // the gradient of y
    T* out;      // the kernel writes y, dx or dgrid here
};

/// Applies place() to all numbers of a grid, each array (batch, out_height, out_width, 2), for gradients that are recorded.
template <class T>
struct GridPlaces {
    GridSampleShape shape;
    const T* grid;
    std::int64_t* below;
    T* t;
    T* slope;

    TAPIR_BOTH void find(std::int64_t i) const {  // fills place i
        for (int d = 0; d < 2; ++d) {
            const GridPlace<T> place = shape.place(grid[2 * i + d], d ? shape.height : shape.width);
            below[2 * i + d] = place.below;
            t[2 * i + d] = place.t;
            slope[2 * i + d] = place.slope;
        }
    }
};

/// The pixels around a position, and their weights: (y, x), (y, x + 1), (y + 1, x), (y + 1, x + 1). Those outside have
/// offset 0 and weight 0.
template <class T>
struct GridTaps {
    std::int64_t offset[4];
    T weight[4];
    T by_x[4], by_y[4];  // their derivatives for the grid's numbers

    TAPIR_BOTH GridTaps(const GridSampleShape& s, const T* numbers) {
        const GridPlace<T> x = s.place(numbers[0], s.width), y = s.place(numbers[1], s.height);
        for (int k = 0; k < 4; ++k) {
            const std::int64_t column = x.below + k % 2, row = y.below + k / 2;
            const bool is_inside = x.below != GridSampleShape::kNowhere && y.below != GridSampleShape::kNowhere && column >= 0 && column < s.width &&
                row >= 0 && row < s.height;
            const T along = k % 2 ? x.t : 1 - x.t, down = k / 2 ? y.t : 1 - y.t;
            offset[k] = is_inside ? row * s.width + column : 0;
            weight[k] = is_inside ? along * down : T(0);
            by_x[k] = is_inside ? (k % 2 ? x.slope : -x.slope) * down : T(0);
            by_y[k] = is_inside ? (k / 2 ? y.slope : -y.slope) * along : T(0);
        }
    }
};

}  // namespace tapir::kernels

/// Positions of all grids, counted over the batch.
TAPIR_TYPED_KERNEL(grid_sample, GridSample)
TAPIR_TYPED_KERNEL(grid_sample_dgrid, GridSample)
TAPIR_TYPED_KERNEL(grid_places, GridPlaces)
/// Adds to channels, counted over the batch; a GPU in any order.
TAPIR_TYPED_KERNEL(grid_sample_dx, GridSample)
