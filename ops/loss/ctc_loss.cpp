// Connectionist temporal classification (Graves et al. 2006): losses and their gradients by the forward-backward algorithm, in
// logarithms.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/autograd/tape.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/loss/ctc_loss.h"
#include "tapir/ops/loss/loss.h"
#include "tapir/ops/loss/loss_impl.h"
#include "tapir/ops/loss/loss_kernels.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/reduce/softmax.h"
#include "tapir/ops/scan/scan.h"
#include "tapir/ops/view/view.h"

namespace tapir {
namespace {
void ctc_loss_rule(Backward& b);
}

TAPIR_OP(ctc_loss, ctc_loss_rule, "-log of the summed probability of all paths that spell a target.",
         TAPIR_SAMPLE("f(6,2,4) i(2,3)<3 i(2)<2 i(2)<4", ctc_loss(log_softmax(x[0], 2), x[1] + 1, x[2] + 5, x[3])),
         TAPIR_SAMPLE_AS("f(5,2,3) i(2,2)<1 i(2)<2 i(2)<3", "ctc_loss(log_softmax(x[0], 2), x[1] * 2, x[2] + 4, x[3], 1, reduction='none')",
                         ctc_loss(log_softmax(x[0], 2), x[1] * 2, x[2] + 4, x[3], {.blank = 1, .reduction = Reduction::none})),
         TAPIR_SAMPLE_AS("f(7,2,5) i(4)<4 i(2)<1", "ctc_loss(log_softmax(x[0], 2), x[1], x[2] + 6, 2 - x[2], 4, reduction='sum')",
                         ctc_loss(log_softmax(x[0], 2), x[1], x[2] + 6, 2 - x[2], {.blank = 4, .reduction = Reduction::sum})),
         TAPIR_SAMPLE_AS("f(4,2,3) i(2,3)<1 i(2)<1", "ctc_loss(log_softmax(x[0], 2), x[1] + 1, x[2] + 4, 3 - x[2], zero_infinity=True)",
                         ctc_loss(log_softmax(x[0], 2), x[1] + 1, x[2] + 4, 3 - x[2], {.zero_infinity = true})));

namespace {

using std::int64_t;

constexpr double kNever = -std::numeric_limits<double>::infinity();

struct CtcAttrs {
    int64_t longest, blank;
};
struct CtcCall {
    int64_t blank = 0;
    bool zero_infinity = false;
    bool keep_gradient = false;  // it is the second result
};

double log_add(double a, double b) {
    if (a == kNever && b == kNever) return kNever;
    const double high = a > b ? a : b, low = a > b ? b : a;  // nan stays
    return high + std::log1p(std::exp(low - high));
}

// --- On the CPU, one example at a time, in float64 ------------------------------------------------------------------------------

template <class T>
class Example {
 public:
    Example(const kernels::CtcArgs& args, int64_t n)
        : args_(args), n_(n), steps_(args.lengths[n]), labels_(2 * args.lengths[args.n + n] + 1),
          target_(args.targets + args.lengths[2 * args.n + n]), alpha_(static_cast<std::size_t>(steps_ * labels_), kNever) {}

    void run() {
        double loss = steps_ == 0 ? (labels_ == 1 ? 0 : -kNever) : forward();
        const bool is_dropped = args_.zero_infinity && std::isinf(loss);
        if (is_dropped) loss = 0;
        static_cast<T*>(args_.losses)[n_] = static_cast<T>(loss);
        if (args_.grad && !is_dropped && steps_ > 0) backward(loss);
    }

 private:
    int64_t label(int64_t s) const { return s % 2 ? target_[s / 2] : args_.blank; }
    int64_t place(int64_t t, int64_t s) const { return (t * args_.n + n_) * args_.classes + label(s); }
    double emission(int64_t t, int64_t s) const { return static_cast<double>(static_cast<const T*>(args_.log_probs)[place(t, s)]); }
    double& alpha(int64_t t, int64_t s) { return alpha_[static_cast<std::size_t>(t * labels_ + s)]; }
    // True if a path may go from s - 2 to s, past a blank: between labels that differ.
    bool may_skip_to(int64_t s) const { return s % 2 && s >= 3 && label(s) != label(s - 2); }

