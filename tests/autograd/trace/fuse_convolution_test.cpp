// Convolutions of graphs that run: joined with what follows them, by weights that are kept from run to run.
#include <atomic>
#include <cmath>
#include <thread>
#include <vector>

#include "passes_check.h"

using namespace tapir;
using passes_check::ops_of;

namespace {

// The graph of fn at x, its parts joined, gives what fn gives, in several runs. Returns the graph's ops.
template <class Fn>
std::string joined_ops(const Fn& fn, const Tensor& x) {
    const Graph graph = trace([&](const Tensor& t) { return fn(t); }, {{"x", x}});
    Graph joined = graph;
    fuse_convolutions(joined);
    joined.check();
    const CompiledGraph run = graph.compile();
    for (int i = 0; i < 3; ++i) {
        const Tensor given = randn(x.shape());
        CHECK(allclose(run(given), fn(given), 1e-4, 1e-5));
    }
    return ops_of(joined);
}

}  // namespace

TEST_CASE("a convolution of a graph takes in the addition and the activation behind it") {
    manual_seed(3);
    const Tensor w = randn({8, 4, 3, 3}), b = randn({8}), x = randn({2, 4, 9, 7}), r = randn({2, 8, 9, 7});
    const ConvOptions same{.padding = 1};
    CHECK(joined_ops([&](const Tensor& t) { return relu(conv2d(t, w, b, same)); }, x) == "fused_convolution");
    CHECK(joined_ops([&](const Tensor& t) { return relu(conv2d(t, w, {}, same) + r); }, x) == "fused_convolution");
    CHECK(joined_ops([&](const Tensor& t) { return r + conv2d(t, w, b, same); }, x) == "fused_convolution");
    CHECK(joined_ops([&](const Tensor& t) { return conv2d(t, w, b, same); }, x) == "fused_convolution");
    CHECK(joined_ops([&](const Tensor& t) { return relu6(conv2d(t, w, b, same)); }, x) == "fused_convolution");
    CHECK(joined_ops([&](const Tensor& t) { return silu(conv2d(t, w, b, same)); }, x) == "fused_convolution");
    CHECK(joined_ops([&](const Tensor& t) { return hardswish(conv2d(t, w, b, same)); }, x) == "fused_convolution");
    CHECK(joined_ops([&](const Tensor& t) { return hardsigmoid(conv2d(t, w, b, same)); }, x) == "fused_convolution");
    CHECK(joined_ops([&](const Tensor& t) { return sigmoid(conv2d(t, w, b, same)); }, x) == "fused_convolution");
    CHECK(joined_ops([&](const Tensor& t) { return relu(conv2d(conv2d(t, w, b, same), transpose(w, 0, 1), {}, same) + t); }, x) ==
          "transpose fused_convolution fused_convolution");  // the second weight is computed by each run
}

TEST_CASE("what is needed elsewhere, broadcast or no activation stays behind a convolution") {
    manual_seed(4);
    const Tensor w = randn({8, 4, 3, 3}), x = randn({2, 4, 9, 7}), row = randn({7});
    const ConvOptions same{.padding = 1};
    CHECK(joined_ops([&](const Tensor& t) { return exp(-abs(conv2d(t, w, {}, same))); }, x) == "fused_convolution abs neg exp");
    CHECK(joined_ops([&](const Tensor& t) { return relu(conv2d(t, w, {}, same) + row); }, x) == "fused_convolution add relu");
    CHECK(joined_ops([&](const Tensor& t) { return conv2d(t, w, {}, same) * 2; }, x) == "fused_convolution mul");
    const auto twice = [&](const Tensor& t) {
        const Tensor y = conv2d(t, w, {}, same);
        return relu(y) + y;
    };
    CHECK(joined_ops(twice, x) == "fused_convolution relu add");
    const auto doubled = [&](const Tensor& t) {
        const Tensor y = conv2d(t, w, {}, same);
        return y + y;
    };
    CHECK(joined_ops(doubled, x) == "fused_convolution add");
    const auto both = [&](const Tensor& t) { return relu(conv2d(t, w, {}, same) + conv2d(t, w * 2, {}, same)); };
    CHECK(joined_ops(both, x) == "mul fused_convolution fused_convolution");
}

