// Passes: what makes a graph smaller or faster without changing what it computes, beyond rounding.
//
//     optimize(graph);
//
// Each changes the graph in place and gives how many changes it made. Sizes of inputs, outputs, and what is written to parameters stay.
#pragma once

#include "tapir/autograd/trace/graph.h"

namespace tapir {

/// Takes away what no output, update or guard needs.
int eliminate_dead_code(Graph& graph);
/// One node for several of the same op, inputs and attributes; one constant for several of the same elements. Random ops stay.
int eliminate_common_subexpressions(Graph& graph);
/// Computes what depends on constants only, where the result has at most `most_elements`. Parameters are no constants: they may be trained.
int fold_constants(Graph& graph, std::int64_t most_elements = 1 << 20);
/// Algebra: c*a + c*b -> c*(a + b), x*1, x/1, x + 0, x - 0, -(-x), pairs of transpose and permute, chains of reshape, reshape, expand, slice and to_dtype
/// that change nothing, log(softmax(x)) -> log_softmax(x), pow(x, 2) -> square(x), pow(x, 0.5) -> sqrt(x), sums of one element.
int simplify(Graph& graph);
/// All of them, again and again until nothing changes.
void optimize(Graph& graph);

}  // namespace tapir
