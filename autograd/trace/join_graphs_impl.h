// One graph of several runs of a program, each with other sizes of its named dimensions.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "tapir/autograd/trace/graph/graph.h"

namespace tapir::detail {

/// Whether a value is the same in two runs of one program: the same input, result or constant, by their numbers, or the same parameter.
inline bool is_same_in_runs(const Graph::Value& a, const Graph::Value& b) {
    if (a.number != b.number || a.kind != b.kind) return false;
    return a.kind != Graph::Kind::parameter || a.data.is_same(b.data);
}

struct JoinedGraph {
    Graph graph;
    std::set<std::string> guessed;  ///< dimensions whose formulas, quotients and squares, more sizes could show to be wrong
};

/// The graph whose sizes, of attributes, numbers and shapes, are formulas of the dimensions. samples: the sizes of each run, as
/// samples_of() gave them, or these and many more: then formulas are looked for that divide sizes, as strides do. Throws TapeError where the
/// runs did different things, or no formula gives what they were told.
JoinedGraph join_graphs(std::vector<Graph> graphs, const std::vector<DimSizes>& samples, const Loc& loc, bool many_samples = false);

}  // namespace tapir::detail
