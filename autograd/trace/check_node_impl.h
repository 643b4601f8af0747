// Whether a node is one that passes and exporters can look at.
#pragma once

#include <string>

#include "tapir/autograd/trace/graph.h"

namespace tapir::detail {

/// "add has 1 operands, and needs 2": what no call of the op has, of operands and numbers of dimensions. "": nothing is.
/// Sizes and dtypes are not looked at: running the graph finds these.
std::string what_is_wrong_with(const Graph::Node& node);

}  // namespace tapir::detail
