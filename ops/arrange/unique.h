// Distinct elements.
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

#ifndef TAPIR_RUNTIME_ONLY  // tapir/runtime.h has none of these
struct UniqueResult {
    Tensor values;   // (distinct,), in ascending order
    Tensor inverse;  // int64, x's shape: each element's index in values; undefined unless asked for
    Tensor counts;   // int64 (distinct,): how often each occurs; undefined unless asked for
};
/// Returns the distinct elements of x, of any shape, as one dimension; always sorted. nan differs from nan. Waits for a device: the
/// result's size depends on the data. Not differentiable.
UniqueResult unique(In x, bool sorted = true, bool return_inverse = false, bool return_counts = false);
/// Returns one element for each run of equal neighbours in the flattened x, unsorted: a value occurs again if it begins a new run.
UniqueResult unique_consecutive(In x, bool return_inverse = false, bool return_counts = false);
#endif

}  // namespace tapir
