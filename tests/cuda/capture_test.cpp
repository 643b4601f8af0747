// Graphs whose runs are captured into CUDA Graphs: that they compute what the program does, on other inputs, sizes, streams and threads, and
// with ops in them that cannot be captured.
#include <optional>
#include <random>
#include <thread>

#include "compare.h"
#include "tapir/autograd/trace/trace.h"
#ifdef TAPIR_CUDA_EMULATED
#include <cuda_runtime.h>
#endif

using namespace tapir;

namespace {

// How many graphs have been launched; where that is not told, what makes the check pass.
int graphs_launched([[maybe_unused]] int otherwise) {
#ifdef TAPIR_CUDA_EMULATED
    return emulator::graphs_launched();
#else
    return otherwise;
#endif
}
#ifdef TAPIR_CUDA_EMULATED
constexpr bool kIsCounted = true;
#else
constexpr bool kIsCounted = false;
#endif

struct Net {
    Tensor w1, b1, w2, b2;
    explicit Net(unsigned seed = 1, DType dtype = float32) {
        manual_seed(seed);
        w1 = (randn({16, 8}, dtype) * 0.3).to(cuda).requires_grad_();
        b1 = randn({16}, dtype).to(cuda).requires_grad_();
        w2 = (randn({4, 16}, dtype) * 0.3).to(cuda).requires_grad_();
        b2 = randn({4}, dtype).to(cuda).requires_grad_();
    }
    Tensor operator()(const Tensor& x) const { return log_softmax(linear(tanh(linear(x, w1, b1)) * 2 + 0.5, w2, b2), -1); }
};

Tensor input(unsigned seed, std::int64_t rows = 5, DType dtype = float32) {
    manual_seed(seed);
    return randn({rows, 8}, dtype).to(cuda);
}

}  // namespace

TEST_CASE("a graph is captured in its second run, and run again from then on", "[cuda]") {
    NEEDS_CUDA;
    const Net net;
    const CompiledGraph run = trace([&](const Tensor& x) { return net(x); }, {{"x", input(1)}}).compile();
    std::vector<Tensor> have, want;
    for (unsigned i = 0; i < 6; ++i) {
        const int before = graphs_launched(0);
        have.push_back(run(input(i)));
        if (kIsCounted) CHECK(graphs_launched(0) - before == (i > 0 ? 1 : 0));
        want.push_back(net(input(i)).detach());
    }
    // What earlier runs gave is still there.
    for (std::size_t i = 0; i < have.size(); ++i) test::check_close(have[i], want[i], 1e-6);
    CHECK(run.planned_bytes() > 0);
#ifdef TAPIR_CUDA_EMULATED
    const Tensor x = input(9);
    const int kernels = emulator::kernels_launched();
    const Tensor y = run(x);
    CHECK(emulator::kernels_launched() == kernels);
#endif
}

TEST_CASE("captured runs of other sizes", "[cuda]") {
    NEEDS_CUDA;
    const Net net;
    const CompiledGraph run = trace([&](const Tensor& x) { return net(x); }, {{"x", input(1), {"rows", ""}}}).compile();
    for (int round = 0; round < 4; ++round) {
        for (const std::int64_t rows : {3, 7, 5, 1}) {
            const Tensor x = input(static_cast<unsigned>(rows + round * 10), rows);
            test::check_close(run(x), net(x).detach(), 1e-6);
        }
    }
}

TEST_CASE("captured runs read parameters as they are now", "[cuda]") {
    NEEDS_CUDA;
    const Net net;
    const CompiledGraph run = trace([&](const Tensor& x) { return net(x); }, {{"x", input(1)}}).compile();
    for (unsigned i = 0; i < 5; ++i) {
        test::check_close(run(input(i)), net(input(i)).detach(), 1e-6);
        const NoGradScope pause;
        Tensor w = net.w1;
        w.mul_(0.9).add_(0.01);
    }
}

