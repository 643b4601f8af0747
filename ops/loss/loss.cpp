// Losses that compare element by element. Cross-entropy: cross_entropy.cpp.
#include "tapir/ops/loss/loss.h"
#include "tapir/ops/loss/margin_loss.h"

#include <vector>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/composed_op_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/elementwise/rounded_once_impl.h"
#include "tapir/ops/kernels/launch.h"
#include "tapir/ops/loss/loss_impl.h"
#include "tapir/ops/loss/loss_kernels.h"
#include "tapir/ops/loss/pair_loss_impl.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/view/view.h"

namespace tapir {
namespace {

void mse_loss_rule(Backward& b);
void binary_cross_entropy_rule(Backward& b);

}  // namespace

TAPIR_OP(mse_loss, mse_loss_rule, "The mean or sum of (input - target)^2. Samples of the losses made of other ops stand here too.",
         TAPIR_SAMPLE("f(3,4) f(3,4)", mse_loss(x[0], x[1])), TAPIR_SAMPLE("f(3,4) f(4)", mse_loss(x[0], x[1])),
         TAPIR_SAMPLE("f() f()", mse_loss(x[0], x[1])),
         TAPIR_SAMPLE_AS("f(2,3,4) f(2,3,4)", "mse_loss(x[0], x[1], reduction='sum')", mse_loss(x[0], x[1], Reduction::sum)),
         TAPIR_SAMPLE_AS("f(3,4) f(3,1)", "mse_loss(x[0], x[1], reduction='none')", mse_loss(x[0], x[1], Reduction::none)),
         TAPIR_SAMPLE("f(3,4) f(3,4)", l1_loss(x[0], x[1])),
         TAPIR_SAMPLE_AS("f(3,4) f(3,4)", "l1_loss(x[0], x[1], reduction='sum')", l1_loss(x[0], x[1], Reduction::sum)),
         TAPIR_SAMPLE("f(3,4) f(3,4)", huber_loss(x[0], x[1])),
         TAPIR_SAMPLE_AS("f(3,4) f(3,4)", "huber_loss(x[0], x[1], 'none', 0.5)", huber_loss(x[0], x[1], Reduction::none, 0.5)),
         TAPIR_SAMPLE("f(3,4) f(3,4)", smooth_l1_loss(x[0], x[1])),
         TAPIR_SAMPLE_AS("f(3,4) f(3,4)", "smooth_l1_loss(x[0], x[1], reduction='sum', beta=0.5)", smooth_l1_loss(x[0], x[1], Reduction::sum, 0.5)),
         TAPIR_SAMPLE_AS("f(3,4) f(3,4)", "relu(1 - x[0] * x[1]).mean()", hinge_loss(x[0], x[1])),
         TAPIR_SAMPLE("f(3,4) i(3,4)<2", soft_margin_loss(x[0], x[1] * 2 - 1)),
         TAPIR_SAMPLE_AS("f(3,4) f(4)", "soft_margin_loss(x[0], x[1], reduction='none')", soft_margin_loss(x[0], x[1], Reduction::none)),
         TAPIR_SAMPLE("f(3,4) f(3,4) i(3,4)<2", margin_ranking_loss(x[0], x[1], x[2] * 2 - 1)),
         TAPIR_SAMPLE_AS("f(3) f(3) i(3)<2", "margin_ranking_loss(x[0], x[1], x[2] * 2 - 1, margin=0.5, reduction='none')",
                         margin_ranking_loss(x[0], x[1], x[2] * 2 - 1, 0.5, Reduction::none)),
         TAPIR_SAMPLE("f(3,4) i(3,4)<2", hinge_embedding_loss(x[0], x[1] * 2 - 1)),
         TAPIR_SAMPLE_AS("f(3,4) i(3,4)<2", "hinge_embedding_loss(x[0], x[1] * 2 - 1, margin=2, reduction='sum')",
                         hinge_embedding_loss(x[0], x[1] * 2 - 1, 2, Reduction::sum)),
         TAPIR_SAMPLE("f(3,4) f(3,4) i(3)<2", cosine_embedding_loss(x[0], x[1], x[2] * 2 - 1)),
         TAPIR_SAMPLE_AS("f(4) f(4) i()<2", "cosine_embedding_loss(x[0], x[1], x[2] * 2 - 1, margin=0.1, reduction='none')",
                         cosine_embedding_loss(x[0], x[1], x[2] * 2 - 1, 0.1, Reduction::none)),
         TAPIR_SAMPLE("f(3,4) i(3)<4", multi_margin_loss(x[0], x[1])),
         TAPIR_SAMPLE_AS("f(4) i()<4", "multi_margin_loss(x[0], x[1], p=2, margin=0.7, reduction='none')",
                         multi_margin_loss(x[0], x[1], 2, 0.7, {}, Reduction::none)),
         TAPIR_SAMPLE_AS("f(3,4) i(3)<4 u(4)", "multi_margin_loss(x[0], x[1], weight=x[2], reduction='sum')",
                         multi_margin_loss(x[0], x[1], 1, 1, x[2], Reduction::sum)),
         TAPIR_SAMPLE("f(3,4) i(3,4)<5", multilabel_margin_loss(x[0], x[1] - 1)),
         TAPIR_SAMPLE_AS("f(4) i(4)<5", "multilabel_margin_loss(x[0], x[1] - 1, reduction='none')",
                         multilabel_margin_loss(x[0], x[1] - 1, Reduction::none)),
         TAPIR_SAMPLE("f(3,4) p(3,4)", multilabel_soft_margin_loss(x[0], x[1])),
         TAPIR_SAMPLE_AS("f(3,4) p(3,4) u(4)", "multilabel_soft_margin_loss(x[0], x[1], x[2], reduction='none')",
                         multilabel_soft_margin_loss(x[0], x[1], x[2], Reduction::none)),
         TAPIR_SAMPLE("f(3,4) f(3,4) f(3,4)", triplet_margin_loss(x[0], x[1], x[2])),
         TAPIR_SAMPLE_AS("f(3,4) f(3,4) f(3,4)", "triplet_margin_loss(x[0], x[1], x[2], margin=3, p=3, swap=True, reduction='none')",
                         triplet_margin_loss(x[0], x[1], x[2], 3, 3, 1e-6, true, Reduction::none)),
         TAPIR_SAMPLE_AS("f(3,4) f(3,4) f(3,4)",
                         "F.triplet_margin_with_distance_loss(x[0], x[1], x[2], "
                         "distance_function=lambda a, b: 1 - cosine_similarity(a, b), swap=True, reduction='sum')",
                         triplet_margin_with_distance_loss(
                             x[0], x[1], x[2], [](const Tensor& a, const Tensor& b) { return 1 - cosine_similarity(a, b); }, 1, true,
                             Reduction::sum)),
         TAPIR_SAMPLE("f(3,4) u(3,4)", poisson_nll_loss(x[0], x[1])),
         TAPIR_SAMPLE_AS("u(3,4) u(3,4)", "F.poisson_nll_loss(x[0], x[1] * 2, log_input=False, full=True, reduction='none')",
                         poisson_nll_loss(x[0], x[1] * 2, false, true, 1e-8, Reduction::none)),
         TAPIR_SAMPLE("f(3,4) f(3,4) u(3,4)", gaussian_nll_loss(x[0], x[1], x[2])),
         TAPIR_SAMPLE_AS("f(3,4) f(3,4) u(3)", "gaussian_nll_loss(x[0], x[1], x[2], full=True, reduction='sum')",
                         gaussian_nll_loss(x[0], x[1], x[2], true, 1e-6, Reduction::sum)),
         TAPIR_SAMPLE("f(3,4) f(3,4)", cosine_similarity(x[0], x[1])), TAPIR_SAMPLE("f(2,3,4) f(3,1)", cosine_similarity(x[0], x[1], -2)),
         TAPIR_SAMPLE("f(3,4) f(3,4)", pairwise_distance(x[0], x[1])), TAPIR_SAMPLE("f(3,4) f(4)", pairwise_distance(x[0], x[1], 3, 1e-3, true)));
TAPIR_OP(binary_cross_entropy, binary_cross_entropy_rule, "-(t log(x) + (1 - t) log(1 - x)), logarithms kept above -100.",
         TAPIR_SAMPLE("p(3,4) p(3,4)", binary_cross_entropy(x[0], x[1])),
         TAPIR_SAMPLE_AS("p(3,4) p(3,4) p(4)", "binary_cross_entropy(x[0], x[1], x[2].detach())", binary_cross_entropy(x[0], x[1], x[2])),
         TAPIR_SAMPLE_AS("p(3,4) p(3,4)", "binary_cross_entropy(x[0], x[1], reduction='none')",
                         binary_cross_entropy(x[0], x[1], {}, Reduction::none)),
         TAPIR_SAMPLE("f(3,4) p(3,4)", binary_cross_entropy_with_logits(x[0], x[1])),
         TAPIR_SAMPLE_AS("f(3,4) p(3,4) p(3,4) u(4)", "binary_cross_entropy_with_logits(x[0], x[1], x[2], reduction='sum', pos_weight=x[3])",
                         binary_cross_entropy_with_logits(x[0], x[1], x[2], x[3], Reduction::sum)),
         TAPIR_SAMPLE("f(3,4) p(3,4)", kl_div(x[0], x[1])),
         TAPIR_SAMPLE_AS("f(3,4) f(3,4)", "kl_div(x[0], x[1], reduction='sum', log_target=True)", kl_div(x[0], x[1], Reduction::sum, true)),
         TAPIR_SAMPLE_AS("f(3,4) p(3,4)", "kl_div(x[0], x[1], reduction='batchmean')", kl_div(x[0], x[1], Reduction::batchmean)));

namespace {

using std::int64_t;

constexpr int64_t kElementWork = 2;  // each has two operands

void check_two(const char* op, const In& input, const In& target) {
    detail::check_defined(input, op);
    detail::check_defined(In(target.tensor, input.loc), op);
    detail::check_same_device(op, input.tensor, target.tensor, input.loc);
    const Shape &a = input.tensor.shape(), &b = target.tensor.shape(), both = broadcast_shapes(a, b, op, input.loc);
    if (both != a && both != b) {  // (n, 1) beside (n,): never intended
        fail<ShapeError>(input.loc, "{}: the input has shape {}, the target has {}, and together they would be {}: reshape one of them{}", op, a, b,
                         both, a.numel() == b.numel() ? ", by target.reshape(input.shape())" : "");
    }
}

// Returns the end of the message about a target whose shape differs from the input's.
const char* target_hint(const Tensor& input, const Tensor& target) {
    return input.numel() == target.numel() ? "; target.reshape(input.shape()) would fit" : "";
}

// --- mse_loss --------------------------------------------------------------------------------------------------------------

struct MseAttrs {
    double scale;  // 1 or 1 / n
};
struct MseCall {
    Reduction reduction = Reduction::mean;
};

// Returns the same sum at any thread count: it adds up parts of one size, in order.
double squared_distance(const Tensor& a, const Tensor& b) {
    constexpr int64_t part = 64 * 1024;
    const int64_t n = a.numel(), parts = (n + part - 1) / part;
    if (parts <= 1) return kernels::squared_distance(a.dtype(), a.raw_data(), b.raw_data(), n);
    const std::size_t size = itemsize(a.dtype());
    std::vector<double> sums(static_cast<std::size_t>(parts));
    parallel_for(n, part, [&](int64_t begin, int64_t end) {
        for (int64_t p = (begin + part - 1) / part; p * part < end; ++p) {
            const auto offset = static_cast<std::size_t>(p * part) * size;
            sums[static_cast<std::size_t>(p)] =
                kernels::squared_distance(a.dtype(), a.impl()->data + offset, b.impl()->data + offset, n - p * part < part ? n - p * part : part);
        }
    });
    double total = 0;
    for (const double s : sums) total += s;
    return total;
}

// Reduces two tensors of one shape and a dtype that the kernels take to a 0-d tensor.
Tensor fused_mse(const Tensor& a, const Tensor& b, Reduction reduction, const Loc& loc) {
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return reduced_each(square(in[0] - in[1]), reduction); };
        if (Tensor y = detail::in_group({mse_loss_op, loc, {&a, &b}, detail::batch_key(reduction), {.rounds_otherwise = true}}, of_group);
            y.defined())
            return y;
    }
    const MseAttrs attrs{reduction == Reduction::mean ? 1 / static_cast<double>(a.numel()) : 1};
    const Tensor x = plain(a, loc), y = plain(b, loc);
    detail::begin_op("mse_loss", x.impl(), loc);
    Tensor out = detail::make_empty(nullptr, 0, 1, a.dtype(), a.device(), loc);
    if (on_gpu(x)) {
        gpu::squared_distance(x.dtype(), on_stream(x), on_stream(y), x.numel(), attrs.scale, out.raw_data());
    } else {
        detail::store(a.dtype(), out.raw_data(), squared_distance(x, y) * attrs.scale);
    }
    record(mse_loss_op, loc, {&a, &b}, out, {&a, &b}, attrs, Told{mse_loss_op, {&a, &b}}, MseCall{reduction});
    return out;
}

