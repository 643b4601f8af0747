// Optimizers against PyTorch's parameters after 20 steps (goldens.h), groups, state, freezing, what is refused.
#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <typeinfo>

#include "../fails.h"
#include "goldens.h"
#include "steps.h"
#include "tapir/core/make_impl.h"
#include "tapir/optim/rule_impl.h"

using namespace tapir;
using namespace tapir::test;

namespace {

template <class Opt, class Options>
void compare(const char* name, const Options& options, const std::vector<double>& golden) {
    for (const DType dtype : {float32, float64}) {
        const Parameters p(dtype);
        Opt opt(p.all(), options);
        run(opt, p);
        check::same(name, cat({p.a.reshape({-1}), p.b}), golden, 1e-5);
    }
}

}  // namespace

TEST_CASE("optimizers make PyTorch's steps") {
    using namespace optim;
    compare<SGD>("sgd", SGDOptions{.lr = 0.1}, goldens::sgd);
    compare<SGD>("sgd_decay", SGDOptions{.lr = 0.1, .weight_decay = 0.05}, goldens::sgd_decay);
    compare<SGD>("sgd_momentum", SGDOptions{.lr = 0.1, .momentum = 0.9}, goldens::sgd_momentum);
    compare<SGD>("sgd_dampening", SGDOptions{.lr = 0.1, .momentum = 0.8, .dampening = 0.3, .weight_decay = 0.02}, goldens::sgd_dampening);
    compare<SGD>("sgd_nesterov", SGDOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true}, goldens::sgd_nesterov);
    compare<Adagrad>("adagrad", AdagradOptions{}, goldens::adagrad);
    compare<Adagrad>("adagrad_all", AdagradOptions{.lr = 0.2, .lr_decay = 0.1, .weight_decay = 0.03, .initial_accumulator_value = 0.5, .eps = 1e-6},
                     goldens::adagrad_all);
    compare<Adam>("adam", AdamOptions{}, goldens::adam);
    compare<Adam>("adam_all", AdamOptions{.lr = 0.02, .betas = {0.8, 0.95}, .eps = 1e-6, .weight_decay = 0.1}, goldens::adam_all);
    compare<Adam>("adam_amsgrad", AdamOptions{.lr = 0.02, .amsgrad = true}, goldens::adam_amsgrad);
    compare<AdamW>("adamw", AdamWOptions{.lr = 0.01}, goldens::adamw);
    compare<AdamW>("adamw_amsgrad", AdamWOptions{.lr = 0.05, .weight_decay = 0.3, .amsgrad = true}, goldens::adamw_amsgrad);
    compare<RMSprop>("rmsprop", RMSpropOptions{}, goldens::rmsprop);
    compare<RMSprop>("rmsprop_all", RMSpropOptions{.lr = 0.02, .alpha = 0.9, .eps = 1e-6, .weight_decay = 0.1, .momentum = 0.8, .centered = true},
                     goldens::rmsprop_all);
    compare<RMSprop>("rmsprop_momentum", RMSpropOptions{.lr = 0.02, .momentum = 0.5}, goldens::rmsprop_momentum);
    compare<RMSprop>("rmsprop_centered", RMSpropOptions{.lr = 0.02, .centered = true}, goldens::rmsprop_centered);
    compare<Adadelta>("adadelta", AdadeltaOptions{}, goldens::adadelta);
    compare<Adadelta>("adadelta_all", AdadeltaOptions{.lr = 0.5, .rho = 0.8, .eps = 1e-3, .weight_decay = 0.1}, goldens::adadelta_all);
    compare<Adamax>("adamax", AdamaxOptions{}, goldens::adamax);
    compare<Adamax>("adamax_all", AdamaxOptions{.lr = 0.05, .betas = {0.8, 0.9}, .eps = 1e-3, .weight_decay = 0.1}, goldens::adamax_all);
    compare<NAdam>("nadam", NAdamOptions{}, goldens::nadam);
    compare<NAdam>("nadam_all", NAdamOptions{.lr = 0.05, .betas = {0.8, 0.95}, .eps = 1e-3, .weight_decay = 0.1, .momentum_decay = 0.3},
                   goldens::nadam_all);
    compare<RAdam>("radam", RAdamOptions{}, goldens::radam);
    compare<RAdam>("radam_all", RAdamOptions{.lr = 0.05, .betas = {0.8, 0.95}, .eps = 1e-3, .weight_decay = 0.1}, goldens::radam_all);
    compare<Rprop>("rprop", RpropOptions{}, goldens::rprop);
    compare<Rprop>("rprop_all", RpropOptions{.lr = 0.1, .eta_minus = 0.3, .eta_plus = 1.7, .step_size_min = 0.02, .step_size_max = 0.3},
                   goldens::rprop_all);
}

