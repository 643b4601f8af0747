// Checks that a node is one that passes and exporters can work with.
#pragma once

#include <string>

#include "tapir/autograd/trace/graph/graph.h"

namespace tapir::detail {

/// Says what no call of the op has: "add has 1 operands, and needs 2". "": nothing. Passes and runs count on that, in Tapir::runtime too.
std::string what_is_wrong_with_call(const Graph::Node& node);
/// Also what the rule of the op says (result_types.h), which Tapir::runtime lacks: "exp gives (2, 3), not (2, 4)", or what the op refuses. Sizes that
/// are no numbers are looked at when the graph is run.
std::string what_is_wrong_with(const Graph::Node& node, const Loc& loc);
/// Throws ShapeError, with the op's line, if result k does not have the shape that the graph states although all operands do: the text was wrong.
/// If these sizes depend on names, the tracer's formula may not hold for all sizes, and the op's result counts.
void check_result(const Graph::Node& node, std::size_t k, const Tensor& y, const Tensor* const* operands, const Loc& loc);

}  // namespace tapir::detail
