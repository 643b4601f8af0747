// What a graph holds is its own: bounds of slices as they were said, constants, results of branches and loops, examples.
#include <catch2/catch.hpp>

#include "../../fails.h"
#include "passes_check.h"
#include "tapir/autograd/trace/check_trace.h"
#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/graph/grad.h"
#include "tapir/core/generator.h"
#include "tapir/tapir.h"

using namespace passes_check;

namespace {

template <class Fn>
void check_sizes(const Fn& fn, const std::vector<std::int64_t>& sizes, std::int64_t example = 10) {
    const Graph graph = trace(fn, {{"x", randn({example, 2}), {"n"}}});
    Graph passed = graph;
    optimize(passed);
    INFO(graph.str());
    for (const std::int64_t n : sizes) {
        INFO("n = " << n);
        const Tensor x = randn({n, 2});
        const Tensor wanted = fn(x);
        for (const Graph* each : {&graph, static_cast<const Graph*>(&passed)}) {
            check_same({(*each)({x})[0]}, {wanted}, 1e-5, 1e-6);
            for (int k = 0; k < 2; ++k) check_same({each->run({{"x", x}})[0]}, {wanted}, 1e-5, 1e-6);
        }
    }
}

}  // namespace

TEST_CASE("slices have the bounds that the program said") {
    const std::vector<std::int64_t> sizes = {1, 3, 10, 99, 100, 101, 250};
    for (const Slice& range : {Slice(0, 100), Slice(100, None), Slice(-100, None), Slice(0, -100), Slice(None, -3), Slice(-3, None), Slice(0, 3),
                               Slice(0, 1000, 2), Slice(5, -5), Slice(-5, 5), Slice(1, None), Slice(None, -1), Slice(None, None, 3)}) {
        INFO(range.start << ":" << range.stop << ":" << range.step);
        check_sizes([&](const Tensor& x) { return x.slice(0, range) * 2; }, sizes);
        check_sizes([&](const Tensor& x) { return x.index({range}).sum(0); }, sizes);
        check_sizes(
            [&](const Tensor& x) {
                Tensor y = x * 1;
                y.slice(0, range).mul_(3);
                return y;
            },
            sizes);
    }
    const Graph graph = trace([](const Tensor& x) { return x.slice(0, Slice(0, 100)); }, {{"x", randn({10, 2}), {"n"}}});
    CHECK(graph.str().find("start=0, end=100, step=1") != std::string::npos);
    CHECK(graph.outputs()[0].value->shape[0].str() == "slice_0");
}

TEST_CASE("gradients of slices go to the places that the program said") {
    for (const Slice& range : {Slice(0, 100), Slice(-3, None), Slice(2, None, 2)}) {
        const auto fn = [&](const Tensor& x) {
            const Tensor part = x.slice(0, range);
            return sum(matmul(part.t(), part * 2));
        };
        const Graph gradient = grad(trace(fn, {{"x", randn({10, 2}), {"n"}}}), {"output"}, {"x"});
        for (const std::int64_t n : {1, 5, 10, 200}) {
            const Tensor x = randn({n, 2}).requires_grad_();
            Tape tape;
            check_same({gradient({x.detach()})[1]}, {tape.gradient(fn(x), {x})[0]}, 1e-5, 1e-6);
        }
    }
}

TEST_CASE("a size that is the least of a bound and a dimension is refused where it is a number") {
    const auto fn = [](const Tensor& x) { return x.slice(0, Slice(0, 100)) * arange(x.slice(0, Slice(0, 100)).size(0), float32).unsqueeze(1); };
    CHECK_THROWS_AS(trace(fn, {{"x", randn({10, 2}), {"n"}}}), TapeError);
}

TEST_CASE("an inserted slice has the size that its bounds give") {
    Graph graph = trace([](const Tensor& x) { return x * 2; }, {{"x", randn({10, 2}), {"n"}}});
    Graph::Node* slice = graph.insert(nullptr, "slice", {graph.outputs()[0].value}, {{"dim", 0}, {"start", 0}, {"end", 100}});
    graph.add_output("first", slice->results[0]);
    optimize(graph);
    CHECK(graph.run({{"x", randn({200, 2})}}, {"first"})[0].shape() == Shape(100, 2));
}

