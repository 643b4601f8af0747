// Optimizers against PyTorch's parameters after 20 steps (goldens.h), sparse gradients against dense ones, groups, state.
#include <cmath>
#include <memory>
#include <typeinfo>

#include "../fails.h"
#include "../nn/check.h"
#include "goldens.h"
#include "tapir/autograd/meta_impl.h"
#include "tapir/optim/optim.h"

using namespace tapir;

namespace {

constexpr int kSteps = 20;

// As in tests/goldens/optim.py.
Tensor values(const Shape& shape, double seed, DType dtype) { return check::values(shape, seed, dtype); }

struct Parameters {
    Tensor a, b;
    explicit Parameters(DType dtype) : a(values({3, 4}, 1, dtype)), b(values({5}, 2, dtype)) {
        a.requires_grad_();
        b.requires_grad_();
    }
    std::vector<Tensor> all() const { return {a, b}; }
};

void give_gradients(const Parameters& p, int t) {
    double seed = 3 + 0.9 * t;
    for (Tensor x : p.all()) x.set_grad(values(x.shape(), seed++, x.dtype()) + x.detach() * 0.1);
}

template <class Opt>
void run(Opt& opt, const Parameters& p, int from = 0, int to = kSteps) {
    for (int t = from; t < to; ++t) {
        give_gradients(p, t);
        opt.step();
    }
}

template <class Opt, class Options>
void compare(const char* name, const Options& options, const std::vector<double>& golden) {
    for (const DType dtype : {float32, float64}) {
        const Parameters p(dtype);
        Opt opt(p.all(), options);
        run(opt, p);
        check::same(name, cat({p.a.reshape({-1}), p.b}), golden, 1e-5);
    }
}

const std::vector<std::vector<std::int64_t>> kRows = {{0, 4, 4, 2}, {2, 2, 5}, {1, 4}, {5, 0, 0, 0, 1}};

// The same gradients through an embedding, as rows or as a whole table.
template <class Opt, class Options>
Tensor train_table(const Options& options, bool sparse, DType dtype = float32, std::int64_t rows = 6) {
    nn::Embedding table(rows, 3, {.sparse = sparse});
    table.to(dtype);
    check::fill(table.weight.detach().narrow(0, 0, 6), 1);
    Opt opt(table.parameters(), options);
    for (int t = 0; t < kSteps; ++t) {
        const auto& used = kRows[static_cast<std::size_t>(t) % kRows.size()];
        const Tensor g = values({static_cast<std::int64_t>(used.size()), 3}, 3 + 0.9 * t, dtype);
        {
            Tape tape;
            tape.backward(sum(table(tensor(used)) * g));
        }
        opt.step();
        opt.zero_grad();
    }
    return table.weight.detach();
}

}  // namespace

