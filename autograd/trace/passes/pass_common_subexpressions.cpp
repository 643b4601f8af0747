// Common subexpressions: compares nodes by what they compute, in running order.
#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>

#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/passes/rewrite_impl.h"
#include "tapir/core/format.h"
#include "tapir/core/thread_impl.h"

namespace tapir {
namespace {

constexpr std::int64_t kCompared = 1 << 16;  // elements: larger constants are compared by their tensors

int join_constants(Graph& graph) {
    const detail::PauseRecording pause;
    std::map<std::tuple<DType, std::string, std::string>, Graph::Value*> known;
    int changes = 0;
    for (Graph::Value* value : graph.constants()) {
        if (!value->name.empty() || value->data.numel() > kCompared || value->uses.empty()) continue;
        const Tensor x = value->data.to(cpu).contiguous();
        std::string bytes(static_cast<const char*>(x.raw_data()), x.nbytes());
        const auto [place, is_new] =
            known.try_emplace({value->dtype, to_string(Attribute(value->shape)) + to_string(Attribute(value->device)), std::move(bytes)}, value);
        if (is_new || rewrite::is_seen(graph, value)) continue;
        graph.replace(value, place->second);
        ++changes;
    }
    return changes;
}

// A key that is equal for nodes that compute the same.
std::string key_of(const Graph::Node& node) {
    std::vector<int> inputs;
    for (const Graph::Value* input : node.inputs) inputs.push_back(input->number);
    if (node.form().is_commutative) std::sort(inputs.begin(), inputs.end());
    std::string key(node.op());
    for (const int input : inputs) key += " %" + std::to_string(input);
    for (const auto& [name, value] : node.attributes().all()) {
        const auto* nested = std::get_if<std::shared_ptr<const Graph>>(&value);
        key += " " + name + "=" + (nested ? fmt::format("{}", static_cast<const void*>(nested->get())) : to_string(value));
    }
    for (const Graph::Value* result : node.results) key += std::string(" ") + name(result->dtype);
    return key;
}

// Sizes without a formula have a different name in each place.
bool is_alike(const Graph::Value& a, const Graph::Value& b) { return a.dtype == b.dtype && a.device == b.device && a.shape == b.shape; }

}  // namespace

int eliminate_common_subexpressions(Graph& graph) {
    int changes = rewrite::in_nested(graph, eliminate_common_subexpressions) + join_constants(graph);
    std::unordered_map<std::string, Graph::Node*> known;
    std::vector<Graph::Node*> nodes;
    for (const auto& node : graph.nodes()) nodes.push_back(node.get());
    for (Graph::Node* node : nodes) {
        if (node->attributes().is_random()) continue;
        const auto [place, is_new] = known.try_emplace(key_of(*node), node);
        if (is_new) continue;
        const Graph::Node& first = *place->second;
        for (std::size_t k = 0; k < node->results.size(); ++k) {
            Graph::Value* result = node->results[k];
            const bool is_needed = !result->uses.empty() || rewrite::is_output(graph, result);
            // Two outputs stay two tensors.
            if (!is_needed || !is_alike(*result, *first.results[k]) || (node->inputs.empty() && rewrite::is_seen(graph, result))) continue;
            changes += rewrite::take_place(graph, *node, result, first.results[k]);
        }
    }
    if (changes > 0) eliminate_dead_code(graph);
    return changes;
}

}  // namespace tapir
