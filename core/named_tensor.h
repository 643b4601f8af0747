// Tensors with names, in order: what a module's state_dict() is, and what a file of weights holds.
#pragma once

#include <string>
#include <vector>

#include "tapir/core/tensor.h"

namespace tapir {

struct NamedTensor {
    std::string name;
    Tensor tensor;
};
using NamedTensors = std::vector<NamedTensor>;

}  // namespace tapir
