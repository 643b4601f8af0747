// Fusion of element-wise ops: what is put together, and that its numbers are those of the ops one by one.
#include <catch2/catch.hpp>
#include <random>

#include "tapir/autograd/trace/grad.h"
#include "tapir/autograd/trace/passes.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

std::string ops_of(const Graph& graph) {
    std::string list;
    for (const auto& node : graph.nodes()) list += (list.empty() ? "" : " ") + node->op;
    return list;
}

// Chains and branches of random ops on (4, n) tensors, rows, columns and numbers.
std::vector<Tensor> random_program(unsigned seed, const std::vector<Tensor>& x) {
    std::mt19937 random(seed);
    const auto pick = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
    std::vector<Tensor> values = x;
    for (int i = 0; i < 14; ++i) {
        const Tensor &a = values[pick(values.size())], &b = values[pick(values.size())], &c = values[pick(values.size())];
        switch (pick(9)) {
            case 0: values.push_back(a + b); break;
            case 1: values.push_back(a * b); break;
            case 2: values.push_back(tanh(a)); break;
            case 3: values.push_back(sigmoid(a) - b); break;
            case 4: values.push_back(a * 0.5 + 2); break;
            case 5: values.push_back(maximum(a, b)); break;
            case 6: values.push_back(clamp(a, -0.5, 0.75)); break;
            case 7: values.push_back(addcmul(a, b, c)); break;
            default: values.push_back(softmax(a, -1) + sum(b, {-1}, true)); break;  // what ends a group
        }
    }
    return {values.back(), values[values.size() - 3], values[x.size() + pick(10)]};
}

}  // namespace

TEST_CASE("element-wise ops that work on each other's results become one") {
    Graph graph = trace([](const Tensor& x, const Tensor& y) { return tanh(x * y + 1) * sigmoid(x - y) + x * 0.5; },
                        {{"x", randn({3, 5})}, {"y", randn({3, 5})}});
    const Tensor x = randn({3, 5}), y = randn({3, 5}), before = graph({x, y})[0];
    CHECK(fuse_elementwise(graph) == 1);
    graph.check();
    CHECK(ops_of(graph) == "fused");
    CHECK(graph.nodes()[0]->loc.line() > 0);
    CHECK(equal(graph({x, y})[0], before));
    CHECK(equal(graph.run({{"x", x}, {"y", y}})[0], before));
    CHECK(fuse_elementwise(graph) == 0);
    const Graph again = Graph::parse(graph.str());
    CHECK(again.str() == graph.str());
    CHECK(equal(again({x, y})[0], before));
}

TEST_CASE("long programs are fused in time that grows with their length") {
    const Tensor w = randn({4, 4}).requires_grad_();
    Graph graph = trace([=](const Tensor& x) {
        Tensor h = x;
        for (int i = 0; i < 1000; ++i) h = tanh(matmul(h, w) * 0.5 + h) * sigmoid(h);
        return h;
    }, {{"x", randn({2, 4})}});
    const Tensor x = randn({2, 4}), before = graph({x})[0];
    CHECK(fuse_elementwise(graph) == 1000);
    graph.check();
    CHECK(equal(graph({x})[0], before));
}

TEST_CASE("what lies between element-wise ops stays between them") {
    const Tensor w = randn({4, 4}).requires_grad_();
    // The product needs the first op's result, and the last op both: they are not one.
    Graph graph = trace([=](const Tensor& x) {
        const Tensor a = x + 1;
        return a * matmul(a, w) - a;
    }, {{"x", randn({4, 4})}});
    const Tensor x = randn({4, 4}), before = graph({x})[0];
    CHECK(fuse_elementwise(graph) == 1);
    graph.check();
    CHECK(ops_of(graph) == "add matmul fused");
    CHECK(equal(graph({x})[0], before));
}

