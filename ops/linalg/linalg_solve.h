// Linear systems, inverses and determinants. See linalg.h.
#pragma once

#include "tapir/core/tensor.h"

namespace tapir::linalg {

/// x with a x = b. a (..., n, n), b (..., n, k), or (..., n) as torch.linalg.solve takes it: 1-d, or with a's batch. Batches
/// broadcast. Throws ValueError for a singular matrix, with its place in the batch.
Tensor solve(In a, In b);
/// The same for triangular matrices, of which the other triangle is not read (unitriangular: nor the diagonal, which is 1). b
/// (..., n, k); left = false: x a = b. A zero on the diagonal gives infinities, as in PyTorch.
Tensor solve_triangular(In a, In b, bool upper, bool left = true, bool unitriangular = false);
/// Throws ValueError for a singular matrix.
Tensor inv(In a);
/// The determinant (...). Derivatives beyond the first need an invertible matrix.
Tensor det(In a);
struct SlogdetResult {
    Tensor sign;       // 1, -1, or 0 for a singular matrix
    Tensor logabsdet;  // log |det|; -infinity for a singular one
};
SlogdetResult slogdet(In a);
/// log(det a); nan where the determinant is negative. Gradient: the inverse, transposed.
Tensor logdet(In a);
/// a^n for whole n; of the inverse for negative n.
Tensor matrix_power(In a, std::int64_t n);

}  // namespace tapir::linalg
