// Tracing: what the program did, as a graph that does the same.
#include <catch2/catch.hpp>
#include <cmath>

#include "../../fails.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

void check_same(const Tensor& a, const Tensor& b) {
    REQUIRE(a.shape() == b.shape());
    CHECK(a.dtype() == b.dtype());
    CHECK(allclose(a, b, 1e-5, 1e-6, /*equal_nan=*/true));
}

}  // namespace

TEST_CASE("what is made of constants alone may be read") {
    const Tensor table = tensor({1.0F, 4.0F, 9.0F});
    const auto fn = [&](const Tensor& x) {
        const double root = sqrt(table[1]).item(), size = (full({}, x.size(0)) * 2).item();
        return cumsum(table, 0)[2].item<float>() > 10 ? x * root / size : x;
    };
    const Graph graph = trace(fn, {{"x", randn({3, 2}), {"n"}}});
    for (const int n : {1, 2, 7}) {
        const Tensor x = randn({n, 2});
        CHECK(allclose(graph({x})[0], fn(x)));
    }
    FAILS(TapeError, "reads a value that rand made", trace([](const Tensor& x) { return x * rand({}).item(); }, {{"x", ones({2})}}));
    FAILS(TapeError, "reads a value that mul made", trace([&](const Tensor& x) { return x * (table[0] * x[0]).item(); }, {{"x", ones({2})}}));
    FAILS(TapeError, "as sqrt(full({}, x.size(0)))",
          trace([](const Tensor& x) { return x / std::sqrt(static_cast<double>(x.size(0))); }, {{"x", ones({3}), {"n"}}}));
    const auto by_ops = [](const Tensor& x) { return x / sqrt(full({}, x.size(0), float32)); };
    CHECK(allclose(trace(by_ops, {{"x", ones({3}), {"n"}}})({ones({5})})[0], by_ops(ones({5}))));
}

TEST_CASE("a function becomes a graph that does the same") {
    manual_seed(1);
    const Tensor w = randn({3, 4}).requires_grad_(), b = randn({3}).requires_grad_();
    const auto fn = [&](const Tensor& x) { return tanh(linear(x, w, b)) * 2 + 1; };
    const Tensor x = randn({2, 4});
    const Graph graph = trace(fn, {{"x", x}});
    INFO(graph.str());
    CHECK(graph.nodes().size() == 4);
    const Tensor other = randn({2, 4});
    check_same(graph({other})[0], fn(other));
    CHECK_THROWS_AS(graph({randn({3, 4})}), ShapeError);
}

TEST_CASE("a named dimension may have another size") {
    const Tensor w = randn({3, 4}).requires_grad_();
    const auto fn = [&](const Tensor& x) {
        const Tensor y = relu(linear(x, w));
        return y.reshape({x.size(0) * 3}).reshape({3, -1}).transpose(0, 1)[-1];
    };
    const Graph graph = trace(fn, {{"x", randn({2, 4}), {"batch"}}});
    INFO(graph.str());
    for (const int n : {1, 2, 7}) {
        const Tensor x = randn({n, 4});
        check_same(graph({x})[0], fn(x));
    }
}

TEST_CASE("a number that differs with sizes may be an output") {
    const auto fn = [](const Tensor& x) { return std::pair{x * 2, tensor(static_cast<double>(2 * x.size(0)))}; };
    const Graph graph = trace(fn, {{"x", ones({3}), {"n"}}});
    for (const int n : {1, 3, 50}) CHECK(graph({ones({n})})[1].item() == 2 * n);
    FAILS(TapeError, "trace: an output that no op made depends on the sizes",
          trace([](const Tensor& x) { return std::pair{x * 2, tensor(std::sqrt(static_cast<double>(x.size(0))))}; }, {{"x", ones({3}), {"n"}}}));
}

TEST_CASE("writing in place makes new values") {
    const auto fn = [](const Tensor& x) {
        Tensor y = x * 2;
        Tensor first = y[0], rest = y.narrow(0, 1, 2).t();
        first.mul_(3);
        rest[1].add_(1);
        return y + first + rest.sum();
    };
    const Tensor x = randn({3, 3});
    const Graph graph = trace(fn, {{"x", x}});
    INFO(graph.str());
    const Tensor other = randn({3, 3});
    check_same(graph({other})[0], fn(other));
}

TEST_CASE("parameters of one name, and like an input, get names of their own") {
    nn::Linear a(3, 3, false), b(3, 3, false);
    optim::SGD names_a(a.parameters(), {.lr = 0.1}), names_b(b.parameters(), {.lr = 0.1});
    const auto fn = [&](const Tensor& x) { return b(a(x)); };
    const Graph graph = trace(fn, {{"weight", randn({2, 3})}});
    INFO(graph.str());
    REQUIRE(graph.parameters().size() == 2);
    CHECK(graph.parameters()[0]->name == "weight_2");
    CHECK(graph.parameters()[1]->name == "weight_3");
    const Tensor x = randn({2, 3});
    check_same(Graph::parse(graph.str(), {{"weight_2", a.weight}, {"weight_3", b.weight}})({x})[0], fn(x));
}

