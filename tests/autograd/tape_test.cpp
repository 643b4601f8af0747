// Recording and walking: what flows where, and what the errors say.
#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "../fails.h"
#include "tapir/autograd/checkpoint.h"
#include "tapir/autograd/function.h"
#include "tapir/autograd/gradcheck.h"
#include "tapir/autograd/log_impl.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

// The file and line that an error must begin with.
std::string at(int line) { return "tape_test.cpp:" + std::to_string(line) + ": "; }

// Runs fn; the message of the TapeError it throws, or "nothing thrown".
template <class Fn>
std::string tape_error(const Fn& fn) {
    try {
        fn();
    } catch (const TapeError& error) {
        return error.what();
    }
    return "nothing thrown";
}

bool begins_with(const std::string& text, const std::string& start) { return text.compare(0, start.size(), start) == 0; }
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Tensor leaf(const Tensor& t) {
    Tensor x = t.clone();
    x.requires_grad_();
    return x;
}

}  // namespace

TEST_CASE("backward accumulates in leaves") {
    Tensor w = leaf(tensor({1.0, 2.0, 3.0}));
    {
        Tape tape;
        Tensor loss = sum(w * w);
        CHECK(loss.item<float>() == 14);
        tape.backward(loss);
    }
    CHECK(w.grad().to_vector<float>() == std::vector<float>{2, 4, 6});
    {
        Tape tape;
        sum(w).backward();
    }
    CHECK(w.grad().to_vector<float>() == std::vector<float>{3, 5, 7});
    w.zero_grad();
    CHECK(!w.grad().defined());
}

TEST_CASE("nothing is recorded without a tape, or without tracked inputs") {
    Tensor w = leaf(tensor({1.0, 2.0})), c = tensor({3.0, 4.0});
    CHECK(!is_recording());
    CHECK(!(w * c).requires_grad());
    Tape tape;
    CHECK(is_recording());
    CHECK(!(c * c).requires_grad());
    CHECK(tape.size() == 0);
    CHECK((w * c).requires_grad());
    CHECK(tape.size() == 2);  // the leaf and the product
    {
        NoGradScope pause;
        CHECK(!(w * c).requires_grad());
    }
    CHECK(tape.size() == 2);
}

TEST_CASE("control flow is the program's") {
    // x^n by repeated multiplication, n decided by data: d/dx x^5 = 5 x^4
    Tensor x = leaf(tensor(1.5));
    Tape tape;
    Tensor y = x;
    int n = 1;
    while (y.item<float>() < 7) {
        y = y * x;
        ++n;
    }
    REQUIRE(n == 5);
    tape.backward(y);
    CHECK(x.grad().item<float>() == Approx(5 * std::pow(1.5, 4)));
}

TEST_CASE("gradient() leaves grad() alone and takes intermediate values") {
    Tensor x = leaf(tensor({1.0, 2.0}));
    Tape tape({.persistent = true});
    Tensor h = x * 3;
    Tensor y = sum(h * h);
    auto g = tape.gradient(y, {x, h});
    CHECK(g[0].to_vector<float>() == std::vector<float>{18, 36});
    CHECK(g[1].to_vector<float>() == std::vector<float>{6, 12});
    CHECK(!x.grad().defined());
    Tensor other = leaf(tensor({5.0}));
    CHECK(tape.gradient(y, {other})[0].to_vector<float>() == std::vector<float>{0});
    CHECK(gradient(y, {x})[0].to_vector<float>() == std::vector<float>{18, 36});
}

