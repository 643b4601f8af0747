// Finds parameters that a model uses but members() does not name, so that they are not trained, saved or moved.
//
//     Tape tape;
//     Tensor loss = cross_entropy(model(x), y);
//     nn::check_members(model, tape);             // throws ValueError: ... (5, 20) first used at model.cpp:12
#pragma once

#include <string>
#include <vector>

#include "tapir/autograd/tape.h"
#include "tapir/nn/module.h"

namespace tapir::nn {

/// A leaf that ops on a tape have used.
struct ForgottenLeaf {
    Tensor leaf;
    Loc first_used;      ///< the line of the op that used it first
    std::string module;  ///< the module that used it, "encoder.cell"; see ModuleScope
};

/// Returns the leaves with requires_grad() that ops on the tape have used and that are no parameters or buffers of the model, in the order
/// of their first uses. `others` are tensors that need not belong to the model: inputs whose gradients are wanted, another model's parameters.
std::vector<ForgottenLeaf> forgotten_leaves(const Module& model, const Tape& tape, const std::vector<Tensor>& others = {});

/// Throws ValueError that lists the forgotten leaves, if there are any. Call it once, after the first forward pass.
void check_members(const Module& model, const Tape& tape, const std::vector<Tensor>& others = {}, Loc loc = Loc::current());

}  // namespace tapir::nn
