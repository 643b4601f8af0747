// Nodes that stop gradients in a graph (detach.cpp).
#pragma once

#include "tapir/autograd/trace/graph/graph.h"

namespace tapir::detail {

/// written: a write to a tensor that has a gradient, within a NoGradScope.
enum class GradientStop : std::uint8_t { none, detached, custom_function, written };

/// The form of the node that stands for it.
const OpForm& form_of(GradientStop stop) noexcept;
/// True for the form of such a node.
bool is_gradient_stop(const OpForm& form) noexcept;
/// Removes these nodes. only_idle: those that no output needs, as in an optimizer's updates; else all, for running.
void remove_gradient_stops(Graph& graph, bool only_idle);
/// The number of NoGradScopes of the thread (autograd/tape.cpp).
int no_grad_depth() noexcept;
/// Makes a tensor of x's elements for taking gradients of, in a function that is traced; gradients of those flow on to x's.
Tensor traced_leaf(const Tensor& x, const Loc& loc);

}  // namespace tapir::detail
