// Losses of margins, distances and distributions, composed of other ops. Their samples stand in the row of mse_loss.
#include <cmath>
#include <initializer_list>
#include <numbers>

#include "tapir/autograd/tape.h"
#include "tapir/core/composed_op_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/core/values_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/loss/loss.h"
#include "tapir/ops/loss/loss_impl.h"
#include "tapir/ops/loss/margin_loss.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/scan/scan.h"
#include "tapir/ops/view/view.h"

namespace tapir {
namespace {

using std::int64_t;

// Checks that all are defined, and on the first one's device but for 0-d ones of the CPU.
void check_all(const char* op, const In& first, std::initializer_list<const In*> others) {
    detail::check_defined(first, op);
    for (const In* x : others) {
        if (!x->tensor.defined()) detail::fail_undefined(op, first.loc);
        if (x->tensor.dim() > 0) detail::check_same_device(op, first.tensor, x->tensor, first.loc);
    }
}

void check_broadcast(const char* op, const In& a, const In& b) { broadcast_shapes(a.tensor.shape(), b.tensor.shape(), op, a.loc); }

// Takes class scores (n, classes), (classes,), which becomes (1, classes), or () for one class.
Tensor as_rows(const char* op, const In& input) {
    const int rank = input.tensor.dim();
    if (rank > 2) {
        fail<ShapeError>(input.loc, "{}: needs an input (n, classes) or (classes,), got {}", op, input.tensor.shape());
    }
    return rank == 2 ? wide(input) : reshape(wide(input), {1, input->numel});
}

void check_classes(const char* op, const In& target, const Loc& loc) {
    if (is_floating(target.tensor.dtype()) || target.tensor.dtype() == bool_) {
        fail<DTypeError>(loc, "{}: needs class indices as the target, not {}", op, name(target.tensor.dtype()));
    }
}

// Checks that each target is in [least, classes). A graph's gather() only checks for those that are too large.
void check_range(const char* op, const In& target, int64_t least, int64_t classes) {
    if (detail::is_tracing() || target->numel == 0) return;
    const detail::PauseRecording pause;
    const detail::PartsOfOp parts;
    for (const Tensor& end : {amin(target), amax(target)}) {
        const auto t = end.item<int64_t>();
        if (t < least || t >= classes) fail<IndexError>(target.loc, "{}: target {} is out of range for {} classes", op, t, classes);
    }
}

void check_not_nan(const char* op, const char* what, double number, const Loc& loc) {
    if (std::isnan(number)) fail<ValueError>(loc, "{}: {} is nan", op, what);
}

void check_margin(const char* op, double margin, const Loc& loc) {
    if (!(margin > 0)) fail<ValueError>(loc, "{}: margin must be above 0, got {}", op, margin);
}

Tensor cosine(const Tensor& a, const Tensor& b, int dim, double eps) {
    const Tensor length_a = clamp_min(norm(a, 2, {dim}, /*keepdim=*/true), eps);
    const Tensor length_b = clamp_min(norm(b, 2, {dim}, /*keepdim=*/true), eps);
    return sum((a / length_a) * (b / length_b), {dim});
}

Tensor triplet(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
               const std::function<Tensor(const Tensor&, const Tensor&)>& distance, double margin, bool swap, Reduction reduction) {
    const Tensor near = distance(anchor, positive);
    Tensor far = distance(anchor, negative);
    if (swap) far = minimum(far, distance(positive, negative));
    return reduce_losses(clamp_min(near - far + margin, 0), reduction);
}

}  // namespace

// --- Two classes, two inputs ------------------------------------------------------------------------------------------------

Tensor soft_margin_loss(In input, In target, Reduction reduction) {
    check_all("soft_margin_loss", input, {&target});
    check_reduction("soft_margin_loss", reduction, input.loc);
    check_broadcast("soft_margin_loss", input, target);
    const detail::RecordedParts parts(input.loc);
    const auto [x, t] = in_one_dtype(input, target);
    return in_dtype_of(input, reduce_losses(-logsigmoid(x * t), reduction));
}

Tensor margin_ranking_loss(In input1, In input2, In target, double margin, Reduction reduction) {
    check_all("margin_ranking_loss", input1, {&input2, &target});
    check_reduction("margin_ranking_loss", reduction, input1.loc);
    check_not_nan("margin_ranking_loss", "margin", margin, input1.loc);
    check_broadcast("margin_ranking_loss", input1, input2);
    check_broadcast("margin_ranking_loss", input1, target);
    const detail::RecordedParts parts(input1.loc);
    const auto [a, b, t] = in_one_dtype(input1, input2, target);
    const Tensor above = t * (a - b);
    return reduce_losses(clamp_min(margin - above, 0), reduction);
}

Tensor hinge_embedding_loss(In input, In target, double margin, Reduction reduction) {
    check_all("hinge_embedding_loss", input, {&target});
    check_reduction("hinge_embedding_loss", reduction, input.loc);
    check_not_nan("hinge_embedding_loss", "margin", margin, input.loc);
    check_broadcast("hinge_embedding_loss", input, target);
    const detail::RecordedParts parts(input.loc);
    const Tensor x = wide(input), &t = target.tensor;
    const Tensor apart = where(t != 1, clamp_min(margin - x, 0), 0);
    return reduce_losses(apart + where(t != -1, x, 0), reduction);
}

Tensor cosine_embedding_loss(In input1, In input2, In target, double margin, Reduction reduction) {
    const detail::ComposedOp composed("cosine_embedding_loss");
    check_all("cosine_embedding_loss", input1, {&input2, &target});
    check_reduction("cosine_embedding_loss", reduction, input1.loc);
    check_not_nan("cosine_embedding_loss", "margin", margin, input1.loc);
    const int rank = target.tensor.dim();
    if (rank > 1 || input1.tensor.dim() != rank + 1 || input2.tensor.dim() != rank + 1) {
        fail<ShapeError>(input1.loc, "cosine_embedding_loss: needs inputs (n, d) and targets (n,), or (d,) and (); got {}, {} and {}",
                         input1.tensor.shape(), input2.tensor.shape(), target.tensor.shape());
    }
    check_broadcast("cosine_embedding_loss", input1, input2);
    const detail::RecordedParts parts(input1.loc);
    const auto [a, b] = in_one_dtype(input1, input2);
    const Tensor& t = target.tensor;
    constexpr double eps = 1e-12;  // as PyTorch's, within the root: no kink at zero vectors
    const Tensor squares_a = sum(square(a), {-1}) + eps;
    const Tensor squares_b = sum(square(b), {-1}) + eps;
    const Tensor cos = sum(a * b, {-1}) / sqrt(squares_a * squares_b);
    const Tensor apart = where(t == -1, clamp_min(cos - margin, 0), 0);
    return reduce_losses(apart + where(t == 1, 1 - cos, 0), reduction);
}

// --- Classes ----------------------------------------------------------------------------------------------------------------

Tensor multi_margin_loss(In input, In target, int p, double margin, const Tensor& weight, Reduction reduction) {
    const detail::ComposedOp composed("multi_margin_loss");
    check_all("multi_margin_loss", input, {&target});
    check_reduction("multi_margin_loss", reduction, input.loc);
    check_not_nan("multi_margin_loss", "margin", margin, input.loc);
    check_classes("multi_margin_loss", target, input.loc);
    const detail::RecordedParts parts(input.loc);
    const auto [scores, scale] = in_one_dtype(input, In(weight.defined() ? weight : input.tensor, input.loc));
    const Tensor x = as_rows("multi_margin_loss", In(scores, input.loc));
    const int64_t rows = x.shape()[0], classes = x.shape()[1];
    if (p != 1 && p != 2) fail<ValueError>(input.loc, "multi_margin_loss: p must be 1 or 2, got {}", p);
    if (target.tensor.dim() > 1 || target.tensor.numel() != rows) {
        fail<ShapeError>(input.loc, "multi_margin_loss: targets of shape {} do not fit inputs of shape {}", target.tensor.shape(),
                         input.tensor.shape());
    }
    if (weight.defined() && weight.shape() != Shape(classes)) {
        fail<ShapeError>(input.loc, "multi_margin_loss: needs a weight for each of {} classes, got shape {}", classes, weight.shape());
    }
    check_range("multi_margin_loss", In(target.tensor, input.loc), 0, classes);
    const Tensor t = to(target, int64).reshape({rows, 1});
    Tensor terms = clamp_min(margin - gather(x, 1, t) + x, 0);
    if (p == 2) terms = square(terms);
    if (weight.defined()) terms = terms * gather(scale, 0, t.reshape({rows})).unsqueeze(1);
    const Tensor others = arange(classes, {int64, x.device()}) != t;
    const Tensor losses = sum(where(others, terms, 0), {1}) / static_cast<double>(classes);
    return reduce_losses(target.tensor.dim() == 0 ? losses.reshape({}) : losses, reduction);
}

Tensor multilabel_margin_loss(In input, In target, Reduction reduction) {
    const detail::ComposedOp composed("multilabel_margin_loss");
    check_all("multilabel_margin_loss", input, {&target});
    check_reduction("multilabel_margin_loss", reduction, input.loc);
    check_classes("multilabel_margin_loss", target, input.loc);
    const detail::RecordedParts parts(input.loc);
    const Tensor x = as_rows("multilabel_margin_loss", input);
    const int64_t classes = x.shape()[1];
    if (target.tensor.shape() != input.tensor.shape()) {
        fail<ShapeError>(input.loc, "multilabel_margin_loss: the targets must have the input's shape {}, got {}", input.tensor.shape(),
                         target.tensor.shape());
    }
    check_range("multilabel_margin_loss", In(target.tensor, input.loc), -1, classes);  // -1 ends them
    const Tensor t = to(target, int64).reshape(x.shape());
    const Tensor is_named = cumsum(to(t == -1, int64), 1) == 0;                      // before the first -1
    const Tensor is_class = t.unsqueeze(2) == arange(classes, {int64, x.device()});  // (n, targets, classes)
    const Tensor is_target = any(logical_and(is_class, is_named.unsqueeze(2)), {1});
    const Tensor of_targets = gather(x, 1, where(is_named, t, 0));
    const Tensor terms = clamp_min(1 - of_targets.unsqueeze(2) + x.unsqueeze(1), 0);
    const Tensor counts = logical_and(is_named.unsqueeze(2), logical_not(is_target).unsqueeze(1));
    const Tensor losses = sum(where(counts, terms, 0), {1, 2}) / static_cast<double>(classes);
    return reduce_losses(input.tensor.dim() < 2 ? losses.reshape({}) : losses, reduction);
}

Tensor multilabel_soft_margin_loss(In input, In target, const Tensor& weight, Reduction reduction) {
    const detail::ComposedOp composed("multilabel_soft_margin_loss");
    check_all("multilabel_soft_margin_loss", input, {&target});
    check_reduction("multilabel_soft_margin_loss", reduction, input.loc);
    check_broadcast("multilabel_soft_margin_loss", input, target);
    const detail::RecordedParts parts(input.loc);
    const auto [x, t, scale] = in_one_dtype(input, target, In(weight.defined() ? weight : target.tensor, input.loc));
    Tensor losses = (1 - t) * x - logsigmoid(x);
    if (weight.defined()) losses = losses * scale;
    return reduce_losses(mean(losses, {-1}), reduction);
}

// --- Distances --------------------------------------------------------------------------------------------------------------

Tensor cosine_similarity(In x1, In x2, Dim dim, double eps) {
    const detail::ComposedOp composed("cosine_similarity");
    check_all("cosine_similarity", x1, {&x2});
    const Shape shape = broadcast_shapes(x1.tensor.shape(), x2.tensor.shape(), "cosine_similarity", x1.loc);
    const int along = detail::wrap_dim(dim, shape.rank(), "cosine_similarity", x1.loc);
    if (!(eps >= 0)) fail<ValueError>(x1.loc, "cosine_similarity: eps must not be negative, got {}", eps);
    const detail::RecordedParts parts(x1.loc);
    const auto [a, b] = in_one_dtype(x1, x2);
    return cosine(expand(a, shape), expand(b, shape), along, eps);
}

Tensor pairwise_distance(In x1, In x2, double p, double eps, Flag keepdim) {
    const detail::ComposedOp composed("pairwise_distance");
    check_all("pairwise_distance", x1, {&x2});
    check_broadcast("pairwise_distance", x1, x2);
    const detail::RecordedParts parts(x1.loc);
    const auto [a, b] = in_one_dtype(x1, x2);
    return norm(a - b + eps, p, {-1}, keepdim);
}

Tensor triplet_margin_loss(In anchor, In positive, In negative, double margin, double p, double eps, bool swap, Reduction reduction) {
    check_all("triplet_margin_loss", anchor, {&positive, &negative});
    check_reduction("triplet_margin_loss", reduction, anchor.loc);
    check_margin("triplet_margin_loss", margin, anchor.loc);
    check_broadcast("triplet_margin_loss", anchor, positive);
    check_broadcast("triplet_margin_loss", anchor, negative);
    const detail::RecordedParts parts(anchor.loc);
    const auto distance = [p, eps](const Tensor& a, const Tensor& b) { return pairwise_distance(a, b, p, eps); };
    const auto [a, near, far] = in_one_dtype(anchor, positive, negative);
    return triplet(a, near, far, distance, margin, swap, reduction);
}

Tensor triplet_margin_with_distance_loss(In anchor, In positive, In negative, const std::function<Tensor(const Tensor&, const Tensor&)>& distance,
                                         double margin, bool swap, Reduction reduction) {
    check_all("triplet_margin_with_distance_loss", anchor, {&positive, &negative});
    check_reduction("triplet_margin_with_distance_loss", reduction, anchor.loc);
    check_margin("triplet_margin_with_distance_loss", margin, anchor.loc);
    const detail::RecordedParts parts(anchor.loc);
    const auto plain = [](const Tensor& a, const Tensor& b) { return pairwise_distance(a, b); };
    if (!distance) return triplet(wide(anchor), wide(positive), wide(negative), plain, margin, swap, reduction);
    return triplet(anchor.tensor, positive.tensor, negative.tensor, distance, margin, swap, reduction);
}

// --- Distributions ----------------------------------------------------------------------------------------------------------

Tensor poisson_nll_loss(In input, In target, bool log_input, bool full, double eps, Reduction reduction) {
    check_all("poisson_nll_loss", input, {&target});
    check_reduction("poisson_nll_loss", reduction, input.loc);
    check_not_nan("poisson_nll_loss", "eps", eps, input.loc);
    check_broadcast("poisson_nll_loss", input, target);
    const detail::RecordedParts parts(input.loc);
    const auto [x, t] = in_one_dtype(input, target);
    Tensor losses = log_input ? exp(x) - absorbing_mul(t, x) : x - t * log(x + eps);
    if (full) {
        const Tensor is_large = t > 1, n = where(is_large, t, 2);
        const Tensor stirling = n * log(n) - n + log(n * (2 * std::numbers::pi)) * 0.5;
        losses = losses + where(is_large, stirling, 0);
    }
    return reduce_losses(losses, reduction);
}

Tensor gaussian_nll_loss(In input, In target, In var, bool full, double eps, Reduction reduction) {
    check_all("gaussian_nll_loss", input, {&target, &var});
    check_reduction("gaussian_nll_loss", reduction, input.loc);
    check_not_nan("gaussian_nll_loss", "eps", eps, input.loc);
    check_broadcast("gaussian_nll_loss", input, target);
    const Shape shape = input.tensor.shape(), given = var.tensor.shape();
    const int rank = shape.rank();
    const Shape leading = rank > 0 ? Shape(shape.data(), rank - 1) : shape;
    Shape one_each = shape;
    if (rank > 0) one_each[rank - 1] = 1;
    const bool lacks_last = rank > 0 && given == leading;
    if (given != shape && given != one_each && !lacks_last) {
        fail<ShapeError>(input.loc, "gaussian_nll_loss: a var of shape {} does not fit inputs of shape {}", given, shape);
    }
    const detail::RecordedParts parts(input.loc);
    const auto [x, t, given_var] = in_one_dtype(input, target, var);
    Tensor v = given_var;
    if (lacks_last) v = unsqueeze(v, -1);
    if (detail::is_readable(v) && any(v < 0).item<bool>()) fail<ValueError>(input.loc, "gaussian_nll_loss: var has negative numbers");
    v = v + stop_gradient(clamp_min(v, eps) - v);
    Tensor losses = (log(v) + square(x - t) / v) * 0.5;
    if (full) losses = losses + 0.5 * std::log(2 * std::numbers::pi);
    return reduce_losses(losses, reduction);
}

}  // namespace tapir
