// Dead code: visits nodes from the last to the first, so that nodes used by dead nodes only are dead too.
#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/passes/rewrite_impl.h"

namespace tapir {

int eliminate_dead_code(Graph& graph) {
    const int nested = rewrite::in_nested(graph, eliminate_dead_code);
    std::vector<const Graph::Value*> kept;
    for (const Graph::Output& output : graph.outputs()) kept.push_back(output.value);
    for (const Graph::Update& update : graph.updates()) kept.push_back(update.value);
    for (const Graph::Guard& guard : graph.guards()) kept.push_back(guard.value);
    for (const auto& node : graph.nodes()) {
        if (node->attributes().is_random()) kept.insert(kept.end(), node->results.begin(), node->results.end());
    }
    return nested + graph.sweep(kept);
}

}  // namespace tapir
