// The ops of activation.h, recorded as the ops that they are made of.
#include "tapir/ops/elementwise/activation.h"

#include <cmath>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/tape.h"
#include "tapir/core/composed_op_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/generator.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/index/embedding.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/random/random.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/reduce/softmax.h"
#include "tapir/ops/view/view.h"

namespace tapir {

TAPIR_OP(prelu, Composed, "x above 0, else weight * x.", TAPIR_SAMPLE("d(3,4) f(1)", prelu(x[0], x[1])),
         TAPIR_SAMPLE("d(2,3,4) f(3)", prelu(x[0], x[1])), TAPIR_SAMPLE("d(5) f(1)", prelu(x[0], x[1])));
TAPIR_OP(threshold, Composed, "x above a limit, else a value.", TAPIR_SAMPLE("d(3,4)", threshold(x[0], 0.1, 0.7)));
TAPIR_OP(glu, Composed, "One half times the sigmoid of the other.", TAPIR_SAMPLE("f(3,4)", glu(x[0])), TAPIR_SAMPLE("f(4,3)", glu(x[0], 0)));
TAPIR_OP(softmin, Composed, "softmax(-x).", TAPIR_SAMPLE("f(3,4)", softmin(x[0], 1)));

namespace {

void check_probability(const char* op, const In& x, double p) {
    detail::check_defined(x, op);
    if (!(p >= 0 && p <= 1)) fail<ValueError>(x.loc, "{}: p must be in [0, 1], got {}", op, p);
}

// x has `rank` dimensions (N, C, ...), or one less: (N, C, ...) or (C, ...), as `without_batch` says.
Tensor dropout_of_channels(const char* op, const In& x, double p, bool training, int rank, bool without_batch) {
    check_probability(op, x, p);
    const int dims = x.tensor.dim();
    if (dims != rank && dims != rank - 1) {
        fail<ShapeError>(x.loc, "{}: needs {} or {} dimensions, got shape {}", op, rank - 1, rank, x.tensor.shape());
    }
    if (!training || p == 0) return x.tensor;
    const detail::RecordedParts parts(x.loc);
    Shape channels = x.tensor.shape();
    for (int d = without_batch && dims < rank ? 1 : 2; d < dims; ++d) channels[d] = 1;
    if (p == 1) return x.tensor * 0;
    return x.tensor * bernoulli(channels, 1 - p, {x->dtype, x->device}) / (1 - p);
}

Tensor gumbel_softmax_of(const In& logits, double tau, bool hard, Dim dim, Generator* generator) {
    detail::check_defined(logits, "gumbel_softmax");
    if (!(tau > 0)) fail<ValueError>(logits.loc, "gumbel_softmax: tau must be above 0, got {}", tau);
    if (!is_floating(logits->dtype)) {
        fail<DTypeError>(logits.loc, "gumbel_softmax: needs a floating dtype, got {}; convert with to(float32)", name(logits->dtype));
    }
    const int d = detail::wrap_dim(dim, logits.tensor.dim(), "gumbel_softmax", logits.loc);
    const detail::RecordedParts parts(logits.loc);
    const TensorOptions options(computed_in(logits->dtype), logits->device);
    const Tensor uniform = generator ? rand(logits.tensor.shape(), *generator, options) : rand(logits.tensor.shape(), options);
    const Tensor exponential = clamp_min(-log1p(-uniform), 1e-30);
    const Tensor soft = softmax((logits.tensor - to(log(exponential), logits->dtype)) / tau, d);
    if (!hard || soft.numel() == 0) return soft;
    Tensor one_hot;
    {
        const NoGradScope off;
        one_hot = soft.dim() == 0 ? ones_like(soft) : scatter(zeros_like(soft), d, argmax(soft, d, true), 1);
        one_hot = one_hot - soft;
    }
    return soft + one_hot;
}

}  // namespace

Tensor prelu(In x, In weight) {
    detail::check_defined(x, "prelu");
    detail::check_defined(weight, "prelu");
    const std::int64_t channels = x.tensor.dim() < 2 ? 1 : x->sizes[1];
    if (weight.tensor.dim() > 1 || (weight->numel != 1 && weight->numel != channels)) {
        fail<ShapeError>(x.loc, "prelu: the weight has shape {}, needs 1 element or {}, for the channels of {}", weight.tensor.shape(), channels,
                         x.tensor.shape());
    }
    const detail::RecordedParts parts(x.loc);
    Shape shape = x.tensor.shape();
    for (int d = 0; d < shape.rank(); ++d) shape[d] = d == 1 ? weight->numel : 1;
    return parametric_relu(x, reshape(weight, shape));
}

Tensor threshold(In x, double limit, double value) {
    detail::check_defined(x, "threshold");
    const detail::RecordedParts parts(x.loc);
    return where(x.tensor <= limit, full({}, value, {x->dtype, x->device}), x);
}

Tensor glu(In x, Dim dim) {
    detail::check_defined(x, "glu");
    const int d = detail::wrap_dim(dim, x.tensor.dim(), "glu", x.loc);
    if (x.tensor.dim() == 0 || x->sizes[d] % 2 != 0) {
        fail<ShapeError>(x.loc, "glu: dimension {} of shape {} has an odd size, and so no halves", dim, x.tensor.shape());
    }
    const detail::RecordedParts parts(x.loc);
    const std::int64_t half = x->sizes[d] / 2;
    return narrow(x, d, 0, half) * sigmoid(narrow(x, d, half, half));
}

Tensor softmin(In x, Dim dim) {
    const detail::ComposedOp composed("softmin");
    detail::check_defined(x, "softmin");
    const int d = detail::wrap_dim(dim, x.tensor.dim(), "softmin", x.loc);
    const detail::RecordedParts parts(x.loc);
    return softmax(-x.tensor, d);
}

Tensor gumbel_softmax(In logits, double tau, bool hard, Dim dim) { return gumbel_softmax_of(logits, tau, hard, dim, nullptr); }
Tensor gumbel_softmax(In logits, double tau, bool hard, Dim dim, Generator& generator) {
    return gumbel_softmax_of(logits, tau, hard, dim, &generator);
}

Tensor dropout1d(In x, double p, bool training) { return dropout_of_channels("dropout1d", x, p, training, 3, true); }
Tensor dropout2d(In x, double p, bool training) { return dropout_of_channels("dropout2d", x, p, training, 4, false); }
Tensor dropout3d(In x, double p, bool training) { return dropout_of_channels("dropout3d", x, p, training, 5, true); }

Tensor alpha_dropout(In x, double p, bool training) {
    check_probability("alpha_dropout", x, p);
    if (!training || p == 0) return x.tensor;
    const detail::RecordedParts parts(x.loc);
    if (p == 1) return x.tensor * 0;
    constexpr double kLowest = -1.7580993408473766;  // selu's lower limit
    const double scale = 1 / std::sqrt((1 - p) * (1 + p * kLowest * kLowest));
    const Tensor kept = bernoulli(x.tensor.shape(), 1 - p, {x->dtype, x->device});
    return (x.tensor * kept + (1 - kept) * kLowest) * scale - scale * kLowest * p;
}

}  // namespace tapir
