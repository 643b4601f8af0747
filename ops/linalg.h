// Linear algebra of matrices (..., n, m): leading dimensions are a batch. Names, arguments and results are those of torch.linalg:
//
//     Tensor x = linalg::solve(a, b);
//     auto [values, vectors] = linalg::eigh(a);
//
// Dtypes: float32 and float64 (DTypeError for others). Computed by LAPACK (CMake's option TAPIR_LAPACK; without it each throws a
// DeviceError that says so), CUDA tensors by cuSOLVER (TAPIR_CUSOLVER): what tells of matrices that it cannot take waits for the
// device (solve, inv, cholesky, eigh, svd, and what is made of these). Without cuSOLVER CUDA tensors go to the host and back.
// The signs of vectors may differ between the two. Gradients exist to any order, where the function has them.
#pragma once

#include <limits>

#include "tapir/core/arguments.h"
#include "tapir/core/tensor.h"

namespace tapir::linalg {

/// Whether the library was built with LAPACK.
bool is_available() noexcept;

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

/// The lower triangular l with l l^T = a, for symmetric positive definite a, of which the lower triangle is read (upper: l^T, from
/// the upper one). Throws ValueError where a is not positive definite. Gradient: Murray 2016.
Tensor cholesky(In a, bool upper = false);
/// x with a x = b, for b (..., n, k) and the factor l = cholesky(a, upper).
Tensor cholesky_solve(In b, In l, bool upper = false);

struct QRResult {
    Tensor q;  // orthogonal columns; mode "r": undefined
    Tensor r;  // upper triangular
};
/// a = q r. mode: "reduced": q (..., n, k), r (..., k, m), k = min(n, m); "complete": q (..., n, n), r (..., n, m); "r": r alone, reduced.
/// Gradient of the reduced form for n >= m and full rank: Walter & Lehmann 2010; for n < m of the first n columns and the rest.
/// ValueError where a gradient is asked of the other forms.
QRResult qr(In a, const char* mode = "reduced");

struct EighResult {
    Tensor eigenvalues;   // (..., n), ascending
    Tensor eigenvectors;  // (..., n, n), columns
};
/// Of symmetric a, whose lower triangle is read (uplo "U": the upper). Gradients of eigenvectors need distinct eigenvalues, and a
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

/// The x of smallest |a x - b|, for a (..., n, m) of full rank (n < m: the smallest such x) and b (..., n, k): the solution of
/// torch.linalg.lstsq.
Tensor lstsq(In a, In b);
/// The Moore-Penrose inverse; singular values up to rtol * the largest count as 0 (unless given: max(n, m) * the dtype's epsilon).
Tensor pinv(In a, double rtol = -1);
/// How many singular values are above rtol * the largest: int64 (...).
Tensor matrix_rank(In a, double rtol = -1);
/// a^n for whole n; of the inverse for negative n.
Tensor matrix_power(In a, std::int64_t n);

/// The p-norm of all elements, or of vectors along dims. See tapir::norm.
Tensor vector_norm(In x, double p = 2, const Dims& dims = {}, Flag keepdim = false);
/// Which norm: a number, or of matrices "fro" or "nuc".
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
/// Norms of matrices, which lie in the two dimensions. "fro": the 2-norm of the elements; "nuc": the sum of singular values; 1,
/// infinity: the largest sum of |elements| of a column, of a row (negative: the smallest); 2: the largest singular value (-2: the
/// smallest). Throws ValueError for others.
Tensor matrix_norm(In a, NormOrd ord = "fro", const Dims& dims = {-2, -1}, Flag keepdim = false);
/// torch.linalg.norm: vector_norm over one dimension, matrix_norm over two; without dims that of a vector or matrix x (ShapeError for
/// others). Without ord: the 2-norm of all elements.
Tensor norm(In x);
Tensor norm(In x, NormOrd ord, const Dims& dims = {}, Flag keepdim = false);

}  // namespace tapir::linalg