void mse_loss_rule(Backward& b) {
    const double factor = 2 * b.attrs<MseAttrs>().scale;
    if (b.recording()) {
        const Tensor g = (b.saved(0) - b.saved(1)) * (b.grad() * factor);
        b.give(0, g);
        if (b.needs(1)) b.give(1, -g);
        return;
    }
    const Tensor x = plain(b.saved(0)), y = plain(b.saved(1)), &g = b.grad();
    const auto *of_x = kernel_data(x), *of_y = kernel_data(y), *of_g = kernel_data(g);
    for (int i = 0; i < 2; ++i) {
        if (!b.needs(i)) continue;
        Tensor out = detail::make_empty_like(x.impl(), x.dtype(), Loc{});
        TAPIR_LAUNCH(x, x.numel(), kElementWork, scaled_difference, x.dtype(), of_x, of_y, of_g, i == 0 ? factor : -factor, kernel_data(out));
        b.give(i, std::move(out));
    }
}

// --- binary_cross_entropy ----------------------------------------------------------------------------------------------------

Tensor fused_binary_cross_entropy(const Tensor& x, const Tensor& t, const Loc& loc) {
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return fused_binary_cross_entropy(in[0], in[1], loc); };
        if (Tensor y = detail::in_group({binary_cross_entropy_op, loc, {&x, &t}, {}, {.rounds_otherwise = true}}, of_group); y.defined()) return y;
    }
    const Tensor xs = plain(x, loc), ts = plain(t, loc);
    detail::begin_op("binary_cross_entropy", x.impl(), loc);
    Tensor out = detail::make_empty_like(x.impl(), x.dtype(), loc);
    const auto size = static_cast<int64_t>(itemsize(x.dtype()));
    const auto on_cpu = [&](int64_t begin, int64_t end) {
        const auto at = [&](const Tensor& tensor) { return tensor.impl()->data + begin * size; };
        if (!kernels::binary_cross_entropy(x.dtype(), at(xs), at(ts), at(out), end - begin)) {
            fail<ValueError>(loc,
                             "binary_cross_entropy: the input must be in [0, 1]; for logits there is "
                             "binary_cross_entropy_with_logits()");
        }
    };
    if (!on_gpu(x)) {
        parallel_for(x.numel(), kParallelWork / kElementWork, on_cpu);
    } else if (x.numel() > 0) {
        gpu::binary_cross_entropy(x.dtype(), on_stream(xs), on_stream(ts), on_stream(out), x.numel());
    }
    record(binary_cross_entropy_op, loc, {&x, &t}, out, {&x, &t});
    return out;
}

