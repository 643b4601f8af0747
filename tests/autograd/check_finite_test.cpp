// CheckFiniteScope names the first op that makes nan or inf, forward and backward.
#include <cmath>
#include <limits>
#include <string>
#include <thread>

#include "../fails.h"
#include "tapir/autograd/log_impl.h"
#include "tapir/autograd/watch/watch_impl.h"
#include "tapir/core/gdb/hooks_impl.h"
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
    CHECK(has(finding([&] { return var(ones({2, 3}), {1}, 3); }), "correction 3 leaves nothing to divide by of 3 elements"));
    const Tensor large = tensor({{1e30f, -1e30f, 1e30f}});
    CHECK(has(finding([&] { return var(large); }), "likely cause: overflow: float32 holds at most 3.4e+38, the inputs go up to 1e+30"));
    CHECK(has(finding([&] { return tapir::std(ones({2, 3}), {1}, 4); }), "correction 4 leaves nothing to divide by of 3 elements"));
    CHECK(has(finding([&] { return sinh(x * 100); }), "overflow in sinh: float32 holds at most 3.4e+38, the inputs go up to 200"));
    CHECK_FALSE(has(finding([&] { return cosh(x * 100); }), "softmax"));
    CHECK(has(finding([&] { return exp(x * 100); }), "subtract the maximum first (softmax and logsumexp do)"));
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
    const Tensor x = tensor({{1.0f, 0.0f}}).requires_grad_(), w = tensor({{kInf}, {1.0f}});
    const CheckFiniteScope check;
    Tape tape;
    const std::string text = finding([&] { tape.backward(sum(where(zeros({1, 1}) > 0, matmul(x, w), 0.0f))); });
    INFO(text);
    CHECK(has(text, "matmul: its backward rule makes nan"));
    CHECK(has(text, "0 * inf in the rule"));
}

