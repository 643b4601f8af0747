// Contributions of each use of a weight to its gradient.
#pragma once

#include <string>
#include <vector>

#include "tapir/core/tensor.h"

namespace tapir {

/// One op that used a tensor, and the gradient that the tensor got through it. Made by Tape::gradient_by_use().
struct GradientUse {
    std::size_t record;  ///< its number on the tape, as in Tape::print(); in a checkpoint's function, the checkpoint's number
    const char* op;
    Loc loc;             ///< where the op was called
    std::string module;  ///< the path of the module that it ran for, or ""
    Tensor gradient;     ///< of the tensor's shape; those of all uses add up to the tensor's gradient
    double norm;         ///< the gradient's 2-norm
    /// The number of other uses on the longest way of the gradient from the result to this use. An op on views, copies or conversions
    /// of the tensor uses it. If an op changes the tensor at each step, like the mask in matmul(h, w * mask), that op is the use: the
    /// gradient reaches it past the others, and all of them have depth 0.
    int depth = 0;
};

/// A table with a bar for each use, on a logarithmic scale. If uses lie behind each other, it also states how the largest norm of a
/// depth changes from the uses next to the result to the deepest ones: for a recurrent weight of a sequence or a tree, this tells if its
/// gradient vanishes or explodes on the way down. If no use lies behind another, like for a weight that only inputs meet, or
/// if they are different ops or lines, the table states nothing about that.
std::string gradient_report(const std::vector<GradientUse>& uses);

}  // namespace tapir