Tensor binary_cross_entropy_gradient(const Tensor& grad, const Tensor& input, const Tensor& target) {
    const Tensor g = plain(grad), x = plain(input), t = plain(target);
    Tensor out = detail::make_empty_like(x.impl(), x.dtype(), Loc{});
    TAPIR_LAUNCH(x, x.numel(), kElementWork, binary_cross_entropy_grad, x.dtype(), kernel_data(g), kernel_data(x), kernel_data(t), kernel_data(out));
    return out;
}

void binary_cross_entropy_rule(Backward& b) {
    const Tensor& g = b.grad();
    if (b.needs(0) && !b.recording()) b.give(0, binary_cross_entropy_gradient(g, b.saved(0), b.saved(1)));
    if (!b.recording() && !b.needs(1)) return;
    const DType wide = computed_in(g.dtype());  // float16 has no 1e-12
    const Tensor x = to(b.saved(0), wide), t = to(b.saved(1), wide);
    if (b.recording()) b.give(0, g * (x - t) / clamp_min(x * (1 - x), 1e-12));
    if (b.needs(1)) b.give(1, g * (clamp_min(log(1 - x), -100) - clamp_min(log(x), -100)));
}

}  // namespace

Tensor mse_loss(In input, In target, Reduction reduction) {
    check_two("mse_loss", input, target);
    check_reduction("mse_loss", reduction, input.loc);
    if (detail::autocast_widens(input, target)) {
        return mse_loss(In(detail::widened(input), input.loc), In(detail::widened(target), target.loc), reduction);
    }
    const Tensor &a = input.tensor, &b = target.tensor;
    const bool same = a.dtype() == b.dtype() && a.shape() == b.shape();
    if (same && is_floating(a.dtype()) && read_in(a) == a.dtype() && reduction != Reduction::none) {
        return fused_mse(a, b, reduction, input.loc);
    }
    const detail::RecordedParts parts(input.loc);
    if (reduction == Reduction::none) return square(sub(input, target));
    DType dtype = promote(a.dtype(), b.dtype());
    if (!is_floating(dtype)) dtype = default_dtype();
    const DType compute = computed_in(dtype);
    const Shape shape = broadcast_shapes(a.shape(), b.shape());
    return to(fused_mse(expand(to(a, compute), shape), expand(to(b, compute), shape), reduction, input.loc), dtype);
}

