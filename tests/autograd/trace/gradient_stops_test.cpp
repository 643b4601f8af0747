// Where the program's gradients stop, those of its graph do too: detach(), NoGradScope, custom functions, numbers drawn in branches and loops.
#include <catch2/catch.hpp>

#include <cmath>

#include "../../fails.h"
#include "passes_check.h"
#include "tapir/autograd/checkpoint.h"
#include "tapir/autograd/function.h"
#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/graph/grad.h"
#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

using Tensors = std::vector<Tensor>;

int count_of(const Graph& graph, const std::string& op) {
    const auto is_it = [&](const auto& node) { return node->op() == op; };
    return static_cast<int>(std::count_if(graph.nodes().begin(), graph.nodes().end(), is_it));
}

// The gradient of the sum of fn(x) is the program's: of the graph run on a tape, of grad(graph), before and after passes, and of its text.
template <class Fn>
void check_gradient(const Fn& fn, const Tensor& given) {
    const Tensor x = given.detach().clone().requires_grad_();
    Tape tape(TapeOptions{.persistent = true});
    const Tensor want = tape.gradient(sum(fn(x)), {x})[0];
    Graph graph = trace(fn, {{"x", given}});
    INFO(graph.str());
    CHECK(allclose(tape.gradient(sum(graph({x})[0]), {x})[0], want));
    CHECK(allclose(graph.run({{"x", given}})[0], fn(given)));
    const Graph parsed = Graph::parse(graph.str());
    CHECK(allclose(grad(parsed, {"output"}, {"x"}).run({{"x", given}})[1], want));
    CHECK(allclose(grad(graph, {"output"}, {"x"}).run({{"x", given}})[1], want));
    optimize(graph);
    CHECK(allclose(grad(graph, {"output"}, {"x"}).run({{"x", given}})[1], want));
    CHECK(allclose(grad(graph, {"output"}, {"x"}).compile()(Tensors{given})[1], want));
}

// round, whose gradient goes through.
struct StraightThrough : Function<StraightThrough> {
    static Tensor forward(FunctionContext&, const std::vector<Tensor>& x) { return round(x[0]); }
    static std::vector<Tensor> backward(FunctionContext&, const std::vector<Tensor>& g) { return {g[0]}; }
};
// 2 sin(x), whose gradient is said to be 3.
struct Wave : Function<Wave> {
    static Tensor forward(FunctionContext&, const std::vector<Tensor>& x) {
        const Tensor y = sin(x[0]);
        return y * 2;
    }
    static std::vector<Tensor> backward(FunctionContext&, const std::vector<Tensor>& g) { return {g[0] * 3}; }
};
struct WithOps : Function<WithOps> {
    static Tensor forward(FunctionContext&, const std::vector<Tensor>& x) { return from_blob(x[0].data<float>(), x[0].shape()).clone() * 3; }
    static std::vector<Tensor> backward(FunctionContext&, const std::vector<Tensor>& g) { return {g[0] * 3}; }
    static Tensor symbolic(const std::vector<Tensor>& x) { return x[0] * 3; }
};

}  // namespace

TEST_CASE("detach, stop_gradient and NoGradScope stop gradients in graphs") {
    const Tensor x = tensor({2.0, 3.0, -0.7});
    check_gradient([](const Tensor& t) { return t * stop_gradient(t); }, x);
    check_gradient([](const Tensor& t) { return (t.round() - t).detach() + t * t; }, x);
    check_gradient([](const Tensor& t) { return t * t.exp().detach() + t.detach() * 2 + t; }, x);
    check_gradient(
        [](const Tensor& t) {
            Tensor scale;
            {
                const NoGradScope constant;
                scale = t.abs().max() * 2;
                scale = scale + 1;
            }
            return t / scale + scale * t;
        },
        x);
    // Written in place, what is detached takes the gradients of what is written.
    check_gradient(
        [](const Tensor& t) {
            Tensor y = t.detach().clone();
            y.add_(t * 3);
            return y * t;
        },
        x);
    check_gradient([](const Tensor& t) { return cond(t.sum() > 0, [&] { return t * t.detach(); }, [&] { return t; }); }, x);
    check_gradient(
        [](const Tensor& t) {
            return scan([](const Tensor& h, const Tensor& u) { return h * u + stop_gradient(round(h) - h) + u.detach() * h; }, {t.sum()}, {t})
                .carry[0];
        },
        x);
    check_gradient(
        [](const Tensor& t) {
            return while_loop([](const Tensor& h) { return h.abs().sum() < 50; }, [&](const Tensor& h) { return h * h.detach() + t; }, {t})[0];
        },
        x);
}

