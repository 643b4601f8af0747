// Algebra of ops that move elements and do not compute: transposes, reshapes, expansions, slices, copies.
#include <algorithm>
#include <numeric>

#include "tapir/autograd/trace/passes/simplify_impl.h"

namespace tapir::rewrite {
namespace {

// Ops whose result has the input's shape, dtype and device, and the same elements in the same order.
Value* nothing_changes(Graph&, Node& node) { return same_type(node.inputs[0], node.results[0]) ? node.inputs[0] : nullptr; }

// --- Transposes ---------------------------------------------------------------------------------------------------------------

// The dimension of the input for each dimension of the result; nullopt for other ops.
std::optional<std::vector<int>> order_of(const Node& node) {
    if (node.is(permute_form)) return dims_of(node, "dims");
    if (!node.is(transpose_form)) return std::nullopt;
    std::vector<int> order(node.results[0]->shape.size());
    std::iota(order.begin(), order.end(), 0);
    const std::vector<int> dims = dims_of(node, "dims");
    if (!order.empty()) std::swap(order[static_cast<std::size_t>(dims[0])], order[static_cast<std::size_t>(dims[1])]);
    return order;
}

// Joins a sequence into one permutation, which may be a transpose, or nothing.
Value* transposes(Graph& graph, Node& node) {
    std::vector<int> order = *order_of(node);
    Value* x = node.inputs[0];
    const std::optional<std::vector<int>> first = x->maker ? order_of(*x->maker) : std::nullopt;
    if (first) {
        for (int& d : order) d = (*first)[static_cast<std::size_t>(d)];
        x = x->maker->inputs[0];
    }
    std::vector<int> moved;
    for (std::size_t d = 0; d < order.size(); ++d) {
        if (order[d] != static_cast<int>(d)) moved.push_back(static_cast<int>(d));
    }
    if (moved.empty()) return same_type(x, node.results[0]) ? x : nullptr;
    if (!first && (node.is(transpose_form) || moved.size() > 2)) return nullptr;
    if (moved.size() == 2) return put(graph, node, transpose_form, {x}, {{"dims", Sizes{moved[0], moved[1]}}}, node.results[0]);
    return put(graph, node, permute_form, {x}, {{"dims", Sizes(order.begin(), order.end())}}, node.results[0]);
}

// --- Reshapes -----------------------------------------------------------------------------------------------------------------

// Only the last of several reshapes counts.
Value* reshapes(Graph& graph, Node& node) {
    const Node* inner = made_by(node.inputs[0], reshape_form);
    if (!inner) return nullptr;
    return put(graph, node, reshape_form, {inner->inputs[0]}, node.attributes().all(), node.results[0]);
}

// True for reductions, which drop dimensions, "dims", or keep them with size 1.
bool is_reduction(const Node& node) {
    const AttributeList all = node.attributes().all();
    const auto has = [&](std::string_view name) { return std::any_of(all.begin(), all.end(), [&](const auto& a) { return a.first == name; }); };
    return node.inputs.size() == 1 && has("dims") && has("keepdim");
}

// A reduction that keeps its dimensions of size 1, and a reshape that drops them, or the other way round.
Value* reshape_of_reduction(Graph& graph, Node& node) {
    Value* reduced = node.inputs[0];
    const Node* inner = reduced->maker;
    if (!inner || inner->results.size() != 1 || !is_reduction(*inner)) return nullptr;
    if (!has_one_use(graph, reduced) || inner->inputs[0]->shape.empty()) return nullptr;
    const bool keepdim = flag_of(*inner, "keepdim");
    Sizes shape;
    const std::vector<int> dims = reduced_dims(*inner);
    for (std::size_t d = 0; d < inner->inputs[0]->shape.size(); ++d) {
        if (std::find(dims.begin(), dims.end(), static_cast<int>(d)) == dims.end()) {
            shape.push_back(inner->inputs[0]->shape[d]);
        } else if (!keepdim) {
            shape.push_back(1);
        }
    }
    if (!is_known(shape) || shape != node.results[0]->shape) return nullptr;
    AttributeList attributes = inner->attributes().all();
    for (auto& [name, value] : attributes) {
        if (name == "keepdim") value = !keepdim;
    }
    return put(graph, node, inner->form(), {inner->inputs[0]}, attributes, node.results[0]);
}

// --- Expansions ---------------------------------------------------------------------------------------------------------------

Value* expansions(Graph& graph, Node& node) {
    const Node* inner = made_by(node.inputs[0], expand_form);
    if (!inner || !is_given(graph, node.results[0]->shape)) return nullptr;
    return put(graph, node, expand_form, {inner->inputs[0]}, {{"shape", node.results[0]->shape}}, node.results[0]);
}

// One element can be expanded to any shape.
Value* reshape_of_expansion(Graph& graph, Node& node) {
    const Node* inner = made_by(node.inputs[0], expand_form);
    if (!inner || !is_given(graph, node.results[0]->shape)) return nullptr;
    Value* x = inner->inputs[0];
    const bool is_one = std::all_of(x->shape.begin(), x->shape.end(), [](const SymInt& size) { return size == SymInt(1); });
    if (!is_one) return nullptr;
    if (!x->shape.empty()) x = put(graph, node, reshape_form, {x}, {{"shape", Sizes()}}, x->dtype, x->device, {});
    return put(graph, node, expand_form, {x}, {{"shape", node.results[0]->shape}}, node.results[0]);
}

// Expansions by dimensions of size 1 only.
Value* expansion_by_ones(Graph& graph, Node& node) {
    const Sizes &shape = node.inputs[0]->shape, &expanded = node.results[0]->shape;
    if (!is_known(shape) || !is_given(graph, expanded) || expanded.size() <= shape.size()) return nullptr;
    const auto added = expanded.end() - static_cast<std::ptrdiff_t>(shape.size());
    const bool is_front = std::all_of(expanded.begin(), added, [](const SymInt& size) { return size == SymInt(1); });
    if (!is_front || !std::equal(shape.begin(), shape.end(), added)) return nullptr;
    return put(graph, node, reshape_form, {node.inputs[0]}, {{"shape", expanded}}, node.results[0]);
}

// An expansion adds dimensions at the front by itself.
Value* expansion_of_reshape(Graph& graph, Node& node) {
    const Node* inner = made_by(node.inputs[0], reshape_form);
    if (!inner || !is_known(inner->inputs[0]->shape) || !is_given(graph, node.results[0]->shape)) return nullptr;
    const Sizes &shape = inner->inputs[0]->shape, &reshaped = node.inputs[0]->shape;
    if (reshaped.size() <= shape.size()) return nullptr;
    const auto added = reshaped.end() - static_cast<std::ptrdiff_t>(shape.size());
    const bool is_front = std::all_of(reshaped.begin(), added, [](const SymInt& size) { return size == SymInt(1); });
    if (!is_front || !std::equal(shape.begin(), shape.end(), added)) return nullptr;
    return put(graph, node, expand_form, {inner->inputs[0]}, {{"shape", node.results[0]->shape}}, node.results[0]);
}

// --- Slices -------------------------------------------------------------------------------------------------------------------

Value* slices(Graph& graph, Node& node) {
    return std::get<SymInt>(node.attributes().get("step")) == SymInt(1) ? nothing_changes(graph, node) : nullptr;
}

// --- Copies -------------------------------------------------------------------------------------------------------------------

// A graph's values are never written to: each may replace its copy.
Value* overwritten(Graph& graph, Node& node) {
    Value *source = node.inputs[1], *result = node.results[0];
    if (source->device != result->device || (!same_shape(source, result) && !is_given(graph, result->shape))) return nullptr;
    if (source->dtype != result->dtype)
        source = put(graph, node, to_dtype_form, {source}, {{"dtype", result->dtype}}, result->dtype, result->device, source->shape);
    if (same_shape(source, result)) return source;
    return put(graph, node, expand_form, {source}, {{"shape", result->shape}}, result);
}

// Ops that create tensors like another one need only its shape.
Value* made_like(Graph& graph, Node& node) {
    if (!is_given(graph, node.results[0]->shape)) return nullptr;
    const bool is_zeros = node.is(zeros_like_form);
    AttributeList attributes = node.attributes().all();
    attributes.emplace_back("shape", node.results[0]->shape);
    return put(graph, node, is_zeros ? zeros_form : full_form, {}, attributes, node.results[0]);
}

constexpr Rule kOverwriting[] = {{copy_form, overwritten}, {fill_form, overwritten}};

constexpr Rule kViewRules[] = {
    {clone_form, nothing_changes},
    {to_dtype_form, nothing_changes},
    {to_device_form, nothing_changes},
    kOverwriting[0],
    kOverwriting[1],
    {zeros_like_form, made_like},
    {full_like_form, made_like},
    {transpose_form, transposes},
    {permute_form, transposes},
    {reshape_form, nothing_changes},
    {reshape_form, reshapes},
    {reshape_form, reshape_of_reduction},
    {reshape_form, reshape_of_expansion},
    {expand_form, nothing_changes},
    {expand_form, expansions},
    {expand_form, expansion_by_ones},
    {expand_form, expansion_of_reshape},
    {slice_form, slices},
};

}  // namespace

int simplify_overwriting(Graph& graph) { return apply_rules(graph, kOverwriting); }
int simplify_views(Graph& graph) { return apply_rules(graph, kViewRules); }

}  // namespace tapir::rewrite
