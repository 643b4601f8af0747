// GradScaler.
#include "tapir/optim/grad_scaler.h"

#include <cmath>
#include <limits>
#include <utility>

#include "tapir/autograd/meta_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/state_reader_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/kernels/optimizer.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/view/view.h"
#include "tapir/optim/rule_impl.h"

namespace tapir::optim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// For gradients on the CPU.
bool all_finite(const Tensor& gradient) { return gradient.numel() == 0 || std::isfinite(norm(gradient, kInfinity).item()); }

// Gradients on one device that are unscaled in one launch.
struct OnDevice {
    Device device;
    Tensor not_finite;
    std::vector<kernels::GpuGradient> gradients;
};

OnDevice& of_device(std::vector<OnDevice>& all, Device device, const Loc& loc) {
    for (OnDevice& one : all) {
        if (one.device == device) return one;
    }
    all.push_back({device, zeros({}, {bool_, device}, loc), {}});
    return all.back();
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options, Loc loc) : options_(options), scale_(options.init_scale) {
    const CallerScope caller(loc);
    if (!(options.init_scale > 0) || std::isinf(options.init_scale) || !(options.growth_factor > 1) || std::isinf(options.growth_factor) ||
        !(options.backoff_factor < 1) || !(options.backoff_factor > 0) || options.growth_interval < 1) {
        fail<ValueError>(loc,
                         "GradScaler: init_scale {} must be above 0, growth_factor {} above 1, both finite, backoff_factor {} "
                         "between 0 and 1, growth_interval {} at least 1",
                         options.init_scale, options.growth_factor, options.backoff_factor, options.growth_interval);
    }
}

// A step depends on the values of the gradients, and changes the scale.
static void refuse_traced(const char* op, const Loc& loc) {
    if (!detail::is_tracing()) return;
    fail<TapeError>(loc,
                    "{}: a graph cannot hold a GradScaler, whose scale depends on what the gradients have been: trace without it, in float32 "
                    "or with an AutocastScope of bfloat16, which needs none",
                    op);
}

Tensor GradScaler::scale(In loss) const {
    if (!options_.enabled) return loss.tensor;
    refuse_traced("scale", loss.loc);
    return mul(loss, scale_);
}

void GradScaler::unscale_(Optimizer& optimizer, Loc loc) {
    const CallerScope caller(loc);
    if (!options_.enabled) return;
    refuse_traced("unscale_", loc);
    if (find(optimizer)) {
        fail<ValueError>(loc, "unscale_: the gradients of this optimizer were unscaled already since the last update()");
    }
    const detail::PauseRecording pause;
    struct Gradient {
        AutogradMeta* meta;
        SparseRows rows;
        Tensor scaled, unscaled;
        std::vector<SparseRows> unscaled_rows = {};
    };
    std::vector<Gradient> gradients;
    std::vector<OnDevice> devices;
    bool finite = true;  // those on the CPU
    const std::lock_guard lock(detail::gradient_mutex());
    for (const Tensor& p : optimizer.parameters()) {
        AutogradMeta* meta = p.impl()->meta;
        if (!meta || !meta->has_gradient()) continue;
        const SparseRows rows = detail::rows_or_settle(*meta, p.shape());
        const Tensor g = rows.defined() ? rows.values : meta->grad;
        if (!on_gpu(g)) {
            gradients.push_back({meta, rows, g, mul(In(g, loc), 1 / scale_)});
            finite = finite && all_finite(gradients.back().unscaled);
            continue;
        }
        OnDevice& on = of_device(devices, g.device(), loc);
        detail::begin_op("unscale_", g.impl(), loc);
        gradients.push_back({meta, rows, g.contiguous(), detail::make_empty_like(g.impl(), g.dtype(), loc)});
        const Gradient& made = gradients.back();
        on.gradients.push_back({g.dtype(), g.numel(), on_stream(made.scaled), on_stream(made.unscaled)});
    }
    for (const OnDevice& on : devices) {
        detail::begin_op("unscale_", on.not_finite.impl(), loc);
        gpu::scale_gradients(on.gradients, 1 / scale_, on_stream<bool>(on.not_finite));
    }
    for (Gradient& one : gradients) {
        if (one.rows.defined()) one.unscaled_rows.push_back({one.rows.indices, one.unscaled});
    }
    std::vector<Tensor> unasked;
    for (const OnDevice& on : devices) unasked.push_back(on.not_finite);
    unscaled_.push_back({&optimizer, std::move(unasked), !finite});
    for (auto& [meta, rows, scaled, unscaled, unscaled_rows] : gradients) {  // from here on nothing fails
        if (rows.defined()) {
            meta->rows.swap(unscaled_rows);
        } else {
            const bool is_sure = meta->is_sure_of_rows();
            meta->grad = unscaled;
            meta->note_rows_version(is_sure);
        }
    }
}

GradScaler::Unscaled* GradScaler::find(const Optimizer& optimizer) noexcept {
    for (Unscaled& one : unscaled_) {
        if (one.optimizer == &optimizer) return &one;
    }
    return nullptr;
}

bool GradScaler::are_finite(Unscaled& unscaled) {
    for (const Tensor& not_finite : std::exchange(unscaled.unasked, {})) unscaled.not_finite |= not_finite.item<bool>();
    return !unscaled.not_finite;
}

bool GradScaler::step(Optimizer& optimizer, Loc loc) {
    const CallerScope caller(loc);
    if (options_.enabled) {
        if (!find(optimizer)) unscale_(optimizer, loc);
        stepped_ = true;
        if (!are_finite(*find(optimizer))) {
            found_inf_ = true;
            return false;
        }
    }
    optimizer.step(loc);
    return true;
}

void GradScaler::update() {
    for (Unscaled& one : unscaled_) found_inf_ |= !are_finite(one);
    if (found_inf_) {
        const double lower = scale_ * options_.backoff_factor;
        if (lower >= std::numeric_limits<float>::min()) scale_ = lower;  // a scale of 0 would stay 0
        good_steps_ = 0;
    } else if (stepped_ && ++good_steps_ >= options_.growth_interval) {
        const double higher = scale_ * options_.growth_factor;
        if (higher <= std::numeric_limits<float>::max()) scale_ = higher;  // float32 losses take no larger scale
        good_steps_ = 0;
    }
    found_inf_ = stepped_ = false;
    unscaled_.clear();
}

NamedTensors GradScaler::state_dict(Loc loc) const {
    const CallerScope caller(loc);
    return {{"scale", number(scale_)}, {"growth_tracker", number(good_steps_)}};
}

void GradScaler::load_state_dict(const NamedTensors& state, Loc loc) {
    const CallerScope caller(loc);
    StateReader reader("GradScaler", state, loc);
    const double value = reader.number("scale"), good_steps = reader.number("growth_tracker");
    reader.finish();
    if (!(value > 0) || std::isinf(value)) fail<ValueError>(loc, "load_state_dict: the scale must be above 0 and finite, got {}", value);
    if (!(good_steps >= 0 && good_steps <= std::numeric_limits<int>::max())) {
        fail<ValueError>(loc, "load_state_dict: the growth_tracker must count steps, got {}", good_steps);
    }
    good_steps_ = static_cast<int>(good_steps);
    scale_ = value;
}

}  // namespace tapir::optim
