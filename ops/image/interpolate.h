// Ops that resize images.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "tapir/core/tensor.h"

namespace tapir {

/// The factor by which sizes grow: a number for all spatial dimensions, or one for each.
class ScaleFactor {
 public:
    ScaleFactor() = default;
    template <class T>
        requires(std::is_arithmetic_v<T>)
    ScaleFactor(T factor) noexcept : values_{static_cast<double>(factor)}, count_(1) {}  // NOLINT: implicit by design
    /// Throws ValueError for more than 3 factors.
    ScaleFactor(std::initializer_list<double> factors, Loc loc = Loc::current());  // NOLINT

    int count() const noexcept { return count_; }
    double operator[](int d) const noexcept { return values_[count_ == 1 ? 0 : d]; }

 private:
    double values_[3] = {};
    int count_ = 0;
};
struct InterpolateOptions {
    Shape size = {};                ///< the result's: a number for all spatial dimensions, or one for each. Give this or scale_factor
    ScaleFactor scale_factor = {};  ///< sizes are multiplied by it and rounded down
    /// "nearest" (whose positions are rounded down), "nearest-exact", "linear" (1 spatial dimension), "bilinear" (2), "bicubic" (2,
    /// Keys 1981 with a = -0.75), "trilinear" (3), "area" (adaptive_avg_pool).
    const char* mode = "nearest";
    bool align_corners = false;           ///< linear and cubic modes: corner pixels keep their values; else pixels are areas
    bool recompute_scale_factor = false;  ///< positions by the sizes, not by the factor given, which may not make whole ones
};
/// Resamples x (n, channels, 1 to 3 spatial dimensions). Throws ShapeError for other numbers of dimensions, DTypeError if x is
/// not floating, ValueError unless one of size and scale_factor is given and for modes that do not fit.
Tensor interpolate(In x, const InterpolateOptions& options);
/// (..., channels * r^2, height, width) -> (..., channels, height * r, width * r) (Shi et al. 2016). Throws ShapeError if the
/// channels do not divide.
Tensor pixel_shuffle(In x, std::int64_t upscale_factor);
/// Inverts pixel_shuffle: (..., channels, height * r, width * r) -> (..., channels * r^2, height, width).
Tensor pixel_unshuffle(In x, std::int64_t downscale_factor);
/// Reorders channels (dimension 1): channel k of group g becomes channel k * groups + g (Zhang et al. 2018).
Tensor channel_shuffle(In x, std::int64_t groups);

}  // namespace tapir
