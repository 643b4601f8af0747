// Several threads at once: that trace, that run one graph, that change copies of it. (make tsan runs this with the thread
// sanitizer.)
#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <optional>
#include <stdexcept>
#include <thread>

#include "tapir/autograd/trace/graphs.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

constexpr int kThreads = 3;

// Runs f(0), f(1), ... at once, as far as the machine does; what one throws fails the test.
void at_once(const std::function<void(int)>& f) {
    std::atomic<int> ready = 0;
    std::vector<std::string> errors(kThreads);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
            ++ready;
            while (ready < kThreads) std::this_thread::yield();
            try {
                f(t);
            } catch (const std::exception& error) {
                errors[static_cast<std::size_t>(t)] = error.what();
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& error : errors) CHECK(error == "");
}

// In a thread, where Catch2 cannot be asked.
void expect(const Tensor& y, const Tensor& wanted) {
    if (!allclose(y.detach(), wanted.detach(), 1e-5, 1e-6)) throw std::runtime_error("another result");
}

struct Net : nn::Module {
    nn::Linear first{4, 8}, second{8, 3};
    void members(nn::Members& m) override { m("first", first)("second", second); }
    Tensor forward(const Tensor& x) const { return second(relu(first(x))); }
};

// A loop, a branch, and random numbers.
Tensor program(const Net& net, const Tensor& x) {
    const Tensor y = cond(x.sum() > 0, [&] { return net.forward(x); }, [&] { return -net.forward(x); });
    const Tensor z = while_loop([](const Tensor& h) { return h.abs().sum() > 1; }, [](const Tensor& h) { return h / 2; }, {y})[0];
    return z + dropout(z, 0.5, /*training=*/true) * 0;
}

}  // namespace

TEST_CASE("several threads trace at once") {
    manual_seed(1);
    const Net net;  // whose parameters get their names meanwhile
    std::vector<std::string> listings(kThreads);
    at_once([&](int t) {
        for (int i = 0; i < 5; ++i) {
            const Tensor x = randn({t + 2, 4});
            const auto fn = [&](const Tensor& a) { return program(net, a); };
            const Graph graph = trace(net, {{"x", x, {"batch"}}});
            const Tensor other = randn({7, 4});
            expect(graph({other})[0], net.forward(other));
            listings[static_cast<std::size_t>(t)] = graph.str();
            if (!check_trace(graph, net, {other})) throw std::runtime_error("check_trace");
            const Graph control = trace(fn, {{"x", x, {"batch"}}});
            expect(control({other})[0], program(net, other));
        }
    });
    for (const std::string& listing : listings) {
        CHECK(listing == listings[0]);
        CHECK(listing.find("parameter first.weight") != std::string::npos);
    }
}

TEST_CASE("one thread traces while others train the model and watch themselves") {
    manual_seed(2);
    const Net net;
    net.named_parameters();
    const Tensor x = randn({5, 4});
    const Tensor wanted = net.forward(x).detach();
    at_once([&](int t) {
        for (int i = 0; i < 5; ++i) {
            if (t == 0) {
                const Graph graph = trace(net, {{"x", x, {"batch"}}});
                expect(graph({x})[0], wanted);
                if (graph.nodes().size() != 3) throw std::runtime_error("ops of others are in the graph");
            } else {
                std::optional<Profiler> profiler;  // there is one at a time
                if (t == 1) profiler.emplace();
                const CheckFiniteScope check;
                Tape tape;
                tape.backward(net.forward(x).sum());
                if (profiler) profiler->stop();
            }
        }
    });
    const Tensor sum = net.first.weight.grad();
    const_cast<Net&>(net).zero_grad();
    {
        Tape tape;
        tape.backward(net.forward(x).sum());
    }
    CHECK(allclose(sum, net.first.weight.grad() * (5 * (kThreads - 1)), 1e-4, 1e-5));
}

TEST_CASE("several threads run a graph in all ways") {
    manual_seed(3);
    const Net net;
    const Tensor example = randn({2, 4});
    const Graph graph = trace([&](const Tensor& x) { return program(net, x); }, {{"x", example, {"batch"}}});
    std::vector<Tensor> inputs, wanted;
    for (int t = 0; t < kThreads; ++t) {
        inputs.push_back(randn({t + 2, 4}));
        wanted.push_back(graph({inputs.back()})[0].detach());
    }
    const CompiledGraph shared = graph.compile();
    const_cast<Net&>(net).zero_grad();
    at_once([&](int t) {
        const auto own = static_cast<std::size_t>(t);
        for (int i = 0; i < 10; ++i) {
            const std::size_t k = (own + static_cast<std::size_t>(i)) % kThreads;
            expect(shared(inputs[k]), wanted[k]);
            expect(graph.compile()(inputs[k]), wanted[k]);
            expect(graph.run({{"x", inputs[k]}})[0], wanted[k]);
            Tape tape;
            const Tensor y = graph({inputs[k]})[0];
            expect(y, wanted[k]);
            tape.backward(y.sum());
            static_cast<void>(shared.planned_bytes());
        }
    });
    CHECK(net.first.weight.grad().defined());
}

TEST_CASE("several threads change and write down copies of a graph") {
    manual_seed(4);
    Net net;
    const Tensor x = randn({2, 4});
    const Graph graph = trace(net, {{"x", x, {"batch"}}}, {.outputs = {"y"}});
    const Tensor wanted = graph({x})[0].detach();
    Graph::Inputs weights;
    for (const auto& [name, tensor] : net.named_parameters()) weights.emplace_back(name, tensor);
    at_once([&](int) {
        for (int i = 0; i < 3; ++i) {
            Graph own = graph;
            optimize(own);
            freeze(own);
            expect(own.run({{"x", x}})[0], wanted);
            const Graph gradient = grad(graph, {"y"}, {"x", "first.weight"});
            gradient.run({{"x", x}});
            const Graph read = Graph::parse(gradient.str(), weights);
            if (read.str() != gradient.str() || gradient.to_svg().empty()) throw std::runtime_error("another listing");
        }
    });
}

TEST_CASE("several threads write a graph down while others run it") {
    const Graph graph = trace([](const Tensor& x) { return x.sum(0) + x.amax(0); }, {{"x", ones({2, 3})}});
    const std::string wanted = graph.str();
    const Tensor x = ones({2, 3});
    at_once([&](int t) {
        for (int i = 0; i < 300; ++i) {
            if (t == 0 && graph.str() != wanted) throw std::runtime_error("another listing");
            if (t > 0) expect(graph({x})[0], full({3}, 3.0));
        }
    });
}
