// What threads compute beside a tape, and tapes that end on other threads than their own.
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "../fails.h"
#include "../ops/samples.h"
#include "tapir/autograd/checkpoint.h"
#include "tapir/autograd/function.h"
#include "tapir/tapir.h"

using namespace tapir;
using namespace tapir::test;

namespace {

template <class Fn>
auto elsewhere(const Fn& fn) {
    return std::async(std::launch::async, fn).get();
}

struct Doubled : Function<Doubled> {
    static std::vector<Tensor> forward(FunctionContext&, const std::vector<Tensor>& x) { return {x[0] * 2}; }
    static std::vector<Tensor> backward(FunctionContext&, const std::vector<Tensor>& g) { return {g[0] * 2}; }
};

}  // namespace

TEST_CASE("what another thread computes beside a tape is refused, not a constant") {
    const Tensor w = ones({2}).requires_grad_();
    Tape tape;
    const int line = __LINE__ + 1;
    const Tensor left = elsewhere([&] { return (w * 2).sum(); });
    const std::string says = "was computed at threads_test.cpp:" + std::to_string(line) + " on a thread without a tape";
    CHECK(left.item<float>() == 4);
    FAILS_IN(TapeError, "a tensor of shape () ", says, tape.backward(left + (w * 3).sum()));
    FAILS_IN(TapeError, "a tensor of shape () ", says, tape.backward(left));
    FAILS_IN(TapeError, "a tensor of shape () ", says, left.backward());
    FAILS_IN(TapeError, "a tensor of shape () ", says, left.exp());
    FAILS_IN(TapeError, "a tensor of shape () ", says, left.view(1));
    FAILS_IN(TapeError, "a tensor of shape () ", says, tape.gradient(sum(w), {left}));
    CHECK(!w.grad().defined());
    // The ways out.
    tape.backward(left.detach() + (w * 3).sum());
    CHECK(w.grad().to_vector<float>() == std::vector<float>{3, 3});
    const Tensor constant = elsewhere([&] {
        const NoGradScope pause;
        return (w * 2).sum();
    });
    CHECK(tape.gradient((constant * w).sum(), w).to_vector<float>() == std::vector<float>{4, 4});
}

TEST_CASE("of what a tape has recorded, too") {
    const Tensor w = ones({2}).requires_grad_();
    Tape tape;
    const Tensor h = w * 3;
    const Tensor y = elsewhere([&] { return h + 1; });
    CHECK(y.to_vector<float>() == std::vector<float>{4, 4});
    CHECK_THROWS_AS(sum(y), TapeError);
    const Tensor z = elsewhere([&] { return y * y; });
    CHECK_THROWS_AS(sum(z), TapeError);
}

TEST_CASE("writes in place on another thread, too") {
    const Tensor w = ones({2}).requires_grad_();
    Tensor parts = zeros({3, 2}), more = zeros({2}), rows = zeros({3, 2});
    const Tensor row = rows[1];
    Tape tape;
    elsewhere([&] {
        parts[0].copy_(w * 2);
        more += w;
        rows.index_put_({1}, w);
    });
    CHECK_THROWS_AS(sum(parts), TapeError);
    CHECK_THROWS_AS(sum(more), TapeError);
    CHECK_THROWS_AS(sum(rows), TapeError);
    CHECK_THROWS_AS(sum(row), TapeError);
    CHECK(tape.gradient(sum(rows.detach() * w), w).to_vector<float>() == std::vector<float>{1, 1});
}

TEST_CASE("custom functions and checkpoints of another thread, too") {
    const Tensor w = ones({2}).requires_grad_();
    Tape tape;
    const Tensor y = elsewhere([&] { return Doubled::apply({w}); });
    CHECK(y.to_vector<float>() == std::vector<float>{2, 2});
    CHECK_THROWS_AS(sum(y), TapeError);
    const Tensor z = elsewhere([&] { return checkpoint([](const std::vector<Tensor>& x) { return x[0] * 2; }, {w}); });
    CHECK_THROWS_AS(sum(z), TapeError);
}

TEST_CASE("what other threads may do beside a tape") {
    const Tensor w = ones({2}).requires_grad_(), frozen = ones({2});
    Tape tape;
    // Data of constants.
    const Tensor batch = elsewhere([&] { return frozen * 3 + arange(2); });
    CHECK(tape.gradient(sum(batch * w), w).to_vector<float>() == std::vector<float>{3, 4});
    // Evaluation, the numbers of which are looked at.
    CHECK(elsewhere([&] { return (w * 2).sum().item<float>(); }) == 4);
    CHECK(elsewhere([&] { return argmax(w * 2); }).to_vector<int>() == std::vector<int>{0});
    CHECK(sum(elsewhere([&] { return w * 2 > 1; })).item<int>() == 2);  // no gradient flows through it
    CHECK(sum(elsewhere([&] { return zeros_like(w); })).item<float>() == 0);
    // Training with tapes of their own.
    const Tensor theirs = elsewhere([&] {
        Tape own;
        return own.gradient(sum(w * w), w);
    });
    CHECK(tape.gradient(sum(theirs * w), w).to_vector<float>() == std::vector<float>{2, 2});
    // A leaf of somebody's making.
    const Tensor leaf = elsewhere([&] { return (w * 2).requires_grad_(); });
    CHECK(tape.gradient(sum(leaf * 3), leaf).to_vector<float>() == std::vector<float>{3, 3});
    // Steps by hand.
    Tensor trained = ones({2}).requires_grad_();
    elsewhere([&] { trained -= 0.5; });
    CHECK(tape.gradient(sum(trained * 3), trained).to_vector<float>() == std::vector<float>{3, 3});
}

