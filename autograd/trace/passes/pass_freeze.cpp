// Freezing: for a model that is no longer trained.
#include <algorithm>

#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/passes/rewrite_impl.h"
#include "tapir/core/thread_impl.h"

namespace tapir {

int freeze(Graph& graph) {
    const detail::PauseRecording pause;
    int changes = rewrite::in_nested(graph, freeze);
    const std::vector<Graph::Value*> parameters = graph.parameters();
    for (Graph::Value* parameter : parameters) {
        const auto writes_to_it = [&](const Graph::Update& update) { return update.target == parameter; };
        if (std::any_of(graph.updates().begin(), graph.updates().end(), writes_to_it)) continue;
        graph.make_constant(parameter);
        parameter->data = parameter->data.detach().clone();  // the model may be trained further in its own memory
        ++changes;
    }
    return changes;
}

}  // namespace tapir