    double forward() {
        for (int64_t s = 0; s < std::min<int64_t>(2, labels_); ++s) alpha(0, s) = emission(0, s);
        for (int64_t t = 1; t < steps_; ++t) {
            for (int64_t s = 0; s < labels_; ++s) {
                double sum = alpha(t - 1, s);
                if (s >= 1) sum = log_add(sum, alpha(t - 1, s - 1));
                if (may_skip_to(s)) sum = log_add(sum, alpha(t - 1, s - 2));
                alpha(t, s) = sum + emission(t, s);
            }
        }
        const double last = alpha(steps_ - 1, labels_ - 1);
        return -(labels_ > 1 ? log_add(last, alpha(steps_ - 1, labels_ - 2)) : last);
    }

    // A log-probability's gradient is minus the probability that the path is there, given the target.
    void backward(double loss) {
        T* grad = static_cast<T*>(args_.grad);
        std::vector<double> beta(static_cast<std::size_t>(labels_) + 2, kNever);  // the last two are never reached
        for (int64_t t = steps_; t-- > 0;) {
            for (int64_t s = 0; s < labels_; ++s) {
                double& here = beta[static_cast<std::size_t>(s)];
                if (t == steps_ - 1) {
                    here = s >= labels_ - 2 ? 0 : kNever;
                } else {
                    here = log_add(here, beta[static_cast<std::size_t>(s + 1)]);
                    if (s + 2 < labels_ && may_skip_to(s + 2)) here = log_add(here, beta[static_cast<std::size_t>(s + 2)]);
                }
                here += emission(t, s);
                const double path = alpha(t, s) + here - emission(t, s);  // nan if neither ever happens
                if (std::isinf(loss)) {
                    grad[place(t, s)] = std::numeric_limits<T>::quiet_NaN();
                } else if (alpha(t, s) != kNever && here != kNever) {
                    grad[place(t, s)] -= static_cast<T>(std::exp(path + loss));
                }
            }
        }
    }

