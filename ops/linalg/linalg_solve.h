// Linear systems, inverses and determinants. See linalg.h.
#pragma once

#include "tapir/core/tensor.h"

namespace tapir::linalg {

/// Returns x with a x = b. a (..., n, n), b (..., n, k), or (..., n) as torch.linalg.solve takes it: 1-d, or with a's batch. Batches
/// broadcast. Throws ValueError for a singular matrix, with its place in the batch.
Tensor solve(In a, In b);
/// Solves for triangular a, whose other triangle is not read (unitriangular: nor the diagonal, which is 1). b
/// (..., n, k); left = false: x a = b. A zero on the diagonal gives infinities, as in PyTorch.
Tensor solve_triangular(In a, In b, bool upper, bool left = true, bool unitriangular = false);
/// Returns the inverse. Throws ValueError for a singular matrix.
Tensor inv(In a);
/// Returns the determinant (...). Derivatives beyond the first need an invertible matrix.
Tensor det(In a);
struct SlogdetResult {
    Tensor sign;       // 1, -1, or 0 for a singular matrix
    Tensor logabsdet;  // log |det|; -infinity for a singular one
};
SlogdetResult slogdet(In a);
/// Returns log(det a); nan if the determinant is negative. Gradient: the inverse, transposed.
Tensor logdet(In a);
/// Returns a^n for whole n; for negative n a power of the inverse.
Tensor matrix_power(In a, std::int64_t n);

}  // namespace tapir::linalg