TEST_CASE("ASGD makes PyTorch's steps and averages") {
    const auto compare_both = [](const char* name, const optim::ASGDOptions& options, const std::vector<double>& golden,
                                 const std::vector<double>& golden_averages) {
        compare<optim::ASGD>(name, options, golden);
        const Parameters p(float64);
        optim::ASGD asgd(p.all(), options);
        run(asgd, p);
        std::vector<Tensor> averages;
        for (const NamedTensor& t : asgd.state_dict()) {
            if (t.name.ends_with(".ax")) averages.push_back(t.tensor.reshape({-1}));
        }
        check::same(name, cat(averages), golden_averages, 1e-5);
    };
    compare_both("asgd", {}, goldens::asgd, goldens::asgd_averages);
    compare_both("asgd_all", {.lr = 0.1, .lambd = 0.2, .alpha = 0.6, .t0 = 5, .weight_decay = 0.05}, goldens::asgd_all, goldens::asgd_all_averages);
    compare_both("asgd_from_one", {.lr = 0.1, .t0 = 0}, goldens::asgd_from_one, goldens::asgd_from_one_averages);
}

TEST_CASE("ASGD's first average is the parameter, whatever t0 is, and unused rows have averages") {
    const auto average = [](const optim::Optimizer& asgd) {
        for (const NamedTensor& t : asgd.state_dict()) {
            if (t.name.ends_with(".ax")) return t.tensor;
        }
        return Tensor();
    };
    Tensor w = ones({1}, float64).requires_grad_();
    optim::ASGD early({w}, {.lr = 0.1, .t0 = -10});
    w.set_grad(ones({1}, float64));
    early.step();
    CHECK(average(early).item<double>() == w.item<double>());
    const double first = w.item<double>();
    w.set_grad(ones({1}, float64));
    early.step();
    CHECK(average(early).item<double>() == Approx(first + (w.item<double>() - first) / 11));

    nn::Embedding table(3, 2, {.sparse = true});
    table.to(float64);
    const Tensor start = table.weight.detach().clone();
    optim::ASGD asgd(table.parameters(), {.lr = 0.1, .lambd = 0, .t0 = 0});
    const auto step = [&](std::int64_t row) {
        Tape tape;
        tape.backward(sum(table(tensor({row}))));
        asgd.step();
        asgd.zero_grad();
    };
    for (int t = 0; t < 2; ++t) step(0);
    step(1);  // mu is 1 / 2 then
    const Tensor ax = average(asgd);
    CHECK(ax[2].to_vector<double>() == start[2].to_vector<double>());
    check::same("late row", ax[1], (start[1] - 0.05).to_vector<double>(), 1e-12);
}

TEST_CASE("a learning rate that is set counts for ASGD from the step after the next") {
    Tensor w = zeros({1}, float64).requires_grad_();
    optim::ASGD asgd({w}, {.lr = 1, .lambd = 0});
    const auto step = [&] {
        const double before = w.item<double>();
        w.set_grad(ones({1}, float64));
        asgd.step();
        return before - w.item<double>();
    };
    CHECK(step() == 1);
    asgd.set_lr(0.25);
    CHECK(step() == 1);
    CHECK(step() == 0.25);
}

TEST_CASE("Rprop takes back no step, and hands nan on") {
    Tensor w = zeros({4}, float64).requires_grad_();
    optim::Rprop rprop({w}, {.lr = 1, .step_size_min = 0.25, .step_size_max = 1.25});
    const auto step = [&](double a, double b, double c, double d) {
        w.set_grad(tensor({a, b, c, d}, float64));
        rprop.step();
        return w.to_vector<double>();
    };
    using V = std::vector<double>;
    CHECK(step(3, 3, -0.125, 0) == V{-1, -1, 1, 0});
    CHECK(step(-1, 1, -2, 5) == V{-1, -2.2, 2.2, -1});                     // sizes 0.5, 1.2, 1.2, 1
    CHECK(step(-1, 0, -2, 5) == V{-0.5, -2.2, 3.45, -2.2});                // 0.5, 1.2, 1.25 (limited), 1.2
    CHECK(step(1, 1, 2, 5) == V{-0.5, -3.4000000000000004, 3.45, -3.45});  // 0.25, 1.2, 0.625, 1.25
    step(NAN, 1, 1, 1);
    CHECK(std::isnan(w[0].item()));
    CHECK(!std::isnan(w[1].item()));
}

TEST_CASE("optimizers that PyTorch does not have make the steps of their papers") {
    using namespace optim;
    compare<Lion>("lion", LionOptions{}, goldens::lion);
    compare<Lion>("lion_all", LionOptions{.lr = 0.03, .betas = {0.7, 0.9}, .weight_decay = 0.2}, goldens::lion_all);
    compare<AdagradDA>("adagradda", AdagradDAOptions{}, goldens::adagradda);
    compare<AdagradDA>("adagradda_all", AdagradDAOptions{.lr = 0.3, .l1 = 0.02, .l2 = 0.05, .initial_accumulator_value = 0.5},
                       goldens::adagradda_all);
}

