// Branches and loops of compiled graphs, whose parts run as plans: the numbers are those of the functions, run after run, whatever is carried.
#include <catch2/catch.hpp>

#include <thread>

#include "../../fails.h"
#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/graph/grad.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/autograd/watch/profiler.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

using Tensors = std::vector<Tensor>;

// Run again and again, with what the last run gave kept and not kept: plans write to the same memory in turns.
template <class Fn>
void check_runs(const Fn& fn, const std::vector<Tensors>& samples) {
    std::vector<TraceInput> inputs;
    for (std::size_t i = 0; i < samples[0].size(); ++i) inputs.push_back({"x" + std::to_string(i), samples[0][i]});
    const Graph graph = trace(fn, inputs);
    INFO(graph.str());
    const CompiledGraph run = graph.compile();
    std::vector<std::pair<Tensors, Tensors>> kept;
    for (int round = 0; round < 4; ++round) {
        for (const Tensors& x : samples) {
            const Tensors want = fn(x), got = run(x);
            REQUIRE(got.size() == want.size());
            for (std::size_t i = 0; i < want.size(); ++i) {
                CHECK(got[i].shape() == want[i].shape());
                CHECK(got[i].dtype() == want[i].dtype());
                CHECK(allclose(got[i], want[i], 1e-6, 1e-7));
            }
            if (round % 2 == 1) kept.emplace_back(want, got);
        }
    }
    for (const auto& [want, got] : kept) {
        for (std::size_t i = 0; i < want.size(); ++i) CHECK(allclose(got[i], want[i], 1e-6, 1e-7));
    }
}

Tensor count(std::int64_t n) { return full({}, n, int64); }

}  // namespace

TEST_CASE("what is carried changes places, is shown, and stays") {
    const Tensor w = randn({4, 4}) / 3;
    const auto fn = [&](const Tensors& x) {
        // Fibonacci's numbers swap places; a matrix is turned around; the third is never touched.
        return while_loop([](const Tensors& now) { return now[3] > 0; },
                          [&](const Tensors& now) { return Tensors{now[1], now[0] + now[1], now[2].t(), now[3] - 1, matmul(now[4].t(), w)}; },
                          {x[0], x[1], x[2], x[3], x[2]});
    };
    const Tensor m = randn({4, 4});
    check_runs(fn,
               {{ones({}), ones({}), m, count(9)},
                {ones({}), zeros({}), m + 1, count(0)},
                {zeros({}), ones({}), -m, count(1)},
                {ones({}) * 2, ones({}), m, count(30)}});
}

TEST_CASE("a scan along strided slices, which its steps give back") {
    const auto fn = [](const Tensors& x) {
        const ScanResult r = scan(
            [](const Tensors& now) {
                const Tensor h = tanh(now[0] + now[1] * now[2]);
                return Tensors{h, now[1], h, now[2], h.sum(), now[0]};
            },
            {x[0], x[0]}, {x[1].t()}, {.reverse = true});
        Tensors all = r.carry;
        all.insert(all.end(), r.outputs.begin(), r.outputs.end());
        return all;
    };
    check_runs(fn, {{randn({3}), randn({3, 5})}, {randn({3}), randn({3, 5})}});
}

TEST_CASE("a scan of any length, with int64 and bool among what is carried") {
    const auto fn = [](const Tensor& h, const Tensor& xs) {
        return scan(
                   [](const Tensors& now) {
                       const Tensor seen = logical_or(now[1], now[3] > 1);
                       return Tensors{now[0] * 0.5 + now[3], seen, now[2] + 1, now[2]};
                   },
                   {h, full({}, false, bool_), count(0)}, {xs})
            .carry;
    };
    const Graph graph = trace(fn, {{"h", zeros({})}, {"xs", randn({4}), {"time"}}});
    const CompiledGraph run = graph.compile();
    for (int round = 0; round < 3; ++round) {
        for (const std::int64_t time : {4, 1, 9, 0, 2}) {
            const Tensor h = randn({}), xs = randn({time});
            const Tensors want = fn(h, xs), got = run(Tensors{h, xs});
            for (std::size_t i = 0; i < 3; ++i) CHECK(allclose(got[i].to(float32), want[i].to(float32)));
        }
    }
}

TEST_CASE("a loop in a branch in a loop") {
    const Tensor w = randn({3, 3}) / 2;
    const auto fn = [&](const Tensors& x) {
        const Tensors end = while_loop(
            [](const Tensor&, const Tensor& i) { return i < 5; },
            [&](const Tensor& h, const Tensor& i) {
                const Tensor next = cond(
                    h.sum() > 0,
                    [&] { return while_loop([](const Tensor& y) { return y.abs().sum() > 1; }, [](const Tensor& y) { return y / 2; }, {h})[0]; },
                    [&] { return scan([](const Tensor& y, const Tensor& row) { return Tensors{tanh(y - row)}; }, {h}, {w}).carry[0] + 1; });
                return Tensors{matmul(next, w) + 0.1, i + 1};
            },
            {x[0], count(0)});
        return Tensors{end[0]};
    };
    check_runs(fn, {{randn({3})}, {randn({3})}, {ones({3}) * -2}});
}

