// What a graph cannot hold, and what would be silently another thing in it, is refused by line.
#include <catch2/catch.hpp>

#include <cmath>
#include <thread>

#include "../../fails.h"
#include "tapir/autograd/trace/graphs.h"
#include "tapir/tapir.h"

using namespace tapir;

TEST_CASE("initialisers are part of a graph, those that compute with elements are refused") {
    manual_seed(1);
    nn::Linear net(4, 3);
    net.parameters();
    const Tensor x = randn({2, 4});
    const auto by = [&](auto init) {
        return [&net, init](const Tensor& a) {
            init(net.weight);
            return net(a);
        };
    };
    const auto is_as_eager = [&](auto init) {
        const auto fn = by(init);
        const Graph graph = trace(fn, {{"x", x}});
        INFO(graph.str());
        REQUIRE(graph.updates().size() == 1);
        manual_seed(7);
        const Tensor wanted = fn(x).detach(), weight = net.weight.detach().clone();
        nn::init::constant_(net.weight, 100);
        manual_seed(7);
        CHECK(allclose(graph.run({{"x", x}})[0], wanted, 1e-5, 1e-6));
        CHECK(allclose(net.weight.detach(), weight));
    };
    is_as_eager([](const Tensor& w) { nn::init::constant_(w, 0.25); });
    is_as_eager([](const Tensor& w) { nn::init::zeros_(w); });
    is_as_eager([](const Tensor& w) { nn::init::eye_(w); });
    is_as_eager([](const Tensor& w) { nn::init::uniform_(w, -1, 1); });
    is_as_eager([](const Tensor& w) { nn::init::xavier_normal_(w); });
    is_as_eager([](const Tensor& w) { nn::init::kaiming_uniform_(w); });
    FAILS(TapeError, "trace: orthogonal_ writes to a tensor of shape (3, 4) in a way that a graph cannot hold",
          trace(
              [&](const Tensor& a) {
                  nn::init::orthogonal_(net.weight);
                  return net(a);
              },
              {{"x", x}}));
    FAILS(TapeError, "trace: trunc_normal_ writes to",
          trace(
              [&](const Tensor& a) {
                  nn::init::trunc_normal_(net.weight);
                  return a;
              },
              {{"x", x}}));
    const auto of_part = [&](const Tensor& a) {
        const Tensor row = net.weight[0];
        nn::init::trunc_normal_(row);
        return net(a);
    };
    CHECK_THROWS_WITH(trace(of_part, {{"x", x}}), Catch::Contains("trunc_normal_ writes to"));
}

TEST_CASE("what writes past the ops is refused, and the next trace is as good as any") {
    nn::Linear net(4, 3);
    net.parameters();
    optim::ExponentialMovingAverage average(net.parameters());
    const Tensor x = ones({2, 4});
    FAILS(TapeError, "trace: copy_ writes to a tensor of shape (3, 4) in a way that a graph cannot hold",
          trace(
              [&](const Tensor& a) {
                  average.copy_to_parameters();
                  return net(a);
              },
              {{"x", x}}));
    CHECK(trace(net, {{"x", x}})({x})[0].shape() == Shape{2, 3});
}

TEST_CASE("comparing is reading") {
    const Tensor x = ones({3}), y = ones({3});
    FAILS(TapeError, "trace: allclose() reads a value of x", trace([&](const Tensor& a) { return allclose(a, y) ? a : -a; }, {{"x", x}}));
    FAILS(TapeError, "trace: allclose() reads a value that mul made", trace([&](const Tensor& a) { return y.allclose(a * 2) ? a : -a; }, {{"x", x}}));
    FAILS(TapeError, "trace: equal() reads a value of x", trace([&](const Tensor& a) { return a.equal(y) ? a : -a; }, {{"x", x}}));
    FAILS(TapeError, "trace: equal() reads a value of x", trace([&](const Tensor& a) { return equal(y, a) ? a : -a; }, {{"x", x}}));
    CHECK(trace([&](const Tensor& a) { return equal(y, tensor({1.0f, 1.0f, 1.0f})) ? a : -a; }, {{"x", x}}).nodes().empty());  // not of constants
    const Graph graph = trace([&](const Tensor& a) { return allclose(a, y) ? a * 2 : -a; }, {{"x", x}}, {.reads = TraceOptions::Reads::guard});
    CHECK(graph({x})[0].sum().item() == 6);
    CHECK_THROWS_WITH(graph({x * 3}), Catch::Contains("the program read a value with allclose()"));
}

