// Algebraic simplification: rules in groups, over and over until none finds anything.
#include "tapir/autograd/trace/passes.h"
#include "tapir/autograd/trace/simplify_impl.h"

namespace tapir {

int simplify(Graph& graph) {
    constexpr int kMostRounds = 32;  // each makes the graph smaller or its ops cheaper, so that few are needed
    int changes = rewrite::in_nested(graph, simplify);
    for (int round = 0; round < kMostRounds; ++round) {
        const int more = rewrite::simplify_arithmetic(graph) + rewrite::simplify_views(graph) + rewrite::simplify_reductions(graph);
        if (more == 0) break;
        changes += more;
    }
    return changes;
}

}  // namespace tapir