TEST_CASE("inputs may go, and lie elsewhere, between captured runs", "[cuda]") {
    NEEDS_CUDA;
    const Net net;
    const CompiledGraph run = trace([&](const Tensor& x) { return net(x); }, {{"x", input(1)}}).compile();
    std::vector<Tensor> more;
    for (unsigned i = 0; i < 6; ++i) {
        Tensor x = input(i), given = i % 3 == 0 ? x.clone() : i % 3 == 1 ? test::shifted(x) : x.transpose(0, 1).contiguous().transpose(0, 1);
        const Tensor want = net(x).detach();
        const Tensor y = run(given);
        given.fill_(1e30);  // after it was read
        given = Tensor();
        // Memory that the graph owns is nobody else's.
        for (int k = 0; k < 40; ++k) more.push_back(full({static_cast<std::int64_t>(8 + 16 * k)}, 1e30, cuda));
        test::check_close(y, want, 1e-6);
        if (i % 2) more.clear();
    }
}

TEST_CASE("what a captured graph holds is given back with it", "[cuda]") {
    NEEDS_CUDA;
    const Net net;
    const Tensor x = input(1);
    synchronize();
    const auto before = memory_stats(cuda).live_bytes;
    {
        const CompiledGraph run = trace([&](const Tensor& t) { return net(t); }, {{"x", x}}).compile();
        for (int i = 0; i < 3; ++i) static_cast<void>(run(x));
        CHECK(memory_stats(cuda).live_bytes >= before + static_cast<std::int64_t>(run.planned_bytes()));
        CHECK(run.planned_bytes() > 0);
        empty_cache(cuda);
        test::check_close(run(x), net(x).detach(), 1e-6);
    }
    synchronize();
    CHECK(memory_stats(cuda).live_bytes == before);
}

TEST_CASE("ops that cannot be captured run between what is", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(5);
    const Tensor table = randn({12, 8}).to(cuda), w = (randn({8, 8}) * 0.3).to(cuda);
    const auto indices = [](unsigned seed) {
        manual_seed(seed);
        return randint(0, 12, {6}).to(cuda);
    };
    SECTION("an op that looks at indices") {
        const auto program = [&](const Tensor& x, const Tensor& index) {
            const Tensor h = tanh(matmul(x, w)) * 2 + sigmoid(x);
            const Tensor e = gather(h, 0, index.unsqueeze(1).expand({6, 8})) * 0.5 + embedding(index, table);
            return softmax(matmul(tanh(e), w), -1);
        };
        const CompiledGraph run = trace(program, {{"x", randn({12, 8}).to(cuda)}, {"index", indices(1)}}).compile();
        for (unsigned i = 0; i < 5; ++i) {
            const Tensor x = randn({12, 8}).to(cuda), index = indices(i);
            const int before = graphs_launched(0);
            test::check_close(run.call<1>(x, index)[0], program(x, index), 1e-6);
            if (kIsCounted && i > 0) CHECK(graphs_launched(0) - before == 1);
        }
        // A mistake is still found, and what was captured is good afterwards.
        const Tensor x = randn({12, 8}).to(cuda), wrong = full({6}, 12, {int64, cuda});
        CHECK_THROWS_AS(static_cast<void>(run.call<1>(x, wrong)[0].to(cpu)), IndexError);
        for (unsigned i = 0; i < 3; ++i) test::check_close(run.call<1>(x, indices(i))[0], program(x, indices(i)), 1e-6);
    }
    SECTION("random numbers, which are others each time") {
        const auto program = [&](const Tensor& x) { return tanh(matmul(dropout(sigmoid(matmul(x, w)) * 2 - 0.25, 0.5), w)) + 1; };
        const CompiledGraph run = trace(program, {{"x", randn({12, 8}).to(cuda)}}).compile();
        std::vector<Tensor> have, want;
        const Tensor x = randn({12, 8}).to(cuda);
        manual_seed(11);
        for (int i = 0; i < 5; ++i) have.push_back(run(x));
        manual_seed(11);
        for (int i = 0; i < 5; ++i) want.push_back(program(x));
        for (std::size_t i = 0; i < 5; ++i) test::check_close(have[i], want[i], 1e-6);
        CHECK_FALSE(equal(want[3], want[4]));
    }
    SECTION("sizes that depend on data") {
        const auto program = [&](const Tensor& x) {
            const Tensor h = tanh(matmul(x, w)) * 2 + 0.25, some = masked_select(h, h > 0);
            return exp(some * 0.5) + some;
        };
        const CompiledGraph run = trace(program, {{"x", randn({12, 8}).to(cuda)}}).compile();
        for (int i = 0; i < 6; ++i) {
            const Tensor x = i == 3 ? full({12, 8}, 0.0).to(cuda) : randn({12, 8}).to(cuda);
            test::check_close(run(x), program(x), 1e-6);
        }
    }
    SECTION("linear algebra by libraries") {
        const auto program = [&](const Tensor& x) {
            const Tensor h = matmul(x, x.transpose(0, 1)) * 0.5 + eye(8).to(cuda);
            return tanh(linalg::solve(h, sigmoid(x))) * 2 - x;
        };
        Tensor x = randn({8, 8}).to(cuda);
        const CompiledGraph run = trace(program, {{"x", x}}).compile();
        for (int i = 0; i < 5; ++i) {
            x = randn({8, 8}).to(cuda);
            test::check_close(run(x), program(x), 1e-5);
        }
    }
}

