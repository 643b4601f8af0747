#pragma once

#include <string>
#include <vector>

#include "tapir/autograd/trace/graph/graph.h"
#include "tapir/autograd/traced_function.h"

namespace tapir::detail {

/// Describes how a graph and its program differ in results and writes for these inputs. Empty: no difference, or the program does not take
/// these inputs. is_model: also empty if the graph does not take them; only outputs are compared then, and nothing else is held.
std::string difference_from_program(const Graph& graph, const TracedFunction& fn, const std::vector<Tensor>& inputs, bool is_model, const Loc& loc);

}  // namespace tapir::detail
