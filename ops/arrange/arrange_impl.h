// Ops that other ops are made of; messages name the op that was called.
#pragma once

#include "tapir/ops/join/join.h"

namespace tapir::detail {

/// cat() with messages that begin with `op`.
Tensor cat_of(const char* op, const TensorList& tensors, int dim);
/// repeat() with messages that begin with `op`.
Tensor repeat_of(const char* op, const In& x, const Shape& times);

}  // namespace tapir::detail
