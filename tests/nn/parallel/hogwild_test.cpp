// Threads that write to the same parameters without locks.
#include <catch2/catch.hpp>

#include <thread>

#include <tapir/tapir.h>

#include "../../fails.h"
#include "../../sanitizers.h"
#include "tapir/nn/parallel/unchecked_writes.h"

namespace {

using namespace tapir;

TEST_CASE("a tape goes back through what others have written to, where it is told so") {
    const Tensor w = tensor({2.0, 3.0}).requires_grad_(), mine = w.detach().requires_grad_();
    const auto gradient = [&](bool by_view) {
        Tape tape;
        const Tensor used = by_view ? mine.narrow(0, 0, 2) : mine;
        const Tensor half = square(used).sum();
        {
            const NoGradScope pause;
            Tensor(w.detach()).add_(1);
        }
        return tape.gradient(half + sum(used), mine);
    };
    for (const bool by_view : {false, true}) {
        CHECK_THROWS_AS(gradient(by_view), TapeError);
        const Tensor before = w.detach().clone();
        {
            const parallel::UncheckedWrites unchecked({w});
            const parallel::UncheckedWrites again({mine});
            CHECK(equal(gradient(by_view), 2 * (before + 1) + 1));  // square's rule sees what the other has written
        }
        CHECK_THROWS_AS(gradient(by_view), TapeError);
    }
    FAILS(ValueError, "UncheckedWrites: tensor 1 is undefined", parallel::UncheckedWrites({w, Tensor()}));
}

struct Model : nn::Module {
    nn::Linear first{8, 16}, second{16, 1};
    void members(nn::Members& m) override { m("first", first)("second", second); }
    Tensor loss(const Tensor& x, const Tensor& y) const { return mse_loss(second(tanh(first(x))), y); }
};

TEST_CASE("an alias has the elements of a module, and gradients of its own") {
    Model model;
    Model mine = nn::alias(model);
    {
        Tape tape;
        tape.backward(mine.loss(ones({2, 8}), ones({2, 1})));
    }
    CHECK(mine.first.weight.grad().defined());
    CHECK_FALSE(model.first.weight.grad().defined());
    optim::SGD(mine.parameters(), {.lr = 1}).step();
    CHECK(equal(mine.first.weight.detach(), model.first.weight.detach()));
    CHECK(mine.first.weight.shares_storage(model.first.weight));
}

// The race is what is tested here, so the thread sanitizer must not see it.
TEST_CASE("threads train one model without locks") {
    if (test::kThreadSanitizer) return;
    Generator data(5);
    const Tensor x = randn({512, 8}, data), y = sin(x.sum(1, true));
    const auto final_loss = [&](int workers) {
        manual_seed(1);
        const Model model;
        const parallel::UncheckedWrites unchecked(model.parameters());
        const auto work = [&](int worker) {
            Model mine = nn::alias(model);
            optim::SGD sgd(mine.parameters(), {.lr = 0.05});
            for (int step = worker; step < 4000; step += workers) {
                const std::int64_t at = step % 32 * 16;
                Tape tape;
                tape.backward(mine.loss(x.narrow(0, at, 16), y.narrow(0, at, 16)));
                sgd.step();
                sgd.zero_grad();
            }
        };
        std::vector<std::thread> threads;
        for (int worker = 0; worker < workers; ++worker) threads.emplace_back(work, worker);
        for (std::thread& thread : threads) thread.join();
        return model.loss(x, y).item<double>();
    };
    const double one = final_loss(1), two = final_loss(2);
    INFO(one << " and " << two);
    CHECK(two < 1.05 * one + 0.01);
}

}  // namespace
