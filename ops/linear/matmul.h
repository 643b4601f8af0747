// Matrix products.
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

/// PyTorch's matmul: 1-d x 1-d is a dot product, 2-d a matrix product, 1-d operands get a dimension that is removed
/// again, and leading (batch) dimensions broadcast. Throws ShapeError when the inner dimensions differ. Dtypes promote.
Tensor matmul(In a, In b);
Tensor mm(In a, In b);     ///< (n, k) x (k, m)
Tensor bmm(In a, In b);    ///< (b, n, k) x (b, k, m)
Tensor mv(In a, In x);     ///< (n, k) x (k,)
Tensor dot(In a, In b);    ///< (k,) . (k,)
Tensor outer(In a, In b);  ///< (n,) x (m,) -> (n, m)
/// Returns x W^T + b. x: (..., in), weight: (out, in), bias: (out,) or undefined -> (..., out).
Tensor linear(In x, In weight, const Tensor& bias = {});
/// Returns beta * c + alpha * a b. A factor of 0 drops its term, even nan and infinity; baddbmm and addmv do the same.
Tensor addmm(In c, In a, In b, Scalar beta = 1, Scalar alpha = 1);
Tensor baddbmm(In c, In a, In b, Scalar beta = 1, Scalar alpha = 1);  ///< beta * c + alpha * bmm(a, b)
Tensor addmv(In c, In a, In x, Scalar beta = 1, Scalar alpha = 1);    ///< beta * c + alpha * mv(a, x)
Tensor vdot(In a, In b);                                              ///< dot
/// Returns y[..., o] = sum over i and j of a[..., i] weight[o, i, j] b[..., j], + bias[o]. a (..., n), b (..., m), weight (outputs, n, m), bias
/// (outputs,) or undefined. Throws ShapeError.
Tensor bilinear(In a, In b, In weight, const Tensor& bias = {});

/// Precision of float32 matrix products on CUDA devices, as PyTorch's set_float32_matmul_precision: highest (as float32),
/// high (operands rounded to TF32: 10 fraction bits), medium (to bfloat16). Sums are float32. The CPU computes in float32.
enum class MatmulPrecision : std::uint8_t { highest, high, medium };
/// Applies to the whole process, from the next product on.
void set_float32_matmul_precision(MatmulPrecision precision) noexcept;
MatmulPrecision float32_matmul_precision() noexcept;

}  // namespace tapir
