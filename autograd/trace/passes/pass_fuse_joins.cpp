// Joins images along their channels in one pass over memory with the batch normalisation and the relu that belong to the joining:
//
//     relu(batch_norm(cat(a, b)))    cat(relu(a), relu(b))    relu(batch_norm(a))
#include <algorithm>
#include <unordered_set>

#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/passes/rewrite_impl.h"
#include "tapir/ops/join/fused_join_impl.h"

namespace tapir {
namespace {

using Value = Graph::Value;
using Node = Graph::Node;

bool is_image(const Value& value) { return value.dtype == float32 && value.device == cpu && value.shape.size() > 2; }

// A cat of images along their channels.
bool joins_channels(const Node& node) {
    if (!node.is(cat_form) || !std::all_of(node.inputs.begin(), node.inputs.end(), [](const Value* x) { return is_image(*x); })) return false;
    const std::int64_t dim = std::get<SymInt>(node.attributes().get("dim")).number();
    return (dim < 0 ? dim + static_cast<std::int64_t>(node.inputs[0]->shape.size()) : dim) == 1;
}

// A batch_norm of images by running statistics, whose own statistics nobody asks for.
bool normalizes(const Graph& graph, const Node& node) {
    if (!node.is(batch_norm_form) || rewrite::flag_of(node, "training") || !is_image(*node.inputs[0])) return false;
    if (!rewrite::flag_of(node, "has_running_mean") || !rewrite::flag_of(node, "has_running_var")) return false;
    return std::all_of(node.results.begin() + 1, node.results.end(),
                       [&](const Value* stats) { return stats->uses.empty() && !rewrite::is_output(graph, stats); });
}

class JoinFuser {
 public:
    JoinFuser(Graph& graph, const std::function<bool(const Node&)>& takes) : graph_(graph), takes_(takes) {}

    int run() {
        for (const auto& node : graph_.nodes()) {
            if (!is_free(*node)) continue;
            if (normalizes(graph_, *node))
                from_norm(node.get());
            else if (joins_channels(*node))
                from_cat(node.get());
        }
        return rewrite::join(graph_, std::move(joined_));
    }

 private:
    bool is_free(const Node& node) const { return taken_.count(&node) == 0 && (!takes_ || takes_(node)); }
    Node* only_user(const Value* value) const {
        Node* const user = rewrite::only_user(graph_, value);
        return user && is_free(*user) ? user : nullptr;
    }
    Node* relu_behind(const Value* value) const {
        Node* const user = only_user(value);
        return user && user->is(relu_form) ? user : nullptr;
    }

    void from_norm(Node* norm) {
        std::vector<Node*> nodes{norm};
        std::vector<Value*> inputs{norm->inputs[0]};
        Node* const cat = norm->inputs[0]->maker;
        if (cat && is_free(*cat) && joins_channels(*cat) && rewrite::has_one_use(graph_, norm->inputs[0])) {
            nodes.insert(nodes.begin(), cat);
            inputs = cat->inputs;
        }
        const int pieces = static_cast<int>(inputs.size());
        inputs.insert(inputs.end(), norm->inputs.begin() + 1, norm->inputs.end());
        Node* const relu = relu_behind(norm->results[0]);
        if (relu) nodes.push_back(relu);
        if (nodes.size() > 1) fuse(std::move(nodes), fused_join(pieces, &norm->attributes(), relu != nullptr), std::move(inputs));
    }

    void from_cat(Node* cat) {
        if (Node* const user = only_user(cat->results[0]); user && normalizes(graph_, *user)) return;  // its turn comes
        const int pieces = static_cast<int>(cat->inputs.size());
        if (Node* const relu = relu_behind(cat->results[0])) return fuse({cat, relu}, fused_join(pieces, nullptr, true), cat->inputs);
        std::vector<Node*> nodes;
        std::vector<Value*> inputs;
        for (const Value* piece : cat->inputs) {
            if (!piece->maker || !piece->maker->is(relu_form) || !is_free(*piece->maker) || only_user(piece) != cat) return;
            nodes.push_back(piece->maker);
            inputs.push_back(piece->maker->inputs[0]);
        }
        nodes.push_back(cat);
        fuse(std::move(nodes), fused_join(pieces, nullptr, true), std::move(inputs));
    }

    void fuse(std::vector<Node*> nodes, Attributes attributes, std::vector<Value*> inputs) {
        taken_.insert(nodes.begin(), nodes.end());
        Value* const result = nodes.back()->results[0];
        joined_.push_back({std::move(nodes), std::move(attributes), std::move(inputs), {result}});
    }

    Graph& graph_;
    const std::function<bool(const Node&)>& takes_;
    std::vector<Graph::Joined> joined_;
    std::unordered_set<const Node*> taken_;
};

}  // namespace

int fuse_joins(Graph& graph, const std::function<bool(const Graph::Node&)>& takes) { return JoinFuser(graph, takes).run(); }

}  // namespace tapir
