// Convolutions of 3 x 3 by the algorithm with fewer multiplications: beside direct sums, in float64 and in float32.
#include <cmath>
#include <limits>

#include "../fails.h"
#include "tapir/graph.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

// Direct sums: the algorithm is not used where results are to be those of one example alone.
template <class Fn>
auto directly(const Fn& fn) {
    const DeterministicScope scope;
    return fn();
}

struct Results {
    Tensor y, of_x, of_weight;
};
Results results_of(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& g, const ConvOptions& options) {
    const Tensor leaf = x.detach().clone().requires_grad_(), w = weight.detach().clone().requires_grad_();
    Tape tape;
    const Tensor y = conv2d(leaf, w, bias, options);
    tape.backward(sum(y * g));
    return {y.detach(), leaf.grad(), w.grad()};
}
double distance(const Tensor& x, const Tensor& exact) { return max(abs(x.to(float64) - exact)).item<double>(); }

}  // namespace

TEST_CASE("3 x 3 convolutions with fewer multiplications are as exact as direct ones") {
    manual_seed(1);
    struct Case {
        Shape x;
        std::int64_t out;
        ConvOptions options;
    };
    const Case cases[] = {
        {{2, 32, 20, 20}, 32, {.padding = 1}},       {{1, 33, 21, 27}, 47, {.padding = 1}}, {{4, 64, 18, 15}, 32, {}},
        {{4, 40, 14, 13}, 300, {.padding = {2, 0}}}, {{2, 32, 23, 22}, 35, {.padding = 3}}, {{5, 48, 11, 10}, 64, {.padding = "same"}},
        {{2, 300, 24, 23}, 32, {.padding = {0, 1}}}};
    for (const Case& c : cases) {
        INFO(c.x << " to " << c.out);
        const Tensor x = randn(c.x), weight = randn({c.out, c.x[1], 3, 3}) * 0.1, bias = randn(c.out);
        const Tensor g = randn(directly([&] { return conv2d(x, weight, bias, c.options); }).shape());
        const Results exact = results_of(x.to(float64), weight.to(float64), bias.to(float64), g.to(float64), c.options);
        const Results direct = directly([&] { return results_of(x, weight, bias, g, c.options); });
        const Results fast = results_of(x, weight, bias, g, c.options);
        CHECK_FALSE(equal(fast.y, direct.y));  // it was used
        CHECK_FALSE(equal(fast.of_x, direct.of_x));
        CHECK(distance(fast.y, exact.y) < 4 * distance(direct.y, exact.y));
        CHECK(distance(fast.of_x, exact.of_x) < 4 * distance(direct.of_x, exact.of_x));
        CHECK_FALSE(equal(fast.of_weight, direct.of_weight));
        CHECK(distance(fast.of_weight, exact.of_weight) < 4 * distance(direct.of_weight, exact.of_weight));
        CHECK(allclose(conv2d(x, weight, {}, c.options) + bias.view({-1, 1, 1}), fast.y, 1e-4, 1e-4));
    }
}

TEST_CASE("what is not finite, or nearly, does not spread from where a convolution reads it") {
    manual_seed(2);
    const Tensor x = randn({2, 32, 20, 21}), weight = randn({36, 32, 3, 3}) * 0.1;
    const auto same = [&](const Tensor& image, const Tensor& w) {
        const auto fn = [&] { return conv2d(image, w, {}, {.padding = 1}); };
        CHECK(allclose(fn(), directly(fn), 0, 0, /*equal_nan=*/true));
    };
    for (const float number : {kInf, -kInf, kNan, 3e38F}) {
        INFO(number);
        Tensor image = x.clone();
        image[1][7][10][20].fill_(number);
        image[1][7][10][19].fill_(number);
        same(image, weight);
        Tensor w = weight.clone();
        w[35][31][2][2].fill_(number);
        same(x, w);
        const Tensor g = randn({2, 36, 20, 21});
        g[0][3][0][0].fill_(number);
        const auto gradient = [&] { return results_of(x, weight, {}, g, {.padding = 1}).of_x; };
        const auto of_weight = [&] { return results_of(image, weight, {}, g, {.padding = 1}).of_weight; };
        CHECK(allclose(of_weight(), directly(of_weight), 1e-4, 1e-3, /*equal_nan=*/true));
        const bool is_finite = std::isfinite(number);  // else errors are relative to the largest number of a tile
        CHECK(allclose(gradient(), directly(gradient), 0, is_finite ? 1e-6 * static_cast<double>(number) : 0, /*equal_nan=*/true));
    }
    same(x * 1e37, weight * 30);  // sums are too large
    const Tensor large = full({2, 32, 20, 20}, 1e38);
    same(large, weight * 1e-3);  // sums of two elements would be too large
}

