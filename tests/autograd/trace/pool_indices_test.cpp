// Graphs that run leave out the places of the largest elements where nobody wants them.
#include "passes_check.h"

using namespace tapir;
using passes_check::ops_of;

namespace {

// The ops of fn's graph as it runs, which gives what fn gives.
template <class Fn>
std::string run_ops(const Fn& fn, const Tensor& x) {
    const Graph graph = trace(fn, {{"x", x}});
    Graph changed = graph;
    drop_pool_indices(changed);
    changed.check();
    CHECK(graph.compile()({x})[0].equal(fn(x)));
    CHECK(changed.run({{"x", x}})[0].equal(fn(x)));
    return ops_of(changed);
}

}  // namespace

TEST_CASE("graphs pool without indices that nobody wants") {
    manual_seed(1);
    const Tensor x = randn({2, 20, 12, 9});
    CHECK(run_ops([](const Tensor& t) { return max_pool2d(t, 3, {.stride = 2, .padding = 1}); }, x) == "max_pool_values");
    CHECK(run_ops([](const Tensor& t) { return adaptive_max_pool2d(t, {3, 4}); }, x) == "max_pool_values");
    CHECK(run_ops([](const Tensor& t) { return avg_pool2d(t, 2); }, x) == "avg_pool");
    CHECK(run_ops([](const Tensor& t) { return max_pool2d(t, 2) + max_pool2d_with_indices(t, 2).indices; }, x).find("max_pool ") !=
          std::string::npos);
}

TEST_CASE("a graph keeps the indices that are its output, or that a gradient needs") {
    manual_seed(2);
    const Tensor x = randn({2, 3, 8, 8});
    Graph graph = trace([](const Tensor& t) { return max_pool2d_with_indices(t, 2).indices; }, {{"x", x}});
    CHECK(drop_pool_indices(graph) == 0);
    Graph step = trace(
        [](const Tensor& t) {
            const Tensor leaf = t.detach().requires_grad_();
            Tape tape;
            return tape.gradient(sum(max_pool2d(leaf, 2)), {leaf})[0];
        },
        {{"x", x}});
    CHECK(drop_pool_indices(step) == 0);
    CHECK(step.str().find("max_pool_backward") != std::string::npos);
}
