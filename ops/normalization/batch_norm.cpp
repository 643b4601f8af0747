// Batch normalisation, and local response normalisation, which is composed of other ops.
#include "tapir/ops/normalization/batch_norm_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tapir/autograd/backward_impl.h"
#include "tapir/core/composed_op_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/arrange/arrange.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/composed_gradient_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/normalization/batch_norm.h"
#include "tapir/ops/normalization/channels_impl.h"
#include "tapir/ops/normalization/normalization_impl.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/pooling/pooling.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/view/view.h"

namespace tapir {
namespace {

using std::int64_t;

void batch_norm_rule(Backward& b);
void batch_norm_backward_rule(Backward& b);
std::vector<Tensor> batch_norm_backward(const In& g, const In& x, const Tensor& weight, bool has_bias, double eps);

// Runs in training, for the samples.
Tensor trained(const Tensor& x, const Tensor& weight, const Tensor& bias) { return batch_norm(x, {}, {}, weight, bias, {.training = true}); }

// Runs with given statistics, for the samples: mean 0.5 and variance 2.
Tensor evaluated(const Tensor& x, const Tensor& weight, const Tensor& bias) {
    const Tensor half = full_like(weight, 0.5);
    return batch_norm(x, half, half * 4, weight, bias, {.eps = 0.01});
}

}  // namespace

TAPIR_OP(batch_norm, batch_norm_rule, "Each channel to mean 0 and variance 1, then scaled and shifted.",
         TAPIR_SAMPLE_AS("f(4,3) f(3) f(3)", "nn.functional.batch_norm(x[0], None, None, x[1], x[2], True)", trained(x[0], x[1], x[2])),
         TAPIR_SAMPLE_AS("f(2,3,4)", "nn.functional.batch_norm(x[0], None, None, None, None, True)", trained(x[0], {}, {})),
         TAPIR_SAMPLE_AS("f(2,3,3,2) f(3)", "nn.functional.batch_norm(x[0], None, None, x[1], None, True)", trained(x[0], x[1], {})),
         TAPIR_SAMPLE_AS("f(2,3,2,2) f(3) f(3)",
                         "nn.functional.batch_norm(x[0], torch.full_like(x[1], 0.5), torch.full_like(x[1], 2), x[1], x[2], False, 0.1, 0.01)",
                         evaluated(x[0], x[1], x[2])),
         TAPIR_SAMPLE_AS("f(2,6,3,2)", "nn.functional.local_response_norm(x[0], 3, 0.5)", local_response_norm(x[0], 3, 0.5)),
         TAPIR_SAMPLE_AS("f(2,5,4)", "nn.functional.local_response_norm(x[0], 4, 0.5, 0.5, 2.0)", local_response_norm(x[0], 4, 0.5, 0.5, 2)));
// As an op of its own, the recorded rule in training is one node in the graph of a gradient.
TAPIR_OP(
    batch_norm_backward, batch_norm_backward_rule,
    "The gradients of batch_norm in training: of x, and of the weight and the bias where there are such.",
    TAPIR_SAMPLE_AS("f(4,3) f(4,3) f(3)",
                    "torch.autograd.functional.vjp(lambda t, w, v: nn.functional.batch_norm(t, None, None, w, v, True), (x[1], x[2], x[2]), x[0])[1]",
                    batch_norm_backward(x[0], x[1], x[2], true, 1e-5)),
    TAPIR_SAMPLE_AS("f(2,3,4) f(2,3,4)",
                    "torch.autograd.functional.vjp(lambda t: nn.functional.batch_norm(t, None, None, None, None, True), x[1], x[0])[1]",
                    batch_norm_backward(x[0], x[1], {}, false, 1e-5)),
    TAPIR_SAMPLE_AS(
        "f(2,3,3,2) f(2,3,3,2) f(3)",
        "torch.autograd.functional.vjp(lambda t, w: nn.functional.batch_norm(t, None, None, w, None, True, 0.1, 0.01), (x[1], x[2]), x[0])[1]",
        batch_norm_backward(x[0], x[1], x[2], false, 0.01)),
    TAPIR_SAMPLE_AS("f(5,2) f(5,2)",
                    "torch.autograd.functional.vjp(lambda t, v: nn.functional.batch_norm(t, None, None, None, v, True), (x[1], x[1][0]), x[0])[1]",
                    batch_norm_backward(x[0], x[1], {}, true, 1e-5)));

namespace {

struct BatchNormAttrs {
    double eps;
    bool training, has_weight, has_bias;
};
struct BatchNormCall {
    double eps = 1e-5, momentum = 0.1;
    bool training = false, has_running_mean = false, has_running_var = false, has_weight = false, has_bias = false;
};

struct BatchNormBackwardCall {
    double eps = 1e-5;
    bool has_weight = false, has_bias = false;
};

// --- On the CPU ----------------------------------------------------------------------------------------------------------

struct BatchNormLayout {
    int64_t outer, channels, inner;
    int64_t per_channel() const { return outer * inner; }
};

BatchNormLayout layout_of(const Tensor& x) {
    const int64_t batch = x.size(0), channels = x.size(1), rest = batch * channels > 0 ? x.numel() / (batch * channels) : 0;
    if (!x.is_contiguous() || rest == 1) return {batch * rest, channels, 1};
    return {batch, channels, rest};
}

// Computes both sums of each channel: first, then second. The number of parts depends on the sizes alone, so that the number of
// threads does not change the sums.
template <class T>
std::vector<double> sums(const BatchNormLayout& l, const T* x, const T* g, const T* shift, const T* scale) {
    const auto channels = static_cast<std::size_t>(l.channels);
    const int64_t block = std::max<int64_t>((l.outer + 15) / 16, 32 * 1024 / (l.channels * l.inner) + 1);
    const int64_t blocks = (l.outer + block - 1) / block;
    std::vector<double> parts(static_cast<std::size_t>(blocks) * 2 * channels);
    const auto one_block = [&](int64_t i) {
        std::vector<T> scratch(2 * channels);
        double* first = parts.data() + static_cast<std::size_t>(i) * 2 * channels;
        const kernels::ChannelSums<T> args{l.channels, l.inner, x, g, shift, scale, first, first + channels, scratch.data()};
        kernels::channel_sums(args, i * block, std::min((i + 1) * block, l.outer));
    };
    parallel_blocks(blocks, one_block);
    std::vector<double> total(2 * channels);
    for (std::size_t i = 0; i < parts.size(); ++i) total[i % (2 * channels)] += parts[i];
    return total;
}

template <class T>
void map(const BatchNormLayout& l, const kernels::ChannelMap<T>& args) {
    parallel_items(l.outer, 32 * 1024 / (l.channels * l.inner) + 1, [&](int64_t begin, int64_t end) { kernels::channel_map(args, begin, end); });
}

// In training writes (3, channels): mean, rstd, and the part that the mean lost when it was rounded. `variance` gets the biased one.
template <class T>
void set_stats(const Tensor& x, const Tensor& stats, std::vector<double>& variance, double eps) {
    const BatchNormLayout l = layout_of(x);
    const auto channels = static_cast<std::size_t>(l.channels);
    const T* from = data<T>(x);
    std::vector<T> shift(channels);
    for (std::size_t c = 0; c < channels; ++c) shift[c] = from[static_cast<int64_t>(c) * l.inner];
    const std::vector<double> sum = sums<T>(l, from, nullptr, shift.data(), nullptr);
    const double n = static_cast<double>(l.per_channel());
    T* to = data<T>(stats);
    for (std::size_t c = 0; c < channels; ++c) {
        const double from_shift = sum[c] / n, squares = sum[channels + c];
        MeanAndRstd found{static_cast<double>(shift[c]) + from_shift, std::max(0.0, squares / n - from_shift * from_shift), 0};
        found.rstd = 1 / std::sqrt(found.variance + eps);
        if (!is_in_range<T>(squares, found.variance, eps)) {
            found = scaled_stats(l.per_channel(), eps, [&](int64_t i) {
                return static_cast<double>(from[(i / l.inner * l.channels + static_cast<int64_t>(c)) * l.inner + i % l.inner]);
            });
        }
        variance[c] = found.variance;
        to[c] = static_cast<T>(found.mean);
        to[channels + c] = static_cast<T>(found.rstd);
        to[2 * channels + c] = static_cast<T>(found.mean - static_cast<double>(to[c]));
    }
}

template <class T>
Tensor normalized(const Tensor& x, const Tensor& stats, const Tensor& weight, const Tensor& bias, const Loc& loc) {
    const BatchNormLayout l = layout_of(x);
    const auto channels = static_cast<std::size_t>(l.channels);
    const T *mean = data<T>(stats), *rstd = mean + channels, *rest = stats.size(0) > 2 ? rstd + channels : nullptr;
    std::vector<T> a(channels), b(channels);
    for (std::size_t c = 0; c < channels; ++c) {
        a[c] = rstd[c] * (weight.defined() ? data<T>(weight)[c] : T(1));
        b[c] = (bias.defined() ? data<T>(bias)[c] : T(0)) - (rest ? rest[c] * a[c] : T(0));
    }
    const Tensor y = empty_like(x, loc);
    map<T>(l, {l.channels, l.inner, data<T>(x), nullptr, mean, nullptr, a.data(), b.data(), nullptr, data<T>(y)});
    return y;
}

struct BatchNormGradients {
    Tensor x, weight, bias;
};

BatchNormGradients made_for(const Tensor& x, DType of_parameters, const Loc& loc) {
    const auto of_channels = [&] { return detail::make_empty({x.size(1)}, of_parameters, x.device(), loc); };
    return {empty_like(x, loc), of_channels(), of_channels()};
}

// Writes to `made`, for which all is in one layout.
template <class T>
void write_gradients(const Tensor& g, const Tensor& x, const Tensor& stats, const Tensor& weight, bool training, const BatchNormGradients& made) {
    const BatchNormLayout l = layout_of(x);
    const auto channels = static_cast<std::size_t>(l.channels);
    const T *mean = data<T>(stats), *rstd = mean + channels, *rest = stats.size(0) > 2 ? rstd + channels : nullptr;
    const std::vector<double> sum = sums<T>(l, data<T>(x), data<T>(g), mean, rstd);
    std::vector<T> a(channels), b(channels), w(channels);
    const double n = static_cast<double>(l.per_channel());
    for (std::size_t c = 0; c < channels; ++c) {
        // The kernel's n is (x - mean) rstd with the rounded mean; `off` is the part that it lacks.
        const double off = rest ? static_cast<double>(rest[c]) * static_cast<double>(rstd[c]) : 0, by_n = sum[channels + c] - off * sum[c];
        data<T>(made.bias)[c] = static_cast<T>(sum[c]);
        data<T>(made.weight)[c] = static_cast<T>(by_n);
        const double factor = static_cast<double>(rstd[c]) * (weight.defined() ? static_cast<double>(data<T>(weight)[c]) : 1.0);
        const double slope = training ? -factor * by_n / n : 0;
        w[c] = static_cast<T>(factor);
        a[c] = static_cast<T>(slope);
        b[c] = training ? static_cast<T>(-factor * sum[c] / n - slope * off) : T(0);
    }
    map<T>(l, {l.channels, l.inner, data<T>(x), data<T>(g), mean, rstd, a.data(), b.data(), w.data(), data<T>(made.x)});
}
void write_gradients(const Tensor& g, const Tensor& x, const Tensor& stats, const Tensor& weight, bool training, const BatchNormGradients& made) {
    x.dtype() == float64 ? write_gradients<double>(g, x, stats, weight, training, made) : write_gradients<float>(g, x, stats, weight, training, made);
}

// --- On a GPU ------------------------------------------------------------------------------------------------------------

kernels::ChannelArray channel_array(const Tensor& t) {
    return t.defined() ? kernels::ChannelArray{on_stream(t), t.dtype(), t.strides()[0]} : kernels::ChannelArray{};
}

struct Running {
    const Tensor &mean, &var;
};

// Returns y; writes stats, which are fresh.
Tensor normalized_on_gpu(const Tensor& x, const Tensor& stats, const Tensor& weight, const Tensor& bias, const Running& running,
                         const BatchNormOptions& o, const Loc& loc) {
    const BatchNormLayout l = layout_of(x);
    const Tensor y = empty_like(x, loc);
    gpu::batch_norm({x.dtype(), l.outer, l.channels, l.inner, o.eps, o.momentum, o.training, on_stream(x), on_stream(y), on_stream(stats),
                     channel_array(weight), channel_array(bias), channel_array(running.mean), channel_array(running.var)});
    if (!o.training) return y;
    for (const Tensor* t : {&running.mean, &running.var}) {
        if (t->defined()) mark_written(*t, loc);
    }
    return y;
}

// --- Backward ------------------------------------------------------------------------------------------------------------

// For statistics that do not depend on x. saved: mean and rstd, x, the weight if there is one. Made of ops, to be differentiated again.
void rule_of_ops(Backward& b, const BatchNormAttrs& attrs) {
    const Tensor stats = b.saved(0), g = b.grad().to(stats.dtype()), x = b.saved(1).to(stats.dtype());
    const Tensor rstd = beside_channels(stats[1], x), normal = (x - beside_channels(stats[0], x)) * rstd;
    b.give(0, (attrs.has_weight ? g * beside_channels(b.saved(2), x) : g) * rstd);
    if (attrs.has_weight) b.give(1, sums_of_channels(b, g * normal));
    if (attrs.has_bias) b.give(attrs.has_weight ? 2 : 1, sums_of_channels(b, g));
}

// Computes in training the gradients of x, the weight and the bias, made of ops.
std::vector<Tensor> gradients_of_ops(const Tensor& given_g, const Tensor& given_x, const Tensor& weight, const BatchNormAttrs& attrs) {
    const DType dtype = computed_in(given_x.dtype());
    const Tensor g = given_g.to(dtype), x = given_x.to(dtype);
    const Dims dims = all_but_channels(x);
    const Tensor centred = x - mean(x, dims, true), rstd = rsqrt(mean(square(centred), dims, true) + attrs.eps), normal = centred * rstd;
    const Tensor d = attrs.has_weight ? g * beside_channels(weight, x) : g;
    std::vector<Tensor> gradients = {rstd * (d - mean(d, dims, true) - normal * mean(d * normal, dims, true))};
    if (attrs.has_weight) gradients.push_back(sum(g * normal, dims));
    if (attrs.has_bias) gradients.push_back(sum(g, dims));
    return gradients;
}

// saved: g, x, the weight if there is one
void batch_norm_backward_rule(Backward& b) {
    const BatchNormAttrs& attrs = b.attrs<BatchNormAttrs>();
    differentiate(b, [&](const std::vector<Tensor>& in) { return gradients_of_ops(in[0], in[1], attrs.has_weight ? in[2] : Tensor(), attrs); });
}

void rule_on_gpu(Backward& b, const BatchNormAttrs& attrs) {
    const Loc loc = b.record().loc;
    const Tensor stats = b.saved(0), x = ready(b.saved(1), b.saved(1).dtype(), loc), g = ready_like(b.grad(), x, loc);
    const int bias_input = attrs.has_weight ? 2 : 1;
    const auto wanted = [&](bool has, int input) {
        return has && b.needs(input) ? detail::make_empty({x.size(1)}, b.input_dtype(input), x.device(), loc) : Tensor();
    };
    const Tensor grad_x = b.needs(0) ? empty_like(x, loc) : Tensor(), weight = attrs.has_weight ? b.saved(2) : Tensor();
    const Tensor grad_weight = wanted(attrs.has_weight, 1), grad_bias = wanted(attrs.has_bias, bias_input);
    const BatchNormLayout l = layout_of(x);
    gpu::batch_norm_backward({x.dtype(), l.outer, l.channels, l.inner, attrs.training, on_stream(g), on_stream(x), on_stream(stats),
                              channel_array(weight), on_stream(grad_x), channel_array(grad_weight), channel_array(grad_bias)});
    b.give(0, grad_x);
    if (attrs.has_weight) b.give(1, grad_weight);
    if (attrs.has_bias) b.give(bias_input, grad_bias);
}

void batch_norm_rule(Backward& b) {
    const BatchNormAttrs& attrs = b.attrs<BatchNormAttrs>();
    const Tensor stats = b.saved(0), given = b.saved(1);
    const Loc loc = b.record().loc;
    if (b.recording() && attrs.training) {
        const std::vector<Tensor> made =
            batch_norm_backward(In(b.grad(), loc), In(given, loc), attrs.has_weight ? b.saved(2) : Tensor(), attrs.has_bias, attrs.eps);
        for (std::size_t i = 0; i < made.size(); ++i) b.give(static_cast<int>(i), made[i]);
        return;
    }
    const bool has_rows = !attrs.training && b.rows_to_tell_apart() > 0;
    if (b.recording() || has_rows || given.numel() == 0) return rule_of_ops(b, attrs);
    if (on_gpu(given)) return rule_on_gpu(b, attrs);
    const Tensor x = ready(given, stats.dtype(), loc), g = ready_like(b.grad(), x, loc);
    const Tensor weight = attrs.has_weight ? b.saved(2).to(stats.dtype(), loc).contiguous(loc) : Tensor();
    const BatchNormGradients made = made_for(x, x.dtype(), loc);
    write_gradients(g, x, stats, weight, attrs.training, made);
    b.give(0, made.x);
    if (attrs.has_weight) b.give(1, made.weight);
    if (attrs.has_bias) b.give(attrs.has_weight ? 2 : 1, made.bias);
}

// --- Forward -------------------------------------------------------------------------------------------------------------

// running = (1 - momentum) running + momentum * new
void follow(const Tensor& running, const Tensor& fresh, double momentum, const Loc& loc) {
    if (!running.defined()) return;
    const Tensor t = running.detach();
    copy_elements(t, t * (1 - momentum) + fresh.to(t.dtype(), loc) * momentum);
    mark_written(running, loc);
}

// Returns the statistics of x, in training: mean and rstd.
Tensor stats_of(const Tensor& x, const Running& running, const BatchNormOptions& o, const Loc& loc) {
    const int64_t channels = x.size(1), n = x.numel() / channels;
    Tensor stats = detail::make_empty({3, channels}, x.dtype(), cpu, loc);
    std::vector<double> of_channels(static_cast<std::size_t>(channels));
    stats.dtype() == float64 ? set_stats<double>(x, stats, of_channels, o.eps) : set_stats<float>(x, stats, of_channels, o.eps);
    follow(running.mean, stats[0], o.momentum, loc);
    if (running.var.defined()) {
        const Tensor variance = detail::make_empty({channels}, float64, cpu, loc);
        std::copy(of_channels.begin(), of_channels.end(), static_cast<double*>(variance.raw_data()));
        const double unbiased = static_cast<double>(n) / static_cast<double>(std::max<int64_t>(n - 1, 1));
        follow(running.var, variance * unbiased, o.momentum, loc);
    }
    return stats;
}

// Returns y; sets stats.
Tensor normalized_on_cpu(const Tensor& given, Tensor& stats, const Tensor& weight, const Tensor& bias, const Running& running,
                         const BatchNormOptions& o, const Loc& loc) {
    const DType dtype = computed_in(given.dtype());
    const Tensor x = ready(given, dtype, loc);
    stats = o.training ? stats_of(x, running, o, loc) : stack({running.mean.to(dtype, loc), rsqrt(running.var.to(dtype, loc) + o.eps)});
    const auto wide = [&](const Tensor& t) { return t.defined() ? t.to(dtype, loc).contiguous(loc) : t; };
    const Tensor y =
        dtype == float64 ? normalized<double>(x, stats, wide(weight), wide(bias), loc) : normalized<float>(x, stats, wide(weight), wide(bias), loc);
    return y.to(given.dtype(), loc);
}

// stats: as in the record; undefined if x has no elements.
Tensor batch_norm(const In& x, const Tensor& running_mean, const Tensor& running_var, const Tensor& weight, const Tensor& bias,
                  const BatchNormOptions& o, Tensor& stats) {
    check_input("batch_norm", x, 2);
    check_channels("batch_norm", x, running_mean, "running_mean");
    check_channels("batch_norm", x, running_var, "running_var");
    check_channels("batch_norm", x, weight, "weight");
    check_channels("batch_norm", x, bias, "bias");
    check_eps("batch_norm", o.eps, x.loc);
    if (!std::isfinite(o.momentum) && running_mean.defined()) {  // else they would stay nan forever
        fail<ValueError>(x.loc, "batch_norm: momentum must be finite, got {}", o.momentum);
    }
    const int64_t channels = x->sizes[1], per_channel = channels > 0 ? x->numel / channels : 0;
    if (!o.training && !(running_mean.defined() && running_var.defined())) {
        fail<ValueError>(x.loc, "batch_norm: needs running_mean and running_var, or training");
    }
    if (o.training && per_channel == 1) {
        fail<ValueError>(x.loc, "batch_norm: in training a channel needs more than one element, got shape {}", x.tensor.shape());
    }
    if (x->numel == 0) {
        const detail::RecordedParts parts(x.loc);
        return empty_norm(x.tensor, weight, bias);
    }
    if (detail::in_batch()) [[unlikely]] {
        if (o.training && running_mean.defined()) {
            fail<ValueError>(x.loc, "batch_norm: instances of batch() would each add to the running statistics; call eval(), or use group_norm");
        }
        const auto of_group = [&](const detail::Batched& in) {
            Tensor of_all;
            return detail::as_one_batch(in, [&](const Tensor& all) { return batch_norm(In(all, x.loc), in[1], in[2], in[3], in[4], o, of_all); });
        };
        const detail::BatchCall call(batch_norm_op, x.loc, {&x.tensor, &running_mean, &running_var, &weight, &bias}, detail::batch_key(o.eps),
                                     {.same = 0b11110});
        if (!o.training) {
            if (Tensor y = detail::in_group(call, of_group); y.defined()) return y;
        }
    }
    if (o.training && detail::is_watched()) [[unlikely]] {
        for (const Tensor* t : {&running_mean, &running_var}) {
            if (t->defined()) detail::tell_write(*t);
        }
    }
    Tensor y;
    {
        const detail::UnrecordedPartsOf parts(x.loc);
        const Running running{running_mean, running_var};
        if (on_gpu(x.tensor)) {
            stats = detail::make_empty({2, channels}, computed_in(x->dtype), x->device, x.loc);
            y = normalized_on_gpu(ready(x.tensor, x->dtype, x.loc), stats, weight, bias, running, o, x.loc);
        } else {
            y = normalized_on_cpu(x.tensor, stats, weight, bias, running, o, x.loc);
        }
    }
    const BatchNormAttrs attrs{o.eps, o.training, weight.defined(), bias.defined()};
    if (!detail::is_watched()) [[likely]] {
        record_norm(batch_norm_op, x.loc, x.tensor, weight, bias, y, stats, attrs, nullptr);
        return y;
    }
    // Watchers are told: (x, running_mean, running_var, weight, bias), those that are given, become y, and in training the new running
    // statistics, else the statistics computed from them.
    const BatchNormCall call{o.eps, o.momentum, o.training, running_mean.defined(), running_var.defined(), weight.defined(), bias.defined()};
    const Tensor* operands[5] = {&x.tensor};
    TensorImpl* results[3] = {y.impl()};
    int count = 1, result_count = 1;
    for (const Tensor* t : {&running_mean, &running_var, &weight, &bias}) {
        if (t->defined()) operands[count++] = t;
    }
    for (const Tensor* t : {&running_mean, &running_var}) {
        if (o.training && t->defined()) results[result_count++] = t->impl();
    }
    if (!o.training) results[result_count++] = stats.impl();
    RecordArgs told{batch_norm_op, x.loc, operands, count, results, result_count, nullptr, 0, &call, sizeof call};
    told.numbers = &call.eps;
    told.number_count = 1;
    record_norm(batch_norm_op, x.loc, x.tensor, weight, bias, y, stats, attrs, &told);
    return y;
}

// For training; g and x have one layout, a dtype that kernels read, and elements.
void run_backward(const Tensor& g, const Tensor& x, const Tensor& weight, double eps, const BatchNormGradients& to, const Loc& loc) {
    const Tensor stats = detail::make_empty({on_gpu(x) ? 2 : 3, x.size(1)}, computed_in(x.dtype()), x.device(), loc);
    if (!on_gpu(x)) {
        std::vector<double> variance(static_cast<std::size_t>(x.size(1)));
        x.dtype() == float64 ? set_stats<double>(x, stats, variance, eps) : set_stats<float>(x, stats, variance, eps);
        return write_gradients(g, x, stats, weight, /*training=*/true, to);
    }
    const BatchNormLayout l = layout_of(x);
    gpu::batch_norm(
        {x.dtype(), l.outer, l.channels, l.inner, eps, 0.1, /*training=*/true, on_stream(x), on_stream(to.x), on_stream(stats), {}, {}, {}, {}});
    gpu::batch_norm_backward({x.dtype(), l.outer, l.channels, l.inner, /*training=*/true, on_stream(g), on_stream(x), on_stream(stats),
                              channel_array(weight), on_stream(to.x), channel_array(to.weight), channel_array(to.bias)});
}

// Computes the statistics again: a graph's batch_norm in training does not return them. The parameters' gradients are not rounded to 16 bits.
std::vector<Tensor> batch_norm_backward(const In& g, const In& x, const Tensor& weight, bool has_bias, double eps) {
    const char* const op = "batch_norm_backward";
    check_gradient(op, g, x);
    check_input(op, x, 2);
    check_channels(op, x, weight, "weight");
    std::vector<Tensor> results;
    {
        const detail::UnrecordedPartsOf parts(g.loc);
        const DType wide = computed_in(x->dtype), read = read_in(x.tensor);
        const Tensor in = ready(x.tensor, read, x.loc), from = ready_like(g.tensor, in, x.loc);
        detail::begin_op(op, in.impl(), x.loc);
        const BatchNormGradients made = made_for(in, wide, x.loc);
        const Tensor scale = !weight.defined() || on_gpu(weight) ? weight : weight.to(wide, x.loc).contiguous(x.loc);
        if (x->numel > 0) {
            run_backward(from, in, scale, eps, made, x.loc);
        } else {
            for (Tensor sum : {made.weight, made.bias}) sum.zero_();
        }
        results.push_back(made.x.to(x->dtype, x.loc));
        if (weight.defined()) results.push_back(made.weight);
        if (has_bias) results.push_back(made.bias);
    }
    if (detail::is_runtime || !detail::thread.observed) return results;
    std::vector<Tensor> inputs = {g.tensor, x.tensor};
    if (weight.defined()) inputs.push_back(weight);
    const BatchNormAttrs attrs{eps, /*training=*/true, weight.defined(), has_bias};
    record_many(batch_norm_backward_op, x.loc, inputs, results, inputs, attrs, BatchNormBackwardCall{eps, weight.defined(), has_bias});
    return results;
}

}  // namespace

Tensor batch_norm(In x, const Tensor& running_mean, const Tensor& running_var, const Tensor& weight, const Tensor& bias, const BatchNormOptions& o) {
    Tensor stats;
    return batch_norm(x, running_mean, running_var, weight, bias, o, stats);
}

Tensor local_response_norm(In x, int64_t size, double alpha, double beta, double k) {
    check_input("local_response_norm", x, 3);
    if (size < 1) fail<ValueError>(x.loc, "local_response_norm: size must be at least 1, got {}", size);
    const detail::RecordedParts parts(x.loc);
    const detail::ComposedOp composed("local_response_norm");
    if (x->numel == 0) return clone(x);
    const int64_t batch = x->sizes[0], channels = x->sizes[1];
    const Tensor squares = reshape(square(x), {batch, 1, channels, x->numel / (batch * channels)});
    const Tensor padded = pad(squares, {0, 0, size / 2, (size - 1) / 2});
    const Tensor around = reshape(avg_pool2d(padded, {size, 1}, {.stride = 1}), x.tensor.shape());
    return div(x, pow(around * alpha + k, beta));
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

std::vector<Tensor> batch_norm_of(const FormCall& x, const BatchNormCall& a) {
    int i = 1;
    Tensor mean = operand_if(a.has_running_mean, x, i), var = operand_if(a.has_running_var, x, i);
    const Tensor weight = operand_if(a.has_weight, x, i), bias = operand_if(a.has_bias, x, i);
    for (Tensor* t : {&mean, &var}) {
        if (a.training && t->defined()) *t = clone(t->detach());  // it is written to
    }
    Tensor stats;
    std::vector<Tensor> results = {batch_norm(x[0], mean, var, weight, bias, {.training = a.training, .momentum = a.momentum, .eps = a.eps}, stats)};
    for (const Tensor* t : {&mean, &var}) {
        if (a.training && t->defined()) results.push_back(*t);
    }
    if (!a.training) results.push_back(stats.defined() ? stats : zeros({2, x[0].size(1)}, {mean.dtype(), mean.device()}));
    return results;
}

std::vector<Tensor> batch_norm_backward_of(const FormCall& x, const BatchNormBackwardCall& a) {
    return batch_norm_backward(x[0], x[1], a.has_weight ? x[2] : Tensor(), a.has_bias, a.eps);
}

// In training the new running statistics, else the statistics computed from them.
ResultTypes types_of(const TypeCall& t, const BatchNormCall& a) {
    const ValueType& x = type_with_channels(t, t[0], 1);
    ResultTypes results{x};
    if (!a.training) results.push_back(types::shaped(x, {2, x.shape[1]}, computed_in(x.dtype)));
    for (int i = 1; a.training && i <= a.has_running_mean + a.has_running_var; ++i) results.push_back(t[i]);
    return results;
}

ResultTypes types_of(const TypeCall& t, const BatchNormBackwardCall& a) {
    const ValueType x = type_with_channels(t, types::alike(t[1], t[0]), 2);
    return gradient_types(x, types::shaped(x, {x.shape[1]}, computed_in(x.dtype)), a.has_weight, a.has_bias);
}

}  // namespace

TAPIR_FORM(batch_norm, Operands(1, 5), BatchNormCall, types_of(t, a), batch_norm_of(x, a),
           f("training", a.training)("momentum", a.momentum)("eps", a.eps)("has_running_mean", a.has_running_mean)(
               "has_running_var", a.has_running_var)("has_weight", a.has_weight)("has_bias", a.has_bias));
TAPIR_FORM(batch_norm_backward, Operands::from(2), BatchNormBackwardCall, types_of(t, a), batch_norm_backward_of(x, a),
           f("eps", a.eps)("has_weight", a.has_weight)("has_bias", a.has_bias));

}  // namespace tapir