TEST_CASE("an input that requires a gradient does so for all sizes that are tried") {
    const auto fn = [](const Tensor& x) {
        CHECK(x.requires_grad());
        Tape tape;
        return tape.gradient((x * x).sum(), {x})[0];
    };
    const Graph graph = trace(fn, {{"x", randn({3, 2}).requires_grad_(), {"n"}}});
    const Tensor x = randn({5, 2});
    CHECK(allclose(graph({x})[0], 2 * x));
}

namespace {

struct Peek : Function<Peek> {
    static Tensor forward(FunctionContext&, const std::vector<Tensor>& x) {
        const Tensor y = zeros_like(x[0]);
        for (int i = 0; i < 3; ++i) y.data<float>()[i] = 2 * x[0].data<float>()[i];
        return y;
    }
    static std::vector<Tensor> backward(FunctionContext&, const std::vector<Tensor>& g) { return {g[0] * 2}; }
};

}  // namespace

TEST_CASE("what is written through addresses is refused") {
    const Tensor x = ones({3}), before = ones({3});
    const TraceOptions guard{.reads = TraceOptions::Reads::guard};
    const char* text = "trace: the program wrote through the address that data() gave it";
    FAILS(TapeError, text,
          trace(
              [&](const Tensor& a) {
                  Tensor y = a.clone();
                  y.data<float>()[0] = 100;
                  return y * 2;
              },
              {{"x", x}}, guard));
    FAILS(TapeError, text,
          trace(
              [&](const Tensor& a) {
                  Tensor y = a.clone();
                  y.data<float>()[0] = 100;
                  return y;
              },
              {{"x", x}}, guard));
    FAILS(TapeError, text,
          trace(
              [&](const Tensor& a) {
                  Tensor y = a.clone();
                  y.data<float>()[0] = 100;
                  y.mul_(2);
                  return y;
              },
              {{"x", x}}, guard));
    FAILS(TapeError, text,
          trace(
              [&](const Tensor& a) {
                  Tensor y = a.clone();
                  y[1].data<float>()[0] = 100;
                  return y.t();
              },
              {{"x", x}}, guard));
    FAILS(TapeError, text,
          trace(
              [&](const Tensor& a) {
                  Tensor y = a.clone();
                  float* p = y.data<float>();
                  y.mul_(2);
                  *p = 9;
                  return y;
              },
              {{"x", x}}, guard));
    FAILS(TapeError, text,
          trace(
              [&](const Tensor& a) {
                  before.data<float>()[0] += 1;
                  return a;
              },
              {{"x", x}}));
    FAILS(TapeError, text,
          trace(
              [&](const Tensor& a) {
                  Tensor t = tensor({1.0f, 2.0f});
                  t.data<float>()[0] = 5;
                  return a[0] + t;
              },
              {{"x", x}}));
    FAILS(TapeError, text,
          trace(
              [&](const Tensor& a) {
                  a.data<float>()[0] = 5;
                  return ones({2});
              },
              {{"x", x.clone()}}, guard));
    // only looked at
    const Graph graph = trace(
        [&](const Tensor& a) {
            Tensor y = a * 2;
            const float f = y.data<float>()[0];
            y.add_(1);
            return y * f;
        },
        {{"x", x}}, guard);
    CHECK(graph({x})[0].sum().item() == 18);
    CHECK_THROWS_WITH(graph({x * 2}), Catch::Contains("the program read a value with data()"));
    // of custom functions
    const char* hint = "or give Peek a `static Tensor symbolic(const std::vector<Tensor>& x)`";
    CHECK_THROWS_WITH(trace([](const Tensor& a) { return Peek::apply({a}); }, {{"x", x}}), Catch::Contains(hint));
    CHECK_THROWS_WITH(trace([](const Tensor& a) { return Peek::apply({a}); }, {{"x", x}}, guard), Catch::Contains(text) && Catch::Contains(hint));
    CHECK_THROWS_WITH(trace([](const Tensor& a) { return a * a.sum().item(); }, {{"x", x}}), !Catch::Contains("symbolic"));
}

