// Sums of products over named or listed dimensions.
#pragma once

#include <type_traits>

#include "tapir/core/tensor.h"
#include "tapir/ops/join/join.h"

namespace tapir {

/// The product summed over several dimensions of each: a's last `dims` with b's first, or those listed, in pairs of equal size. Of the
/// result's shape: what is left of a's, then of b's. dims 0: all products. Throws ShapeError where sizes differ.
Tensor tensordot(In a, In b, int dims = 2);
Tensor tensordot(In a, In b, const Dims& a_dims, const Dims& b_dims);
/// Einstein summation: einsum("bij,bjk->bik", {a, b}). Letters, "...", "->"; repeated letters take the diagonal.
/// Throws ValueError for a malformed equation, ShapeError where sizes of a letter differ.
Tensor einsum(const char* equation, TensorList operands);
/// The same without braces: einsum("bij,bjk->bik", a, b).
template <class... T>
    requires(std::is_base_of_v<Tensor, T> && ...)
Tensor einsum(const char* equation, In first, const T&... rest) {
    return einsum(equation, TensorList({first.tensor, rest...}, first.loc));
}

}  // namespace tapir
