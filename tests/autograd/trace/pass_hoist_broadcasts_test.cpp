// Broadcast hoisting: what is computed small, and what is not.
#include "passes_check.h"

using namespace passes_check;

namespace {

template <class Fn>
void becomes(const std::string& after, const Fn& fn, const Tensor& x, const PassOptions& options = {}) {
    Graph graph = trace(fn, {{"x", x}});
    const Graph before = graph;
    hoist_broadcasts(graph, options);
    INFO("before:\n" << before.str() << "after:\n" << graph.str());
    CHECK(listing(graph) == after);
    check_same_graphs(graph, before, {x});
}

}  // namespace

TEST_CASE("element-wise ops are computed before their operands are expanded") {
    Graph graph = trace([](const Tensor& x) { return sum(exp(x.expand({5, 3})) * 2, {0}); }, {{"x", ones({3}, float64)}});
    const Graph before = graph;
    CHECK(listing(before) ==
          "input x: float64 (3,)\n"
          "%1: float64 (5, 3) = expand(x, shape=(5, 3))\n"
          "%2: float64 (5, 3) = exp(%1)\n"
          "%3: float64 (5, 3) = mul(%2, 2.0:float64)\n"
          "%4: float64 (3,) = sum(%3, dims=(0,), keepdim=false)\n"
          "output output = %4\n");
    CHECK(hoist_broadcasts(graph) == 2);
    CHECK(listing(graph) ==
          "input x: float64 (3,)\n"
          "%1: float64 (3,) = exp(x)\n"
          "%2: float64 (3,) = mul(%1, 2.0:float64)\n"
          "%3: float64 (5, 3) = expand(%2, shape=(5, 3))\n"
          "%4: float64 (3,) = sum(%3, dims=(0,), keepdim=false)\n"
          "output output = %4\n");
    CHECK(hoist_broadcasts(graph) == 0);
    check_same_graphs(graph, before, {rand({3}, float64)});
}

TEST_CASE("operands that broadcast by themselves are not expanded") {
    becomes(
        "input x: float64 (3, 4)\n"
        "%1: float64 (4,) = sum(x, dims=(0,), keepdim=false)\n"
        "%2: float64 (3, 4) = mul(x, %1)\n"
        "output output = %2\n",
        [](const Tensor& x) { return x * x.sum({0}).expand({3, 4}); }, ones({3, 4}, float64));
    becomes(
        "input x: float64 (3, 1)\n"
        "%1: float64 (3, 1) = add(x, x)\n"
        "%2: float64 (3, 4) = expand(%1, shape=(3, 4))\n"
        "%3: float64 (4,) = sum(%2, dims=(0,), keepdim=false)\n"
        "output output = %3\n",
        [](const Tensor& x) { return (x.expand({3, 4}) + x.expand({3, 4})).sum({0}); }, ones({3, 1}, float64));
}

TEST_CASE("numbers take the place of tensors that are full of one") {
    becomes(
        "input x: float32 (3, 4)\n"
        "%1: bool (3, 4) = gt(x, 0.0)\n"
        "%2: float32 (3, 4) = where(%1, 1.0, x)\n"
        "%3: float32 (3, 4) = mul(%2, 2.5)\n"
        "output output = %3\n",
        [](const Tensor& x) { return where(x > 0, ones({3, 4}), x) * full({4}, 2.5); }, ones({3, 4}));
}

TEST_CASE("what is small is put together") {
    becomes(
        "input x: float64 (3, 4)\n"
        "%1: float64 (4,) = sum(x, dims=(0,), keepdim=false)\n"
        "%2: float64 (4,) = mul(%1, 2.0:float64)\n"
        "%3: float64 (3, 4) = mul(x, %2)\n"
        "output output = %3\n",
        [](const Tensor& x) { return x * x.sum({0}) * 2; }, ones({3, 4}, float64), {.allow_nonfinite = true});
    becomes(
        "input x: float64 (3, 4)\n"
        "%1: float64 (4,) = sum(x, dims=(0,), keepdim=false)\n"
        "%2: float64 (3, 4) = add(x, %1)\n"
        "%3: float64 (3, 4) = add(%2, 2.0:float64)\n"  // sums of floats are not as exact in another order
        "output output = %3\n",
        [](const Tensor& x) { return x + x.sum({0}) + 2; }, ones({3, 4}, float64));
}

TEST_CASE("products of what is small are neither infinite nor 0 by that") {
    const auto ran = [](const Tensor& a, const Tensor& b, const Tensor& x, std::size_t nodes) {
        Graph graph = trace([&](const Tensor& t) { return t * a * b; }, {{"x", zeros({2, 3})}});
        const Graph before = graph;
        optimize(graph);
        INFO(graph.str());
        CHECK(graph.nodes().size() == nodes);
        check_same_graphs(graph, before, {x}, 1e-6);
    };
    const Tensor x = tensor({{0.0f, 1.0f, -2.0f}, {INFINITY, -INFINITY, NAN}});
    ran(full({3}, 1e20), full({3}, 1e20), x, 2);
    ran(full({3}, 1e-30), full({3}, 1e-30), x, 2);
    ran(tensor({1e20f, 1.0f, 2.0f}), tensor({1e20f, 1.0f, 2.0f}), x, 2);
    ran(tensor({1.0f, 1.0f, 2.0f}), tensor({0.0f, 1.0f, 2.0f}), x, 2);
    ran(tensor({1.0f, 1.0f, 2.0f}), tensor({3.0f, 1.0f, INFINITY}), x, 2);
    ran(tensor({1.0f, 3.0f, 2.0f}), tensor({3.0f, 1.0f, 2.0f}), x, 1);
}

TEST_CASE("what is hoisted has the same dtype, and outputs have memory of their own") {
    // A 0-d tensor counts less in a promotion than what it is expanded to.
    Graph graph = trace([](const Tensor& x) { return x.sum().to(float64).expand({3}) * x; }, {{"x", ones({3})}});
    const Graph before = graph;
    CHECK(hoist_broadcasts(graph) == 0);
    check_same_graphs(graph, before, {ones({3})});
    graph = trace([](const Tensor& x) { return exp(x.expand({5, 3})); }, {{"x", ones({3})}});
    optimize(graph);
    Tensor y = graph.run({{"x", ones({3})}})[0];
    y[0].fill_(0);
    CHECK(equal(y[1], exp(ones({3}))));
}

TEST_CASE("named dimensions are expanded last") {
    Graph graph =
        trace([](const Tensor& x) { return sigmoid(x.sum({0}, true).expand({x.size(0), 4})) - x; }, {{"x", ones({3, 4}, float64), {"batch"}}});
    const Graph before = graph;
    CHECK(hoist_broadcasts(graph) == 2);
    CHECK(listing(graph) ==
          "input x: float64 (batch, 4)\n"
          "%1: float64 (1, 4) = sum(x, dims=(0,), keepdim=true)\n"
          "%2: float64 (1, 4) = sigmoid(%1)\n"
          "%3: float64 (batch, 4) = sub(%2, x)\n"
          "output output = %3\n");
    for (const std::int64_t batch : {1, 2, 7}) check_same_graphs(graph, before, {rand({batch, 4}, float64)});
}