TEST_CASE("what a captured op does not take is told of by its line", "[cuda]") {
    NEEDS_CUDA;
    const Tensor table = randn({12, 8}).to(cuda), w = randn({8, 8}).to(cuda);
    const auto program = [&](const Tensor& index) { return tanh(matmul(embedding(index, table), w)); };
    const Tensor good = tensor({1, 11, 0}).to(cuda), bad = tensor({1, 12, 0}).to(cuda), want = program(good);
    std::optional<CompiledGraph> run = trace(program, {{"index", good}}).compile();
    for (int i = 0; i < 3; ++i) test::check_close((*run)(good), want, 1e-6);
    const std::string message = "capture_test.cpp:" + std::to_string(__LINE__ - 4) + ": embedding: index 12";
    for (const bool is_destroyed : {false, true}) {
        const Tensor y = (*run)(bad);
        if (is_destroyed) run.reset();
        std::string what;
        try {
            synchronize();
        } catch (const IndexError& error) {
            what = error.what();
        }
        CHECK(what.substr(0, message.size()) == message);
        if (is_destroyed) break;
        test::check_close((*run)(good), want, 1e-6);
    }
    synchronize();
    // Slots that were given back are lent again.
    for (int i = 0; i < 3; ++i) {
        const CompiledGraph other = trace(program, {{"index", good}}).compile();
        for (int k = 0; k < 3; ++k) test::check_close(other(good), want, 1e-6);
        const SyncScope wait;
        CHECK_THROWS_AS(static_cast<void>(other(bad)), IndexError);
        test::check_close(other(good), want, 1e-6);
    }
}

TEST_CASE("results of captured runs that show inputs, parameters and each other", "[cuda]") {
    NEEDS_CUDA;
    const Tensor w = randn({6, 4}).to(cuda).requires_grad_();
    const auto program = [&](const Tensor& x) {
        const Tensor h = tanh(x * 2) + sigmoid(matmul(x, w)).sum() + exp(x);
        return std::vector<Tensor>{h, h.transpose(0, 1), narrow(h, 0, 1, 2), w.transpose(0, 1), h};
    };
    const CompiledGraph run = trace(program, {{"x", randn({3, 6}).to(cuda)}}).compile();
    for (int i = 0; i < 4; ++i) {
        const Tensor x = randn({3, 6}).to(cuda);
        std::vector<Tensor> have = run(std::vector<Tensor>{x});
        const std::vector<Tensor> want = program(x);
        for (std::size_t k = 0; k < want.size(); ++k) test::check_close(have[k], want[k].detach(), 1e-6);
        CHECK(have[3].shares_storage(w));
        have[0].fill_(0);  // the next run makes its own
    }
    const auto shows = [&](const Tensor& x) { return std::vector<Tensor>{x.transpose(0, 1), tanh(matmul(x, w)) * 2, softmax(x, -1)}; };
    const CompiledGraph other = trace(shows, {{"x", randn({3, 6}).to(cuda)}}).compile();
    for (int i = 0; i < 4; ++i) {
        const Tensor x = randn({3, 6}).to(cuda);
        const std::vector<Tensor> have = other(std::vector<Tensor>{x}), want = shows(x);
        for (std::size_t k = 0; k < want.size(); ++k) test::check_close(have[k], want[k].detach(), 1e-6);
        CHECK(have[0].shares_storage(x));
    }
}