TEST_CASE("constants are what they were in the trace") {
    Tensor w = randn({8, 4}), table = ones({4});
    const auto fn = [&](const Tensor& x) { return linear(x, w) + table.sum(); };
    const Tensor x = randn({1, 4}), wanted = fn(x);
    const Graph graph = trace(fn, {{"x", x}});
    const CompiledGraph run = graph.compile();
    for (int k = 0; k < 3; ++k) {
        check_same({graph({x})[0], graph.run({{"x", x}})[0], run(x)}, {wanted, wanted, wanted}, 1e-5, 1e-6);
        w.mul_(2);
        table.fill_(7);
    }
    CHECK_THROWS_AS(check_trace(graph, fn, {x}), TapeError);
}

TEST_CASE("an output that is a constant is given as a copy") {
    const auto fn = [](const Tensor& x) {
        const Tensor c = tensor({1.0F, 2.0F, 3.0F});
        return std::vector{x + 1, c, c.reshape({3, 1})};
    };
    const Graph graph = trace(fn, {{"x", ones({3})}});
    const CompiledGraph run = graph.compile();
    for (int k = 0; k < 3; ++k) {
        for (const std::vector<Tensor>& results : {graph({ones({3})}), graph.run({{"x", ones({3})}}), run(std::vector{ones({3})})}) {
            check_same(results, fn(ones({3})));
            Tensor(results[1]).add_(10);
            Tensor(results[2]).add_(10);
        }
    }
}

TEST_CASE("results of branches and loops in graphs are tensors of their own") {
    const auto same = [](const Tensor& t) { return t; };
    const auto check = [](const auto& fn) {
        const Tensor x = tensor({1.0F, 2.0F, 3.0F});
        const Graph graph = trace(fn, {{"x", x.clone()}});
        for (int k = 0; k < 3; ++k) {
            const Tensor given = x.clone();
            Tensor y = graph.run({{"x", given}})[0];
            check_same({y, graph({given})[0]}, {fn(x.clone()), fn(x.clone())});
            y.add_(10);
            check_same({given}, {x});
        }
    };
    const Tensor w = ones({3});
    check([&](const Tensor& x) { return cond(x.sum() > 0, [&] { return x; }, [&] { return x * 2; }); });
    check([&](const Tensor& x) { return cond(x.sum() > 0, [&] { return w; }, [&] { return x * 2; }); });
    check([&](const Tensor& x) { return while_loop([](const Tensor& t) { return t.sum() < 0; }, same, {x})[0]; });
    check([&](const Tensor& x) { return scan([](const Tensor& h, const Tensor& v) { return std::pair{h, v}; }, {x}, {x}).carry[0]; });
    check([&](const Tensor& x) {
        Tensor state = x * 1;
        const Tensor y = cond(x.sum() > 0, [&] { return state; }, [&] { return state * 2; });
        state.add_(1);
        return y + state * 0;
    });
}

TEST_CASE("a number that is a parameter stays one where only a branch uses it") {
    const Tensor lr = tensor(3.0F);
    const auto fn = [&](const Tensor& x) { return cond(x.sum() > 0, [&] { return x * lr; }, [&] { return x; }); };
    const Graph graph = trace(fn, {{"x", ones({3})}}, {.parameters = {{"lr", lr}}});
    REQUIRE(graph.parameters().size() == 1);
    Tensor(lr).fill_(5);
    check_same({graph.run({{"x", ones({3})}})[0]}, {ones({3}) * 5});
}

TEST_CASE("an example that the function sees by itself, too, is a constant there") {
    const Tensor h = zeros({2});
    const auto fn = [&](const Tensor& x) { return x * 2 + h; };
    const Graph graph = trace(fn, {{"h", h}});
    check_same({graph({ones({2})})[0]}, {fn(ones({2}))});
    Tensor state = zeros({2});
    const auto count = [](const Tensor& x) {
        Tensor(x).add_(1);
        return x * 2;
    };
    trace(count, {{"x", state}});
    check_same({state}, {ones({2})});  // what the run with the example writes stays
}

