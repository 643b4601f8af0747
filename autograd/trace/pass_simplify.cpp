// Algebraic simplification. A rule looks at one node and gives the value that takes the place of its result, or null.
#include <algorithm>
#include <cmath>
#include <optional>

#include "tapir/autograd/trace/passes.h"
#include "tapir/core/make_impl.h"

namespace tapir {
namespace {

using Value = Graph::Value;
using Node = Graph::Node;

// The number that a constant is everywhere, where it is one.
std::optional<double> number_of(const Value* value) {
    if (value->kind != Graph::Kind::constant || value->data.numel() != 1 || value->device != cpu) return std::nullopt;
    return detail::load_double(value->dtype, value->data.raw_data());
}

bool same_type(const Value* a, const Value* b) { return a->dtype == b->dtype && a->device == b->device && a->shape == b->shape; }

const Node* made_by(const Value* value, const char* op) { return value->maker && value->maker->op == op ? value->maker : nullptr; }

// x, for x*1, 1*x, x/1, x + 0, 0 + x, x - 0: where it has the result's shape and dtype.
Value* neutral(Graph&, Node& node) {
    const bool is_product = node.op == "mul", is_sum = node.op == "add";
    if (!is_product && !is_sum && node.op != "div" && node.op != "sub") return nullptr;
    const double wanted = is_product || node.op == "div" ? 1 : 0;
    for (const int side : {1, 0}) {
        if (side == 0 && !is_product && !is_sum) break;
        const std::optional<double> number = number_of(node.inputs[static_cast<std::size_t>(side)]);
        Value* other = node.inputs[static_cast<std::size_t>(1 - side)];
        if (number && *number == wanted && same_type(other, node.results[0])) return other;
    }
    return nullptr;
}

Value* twice_negative(Graph&, Node& node) {
    if (node.op != "neg") return nullptr;
    const Node* inner = made_by(node.inputs[0], "neg");
    return inner ? inner->inputs[0] : nullptr;
}

std::vector<SymInt> list_of(const Node& node, const char* name) { return std::get<std::vector<SymInt>>(node.attributes.get(name)); }

// Two transposes that undo each other, a permutation that leaves all in place, and two permutations as one.
Value* transposes(Graph& graph, Node& node) {
    if (node.op == "transpose") {
        if (list_of(node, "dims")[0] == list_of(node, "dims")[1]) return node.inputs[0];
        const Node* inner = made_by(node.inputs[0], "transpose");
        if (!inner) return nullptr;
        const auto outer_dims = list_of(node, "dims"), inner_dims = list_of(*inner, "dims");
        const bool undoes = std::is_permutation(outer_dims.begin(), outer_dims.end(), inner_dims.begin());
        return undoes ? inner->inputs[0] : nullptr;
    }
    if (node.op != "permute") return nullptr;
    const auto dims = list_of(node, "dims");
    bool in_place = true;
    for (std::size_t d = 0; d < dims.size(); ++d) in_place &= dims[d] == SymInt(static_cast<std::int64_t>(d));
    if (in_place) return node.inputs[0];
    const Node* inner = made_by(node.inputs[0], "permute");
    if (!inner) return nullptr;
    const auto first = list_of(*inner, "dims");
    std::vector<SymInt> both;
    for (const SymInt& d : dims) both.push_back(first[static_cast<std::size_t>(d.number())]);
    return graph.insert(&node, "permute", {inner->inputs[0]}, {{"dims", both}})->results[0];
}

// A reshape of a reshape needs the last one only.
Value* reshapes(Graph& graph, Node& node) {
    if (node.op == "expand" || node.op == "reshape" || node.op == "to_dtype" || node.op == "to_device" || node.op == "clone") {
        const bool is_known = std::none_of(node.inputs[0]->shape.begin(), node.inputs[0]->shape.end(), [](const SymInt& size) {
            const auto names = size.dims();
            return std::any_of(names.begin(), names.end(), [](const std::string& name) { return name.rfind("unknown", 0) == 0; });
        });
        if (is_known && same_type(node.inputs[0], node.results[0])) return node.inputs[0];
    }
    if (node.op != "reshape") return nullptr;
    const Node* inner = made_by(node.inputs[0], "reshape");
    if (!inner) return nullptr;
    return graph.insert(&node, "reshape", {inner->inputs[0]}, {{"shape", list_of(node, "shape")}})->results[0];
}

Value* log_of_softmax(Graph& graph, Node& node) {
    if (node.op != "log") return nullptr;
    const Node* softmax = made_by(node.inputs[0], "softmax");
    if (!softmax) return nullptr;
    return graph.insert(&node, "log_softmax", {softmax->inputs[0]}, softmax->attributes.all())->results[0];
}

Value* powers(Graph& graph, Node& node) {
    if (node.op != "pow") return nullptr;
    Value* x = node.inputs[0];
    const std::optional<double> exponent = number_of(node.inputs[1]);
    if (!exponent || !same_type(x, node.results[0])) return nullptr;
    if (*exponent == 1) return x;
    const auto insert = [&](const char* op, const std::vector<Value*>& inputs) { return graph.insert(&node, op, inputs)->results[0]; };
    if (*exponent == 2) return insert("mul", {x, x});
    if (*exponent == 3) return insert("mul", {insert("mul", {x, x}), x});
    if (*exponent == 4) {
        Value* square = insert("mul", {x, x});
        return insert("mul", {square, square});
    }
    if (!is_floating(x->dtype)) return nullptr;
    if (*exponent == -1) return insert("reciprocal", {x});
    return nullptr;
}

// c*a + c*b -> c*(a + b), and the same with -: where nothing else needs the products, and a and b are alike.
Value* common_factor(Graph& graph, Node& node) {
    if (node.op != "add" && node.op != "sub") return nullptr;
    const Node *left = made_by(node.inputs[0], "mul"), *right = made_by(node.inputs[1], "mul");
    if (!left || !right || left == right || left->results[0]->uses.size() != 1 || right->results[0]->uses.size() != 1) return nullptr;
    for (const int i : {0, 1}) {
        for (const int k : {0, 1}) {
            Value *c = left->inputs[static_cast<std::size_t>(i)], *other = right->inputs[static_cast<std::size_t>(k)];
            Value *a = left->inputs[static_cast<std::size_t>(1 - i)], *b = right->inputs[static_cast<std::size_t>(1 - k)];
            const bool is_same = c == other || (number_of(c) && number_of(other) && *number_of(c) == *number_of(other) && same_type(c, other));
            if (!is_same || !same_type(a, b) || a->dtype != node.results[0]->dtype) continue;
            Value* sum = graph.insert(&node, node.op, {a, b})->results[0];
            return graph.insert(&node, "mul", {c, sum})->results[0];
        }
    }
    return nullptr;
}

}  // namespace

int simplify(Graph& graph) {
    constexpr Value* (*rules[])(Graph&, Node&) = {neutral, twice_negative, transposes, reshapes, log_of_softmax, powers, common_factor};
    int changes = 0;
    std::vector<Node*> nodes;
    for (const auto& node : graph.nodes()) nodes.push_back(node.get());
    for (Node* node : nodes) {
        if (node->results.size() != 1) continue;
        for (const auto rule : rules) {
            Value* other = rule(graph, *node);
            if (!other) continue;
            graph.replace(node->results[0], other);
            ++changes;
            break;
        }
    }
    if (changes > 0) eliminate_dead_code(graph);
    return changes;
}

void optimize(Graph& graph) {
    eliminate_dead_code(graph);
    while (simplify(graph) + fold_constants(graph) + eliminate_common_subexpressions(graph) > 0) {
    }
}

}  // namespace tapir
