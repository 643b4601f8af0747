// The numbers that optimizers, schedules, clipping, averages and GradScaler are made with: those that have no meaning, or would make the
// weights nan, are refused where they are given, and where they are set later by the next step, which changes nothing then.
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "../fails.h"
#include "tapir/optim/rule_impl.h"
#include "tapir/tapir.h"

using namespace tapir;
using namespace tapir::optim;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

Tensor parameter() {
    Tensor p = ones({2}).requires_grad_();
    p.set_grad(full({2}, 0.5));
    return p;
}

bool is_one_of(const std::string& name, const std::vector<std::string>& names) {
    for (const std::string& other : names) {
        if (name == other) return true;
    }
    return false;
}

// Every number of an optimizer's options in turn is nan, infinite and negative: made so, and set later.
template <class O, class Options>
void check_options(const std::vector<std::string>& infinite = {}, const std::vector<std::string>& negative = {}) {
    for (std::size_t i = 0; i < Options::rule.option_count; ++i) {
        const OptimizerOption& option = Options::rule.options[i];
        for (const double value : {kNan, kInf, -kInf, -1.0}) {
            Options bad;
            if (option.is_flag || !option.set(&bad, value)) continue;  // of another type
            const std::string name = option.name;
            if (option.get(&bad) != value && !std::isnan(value)) continue;
            if (std::isnan(value) && !std::isnan(option.get(&bad))) continue;
            INFO(Options::rule.name << ": " << name << " = " << value);
            const bool is_taken = value == kInf ? is_one_of(name, infinite)
                : std::isnan(value)             ? false
                                                : is_one_of(name, negative) && std::isfinite(value);
            if (value == -kInf && is_one_of(name, infinite) && is_one_of(name, negative)) continue;
            const Tensor p = parameter();
            const auto is_refused = [&](const char* where, const std::function<void()>& run) {
                try {
                    run();
                    CHECK(is_taken);
                } catch (const ValueError& error) {
                    INFO(where << ": " << error.what());
                    CHECK(!is_taken);
                    CHECK(std::string(error.what()).find("optimizer_numbers_test.cpp:") == 0);
                    CHECK(std::string(error.what()).find(std::string(Options::rule.name) + ": ") != std::string::npos);
                    CHECK(std::string(error.what()).find(name) != std::string::npos);
                }
            };
            is_refused("made so", [&] { O made({p}, bad); });
            O optimizer({p});
            optimizer.options() = bad;
            if constexpr (std::is_same_v<O, LBFGS>) {
                is_refused("set later", [&] { optimizer.step([] { return tensor(1.0); }); });
            } else {
                is_refused("set later", [&] { optimizer.step(); });
            }
            if (!is_taken) CHECK(p.to_vector<float>() == std::vector<float>{1, 1});
        }
    }
}

}  // namespace

TEST_CASE("every number of an optimizer's options has its domain", "[optim]") {
    check_options<SGD, SGDOptions>({}, {"dampening"});
    check_options<Adam, AdamOptions>();
    check_options<AdamW, AdamWOptions>();
    check_options<Adamax, AdamaxOptions>();
    check_options<NAdam, NAdamOptions>();
    check_options<RAdam, RAdamOptions>();
    check_options<Adagrad, AdagradOptions>();
    check_options<AdagradDA, AdagradDAOptions>();
    check_options<Adadelta, AdadeltaOptions>();
    check_options<RMSprop, RMSpropOptions>();
    check_options<Rprop, RpropOptions>({"step_size_max"});
    check_options<ASGD, ASGDOptions>({"t0"}, {"alpha", "t0"});
    check_options<Lion, LionOptions>();
    check_options<LBFGS, LBFGSOptions>({"tolerance_grad", "tolerance_change"}, {"max_eval"});
}