TEST_CASE("higher orders on one tape and on nested tapes") {
    Tensor x = leaf(tensor(0.7, float64));
    {
        Tape tape;  // d^3/dx^3 sin(x) = -cos(x)
        Tensor d1 = tape.gradient(sin(x), {x}, {.create_graph = true})[0];
        Tensor d2 = tape.gradient(d1, {x}, {.create_graph = true})[0];
        Tensor d3 = tape.gradient(d2, {x})[0];
        CHECK(d1.item() == Approx(std::cos(0.7)));
        CHECK(d2.item() == Approx(-std::sin(0.7)));
        CHECK(d3.item() == Approx(-std::cos(0.7)));
    }
    {
        Tape outer;
        Tensor y = x * x;
        Tensor d;
        {
            Tape inner;
            Tensor z = exp(y) * x;  // dz/dy = exp(y) x
            d = inner.gradient(z, {y})[0];
        }
        CHECK(d.item() == Approx(std::exp(0.49) * 0.7));
        outer.backward(d);  // d/dx (exp(x^2) x) = exp(x^2) (1 + 2 x^2)
        CHECK(x.grad().item() == Approx(std::exp(0.49) * (1 + 2 * 0.49)));
    }
}

TEST_CASE("a value of an ended tape is a constant") {
    Tensor w = leaf(tensor({2.0})), h = tensor({1.0});
    for (int step = 0; step < 3; ++step) {  // truncated backpropagation without detach()
        Tape tape;
        h = h * w;
        tape.backward(sum(h));
    }
    CHECK(w.grad().item<float>() == 1 + 2 + 4);
    const std::string message = tape_error([&] {
        Tape tape;
        tape.backward(sum(h));
    });
    CHECK(contains(message, "not recorded on the tape"));
}

TEST_CASE("hooks see and replace gradients") {
    Tensor w = leaf(tensor({1.0, 2.0}));
    std::vector<float> seen;
    w.register_hook([&](const Tensor& g) {
        seen = g.to_vector<float>();
        return g * 10;
    });
    Tape tape;
    Tensor h = w * 2;
    h.register_hook([](const Tensor& g) { return g + 1; });
    tape.backward(sum(h * 3));
    CHECK(seen == std::vector<float>{8, 8});  // (3 + 1) * 2
    CHECK(w.grad().to_vector<float>() == std::vector<float>{80, 80});
}

TEST_CASE("stop_gradient and detach") {
    Tensor x = leaf(tensor({3.0}));
    Tape tape;
    tape.backward(sum(x * stop_gradient(x) + x.detach()));
    CHECK(x.grad().item<float>() == 3);
}

namespace {
struct Cube : Function<Cube> {
    static Tensor forward(FunctionContext& context, const std::vector<Tensor>& x) {
        context.save({x[0]});
        return x[0] * x[0] * x[0];
    }
    static std::vector<Tensor> backward(FunctionContext& context, const std::vector<Tensor>& grads) {
        const Tensor x = context.saved(0);
        return {grads[0] * x * x * 3};
    }
};
struct SumAndDifference : Function<SumAndDifference> {
    static std::vector<Tensor> forward(FunctionContext&, const std::vector<Tensor>& x) { return {x[0] + x[1], x[0] - x[1]}; }
    static std::vector<Tensor> backward(FunctionContext&, const std::vector<Tensor>& g) { return {g[0] + g[1], g[0] - g[1]}; }
};
}  // namespace

namespace names {
template <int power>
struct Power : Function<Power<power>> {
    static Tensor forward(FunctionContext&, const std::vector<Tensor>& x) { return pow(x[0], power); }
    static std::vector<Tensor> backward(FunctionContext&, const std::vector<Tensor>& g) { return {g[0] * power}; }
};
struct Named : Function<Named> {
    static constexpr const char* name = "straight-through";
    static Tensor forward(FunctionContext&, const std::vector<Tensor>& x) { return round(x[0]); }
    static std::vector<Tensor> backward(FunctionContext&, const std::vector<Tensor>& g) { return {g[0]}; }
};
}  // namespace names

