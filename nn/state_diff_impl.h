// What is wrong with a state that does not fit a module, in words.
#pragma once

#include <string>

#include "tapir/core/named_tensor.h"

namespace tapir::nn {

/// One line for each name that is missing, unexpected (both unless strict is false) or of another shape, with names that are nearly
/// right beside the missing ones; "" when all fits. Each begins with a line break.
std::string state_diff(const NamedTensors& own, const NamedTensors& state, bool strict);

}  // namespace tapir::nn
