// cond, while_loop and scan: eagerly as if and for, traced as nodes that go the way of other data, with gradients.
#include <catch2/catch.hpp>

#include "../../fails.h"
#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/graph/grad.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

void check_close(const Tensor& a, const Tensor& b) {
    REQUIRE(a.shape() == b.shape());
    CHECK(a.dtype() == b.dtype());
    CHECK(allclose(a, b, 1e-8, 1e-9));
}

// The text says all that there is.
void check_text(const Graph& graph, const std::vector<Tensor>& x) {
    Graph::Inputs data;
    for (const auto* list : {&graph.parameters(), &graph.constants()}) {
        for (const Graph::Value* value : *list)
            data.emplace_back(value->name.empty() ? "%" + std::to_string(value->number) : value->name, value->data);
    }
    const Graph again = Graph::parse(graph.str(), data);
    CHECK(again.str() == graph.str());
    check_close(again(x)[0], graph(x)[0]);
}

// The graph does what the function does on each of these, recorded, not recorded, and its gradient too.
template <class Fn>
void check_graph(const Graph& graph, const Fn& fn, const std::vector<Tensor>& samples, const Tensor& w) {
    INFO(graph.str());
    graph.check();
    const std::string x_name = graph.inputs()[0]->name;
    const Graph gradients = grad(graph, {"output"}, {x_name, "parameter_0"});
    gradients.check();
    const Graph second = grad(gradients, {"grad_" + x_name}, {x_name, "parameter_0"});
    INFO(gradients.str());
    for (const Tensor& sample : samples) {
        const Tensor x = sample.detach().requires_grad_();
        check_close(graph({x})[0], fn(x));
        check_close(graph.run({{x_name, x}})[0], fn(x));
        Tape tape(TapeOptions{.persistent = true});
        const std::vector<Tensor> wanted = tape.gradient(sum(fn(x)), {x, w}, {.create_graph = true});
        const std::vector<Tensor> recorded = tape.gradient(sum(graph({x})[0]), {x}, {});
        check_close(recorded[0], wanted[0]);
        const std::vector<Tensor> got = gradients.run({{x_name, x}});
        check_close(got[1], wanted[0]);
        check_close(got[2], wanted[1]);
        const std::vector<Tensor> twice = tape.gradient(sum(wanted[0]), {x, w}), got_twice = second.run({{x_name, x}});
        check_close(got_twice[got_twice.size() - 2], twice[0]);
        check_close(got_twice.back(), twice[1]);
    }
    check_text(graph, {samples[0]});
    check_text(gradients, {samples[0]});
}

// By a line of the function, which is not that of the call of trace().
template <class E, class Fn>
void fails_inside(const Fn& fn, const std::string& text) {
    try {
        fn();
        FAIL_CHECK("nothing thrown");
    } catch (const E& error) {
        CHECK_THAT(error.what(), Catch::StartsWith("control_flow_test.cpp:") && Catch::Contains(text));
    }
}

}  // namespace

TEST_CASE("cond takes one of two branches") {
    manual_seed(3);
    const Tensor w = randn({3}, float64).requires_grad_();
    const auto fn = [&](const Tensor& x) {
        const Tensor y = x * 3;
        return cond(sum(x) > 0, [&] { return exp(y * w); }, [&] { return y.pow(3); });
    };
    const Tensor up = ones({3}, float64), down = -up;
    check_close(fn(up), exp(up * 3 * w));
    check_close(fn(down), full({3}, -27.0, float64));
    for (const Tensor& x : {up, down}) {  // whichever way the traced run went
        check_graph(trace(fn, {{"x", x}}), fn, {up, down, randn({3}, float64)}, w);
    }
}

