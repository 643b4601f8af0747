// Constant folding: what is computed once, and what is not.
#include "passes_check.h"

using namespace passes_check;

TEST_CASE("what depends on constants only is computed once") {
    const Tensor c = tensor({1.0, 2.0, 3.0, 4.0}, float64), w = tensor({2.0}, float64).requires_grad_();
    Graph graph = trace(
        [&](const Tensor& x) {
            const Tensor scaled = x * square(c + 1).sum();
            return scaled + w * 2;  // the parameter may be trained
        },
        {{"x", ones({3, 4}, float64)}});
    const Graph before = graph;
    CHECK(ops_of(before) == "add square sum mul mul add");
    CHECK(fold_constants(graph) == 3);
    CHECK(listing(graph) ==
          "input x: float64 (3, 4)\n"
          "parameter parameter_0: float64 (1,)\n"
          "%1: float64 (3, 4) = mul(x, 54.0:float64)\n"
          "%2: float64 (1,) = mul(parameter_0, 2.0:float64)\n"
          "%3: float64 (3, 4) = add(%1, %2)\n"
          "output output = %3\n");
    CHECK(fold_constants(graph) == 0);
    check_same_graphs(graph, before, {rand({3, 4}, float64)});
    CHECK(freeze(graph) == 1);
    CHECK(fold_constants(graph) == 1);
    CHECK(ops_of(graph) == "mul add");
    check_same_graphs(graph, before, {rand({3, 4}, float64)});
}

TEST_CASE("a frozen graph has its own memory") {
    const Tensor w = tensor({1.0F, 2.0F}).requires_grad_();
    Graph graph = trace([&](const Tensor& x) { return x * w + exp(w); }, {{"x", ones({2})}});
    const Tensor x = ones({2}), wanted = graph({x})[0].clone();
    CHECK(freeze(graph) == 1);
    const NoGradScope off;
    Tensor(w).fill_(0);
    CHECK(equal(graph({x})[0], wanted));
    for (int i = 0; i < 3; ++i) CHECK(equal(graph.run({{"x", x}})[0], wanted));
    CHECK_FALSE(graph.constants()[0]->data.requires_grad());
}

TEST_CASE("what is large, random, or not known before a run is not folded") {
    const Tensor c = tensor({1.0F, 2.0F});
    Graph graph = trace(
        [&](const Tensor& x) {
            const Tensor large = zeros({200, 200}), random = rand({2}), rows = c.expand({x.size(0), 2}) + 0.5;
            return x.sum() + large.sum() + random.sum() + rows.sum();
        },
        {{"x", ones({3, 2}), {"batch"}}});
    const Graph before = graph;
    fold_constants(graph);
    CHECK(ops_of(graph) == ops_of(before));
    check_same_graphs(graph, before, {ones({5, 2})}, 1e-5, 1e-6);
    const Tensor column = tensor({{1.0F}, {2.0F}});
    Graph small = trace([&](const Tensor& x) { return x + (c + column); }, {{"x", ones({2, 2})}});
    CHECK(fold_constants(small, 1) == 0);
    CHECK(fold_constants(small) == 1);
}

TEST_CASE("an output is never the graph's own constant") {
    Graph graph = trace([](const Tensor& x) { return std::pair(x * 2, ones({3}) * 3); }, {{"x", ones({3})}});
    const Graph before = graph;
    optimize(graph);
    for (int i = 0; i < 2; ++i) {
        Tensor y = graph.run({{"x", ones({3})}})[1];
        CHECK(equal(y, full({3}, 3.0)));
        y.mul_(5);
    }
    check_same_graphs(graph, before, {ones({3})});
}

TEST_CASE("what fails stays") {
    const Tensor a = tensor({1}), b = tensor({0});
    Graph graph = trace([&](const Tensor& x) { return x + 1; }, {{"x", ones({1}, int64)}});
    Graph::Node* bad = graph.insert(nullptr, "add", {graph.add_constant(a), graph.add_constant(a)});
    bad = graph.insert(nullptr, "floor_divide", {bad->results[0], graph.add_constant(a)});
    graph.set_input(bad, 1, graph.add_constant(b));
    graph.add_output("never", bad->results[0]);
    fold_constants(graph);
    CHECK(ops_of(graph) == "add floor_divide");
    CHECK(equal(graph.run({{"x", ones({1}, int64)}}, {"output"})[0], tensor({2})));
    CHECK_THROWS_AS(graph.run({{"x", ones({1}, int64)}}), ValueError);
}