    const kernels::CtcArgs& args_;
    const int64_t n_, steps_, labels_;
    const int64_t* target_;
    std::vector<double> alpha_;
};

void run_on_cpu(const kernels::CtcArgs& args) {
    parallel_items(args.n, 4 * 1024 / (args.time * (2 * args.longest + 1) + 1) + 1, [&](int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; ++n) {
            args.dtype == float64 ? Example<double>(args, n).run() : Example<float>(args, n).run();
        }
    });
}

// --- Backward -----------------------------------------------------------------------------------------------------------------

// The gradient is composed of public ops, to be differentiated; impossible events have the log-probability kFloor, as sums of
// infinities have no derivative.
constexpr double kFloor = -1e30;

// Returns the labels between blanks, (n, 2 longest + 1).
Tensor extended_targets(const Tensor& targets, const Tensor& lengths, const CtcAttrs& attrs) {
    const int64_t n = lengths.shape()[1], longest = attrs.longest;
    const Device device = targets.device();
    const Tensor blank = full({n, 1}, attrs.blank, {int64, device});
    if (longest == 0) return blank;
    const Tensor i = arange(longest, {int64, device});
    const Tensor at = minimum(lengths[2].unsqueeze(1) + i, targets.numel() - 1);
    const Tensor labels = where(i < lengths[1].unsqueeze(1), gather(targets, 0, at.reshape({-1})).reshape({n, longest}), attrs.blank);
    return cat({stack({expand(blank, {n, longest}), labels}, 2).reshape({n, 2 * longest}), blank}, 1);
}

// Returns x[s - by] at s, kFloor before the first; by < 0: the other way.
Tensor shifted(const Tensor& x, int64_t by) {
    const int64_t n = x.shape()[0], count = x.shape()[1], size = by < 0 ? -by : by;
    if (size >= count) return full({n, count}, kFloor, {x.dtype(), x.device()});
    const Tensor edge = full({n, size}, kFloor, {x.dtype(), x.device()});
    return by > 0 ? cat({edge, x.narrow(1, 0, count - size)}, 1) : cat({x.narrow(1, size, count - size), edge}, 1);
}

Tensor log_sum(const Tensor& a, const Tensor& b, const Tensor& c) { return logsumexp(stack({a, b, c}, 0), {0}); }

Tensor composed_gradient(const Tensor& x, const Tensor& targets, const Tensor& lengths, const CtcAttrs& attrs) {
    const int64_t time = x.shape()[0], n = x.shape()[1];
    const Tensor labels = extended_targets(targets, lengths, attrs);
    const int64_t count = labels.shape()[1];
    const Tensor index = expand(labels.unsqueeze(0), {time, n, count});
    const Tensor emissions = gather(x, 2, index);  // (time, n, count)
    const Tensor s = arange(count, {int64, x.device()});
    const Tensor ends = lengths[1].unsqueeze(1) * 2;
    const Tensor is_end = logical_or(s == ends, s == ends - 1);
    Tensor may_skip = full({n, count}, false, {bool_, x.device()});
    if (count > 2) {
        const Tensor differs = labels.narrow(1, 2, count - 2) != labels.narrow(1, 0, count - 2);
        may_skip = cat({may_skip.narrow(1, 0, 2), differs}, 1);
    }
    std::vector<Tensor> alphas = {where(s < 2, emissions[0], kFloor)}, betas(static_cast<std::size_t>(time));
    for (int64_t t = 1; t < time; ++t) {
        const Tensor& before = alphas.back();
        alphas.push_back(log_sum(before, shifted(before, 1), where(may_skip, shifted(before, 2), kFloor)) + emissions[t]);
    }
    Tensor after = full({n, count}, kFloor, {x.dtype(), x.device()});
    for (int64_t t = time; t-- > 0;) {
        const Tensor going_on = log_sum(after, shifted(after, -1), shifted(where(may_skip, after, kFloor), -2)) + emissions[t];
        after = where((lengths[0] == t + 1).unsqueeze(1), where(is_end, emissions[t], kFloor), going_on);
        betas[static_cast<std::size_t>(t)] = after;
    }
    const Tensor alpha = stack(alphas, 0), beta = stack(betas, 0);
    const Tensor last = expand(clamp_min(lengths[0] - 1, 0).reshape({1, n, 1}), {1, n, count});
    const Tensor total = logsumexp(where(is_end, gather(alpha, 0, last).squeeze(0), kFloor), {1}, /*keepdim=*/true);
    const Tensor has_time = arange(time, {int64, x.device()}).reshape({time, 1, 1}) < lengths[0].reshape({1, n, 1});
    const Tensor is_there = logical_and(has_time, total > kFloor / 2);  // the loss is not infinite
    const Tensor paths = exp(where(is_there, alpha + beta - emissions - total, kFloor));
    return -scatter_add(zeros_like(x), 2, index, paths);
}

// saved: log-probabilities, targets, lengths, and the second result, the gradient of the losses.
void ctc_loss_rule(Backward& b) {
    if (!b.needs(0)) return;
    // An infinite loss has the gradient nan, which counts only if the loss is used.
    if (b.grad(0).defined()) b.give(0, gated_mul(b.grad(0).unsqueeze(1), b.saved(3)));
    if (!b.grad(1).defined()) return;
    Tape tape(TapeOptions{}, b.record().loc);
    const Tensor x = b.recording() ? clone(b.saved(0)) : b.saved(0).detach().requires_grad_();
    const Tensor gradient = composed_gradient(x, b.saved(1), b.saved(2), b.attrs<CtcAttrs>());
    b.give(0, tape.gradient(sum(gradient * b.grad(1)), {x})[0]);
}

// --- The op -------------------------------------------------------------------------------------------------------------------

std::vector<int64_t> read_lengths(const char* what, const Tensor& lengths, int64_t n, int64_t most, const Loc& loc) {
    if (is_floating(lengths.dtype()) || lengths.dtype() == bool_) {
        fail<DTypeError>(loc, "ctc_loss: {} must be integers, not {}", what, name(lengths.dtype()));
    }
    if (lengths.dim() > 1 || lengths.numel() != n) {
        fail<ShapeError>(loc, "ctc_loss: needs one of {} for each of {} examples, got shape {}", what, n, lengths.shape());
    }
    const std::vector<int64_t> result = lengths.to_vector<int64_t>();
    for (const int64_t length : result) {
        if (length < 0 || length > most) fail<ValueError>(loc, "ctc_loss: one of {} is {}, outside [0, {}]", what, length, most);
    }
    return result;
}

// Everything that the kernels read, checked.
struct Problem {
    Tensor log_probs, targets;                           // (time, n, classes); flat, on the same device
    Tensor lengths;                                      // (3, n): see CtcArgs
    Tensor given_targets, input_lengths, given_lengths;  // as the op was called with them
    std::vector<int64_t> target_lengths;
    CtcAttrs attrs;
};

void check_targets(const Problem& p, const Loc& loc) {
    const int64_t n = p.lengths.shape()[1], classes = p.log_probs.shape()[2];
    const auto* lengths = static_cast<const int64_t*>(p.lengths.raw_data());
    const auto* targets = static_cast<const int64_t*>(p.targets.raw_data());
    for (int64_t i = 0; i < n; ++i) {
        for (int64_t k = lengths[2 * n + i]; k < lengths[2 * n + i] + lengths[n + i]; ++k) {
            if (targets[k] >= 0 && targets[k] < classes && targets[k] != p.attrs.blank) continue;
            fail<IndexError>(loc, "ctc_loss: target {} is {} for {} classes", targets[k], targets[k] == p.attrs.blank ? "the blank" : "out of range",
                             classes);
        }
    }
}

Problem prepare(const In& log_probs, const In& targets, const In& input_lengths, const In& target_lengths, int64_t blank) {
    const Loc& loc = log_probs.loc;
    const int rank = log_probs.tensor.dim();
    if (rank != 2 && rank != 3) {
        fail<ShapeError>(loc, "ctc_loss: needs log-probabilities (time, n, classes) or (time, classes), got {}", log_probs.tensor.shape());
    }
    if (is_floating(targets.tensor.dtype()) || targets.tensor.dtype() == bool_) {
        fail<DTypeError>(loc, "ctc_loss: needs class indices as targets, not {}", name(targets.tensor.dtype()));
    }
    Problem p;
    p.log_probs = (rank == 2 ? unsqueeze(log_probs, 1) : log_probs.tensor).contiguous();
    const int64_t time = p.log_probs.shape()[0], n = p.log_probs.shape()[1], classes = p.log_probs.shape()[2];
    p.given_targets = targets.tensor;
    p.input_lengths = input_lengths.tensor;
    p.given_lengths = target_lengths.tensor;
    if (blank < 0 || blank >= classes) fail<IndexError>(loc, "ctc_loss: blank {} is out of range for {} classes", blank, classes);
    const Shape shape = targets.tensor.shape();
    const bool is_padded = shape.rank() == 2;
    if (shape.rank() != 1 && !(is_padded && shape[0] == n)) {
        fail<ShapeError>(loc, "ctc_loss: needs targets (n, longest), or one behind the other, got {} for {} examples", shape, n);
    }
    const detail::Muted unseen(detail::thread.muted || detail::is_tracing());
    const std::vector<int64_t> inputs = read_lengths("input_lengths", input_lengths.tensor, n, time, loc);
    p.target_lengths = read_lengths("target_lengths", target_lengths.tensor, n, is_padded ? shape[1] : shape[0], loc);
    std::vector<int64_t> all = inputs, begins;
    int64_t total = 0;
    for (int64_t i = 0; i < n; ++i) {
        begins.push_back(is_padded ? i * shape[1] : total);
        total += p.target_lengths[static_cast<std::size_t>(i)];
    }
    if (!is_padded && total != shape[0]) {
        fail<ValueError>(loc, "ctc_loss: {} targets are given, but target_lengths sum to {}", shape[0], total);
    }
    all.insert(all.end(), p.target_lengths.begin(), p.target_lengths.end());
    all.insert(all.end(), begins.begin(), begins.end());
    const Device device = p.log_probs.device();
    const detail::UnrecordedPartsOf parts(log_probs.loc);
    p.lengths = tensor(all).reshape({3, n}).to(device);
    p.targets = targets.tensor.to(int64).reshape({-1}).contiguous().to(device);
    p.attrs = {n > 0 ? *std::max_element(p.target_lengths.begin(), p.target_lengths.end()) : 0, blank};
    if (device == cpu) check_targets(p, loc);
    return p;
}

// In a graph, ops compute all that depends on targets and lengths, so that it holds for other ones.
void make_of_ops(Problem& p) {
    const Device device = p.log_probs.device();
    const int64_t n = p.lengths.size(1);
    const bool is_padded = p.given_targets.dim() == 2;
    const auto flat = [&](const Tensor& t) { return to(to(t, device), int64).reshape({-1}); };
    const Tensor of_inputs = flat(p.input_lengths), of_targets = flat(p.given_lengths);
    const Tensor begins = is_padded ? arange(n, {int64, device}) * p.given_targets.size(1) : cumsum(of_targets, 0) - of_targets;
    p.lengths = stack({of_inputs, of_targets, begins}, 0);
    p.targets = contiguous(flat(p.given_targets));
    p.attrs.longest = p.given_targets.size(-1);
}

// Computes in float32 or float64: one loss for each example, and each one's gradient if a tape records or `keep_gradient`.
std::vector<Tensor> losses_of(const In& log_probs, const Problem& p, bool zero_infinity, bool keep_gradient) {
    const Loc& loc = log_probs.loc;
    const Tensor& x = p.log_probs;
    const int64_t time = x.shape()[0], n = x.shape()[1], count = 2 * p.attrs.longest + 1;
    const bool keep = keep_gradient || recording(loc, {&x}) != nullptr;
    std::vector<Tensor> results = {detail::make_empty({n}, x.dtype(), x.device(), loc)};
    Tensor grad, alpha, beta;
    if (keep) {
        const detail::UnrecordedPartsOf parts(log_probs.loc);
        grad = zeros_like(x);
        results.push_back(grad);
    }
    if (on_gpu(x)) {
        alpha = detail::make_empty({n, time, count}, x.dtype(), x.device(), loc);
        if (keep) beta = detail::make_empty({n, 2, count}, x.dtype(), x.device(), loc);
    }
    const kernels::CtcArgs args{x.dtype(),
                                kernel_data(x),
                                kernel_data<int64_t>(p.targets),
                                kernel_data<int64_t>(p.lengths),
                                time,
                                n,
                                x.shape()[2],
                                p.attrs.longest,
                                p.attrs.blank,
                                zero_infinity,
                                kernel_data(alpha),
                                kernel_data(beta),
                                kernel_data(results[0]),
                                kernel_data(grad)};
    if (n > 0) on_gpu(x) ? gpu::ctc_loss(args, x.shape()) : run_on_cpu(args);
    record_many(ctc_loss_op, loc, {x, p.given_targets, p.input_lengths, p.given_lengths}, results, {x, p.targets, p.lengths, grad}, p.attrs,
                CtcCall{p.attrs.blank, zero_infinity, keep});
    return results;
}

// In an instance of batch(): the examples of all peers as those of one call. Undefined where the call goes on alone.
Tensor in_group(const In& log_probs, const In& targets, const In& input_lengths, const In& target_lengths, const CTCLossOptions& options) {
    const bool has_examples = log_probs.tensor.dim() == 3;
    if (targets.tensor.dim() == 1) {  // behind those of others, targets that are too many or too few could seem right
        const std::vector<int64_t> lengths = target_lengths.tensor.to_vector<int64_t>();
        if (std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) != targets->numel) return {};
    }
    const auto of_group = [&](const detail::Batched& in) {
        const Tensor x = has_examples ? flatten(transpose(in[0], 0, 1), 1, 2) : transpose(in[0], 0, 1);
        const Tensor all = targets.tensor.dim() == 1 ? reshape(in[1], {-1}) : detail::folded(in[1]);
        const Tensor lengths = reshape(in[3], {-1});
        CTCLossOptions each = options;
        each.reduction = Reduction::none;
        Tensor losses = ctc_loss(In(x, log_probs.loc), all, reshape(in[2], {-1}), lengths, each);
        if (has_examples || options.reduction != Reduction::none) losses = reshape(losses, {in.count(), -1});
        if (options.reduction == Reduction::none) return losses;
        if (options.reduction == Reduction::sum) return sum(losses, {1});
        return mean(losses / to(to(clamp_min(reshape(lengths, {in.count(), -1}), 1), losses.device()), losses.dtype()), {1});
    };
    const detail::BatchKey key = detail::batch_key(options.blank, options.zero_infinity, options.reduction);
    const detail::Grouping grouping{.rounds_otherwise = options.reduction != Reduction::none};
    return detail::in_group(
        {ctc_loss_op, log_probs.loc, {&log_probs.tensor, &targets.tensor, &input_lengths.tensor, &target_lengths.tensor}, key, grouping}, of_group);
}

}  // namespace

