// Common subexpressions: what is computed once, and what is not.
#include "passes_check.h"

using namespace passes_check;

TEST_CASE("common subexpressions are computed once") {
    Graph graph = trace(
        [](const Tensor& x) {
            const Tensor a = tanh(x * 2), b = tanh(x * 2);
            const Tensor c = x + b, d = b + x;  // in either order
            return a + c * d;
        },
        {{"x", ones({3})}});
    const Graph before = graph;
    CHECK(ops_of(before) == "mul tanh mul tanh add add mul add");
    CHECK(eliminate_common_subexpressions(graph) > 0);
    CHECK(listing(graph) ==
          "input x: float32 (3,)\n"
          "%1: float32 (3,) = mul(x, 2.0)\n"
          "%2: float32 (3,) = tanh(%1)\n"
          "%3: float32 (3,) = add(x, %2)\n"
          "%4: float32 (3,) = mul(%3, %3)\n"
          "%5: float32 (3,) = add(%2, %4)\n"
          "output output = %5\n");
    CHECK(eliminate_common_subexpressions(graph) == 0);
    check_same_graphs(graph, before, {tensor({0.1F, -2.0F, 0.3F})});
}

TEST_CASE("random ops, other attributes and other dtypes are not the same") {
    Graph graph = trace(
        [](const Tensor& x) {
            const Tensor a = dropout(x, 0.5), b = dropout(x, 0.5);
            const Tensor c = softmax(x, 0), d = softmax(x, 1);
            const Tensor e = x.to(float32), f = x.to(float16);
            return std::vector<Tensor>{a + b, c + d, e, f};
        },
        {{"x", ones({3, 3}, float64)}});
    const Graph before = graph;
    CHECK(eliminate_common_subexpressions(graph) == 0);
    CHECK(graph.nodes().size() == before.nodes().size());
    check_same_graphs(graph, before, {ones({3, 3}, float64)});
}

TEST_CASE("outputs that are the same stay two tensors") {
    Graph graph = trace([](const Tensor& x) { return std::pair(tanh(x), tanh(x)); }, {{"x", ones({3})}});
    const Graph before = graph;
    optimize(graph);
    check_same_graphs(graph, before, {ones({3})});
    const std::vector<Tensor> outputs = graph.run({{"x", ones({3})}});
    CHECK_FALSE(outputs[0].shares_storage(outputs[1]));
}