TEST_CASE("what is detached outside of a branch or loop, or in it, whichever is used first") {
    const Tensor x = tensor({2.0, 3.0});
    check_gradient(
        [](const Tensor& t) {
            const Tensor y = t * 3;
            return cond(t.sum() > 0, [&] { return y.detach() * t; }, [&] { return t; });
        },
        x);
    check_gradient(
        [](const Tensor& t) {
            const Tensor y = t * 3;
            return scan([&](const Tensor& h, const Tensor& u) { return h + u * y.detach().sum(); }, {t[0]}, {t}).carry[0];
        },
        x);
    check_gradient(
        [](const Tensor& t) {
            const Tensor d = t.detach();
            return cond(t.sum() > 0, [&] { return t * d; }, [&] { return d * t; });
        },
        x);
    check_gradient(
        [](const Tensor& t) {
            const Tensor d = t.detach();
            return cond(t.sum() > 0, [&] { return d * t; }, [&] { return t * d; });
        },
        x);
    check_gradient([](const Tensor& t) { return cond(t.sum() > 0, [&] { return t.detach() * t; }, [&] { return t * t.detach(); }); }, x);
    check_gradient([](const Tensor& t) { return cond(t.sum() > 0, [&] { return t.detach() + t; }, [&] { return t.detach() * 1; }); }, x);
}

TEST_CASE("what is written to within a NoGradScope") {
    const Tensor x = tensor({2.0, 3.0});
    check_gradient(
        [](const Tensor& t) {
            Tensor b = zeros({2});
            {
                const NoGradScope off;
                b.copy_(t);
            }
            return b * t;
        },
        x);
    check_gradient(
        [](const Tensor& t) {
            Tensor b = ones({2});
            {
                const NoGradScope off;
                b.mul_(0.9).add_(t * 0.1);
                b.narrow(0, 0, 1).add_(t[1]);
            }
            return b * t + t / b;
        },
        x);
    Tensor mean = ones({2});
    const Graph ema = trace(
        [&](const Tensor& t) {
            {
                const NoGradScope off;
                mean.mul_(0.5).add_(t * 0.5);
            }
            return t / mean;
        },
        {{"x", x}});
    const Tensor of_x = grad(ema, {"output"}, {"x"}).run({{"x", x}})[1];  // it moves the mean
    CHECK(allclose(of_x, 1 / mean));
    // Of what has a gradient, the gradient would go on.
    const Graph written = trace(
        [](const Tensor& t) {
            Tensor y = t * 3;
            {
                const NoGradScope off;
                y.mul_(2);
            }
            return y + t;
        },
        {{"x", x}});
    CHECK(allclose(written.run({{"x", x}})[0], x * 7));
    CHECK_THROWS_WITH(grad(written, {"output"}, {"x"}), Catch::Contains("written to within a NoGradScope"));
}

TEST_CASE("what is detached stays so to the second order, and what is not goes on") {
    const auto fn = [](const Tensor& t) { return t * t * t.detach() + exp(t); };
    const Tensor x = tensor({0.5, -1.5}).to(float64);
    const Graph second = grad(grad(trace(fn, {{"x", x}}), {"output"}, {"x"}), {"grad_x"}, {"x"});
    // d/dx of 2 t c + exp(t) with c constant, then c is x again: 2 c + exp(t).
    CHECK(allclose(second.run({{"x", x}}).back(), 2 * x + exp(x)));
}

TEST_CASE("a graph that runs has no nodes for gradients, and steps of training none at all") {
    nn::Linear layer(3, 2);
    optim::Adam adam(layer.parameters(), {.lr = 0.1});
    const auto step = [&](const Tensor& x) {
        adam.zero_grad();
        Tape tape;
        const Tensor loss = layer(x).square().mean();
        tape.backward(loss);
        optim::clip_grad_norm_(layer.parameters(), 0.5);
        adam.step();
        return loss;
    };
    const Graph graph = trace(step, {{"x", randn({4, 3})}});
    CHECK(count_of(graph, "detach") == 0);
    Graph stopped = trace([](const Tensor& x) { return x * x.detach(); }, {{"x", ones({2})}});
    CHECK(passes_check::ops_of(stopped) == "detach mul");
    CHECK(stopped.compile()(full({2}, 3.0)).to_vector<float>() == std::vector<float>{9, 9});
}

