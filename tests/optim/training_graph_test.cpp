// A whole training step as one graph: loss, gradients and the optimizer's update. It goes on from where the program stands, with the
// same tensors.
#include <catch2/catch.hpp>

#include <typeinfo>

#include "../fails.h"
#include "steps.h"
#include "tapir/autograd/trace/check_trace.h"
#include "tapir/autograd/trace/graph/graph_file.h"
#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

struct Net : nn::Module {
    nn::Linear a{4, 8, {.bias = false}}, b{8, 3};  // a bias before the norm has no gradient, but rounding
    nn::BatchNorm1d norm{8};
    void members(nn::Members& m) override { m("a", a)("norm", norm)("b", b); }
    Tensor forward(const Tensor& x) const { return b(relu(norm(a(x)))); }
};

template <class Optimizer>
Tensor train_step(Net& net, Optimizer& optimizer, const Tensor& x, const Tensor& y) {
    optimizer.zero_grad();
    Tape tape;
    const Tensor loss = cross_entropy(net.forward(x), y);
    tape.backward(loss);
    optimizer.step();
    return loss;
}

void check_same_state(const Net& a, const Net& b) {
    const NamedTensors mine = a.state_dict(), wanted = b.state_dict();
    REQUIRE(mine.size() == wanted.size());
    for (std::size_t i = 0; i < mine.size(); ++i) {
        INFO(mine[i].name);
        CHECK(allclose(mine[i].tensor.to(float64), wanted[i].tensor.to(float64), 1e-5, 1e-6));
    }
}

}  // namespace

TEMPLATE_TEST_CASE("a training step that clips, as a graph", "", optim::SGD, optim::Adam) {
    const bool by_value = GENERATE(false, true);
    const double p = by_value ? 2 : GENERATE(2.0, 3.0, INFINITY);
    const bool is_named = GENERATE(false, true);
    CAPTURE(by_value, p, is_named);
    manual_seed(2);
    Net eager, traced;
    traced.load_state_dict(eager.state_dict());
    TestType eager_optimizer(eager.parameters(), {.lr = 0.05}), optimizer(traced.parameters(), {.lr = 0.05});
    const auto clipping = [&](Net& net, TestType& own) {
        return [&](const Tensor& x, const Tensor& y) {
            own.zero_grad();
            Tape tape;
            const Tensor loss = cross_entropy(net.forward(x), y);
            tape.backward(loss);
            Tensor norm = zeros({});
            if (by_value) {
                optim::clip_grad_value_(net.parameters(), 0.02);
            } else {
                norm = optim::clip_grad_norm_(net.parameters(), 0.1, p);
            }
            own.step();
            return std::pair{loss, norm};
        };
    };
    const auto eager_step = clipping(eager, eager_optimizer), step = clipping(traced, optimizer);
    const Tensor x = randn({6, 4}), y = randint(0, 3, {6});
    const std::vector<std::string> dims = is_named ? std::vector<std::string>{"batch"} : std::vector<std::string>{};
    eager_step(x, y);
    const Graph graph = trace(step, {{"x", x, dims}, {"y", y, dims}}, {.outputs = {"loss", "norm"}});
    INFO(graph.str());
    check_same_state(traced, eager);
    for (int i = 0; i < 10; ++i) {
        const std::int64_t n = is_named ? 4 + i : 6;
        const Tensor a = randn({n, 4}) * (i % 2 ? 1 : 0.01), b = randint(0, 3, {n});  // with and without something to clip
        const auto [loss, norm] = eager_step(a, b);
        const std::vector<Tensor> got = graph.run({{"x", a}, {"y", b}});
        CHECK(allclose(got[0], loss, 1e-5, 1e-6));
        CHECK(got[1].dtype() == norm.dtype());
        CHECK(allclose(got[1], norm, 1e-5, 1e-6));
        check_same_state(traced, eager);
    }
}

TEST_CASE("clipping that a graph cannot hold is refused") {
    nn::Linear net(4, 3);
    net.parameters();
    {
        Tape tape;
        tape.backward(net(ones({2, 4})).sum());
    }
    const auto fn = [&](const Tensor& x) { return x * optim::clip_grad_norm_(net.parameters(), 1); };
    CHECK_THROWS_WITH(trace(fn, {{"x", ones({2})}}), Catch::Contains("the gradient of weight was there before the trace"));
    const auto by_value = [&](const Tensor& x) {
        optim::clip_grad_value_(net.parameters(), 1);
        return x;
    };
    CHECK_THROWS_WITH(trace(by_value, {{"x", ones({2})}}), Catch::Contains("clip_grad_value_: the gradient of weight was there before the trace"));
    net.zero_grad();
    CHECK(trace(fn, {{"x", ones({2})}})({ones({2})})[0].sum().item() == 0);  // nothing to clip
    optim::SGD sgd(net.parameters(), {.lr = 0.1});
    optim::GradScaler scaler;
    const auto scaled = [&](const Tensor& x) {
        Tape tape;
        tape.backward(scaler.scale(net(x).sum()));
        scaler.step(sgd);
        return x;
    };
    FAILS(TapeError, "scale: a graph cannot hold a GradScaler", trace([&](const Tensor& x) { return scaler.scale(x); }, {{"x", ones({})}}));
    CHECK_THROWS_AS(trace(scaled, {{"x", ones({2, 4})}}), TapeError);
}

