// TapeScope: threads that record for another thread's tape.
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "../fails.h"
#include "tapir/core/fiber_impl.h"
#include "tapir/graph.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

template <class Fn>
auto on_thread(const Fn& fn) {
    return std::async(std::launch::async, fn).get();
}

// Uses leaves that others use, too, a value from outside, and a leaf that only it uses.
struct Model {
    Tensor w = (randn({3, 3}, float64) * 0.5).requires_grad_(), own = randn({3}, float64).requires_grad_();
    Tensor part(const Tensor& outer, double number) const { return tanh(matmul(outer, w) + own * number); }
};

}  // namespace

TEST_CASE("ops of joined threads have the gradients of one thread, to third order") {
    manual_seed(1);
    const Model model;
    const Tensor x = randn({3}, float64).requires_grad_();
    const auto run = [&](bool is_joined) {
        Tape tape;
        const Tensor outer = sin(x * 2);
        std::vector<Tensor> parts;
        if (is_joined) {
            std::vector<std::future<Tensor>> later;
            for (int i = 0; i < 4; ++i) {
                later.push_back(std::async(std::launch::async, [&, i] {
                    const TapeScope join(tape);
                    return model.part(outer, i);
                }));
            }
            for (auto& of : later) parts.push_back(of.get());
        } else {
            for (int i = 0; i < 4; ++i) parts.push_back(model.part(outer, i));
        }
        const Tensor loss = sum(square(stack(parts))) + sum(outer);
        std::vector<Tensor> leaves = {x, model.w, model.own}, all = {loss};
        Tensor scalar = loss;
        for (int order = 1; order <= 3; ++order) {
            const std::vector<Tensor> gradients = tape.gradient(scalar, leaves, {.create_graph = true});
            scalar = sum(square(gradients[0])) + sum(square(gradients[1])) + sum(square(gradients[2]));
            all.insert(all.end(), gradients.begin(), gradients.end());
        }
        return all;
    };
    const std::vector<Tensor> have = run(true), want = run(false);
    REQUIRE(have.size() == want.size());
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(allclose(have[i], want[i], 1e-10, 1e-12));
}

TEST_CASE("a joined thread's tensors are the tape's when the scope has ended") {
    const Tensor x = tensor({1.0, 2.0, 3.0}).to(float64).requires_grad_();
    Tape tape;
    const Tensor y = x * 2;
    Tensor seen, before;
    const Tensor z = on_thread([&] {
        const TapeScope join(tape);
        CHECK(is_recording());
        CHECK(y.requires_grad());
        before = y * x;
        CHECK(before.requires_grad());
        CHECK_FALSE(before.is_leaf());
        before.register_hook([&](const Tensor& g) {
            seen = g.clone();
            return g;
        });
        {
            const NoGradScope pause;
            CHECK_FALSE((y * 2).requires_grad());
        }
        CHECK(is_recording());
        return before * x;  // 2 x^3
    });
    CHECK(z.requires_grad());
    FAILS(TapeError, "requires_grad_: the result of a recorded op is tracked already", Tensor(z).requires_grad_());
    before.retain_grad();
    // Another thread uses what the first has left, after the tape has taken it in.
    const Tensor loss = sum(z) + on_thread([&] {
                            const TapeScope join(tape);
                            return sum(before * 3);
                        });
    tape.backward(loss);
    CHECK(allclose(x.grad(), tensor({6.0 + 12, 24.0 + 24, 54.0 + 36}).to(float64)));
    CHECK(allclose(seen, x.detach() + 3));
    CHECK(allclose(before.grad(), x.detach() + 3));
    // Hooks and reports see its records.
    CHECK(tape.str().find("joined_test.cpp") != std::string::npos);
}

TEST_CASE("writes in place on a joined thread are recorded") {
    const Tensor x = tensor({1.0, 2.0}).to(float64).requires_grad_();
    Tape tape;
    Tensor y = x * 3;
    on_thread([&] {
        const TapeScope join(tape);
        y.mul_(y.detach());  // 9 x^2 with one factor constant
        y.add_(x);
        return 0;
    });
    const Tensor g = tape.gradient(sum(y), x);
    CHECK(allclose(g, x.detach() * 9 + 1));
}

