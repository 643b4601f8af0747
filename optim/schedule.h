// Schedules change learning rates during training. Names, formulas and defaults are PyTorch's, except OneCycleLR, which
// does not change the momentum (PyTorch's cycle_momentum = False).
//
//     optim::SGD sgd(model.parameters(), {.lr = 0.1});
//     optim::CosineAnnealingLR schedule(sgd, {.T_max = epochs});
//     for (int epoch = 0; epoch < epochs; ++epoch) {
//         train(model, sgd);
//         schedule.step();
//     }
//
// Each sets the rate of every group, from the rate that the group had when the first schedule of its optimizer saw it; the
// optimizer must outlive the schedule. All are functions of the number of steps. A step is an epoch, or a batch, depending on where
// step() is called. If something else changes a rate meanwhile (another schedule that steps too, set_lr(), a plateau), a step multiplies
// it by the factor by which it would have changed the schedule's own rate.
#pragma once

#include <vector>

#include "tapir/core/std_function.h"
#include "tapir/optim/optimizer.h"

namespace tapir::optim {

/// Common base of all schedules.
class Schedule {
 public:
    virtual ~Schedule() = default;
    Schedule(const Schedule&) = delete;
    Schedule& operator=(const Schedule&) = delete;

    /// Makes one step: sets the rates.
    void step(Loc loc = Loc::current());
    std::int64_t steps() const noexcept { return steps_; }
    /// Returns the current rates of all groups.
    std::vector<double> last_lr() const;

    /// Returns the number of steps, the groups' first rates and the current ones.
    virtual NamedTensors state_dict(Loc loc = Loc::current()) const;
    /// Restores a state and sets the rates. Throws ValueError, and changes nothing, for a state of another kind.
    virtual void load_state_dict(const NamedTensors& state, Loc loc = Loc::current());

    /// Internal: returns the rate after this many steps, for a group that began with `base`.
    virtual double at(std::int64_t steps, double base) const = 0;

 protected:
    explicit Schedule(Optimizer& optimizer);
    /// Starts the schedule: sets the rates of step 0.
    void apply(const Loc& loc);
    void set(const std::vector<double>& rates, const Loc& loc);
    std::vector<double> rates_at(std::int64_t steps) const;

 private:
    void see_groups();
    void move(const std::vector<double>& before, std::vector<double> after, const Loc& loc);

    Optimizer& optimizer_;
    std::int64_t steps_ = 0;
};

/// base * f(steps)
class LambdaLR : public Schedule {
 public:
    LambdaLR(Optimizer& optimizer, std::function<double(std::int64_t)> f, Loc loc = Loc::current());
    double at(std::int64_t steps, double base) const override { return base * f_(steps); }

 private:
    std::function<double(std::int64_t)> f_;
};

/// base * f(1) * f(2) * ... * f(steps)
class MultiplicativeLR : public Schedule {
 public:
    MultiplicativeLR(Optimizer& optimizer, std::function<double(std::int64_t)> f, Loc loc = Loc::current());
    double at(std::int64_t steps, double base) const override;

 private:
    std::function<double(std::int64_t)> f_;
    mutable std::vector<double> products_;  // of the first 0, 1, 2, ... factors
};

struct StepLROptions {
    std::int64_t step_size = 1;
    double gamma = 0.1;
};
/// Multiplies by gamma every step_size steps.
class StepLR : public Schedule {
 public:
    StepLR(Optimizer& optimizer, const StepLROptions& options, Loc loc = Loc::current());
    double at(std::int64_t steps, double base) const override;

 private:
    StepLROptions options_;
};

/// Multiplies by gamma at each milestone.
class MultiStepLR : public Schedule {
 public:
    MultiStepLR(Optimizer& optimizer, std::vector<std::int64_t> milestones, double gamma = 0.1, Loc loc = Loc::current());
    double at(std::int64_t steps, double base) const override;

 private:
    std::vector<std::int64_t> milestones_;
    double gamma_;
};

/// base * gamma^steps
class ExponentialLR : public Schedule {
 public:
    ExponentialLR(Optimizer& optimizer, double gamma, Loc loc = Loc::current());
    double at(std::int64_t steps, double base) const override;

 private:
    double gamma_;
};

struct PolynomialLROptions {
    std::int64_t total_iters = 5;
    double power = 1;
};
/// base * (1 - steps / total_iters)^power, then 0
class PolynomialLR : public Schedule {
 public:
    explicit PolynomialLR(Optimizer& optimizer, const PolynomialLROptions& options = {}, Loc loc = Loc::current());
    double at(std::int64_t steps, double base) const override;

 private:
    PolynomialLROptions options_;
};

struct LinearLROptions {
    double start_factor = 1.0 / 3;
    double end_factor = 1;
    std::int64_t total_iters = 5;
};
/// Goes from start_factor * base to end_factor * base linearly, over total_iters steps: a warm-up.
class LinearLR : public Schedule {
 public:
    explicit LinearLR(Optimizer& optimizer, const LinearLROptions& options = {}, Loc loc = Loc::current());
    double at(std::int64_t steps, double base) const override;

 private:
    LinearLROptions options_;
};

struct ConstantLROptions {
    double factor = 1.0 / 3;
    std::int64_t total_iters = 5;
};
/// factor * base for total_iters steps, then base.
class ConstantLR : public Schedule {
 public:
    explicit ConstantLR(Optimizer& optimizer, const ConstantLROptions& options = {}, Loc loc = Loc::current());
    double at(std::int64_t steps, double base) const override { return steps < options_.total_iters ? base * options_.factor : base; }

