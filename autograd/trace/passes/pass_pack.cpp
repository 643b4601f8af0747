// Packs weights of linear layers of one row in the layout that is read fastest.
#include <unordered_set>

#include "tapir/autograd/op_form.h"
#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/passes/rewrite_impl.h"
#include "tapir/ops/forms_impl.h"
#include "tapir/ops/linear/packed_linear_impl.h"

namespace tapir {
namespace {

using Value = Graph::Value;
using Node = Graph::Node;

// The limit for all such weights, which a run reads in turn. Beyond it, memory is slow enough that this layout is not faster.
constexpr std::size_t kMostBytes = 1024 * 1024;

bool is_of_one_row(const Node& node) {
    if (!node.is(linear_form) || node.inputs.size() < 2 || node.results.size() != 1) return false;
    const Value &x = *node.inputs[0], &w = *node.inputs[1];
    const auto is_plain = [](const Value& value) { return value.dtype == float32 && value.device == cpu; };
    if (w.kind != Graph::Kind::constant || !is_plain(x) || !is_plain(w) || !is_plain(*node.results[0]) || x.shape.empty()) return false;
    if (w.data.dim() != 2 || w.data.numel() == 0) return false;
    if (node.inputs.size() > 2 && !is_plain(*node.inputs[2])) return false;
    for (std::size_t d = 0; d + 1 < x.shape.size(); ++d) {
        if (!x.shape[d].is_number() || x.shape[d].number() != 1) return false;
    }
    return x.shape.back().is_number() && x.shape.back().number() == w.data.size(1);
}

}  // namespace

int pack_weights(Graph& graph, const std::function<bool(const Graph::Node&)>& takes) {
    std::vector<Node*> nodes;
    std::unordered_set<const Value*> weights;
    for (const auto& node : graph.nodes()) {
        if ((takes && !takes(*node)) || !is_of_one_row(*node)) continue;
        nodes.push_back(node.get());
        weights.insert(node->inputs[1]);
    }
    std::size_t bytes = 0;
    for (const Value* weight : weights) bytes += weight->data.nbytes();
    if (bytes > kMostBytes) return 0;
    std::vector<Graph::Joined> packed;
    for (Node* node : nodes) {
        std::vector<Value*> inputs = node->inputs;
        inputs[1] = nullptr;
        for (const Graph::Joined& other : packed) {  // for the same weight
            if (other.nodes[0]->inputs[1] == node->inputs[1]) inputs[1] = other.inputs[1];
        }
        if (!inputs[1]) inputs[1] = graph.add_constant(packed_weight(node->inputs[1]->data));
        Attributes attributes(packed_linear_form);
        attributes.set("out_features", SymInt(node->inputs[1]->data.size(0)));
        packed.push_back({{node}, std::move(attributes), inputs, node->results});
    }
    return rewrite::join(graph, std::move(packed));
}

}  // namespace tapir