TEST_CASE("captured runs of threads at once, each on a stream of its own", "[cuda]") {
    NEEDS_CUDA;
    const Net net;
    const CompiledGraph run = trace([&](const Tensor& x) { return net(x); }, {{"x", input(1)}}).compile();
    std::vector<Tensor> inputs, want;
    for (unsigned i = 0; i < 24; ++i) {
        inputs.push_back(input(i));
        want.push_back(net(inputs.back()).detach());
    }
    synchronize();
    std::vector<Tensor> have(inputs.size());
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] {
            const Stream own(cuda);
            const StreamScope scope(own);
            for (std::size_t i = t; i < inputs.size(); i += 3) have[i] = run(inputs[i]);
            own.synchronize();
        });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::size_t i = 0; i < inputs.size(); ++i) test::check_close(have[i], want[i], 1e-6);
}

TEST_CASE("a captured run waits for the one before it on another stream", "[cuda]") {
    NEEDS_CUDA;
    const Net net;
    const CompiledGraph run = trace([&](const Tensor& x) { return net(x); }, {{"x", input(1)}}).compile();
    for (unsigned i = 0; i < 2; ++i) static_cast<void>(run(input(i)));
    const Tensor a = input(5), b = input(6), want_a = net(a).detach(), want_b = net(b).detach();
    const Stream first(cuda), second(cuda);
    synchronize();
    Tensor y, z;
#ifdef TAPIR_CUDA_EMULATED
    emulator::hold(static_cast<cudaStream_t>(first.native_handle()));
#endif
    {
        const StreamScope scope(first);
        y = run(a);
    }
    {
        const StreamScope scope(second);
        z = run(b);
    }
#ifdef TAPIR_CUDA_EMULATED
    CHECK_FALSE(second.query());  // what it would overwrite is not read yet
    emulator::release(static_cast<cudaStream_t>(first.native_handle()));
#endif
    synchronize();
    test::check_close(y, want_a, 1e-6);
    test::check_close(z, want_b, 1e-6);
}

#ifdef TAPIR_CUDA_EMULATED
TEST_CASE("errors while a graph is captured leave everything as it was", "[cuda]") {
    const Net net;
    const CompiledGraph run = trace([&](const Tensor& x) { return net(x); }, {{"x", input(1)}}).compile();
    static_cast<void>(run(input(0)));
    const Tensor x = input(3), want = net(x).detach();
    synchronize();
    SECTION("of a launch") { emulator::fail_next_launch(cudaErrorInvalidConfiguration); }
    SECTION("of the graph") { emulator::fail_next_graph(cudaErrorMemoryAllocation); }
    SECTION("of memory") { emulator::set_memory(static_cast<std::size_t>(memory_stats(cuda).live_bytes + memory_stats(cuda).cached_bytes)); }
    CHECK(Stream::current(cuda) == Stream::default_stream(cuda));
    for (unsigned i = 0; i < 4; ++i) test::check_close(run(x), want, 1e-6);
    CHECK(Stream::current(cuda) == Stream::default_stream(cuda));
    emulator::set_memory(std::size_t{256} << 20);
    test::check_close(run(input(4)), net(input(4)).detach(), 1e-6);
}
#endif

TEST_CASE("a graph that was captured runs while a profiler looks", "[cuda]") {
    NEEDS_CUDA;
    const Net net;
    const CompiledGraph run = trace([&](const Tensor& x) { return net(x); }, {{"x", input(1)}}).compile();
    for (unsigned i = 0; i < 3; ++i) static_cast<void>(run(input(i)));
    Tensor y;
    {
        Profiler profiler;
        y = run(input(7));
        profiler.stop();
    }
    test::check_close(y, net(input(7)).detach(), 1e-6);
    test::check_close(run(input(8)), net(input(8)).detach(), 1e-6);
}