TEST_CASE("options that exclude each other", "[optim]") {
    const Tensor p = parameter();
    FAILS(ValueError, "SGD: nesterov needs momentum above 0", SGD({p}, {.nesterov = true}));
    FAILS(ValueError, "SGD: nesterov needs momentum above 0", SGD({p}, {.momentum = 0.9, .dampening = 0.1, .nesterov = true}));
    FAILS(ValueError, "Rprop: eta_minus must be in (0, 1)", Rprop({p}, {.eta_minus = 1}));
    FAILS(ValueError, "Rprop: eta_minus must be in (0, 1)", Rprop({p}, {.eta_plus = 1}));
    FAILS(ValueError, "Adam: beta1 must be in [0, 1), got 1", Adam({p}, {.betas = {1, 0.999}}));
    FAILS(ValueError, "Adam: beta2 must be in [0, 1), got -0.1", Adam({p}, {.betas = {0.9, -0.1}}));
    FAILS(ValueError, "LBFGS: history_size must be at least 1, got 0", LBFGS({p}, {.history_size = 0}));
    FAILS(ValueError, "LBFGS: max_iter must be at least 1, got 0", LBFGS({p}, {.max_iter = 0}));
    SGD ok({p}, {.lr = 0, .momentum = 1.5, .dampening = -1});  // as PyTorch
    ok.step();
    Adadelta all({p}, {.rho = 1});
    all.step();
}

TEST_CASE("learning rates that are set", "[optim]") {
    const Tensor p = parameter(), q = parameter();
    SGD sgd({p}, {.lr = 0.1});
    sgd.add_param_group({q}, {.lr = 0.2});
    for (const double lr : {kNan, kInf, -1.0, -kInf}) {
        FAILS(ValueError, "set_lr: the learning rate must be 0 or a finite number above it, got", sgd.set_lr(lr));
        FAILS(ValueError, "set_lr: the learning rate", sgd.set_lr(lr, 1));
    }
    FAILS(ValueError, "SGD: lr must be finite, got inf", sgd.add_param_group({parameter()}, {.lr = kInf}));
    CHECK(sgd.lr(0) == 0.1);
    CHECK(sgd.lr(1) == 0.2);
    sgd.options(1).lr = kNan;  // found by the step, before the first group's is made
    FAILS(ValueError, "SGD: lr must not be negative, got nan", sgd.step());
    CHECK(p.to_vector<float>() == std::vector<float>{1, 1});
    NamedTensors state = SGD({p}, {.lr = 0.1}).state_dict();
    for (NamedTensor& t : state) {
        if (t.name == "0.lr") t.tensor = tensor(kInf, float64);
    }
    SGD one({p}, {.lr = 0.1});
    FAILS(ValueError, "lr must be finite, got inf", one.load_state_dict(state));
    CHECK(one.lr() == 0.1);
}

