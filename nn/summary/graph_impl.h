// Converts a tape, and a traced graph, to TensorFlow's GraphDef, which TensorBoard draws.
#pragma once

#include "tapir/autograd/tape.h"
#include "tapir/nn/summary/wire_impl.h"

namespace tapir {
class Graph;
}

namespace tapir::summary {

/// See Note [Names in the graph] in graph.cpp.
Message graph_of(const Tape& tape);
Message graph_of(const Graph& graph);

}  // namespace tapir::summary
