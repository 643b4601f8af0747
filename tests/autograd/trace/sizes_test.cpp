// Formulas of named dimensions, and what programs do for some sizes only.
#include <catch2/catch.hpp>

#include "../../fails.h"
#include "tapir/autograd/trace/check_trace.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

// Right for all sizes, or refused.
template <class Fn>
bool is_right_or_refused(const Fn& fn, int example, bool is_vector) {
    const auto sized = [&](int n) { return is_vector ? ones({n}) : ones({n, 2}); };
    try {
        const Graph graph = trace(fn, {{"x", sized(example), {"b"}}});
        for (int n = 1; n < 50; ++n) {
            if (!check_trace(graph, fn, {sized(n)}, {.raise_exception = false})) return false;
        }
    } catch (const TapeError&) {}
    return true;
}

}  // namespace

TEST_CASE("no formula of a size is a wrong one") {
    const auto each = [](const char* what, const auto& fn) {
        INFO(what);
        for (const bool is_vector : {false, true}) {
            for (const int example : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 40}) {
                INFO(example);
                CHECK(is_right_or_refused(fn, example, is_vector));
            }
        }
    };
    each("quarters", [](const Tensor& x) { return x.sum() * ones({(x.size(0) + 3) / 4}); });
    each("fifths", [](const Tensor& x) { return x.sum() * ones({x.size(0) / 5 + 1}); });
    each("remainders", [](const Tensor& x) { return x.sum() * ones({x.size(0) % 3 + 1}); });
    each("at least 3", [](const Tensor& x) { return x.sum() * ones({(std::max<std::int64_t>(x.size(0), 3) - 3) / 2 + 1}); });
    each("at most 6", [](const Tensor& x) { return x.sum() * ones({std::min<std::int64_t>(x.size(0), 6)}); });
    each("a number", [](const Tensor& x) { return x * static_cast<double>((x.size(0) + 3) / 4); });
    each("a loop", [](const Tensor& x) {
        Tensor y = x;
        for (int i = 0; i < 70 / x.size(0); ++i) y = y + 1;
        return y;
    });
}

TEST_CASE("squares of a dimension, and halves of them, are formulas") {
    const auto square = [](const Tensor& x) { return x.sum() * ones({x.size(0) * x.size(0)}); };
    const auto pairs = [](const Tensor& x) { return x.sum() * ones({x.size(0) * (x.size(0) - 1) / 2 + 1}); };
    const Graph squares = trace(square, {{"x", ones({4}), {"n"}}}), halves = trace(pairs, {{"x", ones({4}), {"n"}}});
    for (const int n : {1, 2, 3, 8, 21}) {
        CHECK(check_trace(squares, square, {ones({n})}).ok);
        CHECK(check_trace(halves, pairs, {ones({n})}).ok);
    }
    CHECK(squares.outputs()[0].value->shape[0].str() == "n*n");
}

TEST_CASE("what a program does for the smallest sizes only is refused") {
    FAILS(TapeError, "with b = 1 the graph does not do what the program does",
          trace([](const Tensor& x) { return x.size(0) == 1 ? x * 2 : x * 3; }, {{"x", ones({3, 2}), {"b"}}}));
    FAILS(TapeError, "with b = 1 the graph does not do what the program does",
          trace([](const Tensor& x) { return x.squeeze(); }, {{"x", ones({3, 2}), {"b"}}}));
    // Not where the program itself refuses them.
    const Graph graph = trace([](const Tensor& x) { return x.narrow(0, 2, x.size(0) - 2); }, {{"x", ones({3, 2}), {"b"}}});
    CHECK(graph.run({{"x", ones({7, 2})}})[0].shape() == Shape{5, 2});
}