TEST_CASE("what another thread makes meanwhile is no constant") {
    const Tensor x = ones({3}), w = ones({3});
    const auto apart = [](const auto& fn) {
        Tensor y;
        std::thread([&] { y = fn(); }).join();
        return y;
    };
    const auto fn = [&](const Tensor& a) { return apart([&] { return a * 2; }) + 1; };
    CHECK_THROWS_WITH(trace(fn, {{"x", x}}), Catch::Contains("trace: a tensor of shape (3,) was made by another thread since the trace began"));
    const auto view = [&](const Tensor& a) { return apart([&] { return a[0]; }) + 1; };
    CHECK_THROWS_WITH(trace(view, {{"x", x}}), Catch::Contains("was made by another thread"));
    const auto result = [&](const Tensor& a) { return apart([&] { return a * 2; }); };
    CHECK_THROWS_WITH(trace(result, {{"x", x}}), Catch::Contains("was made by another thread"));
    // before the trace, also while others were made
    const Tensor early = apart([&] { return w * 2; });
    Tensor during;
    trace(
        [&](const Tensor& a) {
            during = apart([&] { return w * 3; });
            return a;
        },
        {{"x", x}});
    const Graph graph = trace([&](const Tensor& a) { return a + early + during; }, {{"x", x}});
    CHECK(graph({x})[0].sum().item() == 18);
}

TEST_CASE("a gradient that was there before the trace is refused, those of trial runs are undone") {
    manual_seed(3);
    const Tensor x = randn({4, 4});
    const auto make = [&](nn::Linear& net, optim::SGD& sgd, bool ends_with_zero) {
        return [&net, &sgd, ends_with_zero](const Tensor& a) {
            Tape tape;
            const Tensor loss = (net(a) * net(a)).sum();
            tape.backward(loss);
            sgd.step();
            if (ends_with_zero) sgd.zero_grad();
            return loss;
        };
    };
    for (const bool is_named : {false, true}) {
        const std::vector<std::string> dims = is_named ? std::vector<std::string>{"n"} : std::vector<std::string>{};
        nn::Linear net(4, 3), eager(4, 3);
        eager.load_state_dict(net.state_dict());
        optim::SGD sgd(net.parameters(), {.lr = 0.01, .momentum = 0.9}), eager_sgd(eager.parameters(), {.lr = 0.01, .momentum = 0.9});
        const auto step = make(net, sgd, true), eager_step = make(eager, eager_sgd, true);
        {
            Tape tape;
            tape.backward(net(x).sum());
        }
        const Tensor gradient = net.weight.grad(), kept = gradient.clone();
        CHECK_THROWS_WITH(trace(step, {{"x", x, dims}}),
                          Catch::Contains("the gradient of weight was there before the trace") && Catch::Contains("zero_grad() first"));
        CHECK(net.weight.grad().is_same(gradient));
        CHECK(equal(net.weight.grad(), kept));
        CHECK(equal(net.weight.detach(), eager.weight.detach()));
        net.zero_grad();
        eager_step(x);
        const Graph graph = trace(step, {{"x", x, dims}});
        INFO(graph.str());
        CHECK(!net.weight.grad().defined());
        for (int i = 0; i < 4; ++i) {
            const Tensor a = randn({is_named ? 2 + i : 4, 4});
            CHECK(allclose(graph({a})[0], eager_step(a), 1e-5, 1e-6));
            CHECK(allclose(net.weight.detach(), eager.weight.detach(), 1e-5, 1e-6));
        }
    }
}

