// Passes: what they find, and that they change nothing: random programs give the same with and without each of them.
#include <catch2/catch.hpp>
#include <random>

#include "../../fails.h"
#include "tapir/autograd/trace/passes.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

std::string ops_of(const Graph& graph) {
    std::string ops;
    for (const auto& node : graph.nodes()) ops += (ops.empty() ? "" : " ") + node->op;
    return ops;
}

template <class Fn>
Graph traced(const Fn& fn, const Shape& shape = {3, 4}) {
    manual_seed(2);
    return trace(fn, {{"x", rand(shape, float64) + 0.5}});
}

void check_same(const Graph& a, const Graph& b, const Tensor& x) {
    const std::vector<Tensor> got = a.run({{"x", x}}), wanted = b({x});
    REQUIRE(got.size() == wanted.size());
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(allclose(got[i], wanted[i], 1e-9, 1e-12));
}

}  // namespace

TEST_CASE("dead code goes") {
    Graph graph = traced([](const Tensor& x) {
        static_cast<void>(tanh(exp(x)));
        return x * 2;
    });
    CHECK(eliminate_dead_code(graph) == 2);
    CHECK(ops_of(graph) == "mul");
    graph.check();
}

TEST_CASE("common subexpressions are computed once") {
    Graph graph = traced([](const Tensor& x) { return tanh(x * 2) + tanh(x * 2) + dropout(x, 0.5) + dropout(x, 0.5); });
    eliminate_common_subexpressions(graph);
    CHECK(ops_of(graph) == "mul tanh add dropout add dropout add");
    graph.check();
}

TEST_CASE("what depends on constants only is computed once") {
    const Tensor c = tensor({1.0, 2.0, 3.0, 4.0}, float64), w = tensor({2.0}, float64).requires_grad_();
    Graph graph = traced([&](const Tensor& x) { return x * exp(c + 1).sum() + w * 2 + zeros({3, 4}, float64); });
    const Graph before = graph;
    fold_constants(graph);
    CHECK(ops_of(graph) == "mul mul add add");  // the parameter may be trained
    graph.check();
    check_same(graph, before, rand({3, 4}, float64));
}

TEST_CASE("algebra") {
    const auto becomes = [](const auto& fn, const std::string& ops) {
        Graph graph = traced(fn);
        const Graph before = graph;
        while (simplify(graph) > 0) {
        }
        graph.check();
        INFO(before.str() << graph.str());
        CHECK(ops_of(graph) == ops);
        manual_seed(9);
        check_same(graph, before, rand({3, 4}, float64) + 0.1);
    };
    becomes([](const Tensor& x) { return (x * 1 + 0) / 1 - 0; }, "");
    becomes([](const Tensor& x) { return -(-tanh(x)); }, "tanh");
    becomes([](const Tensor& x) { return tanh(x).t().t(); }, "tanh");
    becomes([](const Tensor& x) { return tanh(x).permute({1, 0}).permute({1, 0}); }, "tanh");
    becomes([](const Tensor& x) { return tanh(x).reshape({12}).reshape({4, 3}); }, "tanh reshape");
    becomes([](const Tensor& x) { return tanh(x).reshape({12}).reshape({3, 4}); }, "tanh");
    becomes([](const Tensor& x) { return log(softmax(x, 1)); }, "log_softmax");
    becomes([](const Tensor& x) { return pow(x, 2) + pow(x, 3); }, "mul mul mul add");
    becomes([](const Tensor& x) { return pow(x, -1); }, "reciprocal");
    becomes([](const Tensor& x) { return 3 * tanh(x) + 3 * exp(x); }, "tanh exp add mul");
    becomes([](const Tensor& x) { return tanh(x) * sin(x) - exp(x) * sin(x); }, "tanh sin exp sin mul mul sub");
    becomes([](const Tensor& x) {
        const Tensor c = sin(x);
        return tanh(x) * c - exp(x) * c;
    }, "sin tanh exp sub mul");
    // Not what would change: broadcasting, promotion, integers.
    becomes([](const Tensor& x) { return x.sum() * ones({2, 2}, float64); }, "ones sum mul");
    becomes([](const Tensor& x) { return x.to(float32) * ones({1}, float64); }, "ones to_dtype mul");
}

