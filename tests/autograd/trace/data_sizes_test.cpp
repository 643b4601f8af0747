// Sizes that depend on data: graphs hold for others than those of the traced run, or are refused.
#include <catch2/catch.hpp>

#include "tapir/autograd/trace/grad.h"
#include "tapir/autograd/trace/passes.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

void check_on(const Graph& graph, const Tensor& x, const Tensor& wanted) {
    for (int again = 0; again < 2; ++again) {
        const Tensor got = graph({x})[0], run = graph.run({{"x", x}})[0];
        REQUIRE(got.shape() == wanted.shape());
        REQUIRE(run.shape() == wanted.shape());
        CHECK(allclose(got, wanted));
        CHECK(allclose(run, wanted));
    }
}

const Tensor kSamples[] = {tensor({1.0, -1.0, 2.0, 3.0}), tensor({-1.0, -1.0, 2.0, -3.0}), tensor({1.0, 1.0, 2.0, 3.0}), full({4}, -1.0)};

template <class Fn>
void check_sizes(const Fn& fn) {
    Graph graph = trace(fn, {{"x", kSamples[0]}});
    INFO(graph.str());
    for (const Tensor& x : kSamples) check_on(graph, x, fn(x));
    optimize(graph);
    graph.check();
    for (const Tensor& x : kSamples) check_on(graph, x, fn(x));
}

}  // namespace

TEST_CASE("as many elements as data says") {
    check_sizes([](const Tensor& x) { return exp(x[x > 0] * 2) + 1; });
    check_sizes([](const Tensor& x) { return nonzero(x > 0).sum(1).reshape({-1, 1}) * 3; });
    check_sizes([](const Tensor& x) { return x.unique().values - 1; });
    check_sizes([](const Tensor& x) {
        const Tensor kept = x[x > 0];
        return cat({kept, kept}) / 2;
    });
}

TEST_CASE("their shapes say that they are not known") {
    const Graph graph = trace([](const Tensor& x) { return x[x > 0] * 2; }, {{"x", kSamples[0]}});
    REQUIRE(graph.outputs()[0].value->shape.size() == 1);
    CHECK_FALSE(graph.outputs()[0].value->shape[0].is_number());
}

TEST_CASE("a gradient through elements that data chooses") {
    const Graph graph = trace([](const Tensor& x) { return sum(square(x[x > 0])); }, {{"x", kSamples[0]}});
    const Graph gradient = grad(graph, {"output"}, {"x"});
    INFO(gradient.str());
    for (const Tensor& x : kSamples) CHECK(allclose(gradient({x})[1], where(x > 0, x * 2, zeros({4}))));
}

TEST_CASE("a size that the program took from data is refused") {
    const auto fn = [](const Tensor& x) {
        const Tensor kept = x[x > 0];
        return kept.reshape({kept.size(0), 1}).expand({kept.size(0), 2}) + kept.unsqueeze(1);
    };
    CHECK_THROWS_AS(trace(fn, {{"x", kSamples[0]}}), TapeError);
}
