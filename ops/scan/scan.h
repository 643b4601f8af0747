// Running sums, products and extremes along a dimension.
#pragma once

#include "tapir/core/tensor.h"
#include "tapir/ops/reduce/extreme.h"

namespace tapir {

#ifndef TAPIR_RUNTIME_ONLY  // tapir/runtime.h has none of these
/// Returns running sums and products along one dimension, of x's shape. Integers give int64.
Tensor cumsum(In x, Dim dim);
Tensor cumprod(In x, Dim dim);
/// Returns the largest (smallest) element so far along dim, and its index: the last of equal ones. nan wins, and the last of several. The
/// gradient goes to the elements at these indices. Throws IndexError for a dim out of range.
ValuesIndices cummax(In x, Dim dim);
ValuesIndices cummin(In x, Dim dim);
/// Returns running log(sum(exp(x))) along dim, without overflow, in log2(n) steps.
Tensor logcumsumexp(In x, Dim dim);
#endif

}  // namespace tapir
