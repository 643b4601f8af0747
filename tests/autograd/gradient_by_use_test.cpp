// Tape::gradient_by_use: the parts of a weight's gradient.
#include <cmath>
#include <string>
#include <vector>

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
    loss = loss + sum(square(matmul(w.t(), w)));              // w, and a view of it
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

namespace {

std::string last_line(const std::string& text) { return text.substr(text.rfind('\n', text.size() - 2) + 1); }

// A complete binary tree of that height; all nodes call the cell on one line.
template <class Cell>
Tensor tree_of(int height, const Tensor& leaf, const Cell& cell) {
    if (height == 0) return leaf;
    const Tensor left = tree_of(height - 1, leaf, cell), right = tree_of(height - 1, leaf, cell);
    return cell(left, right);
}

}  // namespace

TEST_CASE("the depth of a use: how many uses the gradient has come through") {
    const Tensor w = full({1}, 0.9, float64).requires_grad_();
    Tape tape({.persistent = true});
    Tensor h = ones({1}, float64);
    for (int t = 0; t < 5; ++t) h = tanh(h * w);
    auto uses = tape.gradient_by_use(sum(h), w);
    REQUIRE(uses.size() == 5);
    for (int t = 0; t < 5; ++t) CHECK(uses[static_cast<std::size_t>(t)].depth == 4 - t);
    // A tree: in the order of the forward pass the left subtree, the right one, the node.
    uses = tape.gradient_by_use(sum(tree_of(3, ones({1}, float64), [&](const Tensor& a, const Tensor& b) { return tanh((a + b) * w); })), w);
    std::vector<int> depths;
    for (const GradientUse& use : uses) depths.push_back(use.depth);
    CHECK(depths == std::vector<int>{2, 2, 1, 2, 2, 1, 0});
    // The longest way counts.
    Tensor a = tanh(w);
    for (int t = 0; t < 3; ++t) a = a * w + a;
    depths.clear();
    for (const GradientUse& use : tape.gradient_by_use(sum(a), w)) depths.push_back(use.depth);
    CHECK(depths == std::vector<int>{3, 2, 1, 0});
    // Views of x count as x.
    const Tensor m = (eye(2) * 0.5).requires_grad_();
    Tensor state = ones({1, 2});
    for (int t = 0; t < 3; ++t) state = matmul(state, m.t());
    depths.clear();
    for (const GradientUse& use : tape.gradient_by_use(sum(state), m)) depths.push_back(use.depth);
    CHECK(depths == std::vector<int>{2, 1, 0});
    // So do copies and conversions.
    for (const bool is_copied : {false, true}) {
        state = ones({1, 2});
        for (int t = 0; t < 3; ++t) state = matmul(state, is_copied ? m.clone() : m.t().contiguous().to(float64).to(float32));
        depths.clear();
        for (const GradientUse& use : tape.gradient_by_use(sum(state), m)) depths.push_back(use.depth);
        CHECK(depths == std::vector<int>{2, 1, 0});
    }
    // What changes x at each step is the use, and the gradient comes to it past the others.
    state = ones({1, 2});
    for (int t = 0; t < 3; ++t) state = matmul(state, m * 2);
    uses = tape.gradient_by_use(sum(state), m);
    REQUIRE(uses.size() == 3);
    for (const GradientUse& use : uses) CHECK(use.depth == 0);
    // Inside a checkpoint too.
    const Tensor checked = checkpoint(
        [&](const std::vector<Tensor>& x) {
            Tensor y = x[0];
            for (int t = 0; t < 3; ++t) y = y * w;
            return y;
        },
        {h});
    depths.clear();
    for (const GradientUse& use : tape.gradient_by_use(sum(checked * w), w)) depths.push_back(use.depth);
    CHECK(depths == std::vector<int>{8, 7, 6, 5, 4, 3, 2, 1, 0});
    // A checkpoint for each step: the second runs have the same numbers, one after the other.
    for (const bool captured : {true, false}) {
        const Tape inner({.persistent = true});
        const Tensor start = ones({1, 2}).requires_grad_();
        Tensor steps = start, plain = start;
        std::vector<std::size_t> checkpoints;
        for (int t = 0; t < 3; ++t) {
            const auto step = [&](const std::vector<Tensor>& v) { return tanh(matmul(v[0], captured ? m : v[1])); };
            steps = checkpoint([m, captured](const std::vector<Tensor>& v) { return tanh(matmul(v[0], captured ? m : v[1])); },
                               captured ? std::vector{steps} : std::vector{steps, m});
            checkpoints.push_back(inner.size() - 1);
            plain = step({plain, m});
        }
        const auto found = Tape::current()->gradient_by_use(sum(steps), m);
        const auto wanted = Tape::current()->gradient_by_use(sum(plain), m);
        REQUIRE(found.size() == 3);
        for (std::size_t t = 0; t < 3; ++t) {
            CHECK(found[t].op == std::string("matmul"));
            CHECK(found[t].depth == 2 - static_cast<int>(t));
            CHECK(found[t].record == checkpoints[t]);
            CHECK(allclose(found[t].gradient, wanted[t].gradient, 1e-6, 1e-7));
        }
    }
    // Next to each other is not behind each other.
    Tensor loss = zeros({1}, float64);
    for (int t = 0; t < 4; ++t) loss = loss + w * std::pow(10.0, 3 * t);
    uses = tape.gradient_by_use(sum(loss), w);
    REQUIRE(uses.size() == 4);
    for (const GradientUse& use : uses) CHECK(use.depth == 0);
    CHECK(gradient_report(uses).find("from depth") == std::string::npos);
}