TEST_CASE("a custom function's backward is not in a graph, and this is said") {
    const Tensor x = tensor({0.4, 1.6});
    const auto fn = [](const Tensor& t) { return StraightThrough::apply({t}) * 2; };
    const Graph graph = trace(fn, {{"x", x}});
    CHECK(allclose(graph.run({{"x", x}})[0], round(x) * 2));
    CHECK_THROWS_WITH(grad(graph, {"output"}, {"x"}), Catch::Contains("the backward of this custom function is the program's"));
    const Graph branch =
        trace([](const Tensor& t) { return cond(t.sum() > 0, [&] { return StraightThrough::apply({t}); }, [&] { return t; }); }, {{"x", x}});
    CHECK(allclose(branch.run({{"x", x}})[0], round(x)));
    CHECK_THROWS_WITH(grad(branch, {"output"}, {"x"}), Catch::Contains("the backward of this custom function is the program's"));
    // Where the gradient is taken in the program, it is the function's.
    const Graph inside = trace(
        [&](const Tensor& t) {
            const Tensor leaf = t.detach().requires_grad_();
            Tape tape;
            return tape.gradient(sum(fn(leaf) * leaf), {leaf})[0];
        },
        {{"x", x}});
    CHECK(allclose(inside.run({{"x", x}})[0], 2 * x + 2 * round(x)));
    // A forward of several ops is one function.
    const auto several = [](const Tensor& t) { return (Wave::apply({t * t}) * t).sum(); };
    CHECK_THROWS_WITH(grad(trace(several, {{"x", x}}), {"output"}, {"x"}), Catch::Contains("the backward of this custom function is the program's"));
    const auto in_step = [&](const auto& loss) {
        return [loss](const Tensor& t) {
            const Tensor leaf = t.detach().requires_grad_();
            Tape tape;
            return tape.gradient(loss(leaf), {leaf})[0];
        };
    };
    CHECK(allclose(trace(in_step(several), {{"x", x}}).run({{"x", x}})[0], 2 * sin(x * x) + 6 * x * x));
    const auto in_branch = [&](const Tensor& t) { return cond(t.sum() > 0, [&] { return several(t); }, [&] { return t.sum(); }); };
    const auto in_scan = [](const Tensor& t) {
        return scan([](const Tensor& h, const Tensor& u) { return Wave::apply({h * u}); }, {t[0]}, {t}).carry[0];
    };
    CHECK_THROWS_WITH(trace(in_step(in_branch), {{"x", x}}), Catch::Contains("the backward of this custom function is the program's"));
    CHECK_THROWS_WITH(trace(in_step(in_scan), {{"x", x}}), Catch::Contains("the backward of this custom function is the program's"));
    // Nothing flows into it.
    check_gradient([](const Tensor& t) { return StraightThrough::apply({t.detach()}) * t; }, x);
    check_gradient(
        [](const Tensor& t) {
            Tensor y;
            {
                const NoGradScope off;
                y = StraightThrough::apply({t});
            }
            return y * t;
        },
        x);
    // Its ops, where it says them, have the gradients of ops.
    const Graph symbolic = trace([](const Tensor& t) { return WithOps::apply({t}); }, {{"x", x}});
    CHECK(grad(symbolic, {"output"}, {"x"}).run({{"x", x}})[1].to_vector<float>() == std::vector<float>{3, 3});
}

TEST_CASE("gradients of branches and loops that draw numbers are refused") {
    const Tensor x = ones({8});
    const Graph loop =
        trace([](const Tensor& t) { return scan([](const Tensor& h, const Tensor& u) { return dropout(h + u, 0.5, true); }, {t[0]}, {t}).carry[0]; },
              {{"x", x}});
    CHECK(loop.run({{"x", x}})[0].numel() == 1);
    CHECK_THROWS_WITH(grad(loop, {"output"}, {"x"}), Catch::Contains("draws random numbers"));
    const Graph branch = trace([](const Tensor& t) { return cond(t.sum() > 0, [&] { return t * rand_like(t); }, [&] { return t; }); }, {{"x", x}});
    CHECK_THROWS_WITH(grad(branch, {"output"}, {"x"}), Catch::Contains("draws random numbers"));
    // Drawn before, they are the same.
    check_gradient(
        [](const Tensor& t) {
            const Tensor mask = ones_like(t) * 2;
            return scan([](const Tensor& h, const Tensor& u, const Tensor& m) { return h * m + u; }, {t[0]}, {t, mask}).carry[0];
        },
        x);
}

TEST_CASE("a checkpoint in a trace is the function, whose random numbers are drawn once") {
    const Tensor x = ones({40});
    const Graph graph = trace(
        [](const Tensor& t) {
            const Tensor leaf = t.detach().requires_grad_();
            Tape tape;
            const Tensor y = checkpoint([](const Tensors& in) { return dropout(in[0], 0.5, true); }, {leaf});
            return Tensors{y, tape.gradient(y.sum(), {leaf})[0]};
        },
        {{"x", x}});
    const Tensors y = graph.run({{"x", x}});
    CHECK(y[0].to_vector<float>() == y[1].to_vector<float>());
}