TEST_CASE("a custom function is called by its type's name, or the one that it gives itself") {
    struct Local : Function<Local> {
        static Tensor forward(FunctionContext&, const std::vector<Tensor>& x) { return x[0] * 2; }
        static std::vector<Tensor> backward(FunctionContext&, const std::vector<Tensor>& g) { return {g[0] * ones({2})}; }
    };
    const Tensor x = leaf(tensor({1.0, 2.0}));
    Profiler profiler;
    {
        Tape tape;
        const Tensor a = Cube::apply({x}), b = Local::apply({a}), c = names::Named::apply({b}), d = names::Power<3>::apply({c});
        std::vector<std::string> recorded;
        for (Record* record : tape.log().records) recorded.push_back(record->op->name);
        CHECK(recorded == std::vector<std::string>{"leaf", "Cube", "Local", "straight-through", "Power<3>"});
        static_cast<void>(Cube::apply({a}));
        CHECK(tape.log().records.back()->op == tape.log().records[1]->op);  // one row for all its calls
        CHECK(contains(tape.str(), "straight-through"));
        CHECK(contains(tape.to_dot(), "Power"));
        tape.backward(sum(d));
    }
    profiler.stop();
    const auto rows = profiler.rows();
    for (const char* name : {"Cube backward", "Local backward", "straight-through backward", "Power<3> backward"}) {
        INFO(name);
        CHECK(std::any_of(rows.begin(), rows.end(), [&](const ProfileRow& row) { return row.name == name; }));
    }
}

namespace names {
struct Ordered {
    Tensor tensor;
};
// A function that is local to an operator whose name has half a bracket.
#define TAPIR_TEST_OPERATOR(op)                                                                                        \
    static Tensor operator op(const Ordered& a, const Ordered&) {                                                      \
        struct Doubled : Function<Doubled> {                                                                           \
            static Tensor forward(FunctionContext&, const std::vector<Tensor>& x) { return x[0] * 2; }                 \
            static std::vector<Tensor> backward(FunctionContext&, const std::vector<Tensor>& g) { return {g[0] * 2}; } \
        };                                                                                                             \
        return Doubled::apply({a.tensor});                                                                             \
    }
TAPIR_TEST_OPERATOR(<)
TAPIR_TEST_OPERATOR(>)
TAPIR_TEST_OPERATOR(<<)
TAPIR_TEST_OPERATOR(<=>)
#undef TAPIR_TEST_OPERATOR
}  // namespace names

TEST_CASE("a custom function is called by its type's name in operators, too") {
    const names::Ordered x{leaf(tensor({1.0, 2.0}))};
    const Tape tape;
    const Tensor less = x<x, greater = x> x, shifted = x << x, compared = x <=> x;
    std::vector<std::string> recorded;
    for (Record* record : tape.log().records) recorded.push_back(record->op->name);
    CHECK(recorded == std::vector<std::string>{"leaf", "Doubled", "Doubled", "Doubled", "Doubled"});
}

TEST_CASE("custom functions, to second order") {
    const Tensor x = tensor({0.5, -1.2, 2.0}, float64), y = tensor({1.0, 0.3, -0.7}, float64);
    const auto cube = [](const std::vector<Tensor>& in) { return Cube::apply(in); };
    CHECK(gradcheck(cube, {x}).message == "");
    CHECK(gradgradcheck(cube, {x}).message == "");
    const auto both = [](const std::vector<Tensor>& in) {
        const auto out = SumAndDifference::apply_many(in);
        return out[0] * out[1];
    };
    CHECK(gradcheck(both, {x, y}).message == "");
    CHECK(gradgradcheck(both, {x, y}).message == "");
}

