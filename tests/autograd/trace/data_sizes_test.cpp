// Sizes that depend on data: graphs hold for others than those of the traced run, or are refused.
#include <catch2/catch.hpp>

#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/graph/grad.h"
#include "tapir/autograd/trace/passes/passes.h"
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

TEST_CASE("a number that the program took from a size that depends on data is refused") {
    const auto fn = [](const Tensor& x) { return sum(x[x > 0]) / static_cast<double>(x[x > 0].numel()); };
    CHECK_THROWS_WITH(trace(fn, {{"x", kSamples[0]}}), Catch::Contains("div at data_sizes_test.cpp:") && Catch::Contains("with other data"));
    const Graph graph = trace([](const Tensor& x) { return mean(x[x > 0]); }, {{"x", kSamples[0]}});  // the op takes it itself
    for (const Tensor& x : {kSamples[0], kSamples[1]}) CHECK(allclose(graph({x})[0], mean(x[x > 0])));
    CHECK_THROWS_AS(grad(graph, {"output"}, {"x"}), TapeError);
}

TEST_CASE("a trace that fails leaves everything as it was") {
    const Tensor w = ones({3});
    const auto fn = [&](const Tensor& x) {
        Tensor(w).add_(1);
        return x.sum().item<float>() > 0 ? x * w : x;
    };
    CHECK_THROWS_AS(trace(fn, {{"x", ones({3}), {"n"}}}), Error);
    CHECK(equal(w, ones({3})));
}

TEST_CASE("a size that reshape and expand find themselves may be one that depends on data") {
    check_sizes([](const Tensor& x) {
        const Tensor kept = x[x > 0];
        return kept.reshape({kept.size(0), 1}).expand({kept.size(0), 2}) + kept.unsqueeze(1);
    });
    check_sizes([](const Tensor& x) { return squeeze(nonzero(x > 0), 1).expand({3, -1}) * 2; });
    check_sizes([](const Tensor& x) { return reshape(stack({x, -x}, 1)[x > 0], {-1, 2, 1}).unsqueeze(0); });
    const Graph graph = trace([](const Tensor& x) { return x[x > 0].unsqueeze(1) * ones({x.size(0)}); }, {{"x", kSamples[0], {"n"}}});
    INFO(graph.str());
    for (const Tensor& x : {kSamples[0], kSamples[3], tensor({2.0, -1.0, 0.5, 3.0, 1.0})})
        check_on(graph, x, x[x > 0].unsqueeze(1) * ones({x.size(0)}));
}

TEST_CASE("inputs that are alike everywhere tell what depends on data, too") {
    const auto fn = [](const Tensor& x) { return x[x > 0].unsqueeze(1) * 2; };
    const Graph graph = trace(fn, {{"x", zeros({4})}});
    for (const Tensor& x : kSamples) check_on(graph, x, fn(x));
    const auto above = [](const Tensor& x) { return x[x > 1e9].unsqueeze(1).expand({-1, 3}) * 2; };  // what no run has
    check_on(trace(above, {{"x", zeros({4})}}), kSamples[0] * 1e9, above(kSamples[0] * 1e9));
    const auto masked = [](const Tensor& x, const Tensor& mask) { return x[mask].unsqueeze(1) * 2; };
    const Graph chosen = trace(masked, {{"x", kSamples[0]}, {"mask", zeros({4}, bool_)}});
    CHECK(equal(chosen({kSamples[0], kSamples[0] > 1})[0], masked(kSamples[0], kSamples[0] > 1)));
}

TEST_CASE("a size that the program took from data is refused") {
    const auto fn = [](const Tensor& x) {
        const Tensor kept = x[x > 0];
        return kept * arange(kept.size(0), float32);
    };
    CHECK_THROWS_AS(trace(fn, {{"x", kSamples[0]}}), TapeError);
    const auto two = [](const Tensor& x) {
        const Tensor kept = x[x > 0], squares = kept.unsqueeze(0) * kept.unsqueeze(1);
        return squares.reshape({1, squares.size(0), squares.size(1)});
    };
    CHECK_THROWS_AS(trace(two, {{"x", kSamples[0]}}), TapeError);
    const auto none = [](const Tensor& x) { return x.reshape({4, 1}).expand({4, 3}).narrow(1, 0, 0)[x > 0].unsqueeze(1); };
    CHECK_THROWS_AS(trace(none, {{"x", kSamples[0]}}), TapeError);
}

