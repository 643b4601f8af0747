// Graph::parse() with the options that files need.
#pragma once

#include "tapir/autograd/trace/graph/graph.h"

namespace tapir::detail {

struct ReadOptions {
    bool makes_zeros = false;  // parameters and constants that are neither given nor in the text become zeros; otherwise that is an error
    enum class Checks { none, calls, rules } checks = Checks::rules;  // what_is_wrong_with(); less for tests of what comes after
};
Graph read_graph(std::string_view text, const Graph::Inputs& data, const ReadOptions& options, const Loc& loc);

}  // namespace tapir::detail