TEST_CASE("whole numbers are summed exactly, and threads change no bit") {
    manual_seed(3);
    const Tensor x = randint(-8, 8, {2, 32, 22, 19}).to(float32), weight = randint(-8, 8, {64, 32, 3, 3}).to(float32);
    const auto fn = [&] { return conv2d(x, weight, {}, {.padding = 1}); };
    CHECK(equal(fn(), directly(fn)));
    const Tensor a = randn({1, 64, 30, 30}), w = randn({320, 64, 3, 3});
    const int before = num_threads();
    set_num_threads(1);
    const Tensor alone = conv2d(a, w);
    for (const int threads : {2, 3, 8}) {
        set_num_threads(threads);
        CHECK(equal(conv2d(a, w), alone));
        CHECK(equal(conv2d(a.narrow(2, 0, 24), w), alone.narrow(2, 0, 22)));
    }
    set_num_threads(before);
}

TEST_CASE("a graph keeps the transformed weight of a 3 x 3 convolution until somebody writes to it") {
    manual_seed(4);
    const Tensor x = randn({1, 32, 9, 8}), parameter = (randn({40, 32, 3, 3}) * 0.1).requires_grad_(), bias = randn(40);
    Tensor w = parameter.detach();
    const auto fn = [&](const Tensor& t) { return relu(conv2d(t, parameter, bias, {.padding = 1})); };
    const CompiledGraph run = trace(fn, {{"x", x}}).compile();
    for (int i = 0; i < 3; ++i) {
        const Tensor given = randn(x.shape());
        const Tensor want = directly([&] { return fn(given); });
        CHECK(allclose(run(given), want, 1e-4, 1e-5));
        CHECK_FALSE(equal(run(given), want));
        if (i == 1) w.mul_(-2);
    }
    w.fill_(kInf);
    CHECK(allclose(run(x), directly([&] { return fn(x); }), 0, 0, /*equal_nan=*/true));
}

TEST_CASE("a graph adds and applies relu where a 3 x 3 convolution writes") {
    manual_seed(6);
    const Tensor x = randn({2, 32, 9, 11}), w = randn({33, 32, 3, 3}) * 0.1, row = randn({2, 33, 9, 11});
    const auto check = [&](const auto& fn) {
        const CompiledGraph run = trace(fn, {{"x", x}}).compile();
        const Tensor want = directly([&] { return fn(x); });
        CHECK(allclose(run(x), want, 1e-4, 1e-5));
        CHECK_FALSE(equal(run(x), want));
        Tensor strange = x.clone();
        strange[1][2][3][4].fill_(kNan);
        CHECK(allclose(run(strange), directly([&] { return fn(strange); }), 1e-4, 1e-5, /*equal_nan=*/true));
    };
    const ConvOptions same{.padding = 1};
    const Tensor last = conv2d(row, eye(33).view({33, 33, 1, 1}));  // with its channels last
    check([&](const Tensor& t) { return relu(conv2d(t, w, {}, same)); });
    check([&](const Tensor& t) { return relu(conv2d(t, w, {}, same) + last); });
    check([&](const Tensor& t) { return conv2d(t, w, {}, same) + last; });
    check([&](const Tensor& t) { return relu(conv2d(t, w, {}, same) + row); });
    check([&](const Tensor& t) { return silu(conv2d(t, w, {}, same) + last); });
}

TEST_CASE("gradients of gradients of 3 x 3 convolutions, and transposes") {
    manual_seed(5);
    const Tensor x = randn({2, 32, 21, 20}), w = randn({32, 32, 3, 3}) * 0.1;
    const auto penalty = [&] {
        const Tensor leaf = x.clone().requires_grad_(), weight = w.clone().requires_grad_();
        Tape tape;
        const Tensor first = tape.gradient(sum(square(conv2d(leaf, weight))), leaf, {.create_graph = true});
        return tape.gradient(sum(square(first)), weight);
    };
    const Tensor want = directly(penalty);
    CHECK(allclose(penalty(), want, 1e-3, 1e-3 * max(abs(want)).item()));
    const auto transposed = [&] { return conv_transpose2d(x, w, {}, {.padding = 1}); };
    CHECK(allclose(transposed(), directly(transposed), 1e-4, 1e-4));
    CHECK_FALSE(equal(transposed(), directly(transposed)));
}
