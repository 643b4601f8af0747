// Running a graph for a part of its batch at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "tapir/autograd/trace/graph/graph.h"

namespace tapir {

/// The attributes of in_slices: runs the body for slices of its first operands along dimension 0, and returns the results of all.
struct SliceAttrs {
    std::shared_ptr<const Graph> body;  // its inputs are the op's operands; each result has as many rows as the slices
    std::int64_t sliced = 0;            // the number of operands that are cut
    std::int64_t examples = 1;          // the most in a slice, for each thread
};

/// Replaces stretches of nodes that treat each example of the batch by itself by in_slices nodes, where the results of the whole batch do not fit
/// into the cache, and those of some examples do. The batch is dimension 0 of the first input. Results are equal up to rounding, since the
/// kernels get other shapes. For the CPU. Returns the number of stretches. compile() does this.
/// every: for tests: all that can be is cut into slices of so many examples, whatever it costs.
int slice_batch(Graph& graph, const std::function<bool(const Graph::Node&)>& takes = {}, std::int64_t every = 0);

}  // namespace tapir
