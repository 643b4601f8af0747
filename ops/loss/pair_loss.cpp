// Losses of pairs in one pass on the CPU, without a tensor of losses if they are summed.
#include "tapir/ops/loss/pair_loss_impl.h"

#include <algorithm>
#include <vector>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/loss/loss.h"
#include "tapir/ops/loss/loss_impl.h"
#include "tapir/ops/loss/loss_kernels.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/view/view.h"

namespace tapir {
namespace {

void pair_loss_rule(Backward& b);

}  // namespace

TAPIR_OP(huber_loss, pair_loss_rule, "Quadratic within delta, linear beyond.",
         TAPIR_SAMPLE_AS("f(3,4) f(4)", "huber_loss(x[0], x[1], 'sum', 0.7)", huber_loss(x[0], x[1], Reduction::sum, 0.7)),
         TAPIR_SAMPLE_AS("f(3,4) f(3,4)", "huber_loss(x[0], x[1], 'mean', 0.3)", huber_loss(x[0], x[1], Reduction::mean, 0.3)));
TAPIR_OP(smooth_l1_loss, pair_loss_rule, "huber_loss / beta.",
         TAPIR_SAMPLE_AS("f(3,4) f(3,1)", "smooth_l1_loss(x[0], x[1], reduction='none', beta=0.7)", smooth_l1_loss(x[0], x[1], Reduction::none, 0.7)),
         TAPIR_SAMPLE_AS("f(3,4) f(3,4)", "smooth_l1_loss(x[0], x[1], beta=2)", smooth_l1_loss(x[0], x[1], Reduction::mean, 2)));
TAPIR_OP(binary_cross_entropy_with_logits, pair_loss_rule, "Binary cross-entropy of sigmoid(input).",
         TAPIR_SAMPLE_AS("f(3,4) p(3,4)", "binary_cross_entropy_with_logits(x[0], x[1], reduction='none')",
                         binary_cross_entropy_with_logits(x[0], x[1], {}, {}, Reduction::none)),
         TAPIR_SAMPLE_AS("f(3,4) p(3,4) u(4)", "binary_cross_entropy_with_logits(x[0], x[1], x[2], reduction='sum')",
                         binary_cross_entropy_with_logits(x[0], x[1], x[2], {}, Reduction::sum)));

namespace {

using kernels::PairLoss;
using std::int64_t;

constexpr int64_t kPart = 16 * 1024;

struct PairAttrs {
    PairLoss kind;
    bool is_reduced;
    double beta, scale;  // scale: 1 or 1 / n
};

struct PairCall {
    Reduction reduction = Reduction::mean;
    double beta = 1;
};

kernels::PairLossArgs part_of(const PairAttrs& attrs, const Tensor& x, const Tensor& t, int64_t begin, int64_t end) {
    const auto size = static_cast<int64_t>(itemsize(x.dtype()));
    return {attrs.kind, x.dtype(), attrs.beta, x.impl()->data + begin * size, t.impl()->data + begin * size, end - begin};
}

// Returns the same sum at any number of threads: it adds up parts of one size, in order.
double sum_of_losses(const PairAttrs& attrs, const Tensor& x, const Tensor& t) {
    const int64_t n = x.numel(), parts = (n + kPart - 1) / kPart;
    std::vector<double> sums(static_cast<std::size_t>(parts));
    parallel_for(n, kPart, [&](int64_t begin, int64_t end) {
        for (int64_t p = (begin + kPart - 1) / kPart; p * kPart < end; ++p) {
            sums[static_cast<std::size_t>(p)] = kernels::pair_loss_sum(part_of(attrs, x, t, p * kPart, std::min((p + 1) * kPart, n)));
        }
    });
    double total = 0;
    for (const double s : sums) total += s;
    return total;
}

// Takes two tensors of one shape, float32 or float64.
Tensor fused(const OpInfo& op, PairLoss kind, double beta, const Tensor& a, const Tensor& b, Reduction reduction, const Loc& loc) {
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) {
            return reduced_each(fused(op, kind, beta, in[0], in[1], Reduction::none, loc), reduction);
        };
        if (Tensor y = detail::in_group({op, loc, {&a, &b}, detail::batch_key(beta, reduction), {.rounds_otherwise = true}}, of_group); y.defined())
            return y;
    }
    const bool is_mean = reduction == Reduction::mean;
    const PairAttrs attrs{kind, reduction != Reduction::none, beta, is_mean ? 1 / static_cast<double>(a.numel()) : 1};
    const Tensor x = plain(a, loc), t = plain(b, loc);
    detail::begin_op(op.name, x.impl(), loc);
    Tensor out;
    if (attrs.is_reduced) {
        out = detail::make_empty(nullptr, 0, 1, x.dtype(), cpu, loc);
        detail::store(x.dtype(), out.raw_data(), sum_of_losses(attrs, x, t) * attrs.scale);
    } else {
        out = detail::make_empty(x.shape(), x.dtype(), cpu, loc);
        parallel_for(x.numel(), kPart, [&](int64_t begin, int64_t end) {
            const auto size = static_cast<int64_t>(itemsize(x.dtype()));
            kernels::pair_losses(part_of(attrs, x, t, begin, end), out.impl()->data + begin * size);
        });
    }
    record(op, loc, {&a, &b}, out, {&a, &b}, attrs, Told{op, {&a, &b}}, PairCall{reduction, beta}, {beta});
    return out;
}