TEST_CASE("checkpoints, custom functions and sparse gradients work on a joined thread") {
    manual_seed(3);
    const Tensor table = randn({10, 4}, float64).requires_grad_(), w = randn({4, 4}, float64).requires_grad_();
    nn::Embedding words(10, 4);
    const auto loss_of = [&](int i) {
        const Tensor h = checkpoint([&](const std::vector<Tensor>& in) { return tanh(matmul(in[0], w)); }, {embedding(tensor({i, i + 1, i}), table)});
        return sum(h * h) + sum(words(tensor({i, 3}))).to(float64);
    };
    const auto run = [&](bool is_joined) {
        for (Tensor t : std::vector<Tensor>{table, w, words.weight}) t.zero_grad();
        Tape tape;
        Tensor loss = loss_of(1);
        loss = loss +
            (is_joined ? on_thread([&] {
                   const TapeScope join(tape);
                   return loss_of(4);
               })
                       : loss_of(4));
        tape.backward(loss);
        return std::vector<Tensor>{table.grad().clone(), w.grad().clone(), words.weight.grad().clone()};
    };
    const std::vector<Tensor> want = run(false), have = run(true);
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(allclose(have[i], want[i], 1e-9, 1e-12));
}

TEST_CASE("batch() on joined threads") {
    if (!detail::has_fibers()) return;
    manual_seed(5);
    const Tensor w = randn({4, 4}).requires_grad_(), start = randn({4});
    const auto loss_of = [&](int n) {
        Tensor h = start;
        for (int i = 0; i <= n; ++i) h = tanh(linear(h, w));
        return sum(h * h);
    };
    const auto run = [&](bool is_joined) {
        Tape tape;
        const std::vector<int> low = {0, 1, 2, 3}, high = {4, 5, 6, 7};
        std::vector<Tensor> losses = batch(low, loss_of), more;
        if (is_joined) {
            more = on_thread([&] {
                const TapeScope join(tape);
                return batch(high, loss_of);
            });
        } else {
            more = batch(high, loss_of);
        }
        std::vector<Tensor> all = losses;
        all.insert(all.end(), more.begin(), more.end());
        std::vector<Tensor> result = tape.gradient(sum(stack(all)), {w}, {.retain_graph = true});
        result.push_back(tape.per_example_gradients(losses, {w})[0]);
        result.push_back(tape.per_example_gradients(more, {w})[0]);
        return result;
    };
    const std::vector<Tensor> want = run(false), have = run(true);
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(allclose(have[i], want[i], 1e-5, 1e-6));
}

TEST_CASE("what TapeScope refuses") {
    const Tensor x = ones({2}).requires_grad_();
    Tape tape;
    const Tensor y = x * 2;
    {
        const TapeScope nothing(tape);  // the tape's own thread
        CHECK((y * 2).requires_grad());
    }
    CHECK(is_recording());
    on_thread([&] {
        {
            const TapeScope join(tape);
            FAILS(TapeError, "TapeScope: this thread records for another tape since joined_test.cpp:", const TapeScope again(tape));
            FAILS(TapeError, "Tape: this thread records for the tape of another one since joined_test.cpp:", Tape own);
            FAILS(TapeError, "register_hook: this tensor was recorded outside of this thread's TapeScope",
                  y.register_hook([](const Tensor& g) { return g; }));
            FAILS(TapeError, "retain_grad: this tensor was recorded outside of this thread's TapeScope", y.retain_grad());
        }
        {
            Tape own;
            FAILS(TapeError, "TapeScope: this thread records for another tape since joined_test.cpp:", const TapeScope join(tape));
        }
        const auto traced = [&](const Tensor& in) {
            FAILS(TapeError, "TapeScope: not while a graph is traced", const TapeScope join(tape));
            return in * 2;
        };
        static_cast<void>(trace(traced, {{"x", ones({2})}}));
        return 0;
    });
    // A scope that is still open.
    std::promise<Tensor> made;
    std::promise<void> may_end;
    std::thread worker([&] {
        const TapeScope join(tape);
        made.set_value(y * 3);
        may_end.get_future().wait();
    });
    const Tensor z = made.get_future().get();
    FAILS(TapeError, "was recorded on a tape of another thread, or in a TapeScope that has not ended", z * 2);
    may_end.set_value();
    worker.join();
    CHECK(allclose(tape.gradient(sum(z), x), full({2}, 6)));
}

