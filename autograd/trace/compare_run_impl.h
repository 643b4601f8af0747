#pragma once

#include <string>

#include "tapir/autograd/trace/graph/graph.h"

namespace tapir::detail {

/// How the ops of a program that ran for these sizes differ from those of its graph. Empty: they do not; where a size is 1, for which ops do
/// without much, the numbers, constants and parameters that they are given do not.
std::string difference_from_run(const Graph& graph, const Graph& run, const DimSizes& sizes, const Loc& loc);

}  // namespace tapir::detail
