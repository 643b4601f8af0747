// Folds batch normalisation into the layer before it: scales weight and bias of each channel once, instead of the images.
//
//     (conv(x, w) + b - mean) * scale + beta = conv(x, w * scale) + (b - mean) * scale + beta,  scale = gamma / sqrt(var + eps)
#include <algorithm>

#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/passes/rewrite_impl.h"

namespace tapir::rewrite {
namespace {

// The operands of batch_norm; null: absent.
struct Normalization {
    Value *mean, *var, *gamma, *beta;
    double eps;
};

std::optional<Normalization> normalization_of(const Graph& graph, const Node& node) {
    if (!node.is(batch_norm_form) || flag_of(node, "training")) return std::nullopt;
    for (std::size_t k = 1; k < node.results.size(); ++k) {  // statistics for its gradient
        if (!node.results[k]->uses.empty() || is_output(graph, node.results[k])) return std::nullopt;
    }
    std::size_t next = 1;
    const auto operand = [&](const char* flag) { return flag_of(node, flag) && next < node.inputs.size() ? node.inputs[next++] : nullptr; };
    Normalization n{};
    n.mean = operand("has_running_mean");
    n.var = operand("has_running_var");
    n.gamma = operand("has_weight");
    n.beta = operand("has_bias");
    n.eps = std::get<double>(node.attributes().get("eps"));
    return n.mean && n.var ? std::optional(n) : std::nullopt;
}

// The dimension of the layer's weight that is its output channels; -1: the layer cannot be folded.
int channels_of(const Node& layer) {
    const std::size_t rank = layer.results[0]->shape.size();
    if (layer.is(convolution_form)) return rank > 2 ? 0 : -1;
    if (layer.is(linear_form)) return rank == 2 ? 0 : -1;
    if (!layer.is(conv_transpose_form) || rank <= 2) return -1;
    return std::get<SymInt>(layer.attributes().get("groups")) == SymInt(1) ? 1 : -1;
}

bool fold_one(Graph& graph, Node& node, bool with_parameters) {
    const std::optional<Normalization> n = normalization_of(graph, node);
    if (!n) return false;
    Value *between = node.inputs[0], *result = node.results[0];
    Node* layer = between->maker;
    if (!layer || layer->results.size() != 1 || !has_one_use(graph, between) || channels_of(*layer) < 0 || layer->inputs.size() < 2) return false;
    Value *weight = layer->inputs[1], *bias = layer->inputs.size() > 2 ? layer->inputs[2] : nullptr;
    for (const Value* value : {weight, bias, n->mean, n->var, n->gamma, n->beta}) {
        if (!value) continue;
        const bool is_fixed = value->kind == Graph::Kind::constant || (with_parameters && value->kind == Graph::Kind::parameter);
        if (!is_fixed || value->dtype != result->dtype || (value->dtype != float32 && value->dtype != float64)) return false;
    }
    if (static_cast<int>(weight->shape.size()) <= channels_of(*layer)) return false;
    for (const Value* value : {n->mean, n->var, n->gamma, n->beta}) {
        if (value && value->shape.size() != 1) return false;
    }
    const auto call = [&](const OpForm& op, const std::vector<Value*>& inputs, const Value* like) { return put(graph, node, op, inputs, {}, like); };
    Value* scale = call(rsqrt_form, {call(add_form, {n->var, put_number(graph, n->eps, n->var->dtype)}, n->var)}, n->var);
    if (n->gamma) scale = call(mul_form, {n->gamma, scale}, scale);
    Sizes along(weight->shape.size(), 1);
    along[static_cast<std::size_t>(channels_of(*layer))] = scale->shape[0];
    Value* column = put(graph, node, reshape_form, {scale}, {{"shape", along}}, scale->dtype, scale->device, along);
    Value* shift = bias ? call(sub_form, {bias, n->mean}, n->mean) : call(neg_form, {n->mean}, n->mean);
    shift = call(mul_form, {shift, scale}, scale);
    if (n->beta) shift = call(add_form, {shift, n->beta}, shift);
    Value* folded = put(graph, node, layer->form(), {layer->inputs[0], call(mul_form, {weight, column}, weight), shift}, {}, result);
    graph.edit_attributes(folded->maker) = layer->attributes();
    return take_place(graph, node, result, folded);
}

}  // namespace
}  // namespace tapir::rewrite

namespace tapir {

int fold_batch_norm(Graph& graph, bool with_parameters) {
    int changes = rewrite::in_nested(graph, [=](Graph& nested) { return fold_batch_norm(nested, with_parameters); });
    std::vector<Graph::Node*> nodes;
    for (const auto& node : graph.nodes()) nodes.push_back(node.get());
    for (Graph::Node* node : nodes) changes += rewrite::fold_one(graph, *node, with_parameters);
    if (changes > 0) eliminate_dead_code(graph);
    return changes;
}

}  // namespace tapir
