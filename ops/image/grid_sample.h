// Ops that read images at given positions.
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

struct GridSampleOptions {
    const char* mode = "bilinear";       ///< or "nearest", where halves go to the even pixel
    const char* padding_mode = "zeros";  ///< beyond the edge: zeros, the pixel at the edge ("border"), or mirrored ("reflection")
    bool align_corners = false;          ///< -1 and 1 are the centres of the corner pixels; else the image's edges
};
/// Reads images at computed positions (Jaderberg et al. 2015): x (n, channels, height, width), grid (n, h, w, 2) of (x, y) in [-1, 1]
/// -> (n, channels, h, w). nan is taken as -1, with gradient 0; infinite numbers are outside, which is 0 with "zeros" and "reflection".
/// Throws ShapeError for other shapes and for images of no pixels, DTypeError unless both have
/// one floating dtype, ValueError for other words. On CUDA the order in which gradients are summed varies.
Tensor grid_sample(In x, In grid, const GridSampleOptions& options = {});
/// Makes the grid of an affine map for images of size (n, channels, height, width): theta (n, 2, 3) -> (n, height, width, 2), where the centre
/// (x, y) of a pixel becomes theta (x, y, 1). Throws ShapeError for other shapes, DTypeError unless theta is floating.
Tensor affine_grid(In theta, const Shape& size, bool align_corners = false);

}  // namespace tapir
