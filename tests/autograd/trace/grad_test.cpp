// The gradient of a graph is what the tape gives for the function that was traced.
#include <catch2/catch.hpp>

#include "../../fails.h"
#include "tapir/autograd/trace/grad.h"
#include "tapir/autograd/trace/passes.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

using namespace tapir;

TEST_CASE("the gradient of a graph is a graph") {
    manual_seed(3);
    const Tensor w = randn({3, 4}, float64).requires_grad_();
    const auto fn = [&](const Tensor& x) { return sum(tanh(linear(x, w)) * x.narrow(1, 0, 3)); };
    TraceOptions options;
    options.outputs = {"loss"};
    options.parameters = {{"w", w}};
    const Graph graph = trace(fn, {{"x", randn({2, 4}, float64), {"batch"}}}, options);
    Graph g = grad(graph, {"loss"}, {"x", "w"});
    INFO(g.str());
    g.check();
    const auto check = [&](const Graph& of) {
        const Tensor x = randn({5, 4}, float64).requires_grad_();
        const std::vector<Tensor> got = of({x});
        Tape tape;
        const Tensor loss = fn(x);
        const std::vector<Tensor> wanted = tape.gradient(loss, {x, w});
        REQUIRE(got.size() == 3);
        CHECK(allclose(got[0], loss));
        CHECK(allclose(got[1], wanted[0]));
        CHECK(allclose(got[2], wanted[1]));
    };
    check(g);
    const std::size_t before = g.nodes().size();
    optimize(g);
    g.check();
    CHECK(g.nodes().size() < before);
    check(g);
    SECTION("to the second order") {
        const Graph second = grad(g, {"grad_x"}, {"w"});
        const Tensor x = randn({3, 4}, float64).requires_grad_();
        CHECK(second.outputs().back().name == "grad_w_2");
        const Tensor got = second({x}).back();
        Tape tape;
        const Tensor first = tape.gradient(fn(x), {x}, {.create_graph = true})[0];
        CHECK(allclose(got, tape.gradient(sum(first), {w})[0]));
    }
    SECTION("names that it does not have") {
        CHECK_THROWS_AS(grad(graph, {"los"}, {"x"}), ValueError);
        CHECK_THROWS_AS(grad(graph, {"loss"}, {"y"}), ValueError);
        CHECK_THROWS_AS(grad(graph, {"x"}, {"x"}), ValueError);
        CHECK_THROWS_AS(grad(graph, {"loss"}, {"loss"}), ValueError);
    }
}

TEST_CASE("a gradient of nothing is refused") {
    const Graph graph = trace([](const Tensor& x) { return sum(x * x); }, {{"x", ones({3})}}, {.outputs = {"y"}});
    FAILS(ValueError, "grad: it is told no outputs", grad(graph, {}, {"x"}));
}