TEST_CASE("gradients that the program's next run would add to are refused") {
    manual_seed(4);
    const Tensor x = randn({4, 4});
    for (const bool is_named : {false, true}) {
        const std::vector<std::string> dims = is_named ? std::vector<std::string>{"n"} : std::vector<std::string>{};
        nn::Linear net(4, 3);
        optim::SGD sgd(net.parameters(), {.lr = 0.01});
        const auto before = net.weight.detach().clone();
        const auto kept_none = [&](const Tensor& a) {
            Tape tape;
            tape.backward(net(a).sum());
            sgd.step();
            return a * 2;
        };
        CHECK_THROWS_WITH(trace(kept_none, {{"x", x, dims}}),
                          Catch::Contains("this backward leaves the gradient of weight") && Catch::Contains("call zero_grad() first"));
        CHECK(!net.weight.grad().defined());
        CHECK(equal(net.weight.detach(), before));
        // Between the two is too late: the first adds to what the second has left.
        const auto between = [&](const Tensor& a) {
            Tape tape({.persistent = true});
            const Tensor loss = net(a).sum();
            tape.backward(loss);
            net.zero_grad();
            tape.backward(loss);
            return net.weight.grad() * 1;
        };
        CHECK_THROWS_WITH(trace(between, {{"x", x, dims}}), Catch::Contains("this backward leaves the gradient of weight"));
        // Several before a step, as for large batches, and by a gradient that the program sets.
        const auto several = [&](const Tensor& a) {
            net.weight.set_grad(full({3, 4}, 0.5));
            net.bias.zero_grad();
            for (int i = 0; i < 2; ++i) {
                Tape tape;
                tape.backward(net(a * (i + 1)).sum());
            }
            return std::pair{net.weight.grad() * 1, net.bias.grad() * 1};
        };
        const Graph sums = trace(several, {{"x", x, dims}});
        CHECK(allclose(sums({x})[0], full({3, 4}, 0.5) + x.sum(0) * 3));
        CHECK(allclose(sums({x})[0], several(x).first));  // as often as one likes
        CHECK(allclose(sums({x})[1], full({3}, 8.0)));
        CHECK(check_trace(sums, several, {x * 2}));
        // What stays is a gradient of this very input, or none at all.
        const auto of_input = [](const Tensor& a) {
            const Tensor leaf = a.detach().requires_grad_();
            Tape tape;
            tape.backward((leaf * leaf).sum());
            return leaf.grad();
        };
        net.zero_grad();
        CHECK(allclose(trace(of_input, {{"x", x, dims}})({x * 3})[0], x * 6));
        const auto nothing_kept = [&](const Tensor& a) {
            Tape tape;
            return tape.gradient(net(a).sum(), {net.weight})[0];
        };
        const Graph plain = trace(nothing_kept, {{"x", x, dims}});
        CHECK(allclose(plain({x})[0], nothing_kept(x)));
    }
}

TEST_CASE("a gradient that was there, forgotten by a program that fails, is put back") {
    nn::Linear net(3, 2);
    {
        Tape tape;
        tape.backward(net(ones({2, 3})).sum());
    }
    const Tensor weight = net.weight.grad(), bias = net.bias.grad();
    const auto fn = [&](const Tensor& a) {
        net.zero_grad();
        Tape tape;
        tape.backward(linear(a, net.weight).sum());
        return a * static_cast<double>(a.sum().item());  // refused
    };
    CHECK_THROWS_AS(trace(fn, {{"x", ones({2, 3})}}), TapeError);
    CHECK(net.weight.grad().is_same(weight));
    CHECK(net.bias.grad().is_same(bias));  // which the program has not used
}

