// Ops that copy a tensor and replace a part of it.
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

/// Returns a copy of x with src in place of the part that select(), slice() or diagonal() takes. src is of the part's shape (ShapeError),
/// and is converted to x's dtype.
Tensor select_scatter(In x, In src, Dim dim, std::int64_t index);
Tensor slice_scatter(In x, In src, Dim dim = 0, Slice range = Slice());
Tensor diagonal_scatter(In x, In src, std::int64_t offset = 0, Dim dim1 = 0, Dim dim2 = 1);

}  // namespace tapir
