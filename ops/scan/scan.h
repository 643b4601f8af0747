// Running sums, products and extremes along a dimension.
#pragma once

#include "tapir/core/tensor.h"
#include "tapir/ops/reduce/extreme.h"

namespace tapir {

#ifndef TAPIR_RUNTIME_ONLY  // tapir/runtime.h has none of these
/// Running sums and products along one dimension, of x's shape. Integers give int64.
Tensor cumsum(In x, Dim dim);
Tensor cumprod(In x, Dim dim);
/// The largest (smallest) element so far along dim, and its index: of equal ones the last. nan wins, and of several the last. The
/// gradient goes to the elements that are named. Throws IndexError for a dim out of range.
ValuesIndices cummax(In x, Dim dim);
ValuesIndices cummin(In x, Dim dim);
/// Running log(sum(exp(x))) along dim, without overflow, in log2(n) steps.
Tensor logcumsumexp(In x, Dim dim);
#endif

}  // namespace tapir
