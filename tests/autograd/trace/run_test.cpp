// Running graphs: only what is asked for, in memory that is used again, by several threads.
#include <catch2/catch.hpp>
#include <thread>

#include "../../fails.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

Graph two_outputs() {
    manual_seed(1);
    const Tensor w = randn({4, 4}).requires_grad_();
    TraceOptions options;
    options.outputs = {"hidden", "logits"};
    return trace([=](const Tensor& x, const Tensor& y) {
        const Tensor hidden = tanh(linear(x, w));
        return std::vector<Tensor>{hidden, log_softmax(hidden + y, 1)};
    }, {{"x", randn({2, 4}), {"batch"}}, {"y", randn({4})}}, options);
}

}  // namespace

TEST_CASE("a run computes what is asked for") {
    const Graph graph = two_outputs();
    const Tensor x = randn({3, 4}), y = randn({4});
    const std::vector<Tensor> all = graph({x, y});
    CHECK(equal(graph.run({{"x", x}, {"y", y}})[1], all[1]));
    CHECK(equal(graph.run({{"x", x}, {"y", y}}, {"logits"})[0], all[1]));
    CHECK(equal(graph.run({{"x", x}}, {"hidden"})[0], all[0]));  // without y
    CHECK(graph.run({{"x", x}}, {"x"})[0].is_same(x));
    FAILS(ValueError, "graph: the input y is needed", graph.run({{"x", x}}, {"logits"}));
    FAILS(ValueError, "there is no input z; there are x, y", graph.run({{"z", x}}, {"logits"}));
    FAILS(ValueError, "there is no input, parameter or output logit", graph.run({{"x", x}}, {"logit"}));
    FAILS(ShapeError, "the input x has shape (3, 5), the graph was made for (batch, 4)", graph.run({{"x", randn({3, 5})}}, {"hidden"}));
    FAILS(DTypeError, "the input x is float64", graph.run({{"x", x.to(float64)}}, {"hidden"}));
}

TEST_CASE("results of a run stay as they are") {
    const Graph graph = two_outputs();
    const Tensor x = randn({3, 4}), y = randn({4});
    const Tensor first = graph.run({{"x", x}, {"y", y}}, {"logits"})[0], copy = first.clone();
    graph.run({{"x", x * 2}, {"y", y}}, {"logits"});
    graph.run({{"x", randn({7, 4})}, {"y", y}}, {"logits"});
    CHECK(equal(first, copy));
}

TEST_CASE("a run is not recorded, a call is") {
    const Graph graph = two_outputs();
    Tape tape;
    const Tensor x = randn({3, 4}).requires_grad_(), y = randn({4});
    CHECK(!graph.run({{"x", x}, {"y", y}}, {"logits"})[0].requires_grad());
    const Tensor called = sum(graph({x, y})[1] * 2);
    const std::vector<Tensor> gradients = tape.gradient(called, {x, graph.parameters()[0]->data});
    CHECK(gradients[1].shape() == Shape(4, 4));
    CHECK(gradients[0].abs().sum().item() > 0);
}

TEST_CASE("an edited graph runs as it is now") {
    Graph graph = two_outputs();
    const Tensor x = randn({3, 4}), y = randn({4});
    const Tensor before = graph.run({{"x", x}, {"y", y}}, {"logits"})[0];
    Graph::Value* hidden = graph.value("hidden");
    Graph::Node* doubled = graph.insert(hidden->uses[0].node, "mul", {hidden, graph.add_constant(tensor(2.0))});
    graph.set_input(doubled->results[0]->maker, 0, hidden);
    graph.set_input(hidden->uses[0].node == doubled ? hidden->uses[1].node : hidden->uses[0].node, 0, doubled->results[0]);
    graph.check();
    const Tensor after = graph.run({{"x", x}, {"y", y}}, {"logits"})[0];
    CHECK(!allclose(before, after));
    CHECK(equal(after, graph({x, y})[1]));
}

TEST_CASE("several threads run one graph") {
    const Graph graph = two_outputs();
    const Tensor y = randn({4});
    std::vector<Tensor> inputs, wanted;
    for (int i = 0; i < 4; ++i) {
        inputs.push_back(randn({i + 1, 4}));
        wanted.push_back(graph({inputs.back(), y})[1]);
    }
    std::vector<int> wrong(4, 0);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            for (int i = 0; i < 50; ++i) wrong[t] += !equal(graph.run({{"x", inputs[t]}, {"y", y}}, {"logits"})[0], wanted[t]);
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == std::vector<int>(4, 0));
}

TEST_CASE("what the program writes to parameters is written by a whole run") {
    Tensor count = zeros({2});
    TraceOptions options;
    options.parameters = {{"count", count}};
    const Graph graph = trace([&](const Tensor& x) {
        count.add_(x);
        return count * 2;
    }, {{"x", ones({2})}}, options);
    CHECK(equal(count, ones({2})));  // it ran once
    REQUIRE(graph.updates().size() == 1);
    CHECK(equal(graph.run({{"x", ones({2}) * 3}})[0], full({2}, 8.0)));
    CHECK(equal(count, full({2}, 4.0)));
    graph.run({{"x", ones({2})}}, {"output"});
    CHECK(equal(count, full({2}, 4.0)));  // only what is asked for
}
