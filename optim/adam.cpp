// Adam, and what came of it: AdamW, Adamax, NAdam, RAdam.
#include "tapir/optim/adam.h"

#include <cmath>

#include "tapir/optim/options_impl.h"
#include "tapir/optim/update_impl.h"

namespace tapir::optim {

template <class Options>
static void check_moments(const char* name, const Options& o, const Loc& loc) {
    check_not_negative(name, {{"lr", o.lr}, {"eps", o.eps}, {"weight_decay", o.weight_decay}}, loc);
    check_fraction(name, {{"beta1", o.beta1}, {"beta2", o.beta2}}, loc);
}

static void check(const AdamOptions& o, const Loc& loc) { check_moments("Adam", o, loc); }
static void check(const AdamaxOptions& o, const Loc& loc) { check_moments("Adamax", o, loc); }
static void check(const NAdamOptions& o, const Loc& loc) {
    check_moments("NAdam", o, loc);
    check_not_negative("NAdam", {{"momentum_decay", o.momentum_decay}}, loc);
}
static void check(const RAdamOptions& o, const Loc& loc) { check_moments("RAdam", o, loc); }

template <class Options, class Visit>
static void list_moments(Options& o, const Visit& visit) {
    visit("lr", o.lr);
    visit("beta1", o.beta1);
    visit("beta2", o.beta2);
    visit("eps", o.eps);
    visit("weight_decay", o.weight_decay);
}

template <class Visit>
static void list(AdamOptions& o, const Visit& visit) {
    list_moments(o, visit);
    visit("amsgrad", o.amsgrad);
}
template <class Visit>
static void list(AdamaxOptions& o, const Visit& visit) {
    list_moments(o, visit);
}
template <class Visit>
static void list(NAdamOptions& o, const Visit& visit) {
    list_moments(o, visit);
    visit("momentum_decay", o.momentum_decay);
}
template <class Visit>
static void list(RAdamOptions& o, const Visit& visit) {
    list_moments(o, visit);
}

template class GroupsOf<AdamOptions>;
template class GroupsOf<AdamaxOptions>;
template class GroupsOf<NAdamOptions>;
template class GroupsOf<RAdamOptions>;

void Adam::buffer_names(std::size_t group, const char* (&names)[kMaxBuffers]) const {
    names[0] = "exp_avg";
    names[1] = "exp_avg_sq";
    if (of(group).amsgrad) names[2] = "max_exp_avg_sq";
}

void Adam::update(std::size_t group, Slot& slot, Update& work) {
    const AdamOptions& o = of(group);
    const auto t = static_cast<double>(slot.steps);
    const double step_size = o.lr / (1 - std::pow(o.beta1, t));
    const double v_scale = 1 / std::sqrt(1 - std::pow(o.beta2, t));
    const double coupled = decoupled() ? 0 : o.weight_decay, decay = decoupled() ? 1 - o.lr * o.weight_decay : 1;
    work.apply(kernels::AdamStep{step_size, o.beta1, o.beta2, o.eps, coupled, decay, v_scale});
}

void Adamax::buffer_names(std::size_t, const char* (&names)[kMaxBuffers]) const {
    names[0] = "exp_avg";
    names[1] = "exp_inf";
}

void Adamax::update(std::size_t group, Slot& slot, Update& work) {
    const AdamaxOptions& o = of(group);
    const double step_size = o.lr / (1 - std::pow(o.beta1, static_cast<double>(slot.steps)));
    work.apply(kernels::AdamaxStep{step_size, o.beta1, o.beta2, o.eps, o.weight_decay});
}

void NAdam::buffer_names(std::size_t, const char* (&names)[kMaxBuffers]) const {
    names[0] = "exp_avg";
    names[1] = "exp_avg_sq";
}

void NAdam::update(std::size_t group, Slot& slot, Update& work) {
    const NAdamOptions& o = of(group);
    const auto t = static_cast<double>(slot.steps);
    const auto c = [&o](double step) { return o.beta1 * (1 - 0.5 * std::pow(0.96, step * o.momentum_decay)); };
    slot.number *= c(t);
    const double g_size = o.lr * (1 - c(t)) / (1 - slot.number), m_size = o.lr * c(t + 1) / (1 - slot.number * c(t + 1));
    const double v_scale = 1 / std::sqrt(1 - std::pow(o.beta2, t));
    work.apply(kernels::NAdamStep{g_size, m_size, o.beta1, o.beta2, o.eps, o.weight_decay, v_scale});
}

void RAdam::buffer_names(std::size_t, const char* (&names)[kMaxBuffers]) const {
    names[0] = "exp_avg";
    names[1] = "exp_avg_sq";
}

void RAdam::update(std::size_t group, Slot& slot, Update& work) {
    const RAdamOptions& o = of(group);
    const auto t = static_cast<double>(slot.steps);
    const double rest = 1 - std::pow(o.beta2, t), most = 2 / (1 - o.beta2) - 1, length = most - 2 * t * (1 - rest) / rest;
    double step_size = o.lr / (1 - std::pow(o.beta1, t));
    const bool adaptive = length > 5;
    if (adaptive) {
        step_size *= std::sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)) * std::sqrt(rest);
    }
    work.apply(kernels::RAdamStep{step_size, o.beta1, o.beta2, o.eps, o.weight_decay, adaptive});
}

}  // namespace tapir::optim