TEST_CASE("other shapes, dtypes and truth values are not taken in") {
    Graph graph = trace([](const Tensor& x, const Tensor& row) {
        const Tensor scaled = row * 2 + 1;       // (5,): one group
        const Tensor all = (x + scaled) * 3;     // (3, 5): another
        const Tensor whole = (all.to(int64) + 1) * 2;
        return std::vector<Tensor>{all, whole, (all > 0).to(float32)};
    }, {{"x", randn({3, 5})}, {"row", randn({5})}});
    const Tensor x = randn({3, 5}), row = randn({5});
    const std::vector<Tensor> before = graph({x, row});
    CHECK(fuse_elementwise(graph) == 3);
    graph.check();
    for (int i = 0; i < 3; ++i) {
        const std::vector<Tensor> after = graph.run({{"x", x}, {"row", row}});
        for (std::size_t k = 0; k < before.size(); ++k) CHECK(equal(after[k], before[k]));
    }
}

TEMPLATE_TEST_CASE("fused numbers are those of the ops", "", float, double) {
    const DType dtype = std::is_same_v<TestType, float> ? float32 : float64;
    const int threads = num_threads();
    for (unsigned seed = 0; seed < 40; ++seed) {
        manual_seed(seed);
        // Whole tiles, parts of one, and less than a vector.
        for (const std::int64_t n : {1, 7, 16, 300, 1024}) {
            const std::vector<Tensor> x = {randn({4, n}, {dtype}), randn({4, n}, {dtype}), randn({n}, {dtype}), randn({4, 1}, {dtype}), randn({}, {dtype}),
                                           randn({n, 4}, {dtype}).t()};
            std::vector<TraceInput> inputs;
            Graph::Inputs named;
            for (std::size_t i = 0; i < x.size(); ++i) {
                inputs.push_back({"x" + std::to_string(i), x[i]});
                named.emplace_back("x" + std::to_string(i), x[i]);
            }
            Graph graph = trace([&](const std::vector<Tensor>& t) { return random_program(seed, t); }, inputs);
            INFO(graph.str());
            const std::vector<Tensor> wanted = random_program(seed, x);
            Graph fused = graph;
            fuse_elementwise(fused);
            fused.check();
            for (int i = 0; i < 3; ++i) {
                set_num_threads(i == 2 ? 2 : 1);
                const std::vector<Tensor> got = graph.run(named), called = fused(x);
                set_num_threads(threads);
                for (std::size_t k = 0; k < wanted.size(); ++k) {
                    CHECK(got[k].shape() == wanted[k].shape());
                    CHECK(allclose(got[k], wanted[k], 0, 0, /*equal_nan=*/true));
                    CHECK(allclose(called[k], wanted[k], 0, 0, /*equal_nan=*/true));
                }
            }
        }
    }
}

TEMPLATE_TEST_CASE("a sum or a mean at the end is that of the ops", "", float, double) {
    const DType dtype = std::is_same_v<TestType, float> ? float32 : float64;
    manual_seed(11);
    const int threads = num_threads();
    const std::vector<std::pair<Shape, Dims>> cases = {
        {{5}, {}}, {{3, 4}, {}}, {{3, 4}, {1}}, {{3, 4}, {0}}, {{2, 3, 37}, {1, 2}}, {{2, 3, 37}, {0, 2}}, {{2, 3, 37}, {1}}, {{1, 7}, {0}},
        {{}, {}}, {{0, 3}, {}}, {{0, 3}, {1}}, {{4, 0}, {1}}, {{40, 1000}, {1}}, {{40, 1000}, {}}, {{40, 1000}, {0}}, {{33000}, {}},
        {{300, 1001}, {}}, {{300, 1001}, {1}}, {{3, 100001}, {1}}, {{100, 3000}, {0}}, {{70, 3001}, {1}}, {{5, 1}, {1}}};
    for (const auto& [shape, dims] : cases) {
        for (const bool is_mean : {false, true}) {
            INFO(shape << " over " << dims << (is_mean ? ", mean" : ", sum"));
            const auto fn = [&, s = shape, d = dims](const Tensor& x, const Tensor& y) {
                const Tensor all = square(x - y) * 0.75 + x;
                return is_mean ? mean(all, d, s.rank() > 1) : sum(all, d);
            };
            const Tensor x = randn(shape, {dtype}), y = shape.rank() > 1 ? randn({shape.back()}, {dtype}) : randn({}, {dtype});
            Graph graph = trace(fn, {{"x", x}, {"y", y}});
            Graph fused = graph;
            CHECK(fuse_elementwise(fused) == 1);
            fused.check();
            bool is_last = true;
            for (int i = 0; i < dims.rank(); ++i) is_last &= dims[i] == shape.rank() - dims.rank() + i;
            CHECK(ops_of(fused) == (is_last ? "fused_reduce" : is_mean ? "fused mean" : "fused sum"));
            const Tensor wanted = fn(x, y);
            CHECK(allclose(fused({x, y})[0], wanted, 0, 0, true));
            for (int i = 0; i < 4; ++i) {
                set_num_threads(i == 3 ? 2 : 1);
                const Tensor got = graph.run({{"x", x}, {"y", y}})[0];
                set_num_threads(threads);
                CHECK(got.shape() == wanted.shape());
                CHECK(allclose(got, wanted, 0, 0, true));
            }
        }
    }
}

