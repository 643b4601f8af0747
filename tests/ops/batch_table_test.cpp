// batch() on every op of the table: what comes out is what comes out one by one, to second order, whatever lies where; and which ops have no rule.
#include <algorithm>
#include <catch2/catch.hpp>
#include <exception>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "../sanitizers.h"
#include "samples.h"
#include "tapir/autograd/watch/watch_impl.h"
#include "tapir/core/fiber_impl.h"
#include "tapir/core/format.h"
#include "tapir/ops/batch/batch.h"

using namespace tapir;
using tapir::test::Call;

namespace {

// How the operands of an instance come about.
enum class Made {
    leaves,     // each a tensor of its own
    results,    // rows of a group, in order
    scattered,  // results of a group, of which the instances take each other's: an operand that was batched, and is not the first
    turned,     // views that are not contiguous
    shared,     // as weights are: all but the first are tensors that all instances use
};

Tensor turned(const Tensor& x) { return x.dim() >= 2 ? transpose(transpose(x, -1, -2).contiguous(), -1, -2) : stack({x, x}, -1).select(-1, 0); }

struct Inputs {
    std::vector<std::vector<Tensor>> of;  // of each instance
    std::vector<Tensor> leaves;           // the floating ones
};

// Numbers of instance i differ by up to a hundredth; every other instance has its integers from the end.
Inputs inputs_for(const Call& call, std::size_t count, bool with_turned_integers) {
    Inputs inputs;
    const std::vector<Tensor> drawn = test::make_inputs(call);
    for (std::size_t i = 0; i < count; ++i) {
        std::vector<Tensor> own;
        for (const Tensor& x : drawn) {
            if (is_floating(x.dtype())) {
                own.push_back((x * (1 - 0.01 * static_cast<double>(i) / static_cast<double>(count))).detach().requires_grad_());
                inputs.leaves.push_back(own.back());
            } else {
                own.push_back(with_turned_integers && i % 2 == 1 && x.dim() > 0 ? x.flip({0}) : x.clone());
            }
        }
        inputs.of.push_back(std::move(own));
    }
    return inputs;
}

struct Outcome {
    std::vector<std::vector<Tensor>> results;
    std::vector<Tensor> first, second;
};

// The last instance is left out of the loss, if there are others.
Outcome outcome_of(const Call& call, const Inputs& inputs, Made given, bool are_derivatives_wanted, const BatchOptions& options) {
    Tape tape;
    const std::size_t count = inputs.of.size();
    std::vector<std::size_t> numbers(count);
    std::iota(numbers.begin(), numbers.end(), std::size_t{0});
    std::vector<std::vector<Tensor>> operands = inputs.of;
    if (given == Made::results || given == Made::scattered) {
        operands = batch(numbers,
                         [&](std::size_t i) {
                             std::vector<Tensor> own;
                             for (const Tensor& x : inputs.of[i]) own.push_back(is_floating(x.dtype()) ? x * 1.0 : x);
                             return own;
                         },
                         {.most = static_cast<int>(count), .together = options.together});
    }
    Outcome outcome;
    outcome.results = batch(
        numbers,
        [&](std::size_t i) {
            std::vector<Tensor> own = operands[given == Made::scattered ? (i * 5 + 3) % count : i];
            if (given == Made::shared && !own.empty()) std::copy(operands[0].begin() + 1, operands[0].end(), own.begin() + 1);
            if (given == Made::turned) {
                for (Tensor& x : own) x = turned(x);
            }
            return call.run(own);
        },
        options);
    if (!are_derivatives_wanted) return outcome;
    Tensor loss;
    for (std::size_t i = 0; i < std::max<std::size_t>(count - 1, 1); ++i) {
        for (const Tensor& y : outcome.results[i]) {
            if (!is_floating(y.dtype()) || !y.requires_grad()) continue;
            const Tensor part = sum(y * cos(y.detach() + static_cast<double>(i)));
            loss = loss.defined() ? loss + part : part;
        }
    }
    if (!loss.defined()) return outcome;
    outcome.first = tape.gradient(loss, inputs.leaves, {.create_graph = true});
    Tensor again;
    for (const Tensor& g : outcome.first) {
        if (!g.requires_grad()) continue;
        const Tensor part = sum(g * cos(g.detach()));
        again = again.defined() ? again + part : part;
    }
    if (again.defined()) outcome.second = tape.gradient(again, inputs.leaves);
    return outcome;
}

// What differs; "" if nothing does.
std::string difference(const Tensor& have, const Tensor& want) {
    if (have.shape() != want.shape() || have.dtype() != want.dtype())
        return fmt::format("{} {} and not {} {}", have.dtype(), have.shape(), want.dtype(), want.shape());
    const bool same = is_floating(want.dtype()) ? allclose(have, want, 1e-6, 1e-6, /*equal_nan=*/true) : equal(have, want);
    return same ? "" : fmt::format("{}\nand not\n{}", have.str(), want.str());
}

std::string difference(const std::vector<Tensor>& have, const std::vector<Tensor>& want) {
    if (have.size() != want.size()) return fmt::format("{} tensors and not {}", have.size(), want.size());
    for (std::size_t i = 0; i < have.size(); ++i) {
        if (const std::string found = difference(have[i], want[i]); !found.empty()) return fmt::format("tensor {}: {}", i, found);
    }
    return "";
}

std::string difference(const Outcome& have, const Outcome& want) {
    for (std::size_t i = 0; i < have.results.size(); ++i) {
        if (const std::string found = difference(have.results[i], want.results[i]); !found.empty()) return fmt::format("results of {}: {}", i, found);
    }
    if (const std::string found = difference(have.first, want.first); !found.empty()) return "first derivatives: " + found;
    if (const std::string found = difference(have.second, want.second); !found.empty()) return "second derivatives: " + found;
    return "";
}

class WalkCount : public OpWatcher {
 public:
    WalkCount() : OpWatcher(/*calls_ops=*/false) {}
    void begin_walk(Walk&) override { ++count; }
    int count = 0;
};

// The losses of some instances that all use operand `shared` of the first as it is.
std::vector<Tensor> losses_with_shared(const Call& call, const Inputs& inputs, std::size_t shared) {
    std::vector<std::size_t> numbers(inputs.of.size());
    std::iota(numbers.begin(), numbers.end(), std::size_t{0});
    return batch(numbers, [&](std::size_t i) {
        std::vector<Tensor> own = inputs.of[i];
        own[shared] = inputs.of[0][shared];
        Tensor loss = zeros({}, float64);
        for (const Tensor& y : call.run(own)) {
            if (is_floating(y.dtype()) && y.requires_grad()) loss = loss + sum(y * cos(y.detach() + static_cast<double>(i)));
        }
        return loss;
    });
}

// Random numbers, and memory that nobody has written to.
bool has_other_numbers_each_time(const Call& call) {
    static const std::set<std::string_view> names = {"dropout",   "bernoulli",  "multinomial",    "rand",         "randn",
                                                     "rand_like", "randn_like", "randint",        "randint_like", "randperm",
                                                     "uniform",   "normal",     "bernoulli_fill", "empty",        "empty_like"};
    return names.count(call.op->name) > 0;
}

}  // namespace

