// Tape::gradient_by_use: the parts of a weight's gradient.
#include <cmath>
#include <string>

#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

TEST_CASE("the uses of a recurrent weight: closed form, and their sum is the gradient") {
    // h_t = w h_{t-1}, h_0 = 1: use t gives w^{T-1-t} h_t = w^{T-1}... each, as a product of what is before and behind it.
    constexpr int steps = 5;
    const Tensor w = tensor({0.5}, float64).requires_grad_();
    Tape tape({.persistent = true});
    Tensor h = ones({1}, float64);
    int line = 0;
    for (int t = 0; t < steps; ++t) {
        line = __LINE__ + 1;
        h = h * w * (t + 1);
    }
    const Tensor loss = sum(h);
    const auto uses = tape.gradient_by_use(loss, w);
    REQUIRE(uses.size() == steps);
    double sum_of_uses = 0;
    for (int t = 0; t < steps; ++t) {
        const GradientUse& use = uses[static_cast<std::size_t>(t)];
        CHECK(use.op == std::string("mul"));
        CHECK(static_cast<int>(use.loc.line()) == line);
        CHECK(use.gradient.item<double>() == Approx(120 * std::pow(0.5, 4)));  // 5! w^4: the same at each step
        CHECK(use.norm == Approx(120 * std::pow(0.5, 4)));
        sum_of_uses += use.gradient.item<double>();
        if (t > 0) CHECK(use.record > uses[static_cast<std::size_t>(t - 1)].record);
    }
    CHECK(sum_of_uses == Approx(tape.gradient(loss, {w})[0].item<double>()));
    CHECK_FALSE(w.grad().defined());
}

TEST_CASE("products, rows, broadcasting and several uses in one op sum up to the gradient") {
    manual_seed(3);
    const Tensor w = randn({4, 3}, float64).requires_grad_(), x = randn({5, 3}, float64), b = randn({3}, float64).requires_grad_();
    Tape tape({.persistent = true});
    Tensor loss = sum(tanh(linear(x, w)));
    loss = loss + sum(square(matmul(w.t(), w)));           // w, and a view of it
    loss = loss + sum(sin(embedding(tensor({1, 1, 3}), w)));  // rows
    loss = loss + sum(w * w) + sum(exp(w + b));
    for (const Tensor& leaf : {w, b}) {
        Tensor total = zeros_like(leaf);
        for (const GradientUse& use : tape.gradient_by_use(loss, leaf)) {
            CHECK(use.gradient.shape() == leaf.shape());
            total = total + use.gradient;
        }
        CHECK(allclose(total, tape.gradient(loss, {leaf})[0], 1e-12, 1e-12));
    }
    // w * w is one use, with both of its parts; b is used once.
    CHECK(tape.gradient_by_use(loss, w).size() == 6);
    CHECK(tape.gradient_by_use(loss, b).size() == 1);
}

TEST_CASE("a report says whether the gradient vanishes") {
    const auto report = [](double factor) {
        const Tensor w = full({1}, factor, float64).requires_grad_();
        Tape tape;
        Tensor h = ones({1}, float64);
        for (int t = 0; t < 20; ++t) h = tanh(h * 0.01 + w.detach() * h + w * 1e-3);
        return gradient_report(tape.gradient_by_use(sum(h), w));
    };
    CHECK(report(0.3).find("the gradient vanishes") != std::string::npos);
    CHECK(report(1.0).find("keeps its order") != std::string::npos);
    CHECK(report(0.3).find("gradient_by_use_test.cpp:") != std::string::npos);
    const auto of_norms = [](std::vector<double> norms) {
        std::vector<GradientUse> uses;
        for (const double norm : norms) uses.push_back({uses.size(), "mul", Loc::current(), "", Tensor(), norm});
        const std::string text = gradient_report(uses);
        return text.substr(text.rfind('\n', text.size() - 2) + 1);
    };
    CHECK(of_norms({0, 1e-6, 1e-3, 1}) == "from use 3 back to use 1 the gradient vanishes: 1.000e+00 to 1.000e-06, 0.001 times a use\n");
    CHECK(of_norms({1e4, 1e2, 1, 0}) == "from use 2 back to use 0 the gradient explodes: 1.000e+00 to 1.000e+04, 100 times a use\n");
    // Uses in several places are no chain.
    std::vector<GradientUse> tree;
    for (const double norm : {1e-6, 1e-3, 1.0}) tree.push_back({tree.size(), "mul", Loc::current(), "", Tensor(), norm});
    CHECK(gradient_report(tree).find("vanishes") != std::string::npos);
    tree[1].op = "linear";
    CHECK(gradient_report(tree).find("from use") == std::string::npos);
    tree[1].op = "mul";
    tree[1].loc = Loc::current();
    CHECK(gradient_report(tree).find("from use") == std::string::npos);
    CHECK(of_norms({1, NAN, 1}) == "the gradient of use 1 is not finite\n");
    CHECK(of_norms({0, 0}) == "all of them are 0\n");
    CHECK(gradient_report({}) == "no use of the tensor leads to the result\n");
}

TEST_CASE("a gradient that cannot be computed leaves no records behind") {
    const Tensor w = ones({2}).requires_grad_(), other = ones({2}).requires_grad_();
    Tape tape;
    const Tensor y = w * 2;
    const std::size_t size = tape.size();
    FAILS_IN(TapeError, "gradient_by_use: ", "needs a scalar", tape.gradient_by_use(y, other));
    CHECK(tape.size() == size);
    FAILS_IN(TapeError, "gradient_by_use: ", "neither a leaf", tape.gradient_by_use(sum(w), ones({2})));
    FAILS_IN(TapeError, "gradient: ", "needs a scalar", tape.gradient(other, {w}));
    FAILS_IN(TapeError, "backward: ", "needs a scalar", tape.backward(other));
    const Tensor loss = sum(y);
    const std::size_t before = tape.size();
    FAILS_IN(TapeError, "gradient: ", "neither a leaf", tape.gradient(loss, {other, ones({2})}));
    CHECK(tape.size() == before);
    FAILS_IN(ValueError, "gradient_by_use: ", "create_graph", tape.gradient_by_use(loss, other, {.create_graph = true}));
    CHECK(tape.size() == before);
    tape.backward(loss);
    FAILS(TapeError, "used up", tape.gradient(loss, {other, w}));
    CHECK(tape.size() == before);
    // It is as if nothing had been: the leaf can be used.
    const Tensor z = sum(other * 3);
    CHECK(tape.gradient(z, {other})[0].to_vector<float>() == std::vector<float>{3, 3});
}

TEST_CASE("gradient_by_use refuses what it cannot do") {
    const Tensor w = ones({2}).requires_grad_();
    Tape tape;
    const Tensor y = sum(w * 2);
    FAILS(ValueError, "is undefined", tape.gradient_by_use(y, Tensor()));
    FAILS(ValueError, "create_graph is not supported", tape.gradient_by_use(y, w, {.create_graph = true}));
    FAILS(TapeError, "", tape.gradient_by_use(ones({}), w));
    FAILS(TapeError, "neither a leaf", tape.gradient_by_use(y, ones({2})));
    CHECK(tape.gradient_by_use(y, ones({2}).requires_grad_(), {.retain_graph = true}).empty());
    CHECK(tape.gradient_by_use(y, w).size() == 1);
    FAILS(TapeError, "", tape.gradient_by_use(y, w));  // used up
}
