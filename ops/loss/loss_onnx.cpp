// Writes loss.cpp, pair_loss.cpp and cross_entropy.cpp as ONNX.
#include <algorithm>

#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/onnx_form.h"

namespace tapir {
namespace {

using std::int64_t;

// Reduces the elements of a loss that has the operands' common shape.
OnnxValue reduced(const OnnxCall& x, const OnnxValue& loss) {
    const std::string how = x.choice("reduction");
    const int rank = std::max(x.rank(0), x.rank(1));
    if (how == "none") return loss;
    const auto is_empty = [](const OnnxSizes& shape) { return std::find(shape.begin(), shape.end(), SymInt(0)) != shape.end(); };
    if (how == "mean" && (is_empty(x.shape(0)) || is_empty(x.shape(1)))) return x.reduce_all("ReduceSum", loss, rank) / 0.0;
    return x.reduce_all(how == "sum" ? "ReduceSum" : "ReduceMean", loss, rank);
}

OnnxValue mse_of(const OnnxCall& x) {
    const OnnxValue away = x.as_result(0) - x.as_result(1);
    return reduced(x, away * away);
}

OnnxValue huber_of(const OnnxCall& x) {
    const double delta = x.real("delta");
    const OnnxValue away = abs(x.as_result(0) - x.as_result(1));
    return reduced(x, where(away < delta, away * away * 0.5, (away - 0.5 * delta) * delta));
}

OnnxValue smooth_l1_of(const OnnxCall& x) {
    const double beta = x.real("beta");
    const OnnxValue away = abs(x.as_result(0) - x.as_result(1));
    return reduced(x, beta > 0 ? where(away < beta, away * away * (0.5 / beta), away - 0.5 * beta) : away);
}

OnnxValue logits_of(const OnnxCall& x) {
    const OnnxValue v = x.as_result(0), target = x.as_result(1);
    return reduced(x, where(v > 0, v, 0) - v * target + log1p(exp(-abs(v))));
}

// Logarithms are kept above -100, as PyTorch's.
OnnxValue binary_cross_entropy_of(const OnnxCall& x) {
    const OnnxValue v = x.as_result(0), target = x.as_result(1), least = x.scalar(-100, x.result_dtype());
    return -(target * x.node("Max", {log(v), least}) + (1 - target) * x.node("Max", {log(1 - v), least}));
}

OnnxValue cross_entropy_of(const OnnxCall& x, bool of_logits) {
    const int rank = x.rank(), dim = rank == 1 ? 0 : 1;
    const DType dtype = x.result_dtype();
    const double smoothing = x.real("label_smoothing");
    const std::string how = x.choice("reduction");
    const SymInt classes = x.shape()[dim];
    const OnnxValue input = x.as_result(0);
    const OnnxValue logs = of_logits ? x.node("LogSoftmax", {input}, {{"axis", dim}}) : input;
    const OnnxValue weight = x.count() > 2 ? x.as_result(2) : OnnxValue();
    OnnxInts after;
    for (int d = dim + 1; d < rank; ++d) after.push_back(d - dim);
    const OnnxValue spread_weight = weight.is_left_out() ? weight : x.unsqueeze(weight, after);
    const auto summed = [&](const OnnxValue& v) { return x.reduce_all("ReduceSum", v, rank - 1); };
    if (is_floating(x.dtype(1))) {  // probabilities
        OnnxValue target = x.as_result(1);
        if (smoothing > 0) target = target * (1 - smoothing) + smoothing / x.size_as(classes, dtype);
        if (!weight.is_left_out()) target = target * spread_weight;
        const OnnxValue loss = -x.reduce("ReduceSum", target * logs, {dim}, false);
        if (how == "none") return loss;
        SymInt count = 1;
        for (int d = 0; d < rank; ++d) {
            if (d != dim) count = count * x.shape()[d];
        }
        return how == "sum" ? summed(loss) : summed(loss) / x.size_as(count, dtype);
    }
    const OnnxValue target = x.cast(x[1].is_number() ? x.scalar(x[1].number(), int64) : x[1], int64);
    const OnnxValue is_ignored = target == x.integer("ignore_index"), safe = where(is_ignored, 0, target);
    const OnnxValue picked = x.squeeze(x.node("GatherElements", {logs, x.unsqueeze(safe, {dim})}, {{"axis", dim}}), {dim});
    const OnnxValue share = weight.is_left_out() ? where(is_ignored, 0, x.scalar(1, dtype)) : where(is_ignored, 0, x.gather(weight, safe, 0));
    OnnxValue loss = where(is_ignored, 0, -picked * share);
    if (smoothing > 0) {
        const OnnxValue all = x.reduce("ReduceSum", weight.is_left_out() ? logs : logs * spread_weight, {dim}, false);
        loss = loss * (1 - smoothing) - where(is_ignored, 0, all) * (smoothing / x.size_as(classes, dtype));
    }
    if (how == "none") return loss;
    return how == "sum" ? summed(loss) : summed(loss) / summed(share);
}

// (g, logits, targets, weight)
OnnxValue cross_entropy_backward_of(const OnnxCall& x) {
    const int rank = x.rank(1), dim = rank == 1 ? 0 : 1;
    const DType dtype = x.result_dtype();
    const double smoothing = x.real("label_smoothing");
    const std::string how = x.choice("reduction");
    const SymInt classes = x.shape(1)[dim];
    OnnxInts after;
    for (int d = dim + 1; d < rank; ++d) after.push_back(d - dim);
    const OnnxValue target = x.unsqueeze(x.cast(x[2].is_number() ? x.scalar(x[2].number(), int64) : x[2], int64), {dim});
    const OnnxValue counts = !(target == x.integer("ignore_index"));
    const OnnxValue is_own = (target == x.unsqueeze(x.range(classes), after)) & counts;
    const OnnxValue weight = x.count() > 3 ? x.unsqueeze(x.as_result(3), after) : x.scalar(1, dtype);
    const OnnxValue own = where(is_own, weight, x.scalar(0, dtype)), own_mass = x.reduce("ReduceSum", own, {dim}, true);
    OnnxValue q = own, mass = own_mass;
    if (smoothing > 0) {
        const OnnxValue spread = x.filled({classes}, 1, dtype);
        const OnnxValue all = where(counts, x.unsqueeze(spread, after) * weight * (smoothing / x.size_as(classes, dtype)), x.scalar(0, dtype));
        q = q * (1 - smoothing) + all;
        mass = mass * (1 - smoothing) + x.reduce("ReduceSum", all, {dim}, true);
    }
    OnnxValue g = x.as_result(0);
    if (how == "none") g = x.unsqueeze(g, {dim});
    if (how == "mean") {
        const OnnxValue total = x.reduce_all("ReduceSum", own_mass, rank);
        g = g / where(total == 0, x.scalar(1, dtype), total);
    }
    return (x.node("Softmax", {x.as_result(1)}, {{"axis", dim}}) * mass - q) * g;
}

}  // namespace

TAPIR_ONNX(mse_loss, mse_of(x));
TAPIR_ONNX(huber_loss, huber_of(x));
TAPIR_ONNX(smooth_l1_loss, smooth_l1_of(x));
TAPIR_ONNX(binary_cross_entropy_with_logits, logits_of(x));
TAPIR_ONNX(binary_cross_entropy, binary_cross_entropy_of(x));
TAPIR_ONNX(cross_entropy, cross_entropy_of(x, true));
TAPIR_ONNX(cross_entropy_backward, cross_entropy_backward_of(x));
TAPIR_ONNX(nll_loss, cross_entropy_of(x, false));

}  // namespace tapir
