// Copies and conversions; most are methods of Tensor (clone, to, contiguous, copy_, fill_).
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

Tensor clone(In x);  ///< the same elements in memory of their own
Tensor contiguous(In x);
/// x converted to another dtype; itself when it has that already. Floats become integers by truncation; nan and what is
/// out of range become the smallest integer.
Tensor to(In x, DType dtype);
/// x on another device; see Tensor::to(). Throws DeviceError when that is not there.
Tensor to(In x, Device device, bool non_blocking = false);
/// A copy in page-locked memory; see Tensor::pin_memory().
Tensor pin_memory(In x);

}  // namespace tapir
