// Linear algebra of matrices (..., n, m): leading dimensions are a batch. Names, arguments and results are those of torch.linalg:
//
//     Tensor x = linalg::solve(a, b);
//     auto [values, vectors] = linalg::eigh(a);
//
// Dtypes: float32 and float64 (DTypeError for others). Computed by LAPACK (CMake's option TAPIR_LAPACK; without it each throws a
// DeviceError that says so), CUDA tensors by cuSOLVER (TAPIR_CUSOLVER): ops that throw for unsuitable matrices wait for the
// device (solve, inv, cholesky, eigh, svd, and those made of these). Without cuSOLVER CUDA tensors go to the host and back.
// The signs of vectors may differ between the two. Gradients exist to any order, where the function has them.
#pragma once

#include "tapir/core/tensor.h"
#include "tapir/ops/linalg/linalg_factors.h"
#include "tapir/ops/linalg/linalg_solve.h"

namespace tapir::linalg {

/// True if the library was built with LAPACK.
bool is_available() noexcept;

}  // namespace tapir::linalg
