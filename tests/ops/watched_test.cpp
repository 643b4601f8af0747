// Every op tells watchers when it begins and when it has run, with and without a tape, and gives the same numbers watched.
#include <catch2/catch.hpp>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>

#include "samples.h"
#include "tapir/autograd/watch/watch_impl.h"
#include "tapir/core/gdb/hooks_impl.h"
#include "tapir/ops/make/make_impl.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

class Listener : public OpWatcher {
 public:
    void begin(const char* op, Device, const Loc&) override {
        has_begun = true;
        begun.push_back(op);
    }
    void end(const RecordArgs& ran) override {
        ended.insert(ran.op.name);
        in_order.push_back(ran.op.name);
        if (ran.op.backward == Given) makers.insert(ran.op.name);
        unannounced += !has_begun;
        has_begun = false;
        outputs_missing += ran.output_count < 1 || ran.outputs[0] == nullptr;
    }
    void begin_rule(Walk&, std::uint32_t) override { ++rules_begun; }
    void end_rule(Walk&, std::uint32_t) override { ++rules_ended; }

    std::set<std::string> ended, makers;
    std::vector<std::string> begun, in_order;
    int unannounced = 0, outputs_missing = 0, rules_begun = 0, rules_ended = 0;
    bool has_begun = false;
};

// Other names, helpers of the examples, and functions whose parts are recorded in their place.
bool may_make(const std::string& code, const std::string& maker) {
    const std::pair<const char*, const char*> others[] = {
        {"new_zeros(", "zeros"},          {"ones_like(", "full_like"},           {"definite(", "eye"},        {"evaluated(", "full_like"},
        {"multi_margin_loss(", "arange"}, {"multilabel_margin_loss(", "arange"}, {"embedding_bag(", "arange"}};
    for (const auto& [other, made] : others) {
        if (maker == made && code.find(other) != std::string::npos) return true;
    }
    return false;
}

// Whose backward has a tape of its own.
struct Watched : Function<Watched> {
    static std::vector<Tensor> forward(FunctionContext&, const std::vector<Tensor>& in) { return {in[0] * 1}; }
    static std::vector<Tensor> backward(FunctionContext&, const std::vector<Tensor>& grads) {
        const Tensor x = full_like(grads[0], 2).requires_grad_();
        Tape tape;
        return {exp(tape.gradient(sum(square(x)), {x})[0])};
    }
};

}  // namespace

TEST_CASE("every op tells watchers when it begins and when it has run", "[ops]") {
    std::set<std::string> told;
    for (const test::Call& call : test::all_calls()) {
        INFO(call.name << ": " << call.torch);
        const std::vector<Tensor> inputs = test::make_inputs(call);
        manual_seed(5);
        const std::vector<Tensor> plain = call.run(inputs);
        Listener listener;
        manual_seed(5);
        std::vector<Tensor> watched;
        {
            const WatchScope scope(listener);
            watched = call.run(inputs);
        }
        std::string ended;
        for (const std::string& name : listener.ended) ended += name + " ";
        INFO("ended: " << ended);
        // What an op makes inside is its own: told are makers that the example writes down, and parts of ops that are only these.
        if (call.op->backward != Composed) {
            for (const std::string& maker : listener.makers) {
                INFO(maker);
                CHECK((call.code.find(maker + "(") != std::string::npos || may_make(call.code, maker)));
            }
        }
        const bool is_identity = watched.size() == 1 && !inputs.empty() && watched[0].is_same(inputs[0]);
        CHECK(listener.ended.empty() == is_identity);
        if (is_identity) continue;
        if (listener.ended.count(call.op->name) == 1) told.insert(call.op->name);
        CHECK(listener.unannounced == 0);
        CHECK(listener.outputs_missing == 0);
        REQUIRE(watched.size() == plain.size());
        for (std::size_t i = 0; i < plain.size(); ++i) {
            if (plain[i].defined()) CHECK(allclose(watched[i].to(float64), plain[i].to(float64), 0, 0, /*equal_nan=*/true));
        }
        if (!call.differentiable) continue;
        std::vector<Tensor> leaves;
        for (const Tensor& x : inputs) leaves.push_back(is_floating(x.dtype()) ? x.clone().requires_grad_() : x);
        Tape tape;
        const std::vector<Tensor> results = call.run(leaves);
        const WatchScope scope(listener);
        bool depends = false;
        for (const Tensor& y : results) {
            if (!is_floating(y.dtype()) || !y.requires_grad()) continue;
            depends = true;
            tape.backward(y, {.gradient = ones(y.shape(), y.dtype()), .retain_graph = true});
        }
        CHECK(listener.rules_begun == listener.rules_ended);
        CHECK((listener.rules_begun > 0) == depends);
    }
    for (const test::Call& call : test::all_calls()) {
        if (call.op->backward == Composed || std::string(call.op->name) == "to_device") continue;  // the sample stays on the CPU
        INFO(call.op->name);
        CHECK(told.count(call.op->name) == 1);
    }
}