TEST_CASE("the branch of a where that was not taken makes no nan") {
    const Tensor x = tensor({0.0f, 4.0f}).requires_grad_();
    const CheckFiniteScope check;
    Tape tape;
    CHECK(finding([&] { tape.backward(sum(where(x > 0, sqrt(x), 0.0f))); }) == "nothing");
    CHECK(x.grad().to_vector<float>() == std::vector<float>{0, 0.25f});
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

namespace {

struct Inner : Function<Inner> {
    static inline int line = 0;
    static inline bool makes_nan = false;
    static std::vector<Tensor> forward(FunctionContext&, const std::vector<Tensor>& in) { return {in[0] * 1}; }
    static std::vector<Tensor> backward(FunctionContext&, const std::vector<Tensor>& grads) {
        const Tensor x = ones({2}).requires_grad_();
        Tape tape;
        const Tensor finite = tape.gradient(sum(x * x), {x})[0];
        line = __LINE__ + 1;
        return {makes_nan ? log(finite - finite) : grads[0]};
    }
};

}  // namespace

TEST_CASE("nan made in hooks and in a custom function's backward is found on the user's line") {
    const Tensor w = ones({2}).requires_grad_();
    int line = 0;
    const auto bad = [&](const Tensor& g) {
        line = __LINE__ + 1;
        return log(g - g);
    };
    const auto begins = [](int at) { return "check_finite_test.cpp:" + std::to_string(at) + ": log: makes inf of finite inputs"; };
    const CheckFiniteScope check;
    for (const bool of_leaf : {false, true}) {
        Tape tape;
        const Tensor h = tanh(w);
        RemovableHandle handle = of_leaf ? w.register_hook(bad) : h.register_hook(bad);
        const std::string text = finding([&] { tape.backward(sum(h)); });
        handle.remove();
        CHECK(text.rfind(begins(line), 0) == 0);
    }
    for (const bool makes_nan : {false, true}) {
        Inner::makes_nan = makes_nan;
        Tape tape;
        const Tensor y = tanh(Inner::apply({w}));
        const std::string text = finding([&] { tape.backward(y, {.gradient = full({2}, makes_nan ? 1 : kInf)}); });
        if (makes_nan) {
            CHECK(text.rfind(begins(Inner::line), 0) == 0);
        } else {
            CHECK(text == "nothing");  // what comes in has inf already; the walk inside is another one
        }
    }
}

TEST_CASE("the squares from which cdist tells that it must not multiply are nobody's, and on no tape") {
    const Tensor other = zeros({30, 2});
    for (const double size : {3e30, 1e-30}) {
        const Tensor w = full({30, 2}, size).requires_grad_();
        const CheckFiniteScope check;
        CHECK(cdist(w.detach(), other)[0][0].item() == Approx(size * std::sqrt(2.0)));
        Tape tape;
        const Tensor distances = cdist(w, other);
        CHECK(distances[0][0].item() == Approx(size * std::sqrt(2.0)));
        for (const Record* record : tape.log().records) CHECK(std::string(record->op->name) != "square");
        tape.backward(sum(distances));
        CHECK(w.grad()[0][0].item() == Approx(30 / std::sqrt(2.0)));
    }
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

namespace {

constexpr int kScaledLine = __LINE__ + 5;
struct Scaled : nn::Module {
    Tensor weight = ones({2}).requires_grad_();
    Tensor forward(const Tensor& x) {
        const nn::ModuleScope scope(*this);
        return weight * x;
    }
    void members(nn::Members& m) override { m("weight", weight); }
};

// The line of the finding's beginning.
bool is_of_line(const std::string& text, int line) { return text.rfind("check_finite_test.cpp:" + std::to_string(line) + ": ", 0) == 0; }

constexpr float kHuge = 3e38f;  // two of them are more than a float32 holds

}  // namespace

TEST_CASE("finite contributions whose sum is not: of a value that is used twice") {
    const Tensor w = zeros({2}).requires_grad_();
    const CheckFiniteScope check;
    Tape tape({.persistent = true});
    const int line = __LINE__ + 1;
    const Tensor h = tanh(w);
    const Tensor first = h * 2;  // the walk comes to it last
    const Tensor second = h * 1;
    const Tensor y = first + second;
    CHECK(finding([&] { tape.backward(y, {.gradient = full({2}, 1e38f)}); }) == "nothing");
    CHECK(w.grad().isfinite().all().item<bool>());
    const std::string text = finding([&] { tape.backward(y, {.gradient = full({2}, 1.5e38f)}); });
    INFO(text);
    CHECK(is_of_line(text, line + 1));
    CHECK(has(text,
              "mul: the sum of contributions to the gradient of the float32 (2,) that tanh made at check_finite_test.cpp:" + std::to_string(line)));
    CHECK(has(text, "overflows: with number 2, which its backward rule gives to input 0, it is float32 (2,): 2 inf of 2 elements"));
    CHECK(w.grad().at<float>({0}) == Approx(3e38));
}

TEST_CASE("finite contributions whose sum is not: of a further output of an op, which is named by the op") {
    const Tensor w = zeros({2, 2}).requires_grad_();
    const CheckFiniteScope check;
    Tape tape;
    const std::vector<Tensor> rows = tanh(w).unbind();
    const std::string name = tape.log().records[2]->op->name;
    const Tensor y = rows[1] * 2 + rows[1] * 1;
    const std::string text = finding([&] { tape.backward(y, {.gradient = full({2}, 1.5e38f)}); });
    INFO(text);
    CHECK(has(text, "of the float32 (2,) that " + name + " #1 made at check_finite_test.cpp:"));
}

TEST_CASE("finite contributions whose sum is not: of a further output of an op") {
    const Tensor w = zeros({4}).requires_grad_();
    const CheckFiniteScope check;
    Tape tape;
    const int line = __LINE__ + 1;
    const auto parts = tanh(w).chunk(2, 0);
    const Tensor y = parts[1] * 2 + parts[1] * 1 + parts[0];
    const std::string text = finding([&] { tape.backward(y, {.gradient = full({2}, 1.5e38f)}); });
    INFO(text);
    CHECK(has(text, "gradient of the float32 (2,) that pieces #1 made at check_finite_test.cpp:" + std::to_string(line) + " overflows"));
}

TEST_CASE("finite contributions whose sum is not: of a leaf with a hook") {
    Tensor w = zeros({2}).requires_grad_();
    w.set_grad(full({2}, kHuge));
    const auto hook = w.register_hook([](const Tensor& g) { return g * kHuge; });
    const CheckFiniteScope check;
    Tape tape({.persistent = true});
    const Tensor y = w * 1;
    const std::string text = finding([&] { tape.backward(y, {.gradient = ones({2})}); });
    INFO(text);
    CHECK(has(text, "overflows on top of what its grad() holds, after its hooks: with number 1"));
    w.set_grad(Tensor());
    CHECK(finding([&] { tape.backward(y, {.gradient = ones({2})}); }) == "nothing");
}

TEST_CASE("what break-nonfinite finds ends no op: watchers are told of no failure") {
    struct Listener : OpWatcher {
        void failed() noexcept override { ++failures; }
        void end(const RecordArgs&) override { ++ended; }
        int failures = 0, ended = 0;
    } listener;
    tapir_gdb_state.checking = 1;
    std::thread([&] {  // whose checks end with it
        detail::check_finite_of_thread();
        const WatchScope scope(listener);
        static_cast<void>(log(zeros({2})));
    })
        .join();
    tapir_gdb_state.checking = 0;
    CHECK(listener.ended == 2);
    CHECK(listener.failures == 0);
}

TEST_CASE("finite contributions whose sum is not: of a parameter, by name, in the op whose contribution it was") {
    Scaled model;
    CHECK(model.parameters().size() == 1);
    Tensor& w = model.weight;
    const CheckFiniteScope check;
    const auto step = [&](float huge, float other) {
        Tape tape;
        const Tensor y = model.forward(ones({2})), z = w * 2;  // the walk comes to y last
        tape.backward(cat({y, z}, 0), {.gradient = tensor({huge, huge, other, other})});
    };
    CHECK(finding([&] { step(kHuge, 1); }) == "nothing");
    std::string text = finding([&] { step(kHuge, 1); });  // with what grad() holds
    INFO(text);
    CHECK(is_of_line(text, kScaledLine));
    CHECK(has(text, " (in Scaled)"));
    CHECK(
        has(text, "mul: the sum of contributions to the gradient of weight, float32 (2,) overflows on top of what its grad() holds: with number 2"));
    CHECK(w.grad().at<float>({0}) == kHuge);
    w.set_grad(Tensor());
    text = finding([&] { step(kHuge, 1e38f); });
    INFO(text);
    CHECK(is_of_line(text, kScaledLine));
    CHECK(has(text, " (in Scaled)"));
    CHECK(has(text, "mul: the sum of contributions to the gradient of weight, float32 (2,) overflows: with number 2"));
    CHECK_FALSE(w.grad().defined());
}

TEST_CASE("sums of collected products and rows are looked at when the backward ends") {
    Tensor w = ones({40, 40}).requires_grad_();
    const Tensor table = ones({5, 3}).requires_grad_(), big = full({1, 40}, 1e19f);
    const CheckFiniteScope check;
    const auto steps = [&](int uses) {
        Tape tape;
        Tensor y = zeros({1, 40});
        for (int i = 0; i < uses; ++i) y = y + linear(big, w);
        tape.backward(y, {.gradient = full({1, 40}, 2e19f)});  // 2e38 for each element of w
    };
    CHECK(finding([&] { steps(1); }) == "nothing");
    std::string text = finding([&] { steps(1); });
    INFO(text);
    CHECK(has(text, "linear: the sum of contributions to the gradient of a leaf, float32 (40, 40) overflows on top of what its grad() holds"));
    CHECK(w.grad().isfinite().all().item<bool>());
    w.set_grad(Tensor());
    text = finding([&] { steps(2); });
    INFO(text);
    CHECK(has(text, "linear: the sum of contributions to the gradient of a leaf, float32 (40, 40) overflows: with number 2"));
    CHECK_FALSE(w.grad().defined());
    const auto look_up = [&](const Tensor& places) {
        Tape tape;
        const Tensor rows = embedding(places, table);
        tape.backward(rows, {.gradient = full(rows.shape(), kHuge)});
    };
    text = finding([&] { look_up(tensor({1, 1, 2})); });
    INFO(text);
    CHECK(has(text, "embedding: the gradient of a leaf, float32 (5, 3) overflows as what its backward rule gives to input"));
    CHECK_FALSE(table.grad().defined());
    CHECK(finding([&] { look_up(tensor({1})); }) == "nothing");
    CHECK(finding([&] { look_up(tensor({2, 0})); }) == "nothing");
    text = finding([&] { look_up(tensor({1})); });
    INFO(text);
    CHECK(has(text, "on top of what its grad() holds"));
    // Of a value that is no leaf, when its own rule is reached.
    const Tensor v = ones({40, 40}).requires_grad_();
    Tape tape;
    const Tensor made = v * 1;
    const Tensor y = linear(big, made) + linear(big, made);
    text = finding([&] { tape.backward(y, {.gradient = full({1, 40}, 2e19f)}); });
    INFO(text);
    CHECK(is_of_line(text, __LINE__ - 3));
    CHECK(has(text, "linear: the sum of contributions to the gradient of the float32 (40, 40) that mul made"));
}

TEST_CASE("sums over broadcast dimensions, and conversions to the value's dtype") {
    const Tensor b = ones({}).requires_grad_(), half = ones({2}, float16).requires_grad_();
    const CheckFiniteScope check;
    Tape tape({.persistent = true});
    std::string text = finding([&] { tape.backward(b + ones({2}), {.gradient = full({2}, kHuge)}); });
    INFO(text);
    CHECK(has(text, "add: the gradient of a leaf, float32 () overflows as what its backward rule gives to input 0, which is finite, is summed up"));
    text = finding([&] { tape.backward(sum(half * full({2}, 1e6f))); });
    INFO(text);
    CHECK(has(text, "gradient of a leaf, float16 (2,) overflows"));
}

TEST_CASE("a sum that the gradients explain is nobody's") {
    const Tensor w = ones({2}).requires_grad_(), table = ones({5, 3}).requires_grad_();
    const CheckFiniteScope check;
    Tape tape({.persistent = true});
    const Tensor h = tanh(w), y = h * 2 + h * 3;
    const auto infinite = [&](const Tensor& of) { return full(of.shape(), kInf); };
    CHECK(finding([&] { tape.backward(y, {.gradient = infinite(y)}); }) == "nothing");
    CHECK(finding([&] { tape.backward(y, {.gradient = infinite(y)}); }) == "nothing");  // onto infinity
    CHECK(has(finding([&] { tape.backward(y, {.gradient = -infinite(y)}); }), "becomes nan on top of what its grad() holds"));
    const Tensor rows = embedding(tensor({1, 1}), table);
    CHECK(finding([&] { tape.backward(rows, {.gradient = infinite(rows)}); }) == "nothing");
    // A hook's inf is the user's; so is what a checkpoint hands on.
    const Tensor v = ones({2}).requires_grad_();
    const auto hook = v.register_hook([&](const Tensor& g) { return g + kInf; });
    CHECK(finding([&] { tape.backward(sum(v * 2) + sum(v * 3)); }) == "nothing");
    const Tensor c = ones({2}).requires_grad_();
    const Tensor through = checkpoint([](const std::vector<Tensor>& x) { return x[0]; }, {c}) * 1 + c * 2;
    CHECK(finding([&] { tape.backward(through, {.gradient = infinite(through)}); }) == "nothing");
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
    CHECK(fine(pad(half, {1, 1}, kInf)));
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
    CHECK(fine(written.fill_(kInf)));
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