TEST_CASE("AdagradDA without a gradient or an accumulator gives zeros, and hands nan on") {
    Tensor w = tensor({3.0, 3.0, 3.0}).requires_grad_();
    w.set_grad(tensor({0.0, -2.0, NAN}));
    optim::AdagradDA opt({w}, {.lr = 0.5, .initial_accumulator_value = 0});
    opt.step();
    CHECK(w[0].item() == 0);
    CHECK(w[1].item() == Approx(0.5));
    CHECK(std::isnan(w[2].item()));
}

TEST_CASE("parameter groups have options of their own") {
    const Parameters p(float32);
    optim::SGD opt({p.a}, {.lr = 0.1, .momentum = 0.9});
    opt.add_param_group({p.b}, {.lr = 0.01, .momentum = 0.5, .weight_decay = 0.1});
    run(opt, p);
    check::same("sgd_groups", cat({p.a.reshape({-1}), p.b}), goldens::sgd_groups, 1e-5);
    CHECK(opt.group_count() == 2);
    CHECK(opt.lr(1) == 0.01);
    opt.options(1).lr = 0.5;
    CHECK(opt.lr(1) == 0.5);
    opt.set_lr(0.25);
    CHECK(opt.lr(0) == 0.25);
    CHECK(opt.options(1).momentum == 0.5);
}

TEST_CASE("every optimizer computes the step of 16-bit parameters in float32") {
    for_all([]<class Opt>(const auto& options) {
        INFO(typeid(Opt).name());
        for (const DType dtype : {float16, bfloat16}) {
            Tensor narrow = values({3, 4}, 1, dtype), wide = narrow.to(float32);
            narrow.requires_grad_();
            wide.requires_grad_();
            Opt first({narrow}, options), second({wide}, options);
            for (int t = 0; t < 7; ++t) {
                const Tensor g = values({3, 4}, t, dtype);
                narrow.set_grad(g);
                wide.set_grad(g.to(float32));
                wide.detach().copy_(narrow);  // what is rounded away is lost
                first.step();
                second.step();
                CHECK(narrow.to_vector<double>() == wide.to(dtype).template to_vector<double>());
            }
        }
    });
}

TEST_CASE("parameters without a gradient, frozen, 16-bit and strided ones") {
    Tensor still = ones({2}).requires_grad_(), frozen = ones({2});
    Tensor half = ones({3}, float16).requires_grad_(), strided = ones({4, 2}).t();
    strided.requires_grad_();
    half.set_grad(full({3}, 0.5, float16));
    strided.set_grad(values({2, 4}, 1, float32));
    optim::Adagrad opt({still, frozen, half, strided}, {.lr = 0.25});
    opt.step();
    CHECK(still.to_vector<float>() == std::vector<float>{1, 1});
    CHECK(frozen.to_vector<float>() == std::vector<float>{1, 1});
    CHECK(half.to_vector<float>() == std::vector<float>{0.75, 0.75, 0.75});
    CHECK(strided.at<float>({1, 2}) == Approx(values({2, 4}, 1, float32).at<float>({1, 2}) > 0 ? 0.75 : 1.25));
}

TEST_CASE("a step inside a tape is allowed, and is seen by it") {
    Tensor w = ones({3}).requires_grad_();
    optim::SGD opt({w}, {.lr = 0.1});
    Tape tape(TapeOptions{.persistent = true});
    const Tensor loss = sum(w * w);
    tape.backward(loss);
    opt.step();
    CHECK(tape.size() > 0);
    CHECK(check::contains(check::message<TapeError>([&] { tape.backward(loss); }), "modified in place"));
}

TEST_CASE("the state of every optimizer is saved and resumed to the same numbers") {
    for_all([]<class Opt>(auto options) {
        INFO(typeid(Opt).name());
        const Parameters p(float32), q(float32);
        Opt first(p.all(), options);
        run(first, p, 0, 7);
        options.lr = 123;
        Opt second(q.all(), options);
        Tensor(q.a).copy_(p.a.detach());
        Tensor(q.b).copy_(p.b.detach());
        second.load_state_dict(first.state_dict());
        run(first, p, 7);
        run(second, q, 7);
        CHECK(p.a.template to_vector<float>() == q.a.template to_vector<float>());
        CHECK(p.b.template to_vector<float>() == q.b.template to_vector<float>());
    });
}

