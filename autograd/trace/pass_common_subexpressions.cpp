// Common subexpressions: nodes by what they compute, in the order in which they run.
#include <cstring>
#include <map>
#include <string>
#include <tuple>

#include "tapir/autograd/trace/passes.h"
#include "tapir/core/thread_impl.h"

namespace tapir {
namespace {

constexpr std::int64_t kCompared = 1 << 16;  // elements: larger constants are told apart by their tensors

int join_constants(Graph& graph) {
    const detail::PauseRecording pause;
    std::map<std::tuple<DType, std::string, std::string>, Graph::Value*> known;
    int changes = 0;
    for (Graph::Value* value : graph.constants()) {
        if (!value->name.empty() || value->data.numel() > kCompared || value->uses.empty()) continue;
        const Tensor x = value->data.to(cpu).contiguous();
        std::string bytes(static_cast<const char*>(x.raw_data()), x.nbytes());
        const auto [place, is_new] = known.try_emplace({value->dtype, to_string(Attribute(value->shape)) + to_string(Attribute(value->device)),
                                                        std::move(bytes)}, value);
        if (is_new) continue;
        graph.replace(value, place->second);
        ++changes;
    }
    return changes;
}

}  // namespace

int eliminate_common_subexpressions(Graph& graph) {
    int changes = join_constants(graph);
    std::map<std::string, Graph::Node*> known;
    for (const auto& node : graph.nodes()) {
        if (node->attributes.form().is_random) continue;
        std::string key = node->op;
        for (const Graph::Value* input : node->inputs) key += " %" + std::to_string(input->number);
        for (const auto& [name, value] : node->attributes.all()) key += " " + name + "=" + to_string(value);
        const auto [place, is_new] = known.try_emplace(std::move(key), node.get());
        if (is_new) continue;
        const Graph::Node& first = *place->second;
        for (std::size_t k = 0; k < node->results.size(); ++k) {
            if (node->results[k]->uses.empty()) continue;
            graph.replace(node->results[k], first.results[k]);
            ++changes;
        }
    }
    if (changes > 0) eliminate_dead_code(graph);
    return changes;
}

}  // namespace tapir
