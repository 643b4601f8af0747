// Ops that others are made of, in the name of these.
#pragma once

#include "tapir/ops/join/join.h"

namespace tapir::detail {

/// cat(), whose messages begin with `op`.
Tensor cat_of(const char* op, const TensorList& tensors, int dim);
/// repeat(), whose messages begin with `op`.
Tensor repeat_of(const char* op, const In& x, const Shape& times);

}  // namespace tapir::detail
