// Views: other shapes and parts of the same elements. All are methods of Tensor as well, documented there.
#pragma once

#include <vector>

#include "tapir/core/tensor.h"

namespace tapir {

Tensor reshape(In x, const Shape& shape);
Tensor flatten(In x, int start_dim = 0, int end_dim = -1);
/// Dimension dim split into several; one size may be -1.
Tensor unflatten(In x, int dim, const Shape& sizes);
Tensor transpose(In x, int dim0, int dim1);
Tensor permute(In x, const Dims& dims);
Tensor squeeze(In x);
Tensor squeeze(In x, int dim);
Tensor unsqueeze(In x, int dim);
Tensor expand(In x, const Shape& shape);
Tensor broadcast_to(In x, const Shape& shape);
Tensor narrow(In x, int dim, std::int64_t start, std::int64_t length);
Tensor select(In x, int dim, std::int64_t index);
Tensor slice(In x, int dim, Slice slice);
/// Pieces of split_size along dim, the last one smaller if need be.
std::vector<Tensor> split(In x, std::int64_t split_size, int dim = 0);
std::vector<Tensor> split(In x, const std::vector<std::int64_t>& sizes, int dim = 0);
/// `chunks` pieces of equal size along dim (the last may be smaller, and there may be fewer).
std::vector<Tensor> chunk(In x, int chunks, int dim = 0);
std::vector<Tensor> unbind(In x, int dim = 0);
Tensor diagonal(In x, std::int64_t offset = 0, int dim1 = 0, int dim2 = 1);

}  // namespace tapir