TEST_CASE("guards do not hide what depends on sizes") {
    const TraceOptions guard{.reads = TraceOptions::Reads::guard};
    const auto fn = [](const Tensor& x) { return x[0][0].item() > -100 && x.size(0) == 1 ? x * 100 : x * 2; };
    CHECK_THROWS_AS(trace(fn, {{"x", randn({4, 2}), {"n"}}}, guard), TapeError);
    const auto fine = [](const Tensor& x) { return x.sum().item() > -1e9 ? x * 2 : x; };
    CHECK_NOTHROW(trace(fine, {{"x", randn({4, 2}), {"n"}}}, guard));
}

TEST_CASE("one_hot without a number of classes is refused, and guarded") {
    const auto fn = [](const Tensor& x) { return one_hot(x); };
    const Tensor x = tensor({0, 3, 1, 2});
    CHECK_THROWS_WITH(trace(fn, {{"x", x, {"n"}}}), Catch::Contains("reads a value that amax made"));
    const Graph graph = trace(fn, {{"x", x}}, {.reads = TraceOptions::Reads::guard});
    check_same({graph({tensor({3, 0, 0, 1})})[0]}, {fn(tensor({3, 0, 0, 1}))});
    CHECK_THROWS_AS(graph({tensor({2, 0, 0, 1})}), ValueError);
}

TEST_CASE("what is written to a parameter is like it") {
    Graph graph = trace([w = ones({2, 3}).requires_grad_()](const Tensor& x) { return matmul(x, w.t()); }, {{"x", ones({4, 3})}});
    Graph::Value *w = graph.parameters()[0], *y = graph.outputs()[0].value;
    FAILS(ShapeError, "Graph::add_update: parameter_0 has shape (2, 3), what is to be written there (4, 2)", graph.add_update(w, y));
    Graph::Value* whole = graph.insert(nullptr, "to_dtype", {w}, {{"dtype", int64}})->results[0];
    FAILS(DTypeError, "Graph::add_update: parameter_0 is float32, what is to be written there int64", graph.add_update(w, whole));
    FAILS(ValueError, "float32 (3,) cannot be written to w, which is float32 (2,)",
          Graph::parse("input x: float32 (3,)\nparameter w: float32 (2,)\nupdate w = x\noutput y = x\n"));
    FAILS(ValueError, "Graph::run: the input x is given twice", graph.run({{"x", ones({4, 3})}, {"x", ones({4, 3})}}));
}

TEST_CASE("gradients that are nothing but rounding are no difference") {
    for (unsigned seed = 0; seed < 10; ++seed) {
        manual_seed(seed);
        const auto fn = [](const Tensor& x) { return group_norm(x, 4).square().sum(); };
        CHECK_NOTHROW(grad(trace(fn, {{"x", randn({3, 16, 7}), {"b", "", "t"}}}), {"output"}, {"x"}));
    }
}

TEST_CASE("numbers keep their digits in passes and fused ops") {
    const auto products = [](const Tensor& x) { return x * tensor(0.1F) * tensor(0.3F); };
    Graph graph = trace(products, {{"x", ones({3}, float64)}});
    optimize(graph);
    check_same({graph.run({{"x", ones({3}, float64)}})[0]}, {products(ones({3}, float64))}, 1e-14, 0);
    const auto far = [](const Tensor& m) { return logical_not(m == std::int64_t{4294967297}); };
    const Tensor m = tensor({false, true});
    const Graph compared = trace(far, {{"m", m}});
    for (int k = 0; k < 2; ++k) CHECK(compared.run({{"m", m}})[0].equal(far(m)));
}

TEST_CASE("a function that seeds the generator is refused") {
    manual_seed(5);
    randn({3});
    const Generator::State before = default_generator().state();
    const auto seeds = [](const Tensor& x) {
        manual_seed(3);
        return x + rand({3});
    };
    FAILS(TapeError, "trace: the function seeds the random generator", trace(seeds, {{"x", ones({3})}}));
    CHECK(default_generator().state().seed == before.seed);
    CHECK(default_generator().state().offset == before.offset);
    CHECK_NOTHROW(trace([](const Tensor& x) { return x + rand({3}) + rand({0}).sum(); }, {{"x", ones({3})}}));
}