TEST_CASE("cond with operands, several results, one inside another") {
    manual_seed(4);
    const Tensor w = randn({2}, float64).requires_grad_();
    const auto fn = [&](const Tensor& x) {
        const auto inner = [&](const Tensor& a, const Tensor& b) {
            return cond(a.max() > 1, [&] { return std::pair{a * b, b}; }, [&] { return std::pair{a + w, a * a * b}; });
        };
        const auto [a, b] = cond(sum(x) > 0, inner, [&](const Tensor& p, const Tensor& q) { return std::pair{p * p * w, q}; }, {x, x * 2});
        return a * b;
    };
    const auto of = [](double a, double b) { return tensor({a, b}, float64); };
    check_graph(trace(fn, {{"x", of(1, 2)}}), fn, {of(1, 2), of(0.5, 0.25), of(-1, 0.5)}, w);
}

TEST_CASE("while_loop goes on for as long as data says") {
    manual_seed(5);
    const Tensor w = (randn({3, 3}, float64) * 0.5).requires_grad_();
    const auto fn = [&](const Tensor& x) {
        const auto end =
            while_loop([](const Tensor& i, const Tensor& h) { return (h.abs().sum() < 8).logical_and(i < 20); },
                       [&](const Tensor& i, const Tensor& h) { return std::pair{i + 1, tanh(matmul(h, w)) + h * 1.5}; }, {zeros({}, int64), x});
        return end[1] * end[1];
    };
    const Tensor x = full({2, 3}, 0.3, float64), more = full({2, 3}, 0.1, float64), none = full({2, 3}, 5.0, float64);
    const Graph graph = trace(fn, {{"x", x}});
    CHECK(graph.nodes().size() < 6);
    check_graph(graph, fn, {x, more, none}, w);
}

TEST_CASE("scan goes along a dimension, of any length") {
    manual_seed(6);
    const Tensor w = (randn({3, 3}, float64) * 0.5).requires_grad_();
    for (const bool reverse : {false, true}) {
        const auto fn = [&](const Tensor& xs) {
            const auto step = [&](const Tensor& h, const Tensor& x) {
                const Tensor next = tanh(matmul(h, w) + x);
                return std::pair{next, next * h};
            };
            const ScanResult r = scan(step, {zeros({2, 3}, float64)}, {xs}, {.dim = 1, .reverse = reverse});
            CHECK(r.outputs[0].shape() == xs.shape());
            return r.outputs[0].sum(1) + r.carry[0];
        };
        const Tensor x = randn({2, 4, 3}, float64), longer = randn({2, 7, 3}, float64);
        const Graph graph = trace(fn, {{"xs", x, {"", "time"}}});
        check_graph(graph, fn, {x, longer, randn({2, 1, 3}, float64)}, w);
    }
}

TEST_CASE("scan by its definition") {
    const Tensor xs = tensor({1.0, 2.0, 3.0, 4.0});
    const auto add = [](const Tensor& carry, const Tensor& x) { return std::pair{carry + x, carry + x}; };
    CHECK(equal(scan(add, {zeros({})}, {xs}).outputs[0], cumsum(xs, 0)));
    const ScanResult back = scan(add, {zeros({})}, {xs}, {.reverse = true});
    CHECK(equal(back.outputs[0], tensor({10.0, 9.0, 7.0, 4.0})));
    CHECK(back.carry[0].item<float>() == 10);
    const ScanResult none = scan(add, {ones({})}, {xs.narrow(0, 0, 0)});
    CHECK(none.carry[0].item<float>() == 1);
    CHECK(none.outputs[0].shape() == Shape{0});
}

TEST_CASE("random numbers in a branch are drawn by the graph") {
    const auto fn = [](const Tensor& x) { return cond(sum(x) > 0, [&] { return x + randn({3}); }, [&] { return x; }); };
    const Graph graph = trace(fn, {{"x", ones({3})}});
    manual_seed(1);
    const Tensor a = fn(ones({3}));
    manual_seed(1);
    CHECK(equal(graph({ones({3})})[0], a));
    CHECK_FALSE(equal(graph({ones({3})})[0], a));
}

