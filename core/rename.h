// Renames the tensors of a state, for files of weights whose names are not those of the model that they go into.
//
//     nn::load(model, "bert.safetensors", {.rename = replace_prefix("bert.encoder.", "encoder.")});
//     model.load_state_dict(rename(load_safetensors("old.safetensors"), {{"out.weight", "head.weight"}}));
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tapir/core/arguments.h"
#include "tapir/core/named_tensor.h"
#include "tapir/core/std_function.h"

namespace tapir {

/// Returns a name's new form; "" leaves the tensor out.
using Rename = std::function<std::string(const std::string& name)>;

/// Takes `prefix` off the names that begin with it.
Rename strip_prefix(TextArg prefix);
/// Like strip_prefix(), but leaves out the names without the prefix. Picks one part of what TrainingState has saved.
Rename only_prefix(TextArg prefix);
/// Replaces `prefix` by `to` in the names that begin with it.
Rename replace_prefix(TextArg prefix, TextArg to);
/// Removes the prefixes that PyTorch adds to the names of a wrapped model: "module." (DataParallel, DistributedDataParallel) and
/// "_orig_mod." (torch.compile).
Rename strip_wrappers();

/// Returns the tensors under their new names. Throws ValueError if two would have the same name.
NamedTensors rename(NamedTensors tensors, const Rename& to, Loc loc = Loc::current());
/// Overload for pairs of an old and a new name; all other names stay. Throws ValueError for an old name that is not there.
NamedTensors rename(NamedTensors tensors, const std::vector<std::pair<std::string, std::string>>& names, Loc loc = Loc::current());

}  // namespace tapir
