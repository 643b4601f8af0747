// What members() has forgotten: parameters that a model uses and does not name, so that nothing trains, saves or moves them.
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

/// A leaf that a tape has met.
struct ForgottenLeaf {
    Tensor leaf;
    Loc first_used;      ///< the line of the op that used it first
    std::string module;  ///< where that was, "encoder.cell"; see ModuleScope
};

/// The leaves with requires_grad() that ops on the tape have used, and that are no parameters or buffers of the model, in the order of
/// their first uses. `others`: what is to be none of the model's, as inputs whose gradients are wanted, and another model's parameters.
std::vector<ForgottenLeaf> forgotten_leaves(const Module& model, const Tape& tape, const std::vector<Tensor>& others = {});

/// Throws ValueError that lists them, if there are any. Call it once, after the first forward pass.
void check_members(const Module& model, const Tape& tape, const std::vector<Tensor>& others = {}, Loc loc = Loc::current());

}  // namespace tapir::nn