TEST_CASE("a sum whose operand is needed elsewhere stays") {
    Graph graph = trace([](const Tensor& x) {
        const Tensor y = tanh(x) + 1;
        return std::vector<Tensor>{sum(y), y};
    }, {{"x", randn({3})}});
    CHECK(fuse_elementwise(graph) == 1);
    CHECK(ops_of(graph) == "fused sum");
}

TEST_CASE("large fused ops are shared out") {
    manual_seed(9);
    const auto fn = [](const Tensor& x, const Tensor& row) { return tanh(x * 2 + row) * x - row; };
    const Tensor x = randn({700, 501}), row = randn({501});
    const Graph graph = trace(fn, {{"x", x}, {"row", row}});
    const Tensor wanted = fn(x, row);
    const int threads = num_threads();
    for (const int count : {1, 2, 3}) {
        set_num_threads(count);
        for (int i = 0; i < 2; ++i) CHECK(equal(graph.run({{"x", x}, {"row", row}})[0], wanted));
    }
    set_num_threads(threads);
}

TEST_CASE("gradients go through fused ops") {
    Graph graph = trace([](const Tensor& x) { return sum(tanh(x * x) * 3 + x); }, {{"x", randn({3}, {float64})}});
    fuse_elementwise(graph);
    const Tensor x = randn({3}, {float64}).requires_grad_();
    Tape tape;
    const Tensor y = graph({x})[0];
    const Tensor wanted = 6 * x * (1 - square(tanh(x * x))) + 1;
    CHECK(allclose(tape.gradient(y, {x})[0], wanted));
}

TEST_CASE("only what is asked for is fused and computed") {
    const Graph graph = trace([](const Tensor& x, const Tensor& y) {
        const Tensor a = x * 2 + 1;
        return std::vector<Tensor>{a, a * y};
    }, {{"x", randn({3})}, {"y", randn({3})}}, {.outputs = {"a", "b"}});
    const Tensor x = randn({3});
    for (int i = 0; i < 3; ++i) CHECK(equal(graph.run({{"x", x}}, {"a"})[0], x * 2 + 1));  // without y
}

TEST_CASE("integers that are divided are looked at as ever") {
    const Graph graph = trace([](const Tensor& x, const Tensor& y) { return floor_divide(x + 1, y) * 2; },
                              {{"x", tensor({4, 5})}, {"y", tensor({1, 2})}});
    for (int i = 0; i < 3; ++i) {
        CHECK(equal(graph.run({{"x", tensor({4, 5})}, {"y", tensor({1, 2})}})[0], tensor({10, 6})));
        // At the line of the op.
        CHECK_THROWS_WITH(graph.run({{"x", tensor({4, 5})}, {"y", tensor({1, 0})}}), Catch::Contains("floor_divide: integer division by 0"));
    }
}