TEST_CASE("training steps whose updates follow what is captured", "[cuda]") {
    NEEDS_CUDA;
    const bool is_adam = GENERATE(false, true);
    Net traced(3, float64), eager(3, float64);
    const auto weights = [](const Net& net) { return std::vector<Tensor>{net.w1, net.b1, net.w2, net.b2}; };
    const Tensor target = tensor({0, 1, 2, 3, 0}).to(cuda);
    const auto step_of = [&](Net& net, auto& optimizer) {
        return [&](const Tensor& x) {
            Tape tape;
            const Tensor loss = nll_loss(net(x), target);
            tape.backward(loss);
            optimizer.step();
            optimizer.zero_grad();
            return loss;
        };
    };
    const auto both = [&](auto& of_traced, auto& of_eager) {
        const auto traced_step = step_of(traced, of_traced), eager_step = step_of(eager, of_eager);
        const CompiledGraph run = trace(traced_step, {{"x", input(1, 5, float64)}}).compile();
        static_cast<void>(eager_step(input(1, 5, float64)));  // which the trace was too
        for (unsigned i = 0; i < 6; ++i) {
            const Tensor x = input(i, 5, float64);
            test::check_close(run(x), eager_step(x).detach(), 1e-9);
        }
        for (std::size_t k = 0; k < 4; ++k) test::check_close(weights(traced)[k].detach(), weights(eager)[k].detach(), 1e-9);
    };
    if (is_adam) {
        optim::Adam a(weights(traced), {.lr = 0.01}), b(weights(eager), {.lr = 0.01});
        both(a, b);
    } else {
        optim::SGD a(weights(traced), {.lr = 0.1, .momentum = 0.9}), b(weights(eager), {.lr = 0.1, .momentum = 0.9});
        both(a, b);
    }
}

namespace {

// Chains and branches of random ops, some of which cannot be captured.
std::vector<Tensor> random_program(unsigned seed, const std::vector<Tensor>& x) {
    std::mt19937 random(seed);
    const auto pick = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
    std::vector<Tensor> values = x;
    for (int i = 0; i < 16; ++i) {
        const Tensor &a = values[pick(values.size())], &b = values[pick(values.size())];
        switch (pick(12)) {
            case 0: values.push_back(a + b); break;
            case 1: values.push_back(tanh(a * b)); break;
            case 2: values.push_back(matmul(a, b.transpose(0, 1)) * 0.1); break;
            case 3: values.push_back(sigmoid(a) - b); break;
            case 4: values.push_back(a.transpose(0, 1)); break;
            case 5: values.push_back(maximum(a, b)); break;
            case 6: values.push_back(softmax(a, -1)); break;
            case 7: values.push_back(cat({narrow(a, 0, 0, 2), narrow(b, 0, 2, 4)}, 0)); break;
            case 8: values.push_back(a + sum(b, {-1}, true)); break;
            case 9: values.push_back(index_select(a, 0, argmax(b, 1))); break;  // it looks at indices
            case 10: values.push_back(dropout(a, 0.25)); break;
            default: values.push_back(a.transpose(0, 1).contiguous() + 1); break;
        }
    }
    return {values.back(), values[values.size() - 4], values[x.size() + pick(12)]};
}

}  // namespace

TEST_CASE("random programs with captured stretches", "[cuda]") {
    NEEDS_CUDA;
    for (unsigned seed = 0; seed < 25; ++seed) {
        INFO("seed " << seed);
        const auto draw = [](unsigned n) {
            manual_seed(n);
            return std::vector<Tensor>{randn({6, 6}, float64).to(cuda), randn({6, 6}, float64).to(cuda)};
        };
        const std::vector<Tensor> first = draw(1000);
        const CompiledGraph run =
            trace([&](const Tensor& x, const Tensor& y) { return random_program(seed, {x, y}); }, {{"x", first[0]}, {"y", first[1]}}).compile();
        std::vector<std::vector<Tensor>> have;
        for (unsigned i = 0; i < 4; ++i) {
            std::vector<Tensor> x = draw(i), given;
            for (const std::string& name : run.inputs()) given.push_back(name == "x" ? x[0] : x[1]);
            manual_seed(77 + i);
            have.push_back(run(given));
        }
        for (unsigned i = 0; i < 4; ++i) {
            const std::vector<Tensor> x = draw(i);
            manual_seed(77 + i);
            const std::vector<Tensor> want = random_program(seed, x);
            for (std::size_t k = 0; k < want.size(); ++k) {
                INFO("run " << i << ", output " << k);
                test::check_close(have[i][k], want[k], 1e-9);
            }
        }
    }
}