TEST_CASE("a report says whether the gradient vanishes") {
    const auto report = [](double factor) {
        const Tensor w = full({1}, factor, float64).requires_grad_();
        Tape tape;
        Tensor h = full({1}, 1e-6, float64);
        for (int t = 0; t < 20; ++t) h = h * w + 1e-6;
        return gradient_report(tape.gradient_by_use(sum(h), w));
    };
    CHECK(report(0.3).find("from depth 0 to depth 19 the gradient vanishes") != std::string::npos);
    CHECK(report(1.0).find("keeps its order") != std::string::npos);
    CHECK(report(0.3).find("gradient_by_use_test.cpp:") != std::string::npos);
    // A tree of height 6: a node at depth d gives 2 factor^d.
    const auto tree = [](double factor) {
        const Tensor w = full({1}, factor, float64).requires_grad_();
        Tape tape;
        const auto cell = [&](const Tensor& a, const Tensor& b) {
            const Tensor y = (a + b) * w;
            return y + (1 - y).detach();  // 1 everywhere
        };
        return last_line(gradient_report(tape.gradient_by_use(sum(tree_of(6, ones({1}, float64), cell)), w)));
    };
    CHECK(tree(0.2) == "from depth 0 to depth 5 the gradient vanishes: 2.000e+00 to 6.400e-04, 0.2 times a use\n");
    CHECK(tree(0.9).find("from depth 0 to depth 5 the gradient keeps its order") != std::string::npos);
    const auto of_uses = [](std::vector<std::pair<double, int>> norms_and_depths) {
        std::vector<GradientUse> uses;
        for (const auto& [norm, depth] : norms_and_depths) uses.push_back({uses.size(), "mul", Loc::current(), "", Tensor(), norm, depth});
        return last_line(gradient_report(uses));
    };
    CHECK(of_uses({{0, 3}, {1e-6, 2}, {1e-3, 1}, {1, 0}}) ==
          "from depth 0 to depth 2 the gradient vanishes: 1.000e+00 to 1.000e-06, 0.001 times a use\n");
    CHECK(of_uses({{1e4, 3}, {1e2, 2}, {1, 1}, {0, 0}}) ==
          "from depth 1 to depth 3 the gradient explodes: 1.000e+00 to 1.000e+04, 100 times a use\n");
    // By depth, whatever the order, and the largest of each.
    CHECK(of_uses({{1e-9, 1}, {1, 1}, {1e-7, 1}, {1, 0}}) ==
          "from depth 0 to depth 1 the gradient keeps its order: 1.000e+00 to 1.000e+00, 1 times a use\n");
    // Uses in several places cannot be compared.
    std::vector<GradientUse> uses;
    for (const double norm : {1e-6, 1e-3, 1.0})
        uses.push_back({uses.size(), "mul", Loc::current(), "", Tensor(), norm, 2 - static_cast<int>(uses.size())});
    CHECK(gradient_report(uses).find("vanishes") != std::string::npos);
    uses[1].op = "linear";
    CHECK(gradient_report(uses).find("from depth") == std::string::npos);
    uses[1].op = "mul";
    uses[1].loc = Loc::current();
    CHECK(gradient_report(uses).find("from depth") == std::string::npos);
    CHECK(of_uses({{1, 0}, {NAN, 0}, {1, 0}}) == "the gradient of use 1 is not finite\n");
    CHECK(of_uses({{0, 0}, {0, 1}}) == "all of them are 0\n");
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
    const std::string at = "used up by the gradient_by_use at gradient_by_use_test.cpp:" + std::to_string(__LINE__ - 1) + "; make";
    FAILS(TapeError, at, tape.gradient_by_use(y, w));
    FAILS(TapeError, at, tape.backward(y));
    CHECK(gradient_report({{0, "mul", Loc::current(), "", Tensor(), -std::nan("")}}).find("-nan") == std::string::npos);
}
