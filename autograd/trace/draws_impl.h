// The order in which a graph draws random numbers, which passes that move nodes keep.
#pragma once

#include <unordered_map>

#include "tapir/autograd/trace/graph.h"

namespace tapir::detail {

/// How many nodes before each draw: what becomes one node must lie between the same two draws, or these could change places.
inline std::unordered_map<const Graph::Node*, int> draws_before(const Graph& graph) {
    std::unordered_map<const Graph::Node*, int> counts;
    int draws = 0;
    for (const auto& node : graph.nodes()) {
        draws += node->attributes.is_random();
        counts[node.get()] = draws;
    }
    return counts;
}

}  // namespace tapir::detail
