// No call of malloc for an op, once its block sizes are warm: not without a tape, not recorded, not in backward. The test
// program's own malloc counts.
#include <catch2/catch.hpp>
#include <functional>

#include "failing_malloc.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/core/parallel.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

struct Case {
    const char* name;
    std::function<Tensor()> op;
};

// Calls of malloc in the last of four rounds.
std::int64_t calls_when_warm(const std::function<void()>& round) {
    std::int64_t before = 0;
    for (int i = 0; i < 4; ++i) {
        before = test::malloc_calls();
        round();
    }
    return test::malloc_calls() - before;
}

}  // namespace

TEST_CASE("warm ops do not call malloc") {
    static int* volatile seen;
    const auto one_call = [] {
        seen = new int;
        delete seen;
    };
    REQUIRE(calls_when_warm(one_call) > 0);  // the counter counts

    const int threads = num_threads();
    set_num_threads(1);
    const Tensor a = randn({4}).requires_grad_(), b = randn({4}), square = randn({4, 4}).requires_grad_();
    const Tensor x = randn({1, 64}), w = randn({64, 64}).requires_grad_(), bias = randn({64}).requires_grad_();
    const Tensor table = randn({10, 8}).requires_grad_(), index = tensor({3}), labels = tensor({1, 0, 2, 3});
    const Tensor row = randn({1, 4}), column = randn({4, 1}), gates = randn({20}).requires_grad_(), c = randn({4});
    const Case cases[] = {
        {"add", [&] { return a + b; }},
        {"add a number", [&] { return a + 1; }},
        {"mul broadcast", [&] { return row * column * square; }},
        {"tanh", [&] { return tanh(a); }},
        {"comparison", [&] { return a < b; }},
        {"where", [&] { return where(a < b, a, b); }},
        {"clamp", [&] { return clamp(a, -1, 1); }},
        {"sum", [&] { return sum(square); }},
        {"sum over a dimension", [&] { return sum(square, {0}); }},
        {"mean", [&] { return mean(square, {-1}, true); }},
        {"amax", [&] { return amax(square, {1}); }},
        {"argmax", [&] { return argmax(square, 1); }},
        {"softmax", [&] { return softmax(square, 1); }},
        {"log_softmax", [&] { return log_softmax(square, 0); }},
        {"cross_entropy", [&] { return cross_entropy(square, labels); }},
        {"mse_loss", [&] { return mse_loss(a, b); }},
        {"linear", [&] { return linear(x, w, bias); }},
        {"matmul", [&] { return matmul(square, square); }},
        {"view", [&] { return square.view({2, 8}); }},
        {"narrow", [&] { return square.narrow(0, 1, 2); }},
        {"index by a number", [&] { return square[1]; }},
        {"index by a slice", [&] { return square[Slice(0, 2)]; }},
        {"transpose and add", [&] { return square.t() + square; }},
        {"cat", [&] { return cat({a, b}); }},
        {"stack", [&] { return stack({a, b}); }},
        {"embedding", [&] { return embedding(index, table); }},
        {"tree_lstm_gates", [&] { return tree_lstm_gates(gates, {c, c}).h; }},
        {"dropout", [&] { return dropout(a, 0.5); }},
        {"layer_norm", [&] { return layer_norm(square, {4}, a, b); }},
    };
    for (const Case& one : cases) {
        INFO(one.name);
        CHECK(calls_when_warm([&] {
                  for (int i = 0; i < 3; ++i) one.op();
              }) == 0);
        CHECK(calls_when_warm([&] {
                  const Tape tape;
                  for (int i = 0; i < 3; ++i) one.op();
              }) == 0);
    }
    set_num_threads(threads);
}

TEST_CASE("backward does not call malloc for each op") {
    Tensor x = randn({4}).requires_grad_();
    const Tensor b = randn({4});
    const auto step = [&](int ops) {
        Tape tape;
        Tensor y = x;
        for (int i = 0; i < ops; ++i) y = tanh(y * b) + b;
        tape.backward(sum(y));
        y = Tensor();
        x.zero_grad();
    };
    CHECK(calls_when_warm([&] { step(500); }) - calls_when_warm([&] { step(5); }) == 0);
}

TEST_CASE("a compiled graph does not call malloc") {
    const int threads = num_threads();
    set_num_threads(1);
    manual_seed(1);
    Tensor w = randn({4, 4}).requires_grad_(), b = randn({4}).requires_grad_();
    const Tensor x = randn({3, 4}), labels = tensor({0, 1, 2});
    const CompiledGraph forward = trace(
                                      [&](const Tensor& t) {
                                          const Tensor h = relu(linear(t, w, b));
                                          return log_softmax(cat({h * 2 + 1, h.narrow(1, 1, 2)}, 1), 1);
                                      },
                                      {{"x", x}})
                                      .compile();
    const CompiledGraph step = trace(
                                   [&](const Tensor& t, const Tensor& y) {
                                       Tape tape;
                                       const Tensor loss = cross_entropy(linear(t, w, b), y);
                                       const std::vector<Tensor> g = tape.gradient(loss, {w, b});
                                       const NoGradScope no_grad;
                                       w.sub_(g[0] * 0.01);
                                       b.sub_(g[1] * 0.01);
                                       return loss;
                                   },
                                   {{"x", x}, {"y", labels}})
                                   .compile();
    CHECK(calls_when_warm([&] {
              for (int i = 0; i < 3; ++i) forward(x);
          }) == 0);
    CHECK(calls_when_warm([&] {
              for (int i = 0; i < 3; ++i) step(x, labels);
          }) == 0);
    Tensor held;
    CHECK(calls_when_warm([&] {
              for (int i = 0; i < 3; ++i) held = forward(x);
          }) == 0);
    set_num_threads(threads);
}