TEST_CASE("gradcheck finds a wrong gradient") {
    struct Wrong : Function<Wrong> {
        static Tensor forward(FunctionContext&, const std::vector<Tensor>& x) { return x[0] * x[0]; }
        static std::vector<Tensor> backward(FunctionContext&, const std::vector<Tensor>& g) { return {g[0]}; }
    };
    const auto wrong = [](const std::vector<Tensor>& x) { return Wrong::apply(x); };
    const std::vector<Tensor> at = {tensor({1.0, 0.5}, float64)};
    FAILS_IN(ValueError, "gradcheck: 1 of 2 elements disagree\n  input 0 of shape (2,), element (0,): gradient 0.5, difference quotient 1", "",
             gradcheck(wrong, at));
    struct WrongTwice : Function<WrongTwice> {  // the gradient is right, but constant to the tape
        static Tensor forward(FunctionContext& c, const std::vector<Tensor>& x) {
            c.save({x[0]});
            return x[0] * x[0];
        }
        static std::vector<Tensor> backward(FunctionContext& c, const std::vector<Tensor>& g) { return {g[0] * c.saved(0).detach() * 2}; }
    };
    const auto wrong_twice = [](const std::vector<Tensor>& x) { return WrongTwice::apply(x); };
    CHECK(gradcheck(wrong_twice, at).ok);
    FAILS_IN(ValueError, "gradgradcheck: 2 of 2 elements disagree\n  input 0 of shape (2,), element (1,)", "", gradgradcheck(wrong_twice, at));
    CHECK(!gradgradcheck(wrong_twice, at, {.raise_exception = false}));
    const auto result = gradcheck(wrong, at, {.raise_exception = false});
    CHECK(!result);
    CHECK(contains(result.message, "input 0 of shape (2,), element (0,): gradient 0.5, difference quotient 1"));
    CHECK(contains(result.message, "off by -0.5"));
    CHECK(!contains(result.message, "times its difference quotient"));  // 1 / 2x is another factor for each x
}

TEST_CASE("gradcheck names the element, the input among all inputs, and what gradients have in common") {
    struct Half : Function<Half> {  // of the second column half the gradient
        static Tensor forward(FunctionContext&, const std::vector<Tensor>& x) { return {x[0] * 3}; }
        static std::vector<Tensor> backward(FunctionContext&, const std::vector<Tensor>& g) { return {g[0] * tensor({3.0, 1.5}, float64)}; }
    };
    const Tensor index = tensor({1, 0}), x = ones({2, 2}, float64);
    const auto fn = [](const std::vector<Tensor>& in) -> Tensor { return Half::apply({in[1]}) + in[0].unsqueeze(1); };
    const std::string message = gradcheck(fn, {index, x}, {.raise_exception = false}).message;
    CHECK(message.find("2 of 4 elements disagree\n  input 1 of shape (2, 2), element (1, 1): gradient 2.0311") == 0);
    CHECK(contains(message, "\n  input 1 of shape (2, 2), element (0, 1): gradient 1.6770"));
    CHECK(contains(message, "\n  each gradient is 0.5 times its difference quotient"));
    const Tensor many = ones({20, 2}, float64);
    const std::string long_message =
        gradcheck([](const std::vector<Tensor>& in) { return Half::apply(in); }, {many}, {.raise_exception = false}).message;
    CHECK(contains(long_message, "20 of 40 elements disagree"));
    CHECK(contains(long_message, "and 10 more that are off by less"));
}

TEST_CASE("gradcheck says nan without a sign") {
    const auto root = [](const std::vector<Tensor>& x) { return sqrt(x[0] - 2); };
    const std::string text = gradcheck(root, {ones({2}, float64)}, {.raise_exception = false}).message;
    INFO(text);
    CHECK(text.find("gradient nan, difference quotient nan, off by nan") != std::string::npos);
    CHECK(text.find("-nan") == std::string::npos);
}

TEST_CASE("a checkpoint's second run computes in the dtypes of the first, whatever scope backward is called in") {
    Tensor w = leaf(randn({8, 8})), x = leaf(randn({2, 8}));
    const auto layer = [&](const std::vector<Tensor>& in) { return matmul(in[0], w); };
    const auto gradients = [&](const auto& run) {
        Tape tape;
        Tensor y;
        {
            const AutocastScope scope(bfloat16);
            y = run();
        }
        CHECK(y.dtype() == bfloat16);
        tape.backward(sum(square(y.to(float32))));
        std::vector<float> result = w.grad().to_vector<float>();
        w.zero_grad(), x.zero_grad();
        return result;
    };
    const std::vector<float> want = gradients([&] { return layer({layer({x})}); });
    CHECK(gradients([&] { return checkpoint([&](const auto& in) { return layer({layer(in)}); }, {x}); }) == want);
    Tape tape;
    const Tensor y = checkpoint(layer, {x});
    const AutocastScope scope(bfloat16);
    tape.backward(sum(y));  // in float32
    CHECK(w.grad().dtype() == float32);
}

