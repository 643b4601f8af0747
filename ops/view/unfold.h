// Windows of images as columns.
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

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

}  // namespace tapir
