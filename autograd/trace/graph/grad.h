// grad: the gradient of a graph, as a graph.
#pragma once

#include "tapir/autograd/trace/graph/graph.h"

namespace tapir {

/// The graph, with an output "grad_NAME" more for each of `inputs`, which are names of its inputs and parameters: the gradient of the sum
/// of all elements of `outputs` (of their sum, where these are several). Of what they do not depend on it is zeros. It can be
/// differentiated again: grad(grad(graph, {"loss"}, {"x"}), {"grad_x"}, {"x"}) has an output "grad_x_2". Updates and guards stay.
/// The graph is run for it, on made-up inputs, or on these examples, by name: where its loops would not end, or its ops refuse what is
/// made up (0.5 and, in square matrices, more on the diagonal; ones among whole numbers). Parameters and the default generator stay as
/// they are. Throws ValueError for names that it does not have or that are given twice, or where its loops do not end on what is made
/// up (10000 turns), ShapeError and DTypeError for examples that do
/// not fit, TapeError where no gradient flows to any of them, or where an op has no rule that a graph can hold; else what the ops throw.
Graph grad(const Graph& graph, const std::vector<std::string>& outputs, const std::vector<std::string>& inputs, const Graph::Inputs& examples = {},
           Loc loc = Loc::current());

}  // namespace tapir