Tensor l1_loss(In input, In target, Reduction reduction) {
    check_two("l1_loss", input, target);
    check_reduction("l1_loss", reduction, input.loc);
    if (detail::autocast_widens(input, target)) {
        return l1_loss(In(detail::widened(input), input.loc), In(detail::widened(target), target.loc), reduction);
    }
    const detail::RecordedParts parts(input.loc);
    return reduce_losses(abs(input - target), reduction);
}

Tensor huber_loss(In input, In target, Reduction reduction, double delta) {
    check_two("huber_loss", input, target);
    check_reduction("huber_loss", reduction, input.loc);
    if (detail::autocast_widens(input, target)) {
        return huber_loss(In(detail::widened(input), input.loc), In(detail::widened(target), target.loc), reduction, delta);
    }
    if (!(delta > 0)) fail<ValueError>(input.loc, "huber_loss: delta must be above 0, got {}", delta);
    if (is_fused_pair(input, target)) return huber_loss_of(input, target, delta, reduction);
    const detail::RecordedParts parts(input.loc);
    const Tensor distance = abs(input - target);
    const Tensor losses = where(distance <= delta, square(distance) * 0.5, (distance - 0.5 * delta) * delta);
    return in_dtype_of(input, reduce_losses(losses, reduction));
}

Tensor smooth_l1_loss(In input, In target, Reduction reduction, double beta) {
    check_two("smooth_l1_loss", input, target);
    check_reduction("smooth_l1_loss", reduction, input.loc);
    if (detail::autocast_widens(input, target)) {
        return smooth_l1_loss(In(detail::widened(input), input.loc), In(detail::widened(target), target.loc), reduction, beta);
    }
    if (!(beta >= 0)) fail<ValueError>(input.loc, "smooth_l1_loss: beta must not be negative, got {}", beta);
    const detail::RecordedParts parts(input.loc);
    if (beta == 0) return l1_loss(input, target, reduction);
    if (is_fused_pair(input, target)) return smooth_l1_loss_of(input, target, beta, reduction);
    const Tensor distance = abs(input - target);
    return reduce_losses(where(distance < beta, square(distance) * (0.5 / beta), distance - 0.5 * beta), reduction);
}

