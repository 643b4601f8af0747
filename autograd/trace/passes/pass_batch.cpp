// Joins products of small operands with one matrix, none of which needs another's result: the matrix is read once. Examples are the nodes
// of a level of a tree, and the inputs of a recurrent net at all times.
#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/passes/rewrite_impl.h"

namespace tapir {
namespace {

using Value = Graph::Value;
using Node = Graph::Node;

constexpr std::int64_t kMostRows = 16;          // per operand: with more, reading the matrix is not the bottleneck
constexpr std::int64_t kMostTogether = 64;      // rows: more gain nothing, and their results take memory
constexpr std::int64_t kLeastMatrix = 32 * 32;  // elements

using Key = std::tuple<std::string, const Value*, const Value*, DType, std::size_t, std::int64_t>;  // op, matrix, bias, dtype, rank, columns

std::int64_t number_at(const Value* value, std::size_t d) { return value->shape[d].is_number() ? value->shape[d].number() : -1; }

// The properties that products must share to be joined. Returns false if the node is no such product.
bool key_of(const Node& node, Key& key) {
    if ((!node.is(linear_form) && !node.is(matmul_form)) || node.inputs.size() < 2 || node.results.size() != 1) return false;
    const Value *x = node.inputs[0], *w = node.inputs[1], *b = node.inputs.size() > 2 ? node.inputs[2] : nullptr;
    if (x->shape.empty() || x->shape.size() > 2 || w->shape.size() != 2 || x == w || node.results[0]->shape.size() != x->shape.size()) return false;
    for (const Value* operand : {x, w}) {
        for (std::size_t d = 0; d < operand->shape.size(); ++d) {
            if (number_at(operand, d) <= 0) return false;
        }
    }
    const std::int64_t rows = x->shape.size() == 1 ? 1 : number_at(x, 0);
    if (rows > kMostRows || number_at(w, 0) * number_at(w, 1) < kLeastMatrix) return false;
    key = {std::string(node.op()), w, b, x->dtype, x->shape.size(), number_at(x, x->shape.size() - 1)};
    return x->dtype == w->dtype && x->device == w->device;
}

Node* put(Graph& graph, const OpForm& op, const std::vector<std::pair<std::string, Attribute>>& set, const std::vector<Value*>& inputs,
          const Node& like) {
    Attributes attributes(op);
    for (const auto& [name, value] : set) attributes.set(name, value);
    Node* node = graph.append(std::move(attributes), inputs);
    node->set_origin(like);
    return node;
}

void batch(Graph& graph, const std::vector<Node*>& nodes, std::vector<Graph::Joined>& joined_nodes) {
    const Node& first = *nodes[0];
    const Value* y = first.results[0];
    const bool is_vector = first.inputs[0]->shape.size() == 1;
    std::vector<Value*> operands;
    std::int64_t rows = 0;
    for (const Node* node : nodes) {
        operands.push_back(node->inputs[0]);
        rows += is_vector ? 1 : number_at(node->inputs[0], 0);
    }
    const SymInt columns = first.inputs[0]->shape.back(), width = y->shape.back();
    Node* joined = put(graph, is_vector ? stack_form : cat_form, {{"dim", SymInt(0)}}, operands, first);
    Value* together = graph.add_result(joined, first.inputs[0]->dtype, first.inputs[0]->device, {SymInt(rows), columns});
    std::vector<Value*> inputs = first.inputs;
    inputs[0] = together;
    Node* product = put(graph, first.form(), {}, inputs, first);
    Value* all = graph.add_result(product, y->dtype, y->device, {SymInt(rows), width});
    std::int64_t row = 0;
    for (Node* node : nodes) {
        const std::int64_t count = is_vector ? 1 : number_at(node->inputs[0], 0);
        Attributes attributes(is_vector ? select_form : slice_form);
        attributes.set("dim", SymInt(0));
        if (is_vector) {
            attributes.set("index", SymInt(row));
        } else {
            attributes.set("start", SymInt(row));
            attributes.set("end", SymInt(row + count));
            attributes.set("step", SymInt(1));
        }
        joined_nodes.push_back({{node}, std::move(attributes), {all}, {node->results[0]}});
        row += count;
    }
}

// Groups nodes by the number of members before them that they need: those of a group do not need each other.
std::map<int, std::vector<Node*>> by_depth(const Graph& graph, const std::vector<Node*>& members) {
    std::unordered_map<const Node*, int> depth;
    std::map<int, std::vector<Node*>> levels;
    int of_last_draw = 0;  // random numbers are drawn in the order of the program
    const std::unordered_set<const Node*> set(members.begin(), members.end());
    for (const auto& node : graph.nodes()) {
        const bool is_member = set.count(node.get()) > 0;
        int most = 0;
        for (const Value* input : node->inputs) {
            if (input->maker) most = std::max(most, depth.at(input->maker));
        }
        if (node->attributes().is_random()) of_last_draw = most = std::max(most, of_last_draw);
        depth[node.get()] = most + is_member;
        if (is_member) levels[most].push_back(node.get());
    }
    return levels;
}

}  // namespace

int batch_products(Graph& graph, const std::function<bool(const Graph::Node&)>& takes) {
    std::map<Key, std::vector<Node*>> groups;
    std::vector<Key> keys;  // in order
    for (const auto& node : graph.nodes()) {
        Key key;
        if ((takes && !takes(*node)) || !key_of(*node, key)) continue;
        if (rewrite::is_seen(graph, node->results[0])) continue;  // outputs have memory of their own
        std::vector<Node*>& group = groups[key];
        if (group.empty()) keys.push_back(key);
        group.push_back(node.get());
    }
    int changes = 0;
    for (const Key& key : keys) {
        if (groups[key].size() < 2) continue;
        std::vector<Graph::Joined> joined;
        for (const auto& [depth, nodes] : by_depth(graph, groups[key])) {
            const std::int64_t rows = std::get<4>(key) == 1 ? 1 : kMostRows;
            const std::size_t most = static_cast<std::size_t>(kMostTogether / rows);
            for (std::size_t from = 0; from + 1 < nodes.size(); from += most) {
                const auto first = nodes.begin() + static_cast<std::ptrdiff_t>(from);
                batch(graph, {first, first + static_cast<std::ptrdiff_t>(std::min(most, nodes.size() - from))}, joined);
                ++changes;
            }
        }
        if (!joined.empty()) graph.join(std::move(joined));
    }
    return changes;
}

}  // namespace tapir
