// Other names for the tensors of a state: for files of weights whose names are not those of the model that they go into.
//
//     nn::load(model, "bert.safetensors", {.rename = replace_prefix("bert.encoder.", "encoder.")});
//     model.load_state_dict(rename(load_safetensors("old.safetensors"), {{"out.weight", "head.weight"}}));
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tapir/core/arguments.h"
#include "tapir/core/named_tensor.h"

namespace tapir {

/// Gives a name's new form; "" leaves the tensor out.
using Rename = std::function<std::string(const std::string& name)>;

/// Takes `prefix` off the names that begin with it.
Rename strip_prefix(TextArg prefix);
/// The same, and leaves out the names that do not begin with it: one part of what TrainingState has saved.
Rename only_prefix(TextArg prefix);
/// Puts `to` in the place of `prefix` where names begin with it.
Rename replace_prefix(TextArg prefix, TextArg to);
/// Takes off what PyTorch puts in front of the names of a wrapped model: "module." (DataParallel, DistributedDataParallel) and
/// "_orig_mod." (torch.compile).
Rename strip_wrappers();

/// The tensors under their new names. Throws ValueError where two would have one.
NamedTensors rename(NamedTensors tensors, const Rename& to, Loc loc = Loc::current());
/// Pairs of an old and a new name; all others stay. Throws ValueError for an old name that is not there.
NamedTensors rename(NamedTensors tensors, const std::vector<std::pair<std::string, std::string>>& names, Loc loc = Loc::current());

}  // namespace tapir