Tensor hinge_loss(In input, In target, Reduction reduction) {
    check_two("hinge_loss", input, target);
    check_reduction("hinge_loss", reduction, input.loc);
    if (detail::autocast_widens(input, target)) {
        return hinge_loss(In(detail::widened(input), input.loc), In(detail::widened(target), target.loc), reduction);
    }
    const detail::RecordedParts parts(input.loc);
    return reduce_losses(relu(1 - input * target), reduction);
}

Tensor binary_cross_entropy(In input, In target, const Tensor& weight, Reduction reduction) {
    const detail::ComposedOp composed("binary_cross_entropy");
    check_two("binary_cross_entropy", input, target);
    check_reduction("binary_cross_entropy", reduction, input.loc);
    if (detail::autocast_widens(input, target)) {
        fail<ValueError>(input.loc,
                         "binary_cross_entropy: not safe in 16 bits; under AutocastScope use "
                         "binary_cross_entropy_with_logits instead of a sigmoid before it");
    }
    const Tensor &x = input.tensor, &t = target.tensor;
    if (!is_floating(x.dtype())) {
        fail<DTypeError>(input.loc, "binary_cross_entropy: needs an input of a floating dtype, not {}", name(x.dtype()));
    }
    if (x.shape() != t.shape()) {
        fail<ShapeError>(input.loc, "binary_cross_entropy: the input has shape {}, the target has {}{}", x.shape(), t.shape(), target_hint(x, t));
    }
    const detail::RecordedParts parts(input.loc);
    const DType compute = read_in(x);
    Tensor losses = fused_binary_cross_entropy(to(x, compute), to(t, compute), input.loc);
    if (weight.defined()) losses = losses * weight;
    return to(reduce_losses(losses, reduction), x.dtype());
}