TEST_CASE("watchers are told of rules, not of the ops that these call", "[ops]") {
    const Tensor w = tensor({0.5, 2.0}, float64).requires_grad_();
    Listener listener;
    const auto ended_in = [&](const auto& run) {
        listener.ended.clear();
        const WatchScope scope(listener);
        run();
        return listener.ended;
    };
    SECTION("with create_graph") {
        Tape tape;
        const Tensor y = sum(elu(w));
        CHECK(ended_in([&] { tape.gradient(y, {w}, {.create_graph = true}); }).empty());
        CHECK(listener.rules_begun == 2);
    }
    SECTION("on a tape within another") {
        Tape outer;
        Tape inner;
        const Tensor y = sum(elu(w));
        CHECK(ended_in([&] { inner.gradient(y, {w}); }).empty());
    }
    SECTION("after a hook that has a tape of its own") {
        Tape tape;
        Tensor h = w * 3;
        h.register_hook([](const Tensor& g) {
            const Tape own;
            return g * 2;
        });
        const Tensor y = sum(norm(h) * h);
        CHECK(ended_in([&] { tape.backward(y); }) == std::set<std::string>{"mul"});  // the hook's
        CHECK(ended_in([&] { static_cast<void>(w + 1); }) == std::set<std::string>{"add"});
    }
    SECTION("but of a hook's of a value and of a leaf, and of a custom function's backward, with the walk that it makes") {
        const Tensor v = tensor({0.5, 2.0}, float64).requires_grad_();
        v.register_hook([](const Tensor& g) { return sinh(g); });
        Tape tape;
        const Tensor h = tanh(norm(v) * v);
        h.register_hook([](const Tensor& g) { return cos(g); });
        const Tensor y = sum(elu(Watched::apply({h})));
        CHECK(ended_in([&] { tape.backward(y); }) == std::set<std::string>{"sinh", "cos", "square", "sum", "exp", "full_like"});
        CHECK(listener.rules_begun == listener.rules_ended);
        CHECK(listener.rules_begun == 8);  // 6, and the 2 of the walk inside
    }
    SECTION("but of the second run of a checkpoint's function, and of no rule's ops after it") {
        Tape tape;
        const Tensor h = tanh(norm(w) * w);
        const Tensor y = sum(checkpoint([](const std::vector<Tensor>& in) { return sin(in[0]); }, {h}));
        CHECK(ended_in([&] { tape.backward(y); }) == std::set<std::string>{"sin"});
    }
}

TEST_CASE("gdb is told of a hook's ops, and of those of a custom function's backward, not of a rule's", "[ops]") {
    GdbState& state = tapir_gdb_state;
    const auto told_in_backward = [&](const char* wanted, const auto& fn) {
        const Tensor x = tensor({0.5, 2.0}, float64).requires_grad_();
        Tape tape;
        const Tensor y = sum(fn(x));
        std::strcpy(state.wanted, wanted);
        state.op = nullptr;
        state.watching = 1;
        detail::watching_ops.add(1);
        tape.backward(y);
        detail::watching_ops.add(-1);
        state.watching = 0;
        state.wanted[0] = 0;
        return state.op ? std::string(state.op) : "nothing";
    };
    CHECK(told_in_backward("cos", [](const Tensor& x) { return sin(x); }) == "nothing");
    int line = 0;
    const std::string told = told_in_backward("cos", [&](const Tensor& x) {
        const Tensor h = sin(x);
        h.register_hook([&](const Tensor& g) {
            line = __LINE__ + 1;
            return cos(g);
        });
        return h;
    });
    CHECK(told == "cos");
    CHECK(state.kind == GdbState::kForward);
    CHECK(static_cast<int>(state.line) == line);
    CHECK(told_in_backward("cos", [&](const Tensor& x) {
              x.register_hook([&](const Tensor& g) { return cos(g); });
              return sin(x);
          }) == "cos");
    CHECK(told_in_backward("exp", [](const Tensor& x) { return Watched::apply({x}); }) == "exp");
}

