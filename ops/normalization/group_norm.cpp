// Group and instance normalisation. The CPU uses the kernels of batch normalisation, in the layout of the input: sums of each
// channel of each example, combined by group, and one pass that writes the result.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tapir/autograd/backward_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/composed_gradient_impl.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/normalization/batch_norm_kernels.h"
#include "tapir/ops/normalization/group_norm.h"
#include "tapir/ops/normalization/layer_norm.h"
#include "tapir/ops/normalization/normalization_impl.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/view/view.h"

namespace tapir {
namespace {

void group_norm_rule(Backward& b);
void group_norm_backward_rule(Backward& b);
std::vector<Tensor> group_norm_backward(const In& g, const In& x, std::int64_t groups, const Tensor& weight, bool has_bias, double eps);

}  // namespace

TAPIR_OP(group_norm, group_norm_rule, "Groups of channels of each example to mean 0 and variance 1.",
         TAPIR_SAMPLE_AS("f(2,4,4,5) f(4) f(4)", "nn.functional.group_norm(x[0], 2, x[1], x[2], 0.001)", group_norm(x[0], 2, x[1], x[2], 1e-3)),
         TAPIR_SAMPLE_AS("f(2,4,17) f(4)", "nn.functional.group_norm(x[0], 2, x[1], None)", group_norm(x[0], 2, x[1])),
         TAPIR_SAMPLE_AS("f(1,4,4,4) f(4)", "nn.functional.group_norm(x[0], 1, None, x[1])", group_norm(x[0], 1, {}, x[1])),
         TAPIR_SAMPLE_AS("f(3,6) f(6) f(6)", "nn.functional.group_norm(x[0], 2, x[1], x[2])", group_norm(x[0], 2, x[1], x[2])),
         TAPIR_SAMPLE_AS("f(2,2,4,4) f(2) f(2)", "nn.functional.instance_norm(x[0], None, None, x[1], x[2])", instance_norm(x[0], x[1], x[2])));
// As an op of its own, the recorded rule is one node in the graph of a gradient.
TAPIR_OP(group_norm_backward, group_norm_backward_rule, "The gradients of group_norm: of x, and of the weight and the bias where there are such.",
         TAPIR_SAMPLE_AS("f(2,4,4,3) f(2,4,4,3) f(4)",
                         "torch.autograd.functional.vjp(lambda t, w, v: nn.functional.group_norm(t, 2, w, v, 0.001), (x[1], x[2], x[2]), x[0])[1]",
                         group_norm_backward(x[0], x[1], 2, x[2], true, 1e-3)),
         TAPIR_SAMPLE_AS("f(2,4,5) f(2,4,5)", "torch.autograd.functional.vjp(lambda t: nn.functional.group_norm(t, 2), x[1], x[0])[1]",
                         group_norm_backward(x[0], x[1], 2, {}, false, 1e-5)),
         TAPIR_SAMPLE_AS("f(3,6) f(3,6) f(6)", "torch.autograd.functional.vjp(lambda t, w: nn.functional.group_norm(t, 2, w), (x[1], x[2]), x[0])[1]",
                         group_norm_backward(x[0], x[1], 2, x[2], false, 1e-5)),
         TAPIR_SAMPLE_AS(
             "f(2,3,7) f(2,3,7)",
             "torch.autograd.functional.vjp(lambda t, v: nn.functional.group_norm(t, 3, torch.ones_like(v), v), (x[1], x[1][0, :, 0]), x[0])[1]",
             group_norm_backward(x[0], x[1], 3, {}, true, 1e-5)));

namespace {

using std::int64_t;

struct GroupNormAttrs {
    double eps = 1e-5;
    int64_t groups = 1;
    bool has_weight = false, has_bias = false;
};

// x (batch, channels, inner) or, with the channels last, (batch, inner, channels); values that differ per channel are (batch, channels).
struct GroupNormLayout {
    int64_t batch, channels, inner, groups;
    bool is_last;
    int64_t size() const { return channels * inner; }  // of an example
    std::size_t all() const { return static_cast<std::size_t>(batch * channels); }
};

GroupNormLayout layout_of(const Tensor& x, int64_t groups) {
    const int64_t inner = x.numel() / (x.size(0) * x.size(1));
    return {x.size(0), x.size(1), inner, groups, !x.is_contiguous() || inner == 1};
}

// The number of parts of a sum depends on the sizes alone, so that the number of threads does not change the sum.
constexpr int64_t kPart = 32 * 1024;  // elements

// Cuts sums and maps in the same way: run(example, first row, end row) of (inner, channels) if the channels are last, else
// run(0, first channel, end channel) of batch * channels.
template <class Run>
void for_parts(const GroupNormLayout& l, int64_t first, int64_t end, const Run& run) {
    if (!l.is_last) {
        parallel_items((end - first) * l.channels, kPart / l.inner + 1,
                       [&](int64_t from, int64_t to) { run(0, first * l.channels + from, first * l.channels + to); });
        return;
    }
    const int64_t rows = std::max<int64_t>((l.inner + 15) / 16, kPart / l.channels + 1), parts = (l.inner + rows - 1) / rows;
    parallel_blocks((end - first) * parts, [&](int64_t i) { run(first + i / parts, i % parts * rows, std::min((i % parts + 1) * rows, l.inner)); });
}

// Computes both sums of each channel of the examples [first, end): see kernels::ChannelSums. sums: [2][batch * channels].
template <class T>
void sum_up(const GroupNormLayout& l, int64_t first, int64_t end, const T* x, const T* g, const T* shift, const T* scale, double* sums) {
    const auto channels = static_cast<std::size_t>(l.channels);
    const int64_t at = first * l.channels, n = end * l.channels - at, all = l.batch * l.channels;
    const auto moved = [](const T* p, int64_t by) { return p ? p + by : nullptr; };
    std::fill_n(sums + at, n, 0.0);
    std::fill_n(sums + all + at, n, 0.0);
    if (!l.is_last) {
        for_parts(l, first, end, [&](int64_t, int64_t from, int64_t to) {
            const int64_t i = from * l.inner;
            const kernels::ChannelSums<T> args{to - from,   l.inner,           x + i,  moved(g, i), shift + from, moved(scale, from),
                                               sums + from, sums + all + from, nullptr};
            kernels::channel_sums(args, 0, 1);
        });
        return;
    }
    // Several parts add to one channel: each has a row of its own, added up in order.
    const int64_t rows = std::max<int64_t>((l.inner + 15) / 16, kPart / l.channels + 1), parts = (l.inner + rows - 1) / rows;
    std::vector<double> of_parts(static_cast<std::size_t>((end - first) * parts) * 2 * channels);
    for_parts(l, first, end, [&](int64_t example, int64_t from, int64_t to) {
        std::vector<T> scratch(2 * channels);
        double* mine = of_parts.data() + static_cast<std::size_t>((example - first) * parts + from / rows) * 2 * channels;
        const int64_t i = example * l.size(), c = example * l.channels;
        kernels::channel_sums(
            kernels::ChannelSums<T>{l.channels, 1, x + i, moved(g, i), shift + c, moved(scale, c), mine, mine + channels, scratch.data()}, from, to);
    });
    for (int64_t p = 0; p < (end - first) * parts; ++p) {
        const double* from = of_parts.data() + static_cast<std::size_t>(p) * 2 * channels;
        double* to = sums + (first + p / parts) * l.channels;
        for (std::size_t c = 0; c < channels; ++c) {
            to[c] += from[c];
            to[static_cast<std::size_t>(all) + c] += from[channels + c];
        }
    }
}

// Values that differ per channel, (batch, channels): see kernels::ChannelMap.
template <class T>
struct MapTerms {
    const T *shift, *scale, *a, *b, *c;
};
// Computes y of the examples [first, end).
template <class T>
void map(const GroupNormLayout& l, int64_t first, int64_t end, const T* x, const T* g, const MapTerms<T>& by, T* y) {
    const auto moved = [](const T* p, int64_t by_count) { return p ? p + by_count : nullptr; };
    for_parts(l, first, end, [&](int64_t example, int64_t from, int64_t to) {
        const int64_t i = l.is_last ? example * l.size() : from * l.inner, k = l.is_last ? example * l.channels : from;
        const kernels::ChannelMap<T> args{l.is_last ? l.channels : to - from,
                                          l.is_last ? 1 : l.inner,
                                          x + i,
                                          moved(g, i),
                                          by.shift + k,
                                          moved(by.scale, k),
                                          by.a + k,
                                          by.b + k,
                                          moved(by.c, k),
                                          y + i};
        kernels::channel_map(args, l.is_last ? from : 0, l.is_last ? to : 1);
    });
}

// Calls run(first, end) for as many examples as stay in the caches between its sums and its map.
template <class Run>
void for_sets(const GroupNormLayout& l, const Run& run) {
    const int64_t set = std::max<int64_t>(1, 4 * kPart * num_threads() / l.size());
    for (int64_t first = 0; first < l.batch; first += set) run(first, std::min(first + set, l.batch));
}

// Each group's mean and rstd, and the part that the mean lost when it was rounded.
template <class T>
struct GroupStats {
    T *mean, *rstd, *rest;
    GroupStats(const Tensor& stats, const GroupNormLayout& l)
        : mean(data<T>(stats)), rstd(mean + l.batch * l.groups), rest(rstd + l.batch * l.groups) {}
};

// Finds them for the examples [first, end). sums, shift: scratch memory.
template <class T>
void find_stats(const GroupNormLayout& l, int64_t first, int64_t end, const T* x, double eps, std::vector<double>& sums, std::vector<T>& shift,
                const GroupStats<T>& stats) {
    const int64_t per_group = l.channels / l.groups, all = l.batch * l.channels, width = per_group * l.inner;
    const auto inner = static_cast<double>(l.inner);
    for (int64_t i = first * l.channels; i < end * l.channels; ++i) {
        shift[static_cast<std::size_t>(i)] = x[l.is_last ? i / l.channels * l.size() + i % l.channels : i * l.inner];
    }
    sum_up<T>(l, first, end, x, nullptr, shift.data(), nullptr, sums.data());
    for (int64_t k = first * l.groups; k < end * l.groups; ++k) {
        // Chan et al. 1983: adds squares around the mean of each channel, and of these means around that of the group.
        const auto channel = [&](int64_t i, double& mean) {
            const double first_sum = sums[static_cast<std::size_t>(i)];
            mean = static_cast<double>(shift[static_cast<std::size_t>(i)]) + first_sum / inner;
            return std::max(0.0, sums[static_cast<std::size_t>(all + i)] - first_sum * first_sum / inner);
        };
        double mean = 0, squares = 0, here = 0, of_kernel = 0;
        for (int64_t i = k * per_group; i < (k + 1) * per_group; ++i) {
            squares += channel(i, here);
            mean += here / static_cast<double>(per_group);
            of_kernel = std::max(of_kernel, sums[static_cast<std::size_t>(all + i)]);
        }
        for (int64_t i = k * per_group; i < (k + 1) * per_group; ++i) {
            channel(i, here);
            squares += inner * (here - mean) * (here - mean);
        }
        MeanAndRstd found{mean, squares / static_cast<double>(width), 0};
        found.rstd = 1 / std::sqrt(found.variance + eps);
        if (!is_in_range<T>(std::max(squares, of_kernel), found.variance, eps)) {
            found = scaled_stats(width, eps, [&](int64_t i) {
                const int64_t example = k / l.groups, c = k % l.groups * per_group + i / l.inner;
                const int64_t at = l.is_last ? i % l.inner * l.channels + c : c * l.inner + i % l.inner;
                return static_cast<double>(x[example * l.size() + at]);
            });
        }
        stats.mean[k] = static_cast<T>(found.mean);
        stats.rstd[k] = static_cast<T>(found.rstd);
        stats.rest[k] = static_cast<T>(found.mean - static_cast<double>(stats.mean[k]));
    }
}

// stats: (3, batch, groups), as in GroupStats.
template <class T>
Tensor normalized(const Tensor& x, const Tensor& stats, const Tensor& weight, const Tensor& bias, const GroupNormAttrs& attrs, const Loc& loc) {
    const GroupNormLayout l = layout_of(x, attrs.groups);
    const Tensor y = empty_like(x, loc);
    const T *from = data<T>(x), *w = data<T>(weight), *shift_by = data<T>(bias);
    const GroupStats<T> found(stats, l);
    const int64_t per_group = l.channels / l.groups;
    std::vector<double> sums(2 * l.all());
    std::vector<T> shift(l.all()), a(l.all()), b(l.all());
    for_sets(l, [&](int64_t first, int64_t end) {
        find_stats(l, first, end, from, attrs.eps, sums, shift, found);
        for (int64_t i = first * l.channels; i < end * l.channels; ++i) {
            const int64_t k = i / per_group, c = i % l.channels;
            const auto at = static_cast<std::size_t>(i);
            shift[at] = found.mean[k];
            a[at] = found.rstd[k] * (w ? w[c] : T(1));
            b[at] = (shift_by ? shift_by[c] : T(0)) - found.rest[k] * a[at];
        }
        map<T>(l, first, end, from, nullptr, {shift.data(), nullptr, a.data(), b.data(), nullptr}, data<T>(y));
    });
    return y;
}

struct GroupNormGradients {
    Tensor x, weight, bias;
};

// With n = (x - mean) rstd and d = g weight:  rstd (d - mean(d) - n mean(d n)), means over the group.
template <class T>
GroupNormGradients gradients(const Tensor& g, const Tensor& x, const Tensor& stats, const Tensor& weight, const GroupNormAttrs& attrs, bool has_stats,
                             const Loc& loc) {
    const GroupNormLayout l = layout_of(x, attrs.groups);
    const auto made_of = [&](int64_t n) { return detail::make_empty({n}, x.dtype(), cpu, loc); };
    GroupNormGradients made{empty_like(x, loc), made_of(l.channels), made_of(l.channels)};
    const GroupStats<T> found(stats, l);
    const T* w = data<T>(weight);
    const int64_t per_group = l.channels / l.groups, all = l.batch * l.channels;
    const double n = static_cast<double>(l.inner) * static_cast<double>(per_group);
    std::vector<double> sums(2 * l.all());
    std::vector<T> shift(l.all()), scale(l.all()), a(l.all()), b(l.all()), factor(l.all());
    for_sets(l, [&](int64_t first, int64_t end) {
        const auto at = [&](std::vector<T>& v, int64_t i) -> T& { return v[static_cast<std::size_t>(i)]; };
        if (!has_stats) find_stats(l, first, end, data<T>(x), attrs.eps, sums, shift, found);
        for (int64_t i = first * l.channels; i < end * l.channels; ++i) {
            at(shift, i) = found.mean[i / per_group];
            at(scale, i) = found.rstd[i / per_group];
        }
        sum_up<T>(l, first, end, data<T>(x), data<T>(g), shift.data(), scale.data(), sums.data());
        for (int64_t k = first * l.groups; k < end * l.groups; ++k) {
            const auto weight_of = [&](int64_t i) { return w ? static_cast<double>(w[i % l.channels]) : 1.0; };
            // The kernel's n is (x - mean) rstd with the rounded mean; `off` is the part that it lacks.
            const auto rstd = static_cast<double>(found.rstd[k]), off = static_cast<double>(found.rest[k]) * rstd;
            double mean_d = 0, mean_dn = 0;
            for (int64_t i = k * per_group; i < (k + 1) * per_group; ++i) {
                double &by_g = sums[static_cast<std::size_t>(i)], &by_n = sums[static_cast<std::size_t>(all + i)];
                by_n -= off * by_g;
                mean_d += weight_of(i) * by_g / n;
                mean_dn += weight_of(i) * by_n / n;
            }
            const double slope = -rstd * mean_dn;
            for (int64_t i = k * per_group; i < (k + 1) * per_group; ++i) {
                at(factor, i) = static_cast<T>(rstd * weight_of(i));
                at(a, i) = static_cast<T>(slope);
                at(b, i) = static_cast<T>(-rstd * mean_d - slope * off);
            }
        }
        map<T>(l, first, end, data<T>(x), data<T>(g), {shift.data(), scale.data(), a.data(), b.data(), factor.data()}, data<T>(made.x));
    });
    for (int64_t c = 0; c < l.channels; ++c) {
        double of_bias = 0, of_weight = 0;
        for (int64_t i = c; i < all; i += l.channels) {
            of_bias += sums[static_cast<std::size_t>(i)];
            of_weight += sums[static_cast<std::size_t>(all + i)];
        }
        data<T>(made.bias)[c] = static_cast<T>(of_bias);
        data<T>(made.weight)[c] = static_cast<T>(of_weight);
    }
    return made;
}

// Takes all in one layout, in the dtype that is computed in. Without has_stats it finds and writes them.
GroupNormGradients gradients(const Tensor& g, const Tensor& x, const Tensor& stats, const Tensor& given_weight, const GroupNormAttrs& attrs,
                             bool has_stats, const Loc& loc) {
    const Tensor weight = given_weight.defined() ? given_weight.to(x.dtype(), loc).contiguous(loc) : Tensor();
    return x.dtype() == float64 ? gradients<double>(g, x, stats, weight, attrs, has_stats, loc)
                                : gradients<float>(g, x, stats, weight, attrs, has_stats, loc);
}

// Computes the gradients of x, the weight and the bias, made of ops; are_summed: those of the parameters, over all but the channels.
std::vector<Tensor> gradients_of_ops(const Tensor& given_g, const Tensor& given_x, const Tensor& weight, const GroupNormAttrs& attrs,
                                     bool are_summed = true) {
    const DType dtype = computed_in(given_x.dtype());
    const Tensor g = given_g.to(dtype), x = given_x.to(dtype);
    const int64_t batch = x.size(0), width = batch > 0 ? x.numel() / (batch * attrs.groups) : 0;
    const Shape rows{batch, attrs.groups, width};
    const Tensor in = reshape(x, rows), centred = in - mean(in, {2}, true);
    const Tensor rstd = rsqrt(mean(square(centred), {2}, true) + attrs.eps), normal = centred * rstd;
    const Tensor d = reshape(attrs.has_weight ? g * beside_channels(weight, x) : g, rows);
    std::vector<Tensor> gradients = {reshape(rstd * (d - mean(d, {2}, true) - normal * mean(d * normal, {2}, true)), x.shape())};
    const auto of_channels = [&](const Tensor& t) { return are_summed ? sum(t, all_but_channels(t)) : t; };
    if (attrs.has_weight) gradients.push_back(of_channels(g * reshape(normal, x.shape())));
    if (attrs.has_bias) gradients.push_back(of_channels(g));
    return gradients;
}

// saved: g, x, the weight if there is one
void group_norm_backward_rule(Backward& b) {
    const GroupNormAttrs& attrs = b.attrs<GroupNormAttrs>();
    differentiate(b, [&](const std::vector<Tensor>& in) { return gradients_of_ops(in[0], in[1], attrs.has_weight ? in[2] : Tensor(), attrs); });
}

// saved: GroupStats, x, the weight if there is one
void group_norm_rule(Backward& b) {
    const GroupNormAttrs& attrs = b.attrs<GroupNormAttrs>();
    const Loc loc = b.record().loc;
    const Tensor weight = attrs.has_weight ? b.saved(2) : Tensor();
    if (b.recording()) {
        const std::vector<Tensor> made = group_norm_backward(In(b.grad(), loc), In(b.saved(1), loc), attrs.groups, weight, attrs.has_bias, attrs.eps);
        for (std::size_t i = 0; i < made.size(); ++i) b.give(static_cast<int>(i), made[i]);
        return;
    }
    if (b.rows_to_tell_apart() > 0) {
        const std::vector<Tensor> made = gradients_of_ops(b.grad(), b.saved(1), weight, attrs, /*are_summed=*/false);
        b.give(0, made[0]);
        for (std::size_t i = 1; i < made.size(); ++i) b.give(static_cast<int>(i), sums_of_channels(b, made[i]));
        return;
    }
    const Tensor stats = b.saved(0), x = ready(b.saved(1), stats.dtype(), loc), g = ready_like(b.grad(), x, loc);
    const GroupNormGradients made = gradients(g, x, stats, weight, attrs, /*has_stats=*/true, loc);
    b.give(0, made.x);
    if (attrs.has_weight) b.give(1, made.weight);
    if (attrs.has_bias) b.give(attrs.has_weight ? 2 : 1, made.bias);
}

void check_groups(const char* op, int64_t groups, int64_t channels, const Loc& loc) {
    if (groups < 1 || channels % groups != 0) fail<ValueError>(loc, "{}: {} groups do not divide {} channels", op, groups, channels);
}

// Computes the statistics again: a graph's group_norm has one result. The parameters' gradients are not rounded to 16 bits.
std::vector<Tensor> group_norm_backward(const In& g, const In& x, int64_t groups, const Tensor& weight, bool has_bias, double eps) {
    const char* const op = "group_norm_backward";
    check_gradient(op, g, x);
    check_input(op, x, 2);
    check_channels(op, x, weight, "weight");
    check_groups(op, groups, x->sizes[1], x.loc);
    const GroupNormAttrs attrs{eps, groups, weight.defined(), has_bias};
    std::vector<Tensor> results;
    {
        const detail::UnrecordedPartsOf parts(g.loc);
        const DType dtype = computed_in(x->dtype);
        detail::begin_op(op, x.tensor.impl(), x.loc);
        if (x->numel == 0) {
            results.push_back(zeros(x.tensor.shape(), {dtype, x->device}));
            for (int i = weight.defined() + has_bias; i-- > 0;) results.push_back(zeros({x->sizes[1]}, {dtype, x->device}));
        } else if (!detail::is_runtime && on_gpu(x.tensor)) {
            results = gradients_of_ops(g.tensor, x.tensor, weight, attrs);
        } else {
            const Tensor in = ready(x.tensor, dtype, x.loc), from = ready_like(g.tensor, in, x.loc);
            const Tensor stats = detail::make_empty({3, x->sizes[0], groups}, dtype, x->device, x.loc);
            const GroupNormGradients made = gradients(from, in, stats, weight, attrs, /*has_stats=*/false, x.loc);
            results.push_back(made.x);
            if (weight.defined()) results.push_back(made.weight);
            if (has_bias) results.push_back(made.bias);
        }
        results[0] = results[0].to(x->dtype, x.loc);
    }
    if (detail::is_runtime || !detail::thread.observed) return results;
    std::vector<Tensor> inputs = {g.tensor, x.tensor};
    if (weight.defined()) inputs.push_back(weight);
    record_many(group_norm_backward_op, x.loc, inputs, results, inputs, attrs, attrs);
    return results;
}

Tensor fused(const In& x, const Tensor& weight, const Tensor& bias, const GroupNormAttrs& attrs) {
    Tensor y, stats;
    {
        const detail::UnrecordedPartsOf parts(x.loc);
        const DType dtype = computed_in(x->dtype);
        const Tensor in = ready(x.tensor, dtype, x.loc);
        stats = detail::make_empty({3, x->sizes[0], attrs.groups}, dtype, cpu, x.loc);
        const auto wide = [&](const Tensor& t) { return t.defined() ? t.to(dtype, x.loc).contiguous(x.loc) : t; };
        y = dtype == float64 ? normalized<double>(in, stats, wide(weight), wide(bias), attrs, x.loc)
                             : normalized<float>(in, stats, wide(weight), wide(bias), attrs, x.loc);
        y = y.to(x->dtype, x.loc);
    }
    record_norm(group_norm_op, x.loc, x.tensor, weight, bias, y, stats, attrs, [&] { return attrs; });
    return y;
}

}  // namespace

Tensor group_norm(In x, int64_t groups, const Tensor& weight, const Tensor& bias, double eps) {
    check_input("group_norm", x, 2);
    check_channels("group_norm", x, weight, "weight");
    check_channels("group_norm", x, bias, "bias");
    check_eps("group_norm", eps, x.loc);
    const int64_t batch = x->sizes[0], channels = x->sizes[1];
    check_groups("group_norm", groups, channels, x.loc);
    if (batch == 1 && x->numel == groups) {
        fail<ValueError>(x.loc, "group_norm: a group needs more than one element, got {} groups in shape {}", groups, x.tensor.shape());
    }
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) {
            return detail::as_one_batch(in, [&](const Tensor& all) { return group_norm(In(all, x.loc), groups, in[1], in[2], eps); });
        };
        const detail::BatchCall call(group_norm_op, x.loc, {&x.tensor, &weight, &bias}, detail::batch_key(groups, eps), {.same = 0b110});
        if (Tensor y = detail::in_group(call, of_group); y.defined()) return y;
    }
    // Sums of each channel cost more than they save if a channel has few elements; fewer are enough if it lies side by side with others.
    const int64_t per_channel = x->numel > 0 ? x->numel / (batch * channels) : 0, least = x->is_contiguous() ? 16 : 4;
    const bool is_worth_it = per_channel >= least || (detail::is_tracing() && per_channel > 1);  // a graph shows the op that was called
    if (!on_gpu(x.tensor) && is_worth_it) return fused(x, weight, bias, {eps, groups, weight.defined(), bias.defined()});
    const detail::RecordedParts parts(x.loc);
    if (x->numel == 0) return empty_norm(x.tensor, weight, bias);
    const int64_t width = x->numel / (batch * groups);
    const Tensor in = x.tensor.to(computed_in(x->dtype), x.loc);  // rounded once, at the end
    Tensor y = reshape(layer_norm(reshape(in, {batch, groups, width}), {width}, {}, {}, eps), x.tensor.shape());
    if (weight.defined()) y = y * beside_channels(weight, x.tensor);
    if (bias.defined()) y = y + beside_channels(bias, x.tensor);
    return y.to(x->dtype, x.loc);
}

