// Ops that take masks.
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

#ifndef TAPIR_RUNTIME_ONLY  // tapir/runtime.h has none of these
/// Returns x with value where the mask (bool, broadcast) holds.
Tensor masked_fill(In x, In mask, Scalar value);
Tensor masked_fill(In x, In mask, In value);
/// Returns the elements where the mask holds, 1-d.
Tensor masked_select(In x, In mask);
/// Returns the positions of the elements that are not 0: int64 (n, dim).
Tensor nonzero(In x);
Tensor argwhere(In x);  ///< nonzero
/// Returns a where the condition (bool) holds, else b. All three broadcast. Throws DTypeError when the condition is not bool.
Tensor where(In condition, In a, In b);
Tensor where(In condition, In a, Scalar b);
Tensor where(In condition, Scalar a, In b);
Tensor where(In condition, Scalar a, Scalar b);
#endif

}  // namespace tapir
