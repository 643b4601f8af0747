// Whether a node is one that passes and exporters can look at.
#pragma once

#include <string>

#include "tapir/autograd/trace/graph/graph.h"

namespace tapir::detail {

/// "add has 1 operands, and needs 2": what no call of the op has, of operands and numbers of dimensions. "": nothing is.
/// Sizes and dtypes are not looked at.
std::string what_is_wrong_with(const Graph::Node& node);
/// Whether they are the same, as far as they are numbers.
bool may_be_alike(const std::vector<SymInt>& a, const std::vector<SymInt>& b);
/// "exp gives (2, 3), not (2, 4)", of a node with which nothing else is wrong: where both are numbers and the op's name tells. Others are
/// found when the graph is run.
std::string what_is_missized(const Graph::Node& node);
/// Throws ShapeError, with the op's line, where result k is not of the shape that the graph states though all operands are: a text has lied.
/// Where their sizes depend on names, the tracer may have found a formula that does not hold for all sizes, and what the op gives counts.
void check_result(const Graph::Node& node, std::size_t k, const Tensor& y, const Tensor* const* operands, const Loc& loc);

}  // namespace tapir::detail