TEST_CASE("steps along as many elements as data says") {
    const auto fn = [](const Tensor& x) {
        const auto step = [](const Tensor& h, const Tensor& v) { return std::pair{h + v, h * v}; };
        return scan(step, {zeros({})}, {x[x > 0]}).outputs[0] * 2;
    };
    const Graph graph = trace(fn, {{"x", kSamples[0]}});
    INFO(graph.str());
    CHECK_FALSE(graph.outputs()[0].value->shape[0].is_number());
    for (const Tensor& x : kSamples) check_on(graph, x, fn(x));
}

TEST_CASE("each step of a loop chooses as many elements as it does") {
    check_sizes([](const Tensor& x) {
        const auto body = [&](const Tensor& n, const Tensor& sum) {
            const Tensor chosen = exp(x.masked_select(x > sum));
            return std::pair{n + 1, sum + chosen.sum() * 0.1};
        };
        return while_loop([](const Tensor& n, const Tensor&) { return n < 4; }, body, {zeros({}, int64), full({}, -2.0)})[1];
    });
    check_sizes([](const Tensor& x) {
        const auto step = [&](const Tensor& h, const Tensor& v) { return std::pair{h + x[x > v].sum(), x[x < v].sum() - h}; };
        return scan(step, {zeros({})}, {x}).outputs[0];
    });
}

TEST_CASE("branches and loops use what data has chosen before") {
    check_sizes([](const Tensor& x) {
        const Tensor kept = x[x > 0], more = cat({kept, x});
        return cond(x[0] > 0, [&] { return (kept * 2).sum() + (more + kept.sum()).sum(); }, [&] { return x.sum() - kept.sum(); });
    });
    check_sizes([](const Tensor& x) {
        const Tensor kept = stack({x, x * 2}, 1)[x > 0];
        const auto step = [](const Tensor& h, const Tensor& row) { return std::pair{h + row, row.sum() * h}; };
        return scan(step, {zeros({2})}, {kept}).outputs[0] + 1;
    });
    check_sizes([](const Tensor& x) {
        const Tensor kept = x[x > 0], squares = kept.unsqueeze(0) * kept.unsqueeze(1);
        const auto body = [&](const Tensor& n, const Tensor& y) { return std::pair{n + 1, tanh(matmul(squares, y)) * kept}; };
        return while_loop([](const Tensor& n, const Tensor&) { return n < 3; }, body, {zeros({}, int64), kept})[1];
    });
}

TEST_CASE("a number that a branch or a body took from a size that depends on data is refused") {
    const auto refused = [](const auto& fn, const char* why = "with other data") {
        CHECK_THROWS_WITH(trace(fn, {{"x", kSamples[0]}}), Catch::Contains(why));
    };
    refused([](const Tensor& x) {
        return cond(x.sum() > 100, [&] { return x.sum() * 0; }, [&] { return x[x > 0].sum() / static_cast<double>(x[x > 0].numel()); });
    });
    refused([](const Tensor& x) {
        const auto step = [&](const Tensor& h, const Tensor& v) { return std::pair{h + x[x > 0].size(0), v}; };
        return scan(step, {zeros({})}, {x}).carry[0];
    });
    refused(
        [](const Tensor& x) {
            const auto step = [&](const Tensor& h, const Tensor& v) {
                return std::pair{h, x[x > v].unsqueeze(1).expand({x[x > v].size(0), 2}).sum()};
            };
            return scan(step, {zeros({})}, {x}).outputs[0];
        },
        "each step of this loop has as many elements as data says");
    refused([](const Tensor& x) { return cond(x.sum() > 100, [&] { return x * 1; }, [&] { return x[x > 0].size(0) > 2 ? tanh(x) : x * 2; }); });
}

TEST_CASE("a loop that does not end on data that was made up does not hang a trace") {
    const auto fn = [](const Tensor& x) {  // up to the sum, which must not be below 0
        const auto count = while_loop([](const Tensor& i, const Tensor& end) { return i != end; },
                                      [](const Tensor& i, const Tensor& end) { return std::pair{i + 1, end.clone()}; }, {zeros({}), x.sum()});
        return x[x > 0] * count[0];
    };
    const Tensor x = tensor({1.0, -2.0, 2.0, 3.0});
    const Graph graph = trace(fn, {{"x", x}});
    CHECK(equal(graph({x})[0], fn(x)));
}