TEMPLATE_TEST_CASE("a training step as a graph", "", optim::SGD, optim::Adam, optim::AdamW, optim::NAdam, optim::RMSprop, optim::Adagrad,
                   optim::Rprop, optim::ASGD) {
    manual_seed(1);
    Net eager, traced;
    traced.load_state_dict(eager.state_dict());
    TestType eager_optimizer(eager.parameters(), {.lr = 0.05}), optimizer(traced.parameters(), {.lr = 0.05});
    const auto batch = [](int n) { return std::pair{randn({n, 4}), randint(0, 3, {n})}; };
    const auto [x, y] = batch(6);
    train_step(eager, eager_optimizer, x, y);
    Graph graph = trace([&](const Tensor& a, const Tensor& b) { return train_step(traced, optimizer, a, b); },
                        {{"x", x, {"batch"}}, {"y", y, {"batch"}}}, {.outputs = {"loss"}});
    INFO(graph.str());
    check_same_state(traced, eager);  // the trace is a step, too
    for (const int n : {6, 3, 9}) {
        const auto [a, b] = batch(n);
        const Tensor wanted = train_step(eager, eager_optimizer, a, b), got = graph.run({{"x", a}, {"y", b}}, {})[0];
        CHECK(allclose(got, wanted));
        check_same_state(traced, eager);
    }
    optimize(graph);
    const auto [a, b] = batch(5);
    CHECK(allclose(graph({a, b})[0], train_step(eager, eager_optimizer, a, b)));
    check_same_state(traced, eager);
    SECTION("the program goes on") {
        const auto [c, d] = batch(4);
        CHECK(allclose(train_step(traced, optimizer, c, d), train_step(eager, eager_optimizer, c, d)));
        check_same_state(traced, eager);
        const NamedTensors state = optimizer.state_dict(), wanted = eager_optimizer.state_dict();
        REQUIRE(state.size() == wanted.size());
        for (std::size_t i = 0; i < state.size(); ++i) {
            INFO(state[i].name);
            CHECK(allclose(state[i].tensor, wanted[i].tensor, 1e-5, 1e-6));
        }
    }
    SECTION("from a file") {
        const std::string path = "training_step.graph";
        save_graph(path, graph);
        const Graph loaded = load_graph(path);
        const auto [c, d] = batch(4);
        CHECK(allclose(loaded.run({{"x", c}, {"y", d}})[0], graph.run({{"x", c}, {"y", d}})[0]));
        CHECK(allclose(loaded.run({{"x", c}, {"y", d}})[0], graph.run({{"x", c}, {"y", d}})[0]));
        std::remove(path.c_str());
    }
    SECTION("what was there before comes back") {
        const NamedTensors state = optimizer.state_dict();
        NamedTensors weights;
        for (const auto& [name, t] : traced.state_dict()) weights.push_back({name, t.clone()});
        const auto [c, d] = batch(4);
        const Tensor loss = graph.run({{"x", c}, {"y", d}})[0], next = graph.run({{"x", c}, {"y", d}})[0];
        optimizer.load_state_dict(state);
        traced.load_state_dict(weights);
        CHECK(allclose(graph.run({{"x", c}, {"y", d}})[0], loss));
        CHECK(allclose(graph.run({{"x", c}, {"y", d}})[0], next));
    }
}

namespace {

// Of an embedding with row-sparse gradients, whose rows are used several times, or not at all.
template <class Opt, class Options>
void check_embedding_steps(const Options& options, bool clips) {
    manual_seed(3);
    nn::Embedding eager(7, 3), traced(7, 3);
    traced.load_state_dict(eager.state_dict());
    Opt eager_optimizer(eager.parameters(), options), optimizer(traced.parameters(), options);
    const auto step_of = [clips](nn::Embedding& table, Opt& own) {
        return [&table, &own, clips](const Tensor& tokens, const Tensor& factors) {
            own.zero_grad();
            Tape tape;
            const Tensor loss = (table(tokens) * factors).sum();
            tape.backward(loss);
            if (clips) optim::clip_grad_norm_(table.parameters(), 0.5);
            own.step();
            return loss;
        };
    };
    const auto eager_step = step_of(eager, eager_optimizer), step = step_of(traced, optimizer);
    const auto factors = [](std::int64_t n) { return randn({n, 3}); };
    const auto is_alike = [&] { return allclose(traced.weight.detach(), eager.weight.detach(), 1e-5, 1e-6); };
    const Tensor before = tensor({0, 4, 4}), first = tensor({2, 2, 5}), weights[] = {factors(3), factors(3)};
    eager_step(before, weights[0]);
    step(before, weights[0]);
    eager_step(first, weights[1]);
    const Graph graph = trace(step, {{"tokens", first, {"n"}}, {"factors", weights[1], {"n"}}});
    CHECK(is_alike());
    const auto compiled = graph.compile();
    for (const std::vector<std::int64_t>& rows : {std::vector<std::int64_t>{1, 4}, {5, 0, 0, 0, 1}, {3}, {6, 6, 2, 0}}) {
        const Tensor tokens = tensor(rows), f = factors(tokens.numel());
        const Tensor wanted = eager_step(tokens, f);
        const Tensor got = rows.size() % 2 ? graph({tokens, f})[0] : compiled({tokens, f})[0];
        CHECK(allclose(got, wanted, 1e-5, 1e-6));
        CHECK(is_alike());
    }
    const Tensor f = factors(2);
    if (!clips) CHECK(check_trace(graph, step, {tensor({3, 1}), f}).ok);
    eager_step(before, weights[0]);
    step(before, weights[0]);
    CHECK(is_alike());
}

}  // namespace

