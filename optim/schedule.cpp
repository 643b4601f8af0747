#include "tapir/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "tapir/core/fail_impl.h"
#include "tapir/core/state_reader_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/make/make.h"
#include "tapir/optim/rule_impl.h"

namespace tapir::optim {
namespace {

using std::int64_t;

Tensor integer(int64_t value) { return full({}, value, {int64, cpu}); }

void check_gamma(const char* name, double gamma, const Loc& loc) {
    if (!(gamma >= 0)) fail<ValueError>(loc, "{}: the factor must not be negative, got {}", name, gamma);
    if (std::isinf(gamma)) fail<ValueError>(loc, "{}: the factor must be finite", name);
}

void check_steps(const char* name, const char* what, int64_t steps, const Loc& loc) {
    if (steps < 1) fail<ValueError>(loc, "{}: {} must be at least 1, got {}", name, what, steps);
}

void check_defined(const char* name, const std::vector<const Schedule*>& schedules, const Loc& loc) {
    for (const Schedule* schedule : schedules) {
        if (!schedule) fail<ValueError>(loc, "{}: a schedule is null", name);
    }
}

// Returns half a cosine from `from` to `to`, at `part` of the way.
double cosine(double from, double to, double part) { return to + (from - to) * (1 + std::cos(std::numbers::pi * part)) / 2; }

std::vector<double> rates(const Optimizer& optimizer) {
    std::vector<double> result;
    for (std::size_t group = 0; group < optimizer.group_count(); ++group) result.push_back(optimizer.lr(group));
    return result;
}

}  // namespace

// --- What all share ------------------------------------------------------------------------------------------------------

Schedule::Schedule(Optimizer& optimizer) : optimizer_(optimizer) { see_groups(); }

// Groups may be added at any time.
void Schedule::see_groups() {
    std::vector<double>& initial = optimizer_.initial_lr_;
    while (initial.size() < optimizer_.group_count()) initial.push_back(optimizer_.lr(initial.size()));
}

std::vector<double> Schedule::rates_at(int64_t steps) const {
    std::vector<double> result;
    for (const double base : optimizer_.initial_lr_) result.push_back(at(steps, base));
    return result;
}

void Schedule::apply(const Loc& loc) {
    see_groups();
    move(optimizer_.initial_lr_, rates_at(0), loc);
}

void Schedule::set(const std::vector<double>& fresh, const Loc& loc) {
    for (const double lr : fresh) check_rate("schedule", "a learning rate", lr, loc);  // checks all before it sets the first
    for (std::size_t group = 0; group < fresh.size(); ++group) optimizer_.set_lr(fresh[group], group, loc);
}

// If the rate was changed elsewhere, multiplies it by this schedule's factor. Otherwise sets it directly, so that no rounding adds up.
void Schedule::move(const std::vector<double>& before, std::vector<double> after, const Loc& loc) {
    for (std::size_t group = 0; group < after.size(); ++group) {
        const double now = optimizer_.lr(group);
        if (now != before[group] && before[group] != 0) after[group] = now * (after[group] / before[group]);
    }
    set(after, loc);
}

// The rate would change while the graph is made, and then never again.
static void refuse_traced(const Loc& loc) {
    if (detail::is_tracing()) {
        fail<TapeError>(loc, "step: a graph holds the learning rate as a constant, which no schedule changes: call this outside of what is traced");
    }
}

void Schedule::step(Loc loc) {
    refuse_traced(loc);
    const CallerScope caller(loc);  // whom at() may have something to tell
    see_groups();
    move(rates_at(steps_), rates_at(steps_ + 1), loc);
    ++steps_;
}

std::vector<double> Schedule::last_lr() const { return rates(optimizer_); }

NamedTensors Schedule::state_dict(Loc loc) const {
    const CallerScope caller(loc);
    const TensorOptions options(float64, cpu);
    return {{"steps", integer(steps_)}, {"base_lr", tensor(optimizer_.initial_lr_, options)}, {"lr", tensor(last_lr(), options)}};
}

void Schedule::load_state_dict(const NamedTensors& state, Loc loc) {
    const CallerScope caller(loc);
    StateReader reader("schedule", state, loc);
    const int64_t steps = reader.count("steps");
    const std::vector<double> base = reader.numbers("base_lr"), lr = reader.numbers("lr");
    reader.finish(/*allow_more=*/true);
    const std::size_t groups = optimizer_.group_count();
    if (base.size() != groups || lr.size() != groups) {
        fail<ValueError>(loc, "load_state_dict: a schedule's state of {} groups after {} steps; the optimizer has {} groups", base.size(), steps,
                         groups);
    }
    for (std::size_t group = 0; group < groups; ++group) {
        check_rate("load_state_dict", "a schedule's learning rate", lr[group], loc);
        at(steps, base[group]);  // throws for steps that this schedule does not have
    }
    optimizer_.initial_lr_ = base;
    steps_ = steps;
    set(lr, loc);
}

// --- The schedules -------------------------------------------------------------------------------------------------------

LambdaLR::LambdaLR(Optimizer& optimizer, std::function<double(int64_t)> f, Loc loc) : Schedule(optimizer), f_(std::move(f)) {
    if (!f_) fail<ValueError>(loc, "LambdaLR: the function is empty");
    apply(loc);
}

MultiplicativeLR::MultiplicativeLR(Optimizer& optimizer, std::function<double(int64_t)> f, Loc loc)
    : Schedule(optimizer), f_(std::move(f)), products_{1} {
    if (!f_) fail<ValueError>(loc, "MultiplicativeLR: the function is empty");
    apply(loc);
}
double MultiplicativeLR::at(int64_t steps, double base) const {
    while (static_cast<int64_t>(products_.size()) <= steps) {
        products_.push_back(products_.back() * f_(static_cast<int64_t>(products_.size())));
    }
    return base * products_[static_cast<std::size_t>(steps)];
}

StepLR::StepLR(Optimizer& optimizer, const StepLROptions& options, Loc loc) : Schedule(optimizer), options_(options) {
    const CallerScope caller(loc);
    check_steps("StepLR", "step_size", options.step_size, loc);
    check_gamma("StepLR", options.gamma, loc);
}
double StepLR::at(int64_t steps, double base) const { return base * std::pow(options_.gamma, static_cast<double>(steps / options_.step_size)); }

MultiStepLR::MultiStepLR(Optimizer& optimizer, std::vector<int64_t> milestones, double gamma, Loc loc)
    : Schedule(optimizer), milestones_(std::move(milestones)), gamma_(gamma) {
    const CallerScope caller(loc);
    check_gamma("MultiStepLR", gamma, loc);
    std::sort(milestones_.begin(), milestones_.end());
    milestones_.erase(milestones_.begin(), std::lower_bound(milestones_.begin(), milestones_.end(), 0));  // they match no step
    apply(loc);                                                                                           // one may be 0
}
double MultiStepLR::at(int64_t steps, double base) const {
    const auto passed = std::upper_bound(milestones_.begin(), milestones_.end(), steps) - milestones_.begin();
    return base * std::pow(gamma_, static_cast<double>(passed));
}

ExponentialLR::ExponentialLR(Optimizer& optimizer, double gamma, Loc loc) : Schedule(optimizer), gamma_(gamma) {
    const CallerScope caller(loc);
    check_gamma("ExponentialLR", gamma, loc);
}
double ExponentialLR::at(int64_t steps, double base) const { return base * std::pow(gamma_, static_cast<double>(steps)); }

PolynomialLR::PolynomialLR(Optimizer& optimizer, const PolynomialLROptions& options, Loc loc) : Schedule(optimizer), options_(options) {
    const CallerScope caller(loc);
    check_steps("PolynomialLR", "total_iters", options.total_iters, loc);
    if (!(options.power >= 0)) fail<ValueError>(loc, "PolynomialLR: power must not be negative, got {}", options.power);
}
double PolynomialLR::at(int64_t steps, double base) const {
    const double done = static_cast<double>(std::min(steps, options_.total_iters)) / static_cast<double>(options_.total_iters);
    return base * std::pow(1 - done, options_.power);
}

LinearLR::LinearLR(Optimizer& optimizer, const LinearLROptions& options, Loc loc) : Schedule(optimizer), options_(options) {
    const CallerScope caller(loc);
    check_steps("LinearLR", "total_iters", options.total_iters, loc);
    if (!(options.start_factor > 0 && options.start_factor <= 1) || !(options.end_factor >= 0 && options.end_factor <= 1)) {
        fail<ValueError>(loc, "LinearLR: start_factor must be in (0, 1] and end_factor in [0, 1], got {} and {}", options.start_factor,
                         options.end_factor);
    }
    apply(loc);
}
double LinearLR::at(int64_t steps, double base) const {
    const double done = static_cast<double>(std::min(steps, options_.total_iters)) / static_cast<double>(options_.total_iters);
    return base * (options_.start_factor + (options_.end_factor - options_.start_factor) * done);
}

ConstantLR::ConstantLR(Optimizer& optimizer, const ConstantLROptions& options, Loc loc) : Schedule(optimizer), options_(options) {
    const CallerScope caller(loc);
    if (!(options.factor >= 0 && options.factor <= 1)) fail<ValueError>(loc, "ConstantLR: factor must be in [0, 1], got {}", options.factor);
    apply(loc);
}

CosineAnnealingLR::CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options, Loc loc)
    : Schedule(optimizer), options_(options) {
    const CallerScope caller(loc);
    check_steps("CosineAnnealingLR", "T_max", options.T_max, loc);
    check_rate("CosineAnnealingLR", "eta_min", options.eta_min, loc);
}
double CosineAnnealingLR::at(int64_t steps, double base) const {
    return cosine(base, options_.eta_min, static_cast<double>(steps) / static_cast<double>(options_.T_max));
}

CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(Optimizer& optimizer, const WarmRestartsOptions& options, Loc loc)
    : Schedule(optimizer), options_(options) {
    const CallerScope caller(loc);
    check_steps("CosineAnnealingWarmRestarts", "T_0", options.T_0, loc);
    check_steps("CosineAnnealingWarmRestarts", "T_mult", options.T_mult, loc);
    check_rate("CosineAnnealingWarmRestarts", "eta_min", options.eta_min, loc);
}
double CosineAnnealingWarmRestarts::at(int64_t steps, double base) const {
    int64_t length = options_.T_0;
    if (options_.T_mult == 1) {
        steps %= length;
    } else {
        while (steps >= length) {
            steps -= length;
            if (__builtin_mul_overflow(length, options_.T_mult, &length)) length = std::numeric_limits<int64_t>::max();
        }
    }
    return cosine(base, options_.eta_min, static_cast<double>(steps) / static_cast<double>(length));
}

CyclicLR::CyclicLR(Optimizer& optimizer, const CyclicLROptions& options, Loc loc) : Schedule(optimizer), options_(options) {
    const CallerScope caller(loc);
    check_steps("CyclicLR", "step_size_up", options.step_size_up, loc);
    if (options.step_size_down == 0) options_.step_size_down = options.step_size_up;
    check_steps("CyclicLR", "step_size_down", options_.step_size_down, loc);
    if (!(options.base_lr >= 0) || !(options.max_lr >= 0) || !(options.gamma >= 0)) {
        fail<ValueError>(loc, "CyclicLR: base_lr {}, max_lr {} and gamma {} must not be negative", options.base_lr, options.max_lr, options.gamma);
    }
    check_rate("CyclicLR", "base_lr", options.base_lr, loc);
    check_rate("CyclicLR", "max_lr", options.max_lr, loc);
    check_gamma("CyclicLR", options.gamma, loc);
    apply(loc);
}
double CyclicLR::at(int64_t steps, double) const {
    int64_t length;
    if (__builtin_add_overflow(options_.step_size_up, options_.step_size_down, &length)) length = std::numeric_limits<int64_t>::max();
    const int64_t cycle = steps / length, step = steps % length;
    const double up = static_cast<double>(options_.step_size_up), down = static_cast<double>(options_.step_size_down);
    const double at = static_cast<double>(step), part = at <= up ? at / up : (up + down - at) / down;
    double height = options_.max_lr - options_.base_lr;
    if (options_.mode == CyclicMode::triangular2) height *= std::pow(0.5, static_cast<double>(cycle));
    if (options_.mode == CyclicMode::exp_range) height *= std::pow(options_.gamma, static_cast<double>(steps));
    return options_.base_lr + height * part;
}

