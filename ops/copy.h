// Copies and conversions; most are methods of Tensor (clone, to, contiguous, copy_, fill_).
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

Tensor clone(In x);
Tensor contiguous(In x);
/// x converted to another dtype; itself when it has that already. Floats become integers by truncation; nan and what is
/// out of range become the smallest integer.
Tensor to(In x, DType dtype);
Tensor to(In x, Device device);

}  // namespace tapir