TEST_CASE("every op gives in a batch what it gives alone") {
    if (!detail::has_fibers()) return;
    const OpInfo* last = nullptr;
    for (const Call& call : test::all_calls()) {
        if (has_other_numbers_each_time(call)) continue;
        const bool is_first_of_op = std::exchange(last, call.op) != call.op;
        for (const std::size_t count : {1u, 2u, 7u, 130u}) {
            for (const Made given : {Made::leaves, Made::results, Made::scattered, Made::turned, Made::shared}) {
                if ((count == 1 && given != Made::leaves) || (count == 130 && (given != Made::scattered || !is_first_of_op))) continue;
                // A sanitizer looks at what the code of an op does, which its other samples do as well.
                if (test::kSanitized && (count == 2 || (!is_first_of_op && (count != 7 || given != Made::scattered)))) continue;
                INFO(call.name << ": " << call.code << ", " << count << " instances, operands " << static_cast<int>(given));
                Outcome want;
                Inputs inputs = inputs_for(call, count, /*with_turned_integers=*/true);
                try {
                    want = outcome_of(call, inputs, given, call.differentiable, {.together = false});
                } catch (const Error&) {  // integers that mean nothing in another order
                    inputs = inputs_for(call, count, /*with_turned_integers=*/false);
                    want = outcome_of(call, inputs, given, call.differentiable, {.together = false});
                }
                try {
                    CHECK(difference(outcome_of(call, inputs, given, call.differentiable, {}), want) == "");
                } catch (const std::exception& e) {
                    FAIL_CHECK(e.what());
                }
            }
        }
    }
}