TEST_CASE("a gradient that was collected and not computed yet was there, too") {
    nn::Linear net(3, 2);
    nn::Embedding table(5, 3);
    const Tensor x = ones({2, 3}), i = tensor({1, 4});
    const auto step = [&](const Tensor& a) {
        Tape tape;
        tape.backward(net(a).sum());
        return net.weight.grad() * 1;
    };
    const auto look_up = [&](const Tensor& index) {
        Tape tape;
        tape.backward(table(index).sum());
        return table.weight.grad() * 1;
    };
    net.parameters();
    table.parameters();
    {
        Tape tape;
        tape.backward(net(x).sum());
    }
    {
        Tape tape;
        tape.backward(table(i).sum());
    }
    CHECK_THROWS_WITH(trace(step, {{"x", x}}), Catch::Contains("the gradient of weight was there before the trace"));
    CHECK_THROWS_WITH(trace(look_up, {{"i", i}}), Catch::Contains("the gradient of weight was there before the trace"));
    CHECK_THROWS_WITH(trace([&](const Tensor& a) { return a + net.weight.grad(); }, {{"x", ones({2, 3})}}),
                      Catch::Contains("the gradient of weight was there before the trace"));
    nn::Linear unused(3, 2);
    optim::SGD sgd(unused.parameters(), {.lr = 0.1});
    {
        Tape tape;
        tape.backward(unused(x).sum());
    }
    CHECK_THROWS_AS(trace(
                        [&](const Tensor& a) {
                            sgd.step();
                            return a * 2;
                        },
                        {{"x", x}}),
                    TapeError);
    CHECK(trace([&](const Tensor& a) { return a * (unused.weight.grad().defined() ? 2 : 3); }, {{"x", x}})({x})[0].sum().item() == 12);
    CHECK(allclose(net.weight.grad(), full({2, 3}, 2.0)));
    CHECK(table.weight.grad().sum().item() == 6);
}

TEST_CASE("a branch that adds to gradients is refused") {
    const Tensor w = ones({3}).requires_grad_();
    const auto fn = [&](const Tensor& x) {
        return cond(
            x.sum() > 0,
            [&] {
                Tape tape;
                tape.backward((w * x).sum());
                return x * 2;
            },
            [&] { return x; });
    };
    CHECK_THROWS_WITH(trace(fn, {{"x", ones({3})}}),
                      Catch::Contains("cond: a function that is traced adds to the gradient of a tensor of shape (3,)"));
    CHECK(!w.grad().defined());
}

TEST_CASE("what changes the learning rate is refused in a trace") {
    nn::Linear net(4, 3);
    optim::SGD sgd(net.parameters(), {.lr = 0.1});
    optim::StepLR schedule(sgd, {.step_size = 1, .gamma = 0.5});
    optim::ReduceLROnPlateau plateau(sgd);
    const Tensor x = ones({2, 4});
    FAILS(TapeError, "step: a graph holds the learning rate as a constant",
          trace(
              [&](const Tensor& a) {
                  schedule.step();
                  return a;
              },
              {{"x", x}}));
    FAILS(TapeError, "step: a graph holds the learning rate",
          trace(
              [&](const Tensor& a) {
                  plateau.step(1);
                  return a;
              },
              {{"x", x}}));
    FAILS(TapeError, "set_lr: a graph holds the learning rate as a constant, 0.1",
          trace(
              [&](const Tensor& a) {
                  sgd.set_lr(0.2);
                  return a;
              },
              {{"x", x}}));
    CHECK(sgd.lr() == 0.1);
    CHECK(trace(
              [&](const Tensor& a) {
                  sgd.set_lr(0.1);
                  return a * 2;
              },
              {{"x", x}})
              .nodes()
              .size() == 1);
    schedule.step();
    CHECK(sgd.lr() == 0.05);
    const auto fn = [&](const Tensor& a) {
        sgd.zero_grad();
        Tape tape;
        tape.backward(net(a).sum());
        sgd.step();
        sgd.options().lr *= 0.5;
        return a;
    };
    CHECK_THROWS_WITH(trace(fn, {{"x", x, {"n"}}}), Catch::Contains("the learning rate changed between runs"));
}

