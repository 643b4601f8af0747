// Factors of matrices on a GPU, through cuSOLVER and cuBLAS. As with LAPACK, matrices lie column after column; a routine writes over
// them. `info`: a number for each matrix, not 0 if the routine stopped at it (see linalg_routines.cpp).
#pragma once

#include <cstdint>

#include "tapir/core/dtype.h"
#include "tapir/ops/kernels/gpu.h"

namespace tapir::kernels {

/// Matrices one after the other, without gaps; none is empty.
struct MatrixBatch {
    DType dtype;  // float32 or float64
    std::int64_t count, rows, columns;
    void* data;
};

}  // namespace tapir::kernels

/// True if the library was built with cuSOLVER. Otherwise none of the others may be called.
TAPIR_GPU_KERNEL(has_cusolver, bool())
/// a: square, becomes its LU factors. pivots: (count, rows), counted from 1.
TAPIR_GPU_KERNEL(factor_lu, void(const tapir::kernels::MatrixBatch& a, int* pivots, int* info))
/// b becomes a^-1 b, for the factors of a.
TAPIR_GPU_KERNEL(solve_lu, void(const tapir::kernels::MatrixBatch& lu, const int* pivots, const tapir::kernels::MatrixBatch& b))
/// The lower triangle becomes the Cholesky factor; the upper one is unspecified.
TAPIR_GPU_KERNEL(factor_cholesky, void(const tapir::kernels::MatrixBatch& a, int* info))
/// b becomes a^-1 b for triangular a. unit: the diagonal is 1.
TAPIR_GPU_KERNEL(solve_triangular, void(const tapir::kernels::MatrixBatch& a, const tapir::kernels::MatrixBatch& b, bool upper, bool unit))
/// a becomes r, and below its diagonal the reflectors that make q. tau: (count, min(rows, columns)).
TAPIR_GPU_KERNEL(factor_qr, void(const tapir::kernels::MatrixBatch& a, void* tau))
/// Writes the first columns of q in the place of its reflectors, of which there are `reflectors`; tau: (count, reflectors).
TAPIR_GPU_KERNEL(form_q, void(const tapir::kernels::MatrixBatch& q, std::int64_t reflectors, const void* tau))
/// values: (count, rows), ascending. Reads the lower triangle; a becomes the eigenvectors, or is lost.
TAPIR_GPU_KERNEL(eigen, void(const tapir::kernels::MatrixBatch& a, void* values, bool vectors, int* info))
/// True if singular_values makes whole u and v of such a batch in one go, and not the first columns of them.
TAPIR_GPU_KERNEL(has_whole_vectors, bool(const tapir::kernels::MatrixBatch& a))
/// a is lost. s: (count, k), k = min(rows, columns), descending. u, v: null, or columns one after the other, all (whole) or k.
TAPIR_GPU_KERNEL(singular_values, void(const tapir::kernels::MatrixBatch& a, void* u, void* s, void* v, bool whole, int* info))
