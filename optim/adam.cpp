// Adam and AdamW.
#include "tapir/optim/adam.h"

#include <cmath>

#include "tapir/core/fail_impl.h"
#include "tapir/optim/options_impl.h"
#include "tapir/optim/update_impl.h"

namespace tapir::optim {
namespace {

void check(const AdamOptions& o, const Loc& loc) {
    check_not_negative("Adam", {{"lr", o.lr}, {"eps", o.eps}, {"weight_decay", o.weight_decay}}, loc);
    for (const double beta : {o.beta1, o.beta2}) {
        if (!(beta >= 0 && beta < 1)) fail<ValueError>(loc, "Adam: a beta of {} is outside [0, 1)", beta);
    }
}

}  // namespace

Adam::Adam(const std::vector<Tensor>& parameters, const AdamOptions& options, Loc loc) {
    Adam::add_param_group(parameters, options, loc);
}

void Adam::add_param_group(const std::vector<Tensor>& parameters, const AdamOptions& options, Loc loc) {
    check(options, loc);
    add_group(parameters, loc);
    options_.push_back(options);
}

AdamOptions& Adam::options(std::size_t group, Loc loc) {
    check_group(group, loc);
    return options_[group];
}

void Adam::buffer_names(std::size_t group, const char* (&names)[kMaxBuffers]) const {
    names[0] = "exp_avg";
    names[1] = "exp_avg_sq";
    if (options_[group].amsgrad) names[2] = "max_exp_avg_sq";
}

std::vector<Optimizer::Option> Adam::option_list(std::size_t group) {
    AdamOptions& o = options_[group];
    return {{"lr", &o.lr, nullptr},
            {"beta1", &o.beta1, nullptr},
            {"beta2", &o.beta2, nullptr},
            {"eps", &o.eps, nullptr},
            {"weight_decay", &o.weight_decay, nullptr},
            {"amsgrad", nullptr, &o.amsgrad}};
}

void Adam::check_options(std::size_t group, const Loc& loc) const { check(options_[group], loc); }

void Adam::update(std::size_t group, Slot& slot, Update& work) {
    const AdamOptions& o = options_[group];
    const auto t = static_cast<double>(slot.steps);
    const double step_size = o.lr / (1 - std::pow(o.beta1, t));
    const double v_scale = 1 / std::sqrt(1 - std::pow(o.beta2, t));
    const double coupled = decoupled() ? 0 : o.weight_decay, decay = decoupled() ? 1 - o.lr * o.weight_decay : 1;
    work.apply(kernels::AdamStep{step_size, o.beta1, o.beta2, o.eps, coupled, decay, v_scale});
}

}  // namespace tapir::optim
