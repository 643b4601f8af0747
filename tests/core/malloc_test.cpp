// No call of malloc for an op, once its block sizes are warm: not without a tape, not recorded, not in backward. The test
// program's own malloc counts. And what a call that one malloc fails for leaves as it was.
#include <catch2/catch.hpp>
#include <cerrno>
#include <cmath>
#include <functional>
#include <new>

#include "tapir/autograd/trace/trace.h"
#include "tapir/core/parallel.h"
#include "tapir/tapir.h"


namespace {
thread_local std::int64_t malloc_calls = 0;
thread_local std::int64_t calls_left = 0;  // at 1 the next call fails

bool fails_now() { return calls_left > 0 && --calls_left == 0; }
}

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t n) {
    ++malloc_calls;
    if (fails_now()) return nullptr;
    return __libc_malloc(n);
}
void* calloc(std::size_t n, std::size_t size) {
    ++malloc_calls;
    if (fails_now()) return nullptr;
    return __libc_calloc(n, size);
}
void* realloc(void* p, std::size_t n) {
    ++malloc_calls;
    if (fails_now()) return nullptr;
    return __libc_realloc(p, n);
}
void* aligned_alloc(std::size_t alignment, std::size_t n) {
    ++malloc_calls;
    if (fails_now()) return nullptr;
    return __libc_memalign(alignment, n);
}
int posix_memalign(void** p, std::size_t alignment, std::size_t n) {
    ++malloc_calls;
    if (fails_now()) return ENOMEM;
    *p = __libc_memalign(alignment, n);
    return *p ? 0 : ENOMEM;
}
}

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
        before = malloc_calls;
        round();
    }
    return malloc_calls - before;
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
    const CompiledGraph forward = trace([&](const Tensor& t) {
        const Tensor h = relu(linear(t, w, b));
        return log_softmax(cat({h * 2 + 1, h.narrow(1, 1, 2)}, 1), 1);
    }, {{"x", x}}).compile();
    const CompiledGraph step = trace([&](const Tensor& t, const Tensor& y) {
        Tape tape;
        const Tensor loss = cross_entropy(linear(t, w, b), y);
        const std::vector<Tensor> g = tape.gradient(loss, {w, b});
        const NoGradScope no_grad;
        w.sub_(g[0] * 0.01);
        b.sub_(g[1] * 0.01);
        return loss;
    }, {{"x", x}, {"y", labels}}).compile();
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

namespace {

// Calls call() again and again, with the first malloc failing, the second, and so on to the last; unchanged() checks what a call that
// throws leaves, prepare() sets it up each time.
void with_each_failure(const std::function<void()>& prepare, const std::function<void()>& call, const std::function<void()>& unchanged) {
    int failures = 0;
    for (int n = 1; n < 1000; ++n) {
        prepare();
        empty_cache();
        bool is_done = true;
        calls_left = n;
        try {
            call();
        } catch (const OutOfMemory&) {
            is_done = false;
        } catch (const std::bad_alloc&) {
            is_done = false;
        }
        const bool has_failed = calls_left == 0;
        calls_left = 0;
        if (!has_failed) {
            CHECK(is_done);
            CHECK(failures > 0);
            return;
        }
        INFO("malloc " << n);
        if (is_done) continue;  // it could do without
        ++failures;
        unchanged();
    }
    CHECK(std::string("more than 1000 calls of malloc") == "");
}

}  // namespace

TEST_CASE("a draw that finds no memory does not move the generator") {
    const std::int64_t n = 100'000;
    Generator random(3);
    Tensor x = zeros({n});
    const Tensor p = full({n}, 0.5), weights = ones({n});
    const std::pair<const char*, std::function<void()>> calls[] = {
        {"normal_", [&] { x.normal_(0, 1, random); }},
        {"uniform_", [&] { x.uniform_(0, 1, random); }},
        {"randn", [&] { randn({n}, random); }},
        {"randint", [&] { randint(0, 9, {n}, random, {.dtype = int32}); }},
        {"randperm", [&] { randperm(n, random); }},
        {"bernoulli", [&] { bernoulli({n}, 0.5, random); }},
        {"bernoulli of", [&] { bernoulli(p, random); }},
        {"multinomial", [&] { multinomial(weights, 9, false, random); }},
    };
    for (const auto& [name, call] : calls) {
        INFO(name);
        with_each_failure(
            [&] {
                x.zero_();
                random.set_state({3, 5});
            },
            call,
            [&] {
                CHECK(random.state().offset == 5);
                CHECK(x.abs().max().item() == 0);
            });
        CHECK(random.state().offset > 5);
    }
}

TEST_CASE("clipping that finds no memory has changed no gradient") {
    const std::int64_t n = 100'000;
    Tensor a = zeros({n}).requires_grad_(), b = zeros({n}, bfloat16).requires_grad_(), c = zeros({2, 3}, float16).requires_grad_();
    const auto prepare = [&] {
        a.set_grad(full({n}, 4.0));
        b.set_grad(full({n}, 4.0, {.dtype = bfloat16}));
        c.set_grad(full({2, 3}, 4.0, {.dtype = float16}));
    };
    const auto all_are = [](const Tensor& t, double value) { return t.to(float64).min().item() == value && t.to(float64).max().item() == value; };
    const auto unchanged = [&] {
        for (const Tensor& t : {a, b, c}) CHECK(all_are(t.grad(), 4));
    };
    with_each_failure(prepare, [&] { optim::clip_grad_value_({a, b, c}, 2); }, unchanged);
    for (const Tensor& t : {a, b, c}) CHECK(all_are(t.grad(), 2));
    with_each_failure(prepare, [&] { optim::clip_grad_norm_({a, b, c}, 1); }, unchanged);
    for (const Tensor& t : {a, b, c}) CHECK(t.grad().to(float64).max().item() == Approx(1 / std::sqrt(2.0 * n + 6)).epsilon(0.005));
}