TEST_CASE("checkpoint gives the same gradients from fewer records") {
    Tensor w = leaf(randn({4, 4})), x = leaf(randn({2, 4}));
    const auto block = [&](const std::vector<Tensor>& in) { return tanh(matmul(dropout(tanh(matmul(in[0], w)), 0.3), w)); };
    Tensor wg, xg;
    manual_seed(7);
    {
        Tape tape;
        tape.backward(sum(square(block({block({x})}))));
        wg = w.grad(), xg = x.grad();
        w.zero_grad(), x.zero_grad();
    }
    manual_seed(7);
    Tape tape;
    Tensor y = sum(square(checkpoint(block, {checkpoint(block, {x})})));
    CHECK(tape.size() == 5);  // x, two checkpoints, square, sum
    tape.backward(y);
    for (std::int64_t i = 0; i < 16; ++i) CHECK(w.grad().data<float>()[i] == Approx(wg.data<float>()[i]).margin(1e-6));
    for (std::int64_t i = 0; i < 8; ++i) CHECK(x.grad().data<float>()[i] == Approx(xg.data<float>()[i]).margin(1e-6));
}

TEST_CASE("the gradients of one weight are collected, to the same result") {
    Tensor w = leaf(randn({6, 5}, float64)), b = leaf(randn({6}, float64));
    const Tensor xs = randn({300, 5}, float64);
    Tape tape({.persistent = true});
    Tensor loss = zeros({}, float64);
    for (Tensor x : xs) loss = loss + sum(square(linear(x, w, b)));
    tape.backward(loss);
    // d/dw sum |W x + b|^2 = 2 sum (W x + b) x^T
    NoGradScope pause;
    const Tensor y = linear(xs, w, b);
    const Tensor want = matmul(y.t(), xs) * 2, want_b = sum(y, 0) * 2;
    for (std::int64_t i = 0; i < 30; ++i) CHECK(w.grad().data<double>()[i] == Approx(want.data<double>()[i]));
    for (std::int64_t i = 0; i < 6; ++i) CHECK(b.grad().data<double>()[i] == Approx(want_b.data<double>()[i]));
}

TEST_CASE("errors name the user's lines and change nothing") {
    Tensor w = leaf(tensor({1.0, 2.0})), x = tensor({3.0, 4.0});
    CHECK(begins_with(tape_error([&] { sum(w).backward(); }), at(__LINE__) + "backward: no tape is active"));
    {
        Tape tape;
        Tensor y = w * x;
        CHECK(begins_with(tape_error([&] { tape.backward(y); }), at(__LINE__) + "backward: needs a scalar, got shape (2,)"));
        CHECK(begins_with(tape_error([&] { tape.backward(sum(x)); }), at(__LINE__) + "backward: this tensor was not recorded"));
        const int forward_line = __LINE__ + 1;
        Tensor z = sum(exp(y));
        const int backward_line = __LINE__ + 1;
        tape.backward(z);
        const Tensor before = w.grad().clone();
        const std::string second = tape_error([&] { tape.backward(z); });
        CHECK(begins_with(second, at(__LINE__ - 1) + "backward: the saved tensors of"));
        CHECK(contains(second, "tape_test.cpp:" + std::to_string(forward_line)));
        CHECK(contains(second, "tape_test.cpp:" + std::to_string(backward_line)));
        CHECK(w.grad().to_vector<float>() == before.to_vector<float>());
    }
    {
        Tape tape;
        const int saved_line = __LINE__ + 1;
        Tensor h = exp(w * 1.5);
        Tensor y = sum(h);
        const int write_line = __LINE__ + 1;
        h += 1;
        Tensor grad = w.grad().clone();
        const std::string message = tape_error([&] { tape.backward(y); });
        CHECK(begins_with(message, at(saved_line) + "exp: a tensor of shape (2,) that it saved for backward was modified in place at "));
        CHECK(contains(message, "tape_test.cpp:" + std::to_string(write_line)));
        CHECK(w.grad().to_vector<float>() == grad.to_vector<float>());
    }
    {
        Tape tape;
        CHECK(begins_with(tape_error([&] { w += 1; }), at(__LINE__) + "add_: a leaf that requires a gradient is written to"));
        CHECK(w.to_vector<float>() == std::vector<float>{1, 2});
        Tensor y = w * 2, row = y[0];
        CHECK(begins_with(tape_error([&] { row += 1; }), at(__LINE__) + "add_: writing into a view is not recorded"));
        CHECK(begins_with(tape_error([&] { y.requires_grad_(); }), at(__LINE__) + "requires_grad_: the result of a recorded op"));
    }
    {
        Tape tape;
        Tensor y = w * 2, view = y.view({2, 1});
        y += 1;
        CHECK(begins_with(tape_error([&] { sum(view); }), at(__LINE__) + "a recorded tensor of shape (2, 1) was modified in place at "));
    }
}

