// Tracing programs that write into views: the graph gives what the program gives.
#include <catch2/catch.hpp>
#include <random>
#include <stdexcept>
#include <thread>

#include "../../fails.h"
#include "../../sanitizers.h"
#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

using Function = std::function<std::vector<Tensor>(const Tensor&)>;

void check_same(const std::vector<Tensor>& got, const std::vector<Tensor>& wanted) {
    REQUIRE(got.size() == wanted.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
        INFO("output " << i << ": " << got[i].str() << ", not " << wanted[i].str());
        CHECK(equal(got[i], wanted[i]));
    }
}

// Traced, run in both ways, and simplified, it gives what it gives for x.
void check_traced(const Function& fn, const Tensor& x) {
    Graph graph = trace([&](const Tensor& y) { return fn(y); }, {{"x", x + 1}});
    INFO(graph.str());
    const std::vector<Tensor> wanted = fn(x);
    check_same(graph({x}), wanted);
    for (int i = 0; i < 3; ++i) check_same(graph.run({{"x", x}}), wanted);
    optimize(graph);
    INFO(graph.str());
    check_same(graph.run({{"x", x}}), wanted);
}

// A program made of views, writes in place and sums, the same for the same seed.
std::vector<Tensor> random_program(unsigned seed, const Tensor& input) {
    std::mt19937 random(seed);
    const auto pick = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(n)); };
    std::vector<Tensor> known = {input * 1, input + 1};
    for (int step = 0; step < 12; ++step) {
        Tensor x = known[static_cast<std::size_t>(pick(static_cast<std::int64_t>(known.size())))];
        const Tensor other = known[static_cast<std::size_t>(pick(static_cast<std::int64_t>(known.size())))];
        const int d = static_cast<int>(pick(x.dim() + 1)) % std::max(x.dim(), 1);
        const bool has_two = x.dim() > 0 && x.size(d) > 1;
        switch (pick(12)) {
            case 0: known.push_back(x.dim() > 1 ? x.transpose(0, d) : x.unsqueeze(0)); break;
            case 1: known.push_back(has_two ? x.narrow(d, pick(x.size(d) - 1), 1) : x.reshape({-1})); break;
            case 2: known.push_back(x.dim() > 1 ? x.select(d, pick(x.size(d))) : x.detach()); break;
            case 3: known.push_back(has_two ? x.chunk(2, d)[1] : x.clone()); break;
            case 4: known.push_back(x.dim() > 1 ? x.unbind(d)[static_cast<std::size_t>(pick(x.size(d)))] : x * 2); break;
            case 5: known.push_back(x.reshape({-1})); break;
            case 6: x.add_(double(1 + pick(3))); break;
            case 7: x.mul_(double(2 + pick(2))); break;
            case 8:
                if (x.shape() == other.shape() && !x.shares_storage(other)) x.add_(other);
                break;
            case 9:
                if (has_two) x.narrow(d, 1, 1).mul_(3);
                break;
            case 10:
                if (has_two) x.chunk(2, d)[0].add_(5);
                break;
            case 11:
                if (x.shape() == other.shape()) known.push_back(x - other);
                break;
        }
    }
    return known;
}

}  // namespace

TEST_CASE("a view that is written to after its base was") {
    check_traced(
        [](const Tensor& x) {
            Tensor y = x.clone(), v = y.narrow(0, 0, 2);
            y.mul_(10);
            v.add_(1);
            return std::vector<Tensor>{y, v};
        },
        arange(4, float32));
    check_traced(
        [](const Tensor& x) {
            Tensor y = x.clone(), a = y.narrow(0, 0, 2), b = y.narrow(0, 1, 2);
            a.mul_(10);
            b.add_(1);
            return std::vector<Tensor>{y, a, b};
        },
        arange(4, float32));
}

TEST_CASE("pieces are what their base is, and write into it") {
    check_traced(
        [](const Tensor& x) {
            Tensor y = x.clone();
            const std::vector<Tensor> parts = y.chunk(2, 0), rows = y.unbind(0);
            y.add_(10);
            return std::vector<Tensor>{parts[1], rows[2]};
        },
        arange(5, float32));
    check_traced(
        [](const Tensor& x) {
            Tensor y = x.clone();
            y.chunk(2, 0)[1].add_(10);
            y.unbind(0)[1].mul_(3);
            split(y, {1, 4}, 0)[1].sub_(1);
            return std::vector<Tensor>{y};
        },
        arange(5, float32));
}