TEST_CASE("without a TapeScope a result of another thread is refused, with the way out") {
    const Tensor x = ones({2}).requires_grad_();
    Tape tape;
    const Tensor y = on_thread([&] { return x * 2; });
    FAILS(TapeError, "open a TapeScope on that thread, or detach() it", y + 1);
}

TEST_CASE("a tape may end before it has used what joined threads have left, or before they end") {
    const Tensor x = ones({2}).requires_grad_();
    Tensor left, late;
    {
        Tape tape;
        left = on_thread([&] {
            const TapeScope join(tape);
            return x * 2;
        });
    }
    auto tape = std::make_unique<Tape>();
    std::promise<void> has_begun, may_end;
    std::thread worker([&] {
        const TapeScope join(*tape);
        late = x * 3;
        has_begun.set_value();
        may_end.get_future().wait();
        late = late * 2;
    });
    has_begun.get_future().wait();
    tape.reset();
    may_end.set_value();
    worker.join();
    Tape next;  // both are constants now
    CHECK_FALSE((left + late).requires_grad());
    CHECK(allclose(next.gradient(sum((left + late) * x), x), full({2}, 8)));
}

TEST_CASE("many threads join a tape many times") {
    const Tensor w = ones({3}, float64).requires_grad_();
    for (int step = 0; step < 20; ++step) {
        Tape tape;
        const Tensor shared = w * 2;
        std::vector<std::future<Tensor>> later;
        for (int i = 0; i < 6; ++i) {
            later.push_back(std::async(std::launch::async, [&, i] {
                Tensor h = shared;
                for (int k = 0; k < 3; ++k) {
                    const TapeScope join(tape);
                    h = h + w * i;
                }
                return h;
            }));
        }
        Tensor loss = sum(shared);
        for (auto& of : later) loss = loss + sum(of.get());
        CHECK(allclose(tape.gradient(loss, w), full({3}, 2.0 + 6 * 2 + 3 * (0 + 1 + 2 + 3 + 4 + 5), float64)));
    }
}

// The memory of joined records is given to the next scope of any thread. Here one asks for it while the tape is ending.
TEST_CASE("the records of a joined thread are gone before its memory is used again") {
    const Tensor w = full({2}, 2.0, float64).requires_grad_();
    std::promise<void> may_go_on;
    std::future<Tensor> other;
    double numbers[2] = {1, 3};
    const auto use_again = [&](void*) {
        std::promise<void> has_recorded;
        other = std::async(std::launch::async, [&has_recorded, &w, ended = may_go_on.get_future()]() mutable {
            Tape tape;
            const Tensor h = on_thread([&] {
                const TapeScope join(tape);
                Tensor product = w * 3;
                for (int k = 0; k < 20; ++k) product = product * w;
                return product;
            });
            has_recorded.set_value();
            ended.wait();
            return tape.gradient(sum(h), w);
        });
        has_recorded.get_future().wait();
    };
    {
        Tape tape;
        Tensor h = on_thread([&] {
            const TapeScope join(tape);
            Tensor product = from_blob(numbers, {2}, use_again, float64) * w;
            for (int k = 0; k < 20; ++k) product = product * w;
            return product;
        });
        CHECK(allclose(tape.gradient(sum(h), w, {.retain_graph = true}), 21 * pow(w.detach(), 20) * tensor({1.0, 3.0})));
    }
    may_go_on.set_value();
    CHECK(allclose(other.get(), 3 * 21 * pow(w.detach(), 20)));
}