OneCycleLR::OneCycleLR(Optimizer& optimizer, const OneCycleLROptions& options, Loc loc) : Schedule(optimizer), options_(options) {
    const CallerScope caller(loc);
    check_steps("OneCycleLR", "total_steps", options.total_steps, loc);
    if (!(options.pct_start >= 0 && options.pct_start <= 1) || !(options.max_lr >= 0) || !(options.div_factor > 0) ||
        !(options.final_div_factor > 0)) {
        fail<ValueError>(loc,
                         "OneCycleLR: pct_start {} must be in [0, 1], max_lr {} not negative, div_factor {} and final_div_factor {} "
                         "above 0",
                         options.pct_start, options.max_lr, options.div_factor, options.final_div_factor);
    }
    check_rate("OneCycleLR", "max_lr", options.max_lr, loc);
    apply(loc);
}
double OneCycleLR::at(int64_t steps, double) const {
    if (steps > options_.total_steps) {
        fail<ValueError>(Loc{},
                         "OneCycleLR: step {} is beyond total_steps {}; raise total_steps to the number of calls of step(), epochs * "
                         "batches, or call step() less often",
                         steps, options_.total_steps);
    }
    const double begin = options_.max_lr / options_.div_factor, end = begin / options_.final_div_factor;
    const double total = static_cast<double>(options_.total_steps), rise = options_.pct_start * total - 1;
    const double fall = options_.three_phase ? 2 * options_.pct_start * total - 2 : total - 1;
    const auto between = [&](double from, double to, double first, double last) {
        const double part = last > first ? std::min((static_cast<double>(steps) - first) / (last - first), 1.0) : 1;
        return options_.linear ? from + (to - from) * part : cosine(from, to, part);
    };
    if (static_cast<double>(steps) <= rise) return between(begin, options_.max_lr, 0, rise);
    if (!options_.three_phase) return between(options_.max_lr, end, rise, fall);
    if (static_cast<double>(steps) <= fall) return between(options_.max_lr, begin, rise, fall);
    return between(begin, end, fall, total - 1);
}

