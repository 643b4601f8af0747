// Elements repeated, turned, combined with each other, and put in other places: most are made of the ops of other headers.
// Names and argument orders are PyTorch's.
#pragma once

#include <vector>

#include "tapir/core/tensor.h"
#include "tapir/ops/join/join.h"

namespace tapir {

/// Copies side by side, as torch.tile: `times` may have fewer numbers than x has dimensions.
Tensor tile(In x, const Shape& times);
/// Each element `repeats` times, one behind the other, along dim; without dim of the flattened tensor. Throws ValueError for
/// negative repeats.
Tensor repeat_interleave(In x, std::int64_t repeats);
Tensor repeat_interleave(In x, std::int64_t repeats, Dim dim);
/// The same with a number of repeats for each element (int64 or int32, of the dimension's size). Waits for a device.
Tensor repeat_interleave(In x, In repeats);
Tensor repeat_interleave(In x, In repeats, Dim dim);
/// Turned by 90 degrees k times, from the first of two dimensions towards the second.
Tensor rot90(In x, int k = 1, const Dims& dims = {0, 1});
Tensor fliplr(In x);  ///< flip(x, {1})
Tensor flipud(In x);  ///< flip(x, {0})
/// (n,) as the diagonal of a matrix, or the diagonal of a matrix; above the main one for offset > 0.
Tensor diag(In x, std::int64_t offset = 0);
/// (..., n) -> (..., n + |offset|, n + |offset|): the last dimension as the diagonals of matrices.
Tensor diag_embed(In x, std::int64_t offset = 0);

/// x, flattened, as the diagonal of a matrix.
Tensor diagflat(In x, std::int64_t offset = 0);
/// Matrices along the diagonal of one, zeros elsewhere. A vector counts as a row.
Tensor block_diag(TensorList tensors);
/// Vectors and matrices side by side, a vector as a column.
Tensor column_stack(TensorList tensors);

/// gather() with x and the index (int64) broadcast against each other in the other dimensions; without dim, of the flattened two.
Tensor take_along_dim(In x, In index);
Tensor take_along_dim(In x, In index, Dim dim);
/// A copy of x with src's slices along dim at the places that index (n,) names; where one is named twice, one of them.
Tensor index_copy(In x, Dim dim, In index, In src);
/// A copy of x with the elements of src, in their order, where the mask (bool, broadcast to x) holds. Waits for a device. Throws
/// ShapeError where src has too few.
Tensor masked_scatter(In x, In mask, In src);

/// Coordinates of a grid: each of the n tensors (0-d or 1-d) along its own dimension of all results, which are views. `indexing`:
/// "ij", or "xy" with the first two exchanged.
std::vector<Tensor> meshgrid(TensorList tensors, const char* indexing = "ij");
/// All combinations of the elements of 1-d tensors, a row each: (n0 * n1 * ..., tensors).
Tensor cartesian_prod(TensorList tensors);
/// Tensors one below the other, of one dimension as rows: (n,) counts as (1, n), a 0-d one as (1, 1). Other sizes must agree.
Tensor vstack(TensorList tensors);
/// Tensors side by side: joined along the second dimension, those of one dimension (or none) along the first.
Tensor hstack(TensorList tensors);
/// Tensors one behind the other along a third dimension: (n,) counts as (1, n, 1), (n, m) as (n, m, 1).
Tensor dstack(TensorList tensors);
/// Differences of neighbours along dim, n times.
Tensor diff(In x, int n = 1, Dim dim = -1);
/// The cross product of vectors of 3 elements along dim; other dimensions broadcast.
Tensor cross(In a, In b, Dim dim = -1);
/// The sum of a matrix's diagonal.
Tensor trace(In x);
/// The Kronecker product: each element of a times all of b.
Tensor kron(In a, In b);
/// Powers of x (n,) as columns, (n, columns), from the highest down to 1 unless increasing; columns: n unless given.
Tensor vander(In x, std::int64_t columns = -1, bool increasing = false);

}  // namespace tapir