TEST_CASE("in-place ops are recorded") {
    Tensor w = leaf(tensor({1.0, 2.0}));
    Tape tape;
    Tensor y = w * 3;
    y *= w;  // 3 w^2
    y += y;  // 6 w^2
    y.sin_();
    y.exp_();  // exp(sin(6 w^2))
    tape.backward(sum(y));
    for (int i = 0; i < 2; ++i) {
        const double v = i + 1, inner = 6 * v * v;
        CHECK(w.grad().data<float>()[i] == Approx(std::exp(std::sin(inner)) * std::cos(inner) * 12 * v).epsilon(1e-4));
    }
}

TEST_CASE("tapes of several threads do not mix") {
    Tensor w = leaf(tensor({1.0, 2.0}));
    Tape tape;
    Tensor y = w * 2;
    std::string message;
    std::thread([&] {
        Tape own;
        message = tape_error([&] { sum(y * w); });
    }).join();
    CHECK(contains(message, "was recorded on a tape of another thread"));
    Tensor value;
    std::thread([&] { value = y + 1; }).join();  // without a tape there it is a plain value
    CHECK(value.to_vector<float>() == std::vector<float>{3, 5});
}

TEST_CASE("threads train with tapes of their own") {
    const Tensor x = randn({8, 3});
    std::vector<std::thread> threads;
    std::vector<Tensor> weights;
    for (int t = 0; t < 4; ++t) weights.push_back(leaf(ones({2, 3})));
    Tensor shared = leaf(ones({2}));  // read by all, its gradient asked for by none but gradient()
    std::vector<Tensor> shared_grads(4);
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            for (int step = 0; step < 50; ++step) {
                Tape tape({.persistent = true});
                Tensor loss = sum(tanh(linear(x, weights[static_cast<std::size_t>(t)], shared)));
                tape.backward(sum(square(weights[static_cast<std::size_t>(t)])));
                shared_grads[static_cast<std::size_t>(t)] = tape.gradient(loss, {shared})[0];
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    for (int t = 0; t < 4; ++t) {
        CHECK(weights[static_cast<std::size_t>(t)].grad().to_vector<float>() == std::vector<float>(6, 100));
        CHECK(shared_grads[static_cast<std::size_t>(t)].to_vector<float>() == shared_grads[0].to_vector<float>());
    }
}

TEST_CASE("a million records") {
    Tensor x = leaf(tensor({1.0}));
    Tape tape;
    Tensor y = x;
    for (int i = 0; i < 1'000'000; ++i) y = y + 1;
    CHECK(tape.size() == 1'000'001);
    tape.backward(sum(y));
    CHECK(x.grad().item<float>() == 1);
}

TEST_CASE("a thousand steps do not grow") {
    Tensor w = leaf(randn({8, 8})), x = randn({4, 8});
    const auto step = [&] {
        Tape tape;
        Tensor h = x;
        for (int i = 0; i < 5; ++i) h = tanh(linear(h, w));
        tape.backward(sum(h));
        w.zero_grad();
    };
    for (int i = 0; i < 10; ++i) step();
    const MemoryStats before = memory_stats();
    for (int i = 0; i < 1000; ++i) step();
    const MemoryStats after = memory_stats();
    CHECK(after.live_bytes == before.live_bytes);
    CHECK(after.system_calls == before.system_calls);
}

TEST_CASE("an exception out of a hook leaves the gradients alone") {
    Tensor w = leaf(tensor({1.0}));
    Tape tape;
    Tensor h = w * 2, y = sum(h);
    h.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("stop"); });
    CHECK_THROWS_AS(tape.backward(y), std::runtime_error);
    CHECK(!w.grad().defined());
    CHECK(is_recording());
}

