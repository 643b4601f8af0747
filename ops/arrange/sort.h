// Sorting along a dimension, and the first of what sorting gives.
#pragma once

#include "tapir/core/tensor.h"
#include "tapir/ops/reduce/extreme.h"

namespace tapir {

#ifndef TAPIR_RUNTIME_ONLY
/// Sorted along dim; nan last in ascending order, first in descending. Equal elements keep their order.
ValuesIndices sort(In x, Dim dim = -1, bool descending = false);
#endif

/// int64: where the elements of sort() come from.
Tensor argsort(In x, Dim dim = -1, bool descending = false);
/// The k largest (or smallest) along dim, sorted. Throws ValueError when k exceeds the size.
ValuesIndices topk(In x, std::int64_t k, Dim dim = -1, bool largest = true);

}  // namespace tapir
