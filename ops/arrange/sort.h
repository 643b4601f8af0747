// Sorting along a dimension, and the first elements of the sorted order.
#pragma once

#include "tapir/core/tensor.h"
#include "tapir/ops/reduce/extreme.h"

namespace tapir {

#ifndef TAPIR_RUNTIME_ONLY
/// Sorts along dim; nan last in ascending order, first in descending. Equal elements keep their order.
ValuesIndices sort(In x, Dim dim = -1, bool descending = false);
#endif

/// Returns the indices of sort(), int64.
Tensor argsort(In x, Dim dim = -1, bool descending = false);
/// Returns the k largest (or smallest) along dim, sorted. Throws ValueError when k exceeds the size.
ValuesIndices topk(In x, std::int64_t k, Dim dim = -1, bool largest = true);

}  // namespace tapir
