// Describes why a state does not fit a module.
#pragma once

#include <string>

#include "tapir/core/named_tensor.h"
#include "tapir/nn/module.h"

namespace tapir::nn {

struct StateDiff {
    /// A line for each name that is missing, unexpected (both unless strict is false) or of another shape, with names that are
    /// nearly right beside the missing ones; "" if all fits. Each line begins with a line break.
    std::string text;
    IncompatibleKeys keys;
};

StateDiff state_diff(const NamedTensors& own, const NamedTensors& state, bool strict);

/// The value of "format" in the metadata of TrainingState's files.
inline constexpr char kTrainingStateFormat[] = "tapir training state 1";

/// Returns the part of a TrainingState's file that has all of a module's tensors, in their shapes; "" if none has.
std::string part_that_fits(const NamedTensors& own, const NamedTensors& file);

}  // namespace tapir::nn
