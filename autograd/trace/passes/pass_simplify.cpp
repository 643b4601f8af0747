// Algebraic simplification: applies groups of rules until none changes anything.
#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/passes/simplify_impl.h"

namespace tapir {

int simplify(Graph& graph, const PassOptions& options) {
    constexpr int kMostRounds = 32;  // each makes the graph smaller or its ops cheaper, so that few are needed
    int changes = rewrite::in_nested(graph, [&](Graph& nested) { return simplify(nested, options); });
    for (int round = 0; round < kMostRounds; ++round) {
        const int more = rewrite::simplify_arithmetic(graph, options.allow_nonfinite) + rewrite::simplify_views(graph) +
            rewrite::simplify_reductions(graph, options.allow_nonfinite);
        if (more == 0) break;
        changes += more;
    }
    return changes;
}

}  // namespace tapir