TEST_CASE("names of dimensions are names") {
    const auto traced_with = [](const char* name) { return trace([](const Tensor& x) { return x * 2; }, {{"x", ones({4}), {name}}}); };
    for (const char* name : {"n*2", "n/2", "a+b", "-1", "?", "n n"}) CHECK_THROWS_WITH(traced_with(name), Catch::Contains("a number comes first"));
    CHECK_NOTHROW(traced_with("2*n"));
    CHECK_NOTHROW(traced_with("batch_size"));
}

TEST_CASE("a dampened first step that a trace undid is a first step") {
    const auto after = [](bool is_traced) {
        manual_seed(1);
        Tensor w = ones({2}).requires_grad_();
        optim::SGD sgd({w}, {.lr = 1, .momentum = 0.9, .dampening = 0.5});
        const auto step = [&](const Tensor& x) {
            Tape tape;
            sgd.zero_grad();
            const Tensor loss = sum(w * x.sum());
            tape.backward(loss);
            sgd.step();
            return loss;
        };
        if (is_traced) {
            trace(step, {{"x", ones({2}), {"n"}}});
        } else {
            step(ones({2}));
        }
        return w.detach().clone();
    };
    check_same({after(true)}, {after(false)}, 1e-6, 1e-7);
}

TEST_CASE("steps along a time with a name are refused with what to do") {
    const auto fn = [](const Tensor& x) {
        Tensor h = zeros({3});
        for (const Tensor& row : x.unbind(0)) h = tanh(h + row);
        return h;
    };
    CHECK_THROWS_WITH(trace(fn, {{"x", randn({5, 3}), {"time"}}}), Catch::Contains("go along it with scan()"));
}

TEST_CASE("a guard of one's own says so") {
    Graph graph = trace([](const Tensor& x) { return x * 2; }, {{"x", ones({2})}});
    graph.add_guard({graph.inputs()[0], ones({2}), "ones", Loc{}});
    CHECK_NOTHROW(graph.run({{"x", ones({2})}}));
    FAILS(ValueError, "graph: the guard ones expects ", graph.run({{"x", zeros({2})}}));
}

TEST_CASE("a graph that writes is called in a trace, and the new graph writes, too") {
    Tensor count = zeros({}), state = ones({2});
    const auto counts = [&](const Tensor& x, const Tensor& s) {
        count.add_(1);
        Tensor(s).mul_(2);
        return x * count + s;
    };
    const Graph inner = trace(counts, {{"x", ones({2})}, {"s", state}});
    const auto twice = [&](const Tensor& x) { return inner({inner({x, state})[0], state})[0]; };
    const Tensor x = full({2}, 3.0), expected = full({2}, (3.0 * 1 + 2) * 2 + 4);
    const auto begin = [&] {
        count.fill_(0);
        state.fill_(1);
    };
    begin();
    CHECK(twice(x).equal(expected));
    const Graph graph = trace(twice, {{"x", x}});
    begin();
    CHECK(graph.run({{"x", x}})[0].equal(expected));
    CHECK(count.item() == 2);
    CHECK(state.equal(full({2}, 4.0)));
}

TEST_CASE("the guards of a graph that is called in a trace are read there") {
    const auto fn = [](const Tensor& x) { return x.sum().item() > 2 ? x * 2 : x * 3; };
    const Graph inner = trace(fn, {{"x", ones({3})}}, {.reads = TraceOptions::Reads::guard});
    const auto calls = [&](const Tensor& x) { return inner({x + 1})[0]; };
    CHECK_THROWS_WITH(trace(calls, {{"x", zeros({3})}}), Catch::Contains("trace: guard() reads a value"));
    const Graph graph = trace(calls, {{"x", zeros({3})}}, {.reads = TraceOptions::Reads::guard});
    CHECK(graph.run({{"x", zeros({3})}})[0].equal(full({3}, 2.0)));
    CHECK_THROWS_AS(graph.run({{"x", ones({3})}}), ValueError);
}

