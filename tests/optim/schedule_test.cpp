// Schedules against PyTorch's rates (schedule_goldens.h, made by tests/goldens/schedules.py), states, groups, and what is refused.
#include <cmath>
#include <limits>
#include <memory>

#include "../fails.h"
#include "schedule_goldens.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

Tensor parameter() { return zeros({1}).requires_grad_(); }

template <class Make>
void check(const std::vector<double>& want, const Make& make) {
    optim::SGD sgd({parameter()}, {.lr = 0.2});
    auto schedule = make(sgd);
    for (std::size_t i = 0; i < want.size(); ++i) {
        INFO("after " << i << " steps");
        CHECK(std::abs(sgd.lr() - want[i]) < 1e-12);
        CHECK(schedule->last_lr() == std::vector<double>{sgd.lr()});
        if (i + 1 < want.size()) schedule->step();
    }
}

// A schedule S of the arguments.
template <class S, class... Args>
auto making(Args... args) {
    return [=](optim::Optimizer& o) { return std::make_shared<S>(o, args...); };
}

struct Chain {
    explicit Chain(optim::Optimizer& o) : exponential(o, 0.9), linear(o, {.start_factor = 0.1, .total_iters = 5}), both(o, {&linear, &exponential}) {}
    optim::Schedule* operator->() { return &both; }

    optim::ExponentialLR exponential;
    optim::LinearLR linear;
    optim::ChainedLR both;
};

struct Sequence {
    explicit Sequence(optim::Optimizer& o)
        : constant(o, {.factor = 0.1, .total_iters = 4}), exponential(o, 0.8), steps(o, {.step_size = 2, .gamma = 0.5}),
          all(o, {&constant, &exponential, &steps}, {6, 15}) {}
    optim::Schedule* operator->() { return &all; }

    optim::ConstantLR constant;
    optim::ExponentialLR exponential;
    optim::StepLR steps;
    optim::SequentialLR all;
};

}  // namespace

TEST_CASE("schedules have PyTorch's rates") {
    using namespace optim;
    check(goldens::lambda, making<LambdaLR>([](std::int64_t t) { return std::pow(0.95, t) / (1 + static_cast<double>(t)); }));
    check(goldens::multiplicative, making<MultiplicativeLR>([](std::int64_t t) { return t % 3 ? 0.95 : 1.1; }));
    CyclicLROptions cyclic{.base_lr = 0.1, .max_lr = 0.5, .step_size_up = 4};
    check(goldens::cyclic, making<CyclicLR>(cyclic));
    cyclic.step_size_up = 3;
    cyclic.step_size_down = 5;
    cyclic.mode = CyclicMode::triangular2;
    check(goldens::cyclic_halving, making<CyclicLR>(cyclic));
    cyclic.step_size_up = 5;
    cyclic.step_size_down = 2;
    cyclic.mode = CyclicMode::exp_range;
    cyclic.gamma = 0.97;
    check(goldens::cyclic_range, making<CyclicLR>(cyclic));
    check(goldens::step, making<StepLR>(StepLROptions{.step_size = 7, .gamma = 0.5}));
    check(goldens::multistep, making<MultiStepLR>(std::vector<std::int64_t>{10, 3, 17, 10}, 0.3));
    check(goldens::exponential, making<ExponentialLR>(0.9));
    check(goldens::polynomial, making<PolynomialLR>(PolynomialLROptions{.total_iters = 15, .power = 2}));
    check(goldens::linear, making<LinearLR>(LinearLROptions{.start_factor = 0.25, .end_factor = 0.75, .total_iters = 9}));
    check(goldens::constant, making<ConstantLR>(ConstantLROptions{.factor = 0.5, .total_iters = 6}));
    check(goldens::cosine, making<CosineAnnealingLR>(CosineAnnealingLROptions{.T_max = 20, .eta_min = 0.01}));
    check(goldens::restarts, making<CosineAnnealingWarmRestarts>(WarmRestartsOptions{.T_0 = 3, .T_mult = 2, .eta_min = 0.02}));
    check(goldens::restarts_even, making<CosineAnnealingWarmRestarts>(WarmRestartsOptions{.T_0 = 5}));
    check(goldens::one_cycle, making<OneCycleLR>(OneCycleLROptions{.max_lr = 0.4, .total_steps = 25}));
    check(goldens::one_cycle_three,
          making<OneCycleLR>(OneCycleLROptions{
              .max_lr = 0.4, .total_steps = 25, .pct_start = 0.4, .linear = true, .div_factor = 10, .final_div_factor = 100, .three_phase = true}));
}

TEST_CASE("schedules beside and after each other have PyTorch's rates, in whatever order they are made") {
    using namespace optim;
    check(goldens::chained, [](Optimizer& o) { return Chain(o); });
    check(goldens::sequential, [](Optimizer& o) { return Sequence(o); });
}

