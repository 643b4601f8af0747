// L-BFGS against PyTorch's parameters and losses (goldens.h), against a closed form, and what goes wrong.
#include <stdexcept>

#include "../nn/check.h"
#include "goldens.h"
#include "tapir/optim/optim.h"

using namespace tapir;

namespace {

// Rosenbrock's function of all elements, as in tests/goldens/optim.py.
struct Rosenbrock {
    Tensor a = check::values({3, 4}, 1), b = check::values({5}, 2);
    int calls = 0;

    Rosenbrock() {
        a.requires_grad_();
        b.requires_grad_();
    }
    Tensor loss() const {
        const Tensor x = cat({a.reshape({-1}), b}), next = x.narrow(0, 1, 16), now = x.narrow(0, 0, 16);
        return sum(square(next - square(now)) * 100 + square(1 - now));
    }
    auto closure() {
        return [this] {
            ++calls;
            a.zero_grad();
            b.zero_grad();
            Tape tape;
            const Tensor value = loss();
            tape.backward(value);
            return value;
        };
    }
    std::vector<double> numbers() const { return cat({a.reshape({-1}), b}).to_vector<double>(); }
};

void compare(const char* name, int steps, const optim::LBFGSOptions& options, const std::vector<double>& golden) {
    Rosenbrock f;
    optim::LBFGS lbfgs({f.a, f.b}, options);
    std::vector<Tensor> results = {f.a.reshape({-1}), f.b};
    for (int i = 0; i < steps; ++i) results.push_back(lbfgs.step(f.closure()).reshape({1}));
    results[0] = f.a.reshape({-1});
    check::same(name, cat(results), golden, 1e-6);
}

}  // namespace

TEST_CASE("L-BFGS makes PyTorch's steps") {
    using optim::LineSearch;
    compare("lbfgs", 4, {.lr = 0.002}, goldens::lbfgs);
    compare("lbfgs_short", 4, {.lr = 0.002, .max_iter = 7, .history_size = 3}, goldens::lbfgs_short);
    compare("lbfgs_wolfe", 3, {.line_search_fn = LineSearch::strong_wolfe}, goldens::lbfgs_wolfe);
    compare("lbfgs_wolfe_short", 2, {.lr = 0.5, .max_iter = 15, .history_size = 4, .line_search_fn = LineSearch::strong_wolfe},
            goldens::lbfgs_wolfe_short);
}

TEST_CASE("L-BFGS finds the least of Rosenbrock's function, within its evaluations") {
    Rosenbrock f;
    optim::LBFGS lbfgs({f.a, f.b}, {.max_iter = 300, .max_eval = 400, .line_search_fn = optim::LineSearch::strong_wolfe});
    lbfgs.step(f.closure());
    check::same("all ones", cat({f.a.reshape({-1}), f.b}), std::vector<double>(17, 1.0), 1e-4);
    const int before = f.calls;
    lbfgs.step(f.closure());  // there is nothing left to do
    CHECK(f.calls - before <= 2);
    Rosenbrock g;
    optim::LBFGS few({g.a, g.b}, {.max_iter = 300, .max_eval = 10, .line_search_fn = optim::LineSearch::strong_wolfe});
    few.step(g.closure());
    CHECK(g.calls >= 10);
    CHECK(g.calls < 36);  // the search that passes the limit may use its own 25
}

TEST_CASE("L-BFGS trains float32 and 16-bit parameters, and leaves frozen ones alone") {
    for (const DType dtype : {float32, bfloat16}) {
        Tensor w = zeros({3}, dtype).requires_grad_(), frozen = full({2}, 7, dtype);
        const Tensor target = tensor({1.0, -2.0, 0.5}, dtype);
        optim::LBFGS lbfgs({w, frozen}, {.line_search_fn = optim::LineSearch::strong_wolfe});
        lbfgs.step([&] {
            lbfgs.zero_grad();
            Tape tape;
            const Tensor loss = sum(square(w - target));
            tape.backward(loss);
            return loss;
        });
        check::same("w", w, {1, -2, 0.5}, 1e-3);
        CHECK(frozen.to_vector<double>() == std::vector<double>{7, 7});
    }
}

TEST_CASE("an AutocastScope around a step of L-BFGS leaves its own sums in full precision") {
    const auto train = [](bool within) {
        Tensor w = check::values({6}, 1, float32).requires_grad_();
        const Tensor scale = arange(1, 7, float32);
        optim::LBFGS lbfgs({w}, {.max_iter = 8, .line_search_fn = optim::LineSearch::strong_wolfe});
        const AutocastScope scope(bfloat16, within);
        lbfgs.step([&] {  // of no op that the scope changes
            lbfgs.zero_grad();
            Tape tape;
            const Tensor loss = sum(square(square(w) - 0.5) * scale);
            tape.backward(loss);
            return loss;
        });
        return w.to_vector<double>();
    };
    CHECK(train(true) == train(false));
}

TEST_CASE("the state of L-BFGS is saved and resumed to the same numbers") {
    Rosenbrock f, g;
    const optim::LBFGSOptions options{.max_iter = 6, .history_size = 4, .line_search_fn = optim::LineSearch::strong_wolfe};
    optim::LBFGS first({f.a, f.b}, options), second({g.a, g.b});
    second.load_state_dict(first.state_dict());  // before the first step
    first.step(f.closure());
    const NamedTensors state = first.state_dict();
    g.a.detach().copy_(f.a);
    g.b.detach().copy_(f.b);
    second.load_state_dict(state);
    CHECK(second.options().max_iter == 6);
    CHECK(second.options().line_search_fn == optim::LineSearch::strong_wolfe);
    first.step(f.closure());
    second.step(g.closure());
    CHECK(f.numbers() == g.numbers());
    Tensor other = ones({2}).requires_grad_();
    optim::LBFGS smaller({other});
    CHECK(check::contains(check::message<ValueError>([&] { smaller.load_state_dict(state); }), "direction"));
}

TEST_CASE("L-BFGS refuses a step without a closure, and stays where it was when the closure throws") {
    Rosenbrock f;
    optim::LBFGS lbfgs({f.a, f.b}, {.line_search_fn = optim::LineSearch::strong_wolfe});
    const std::vector<double> before = f.numbers();
    optim::Optimizer& base = lbfgs;
    CHECK(check::contains(check::message<ValueError>([&] { base.step(); }), "closure"));
    int calls = 0;
    const auto closure = f.closure();
    const auto throws_second = [&] {
        if (++calls == 2) throw std::runtime_error("no");
        return closure();
    };
    CHECK(check::message<std::runtime_error>([&] { lbfgs.step(throws_second); }) == "no");
    CHECK(f.numbers() == before);
    // A loss that is not a number on the way: the search comes back from there.
    Tensor w = tensor({1.0}, float64).requires_grad_();
    optim::LBFGS log_barrier({w}, {.lr = 10, .max_iter = 100, .line_search_fn = optim::LineSearch::strong_wolfe});
    log_barrier.step([&] {
        w.zero_grad();
        Tape tape;
        const Tensor loss = sum(w * 4 - log(w));  // least at 1/4, nan below 0
        tape.backward(loss);
        return loss;
    });
    CHECK(w[0].item() == Approx(0.25).epsilon(1e-4));
}
