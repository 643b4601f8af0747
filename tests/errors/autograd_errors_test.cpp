// Messages of recording and of backward that no other test asks for; and that an error met in backward, in a checkpointed function,
// in a module or in a thread of its own names the line where the user can mend it.
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

using Tensors = std::vector<Tensor>;

// A function of the user's that makes one mistake.
enum class Mistake { none, no_output, undefined_output, saved_index, too_many, odd_shape, unrelated_shape };
Mistake mistake = Mistake::none;

constexpr int kSavedLine = __LINE__ + 10;
struct Mistaken : Function<Mistaken> {
    static Tensors forward(FunctionContext& context, const Tensors& x) {
        context.save({x[0]});
        if (mistake == Mistake::no_output) return {};
        if (mistake == Mistake::undefined_output) return {Tensor()};
        return {x[0] * 2};
    }
    static Tensors backward(FunctionContext& context, const Tensors& g) {
        switch (mistake) {
            case Mistake::saved_index: return {context.saved(1)};
            case Mistake::too_many: return {g[0], g[0]};
            case Mistake::odd_shape: return {g[0].sum()};
            case Mistake::unrelated_shape: return {ones({5})};
            default: return {g[0] * 2};
        }
    }
};

// That the backward of a recorded mistake names the line of apply(), or of another call.
template <class E>
void fails_in_backward(Mistake which, const std::string& text) {
    mistake = which;
    const Tensor x = ones({3}).requires_grad_();
    Tape tape;
    const Tensor y = Mistaken::apply({x}).sum();
    const int line = __LINE__ - 1;
    fails<E>(__FILE__, line, "Mistaken: ", text, [&] { tape.backward(y); });
    CHECK_FALSE(x.grad().defined());
}

}  // namespace

TEST_CASE("errors of gradients' own functions") {
    Tensor x = ones({3}).requires_grad_();
    FAILS(DTypeError, "set_grad: a tensor of int64 has no gradient", tensor({1, 2}).set_grad(tensor({1, 2})));
    FAILS(DTypeError, "set_grad: a gradient of float64 for a tensor of float32", x.set_grad(ones({3}, float64)));
    FAILS(ValueError, "register_hook: the function is empty", x.register_hook(std::function<Tensor(const Tensor&)>()));
    const Tape tape;
    const Tensors many(300, x);
    mistake = Mistake::none;
    FAILS(TapeError, "Mistaken: at most 255 tensors can be recorded in one op, got 300", Mistaken::apply(many));
}

TEST_CASE("errors of a custom function") {
    const Tensor x = ones({3}).requires_grad_();
    mistake = Mistake::no_output;
    FAILS(ValueError, "Mistaken: forward returned no tensor", Mistaken::apply({x}));
    mistake = Mistake::undefined_output;
    FAILS(ValueError, "Mistaken: forward returned an undefined tensor", Mistaken::apply({x}));
    fails_in_backward<TapeError>(Mistake::too_many, "backward returned 2 gradients for 1 input");
    fails_in_backward<ShapeError>(Mistake::odd_shape, "backward returned a gradient of shape () for an input of shape (3,)");
    fails_in_backward<ShapeError>(Mistake::unrelated_shape, "backward returned a gradient of shape (5,) for an input of shape (3,)");
    {
        // Also where the walk is part of something that has named its caller.
        mistake = Mistake::too_many;
        Tape tape;
        const Tensor y = Mistaken::apply({x}).sum();
        const int line = __LINE__ - 1;
        const CallerScope caller(Loc::current());
        fails<TapeError>(__FILE__, line, "Mistaken: ", "backward returned 2 gradients for 1 input", [&] { tape.backward(y); });
    }
    mistake = Mistake::saved_index;
    Tape tape;
    const Tensor y = Mistaken::apply({x}).sum();
    // The user's own line in backward is nearer to the mistake than that of apply().
    fails<IndexError>(__FILE__, kSavedLine, "FunctionContext::saved: ", "there is no tensor 1 of 1", [&] { tape.backward(y); });
}

TEST_CASE("errors of a checkpointed function") {
    const Tensor x = ones({2, 3}).requires_grad_();
    int calls = 0;
    FAILS(ValueError, "checkpoint: the function returned an undefined tensor", checkpoint([](const Tensors&) { return Tensor(); }, {x}));
    Tape tape;
    const auto grows = [&](const Tensors& in) { return ++calls == 1 ? in[0] * 2 : cat({in[0], in[0]}) * 2; };
    const Tensor y = checkpoint(grows, {x}).sum();
    const int line = __LINE__ - 1;
    fails<TapeError>(__FILE__, line, "checkpoint: ", "gave shape (4, 3) and float32, the first run (2, 3) and float32", [&] { tape.backward(y); });
    CHECK_FALSE(x.grad().defined());

    // An op that fails in the second run names its own line in the function.
    calls = 0;
    const Tensor narrow = ones({2});
    int inside = 0;
    Tape second;
    const auto breaks = [&](const Tensors& in) {
        inside = __LINE__ + 1;
        return ++calls == 1 ? in[0] * 2 : in[0] + narrow;
    };
    const Tensor z = checkpoint(breaks, {x}).sum();
    try {
        second.backward(z);
        FAIL("nothing thrown");
    } catch (const ShapeError& error) {
        CHECK(std::string(error.what()) ==
              "autograd_errors_test.cpp:" + std::to_string(inside) +
                  ": add: shapes (2, 3) and (2,) do not "
                  "broadcast; the second would with a dimension more, by unsqueeze(-1)");
    }
}

TEST_CASE("an error in a hook names the hook's line") {
    const Tensor x = ones({2, 3}).requires_grad_();
    int inside = 0;
    x.register_hook([&](const Tensor& g) {
        inside = __LINE__ + 1;
        return matmul(g, g);
    });
    Tape tape;
    const Tensor y = (x * 2).sum();
    std::string text;
    try {
        tape.backward(y);
    } catch (const ShapeError& error) {
        text = error.what();
    }
    CHECK(text.find("autograd_errors_test.cpp:" + std::to_string(inside) + ": matmul: inner dimensions differ") == 0);
}

TEST_CASE("an error met in backward names the line of the forward call") {
    const Tensor x = ones({2, 3}).requires_grad_();
    Tape tape;
    Tensor h = x * 2;
    const Tensor y = exp(h), z = h * h;
    const int line = __LINE__ - 1;
    h.fill_(0);
    const int write = __LINE__ - 1;
    fails<TapeError>(__FILE__, line, "mul: ", "was modified in place at autograd_errors_test.cpp:" + std::to_string(write),
                     [&] { tape.backward((y + z).sum()); });
}

TEST_CASE("an error on a thread of its own names that thread's line") {
    std::string text;
    int line = 0;
    std::thread([&] {
        const CallerScope scope(Loc::current());  // of this thread only
        try {
            line = __LINE__ - 2;
            matmul(ones({2, 3}), ones({4, 5}));
        } catch (const ShapeError& error) {
            text = error.what();
        }
    }).join();
    CHECK(text.find("autograd_errors_test.cpp:" + std::to_string(line) + ": matmul: inner dimensions differ: (2, 3) x (4, 5)") == 0);
}