Tensor pair_loss(const OpInfo& op, PairLoss kind, double beta, const In& input, const In& target, Reduction reduction) {
    const Tensor &a = input.tensor, &b = target.tensor;
    const DType compute = computed_in(a.dtype());
    if (a.shape() == b.shape() && a.dtype() == compute) return fused(op, kind, beta, a, b, reduction, input.loc);
    const detail::RecordedParts parts(input.loc);
    const Shape shape = broadcast_shapes(a.shape(), b.shape());
    const Tensor wide_a = expand(to(a, compute), shape), wide_b = expand(to(b, compute), shape);
    return to(fused(op, kind, beta, wide_a, wide_b, reduction, input.loc), a.dtype());
}

// Makes the gradient of ops, to be differentiated again.
void rule_of_ops(Backward& b, const PairAttrs& attrs) {
    const Tensor x = b.saved(0), t = b.saved(1), g = b.grad() * attrs.scale;
    if (attrs.kind == PairLoss::logits) {
        b.give(0, (sigmoid(x) - t) * g);
        if (b.needs(1)) b.give(1, -x * g);
        return;
    }
    const Tensor d = x - t;
    const bool is_huber = attrs.kind == PairLoss::huber;
    const Tensor slope = is_huber ? clamp(d, -attrs.beta, attrs.beta) : where(abs(d) < attrs.beta, d / attrs.beta, sign(d));
    const Tensor of_x = slope * g;
    b.give(0, of_x);
    if (b.needs(1)) b.give(1, -of_x);
}

void pair_loss_rule(Backward& b) {
    const PairAttrs& attrs = b.attrs<PairAttrs>();
    if (b.recording()) return rule_of_ops(b, attrs);
    const Tensor x = plain(b.saved(0)), t = plain(b.saved(1)), g = plain(b.grad());
    const double scale = attrs.is_reduced ? g.item<double>() * attrs.scale : 1;
    const auto size = static_cast<int64_t>(itemsize(x.dtype()));
    for (int i = 0; i < 2; ++i) {
        if (!b.needs(i)) continue;
        Tensor out = detail::make_empty(x.shape(), x.dtype(), cpu, Loc{});
        parallel_for(x.numel(), kPart, [&](int64_t begin, int64_t end) {
            kernels::pair_loss_grad(part_of(attrs, x, t, begin, end), i, attrs.is_reduced ? nullptr : g.impl()->data + begin * size, scale,
                                    out.impl()->data + begin * size);
        });
        b.give(i, std::move(out));
    }
}

}  // namespace

bool is_fused_pair(const In& input, const In& target) { return !on_gpu(input.tensor) && input->dtype == target->dtype && is_floating(input->dtype); }

Tensor huber_loss_of(const In& input, const In& target, double delta, Reduction reduction) {
    return pair_loss(huber_loss_op, PairLoss::huber, delta, input, target, reduction);
}
Tensor smooth_l1_loss_of(const In& input, const In& target, double beta, Reduction reduction) {
    return pair_loss(smooth_l1_loss_op, PairLoss::smooth_l1, beta, input, target, reduction);
}
Tensor logits_loss_of(const In& logits, const In& target, Reduction reduction) {
    return pair_loss(binary_cross_entropy_with_logits_op, PairLoss::logits, 0, logits, target, reduction);
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

// Other dtypes are made of ops.
ResultTypes types_of(const TypeCall& t, const PairCall& a) {
    if (t[0].dtype != t[1].dtype || !is_floating(t[0].dtype)) return {};
    return reduced_type(pair_type(t, t[0].dtype), a.reduction);
}

Fields& reduction_field(Fields& f, PairCall& a) { return f("reduction", a.reduction, {"none", "mean", "sum", "batchmean"}); }

}  // namespace

TAPIR_FORM(huber_loss, 2, PairCall, types_of(t, a), huber_loss(x[0], x[1], a.reduction, a.beta), reduction_field(f, a)("delta", a.beta));
TAPIR_FORM(smooth_l1_loss, 2, PairCall, types_of(t, a), smooth_l1_loss(x[0], x[1], a.reduction, a.beta), reduction_field(f, a)("beta", a.beta));
TAPIR_FORM(binary_cross_entropy_with_logits, 2, PairCall, (alike(t[0], t[1]), types_of(t, a)),
           binary_cross_entropy_with_logits(x[0], x[1], {}, {}, a.reduction), reduction_field(f, a));

}  // namespace tapir
