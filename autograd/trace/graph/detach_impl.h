// Where gradients stop in a graph (detach.cpp).
#pragma once

#include "tapir/autograd/trace/graph/graph.h"

namespace tapir::detail {

/// written: to what has a gradient, within a NoGradScope.
enum class GradientStop : std::uint8_t { none, detached, custom_function, written };

/// Of the node that stands for it.
const OpForm& form_of(GradientStop stop) noexcept;
/// Whether it is such a node's.
bool is_gradient_stop(const OpForm& form) noexcept;
/// Takes these nodes away: only_idle: those that no output needs, as those of an optimizer's updates; else all, for running.
void remove_gradient_stops(Graph& graph, bool only_idle);
/// How many NoGradScopes the thread has (autograd/tape.cpp).
int no_grad_depth() noexcept;
/// A tensor of x's elements to take gradients of, in a function that is traced; gradients of those flow on to x's.
Tensor traced_leaf(const Tensor& x, const Loc& loc);

}  // namespace tapir::detail