TEST_CASE("tapes may end in any order") {
    Tensor w = leaf(tensor({1.0, 2.0}));
    auto* first = new Tape;
    auto* second = new Tape;
    Tensor y = w * 2;
    delete first;
    CHECK(is_recording());
    second->backward(sum(y));
    delete second;
    CHECK(!is_recording());
    CHECK(w.grad().to_vector<float>() == std::vector<float>{2, 2});
}

TEST_CASE("a gradient that does not depend on x has zeros for its own") {
    const Tensor x = leaf(tensor({-1.0, 2.0}, float64));
    const std::function<Tensor(const Tensor&)> functions[] = {[](const Tensor& t) { return relu(t); }, [](const Tensor& t) { return abs(t); },
                                                              [](const Tensor& t) { return t * 3; }, [](const Tensor& t) { return t; }};
    for (const auto& fn : functions) {
        {
            Tape tape;
            const Tensor first = tape.gradient(sum(fn(x)), x, {.create_graph = true});
            CHECK(tape.gradient(sum(first), x).to_vector<double>() == std::vector<double>{0, 0});
        }
        {
            Tape outer;
            Tensor first;
            {
                Tape inner;
                first = inner.gradient(sum(fn(x)), x);
            }
            CHECK(outer.gradient(sum(first), x).to_vector<double>() == std::vector<double>{0, 0});
        }
        {
            Tape tape;
            tape.backward(sum(fn(x)), {.create_graph = true});
            const Tensor first = x.grad();
            Tensor(x).zero_grad();
            CHECK(tape.gradient(sum(first), x).to_vector<double>() == std::vector<double>{0, 0});
        }
        CHECK(gradgradcheck([&](const std::vector<Tensor>& t) { return fn(t[0]); }, {x}).ok);
    }
    Tape tape;  // a loss that no leaf leads to is a mistake
    CHECK(contains(tape_error([&] { tape.gradient(sum(ones({2})), x); }), "no tensor it was computed from requires a gradient"));
}

TEST_CASE("the gradient of one tensor is a tensor") {
    const Tensor w = leaf(tensor({1.0, 2.0}));
    Tape tape({.persistent = true});
    const Tensor y = sum(w * w);
    CHECK(tape.gradient(y, w).to_vector<float>() == std::vector<float>{2, 4});
    CHECK(gradient(y, w).to_vector<float>() == std::vector<float>{2, 4});
    CHECK(tape.gradient(y, {w})[0].to_vector<float>() == std::vector<float>{2, 4});
}

