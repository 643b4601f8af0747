// What each use of a weight adds to its gradient.
#pragma once

#include <string>
#include <vector>

#include "tapir/core/tensor.h"

namespace tapir {

/// One op that used a tensor, and what came back to the tensor through it. Made by Tape::gradient_by_use().
struct GradientUse {
    std::size_t record;  ///< its number on the tape, as in Tape::print(); in a checkpoint's function that of the checkpoint
    const char* op;
    Loc loc;             ///< where the op was called
    std::string module;  ///< the path of the module that it ran for, or ""
    Tensor gradient;     ///< of the tensor's shape; those of all uses sum up to the tensor's gradient
    double norm;         ///< the gradient's 2-norm
    /// How many other uses the gradient has come through, on the longest way from the result to this one. What uses views, copies
    /// or conversions of the tensor uses it. Where an op changes it at each step, as a mask or a factor in matmul(h, w * mask), that
    /// op is the use: the gradient comes to it past the others, and all of them have depth 0.
    int depth = 0;
};

/// A table with a bar for each use, on a logarithmic scale; and, where uses lie behind each other, what becomes of the largest norm
/// of a depth from the uses next to the result to the deepest ones: for a recurrent weight of a sequence or a tree, whether its
/// gradient vanishes or explodes on the way down. Where no use lies behind another, as with a weight that only inputs meet, or
/// where they are different ops or lines, nothing is said of that.
std::string gradient_report(const std::vector<GradientUse>& uses);

}  // namespace tapir
