// Factors of matrices, and ops that use them. See linalg.h.
#pragma once

#include <type_traits>

#include "tapir/core/arguments.h"
#include "tapir/core/tensor.h"

namespace tapir::linalg {

/// Returns the lower triangular l with l l^T = a, for symmetric positive definite a; reads a's lower triangle (upper: l^T, from
/// the upper one). Throws ValueError if a is not positive definite. Gradient: Murray 2016.
Tensor cholesky(In a, bool upper = false);
/// Returns x with a x = b, for b (..., n, k) and the factor l = cholesky(a, upper).
Tensor cholesky_solve(In b, In l, bool upper = false);
struct QRResult {
    Tensor q;  // orthogonal columns; mode "r": undefined
    Tensor r;  // upper triangular
};
/// a = q r. mode: "reduced": q (..., n, k), r (..., k, m), k = min(n, m); "complete": q (..., n, n), r (..., n, m); "r": r alone, reduced.
/// Gradient of the reduced form for n >= m and full rank: Walter & Lehmann 2010; for n < m of the first n columns and the rest.
/// Throws ValueError if a gradient of the other forms is needed.
QRResult qr(In a, const char* mode = "reduced");
struct EighResult {
    Tensor eigenvalues;   // (..., n), ascending
    Tensor eigenvectors;  // (..., n, n), columns
};
/// Takes symmetric a and reads its lower triangle (uplo "U": the upper). Gradients of eigenvectors need distinct eigenvalues, and a
/// result that does not depend on their signs. Giles 2008.
EighResult eigh(In a, const char* uplo = "L");
Tensor eigvalsh(In a, const char* uplo = "L");
struct SVDResult {
    Tensor u;   // (..., n, k), k = min(n, m); full_matrices: (..., n, n)
    Tensor s;   // (..., k), descending
    Tensor vh;  // (..., k, m); full_matrices: (..., m, m)
};
/// a = u diag(s) vh. Gradients of u and vh need distinct singular values, full_matrices = false, and a result that does not depend on
/// their signs. Townsend 2016.
SVDResult svd(In a, bool full_matrices = true);
Tensor svdvals(In a);
/// Returns x with the smallest |a x - b|, for a (..., n, m) of full rank (n < m: the smallest such x) and b (..., n, k): the solution of
/// torch.linalg.lstsq.
Tensor lstsq(In a, In b);
/// Returns the Moore-Penrose inverse; singular values up to rtol * the largest count as 0 (unless given: max(n, m) * the dtype's epsilon).
Tensor pinv(In a, double rtol = -1);
/// Counts the singular values above rtol * the largest: int64 (...).
Tensor matrix_rank(In a, double rtol = -1);
/// Returns the p-norm of all elements, or of vectors along dims. See tapir::norm.
Tensor vector_norm(In x, double p = 2, const Dims& dims = {}, Flag keepdim = false);
/// Selects a norm: a number, or for matrices "fro" or "nuc".
class NormOrd {
 public:
    template <class T>
        requires(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>)
    NormOrd(T number) noexcept : number_(static_cast<double>(number)) {}                                  // NOLINT: implicit by design
    NormOrd(const char* word, Loc loc = Loc::current()) : word_(detail::given_view(word, loc).data()) {}  // NOLINT
    /// Null for a number.
    const char* word() const noexcept { return word_; }
    double number() const noexcept { return number_; }

 private:
    double number_ = 0;
    const char* word_ = nullptr;
};
/// Returns norms of the matrices in the two dimensions. "fro": the 2-norm of the elements; "nuc": the sum of singular values; 1,
/// infinity: the largest sum of |elements| of a column, of a row (negative: the smallest); 2: the largest singular value (-2: the
/// smallest). Throws ValueError for others.
Tensor matrix_norm(In a, NormOrd ord = "fro", const Dims& dims = {-2, -1}, Flag keepdim = false);
/// torch.linalg.norm: vector_norm over one dimension, matrix_norm over two; without dims that of a vector or matrix x (ShapeError for
/// others). Without ord: the 2-norm of all elements.
Tensor norm(In x);
Tensor norm(In x, NormOrd ord, const Dims& dims = {}, Flag keepdim = false);

}  // namespace tapir::linalg
