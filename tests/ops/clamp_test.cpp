// Bounds of clamp that are no numbers of the tensor's dtype, or that exclude each other: PyTorch's results and dtypes.
#include <catch2/catch.hpp>
#include <cmath>

#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

using V = std::vector<double>;

V values(const Tensor& t) { return t.to_vector<double>(); }

}  // namespace

TEST_CASE("fractional bounds make floats of integers") {
    const Tensor x = tensor({1, 2, 3});
    CHECK(clamp_min(x, 1.5).dtype() == float32);
    CHECK(values(clamp_min(x, 1.5)) == V{1.5, 2, 3});
    CHECK(values(clamp_max(x, 2.5)) == V{1, 2, 2.5});
    CHECK(clamp(x, 1.5, 2.5).dtype() == float32);
    CHECK(values(clamp(x, 1.5, 2.5)) == V{1.5, 2, 2.5});
    CHECK(clamp(x, 1, 2).dtype() == int64);
    CHECK(values(clamp(x, 2, 2)) == V{2, 2, 2});
    Tensor y = tensor({1, 2, 3});
    FAILS(DTypeError, "clamp_: a floating-point value cannot be written into int64", y.clamp_(1.5, 2.5));
    CHECK(values(y) == V{1, 2, 3});
    CHECK(values(clamp(tensor({1, 2, 3}, uint8), -5, 300)) == V{1, 2, 3});
}

TEST_CASE("min above max gives max, as bounds that are tensors do") {
    const Tensor x = tensor({-8.0, 0.0, 8.0});
    CHECK(values(clamp(x, 0.5, -0.5)) == V{-0.5, -0.5, -0.5});
    CHECK(values(clamp(x, tensor(0.5), tensor(-0.5))) == V{-0.5, -0.5, -0.5});
    Tensor y = x.clone();
    y.clamp_(0.5, -0.5);
    CHECK(values(y) == V{-0.5, -0.5, -0.5});
}

TEST_CASE("a bound that is nan gives nan") {
    for (const Tensor& x : {clamp(tensor({1.0, 2.0}), NAN, 3), clamp(tensor({1.0, 2.0}), 0, NAN), clamp_min(tensor({1.0, 2.0}), NAN)}) {
        CHECK(all(isnan(x)).item<bool>());
    }
}

TEST_CASE("writes through views whose elements overlap are refused") {
    Tensor x = arange(5);
    FAILS(ValueError, "mul_: several elements of the (4, 2) tensor share memory", x.unfold(0, 2, 1).mul_(2));
    FAILS(ValueError, "share memory", x.unfold(0, 3, 1).fill_(2));
    CHECK(values(x) == V{0, 1, 2, 3, 4});
    x.unfold(0, 2, 2).mul_(2);  // windows beside each other
    CHECK(values(x) == V{0, 2, 4, 6, 4});
}

TEST_CASE("null words, functions, 0-d operands and sums beyond int64 are refused by type") {
    const Tensor a = ones({2, 2});
    FAILS(ValueError, "div: a word that was given is a null pointer", div(a, a, static_cast<const char*>(nullptr)));
    FAILS(ValueError, "gelu: a word that was given is a null pointer", gelu(a, static_cast<const char*>(nullptr)));
    FAILS(ValueError, "checkpoint: the function is null", checkpoint(std::function<Tensor(const std::vector<Tensor>&)>(), {a}));
    FAILS(IndexError, "tensordot: a 0-d tensor has no dimension 0", tensordot(tensor(1.0), tensor(1.0), {0}, {0}));
    FAILS(OutOfMemory, "repeat_interleave: the repeats add up to more than any memory holds",
          repeat_interleave(a[0], tensor({INT64_MAX, INT64_MAX})));
}

TEST_CASE("at a bound of clamp the slope is 0, where there is no bound it is 1") {
    const auto slope = [](const Tensor& at, auto fn) {
        const Tensor x = at.detach().requires_grad_();
        Tape tape;
        return values(tape.gradient(sum(fn(x)), x));
    };
    const Tensor x = tensor({-1.0, 0.0, 0.5, 1.0, 2.0});  // PyTorch 2.15's
    CHECK(slope(x, [](const Tensor& t) { return clamp(t, 0, 1); }) == V{0, 0, 1, 0, 0});
    CHECK(slope(x, [](const Tensor& t) { return clamp_min(t, 0); }) == V{0, 0, 1, 1, 1});
    CHECK(slope(x, [](const Tensor& t) { return clamp_max(t, 1); }) == V{1, 1, 1, 0, 0});
    CHECK(slope(tensor({-INFINITY, 0.0F}), [](const Tensor& t) { return clamp_max(t, 1); }) == V{1, 1});
    CHECK(slope(tensor({-1.0F, 0.0F, 2.0F, NAN}), [](const Tensor& t) { return relu(t); }) == V{0, 0, 1, 1});
}

TEST_CASE("of equal operands each has half of the gradient, of a nan maximum both have it") {
    const Tensor a = tensor({1.0, 2.0, NAN, 1.0, NAN}).requires_grad_(), b = tensor({1.0, 1.0, 1.0, NAN, NAN}).requires_grad_();
    const auto slopes = [&](auto fn) {
        Tape tape;
        const std::vector<Tensor> g = tape.gradient(sum(fn(a, b)), {a, b});
        return std::pair(values(g[0]), values(g[1]));
    };
    using Pair = std::pair<V, V>;  // PyTorch 2.15's
    CHECK(slopes([](const Tensor& x, const Tensor& y) { return maximum(x, y); }) == Pair{{0.5, 1, 1, 1, 1}, {0.5, 0, 1, 1, 1}});
    CHECK(slopes([](const Tensor& x, const Tensor& y) { return minimum(x, y); }) == Pair{{0.5, 0, 1, 1, 1}, {0.5, 1, 1, 1, 1}});
    CHECK(slopes([](const Tensor& x, const Tensor& y) { return fmax(x, y); }) == Pair{{0.5, 1, 0, 1, 1}, {0.5, 0, 1, 0, 0}});
    CHECK(slopes([](const Tensor& x, const Tensor& y) { return fmin(x, y); }) == Pair{{0.5, 0, 0, 1, 1}, {0.5, 1, 1, 0, 0}});
}

TEMPLATE_TEST_CASE("the slope of a remainder is the whole quotient", "", float, double) {
    // Where a / b is so near to a whole number that it is rounded to it: the remainder is nearly b.
    const DType dtype = std::is_same_v<TestType, float> ? float32 : float64;
    manual_seed(3);
    const Tensor n = randint(1, 1000, {400}).to(dtype), b = (rand({400}, dtype) + 0.5).detach().requires_grad_();
    const Tensor a = (n * b).detach();
    Tape tape({.persistent = true});
    const Tensor r = remainder(a, b), f = fmod(a, b);
    const V of_r = values(tape.gradient(sum(r), b)), of_f = values(tape.gradient(sum(f), b));
    const V as = values(a), bs = values(b);
    for (std::size_t i = 0; i < as.size(); ++i) {
        const double quotient = std::floor(static_cast<double>(static_cast<long double>(as[i]) / bs[i]));
        const long double rest = static_cast<long double>(as[i]) - static_cast<long double>(quotient) * bs[i];
        const double whole = rest < 0 ? quotient - 1 : rest >= bs[i] ? quotient + 1 : quotient;
        CHECK(of_r[i] == -whole);
        CHECK(of_f[i] == -whole);
    }
}
