// Freezing: a model that is not trained any more.
#include <algorithm>

#include "tapir/autograd/trace/passes.h"
#include "tapir/autograd/trace/rewrite_impl.h"

namespace tapir {

int freeze(Graph& graph) {
    int changes = rewrite::in_nested(graph, freeze);
    const std::vector<Graph::Value*> parameters = graph.parameters();
    for (Graph::Value* parameter : parameters) {
        const auto writes_to_it = [&](const Graph::Update& update) { return update.target == parameter; };
        if (std::any_of(graph.updates().begin(), graph.updates().end(), writes_to_it)) continue;
        graph.make_constant(parameter);
        ++changes;
    }
    return changes;
}

}  // namespace tapir
