// batch(): what comes out is what comes out one by one, whatever runs together.
#include "tapir/ops/batch/batch.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <forward_list>
#include <list>
#include <memory>
#include <optional>
#include <ranges>
#include <stdexcept>
#include <string>
#include <thread>

#include "../fails.h"
#include "../numbers.h"
#include "tapir/core/fiber_impl.h"
#include "tapir/debug.h"
#include "tapir/graph.h"
#include "tapir/tapir.h"

using namespace tapir;
using tapir::test::numbers;

namespace {

// batch() in which all ops wait for peers, without a tape too.
template <class Items, class Fn>
auto batch_waiting(Items&& items, const Fn& fn, BatchOptions options = {}, const Loc& loc = Loc::current()) {
    options.all_wait = true;
    return batch(std::forward<Items>(items), fn, options, loc);
}

struct Node {
    double value = 0;
    std::unique_ptr<Node> left, right;
};

// Trees of different shapes: a chain, a full tree, and in between.
std::unique_ptr<Node> tree(int leaves, int number) {
    auto node = std::make_unique<Node>();
    node->value = 0.1 * (number % 7) - 0.2;
    if (leaves > 1) {
        const int left = 1 + (number * 5) % (leaves - 1);
        node->left = tree(left, 2 * number + 1);
        node->right = tree(leaves - left, 2 * number + 2);
    }
    return node;
}

std::vector<std::unique_ptr<Node>> trees(int count) {
    std::vector<std::unique_ptr<Node>> list;
    for (int i = 0; i < count; ++i) list.push_back(tree(1 + (i * 3) % 11, i));
    return list;
}

struct Model {
    nn::NaryTreeLSTMCell cell{3, 4, 2};
    nn::Linear head{4, 2};

    LSTMState encode(const Node& node) const {
        if (!node.left) return cell(full({3}, node.value));
        return cell(encode(*node.left), encode(*node.right));
    }
    Tensor loss(const Node& node) const { return square(tanh(head(encode(node).h)) - 0.5).sum(); }
    std::vector<Tensor> parameters() const { return {cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh, head.weight, head.bias}; }
};

// x^3 scale, for one tensor and for a block of them.
struct ScaledCube : Function<ScaledCube> {
    using Batched = ScaledCube;
    static constexpr std::uint64_t shared_in_batch = 0b10;
    static inline std::vector<Shape> seen;
    static Tensor forward(FunctionContext& context, const Tensor& x, const Tensor& scale) {
        seen.push_back(x.shape());
        context.save({x, scale});
        return x * x * x * scale;
    }
    static std::pair<Tensor, Tensor> backward(FunctionContext& context, const Tensor& g) {
        const Tensor x = context.saved(0), scale = context.saved(1);
        return {g * 3 * x * x * scale, g * x * x * x};
    }
};

// Sums and differences of two; the group's form is another function.
struct BothOfBlocks : Function<BothOfBlocks> {
    static inline int calls = 0;
    static std::pair<Tensor, Tensor> forward(FunctionContext&, const Tensor& a, const Tensor& b) {
        ++calls;
        if (a.shape() != b.shape()) throw std::runtime_error("other shapes");
        return {a + b, a - b};
    }
    static std::pair<Tensor, Tensor> backward(FunctionContext&, const Tensor& sum, const Tensor& difference) {
        return {sum + difference, sum - difference};
    }
};
// x^3, for one tensor or, in a group, for a block; on any thread.
struct Cube : Function<Cube> {
    static Tensor forward(FunctionContext& context, const Tensor& x) {
        context.save({x});
        return x * x * x;
    }
    static Tensor backward(FunctionContext& context, const Tensor& g) { return g * 3 * square(context.saved(0)); }
};
struct CubeInGroups : Function<CubeInGroups> {
    using Batched = Cube;
    static Tensor forward(FunctionContext& context, const Tensor& x) { return Cube::forward(context, x); }
    static Tensor backward(FunctionContext& context, const Tensor& g) { return Cube::backward(context, g); }
};
struct Both : Function<Both> {
    using Batched = BothOfBlocks;
    static inline int calls = 0;
    static std::pair<Tensor, Tensor> forward(FunctionContext& context, const Tensor& a, const Tensor& b) {
        ++calls;
        --BothOfBlocks::calls;
        return BothOfBlocks::forward(context, a, b);
    }
    static std::pair<Tensor, Tensor> backward(FunctionContext& context, const Tensor& sum, const Tensor& difference) {
        return BothOfBlocks::backward(context, sum, difference);
    }
};

void check_close(const Tensor& have, const Tensor& want, double tolerance) {
    REQUIRE(have.shape() == want.shape());
    INFO(have.str() << " and " << want.str());
    CHECK(allclose(have, want, tolerance, tolerance));
}

struct Outcome {
    std::vector<Tensor> losses, gradients;
};

template <class Fn>
Outcome outcome_of(const Model& model, const std::vector<std::unique_ptr<Node>>& list, const Fn& loss, const BatchOptions& options) {
    Tape tape;
    Outcome outcome;
    outcome.losses = batch_waiting(list, loss, options);
    outcome.gradients = tape.gradient(sum(stack(outcome.losses)), model.parameters());
    return outcome;
}

void check_same(const Outcome& a, const Outcome& b) {
    REQUIRE(a.losses.size() == b.losses.size());
    for (std::size_t i = 0; i < a.losses.size(); ++i) check_close(a.losses[i], b.losses[i], 1e-5);
    for (std::size_t i = 0; i < a.gradients.size(); ++i) check_close(a.gradients[i], b.gradients[i], 1e-4);
}

}  // namespace

TEST_CASE("trees in a batch have the losses and gradients that they have one by one") {
    manual_seed(3);
    const Model model;
    for (const int count : {1, 2, 7, 130}) {
        const auto list = trees(count);
        const auto loss = [&](const std::unique_ptr<Node>& node) { return model.loss(*node); };
        BatchReport report;
        const Outcome together = outcome_of(model, list, loss, {.report = &report}), alone = outcome_of(model, list, loss, {.together = false});
        check_same(together, alone);
        CHECK(report.instances == count);
        INFO(report.str());
        if (detail::has_fibers() && count > 2) {
            CHECK(report.ops.at("linear").together > 0);
            CHECK(report.ops.at("lstm_gates").together > report.ops.at("lstm_gates").groups);
        }
    }
}

TEST_CASE("two children of a node are computed together by a batch in a batch") {
    manual_seed(3);
    const Model model;
    const auto list = trees(20);
    const std::function<LSTMState(const Node&)> encode = [&](const Node& node) {
        if (!node.left) return model.cell(full({3}, node.value));
        const Node* children[] = {node.left.get(), node.right.get()};
        const std::vector<LSTMState> states = batch_waiting(children, [&](const Node* child) { return encode(*child); });
        return model.cell(states[0], states[1]);
    };
    const auto forked = [&](const std::unique_ptr<Node>& node) { return square(tanh(model.head(encode(*node).h)) - 0.5).sum(); };
    const auto plain = [&](const std::unique_ptr<Node>& node) { return model.loss(*node); };
    BatchReport of_fork, of_plain;
    check_same(outcome_of(model, list, forked, {.report = &of_fork}), outcome_of(model, list, plain, {.report = &of_plain}));
    if (detail::has_fibers()) CHECK(of_fork.ops.at("lstm_gates").groups < of_plain.ops.at("lstm_gates").groups);
}