TEST_CASE("convolutions of graphs in one and three dimensions, in groups, strided, of odd sizes") {
    manual_seed(5);
    CHECK(joined_ops([w = randn({6, 1, 3}), b = randn({6})](const Tensor& t) { return relu(conv1d(t, w, b, {.groups = 3})); }, randn({2, 3, 11})) ==
          "fused_convolution");
    CHECK(joined_ops([w = randn({3, 2, 2, 3, 1})](const Tensor& t) { return relu(conv3d(t, w, {}, {.stride = 2})); }, randn({1, 2, 5, 6, 3})) ==
          "fused_convolution");
    CHECK(joined_ops([w = randn({5, 1, 3, 3})](const Tensor& t) { return relu(conv2d(t, w, {}, {.padding = "same", .groups = 5})); },
                     randn({3, 5, 6, 7})) == "fused_convolution");
    CHECK(joined_ops([w = randn({5, 3, 4, 4})](const Tensor& t) { return relu(conv2d(t, w, {}, {.padding = "same"})); }, randn({3, 3, 6, 7})) ==
          "fused_convolution");
    CHECK(joined_ops([w = randn({5, 3, 1, 1}, float64)](const Tensor& t) { return relu(conv2d(t.to(float64), w)); }, randn({3, 3, 6, 7})) ==
          "to_dtype convolution relu");
}

TEST_CASE("a kept weight follows what is written to it") {
    manual_seed(6);
    const Tensor x = randn({2, 4, 9, 7}), parameter = randn({8, 4, 3, 3}).requires_grad_();
    Tensor w = parameter.detach();
    const Graph graph = trace([&](const Tensor& t) { return relu(conv2d(t, parameter)); }, {{"x", x}});
    const CompiledGraph run = graph.compile();
    const auto check = [&](const char* what) {
        INFO(what);
        for (int i = 0; i < 2; ++i) CHECK(allclose(run(x), relu(conv2d(x, w)), 1e-4, 1e-5));
    };
    check("as it was made");
    w.mul_(2);
    check("in place");
    w[3].fill_(1);
    check("a part in place");
    {
        const Tensor view = w.view({-1});
        view.narrow(0, 5, 20).zero_();
    }
    check("through a view");
    w.data<float>()[7] = 100;
    check("through its address");
    w.data<float>()[7] = -100;
    check("through its address, once more");
}

TEST_CASE("the graph of a training step reads the weight that the step before has written") {
    manual_seed(7);
    const Tensor x = randn({2, 4, 6, 6});
    const Tensor first = randn({8, 4, 3, 3});
    Tensor w = first.clone().requires_grad_(), plain = first.clone().requires_grad_();
    optim::SGD sgd({w}, {.lr = 0.1}), plain_sgd({plain}, {.lr = 0.1});
    const auto step = [](const Tensor& weight, optim::SGD& optimizer, const Tensor& t) {
        Tape tape;
        const Tensor loss = mean(square(relu(conv2d(t, weight))));
        tape.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
        return loss.detach();
    };
    const Graph graph = trace([&](const Tensor& t) { return step(w, sgd, t); }, {{"x", x}});
    w.detach().copy_(first);
    const CompiledGraph run = graph.compile();
    for (int i = 0; i < 5; ++i) CHECK(run(x).item() == Approx(step(plain, plain_sgd, x).item()).epsilon(1e-4));
    CHECK(allclose(w, plain, 1e-4, 1e-5));
}

TEST_CASE("nan and infinities pass through a joined activation as through one that stands alone") {
    const Tensor w = ones({8, 4, 1, 1});
    Tensor x = zeros({1, 4, 2, 3});
    x.index_put_({0, 0, 0, 0}, NAN);
    x.index_put_({0, 0, 0, 1}, HUGE_VAL);
    x.index_put_({0, 0, 0, 2}, -HUGE_VAL);
    const CompiledGraph run = trace([&](const Tensor& t) { return relu(conv2d(t, w)); }, {{"x", x}}).compile();
    for (int i = 0; i < 2; ++i) {
        const Tensor y = run(x);
        CHECK(std::isnan(y[0][3][0][0].item()));
        CHECK(y[0][3][0][1].item() == HUGE_VAL);
        CHECK(y[0][3][0][2].item() == 0);
    }
}

TEST_CASE("several threads run a graph with a kept weight") {
    manual_seed(8);
    const Tensor w = randn({8, 4, 3, 3}), x = randn({2, 4, 9, 7}), wanted = relu(conv2d(x, w));
    const CompiledGraph run = trace([&](const Tensor& t) { return relu(conv2d(t, w)); }, {{"x", x}}).compile();
    std::vector<std::thread> threads;
    std::atomic<int> right{0};
    for (int k = 0; k < 4; ++k) {
        threads.emplace_back([&] {
            for (int i = 0; i < 20; ++i) right += allclose(run(x), wanted, 1e-4, 1e-5);
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(right == 80);
}