TEST_CASE("optimizers make PyTorch's steps") {
    using namespace optim;
    compare<SGD>("sgd", SGDOptions{.lr = 0.1}, goldens::sgd);
    compare<SGD>("sgd_decay", SGDOptions{.lr = 0.1, .weight_decay = 0.05}, goldens::sgd_decay);
    compare<SGD>("sgd_momentum", SGDOptions{.lr = 0.1, .momentum = 0.9}, goldens::sgd_momentum);
    compare<SGD>("sgd_dampening", SGDOptions{.lr = 0.1, .momentum = 0.8, .dampening = 0.3, .weight_decay = 0.02},
                 goldens::sgd_dampening);
    compare<SGD>("sgd_nesterov", SGDOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true},
                 goldens::sgd_nesterov);
    compare<Adagrad>("adagrad", AdagradOptions{}, goldens::adagrad);
    compare<Adagrad>("adagrad_all",
                     AdagradOptions{.lr = 0.2, .lr_decay = 0.1, .weight_decay = 0.03, .initial_accumulator_value = 0.5, .eps = 1e-6},
                     goldens::adagrad_all);
    compare<Adam>("adam", AdamOptions{}, goldens::adam);
    compare<Adam>("adam_all", AdamOptions{.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1},
                  goldens::adam_all);
    compare<Adam>("adam_amsgrad", AdamOptions{.lr = 0.02, .amsgrad = true}, goldens::adam_amsgrad);
    compare<AdamW>("adamw", AdamWOptions{.lr = 0.01}, goldens::adamw);
    compare<AdamW>("adamw_amsgrad", AdamWOptions{.lr = 0.05, .weight_decay = 0.3, .amsgrad = true}, goldens::adamw_amsgrad);
    compare<RMSprop>("rmsprop", RMSpropOptions{}, goldens::rmsprop);
    compare<RMSprop>("rmsprop_all",
                     RMSpropOptions{.lr = 0.02, .alpha = 0.9, .eps = 1e-6, .weight_decay = 0.1, .momentum = 0.8, .centered = true},
                     goldens::rmsprop_all);
    compare<RMSprop>("rmsprop_momentum", RMSpropOptions{.lr = 0.02, .momentum = 0.5}, goldens::rmsprop_momentum);
    compare<RMSprop>("rmsprop_centered", RMSpropOptions{.lr = 0.02, .centered = true}, goldens::rmsprop_centered);
    compare<Adadelta>("adadelta", AdadeltaOptions{}, goldens::adadelta);
    compare<Adadelta>("adadelta_all", AdadeltaOptions{.lr = 0.5, .rho = 0.8, .eps = 1e-3, .weight_decay = 0.1}, goldens::adadelta_all);
    compare<Adamax>("adamax", AdamaxOptions{}, goldens::adamax);
    compare<Adamax>("adamax_all", AdamaxOptions{.lr = 0.05, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.1},
                    goldens::adamax_all);
    compare<NAdam>("nadam", NAdamOptions{}, goldens::nadam);
    compare<NAdam>("nadam_all",
                   NAdamOptions{.lr = 0.05, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1, .momentum_decay = 0.3},
                   goldens::nadam_all);
    compare<RAdam>("radam", RAdamOptions{}, goldens::radam);
    compare<RAdam>("radam_all", RAdamOptions{.lr = 0.05, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1},
                   goldens::radam_all);
}