TEST_CASE("an instance reads its values and branches on them") {
    manual_seed(5);
    const Model model;
    const auto list = trees(30);
    int taken = 0;
    const double threshold = model.encode(*list[4]).h[0].item() + 1e-3;  // far from all of them
    const auto loss = [&](const std::unique_ptr<Node>& node) {
        LSTMState state = model.encode(*node);
        if (state.h[0].item() > threshold) {
            state = model.cell(state, state);
            ++taken;
        }
        return square(model.head(state.h)).sum();
    };
    const Outcome together = outcome_of(model, list, loss, {});
    const int first = std::exchange(taken, 0);
    check_same(together, outcome_of(model, list, loss, {.together = false}));
    CHECK(first == taken);
    CHECK(taken > 0);
    CHECK(taken < 30);
}

TEST_CASE("results come in the order of the items, whatever they are") {
    const std::vector<int> items = {4, 2, 3};
    CHECK(batch_waiting(items, [](int n) { return n * n; }) == std::vector<int>{16, 4, 9});
    CHECK(batch_waiting(std::list<int>{4, 2, 3}, [](int n) { return n * n; }) == std::vector<int>{16, 4, 9});
    CHECK(batch_waiting(std::forward_list<int>{4, 2, 3}, [](int n) { return n * n; }) == std::vector<int>{16, 4, 9});
    CHECK(batch_waiting(std::views::iota(2, 5), [](int n) { return n * n; }) == std::vector<int>{4, 9, 16});
    int numbers[] = {4, 2};
    batch_waiting(numbers, [](int& n) { ++n; });
    CHECK((numbers[0] == 5 && numbers[1] == 3));
    std::vector<int> seen;
    batch_waiting(items, [&](int n) {
        for (int i = 0; i < n; ++i) static_cast<void>(full({2}, i) + 1);
        seen.push_back(n);
    });
    CHECK(seen.size() == 3);
    struct Pair {
        Tensor sum;
        std::string text;
    };
    const std::vector<Pair> pairs = batch_waiting(items, [](int n) { return Pair{full({2}, n) + full({2}, 1), std::to_string(n)}; });
    CHECK(pairs[1].sum.to_vector<float>() == std::vector<float>{3, 3});
    CHECK(pairs[2].text == "3");
    CHECK(batch_waiting(std::vector<int>{}, [](int n) { return n; }).empty());
    FAILS(ValueError, "batch: at least one instance must run at a time, not 0", batch_waiting(items, [](int n) { return n; }, {.most = 0}));
    FAILS(ValueError, "batch: a stack of 5 bytes is too small", batch_waiting(items, [](int n) { return n; }, {.stack = 5}));
}

TEST_CASE("operands that an instance broadcasts are broadcast in a group") {
    const std::vector<int> items = numbers(9);
    const Tensor bias = randn({3}), column = randn({4, 1});
    const auto fn = [&](int n) {
        const Tensor row = full({3}, n) + bias, table = column * row, number = full({}, n);
        return where(table > 0, table * number, row - 2) / (3 + row * row);
    };
    BatchReport report;
    const std::vector<Tensor> together = batch_waiting(items, fn, {.report = &report}), alone = batch_waiting(items, fn, {.together = false});
    for (std::size_t i = 0; i < items.size(); ++i) check_close(together[i], alone[i], 1e-6);
    INFO(report.str());
    if (detail::has_fibers()) CHECK(report.ops.at("where").groups == 1);
}

TEST_CASE("a 0-d tensor of another dtype does not decide on a result's dtype in a group either") {
    const std::vector<int> items = {0, 1, 2, 3};
    for (const Tensor& y : batch_waiting(items, [](int n) { return ones({3}) * full({}, n + 0.5, float64) + full({}, n, int64); }))
        CHECK(y.dtype() == float32);
    for (const Tensor& y : batch_waiting(items, [](int n) { return where(ones({3}) > 0, full({3}, n + 0.5), full({}, n, int64)); }))
        CHECK(y.dtype() == float32);
}

TEST_CASE("an operand that was computed in a group before is found again in any order and place") {
    // dynet#1258: a shared operand that was itself batched, and is not the first.
    const std::vector<int> items = numbers(12);
    const Tensor w = randn({5, 3}).requires_grad_(), v = randn({3, 5}).requires_grad_();
    const auto run = [&](bool together) {
        Tape tape;
        std::vector<Tensor> first = batch_waiting(items, [&](int n) { return tanh(linear(full({3}, 0.1 * n - 0.5), w)); }, {.together = together});
        const std::vector<Tensor> second =
            batch_waiting(items,
                          [&](int n) {
                              const Tensor& other = first[static_cast<std::size_t>(11 - n)];
                              const Tensor& own = first[static_cast<std::size_t>(n)];
                              return linear(own * other - first[3], v).sum() + (n % 2 ? sigmoid(other).sum() : own.sum());
                          },
                          {.together = together});
        std::vector<Tensor> results = tape.gradient(sum(stack(second)), {w, v});
        results.push_back(stack(second));
        return results;
    };
    const auto a = run(true), b = run(false);
    for (std::size_t i = 0; i < a.size(); ++i) check_close(a[i], b[i], 1e-5);
}

TEST_CASE("an error in an instance names its line, ends the others, and leaves the tape as it was") {
    const Tensor w = randn({4, 3}).requires_grad_();
    struct Counted {
        explicit Counted(int& count) : count_(count) { ++count_; }
        ~Counted() { --count_; }
        int& count_;
    };
    int alive = 0, ended = 0;
    const std::vector<int> items = numbers(20);
    Tape tape;
    const Tensor before = square(w);
    const std::size_t records = tape.size();
    const unsigned line = __LINE__ + 5;
    try {
        batch_waiting(items, [&](int n) {
            const Counted counted(alive);
            Tensor x = linear(full({3}, n + 0.5), w);
            if (n == 7) x = matmul(x, ones({9, 2}));
            for (int i = 0; i < 3; ++i) x = tanh(x);
            ++ended;
            return x;
        });
        FAIL("no error");
    } catch (const ShapeError& error) {
        CHECK(std::string(error.what()).find("batch_test.cpp:" + std::to_string(line)) == 0);
    }
    CHECK(alive == 0);
    if (detail::has_fibers()) CHECK(ended < 20);
    CHECK(tape.size() == records);
    CHECK(tape.gradient(sum(before), {w})[0].shape() == w.shape());
}

TEST_CASE("an error in a fork ends the instances of all levels") {
    const std::vector<int> items = {0, 1, 2, 3}, children = {0, 1, 2};
    std::string text;
    int ended = 0;
    try {
        batch_waiting(items, [&](int n) {
            const Tensor x = full({2}, n) + 1.5;
            const std::vector<Tensor> parts = batch_waiting(children, [&](int child) {
                const Tensor y = x * 2;
                if (n == 2 && child == 1) throw std::runtime_error("of 2, 1");
                const Tensor z = tanh(tanh(tanh(y)));
                ++ended;
                return z;
            });
            return parts[0] + parts[2];
        });
    } catch (const std::runtime_error& error) {
        text = error.what();
    }
    CHECK(text == "of 2, 1");
    if (detail::has_fibers()) CHECK(ended == 0);
    // The same again, now that stacks are used a second time.
    const auto sums = batch_waiting(
        items, [&](int n) { return sum(stack(batch_waiting(children, [&](int child) { return full({2}, n) * (child + 0.5); }))).item(); });
    CHECK(sums == std::vector<double>{0, 9, 18, 27});
    CHECK(batch_waiting(items, [&](int) { return batch_waiting(std::vector<int>{}, [](int n) { return n; }).size(); })[3] == 0);
}

