// Constant folding: nodes whose inputs are constants are run.
#include <algorithm>

#include "tapir/autograd/trace/passes.h"
#include "tapir/core/autocast_impl.h"
#include "tapir/core/thread_impl.h"

namespace tapir {

int fold_constants(Graph& graph, std::int64_t most_elements) {
    const detail::PauseRecording pause;
    const detail::PauseAutocast plain;
    int changes = 0;
    for (const auto& node : graph.nodes()) {
        if (node->attributes.form().is_random || node->attributes.is_symbolic()) continue;
        const auto is_constant = [](const Graph::Value* value) { return value->kind == Graph::Kind::constant; };
        if (!std::all_of(node->inputs.begin(), node->inputs.end(), is_constant)) continue;
        const auto numel = [](const Graph::Value* value) {
            std::int64_t product = 1;
            for (const SymInt& size : value->shape) product *= size.is_number() ? size.number() : 0;
            return product;
        };
        const bool fits = std::all_of(node->results.begin(), node->results.end(), [&](const Graph::Value* result) {
            const bool is_known = std::all_of(result->shape.begin(), result->shape.end(), [](const SymInt& size) { return size.is_number(); });
            return is_known && numel(result) <= most_elements;
        });
        if (!fits) continue;
        std::vector<const Tensor*> inputs;
        for (const Graph::Value* input : node->inputs) inputs.push_back(&input->data);
        std::vector<Tensor> results(256);
        const CallerScope caller(node->loc);
        node->attributes.form().run({inputs.data(), static_cast<int>(inputs.size()), node->attributes.data()}, results.data());
        for (std::size_t k = 0; k < node->results.size(); ++k) {
            // A view would keep all of what it is a view of.
            const Tensor data = results[k].to(node->results[k]->dtype).clone();
            graph.replace(node->results[k], graph.add_constant(data));
        }
        ++changes;
    }
    if (changes > 0) eliminate_dead_code(graph);
    return changes;
}

}  // namespace tapir
