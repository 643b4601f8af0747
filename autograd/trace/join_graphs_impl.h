// Joins several runs of a program, each with other sizes of its named dimensions, into one graph.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "tapir/autograd/trace/graph/graph.h"

namespace tapir::detail {

/// True if a value is the same in two runs of one program: the same input, result or constant, by number, or the same parameter.
inline bool is_same_in_runs(const Graph::Value& a, const Graph::Value& b) {
    if (a.number != b.number || a.kind != b.kind) return false;
    return a.kind != Graph::Kind::parameter || a.data.is_same(b.data);
}

struct JoinedGraph {
    Graph graph;
    std::set<std::string> guessed;  ///< dimensions with formulas (quotients, squares) that further sizes could refute
};

/// Returns the graph whose sizes (attributes, numbers, shapes) are formulas of the dimensions. samples: the sizes of each run, from
/// samples_of(), or many more: then formulas that divide sizes, as strides do, are tried too. Throws TapeError if the runs did different
/// things, or if no formula gives the arguments of the ops.
JoinedGraph join_graphs(std::vector<Graph> graphs, const std::vector<DimSizes>& samples, const Loc& loc, bool many_samples = false);

}  // namespace tapir::detail
