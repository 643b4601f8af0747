// Constant folding: runs nodes whose inputs are constants.
#include <algorithm>

#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/passes/rewrite_impl.h"
#include "tapir/core/autocast_impl.h"
#include "tapir/core/thread_impl.h"

namespace tapir {
namespace {

constexpr std::int64_t kMostOfOneNumber = 64;  // elements of a constant that are all equal: few enough for number_of() to detect that

bool is_foldable(const Graph& graph, const Graph::Node& node, std::int64_t most_elements) {
    if (node.attributes().is_random() || node.attributes().is_symbolic() || node.is(empty_form)) return false;
    if (node.attributes().has_graph()) return false;  // a loop in a branch that is never taken may not end
    const auto is_constant = [](const Graph::Value* value) { return value->kind == Graph::Kind::constant; };
    if (!std::all_of(node.inputs.begin(), node.inputs.end(), is_constant)) return false;
    // A result as large as an operand replaces it: a large weight times its scale is an additional weight only until the next pass.
    std::int64_t most = most_elements;
    for (const Graph::Value* input : node.inputs) most = std::max(most, input->data.numel());
    // The copy keeps an output apart from the graph's constants.
    if (node.is(clone_form) && rewrite::is_seen(graph, node.results[0])) return false;
    return std::all_of(node.results.begin(), node.results.end(), [&](const Graph::Value* result) {
        std::int64_t count = 1;
        for (const SymInt& size : result->shape) {
            if (!size.is_number()) return false;
            count *= size.number();
        }
        return count <= most && (count <= kMostOfOneNumber || !rewrite::number_of(result));
    });
}

// The node's results; empty if computing them fails, as it may in a branch that never runs.
std::vector<Tensor> results_of(const Graph::Node& node) {
    std::vector<const Tensor*> inputs;
    for (const Graph::Value* input : node.inputs) inputs.push_back(&input->data);
    std::vector<Tensor> results(detail::kMostResults);
    const CallerScope caller(node.loc);
    try {
        node.form().run({inputs.data(), static_cast<int>(inputs.size()), node.attributes().data()}, results.data());
        for (std::size_t k = 0; k < node.results.size(); ++k) {
            // A view would keep all of its base.
            results[k] = results[k].to(node.results[k]->device, node.results[k]->dtype).clone();
        }
    } catch (const Error&) {
        return {};
    }
    return results;
}

bool has_shape(const Tensor& x, const std::vector<SymInt>& shape) {
    const Shape own = x.shape();
    return std::equal(own.begin(), own.end(), shape.begin(), shape.end(),
                      [](std::int64_t size, const SymInt& wanted) { return wanted == SymInt(size); });
}

}  // namespace

int fold_constants(Graph& graph, std::int64_t most_elements) {
    const detail::PauseRecording pause;
    const detail::PauseAutocast plain;
    int changes = rewrite::in_nested(graph, [=](Graph& nested) { return fold_constants(nested, most_elements); });
    std::vector<Graph::Node*> nodes;
    for (const auto& node : graph.nodes()) nodes.push_back(node.get());
    for (Graph::Node* node : nodes) {
        if (!is_foldable(graph, *node, most_elements)) continue;
        const std::vector<Tensor> results = results_of(*node);
        bool fits = !results.empty();
        for (std::size_t k = 0; fits && k < node->results.size(); ++k) fits = has_shape(results[k], node->results[k]->shape);
        if (!fits) continue;
        for (std::size_t k = 0; k < node->results.size(); ++k) rewrite::take_place(graph, *node, node->results[k], graph.add_constant(results[k]));
        ++changes;
    }
    if (changes > 0) eliminate_dead_code(graph);
    return changes;
}

}  // namespace tapir
