// The groups of rules of simplify(). Each goes over the graph once and returns the number of rules that changed something.
// allow_nonfinite: see PassOptions.
#pragma once

#include "tapir/autograd/trace/passes/rewrite_impl.h"

namespace tapir::rewrite {

/// Element-wise ops, softmax and dtypes.
int simplify_arithmetic(Graph& graph, bool allow_nonfinite);
/// Copies into tensors whose old elements do not matter.
int simplify_overwriting(Graph& graph);
/// These copies, transposes, reshapes, expansions, slices, and other copies.
int simplify_views(Graph& graph);
/// Sums, means and the like.
int simplify_reductions(Graph& graph, bool allow_nonfinite);

}  // namespace tapir::rewrite
