// Dropout (Srivastava et al. 2014).
#pragma once

#include "tapir/core/generator.h"
#include "tapir/core/tensor.h"

namespace tapir {

/// Sets elements to zero with probability p, else to x / (1 - p); x itself when not training. Throws ValueError for p outside [0, 1].
Tensor dropout(In x, double p = 0.5, bool training = true);
Tensor dropout(In x, double p, bool training, Generator& generator);

}  // namespace tapir
