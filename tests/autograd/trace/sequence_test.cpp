// nn::RNN, GRU and LSTM in graphs for any number of steps, and for lengths that are inputs.
#include <catch2/catch.hpp>

#include "../../fails.h"
#include "tapir/autograd/trace/check_trace.h"
#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/graph/grad.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

bool has_op(const Graph& graph, const char* op) {
    return std::any_of(graph.nodes().begin(), graph.nodes().end(), [&](const auto& node) { return node->op() == op; });
}

Tensor lengths_for(std::int64_t batch, std::int64_t time) {
    std::vector<std::int64_t> lengths;
    for (std::int64_t i = 0; i < batch; ++i) lengths.push_back((i * 2 + 1) % (time + 1));
    return tensor(lengths);
}

}  // namespace

TEST_CASE("an LSTM is traced for any number of steps") {
    manual_seed(1);
    for (const bool is_bidirectional : {false, true}) {
        nn::LSTM lstm(3, 4, {.num_layers = 2, .batch_first = true, .bidirectional = is_bidirectional});
        const auto fn = [&](const Tensor& x) { return lstm(x); };
        for (const int example : {1, 5}) {
            const Graph graph = trace(fn, {{"x", randn({2, example, 3}), {"batch", "time"}}});
            CHECK(has_op(graph, "scan"));
            const CompiledGraph run = graph.compile();
            for (const auto& [batch, time] : {std::pair{1, 1}, {2, 5}, {5, 2}, {3, 11}}) {
                const Tensor x = randn({batch, time, 3});
                const auto [output, state] = lstm(x);
                const std::vector<Tensor> now = run({x});
                REQUIRE(now.size() == 3);
                CHECK(allclose(now[0], output, 1e-5, 1e-6));
                CHECK(allclose(now[1], state.h, 1e-5, 1e-6));
                CHECK(allclose(now[2], state.c, 1e-5, 1e-6));
                CHECK(check_trace(graph, fn, {x}).ok);
            }
        }
    }
}

TEST_CASE("where time has no name each step of an LSTM is in the graph") {
    manual_seed(2);
    nn::LSTM lstm(3, 4);
    const Graph graph = trace([&](const Tensor& x) { return lstm(x).output; }, {{"x", randn({5, 2, 3}), {"", "batch"}}});
    CHECK_FALSE(has_op(graph, "scan"));
}

TEST_CASE("lengths of sequences are inputs of graphs") {
    manual_seed(3);
    const auto check = [](const auto& layer, const auto& parts) {
        const auto fn = [&](const Tensor& x, const Tensor& lengths) { return parts(layer(x, {}, lengths)); };
        const Graph graph = trace(fn, {{"x", randn({2, 5, 3}), {"batch", "time"}}, {"lengths", lengths_for(2, 5), {"batch"}}});
        for (const auto& [batch, time] : {std::pair{1, 1}, {2, 5}, {5, 2}, {3, 7}}) {
            const Tensor x = randn({batch, time, 3}), lengths = lengths_for(batch, time);
            const std::vector<Tensor> expected = fn(x, lengths), now = graph.run({{"x", x}, {"lengths", lengths}});
            REQUIRE(now.size() == expected.size());
            for (std::size_t i = 0; i < now.size(); ++i) CHECK(allclose(now[i], expected[i], 1e-5, 1e-6));
        }
        // More than time is as time, and less than none is none.
        const Tensor x = randn({2, 4, 3});
        const auto all = graph.run({{"x", x}, {"lengths", tensor<std::int64_t>({100, -3})}}), clamped = fn(x, tensor<std::int64_t>({4, 0}));
        for (std::size_t i = 0; i < all.size(); ++i) CHECK(allclose(all[i], clamped[i], 1e-5, 1e-6));
    };
    const auto of_lstm = [](const nn::LSTMResult& r) { return std::vector<Tensor>{r.output, r.state.h, r.state.c}; };
    const auto of_others = [](const nn::RecurrentResult& r) { return std::vector<Tensor>{r.output, r.h}; };
    check(nn::LSTM(3, 4, {.batch_first = true, .bidirectional = true}), of_lstm);
    check(nn::GRU(3, 4, {.num_layers = 2, .batch_first = true, .bidirectional = true}), of_others);
    check(nn::RNN(3, 4, {.batch_first = true, .relu = true}), of_others);
}

TEST_CASE("lengths are inputs where no dimension has a name") {
    manual_seed(4);
    nn::GRU gru(3, 4);
    const auto fn = [&](const Tensor& x, const Tensor& lengths) { return gru(x, {}, lengths).output; };
    const Graph graph = trace(fn, {{"x", randn({5, 2, 3})}, {"lengths", tensor<std::int64_t>({5, 1})}});
    const Tensor x = randn({5, 2, 3}), lengths = tensor<std::int64_t>({0, 4});
    CHECK(allclose(graph.run({{"x", x}, {"lengths", lengths}})[0], fn(x, lengths), 1e-5, 1e-6));
}