TEST_CASE("what control flow cannot be") {
    const Tensor x = ones({3});
    const auto same = [](const Tensor& t) { return t; };
    const auto smaller = [](const Tensor& t) { return t.narrow(0, 0, 2); };
    const auto whole = [](const Tensor& t) { return t.to(int64); };
    const auto yes = [](const Tensor& t) { return sum(t) > 100; };
    const auto less = [](const Tensor& t) { return sum(t) < 100; };
    FAILS(ValueError, "cond: the condition needs one element, got (3,)", cond(x > 0, [] { return Tensor(); }, [] { return Tensor(); }));
    FAILS(ValueError, "cond: a function of 1 tensor is given 0", cond(sum(x) > 0, same, same, {}));
    FAILS(ValueError, "while_loop: nothing is carried", while_loop(less, same, {}));
    FAILS(ShapeError, "while_loop: what is carried as number 0 has shape (3,), and (2,) after a step", while_loop(less, smaller, {x}));
    FAILS(DTypeError, "while_loop: what is carried as number 0 is float32, and int64 after a step", while_loop(less, whole, {x}));
    FAILS(ValueError, "1 tensors are carried, the function gave 2", while_loop(less, [](const Tensor& t) { return std::pair{t, t}; }, {x}));
    FAILS(ValueError, "scan: there are no xs", scan(same, {x}, {}));
    FAILS(ShapeError, "scan: xs have 3 and 2 slices along dim 0", scan([](const Tensor& a, const Tensor&) { return a; }, {}, {x, ones({2})}));
    FAILS(IndexError, "scan: dim 1 is not there in xs of shape (3,)", scan(same, {}, {x}, {.dim = 1}));
    FAILS(ValueError, "scan: there are no xs", scan(yes, {x}, {}));
    SECTION("traced") {
        const auto differs = [&](const Tensor& t) { return cond(sum(t) > 0, [&] { return t; }, [&] { return t.narrow(0, 0, 2); }); };
        fails_inside<ShapeError>([&] { trace(differs, {{"x", x}}); }, "cond: one branch gives shape (3,), the other (2,)");
        const auto types = [&](const Tensor& t) { return cond(sum(t) > 0, [&] { return t; }, [&] { return t.to(float64); }); };
        fails_inside<DTypeError>([&] { trace(types, {{"x", x}}); }, "cond: one branch gives float32, the other float64");
        const auto counts = [&](const Tensor& t) {
            return cond(sum(t) > 0, [&] { return std::vector<Tensor>{t}; }, [&] { return std::vector<Tensor>{t, t}; })[0];
        };
        fails_inside<ValueError>([&] { trace(counts, {{"x", x}}); }, "cond: one branch gives 1 tensors, the other 2");
        const auto writes = [&](const Tensor& t) {
            Tensor y = t * 2;
            return cond(sum(t) > 0, [&] { return y.add_(1); }, [&] { return y; });
        };
        fails_inside<TapeError>([&] { trace(writes, {{"x", x}}); },
                                "cond: a function that is traced writes to a tensor of shape (3,) that it did not make");
        const auto reads = [&](const Tensor& t) {
            return cond(sum(t) > 0, [&] { return t.max().item<float>() > 1 ? t : t * 2; }, [&] { return t; });
        };
        fails_inside<TapeError>([&] { trace(reads, {{"x", x}}); }, "item() reads a value that amax made at");
        CHECK(equal(trace(same, {{"x", x}})({x})[0], x));  // nothing is left behind
    }
}