TEST_CASE("random programs of views and writes") {
    for (unsigned seed = 0; seed < test::share(300U); ++seed) {
        INFO("seed " << seed);
        check_traced([seed](const Tensor& x) { return random_program(seed, x); }, arange(12, float32).reshape({3, 4}));
    }
}

TEST_CASE("what a trial run writes to a view of a buffer is undone") {
    Tensor buffer = zeros({3});
    const auto fn = [&](const Tensor& x) {
        buffer.select(0, 0).add_(1);
        return x * 2;
    };
    trace(fn, {{"x", ones({2, 3}), {"batch"}}});
    CHECK(equal(buffer, tensor({1.0, 0.0, 0.0}, float32)));
    const auto failing = [&](const Tensor& x) {
        buffer.narrow(0, 1, 2).add_(1);
        if (x.dim() == 2) throw std::runtime_error("stopped");
        return x;
    };
    CHECK_THROWS_WITH(trace(failing, {{"x", ones({2, 3})}}), "stopped");
    CHECK(equal(buffer, tensor({1.0, 0.0, 0.0}, float32)));
}

TEST_CASE("a tensor that is detached before it is used otherwise is itself") {
    const Tensor w = randn({3}).requires_grad_();
    const Graph graph = trace([&](const Tensor& x) { return x * w.detach() + w; }, {{"x", ones({3})}});
    CHECK(graph.parameters().size() == 1);
    CHECK(graph.constants().empty());
    const Tensor x = randn({3});
    CHECK(allclose(graph({x})[0], x * w + w));
    Tensor average = zeros({3});
    const Graph step = trace(
        [&](const Tensor& y) {
            average.detach().mul_(0.5).add_(y);
            return average * 1;
        },
        {{"y", ones({3})}});
    CHECK(equal(step({ones({3})})[0], full({3}, 1.5)));
}

TEST_CASE("tracing leaves what other threads draw alone") {
    std::uint64_t drawn = 0;
    const auto fn = [&](const Tensor& x) {
        std::thread([&] {
            const auto before = default_generator().state().offset;
            rand({4});
            drawn += default_generator().state().offset - before;
        }).join();
        return x * 2;
    };
    const auto before = default_generator().state().offset;
    trace(fn, {{"x", ones({3}), {"n"}}});
    CHECK(default_generator().state().offset == before + drawn);
}

TEST_CASE("what depends on sizes is seen") {
    SECTION("quotients beside another named dimension") {
        const auto fn = [](const Tensor& x) {
            const Tensor y = max_pool1d(x, 2);
            return x.narrow(2, 0, x.size(2) / 2) + zeros({y.size(2)}) + y.mean() * double(y.size(2));
        };
        const Graph graph = trace(fn, {{"x", randn({2, 1, 16}), {"batch", "", "time"}}});
        const Tensor x = randn({3, 1, 9});
        CHECK(allclose(graph({x})[0], fn(x)));
    }
    SECTION("sizes that stay the same for a while") {
        const auto fn = [](const Tensor& x) {
            const Tensor y = x.index({Slice(), Slice(0, None, 8)});
            return y.sum() / double(y.size(1));
        };
        FAILS(TapeError, "no formula of the named dimensions", trace(fn, {{"x", randn({1, 9}), {"", "time"}}}));
    }
    SECTION("which tensor is returned, and how many are") {
        const auto one = [](const Tensor& x) {
            const Tensor a = x + 1, b = x + 2;
            return x.size(0) % 2 == 0 ? a : b;
        };
        FAILS(TapeError, "what is returned depends on the sizes: it is not the same with n = 4 and with n = 5",
              trace(one, {{"x", ones({4}), {"n"}}}));
        const auto some = [](const Tensor& x) { return std::vector<Tensor>(x.size(0) > 50 ? 2 : 1, x); };
        FAILS(TapeError, "what is returned depends on the sizes", trace(some, {{"x", ones({4}), {"n"}}}));
    }
    SECTION("errors of trial runs say so") {
        FAILS(ShapeError, "; trace ran this with a = 8, b = 15, since these dimensions are named",
              trace([](const Tensor& x) { return x + ones({3, 4}); }, {{"x", ones({3, 4}), {"a", "b"}}}));
    }
    SECTION("a program that takes no long ones") {
        const Graph graph = trace([](const Tensor& x) { return x + ones({20}).narrow(0, 0, x.size(0)); }, {{"x", ones({4}), {"n"}}});
        CHECK(equal(graph({ones({9})})[0], full({9}, 2)));
    }
}
