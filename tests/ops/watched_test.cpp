// Every op tells watchers when it begins and when it has run, with and without a tape, and gives the same numbers watched.
#include <catch2/catch.hpp>
#include <memory>
#include <set>
#include <string>

#include "samples.h"
#include "tapir/autograd/watch_impl.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

class Listener : public OpWatcher {
 public:
    void begin(const char*, Device, const Loc&) override { has_begun = true; }
    void end(const RecordArgs& ran) override {
        ended.insert(ran.op.name);
        unannounced += !has_begun;
        has_begun = false;
        outputs_missing += ran.output_count < 1 || ran.outputs[0] == nullptr;
    }
    void begin_rule(Walk&, std::uint32_t) override { ++rules_begun; }
    void end_rule(Walk&, std::uint32_t) override { ++rules_ended; }

    std::set<std::string> ended;
    int unannounced = 0, outputs_missing = 0, rules_begun = 0, rules_ended = 0;
    bool has_begun = false;
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
        CHECK(ended_in([&] { tape.backward(y); }).empty());
        CHECK(ended_in([&] { static_cast<void>(w + 1); }) == std::set<std::string>{"add"});
    }
    SECTION("but of the second run of a checkpoint's function, and of no rule's ops after it") {
        Tape tape;
        const Tensor h = tanh(norm(w) * w);
        const Tensor y = sum(checkpoint([](const std::vector<Tensor>& in) { return sin(in[0]); }, {h}));
        CHECK(ended_in([&] { tape.backward(y); }) == std::set<std::string>{"sin"});
    }
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