Tensor binary_cross_entropy_with_logits(In logits, In target, const Tensor& weight, const Tensor& pos_weight, Reduction reduction) {
    const detail::ComposedOp composed("binary_cross_entropy_with_logits");
    check_two("binary_cross_entropy_with_logits", logits, target);
    check_reduction("binary_cross_entropy_with_logits", reduction, logits.loc);
    if (logits.tensor.shape() != target.tensor.shape()) {
        fail<ShapeError>(logits.loc, "binary_cross_entropy_with_logits: the input has shape {}, the target has {}{}", logits.tensor.shape(),
                         target.tensor.shape(), target_hint(logits.tensor, target.tensor));
    }
    if (detail::autocast_widens(logits, target)) {
        return binary_cross_entropy_with_logits(In(detail::widened(logits), logits.loc), In(detail::widened(target), target.loc), weight, pos_weight,
                                                reduction);
    }
    const detail::RecordedParts parts(logits.loc);
    if (!pos_weight.defined() && is_fused_pair(logits, target)) {
        if (!weight.defined()) return logits_loss_of(logits, target, reduction);
        return reduce_losses(logits_loss_of(logits, target, Reduction::none) * weight, reduction);
    }
    // -(p t log(sigmoid(x)) + (1 - t) log(1 - sigmoid(x))), where log(1 - sigmoid(x)) = log(sigmoid(x)) - x
    const auto given = [&](const Tensor& factor) { return In(factor.defined() ? factor : target.tensor, logits.loc); };
    const auto [x, t, scale, positive] = in_one_dtype(logits, target, given(weight), given(pos_weight));
    const Tensor log_p = logsigmoid(x);
    Tensor losses = (1 - t) * x - (pos_weight.defined() ? ((positive - 1) * t + 1) * log_p : log_p);
    if (weight.defined()) losses = losses * scale;
    return reduce_losses(losses, reduction);
}

