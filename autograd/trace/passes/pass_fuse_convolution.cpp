// Joins convolutions with the addition and the activation behind them, and lets them keep their weights in the layout that the kernel wants.
#include <unordered_set>

#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/passes/rewrite_impl.h"
#include "tapir/ops/convolution/fused_convolution_impl.h"

namespace tapir {
namespace {

using Value = Graph::Value;
using Node = Graph::Node;

bool is_plain(const Value& value) { return value.dtype == float32 && value.device == cpu; }

bool can_join(const Node& node) {
    if (!node.is(convolution_form) || node.inputs.size() < 2 || node.results[0]->shape.size() < 3) return false;
    return is_plain(*node.results[0]) && std::all_of(node.inputs.begin(), node.inputs.end(), [](const Value* x) { return is_plain(*x); });
}

// The other operand of an addition to y, if it has y's shape; else null.
Value* addend_of(const Node& node, const Value* y) {
    if (!node.is(add_form) || node.inputs.size() != 2) return nullptr;
    Value* other = node.inputs[node.inputs[0] == y ? 1 : 0];
    return is_plain(*other) && is_plain(*node.results[0]) && rewrite::same_shape(other, y) ? other : nullptr;
}

}  // namespace

int fuse_convolutions(Graph& graph, const std::function<bool(const Graph::Node&)>& takes) {
    std::vector<Graph::Joined> joined;
    std::unordered_set<const Node*> taken;
    for (const auto& node : graph.nodes()) {
        if ((takes && !takes(*node)) || !can_join(*node)) continue;
        std::vector<Node*> nodes{node.get()};
        std::vector<Value*> inputs = node->inputs;
        Value* y = node->results[0];
        bool has_addend = false;
        int ending = 0;
        if (Node* next = rewrite::only_user(graph, y); next && taken.count(next) == 0) {
            if (Value* addend = addend_of(*next, y)) {
                has_addend = true;
                inputs.push_back(addend);
                nodes.push_back(next);
                y = next->results[0];
            }
        }
        if (Node* next = rewrite::only_user(graph, y); next && taken.count(next) == 0 && ending_of(next->form()) > 0) {
            ending = ending_of(next->form());
            nodes.push_back(next);
            y = next->results[0];
        }
        const Graph::Kind weight = node->inputs[1]->kind;
        const bool keeps_weight = weight == Graph::Kind::parameter || weight == Graph::Kind::constant;
        if (!keeps_weight && nodes.size() == 1) continue;
        taken.insert(nodes.begin(), nodes.end());
        joined.push_back({nodes, fused_convolution(node->attributes(), has_addend, ending, keeps_weight), inputs, {y}});
    }
    return rewrite::join(graph, std::move(joined));
}

}  // namespace tapir