Tensor ctc_loss(In log_probs, In targets, In input_lengths, In target_lengths, const CTCLossOptions& options) {
    const Loc& loc = log_probs.loc;
    detail::check_defined(log_probs, "ctc_loss");
    for (const In* x : {&targets, &input_lengths, &target_lengths}) {
        if (!x->tensor.defined()) detail::fail_undefined("ctc_loss", loc);
    }
    check_reduction("ctc_loss", options.reduction, loc);
    if (!is_floating(log_probs.tensor.dtype())) {
        fail<DTypeError>(loc, "ctc_loss: needs log-probabilities of a floating dtype, not {}", name(log_probs.tensor.dtype()));
    }
    if (detail::in_batch()) [[unlikely]] {
        if (Tensor y = in_group(log_probs, targets, input_lengths, target_lengths, options); y.defined()) return y;
    }
    const detail::RecordedParts parts(loc);
    const DType dtype = wide(log_probs).dtype();
    const Tensor x = to(log_probs, computed_in(log_probs->dtype));
    Problem p = prepare(In(x, loc), targets, input_lengths, target_lengths, options.blank);
    if (detail::is_tracing() && p.lengths.numel() > 0) make_of_ops(p);
    Tensor losses = losses_of(In(p.log_probs, loc), p, options.zero_infinity, /*keep_gradient=*/false)[0];
    if (options.reduction == Reduction::mean) losses = losses / to(clamp_min(p.lengths[1], 1), losses.dtype());
    if (options.reduction == Reduction::none && log_probs.tensor.dim() == 2) losses = losses.reshape({});
    return to(reduce_losses(losses, options.reduction), dtype);
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

std::vector<Tensor> ctc_losses(const In& log_probs, const In& targets, const In& input_lengths, const In& target_lengths, const CtcCall& a) {
    Problem p = prepare(log_probs, targets, input_lengths, target_lengths, a.blank);
    if (detail::is_tracing() && p.lengths.numel() > 0) make_of_ops(p);
    std::vector<Tensor> results = losses_of(In(p.log_probs, log_probs.loc), p, a.zero_infinity, a.keep_gradient);
    results.resize(a.keep_gradient ? 2 : 1);
    return results;
}

// x: (time, n, classes) or (time, classes)
ResultTypes types_of(const TypeCall& t, const CtcCall& a) {
    using namespace types;
    const ValueType x = ranked(t[0], 2, 3).rank() == 2 ? inserted(t[0], 1, 1) : t[0], &targets = ranked(t[1], 1, 2);
    need(targets.rank() == 1 || may_equal(size_of(targets, 0), size_of(x, 1)), "needs targets (n, longest), or one behind the other");
    for (const int i : {2, 3}) need(t[i].rank() < 2 && may_equal(product(t[i].shape), size_of(x, 1)), "needs a length for each example");
    const ValueType losses = shaped(x, {size_of(x, 1)});
    return a.keep_gradient ? ResultTypes{losses, x} : ResultTypes(losses);
}

}  // namespace

TAPIR_FORM(ctc_loss, 4, CtcCall, types_of(t, a), ctc_losses(x[0], x[1], x[2], x[3], a),
           f("blank", a.blank)("zero_infinity", a.zero_infinity)("keep_gradient", a.keep_gradient));

}  // namespace tapir