TEST_CASE("without a tape an inner batch() runs in the instance that called it, if many run") {
    manual_seed(5);
    const Tensor w = randn({128, 128}) * 0.1;
    const std::vector<int> children = {0, 1, 2};
    int refused = 0;
    const auto sum_of = [&](int n, int depth, const auto& self) -> Tensor {
        if (depth == 0) return dropout(full({128}, 0.01 * n), 0.5);
        const auto child_of = [&](int child) {
            if (n % 7 == 3 && depth == 1 && child == 1) throw std::runtime_error("refused");
            return self(n + child, depth - 1, self);
        };
        try {
            return tanh(linear(sum(stack(batch(children, child_of)), {0}), w));
        } catch (const std::runtime_error&) {
            ++refused;
            return full({128}, 0.5);
        }
    };
    for (const int count : {3, 18}) {
        for (const bool all_wait : {false, true}) {
            const auto of_all = [&](bool together) {
                manual_seed(11);  // what an instance draws does not depend on what runs beside it
                refused = 0;
                return stack(batch(numbers(count), [&](int n) { return sum_of(n, 2, sum_of); }, {.all_wait = all_wait, .together = together}));
            };
            const Tensor want = of_all(false);
            const int wanted = refused;
            check_close(of_all(true), want, 1e-5);
            CHECK(refused == wanted);
            CHECK(refused > 0);
        }
    }
    CHECK_THROWS_WITH(batch(numbers(18),
                            [&](int n) {
                                return batch(children, [&](int child) {
                                    if (n == 17 && child == 1) throw std::runtime_error("of 17, 1");
                                    return linear(full({128}, child * 0.5), w);
                                });
                            }),
                      "of 17, 1");
}

TEST_CASE("an instance that handles the error of a batch one by one leaves the records of others alone") {
    const Tensor w = randn({3}).requires_grad_();
    const std::vector<int> items = {1, 2, 3, 4}, children = {0, 1};
    Tape tape;
    const std::vector<Tensor> results = batch_waiting(items, [&](int n) {
        Tensor y = tanh(w * n);
        const auto child_of = [&](int child) {
            const Tensor z = tanh(y);
            if (child == 1 && n == 1) throw std::runtime_error("no");
            return z;
        };
        try {
            y = y + batch_waiting(children, child_of, {.together = false})[1];
        } catch (const std::runtime_error&) {
            y = y * 2;
        }
        return sum(y);
    });
    const Tensor g = tape.gradient(sum(stack(results)), {w})[0];
    Tensor wanted = zeros({3});
    for (const int n : items) {
        const Tensor y = tanh(w * n), outer = n == 1 ? full({3}, 2.0) : 2 - square(tanh(y));
        wanted = wanted + outer * (1 - square(y)) * n;
    }
    check_close(g, wanted.detach(), 1e-5);
}

TEST_CASE("of several errors that of the first instance is thrown") {
    const std::vector<int> items = numbers(10);
    try {
        batch_waiting(items, [](int n) {
            const Tensor x = full({2}, n) + 1;
            if (n >= 4) throw std::runtime_error("of " + std::to_string(n));
            return x;
        });
        FAIL("no error");
    } catch (const std::runtime_error& error) {
        CHECK(std::string(error.what()) == "of 4");
    }
}

TEST_CASE("an exception that an instance handles while it waits stays its own") {
    const std::vector<int> items = numbers(6);
    const std::vector<std::string> texts = batch_waiting(items, [](int n) {
        try {
            throw std::runtime_error(std::to_string(n));
        } catch (const std::exception&) {
            static_cast<void>(full({2}, n) + 1);  // the others are in their handlers, too
            try {
                throw;
            } catch (const std::exception& again) {
                return std::string(again.what());
            }
        }
    });
    for (std::size_t i = 0; i < texts.size(); ++i) CHECK(texts[i] == std::to_string(i));
}

TEST_CASE("scopes of one instance do not reach another") {
    const Tensor w = randn({3, 3}).requires_grad_();
    const std::vector<int> items = numbers(8);
    Tape tape;
    const std::vector<Tensor> results = batch_waiting(items, [&](int n) {
        std::optional<NoGradScope> pause;
        if (n % 2) pause.emplace();
        Tensor x = linear(ones({3}), w);
        x = tanh(x);
        pause.reset();
        return x + 1;
    });
    for (std::size_t i = 0; i < results.size(); ++i) CHECK(results[i].requires_grad() == (i % 2 == 0));
}

TEST_CASE("autocast, lines of callers and modules of one instance do not reach another") {
    struct Odd : nn::Module {
        Tensor forward(const Tensor& x, const Tensor& w) {
            const nn::ModuleScope scope(*this);
            return linear(tanh(x), w);
        }
    };
    manual_seed(9);
    const Tensor w = randn({3, 3}).requires_grad_(), x = randn({8, 3}).requires_grad_();
    const unsigned line_of_callers = __LINE__;
    const Loc of_callers = Loc::current();
    Tape tape({.persistent = true});
    unsigned own_line = 0;
    const auto loss_of = [&](int n) {
        std::optional<AutocastScope> low;
        if (n % 4 == 3) low.emplace(bfloat16);
        if (n % 2 == 1) {
            const CallerScope caller(of_callers);
            const Tensor y = Odd().forward(x[n], w);
            CHECK(y.dtype() == (n % 4 == 3 ? bfloat16 : float32));
            return y.to(float32).sum();
        }
        own_line = __LINE__ + 1;
        const Tensor y = linear(tanh(x[n]), w);
        CHECK(y.dtype() == float32);
        return y.sum();
    };
    const std::vector<Tensor> losses = batch_waiting(numbers(8), loss_of);
    const std::vector<GradientUse> uses = tape.gradient_by_use(sum(stack(losses)), w);
    int odd = 0, even = 0;
    for (const GradientUse& use : uses) {
        INFO(use.op << " of " << use.module);
        const bool is_odd = use.module == "Odd";
        CHECK(use.loc.line() == (is_odd ? line_of_callers + 1 : own_line));
        (is_odd ? odd : even) += 1;
    }
    CHECK(odd == 4);
    CHECK(even == 4);
    const Tensor after = linear(ones({3}), w);  // none of them has stayed
    CHECK(after.dtype() == float32);
}

