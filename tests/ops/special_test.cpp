// Gamma functions, the inverse of erf, signs and powers of two: closed forms, recurrences and what is not a number.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

constexpr double kPi = 3.14159265358979323846, kEuler = 0.57721566490153286061, kInf = std::numeric_limits<double>::infinity(),
                 kNan = std::numeric_limits<double>::quiet_NaN();

double value(const Tensor& x) { return x.item<double>(); }
Tensor number(double x) { return tensor(x, {float64}); }
Approx near(double want) { return Approx(want).epsilon(1e-13).margin(1e-13); }

}  // namespace

TEST_CASE("gamma functions: closed forms, recurrences, poles") {
    CHECK(value(lgamma(number(0.5))) == near(0.5 * std::log(kPi)));
    CHECK(value(lgamma(number(-0.5))) == near(std::log(2 * std::sqrt(kPi))));
    double logarithm = 0;
    for (int n = 2; n < 40; ++n) CHECK(value(lgamma(number(n))) == near(logarithm += std::log(n - 1)));
    for (const double pole : {0.0, -0.0, -1.0, -7.0, kInf, -kInf}) CHECK(value(lgamma(number(pole))) == kInf);
    CHECK(std::isnan(value(lgamma(number(kNan)))));

    CHECK(value(digamma(number(1))) == near(-kEuler));
    CHECK(value(digamma(number(0.5))) == near(-kEuler - 2 * std::log(2)));
    CHECK(value(digamma(number(1.4616321449683623413))) == near(0));
    CHECK(value(digamma(number(0.0))) == -kInf);
    CHECK(value(digamma(number(-0.0))) == kInf);
    CHECK(value(digamma(number(kInf))) == kInf);
    for (const double x : {-1.0, -5.0, -kInf, kNan}) CHECK(std::isnan(value(digamma(number(x)))));

    const double zeta3 = 1.2020569031595942854;
    CHECK(value(polygamma(1, number(1))) == near(kPi * kPi / 6));
    CHECK(value(polygamma(1, number(0.5))) == near(kPi * kPi / 2));
    CHECK(value(polygamma(1, number(-0.5))) == near(kPi * kPi / 2 + 4));
    CHECK(value(polygamma(2, number(1))) == near(-2 * zeta3));
    CHECK(value(polygamma(3, number(0.5))) == near(std::pow(kPi, 4)));
    for (const double x : {-1000.3, -3.3, -0.7, 1e-3, 0.2, 1.0, 7.5, 30.0, 1e4}) {
        double factorial = 1;
        CHECK(value(digamma(number(x))) == Approx(value(digamma(number(x + 1))) - 1 / x).epsilon(1e-12));
        CHECK(value(polygamma(0, number(x))) == value(digamma(number(x))));
        for (int n = 1; n < 7; ++n) {
            INFO("n " << n << ", x " << x);
            factorial *= -n;
            CHECK(value(polygamma(n, number(x))) == Approx(value(polygamma(n, number(x + 1))) - factorial / std::pow(x, n + 1)).epsilon(1e-12));
        }
    }
    for (const double pole : {0.0, -2.0}) CHECK(value(polygamma(1, number(pole))) == kInf);
    CHECK(value(polygamma(2, number(-1))) == -kInf);
    CHECK(value(polygamma(1, number(-1e-20))) == Approx(1e40));
    CHECK(value(polygamma(1, number(kInf))) == 0);
    CHECK(std::isnan(value(number(2).polygamma(0.5))));
    CHECK(std::isnan(value(polygamma(2, number(kNan)))));
    CHECK(value(polygamma(1, number(1e300))) == Approx(1e-300));
    CHECK(value(polygamma(1, number(1e308))) == Approx(1e-308));
    CHECK(value(polygamma(2, number(1e150))) == Approx(-1e-300));
    CHECK(value(polygamma(1, number(1e-300))) == kInf);
    // Where n!, or the sum that it is multiplied by, is no number that double has.
    using Point = std::pair<int, double>;
    for (const auto& [n, x] : {Point{100, 1e4}, Point{200, 1000}, Point{171, 2}, Point{170, 2}, Point{169, 50}, Point{300, 500}, Point{1500, 3000}}) {
        INFO("n " << n << ", x " << x);
        long double want = 0;
        for (int k = 0; k < 20000; ++k) want += std::exp(std::lgamma(n + 1.0L) - (n + 1) * std::log(static_cast<long double>(x) + k));
        CHECK(value(polygamma(n, number(x))) == Approx(static_cast<double>(n % 2 ? want : -want)).epsilon(1e-11));
    }
    CHECK(value(polygamma(500, number(0.3))) == -kInf);
    CHECK(value(polygamma(200, number(-0.4))) == kInf);
    CHECK(value(polygamma(200, number(-0.6))) == -kInf);
    CHECK(value(polygamma(171, number(-0.5))) == kInf);
    for (const int n : {2, 4, 100, 200}) CHECK(value(polygamma(n, number(-0.5))) == value(polygamma(n, number(1.5))));  // by reflection
    FAILS(ValueError, "polygamma: n must not be negative, got -1", polygamma(-1, number(2)));

    Tensor x = tensor({-2.5, -0.3, 0.4, 3.0, 12.0}, {float64}).requires_grad_();
    Tape tape;
    const Tensor first = tape.gradient(sum(lgamma(x)), {x}, {.create_graph = true})[0];
    CHECK(allclose(first, digamma(x), 1e-13, 0));
    CHECK(allclose(tape.gradient(sum(first), {x})[0], polygamma(1, x), 1e-13, 0));
}

