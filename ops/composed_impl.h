// Ops that are made of others, which are recorded in their place.
#pragma once

#include "tapir/autograd/op.h"

namespace tapir {

/// The rule of such an op in the table: never called.
void Composed(Backward& b);

}  // namespace tapir