TEST_CASE("a training step over sequences of any length is a graph") {
    const auto trained = [](bool is_traced) {
        manual_seed(5);
        nn::LSTM lstm(3, 4, {.num_layers = 2, .batch_first = true, .bidirectional = true});
        nn::Linear head(8, 2);
        std::vector<Tensor> parameters = lstm.parameters();
        for (const Tensor& p : head.parameters()) parameters.push_back(p);
        optim::Adam adam(parameters, {.lr = 0.01});
        const auto step = [&](const Tensor& x, const Tensor& lengths, const Tensor& y) {
            adam.zero_grad();
            Tape tape;
            const Tensor loss = cross_entropy(head(lstm(x, {}, lengths).output.mean(1)), y);
            tape.backward(loss);
            adam.step();
            return loss;
        };
        std::vector<double> losses;
        std::optional<CompiledGraph> run;
        for (const auto& [batch, time] : {std::pair{2, 5}, {4, 3}, {1, 7}, {2, 5}, {2, 5}}) {
            const Tensor x = randn({batch, time, 3}), lengths = lengths_for(batch, time), y = arange(batch) % 2;
            if (!is_traced) {
                losses.push_back(step(x, lengths, y).item());
            } else if (!run) {
                const Graph graph = trace(step, {{"x", x, {"batch", "time"}}, {"lengths", lengths, {"batch"}}, {"y", y, {"batch"}}});
                run = graph.compile();
                losses.push_back(0);  // the trace was the first step
            } else {
                losses.push_back((*run)({x, lengths, y})[0].item());
            }
        }
        std::vector<Tensor> ends;
        for (const Tensor& p : parameters) ends.push_back(p.detach().clone());
        return std::pair(losses, ends);
    };
    const auto [losses, parameters] = trained(false);
    const auto [traced_losses, traced_parameters] = trained(true);
    for (std::size_t i = 1; i < losses.size(); ++i) CHECK(traced_losses[i] == Approx(losses[i]).epsilon(1e-5));
    for (std::size_t i = 0; i < parameters.size(); ++i) CHECK(allclose(traced_parameters[i], parameters[i], 1e-4, 1e-6));
}

TEST_CASE("gradients of graphs go through sequences of any length") {
    manual_seed(6);
    nn::GRU gru(3, 4, {.bidirectional = true});
    const Graph graph =
        trace([&](const Tensor& x) { return gru(x).output.square().sum(); }, {{"x", randn({5, 2, 3}), {"time", "batch"}}}, {.outputs = {"loss"}});
    const Graph gradient = grad(graph, {"loss"}, {"x"});
    for (const int time : {1, 4, 9}) {
        const Tensor x = randn({time, 3, 3}).requires_grad_();
        Tape tape;
        const Tensor expected = tape.gradient(gru(x).output.square().sum(), {x})[0];
        CHECK(allclose(gradient.run({{"x", x}}, {"grad_x"})[0], expected, 1e-4, 1e-5));
    }
}

TEST_CASE("what else than a sequence does not go for other sizes is refused") {
    nn::LSTM lstm(3, 4, {.batch_first = true});
    const auto fn = [&](const Tensor& x) {
        Tensor y = lstm(x).output;
        return x.size(1) > 4 ? y * 2 : y;
    };
    FAILS(TapeError, "trace: with batch = 1, time = 1 the graph does not do what the program does",
          trace(fn, {{"x", randn({2, 5, 3}), {"batch", "time"}}}));
}

TEST_CASE("check_trace compares a scan of the program's own beside a sequence") {
    manual_seed(7);
    nn::LSTM lstm(3, 4);
    const auto fn = [&](const Tensor& x) {
        return scan([](const Tensor& h, const Tensor& y) { return std::pair{h + y, h}; }, {zeros({2, 4})}, {lstm(x).output}).outputs[0];
    };
    const Graph graph = trace(fn, {{"x", randn({5, 2, 3})}});
    CHECK(check_trace(graph, fn, {randn({5, 2, 3})}).ok);
    nn::LSTM other(3, 4);
    const auto differs = [&](const Tensor& x) {
        return scan([](const Tensor& h, const Tensor& y) { return std::pair{h + y, h}; }, {zeros({2, 4})}, {other(x).output}).outputs[0];
    };
    CHECK_FALSE(check_trace(graph, differs, {randn({5, 2, 3})}, {.raise_exception = false}).ok);
}