 private:
    ConstantLROptions options_;
};

struct CosineAnnealingLROptions {
    std::int64_t T_max = 10;
    double eta_min = 0;
};
/// eta_min + (base - eta_min) (1 + cos(pi steps / T_max)) / 2 (Loshchilov and Hutter 2017, eq. 5, without restarts)
class CosineAnnealingLR : public Schedule {
 public:
    CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options, Loc loc = Loc::current());
    double at(std::int64_t steps, double base) const override;

 private:
    CosineAnnealingLROptions options_;
};

struct WarmRestartsOptions {
    std::int64_t T_0 = 10;    ///< steps of the first round
    std::int64_t T_mult = 1;  ///< factor of each round's length over the one before
    double eta_min = 0;
};
/// Cosine annealing in rounds that each begin with base again (SGDR; Loshchilov and Hutter 2017).
class CosineAnnealingWarmRestarts : public Schedule {
 public:
    CosineAnnealingWarmRestarts(Optimizer& optimizer, const WarmRestartsOptions& options, Loc loc = Loc::current());
    double at(std::int64_t steps, double base) const override;

 private:
    WarmRestartsOptions options_;
};

struct OneCycleLROptions {
    double max_lr = 0.1;
    std::int64_t total_steps = 100;
    double pct_start = 0.3;         ///< the fraction of the steps in which the rate rises
    bool linear = false;            ///< lines instead of cosines
    double div_factor = 25;         ///< the rate begins at max_lr / div_factor
    double final_div_factor = 1e4;  ///< the rate ends at its initial value / final_div_factor
    bool three_phase = false;       ///< goes down to the initial rate as it went up, and only then to the final one
};
/// Goes up to max_lr and down to almost nothing (Smith and Topin 2019). Changes only the rate: momentum stays. The last rate is that of
/// step total_steps - 1; step total_steps keeps it, and a step beyond throws ValueError.
class OneCycleLR : public Schedule {
 public:
    OneCycleLR(Optimizer& optimizer, const OneCycleLROptions& options, Loc loc = Loc::current());
    double at(std::int64_t steps, double base) const override;

 private:
    OneCycleLROptions options_;
};

enum class CyclicMode : std::uint8_t {
    triangular,   ///< all cycles alike
    triangular2,  ///< each half as high as the one before
    exp_range,    ///< the height is multiplied by gamma^steps
};
struct CyclicLROptions {
    double base_lr = 1e-3, max_lr = 1e-2;
    std::int64_t step_size_up = 2000;
    std::int64_t step_size_down = 0;  ///< 0: the same as step_size_up
    CyclicMode mode = CyclicMode::triangular;
    double gamma = 1;
};
/// Goes from base_lr up to max_lr and down again, linearly, over and over (Smith 2017, "Cyclical learning rates for training neural
/// networks"). Changes only the rate: momentum stays.
class CyclicLR : public Schedule {
 public:
    CyclicLR(Optimizer& optimizer, const CyclicLROptions& options, Loc loc = Loc::current());
    double at(std::int64_t steps, double base) const override;

 private:
    CyclicLROptions options_;
};

/// Applies several schedules of one optimizer in turn, each to the rate of the one before: the product of their factors. They must outlive it.
/// The rate of a step is computed from the base rate, schedule by schedule, by their closed forms. PyTorch's ChainedScheduler lets
/// each take its step from the rate that the others have left. This is the same for factors, but differs if a schedule has a
/// floor: ExponentialLR(0.9) and CosineAnnealingLR(10, eta_min 0.05) from 0.1 give .1, .08902, .07804, .06818, ... here, and
/// .1, .08902, .07793, .06767, ... there.
class ChainedLR : public Schedule {
 public:
    ChainedLR(Optimizer& optimizer, std::vector<const Schedule*> schedules, Loc loc = Loc::current());
    double at(std::int64_t steps, double base) const override;

 private:
    std::vector<const Schedule*> schedules_;
};

/// Runs one schedule after the other: number i + 1 begins, from its step 0, at milestones[i]. They must outlive it.
///
///     optim::LinearLR warmup(sgd, {.total_iters = 5});
///     optim::CosineAnnealingLR cosine(sgd, {.T_max = 95});
///     optim::SequentialLR schedule(sgd, {&warmup, &cosine}, {5});
class SequentialLR : public Schedule {
 public:
    SequentialLR(Optimizer& optimizer, std::vector<const Schedule*> schedules, std::vector<std::int64_t> milestones, Loc loc = Loc::current());
    double at(std::int64_t steps, double base) const override;

 private:
    std::vector<const Schedule*> schedules_;
    std::vector<std::int64_t> milestones_;
};

struct PlateauOptions {
    bool is_max = false;  ///< true: the metric should rise
    double factor = 0.1;
    std::int64_t patience = 10;  ///< steps without an improvement that are tolerated
    double threshold = 1e-4;
    bool absolute_threshold = false;  ///< else relative to the best
    std::int64_t cooldown = 0;        ///< steps after a reduction in which steps without improvement are not counted
    double min_lr = 0;
    double eps = 1e-8;  ///< smaller changes of the rate are skipped
};
/// Multiplies the rate by factor when a metric has not improved for `patience` steps.
class ReduceLROnPlateau {
 public:
    explicit ReduceLROnPlateau(Optimizer& optimizer, const PlateauOptions& options = {}, Loc loc = Loc::current());
    /// Takes this step's metric; nan counts as no improvement.
    void step(double metric, Loc loc = Loc::current());
    std::vector<double> last_lr() const;

    NamedTensors state_dict(Loc loc = Loc::current()) const;
    void load_state_dict(const NamedTensors& state, Loc loc = Loc::current());

 private:
    Optimizer& optimizer_;
    PlateauOptions options_;
    double best_;
    std::int64_t bad_steps_ = 0, cooling_ = 0;
};

}  // namespace tapir::optim
