// Elements repeated, turned, combined with each other, and put in other places: what indexing.h and view.h are too small for. Most are
// made of their ops. Names and argument orders are PyTorch's.
#pragma once

#include <vector>

#include "tapir/core/tensor.h"
#include "tapir/ops/indexing.h"

namespace tapir {

/// Copies side by side, as torch.tile: `times` may have fewer numbers than x has dimensions.
Tensor tile(In x, const Shape& times);
/// Each element `repeats` times, one behind the other, along dim; without dim of the flattened tensor. Throws ValueError for
/// negative repeats.
Tensor repeat_interleave(In x, std::int64_t repeats);
Tensor repeat_interleave(In x, std::int64_t repeats, int dim);
/// The same with a number of repeats for each element (int64 or int32, of the dimension's size). Waits for a device.
Tensor repeat_interleave(In x, In repeats);
Tensor repeat_interleave(In x, In repeats, int dim);
/// Turned by 90 degrees k times, from the first of two dimensions towards the second.
Tensor rot90(In x, int k = 1, const Dims& dims = {0, 1});
Tensor fliplr(In x);  ///< flip(x, {1})
Tensor flipud(In x);  ///< flip(x, {0})
/// The dimensions `source` at the places `destination`, the others in their order: a view.
Tensor movedim(In x, const Dims& source, const Dims& destination);
/// (n,) as the diagonal of a matrix, or the diagonal of a matrix; above the main one for offset > 0.
Tensor diag(In x, std::int64_t offset = 0);
/// (..., n) -> (..., n + |offset|, n + |offset|): the last dimension as the diagonals of matrices.
Tensor diag_embed(In x, std::int64_t offset = 0);

/// Coordinates of a grid: each of the n tensors (0-d or 1-d) along its own dimension of all results, which are views. `indexing`:
/// "ij", or "xy" with the first two exchanged.
std::vector<Tensor> meshgrid(TensorList tensors, const char* indexing = "ij");
/// All combinations of the elements of 1-d tensors, a row each: (n0 * n1 * ..., tensors).
Tensor cartesian_prod(TensorList tensors);
/// Differences of neighbours along dim, n times.
Tensor diff(In x, int n = 1, int dim = -1);
/// The cross product of vectors of 3 elements along dim; other dimensions broadcast.
Tensor cross(In a, In b, int dim = -1);
/// The sum of a matrix's diagonal.
Tensor trace(In x);
/// The Kronecker product: each element of a times all of b.
Tensor kron(In a, In b);
/// Powers of x (n,) as columns, (n, columns), from the highest down to 1 unless increasing; columns: n unless given.
Tensor vander(In x, std::int64_t columns = -1, bool increasing = false);

}  // namespace tapir
