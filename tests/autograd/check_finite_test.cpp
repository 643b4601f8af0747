// CheckFiniteScope names the first op that makes nan or inf, forward and backward.
#include <cmath>
#include <limits>
#include <string>

#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// What the function's NonFiniteError says.
template <class F>
std::string finding(const F& f) {
    try {
        f();
    } catch (const NonFiniteError& error) {
        return error.what();
    }
    return "nothing";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("the first nan or inf: the derivative of sqrt, not what comes of it") {
    const Tensor w = ones({3}).requires_grad_();
    const CheckFiniteScope check;
    Tape tape;
    int line = 0;
    const std::string text = finding([&] {
        const Tensor h = tanh(w);
        const Tensor difference = h - h;
        line = __LINE__ + 1;
        const Tensor root = sqrt(difference);
        tape.backward(sum(root));
    });
    INFO(text);
    CHECK(text.rfind("check_finite_test.cpp:" + std::to_string(line) + ": sqrt: its backward rule makes inf", 0) == 0);
    CHECK(has(text, "gradient of input 0 is float32 (3,): 3 inf of 3 elements"));
    CHECK(has(text, "gradient that came in: float32 (3,): min 1, max 1, mean 1"));
    CHECK(has(text, "likely cause: the derivative of sqrt at 0 is infinite"));
    CHECK_FALSE(w.grad().defined());
}

TEST_CASE("the first nan or inf of a forward op, with its likely cause") {
    const CheckFiniteScope check;
    const Tensor x = tensor({1.0f, 0.0f, -2.0f});
    std::string text = finding([&] { return 1 / x; });
    INFO(text);
    CHECK(has(text, "div: makes inf of finite inputs: the result is float32 (3,)"));
    CHECK(has(text, "input 1: float32 (3,): min -2, max 1"));
    CHECK(has(text, "division by zero: the divisor has 1 zero"));
    CHECK(has(finding([&] { return log(relu(x)); }), "log of zero"));
    CHECK(has(finding([&] { return log(x); }), "log of a negative number"));
    CHECK(has(finding([&] { return sqrt(x); }), "sqrt: makes nan"));
    CHECK(has(finding([&] { return sqrt(x); }), "root of a negative number"));
    CHECK(has(finding([&] { return exp(x * 100); }), "overflow in exp: float32 holds at most 3.4e+38, the input goes up to 200"));
    CHECK(has(finding([&] { return pow(x, -1); }), "zero to a negative power"));
    CHECK(has(finding([&] { return matmul(x * 1e30f, x * 1e30f); }), "overflow: float32 holds at most"));
    CHECK(has(finding([&] { return (x * 300).to(float16) * 300; }), "mul: makes inf"));
    CHECK(has(finding([&] { return (x * 1e6f).to(float16); }), "overflow: float16 holds at most 6.55e+04"));
    CHECK(has(finding([&] { return var(x.narrow(0, 0, 1)); }), "there is a single element"));
    CHECK(has(finding([&] { return mean(zeros({0})); }), "there are no elements"));
    const Tensor ignored = tensor({-100, -100});
    CHECK(has(finding([&] { return cross_entropy(zeros({2, 3}), ignored); }), "the mean of no targets"));
}

TEST_CASE("nan and inf that were there before are nobody's") {
    const CheckFiniteScope check;
    const Tensor scores = tensor({{1.0f, 2.0f}, {3.0f, 4.0f}});
    const Tensor mask = tensor({{false, true}, {false, false}});
    CHECK(softmax(scores.masked_fill(mask, -kInf), 1)[0][1].item<float>() == 0);
    CHECK(std::isinf((tensor({kInf}) + 1).item<float>()));
    CHECK(std::isnan((tensor({std::nanf("")}) * 2).item<float>()));
    // But nan of infinities is new.
    const Tensor inf = tensor({kInf}), masked = full({1, 3}, -kInf);
    CHECK(has(finding([&] { return inf * 0; }), "mul: makes nan of inputs without nan"));
    CHECK(has(finding([&] { return inf * 0; }), "0 * inf, or inf - inf in a sum: input 0 holds inf already"));
    CHECK(has(finding([&] { return inf - inf; }), "likely cause: inf - inf"));
    CHECK(has(finding([&] { return softmax(masked, 1); }), "a row of input 0 is -inf throughout"));
    CHECK(finding([&] { return linear(ones({1, 1}), -masked.t()); }) == "nothing");  // inf stays inf
    // What is written by hand was meant.
    Tensor x = zeros({2, 2});
    x[0][1] = -kInf;
    x.fill_(kInf);
    CHECK(std::isinf(x[1][1].item<float>()));
}

TEST_CASE("the first nan or inf of an op in place") {
    const CheckFiniteScope check;
    Tensor x = tensor({-1.0f, 4.0f});
    const std::string text = finding([&] { x.sqrt_(); });
    INFO(text);
    CHECK(has(text, "sqrt: makes nan"));
    CHECK(has(text, "input 0: float32 (2,): min -1, max 4, mean 1.5"));
    CHECK(finding([&] { x.add_(1); }) == "nothing");
}

TEST_CASE("0 * inf in a rule is found where it is made") {
    const Tensor x = tensor({0.0f, 4.0f}).requires_grad_();
    const CheckFiniteScope check;
    Tape tape;
    const std::string text = finding([&] { tape.backward(sum(where(x > 0, sqrt(x), 0.0f))); });
    INFO(text);
    CHECK(has(text, "sqrt: its backward rule makes nan"));
    CHECK(has(text, "0 * inf in the rule"));
}

namespace {

struct Half : nn::Module {
    Tensor forward(const Tensor& x) {
        const nn::ModuleScope scope(*this);
        return log(x - x);
    }
    void members(nn::Members&) override {}
};

struct Whole : nn::Module {
    Half half;
    void members(nn::Members& m) override { m("half", half); }
};

}  // namespace

TEST_CASE("the first nan or inf says which module it is in") {
    Whole model;
    CHECK(model.parameters().empty());
    const CheckFiniteScope check;
    const std::string text = finding([&] { model.half.forward(ones({2})); });
    INFO(text);
    CHECK(has(text, "makes inf of finite inputs: the result is float32 (2,): 2 inf of 2 elements (in half)\n  input 0"));
}

TEST_CASE("what a rule computes on the way is nobody's, with create_graph too") {
    const Tensor w = tensor({1.0f, -1.0f}).requires_grad_();  // elu's rule has exp(1000), for the side that is not chosen
    const CheckFiniteScope check;
    Tape tape;
    CHECK(tape.gradient(sum(elu(w * 1000)), {w}, {.create_graph = true})[0].isfinite().all().item<bool>());
}

TEST_CASE("checking changes no gradient, and ends with its scope") {
    const Tensor w = tensor({{1.0f, 2.0f}, {3.0f, 4.0f}}).requires_grad_(), x = tensor({{1.0f, -1.0f}});
    const auto gradient_of = [&] {
        Tape tape;
        const Tensor y = tanh(matmul(x, w)) * w[0] + embedding(tensor({1}), w);
        return tape.gradient(sum(y), {w})[0].to_vector<float>();
    };
    const auto plain = gradient_of();
    {
        const CheckFiniteScope check, twice;
        const CheckFiniteScope off(false);
        CHECK(gradient_of() == plain);
    }
    CHECK(std::isinf((x / 0).narrow(1, 0, 1).item<float>()));
    {
        const CheckFiniteScope off(false);
        CHECK(std::isinf((x / 0).narrow(1, 0, 1).item<float>()));
    }
}

TEST_CASE("the numbers that an op is given count as inputs") {
    const CheckFiniteScope check;
    const float nan = std::nanf("");
    const Tensor x = tensor({{1.0f, -2.0f}, {0.5f, 3.0f}}), half = x.to(float16);
    const Tensor mask = tensor({{true, false}, {false, true}});
    const auto fine = [](const Tensor& y) { return !y.isfinite().all().item<bool>(); };  // not finite, and nobody was blamed
    CHECK(fine(pad(x, {1, 1}, kInf)));
    CHECK(fine(pad(x, {1, 1}, -kInf)));
    CHECK(fine(pad(x, {1, 1}, nan)));
    CHECK(fine(pad(half, {1, 1}, 1e9)));  // as large as it is in float16
    CHECK(fine(clamp(x, kInf, kInf)));
    CHECK(fine(clamp_max(x, -kInf)));
    CHECK(finding([&] { return clamp(x, nan, 1); }) == "nothing");
    CHECK(fine(leaky_relu(x, kInf)));
    CHECK(fine(x.masked_fill(mask, kInf)));
    CHECK(fine(x.masked_fill(mask, nan)));
    CHECK(fine(where(mask, x, kInf)));
    CHECK(fine(where(mask, nan, x)));
    CHECK(fine(full({2}, nan)));
    CHECK(fine(full_like(x, kInf)));
    CHECK(fine(nan_to_num(log(zeros({1}).fill_(kInf)), 0, kInf)));
    CHECK(fine(x + kInf));
    CHECK(fine(x * kInf));
    CHECK(fine(index_fill(x, 0, tensor({0}), kInf)));
    CHECK(fine(x.scatter(1, tensor({{0}, {1}}), kInf)));
    CHECK(fine(threshold(x, 0, kInf)));
    Tensor written = zeros({2, 2}, float16);
    CHECK(fine(written.fill_(1e9)));
    CHECK(fine(written.fill_(nan)));
    CHECK(fine(zeros({2, 2}).clamp_(kInf, kInf)));
    CHECK(fine(zeros({2, 2}).masked_fill_(mask, kInf)));
    CHECK(fine(zeros({64}).normal_(kInf, 1)));
    // Only they do.
    CHECK(has(finding([&] { return (x - x) * kInf; }), "mul: makes nan of"));
    CHECK(has(finding([&] { return log(clamp(x - x, -1, 1)); }), "log: makes inf"));
    CHECK(finding([&] { return where(mask, x, tensor({nan, nan})); }) == "nothing");
    const Tensor w = x.detach().requires_grad_();
    Tape tape;
    CHECK(finding([&] { tape.backward(sum(leaky_relu(w, kInf))); }) == "nothing");
}