TEST_CASE("a moving average of weights is updated by a graph") {
    const auto after = [](bool is_traced, bool warms_up) {
        Tensor w = ones({3}).requires_grad_();
        optim::SGD sgd({w}, {.lr = 0.25});
        optim::ExponentialMovingAverage ema({w}, {.decay = 0.75, .warmup = warms_up});
        const auto step = [&](const Tensor& x) {
            Tape tape;
            sgd.zero_grad();
            const Tensor loss = sum(w * x);
            tape.backward(loss);
            sgd.step();
            ema.update();
            return loss;
        };
        const Tensor x = tensor({1.0f, 2, 3});
        if (is_traced) {
            const Graph graph = trace(step, {{"x", x}});
            w.detach().fill_(1);
            ema.averages()[0].detach().fill_(1);
            for (int i = 0; i < 4; ++i) graph.run({{"x", x}});
        } else {
            for (int i = 0; i < 4; ++i) step(x);
        }
        return ema.averages()[0].clone();
    };
    check_same({after(true, false)}, {after(false, false)}, 1e-6, 1e-7);
    CHECK_THROWS_WITH(after(true, true), Catch::Contains("ExponentialMovingAverage: update: its weight depends on how many updates there were"));
}

TEST_CASE("a number that a branch uses and the program writes to is an operand, or refused") {
    Tensor count = zeros({});
    const auto sees = [&](const Tensor& x) {
        const Tensor y = cond(x.sum() > 0, [&](const Tensor& z) { return z + count; }, [](const Tensor& z) { return z * 2; }, {x});
        count.add_(1);
        return y;
    };
    CHECK_THROWS_WITH(trace(sees, {{"x", ones({2})}}), Catch::Contains("trace: the program writes to a number of shape () after a branch"));
    CHECK(count.item() == 0);
    const auto is_given = [&](const Tensor& x) {
        const auto plus = [](const Tensor& z, const Tensor& n) { return z + n; };
        const Tensor y = cond(x.sum() > 0, plus, [](const Tensor& z, const Tensor&) { return z * 2; }, {x, count});
        count.add_(1);
        return y;
    };
    const Graph graph = trace(is_given, {{"x", ones({2})}});
    count.fill_(0);
    for (int run = 0; run < 3; ++run) CHECK(graph.run({{"x", ones({2})}})[0].equal(full({2}, 1.0 + run)));
}

TEST_CASE("parameters of a graph that is called in a trace keep their names") {
    nn::Linear net(3, 2);
    const Graph whole = trace(net, {{"x", ones({2, 3})}});
    Graph::Inputs data;
    for (const Graph::Value* value : whole.parameters()) data.emplace_back(value->name, value->data.detach().clone());
    const Graph loaded = Graph::parse(whole.str(), data);
    const auto calls = [&](const Tensor& x) { return cond(x.sum() > 0, [&] { return loaded({x})[0] * 2; }, [&] { return loaded({x})[0]; }); };
    const Graph graph = trace(calls, {{"x", ones({2, 3})}});
    REQUIRE(graph.parameters().size() == 2);
    for (const char* name : {"weight", "bias"}) CHECK(graph.value(name)->data.is_same(loaded.value(name)->data));
    check_same(graph({ones({2, 3})}), {net(ones({2, 3})) * 2});
}

TEST_CASE("two parameters with the same elements are one, under the first name") {
    const Tensor w = tensor({2.0f, 3.0f});
    const Tensor same = w.detach();
    const Graph graph = trace([&](const Tensor& x) { return x * w + same; }, {{"x", ones({2})}}, {.parameters = {{"a", w}, {"b", same}}});
    REQUIRE(graph.parameters().size() == 1);
    CHECK(graph.parameters()[0]->name == "a");
    check_same(graph({ones({2})}), {w * 2});
}

