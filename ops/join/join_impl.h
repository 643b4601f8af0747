// Parts of stack() for batch().
#pragma once

#include "tapir/ops/join/join.h"

namespace tapir {

/// Records `together`, which holds the tensors one behind the other, as stack(tensors).
void record_stack(const TensorList& tensors, const Tensor& together);

}  // namespace tapir
