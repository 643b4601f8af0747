// Algebra of sums, means and the like.
#include <algorithm>

#include "tapir/autograd/trace/passes/simplify_impl.h"

namespace tapir::rewrite {
namespace {

bool has(const std::vector<int>& dims, std::size_t d) { return std::find(dims.begin(), dims.end(), static_cast<int>(d)) != dims.end(); }

// The end of a shape of `rank` dimensions, without those that a reduction drops. kept: they stay, with size 1.
Sizes reduced(const Sizes& end, std::size_t rank, const std::vector<int>& dims, bool kept) {
    Sizes shape;
    for (std::size_t d = 0; d < end.size(); ++d) {
        if (!has(dims, rank - end.size() + d)) {
            shape.push_back(end[d]);
        } else if (kept) {
            shape.push_back(1);
        }
    }
    return shape;
}

Value* reshaped(Graph& graph, Node& before, Value* x, const Sizes& shape) {
    if (x->shape == shape) return x;
    return put(graph, before, reshape_form, {x}, {{"shape", shape}}, x->dtype, x->device, shape);
}

// Reductions over dimensions of size 1 only.
Value* of_one_element(Graph& graph, Node& node) {
    const Value *x = node.inputs[0], *result = node.results[0];
    if (x->dtype != result->dtype || !is_given(graph, result->shape)) return nullptr;
    for (const int d : reduced_dims(node)) {
        if (x->shape[static_cast<std::size_t>(d)] != SymInt(1)) return nullptr;
    }
    return put(graph, node, reshape_form, {node.inputs[0]}, {{"shape", result->shape}}, result);
}

// Two reductions of the same kind, one after the other.
Value* in_sequence(Graph& graph, Node& node) {
    Value* between = node.inputs[0];
    Node* inner = made_by(between, node.form());
    const Value* result = node.results[0];
    if (!inner || !has_one_use(graph, between) || between->dtype != result->dtype) return nullptr;
    const bool keepdim = flag_of(node, "keepdim");
    if (keepdim && !flag_of(*inner, "keepdim")) return nullptr;
    const Value* x = inner->inputs[0];
    const std::vector<int> first = reduced_dims(*inner), second = reduced_dims(node);
    std::vector<int> left;  // the second's dimensions, in x
    for (std::size_t d = 0; d < x->shape.size(); ++d) {
        if (flag_of(*inner, "keepdim") || !has(first, d)) left.push_back(static_cast<int>(d));
    }
    std::vector<int> dims = first;
    for (const int d : second) {
        const int in_x = left[static_cast<std::size_t>(d)];
        if (!has(dims, static_cast<std::size_t>(in_x))) dims.push_back(in_x);
    }
    std::sort(dims.begin(), dims.end());
    const Sizes shape = reduced(x->shape, x->shape.size(), dims, keepdim);
    const AttributeList attributes = {{"dims", Sizes(dims.begin(), dims.end())}, {"keepdim", keepdim}};
    if (!is_given(graph, result->shape)) return nullptr;
    Value* both = put(graph, node, node.form(), {inner->inputs[0]}, attributes, result->dtype, result->device, shape);
    return reshaped(graph, node, both, result->shape);
}

// The number of repetitions of each element, computed from sizes. Null: no formula expresses it.
Value* put_count(Graph& graph, Node& before, const Sizes& sizes, DType dtype) {
    SymInt count = 1;
    try {
        for (const SymInt& size : sizes) count = count * size;
    } catch (const ValueError&) {
        return nullptr;
    }
    if (!is_known({count})) return nullptr;
    const DType computed = dtype == float16 || dtype == bfloat16 ? float32 : dtype;
    if (count.is_number() && count.number() > std::int64_t{1} << 53) return nullptr;
    if (count.is_number()) return put_number(graph, static_cast<double>(count.number()), computed);
    return put(graph, before, number_form, {}, {{"value", count}, {"dtype", computed}}, computed, cpu, {});
}

// Reductions of an expansion. Over added dimensions: a product, or for means and extremes nothing; over the others: before the expansion. A
// sum of no infinities is 0, and their product nan, so the number of repetitions must be known.
template <bool kAllowNonfinite>
Value* of_expansion(Graph& graph, Node& node) {
    const Node* expansion = made_by(node.inputs[0], expand_form);
    const Value *wide = node.inputs[0], *result = node.results[0];
    if (!expansion || !is_given(graph, wide->shape) || wide->dtype != result->dtype || wide->dtype == bool_) return nullptr;
    Value* x = expansion->inputs[0];
    const std::size_t rank = wide->shape.size(), added = rank - x->shape.size();
    std::vector<int> computed;  // dimensions of x that remain to be reduced
    Sizes repeated;
    const std::vector<int> dims = reduced_dims(node);
    for (const int dim : dims) {
        const auto d = static_cast<std::size_t>(dim);
        const SymInt& size = wide->shape[d];
        if (d >= added && x->shape[d - added] == size) {
            computed.push_back(static_cast<int>(d - added));
        } else {
            repeated.push_back(size);
        }
    }
    if (repeated.empty() && computed.empty()) return nullptr;
    const bool is_sum = node.is(sum_form) && !repeated.empty();
    for (const SymInt& size : repeated) {
        const bool may_be_nothing = !node.is(sum_form) || !(kAllowNonfinite || !is_floating(result->dtype));
        if (size.is_number() ? size.number() <= 0 : may_be_nothing) return nullptr;
    }
    Value* count = is_sum ? put_count(graph, node, repeated, result->dtype) : nullptr;
    if (is_sum && !count) return nullptr;
    if (!computed.empty()) {
        Sizes shape = x->shape;
        for (const int d : computed) shape[static_cast<std::size_t>(d)] = 1;
        x = put(graph, node, node.form(), {x}, {{"dims", Sizes(computed.begin(), computed.end())}, {"keepdim", true}}, x->dtype, x->device, shape);
    }
    x = reshaped(graph, node, x, reduced(x->shape, rank, dims, flag_of(node, "keepdim")));
    if (count) x = put(graph, node, mul_form, {x, count}, {}, x->dtype, x->device, x->shape);
    if (x->shape == result->shape) return x;
    return put(graph, node, expand_form, {x}, {{"shape", result->shape}}, result);
}

// sum(x * w), with w the same for all terms: sum(x) * w, whose product is smaller. Also x / w, and -x. Not if w may be
// infinite, or 0 as a divisor: 1 * inf + -2 * inf is nan, and so is an empty sum in these places.
template <bool kAllowNonfinite>
Value* of_product(Graph& graph, Node& node) {
    Value* product = node.inputs[0];
    const Node* inner = product->maker;
    const Value* result = node.results[0];
    if (!inner || (!inner->is(mul_form) && !inner->is(div_form) && !inner->is(neg_form)) || !has_one_use(graph, product)) return nullptr;
    if (product->dtype != result->dtype || product->dtype == float16 || product->dtype == bool_ || !is_known(result->shape)) return nullptr;
    const std::vector<int> dims = reduced_dims(node);
    if (dims.empty()) return nullptr;
    const std::size_t rank = product->shape.size();
    const auto sum_of = [&](Value* x) { return put(graph, node, node.form(), {x}, node.attributes().all(), result); };
    if (inner->is(neg_form))
        return same_type(inner->inputs[0], product) ? put(graph, node, neg_form, {sum_of(inner->inputs[0])}, {}, result) : nullptr;
    for (const int side : {1, 0}) {
        if (side == 0 && inner->is(div_form)) break;
        Value *x = inner->inputs[static_cast<std::size_t>(1 - side)], *w = inner->inputs[static_cast<std::size_t>(side)];
        const bool is_number = w->kind == Graph::Kind::constant && w->shape.empty();
        if (!same_type(x, product) || (w->dtype != product->dtype && !is_number) || !is_given(graph, w->shape)) continue;
        const bool is_same = std::all_of(dims.begin(), dims.end(), [&](int dim) {
            const auto from_end = rank - static_cast<std::size_t>(dim);
            return from_end > w->shape.size() || w->shape[w->shape.size() - from_end] == SymInt(1);
        });
        if (!is_same || !(kAllowNonfinite || !is_floating(result->dtype) || is_finite_constant(w))) continue;
        Value* sum = sum_of(x);
        w = reshaped(graph, node, w, reduced(w->shape, rank, dims, flag_of(node, "keepdim")));
        return put(graph, node, inner->form(), side == 1 ? std::vector<Value*>{sum, w} : std::vector<Value*>{w, sum}, {}, result);
    }
    return nullptr;
}

constexpr Rule kReductionRules[] = {
    {sum_form, of_one_element},  {mean_form, of_one_element},      {amax_form, of_one_element}, {amin_form, of_one_element},
    {prod_form, of_one_element}, {logsumexp_form, of_one_element}, {sum_form, in_sequence},     {amax_form, in_sequence},
    {amin_form, in_sequence},    {prod_form, in_sequence},         {all_form, in_sequence},     {any_form, in_sequence},
};

template <bool kAllowNonfinite>
constexpr Rule kMovingRules[] = {
    {sum_form, of_expansion<kAllowNonfinite>},  {mean_form, of_expansion<kAllowNonfinite>}, {amax_form, of_expansion<kAllowNonfinite>},
    {amin_form, of_expansion<kAllowNonfinite>}, {sum_form, of_product<kAllowNonfinite>},    {mean_form, of_product<kAllowNonfinite>},
};

}  // namespace

int simplify_reductions(Graph& graph, bool allow_nonfinite) {
    return apply_rules(graph, kReductionRules) + (allow_nonfinite ? apply_rules(graph, kMovingRules<true>) : apply_rules(graph, kMovingRules<false>));
}

}  // namespace tapir::rewrite
