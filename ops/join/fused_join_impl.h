// Images joined along their channels in a graph that runs, with the batch normalisation and the activation behind that.
#pragma once

#include "tapir/autograd/attributes.h"

namespace tapir {

/// Returns the attributes of a fused_join of so many pieces. norm: those of a batch_norm by running statistics, whose operands follow the
/// pieces: its running mean and variance, and perhaps weight and bias; null for none. has_relu: relu comes last.
Attributes fused_join(int pieces, const Attributes* norm, bool has_relu);

}  // namespace tapir
