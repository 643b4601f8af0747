// Graph::parse() with what files need beside it.
#pragma once

#include "tapir/autograd/trace/graph/graph.h"

namespace tapir::detail {

/// makes_zeros: parameters and constants that are neither given nor in the text are zeros, else that is an error.
Graph read_graph(std::string_view text, const Graph::Inputs& data, bool makes_zeros, const Loc& loc);

}  // namespace tapir::detail
