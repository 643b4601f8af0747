// Views that are composed of others. Names and argument orders are PyTorch's.
#pragma once

#include <vector>

#include "tapir/core/tensor.h"
#include "tapir/ops/join/join.h"

namespace tapir {

/// Moves the dimensions `source` to the places `destination`; the others keep their order: a view.
Tensor movedim(In x, const Dims& source, const Dims& destination);
Tensor moveaxis(In x, const Dims& source, const Dims& destination);  ///< movedim
Tensor swapaxes(In x, Dim axis0, Dim axis1);                         ///< transpose
Tensor ravel(In x);                                                  ///< flatten(x)
/// Returns x itself, or a view with dimensions of size 1 if it has fewer: (n,) becomes (1, n), and (1, n, 1) in three.
Tensor atleast_1d(In x);
Tensor atleast_2d(In x);
Tensor atleast_3d(In x);
/// Returns parts along dim as views: so many of nearly equal size, the first ones larger by 1; or up to each index, and the rest.
/// Throws ValueError for no parts.
std::vector<Tensor> tensor_split(In x, std::int64_t sections, Dim dim = 0);
std::vector<Tensor> tensor_split(In x, const std::vector<std::int64_t>& indices, Dim dim = 0);
/// Expands all tensors to the shape that they broadcast to. Throws ShapeError.
std::vector<Tensor> broadcast_tensors(TensorList tensors);

}  // namespace tapir
