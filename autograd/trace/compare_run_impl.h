#pragma once

#include <string>

#include "tapir/autograd/trace/graph/graph.h"

namespace tapir::detail {

/// Describes how the ops of a program that ran for these sizes differ from those of its graph. Empty: no difference. For a size of 1, where
/// ops may skip work: empty if the numbers, constants and parameters that the ops are given do not differ.
std::string difference_from_run(const Graph& graph, const Graph& run, const DimSizes& sizes, const Loc& loc);

}  // namespace tapir::detail