TEST_CASE("a watcher that comes while recording is paused stays when it goes on", "[ops]") {
    Listener listener;
    std::unique_ptr<WatchScope> scope;
    {
        const NoGradScope pause;
        scope = std::make_unique<WatchScope>(listener);
    }
    static_cast<void>(ones({2}) + 1);
    CHECK(listener.ended.count("add") == 1);
}

namespace {

// Of the last maker or draw: what it was asked for, and how often it was told.
template <class Attrs>
class AttrsListener : public OpWatcher {
 public:
    void begin(const char*, Device, const Loc&) override { ++begun; }
    void end(const RecordArgs& ran) override {
        ++ended;
        name = ran.op.name;
        inputs = ran.input_count;
        requires_grad = (ran.outputs[0]->flags & TensorImpl::kRequiresGrad) != 0;
        REQUIRE(ran.attr_bytes == sizeof(Attrs));
        attrs = *static_cast<const Attrs*>(ran.attrs);
    }
    int begun = 0, ended = 0, inputs = 0;
    bool requires_grad = false;
    std::string name;
    std::optional<Attrs> attrs;
};

// What one call tells, as `op`; watchers are told once.
template <class Attrs, class Call>
Attrs told_by(const std::string& op, int inputs, const Call& call) {
    AttrsListener<Attrs> listener;
    {
        const WatchScope scope(listener);
        call();
    }
    INFO(op);
    CHECK(listener.begun == 1);
    CHECK(listener.ended == 1);
    CHECK(listener.name == op);
    CHECK(listener.inputs == inputs);
    return *listener.attrs;
}

}  // namespace

TEST_CASE("what makes a tensor of nothing tells what it was asked for, once", "[ops]") {
    const Tensor like = ones({4, 2}, float64);
    const auto zeros_told = told_by<MakeAttrs>("zeros", 0, [] { return zeros({2, 3}, float16); });
    CHECK(zeros_told.shape == Shape(2, 3));
    CHECK(zeros_told.dtype == float16);
    CHECK(zeros_told.device == cpu);
    CHECK(told_by<MakeAttrs>("empty", 0, [] { return empty({5}); }).shape == Shape(5));
    CHECK(told_by<MakeAttrs>("ones", 0, [] { return ones({5}); }).shape == Shape(5));
    CHECK(told_by<MakeAttrs>("eye", 0, [] { return eye(2, 3); }).shape == Shape(2, 3));
    CHECK(told_by<MakeAttrs>("zeros_like", 1, [&] { return zeros_like(like); }).dtype == float64);
    CHECK(told_by<MakeAttrs>("empty_like", 1, [&] { return empty_like(like, {float32}); }).dtype == float32);
    CHECK(told_by<MakeAttrs>("zeros", 0, [&] { return like.new_zeros({7}); }).dtype == float64);
    CHECK(told_by<FullAttrs>("full", 0, [] { return full({2}, 7); }).value.as_int64() == 7);
    CHECK(told_by<FullAttrs>("full_like", 1, [&] { return full_like(like, 2.5); }).value.as_double() == 2.5);
    CHECK(told_by<FullAttrs>("full_like", 1, [&] { return ones_like(like); }).value.as_int64() == 1);
    const auto range = told_by<RangeAttrs>("arange", 0, [] { return arange(1, 9, 2); });
    CHECK(range.start.as_int64() == 1);
    CHECK(range.end.as_int64() == 9);
    CHECK(range.step.as_int64() == 2);
    const auto space = told_by<SpaceAttrs>("logspace", 0, [] { return logspace(0, 3, 4, 2); });
    CHECK(space.end == 3);
    CHECK(space.steps == 4);
    CHECK(space.base == 2);
    CHECK(told_by<SpaceAttrs>("linspace", 0, [] { return linspace(0, 3, 4); }).base == 0);
    CHECK(told_by<TriangleAttrs>("triu_indices", 0, [] { return triu_indices(3, 4, 1); }).offset == 1);
    CHECK(told_by<TriangleAttrs>("tril_indices", 0, [] { return tril_indices(3, 4); }).columns == 4);
    Generator generator(3);
    CHECK(told_by<RandomAttrs>("rand", 0, [&] { return rand({3}, generator); }).generator == &generator);
    CHECK(told_by<RandomAttrs>("randn", 0, [] { return randn({3}); }).generator == &default_generator());
    CHECK(told_by<RandomAttrs>("randn_like", 1, [&] { return randn_like(like); }).shape == Shape(4, 2));
    CHECK(told_by<RandomAttrs>("rand_like", 1, [&] { return rand_like(like); }).dtype == float64);
    CHECK(told_by<RandomAttrs>("randperm", 0, [] { return randperm(6); }).shape == Shape(6));
    const auto integers = told_by<RandintAttrs>("randint", 0, [&] { return randint(-2, 5, {3}, generator); });
    CHECK(integers.low == -2);
    CHECK(integers.high == 5);
    CHECK(integers.generator == &generator);
    CHECK(told_by<RandintAttrs>("randint_like", 1, [&] { return randint_like(like, 4); }).high == 4);
    CHECK(told_by<BernoulliAttrs>("bernoulli", 0, [] { return bernoulli({3}, 0.25); }).p == 0.25);
    CHECK(told_by<BernoulliAttrs>("bernoulli", 1, [&] { return bernoulli(like, generator); }).generator == &generator);
    CHECK(told_by<MultinomialAttrs>("multinomial", 1, [&] { return multinomial(like, 2, true); }).replacement);
}

