// Functions that take tensors one by one where a list of them is what is meant: gradcheck, gradgradcheck, checkpoint, Function.
#include <catch2/catch.hpp>

#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

// y = x * w
struct Scaled : Function<Scaled> {
    static Tensor forward(FunctionContext& context, const Tensor& x, const Tensor& w) {
        context.save({x, w});
        return x * w;
    }
    static std::pair<Tensor, Tensor> backward(FunctionContext& context, const Tensor& g) { return {g * context.saved(1), g * context.saved(0)}; }
};

// Sum and difference.
struct Both : Function<Both> {
    static std::pair<Tensor, Tensor> forward(FunctionContext&, const Tensor& a, const Tensor& b) { return {a + b, a - b}; }
    static std::tuple<Tensor, Tensor> backward(FunctionContext&, const Tensor& sum, const Tensor& difference) {
        return {sum + difference, sum - difference};
    }
};

struct OneGradient : Function<OneGradient> {
    static std::pair<Tensor, Tensor> forward(FunctionContext&, const Tensor& a) { return {a + 1, a + 2}; }
    static Tensor backward(FunctionContext&, const Tensor& g) { return g; }
};

}  // namespace

TEST_CASE("a function's backward gets what forward left in its context, as often as it runs") {
    struct Powers {
        std::vector<double> of;
    };
    // y = x^2 + x^3
    struct SumOfPowers : Function<SumOfPowers> {
        static Tensor forward(FunctionContext& context, const Tensor& x) {
            context.save({x});
            context.state = Powers{{2, 3}};
            context.numbers = {1};
            return pow(x, 2) + pow(x, 3);
        }
        static std::vector<Tensor> backward(FunctionContext& context, const Tensor& grad) {
            Tensor slope = zeros_like(grad);
            for (const double n : std::any_cast<const Powers&>(context.state).of) slope = slope + pow(context.saved(0), n - context.numbers[0]) * n;
            context.state.reset();  // its own
            return {grad * slope};
        }
    };
    Tensor x = tensor({2.0}).requires_grad_();
    Tape tape({.persistent = true});
    const Tensor y = SumOfPowers::apply(x);
    for (int pass = 1; pass <= 2; ++pass) {
        tape.backward(y);
        CHECK(x.grad().item<float>() == Approx(pass * (2 * 2 + 3 * 4)));
    }
}

TEST_CASE("gradients of functions of several tensors are checked") {
    const Tensor x = rand({2, 3}, float64), w = rand({3, 2}, float64);
    const auto product = [](const Tensor& a, const Tensor& b) { return tanh(matmul(a, b)); };
    CHECK(gradcheck(product, {x, w}));
    CHECK(gradgradcheck(product, {x, w}));
    CHECK(gradcheck([](In a, In b) { return a.tensor * b; }, {x, x + 1}));
    CHECK(gradcheck([](Tensor a) { return a * a; }, {x}));
    CHECK(gradcheck([](const std::vector<Tensor>& v) { return v[0] * v[1]; }, {x, x + 1}));
    FAILS(ValueError, "gradcheck: a function of 2 tensors is given 1", gradcheck(product, {x}));
    FAILS(ValueError, "gradgradcheck: a function of 2 tensors is given 3", gradgradcheck(product, {x, w, w}));
}

TEST_CASE("gradients of integers, of truth values and of no function are not checked") {
    using Fn = std::function<Tensor(const std::vector<Tensor>&)>;
    const auto twice = [](const Tensor& x) { return x * 2; };
    const Tensor whole = tensor({1, 2}), x = ones({2}, float64);
    FAILS(ValueError, "gradcheck: none of the 1 inputs is floating", gradcheck(twice, {whole}));
    FAILS(ValueError, "gradgradcheck: none of the 1 inputs is floating", gradgradcheck(twice, {whole}, {.raise_exception = false}));
    FAILS(DTypeError, "gradcheck: the function gives bool, which has no gradients", gradcheck([](const Tensor& t) { return t > 0; }, {x}));
    FAILS(ValueError, "gradcheck: the function is null", gradcheck(Fn(), {x}));
    FAILS(ValueError, "gradgradcheck: the function is null", gradgradcheck(Fn(), {x}));
}

TEST_CASE("a function of several tensors is checkpointed") {
    const Tensor x = rand({2, 3}).requires_grad_(), w = rand({3, 2}).requires_grad_();
    const auto product = [](const Tensor& a, const Tensor& b) { return tanh(matmul(a, b)); };
    std::vector<Tensor> plain, again;
    {
        Tape tape;
        plain = tape.gradient(sum(product(x, w)), {x, w});
    }
    {
        Tape tape;
        again = tape.gradient(sum(checkpoint(product, {x, w})), {x, w});
    }
    CHECK(again[0].equal(plain[0]));
    CHECK(again[1].equal(plain[1]));
    FAILS(ValueError, "checkpoint: a function of 2 tensors is given 1", checkpoint(product, {x}));
}

TEST_CASE("a custom function takes tensors one by one, and gives pairs") {
    const Tensor x = tensor({1.0, 2.0}).requires_grad_(), w = tensor({3.0, 5.0}).requires_grad_();
    Tape tape;
    const std::vector<Tensor> g = tape.gradient(sum(Scaled::apply(x, w)), {x, w});
    CHECK(g[0].equal(w));
    CHECK(g[1].equal(x));
    CHECK(Scaled::apply({x, w}).equal(x * w));
    const std::vector<Tensor> both = Both::apply_many({x, w});
    CHECK(both[1].equal(tensor({-2.0, -3.0})));
    const std::vector<Tensor> of_both = tape.gradient(sum(both[0] * 2 + both[1]), {x, w});
    CHECK(of_both[0].equal(tensor({3.0, 3.0})));
    CHECK(of_both[1].equal(tensor({1.0, 1.0})));
    FAILS(ValueError, "Scaled: forward takes 2 tensors, and is given 1", Scaled::apply(x));
    FAILS(ValueError, "OneGradient: backward takes 1 tensor, and is given 2", OneGradient::apply(x));
}
