// Lets maximum pooling leave out indices that nobody wants.
#include "tapir/autograd/op_form.h"
#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/passes/rewrite_impl.h"
#include "tapir/ops/forms_impl.h"

namespace tapir {

int drop_pool_indices(Graph& graph, const std::function<bool(const Graph::Node&)>& takes) {
    std::vector<Graph::Joined> without;
    for (const auto& node : graph.nodes()) {
        if (!node->is(max_pool_form) || node->inputs[0]->device != cpu || (takes && !takes(*node))) continue;
        const Graph::Value* const indices = node->results[1];
        if (!indices->uses.empty() || rewrite::is_output(graph, indices)) continue;
        Attributes attributes(max_pool_values_form);
        for (const auto& [name, value] : node->attributes().all()) attributes.set(name, value);
        without.push_back({{node.get()}, std::move(attributes), node->inputs, {node->results[0]}});
    }
    return rewrite::join(graph, std::move(without));
}

}  // namespace tapir
