// Broadcast hoisting: computes element-wise ops before their operands are expanded.
#include <algorithm>

#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/passes/rewrite_impl.h"

namespace tapir::rewrite {
namespace {

bool is_number(const Value* value) { return value->kind == Graph::Kind::constant && value->shape.empty(); }

// The mask operand of where() and masked_fill(); -1 for other ops.
int mask_of(const Node& node) { return node.is(where_form) ? 0 : node.is(masked_fill_form) ? 1 : -1; }

// True if the rank of operands does not matter for the dtype that the op computes in: all have one dtype, beside numbers.
bool is_of_one_dtype(const Node& node) {
    const Value* first = nullptr;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        const Value* input = node.inputs[i];
        if (static_cast<int>(i) == mask_of(node) || is_number(input)) continue;
        if (!first) first = input;
        if (input->dtype != first->dtype) return false;
    }
    return first != nullptr;
}

// The value before it was expanded.
Value* before_expansion(Value* value) {
    for (const Node* expansion = made_by(value, expand_form); expansion; expansion = made_by(value, expand_form)) value = expansion->inputs[0];
    return value;
}

// A smaller replacement of an operand that broadcasts to it: its value before expansion, or the number that it is full of.
struct Operand {
    Value* value;
    std::optional<double> number;
};

std::vector<Operand> small_operands(const Node& node) {
    std::vector<Operand> operands;
    for (Value* input : node.inputs) {
        Value* value = before_expansion(input);
        operands.push_back({value, value->shape.empty() || value->device != cpu ? std::nullopt : number_of(value)});
    }
    return operands;
}

std::optional<Sizes> shape_of(const std::vector<Operand>& operands) {
    std::optional<Sizes> shape = Sizes();
    for (const Operand& operand : operands) {
        if (shape && !operand.number) shape = broadcast(*shape, operand.value->shape);
    }
    return shape;
}

Value* before_expansions(Graph& graph, Node& node) {
    const Value* result = node.results[0];
    if (!is_known(result->shape) || !is_of_one_dtype(node)) return nullptr;
    const std::vector<Operand> operands = small_operands(node);
    const std::optional<Sizes> shape = shape_of(operands);
    bool is_smaller = false, is_on_device = false;
    for (std::size_t i = 0; i < operands.size(); ++i) {
        is_smaller |= operands[i].number || operands[i].value != node.inputs[i];
        is_on_device |= operands[i].value->device == result->device;
    }
    if (!shape || !is_smaller || !is_on_device) return nullptr;
    const bool is_all = *shape != result->shape;
    // An output would share memory as if it were small.
    if (is_all && (is_seen(graph, result) || !is_given(graph, result->shape))) return nullptr;
    std::vector<Value*> inputs;
    for (const Operand& operand : operands) {
        inputs.push_back(operand.number ? put_number(graph, *operand.number, operand.value->dtype) : operand.value);
    }
    const AttributeList attributes = node.attributes().all();
    if (!is_all) return put(graph, node, node.form(), inputs, attributes, result);
    Value* small = put(graph, node, node.form(), inputs, attributes, result->dtype, result->device, *shape);
    return put(graph, node, expand_form, {small}, {{"shape", result->shape}}, result);
}

// True if the product of constants is far from the ends of any floating dtype's range.
bool is_plain_product(const Value* a, const Value* b) {
    const std::optional<Magnitudes> one = magnitudes_of(a), other = magnitudes_of(b);
    return one && other && one->least * other->least > 1e-30 && one->most * other->most < 1e30;
}

// (x * a) * b -> x * (a * b), if a * b is smaller than x; for integers sums too. Sums of floats are less exact in another order. Products of
// floats may overflow or become 0: if x is 0 or infinite, that would be nan.
Value* small_ones_together(Graph& graph, Node& node, bool allow_nonfinite) {
    const Value* result = node.results[0];
    const DType dtype = result->dtype;
    if (dtype == bool_ || dtype == float16 || (node.is(add_form) && is_floating(dtype))) return nullptr;
    for (const std::size_t side : {0, 1}) {
        Value *product = node.inputs[side], *b = node.inputs[1 - side];
        Node* inner = made_by(product, node.form());
        if (!inner || !has_one_use(graph, product) || !same_type(product, result)) continue;
        for (const std::size_t place : {0, 1}) {
            Value *x = inner->inputs[place], *a = inner->inputs[1 - place];
            if (x->dtype != dtype || (a->dtype != dtype && !is_number(a)) || (b->dtype != dtype && !is_number(b))) continue;
            if (is_number(a) && is_number(b)) continue;
            if (is_floating(dtype) && !allow_nonfinite && !is_plain_product(a, b)) continue;
            const std::optional<Sizes> shape = broadcast(a->shape, b->shape);
            if (!shape || *shape == result->shape || !same_shape(x, result)) continue;
            const Device device = is_number(a) ? b->device : a->device;
            Value* both = put(graph, node, node.form(), {a, b}, {}, dtype, device, *shape);
            return put(graph, node, node.form(), {x, both}, {}, result);
        }
    }
    return nullptr;
}

}  // namespace
}  // namespace tapir::rewrite

namespace tapir {

int hoist_broadcasts(Graph& graph, const PassOptions& options) {
    int changes = rewrite::in_nested(graph, [&](Graph& nested) { return hoist_broadcasts(nested, options); });
    std::vector<Graph::Node*> nodes;
    for (const auto& node : graph.nodes()) nodes.push_back(node.get());
    for (Graph::Node* node : nodes) {
        if (!rewrite::is_pointwise(*node) || node->is(clone_form)) continue;
        Graph::Value* other = rewrite::before_expansions(graph, *node);
        if (!other && (node->is(mul_form) || node->is(add_form))) other = rewrite::small_ones_together(graph, *node, options.allow_nonfinite);
        if (other) changes += rewrite::take_place(graph, *node, node->results[0], other);
    }
    if (changes > 0) eliminate_dead_code(graph);
    return changes;
}

}  // namespace tapir
