#include "tapir/nn/normalization.h"

#include <cmath>

#include "tapir/autograd/tape.h"
#include "tapir/core/fail_impl.h"
#include "tapir/nn/input_impl.h"
#include "tapir/nn/parameter_impl.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/normalization/batch_norm.h"
#include "tapir/ops/normalization/group_norm.h"

namespace tapir::nn {
namespace {

// Sets the parameters of an affine layer.
void set_affine(Tensor& weight, Tensor& bias, std::int64_t channels, const Loc& loc) {
    weight = init::ones_(empty_parameter({channels}, loc), loc);
    bias = init::zeros_(empty_parameter({channels}, loc), loc);
}

// Suggests why an input has another number of channels in dimension 1.
std::string likely_cause(const Shape& shape, std::int64_t channels) {
    if (shape.rank() == 2 && shape[0] == channels) return "; is it to be transposed? x.t()";
    if (shape.back() != channels) return "; it must have as many as the layer before it gives";
    std::string order = "0, " + std::to_string(shape.rank() - 1);
    for (int d = 1; d + 1 < shape.rank(); ++d) order += ", " + std::to_string(d);
    return fmt::format("; are the channels last? x.permute({{{}}})", order);
}

}  // namespace

BatchNorm::BatchNorm(const char* name, int least_dims, int most_dims, std::int64_t channels, const BatchNormLayerOptions& options, const Loc& loc)
    : name_(name), least_dims_(least_dims), most_dims_(most_dims), channels_(channels), options_(options) {
    if (channels < 1) fail<ValueError>(loc, "{}: channels must be at least 1, got {}", name, channels);
    check_eps(name, options.eps, loc);
    if (options.momentum && !std::isfinite(*options.momentum)) {  // the running statistics would be nan for good
        fail<ValueError>(loc, "{}: momentum must be finite, got {}", name, *options.momentum);
    }
    if (options.affine) set_affine(weight, bias, channels, loc);
    if (!options.track_running_stats) return;
    running_mean = zeros({channels}, {}, loc);
    running_var = ones({channels}, {}, loc);
    num_batches_tracked = zeros({}, int64, loc);
}

Tensor BatchNorm::forward(In x) const {
    const ModuleScope scope(*this);
    if (!x.tensor.defined() || x.tensor.dim() < least_dims_ || x.tensor.dim() > most_dims_) {
        const bool lacks_batch = x.tensor.defined() && x.tensor.dim() == least_dims_ - 1 && x.tensor.dim() > 0 && x.tensor.shape()[0] == channels_;
        fail<ShapeError>(x.loc, "{}: needs {} dimensions, got {}{}", name_,
                         least_dims_ == most_dims_ ? fmt::format("{}", least_dims_) : fmt::format("{} or {}", least_dims_, most_dims_),
                         x.tensor.defined() ? x.tensor.shape().str() : "an undefined tensor", tapir::detail::missing_hint(lacks_batch, "batch's"));
    }
    check_floating(name_, x);
    if (x.tensor.shape()[1] != channels_ && (weight.defined() || running_mean.defined())) {
        fail<ShapeError>(x.loc, "{}: it has {} channels, but dimension 1 of the input, its channels, has {}: {}{}", name_, channels_,
                         x.tensor.shape()[1], x.tensor.shape(), likely_cause(x.tensor.shape(), channels_));
    }
    const bool counts = is_training() && num_batches_tracked.defined();
    double momentum = options_.momentum.value_or(0);
    if (counts && !options_.momentum && tapir::detail::is_tracing()) {
        fail<TapeError>(x.loc,
                        "{}: without a momentum, in training, each call counts less than the one before; a graph does always the "
                        "same: trace it in eval(), or give it a momentum",
                        name_);
    }
    if (counts && !options_.momentum) momentum = 1 / (num_batches_tracked.item(x.loc) + 1);
    const BatchNormOptions options{.training = is_training() || !running_mean.defined(), .momentum = momentum, .eps = options_.eps};
    const Tensor y =
        options.training && in_training_ ? in_training_(x, *this, options) : batch_norm(x, running_mean, running_var, weight, bias, options);
    if (counts) {
        const NoGradScope constant;
        Tensor batches = num_batches_tracked;
        batches.add_(1, x.loc);
    }
    return y;
}

void BatchNorm::members(Members& m) {
    m("weight", weight)("bias", bias);
    m.buffer("running_mean", running_mean).buffer("running_var", running_var).buffer("num_batches_tracked", num_batches_tracked);
}

std::string BatchNorm::describe() const {
    return fmt::format("eps {}{}", options_.eps, options_.momentum ? fmt::format(", momentum {}", *options_.momentum) : "");
}

GroupNorm::GroupNorm(std::int64_t groups, std::int64_t channels, const NormOptions& options, Loc loc)
    : groups_(groups), channels_(channels), eps_(options.eps) {
    const CallerScope caller(loc);
    if (groups < 1 || channels < 1 || channels % groups != 0) {
        fail<ValueError>(loc, "GroupNorm: {} groups do not divide {} channels", groups, channels);
    }
    check_eps("GroupNorm", options.eps, loc);
    if (options.affine) set_affine(weight, bias, channels, loc);
}

std::string GroupNorm::describe() const { return fmt::format("{} groups of {} channels, eps {}", groups_, channels_ / groups_, eps_); }

InstanceNorm::InstanceNorm(const char* name, int batched_dims, std::int64_t channels, const InstanceNormOptions& options, const Loc& loc)
    : name_(name), batched_dims_(batched_dims), channels_(channels), eps_(options.eps) {
    if (channels < 1) fail<ValueError>(loc, "{}: channels must be at least 1, got {}", name, channels);
    check_eps(name, options.eps, loc);
    if (options.affine) set_affine(weight, bias, channels, loc);
}

Tensor InstanceNorm::forward(In x) const {
    const ModuleScope scope(*this);
    const int rank = x.tensor.defined() ? x.tensor.dim() : 0;
    if (rank != batched_dims_ && rank != batched_dims_ - 1) {
        fail<ShapeError>(x.loc, "{}: needs {} dimensions, or {} without a batch, got {}", name_, batched_dims_, batched_dims_ - 1,
                         x.tensor.defined() ? x.tensor.shape().str() : "an undefined tensor");
    }
    check_floating(name_, x);
    const int at = rank - batched_dims_ + 1;
    if (weight.defined() && x.tensor.shape()[at] != channels_) {
        fail<ShapeError>(x.loc, "{}: it has {} channels, but dimension {} of the input, its channels, has {}: {}", name_, channels_, at,
                         x.tensor.shape()[at], x.tensor.shape());
    }
    if (at == 1) return instance_norm(x, weight, bias, eps_);
    const Tensor one = x.tensor.unsqueeze(0, x.loc);
    return instance_norm(In(one, x.loc), weight, bias, eps_).squeeze(0, x.loc);
}

std::string InstanceNorm::describe() const { return fmt::format("{} channels, eps {}{}", channels_, eps_, weight.defined() ? ", affine" : ""); }

RMSNorm::RMSNorm(const Shape& normalized_shape, double eps, bool affine, Loc loc) : shape_(normalized_shape), eps_(eps) {
    const CallerScope caller(loc);
    if (normalized_shape.empty()) fail<ShapeError>(loc, "RMSNorm: needs at least one dimension to normalise over");
    if (std::isnan(eps)) fail<ValueError>(loc, "RMSNorm: eps is nan");  // below 0: the dtype's
    if (affine) weight = init::ones_(empty_parameter(normalized_shape, loc), loc);
}

}  // namespace tapir::nn