TEST_CASE("optimizers that PyTorch does not have make the steps of their papers") {
    using namespace optim;
    compare<Lion>("lion", LionOptions{}, goldens::lion);
    compare<Lion>("lion_all", LionOptions{.lr = 0.03, .beta1 = 0.7, .beta2 = 0.9, .weight_decay = 0.2}, goldens::lion_all);
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

TEST_CASE("row-sparse gradients make PyTorch's steps") {
    using namespace optim;
    check::same("sparse_sgd", train_table<SGD>(SGDOptions{.lr = 0.1}, true), goldens::sparse_sgd, 1e-5);
    check::same("sparse_adagrad", train_table<Adagrad>(AdagradOptions{.lr = 0.1}, true), goldens::sparse_adagrad, 1e-5);
    check::same("sparse_adam", train_table<Adam>(AdamOptions{.lr = 0.01}, true), goldens::sparse_adam, 1e-5);
}

TEST_CASE("SGD and Adagrad make the same step from rows as from the whole table") {
    using namespace optim;
    const auto dense_sgd = train_table<SGD>(SGDOptions{.lr = 0.1}, false, float64).to_vector<double>();
    check::same("sgd", train_table<SGD>(SGDOptions{.lr = 0.1}, true, float64), dense_sgd, 1e-14);
    const auto dense_adagrad = train_table<Adagrad>(AdagradOptions{.lr = 0.1}, false, float64).to_vector<double>();
    check::same("adagrad", train_table<Adagrad>(AdagradOptions{.lr = 0.1}, true, float64), dense_adagrad, 1e-14);
}

namespace {

// Calls test.operator()<Optimizer>(options) for those that keep buffers beside a table's rows.
template <class Test>
void for_all_lazy(const Test& test) {
    using namespace optim;
    test.template operator()<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
    test.template operator()<Adagrad>(AdagradOptions{.lr_decay = 0.1, .weight_decay = 0.1});
    test.template operator()<AdagradDA>(AdagradDAOptions{.lr = 0.3, .l1 = 0.02, .l2 = 0.05});
    test.template operator()<RMSprop>(RMSpropOptions{.weight_decay = 0.1, .momentum = 0.8, .centered = true});
    test.template operator()<Adadelta>(AdadeltaOptions{.weight_decay = 0.1});
    test.template operator()<Adam>(AdamOptions{.weight_decay = 0.1, .amsgrad = true});
    test.template operator()<AdamW>(AdamWOptions{.lr = 0.01});
    test.template operator()<Adamax>(AdamaxOptions{.weight_decay = 0.1});
    test.template operator()<NAdam>(NAdamOptions{.weight_decay = 0.1});
    test.template operator()<RAdam>(RAdamOptions{.lr = 0.01, .weight_decay = 0.1});
    test.template operator()<Lion>(LionOptions{.lr = 0.01, .weight_decay = 0.1});
}

// A table all of whose rows are used in each step, some repeatedly.
template <class Opt, class Options>
Tensor train_all_rows(const Options& options, bool sparse) {
    nn::Embedding table(4, 3, {.sparse = sparse});
    table.to(float64);
    check::fill(table.weight.detach(), 1);
    Opt opt(table.parameters(), options);
    for (int t = 0; t < 8; ++t) {
        Tape tape;
        tape.backward(sum(table(tensor({2, 0, 3, 2, 1})) * values({5, 3}, t, float64)));
        opt.step();
        opt.zero_grad();
    }
    return table.weight.detach();
}

}  // namespace

TEST_CASE("every optimizer makes the dense step from rows where all are used") {
    for_all_lazy([]<class Opt>(const auto& options) {
        const auto dense = train_all_rows<Opt>(options, false).template to_vector<double>();
        check::same(typeid(Opt).name(), train_all_rows<Opt>(options, true), dense, 1e-13);
    });
}

TEST_CASE("every optimizer computes the step of 16-bit parameters in float32") {
    for_all_lazy([]<class Opt>(const auto& options) {
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

TEST_CASE("a sparse step leaves unused rows alone, whatever the options") {
    using namespace optim;
    const Tensor start = values({6, 3}, 1, float32);
    const auto row3 = start[3].to_vector<float>();
    CHECK(train_table<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1}, true)[3].to_vector<float>() == row3);
    CHECK(train_table<AdamW>(AdamWOptions{.lr = 0.1}, true)[3].to_vector<float>() == row3);
    CHECK(train_table<Adagrad>(AdagradOptions{.weight_decay = 0.1}, true, float32, 100)[3].to_vector<float>() == row3);
    // The gradient stays sparse until somebody reads it.
    nn::Embedding table(1000000, 4);
    Tape tape;
    tape.backward(sum(table(tensor({5, 7, 5}))));
    SGD opt(table.parameters(), {.lr = 1});
    const float before = table.weight.at<float>({5, 0});
    opt.step();
    CHECK(table.weight.at<float>({5, 0}) == Approx(before - 2));
    CHECK(table.weight.grad()[5].to_vector<float>() == std::vector<float>{2, 2, 2, 2});
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
    for_all_lazy([]<class Opt>(auto options) {
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
    FAILS(ValueError, "load_state_dict: the state is not of this LBFGS:\n  out of range: iterations", lbfgs.load_state_dict(with(lbfgs.state_dict(), "iterations", -1)));
    CHECK(adam.options().beta1 == 0.9);
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
    CHECK(check::begins(check::message<ValueError>([&] { Adam({w}, {.beta1 = 1}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { Adagrad({w}, {.eps = NAN}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { RMSprop({w}, {.alpha = 1}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { Adadelta({w}, {.rho = 1.5}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { Adamax({w}, {.beta2 = -1}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { NAdam({w}, {.momentum_decay = -1}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { RAdam({w}, {.beta2 = 1}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { Lion({w}, {.lr = -1}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { AdagradDA({w}, {.l1 = -1}); }), line(__LINE__)));
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

TEST_CASE("clip_grad_norm_ scales all gradients together") {
    Tensor a = ones({2}).requires_grad_(), b = ones({1, 2}).requires_grad_(), none = ones({2}).requires_grad_();
    const auto reset = [&] {
        a.set_grad(tensor({3.0, 0.0}));
        b.set_grad(tensor({{0.0, -4.0}}));
    };
    reset();
    CHECK(optim::clip_grad_norm_({a, b, none}, 10).item() == Approx(5));
    CHECK(a.grad().to_vector<float>() == std::vector<float>{3, 0});
    CHECK(optim::clip_grad_norm_({a, b, none, a}, 1).item() == Approx(5));
    check::same("a", a.grad(), {0.6, 0}, 1e-6);
    check::same("b", b.grad(), {0, -0.8}, 1e-6);
    reset();
    CHECK(optim::clip_grad_norm_({a, b}, 1, 1).item() == Approx(7));
    reset();
    CHECK(optim::clip_grad_norm_({a, b}, 2, INFINITY).item() == Approx(4));
    check::same("b", b.grad(), {0, -2}, 1e-6);
    reset();
    CHECK(optim::clip_grad_norm_({a, b}, 100, 3).item() == Approx(std::cbrt(91.0)));
    optim::clip_grad_value_({a, b, none}, 2);
    check::same("a", a.grad(), {2, 0}, 1e-6);
    check::same("b", b.grad(), {0, -2}, 1e-6);
    a.set_grad(full({2}, 1e30));  // its squares are beyond float
    CHECK(optim::clip_grad_norm_({a}, 1).item() == Approx(std::sqrt(2.0) * 1e30));
    CHECK(!check::message<ValueError>([&] { optim::clip_grad_norm_({a}, -1); }).empty());
    CHECK(!check::message<ValueError>([&] { optim::clip_grad_norm_({a}, 1, 0); }).empty());
    CHECK(!check::message<ValueError>([&] { optim::clip_grad_value_({a}, NAN); }).empty());
}

TEST_CASE("clipping sums up repeated rows first, and keeps them sparse") {
    nn::Embedding table(5, 2);
    const auto backward = [&] {
        table.zero_grad();
        Tape tape;
        tape.backward(sum(table(tensor({1, 3, 1}))));
    };
    backward();
    const double norm = std::sqrt(2 * 4.0 + 2 * 1.0);
    CHECK(optim::clip_grad_norm_(table.parameters(), 1).item() == Approx(norm));
    const Tensor start = table.weight.clone().detach();
    optim::SGD(table.parameters(), {.lr = 1}).step();
    check::same("row 1", start[1] - table.weight.detach()[1], {2 / norm, 2 / norm}, 1e-5);
    backward();
    optim::clip_grad_value_(table.parameters(), 1.5);
    check::same("values", table.weight.grad(), {0, 0, 1.5, 1.5, 0, 0, 1, 1, 0, 0}, 1e-6);
}

TEST_CASE("norms of large gradients are their definition's, the same on any number of threads") {
    const int before = num_threads();
    for (const DType dtype : {float32, float64}) {
        const std::int64_t n = 700'001;  // more than the blocks of several threads, and a rest
        Tensor w = zeros({n}, dtype).requires_grad_(), small = zeros({5000}, dtype).requires_grad_();
        const Tensor g = check::values({n}, 1, dtype), h = check::values({5000}, 2, dtype);
        const auto numbers = g.to_vector<double>(), more = h.to_vector<double>();
        for (const double p : {1.0, 2.0, 2.5, 3.0, static_cast<double>(INFINITY)}) {
            double expected = 0;
            for (const auto& list : {numbers, more}) {
                for (const double x : list) expected = std::isinf(p) ? std::max(expected, std::abs(x)) : expected + std::pow(std::abs(x), p);
            }
            if (!std::isinf(p)) expected = std::pow(expected, 1 / p);
            std::vector<double> norms;
            std::vector<std::vector<float>> clipped;
            for (const int threads : {1, 2, 3}) {
                set_num_threads(threads);
                w.set_grad(g.clone());
                small.set_grad(h.clone());
                norms.push_back(optim::clip_grad_norm_({w, small, w}, 0.5, p).item());
                clipped.push_back(w.grad().to_vector<float>());
            }
            CHECK(norms[0] == Approx(expected).epsilon(dtype == float64 ? 1e-12 : 1e-6));
            CHECK(norms[1] == norms[0]);
            CHECK(norms[2] == norms[0]);
            CHECK(clipped[1] == clipped[0]);
            CHECK(clipped[2] == clipped[0]);
            CHECK(clipped[0][7] == Approx(numbers[7] * std::min(1.0, 0.5 / expected)).epsilon(1e-5));
        }
        set_num_threads(2);
        Tensor odd = g.clone();
        odd[600'000].fill_(NAN);
        odd[5].fill_(INFINITY);
        w.set_grad(odd);
        for (const double p : {1.0, 2.0, 3.0, static_cast<double>(INFINITY)}) {
            CHECK(std::isnan(optim::clip_grad_norm_({w}, INFINITY, p).item()));
            w.set_grad(odd.clone());
        }
        w.set_grad(g.clone());
        optim::clip_grad_value_({w}, 0.25);
        CHECK(w.grad().equal(g.clamp(-0.25, 0.25)));
    }
    set_num_threads(before);
}

TEST_CASE("many repeated rows are summed up as their definition says, the same on any number of threads") {
    const int before = num_threads();
    for (const std::int64_t row_count : {1, 2, 40, 3000, 70'000}) {
        INFO(row_count << " rows");
        const std::int64_t count = 5000, width = 7;
        Generator random(3);
        Tensor index = randint(0, row_count, {count}, random);
        index = where(arange(count).remainder(3).eq(0), index - row_count, index);  // some count from the end
        const Tensor weights = check::values({count, width}, 4, float32);
        std::vector<std::vector<float>> results;
        for (const int threads : {1, 2, 3}) {
            set_num_threads(threads);
            nn::Embedding table(row_count, width);
            table.weight.copy_(zeros({row_count, width}));
            optim::SGD sgd(table.parameters(), {.lr = 1});
            Tape tape;
            tape.backward(sum(table(index) * weights));
            sgd.step();
            results.push_back(table.weight.to_vector<float>());
        }
        CHECK(results[1] == results[0]);
        CHECK(results[2] == results[0]);
        std::vector<float> expected(static_cast<std::size_t>(row_count * width));
        const auto rows = index.to_vector<std::int64_t>();
        const auto values = weights.to_vector<float>();
        for (std::size_t i = 0; i < rows.size(); ++i) {  // in the order of the positions
            const auto row = static_cast<std::size_t>(rows[i] < 0 ? rows[i] + row_count : rows[i]);
            for (std::size_t j = 0; j < width; ++j) expected[row * width + j] += values[i * width + j];
        }
        for (float& x : expected) x = -x;
        CHECK(results[0] == expected);
    }
    set_num_threads(before);
}

TEST_CASE("clipping rows that need no summing up leaves what they were made of") {
    nn::Embedding table(5, 2);
    const Tensor kept = full({2, 2}, 4.0);
    const Tensor other = zeros({2, 2}).requires_grad_();
    Tape tape;
    tape.backward(table(tensor({1, 3})) + other, {.gradient = kept});
    optim::clip_grad_norm_(table.parameters(), 0.1);
    CHECK(other.grad().to_vector<float>() == std::vector<float>(4, 4.0F));
    CHECK(kept.to_vector<float>() == std::vector<float>(4, 4.0F));
    CHECK(optim::clip_grad_norm_(table.parameters(), 1e9).item() == Approx(0.1));
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

TEST_CASE("reading a row-sparse gradient does not change what a step does") {
    // The rows that each of several passes uses, with repeats; what the reader does between backward and step.
    const auto trained = [](const auto& make, DType dtype, double scale, auto read) {
        nn::Embedding table(6, 3);
        check::fill(table.weight.detach(), 1);
        table.to(dtype);
        const auto optimizer = make(table.parameters());
        const std::vector<std::vector<std::int64_t>> used = {{1, 3, 1}, {0, 3}, {5, 5, 2, 0}, {4}};
        for (std::size_t step = 0; step < used.size(); ++step) {
            for (const std::int64_t more : {0, 1}) {  // two passes a step: a gradient that is read is added to
                Tape tape;
                const Tensor rows = table(tensor(used[(step + static_cast<std::size_t>(more)) % used.size()]));
                tape.backward(sum(rows * rows * scale));
                if (more == 0) read(table.weight, /*last=*/false);
            }
            read(table.weight, /*last=*/true);
            optimizer->step();
            optimizer->zero_grad();
        }
        return table.weight.template to_vector<double>();
    };
    const auto nothing = [](const Tensor&, bool) {};
    const auto looks = [hooked = Tensor()](const Tensor& w, bool) mutable {  // by a hook, from the second backward on
        if (hooked.is_same(w)) return;
        hooked = w;
        w.register_hook([](const Tensor& g) {
            CHECK(g.dim() == 2);
            return Tensor();
        });
    };
    const auto prints = [](const Tensor& w, bool) { CHECK(w.grad().norm().item() > 0); };
    const auto check_all = [&](const auto& make) {
        for (const DType dtype : {float32, float64}) {
            CHECK(trained(make, dtype, 1, prints) == trained(make, dtype, 1, nothing));
            CHECK(trained(make, dtype, 1, looks) == trained(make, dtype, 1, nothing));
            // At the end only, and half of it: the same as of half the loss.
            const auto halves = [](const Tensor& w, bool last) {
                if (last) w.grad().mul_(0.5);
            };
            CHECK(trained(make, dtype, 1, halves) == trained(make, dtype, 0.5, nothing));
            const auto clips = [](const Tensor& w, bool last) {
                if (last) optim::clip_grad_value_({w}, 0.25);
            };
            const auto reads_and_clips = [&](const Tensor& w, bool last) {
                prints(w, last);
                clips(w, last);
            };
            CHECK(trained(make, dtype, 1, reads_and_clips) == trained(make, dtype, 1, clips));
            const auto converts = [&](const Tensor& w, bool last) {
                prints(w, last);
                struct One : nn::Module {
                    Tensor w;
                    void members(nn::Members& m) override { m("w", w); }
                } one;
                one.w = w;
                one.to(float64);
            };
            if (dtype == float64) CHECK(trained(make, dtype, 1, converts) == trained(make, dtype, 1, nothing));
        }
    };
    check_all([](const auto& p) { return std::make_unique<optim::AdamW>(p, optim::AdamWOptions{.lr = 0.1, .weight_decay = 0.5}); });
    check_all([](const auto& p) {
        return std::make_unique<optim::SGD>(p, optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.5});
    });
}

TEST_CASE("a row-sparse gradient that was read and changed is stepped with as it is then") {
    const auto stepped = [](const auto& change) {
        nn::Embedding table(4, 1);
        table.weight.detach().fill_(1);
        optim::SGD sgd(table.parameters(), {.lr = 1, .weight_decay = 1});
        Tape tape;
        tape.backward(sum(table(tensor({1, -1, 1}))));
        change(table.weight);
        sgd.step();
        return table.weight.to_vector<double>();
    };
    using V = std::vector<double>;
    CHECK(stepped([](const Tensor&) {}) == V{1, -2, 1, -1});
    CHECK(stepped([](const Tensor& w) { w.grad(); }) == V{1, -2, 1, -1});
    CHECK(stepped([](const Tensor& w) { w.grad().neg_(); }) == V{1, 2, 1, 1});  // the other rows are -0 then
    CHECK(stepped([](const Tensor& w) { w.grad().index_put_({1}, 0); }) == V{1, 0, 1, -1});  // used, although it is 0 now
    CHECK(stepped([](const Tensor& w) { w.grad().data<float>()[1] = 5; }) == V{1, -5, 1, -1});
    CHECK(stepped([](const Tensor& w) { w.grad().data<float>()[0] = 5; }) == V{-5, -2, 0, -1});                       // dense
    CHECK(stepped([](const Tensor& w) { w.grad().add_(tensor({{1.0}, {0.0}, {0.0}, {0.0}})); }) == V{-1, -2, 0, -1});  // dense
    CHECK(stepped([](Tensor w) { w.set_grad(w.grad() * 2); }) == V{0, -4, 0, -2});                                    // dense
    CHECK(stepped([](Tensor w) {
        w.grad();
        w.zero_grad();
        w.set_grad(ones({4, 1}));
    }) == V{-1, -1, -1, -1});
}

TEST_CASE("a read gradient is known to have no more rows until somebody may have written to it") {
    nn::Embedding table(4, 1, {.sparse = true});
    const AutogradMeta& meta = *table.weight.impl()->meta;
    const auto pass = [&] {
        Tape tape;
        tape.backward(sum(table(tensor({1, -1, 1}))));
    };
    const auto read = [&] {
        table.zero_grad();
        pass();
        return table.weight.grad();
    };
    CHECK(!meta.is_sure_of_rows());
    Tensor g = read();
    CHECK(meta.is_sure_of_rows());
    pass();
    g = table.weight.grad();  // one was added to the other
    CHECK(meta.is_sure_of_rows());
    table.to(float64);
    CHECK(meta.is_sure_of_rows());
    table.to(float32);
    optim::SGD sgd(table.parameters(), {.lr = 0.1});
    optim::GradScaler scaler;
    scaler.unscale_(sgd);
    CHECK(meta.is_sure_of_rows());
    g = table.weight.grad();
    g.mul_(2);
    CHECK(!meta.is_sure_of_rows());
    pass();
    g = table.weight.grad();  // not even then
    CHECK(meta.used_rows.defined());
    CHECK(!meta.is_sure_of_rows());
    g = read();
    g[0].fill_(1);
    CHECK(!meta.is_sure_of_rows());
    table.to(float64);  // its storage is another one, with a version of its own
    CHECK(!meta.is_sure_of_rows());
    table.to(float32);
    g = read();
    g.data<float>();
    CHECK(!meta.is_sure_of_rows());
    read();
    CHECK(meta.is_sure_of_rows());
    table.weight.set_grad(ones({4, 1}));
    CHECK(!meta.is_sure_of_rows());
    // What was written to another row is not forgotten when more rows come.
    read()[2].fill_(1);
    pass();
    const double before = table.weight.at<float>({2, 0});
    sgd.step();
    CHECK(std::abs(before - table.weight.at<float>({2, 0}) - 0.1) < 1e-6);
    table.weight.register_hook([](const Tensor&) { return Tensor(); });
    read();
    CHECK(meta.used_rows.defined());
    CHECK(!meta.is_sure_of_rows());
}

TEST_CASE("a dense gradient is dense after it was read, whatever rows come to it") {
    // The table is the output layer's weight, too: its gradient has all rows.
    const auto trained = [](int reads) {
        nn::Embedding table(4, 2);
        check::fill(table.weight.detach(), 1);
        optim::SGD sgd(table.parameters(), {.lr = 1, .momentum = 0.5, .weight_decay = 1});
        for (int pass = 0; pass < 3; ++pass) {
            Tape tape;
            const Tensor h = table(tensor({1}));
            tape.backward(pass == 1 ? sum(matmul(h, table.weight.t())) : sum(h));
            if (reads & (1 << pass)) table.weight.grad();
        }
        sgd.step();
        return table.weight.to_vector<double>();
    };
    for (int reads = 1; reads < 8; ++reads) {
        const std::vector<double> have = trained(reads), want = trained(0);
        for (std::size_t i = 0; i < want.size(); ++i) CHECK(have[i] == Approx(want[i]).epsilon(1e-6));
    }
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