TEST_CASE("erfinv is the inverse of erf up to the ends") {
    for (double y = -0.999; y < 1; y += 0.0371) CHECK(std::erf(value(erfinv(number(y)))) == Approx(y).epsilon(1e-14));
    for (int k = 2; k <= 53; ++k) {
        INFO("1 - 2^-" << k);
        const double apart = std::ldexp(1.0, -k), x = value(erfinv(number(1 - apart)));
        CHECK(std::erfc(x) == Approx(apart).epsilon(1e-12));
        CHECK(value(erfinv(number(apart - 1))) == -x);
        CHECK(std::erf(value(erfinv(number(apart)))) == Approx(apart).epsilon(1e-14));
    }
    CHECK(value(erfinv(number(1e-300))) == Approx(1e-300 * std::sqrt(kPi) / 2));
    CHECK(std::signbit(value(erfinv(number(-0.0)))));
    CHECK(value(erfinv(number(1))) == kInf);
    CHECK(value(erfinv(number(-1))) == -kInf);
    for (const double y : {1.0000001, -2.0, kInf, -kInf, kNan}) CHECK(std::isnan(value(erfinv(number(y)))));
    const Tensor narrow = linspace(-1, 1, 201);
    CHECK(erfinv(narrow).equal(erfinv(narrow.to(float64)).to(float32)));
}

TEST_CASE("signs, steps and powers of two") {
    const Tensor a = tensor({1.5, -2.0, 0.0, kInf, kNan}), signs = tensor({-0.0, kNan, -kInf, 1.0, -1.0});
    const auto signed_as = [](const Tensor& x) {
        std::vector<bool> result;
        for (const double v : x.to_vector<double>()) result.push_back(std::signbit(v));
        return result;
    };
    CHECK(signed_as(copysign(a, signs)) == signed_as(signs));
    CHECK(copysign(tensor({3, -4}), -1).to_vector<double>() == std::vector<double>{-3, -4});
    CHECK(copysign(tensor({3, -4}), -1).dtype() == float32);
    Tensor x = tensor({2.0, -2.0, 0.0, kInf, kNan}).requires_grad_();
    for (const bool create_graph : {false, true}) {
        Tape tape;
        const Tensor y = sum(copysign(x, tensor({-1.0, -1.0, -1.0, -1.0, -1.0})));
        const auto g = tape.gradient(y, {x}, {.create_graph = create_graph})[0].to_vector<double>();
        CHECK(std::vector<double>(g.begin(), g.end() - 1) == std::vector<double>{-1, 1, 0, -1});
        CHECK(std::isnan(g[4]));
    }

    CHECK(heaviside(tensor({-1, 0, 2}), 5).to_vector<int>() == std::vector<int>{0, 5, 1});
    CHECK(heaviside(tensor({kNan, -0.0, kInf}), tensor({1.0, 0.5, 7.0})).to_vector<double>() == std::vector<double>{0, 0.5, 1});

    std::vector<double> exponents, want;
    for (int n = -140; n < 128; ++n) exponents.push_back(n), want.push_back(std::ldexp(0.75, n));
    CHECK(ldexp(number(0.75), tensor(exponents)).to_vector<double>() == want);
    CHECK(ldexp(tensor(3), tensor({2, -1})).to_vector<double>() == std::vector<double>{12, 1.5});
}

