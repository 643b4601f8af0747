// Ops that repeat, turn, combine and place elements: most are made of the ops of other headers.
// Names and argument orders are PyTorch's.
#pragma once

#include <vector>

#include "tapir/core/tensor.h"
#include "tapir/ops/join/join.h"

namespace tapir {

/// Repeats x side by side, as torch.tile: `times` may have fewer numbers than x has dimensions.
Tensor tile(In x, const Shape& times);
/// Repeats each element `repeats` times in a row along dim; without dim over the flattened tensor. Throws ValueError for
/// negative repeats.
Tensor repeat_interleave(In x, std::int64_t repeats);
Tensor repeat_interleave(In x, std::int64_t repeats, Dim dim);
/// Overload with a number of repeats for each element (int64 or int32, of the dimension's size). Waits for a device.
Tensor repeat_interleave(In x, In repeats);
Tensor repeat_interleave(In x, In repeats, Dim dim);
/// Turns x by 90 degrees k times, from the first of two dimensions towards the second.
Tensor rot90(In x, int k = 1, const Dims& dims = {0, 1});
Tensor fliplr(In x);  ///< flip(x, {1})
Tensor flipud(In x);  ///< flip(x, {0})
/// Makes a matrix with x (n,) as its diagonal, or returns the diagonal of a matrix; above the main one for offset > 0.
Tensor diag(In x, std::int64_t offset = 0);
/// (..., n) -> (..., n + |offset|, n + |offset|): makes matrices whose diagonals are the last dimension.
Tensor diag_embed(In x, std::int64_t offset = 0);

/// Makes a matrix with the flattened x as its diagonal.
Tensor diagflat(In x, std::int64_t offset = 0);
/// Puts matrices along the diagonal of one matrix, zeros elsewhere. A vector counts as a row.
Tensor block_diag(TensorList tensors);
/// Joins vectors and matrices side by side, a vector as a column.
Tensor column_stack(TensorList tensors);

/// gather() with x and the index (int64) broadcast against each other in the other dimensions; without dim, of the flattened two.
Tensor take_along_dim(In x, In index);
Tensor take_along_dim(In x, In index, Dim dim);
/// Returns a copy of x with src's slices along dim at the positions in index (n,); if one occurs twice, one of its slices is taken.
Tensor index_copy(In x, Dim dim, In index, In src);
/// Returns a copy of x with the elements of src, in their order, where the mask (bool, broadcast to x) holds. Waits for a device. Throws
/// ShapeError if src has too few.
Tensor masked_scatter(In x, In mask, In src);

/// Returns a grid's coordinates: each of the n tensors (0-d or 1-d) along its own dimension of all results, which are views. `indexing`:
/// "ij", or "xy" with the first two exchanged.
std::vector<Tensor> meshgrid(TensorList tensors, const char* indexing = "ij");
/// Returns all combinations of the elements of 1-d tensors, one per row: (n0 * n1 * ..., tensors).
Tensor cartesian_prod(TensorList tensors);
/// Joins tensors along the first dimension, those with one as rows: (n,) counts as (1, n), a 0-d one as (1, 1). Other sizes must agree.
Tensor vstack(TensorList tensors);
/// Joins tensors along the second dimension, those of one dimension (or none) along the first.
Tensor hstack(TensorList tensors);
/// Joins tensors along a third dimension: (n,) counts as (1, n, 1), (n, m) as (n, m, 1).
Tensor dstack(TensorList tensors);
/// Subtracts neighbours along dim, n times.
Tensor diff(In x, int n = 1, Dim dim = -1);
/// Returns the cross product of vectors of 3 elements along dim; other dimensions broadcast.
Tensor cross(In a, In b, Dim dim = -1);
/// Returns the sum of a matrix's diagonal.
Tensor trace(In x);
/// Returns the Kronecker product: each element of a times all of b.
Tensor kron(In a, In b);
/// Returns powers of x (n,) as columns, (n, columns), from the highest down to 1 unless increasing; columns: n unless given.
Tensor vander(In x, std::int64_t columns = -1, bool increasing = false);

}  // namespace tapir
