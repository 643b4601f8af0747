// Distinct elements.
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

#ifndef TAPIR_RUNTIME_ONLY  // tapir/runtime.h has none of these
struct UniqueResult {
    Tensor values;   // (distinct,), in ascending order
    Tensor inverse;  // int64, x's shape: where in values each element is; undefined unless asked for
    Tensor counts;   // int64 (distinct,): how often each occurs; undefined unless asked for
};
/// The distinct elements of x, of any shape, as one dimension; always sorted. nan differs from nan. Waits for a device: the
/// result's size is data. Not differentiable.
UniqueResult unique(In x, bool sorted = true, bool return_inverse = false, bool return_counts = false);
/// The same of runs of equal neighbours in the flattened x, which is not sorted: a value comes again where it begins a new run.
UniqueResult unique_consecutive(In x, bool return_inverse = false, bool return_counts = false);
#endif

}  // namespace tapir