TEST_CASE("a state is saved and resumed to the same numbers") {
    const Parameters p(float32), q(float32);
    optim::AdamW first(p.all(), {.lr = 0.05, .weight_decay = 0.3, .amsgrad = true});
    run(first, p, 0, 7);
    optim::AdamW second(q.all(), {.lr = 1, .amsgrad = true});
    Tensor(q.a).copy_(p.a.detach());
    Tensor(q.b).copy_(p.b.detach());
    second.load_state_dict(first.state_dict());
    CHECK(second.lr() == 0.05);
    run(first, p, 7);
    run(second, q, 7);
    CHECK(p.a.to_vector<float>() == q.a.to_vector<float>());
    CHECK(p.b.to_vector<float>() == q.b.to_vector<float>());
    // Not of this optimizer: nothing changes.
    const NamedTensors state = first.state_dict();
    optim::SGD other(p.all(), {.lr = 0.125});
    const int line = __LINE__ + 1;
    const std::string text = check::message<ValueError>([&] { other.load_state_dict(state); });
    CHECK(check::begins(text, "optimizer_test.cpp:" + std::to_string(line) + ": load_state_dict: "));
    CHECK(check::contains(text, "missing: 0.momentum"));
    CHECK(other.lr() == 0.125);
}

TEST_CASE("a state brings its options, and with them what they keep") {
    const Parameters p(float32), q(float32);
    optim::SGD first(p.all(), {.lr = 0.05, .momentum = 0.9});
    run(first, p, 0, 3);
    optim::SGD second(q.all(), {.lr = 1});
    Tensor(q.a).copy_(p.a.detach());
    Tensor(q.b).copy_(p.b.detach());
    second.load_state_dict(first.state_dict());
    run(first, p, 3);
    run(second, q, 3);
    CHECK(p.a.to_vector<float>() == q.a.to_vector<float>());
}

TEST_CASE("a state with numbers that no run has is refused") {
    const Parameters p(float32);
    optim::Adam adam(p.all());
    run(adam, p, 0, 2);
    optim::LBFGS lbfgs(p.all());
    const auto with = [](NamedTensors state, const std::string& name, double value) {
        for (NamedTensor& t : state) {
            if (t.name == name) t.tensor = tensor(value, float64);
        }
        return state;
    };
    FAILS(ValueError, "out of range: 0.0.step", adam.load_state_dict(with(adam.state_dict(), "0.0.step", -1)));
    FAILS(ValueError, "out of range: 0.0.step", adam.load_state_dict(with(adam.state_dict(), "0.0.step", 1.5)));
    FAILS(ValueError, "out of range: 0.0.step", adam.load_state_dict(with(adam.state_dict(), "0.0.step", 1e300)));
    FAILS(ValueError, "out of range: 0.0.step", adam.load_state_dict(with(adam.state_dict(), "0.0.step", std::nan(""))));
    FAILS(ValueError, "Adam: beta1 must be in [0, 1), got 2", adam.load_state_dict(with(adam.state_dict(), "0.beta1", 2)));
    FAILS(ValueError, "out of range: 0.amsgrad", adam.load_state_dict(with(adam.state_dict(), "0.amsgrad", 7)));
    FAILS(ValueError, "out of range: 0.max_iter", lbfgs.load_state_dict(with(lbfgs.state_dict(), "0.max_iter", 1e300)));
    FAILS(ValueError, "load_state_dict: the state is not of this LBFGS:\n  out of range: iterations",
          lbfgs.load_state_dict(with(lbfgs.state_dict(), "iterations", -1)));
    CHECK(adam.options().betas[0] == 0.9);
    NamedTensors more = adam.state_dict();
    more.push_back({"3.lr", ones({})});
    more[0].tensor = ones({2});
    FAILS_IN(ValueError, "load_state_dict: the state is not of this Adam:\n  of another shape: " + more[0].name + "\n  unexpected: 3.lr", "",
             adam.load_state_dict(more));
    optim::GradScaler scaler;
    FAILS(ValueError, "finite, got inf", scaler.load_state_dict(with(scaler.state_dict(), "scale", INFINITY)));
    FAILS(ValueError, "growth_tracker must count steps, got -1", scaler.load_state_dict(with(scaler.state_dict(), "growth_tracker", -1)));
}