TEST_CASE("a branch or loop whose first run gives its operand back, which lies in planned memory") {
    const Tensor m = ones({2, 2});
    const auto branch = [&](const Tensors& x) {
        const Tensor y = matmul(x[0], m);
        return Tensors{matmul(cond(y.sum() > 0, [&] { return y * 10; }, [&] { return y; }), m)};
    };
    check_runs(branch, {{full({2, 2}, -1.0)}, {full({2, 2}, -1.0)}, {full({2, 2}, 1.0)}, {full({2, 2}, 2.0)}});
    const auto loop = [&](const Tensors& x) {
        const Tensor y = matmul(x[0], m);
        return Tensors{matmul(while_loop([](const Tensor& h) { return h.sum() > 1; }, [](const Tensor& h) { return h / 2; }, {y})[0], m)};
    };
    check_runs(loop, {{full({2, 2}, 0.01)}, {full({2, 2}, 0.01)}, {full({2, 2}, 8.0)}, {full({2, 2}, 3.0)}});
}

TEST_CASE("gradients of loops keep their steps") {
    const Tensor w = (randn({3, 3}, float64) / 2).requires_grad_();
    const auto fn = [&](const Tensor& x) {
        const Tensor end =
            while_loop([](const Tensor& h) { return h.norm() > 0.5; }, [&](const Tensor& h) { return tanh(matmul(h, w)) * 0.7; }, {x})[0];
        return scan([&](const Tensor& h, const Tensor& row) { return tanh(h * row); }, {end}, {w}).carry[0].sum();
    };
    const CompiledGraph run = grad(trace(fn, {{"x", ones({3}, float64)}}), {"output"}, {"x", "parameter_0"}).compile();
    for (int round = 0; round < 4; ++round) {
        for (const double scale : {0.01, 3.0, 0.4, 30.0}) {  // no step, and some
            const Tensor x = (ones({3}, float64) * scale).requires_grad_();
            Tape tape;
            const Tensor y = fn(x);
            const Tensors want = tape.gradient(y, {x, w}), got = run(Tensors{x.detach()});
            CHECK(allclose(got[0], y));
            CHECK(allclose(got[1], want[0]));
            CHECK(allclose(got[2], want[1]));
        }
    }
}

TEST_CASE("an error in a step, and what runs after it") {
    const auto fn = [](const Tensor& x, const Tensor& index) {
        return while_loop([](const Tensor&, const Tensor& i) { return i < 3; },
                          [&](const Tensor& h, const Tensor& i) { return Tensors{h + x.index_select(0, (index + i).reshape({1})).sum(), i + 1}; },
                          {zeros({}), count(0)})[0];
    };
    const Tensor x = arange(6).to(float32);
    const CompiledGraph run = trace(fn, {{"x", x}, {"index", count(1)}}).compile();
    for (int i = 0; i < 3; ++i) {
        CHECK(run(x, count(2)).item() == 2 + 3 + 4);
        CHECK_THROWS_AS(run(x, count(4)), IndexError);
        CHECK(run(x, count(0)).item() == 0 + 1 + 2);
    }
}

TEST_CASE("steps of a scan whose outputs have sizes that depend on data") {
    const Graph graph = Graph::parse(
        "input xs: float32 (2, 2)\n%1: int64 (2, 1, 1) = scan(xs, body={\n    input a: float32 (2,)\n"
        "    %1: int64 (1, 1) = nonzero(a)\n    output o = %1\n}, carries=0, xs=1, reverse=false, keep_steps=false)\noutput y = %1\n");
    CHECK(graph.run({{"xs", tensor({1.0F, 0.0F, 0.0F, 2.0F}).view({2, 2})}})[0].to_vector<int>() == std::vector<int>{0, 1});
    for (int i = 0; i < 3; ++i) {
        FAILS(ShapeError, "scan: output 0 has shape (2, 1), and (1, 1) before", graph.run({{"xs", tensor({1.0F, 0.0F, 3.0F, 2.0F}).view({2, 2})}}));
    }
}

TEST_CASE("threads run one loop, and a profiler sees its ops") {
    const auto fn = [](const Tensor& x) {
        return while_loop([](const Tensor& h) { return h.sum() < 100; }, [](const Tensor& h) { return h * 1.5 + 1; }, {x})[0];
    };
    const Graph graph = trace(fn, {{"x", ones({4})}});
    const CompiledGraph run = graph.compile();
    std::vector<int> wrong(4, 0);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < wrong.size(); ++t) {
        threads.emplace_back([&, t] {
            for (int i = 0; i < 50; ++i) {
                const Tensor x = full({4}, static_cast<double>(t) + i * 0.1);
                wrong[t] += !allclose(run(x), fn(x));
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == std::vector<int>(4, 0));
    Profiler profiler;
    const Tensor y = graph({ones({4})})[0];
    profiler.stop();
    CHECK(allclose(y, fn(ones({4}))));
    const std::string table = profiler.table();
    CHECK(table.find("mul") != std::string::npos);
}
