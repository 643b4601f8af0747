// Ops that read and write at computed positions along a dimension. Index tensors are int64 or int32; an index out of range throws
// IndexError before anything is written; on CUDA at the next call that waits for the device, and another element is read or
// written in its place. Negative indices count from the end. On CUDA the order in which elements at computed positions are summed
// varies unless set_deterministic() says otherwise.
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

/// Returns out[i][j] = x[index[i][j]][j] for dim 0, and so on. index has x's number of dimensions.
Tensor gather(In x, Dim dim, In index);
/// Returns a copy of x with src (or a number) written where gather would read; scatter_add adds it.
Tensor scatter(In x, Dim dim, In index, In src);
Tensor scatter(In x, Dim dim, In index, Scalar value);
Tensor scatter_add(In x, Dim dim, In index, In src);
/// Combines src's elements where scatter_add would add them: "sum", "prod", "mean", "amax" or "amin" of them and, with
/// include_self, of what x has there; other elements are x's. index has x's number of dimensions and is not larger than src, nor, but
/// along dim, than x (ShapeError); src is of x's dtype (DTypeError). The mean of integers is rounded down; nan is the largest and the
/// smallest. Equal extremes share the gradient; the second derivative of "prod" is refused where several zeros of src meet (ValueError).
/// Throws ValueError for another word, DeviceError for "prod" of floats on CUDA under set_deterministic().
///     Tensor largest = scatter_reduce(zeros({3}), 0, index, src, "amax", /*include_self=*/false);
Tensor scatter_reduce(In x, Dim dim, In index, In src, const char* reduce, Flag include_self = true);
/// Returns the slices of x at the positions in index (1-d).
Tensor index_select(In x, Dim dim, In index);
/// Returns a copy of x with alpha * src's slices added at these positions.
Tensor index_add(In x, Dim dim, In index, In src, Scalar alpha = 1);
/// Returns x with value (a number or a 0-d tensor) in the slices at these positions.
Tensor index_fill(In x, Dim dim, In index, Scalar value);
Tensor index_fill(In x, Dim dim, In index, In value);

}  // namespace tapir
