// GradScaler.
#include "tapir/optim/grad_scaler.h"

#include <cmath>
#include <limits>

#include "tapir/autograd/meta_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/copy.h"
#include "tapir/ops/elementwise.h"
#include "tapir/ops/indexing.h"
#include "tapir/ops/make.h"
#include "tapir/ops/reduce.h"
#include "tapir/ops/view.h"

namespace tapir::optim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor number(double value) { return full({}, value, {float64, cpu}); }

// Whether all of them are finite: the largest absolute value of each, and one wait for all that are on one device.
bool are_finite(const std::vector<Tensor>& gradients) {
    std::vector<Tensor> largest;
    for (const Tensor& g : gradients) {
        if (g.numel() == 0) continue;
        largest.push_back(norm(g, kInfinity).to(float64));
        if (largest.back().device() != largest.front().device()) largest.back() = largest.back().to(largest.front().device());
    }
    return largest.empty() || std::isfinite(sum(stack(largest)).item());
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options, Loc loc) : options_(options), scale_(options.init_scale) {
    if (!(options.init_scale > 0) || !(options.growth_factor > 1) || !(options.backoff_factor < 1) ||
        !(options.backoff_factor > 0) || options.growth_interval < 1) {
        fail<ValueError>(loc, "GradScaler: init_scale {} must be above 0, growth_factor {} above 1, backoff_factor {} between 0 "
                         "and 1, growth_interval {} at least 1", options.init_scale, options.growth_factor,
                         options.backoff_factor, options.growth_interval);
    }
}

Tensor GradScaler::scale(In loss) const { return options_.enabled ? mul(loss, scale_) : loss.tensor; }

void GradScaler::unscale_(Optimizer& optimizer, Loc loc) {
    if (!options_.enabled) return;
    if (!unscaled_.insert(&optimizer).second) {
        fail<ValueError>(loc, "unscale_: the gradients of this optimizer were unscaled already since the last update()");
    }
    const detail::PauseRecording pause;
    std::vector<Tensor> gradients;
    for (const Tensor& p : optimizer.parameters()) {
        AutogradMeta* meta = p.impl()->meta;
        if (!meta || !meta->has_gradient()) continue;
        const std::lock_guard lock(detail::gradient_mutex());
        const SparseRows rows = detail::rows_or_settle(*meta, p.shape());
        Tensor g = mul(In(rows.defined() ? rows.values : meta->grad, loc), 1 / scale_);
        gradients.push_back(g);
        if (rows.defined()) {
            meta->rows = {{rows.indices, g}};
        } else {
            meta->grad = g;
        }
    }
    if (!are_finite(gradients)) not_finite_.insert(&optimizer);
}

bool GradScaler::step(Optimizer& optimizer, Loc loc) {
    if (options_.enabled) {
        if (!unscaled_.contains(&optimizer)) unscale_(optimizer, loc);
        stepped_ = true;
        if (not_finite_.contains(&optimizer)) {
            found_inf_ = true;
            return false;
        }
    }
    optimizer.step(loc);
    return true;
}

void GradScaler::update() {
    found_inf_ |= !not_finite_.empty();
    if (found_inf_) {
        scale_ *= options_.backoff_factor;
        good_steps_ = 0;
    } else if (stepped_ && ++good_steps_ == options_.growth_interval) {
        scale_ *= options_.growth_factor;
        good_steps_ = 0;
    }
    found_inf_ = stepped_ = false;
    unscaled_.clear();
    not_finite_.clear();
}

NamedTensors GradScaler::state_dict() const {
    return {{"scale", number(scale_)}, {"growth_tracker", number(good_steps_)}};
}

void GradScaler::load_state_dict(const NamedTensors& state, Loc loc) {
    const Tensor *scale = nullptr, *steps = nullptr;
    for (const NamedTensor& t : state) {
        if (t.name == "scale") scale = &t.tensor;
        if (t.name == "growth_tracker") steps = &t.tensor;
    }
    if (!scale || !steps) fail<ValueError>(loc, "load_state_dict: a GradScaler's state has scale and growth_tracker");
    const double value = scale->item(loc);
    if (!(value > 0)) fail<ValueError>(loc, "load_state_dict: the scale must be above 0, got {}", value);
    good_steps_ = steps->item<int>(loc);
    scale_ = value;
}

}  // namespace tapir::optim
