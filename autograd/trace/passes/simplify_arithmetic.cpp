// Algebra of element-wise ops: patterns, and rules that combine numbers.
#include <algorithm>
#include <cmath>

#include "tapir/autograd/trace/passes/pattern_impl.h"
#include "tapir/autograd/trace/passes/simplify_impl.h"

namespace tapir::rewrite {
namespace {

// x * 0 stays: it is nan for infinite x. x - x and x / x stay for the same reason.
constexpr Pattern kPatterns[] = {
    // No effect.
    {"add(x, 0)", "x"},
    {"sub(x, 0)", "x"},
    {"mul(x, 1)", "x"},
    {"div(x, 1)", "x"},
    {"gated_div(x, 1)", "x"},
    {"pow(x, 1)", "x"},
    {"maximum(x, x)", "x"},
    {"minimum(x, x)", "x"},
    {"where(m, x, x)", "x"},
    {"where(1, x, y)", "x"},
    {"where(0, x, y)", "y"},
    {"masked_fill(x, 0, y)", "x"},
    // Signs.
    {"neg(neg(x))", "x"},
    {"mul(x, -1)", "neg(x)", Pattern::no_bools},
    {"div(x, -1)", "neg(x)", Pattern::no_bools},
    {"add(x, neg(y))", "sub(x, y)", Pattern::no_bools},
    {"sub(x, neg(y))", "add(x, y)", Pattern::no_bools},
    {"neg(sub(x, y))", "sub(y, x)", Pattern::once},
    {"mul(neg(x), neg(y))", "mul(x, y)"},
    {"div(neg(x), neg(y))", "div(x, y)"},
    {"add(mul(neg(x), y), z)", "sub(z, mul(x, y))", Pattern::once},
    {"sub(z, mul(neg(x), y))", "add(z, mul(x, y))", Pattern::once},
    {"abs(neg(x))", "abs(x)", Pattern::reals},
    {"square(neg(x))", "square(x)"},
    {"square(abs(x))", "square(x)"},
    {"cos(neg(x))", "cos(x)"},
    // No effect the second time.
    {"abs(abs(x))", "abs(x)"},
    {"relu(relu(x))", "relu(x)"},
    {"sign(sign(x))", "sign(x)"},
    {"floor(floor(x))", "floor(x)"},
    {"ceil(ceil(x))", "ceil(x)"},
    {"round(round(x))", "round(x)"},
    {"trunc(trunc(x))", "trunc(x)"},
    // Masks.
    {"logical_not(logical_not(m))", "m"},
    {"where(logical_not(m), x, y)", "where(m, y, x)"},
    {"logical_and(m, m)", "m"},
    {"logical_or(m, m)", "m"},
    {"logical_and(m, 1)", "m"},
    {"logical_or(m, 0)", "m"},
    // Powers.
    {"pow(x, 2)", "square(x)"},
    {"pow(x, 3)", "mul(square(x), x)"},
    {"pow(x, 4)", "square(square(x))"},
    {"pow(x, 5)", "mul(square(square(x)), x)", Pattern::no_halves},
    {"pow(x, 6)", "square(mul(square(x), x))", Pattern::no_halves},
    {"pow(x, 8)", "square(square(square(x)))", Pattern::no_halves},
    {"pow(x, 0.5)", "sqrt(x)", Pattern::reals | Pattern::loosely},    // of -inf it is inf
    {"pow(x, -0.5)", "rsqrt(x)", Pattern::reals | Pattern::loosely},  // of -inf it is 0
    {"pow(x, -1)", "reciprocal(x)", Pattern::reals},
    {"pow(x, -2)", "square(reciprocal(x))", Pattern::reals},
    // Quotients.
    {"div(1, x)", "reciprocal(x)", Pattern::reals},
    {"mul(x, reciprocal(y))", "div(x, y)", Pattern::reals | Pattern::once},
    {"reciprocal(sqrt(x))", "rsqrt(x)", Pattern::reals | Pattern::once},
    // Common factors, if nothing else needs the products. inf * 2 + inf * -1 is nan.
    {"add(mul(c, a), mul(c, b))", "mul(c, add(a, b))", Pattern::once | Pattern::no_halves | Pattern::finite_c},
    {"sub(mul(c, a), mul(c, b))", "mul(c, sub(a, b))", Pattern::once | Pattern::no_halves | Pattern::no_bools | Pattern::finite_c},
    {"add(div(a, c), div(b, c))", "div(add(a, b), c)", Pattern::once | Pattern::no_halves | Pattern::reals | Pattern::finite_c},
    {"sub(div(a, c), div(b, c))", "div(sub(a, b), c)", Pattern::once | Pattern::no_halves | Pattern::reals | Pattern::finite_c},
    // Pairs with an op of their own, which is exact where the two are not.
    {"log(softmax(x))", "log_softmax(x)"},
    {"log(sigmoid(x))", "logsigmoid(x)"},
    // What ONNX has no op for. Convolutions end in it in one pass.
    {"mul(x, sigmoid(x))", "silu(x)", Pattern::reals | Pattern::once},
    {"mul(mul(x, add(erf(div(x, 1.4142135381698608)), 1)), 0.5)", "gelu(x)", Pattern::reals | Pattern::once | Pattern::no_doubles},
    {"mul(mul(x, add(erf(div(x, 1.4142135623730951)), 1)), 0.5)", "gelu(x)", Pattern::reals | Pattern::once},
};

// (x * 2) * 3 -> x * 6, (x + 1) + 2 -> x + 3. Sums of numbers only if they are exact: for x = -1e8, (x + 1e8) + 1e-3 is not
// x + (1e8 + 1e-3).
Value* numbers_together(Graph& graph, Node& node) {
    const bool is_product = node.is(mul_form);
    const Value* result = node.results[0];
    if (!is_floating(result->dtype) || result->dtype == float16) return nullptr;
    const auto number_beside = [](const Node& call, int side) -> std::optional<double> {
        const Value* operand = call.inputs[static_cast<std::size_t>(side)];
        if (operand->kind != Graph::Kind::constant || !operand->shape.empty() || !is_floating(operand->dtype)) return std::nullopt;
        return number_of(operand);
    };
    for (const int side : {1, 0}) {
        const std::optional<double> outer = number_beside(node, side);
        Value* product = node.inputs[static_cast<std::size_t>(1 - side)];
        Node* inner = made_by(product, node.form());
        if (!outer || !inner || !has_one_use(graph, product) || product->dtype != result->dtype) continue;
        for (const int place : {1, 0}) {
            const std::optional<double> first = number_beside(*inner, place);
            Value* x = inner->inputs[static_cast<std::size_t>(1 - place)];
            // An operand beside float64 may be float32, whose product with another one has more digits.
            const DType dtype = result->dtype == float64 ? float64 : inner->inputs[static_cast<std::size_t>(place)]->dtype;
            if (!first || x->dtype != result->dtype || !same_shape(product, result)) continue;
            const double both = is_product ? *first * *outer : *first + *outer;
            const double kept = dtype == float64 ? both : static_cast<double>(static_cast<float>(both));
            const bool fits = is_product ? std::abs(both) > 1e-30 && std::abs(both) < 1e30 : kept - *first == *outer && kept - *outer == *first;
            if (fits) return put(graph, node, node.form(), {x, put_number(graph, both, dtype)}, {}, result);
        }
    }
    return nullptr;
}

// A number in the dtype in which an op of this dtype computes.
Value* put_factor(Graph& graph, double number, DType dtype) {
    return put_number(graph, number, dtype == float16 || dtype == bfloat16 ? float32 : dtype);
}

// x + x -> x * 2, for the rules for numbers.
Value* twice(Graph& graph, Node& node) {
    const Value* result = node.results[0];
    if (node.inputs[0] != node.inputs[1] || result->dtype == bool_ || !same_type(node.inputs[0], result)) return nullptr;
    return put(graph, node, mul_form, {node.inputs[0], put_factor(graph, 2, result->dtype)}, {}, result);
}

// -x * 2 and -(x * 2) -> x * -2
Value* sign_of_number(Graph& graph, Node& node) {
    const Value* result = node.results[0];
    if (!is_floating(result->dtype)) return nullptr;
    const bool is_inside = node.is(mul_form);
    const std::size_t count = is_inside ? 2 : 1;
    for (std::size_t i = 0; i < count; ++i) {
        Value* between = node.inputs[i];
        Node* inner = made_by(between, is_inside ? neg_form : mul_form);
        if (!inner || !has_one_use(graph, between) || !same_type(between, result)) continue;
        const Node& product = is_inside ? node : *inner;
        for (const std::size_t place : {0, 1}) {
            const Value* operand = product.inputs[place];
            const std::optional<double> number = operand->kind == Graph::Kind::constant && operand->shape.empty() ? number_of(operand) : std::nullopt;
            if (!number || !is_floating(operand->dtype)) continue;
            Value* x = is_inside ? inner->inputs[0] : inner->inputs[1 - place];
            if (x->dtype != result->dtype) continue;
            return put(graph, node, mul_form, {x, put_number(graph, -*number, operand->dtype)}, {}, result);
        }
    }
    return nullptr;
}

// Turns products of rules, in which 0 beats infinity and nan, into plain ones beside a number for which both agree.
Value* plain_product(Graph& graph, Node& node) {
    const Value* result = node.results[0];
    const std::optional<double> a = number_of(node.inputs[0]), b = number_of(node.inputs[1]);
    const bool is_plain = (a && *a != 0 && (node.is(gated_mul_form) || std::isfinite(*a))) || (b && std::isfinite(*b) && *b != 0);
    return is_plain ? put(graph, node, mul_form, {node.inputs[0], node.inputs[1]}, {}, result) : nullptr;
}

// where(mask, 1, 0)
Value* mask_as_numbers(Graph& graph, Node& node) {
    const Value* result = node.results[0];
    Value* mask = node.inputs[0];
    const std::optional<double> yes = number_of(node.inputs[1]), no = number_of(node.inputs[2]);
    if (mask->dtype != bool_ || !yes || !no || *yes != 1 || *no != 0 || !same_shape(mask, result) || mask->device != result->device) return nullptr;
    return put(graph, node, to_dtype_form, {mask}, {{"dtype", result->dtype}}, result);
}

// True if the second dtype holds each number of the first.
bool holds_all(DType from, DType to) {
    if (from == to || from == bool_) return true;
    switch (to) {
        case DType::float64: return from != int64;
        case DType::float32: return from == float16 || from == bfloat16 || from == uint8;
        case DType::int64: return from == int32 || from == uint8;
        case DType::int32:
        case DType::float16:
        case DType::bfloat16: return from == uint8;
        default: return false;
    }
}

// Joins two conversions, the first of which loses nothing.
Value* conversions(Graph& graph, Node& node) {
    const Node* inner = made_by(node.inputs[0], to_dtype_form);
    if (!inner || !holds_all(inner->inputs[0]->dtype, inner->results[0]->dtype)) return nullptr;
    if (inner->inputs[0]->dtype == node.results[0]->dtype) return same_type(inner->inputs[0], node.results[0]) ? inner->inputs[0] : nullptr;
    return put(graph, node, to_dtype_form, {inner->inputs[0]}, node.attributes().all(), node.results[0]);
}

constexpr Rule kArithmeticRules[] = {
    {mul_form, numbers_together},        {mul_form, sign_of_number},   {neg_form, sign_of_number}, {gated_mul_form, plain_product},
    {absorbing_mul_form, plain_product}, {add_form, numbers_together}, {add_form, twice},          {where_form, mask_as_numbers},
    {to_dtype_form, conversions},
};

}  // namespace

int simplify_arithmetic(Graph& graph, bool allow_nonfinite) {
    return apply_patterns(graph, kPatterns, allow_nonfinite) + apply_rules(graph, kArithmeticRules);
}

}  // namespace tapir::rewrite
