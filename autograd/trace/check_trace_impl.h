#pragma once

#include <string>
#include <vector>

#include "tapir/autograd/trace/graph/graph.h"
#include "tapir/autograd/traced_function.h"

namespace tapir::detail {

/// How a graph and its program differ in what they give and write for these inputs. Empty: they do not, or the program does not take
/// these inputs. is_model: or the graph does not; only outputs are compared then, and nothing else is held.
std::string difference_from_program(const Graph& graph, const TracedFunction& fn, const std::vector<Tensor>& inputs, bool is_model, const Loc& loc);

}  // namespace tapir::detail