TEST_CASE("profiles and checkpoints of instances are what they are one by one") {
    manual_seed(10);
    const Tensor w = randn({3, 3}, float64).requires_grad_(), x = randn({6, 3}, float64);
    const auto outcome = [&](bool together, std::vector<ProfileRow>* rows) {
        Profiler profiler;
        Tape tape;
        const auto loss_of = [&](int n) {
            const ProfileScope outer("item");
            const auto layer = [&](const Tensor& h) { return tanh(linear(h, w)); };
            const Tensor h = n % 2 ? checkpoint(layer, {x[n]}) : layer(x[n]);
            const ProfileScope inner("end");
            return square(linear(h, w)).sum();
        };
        const std::vector<Tensor> losses = batch_waiting(numbers(6), loss_of, {.together = together});
        const Tensor g = tape.gradient(sum(stack(losses)), w);
        profiler.stop();
        *rows = profiler.rows();
        return std::vector{stack(losses).detach(), g};
    };
    std::vector<ProfileRow> together, one_by_one;
    const std::vector<Tensor> have = outcome(true, &together), want = outcome(false, &one_by_one);
    for (std::size_t k = 0; k < have.size(); ++k) check_close(have[k], want[k], 1e-12);
    for (const auto* rows : {&together, &one_by_one}) {
        for (const char* name : {"item", "end"}) {
            const auto row = std::find_if(rows->begin(), rows->end(), [&](const ProfileRow& of) { return of.name == name; });
            REQUIRE(row != rows->end());
            CHECK(row->calls == 6);
            CHECK(row->self_seconds <= row->total_seconds);
        }
    }
}

TEST_CASE("an instance may write in place, to its own results and to what all share") {
    manual_seed(11);
    const Tensor w = randn({3}, float64).requires_grad_(), x = randn({5, 3}, float64);
    const auto outcome = [&](bool together) {
        Tensor total = zeros({3}, float64), order = zeros({5}, float64);
        int place = 0;
        Tape tape;
        const std::vector<Tensor> losses = batch_waiting(numbers(5),
                                                         [&](int n) {
                                                             Tensor h = w * x[n];
                                                             h.add_(n);
                                                             h.mul_(2);
                                                             {
                                                                 const NoGradScope pause;
                                                                 total.add_(h.detach());
                                                                 order[place++].fill_(n);
                                                             }
                                                             return square(h).sum();
                                                         },
                                                         {.together = together});
        return std::vector{stack(losses).detach(), total, order, tape.gradient(sum(stack(losses)), w)};
    };
    const std::vector<Tensor> have = outcome(true), want = outcome(false);
    for (std::size_t k = 0; k < have.size(); ++k) check_close(have[k], want[k], 1e-12);
    CHECK(have[2].to_vector<int>() == std::vector<int>{0, 1, 2, 3, 4});
}

TEST_CASE("a write to a row that a later group has saved is found") {
    const std::vector<int> items = numbers(4);
    const Tensor w = ones({2, 3}).requires_grad_();
    const auto made = [&](int n) { return full({3}, 0.5 * n) * 2; };
    const auto loss_of = [&](const std::vector<Tensor>& rows) {
        return sum(stack(batch_waiting(items, [&](int n) { return sum(linear(rows[static_cast<std::size_t>(n)], w)); })));
    };
    std::vector<Tensor> before = batch_waiting(items, made), of_ended;
    {
        const Tape ended;
        of_ended = batch_waiting(items, made);
    }
    Tape tape;
    std::vector<Tensor> of_this = batch_waiting(items, made);
    const Tensor loss_of_copies = loss_of(before);  // rows that are made without a tape are copied
    before[2].fill_(100);
    check_close(tape.gradient(loss_of_copies, w), full({2, 3}, 6), 1e-6);
    for (std::vector<Tensor>* rows : {&of_ended, &of_this}) {
        check_close(tape.gradient(loss_of(*rows), w), full({2, 3}, 6), 1e-6);
        const Tensor loss = loss_of(*rows), again = loss_of(*rows);
        (*rows)[2].fill_(100);
        CHECK_THROWS_WITH(tape.gradient(loss, w), Catch::Contains("that it saved for backward was modified in place at batch_test.cpp"));
        CHECK_THROWS_WITH(tape.gradient(again, w), Catch::Contains("that it saved for backward was modified in place at batch_test.cpp"));
    }
}

TEST_CASE("gradients of random ops are those of the numbers that an instance has drawn") {
    const Tensor w = full({8}, 0.7, float64).requires_grad_();
    const auto outcome = [&](const BatchOptions& options) {
        manual_seed(12);
        Tape tape;
        const std::vector<Tensor> losses = batch_waiting(
            numbers(9),
            [&](int n) {
                const Tensor image = reshape(w * (n + 1), {2, 2, 2});
                const Tensor kept = dropout(w * n, 0.5), channels = dropout2d(unsqueeze(image, 0), 0.5), soft = alpha_dropout(w * w, 0.3);
                return sum(kept * kept * w) + sum(exp(channels / 10)) + sum(soft * soft) + sum(gumbel_softmax(w * n, 0.5) * w);
            },
            options);
        const Tensor first = tape.gradient(sum(stack(losses)), w, {.create_graph = true});
        return std::vector{stack(losses).detach(), first.detach(), tape.gradient(sum(first * first), w)};
    };
    const std::vector<Tensor> want = outcome({.together = false});
    for (const int most : {1, 2, 9}) {
        const std::vector<Tensor> have = outcome({.most = most});
        for (std::size_t k = 0; k < want.size(); ++k) check_close(have[k], want[k], 1e-10);
    }
}

TEST_CASE("random numbers of an instance do not depend on what runs beside it") {
    const std::vector<int> items = numbers(10);
    const auto draws = [&](const BatchOptions& options) {
        manual_seed(11);
        return stack(batch_waiting(
            items,
            [](int n) {
                Tensor x = full({4}, 0.5 * n) + 1;
                for (int i = 0; i < n % 3; ++i) x = x + randn({4});
                return dropout(x, 0.5) * rand({4});
            },
            options));
    };
    const Tensor wanted = draws({.together = false});
    for (const int most : {1, 3, 10}) check_close(draws({.most = most}), wanted, 0);
    manual_seed(11);
    CHECK(rand({}).item() != draws({}).to_vector<float>()[0]);
}

TEST_CASE("a result may be written to in place, and a gradient that needs the old value is refused") {
    const std::vector<int> items = numbers(5);
    const Tensor w = randn({3}).requires_grad_();
    {
        Tape tape;
        std::vector<Tensor> results = batch_waiting(items, [&](int n) { return w + full({3}, n); });
        results[2].mul_(2);
        CHECK(results[1].to_vector<float>() != results[2].to_vector<float>());
        const Tensor g = tape.gradient(sum(stack(results)), {w})[0];
        CHECK(g.to_vector<float>() == std::vector<float>{6, 6, 6});
    }
    for (const bool keeps : {true, false}) {
        Tape tape;
        std::vector<Tensor> results = batch_waiting(items, [&](int n) { return exp(w * (n + 1)); });  // exp saves its result
        results[2].mul_(2);
        const Tensor loss = sum(stack(results));
        if (!keeps) results.clear();
        CHECK_THROWS_WITH(tape.gradient(loss, {w}), Catch::Contains("exp: a tensor of shape") && Catch::Contains("was modified in place"));
    }
}