ChainedLR::ChainedLR(Optimizer& optimizer, std::vector<const Schedule*> schedules, Loc loc) : Schedule(optimizer), schedules_(std::move(schedules)) {
    const CallerScope caller(loc);
    if (schedules_.empty()) fail<ValueError>(loc, "ChainedLR: needs at least one schedule");
    check_defined("ChainedLR", schedules_, loc);
    set(rates_at(0), loc);  // discards what the schedules set when they were made
}
double ChainedLR::at(int64_t steps, double base) const {
    double lr = base;
    for (const Schedule* schedule : schedules_) lr = schedule->at(steps, lr);
    return lr;
}

SequentialLR::SequentialLR(Optimizer& optimizer, std::vector<const Schedule*> schedules, std::vector<int64_t> milestones, Loc loc)
    : Schedule(optimizer), schedules_(std::move(schedules)), milestones_(std::move(milestones)) {
    const CallerScope caller(loc);
    if (schedules_.empty() || milestones_.size() + 1 != schedules_.size()) {
        fail<ValueError>(loc, "SequentialLR: {} schedules need {} milestones, got {}", schedules_.size(),
                         schedules_.empty() ? 0 : schedules_.size() - 1, milestones_.size());
    }
    check_defined("SequentialLR", schedules_, loc);
    if (!std::is_sorted(milestones_.begin(), milestones_.end())) fail<ValueError>(loc, "SequentialLR: the milestones must rise");
    set(rates_at(0), loc);  // discards what the schedules set when they were made
}
double SequentialLR::at(int64_t steps, double base) const {
    const auto passed = static_cast<std::size_t>(std::upper_bound(milestones_.begin(), milestones_.end(), steps) - milestones_.begin());
    return schedules_[passed]->at(steps - (passed == 0 ? 0 : milestones_[passed - 1]), base);
}

// --- Plateaus ------------------------------------------------------------------------------------------------------------

ReduceLROnPlateau::ReduceLROnPlateau(Optimizer& optimizer, const PlateauOptions& options, Loc loc)
    : optimizer_(optimizer), options_(options),
      best_(options.is_max ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity()) {
    const CallerScope caller(loc);
    if (!(options.factor >= 0 && options.factor < 1)) {
        fail<ValueError>(loc, "ReduceLROnPlateau: factor must be in [0, 1), got {}", options.factor);
    }
    check_rate("ReduceLROnPlateau", "min_lr", options.min_lr, loc);
    if (std::isnan(options.threshold) || std::isnan(options.eps)) {
        fail<ValueError>(loc, "ReduceLROnPlateau: threshold {} and eps {} must be numbers", options.threshold, options.eps);
    }
}

void ReduceLROnPlateau::step(double metric, Loc loc) {
    const CallerScope caller(loc);
    refuse_traced(loc);
    const double margin = options_.absolute_threshold ? options_.threshold : std::abs(best_) * options_.threshold;
    const bool is_first = std::isinf(best_);
    const bool is_better = options_.is_max ? metric > (is_first ? best_ : best_ + margin) : metric < (is_first ? best_ : best_ - margin);
    if (is_better) {
        best_ = metric;
        bad_steps_ = 0;
    } else {
        ++bad_steps_;
    }
    if (cooling_ > 0) {
        --cooling_;
        bad_steps_ = 0;
    }
    if (bad_steps_ <= options_.patience) return;
    for (std::size_t group = 0; group < optimizer_.group_count(); ++group) {
        const double before = optimizer_.lr(group), after = std::max(before * options_.factor, options_.min_lr);
        if (before - after > options_.eps) optimizer_.set_lr(after, group, loc);
    }
    cooling_ = options_.cooldown;
    bad_steps_ = 0;
}

std::vector<double> ReduceLROnPlateau::last_lr() const { return rates(optimizer_); }

NamedTensors ReduceLROnPlateau::state_dict(Loc loc) const {
    const CallerScope caller(loc);
    return {{"best", number(best_)}, {"bad_steps", integer(bad_steps_)}, {"cooling", integer(cooling_)}};
}

void ReduceLROnPlateau::load_state_dict(const NamedTensors& state, Loc loc) {
    const CallerScope caller(loc);
    StateReader reader("ReduceLROnPlateau", state, loc);
    const double best = reader.number("best");
    const int64_t bad_steps = reader.count("bad_steps"), cooling = reader.count("cooling");
    reader.finish();
    best_ = best;
    bad_steps_ = bad_steps;
    cooling_ = cooling;
}

}  // namespace tapir::optim