TEST_CASE("the gradient of what follows is converted") {
    const Tensor w = leaf(tensor({1.0, 2.0}));
    for (const Tensor& g : {tensor({1, 3}), tensor({true, true}), tensor({1.0, 3.0}, float64), tensor({1.0, 3.0}, float16)}) {
        const std::vector<float> values = g.to_vector<float>();
        const std::vector<float> doubled = {2 * values[0], 2 * values[1]};
        for (const bool create_graph : {false, true}) {
            Tensor(w).zero_grad();
            Tape tape;
            tape.backward(w * 2, {.gradient = g, .create_graph = create_graph});
            CHECK(w.grad().dtype() == float32);
            CHECK(w.grad().to_vector<float>() == doubled);
            CHECK(tape.gradient(w * 2, w, {.gradient = g, .create_graph = create_graph}).to_vector<float>() == doubled);
            Tensor(w).zero_grad();
            tape.backward(w, {.gradient = g, .create_graph = create_graph});
            CHECK(w.grad().dtype() == float32);
            CHECK(w.grad().to_vector<float>() == values);
        }
    }
    Tape tape;
    FAILS(ShapeError, "backward: the gradient has shape (1,), the tensor has (2,)", tape.backward(w * 2, {.gradient = ones({1})}));
}

TEST_CASE("retain_grad keeps the gradient of a result") {
    const Tensor w = leaf(tensor({1.0, 2.0}));
    Tape tape({.persistent = true});
    const Tensor h = w * 3;
    h.retain_grad();
    h.retain_grad();
    w.retain_grad();
    h.register_hook([](const Tensor& g) { return g * 10; });
    const Tensor y = sum(h * h);
    CHECK(tape.gradient(y, w).to_vector<float>() == std::vector<float>{180, 360});
    CHECK(!h.grad().defined());
    tape.backward(y);
    CHECK(h.grad().to_vector<float>() == std::vector<float>{60, 120});  // what hooks made of it
    CHECK(w.grad().to_vector<float>() == std::vector<float>{180, 360});
    tape.backward(y);
    CHECK(h.grad().to_vector<float>() == std::vector<float>{120, 240});
    FAILS(TapeError, "retain_grad: this tensor is neither a leaf with requires_grad_() nor recorded on a tape", ones({2}).retain_grad());
}

TEST_CASE("a hook may end the tape, and backward goes on to its end") {
    const Tensor w = leaf(tensor({1.0, 2.0}));
    for (const bool create_graph : {false, true}) {
        Tensor(w).zero_grad();
        auto tape = std::make_unique<Tape>();
        const Tensor h = w * 3, y = sum(h * h);
        h.register_hook([&](const Tensor&) { tape.reset(); });
        tape->backward(y, {.create_graph = create_graph});
        CHECK(!tape);
        CHECK(!is_recording());
        CHECK(w.grad().to_vector<float>() == std::vector<float>{18, 36});
        Tape next;
        CHECK(next.gradient(sum(w * w), w).to_vector<float>() == std::vector<float>{2, 4});
    }
    auto inner = std::make_unique<Tape>();
    Tensor(w).register_hook([&](const Tensor&) { inner.reset(); });
    CHECK(inner->gradient(sum(w * w), w).to_vector<float>() == std::vector<float>{2, 4});
}

TEST_CASE("a hook may walk, take itself away, and throw") {
    const Tensor w = leaf(tensor({1.0, 2.0}));
    Tape tape({.persistent = true});
    const Tensor h = w * 3, y = sum(h * h);
    int calls = 0;
    RemovableHandle hook;
    hook = h.register_hook([&](const Tensor&) {
        ++calls;
        hook.remove();
        Tape inner;
        CHECK(inner.gradient(sum(w * w), w).to_vector<float>() == std::vector<float>{2, 4});
    });
    CHECK(tape.gradient(y, w).to_vector<float>() == std::vector<float>{18, 36});
    CHECK(tape.gradient(y, w).to_vector<float>() == std::vector<float>{18, 36});
    CHECK(calls == 1);
    h.register_hook([&](const Tensor&) { static_cast<void>(tape.gradient(y, w)); });
    CHECK(contains(tape_error([&] { static_cast<void>(tape.gradient(y, w)); }), "gradient: it is called inside of itself 100 times"));
    CHECK(is_recording());
}

TEST_CASE("a NoGradScope in which the tape ends") {
    const Tensor w = leaf(tensor({1.0, 2.0}));
    auto tape = std::make_unique<Tape>();
    {
        const NoGradScope pause;
        tape.reset();
        CHECK(!is_recording());
    }
    CHECK(!is_recording());
}
