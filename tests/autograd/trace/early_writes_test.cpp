// Parts of inputs and parameters that a graph writes and reads again: they are written where they lie, as the program does, and an error puts
// them back.
#include <catch2/catch.hpp>

#include <random>

#include "../../fails.h"
#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/core/allocator.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

Tensor position(std::int64_t i) { return full({1}, i, int64); }

// A step of attention with a cache: a row is written, and all rows are read.
Tensor attend(Tensor cache, const Tensor& at, const Tensor& v) {
    cache.index_copy_(0, at, v.unsqueeze(0));
    return softmax(matmul(cache, v), 0);
}

// The most that a warm run takes beside what is there.
template <class Run>
std::int64_t peak_of(const Run& run) {
    for (int i = 0; i < 4; ++i) run();
    const std::int64_t before = memory_stats().live_bytes;
    reset_peak_memory();
    run();
    return memory_stats().peak_bytes - before;
}

}  // namespace

TEST_CASE("a row of a cache is written where it lies") {
    manual_seed(1);
    constexpr std::int64_t rows = 64, n = 256;
    Tensor cache = randn({rows, n}), same = cache.clone();
    const Graph graph = trace(attend, {{"cache", cache}, {"at", position(0)}, {"v", randn({n})}});
    const CompiledGraph run = graph.compile();
    cache.copy_(same);
    for (int i = 0; i < 12; ++i) {
        const Tensor v = randn({n}), at = position(i * 7 % rows);
        const Tensor expected = attend(same, at, v), now = run(cache, at, v);
        CHECK(allclose(now, expected, 1e-5, 1e-6));
        CHECK(equal(cache, same));
    }
    const Tensor v = randn({n}), at = position(3);
    CHECK(peak_of([&] { run(cache, at, v); }) < rows * n * 4 / 4);  // no copy of the cache
    CHECK(run.planned_bytes() < static_cast<std::size_t>(rows * n * 4 / 4));
}

TEST_CASE("the same of a parameter, of several parts, and of other indices") {
    manual_seed(2);
    const auto check = [](const auto& write) {
        Tensor state = randn({6, 6}), same = state.clone();
        const auto step = [&](Tensor& s, const Tensor& at, const Tensor& v) {
            write(s, at, v);
            return matmul(s, v).sum();
        };
        const Graph graph = trace([&](const Tensor& at, const Tensor& v) { return step(state, at, v); }, {{"at", position(0)}, {"v", randn({6})}},
                                  {.parameters = {{"state", state}}});
        state.copy_(same);
        for (int i = 0; i < 8; ++i) {
            const Tensor at = position(i % 6), v = randn({6});
            const Tensor expected = step(same, at, v), now = graph.run({{"at", at}, {"v", v}})[0];
            CHECK(allclose(now, expected, 1e-5, 1e-5));
            CHECK(allclose(state, same));
        }
    };
    check([](Tensor& s, const Tensor& at, const Tensor& v) { s.index_put_({at}, v.unsqueeze(0)); });
    check([](Tensor& s, const Tensor& at, const Tensor& v) { s.index_put_({Slice(), at}, v.unsqueeze(1)); });
    check([](Tensor& s, const Tensor& at, const Tensor& v) { s.scatter_(0, at.unsqueeze(1), v.unsqueeze(0)); });
    check([](Tensor& s, const Tensor& at, const Tensor& v) { s.scatter_(0, at.to(int32).unsqueeze(1), v.unsqueeze(0)); });
    check([](Tensor& s, const Tensor& at, const Tensor& v) { s.index_copy_(0, at - 6, v.unsqueeze(0)); });  // from the end
    check([](Tensor& s, const Tensor&, const Tensor& v) {
        s[2] = v;
        s.narrow(0, 3, 2).copy_(v);
        s.diagonal().fill_(1);
        s.t()[1] = v;
    });
    check([](Tensor& s, const Tensor&, const Tensor& v) {
        s[1] = v + s[0];  // parts that are read before, and between
        s[2] = s[1] * 2;
        s[3] = s[3];
    });
    check([](Tensor& s, const Tensor& at, const Tensor&) { s.index_copy_(0, at, s[5].unsqueeze(0)); });
}