DType float_dtype_of(const Tensor* operands, std::size_t count) {
    DType dims = bool_, numbers = bool_;  // bool promotes to any dtype beside it
    for (std::size_t i = 0; i < count; ++i) {
        DType& dtype = operands[i].dim() > 0 ? dims : numbers;
        dtype = promote(dtype, operands[i].dtype());
    }
    if (is_floating(dims)) return dims;
    return is_floating(numbers) ? numbers : default_dtype();
}

void fail_batchmean(const char* op, const Loc& loc) {
    fail<ValueError>(loc, "{}: only kl_div has Reduction::batchmean; use mean, or sum and divide it by the batch's size", op);
}

Tensor kl_div(In input, In target, Reduction reduction, bool log_target) {
    check_two("kl_div", input, target);
    if (reduction == Reduction::batchmean && input.tensor.dim() == 0) {
        fail<ShapeError>(input.loc, "kl_div: batchmean needs an input with a batch, got shape ()");
    }
    if (const RoundedOnce once({&input.tensor, &target.tensor}); once.is_needed() && !detail::thread.autocast) {
        const detail::RecordedParts parts(input.loc);
        const Tensor x = once.wide(input.tensor), t = once.wide(target.tensor);
        return once.result(kl_div(In(x, input.loc), In(t, input.loc), reduction, log_target));
    }
    if (reduction == Reduction::batchmean) {
        const detail::RecordedParts parts(input.loc);
        return kl_div(input, target, Reduction::sum, log_target) / static_cast<double>(input->sizes[0]);
    }
    if (detail::autocast_widens(input, target)) {
        return kl_div(In(detail::widened(input), input.loc), In(detail::widened(target), target.loc), reduction, log_target);
    }
    const detail::RecordedParts parts(input.loc);
    const auto [x, t] = in_one_dtype(input, target);
    // A class that is impossible by the target is left out, whatever the input says of it.
    if (log_target) return reduce_losses(absorbing_mul(exp(t), t - x), reduction);
    Tensor difference = log(where(t == 0, 1, t)) - x;  // 0 log(0) = 0; a negative target is no probability, and gives nan
    if (t.requires_grad()) difference = where((t == 0) & isneginf(x), 0, difference);
    return reduce_losses(absorbing_mul(t, difference), reduction);
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

[[maybe_unused]] static ValueType types_of(const TypeCall& t, const MseCall& a) {
    if (a.reduction == Reduction::none) return pair_type(t, types::promoted(t));
    return reduced_type(pair_type(t, types::floating(promote(t[0].dtype, t[1].dtype))), a.reduction);
}

TAPIR_FORM(mse_loss, 2, MseCall, types_of(t, a), mse_loss(x[0], x[1], a.reduction),
           f("reduction", a.reduction, {"none", "mean", "sum", "batchmean"}));
TAPIR_PLAIN_FORM(binary_cross_entropy, 2, alike(t[0], t[1]), binary_cross_entropy(x[0], x[1], {}, Reduction::none));

}  // namespace tapir
