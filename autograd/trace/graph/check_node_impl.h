// Whether a node is one that passes and exporters can look at.
#pragma once

#include <string>

#include "tapir/autograd/trace/graph/graph.h"

namespace tapir::detail {

/// What no call of the op has, of operands and of shapes, by the rule that it states (result_types.h): "add has 1 operands, and needs 2",
/// "exp gives (2, 3), not (2, 4)", or what the op refuses. "": nothing. Sizes that are no numbers are looked at when the graph is run.
std::string what_is_wrong_with(const Graph::Node& node);
/// Throws ShapeError, with the op's line, where result k is not of the shape that the graph states though all operands are: a text has lied.
/// Where their sizes depend on names, the tracer may have found a formula that does not hold for all sizes, and what the op gives counts.
void check_result(const Graph::Node& node, std::size_t k, const Tensor& y, const Tensor* const* operands, const Loc& loc);

}  // namespace tapir::detail