Tensor instance_norm(In x, const Tensor& weight, const Tensor& bias, double eps) {
    check_input("instance_norm", x, 3);
    check_eps("instance_norm", eps, x.loc);
    const int64_t per_channel = x->numel > 0 ? x->numel / (x->sizes[0] * x->sizes[1]) : 0;
    if (per_channel == 1) {
        fail<ValueError>(x.loc, "instance_norm: a channel needs more than one element, got shape {}", x.tensor.shape());
    }
    return group_norm(x, std::max<int64_t>(x->sizes[1], 1), weight, bias, eps);
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

Tensor group_norm_of(const FormCall& x, const GroupNormAttrs& a) {
    int i = 1;
    const Tensor weight = operand_if(a.has_weight, x, i), bias = operand_if(a.has_bias, x, i);
    return group_norm(x[0], a.groups, weight, bias, a.eps);
}

std::vector<Tensor> group_norm_backward_of(const FormCall& x, const GroupNormAttrs& a) {
    return group_norm_backward(x[0], x[1], a.groups, a.has_weight ? x[2] : Tensor(), a.has_bias, a.eps);
}

void norm_fields(Fields& f, GroupNormAttrs& a) { f("num_groups", a.groups)("eps", a.eps)("has_weight", a.has_weight)("has_bias", a.has_bias); }

const ValueType& grouped(const TypeCall& t, const ValueType& x, int parameters) {
    const SymInt &channels = type_with_channels(t, x, parameters).shape[1], groups = t.size("num_groups");
    if (groups.is_number() && channels.is_number())
        types::need<ValueError>(groups.number() > 0 && channels.number() % groups.number() == 0, "the groups do not divide the channels");
    return x;
}

ResultTypes types_of_backward(const TypeCall& t, const GroupNormAttrs& a) {
    const ValueType x = types::alike(grouped(t, t[1], 2), t[0]);
    return gradient_types(x, types::shaped(x, {x.shape[1]}, computed_in(x.dtype)), a.has_weight, a.has_bias);
}

}  // namespace

TAPIR_FORM(group_norm, Operands(1, 3), GroupNormAttrs, grouped(t, t[0], 1), group_norm_of(x, a), norm_fields(f, a));
TAPIR_FORM(group_norm_backward, Operands::from(2), GroupNormAttrs, types_of_backward(t, a), group_norm_backward_of(x, a), norm_fields(f, a));

}  // namespace tapir
