// ONNX's losses.
#include "tapir/autograd/trace/onnx/import_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/loss/cross_entropy.h"
#include "tapir/ops/loss/loss.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/reduce/softmax.h"
#include "tapir/ops/view/view.h"

namespace tapir::detail {
namespace {

using Call = OnnxCall;
using std::int64_t;

// The loss of log probabilities (N, classes, ...) and targets (N, ...).
Tensor negative_likelihood(Call& c, const Tensor& log_probs, const Tensor& targets, const Tensor& weight) {
    CrossEntropyOptions options;
    options.weight = weight;
    options.ignore_index = c.integer("ignore_index", options.ignore_index);
    const std::string reduction = c.text("reduction", "mean");
    options.reduction = reduction == "none" ? Reduction::none : reduction == "sum" ? Reduction::sum : Reduction::mean;
    if (log_probs.dim() < 2 || targets.dim() != log_probs.dim() - 1) {
        c.reject("targets of shape {} for an operand of shape {}", targets.shape(), log_probs.shape());
    }
    // Reshapes to rows, (N * ..., classes).
    Dims last;
    for (int d = 0; d < log_probs.dim(); ++d) {
        if (d != 1) last.push_back(d);
    }
    last.push_back(1);
    const int64_t classes = log_probs.size(1);
    const Tensor lines = log_probs.dim() == 2 ? log_probs : reshape(permute(log_probs, last), {-1, classes});
    const Tensor loss = nll_loss(lines, reshape(targets, {-1}).to(int64), options);
    return options.reduction == Reduction::none ? reshape(loss, targets.shape()) : loss;
}

void nll(Call& c) { c.give(negative_likelihood(c, c.x(0), c.x(1), c.maybe(2))); }

void softmax_cross_entropy(Call& c) {
    const Tensor log_probs = log_softmax(c.x(0), 1);
    c.give(negative_likelihood(c, log_probs, c.x(1), c.maybe(2)));
    if (c.wants(1)) c.give(log_probs);
}

constexpr OnnxOp kLossOps[] = {
    {"NegativeLogLikelihoodLoss", 12, nll},
    {"SoftmaxCrossEntropyLoss", 12, softmax_cross_entropy},
};

}  // namespace

std::span<const OnnxOp> onnx_loss_ops() { return kLossOps; }

}  // namespace tapir::detail
