// Copies and conversions; most are methods of Tensor (clone, to, contiguous, copy_, fill_).
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

Tensor clone(In x);  ///< copies the elements to memory of their own
Tensor contiguous(In x);
/// Converts x to another dtype; returns x itself if it has that already. Floats become integers by truncation; nan and values
/// out of range become the smallest integer.
Tensor to(In x, DType dtype);
/// Moves x to another device; see Tensor::to(). Throws DeviceError if that does not exist.
Tensor to(In x, Device device, bool non_blocking = false);
/// Copies x to page-locked memory; see Tensor::pin_memory().
Tensor pin_memory(In x);

}  // namespace tapir
