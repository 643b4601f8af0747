// Gradients of steps of a sequence that rules write into the gradient of the whole, and products of weights with rows that stay there. The
// reference cuts each step by itself, so that its gradients are put together by copies.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tapir/tapir.h"

using namespace tapir;

namespace {

using Tensors = std::vector<Tensor>;

constexpr std::int64_t kSteps = 100, kRows = 16, kHidden = 64;

// What cuts a whole into steps.
struct Cut {
    std::string name;
    std::function<Tensors(const Tensor&)> at_once, one_by_one;
    Shape whole;  // without the gates
};

std::vector<Cut> cuts() {
    std::vector<std::int64_t> uneven;
    for (std::int64_t k = 0; k < kSteps; ++k) uneven.push_back(kRows - k % 3);
    const auto narrowed = [](const std::vector<std::int64_t>& sizes) {
        return [sizes](const Tensor& x) {
            Tensors steps;
            std::int64_t start = 0;
            for (const std::int64_t size : sizes) steps.push_back(narrow(x, 0, std::exchange(start, start + size), size));
            return steps;
        };
    };
    const std::vector<std::int64_t> even(kSteps, kRows);
    const auto selected = [](const Tensor& x) {
        Tensors steps;
        for (std::int64_t k = 0; k < x.size(0); ++k) steps.push_back(select(x, 0, k));
        return steps;
    };
    return {{"split", [](const Tensor& x) { return split(x, kRows); }, narrowed(even), {kSteps * kRows}},
            {"split of several sizes",
             [=](const Tensor& x) { return split(x, uneven); },
             narrowed(uneven),
             {std::accumulate(uneven.begin(), uneven.end(), std::int64_t{0})}},
            {"unbind", [](const Tensor& x) { return unbind(x); }, selected, {kSteps, kRows}}};
}

// Uses of steps. h and c begin with as many rows as the step has.
struct Use {
    std::string name;
    std::int64_t gates;  // of the cell
    std::function<Tensor(const Tensors& steps, const Tensor& w)> loss;
};

Tensor state(const Tensor& step) { return ones({step.size(0), kHidden}, step.dtype()) * 0.1; }

// The sum of the cell's states over the steps in this order. A step of other rows begins anew.
template <class Order>
Tensor lstm(const Tensors& steps, const Tensor& w, const Order& order) {
    Tensor total = zeros({}, w.dtype());
    LSTMState s;
    for (const std::size_t k : order) {
        if (!s.h.defined() || s.h.size(0) != steps[k].size(0)) s = {state(steps[k]), state(steps[k])};
        s = lstm_gates(steps[k], s.c, linear(s.h, w));
        total = total + sum(square(s.h));
    }
    return total;
}

std::vector<std::size_t> forwards() {
    std::vector<std::size_t> order(kSteps);
    std::iota(order.begin(), order.end(), 0u);
    return order;
}
std::vector<std::size_t> backwards() {
    std::vector<std::size_t> order = forwards();
    std::reverse(order.begin(), order.end());
    return order;
}
std::vector<std::size_t> from_the_middle() {  // 50, 49, 51, 48, ...
    std::vector<std::size_t> order;
    for (std::size_t k = 0; k < kSteps; ++k) order.push_back(k % 2 ? kSteps / 2 - 1 - k / 2 : kSteps / 2 + k / 2);
    return order;
}
std::vector<std::size_t> every_third() {
    std::vector<std::size_t> order;
    for (std::size_t k = 0; k < kSteps; k += 3) order.push_back(k);
    return order;
}

std::vector<Use> uses() {
    const auto of = [](const auto& order) { return [=](const Tensors& steps, const Tensor& w) { return lstm(steps, w, order); }; };
    return {
        {"forwards", 4, of(forwards())},
        {"backwards", 4, of(backwards())},
        {"from the middle", 4, of(from_the_middle())},
        {"every third", 4, of(every_third())},
        {"both ways", 4, [](const Tensors& s, const Tensor& w) { return lstm(s, w, forwards()) + lstm(s, w, backwards()) * 2; }},
        {"and elsewhere", 4,
         [](const Tensors& s, const Tensor& w) {
             Tensor total = sum(square(s[2])) + sum(exp(s[kSteps - 1] * 0.1));
             total = total + lstm(s, w, forwards());
             return total + sum(s[0] * s[1].slice(0, {0, 1}));
         }},
        {"as both operands", 4,
         [](const Tensors& s, const Tensor&) {
             Tensor total = zeros({}, float64);
             for (const Tensor& step : s) total = total + sum(lstm_gates(step, state(step), step).h);
             return total;
         }},
        {"without a state's gates", 4,
         [](const Tensors& s, const Tensor&) {
             Tensor total = zeros({}, float64);
             for (const Tensor& step : s) total = total + sum(lstm_gates(step, state(step)).h);
             return total;
         }},
        {"gru", 3,
         [](const Tensors& s, const Tensor& w) {
             Tensor total = zeros({}, w.dtype()), h;
             for (const Tensor& step : s) {
                 if (!h.defined() || h.size(0) != step.size(0)) h = state(step);
                 h = gru_gates(step, linear(h, w), h);
                 total = total + sum(square(h));
             }
             return total;
         }},
        {"gru, as both operands", 3,
         [](const Tensors& s, const Tensor&) {
             Tensor total = zeros({}, float64);
             for (const Tensor& step : s) total = total + sum(square(gru_gates(step, step, state(step))));
             return total;
         }},
    };
}

Shape with_gates(Shape shape, std::int64_t gates) {
    shape.push_back(gates * kHidden);
    return shape;
}

}  // namespace

