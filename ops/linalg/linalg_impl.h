// Shared code of linalg_solve.cpp and linalg_factors.cpp: checks, and routines that write over matrices.
//
// A routine takes matrices as LAPACK does, column after column: a contiguous tensor (batch..., columns, rows). It is in the
// matrices' place: their CUDA device where the library has cuSOLVER, else the host. An op brings its operands there (columns_of),
// and the result back as the user's device and layout have it (result_of).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "tapir/autograd/op.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/tensor.h"

namespace tapir::matrices {

Tensor mt(const Tensor& x);
/// x's shape without its last dimensions.
Shape batch_of(const Tensor& x, int without = 2);
Shape with_sizes(Shape batch, std::initializer_list<std::int64_t> sizes);

void check_matrices(const char* op, const In& x, bool square);
void check_alike(const char* op, const In& a, const In& b);
/// Each op calls this first. Throws DeviceError if no library can compute it.
void begin(const OpInfo& op, const In& a);
[[noreturn]] void fail_singular(const char* op, const Tensor& a, std::int64_t index, const Loc& loc);
[[noreturn]] void fail_to_converge(const char* op, const Tensor& a, std::int64_t index, const Loc& loc);
/// "matrix 3 of the batch", "the matrix"
std::string which(const Tensor& x, std::int64_t index);

/// Returns the device on which x's matrices are computed.
Device place_of(const Tensor& x);
/// Copies x there, column after column.
Tensor columns_of(const Tensor& x);
/// Returns the matrices of a routine as the op's result on a device.
Tensor result_of(const Tensor& columns, Device device);

// --- Routines: all operands in one place -----------------------------------------------------------------------------------------

/// The first matrix of a batch that a routine stopped at. On a device the routine has waited for it.
struct Stopped {
    std::int64_t index = -1;
    bool any() const { return index >= 0; }
    std::int64_t first() const { return index; }
};

/// lu (batch..., n, n) becomes the factors, b (batch..., k, n) the solutions. Stops at singular matrices.
Stopped lu_solve(const Tensor& lu, const Tensor& b);
/// lu (batch..., n, n) becomes the factors, x (batch..., n, n), of zeros, the inverses. Stops at singular matrices.
Stopped invert(const Tensor& lu, const Tensor& x);

struct Determinants {
    Tensor sign, logarithm, det;  // logarithm: of |det|
};
/// Computes them from lu (batch..., n, n), which is lost.
Determinants determinants(const Tensor& lu);

/// a becomes the lower triangles, the rest 0. Stops if a matrix is not positive definite.
Stopped factor_definite(Tensor& a);
/// b (batch..., k, n) becomes a^-1 b.
void triangular_solve(const Tensor& a, const Tensor& b, bool upper, bool unit);
/// a (batch..., m, n): columns of n elements; is lost. q: undefined, or (batch..., q columns, n), its first columns; r
/// (batch..., m, rows of r). Both are written.
void factor_orthogonal(const Tensor& a, const Tensor& q, const Tensor& r);
/// a becomes the eigenvectors, if wanted, else is lost. Stops if it does not converge, or if elements are nan or infinite, as does the next one.
Stopped eigen(const Tensor& a, const Tensor& values, bool vectors);

struct SingularValues {
    Tensor u, s, vt;  // as columns, but vt may be any view
    Stopped stopped;
};
/// Decomposes a (batch..., m, n), m, n > 0, which is lost. job: 'N' the values alone, 'S' u (batch..., k, n) and vt (batch..., m, k), 'A'
/// whole ones.
SingularValues singular_values(const Tensor& a, char job);

}  // namespace tapir::matrices