TEST_CASE("what control flow gives back is new, traced or not: writing to it changes nothing else") {
    const auto of_cond = [](const Tensor& x) {
        const Tensor a = x * 1;
        Tensor y = cond(a.sum() > 0, [&] { return a; }, [&] { return -a; });
        y.add_(10);
        return a;
    };
    const auto of_view = [](const Tensor& x) {
        const Tensor a = x * 1;
        Tensor y = cond(a.sum() > 0, [](const Tensor& of) { return of[0]; }, [](const Tensor& of) { return of.sum(); }, {a});
        y.add_(10);
        return a;
    };
    const auto of_loop = [](const Tensor& x) {
        const Tensor a = x * 1;
        Tensor y = while_loop([](const Tensor& h) { return h.sum() > 100; }, [](const Tensor& h) { return h / 2; }, {a})[0];
        y.add_(10);
        return a;
    };
    const auto of_scan = [](const Tensor& x) {
        const Tensor a = x * 1;
        ScanResult r = scan([](const Tensor& h, const Tensor& s) { return std::pair{h, s}; }, {a}, {a});
        r.carry[0].add_(10);
        r.outputs[0].add_(10);
        return a;
    };
    const auto twice = [](const Tensor& x) {
        auto [a, b] = cond(
            x.sum() > 0,
            [&] {
                const Tensor y = x * 1;
                return std::pair{y, y};
            },
            [&] { return std::pair{x * 2, x * 3}; });
        a.add_(10);
        return b * 1;
    };
    const auto check = [](const auto& fn) {
        const Graph graph = trace(fn, {{"x", ones({2})}});
        for (const Tensor& x : {ones({2}), -ones({2}), full({2}, 90.0)}) {
            const Tensor wanted = fn(x);
            check_close(graph({x})[0], wanted);
            check_close(graph.run({{"x", x}})[0], wanted);
            check_close(graph.compile()({x})[0], wanted);
        }
        check_close(fn(ones({2})), ones({2}));
    };
    check(of_cond);
    check(of_view);
    check(of_loop);
    check(of_scan);
    check(twice);
    // The copies pass gradients on.
    const Tensor w = ones({2}).requires_grad_();
    Tape tape;
    tape.backward((cond(w.sum() > 0, [&] { return w; }, [&] { return -w; }) * 3).sum());
    check_close(w.grad(), full({2}, 3.0));
}

TEST_CASE("more results than an op of a graph can give are refused when they are traced") {
    const auto list_of = [](const Tensor& x, std::size_t count) { return std::vector<Tensor>(count, x * 1); };
    const auto more = [](const std::vector<Tensor>& now) {
        std::vector<Tensor> next;
        for (const Tensor& t : now) next.push_back(t * 2);
        return next;
    };
    const auto is_small = [](const std::vector<Tensor>& now) { return now[0].sum() < 8; };
    const auto loop = [&](std::size_t count) { return [=](const Tensor& x) { return while_loop(is_small, more, list_of(x, count)).back(); }; };
    const auto fork = [&](std::size_t count) { return [=](const Tensor& x) { return cond(x.sum() > 0, more, more, list_of(x, count)).back(); }; };
    const auto along = [&](std::size_t count) {
        return [=](const Tensor& x) {
            const auto step = [](const std::vector<Tensor>& now) { return std::vector<Tensor>(now.begin(), now.end() - 1); };
            return scan(step, list_of(x, count), {x}).carry.back();
        };
    };
    const auto traced = [](const auto& fn) { return trace(fn, {{"x", ones({2})}}); };
    for (const std::size_t count : {130, 256}) {
        check_close(traced(loop(count)).run({{"x", ones({2})}})[0], loop(count)(ones({2})));
        check_close(traced(fork(count)).run({{"x", ones({2})}})[0], fork(count)(ones({2})));
        check_close(traced(along(count)).run({{"x", ones({2})}})[0], along(count)(ones({2})));
    }
    const std::string limit = ": an op of a graph gives at most 256 tensors, and this one would give ";
    CHECK_THROWS_WITH(traced(loop(300)), Catch::Contains("control_flow_test.cpp") && Catch::Contains("while_loop" + limit + "300"));
    CHECK_THROWS_WITH(traced(fork(300)), Catch::Contains("control_flow_test.cpp") && Catch::Contains("cond" + limit + "300"));
    CHECK_THROWS_WITH(traced(along(300)), Catch::Contains("control_flow_test.cpp") && Catch::Contains("scan" + limit + "300"));
    const Tensor w = ones({2}).requires_grad_();
    const auto trained = [&](const Tensor& x) {
        Tape tape;
        return tape.gradient(loop(130)(x * w).sum(), {w}, {})[0];
    };
    CHECK_THROWS_AS(traced(trained), TapeError);
    CHECK_THROWS_WITH(traced(trained), Catch::Contains("while_loop" + limit + "260"));
}