TEST_CASE("gradients of steps are those of steps that were cut one by one") {
    for (const Cut& cut : cuts()) {
        for (const Use& use : uses()) {
            INFO(cut.name << ", " << use.name);
            manual_seed(3);
            const Tensor x = randn(with_gates(cut.whole, use.gates), float64), w = randn({use.gates * kHidden, kHidden}, float64) * 0.1;
            const auto gradients = [&](const auto& cut_by) {
                const Tensor a = x.clone().requires_grad_(), b = w.clone().requires_grad_();
                Tape tape;
                return tape.gradient(use.loss(cut_by(a * 1.5), b), {a, b});
            };
            const Tensors got = gradients(cut.at_once), want = gradients(cut.one_by_one);
            CHECK(allclose(got[0], want[0], 1e-12, 1e-12));
            CHECK(allclose(got[1], want[1], 1e-12, 1e-12));
        }
    }
}

TEST_CASE("gradients of steps that somebody sees") {
    const Tensor x = randn({kSteps, kRows, 4 * kHidden}, float64).requires_grad_(),
                 w = (randn({4 * kHidden, kHidden}, float64) * 0.1).requires_grad_();
    const auto gradients = [&](const auto& cut_by, bool has_hook) {
        Tape tape;
        Tensors steps = cut_by(x);
        if (has_hook) steps[5].register_hook([](const Tensor& g) { return g * 3.0; });
        return tape.gradient(lstm(steps, w, forwards()), {x, w, steps[4], steps[5]});
    };
    const auto at_once = [](const Tensor& t) { return unbind(t); };
    const auto one_by_one = [](const Tensor& t) {
        Tensors steps;
        for (std::int64_t k = 0; k < t.size(0); ++k) steps.push_back(select(t, 0, k));
        return steps;
    };
    for (const bool has_hook : {false, true}) {
        Tensors got = gradients(at_once, has_hook);
        const Tensors want = gradients(one_by_one, has_hook);
        for (std::size_t i = 0; i < got.size(); ++i) CHECK(allclose(got[i], want[i], 1e-12, 1e-12));
        got[2].zero_();  // it is nobody else's
        CHECK(allclose(got[0], want[0], 1e-12, 1e-12));
    }
}

TEST_CASE("leaves keep their gradients apart from those of steps, over several backwards") {
    const Tensor x = randn({kSteps, kRows, 4 * kHidden}, float64).requires_grad_(),
                 w = (randn({4 * kHidden, kHidden}, float64) * 0.1).requires_grad_();
    Tensors want;
    {
        Tape tape;
        Tensors steps;
        for (std::int64_t k = 0; k < kSteps; ++k) steps.push_back(select(x, 0, k));
        want = tape.gradient(lstm(steps, w, forwards()), {x, w});
    }
    for (int i = 0; i < 3; ++i) {
        Tape tape;
        tape.backward(lstm(unbind(x), w, forwards()));
    }
    CHECK(allclose(x.grad(), want[0] * 3.0, 1e-12, 1e-12));
    CHECK(allclose(w.grad(), want[1] * 3.0, 1e-12, 1e-12));
}

TEST_CASE("the gradient of a sequence is made once") {
    nn::LSTM model(8, kHidden);
    const Tensor x = randn({kSteps, 64, 8});
    const auto whole = static_cast<std::int64_t>(kSteps * 64 * 4 * kHidden * sizeof(float));
    Tape tape;
    const Tensor loss = sum(square(model(x).output));
    reset_peak_memory();
    const std::int64_t before = memory_stats().live_bytes;
    const Tensor g = tape.gradient(loss, {model.weights[0].weight_ih})[0];
    CHECK(memory_stats().peak_bytes - before < whole * 3 / 2);
}