TEST_CASE("what was there before is read before it is written") {
    manual_seed(3);
    Tensor state = randn({4, 3}), same = state.clone();
    const auto step = [](Tensor s, const Tensor& v) {
        const Tensor before = s.sum(), view = s.t();
        s[1] = v;
        return std::vector<Tensor>{before, s.sum(), view.max()};  // the view shows what is written
    };
    const CompiledGraph run = trace(step, {{"state", state}, {"v", randn({3})}}).compile();
    state.copy_(same);
    for (int i = 0; i < 5; ++i) {
        const Tensor v = randn({3});
        const std::vector<Tensor> expected = step(same, v), now = run({state, v});
        for (std::size_t k = 0; k < 3; ++k) CHECK(allclose(now[k], expected[k], 1e-5, 1e-6));
        CHECK(equal(state, same));
    }
}

TEST_CASE("what a graph gives is not what it writes later") {
    manual_seed(4);
    Tensor state = zeros({4, 3});
    const auto step = [](Tensor s, const Tensor& at, const Tensor& v) {
        s.index_copy_(0, at, v.unsqueeze(0));
        return std::pair{s, s[0]};
    };
    const CompiledGraph run = trace(step, {{"state", state}, {"at", position(0)}, {"v", ones({3})}}).compile();
    std::vector<Tensor> first;
    for (int i = 0; i < 5; ++i) {
        const std::vector<Tensor> now = run({state, position(0), full({3}, double(i))});
        if (i == 2) first = now;
    }
    CHECK(allclose(first[0][0], full({3}, 2.0)));
    CHECK(allclose(first[1], full({3}, 2.0)));
    CHECK(allclose(state[0], full({3}, 4.0)));
}

TEST_CASE("an error leaves what was written early as it was") {
    manual_seed(5);
    Tensor cache = randn({5, 3}), table = randn({4, 3});
    const auto step = [&](Tensor c, const Tensor& at, const Tensor& row) {
        c[1] = table[0];
        c.index_copy_(0, at, ones({1, 3}));
        return matmul(c, index_select(table, 0, row)[0]);
    };
    const CompiledGraph run = trace(step, {{"cache", cache}, {"at", position(0)}, {"row", position(0)}}).compile();
    for (int i = 0; i < 3; ++i) run(cache, position(i), position(i));
    cache.copy_(randn({5, 3}));
    const Tensor before = cache.clone();
    for (int i = 0; i < 3; ++i) {
        CHECK_THROWS_AS(run(cache, position(4), position(9)), IndexError);  // after both writes
        CHECK(equal(cache, before));
        CHECK_THROWS_AS(run(cache, position(7), position(0)), IndexError);  // of the second write
        CHECK(equal(cache, before));
    }
    CHECK_NOTHROW(run(cache, position(4), position(3)));
    CHECK(allclose(cache[4], ones({3})));
    CHECK(allclose(cache[1], table[0]));
}

TEST_CASE("a guard that fails leaves what was written early as it was") {
    Tensor cache = zeros({5, 3});
    const auto step = [](Tensor c, const Tensor& v) {
        c[2] = v;
        return c.sum().item() > 0 ? c * 2 : c * 3;
    };
    const CompiledGraph run = trace(step, {{"cache", cache}, {"v", ones({3})}}, {.reads = TraceOptions::Reads::guard}).compile();
    for (int i = 0; i < 3; ++i) run(cache, ones({3}));
    CHECK_THROWS_AS(run(cache, full({3}, 2.0)), ValueError);
    CHECK(allclose(cache[2], ones({3})));
    CHECK_NOTHROW(run(cache, ones({3})));
}

TEST_CASE("caches that lie otherwise, or in another's memory, are written as ever") {
    manual_seed(6);
    const Tensor v = randn({4});
    const Graph graph = trace(
        [](Tensor c, Tensor d, const Tensor& at, const Tensor& x) {
            c.index_copy_(0, at, x.unsqueeze(0));
            return matmul(c, x) + d.sum();
        },
        {{"c", zeros({4, 4})}, {"d", zeros({4, 4})}, {"at", position(0)}, {"x", v}});
    const CompiledGraph run = graph.compile();
    const auto expect = [&](Tensor c, const Tensor& d) {
        const double sum = d.sum().item();
        const Tensor last = run({c, d, position(2), v})[0];
        CHECK(allclose(c[2], v));
        CHECK(allclose(last, matmul(c, v) + sum, 1e-5, 1e-5));
    };
    const Tensor d = randn({4, 4});
    for (int i = 0; i < 4; ++i) {
        expect(randn({4, 4}), d);
        expect(randn({4, 4}).t(), d);
        expect(randn({8, 4}).narrow(0, 0, 4), d);
    }
    Tensor both = randn({8, 4});
    expect(both.narrow(0, 0, 4), both.narrow(0, 4, 4));
}