TEST_CASE("optimizers refuse what cannot be right, with the user's line") {
    using namespace optim;
    const Tensor w = ones({3}).requires_grad_();
    const auto line = [](int n) { return "optimizer_test.cpp:" + std::to_string(n) + ": "; };
    CHECK(check::begins(check::message<ValueError>([&] { SGD({w, w}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { SGD(std::vector<Tensor>{}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { SGD({Tensor()}); }), line(__LINE__)));
    CHECK(check::begins(check::message<DTypeError>([&] { SGD({ones({2}, int64)}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { SGD({w}, {.lr = -1}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { SGD({w}, {.nesterov = true}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { Adam({w}, {.betas = {1, 0.999}}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { Adagrad({w}, {.eps = NAN}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { RMSprop({w}, {.alpha = 1}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { Adadelta({w}, {.rho = 1.5}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { Adamax({w}, {.betas = {0.9, -1}}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { NAdam({w}, {.momentum_decay = -1}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { RAdam({w}, {.betas = {0.9, 1}}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { Lion({w}, {.lr = -1}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { AdagradDA({w}, {.l1 = -1}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { ASGD({w}, {.weight_decay = -1}); }), line(__LINE__)));
    FAILS(ValueError, "Rprop: eta_minus must be in (0, 1) and eta_plus above 1, got 0.5 and 1", Rprop({w}, {.eta_plus = 1}));
    FAILS(ValueError, "Rprop: eta_minus must be in (0, 1) and eta_plus above 1, got nan and 1.2", Rprop({w}, {.eta_minus = NAN}));
    FAILS(ValueError, "Rprop: eta_minus must be in (0, 1) and eta_plus above 1, got 0 and 1.2", Rprop({w}, {.eta_minus = 0}));
    CHECK(check::begins(check::message<ValueError>([&] { LBFGS({w}, {.max_iter = 0}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { LBFGS({w}, {.history_size = 0}); }), line(__LINE__)));
    SGD sgd({w});
    CHECK(check::begins(check::message<ValueError>([&] { sgd.add_param_group({w}, {}); }), line(__LINE__)));
    CHECK(check::begins(check::message<IndexError>([&] { sgd.options(1); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { sgd.set_lr(-1); }), line(__LINE__)));
    sgd.options().momentum = -1;
    CHECK(check::begins(check::message<ValueError>([&] { sgd.step(); }), line(__LINE__)));
    Tape tape;
    const Tensor computed = w * 2;
    CHECK(check::begins(check::message<ValueError>([&] { SGD({computed}); }), line(__LINE__)));
}

TEST_CASE("parameters are frozen and thawed under an optimizer") {
    Tensor w = ones({2}, float64);  // frozen from the beginning, in a group of its own
    Tensor v = ones({2}, float64).requires_grad_();
    optim::SGD sgd({v}, {.lr = 0.5, .momentum = 0.5});
    sgd.add_param_group({w}, {.lr = 0.5, .momentum = 0.5});
    const auto train = [&] {
        sgd.zero_grad();
        Tape tape;
        tape.backward(sum(w * 2 + v * 4));
        sgd.step();
    };
    train();
    CHECK(w.to_vector<double>() == std::vector<double>{1, 1});
    CHECK(v.to_vector<double>() == std::vector<double>{-1, -1});
    w.requires_grad_();
    v.requires_grad_(false);
    train();
    CHECK(w.to_vector<double>() == std::vector<double>{0, 0});
    CHECK(v.to_vector<double>() == std::vector<double>{-1, -1});
    v.requires_grad_();
    train();  // its momentum went on from where it was
    CHECK(v.to_vector<double>() == std::vector<double>{-1 - 0.5 * (4 + 0.5 * 4), -4});
    CHECK(w[0].item() == -0.5 * (2 + 0.5 * 2));
    // All frozen: nothing to do.
    nn::Linear model(2, 2);
    model.requires_grad_(false);
    const std::vector<float> before = model.weight.to_vector<float>();
    optim::Adam adam(model.parameters());
    adam.step();
    CHECK(model.weight.to_vector<float>() == before);
    adam.load_state_dict(adam.state_dict());
}

TEST_CASE("an optimizer takes a chosen list, and leaves the others alone") {
    nn::Linear a(2, 2), b(2, 2);
    optim::SGD sgd({a.weight, b.bias}, {.lr = 1});
    const auto numbers = [](const Tensor& t) { return t.to_vector<float>(); };
    const auto a_weight = numbers(a.weight), a_bias = numbers(a.bias), b_weight = numbers(b.weight), b_bias = numbers(b.bias);
    {
        Tape tape;
        tape.backward(sum(b(a(ones({1, 2})))));
    }
    sgd.step();
    CHECK(numbers(a.weight) != a_weight);
    CHECK(numbers(a.bias) == a_bias);
    CHECK(numbers(b.weight) == b_weight);
    CHECK(numbers(b.bias) != b_bias);
    sgd.zero_grad();
    CHECK(!a.weight.grad().defined());
    CHECK(a.bias.grad().defined());  // not its own
}

TEST_CASE("gradients are read, changed and replaced between backward and step") {
    Tensor w = zeros({3}, float64).requires_grad_();
    optim::SGD sgd({w}, {.lr = 1});
    const Tensor slope = tensor({5.0, -0.25, -3.0}, float64), noise = tensor({0.5, 0.5, -0.5}, float64);
    const auto stepped = [&](const auto& change) {
        w.detach().fill_(0);
        sgd.zero_grad();
        Tape tape;  // alive: what is done to gradients is not recorded for anybody
        tape.backward(sum(w * slope));
        CHECK(w.grad().to_vector<double>() == slope.to_vector<double>());
        change();
        sgd.step();
        return w.to_vector<double>();
    };
    using V = std::vector<double>;
    CHECK(stepped([&] { optim::clip_grad_value_({w}, 1); }) == V{-1, 0.25, 1});
    CHECK(stepped([&] { w.grad().clamp_(-2, 2); }) == V{-2, 0.25, 2});
    CHECK(stepped([&] { w.grad().mul_(0.5); }) == V{-2.5, 0.125, 1.5});
    CHECK(stepped([&] { w.grad().add_(noise); }) == V{-5.5, -0.25, 3.5});
    CHECK(stepped([&] { w.set_grad(w.grad() * 2 + noise); }) == V{-10.5, 0, 6.5});
    CHECK(stepped([&] { w.set_grad(Tensor()); }) == V{0, 0, 0});
    // A row-sparse gradient is read as a dense one, and is changed just so.
    nn::Embedding table(4, 2);
    table.weight.detach().fill_(0);
    optim::SGD rows(table.parameters(), {.lr = 1});
    Tape tape;
    tape.backward(sum(table(tensor({1, 3, 1}))));
    table.weight.grad().mul_(3);
    rows.step();
    CHECK(table.weight.to_vector<double>() == V{0, 0, -6, -6, 0, 0, -3, -3});
}

TEST_CASE("a tied weight is updated once, by the sum of its gradients") {
    struct Tied : nn::Module {
        nn::Linear in{3, 3, false}, out{3, 3, false};
        Tied() { out.weight = in.weight; }
        void members(nn::Members& m) override { m("in", in)("out", out); }
    } model;
    model.to(float64);
    check::fill(model.in.weight.detach(), 1);
    REQUIRE(model.parameters().size() == 1);
    optim::SGD sgd(model.parameters(), {.lr = 0.5, .momentum = 0.9});
    optim::ExponentialMovingAverage ema(model.parameters(), {.decay = 0.5});
    const Tensor x = values({4, 3}, 2, float64), before = model.in.weight.detach().clone();
    // Two weights of the same values give the two gradients.
    Tensor a = before.clone().requires_grad_(), b = before.clone().requires_grad_();
    {
        Tape tape;
        tape.backward(sum(matmul(matmul(x, a.t()), b.t())));
    }
    {
        Tape tape;
        tape.backward(sum(model.out(model.in(x))));
    }
    sgd.step();
    ema.update();
    const Tensor change = (a.grad() + b.grad()) * -0.5;
    check::same("weight", model.out.weight, (before + change).to_vector<double>(), 1e-13);
    check::same("average", ema.averages()[0], (before + change * 0.5).to_vector<double>(), 1e-13);
    CHECK(model.out.weight.is_same(model.in.weight));
}

TEST_CASE("an optimizer refuses what to() made of a leaf") {
    const auto line = [](int n) { return "optimizer_test.cpp:" + std::to_string(n) + ": "; };
    const Tensor made = randn({2}).requires_grad_().to(float64);
    const std::string text = check::message<ValueError>([&] { optim::SGD({made}); });
    CHECK(check::begins(text, line(__LINE__ - 1)));
    CHECK(check::contains(text, "call requires_grad_() after to()"));
    CHECK(!check::message<ValueError>([&] { optim::SGD({made.to(float32)}); }).empty());
    const Tensor trained = ones({1}).requires_grad_();
    optim::SGD({trained, made.detach()});
    optim::SGD({Tensor(made).requires_grad_()});
    Tensor later = randn({2}).requires_grad_().to(float64);
    optim::SGD({trained, later.requires_grad_(false)});  // meant so
    nn::Linear model(2, 2);
    model.to(float64);
    optim::SGD({model.weight});
}

TEST_CASE("a list of which nothing was ever asked for a gradient is refused") {
    Tensor a = ones({3, 2}), b = ones({2});
    FAILS_IN(ValueError, "optimizer: none of the 2 parameters requires a gradient (parameter 0 has shape (3, 2))", "nn::Parameter(tensor)",
             optim::Adam({a, b}));
    Tensor c = ones({2}).requires_grad_();
    optim::SGD sgd({c, a}, {.lr = 1});
    sgd.add_param_group({b}, {.lr = 1});  // the other group has one
    CHECK(sgd.group_count() == 2);
    c.requires_grad_(false);  // frozen on purpose
    optim::SGD frozen({c}, {.lr = 1});
    b.set_grad(ones({2}));  // given by hand
    optim::SGD given({b}, {.lr = 1});
    given.step();
    CHECK(b.to_vector<int>() == std::vector<int>{0, 0});
}

namespace {

struct Told {
    std::string op;
    std::vector<Shape> inputs, outputs;
    std::vector<double> parameter;  // as the watcher finds it
    std::uint32_t line;
};

template <class Options>
class UpdateListener : public OpWatcher {
 public:
    void begin(const char* op, Device, const Loc&) override { begun.push_back(op); }
    void before_write(const Tensor& self) override { before.push_back(self.to_vector<double>()); }
    void end(const RecordArgs& ran) override {
        Told one{ran.op.name, {}, {}, detail::handle_of(ran.outputs[0]).to_vector<double>(), ran.loc.line()};
        for (int i = 0; i < ran.input_count; ++i) one.inputs.push_back(ran.inputs[i]->shape());
        for (int k = 0; k < ran.output_count; ++k) one.outputs.push_back(detail::handle_of(ran.outputs[k]).shape());
        told.push_back(one);
        REQUIRE(ran.attr_bytes == sizeof(optim::UpdateAttrs<Options>));
        attrs.push_back(*static_cast<const optim::UpdateAttrs<Options>*>(ran.attrs));
    }
    std::vector<std::string> begun;
    std::vector<std::vector<double>> before;
    std::vector<Told> told;
    std::vector<optim::UpdateAttrs<Options>> attrs;
};

}  // namespace

TEST_CASE("watchers are told of a step's updates, one for each parameter") {
    Tensor w = tensor({1.0, 2.0}, {float64, cpu, true}), b = tensor({3.0}, {float32, cpu, true});
    Tensor half = ones({2}, {float16, cpu, true});
    const Tensor frozen = ones({2});
    w.set_grad(tensor({1.0, -1.0}, float64));
    b.set_grad(tensor({2.0}, float32));
    half.set_grad(ones({2}, float16));
    SECTION("with its name, what it read and wrote, and its options") {
        optim::SGD sgd({w, b, half, frozen}, {.lr = 0.5});
        UpdateListener<optim::SGDOptions> listener;
        std::uint32_t line = 0;
        {
            const WatchScope scope(listener);
            line = __LINE__ + 1;
            sgd.step();
        }
        CHECK(listener.begun == std::vector<std::string>(3, "sgd"));
        CHECK(listener.before == std::vector<std::vector<double>>{{1, 2}, {3}, {1, 1}});
        REQUIRE(listener.told.size() == 3);
        CHECK(listener.told[0].op == "sgd");
        CHECK(listener.told[0].inputs == std::vector<Shape>{Shape(2), Shape(2)});
        CHECK(listener.told[0].outputs == std::vector<Shape>{Shape(2)});
        CHECK(listener.told[0].parameter == std::vector<double>{0.5, 2.5});
        CHECK(listener.told[1].parameter == std::vector<double>{2});
        CHECK(listener.told[2].parameter == std::vector<double>{0.5, 0.5});
        CHECK(listener.told[0].line == line);
        CHECK(listener.attrs[0].options.lr == 0.5);
        CHECK(listener.attrs[0].steps == 1);
        CHECK(!listener.attrs[0].is_sparse);
        sgd.step();  // nobody watches
        CHECK(listener.told.size() == 3);
    }
    SECTION("with buffers, and the step's number") {
        optim::Adam adam({w}, {.lr = 0.1, .amsgrad = true});
        adam.step();
        UpdateListener<optim::AdamOptions> listener;
        const WatchScope scope(listener);
        adam.step();
        REQUIRE(listener.told.size() == 1);
        CHECK(listener.told[0].op == "adam");
        CHECK(listener.told[0].inputs == std::vector<Shape>(2, Shape(2)));
        CHECK(listener.told[0].outputs == std::vector<Shape>(4, Shape(2)));
        CHECK(listener.before.size() == 4);  // the buffers, too
        CHECK(listener.attrs[0].steps == 2);
        CHECK(!listener.attrs[0].is_first);
        CHECK(listener.attrs[0].options.amsgrad);
    }
    SECTION("of rows with their indices") {
        const nn::Embedding table(5, 3);
        optim::AdamW adamw(table.parameters(), {.weight_decay = 0.25});
        {
            Tape tape;
            tape.backward(sum(table(tensor({1, 3, 1}))));
        }
        UpdateListener<optim::AdamWOptions> listener;
        const WatchScope scope(listener);
        adamw.step();
        REQUIRE(listener.told.size() == 1);
        CHECK(listener.told[0].op == "adamw");
        CHECK(listener.told[0].inputs == std::vector<Shape>{Shape(5, 3), Shape(3, 3), Shape(3)});
        CHECK(listener.told[0].outputs == std::vector<Shape>(3, Shape(5, 3)));
        CHECK(listener.attrs[0].is_sparse);
        CHECK(listener.attrs[0].is_first);
        CHECK(listener.attrs[0].options.weight_decay == 0.25);
    }
    SECTION("not where watchers are paused") {
        optim::SGD sgd({w}, {.lr = 0.5});
        UpdateListener<optim::SGDOptions> listener;
        const WatchScope scope(listener);
        const detail::PauseRecording pause;
        sgd.step();
        CHECK(listener.told.empty());
    }
    SECTION("so that a profile shows them, and CheckFiniteScope the one that overflows") {
        optim::SGD sgd({w, b}, {.lr = 0.5});
        Profiler profiler;
        const int line = __LINE__ + 1;
        sgd.step();
        profiler.stop();
        const auto rows = profiler.rows();
        const auto row = std::find_if(rows.begin(), rows.end(), [](const ProfileRow& r) { return r.name == "sgd"; });
        REQUIRE(row != rows.end());
        CHECK(row->calls == 2);
        const auto lines = profiler.rows(ProfileTable::By::line);
        const std::string place = "optimizer_test.cpp:" + std::to_string(line) + " sgd";
        CHECK(std::any_of(lines.begin(), lines.end(), [&](const ProfileRow& r) { return r.name == place; }));
        sgd.set_lr(1e308);
        w.set_grad(tensor({100.0, 1.0}, float64));
        const CheckFiniteScope check;
        FAILS_IN(NonFiniteError, "sgd: makes inf of finite inputs: the parameter is float64", "\n  gradient: ", sgd.step());
    }
}

TEST_CASE("CheckFiniteScope finds the step that overflows in what an optimizer keeps") {
    const CheckFiniteScope check;
    SECTION("in the step that does") {
        Tensor p = ones({2}).requires_grad_();
        p.set_grad(full({2}, 3e38f));
        optim::SGD sgd({p}, {.lr = 0.1, .momentum = 0.9});
        CHECK_NOTHROW(sgd.step());
        FAILS_IN(NonFiniteError, "sgd: makes inf of finite inputs: the parameter is ", "momentum_buffer before: float32 (2,): min 3e+38", sgd.step());
    }
    SECTION("in the first one, by weight decay") {
        Tensor p = full({2}, 3e38f).requires_grad_();
        p.set_grad(full({2}, 3e38f));
        optim::SGD sgd({p}, {.lr = 1e-30, .momentum = 0.9, .weight_decay = 1});
        FAILS_IN(NonFiniteError, "sgd: makes inf of finite inputs", "overflow", sgd.step());
    }
    SECTION("where the parameter stays finite, and not again") {
        Tensor p = ones({2}).requires_grad_();
        p.set_grad(full({2}, 1e21f));
        optim::Adam adam({p}, {.lr = 0.1});  // 1e39 among its second moments: it stands still from here on
        FAILS_IN(NonFiniteError, "adam: makes inf of finite inputs: exp_avg_sq is float32 (2,): 2 inf of 2 elements", "overflow", adam.step());
        CHECK_NOTHROW(adam.step());  // it was infinite
        CHECK(p.isfinite().all().item<bool>());
    }
    SECTION("and names the parameter, where a module has it") {
        struct Model : nn::Module {
            nn::Linear forget{2, 3};
            void members(nn::Members& m) override { m("forget", forget); }
        } model;
        for (const Tensor& p : model.parameters()) Tensor(p).set_grad(full(p.shape(), 1.0));
        model.forget.bias.set_grad(full({3}, 1e21f));
        optim::Adam adam(model.parameters(), {.lr = 0.1});
        FAILS_IN(NonFiniteError, "adam: makes inf of finite inputs: exp_avg_sq of forget.bias is float32 (3,): 3 inf of 3 elements",
                 "\n  gradient: float32 (3,): min 1e+21", adam.step());
        optim::SGD sgd(model.parameters(), {.lr = 1e30});
        FAILS_IN(NonFiniteError, "sgd: makes inf of finite inputs: the parameter forget.bias is float32 (3,)",
                 "\n  parameter: float32 (3,): ", sgd.step());
    }
    SECTION("and an option that is infinite in the parameter's dtype") {
        Tensor p = ones({2}).requires_grad_();
        p.set_grad(ones({2}));
        optim::SGD sgd({p}, {.lr = 1e300});
        FAILS_IN(NonFiniteError, "sgd: makes inf of finite inputs", "", sgd.step());
    }
}

TEST_CASE("a step is whole where a watcher throws in the middle of it") {
    struct Thrower : OpWatcher {
        void begin(const char*, Device, const Loc&) override {
            if (++begun == throw_in_begin) throw std::runtime_error("begin " + std::to_string(begun));
        }
        void end(const RecordArgs&) override {
            if (++ended >= throw_in_end) throw std::runtime_error("end " + std::to_string(ended));
        }
        int begun = 0, ended = 0, throw_in_begin = 0, throw_in_end = 100;
    };
    const auto parameters_of = [](Thrower* watcher, const std::string& message) {
        std::vector<Tensor> parameters;
        for (int i = 0; i < 3; ++i) {
            parameters.push_back((ones({2}, float64) * (i + 1)).requires_grad_());
            parameters.back().set_grad(full({2}, 0.5 * (i + 1), float64));
        }
        optim::Adam adam(parameters, {.lr = 0.1});
        if (watcher) {
            const WatchScope scope(*watcher);
            CHECK_THROWS_WITH(adam.step(), message);
            CHECK(watcher->ended == 3);
        } else {
            adam.step();
        }
        adam.step();
        std::vector<double> values;
        for (const Tensor& p : parameters) values.push_back(p.at<double>({0}));
        return values;
    };
    const std::vector<double> expected = parameters_of(nullptr, "");
    Thrower at_end, at_begin;
    at_end.throw_in_end = 2;  // and in the third, which is not the first
    at_begin.throw_in_begin = 2;
    CHECK(parameters_of(&at_end, "end 2") == expected);
    CHECK(parameters_of(&at_begin, "begin 2") == expected);
}