TEST_CASE("fmod, remainder and floor_divide are exact for quotients of every size") {
    std::vector<double> numbers = {0.0,        -0.0,   1,      -1,   0.1,  3,     7.5,    1e-40,    5e-324,    1e-310, 0x1p22,
                                   0x1p23 + 1, 0x1p24, 0x1p52, 1e17, 1e30, 1e300, 3.4e38, HUGE_VAL, -HUGE_VAL, NAN};
    manual_seed(5);
    for (const double scale : {1.0, 30.0, 1e6, 1e12}) {
        for (const double x : (randn({20}, float64) * scale).to_vector<double>()) numbers.push_back(x);
    }
    const auto check = [&]<class T>(DType dtype, T) {
        const Tensor x = tensor(numbers, float64).to(dtype), a = x.unsqueeze(1), b = x.unsqueeze(0);
        const auto rest = fmod(a, b).template to_vector<T>(), python = remainder(a, b).template to_vector<T>(),
                   down = floor_divide(a, b).template to_vector<T>();
        const auto all = x.template to_vector<T>();
        for (std::size_t i = 0; i < all.size(); ++i) {
            for (std::size_t j = 0; j < all.size(); ++j) {
                const std::size_t at = i * all.size() + j;
                const T exact = std::fmod(all[i], all[j]);
                INFO(name(dtype) << ": " << all[i] << ", " << all[j]);
                const auto same = [](T one, T other) {
                    return std::isnan(one) ? std::isnan(other) : one == other && std::signbit(one) == std::signbit(other);
                };
                CHECK(same(rest[at], exact));
                CHECK(same(python[at], exact != 0 && (exact < 0) != (all[j] < 0) ? exact + all[j] : exact));
                if (std::isfinite(all[i]) && std::isfinite(all[j]) && all[j] != 0 && std::abs(all[i] / all[j]) < 1e6) {
                    CHECK(down[at] == static_cast<T>(std::floor(static_cast<long double>(all[i]) / all[j])));
                }
            }
        }
    };
    check(float32, float{});
    check(float64, double{});
}

TEST_CASE("lgamma and digamma of float32 keep their digits") {
    const Tensor x =
        cat({linspace(-5.3, 20, 4000), logspace(-30, 30, 2000), 1 + linspace(-0.01, 0.01, 301), 2 + linspace(-0.01, 0.01, 301)}).to(float32);
    const auto numbers = x.to_vector<float>(), y = lgamma(x).to_vector<float>(), slope = digamma(x).to_vector<float>();
    const auto exact_slope = digamma(x.to(float64)).to_vector<double>();
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        INFO(numbers[i]);
        const double exact = std::lgamma(static_cast<double>(numbers[i]));
        if (numbers[i] > 0) {
            CHECK(std::abs(y[i] - exact) <= 0x1p-22 * std::abs(exact));
        } else {  // glibc's, near whose zeros digits are lost
            CHECK(y[i] == Approx(exact).margin(1e-5));
        }
        if (numbers[i] > 0) CHECK(std::abs(slope[i] - exact_slope[i]) <= std::abs(exact_slope[i]) * 0x1p-23 + 1e-14);
    }
}