TEST_CASE("rows of a tensor that is given are written there") {
    manual_seed(7);
    constexpr std::int64_t rows = 40, n = 500;
    const auto fn = [](const Tensor& v) {
        Tensor b = zeros(v.shape());
        for (std::int64_t i = 0; i < rows; ++i) b[i] = v[i] + i;
        return b;
    };
    const CompiledGraph run = trace(fn, {{"v", randn({rows, n})}}).compile();
    std::vector<Tensor> held;
    for (int i = 0; i < 5; ++i) {
        const Tensor v = randn({rows, n});
        held.push_back(run(v));
        held.push_back(fn(v));
    }
    for (std::size_t i = 0; i < held.size(); i += 2) CHECK(equal(held[i], held[i + 1]));
    held.clear();
    const Tensor v = randn({rows, n});
    CHECK(peak_of([&] { run(v); }) <= rows * n * 4 + 4096);
}

TEST_CASE("random programs that write parts, and read them, are as the program") {
    std::mt19937 random(11);
    const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    for (int program = 0; program < 60; ++program) {
        manual_seed(static_cast<std::uint64_t>(program));
        struct Op {
            int kind, a, b;
        };
        std::vector<Op> ops;
        for (int i = 2 + pick(7); i > 0; --i) ops.push_back({pick(11), pick(4), pick(4)});
        const bool gives_state = pick(4) == 0;
        const auto fn = [&](Tensor s, Tensor t, const Tensor& at, const Tensor& v) {
            std::vector<Tensor> outputs;
            Tensor x = v;
            for (const auto& [kind, a, b] : ops) {
                switch (kind) {
                    case 0: s[a] = x; break;
                    case 1: s.index_copy_(0, at, x.unsqueeze(0)); break;
                    case 2: s.index_put_({Slice(), at}, x.unsqueeze(1)); break;
                    case 3: x = tanh(matmul(s, x)); break;
                    case 4: x = x + s[a]; break;
                    case 5: s.narrow(0, std::min(a, 2), 2).copy_(x); break;
                    case 6: outputs.push_back(s[b].clone()); break;
                    case 7: s[a] = s[b] + x; break;
                    case 8: t[a] = s[b]; break;
                    case 9: x = x - t.t()[b]; break;
                    default: s.diagonal().mul_(0.5); break;
                }
            }
            outputs.push_back(x);
            if (gives_state) outputs.push_back(s);
            return outputs;
        };
        Tensor s = randn({4, 4}), t = randn({4, 4});
        const Tensor start_s = s.clone(), start_t = t.clone();
        Graph graph;
        graph = trace(fn, {{"s", s}, {"t", t}, {"at", full({1}, 0, int64)}, {"v", randn({4})}});
        if (program % 3 == 0) optimize(graph);
        s.copy_(start_s);
        t.copy_(start_t);
        Tensor same_s = s.clone(), same_t = t.clone();
        for (int run = 0; run < 5; ++run) {
            const Tensor at = full({1}, pick(4), int64), v = randn({4});
            const std::vector<Tensor> expected = fn(same_s, same_t, at, v);
            std::vector<Tensor> copies;
            for (const Tensor& y : expected) copies.push_back(y.clone());
            const std::vector<Tensor> now = graph.run({{"s", s}, {"t", t}, {"at", at}, {"v", v}});
            INFO("program " << program << "\n" << graph.str());
            REQUIRE(now.size() == copies.size());
            for (std::size_t k = 0; k < now.size(); ++k) REQUIRE(allclose(now[k], copies[k], 1e-4, 1e-5));
            REQUIRE(allclose(s, same_s, 1e-4, 1e-5));
            REQUIRE(allclose(t, same_t, 1e-4, 1e-5));
        }
    }
}
