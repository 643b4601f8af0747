// Views: other shapes and parts of the same elements. All are methods of Tensor as well, documented there.
#pragma once

#include <vector>

#include "tapir/core/tensor.h"

namespace tapir {

Tensor reshape(In x, const Shape& shape);
Tensor flatten(In x, Dim start_dim = 0, Dim end_dim = -1);  ///< dimensions start_dim to end_dim as one; IndexError where they are in the other order
/// Splits dimension dim into several; one size may be -1.
Tensor unflatten(In x, Dim dim, const Shape& sizes);
Tensor transpose(In x, Dim dim0, Dim dim1);     ///< exchanges two dimensions; IndexError
Tensor permute(In x, const Dims& dims);         ///< dimension i of the result is dims[i] of x; ShapeError for another count, IndexError for one twice
Tensor squeeze(In x);                           ///< removes the dimensions of size 1
Tensor squeeze(In x, Dim dim);                  ///< removes this one, if its size is 1; IndexError
Tensor unsqueeze(In x, Dim dim);                ///< inserts a dimension of size 1 before dim, from -dim() - 1 to dim(); IndexError
Tensor expand(In x, const Shape& shape);        ///< repeats dimensions of size 1, and adds new ones in front; -1 keeps a size; ShapeError
Tensor broadcast_to(In x, const Shape& shape);  ///< expand
Tensor narrow(In x, Dim dim, std::int64_t start, std::int64_t length);  ///< `length` elements from start on, which may count from the end; IndexError
Tensor select(In x, Dim dim, std::int64_t index);                       ///< the part at one index, without dim; IndexError
Tensor slice(In x, Dim dim, Slice slice);                               ///< Python's x[start:stop:step] along dim; ValueError for a step below 1
/// Splits into pieces of split_size along dim, the last one smaller if need be.
std::vector<Tensor> split(In x, std::int64_t split_size, Dim dim = 0);
std::vector<Tensor> split(In x, const std::vector<std::int64_t>& sizes, Dim dim = 0);
/// Splits into `chunks` pieces of equal size along dim (the last may be smaller, and there may be fewer).
std::vector<Tensor> chunk(In x, int chunks, Dim dim = 0);
std::vector<Tensor> unbind(In x, Dim dim = 0);                               ///< the parts at each index of dim, without it
Tensor diagonal(In x, std::int64_t offset = 0, Dim dim1 = 0, Dim dim2 = 1);  ///< these dimensions go, it comes last; ShapeError

}  // namespace tapir