TEST_CASE("numbers that the program holds are told as constants", "[ops]") {
    Listener listener;
    float memory[2] = {1, 2};
    {
        const WatchScope scope(listener);
        static_cast<void>(tensor({{1, 2}, {3, 4}}));
        static_cast<void>(tensor(2.5));
        static_cast<void>(tensor(std::vector<float>{1, 2}));
        static_cast<void>(from_blob(memory, {2}));
    }
    CHECK(listener.in_order == std::vector<std::string>(4, "tensor"));
    CHECK(listener.unannounced == 0);
    bool is_released = false;
    class Refuses : public OpWatcher {
        void end(const RecordArgs&) override { throw std::runtime_error("no"); }
    } refuses;
    {
        const WatchScope scope(refuses);
        CHECK_THROWS_AS(from_blob(memory, {2}, [&](void*) { is_released = true; }), std::runtime_error);
    }
    CHECK(!is_released);  // the caller has it still
}

TEST_CASE("random numbers in place are told by their own name, and cut the gradient off", "[ops]") {
    Tensor x = zeros({4}, float64);
    Generator generator(1);
    const auto uniform = told_by<RandomFillAttrs>("uniform", 1, [&] { x.uniform_(-1, 2, generator); });
    CHECK(uniform.a == -1);
    CHECK(uniform.b == 2);
    CHECK(uniform.generator == &generator);
    CHECK(told_by<RandomFillAttrs>("normal", 1, [&] { x.normal_(3, 0.5); }).b == 0.5);
    CHECK(told_by<RandomFillAttrs>("bernoulli_fill", 1, [&] { x.bernoulli_(0.25); }).a == 0.25);
    struct : OpWatcher {  // a fill's number is an operand
        void end(const RecordArgs& ran) override { number = ran.inputs[1]->item<double>(); }
        double number = 0;
    } filled;
    {
        const WatchScope watching(filled);
        x.fill_(3);
    }
    CHECK(filled.number == 3);
    const Tensor w = ones({4}, float64).requires_grad_();
    for (const int which : {0, 1, 2}) {
        Tape tape;
        Tensor y = w * 2;
        if (which == 0) y.uniform_(0, 1);
        if (which == 1) y.normal_();
        if (which == 2) y.bernoulli_(0.5);
        CHECK(tape.str().find(which == 0 ? "uniform" : which == 1 ? "normal" : "bernoulli_fill") != std::string::npos);
        const auto gradient = tape.gradient(sum(y) + sum(w), {w});
        CHECK(gradient[0].to_vector<double>() == std::vector<double>(4, 1));
    }
}

TEST_CASE("CheckFiniteScope blames nothing that is given its numbers, and the op that uses them no more", "[ops]") {
    const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
    const Tensor masked = full({2}, inf);
    float memory[2] = {1, std::numeric_limits<float>::quiet_NaN()};
    const CheckFiniteScope check;
    CHECK_NOTHROW(full({2}, -inf));
    CHECK_NOTHROW(full_like(masked, nan));
    CHECK_NOTHROW(tensor({1.0, nan}));
    CHECK_NOTHROW(from_blob(memory, {2}) + 1);
    CHECK_NOTHROW(zeros({2}).fill_(nan));
    CHECK_NOTHROW(full({2}, inf).uniform_(0, 1));
    for (int i = 0; i < 8; ++i) {  // whatever the memory held before
        {
            const Tensor before = full({1000}, nan);
        }
        CHECK_NOTHROW(empty({1000}));
        CHECK_NOTHROW(empty_like(masked));
    }
    CHECK_THROWS_AS(full({2}, inf) - masked, NonFiniteError);
}
