#include "tapir/nn/parallel/sync_batch_norm.h"

#include "tapir/autograd/tape.h"
#include "tapir/core/fail_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/normalization/channels_impl.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/reduce/statistics.h"

namespace tapir::parallel {
namespace {

// Of all ranks' elements, by channel.
struct Statistics {
    Tensor mean, variance;
    double count;  // of elements of a channel
};

// Each rank's mean and sum of squared deviations become those of all. Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for
// computing sample variances": the difference of large sums that sum(x^2) - n mean^2 would be never arises.
Statistics statistics_of(const Tensor& x, const Group& group, const Loc& loc) {
    const std::int64_t channels = x.size(1), own = x.numel() / channels;
    const Dims dims = all_but_channels(x);
    Tensor mean, deviations;
    if (own > 0) {
        const auto [variance, average] = var_mean(x, dims, 0);
        mean = average;
        deviations = variance * own;
    } else {
        mean = deviations = sum(x, dims);
    }
    const Tensor count = full({1}, static_cast<double>(own), {x.dtype(), x.device()});
    const Tensor all = group.all_gather({cat({mean, deviations, count}).unsqueeze(0), loc}, 0, loc);  // (ranks, 2 channels + 1)
    const Tensor means = all.narrow(1, 0, channels), counts = all.narrow(1, 2 * channels, 1).detach();
    const double total = sum(counts).item<double>();
    if (total <= 1) fail<ValueError>(loc, "SyncBatchNorm: in training a channel needs more than one element on all ranks together, it has {}", total);
    const Tensor mean_of_all = sum(means * (counts / total), Dims(0));
    const Tensor deviations_of_all = sum(all.narrow(1, channels, channels) + square(means - mean_of_all) * counts, Dims(0));
    return {mean_of_all, deviations_of_all / total, total};
}

void note(const Tensor& running, const Tensor& now, double momentum, const Loc& loc) {
    if (!running.defined()) return;
    const NoGradScope pause;
    Tensor(running).copy_(running * (1 - momentum) + now.detach().to(running.dtype()) * momentum, loc);
}

Tensor normalized(const Group& group, In x, const nn::BatchNorm& layer, const BatchNormOptions& options) {
    if (group.size() == 1) return batch_norm(x, layer.running_mean, layer.running_var, layer.weight, layer.bias, options);
    const Loc loc = x.loc;
    const CallerScope caller(loc);
    const bool is_wide = x.tensor.dtype() == float32 || x.tensor.dtype() == float64;
    const Tensor wide = is_wide ? x.tensor : x.tensor.to(float32);
    const Statistics found = statistics_of(wide, group, loc);
    Tensor scale = rsqrt(found.variance + options.eps);
    if (layer.weight.defined()) scale = scale * layer.weight;
    Tensor y = (wide - beside_channels(found.mean, wide)) * beside_channels(scale, wide);
    if (layer.bias.defined()) y = y + beside_channels(layer.bias, wide);
    note(layer.running_mean, found.mean, options.momentum, loc);
    note(layer.running_var, found.variance * (found.count / (found.count - 1)), options.momentum, loc);
    return y.to(x.tensor.dtype());
}

void synchronize(nn::BatchNorm& layer, const Group& group) {
    layer.set_in_training([group](In x, const nn::BatchNorm& of, const BatchNormOptions& options) { return normalized(group, x, of, options); });
}

}  // namespace

SyncBatchNorm::SyncBatchNorm(std::int64_t channels, const Group& group, const nn::BatchNormLayerOptions& options, Loc loc)
    : BatchNorm("SyncBatchNorm", 2, kMaxRank, channels, options, loc) {
    synchronize(*this, group);
}

void convert_sync_batchnorm(nn::Module& model, const Group& group) {
    model.apply([&group](nn::Module& module) {
        if (auto* const layer = dynamic_cast<nn::BatchNorm*>(&module)) synchronize(*layer, group);
    });
}

}  // namespace tapir::parallel
