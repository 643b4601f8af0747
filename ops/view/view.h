// Views: other shapes and parts of the same elements. All are methods of Tensor as well, documented there.
#pragma once

#include <vector>

#include "tapir/core/tensor.h"

namespace tapir {

Tensor reshape(In x, const Shape& shape);
Tensor flatten(In x, Dim start_dim = 0, Dim end_dim = -1);
/// Dimension dim split into several; one size may be -1.
Tensor unflatten(In x, Dim dim, const Shape& sizes);
Tensor transpose(In x, Dim dim0, Dim dim1);
Tensor permute(In x, const Dims& dims);
Tensor squeeze(In x);
Tensor squeeze(In x, Dim dim);
Tensor unsqueeze(In x, Dim dim);
Tensor expand(In x, const Shape& shape);
Tensor broadcast_to(In x, const Shape& shape);
Tensor narrow(In x, Dim dim, std::int64_t start, std::int64_t length);
Tensor select(In x, Dim dim, std::int64_t index);
Tensor slice(In x, Dim dim, Slice slice);
/// Pieces of split_size along dim, the last one smaller if need be.
std::vector<Tensor> split(In x, std::int64_t split_size, Dim dim = 0);
std::vector<Tensor> split(In x, const std::vector<std::int64_t>& sizes, Dim dim = 0);
/// `chunks` pieces of equal size along dim (the last may be smaller, and there may be fewer).
std::vector<Tensor> chunk(In x, int chunks, Dim dim = 0);
std::vector<Tensor> unbind(In x, Dim dim = 0);
Tensor diagonal(In x, std::int64_t offset = 0, Dim dim1 = 0, Dim dim2 = 1);

}  // namespace tapir
