// Reductions. `dims` names the dimensions that are reduced (negative ones count from the end; none: all of them);
// keepdim leaves them with size 1. Dims out of range or named twice throw IndexError.
//
// Sums of float16, bfloat16 and float32 accumulate in short float32 blocks whose sums are added in float64, so that the
// error does not grow with the length. Results do not depend on the number of threads.
#pragma once

#include <type_traits>

#include "tapir/core/tensor.h"

namespace tapir {

#ifndef TAPIR_RUNTIME_ONLY  // tapir/runtime.h has none of these
/// Integers and bool sum to int64.
Tensor sum(In x, const Dims& dims = {}, Flag keepdim = false);
/// Floating dtypes only (DTypeError).
Tensor mean(In x, const Dims& dims = {}, Flag keepdim = false);
Tensor prod(In x);  ///< int64 for integers and bool; 1 for no elements
Tensor prod(In x, Dim dim, Flag keepdim = false);
/// Returns extremes over several dimensions; ties share the gradient equally. nan wins. Empty dimensions throw ShapeError.
Tensor amax(In x, const Dims& dims = {}, Flag keepdim = false);
Tensor amin(In x, const Dims& dims = {}, Flag keepdim = false);
/// These give bool: no element is 0, an element is not 0. true and false for empty ones.
Tensor all(In x, const Dims& dims = {}, Flag keepdim = false);
Tensor any(In x, const Dims& dims = {}, Flag keepdim = false);
/// Returns variance and standard deviation, divided by n - correction (1: unbiased). Beside `using namespace tapir` write x.std() or
/// tapir::std(x): std alone is the namespace's name too.
Tensor var(In x, const Dims& dims = {}, int correction = 1, Flag keepdim = false);
Tensor std(In x, const Dims& dims = {}, int correction = 1, Flag keepdim = false);
/// Overload for all elements, as PyTorch's var(x, unbiased): divided by n - 1, or by n.
template <class Bool>
    requires(std::is_same_v<Bool, bool>)
Tensor var(In x, Bool unbiased) {
    return var(x, Dims(), unbiased ? 1 : 0);
}
template <class Bool>
    requires(std::is_same_v<Bool, bool>)
Tensor std(In x, Bool unbiased) {
    return std(x, Dims(), unbiased ? 1 : 0);
}
/// Returns (sum |x|^p)^(1/p); p may be infinity (largest), -infinity (smallest), 0 (how many are not 0). In float64. All derivatives
/// are 0 where it is: for the second one of norm(x)^2 at 0, which is 2, take sum(square(x)). PyTorch: nan, and inf for a norm of 5e200.
Tensor norm(In x, double p = 2, const Dims& dims = {}, Flag keepdim = false);
#endif

}  // namespace tapir