TEST_CASE("numbers of schedules", "[optim]") {
    SGD sgd({parameter()}, {.lr = 0.1});
    sgd.add_param_group({parameter()}, {.lr = 0.2});
    for (const std::int64_t n : {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
        FAILS(ValueError, "StepLR: step_size must be at least 1", StepLR(sgd, {.step_size = n}));
        FAILS(ValueError, "PolynomialLR: total_iters must be at least 1", PolynomialLR(sgd, {.total_iters = n}));
        FAILS(ValueError, "LinearLR: total_iters must be at least 1", LinearLR(sgd, {.total_iters = n}));
        FAILS(ValueError, "CosineAnnealingLR: T_max must be at least 1", CosineAnnealingLR(sgd, {.T_max = n}));
        FAILS(ValueError, "CosineAnnealingWarmRestarts: T_0 must be at least 1", CosineAnnealingWarmRestarts(sgd, {.T_0 = n}));
        FAILS(ValueError, "CosineAnnealingWarmRestarts: T_mult must be", CosineAnnealingWarmRestarts(sgd, {.T_mult = n}));
        FAILS(ValueError, "CyclicLR: step_size_up must be at least 1", CyclicLR(sgd, {.step_size_up = n}));
        FAILS(ValueError, "OneCycleLR: total_steps must be at least 1", OneCycleLR(sgd, {.total_steps = n}));
    }
    for (const double bad : {kNan, kInf, -1.0}) {
        FAILS(ValueError, "StepLR: the factor must", StepLR(sgd, {.gamma = bad}));
        FAILS(ValueError, "MultiStepLR: the factor must", MultiStepLR(sgd, {1}, bad));
        FAILS(ValueError, "ExponentialLR: the factor must", ExponentialLR(sgd, bad));
        FAILS(ValueError, "ConstantLR: factor must be in [0, 1]", ConstantLR(sgd, {.factor = bad}));
        FAILS(ValueError, "LinearLR: start_factor must be in (0, 1]", LinearLR(sgd, {.start_factor = bad}));
        FAILS(ValueError, "LinearLR: start_factor must be in (0, 1]", LinearLR(sgd, {.end_factor = bad}));
        FAILS(ValueError, "CosineAnnealingLR: eta_min must be 0 or a finite number", CosineAnnealingLR(sgd, {.eta_min = bad}));
        FAILS(ValueError, "CosineAnnealingWarmRestarts: eta_min must", CosineAnnealingWarmRestarts(sgd, {.eta_min = bad}));
        FAILS(ValueError, "CyclicLR: ", CyclicLR(sgd, {.base_lr = bad}));
        FAILS(ValueError, "CyclicLR: ", CyclicLR(sgd, {.max_lr = bad}));
        FAILS(ValueError, "CyclicLR: ", CyclicLR(sgd, {.gamma = bad}));
        FAILS(ValueError, "OneCycleLR: ", OneCycleLR(sgd, {.max_lr = bad}));
        FAILS(ValueError, "OneCycleLR: pct_start", OneCycleLR(sgd, {.pct_start = bad}));
        FAILS(ValueError, "ReduceLROnPlateau: factor must be in [0, 1)", ReduceLROnPlateau(sgd, {.factor = bad}));
        FAILS(ValueError, "ReduceLROnPlateau: min_lr must", ReduceLROnPlateau(sgd, {.min_lr = bad}));
    }
    FAILS(ValueError, "ConstantLR: factor must be in [0, 1], got 2", ConstantLR(sgd, {.factor = 2}));
    FAILS(ValueError, "PolynomialLR: power must not be negative, got -1", PolynomialLR(sgd, {.power = -1}));
    FAILS(ValueError, "PolynomialLR: power must not be negative, got nan", PolynomialLR(sgd, {.power = kNan}));
    FAILS(ValueError, "OneCycleLR: ", OneCycleLR(sgd, {.div_factor = 0}));
    FAILS(ValueError, "OneCycleLR: ", OneCycleLR(sgd, {.div_factor = kNan}));
    FAILS(ValueError, "OneCycleLR: ", OneCycleLR(sgd, {.final_div_factor = -1}));
    FAILS(ValueError, "ReduceLROnPlateau: threshold nan", ReduceLROnPlateau(sgd, {.threshold = kNan}));
    FAILS(ValueError, "ReduceLROnPlateau: threshold", ReduceLROnPlateau(sgd, {.eps = kNan}));
    CHECK(sgd.lr(0) == 0.1);  // none of them has set a rate
    CHECK(sgd.lr(1) == 0.2);
}

TEST_CASE("milestones in any order, at 0, and below it as in PyTorch", "[optim]") {
    const auto rates = [](const std::vector<std::int64_t>& milestones) {
        SGD sgd({parameter()}, {.lr = 0.1});
        MultiStepLR schedule(sgd, milestones, 0.5);
        std::vector<double> result{sgd.lr()};
        for (int i = 0; i < 3; ++i) {
            schedule.step();
            result.push_back(sgd.lr());
        }
        return result;
    };
    CHECK(rates({0, 2}) == std::vector<double>{0.05, 0.05, 0.025, 0.025});
    CHECK(rates({3, 1}) == std::vector<double>{0.1, 0.05, 0.05, 0.025});
    CHECK(rates({-1, 1}) == std::vector<double>{0.1, 0.05, 0.05, 0.05});
    CHECK(rates({1, 1}) == std::vector<double>{0.1, 0.025, 0.025, 0.025});
    CHECK(rates({}) == std::vector<double>{0.1, 0.1, 0.1, 0.1});
}

TEST_CASE("steps of schedules that have no rate to give", "[optim]") {
    SGD sgd({parameter()}, {.lr = 0.1});
    sgd.add_param_group({parameter()}, {.lr = 0.2});
    FAILS(ValueError, "schedule: a learning rate must be 0 or a finite number above it, got nan", LambdaLR(sgd, [](std::int64_t) { return kNan; }));
    LambdaLR later(sgd, [](std::int64_t step) { return step < 1 ? 1.0 : -1.0; });
    FAILS(ValueError, "schedule: a learning rate must be 0 or a finite number above it, got -0.1", later.step());
    CHECK(later.steps() == 0);
    ExponentialLR growing(sgd, 1e300);
    growing.step();
    FAILS(ValueError, "schedule: a learning rate must be 0 or a finite number above it, got inf", growing.step());
    CHECK(sgd.lr(0) == 0.1 * 1e300);
    CHECK(sgd.lr(1) == 0.2 * 1e300);
    CHECK(growing.steps() == 1);
}

TEST_CASE("long rounds and cycles of schedules do not overflow", "[optim]") {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    SGD sgd({parameter()}, {.lr = 0.1});
    CosineAnnealingWarmRestarts rounds(sgd, {.T_0 = 2, .T_mult = most});
    for (int i = 0; i < 5; ++i) rounds.step();
    CHECK(sgd.lr() == Approx(0.1));  // at the beginning of the second round
    SGD other({parameter()}, {.lr = 0.1});
    CyclicLR cycle(other, {.base_lr = 0.1, .max_lr = 1, .step_size_up = most, .step_size_down = most});
    cycle.step();
    CHECK(other.lr() == Approx(0.1));
}

TEST_CASE("numbers of GradScaler, of clipping and of averages", "[optim]") {
    for (const double bad : {kNan, kInf, 0.0, -1.0}) {
        FAILS(ValueError, "GradScaler: init_scale", GradScaler({.init_scale = bad}));
        FAILS(ValueError, "GradScaler: init_scale", GradScaler({.growth_factor = bad}));
        FAILS(ValueError, "GradScaler: init_scale", GradScaler({.backoff_factor = bad}));
    }
    FAILS(ValueError, "GradScaler: init_scale", GradScaler({.growth_factor = 1}));
    FAILS(ValueError, "GradScaler: init_scale", GradScaler({.backoff_factor = 1}));
    FAILS(ValueError, "GradScaler: init_scale", GradScaler({.growth_interval = 0}));
    const Tensor p = parameter();
    const std::vector<float> gradient = p.grad().to_vector<float>();
    for (const double bad : {kNan, -1.0}) {
        FAILS(ValueError, "clip_grad_norm_: max_norm must not be negative", clip_grad_norm_({p}, bad));
        FAILS(ValueError, "clip_grad_norm_: norm_type must be above 0", clip_grad_norm_({p}, 1, bad));
        FAILS(ValueError, "clip_grad_value_: the bound must not be negative", clip_grad_value_({p}, bad));
        FAILS(ValueError, "ExponentialMovingAverage: decay must be in [0, 1]", ExponentialMovingAverage({p}, {.decay = bad}));
    }
    FAILS(ValueError, "ExponentialMovingAverage: decay must be in [0, 1], got inf", ExponentialMovingAverage({p}, {.decay = kInf}));
    CHECK(clip_grad_norm_({p}, kInf).item() == Approx(std::sqrt(0.5)));  // only measured
    clip_grad_value_({p}, kInf);
    CHECK(p.grad().to_vector<float>() == gradient);
}

TEST_CASE("a scale grows and shrinks as far as it can be used", "[optim]") {
    Tensor p = parameter();
    SGD sgd({p}, {.lr = 0});
    GradScaler up({.init_scale = 0x1p127, .growth_interval = 1}), down({.init_scale = 0x1p-126});
    CHECK(up.step(sgd));
    up.update();
    CHECK(up.get_scale() == 0x1p127);  // the next would be beyond float32
    p.set_grad(full({2}, kInf));
    CHECK_FALSE(down.step(sgd));
    down.update();
    CHECK(down.get_scale() == 0x1p-126);  // not 0, from which there is no way back
}
