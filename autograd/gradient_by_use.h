// What each use of a weight adds to its gradient.
#pragma once

#include <string>
#include <vector>

#include "tapir/core/tensor.h"

namespace tapir {

/// One op that used a tensor, and what came back to the tensor through it. Made by Tape::gradient_by_use().
struct GradientUse {
    std::size_t record;  ///< its number on the tape, as in Tape::print()
    const char* op;
    Loc loc;             ///< where the op was called
    std::string module;  ///< the path of the module that it ran for, or ""
    Tensor gradient;     ///< of the tensor's shape; those of all uses sum up to the tensor's gradient
    double norm;         ///< the gradient's 2-norm
};

/// A table with a bar for each use, on a logarithmic scale, and what becomes of the norms from the last use to the first: for a
/// weight of a recurrent model, whether its gradient vanishes or explodes over time.
std::string gradient_report(const std::vector<GradientUse>& uses);

}  // namespace tapir
