// A convolution in a graph that runs, with what follows it.
#pragma once

#include "tapir/autograd/attributes.h"

namespace tapir {

/// The number by which fused_convolution knows an element-wise op that can end it; 0: it cannot.
int ending_of(const OpForm& form) noexcept;
/// Returns the attributes of a fused_convolution: those of the convolution `of`, then perhaps the addition of one more operand, of the result's
/// shape, then perhaps an element-wise op. keeps_weight: nobody writes to the weight without raising its version.
Attributes fused_convolution(const Attributes& of, bool has_addend, int ending, bool keeps_weight);

}  // namespace tapir