TEST_CASE("what was computed before a tape began is a constant, on whichever thread") {
    const Tensor w = ones({2}).requires_grad_();
    Tensor early;
    {
        Tape tape;
        early = elsewhere([&] { return w * 2; });
    }
    const Tensor alone = elsewhere([&] { return w * 2; });
    Tape tape;
    CHECK(tape.gradient(sum(early * w), w).to_vector<float>() == std::vector<float>{2, 2});
    CHECK(tape.gradient(sum(alone * w), w).to_vector<float>() == std::vector<float>{2, 2});
    const Tensor of_early = elsewhere([&] { return early + 1; });
    CHECK(tape.gradient(sum(of_early * w), w).to_vector<float>() == std::vector<float>{3, 3});
    const std::string says = "it was computed at threads_test.cpp:";
    FAILS_IN(TapeError, "backward: this tensor was not recorded on the tape: " + says, " on a thread without a tape, before this tape began",
             tape.backward(early));
}

TEST_CASE("every op's result of another thread is refused where the tape would have recorded it") {
    std::vector<Call> calls;
    for (Call& call : all_calls()) {
        if (call.differentiable && !call.extreme) calls.push_back(std::move(call));
    }
    REQUIRE(calls.size() > 300);
    int refused = 0;
    for (const Call& call : calls) {
        INFO(call.name << ": " << call.code);
        std::vector<Tensor> inputs = make_inputs(call);
        for (Tensor& x : inputs) {
            if (is_floating(x.dtype())) x.requires_grad_();
        }
        Tape tape;
        std::vector<Tensor> here, there;
        try {
            here = call.run(inputs);
        } catch (const TapeError&) {
            continue;  // writes to a leaf
        }
        there = elsewhere([&] { return call.run(inputs); });
        REQUIRE(here.size() == there.size());
        for (std::size_t k = 0; k < here.size(); ++k) {
            if (!here[k].defined() || !is_floating(here[k].dtype()) || here[k].impl()->flags & TensorImpl::kRequiresGrad) continue;
            std::string message;
            try {
                there[k].view(there[k].shape());
            } catch (const TapeError& error) {
                message = error.what();
            }
            INFO(message);
            CHECK((message.find("on a thread without a tape") != std::string::npos) == here[k].requires_grad());
            ++refused;
        }
    }
    CHECK(refused > 300);
}

#if !defined(__SANITIZE_THREAD__)  // where a child of fork() may start no threads
namespace {

template <int>
Loc a_line() {
    return Loc::current();
}

template <int... N>
void compute_at_lines(const Tensor& w, std::integer_sequence<int, N...>) {
    (static_cast<void>(neg(In(w, a_line<N>()))), ...);
}

}  // namespace

// In a process of its own: the lines that are kept are kept until it ends.
TEST_CASE("a result of another thread is refused without its line where too many lines are kept already") {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        const Tensor w = ones({2}).requires_grad_();
        const Tape tape;
        const Tensor y = elsewhere([&] {
            compute_at_lines(w, std::make_integer_sequence<int, 3000>());  // of which 1024 are kept
            return w * 2;
        });
        bool is_refused = false;
        try {
            static_cast<void>(y + 1);
        } catch (const TapeError& error) {
            is_refused = std::string(error.what()).find("a tensor of shape (2,) was computed on a thread without a tape") != std::string::npos;
        }
        ::_exit(is_refused ? 0 : 1);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
}
#endif

TEST_CASE("a tape may end on another thread") {
    const Tensor w = ones({2}).requires_grad_();
    auto tape = std::make_unique<Tape>();
    Tensor y = w * 2;
    std::thread([&] { tape.reset(); }).join();
    CHECK(!is_recording());
    CHECK(Tape::current() == nullptr);
    CHECK((y * w).to_vector<float>() == std::vector<float>{2, 2});
    Tape next;
    CHECK(next.gradient(sum(y * w), w).to_vector<float>() == std::vector<float>{2, 2});
    // An inner one, and the outer one of an inner one.
    auto inner = std::make_unique<Tape>();
    std::thread([&] { inner.reset(); }).join();
    CHECK(Tape::current() == &next);
    CHECK(next.gradient(sum(w * w), w).to_vector<float>() == std::vector<float>{2, 2});
}

TEST_CASE("tapes of which the outer one ends on another thread") {
    const Tensor w = ones({2}).requires_grad_();
    auto outer = std::make_unique<Tape>();
    auto inner = std::make_unique<Tape>();
    const Tensor y = sum(w * w);
    std::thread([&] { outer.reset(); }).join();
    CHECK(inner->gradient(y, w).to_vector<float>() == std::vector<float>{2, 2});
    {
        const NoGradScope pause;
        std::thread([&] { inner.reset(); }).join();
    }
    CHECK(!is_recording());
    Tape next;
    CHECK(next.gradient(sum(w * w), w).to_vector<float>() == std::vector<float>{2, 2});
}

TEST_CASE("a tape may outlive its thread") {
    const Tensor w = ones({2}).requires_grad_();
    Tensor y;
    std::unique_ptr<Tape> outer, inner;
    std::thread([&] {
        outer = std::make_unique<Tape>();
        inner = std::make_unique<Tape>();
        y = sum(w * w);
    }).join();
    CHECK(inner->gradient(y, w).to_vector<float>() == std::vector<float>{2, 2});
    outer.reset();
    inner.reset();
    CHECK(!is_recording());
    Tape next;
    CHECK(next.gradient(sum(w * w), w).to_vector<float>() == std::vector<float>{2, 2});
}