TEST_CASE("numbers that are products and quotients of sizes and numbers have formulas") {
    const auto each = [](const char* what, const auto& fn) {
        for (const DType dtype : {float32, float64}) {
            INFO(what << " " << name(dtype));
            const auto sized = [&](int n, int m) { return arange(n * m, dtype).reshape({n, m}).add(1).sin(); };
            const Graph graph = trace(fn, {{"x", sized(5, 3), {"n", "m"}}});
            for (const auto& [n, m] : {std::pair{2, 4}, {4, 2}, {7, 11}, {64, 100}, {1000, 3}}) CHECK(check_trace(graph, fn, {sized(n, m)}).ok);
        }
    };
    const auto rows = [](const Tensor& x) { return static_cast<double>(x.size(0)); };
    each("2 / n", [&](const Tensor& x) { return x * (2 / rows(x)); });
    each("-0.3 / n", [&](const Tensor& x) { return x * (-0.3 / rows(x)); });
    each("0.1 n", [&](const Tensor& x) { return x * (0.1 * rows(x)); });
    each("2 / (n - 1)", [&](const Tensor& x) { return x * (2 / (rows(x) - 1)); });
    each("1e-3 / (3 n m + 1)", [&](const Tensor& x) { return x * (1e-3 / static_cast<double>(3 * x.size(0) * x.size(1) + 1)); });
    const auto gradient_of = [](const auto& loss) {
        return [loss](const Tensor& given) {
            const Tensor x = given.detach().requires_grad_();
            Tape tape;
            const Tensor y = loss(x);
            tape.backward(y);
            return std::pair{y, x.grad()};
        };
    };
    each("var", gradient_of([](const Tensor& x) { return sum(x.var(0)); }));
    each("std", gradient_of([](const Tensor& x) { return sum(x.std(Dims{0, 1})); }));
}

TEST_CASE("a quotient by a size is none of its squares") {
    const auto each = [](double above, double factor) {
        const auto fn = [=](const Tensor& x) {
            return x * (above / static_cast<double>(x.size(0))) + x * (factor * static_cast<double>(x.size(0) * x.size(0)));
        };
        const Graph graph = trace(fn, {{"x", ones({5, 2}), {"n"}}});
        for (const int n : {1, 2, 3, 17, 60}) CHECK(check_trace(graph, fn, {ones({n, 2})}).ok);
    };
    each(-0.3, 0.1);
    each(60, 1);
    each(2, 3);
}

TEST_CASE("what a program chooses by sizes is seen where the example hides it") {
    const auto refused = [](const char* what, const auto& fn) {
        for (const Tensor& x : {zeros({3, 4}), ones({3, 4}), randn({1, 4})}) {
            INFO(what << " " << x);
            CHECK_THROWS_AS(trace(fn, {{"x", x, {"n"}}}), TapeError);
        }
    };
    refused("remainders", [](const Tensor& x) { return x * static_cast<double>(x.size(0) % 2); });
    refused("quarters", [](const Tensor& x) { return x[x.size(0) / 4]; });
    refused("the least", [](const Tensor& x) { return x[std::min<std::int64_t>(x.size(0) - 1, 4)]; });
    refused("a turn", [](const Tensor& x) { return roll(x, {x.size(0) % 3}, {0}); });
    refused("one of two numbers", [](const Tensor& x) { return x.size(0) > 4 ? x * 2 : x * 3; });
    refused("a number for one row", [](const Tensor& x) { return x.size(0) == 1 ? x * 2 : x * 3; });
    refused("one of two operands", [](const Tensor& x) {
        const Tensor a = x * 2, b = x * 2;
        return x.size(0) > 4 ? a - b * 0 : b - a * 0;
    });
    nn::LayerNorm small({4}), large({4});
    for (const Tensor& p : small.parameters()) CHECK(p.defined());
    refused("one of two models that are alike", [&](const Tensor& x) { return x.size(0) > 4 ? large(x) : small(x); });
    const Tensor nothing = zeros({4, 4}).requires_grad_();
    refused("what a weight of zeros hides", [&](const Tensor& x) { return x + matmul(x.size(0) > 4 ? x * 2 : x * 3, nothing); });
}

TEST_CASE("two dimensions are tried in both orders") {
    const auto refused = [](const auto& fn) { CHECK_THROWS_AS(trace(fn, {{"x", randn({3, 40}), {"n", "m"}}}), TapeError); };
    refused([](const Tensor& x) { return x.narrow(0, 0, std::min(x.size(0), x.size(1))).sum(); });
    refused([](const Tensor& x) { return x.sum() / static_cast<double>(std::max(x.size(0), x.size(1))); });
    refused([](const Tensor& x) { return x.size(0) <= x.size(1) ? x * 2 : x * 3; });
    CHECK_NOTHROW(trace([](const Tensor& x) { return diagonal(x).sum() + matmul(x, x.t()).sum(); }, {{"x", randn({3, 40}), {"n", "m"}}}));
}