TEST_CASE("schedules that step side by side, a rate that is set, and a plateau, multiply") {
    using namespace optim;
    SGD both({parameter()}, {.lr = 1}), set({parameter()}, {.lr = 1}), plateau({parameter()}, {.lr = 1});
    ExponentialLR fall(both, 0.9);  // PyTorch's documentation has this pair
    MultiStepLR steps(both, {2}, 0.1);
    std::vector<double> rates;
    for (int i = 0; i < 3; ++i) {
        fall.step();
        steps.step();
        rates.push_back(both.lr());
    }
    const std::vector<double> want = {0.9, 0.081, 0.0729};
    for (std::size_t i = 0; i < 3; ++i) CHECK(rates[i] == Approx(want[i]));

    StepLR step(set, {.step_size = 2, .gamma = 0.1});
    set.set_lr(0.5);
    step.step();
    CHECK(set.lr() == 0.5);
    step.step();
    CHECK(set.lr() == Approx(0.05));

    LinearLR warmup(plateau, {.start_factor = 0.5, .total_iters = 2});
    ReduceLROnPlateau reduce(plateau, {.factor = 0.1, .patience = 0});
    reduce.step(1);
    reduce.step(1);
    CHECK(plateau.lr() == Approx(0.05));
    warmup.step();
    CHECK(plateau.lr() == Approx(0.075));
    warmup.step();
    warmup.step();
    CHECK(plateau.lr() == Approx(0.1));

    // Resumed beside each other, whatever the order.
    SGD again({parameter()}, {.lr = 1});
    ExponentialLR fall_again(again, 0.9);
    MultiStepLR steps_again(again, {2}, 0.1);
    steps_again.load_state_dict(steps.state_dict());
    fall_again.load_state_dict(fall.state_dict());
    CHECK(again.lr() == both.lr());
    fall_again.step();
    fall.step();
    CHECK(again.lr() == both.lr());
}

TEST_CASE("OneCycleLR takes total_steps steps, and refuses one more or a state of more") {
    using namespace optim;
    SGD sgd({parameter()}, {.lr = 0.1}), other({parameter()}, {.lr = 0.1});
    OneCycleLR schedule(sgd, {.max_lr = 1, .total_steps = 10}), longer(other, {.max_lr = 1, .total_steps = 20});
    for (int i = 0; i < 9; ++i) schedule.step();
    const double last = sgd.lr();
    schedule.step();
    CHECK(sgd.lr() == last);
    FAILS(ValueError, "OneCycleLR: step 11 is beyond total_steps 10; raise total_steps", schedule.step());
    for (int i = 0; i < 15; ++i) longer.step();
    FAILS(ValueError, "OneCycleLR: step 15 is beyond total_steps 10; raise total_steps", schedule.load_state_dict(longer.state_dict()));
    CHECK(schedule.steps() == 10);
    CHECK(sgd.lr() == last);
}

TEST_CASE("ReduceLROnPlateau has PyTorch's rates") {
    using namespace optim;
    SGD sgd({parameter()}, {.lr = 0.2}), other({parameter()}, {.lr = 0.2});
    ReduceLROnPlateau least(sgd, {.factor = 0.5, .patience = 2, .cooldown = 1, .min_lr = 0.03});
    ReduceLROnPlateau most(other, {.is_max = true, .factor = 0.5, .patience = 1, .threshold = 0.01, .absolute_threshold = true});
    for (std::size_t i = 0; i < goldens::plateau_metrics.size(); ++i) {
        INFO("metric " << i);
        least.step(goldens::plateau_metrics[i]);
        most.step(-goldens::plateau_metrics[i]);
        CHECK(sgd.lr() == Approx(goldens::plateau[i]));
        CHECK(other.lr() == Approx(goldens::plateau_max[i]));
        if (i != 7) continue;
        ReduceLROnPlateau fresh(sgd, {.factor = 0.5, .patience = 2, .cooldown = 1, .min_lr = 0.03});
        fresh.load_state_dict(least.state_dict());
        CHECK(fresh.state_dict()[0].tensor.item() == least.state_dict()[0].tensor.item());
    }
    ReduceLROnPlateau nan(sgd, {.patience = 0});
    const double before = sgd.lr();
    nan.step(std::numeric_limits<double>::quiet_NaN());
    CHECK(sgd.lr() == Approx(0.1 * before));
}

