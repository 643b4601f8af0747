// Graph::parse() with the options that files need.
#pragma once

#include "tapir/autograd/trace/graph/graph.h"

namespace tapir::detail {

struct ReadOptions {
    bool makes_zeros = false;  // parameters and constants that are neither given nor in the text become zeros; otherwise that is an error
    bool checks = true;        // false, for tests of later stages: calls may be ones that their op does not take
};
Graph read_graph(std::string_view text, const Graph::Inputs& data, const ReadOptions& options, const Loc& loc);

}  // namespace tapir::detail