namespace {

// A program of some ops on what was computed before, the same for the same seed.
std::vector<Tensor> random_program(unsigned seed, const Tensor& x, const Tensor& w) {
    std::mt19937 random(seed);
    const auto any = [&](std::size_t count) { return static_cast<std::size_t>(random() % count); };
    std::vector<Tensor> values = {x, w, x * 1, w + 0};
    for (int i = 0; i < 25; ++i) {
        const Tensor a = values[any(values.size())], b = values[any(values.size())];
        switch (any(16)) {
            case 0: values.push_back(a + b); break;
            case 1: values.push_back(a * b); break;
            case 2: values.push_back(a - b); break;
            case 3: values.push_back(tanh(a)); break;
            case 4: values.push_back(-(-a)); break;
            case 5: values.push_back(a.t().t()); break;
            case 6: values.push_back(matmul(a, b)); break;
            case 7: values.push_back(a.reshape({9}).reshape({3, 3})); break;
            case 8: values.push_back(log(softmax(a, 1))); break;
            case 9: values.push_back(pow(tanh(a), 2)); break;
            case 10: values.push_back(a * 0.5 + b * 0.5); break;
            case 11: values.push_back(sigmoid(a) * 1); break;
            case 12: values.push_back(mean(a, {0}, true) + b); break;
            case 13: values.push_back(exp(ones({3, 3}, float64) * -1) * a); break;
            case 14: {
                Tensor c = tanh(a);
                c[static_cast<std::int64_t>(any(3))].mul_(2);
                values.push_back(c + b);
                break;
            }
            default: values.push_back(where(a > 0, a, b * 0.1)); break;
        }
        values.back() = tanh(values.back());  // stays small
    }
    return {values.back(), values[values.size() - 2]};
}

}  // namespace

TEST_CASE("passes change nothing in random programs") {
    const int programs = 60;
    for (unsigned seed = 0; seed < programs; ++seed) {
        INFO("seed " << seed);
        manual_seed(seed);
        const Tensor w = randn({3, 3}, float64).requires_grad_(), x = randn({3, 3}, float64);
        const Graph graph = trace([&](const Tensor& in) { return random_program(seed, in, w); }, {{"x", x}});
        const Tensor other = randn({3, 3}, float64);
        const std::vector<Tensor> wanted = random_program(seed, other, w);
        const auto check = [&](const char* what, const Graph& of) {
            INFO(what << "\n" << of.str());
            of.check();
            const std::vector<Tensor> recorded = of({other}), run = of.run({{"x", other}}), again = of.run({{"x", other}});
            for (std::size_t i = 0; i < wanted.size(); ++i) {
                CHECK(allclose(recorded[i], wanted[i], 1e-9, 1e-11));
                CHECK(allclose(run[i], wanted[i], 1e-9, 1e-11));
                CHECK(allclose(again[i], wanted[i], 1e-9, 1e-11));
            }
        };
        check("no pass", graph);
        const std::pair<const char*, int (*)(Graph&)> passes[] = {{"dead code", eliminate_dead_code},
                                                                 {"common subexpressions", eliminate_common_subexpressions},
                                                                 {"simplify", simplify},
                                                                 {"constants", [](Graph& g) { return fold_constants(g); }}};
        for (const auto& [name, pass] : passes) {
            Graph copy = graph;
            pass(copy);
            check(name, copy);
        }
        Graph copy = graph;
        optimize(copy);
        check("all", copy);
        CHECK(copy.nodes().size() < graph.nodes().size());
        check("listing", Graph::parse(copy.str(), [&] {
            Graph::Inputs data{{"parameter_0", w}};
            for (const Graph::Value* value : copy.constants()) data.emplace_back("%" + std::to_string(value->number), value->data);
            return data;
        }()));
    }
}
