// One graph of several runs of a program, each with other sizes of its named dimensions.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "tapir/autograd/trace/graph.h"

namespace tapir::detail {

struct JoinedGraph {
    Graph graph;
    std::set<std::string> guessed;  ///< dimensions whose formulas, quotients and squares, more sizes could show to be wrong
};

/// The graph whose sizes, of attributes, numbers and shapes, are formulas of the dimensions. samples: the sizes of each run, as
/// samples_of() gave them. Throws TapeError where the runs did different things, or no formula gives what they were told.
JoinedGraph join_graphs(std::vector<Graph> graphs, const std::vector<DimSizes>& samples, const Loc& loc);

}  // namespace tapir::detail