TEST_CASE("ops without a rule for batches are these, and no rule fails") {
    if (!detail::has_fibers()) return;
    std::set<std::string> names;
    for (const Call& call : test::all_calls()) {
        // Weights or statistics of each instance; an empty 1-d tensor, which counts for nothing.
        if (call.code.find(".weight = tensor") != std::string::npos || call.name == "batch_norm 3" || call.name == "cat 4") continue;
        const Inputs inputs = inputs_for(call, 2, /*with_turned_integers=*/false);
        if (inputs.of[0].empty()) continue;
        BatchReport report;
        outcome_of(call, inputs, Made::shared, /*are_derivatives_wanted=*/false, {.report = &report});
        for (const auto& [what, calls] : report.unbatched) {
            if (std::none_of(inputs.of[0].begin(), inputs.of[0].end(), [](const Tensor& x) { return x.dim() == 0; }))
                names.insert(what.substr(0, what.find(' ')));
        }
        for (const auto& [name, op] : report.ops) {
            INFO(call.name << ": " << call.code << ": " << name);
            CHECK(op.alone == 0);
        }
    }
    // Steps of optimizers and gradients as ops of their own are not called in instances.
    const std::set<std::string> expected = {
        "adadelta", "adagrad", "adagrad_da", "adam", "adamax", "adamw", "asgd", "lion", "nadam", "radam", "rmsprop", "rprop", "sgd",
        "batch_norm_backward", "conv_weight", "cross_entropy_backward", "grid_sample_backward", "group_norm_backward", "gru_gates_backward",
        "layer_norm_backward", "log_softmax_backward", "lstm_gates_backward", "max_pool_backward", "softmax_backward", "weighted_exps",
        // The size of the result depends on the elements; of index where a mask is among the indices.
        "index", "nonzero", "repeated_indices", "unique", "unique_consecutive",
        // Drawn by each instance itself.
        "bernoulli", "multinomial",
        // batch_norm in training normalises by the instance's own examples, embedding_bag has rows that are not read after its last offset, div
        // and lerp take numbers of another dtype.
        "batch_norm", "div", "embedding_bag", "lerp",
        // Their bins or sizes depend on the elements.
        "bincount", "histc", "histogram",
        // Writes.
        "copy", "index_place", "index_put", "index_put_add", "place"};
    CHECK(names == expected);
}

TEST_CASE("gradients of each example take one pass for a shared operand of any op") {
    if (!detail::has_fibers()) return;
    std::set<std::string> names;
    for (const Call& call : test::all_calls()) {
        if (has_other_numbers_each_time(call) || !call.differentiable) continue;
        const Inputs inputs = inputs_for(call, 3, /*with_turned_integers=*/false);
        for (std::size_t k = 0; k < inputs.of[0].size(); ++k) {
            const Tensor& shared = inputs.of[0][k];
            if (!is_floating(shared.dtype())) continue;
            INFO(call.name << ": " << call.code << ", operand " << k);
            Tape tape;
            const std::vector<Tensor> losses = losses_with_shared(call, inputs, k);
            if (std::none_of(losses.begin(), losses.end(), [](const Tensor& loss) { return loss.requires_grad(); })) continue;
            WalkCount walks;
            Tensor each;
            {
                const WatchScope scope(walks);
                each = tape.per_example_gradients(losses, {shared})[0];
            }
            if (walks.count > 1) names.insert(call.op->name);
            for (std::size_t i = 0; i < losses.size(); ++i) {
                CHECK(difference(each[static_cast<std::int64_t>(i)], tape.gradient(losses[i], shared, {.retain_graph = true})) == "");
            }
        }
    }
    CHECK(names == std::set<std::string>());
}

TEST_CASE("deterministic ops give in a batch what they give alone to the last bit") {
    if (!detail::has_fibers()) return;
    const DeterministicScope scope;
    for (const Call& call : test::all_calls()) {
        if (has_other_numbers_each_time(call)) continue;
        for (const Made given : {Made::results, Made::shared}) {
            INFO(call.name << ": " << call.code << ", operands " << static_cast<int>(given));
            const Inputs inputs = inputs_for(call, 7, /*with_turned_integers=*/false);
            const Outcome want = outcome_of(call, inputs, given, /*are_derivatives_wanted=*/false, {.together = false});
            const Outcome have = outcome_of(call, inputs, given, /*are_derivatives_wanted=*/false, {});
            for (std::size_t i = 0; i < want.results.size(); ++i) {
                for (std::size_t k = 0; k < want.results[i].size(); ++k) {
                    CHECK(allclose(have.results[i][k], want.results[i][k], 0, 0, /*equal_nan=*/true));
                }
            }
        }
    }
}
