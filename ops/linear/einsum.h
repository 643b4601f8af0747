// Ops that sum products over named or listed dimensions.
#pragma once

#include <type_traits>

#include "tapir/core/tensor.h"
#include "tapir/ops/join/join.h"

namespace tapir {

/// Sums the product over several dimensions of each: a's last `dims` with b's first, or those listed, in pairs of equal size. The
/// result has the remaining dimensions of a, then of b. dims 0: all products. Throws ShapeError if sizes differ.
Tensor tensordot(In a, In b, int dims = 2);
Tensor tensordot(In a, In b, const Dims& a_dims, const Dims& b_dims);
/// Computes Einstein summation: einsum("bij,bjk->bik", {a, b}). Letters, "...", "->"; repeated letters take the diagonal.
/// Throws ValueError for a malformed equation, ShapeError if sizes of a letter differ.
Tensor einsum(const char* equation, TensorList operands);
/// Overload without braces: einsum("bij,bjk->bik", a, b).
template <class... T>
    requires(std::is_base_of_v<Tensor, T> && ...)
Tensor einsum(const char* equation, In first, const T&... rest) {
    return einsum(equation, TensorList({first.tensor, rest...}, first.loc));
}

}  // namespace tapir
