// The gradient of a graph is what the tape gives for the function that was traced.
#include <catch2/catch.hpp>

#include "../../fails.h"
#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/graph/grad.h"
#include "tapir/autograd/trace/passes/passes.h"
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
        FAILS_IN(ValueError, "grad: ", "it is told no outputs", grad(graph, {}, {"x"}));
        FAILS_IN(ValueError, "grad: ", "no inputs are given", grad(graph, {"loss"}, {}));
        FAILS_IN(ValueError, "grad: ", "the input x is given twice", grad(graph, {"loss"}, {"x", "w", "x"}));
        FAILS_IN(ValueError, "grad: ", "there is no input w to give an example of", grad(graph, {"loss"}, {"x"}, {{"w", ones({2})}}));
        CHECK_THROWS_AS(grad(graph, {"loss"}, {"x"}, {{"x", Tensor()}}), ValueError);
        CHECK_THROWS_AS(grad(graph, {"loss"}, {"x"}, {{"x", ones({2, 4})}}), DTypeError);
        CHECK_THROWS_AS(grad(graph, {"loss"}, {"x"}, {{"x", ones({2, 5}, float64)}}), ShapeError);
    }
}

TEST_CASE("a gradient of nothing is refused") {
    const Graph graph = trace([](const Tensor& x) { return sum(x * x); }, {{"x", ones({3})}}, {.outputs = {"y"}});
    FAILS(ValueError, "grad: it is told no outputs", grad(graph, {}, {"x"}));
}

TEST_CASE("differentiating a graph writes to nothing and draws nothing") {
    nn::BatchNorm1d norm(3);
    norm.train();
    const auto fn = [&](const Tensor& x) { return sum(tanh(norm(x)) * rand({3})); };
    const std::vector<std::pair<std::string, Tensor>> buffers = {
        {"mean", norm.running_mean}, {"var", norm.running_var}, {"count", norm.num_batches_tracked}};
    TraceOptions options;
    options.parameters = buffers;
    const Graph graph = trace(fn, {{"x", randn({4, 3}), {"batch"}}}, options);
    std::vector<Tensor> before;
    for (const auto& [name, tensor] : buffers) before.push_back(tensor.clone());
    manual_seed(1);
    const Tensor drawn = randn({2});
    manual_seed(1);
    const Graph gradient = grad(graph, {"output"}, {"x"});
    CHECK(equal(randn({2}), drawn));
    gradient.check();
    for (std::size_t i = 0; i < before.size(); ++i) CHECK(equal(buffers[i].second, before[i]));
    // What it writes to are the model's buffers, when it is run.
    CHECK(gradient.updates().size() == graph.updates().size());
    for (const Graph::Update& update : gradient.updates()) {
        bool is_buffer = false;
        for (const auto& [name, tensor] : buffers) is_buffer |= update.target->data.is_same(tensor);
        CHECK(is_buffer);
    }
    const Tensor x = randn({5, 3}).requires_grad_();
    manual_seed(2);
    const std::vector<Tensor> got = gradient({x});
    CHECK_FALSE(equal(norm.running_mean, before[0]));
    Tensor(norm.running_mean).copy_(before[0]);
    manual_seed(2);
    Tape tape;
    CHECK(allclose(got[1], tape.gradient(fn(x), {x})[0], 1e-4, 1e-6));
}

TEST_CASE("a graph that holds for some values only has a gradient that does") {
    TraceOptions options;
    options.reads = TraceOptions::Reads::guard;
    const Graph graph = trace([](const Tensor& x) { return x.sum().item<double>() > 5 ? x * 2 : x * 3; }, {{"x", ones({4, 3})}}, options);
    const Graph gradient = grad(graph, {"output"}, {"x"});
    CHECK(gradient.outputs().size() == 2);
    REQUIRE(gradient.guards().size() == 1);
    CHECK(gradient.guards()[0].what == "item");
    CHECK(equal(gradient({ones({4, 3})})[1], full({4, 3}, 2.0F)));
    CHECK_THROWS_AS(gradient({zeros({4, 3})}), ValueError);
}

