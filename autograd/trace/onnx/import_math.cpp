// ONNX ops on elements: arithmetic, functions, activations.
#include <cmath>
#include <limits>

#include "tapir/autograd/trace/onnx/import_impl.h"
#include "tapir/ops/elementwise/activation.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/view/view.h"

namespace tapir::detail {
namespace {

using Call = OnnxCall;

template <Tensor (*Fn)(In)>
void unary(Call& c) {
    c.give(Fn(c.x(0)));
}

// Before opset 7 the second operand broadcast from `axis` on.
Tensor second(Call& c) {
    const Tensor b = c.x(1);
    if (c.opset() >= 7 || !c.flag("broadcast", false)) return b;
    const int rank = c.rank(0), axis = c.given("axis") ? c.axis("axis", 0, rank) : rank - b.dim();
    Shape shape = b.shape();
    while (axis + shape.rank() < rank) shape.push_back(1);
    return shape == b.shape() ? b : reshape(b, shape);
}

template <Tensor (*Fn)(In, In)>
void binary(Call& c) {
    c.give(Fn(c.x(0), second(c)));
}

// Integer division rounds towards 0.
void divide(Call& c) {
    const Tensor a = c.x(0), b = second(c);
    c.give(is_floating(a.dtype()) ? div(a, b) : div(a, b, "trunc"));
}

void power(Call& c) {
    const Tensor a = c.x(0), b = second(c);
    if (a.dtype() == b.dtype()) return c.give(pow(a, b));
    if (is_floating(a.dtype())) return c.give(pow(a, b.to(a.dtype())));
    if (is_floating(b.dtype())) return c.give(pow(a.to(b.dtype()), b).to(a.dtype()));
    c.give(pow(a, b.to(a.dtype())));
}

void modulo(Call& c) {
    const Tensor a = c.x(0), b = c.x(1);
    if (c.flag("fmod", false)) return c.give(fmod(a, b));
    const Tensor rest = remainder(a, b);
    if (!is_floating(rest.dtype())) return c.give(rest);
    c.give(where(eq(rest, 0), copysign(rest, b), rest));  // a zero has the divisor's sign
}

template <Tensor (*Fn)(In, In)>
Tensor folded(Call& c) {
    const std::vector<Tensor> all = c.all();
    if (all.empty()) c.reject("it has no operands");
    Tensor result = all[0];
    for (std::size_t i = 1; i < all.size(); ++i) result = Fn(result, all[i]);
    return all.size() == 1 ? result.clone() : result;
}
template <Tensor (*Fn)(In, In)>
void variadic(Call& c) {
    c.give(folded<Fn>(c));
}
void mean_of_all(Call& c) { c.give(folded<add>(c) / c.count()); }

void clip_by_attributes(Call& c) {
    c.give(clamp(c.x(0), c.real("min", -std::numeric_limits<float>::max()), c.real("max", std::numeric_limits<float>::max())));
}
void clip_by_operands(Call& c) {
    Tensor x = c.x(0);
    if (!c.has(1) && !c.has(2)) return c.give(x.clone());
    if (c.has(1)) x = maximum(x, c.x(1));
    if (c.has(2)) x = minimum(x, c.x(2));
    c.give(x);
}

void is_infinite(Call& c) {
    const bool positive = c.flag("detect_positive", true), negative = c.flag("detect_negative", true);
    const Tensor x = c.x(0);
    c.give(positive && negative ? isinf(x) : positive ? isposinf(x) : negative ? isneginf(x) : logical_and(isinf(x), isnan(x)));
}

void bit_shift(Call& c) {
    const Tensor x = c.x(0), by = c.x(1);
    const std::string direction = c.text("direction", "");
    if (direction == "LEFT") return c.give(bitwise_left_shift(x, by));
    if (direction == "RIGHT") return c.give(bitwise_right_shift(x, by));
    c.reject("its direction is \"{}\"", direction);
}

// --- Activations --------------------------------------------------------------------------------------------------------------------

void leaky_relu_op(Call& c) { c.give(leaky_relu(c.x(0), c.real("alpha", 0.01))); }
void elu_op(Call& c) { c.give(elu(c.x(0), c.real("alpha", 1))); }
void celu_op(Call& c) { c.give(celu(c.x(0), c.real("alpha", 1))); }
void selu_op(Call& c) {
    const Tensor x = c.x(0);
    const double alpha = c.real("alpha", 1.67326319217681884765625), gamma = c.real("gamma", 1.05070102214813232421875);
    c.give(where(x > 0, x, expm1(minimum(x, zeros_like(x))) * alpha) * gamma);
}
void hard_sigmoid(Call& c) { c.give(clamp(c.x(0) * c.real("alpha", 0.2) + c.real("beta", 0.5), 0, 1)); }
void hard_swish(Call& c) { c.give(hardswish(c.x(0))); }
Tensor swished(const Tensor& x, double alpha) { return alpha == 1 ? silu(x) : x * sigmoid(x * alpha); }
void swish(Call& c) { c.give(swished(c.x(0), c.real("alpha", 1))); }
void swiglu(Call& c) { c.give(swished(c.x(0), c.real("alpha", 1)) * c.x(1)); }
void softplus_op(Call& c) { c.give(softplus(c.x(0))); }
void gelu_op(Call& c) { c.give(gelu(c.x(0), c.text("approximate", "none").c_str())); }
void thresholded_relu(Call& c) {
    const Tensor x = c.x(0);
    c.give(where(x > c.real("alpha", 1), x, 0));
}
void parametric(Call& c) {
    const Tensor x = c.x(0);
    Tensor slope = c.x(1);
    if (c.opset() < 7 && slope.dim() == 1 && x.dim() > 2) {  // one slope per channel
        Shape shape = slope.shape();
        for (int d = 2; d < x.dim(); ++d) shape.push_back(1);
        slope = reshape(slope, shape);
    }
    c.give(where(x < 0, x * slope, x));
}
void shrink(Call& c) {
    const Tensor given = c.x(0), x = is_floating(given.dtype()) ? given : given.to(float64);
    const double lambda = c.real("lambd", 0.5), bias = c.real("bias", 0);
    c.give(where(x < -lambda, x + bias, where(x > lambda, x - bias, zeros_like(x))).to(given.dtype()), c.type(0));
}

constexpr OnnxOp kMathOps[] = {
    {"Abs", 1, unary<abs>, OnnxOp::kWraps},
    {"Neg", 1, unary<neg>, OnnxOp::kWraps},
    {"Sign", 9, unary<sign>},
    {"Reciprocal", 1, unary<reciprocal>},
    {"Sqrt", 1, unary<sqrt>},
    {"Floor", 1, unary<floor>},
    {"Ceil", 1, unary<ceil>},
    {"Round", 11, unary<round>},
    {"Exp", 1, unary<exp>},
    {"Log", 1, unary<log>},
    {"Sin", 7, unary<sin>},
    {"Cos", 7, unary<cos>},
    {"Tan", 7, unary<tan>},
    {"Asin", 7, unary<asin>},
    {"Acos", 7, unary<acos>},
    {"Atan", 7, unary<atan>},
    {"Sinh", 9, unary<sinh>},
    {"Cosh", 9, unary<cosh>},
    {"Tanh", 1, unary<tanh>},
    {"Asinh", 9, unary<asinh>},
    {"Acosh", 9, unary<acosh>},
    {"Atanh", 9, unary<atanh>},
    {"Erf", 9, unary<erf>},
    {"Sigmoid", 1, unary<sigmoid>},
    {"Relu", 1, unary<relu>},
    {"Softsign", 1, unary<softsign>},
    {"Mish", 18, unary<mish>},
    {"Add", 1, binary<add>, OnnxOp::kWraps},
    {"Sub", 1, binary<sub>, OnnxOp::kWraps},
    {"Mul", 1, binary<mul>, OnnxOp::kWraps},
    {"Div", 1, divide, OnnxOp::kWraps},
    {"Pow", 1, power, OnnxOp::kWraps},
    {"Mod", 10, modulo},
    {"Max", 1, variadic<maximum>},
    {"Min", 1, variadic<minimum>},
    {"Sum", 1, variadic<add>},
    {"Mean", 1, mean_of_all},
    {"Clip", 1, clip_by_attributes},
    {"Clip", 11, clip_by_operands},
    {"IsNaN", 9, unary<isnan>},
    {"IsInf", 10, is_infinite},
    {"BitShift", 11, bit_shift, OnnxOp::kWraps},
    {"BitwiseAnd", 18, binary<bitwise_and>},
    {"BitwiseOr", 18, binary<bitwise_or>},
    {"BitwiseXor", 18, binary<bitwise_xor>},
    {"BitwiseNot", 18, unary<bitwise_not>, OnnxOp::kWraps},
    {"LeakyRelu", 1, leaky_relu_op},
    {"Elu", 1, elu_op},
    {"Celu", 12, celu_op},
    {"Selu", 1, selu_op},
    {"HardSigmoid", 1, hard_sigmoid},
    {"HardSwish", 14, hard_swish},
    {"Swish", 24, swish},
    {"SwiGLU", 28, swiglu},
    {"Softplus", 1, softplus_op},
    {"Gelu", 20, gelu_op},
    {"ThresholdedRelu", 10, thresholded_relu},
    {"PRelu", 1, parametric},
    {"Shrink", 9, shrink},
};

}  // namespace

std::span<const OnnxOp> onnx_math_ops() { return kMathOps; }

}  // namespace tapir::detail