TEST_CASE("constants of nan, and whole numbers that are written as real ones") {
    const Tensor x = ones({3, 4});
    const Graph nan = trace([](const Tensor& a) { return a + full({4}, NAN); }, {{"x", x}});
    CHECK(isnan(nan({x})[0]).all().item<bool>());
    const Graph named = trace([](const Tensor& a) { return a + full({4}, NAN); }, {{"x", x, {"n"}}});
    CHECK(isnan(named({ones({5, 4})})[0]).all().item<bool>());
    const auto whole = [](const Tensor& a) {
        return a / full({}, static_cast<double>(a.size(0))) + full_like(a, 2.0 * static_cast<double>(a.size(0)));
    };
    const auto filled = [](const Tensor& a) { return empty({2}).fill_(static_cast<double>(a.size(0) + 1)) / 4; };
    const Graph graph = trace(whole, {{"x", x, {"n"}}}), fill = trace(filled, {{"x", x, {"n"}}});
    INFO(graph.str());
    for (const int n : {1, 2, 5}) {
        const Tensor y = randn({n, 4});
        const Tensor got = graph({y})[0];
        CHECK(got.dtype() == float32);
        CHECK(allclose(got, whole(y)));
        CHECK(allclose(fill({y})[0], filled(y)));
        CHECK(allclose(Graph::parse(graph.str())({y})[0], whole(y)));
    }
    const auto root = [](const Tensor& a) { return a / full({}, std::sqrt(static_cast<double>(a.size(0)))); };
    CHECK_THROWS_WITH(trace(root, {{"x", x, {"n"}}}), Catch::Contains("no formula of the named dimensions gives its value"));
}

TEST_CASE("a Generator of its own is refused") {
    Generator own(1);
    const Tensor x = rand({3, 4});
    FAILS(TapeError, "rand: it draws from a Generator of its own", trace([&](const Tensor& a) { return a + rand({3, 4}, own); }, {{"x", x}}));
    FAILS(TapeError, "dropout: it draws from a Generator of its own", trace([&](const Tensor& a) { return dropout(a, 0.5, true, own); }, {{"x", x}}));
    FAILS(TapeError, "it draws from a Generator of its own", trace([&](const Tensor& a) { return bernoulli(a, own); }, {{"x", x}}));
    FAILS(TapeError, "it draws from a Generator of its own", trace([&](const Tensor& a) { return multinomial(a, 1, false, own); }, {{"x", x}}));
    FAILS(TapeError, "it draws from a Generator of its own", trace([&](const Tensor& a) { return a + randint(0, 3, {4}, own); }, {{"x", x}}));
    FAILS(TapeError, "it draws from a Generator of its own", trace([&](const Tensor& a) { return a.clone().normal_(0, 1, own); }, {{"x", x}}));
    const Graph graph = trace([](const Tensor& a) { return a + rand({3, 4}, default_generator()); }, {{"x", x}});
    CHECK(graph({x})[0].shape() == x.shape());
}

TEST_CASE("an example without elements along a named dimension is refused by line") {
    FAILS(ShapeError, "trace: x of shape (0, 3): its dimension n has no elements",
          trace([](const Tensor& a) { return a; }, {{"x", zeros({0, 3}), {"n"}}}));
    FAILS(ShapeError, "its dimension 2*n has no elements", trace([](const Tensor& a) { return a; }, {{"x", zeros({2, 0}), {"", "2*n"}}}));
    CHECK(trace([](const Tensor& a) { return a * 2; }, {{"x", zeros({0, 3})}})({zeros({0, 3})})[0].numel() == 0);
}
