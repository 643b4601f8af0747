// Dead code: what goes, and what stays.
#include "passes_check.h"

using namespace passes_check;

TEST_CASE("dead code goes") {
    Graph graph = trace(
        [](const Tensor& x) {
            static_cast<void>(tanh(exp(x)));
            return x * 2;
        },
        {{"x", ones({3})}});
    const Graph before = graph;
    CHECK(listing(before) ==
          "input x: float32 (3,)\n"
          "%1: float32 (3,) = exp(x)\n"
          "%2: float32 (3,) = tanh(%1)\n"
          "%3: float32 (3,) = mul(x, 2.0)\n"
          "output output = %3\n");
    CHECK(eliminate_dead_code(graph) == 2);
    CHECK(listing(graph) ==
          "input x: float32 (3,)\n"
          "%1: float32 (3,) = mul(x, 2.0)\n"
          "output output = %1\n");
    CHECK(eliminate_dead_code(graph) == 0);
    check_same_graphs(graph, before, {ones({3})});
}

TEST_CASE("updates, guards and random numbers are no dead code") {
    Tensor total = zeros({3});
    TraceOptions options;
    options.reads = TraceOptions::Reads::guard;
    options.parameters = {{"total", total}};
    Graph graph = trace(
        [&](const Tensor& x) {
            static_cast<void>(rand({3}) * 2);
            total.copy_(total + x);
            if (sum(x).item<float>() > 0) return randn({3});
            return x;
        },
        {{"x", ones({3})}}, options);
    const Graph before = graph;
    CHECK(eliminate_dead_code(graph) == 1);
    CHECK(ops_of(graph) == "rand add copy sum randn");
    CHECK(graph.updates().size() == 1);
    CHECK(graph.guards().size() == 1);
    check_same_graphs(graph, before, {ones({3})});
}
