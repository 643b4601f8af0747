// Gradients that are collected on a leaf over several backwards, hooks that misbehave, threads that share a leaf.
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "tapir/autograd/checkpoint.h"
#include "tapir/autograd/function.h"
#include "tapir/autograd/gradcheck.h"
#include "tapir/autograd/meta_impl.h"
#include "tapir/autograd/watch/watch_impl.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

using V = std::vector<double>;
V values(const Tensor& t) { return t.to_vector<double>(); }

Tensor leaf(const Tensor& t) { return t.clone().requires_grad_(); }

template <class E, class Fn>
std::string message_of(const Fn& fn) {
    try {
        fn();
    } catch (const E& error) {
        return error.what();
    }
    return "nothing thrown";
}
std::string at(int line) { return "collected_test.cpp:" + std::to_string(line) + ": "; }
bool begins(const std::string& text, const std::string& start) { return text.rfind(start, 0) == 0; }

}  // namespace

TEST_CASE("an embedding's gradient does not follow the user's tensors") {
    Tensor table = leaf(zeros({4, 2}));
    Tensor ids = tensor({0, 1}), given = tensor({{1.0, 2.0}, {3.0, 4.0}});
    {
        Tape tape;
        tape.backward(embedding(ids, table), {.gradient = given});
    }
    ids.fill_(3);
    given.zero_();
    CHECK(values(table.grad()) == V{1, 2, 3, 4, 0, 0, 0, 0});
    {
        Tape tape;
        tape.backward(sum(embedding(ids, table)) + sum(embedding(tensor({2}), table)));
    }
    ids.fill_(0);
    CHECK(values(table.grad()) == V{1, 2, 3, 4, 1, 1, 2, 2});
}

