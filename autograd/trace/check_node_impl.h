// Whether a node is one that passes and exporters can look at.
#pragma once

#include <string>

#include "tapir/autograd/trace/graph.h"

namespace tapir::detail {

/// "add has 1 operands, and needs 2": what no call of the op has, of operands and numbers of dimensions. "": nothing is.
/// Sizes and dtypes are not looked at.
std::string what_is_wrong_with(const Graph::Node& node);
/// "exp gives (2, 3), not (2, 4)", of a node with which nothing else is wrong: where both are numbers and the op's name tells. Others are
/// found when the graph is run.
std::string what_is_missized(const Graph::Node& node);
/// Whether a tensor is of the shape that the graph states, for these sizes of its dimensions; those that are not known count as they are.
/// A result that is not was misstated by who wrote the graph, unless the program has put parameters of other shapes in their places.
bool is_as_stated(const Graph::Value& value, const Tensor& y, const DimSizes& sizes);
/// Throws ShapeError: result k is not.
[[noreturn]] void fail_stated(const Graph::Node& node, std::size_t k, const Tensor& y, const Loc& loc);

}  // namespace tapir::detail