TEST_CASE("a schedule's state goes on where it was, for groups that come later too") {
    using namespace optim;
    SGD sgd({parameter()}, {.lr = 0.2});
    StepLR schedule(sgd, {.step_size = 2});
    schedule.step();
    sgd.add_param_group({parameter()}, {.lr = 1});
    schedule.step();
    CHECK(schedule.last_lr() == std::vector<double>{0.2 * 0.1, 0.1});
    SGD again({parameter()}, {.lr = 7});
    again.add_param_group({parameter()}, {.lr = 8});
    StepLR resumed(again, {.step_size = 2});
    resumed.load_state_dict(schedule.state_dict());
    CHECK(resumed.steps() == 2);
    CHECK(resumed.last_lr() == schedule.last_lr());
    for (Schedule* s : {static_cast<Schedule*>(&schedule), static_cast<Schedule*>(&resumed)}) s->step(), s->step();
    CHECK(resumed.last_lr() == schedule.last_lr());
    SGD one({parameter()}, {.lr = 1});
    StepLR other(one, {.step_size = 2});
    FAILS(ValueError, "load_state_dict: a schedule's state of 2 groups after 4 steps; the optimizer has 1 groups",
          other.load_state_dict(schedule.state_dict()));
    FAILS(ValueError, "load_state_dict: the state is not of this schedule:\n  missing: steps, base_lr, lr", other.load_state_dict({}));
    CHECK(other.steps() == 0);
}

TEST_CASE("schedules refuse") {
    using namespace optim;
    SGD sgd({parameter()}, {.lr = 0.2});
    FAILS(ValueError, "StepLR: step_size must be at least 1, got 0", StepLR(sgd, {.step_size = 0}));
    FAILS(ValueError, "ExponentialLR: the factor must not be negative, got -1", ExponentialLR(sgd, -1));
    FAILS(ValueError, "LambdaLR: the function is empty", LambdaLR(sgd, nullptr));
    FAILS(ValueError, "LinearLR: start_factor must be in (0, 1]", LinearLR(sgd, {.start_factor = 0}));
    FAILS(ValueError, "CosineAnnealingLR: T_max must be at least 1, got 0", CosineAnnealingLR(sgd, {.T_max = 0}));
    FAILS(ValueError, "OneCycleLR: pct_start 2 must be in [0, 1]", OneCycleLR(sgd, {.pct_start = 2}));
    FAILS(ValueError, "ChainedLR: needs at least one schedule", ChainedLR(sgd, {}));
    FAILS(ValueError, "ChainedLR: a schedule is null", ChainedLR(sgd, {nullptr}));
    FAILS(ValueError, "SequentialLR: 0 schedules need 0 milestones, got 1", SequentialLR(sgd, {}, {3}));
    FAILS(ValueError, "ReduceLROnPlateau: factor must be in [0, 1), got 1", ReduceLROnPlateau(sgd, {.factor = 1}));
    OneCycleLR cycle(sgd, {.total_steps = 2});
    cycle.step();
    cycle.step();
    const double lr = sgd.lr();
    FAILS_IN(ValueError, "OneCycleLR: step 3 is beyond total_steps 2", "", cycle.step());
    CHECK(cycle.steps() == 2);
    CHECK(sgd.lr() == lr);
}

TEST_CASE("a schedule's state counts in whole numbers from 0 up") {
    using namespace optim;
    SGD sgd({parameter()}, {.lr = 0.2});
    const auto with = [](NamedTensors state, const std::string& name, double value) {
        for (NamedTensor& t : state) {
            if (t.name == name) t.tensor = tensor(value, float64);
        }
        return state;
    };
    ReduceLROnPlateau plateau(sgd, {.patience = 2});
    plateau.step(1);
    plateau.step(2);
    StepLR steps(sgd, {.step_size = 3});
    for (const double wrong : {-3.0, 1.5, -0.5, 1e18}) {
        INFO(wrong);
        FAILS(ValueError, "this ReduceLROnPlateau:\n  out of range: bad_steps",
              plateau.load_state_dict(with(plateau.state_dict(), "bad_steps", wrong)));
        FAILS(ValueError, "out of range: cooling", plateau.load_state_dict(with(plateau.state_dict(), "cooling", wrong)));
        FAILS(ValueError, "out of range: steps", steps.load_state_dict(with(steps.state_dict(), "steps", wrong)));
    }
    plateau.load_state_dict(with(plateau.state_dict(), "bad_steps", 2));
    plateau.step(3);
    CHECK(std::abs(sgd.lr() - 0.02) < 1e-12);
}

TEST_CASE("a chained schedule of one with a floor goes by the closed forms") {
    using namespace optim;
    SGD sgd({parameter()}, {.lr = 0.1});
    ExponentialLR fall(sgd, 0.9);
    CosineAnnealingLR cosine(sgd, {.T_max = 10, .eta_min = 0.05});
    ChainedLR both(sgd, {&fall, &cosine});
    for (const double want : {0.1, 0.08902, 0.07804, 0.06818}) {
        CHECK(std::abs(sgd.lr() - want) < 5e-6);
        both.step();
    }
}
