// What is wrong with a state that does not fit a module, in words.
#pragma once

#include <string>

#include "tapir/core/named_tensor.h"
#include "tapir/nn/module.h"

namespace tapir::nn {

struct StateDiff {
    /// One line for each name that is missing, unexpected (both unless strict is false) or of another shape, with names that are
    /// nearly right beside the missing ones; "" when all fits. Each begins with a line break.
    std::string text;
    IncompatibleKeys keys;
};

StateDiff state_diff(const NamedTensors& own, const NamedTensors& state, bool strict);

/// What the files of TrainingState have as "format" in their metadata.
inline constexpr char kTrainingStateFormat[] = "tapir training state 1";

/// The name of the part of a TrainingState's file that has all of a module's tensors, in their shapes; "" where none has.
std::string part_that_fits(const NamedTensors& own, const NamedTensors& file);

}  // namespace tapir::nn