TEST_CASE("rows of a table that nobody asks for stay bounded") {
    nn::Embedding sparse(10, 4);
    Tensor dense = leaf(zeros({10, 4}));
    const Tensor ids = tensor({1, 3, 3, 7});
    std::int64_t after_100 = 0;
    for (int i = 0; i < 1000; ++i) {
        Tape tape;
        tape.backward(sum(sparse(ids)) + sum(embedding(ids, dense)));
        if (i == 100) after_100 = memory_stats().live_bytes;
    }
    CHECK(memory_stats().live_bytes < after_100 + 100'000);
    CHECK(sparse.weight.grad().at<float>({3, 0}) == 2000);
    CHECK(dense.grad().at<float>({7, 3}) == 1000);
    CHECK(dense.grad().at<float>({0, 0}) == 0);
}

TEST_CASE("collected products over several backwards are the sum of the gradients") {
    const Tensor w0 = randn({40, 30}, float64), b = randn({40}, float64);
    Tensor collected = leaf(w0), at_once = leaf(w0);
    Tensor want = zeros({40, 30}, float64);
    for (int i = 0; i < 600; ++i) {
        const Tensor x = randn({1, 30}, float64);
        Tape tape;
        tape.backward(sum(tanh(linear(x, collected, b))));
        Tape inner;
        want = want + inner.gradient(sum(tanh(linear(x, at_once, b))), {at_once})[0].detach();
    }
    const V have = values(collected.grad()), sum_of_all = values(want);
    for (std::size_t i = 0; i < have.size(); ++i) CHECK(have[i] == Approx(sum_of_all[i]).margin(1e-10));
    collected.zero_grad();
    CHECK_FALSE(collected.grad().defined());
}

TEST_CASE("a product of another dtype is added in the leaf's") {
    Tensor w = leaf(ones({3, 2}));
    for (const DType dtype : {float64, float32, float64}) {
        Tape tape;
        tape.backward(sum(matmul(ones({1, 3}, dtype), w)));
    }
    CHECK(w.grad().dtype() == float32);
    CHECK(values(w.grad()) == V(6, 3));
}

TEST_CASE("a hook's result must fit") {
    Tensor w = leaf(ones({3}));
    const int line = __LINE__ + 1;
    w.register_hook([](const Tensor& g) { return sum(g); });
    const std::string message = message_of<ShapeError>([&] {
        Tape tape;
        tape.backward(sum(w * 2));
    });
    INFO(message);
    CHECK(begins(message, at(line)));
    CHECK_FALSE(w.grad().defined());
    Tensor v = leaf(ones({2}));
    v.register_hook([](const Tensor& g) { return g.to(float64) * 3; });
    Tape tape;
    Tensor y = v * 2;
    y.register_hook([](const Tensor& g) { return ones({4}) * g[0]; });
    const int hook_line = __LINE__ - 1;
    CHECK(begins(message_of<ShapeError>([&] { tape.backward(sum(y)); }), at(hook_line)));
    CHECK_FALSE(v.grad().defined());
    Tape second;
    second.backward(sum(v * 2));
    CHECK(v.grad().dtype() == float32);
    CHECK(values(v.grad()) == V{6, 6});
}

TEST_CASE("a hook may register hooks") {
    Tensor w = leaf(ones({2}));
    int calls = 0, late_calls = 0;
    w.register_hook([&](const Tensor&) {
        ++calls;
        for (int i = 0; i < 20; ++i) {
            w.register_hook([&](const Tensor&) {
                ++late_calls;
                return Tensor();
            });
        }
        return Tensor();
    });
    Tape tape;
    Tensor y = w * 3;
    y.register_hook([&](const Tensor& g) {
        y.register_hook([](const Tensor& h) { return h * 100; });  // too late for this walk
        return g * 2;
    });
    tape.backward(sum(y), {.create_graph = true});
    CHECK(calls == 1);
    CHECK(late_calls == 0);
    CHECK(values(w.grad()) == V{6, 6});
}

TEST_CASE("a hook is taken away by its handle") {
    Tensor w = leaf(ones({2}));
    int seen = 0;
    RemovableHandle none, on_leaf = w.register_hook([&](const Tensor&) { ++seen; });  // nothing is given: the gradient stays
    RemovableHandle doubles = w.register_hook([](const Tensor& g) { return g * 2; });
    none.remove();
    const auto gradient_of_w = [&] {
        Tape tape;
        Tensor y = w * 3;
        RemovableHandle on_value = y.register_hook([&](Tensor g) { seen += static_cast<int>(g.numel()); });
        RemovableHandle gone = y.register_hook([](const Tensor& g) { return g * 100; });
        RemovableHandle copy = gone;
        copy.remove();
        copy.remove();
        return values(tape.gradient(sum(y), {w})[0]);
    };
    CHECK(gradient_of_w() == V{6, 6});
    CHECK(seen == 3);
    on_leaf.remove();
    CHECK(gradient_of_w() == V{6, 6});
    CHECK(seen == 5);
    doubles.remove();
    CHECK(gradient_of_w() == V{3, 3});
    {
        RemovableHandle left = w.register_hook([](const Tensor& g) { return -g; });
    }  // the hook stays
    CHECK(gradient_of_w() == V{-3, -3});
    CHECK(detail::meta_of(w).hooks.size() == 1);
    RemovableHandle late;
    {
        Tensor short_lived = leaf(ones({2}));
        late = short_lived.register_hook([](const Tensor&) {});
    }
    late.remove();
}

TEST_CASE("a hook may take itself and others away while it runs") {
    Tensor w = leaf(ones({2}));
    const auto held = std::make_shared<int>(0);
    RemovableHandle first, second;
    first = w.register_hook([&, held](const Tensor& g) {
        first.remove();
        second.remove();
        w.register_hook([](const Tensor& h) { return h * 5; });  // too late for this walk
        ++*held;
        return g * 2;
    });
    second = w.register_hook([](const Tensor& g) { return g * 100; });
    CHECK(held.use_count() == 2);
    const auto gradient_of_w = [&] {
        Tape tape;
        return values(tape.gradient(sum(w * 1), {w})[0]);
    };
    CHECK(gradient_of_w() == V{2, 2});
    CHECK(*held == 1);
    CHECK(held.use_count() == 1);
    CHECK(gradient_of_w() == V{5, 5});
    CHECK(detail::meta_of(w).hooks.size() == 1);
}

TEST_CASE("a leaf's hooks run in gradient() as in backward()") {
    Tensor w = leaf(ones({2}));
    w.register_hook([](const Tensor& g) { return g * 10; });
    Tape tape;
    CHECK(values(tape.gradient(sum(w * 2), {w})[0]) == V{20, 20});
}

TEST_CASE("gradient() sees through a checkpoint to what its function uses") {
    Tensor w = leaf(tensor({2.0, 3.0}, float64)), x = leaf(tensor({5.0, 7.0}, float64));
    const auto fn = [&](const std::vector<Tensor>& in) { return checkpoint([&](const std::vector<Tensor>& c) { return c[0] * w; }, in); };
    {
        Tape tape;
        const auto g = tape.gradient(sum(fn({x})), {w, x});
        CHECK(values(g[0]) == V{5, 7});
        CHECK(values(g[1]) == V{2, 3});
    }
    Tape tape;
    CHECK(values(tape.gradient(sum(fn({x.detach()})), {w})[0]) == V{5, 7});
}

TEST_CASE("a checkpoint that fails in its second run leaves no records") {
    Tensor w = leaf(ones({2}));
    int runs = 0;
    Tape tape({.persistent = true});
    const Tensor y = checkpoint(
        [&](const std::vector<Tensor>& in) {
            const Tensor z = in[0] * 2;
            if (++runs == 2) throw std::runtime_error("second run");
            return z;
        },
        {w});
    const Tensor loss = sum(y);
    CHECK_THROWS_AS(tape.backward(loss), std::runtime_error);
    tape.backward(loss);
    CHECK(values(w.grad()) == V{2, 2});
}

TEST_CASE("a loss of an outer tape is not the inner tape's") {
    Tensor w = leaf(ones({2}));
    Tape outer;
    const Tensor loss = sum(w * 2);
    {
        Tape inner;
        const int line = __LINE__ + 1;
        const std::string message = message_of<TapeError>([&] { loss.backward(); });
        CHECK(begins(message, at(line)));
    }
    CHECK_FALSE(w.grad().defined());
    outer.backward(loss);
    CHECK(values(w.grad()) == V{2, 2});
}

TEST_CASE("gradients never share memory with each other or with what was given") {
    for (const bool create_graph : {false, true}) {
        Tensor a = leaf(ones({2})), b = leaf(ones({2})), given = ones({2});
        Tape tape;
        tape.backward(a + b, {.gradient = given, .create_graph = create_graph});
        CHECK_FALSE(a.grad().shares_storage(b.grad()));
        CHECK_FALSE(a.grad().shares_storage(given));
        Tensor c = leaf(ones({3}));
        tape.backward(sum(c), {.create_graph = create_graph});
        CHECK(c.grad().is_contiguous());
    }
}

TEST_CASE("threads add to one leaf") {
    const std::int64_t n = 40;
    Tensor w = leaf(ones({n, n}, float64)), table = leaf(zeros({30, 4}, float64)), v = leaf(ones({n}, float64));
    const Tensor x = ones({1, n}, float64);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            for (int step = 0; step < 100; ++step) {
                Tape tape;
                tape.backward(sum(linear(x, w)) + sum(embedding(tensor({1, 2}), table)) + sum(v * 3));
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(values(w.grad()) == V(static_cast<std::size_t>(n * n), 400));
    CHECK(values(v.grad()) == V(static_cast<std::size_t>(n), 1200));
    CHECK(table.grad().at<double>({2, 3}) == 400);
}

TEST_CASE("a custom function's context is bounds-checked") {
    struct Bad : Function<Bad> {
        static Tensor forward(FunctionContext& context, const std::vector<Tensor>& x) {
            context.needs(0);
            return x[0];
        }
        static std::vector<Tensor> backward(FunctionContext&, const std::vector<Tensor>& g) { return g; }
    };
    Tape tape;
    CHECK_THROWS_AS(Bad::apply({leaf(ones({2}))}), IndexError);
}

TEST_CASE("matmul of one row in a batch of unusual strides") {
    const Tensor x = arange(20, float64).reshape({1, 5, 1, 4}).transpose(0, 1), w = randn({4, 2}, float64);
    const V have = values(matmul(x, w)), want = values(matmul(x.contiguous(), w));
    CHECK(matmul(x, w).shape() == Shape(5, 1, 1, 2));
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(have[i] == Approx(want[i]));
}

TEST_CASE("hooks of a leaf that threads share: removed ones are forgotten once, others are called by each") {
    Tensor w = ones({2}).requires_grad_();
    for (int round = 0; round < 300; ++round) {
        std::vector<RemovableHandle> handles;
        for (int i = 0; i < 50; ++i) handles.push_back(w.register_hook([](const Tensor& g) { return g; }));
        for (RemovableHandle& handle : handles) handle.remove();
        std::atomic<int> calls = 0, ready = 0;
        RemovableHandle counting = w.register_hook([&](const Tensor&) { ++calls; });
        const auto work = [&] {
            for (++ready; ready < 2;) std::this_thread::yield();
            Tape tape;
            tape.backward(sum(w));
        };
        std::thread a(work), b(work);
        a.join();
        b.join();
        CHECK(calls == 2);
        counting.remove();
    }
}

TEST_CASE("watchers are told once of a product that is added to a gradient") {
    struct Listener : OpWatcher {
        void summed(Walk&, std::uint32_t) override { ++sums; }
        int sums = 0;
    } listener;
    const Tensor v = leaf(ones({2, 2}, float64)), x = ones({4, 2}, float64);
    Tape tape;
    const Tensor w = v * 1, y = sum(linear(x, w));
    const Tensor loss = y + sum(w);  // what sum gives is there first, and cannot be written to
    const WatchScope scope(listener);
    tape.backward(loss);
    CHECK(listener.sums == 1);
    CHECK(values(v.grad()) == V(4, 5));
}
