// Ops that turn windows of images into columns, and back.
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

struct FoldOptions {
    Shape dilation = 1;
    Shape padding = 0;
    Shape stride = 1;
};
/// Returns the windows of images, each a column (im2col): x (n, channels, height, width), or without n, -> (n, channels * kernel height *
/// kernel width, windows). Throws ShapeError if no window fits, DTypeError if x is not floating, ValueError for numbers out
/// of range. Windows along one dimension as a view: Tensor::unfold.
Tensor unfold(In x, const Shape& kernel_size, const FoldOptions& options = {});
/// Sums windows into images of output_size (height, width) (col2im): x (n, channels * kernel height * kernel width,
/// windows), or without n, -> (n, channels, height, width). Errors as unfold.
Tensor fold(In x, const Shape& output_size, const Shape& kernel_size, const FoldOptions& options = {});

}  // namespace tapir
