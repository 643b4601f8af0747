// Ops that compare tensors as a whole or within a tolerance, and nan_to_num.
#pragma once

#include <optional>

#include "tapir/core/tensor.h"

namespace tapir {

#ifndef TAPIR_RUNTIME_ONLY
/// True where a == b, or |a - b| <= atol + rtol * |b| and finite; with equal_nan also where both are nan. Broadcasts; bool.
Tensor isclose(In a, In b, double rtol = 1e-5, double atol = 1e-8, bool equal_nan = false);
#endif
/// True if isclose holds everywhere. Waits for a device.
bool allclose(In a, In b, double rtol = 1e-5, double atol = 1e-8, bool equal_nan = false);
/// True if shapes are the same and all elements equal. Waits for a device.
bool equal(In a, In b);

#ifndef TAPIR_RUNTIME_ONLY
/// Replaces nan and infinities in x by numbers (unless given: the largest and the smallest finite number of x's dtype).
Tensor nan_to_num(In x, double nan = 0, std::optional<double> posinf = {}, std::optional<double> neginf = {});
#endif

}  // namespace tapir