TEST_CASE("a training step of an embedding, whose gradients are of rows, as a graph") {
    const bool clips = GENERATE(false, true);
    CAPTURE(clips);
    test::for_all([&]<class Opt>(const auto& options) {
        if constexpr (std::is_same_v<Opt, optim::ASGD>) return;
        INFO(typeid(Opt).name());
        check_embedding_steps<Opt>(options, clips);
    });
    check_embedding_steps<optim::SGD>(optim::SGDOptions{.lr = 0.1}, clips);
    check_embedding_steps<optim::SGD>(optim::SGDOptions{.lr = 0.1, .momentum = 0.9}, clips);
    check_embedding_steps<optim::Adagrad>(optim::AdagradOptions{.lr = 0.1}, clips);
}

TEST_CASE("a traced step of rows is the program's where more is done with the gradient") {
    enum class Case { twice, hook, noise, replaced, tied, created };
    const Case what = GENERATE(Case::twice, Case::hook, Case::noise, Case::replaced, Case::tied, Case::created);
    CAPTURE(static_cast<int>(what));
    manual_seed(4);
    nn::Embedding eager(6, 2), traced(6, 2);
    traced.load_state_dict(eager.state_dict());
    optim::Adam eager_optimizer(eager.parameters(), {.lr = 0.1}), optimizer(traced.parameters(), {.lr = 0.1});
    const auto step_of = [what](nn::Embedding& table, optim::Adam& own) {
        return [&table, &own, what](const Tensor& tokens) {
            own.zero_grad();
            Tape tape;
            Tensor loss = table(tokens).square().sum() + table(tokens + 1).sum();
            if (what == Case::tied) loss = loss + matmul(table(tokens), table.weight.t()).sum();
            tape.backward(loss, {.create_graph = what == Case::created, .retain_graph = true});
            if (what == Case::twice) tape.backward(loss);
            if (what == Case::noise) table.weight.grad().add_(0.1);
            if (what == Case::replaced) table.weight.set_grad(table.weight.grad() * 2);
            own.step();
            return loss;
        };
    };
    if (what == Case::hook) {
        for (nn::Embedding* table : {&eager, &traced}) table->weight.register_hook([](const Tensor& g) { return g * 3; });
    }
    const auto eager_step = step_of(eager, eager_optimizer), step = step_of(traced, optimizer);
    eager_step(tensor({1, 3}));
    const Graph graph = trace(step, {{"tokens", tensor({1, 3}), {"n"}}});
    for (const std::vector<std::int64_t>& rows : {std::vector<std::int64_t>{0, 0}, {4}, {2, 1, 4}}) {
        CHECK(allclose(graph({tensor(rows)})[0], eager_step(tensor(rows)), 1e-5, 1e-6));
        CHECK(allclose(traced.weight.detach(), eager.weight.detach(), 1e-5, 1e-6));
    }
}

TEST_CASE("a step of rows that a graph cannot hold is refused") {
    nn::Embedding table(4, 2), dense(4, 2, {.sparse = false});
    const auto backward = [](nn::Embedding& of, const Tensor& tokens) {
        of.zero_grad();
        Tape tape;
        tape.backward(of(tokens).sum());
        return tokens;
    };
    const Tensor tokens = tensor({1}), before = table.weight.detach().clone();
    optim::ASGD asgd(table.parameters(), {.lr = 0.1}), dense_asgd(dense.parameters(), {.lr = 0.1});
    optim::SGD sgd(table.parameters(), {.lr = 0.1, .momentum = 0.9, .dampening = 0.5});
    FAILS(TapeError, "ASGD: a graph cannot hold a step of",
          trace([&](const Tensor& x) { return backward(table, x), asgd.step(), x; }, {{"x", tokens}}));
    FAILS(TapeError, "{.sparse = false}", trace([&](const Tensor& x) { return backward(table, x), sgd.step(), x; }, {{"x", tokens}}));
    CHECK(equal(table.weight.detach(), before));
    CHECK_NOTHROW(trace([&](const Tensor& x) { return backward(dense, x), dense_asgd.step(), x; }, {{"x", tokens}}));
}
