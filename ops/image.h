// Images in other sizes and arrangements: resampling, windows as columns, channels and pixels exchanged. Names, shapes and defaults
// are PyTorch's (torch.nn.functional):
//
//     Tensor y = interpolate(x, {.scale_factor = 2, .mode = "bilinear"});
//     Tensor z = interpolate(x, {.size = {24, 32}});
//     Tensor columns = unfold(x, 3, {.padding = 1});
//
// Results of channels-last inputs have their channels last in memory, where they are images.
#pragma once

#include <initializer_list>

#include "tapir/core/tensor.h"

namespace tapir {

/// By how much sizes grow: a number for all spatial dimensions, or one for each.
class ScaleFactor {
 public:
    ScaleFactor() = default;
    template <class T>
        requires(std::is_arithmetic_v<T>)
    ScaleFactor(T factor) noexcept : values_{static_cast<double>(factor)}, count_(1) {}  // NOLINT: implicit by design
    /// Throws ValueError for more than 3.
    ScaleFactor(std::initializer_list<double> factors, Loc loc = Loc::current());  // NOLINT

    int count() const noexcept { return count_; }
    double operator[](int d) const noexcept { return values_[count_ == 1 ? 0 : d]; }

 private:
    double values_[3] = {};
    int count_ = 0;
};

struct InterpolateOptions {
    Shape size = {};                ///< of the result: a number for all spatial dimensions, or one for each. This or scale_factor
    ScaleFactor scale_factor = {};  ///< sizes are multiplied by it and rounded down
    /// "nearest" (whose positions are rounded down), "nearest-exact", "linear" (1 spatial dimension), "bilinear" (2), "bicubic" (2,
    /// Keys 1981 with a = -0.75), "trilinear" (3), "area" (adaptive_avg_pool).
    const char* mode = "nearest";
    bool align_corners = false;           ///< linear and cubic modes: corner pixels keep their values; else pixels are areas
    bool recompute_scale_factor = false;  ///< positions by the sizes, not by the factor given, which may not make whole ones
};

/// x (n, channels, 1 to 3 spatial dimensions) resampled. Throws ShapeError for other numbers of dimensions, DTypeError where x is
/// not floating, ValueError unless one of size and scale_factor is given and for modes that do not fit.
Tensor interpolate(In x, const InterpolateOptions& options);

struct GridSampleOptions {
    const char* mode = "bilinear";       ///< or "nearest", where halves go to the even pixel
    const char* padding_mode = "zeros";  ///< beyond the edge: zeros, the pixel at the edge ("border"), or mirrored ("reflection")
    bool align_corners = false;          ///< -1 and 1 are the centres of the corner pixels; else the image's edges
};

/// Images read at computed places (Jaderberg et al. 2015): x (n, channels, height, width), grid (n, h, w, 2) of (x, y) in [-1, 1]
/// -> (n, channels, h, w). nan is taken as -1, with gradient 0; infinite numbers are outside, which is 0 with "zeros" and "reflection".
/// Throws ShapeError for other shapes and for images of no pixels, DTypeError unless both have
/// one floating dtype, ValueError for other words. Where sums of gradients are made on CUDA, their order varies.
Tensor grid_sample(In x, In grid, const GridSampleOptions& options = {});
/// The grid of an affine map for images of size (n, channels, height, width): theta (n, 2, 3) -> (n, height, width, 2), where the centre
/// (x, y) of a pixel becomes theta (x, y, 1). Throws ShapeError for other shapes, DTypeError unless theta is floating.
Tensor affine_grid(In theta, const Shape& size, bool align_corners = false);

struct FoldOptions {
    Shape dilation = 1;
    Shape padding = 0;
    Shape stride = 1;
};

/// The windows of images, each a column (im2col): x (n, channels, height, width), or without n, -> (n, channels * kernel height *
/// kernel width, windows). Throws ShapeError where no window fits, DTypeError where x is not floating, ValueError for numbers out
/// of range. Windows along one dimension as a view: Tensor::unfold.
Tensor unfold(In x, const Shape& kernel_size, const FoldOptions& options = {});
/// Images of output_size (height, width) as the sums of their windows (col2im): x (n, channels * kernel height * kernel width,
/// windows), or without n, -> (n, channels, height, width). Errors as unfold.
Tensor fold(In x, const Shape& output_size, const Shape& kernel_size, const FoldOptions& options = {});

/// (..., channels * r^2, height, width) -> (..., channels, height * r, width * r) (Shi et al. 2016). Throws ShapeError where the
/// channels do not divide.
Tensor pixel_shuffle(In x, std::int64_t upscale_factor);
/// The way back: (..., channels, height * r, width * r) -> (..., channels * r^2, height, width).
Tensor pixel_unshuffle(In x, std::int64_t downscale_factor);
/// Channels (dimension 1) dealt out: channel k of group g becomes channel k * groups + g (Zhang et al. 2018).
Tensor channel_shuffle(In x, std::int64_t groups);

}  // namespace tapir