TEST_CASE("guards of one element are in the text") {
    const auto fn = [](const Tensor& x) {
        const float first = x[0].item<float>();
        const bool is_large = (x.sum() > 2).item<bool>();
        const auto count = (x > 0).sum().item<std::int64_t>();
        return x * (first + (is_large ? 1 : 2) + static_cast<float>(count));
    };
    const Tensor x = tensor({0.1f, 7.0f, -3.0f});
    const Graph graph = trace(fn, {{"x", x}}, {.reads = TraceOptions::Reads::guard});
    const Graph again = Graph::parse(graph.str());
    CHECK(again.str() == graph.str());
    CHECK(again.run({{"x", x}})[0].equal(fn(x)));
    CHECK_THROWS_AS(again.run({{"x", x * 1.0001}}), ValueError);
}

TEST_CASE("a probability that is none is refused by graphs, too") {
    Graph graph = trace([](const Tensor& x) { return dropout(x, 0.5, true); }, {{"x", ones({3})}});
    FAILS(ValueError, "dropout: p must be in [0, 1], got -1", graph.set_attribute(graph.nodes()[0].get(), "p", -1.0));
    const std::string text = graph.str();
    const Graph parsed = Graph::parse(std::string(text).replace(text.find("p=0.5"), 5, "p=3.0"));
    CHECK_THROWS_WITH(parsed.run({{"x", ones({3})}}), Catch::Contains("dropout: p must be in [0, 1], got 3"));
}

TEST_CASE("parts are written where a tensor lies") {
    const auto rows = [](const Tensor& v) {
        Tensor b = zeros({30, 100});
        for (int i = 0; i < 30; ++i) b[i] = v[i] + 1;
        b[Slice(1, 3)] = b[Slice(0, 2)];
        b.index_put_({Slice(), 7}, b.select(1, 3));
        Tensor whole = b * 2, kept = whole;
        kept[0] = v[1];
        diagonal(b).copy_(v.select(1, 0) * 3);
        return std::pair{b, whole + kept};
    };
    const Tensor v = randn({30, 100});
    const Graph graph = trace(rows, {{"v", v}});
    const auto [b, sum] = rows(v);
    const auto run = graph.compile();
    for (int again = 0; again < 3; ++again) check_same(run({v}), {b, sum});
    check_same(graph({v}), {b, sum});
    CHECK(run.planned_bytes() < 4 * 30 * 100 * sizeof(float));
    // Where it is a parameter, and where the operand is needed again.
    Tensor cache = zeros({5, 3});
    const auto put = [&](const Tensor& x) {
        const Tensor before = cache.clone();
        cache[2] = x;
        return before;
    };
    const Graph puts = trace(put, {{"x", ones({3})}}, {.parameters = {{"cache", cache}}});
    cache.fill_(0);
    for (int n = 1; n < 4; ++n) {
        CHECK(puts.run({{"x", full({3}, 1.0 * n)}})[0][2].equal(full({3}, n - 1.0)));
        CHECK(cache.sum().item() == 3 * n);
    }
}

TEST_CASE("what a backward pass begins with is on the line that asked for it") {
    const auto fn = [](const Tensor& x) {
        Tape tape;
        const Tensor w = x.detach().requires_grad_();
        return tape.gradient(sum(w * w), {w})[0];
    };
    const std::string text = trace(fn, {{"x", ones({2})}}).str();
    CHECK(text.find("ones(") != std::string::npos);
    CHECK(text.find("gradient_ops.cpp") == std::string::npos);
}

TEST_CASE("powers of one dimension beside another are formulas") {
    manual_seed(8);
    const auto scores = [](const Tensor& x) { return matmul(x, x.transpose(1, 2)); };
    const auto check = [&](const auto& fn) {
        const Graph graph = trace(fn, {{"x", randn({2, 5, 4}), {"b", "t"}}}), gradient = grad(graph, {"output"}, {"x"});
        for (const auto& [b, t] : {std::pair{1, 1}, {3, 7}, {6, 2}}) {
            const Tensor x = randn({b, t, 4}).requires_grad_();
            Tape tape;
            const Tensor y = fn(x);
            CHECK(allclose(graph.run({{"x", x}})[0], y, 1e-4, 1e-5));
            CHECK(allclose(gradient.run({{"x", x}}, {"grad_x"})[0], tape.gradient(y, {x})[0], 1e-4, 1e-5));
        }
    };
    check([&](const Tensor& x) { return scores(x).mean(); });
    check([&](const Tensor& x) { return mse_loss(scores(x), zeros_like(scores(x))); });
    check([&](const Tensor& x) {
        return scores(x).sum() * static_cast<double>(x.size(1) * x.size(1)) + static_cast<double>(x.size(0) * x.size(0) * x.size(0) - 1);
    });
}

