// ONNX's preview of training: one step of an optimizer. R: the learning rate, T: the number of earlier steps; then x, gradients, states.
#include "tapir/autograd/trace/onnx/import_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"

namespace tapir::detail {
namespace {

using Call = OnnxCall;

constexpr const char* kDomain = "ai.onnx.preview.training";

int tensors(Call& c, int each) {
    if ((c.count() - 2) % each != 0) c.reject("it has {} operands", c.count());
    return (c.count() - 2) / each;
}

void adagrad(Call& c) {
    const int n = tensors(c, 3);
    const double norm = c.real("norm_coefficient", 0), decay = c.real("decay_factor", 0), eps = c.real("epsilon", 1e-6);
    const Tensor rate = c.x(0) / (1 + c.x(1).to(c.dtype(0)) * decay);
    std::vector<Tensor> new_x, new_h;
    for (int i = 0; i < n; ++i) {
        const Tensor x = c.x(2 + i), g = c.x(2 + n + i) + x * norm, h = c.x(2 + 2 * n + i) + g * g;
        new_x.push_back(x - rate * g / (sqrt(h) + eps));
        new_h.push_back(h);
    }
    for (const Tensor& x : new_x) c.give(x);
    for (const Tensor& h : new_h) c.give(h);
}

void adam(Call& c) {
    const int n = tensors(c, 4);
    const double alpha = c.real("alpha", 0.9), beta = c.real("beta", 0.999), norm = c.real("norm_coefficient", 0),
                 norm_post = c.real("norm_coefficient_post", 0), eps = c.real("epsilon", 1e-6);
    const Tensor rate = c.x(0), t = c.x(1).to(c.dtype(0));
    // Corrects for the zeros at the start of the averages, after the first step.
    const Tensor corrected = rate * sqrt(1 - pow(beta, t)) / (1 - pow(alpha, t)), adjusted = where(c.x(1) > 0, corrected, rate);
    std::vector<Tensor> new_x, new_v, new_h;
    for (int i = 0; i < n; ++i) {
        const Tensor x = c.x(2 + i), g = c.x(2 + n + i) + x * norm;
        const Tensor v = c.x(2 + 2 * n + i) * alpha + g * (1 - alpha), h = c.x(2 + 3 * n + i) * beta + g * g * (1 - beta);
        new_x.push_back((x - adjusted * v / (sqrt(h) + eps)) * (1 - norm_post));
        new_v.push_back(v);
        new_h.push_back(h);
    }
    for (const Tensor& x : new_x) c.give(x);
    for (const Tensor& v : new_v) c.give(v);
    for (const Tensor& h : new_h) c.give(h);
}

void momentum(Call& c) {
    const int n = tensors(c, 3);
    const double alpha = c.real("alpha", 0), beta = c.real("beta", 0), norm = c.real("norm_coefficient", 0);
    const bool nesterov = c.text("mode", "standard") == "nesterov";
    const Tensor rate = c.x(0), first = c.x(1) > 0;
    std::vector<Tensor> new_x, new_v;
    for (int i = 0; i < n; ++i) {
        const Tensor x = c.x(2 + i), g = c.x(2 + n + i) + x * norm;
        const Tensor v = c.x(2 + 2 * n + i) * alpha + where(first, g * beta, g);
        new_x.push_back(x - rate * (nesterov ? g + v * alpha : v));
        new_v.push_back(v);
    }
    for (const Tensor& x : new_x) c.give(x);
    for (const Tensor& v : new_v) c.give(v);
}

constexpr OnnxOp kTrainingOps[] = {
    {"Adagrad", 1, adagrad, OnnxOp::kPlain, kDomain},
    {"Adam", 1, adam, OnnxOp::kPlain, kDomain},
    {"Momentum", 1, momentum, OnnxOp::kPlain, kDomain},
};

}  // namespace

std::span<const OnnxOp> onnx_training_ops() { return kTrainingOps; }

}  // namespace tapir::detail
