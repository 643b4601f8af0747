// grad: the gradient of a graph, as a graph.
#pragma once

#include "tapir/autograd/trace/graph/graph.h"

namespace tapir {

/// Returns the graph with one more output "grad_NAME" for each of `inputs`, which are names of its inputs and parameters: the gradient of
/// the sum of all elements of `outputs` (of all of them together). It is zeros for an input that they do not depend on. The result can be
/// differentiated again: grad(grad(graph, {"loss"}, {"x"}), {"grad_x"}, {"x"}) has an output "grad_x_2". Updates and guards stay.
/// This runs the graph on made-up inputs, or on these examples, by name: give examples if its loops would not end, or its ops refuse the
/// made-up ones (0.5 and, in square matrices, more on the diagonal; ones for whole numbers). Parameters and the default generator stay as
/// they are. Throws ValueError for names that the graph does not have or that are given twice, or if its loops do not end on made-up
/// inputs (10000 turns), ShapeError and DTypeError for examples that do
/// not fit, TapeError if no gradient flows to any of them, or if an op has no rule that a graph can hold; else what the ops throw.
Graph grad(const Graph& graph, const std::vector<std::string>& outputs, const std::vector<std::string>& inputs, const Graph::Inputs& examples = {},
           Loc loc = Loc::current());

}  // namespace tapir