TEST_CASE("operands of cat that are empty while a program is traced stay operands") {
    const Tensor y = ones({2});
    const auto fn = [&](const Tensor& x) { return cat({x.masked_select(x > 0), y, x.masked_select(x < 0)}); };
    for (const Tensor& example : kSamples) {
        const Graph graph = trace(fn, {{"x", example}});
        for (const Tensor& x : kSamples) check_on(graph, x, fn(x));
    }
    const auto only = [&](const Tensor& x) { return cat({x.masked_select(x > 0), x.masked_select(x > 2)}); };
    const Graph graph = trace(only, {{"x", kSamples[3]}});
    for (const Tensor& x : kSamples) check_on(graph, x, only(x));
}

TEST_CASE("guards hide no size that depends on data") {
    const TraceOptions guard{.reads = TraceOptions::Reads::guard};
    const auto counts = [](const Tensor& x) {
        const Tensor kept = x[x > 0];
        return any(x > 0).item<bool>() ? kept.sum() / static_cast<double>(kept.numel()) : x.sum();
    };
    CHECK_THROWS_WITH(trace(counts, {{"x", kSamples[0]}}, guard), Catch::Contains("with other data"));
    const auto branches = [](const Tensor& x) { return any(x > 0).item<bool>() && x[x > 0].size(0) > 3 ? x * 2 : -x; };
    CHECK_THROWS_AS(trace(branches, {{"x", kSamples[0]}}, guard), TapeError);
    // What is read may decide: the guard says so.
    const auto fn = [](const Tensor& x) { return any(x > 0).item<bool>() ? x[x > 0] * x.max().item() : x; };
    const Graph graph = trace(fn, {{"x", kSamples[0]}}, guard);
    for (const Tensor& x : {kSamples[0], kSamples[2], tensor({3.0, 0.0, 0.0, 0.0})}) check_on(graph, x, fn(x));
    CHECK_THROWS_AS(graph({kSamples[1]}), ValueError);
}

TEST_CASE("guards are of the example itself, where that is of size 1") {
    const auto fn = [](const Tensor& x) { return x.t().contiguous() * x[0].sum().item(); };
    const Tensor x = tensor({{1.0, 2.0, 3.0}}), more = tensor({{1.0, 2.0, 3.0}, {4.0, 5.0, 6.0}});
    std::optional<Graph> graph;
    try {
        graph = trace(fn, {{"x", x, {"batch"}}}, {.reads = TraceOptions::Reads::guard});
    } catch (const TapeError&) {
        return;  // may be refused
    }
    CHECK(equal((*graph)({x})[0], fn(x)));
    CHECK(equal((*graph)({more})[0], fn(more)));
    CHECK_THROWS_AS((*graph)({x * 2}), ValueError);
}

TEST_CASE("branches and loops on sizes that depend on data are refused") {
    const auto refused = [](const auto& fn) {
        for (const Tensor& x : kSamples) CHECK_THROWS_AS(trace(fn, {{"x", x}}), TapeError);
    };
    refused([](const Tensor& x) { return x.masked_select(x > 0).size(0) == 0 ? x * 2 : x * 3; });
    refused([](const Tensor& x) { return x.masked_select(x > 0).size(0) < 2 ? tanh(x) : exp(x); });
    refused([](const Tensor& x) {
        const Tensor chosen = x.masked_select(x > 0);
        Tensor sum = zeros({});
        for (int i = 0; i < chosen.size(0); ++i) sum = sum + chosen.select(0, i);
        return sum;
    });
    CHECK_THROWS_AS(trace([](const Tensor& x) { return x.masked_select(x > 0).size(0) == 0 ? x * 2 : x * 3; }, {{"x", tensor({-1.0, -2.0})}}),
                    TapeError);
}

TEST_CASE("parameters and constants that a size of data chooses are refused") {
    const Tensor few = ones({4}).requires_grad_(), many = full({4}, 2.0).requires_grad_(), constant = ones({4}), other = full({4}, 5.0);
    const auto refused = [](const auto& fn) { CHECK_THROWS_WITH(trace(fn, {{"x", kSamples[0]}}), Catch::Contains("with other data")); };
    const auto count = [](const Tensor& x) { return x.index({x > 0}).size(0); };
    const auto with = [](const Tensor& x, const Tensor& y) { return x.sum() * y; };
    refused([&](const Tensor& x) { return with(x, count(x) > 2 ? few : many); });
    refused([&](const Tensor& x) { return with(x, count(x) > 2 ? constant : other); });
    refused([&](const Tensor& x) { return with(x, tensor(std::vector<float>(4, static_cast<float>(count(x))))); });
}