TEST_CASE("graphs that not all numbers suit are differentiated") {
    const auto check = [](const auto& fn, const std::vector<Tensor>& inputs, const Graph::Inputs& examples = {}) {
        std::vector<TraceInput> named;
        for (std::size_t i = 0; i < inputs.size(); ++i) named.push_back({"x" + std::to_string(i), inputs[i]});
        const Graph gradient = grad(trace(fn, named), {"output"}, {"x0"}, examples);
        std::vector<Tensor> given = inputs;
        given[0] = given[0].clone().requires_grad_();
        const std::vector<Tensor> got = gradient(given);
        Tape tape;
        CHECK(allclose(got[1], tape.gradient(fn(given).sum(), {given[0]})[0], 1e-8, 1e-10));
    };
    using List = std::vector<Tensor>;
    const Tensor matrix = eye(3).to(float64) * 3 + 0.5, x = tensor({0.5, 2.0}, float64);
    check([](const List& v) { return linalg::cholesky(v[0]).sum(); }, {matrix});
    check([](const List& v) { return linalg::inv(v[0]).sum(); }, {matrix});
    check([](const List& v) { return v[0] * floor_divide(full({2}, 7, int64), v[1]).to(float64); }, {x, tensor({2, 3})});
    check([](const List& v) { return gather(v[0] * 2, 0, v[1]); }, {tensor({3.0}, float64), tensor({0, 0})});  // no ones
    const auto steps = [](const List& v) {
        return while_loop([&](const Tensor& i, const Tensor&) { return ne(i, v[1]); },
                          [](const Tensor& i, const Tensor& h) { return std::pair(i + 1, tanh(h * 2)); }, {zeros({}, int64), v[0]})[1];
    };
    check(steps, {x, full({}, 3, int64)});
    const auto down = [](const List& v) {  // ones would go on for long
        return while_loop([&](const Tensor& i, const Tensor&) { return ne(i, v[1]); },
                          [](const Tensor& i, const Tensor& h) { return std::pair(i - 1, tanh(h * 2)); }, {zeros({}, int64), v[0]})[1];
    };
    check(down, {x, full({}, -3, int64)}, {{"x1", full({}, -2, int64)}});
    const Graph endless = trace(down, {{"x0", x}, {"x1", full({}, -3, int64)}});
    const Graph named = trace(down, {{"x0", x, {"n"}}, {"x1", full({}, -3, int64)}});
    for (const Graph& graph : {endless, named}) {
        CHECK_THROWS_AS(grad(graph, {"output"}, {"x0"}), ValueError);
        CHECK_THROWS_WITH(grad(graph, {"output"}, {"x0"}),
                          Catch::StartsWith("grad_test.cpp:140: while_loop: on numbers that are made up it did not end within 10000 turns") &&
                              Catch::EndsWith("; give grad() examples of the inputs, on which its loops end"));
    }
    const Graph far = grad(endless, {"output"}, {"x0"}, {{"x0", x}, {"x1", full({}, -10'001, int64)}});  // these are not made up
    CHECK(far({x, full({}, -3, int64)})[1].shape() == x.shape());
}

TEST_CASE("that no gradient flows is said of the graph") {
    const Graph graph = trace([](const Tensor& x, const Tensor& y) { return std::vector<Tensor>{argmax(x), x.detach() * 2, y * 2, x.sum()}; },
                              {{"x", ones({3})}, {"y", ones({3})}}, {.outputs = {"index", "stopped", "other", "loss"}});
    for (const char* output : {"index", "stopped", "other"}) {
        FAILS_IN(TapeError, std::string("grad: no gradient flows from ") + output + " to x: ", "through detach()", grad(graph, {output}, {"x"}));
    }
    CHECK(equal(grad(graph, {"other", "loss"}, {"x"})({ones({3}), ones({3})}).back(), ones({3})));
}