TEST_CASE("an input that only its size is needed of is one of a compiled graph") {
    const auto fn = [](const Tensor& x, const Tensor& y, const Tensor& z) { return std::pair{y * 2 + arange(x.size(0)).to(float32), z + 1}; };
    const Graph graph = trace(fn, {{"x", ones({3, 5}), {"b"}}, {"y", ones({4, 1})}, {"z", ones({2}), {"n"}}});
    const CompiledGraph run = graph.compile({"output_0"});
    CHECK(run.inputs() == std::vector<std::string>{"x", "y"});
    CHECK(run(ones({6, 5}), ones({4, 1})).shape() == Shape{4, 6});
    CHECK(graph.compile({"output_1"}).inputs() == std::vector<std::string>{"z"});
    const CompiledGraph alone =
        trace([](const Tensor& x) { return full({x.size(0) * x.size(1) + 1}, 2.0); }, {{"x", ones({2, 3}), {"b", "t"}}}).compile();
    CHECK(alone(ones({4, 5})).shape() == Shape{21});
    FAILS(ValueError, "graph: the input x is needed", graph.run({{"y", ones({4, 1})}}, {"output_0"}));
}

TEST_CASE("parameters of a captured model have its names") {
    nn::Sequential net(nn::Linear(2, 3), nn::ReLU(), nn::Linear(3, 1));
    const Graph graph = trace([&](const Tensor& x) { return net(x); }, {{"x", ones({1, 2})}});
    std::vector<std::string> names;
    for (const Graph::Value* parameter : graph.parameters()) names.push_back(parameter->name);
    CHECK(names == std::vector<std::string>{"0.weight", "0.bias", "2.weight", "2.bias"});
    struct Pair : nn::Module {
        nn::Linear first{2, 2}, second{2, 2};
        void members(nn::Members& m) override { m("first", first)("second", second); }
        Tensor operator()(const Tensor& x) const {
            const nn::ModuleScope scope(*this);
            return second(first(x));
        }
    } pair;
    CHECK(trace([&](const Tensor& x) { return pair(x); }, {{"x", ones({1, 2})}}).parameters().back()->name == "second.bias");
}

TEST_CASE("what a traced function saves is read") {
    const auto saves = [](const auto& save) {
        return [save](const Tensor& x) {
            save(x * 2);
            return x;
        };
    };
    const TraceInput input{"x", ones({2})};
    CHECK_THROWS_WITH(trace(saves([](const Tensor& y) { save_npy("no.npy", y); }), {input}), Catch::Contains("save_npy"));
    CHECK_THROWS_WITH(trace(saves([](const Tensor& y) { save_npz("no.npz", {{"y", y}}); }), {input}), Catch::Contains("save_npz"));
    CHECK_THROWS_WITH(trace(saves([](const Tensor& y) { save_safetensors("no.safetensors", {{"y", y}}); }), {input}),
                      Catch::Contains("save_safetensors"));
}

TEST_CASE("a program that does something else when it is called again is refused") {
    const TraceInput input{"x", ones({2})};
    int calls = 0;
    FAILS(TapeError, "trace: called once more, the program does not do what it did", trace([&](const Tensor& x) { return x * ++calls; }, {input}));
    Tensor state = zeros({2});
    FAILS(TapeError, "trace: called once more, the program does not do what it did",
          trace([&](const Tensor& x) { return state = state + x; }, {input}));
    const Graph graph = trace([&](const Tensor& x) { return state.add_(x).clone(); }, {input});
    const float before = state[0].item<float>();
    CHECK(graph.run({{"x", ones({2})}})[0][0].item<float>() == before + 1);
}