TEST_CASE("hooks and gradients of results are those of one instance") {
    const std::vector<int> items = numbers(5);
    const Tensor w = randn({3}).requires_grad_();
    Tape tape;
    std::vector<double> seen(5);
    const std::vector<Tensor> results = batch_waiting(items, [&](int n) {
        Tensor h = w * (n + 1);
        h.register_hook([&seen, n](const Tensor& g) {
            seen[static_cast<std::size_t>(n)] = g.sum().item();
            return g;
        });
        return square(h + 1).sum() * n;
    });
    static_cast<void>(tape.gradient(sum(stack(results)), {w}));
    for (int n = 0; n < 5; ++n) CHECK(seen[static_cast<std::size_t>(n)] == Approx(2 * n * (w * (n + 1) + 1).sum().item()).margin(1e-5));
}

TEST_CASE("second derivatives go through groups") {
    const std::vector<int> items = numbers(6);
    const auto fn = [&](const std::vector<Tensor>& x) {
        return sum(stack(batch_waiting(items, [&](int n) { return sum(tanh(linear(x[0] * (0.3 * n), x[1]))); })));
    };
    CHECK(gradgradcheck(fn, {randn({3}, float64), randn({2, 3}, float64)}).ok);
}

TEST_CASE("ten thousand instances, and recursion to depth 5,000 in each") {
#if defined(__SANITIZE_THREAD__)
    constexpr int count = 500;  // it takes memory for each as for a thread
#else
    constexpr int count = 10'000;
#endif
    const std::vector<int> items = numbers(count);
    const std::vector<Tensor> results = batch_waiting(items, [](int n) { return full({2}, n) * 2 + 1; }, {.most = count});
    CHECK(results[count - 1].to_vector<float>() == std::vector<float>{2 * count - 1, 2 * count - 1});
    const std::function<Tensor(int)> down = [&](int depth) { return depth == 0 ? ones({2}) : down(depth - 1) + 1; };
    const std::vector<int> few(4, 5'000);
    for (const Tensor& deep : batch_waiting(few, down, {.stack = 128 << 20})) CHECK(deep.to_vector<float>() == std::vector<float>{5'001, 5'001});
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)  // they catch the signal
namespace {
// Takes at least so many pages of stack.
[[gnu::noinline]] int take_pages(int pages) {  // NOLINT: recursive by design
    volatile char page[4096];
    page[0] = 1;
    page[4095] = 1;
    return pages > 0 ? take_pages(pages - 1) + page[0] : page[4095];
}
}  // namespace

TEST_CASE("a stack that an instance overruns ends the program, and writes to no other stack") {
    if (!detail::has_fibers()) return;
    for (const int pages : {4, 64}) {  // of stacks of 32 pages
        const pid_t child = ::fork();
        if (child == 0) {
            const rlimit no_core{0, 0};
            ::setrlimit(RLIMIT_CORE, &no_core);
            ::signal(SIGSEGV, SIG_DFL);
            batch_waiting(numbers(3), [&](int n) { return take_pages(pages) + n; }, {.stack = 32 * 4096});
            ::_exit(0);
        }
        int status = 0;
        REQUIRE(::waitpid(child, &status, 0) == child);
        INFO(pages << " pages, status " << status);
        CHECK((pages == 4 ? WIFEXITED(status) && WEXITSTATUS(status) == 0 : WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV));
    }
}
#endif

TEST_CASE("threads have batches of their own") {
    std::vector<std::thread> threads;
    std::vector<double> sums(3);
    for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&sums, t] {
            const std::vector<int> items = numbers(50);
            const std::vector<Tensor> results = batch_waiting(items, [t](int n) { return tanh(full({3}, n * t)).sum(); });
            sums[static_cast<std::size_t>(t)] = sum(stack(results)).item();
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(sums[0] == 0);
    CHECK(sums[1] == Approx(3 * 48.7257).epsilon(1e-3));
}

TEST_CASE("a graph that is traced has no batches") {
    const std::vector<int> items = {1, 2};
    FAILS(TapeError, "batch: a graph is traced",
          trace([&](const Tensor& x) { return stack(batch_waiting(items, [&](int n) { return x * n; })); }, {{"x", ones({2})}}));
}

TEST_CASE("what needs records of its own is refused in an instance") {
    if (!detail::has_fibers()) return;
    const Tensor w = ones({2}).requires_grad_();
    Tape tape;
    const std::vector<int> items = {1, 2};
    const auto in_instances = [&](const auto& body) { batch_waiting(items, [&](int i) { body(w * static_cast<double>(i)); }); };
    FAILS_IN(TapeError, "Tape: ", "not in an instance of batch()", in_instances([&](const Tensor&) { const Tape inner; }));
    FAILS_IN(TapeError, "backward: ", "not in an instance of batch()", in_instances([&](const Tensor& y) { tape.backward(sum(y)); }));
    FAILS_IN(TapeError, "trace: ", "not in an instance of batch()",
             in_instances([&](const Tensor& y) { trace([](const Tensor& x) { return x * 2.0; }, {{"x", y}}); }));
    FAILS_IN(ValueError, "batch_norm: ", "would each add to the running statistics",
             in_instances([&](const Tensor& y) { batch_norm(stack({y, y}), zeros({2}), ones({2}), {}, {}, {.training = true}); }));
    CHECK(w.grad().defined() == false);
    tape.backward(sum(w * 3.0));
    CHECK(w.grad().to_vector<float>() == std::vector<float>{3, 3});
}

TEST_CASE("vmap is a function of rows, and may branch on their values") {
    const Tensor x = tensor({{1.0, 2.0}, {-3.0, 1.0}, {0.5, 0.5}}), y = tensor({2.0, 3.0, 4.0});
    const auto scaled = vmap([](const Tensor& row, const Tensor& number) { return row.sum().item() > 0 ? row * number : -row; });
    check_close(scaled(x, y), tensor({{2.0, 4.0}, {3.0, -1.0}, {2.0, 2.0}}), 1e-6);
    const auto both = vmap([](const Tensor& row) { return std::vector<Tensor>{row.sum(), row}; });
    const std::vector<Tensor> results = both(x);
    REQUIRE(results.size() == 2);
    check_close(results[0], tensor({3.0, -2.0, 1.0}), 1e-6);
    check_close(results[1], x, 1e-6);

    const Tensor leaf = x.clone().requires_grad_();
    Tape tape;
    const auto squares = vmap([](const Tensor& row) { return square(row).sum(); });
    tape.backward(sum(squares(leaf)));
    check_close(leaf.grad(), 2.0 * x, 1e-6);

    const auto same = vmap([](const Tensor& row) { return row; });
    CHECK_THROWS_AS(same(tensor(1.0)), ShapeError);
    CHECK_THROWS_AS(scaled(x, tensor({1.0, 2.0})), ShapeError);
    CHECK_THROWS_AS(same(zeros({0, 2})), ValueError);
    const auto uneven = vmap([](const Tensor& row) { return row.sum().item() > 0 ? row : row.sum(); });
    CHECK_THROWS_AS(uneven(x), ShapeError);
    const auto several = vmap([](const Tensor& row) { return std::vector<Tensor>(row.sum().item() > 0 ? 1 : 2, row); });
    CHECK_THROWS_AS(several(x), ShapeError);
}

TEST_CASE("a batch in one that runs one by one runs one by one, too") {
    const std::vector<int> items = {1, 2, 3};
    BatchReport report;
    const auto sums = batch_waiting(
        items, [&](int i) { return sum(stack(batch_waiting(items, [&](int k) { return full({2}, i * k) * 2.0; }, {.report = &report}))).item(); },
        {.together = false});
    CHECK(sums == std::vector<double>{24, 48, 72});
    CHECK(report.ops.empty());
    batch_waiting(items, [](int i) { return full({2}, i) * 2.0; }, {.report = &report});
    CHECK(report.ops.empty() != detail::has_fibers());
}

TEST_CASE("many operands are computed together, too") {
    if (!detail::has_fibers()) return;
    const std::vector<int> items = {1, 2, 3};
    for (const int count : {63, 64, 65, 200}) {
        const auto joined = [&](int i) {
            std::vector<Tensor> parts;
            for (int k = 0; k < count; ++k) parts.push_back(full({2}, i + k));
            return stack(parts);
        };
        BatchReport report;
        const std::vector<Tensor> together = batch_waiting(items, joined, {.report = &report});
        CHECK(report.ops["stack"].together == 3);
        CHECK(report.unbatched.empty());
        for (std::size_t i = 0; i < items.size(); ++i) check_close(together[i], joined(items[i]), 0);
    }
}

TEST_CASE("without a tape on the CPU an op waits only where its group reads a large weight") {
    if (!detail::has_fibers()) return;
    manual_seed(3);
    const Tensor small = randn({8, 128}), large = randn({128, 128}).requires_grad_(), kernel = randn({1, 1, 3, 3});
    const auto fn = [&](int n) {
        const Tensor h = tanh(linear(full({128}, 0.1 * n), large));
        const Tensor image = conv2d(h.reshape({1, 1, 8, 16}), kernel);
        return stack({linear(h, small), matmul(small, matmul(large, h)), image.reshape({-1}).narrow(0, 0, 8)});
    };
    const std::vector<int> items = numbers(6);
    const std::vector<Tensor> want = batch(items, fn, {.together = false});
    struct Case {
        const char* what;
        bool has_tape, is_paused, all_wait;
        std::vector<const char*> waiting, at_once;
    };
    const Case cases[] = {
        {"no tape", false, false, false, {"convolution"}, {"tanh", "stack"}},
        {"a tape that does not record", true, true, false, {"convolution"}, {"tanh", "stack"}},
        {"all wait", false, false, true, {"tanh", "stack", "linear", "matmul", "convolution"}, {}},
        {"a tape", true, false, false, {"tanh", "stack", "linear", "matmul", "convolution"}, {}},
    };
    for (const Case& c : cases) {
        INFO(c.what);
        std::optional<Tape> tape;
        if (c.has_tape) tape.emplace();
        BatchReport report;
        const auto in_scope = [&](int n) {
            std::optional<NoGradScope> paused;
            if (c.is_paused) paused.emplace();
            return fn(n);
        };
        const std::vector<Tensor> have = batch(items, in_scope, {.all_wait = c.all_wait, .report = &report});
        INFO(report.str());
        for (std::size_t i = 0; i < items.size(); ++i) CHECK(allclose(have[i], want[i], 1e-4, 1e-5));
        CHECK(report.unbatched.empty());
        for (const char* op : c.waiting)
            CHECK((report.ops.at(op).together % 6 == 0 && report.ops.at(op).groups > 0 && report.ops.at(op).at_once == 0));
        for (const char* op : c.at_once) CHECK((report.ops.at(op).at_once == 6 && report.ops.at(op).together == 0));
        if (!c.at_once.empty()) {  // of two products each, that with the large matrix waits
            for (const char* op : {"linear", "matmul"}) CHECK((report.ops.at(op).together == 6 && report.ops.at(op).at_once == 6));
        }
    }
}

TEST_CASE("a schedule is drawn, with a line a step and a column an item") {
    if (!detail::has_fibers()) return;
    const std::vector<int> items = {0, 1, 2}, halves = {0, 1};
    BatchReport report;
    report.keeps_schedule = true;
    batch_waiting(items,
                  [&](int i) {
                      Tensor x = exp(full({2}, i));
                      if (i != 1) x = tanh(x);
                      batch_waiting(halves, [&](int) { return sigmoid(x); });
                  },
                  {.report = &report});
    CHECK(report.schedule_str() ==
          "step  op       012\n"
          "   0  exp      ###\n"
          "   1  tanh     #.#\n"
          "   2  sigmoid  222\n");
}

TEST_CASE("gradients of rows reach what they are rows of, whoever looks at them") {
    manual_seed(4);
    const Tensor x = randn({6, 3}, float64).requires_grad_(), weight = randn({5, 3}, float64), other = randn({6, 3}, float64);
    Tape tape({.persistent = true});
    const Tensor whole = x * 2;
    const std::vector<Tensor> rows = whole.unbind();
    // Rows in another order, one twice, and a run of neighbours; then all of them.
    const Tensor some = stack({rows[4], rows[1], rows[2], rows[3], rows[1]}), all = stack(rows);
    const Tensor loss = sum(some * weight) + sum(all * other);
    Tensor wanted = other.clone();
    const std::vector<int> order = {4, 1, 2, 3, 1};
    for (int k = 0; k < 5; ++k) wanted[order[static_cast<std::size_t>(k)]].add_(weight[k]);
    check_close(tape.gradient(loss, x), 2 * wanted, 1e-12);
    check_close(tape.gradient(loss, rows[1]), wanted[1], 1e-12);
    check_close(tape.gradient(loss, rows[0]), wanted[0], 1e-12);
    check_close(tape.gradient(loss, whole), wanted, 1e-12);
    check_close(tape.gradient(loss, x, {.create_graph = true}), 2 * wanted, 1e-12);
    Tensor seen;
    rows[2].register_hook([&](const Tensor& g) {
        seen = g.clone();
        return g * 10;
    });
    Tensor scaled = wanted.clone();
    scaled[2].mul_(10);
    check_close(tape.gradient(loss, x), 2 * scaled, 1e-12);
    check_close(seen, wanted[2], 1e-12);
    rows[3].retain_grad();
    tape.backward(loss);
    check_close(x.grad(), 2 * scaled, 1e-12);
    check_close(rows[3].grad(), wanted[3], 1e-12);
}

TEST_CASE("what joins neighbours of a group is a tensor of its own") {
    const std::vector<int> items = {0, 1, 2};
    const std::vector<Tensor> made = batch_waiting(items, [](int n) {
        const std::vector<int> children = {2 * n, 2 * n + 1};
        const std::vector<Tensor> rows = batch_waiting(children, [](int child) { return full({2}, child) + 1; });
        Tensor joined = cat({rows[0], rows[1]}), alone = cat({rows[0]}), one = stack({rows[1]});
        joined.mul_(100);
        alone.mul_(100);
        one.mul_(100);
        return cat({rows[0], rows[1], joined});
    });
    for (const int n : items) {
        const double a = 2 * n + 1, b = a + 1;
        CHECK(made[static_cast<std::size_t>(n)].to_vector<double>() == std::vector{a, a, b, b, 100 * a, 100 * a, 100 * b, 100 * b});
    }
}

TEST_CASE("a row of a group outlives the others, under whichever name, and may be converted in its place") {
    struct Holder : nn::Module {
        Tensor value;
        void members(nn::Members& m) override { m.buffer("value", value); }
    };
    const std::vector<int> items = numbers(6);
    const auto rows_of = [&] { return batch_waiting(items, [](int n) { return full({3}, n) + 0.5; }); };
    Holder holder;
    Tensor view, converted;
    {
        const std::vector<Tensor> rows = rows_of();
        holder.value = rows[2];
        view = rows[3].narrow(0, 1, 2);
    }
    CHECK(view.to_vector<double>() == std::vector{3.5, 3.5});
    const Tensor part = holder.value.narrow(0, 0, 1);
    holder.to(float64);
    CHECK(holder.value.to_vector<double>() == std::vector{2.5, 2.5, 2.5});
    CHECK(part.item<double>() == 2.5);
    holder.value = rows_of()[4];
    holder.to(float64);  // nothing else uses the old elements
    converted = holder.value;
    holder.value = Tensor();
    CHECK(converted.to_vector<double>() == std::vector{4.5, 4.5, 4.5});

    Tape tape;  // followed by the log
    const Tensor w = ones({3}).requires_grad_();
    Tensor row = batch_waiting(items, [&](int n) { return w * n; })[5];
    row.mul_(2);
    tape.backward(sum(row));
    CHECK(w.grad().to_vector<double>() == std::vector{10.0, 10.0, 10.0});
}

TEST_CASE("groups see a weight as it is when they are computed") {
    manual_seed(5);
    constexpr int count = 40, steps = 12;
    Tensor weight = randn({20, 20}, float64) / 4;
    const Tensor start = randn({count, 20}, float64);
    Tensor wanted = start;
    for (int step = 0; step < steps; ++step) wanted = matmul(wanted, transpose(step < 8 ? weight : 2 * weight, 0, 1));
    const std::vector<int> items = numbers(count);
    const std::vector<Tensor> made = batch_waiting(items, [&](int n) {
        Tensor h = start[n];
        for (int step = 0; step < steps; ++step) {
            if (step == 8 && n == count - 1) weight.mul_(2);  // the others wait for their eighth product
            h = linear(h, weight);
        }
        return h;
    });
    check_close(stack(made), wanted, 1e-12);

    // The same, written to by its address.
    const Tensor twice = weight.clone();
    weight.mul_(0.5);
    const std::vector<Tensor> again = batch_waiting(items, [&](int n) {
        Tensor h = start[n];
        for (int step = 0; step < steps; ++step) {
            if (step == 8 && n == count - 1) std::copy_n(twice.data<double>(), twice.numel(), weight.data<double>());
            h = linear(h, weight);
        }
        return h;
    });
    check_close(stack(again), wanted, 1e-12);
}

TEST_CASE("many items that fork give what they give one by one, or the first one's error") {
    const std::vector<int> items = numbers(60);
    const auto sum_of = [](int n, int bad) {
        const std::vector<int> parts = {n, n + 1, n + 2};
        const Tensor before = full({3}, n) * 2;
        Tensor total = zeros({3});
        for (const Tensor& part : batch_waiting(parts, [&](int part) {
                 const Tensor doubled = full({3}, part) * 2;
                 if (n >= bad && part == n + 1) throw std::runtime_error("item " + std::to_string(n));
                 return exp(doubled / 100);
             })) {
            total = total + part * before;
        }
        return total;
    };
    const auto whole = [&](int n) { return sum_of(n, 1000); };
    const std::vector<Tensor> one_by_one = batch_waiting(items, whole, {.together = false}), together = batch_waiting(items, whole);
    for (std::size_t i = 0; i < items.size(); ++i) check_close(together[i], one_by_one[i], 1e-6);
    CHECK_THROWS_WITH(batch_waiting(items, [&](int n) { return sum_of(n, 5); }), "item 5");
}

TEST_CASE("a function of the user's own runs once for a group if it says how") {
    manual_seed(6);
    const Tensor scale = randn({3}, float64).requires_grad_(), x = randn({4, 3}, float64).requires_grad_();
    const std::vector<int> items = {0, 1, 2, 3};
    const auto outcome = [&](bool together) {
        Tape tape;
        const std::vector<Tensor> made = batch_waiting(items,
                                                       [&](int n) {
                                                           const std::vector<Tensor> both = Both::apply_many({x[n], tanh(x[(n + 1) % 4])});
                                                           return ScaledCube::apply(both[0], scale) - both[1];
                                                       },
                                                       {.together = together});
        std::vector<Tensor> first = tape.gradient(square(stack(made)).sum(), {x, scale}, {.create_graph = true});
        std::vector<Tensor> second = tape.gradient(square(first[0]).sum() + square(first[1]).sum(), {x, scale});
        first.insert(first.end(), second.begin(), second.end());
        first.push_back(stack(made));
        return first;
    };
    ScaledCube::seen.clear();
    Both::calls = BothOfBlocks::calls = 0;
    const std::vector<Tensor> together = outcome(true);
    if (detail::has_fibers()) {
        CHECK(ScaledCube::seen == std::vector<Shape>{{4, 3}});
        CHECK((Both::calls == 0 && BothOfBlocks::calls == 1));
    }
    const std::vector<Tensor> one_by_one = outcome(false);
    for (std::size_t k = 0; k < together.size(); ++k) check_close(together[k], one_by_one[k], 1e-10);
    // A group that fails runs one by one, so that each item has its own error.
    Both::calls = 0;
    CHECK_THROWS_WITH(batch_waiting(items, [&](int n) { return Both::apply_many({zeros({2}), zeros({n == 9 ? 2 : 1})})[0]; }), "other shapes");
}

TEST_CASE("nan in a group is blamed on the line of the item that makes it") {
    const Tensor x = tensor({1.0, 4.0, 0.0, 9.0}, float64).requires_grad_();
    const std::vector<int> items = {0, 1, 2, 3};
    int plain = 0, at_zero = 0;
    const auto run = [&](bool has_gradient) {
        const CheckFiniteScope check;
        Tape tape;
        const std::vector<Tensor> roots = batch_waiting(items, [&](int n) {
            if (n != 2) {
                plain = __LINE__ + 1;
                return has_gradient ? sqrt(x[n]) : log(x[n]);
            }
            at_zero = __LINE__ + 1;
            return has_gradient ? sqrt(x[n]) : log(x[n]);
        });
        tape.backward(stack(roots).sum());
    };
    for (const bool has_gradient : {true, false}) {
        std::string text;
        try {
            run(has_gradient);
        } catch (const NonFiniteError& error) {
            text = error.what();
        }
        INFO(text);
        CHECK_THAT(text, Catch::Contains("batch_test.cpp:" + std::to_string(at_zero) + ": " + (has_gradient ? "sqrt" : "log")));
    }
    CHECK(plain > 0);
}

TEST_CASE("items with numbers of their own are computed together") {
    manual_seed(7);
    const Tensor x = randn({5, 3}).requires_grad_();
    const std::vector<double> numbers = {1.5, 0, -0.0, 2, 1e300};
    const std::vector<int> items = {0, 1, 2, 3, 4};
    BatchReport report;
    const auto outcome = [&](bool together) {
        Tape tape;
        const std::vector<Tensor> made =
            batch_waiting(items,
                          [&](int n) {
                              const double number = numbers[static_cast<std::size_t>(n)];
                              const Tensor y = (x[n] + number) * (n + 1) - 2;
                              return stack({y, number / exp(x[n]), 1 / (x[n] * number), to(x[n] < number, float32), pow(abs(x[n]), number)});
                          },
                          {.together = together, .report = together ? &report : nullptr});
        return std::vector{stack(made), tape.gradient(stack(made).narrow(0, 0, 4).narrow(1, 0, 2).sum(), x)};
    };
    const std::vector<Tensor> have = outcome(true), want = outcome(false);
    CHECK(equal(have[0], want[0]));
    check_close(have[1], want[1], 1e-6);
    if (!detail::has_fibers()) return;
    for (const char* op : {"add", "mul", "div", "lt", "pow", "to_dtype"}) {
        INFO(op);
        CHECK(report.ops.at(op).alone == 0);
    }
    CHECK(report.ops.at("add").groups == 1);
}

// --- Threads -----------------------------------------------------------------------------------------------------------------

namespace {

// Chains of different lengths with branches, random numbers, a shared outer value and sparse rows.
struct Chains {
    Tensor w = (randn({5, 5}, float64) * 0.5).requires_grad_(), start = randn({5}, float64).requires_grad_();
    nn::Embedding words{9, 5, {.sparse = true}};

    Tensor loss(const Tensor& outer, int n) const {
        Tensor h = outer + words(tensor(n % 9)).to(float64);
        for (int i = 0; i <= n % 7; ++i) {
            h = tanh(linear(h, w));
            if (h.sum().item() > 0) h = h * 1.5;
        }
        return sum(dropout(h, 0.3) * h);
    }
};

}  // namespace

TEST_CASE("threads share the items of a batch, with the same losses and gradients") {
    manual_seed(2);
    const Chains chains;
    const auto outcome = [&](int threads, int count, bool twice) {
        manual_seed(4);
        for (Tensor t : std::vector<Tensor>{chains.w, chains.start, chains.words.weight}) t.zero_grad();
        Tape tape;
        const Tensor outer = sin(chains.start);
        const std::vector<int> items = numbers(count);
        const auto loss_of = [&](int n) { return chains.loss(outer, n); };
        std::vector<Tensor> losses = batch_waiting(items, loss_of, {.threads = threads});
        const Tensor between = sum(stack(losses));
        if (twice) {
            for (const Tensor& more : batch_waiting(items, [&](int n) { return chains.loss(outer * between, n); }, {.threads = threads}))
                losses.push_back(more);
        }
        const Tensor loss = sum(stack(losses)) + between;
        std::vector<Tensor> results = {stack(losses).detach()};
        for (const Tensor& g : tape.gradient(loss, {chains.start, outer, losses[0]}, {.retain_graph = true})) results.push_back(g);
        for (const Tensor& g : tape.per_example_gradients({losses[0], losses[1], losses[2]}, {chains.w})) results.push_back(g);
        tape.backward(loss);
        for (const Tensor& t : std::vector<Tensor>{chains.w, chains.start, chains.words.weight}) results.push_back(t.grad().clone());
        return results;
    };
    for (const int count : {3, 4, 21}) {
        for (const bool twice : {false, true}) {
            const std::vector<Tensor> want = outcome(1, count, twice);
            for (const int threads : {2, 3}) {
                INFO(count << " items, " << threads << " threads");
                const std::vector<Tensor> have = outcome(threads, count, twice), again = outcome(threads, count, twice);
                REQUIRE(have.size() == want.size());
                for (std::size_t i = 0; i < want.size(); ++i) {
                    INFO("result " << i);
                    CHECK(allclose(have[i], want[i], 1e-9, 1e-10));
                    CHECK(equal(have[i], again[i]));
                }
            }
        }
    }
}

TEST_CASE("higher derivatives and hooks of items on several threads") {
    manual_seed(6);
    const Tensor w = randn({3, 3}, float64).requires_grad_();
    int hooks = 0;
    const auto outcome = [&](int threads) {
        Tape tape;
        const std::vector<Tensor> losses = batch_waiting(numbers(8),
                                                         [&](int n) {
                                                             Tensor h = full({3}, 0.1 * n, float64);
                                                             for (int i = 0; i <= n % 3; ++i) h = tanh(linear(h, w) + 0.1);
                                                             return sum(h * h);
                                                         },
                                                         {.threads = threads});
        losses[5].register_hook([&](const Tensor& g) {
            ++hooks;
            return g * 2;
        });
        const Tensor first = tape.gradient(sum(stack(losses)), {w}, {.create_graph = true})[0];
        std::vector<Tensor> results = {first.detach(), tape.gradient(sum(first * first), {w})[0]};
        return results;
    };
    const std::vector<Tensor> want = outcome(1), have = outcome(2);
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(allclose(have[i], want[i], 1e-10, 1e-12));
    CHECK(hooks == 2);
}

TEST_CASE("custom functions in items on several threads") {
    manual_seed(8);
    const Tensor w = randn({3, 3}, float64).requires_grad_();
    const auto outcome = [&](int threads, const auto& cube) {
        Tape tape;
        const std::vector<Tensor> losses = batch_waiting(numbers(12),
                                                         [&](int n) {
                                                             Tensor h = full({3}, 0.1 * n, float64);
                                                             for (int i = 0; i <= n % 3; ++i) h = cube(tanh(linear(h, w) + 0.1));
                                                             return sum(h);
                                                         },
                                                         {.threads = threads});
        const Tensor first = tape.gradient(sum(stack(losses)), w, {.create_graph = true});
        return std::vector<Tensor>{stack(losses).detach(), first.detach(), tape.gradient(sum(first * first), w)};
    };
    const auto power = [](const Tensor& x) { return pow(x, 3); };
    const std::vector<Tensor> want = outcome(1, power);
    for (const int threads : {1, 2, 3}) {
        const std::vector<Tensor> alone = outcome(threads, [](const Tensor& x) { return Cube::apply(x); });
        const std::vector<Tensor> grouped = outcome(threads, [](const Tensor& x) { return CubeInGroups::apply(x); });
        for (std::size_t i = 0; i < want.size(); ++i) {
            INFO(threads << " threads, result " << i);
            CHECK(allclose(alone[i], want[i], 1e-10, 1e-12));
            CHECK(allclose(grouped[i], want[i], 1e-10, 1e-12));
        }
    }
}

TEST_CASE("an error in an item of another thread leaves the tape as it was") {
    const Tensor w = ones({2}, float64).requires_grad_();
    Tape tape;
    const Tensor before = w * 2;
    const std::size_t size = tape.size();
    for (const int bad : {0, 3, 7}) {
        const auto run = [&] {
            return batch_waiting(numbers(8),
                                 [&](int n) {
                                     const Tensor h = before * n;
                                     return n >= bad ? h + ones({3}, float64) : h;
                                 },
                                 {.threads = 2});
        };
        CHECK_THROWS_AS(run(), ShapeError);
        CHECK(tape.size() == size);
    }
    CHECK(allclose(tape.gradient(sum(before), w), full({2}, 2, float64)));
    FAILS(ValueError, "batch: at least one thread must run, not 0", batch_waiting(numbers(3), [](int) {}, {.threads = 0}));
    // Without a tape, and under a NoGradScope.
    const NoGradScope pause;
    CHECK_FALSE(batch_waiting(numbers(8), [&](int n) { return w * n; }, {.threads = 2})[7].requires_grad());
}