TEST_CASE("a dimension may be a multiple") {
    // As networks of images do: what is made half as large is to fit what it was when it is doubled again.
    const auto f = [](const Tensor& x) {
        const Tensor y = max_pool2d(x, 4);
        return x + interpolate(y, {.size = {4 * y.size(2), 4 * y.size(3)}}) * double(y.size(2));
    };
    manual_seed(3);
    CHECK_THROWS_WITH(trace(f, {{"x", randn({2, 1, 8, 12}), {"batch", "", "height", "width"}}}), Catch::Contains("do not broadcast"));
    const Graph graph = trace(f, {{"x", randn({2, 1, 8, 12}), {"batch", "", "4*height", "4*width"}}});
    CHECK(graph.str().find("input x: float32 (batch, 1, 4*height, 4*width)\n") == 0);
    CHECK(Graph::parse(graph.str()).str() == graph.str());
    const Tensor x = randn({3, 1, 20, 4});
    const Tensor wanted = f(x);
    CHECK(allclose(graph({x})[0], wanted));
    CHECK(allclose(graph.run({{"x", x}})[0], wanted));
    FAILS(ShapeError, "the input x has shape (3, 1, 21, 4), the graph was made for (batch, 1, 4*height, 4*width)", graph({randn({3, 1, 21, 4})}));
    FAILS(ShapeError, "the size 9 is not 4*height", trace(f, {{"x", randn({2, 1, 9, 12}), {"", "", "4*height"}}}));
    FAILS(ValueError, "not a name, or a number times a name", trace(f, {{"x", randn({2, 1, 8, 12}), {"", "", "4*height*width"}}}));
    FAILS(ShapeError, "the dimension side has size 2 and, in x, 3", trace(f, {{"x", randn({2, 1, 8, 12}), {"", "", "4*side", "4*side"}}}));
}

TEST_CASE("printing is read on the line of the last op, or of the call") {
    const auto fn = [](const Tensor& x) {
        static_cast<void>(x.str());
        return x * 2;
    };
    FAILS(TapeError, "trace: str(), on this line or after it, reads a value of x: ", trace(fn, {{"x", ones({3})}}));
}

TEST_CASE("what a trace cannot see is refused with what to do") {
    const Tensor x = ones({2, 4});
    const Graph twice = trace([](const Tensor& t) { return t * 2; }, {{"x", x}});
    const CompiledGraph compiled = twice.compile();
    FAILS_IN(TapeError, "Graph::run: ", "call graph(inputs)", trace([&](const Tensor& t) { return twice.run({{"x", t}})[0]; }, {{"x", x}}));
    FAILS_IN(TapeError, "CompiledGraph: ", "call graph(inputs)", trace([&](const Tensor& t) { return compiled(t) + 1; }, {{"x", x}}));
    const Graph more = trace([&](const Tensor& t) { return twice({t})[0] + 1; }, {{"x", x}});
    check_same(more({x})[0], x * 2 + 1);
    // What is made within would be another one in each run.
    const char* text = "is made in the function that is traced";
    FAILS_IN(TapeError, "trace: a parameter of shape (3, 4) ", text,
             trace(
                 [](const Tensor& t) {
                     nn::Linear layer(4, 3);
                     return layer(t);
                 },
                 {{"x", x}}));
    FAILS_IN(TapeError, "trace: a parameter of shape (4,) ", text,
             trace(
                 [](const Tensor& t) {
                     nn::BatchNorm1d norm(4);
                     return norm(t);
                 },
                 {{"x", x}}));
}

TEST_CASE("an if on a size is named as one") {
    FAILS_IN(TapeError, "trace: what the program does depends on the sizes: ", "an if on a size",
             trace([](const Tensor& t) { return t.size(0) > 3 ? t * 2 : t + 1; }, {{"x", ones({2, 4}), {"n"}}}));
}

TEST_CASE("a trace takes little more memory than what it traces") {
    nn::Linear first(64, 512), second(512, 512), last(512, 4);
    std::vector<Tensor> parameters;
    for (const nn::Linear* layer : {&first, &second, &last}) parameters.insert(parameters.end(), {layer->weight, layer->bias});
    optim::SGD optimizer(parameters, {.lr = 0.01});
    const Tensor x = randn({2048, 64});  // a hidden layer's numbers take 4 MiB, the weights 1.3 MiB
    const auto step = [&](const Tensor& in) {
        Tape tape;
        Tensor h = relu(first(in));
        for (int i = 0; i < 4; ++i) h = tanh(relu(second(h)) * 0.5);
        const Tensor loss = mean(square(last(h)));
        tape.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
        return loss.detach();
    };
    const auto peak_of = [](const auto& fn) {
        reset_peak_memory();
        const std::int64_t before = memory_stats().live_bytes;
        fn();
        return memory_stats().peak_bytes - before;
    };
    const std::int64_t eager = peak_of([&] { step(x); });
    CHECK(peak_of([&] { trace(step, {{"x", x}}); }) < eager * 2);
}

TEST_CASE("a trace holds what a step writes three times at most: to put it back, in the program's next run, and for a moment") {
    std::vector<nn::Linear> layers;
    std::vector<Tensor> parameters;
    for (int i = 0; i < 16; ++i) {
        layers.emplace_back(128, 128);
        parameters.insert(parameters.end(), {layers.back().weight, layers.back().bias});
    }
    optim::Adam optimizer(parameters, {.lr = 0.01});
    const auto step = [&](const Tensor& in) {
        Tape tape;
        Tensor h = in;
        for (const nn::Linear& layer : layers) h = tanh(layer(h));
        const Tensor loss = mean(square(h));
        tape.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
        return loss.detach();
    };
    const Tensor x = randn({4, 128});
    step(x);  // makes Adam's state
    reset_peak_memory();
    const std::int64_t before = memory_stats().live_bytes, written = 3 * 16 * 128 * 129 * 4;
    trace(step, {{"x", x}});
    CHECK(memory_stats().peak_bytes - before < 3 * written);
}
