// Fusion of element-wise ops: what is put together, and that its numbers are those of the ops one by one.
#include <catch2/catch.hpp>
#include <random>

#include "../../sanitizers.h"
#include "passes_check.h"
#include "tapir/autograd/trace/graph/grad.h"
#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

using namespace tapir;
using passes_check::ops_of;

namespace {

struct Half {
    static constexpr DType value = float16;
};
struct BFloat {
    static constexpr DType value = bfloat16;
};

// Chains and branches of random ops on (4, n) tensors, rows, columns and numbers.
std::vector<Tensor> random_program(unsigned seed, const std::vector<Tensor>& x) {
    std::mt19937 random(seed);
    const auto pick = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
    std::vector<Tensor> values = x;
    for (int i = 0; i < 14; ++i) {
        const Tensor &a = values[pick(values.size())], &b = values[pick(values.size())], &c = values[pick(values.size())];
        // Truth values become numbers, so that every op fits every value.
        const auto both = [&] { return logical_or(logical_and(gt(a, b), le(b, c)), logical_not(ne(a, 0.5))); };
        switch (pick(15)) {
            case 0: values.push_back(a + b); break;
            case 1: values.push_back(a * b); break;
            case 2: values.push_back(tanh(a)); break;
            case 3: values.push_back(sigmoid(a) - b); break;
            case 4: values.push_back(a * 0.5 + 2); break;
            case 5: values.push_back(maximum(a, b)); break;
            case 6: values.push_back(clamp(a, -0.5, 0.75)); break;
            case 7: values.push_back(addcmul(a, b, c)); break;
            case 8: values.push_back(where(a > b, c, a * 2)); break;
            case 9: values.push_back(where(both(), a, 0.25)); break;
            case 10: values.push_back(masked_fill(a, logical_xor(lt(b, 0), ge(c, 0)), -1)); break;
            case 11: values.push_back((a < b).to(a.dtype()) * c); break;
            case 12: values.push_back(a * both() - (c > 0).to(a.dtype())); break;
            case 13: values.push_back(where(eq(isnan(a), b == c), -a, minimum(a, c))); break;
            default: values.push_back(softmax(a, -1) + sum(b, {-1}, true)); break;  // what ends a group
        }
    }
    return {values.back(), values[values.size() - 3], values[x.size() + pick(10)], values.back() > values[values.size() - 2]};
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
    Graph graph = trace(
        [=](const Tensor& x) {
            Tensor h = x;
            for (int i = 0; i < 1000; ++i) h = tanh(matmul(h, w) * 0.5 + h) * sigmoid(h);
            return h;
        },
        {{"x", randn({2, 4})}});
    const Tensor x = randn({2, 4}), before = graph({x})[0];
    CHECK(fuse_elementwise(graph) == 1000);
    graph.check();
    CHECK(equal(graph({x})[0], before));
}

TEST_CASE("what lies between element-wise ops stays between them") {
    const Tensor w = randn({4, 4}).requires_grad_();
    // The product needs the first op's result, and the last op both: they are not one.
    Graph graph = trace(
        [=](const Tensor& x) {
            const Tensor a = x + 1;
            return a * matmul(a, w) - a;
        },
        {{"x", randn({4, 4})}});
    const Tensor x = randn({4, 4}), before = graph({x})[0];
    CHECK(fuse_elementwise(graph) == 1);
    graph.check();
    CHECK(ops_of(graph) == "add matmul fused");
    CHECK(equal(graph({x})[0], before));
}

TEST_CASE("other shapes and dtypes are not taken in") {
    Graph graph = trace(
        [](const Tensor& x, const Tensor& row) {
            const Tensor scaled = row * 2 + 1;    // (5,): one group
            const Tensor all = (x + scaled) * 3;  // (3, 5): another
            const Tensor whole = (all.to(int64) + 1) * 2;
            return std::vector<Tensor>{all, whole, (all > 0).to(float32)};
        },
        {{"x", randn({3, 5})}, {"row", randn({5})}});
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
    for (unsigned seed = 0; seed < test::share(40U); ++seed) {
        manual_seed(seed);
        // Whole tiles, parts of one, and less than a vector.
        for (const std::int64_t n : {1, 7, 16, 300, 1024}) {
            const std::vector<Tensor> x = {randn({4, n}, {dtype}), randn({4, n}, {dtype}), randn({n}, {dtype}),
                                           randn({4, 1}, {dtype}), randn({}, {dtype}),     randn({n, 4}, {dtype}).t()};
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
        {{5}, {}},          {{3, 4}, {}},       {{3, 4}, {1}},     {{3, 4}, {0}}, {{2, 3, 37}, {1, 2}}, {{2, 3, 37}, {0, 2}},
        {{2, 3, 37}, {1}},  {{1, 7}, {0}},      {{}, {}},          {{0, 3}, {}},  {{0, 3}, {1}},        {{4, 0}, {1}},
        {{40, 1000}, {1}},  {{40, 1000}, {}},   {{40, 1000}, {0}}, {{33000}, {}}, {{300, 1001}, {}},    {{300, 1001}, {1}},
        {{3, 100001}, {1}}, {{100, 3000}, {0}}, {{70, 3001}, {1}}, {{5, 1}, {1}}};
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
    Graph graph = trace(
        [](const Tensor& x) {
            const Tensor y = tanh(x) + 1;
            return std::vector<Tensor>{sum(y), y};
        },
        {{"x", randn({3})}});
    CHECK(fuse_elementwise(graph) == 1);
    CHECK(ops_of(graph) == "fused sum");
}

TEST_CASE("truth values are taken in, as what is chosen by them and as results") {
    const auto fn = [](const Tensor& x, const Tensor& y, const Tensor& mask) {
        const Tensor is_more = logical_and(x * 2 > y, mask);
        return std::vector<Tensor>{where(is_more, x, 0.5) + is_more.to(float32), is_more, masked_fill(x, is_more, 3) * mask};
    };
    const auto traced = [&](const std::vector<Tensor>& t) { return fn(t[0], t[1], t[2]); };
    for (const std::int64_t n : {1, 5, 16, 700, 5000}) {
        const Tensor x = randn({3, n}), y = randn({n}), mask = randn({3, 1}) > 0;
        Graph graph = trace(traced, {{"x", x}, {"y", y}, {"mask", mask}});
        Graph fused = graph;
        CHECK(fuse_elementwise(fused) == 1);
        fused.check();
        CHECK(ops_of(fused) == "fused");
        CHECK(Graph::parse(fused.str()).str() == fused.str());
        const std::vector<Tensor> wanted = fn(x, y, mask);
        for (int i = 0; i < 3; ++i) {
            const std::vector<Tensor> got = graph.run({{"x", x}, {"y", y}, {"mask", mask}}), called = fused({x, y, mask});
            for (std::size_t k = 0; k < wanted.size(); ++k) {
                CHECK(got[k].dtype() == wanted[k].dtype());
                CHECK(equal(got[k], wanted[k]));
                CHECK(equal(called[k], wanted[k]));
            }
        }
    }
}

TEST_CASE("sums of what is large do not wait for their last term") {
    const auto towers = [](std::int64_t rows) {
        const Tensor w = randn({64, 64}).requires_grad_();
        Graph graph = trace(
            [&](const Tensor& x) {
                Tensor sum = matmul(x, w);
                for (int i = 2; i < 4; ++i) {
                    const Tensor y = matmul(x * i, w);
                    sum = sum + y;
                }
                return sum;
            },
            {{"x", randn({rows, 64})}});
        fuse_elementwise(graph);
        return ops_of(graph);
    };
    CHECK(towers(4) == "matmul mul matmul mul matmul fused");
    CHECK(towers(256) == "matmul mul matmul add mul matmul add");  // of 64 KB: two lie in memory at a time, not three
}

TEST_CASE("the gradient of relu is one node with what follows") {
    const Graph traced = trace(
        [](const Tensor& x, const Tensor& g) {
            Tape tape;
            const Tensor leaf = x.detach().requires_grad_();
            const Tensor y = relu(leaf);
            return tape.gradient(y, {leaf}, {.gradient = g})[0] * 0.5;
        },
        {{"x", randn({20})}, {"g", randn({20})}});
    Graph graph = traced;
    CHECK(fuse_elementwise(graph) == 1);
    CHECK(ops_of(graph) == "detach fused");
    const Tensor x = randn({20}), g = randn({20});
    CHECK(equal(graph({x, g})[0], where(x > 0, g * 0.5, 0.0)));
}

TEMPLATE_TEST_CASE("16-bit floats are rounded after each op, as by the ops one by one", "", Half, BFloat) {
    const DType dtype = TestType::value;
    const auto check = [&](const auto& fn, const std::vector<Tensor>& given) {
        const Graph graph = trace([&](const Tensor& x, const Tensor& row) { return fn(x, row); }, {{"x", given[0]}, {"row", given[1]}});
        Graph fused = graph;
        CHECK(fuse_elementwise(fused) == 1);
        CHECK(ops_of(fused) == "fused");
        const Tensor wanted = fn(given[0], given[1]);
        for (int i = 0; i < 3; ++i) {
            const Tensor got = graph.run({{"x", given[0]}, {"row", given[1]}})[0];
            CHECK(got.dtype() == wanted.dtype());
            CHECK(allclose(got, wanted, 0, 0, /*equal_nan=*/true));
            CHECK(allclose(fused(given)[0], wanted, 0, 0, /*equal_nan=*/true));
        }
    };
    for (const std::int64_t n : {1, 7, 16, 300, 3000}) {
        const std::vector<Tensor> given = {(randn({4, n}) * 3).to(dtype), randn({n}).to(dtype)};
        check(
            [](const Tensor& x, const Tensor& row) {
                const Tensor y = tanh(x * row + 1) * sigmoid(x - row);
                return where(x > row, y, masked_fill(x * 0.1, x < -1, -2.1) + y * 3);
            },
            given);
        check([](const Tensor& x, const Tensor& row) { return logical_and((x + 1) - 1 == x, x * row != row + x); }, given);
        check([](const Tensor& x, const Tensor&) { return floor((x * 3.3 + 0.7) * 10); }, given);
        check([](const Tensor& x, const Tensor&) { return relu(x * 30000) - x * 30000; }, given);  // infinite as float16
        check([](const Tensor& x, const Tensor& row) { return where(x > row, 0.1, x) * 3; }, given);
    }
}

TEMPLATE_TEST_CASE("fused ops behind a convolution keep its channels last", "", float, double) {
    manual_seed(4);
    const DType dtype = dtype_of<TestType>;
    // Channels last, row by row, a row of each channel, a column; sizes that are whole vectors and such that are not.
    for (const Shape& shape : {Shape{2, 16, 4, 4}, Shape{3, 5, 7, 6}, Shape{1, 3, 1, 9}, Shape{2, 4, 3, 5, 2}, Shape{40, 33, 12, 11}}) {
        INFO(shape);
        const auto channels_last = [&](const Tensor& t) {
            const Tensor turned = movedim(t, {1}, {-1}).contiguous();
            return movedim(turned, {-1}, {1});
        };
        Shape channel(1, shape[1]), row = shape;
        for (int d = 2; d < shape.rank(); ++d) channel.push_back(1);
        for (int d = 0; d + 1 < shape.rank(); ++d) row[d] = 1;
        const std::vector<Tensor> x = {channels_last(randn(shape, dtype)), channels_last(randn(shape, dtype)), randn(shape, dtype),
                                       randn(channel, dtype), randn(row, dtype)};
        const auto fn = [](const std::vector<Tensor>& t) {
            const Tensor a = tanh(t[0] * t[1] + t[3]), b = where(a > t[2], a - t[4], t[0] * 0.5);
            // What is laid out otherwise comes first in the second one.
            return std::vector<Tensor>{b * 2, t[2] * t[0] + a, logical_and(a > 0, t[2] < 1), relu(a) + 1};
        };
        std::vector<TraceInput> inputs;
        for (std::size_t i = 0; i < x.size(); ++i) inputs.push_back({"x" + std::to_string(i), x[i]});
        const Graph graph = trace(fn, inputs);
        Graph fused = graph;
        fuse_elementwise(fused);
        CHECK(fused.nodes().size() < graph.nodes().size());
        const CompiledGraph run = graph.compile();
        const std::vector<Tensor> want = fn(x);
        // Inputs of another layout may come to the same plan.
        std::vector<Tensor> others;
        for (const Tensor& t : x) others.push_back(t.contiguous());
        for (int round = 0; round < 6; ++round) {
            const std::vector<Tensor> got = run(round % 3 == 2 ? others : x);
            for (std::size_t i = 0; i < want.size(); ++i) {
                CHECK(allclose(got[i].to(float64), want[i].to(float64), 1e-6, 1e-6));
                if (round < 2) CHECK(got[i].strides() == x[0].strides());
            }
        }
    }
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
    const Graph graph = trace(
        [](const Tensor& x, const Tensor& y) {
            const Tensor a = x * 2 + 1;
            return std::vector<Tensor>{a, a * y};
        },
        {{"x", randn({3})}, {"y", randn({3})}}, {.outputs = {"a", "b"}});
    const Tensor x = randn({3});
    for (int i = 0; i < 3; ++i) CHECK(equal(graph.run({{"x", x}}, {"a"})[0], x * 2 + 1));  // without y
}

TEST_CASE("integers that are divided are looked at as ever") {
    const Graph graph =
        trace([](const Tensor& x, const Tensor& y) { return floor_divide(x + 1, y) * 2; }, {{"x", tensor({4, 5})}, {"y", tensor({1, 2})}});
    for (int i = 0; i < 3; ++i) {
        CHECK(equal(graph.run({{"x", tensor({4, 5})}, {"y", tensor({1, 2})}})[0], tensor({10, 6})));
        // At the line of the op.
        CHECK_THROWS_WITH(graph.run({{"x", tensor({4, 5})}, {"y", tensor({1, 0})}}), Catch::Contains("floor_divide: integer division by 0"));
    }
}

TEST_CASE("a fused reduction whose body gives nothing is refused") {
    Graph graph = trace([](const Tensor& x) { return (exp(x) * 2 + x).sum(); }, {{"x", ones({3, 4})}});
    fuse_elementwise(graph);
    std::string text = graph.str();
    REQUIRE(text.find("fused_reduce") != text.npos);
    const std::size_t begin = text.find("output v");
    text.erase(begin, text.find('\n', begin) + 1 - begin);
    CHECK_THROWS_AS(Graph::parse(text)({ones({3, 4})}), ValueError);
}
