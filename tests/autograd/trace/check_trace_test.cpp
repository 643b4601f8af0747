// check_trace: a graph that does not do what its program does is found out, at the first op that differs.
#include <catch2/catch.hpp>

#include "../../fails.h"
#include "tapir/autograd/trace/check_trace.h"
#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string place(int line) { return "check_trace_test.cpp:" + std::to_string(line); }

TraceOptions guarded() {
    TraceOptions options;
    options.reads = TraceOptions::Reads::guard;
    return options;
}

}  // namespace

TEST_CASE("a graph that is right passes, for other sizes too, and leaves no trace") {
    manual_seed(1);
    const Tensor w = randn({3, 4}).requires_grad_(), b = randn({3}).requires_grad_();
    const auto fn = [&](const Tensor& x) {
        Tensor y = tanh(linear(x, w, b)) / x.size(0);
        y[0].mul_(2);
        return std::vector<Tensor>{y, y.reshape({x.size(0) * 3}).sum()};
    };
    const Graph graph = trace(fn, {{"x", randn({2, 4}), {"batch"}}});
    const Generator::State drawn = default_generator().state();
    for (const int n : {1, 2, 7}) CHECK(check_trace(graph, fn, {ones({n, 4}) * 0.3}).ok);
    CHECK(default_generator().state().offset == drawn.offset);
    // A simplified one, too, where only what comes out matters.
    Graph simplified = graph;
    simplify(simplified);
    CHECK(check_trace(simplified, fn, {randn({3, 4})}, {.same_ops = false}).ok);
}

TEST_CASE("a program that branches on data is found out where it goes another way") {
    const auto fn = [](const Tensor& x) {
        const Tensor s = x.sum();
        if (s.item() > 0) return exp(x);
        return tanh(x);
    };
    const int line = __LINE__ - 4;
    const Graph graph = trace(fn, {{"x", ones({3})}}, guarded());
    CHECK(check_trace(graph, fn, {ones({3}) * 2}).ok);  // the guard would not hold, but the way is the same
    const auto result = check_trace(graph, fn, {-ones({3})}, {.raise_exception = false});
    CHECK_FALSE(result);
    CHECK(result.message ==
          "the graph goes on with exp at " + place(line + 1) + ", the program with tanh at " + place(line + 2) +
              ": it went another way; before, the program read a value with item() at " + place(line + 1));
    CHECK(result.where.line() == static_cast<unsigned>(line + 2));
    FAILS_IN(TapeError, "check_trace: the graph goes on with exp", "it went another way", check_trace(graph, fn, {-ones({3})}));
}

TEST_CASE("a program that goes on, or ends earlier, is found out") {
    int more = 0;
    const auto fn = [&](const Tensor& x) {
        Tensor y = sin(x);
        for (int i = 0; i < more; ++i) y = cos(y);
        return y;
    };
    const Tensor x = ones({2});
    more = 1;
    const Graph graph = trace(fn, {{"x", x}});
    more = 2;
    CHECK(has(check_trace(graph, fn, {x}, {.raise_exception = false}).message, "the program goes on with cos at "));
    more = 0;
    CHECK(has(check_trace(graph, fn, {x}, {.raise_exception = false}).message, "the graph goes on with cos at "));
}

TEST_CASE("a number that was baked in is found out") {
    double scale = 2;
    Tensor table = ones({2});
    const auto fn = [&](const Tensor& x) { return sin(x) * scale + table; };
    const int line = __LINE__ - 1;
    const Graph graph = trace(fn, {{"x", ones({2})}});
    scale = 3;
    CHECK(check_trace(graph, fn, {zeros({2})}, {.raise_exception = false}).message ==
          "mul at " + place(line) + ": operand 1, a constant of the graph, is another one now: 2 in the graph, 3 in the program");
    scale = 2;
    table = tensor({1.0f, 1.5f});
    CHECK(check_trace(graph, fn, {zeros({2})}, {.raise_exception = false}).message ==
          "add at " + place(line) +
              ": operand 1, a constant of the graph, is another one now: 1 of 2 elements differ, element (1,) most: "
              "1 in the graph, 1.5 in the program");
}

TEST_CASE("an attribute that depends on data is found out") {
    std::int64_t dim = 0;
    const auto fn = [&](const Tensor& x) { return softmax(x, dim); };
    const int line = __LINE__ - 1;
    const Graph graph = trace(fn, {{"x", ones({2, 3})}});
    dim = 1;
    const std::string message = check_trace(graph, fn, {ones({2, 3})}, {.raise_exception = false}).message;
    INFO(message);
    CHECK(has(message, "softmax at " + place(line) + ": its dim is 0 in the graph, 1 in the program: 6 of 6 elements differ"));
}

TEST_CASE("random ops draw the same numbers, and what is written is undone") {
    manual_seed(5);
    nn::Dropout dropout(0.5);
    nn::BatchNorm1d norm(4);
    const auto fn = [&](const Tensor& x) { return dropout(norm(x)) + rand({4}); };
    TraceOptions options;
    options.parameters = {{"mean", norm.running_mean}, {"var", norm.running_var}};
    const Graph graph = trace(fn, {{"x", randn({8, 4})}}, options);
    const Tensor x = randn({8, 4}), mean = norm.running_mean.clone();
    const Generator::State drawn = default_generator().state();
    CHECK(check_trace(graph, fn, {x}).ok);
    CHECK(default_generator().state().offset == drawn.offset);
    CHECK(equal(norm.running_mean, mean));
    dropout.eval();
    const auto result = check_trace(graph, fn, {x}, {.raise_exception = false});
    CHECK(has(result.message, "the graph goes on with dropout at "));
    dropout.train();
    norm.eval();
    CHECK_FALSE(check_trace(graph, fn, {x}, {.raise_exception = false}).ok);
}

TEST_CASE("a program that writes other numbers than its graph is found out, and what it wrote is undone") {
    Tensor weight = ones({3}), first = zeros({3}), second = zeros({3});
    float* const behind = weight.data<float>();  // which no op sees
    bool is_odd = false;
    const auto step = [&](const Tensor& x) {
        first.copy_(x + 1);
        const Tensor y = weight * x;
        if (is_odd) behind[1] += 1;
        second.copy_(y);
        return sum(x);
    };
    TraceOptions options;
    options.parameters = {{"weight", weight}, {"first", first}, {"second", second}};
    CHECK(trace(step, {{"x", ones({3})}}, options).updates().size() == 2);
    CHECK(second.to_vector<float>() == std::vector<float>{1, 1, 1});
    is_odd = true;
    FAILS(TapeError, "what is written to second: 1 of 3 elements differ, element (1,) most: 4 in the graph, 3 in the program; first at mul",
          trace(step, {{"x", ones({3})}}, options));
    CHECK(first.to_vector<float>() == std::vector<float>{2, 2, 2});
    CHECK(second.to_vector<float>() == std::vector<float>{1, 1, 1});
}

TEST_CASE("of a graph that was changed the outputs are compared") {
    const auto fn = [](const Tensor& x) { return exp(sin(x) * 1.0); };
    const int line = __LINE__ - 1;
    Graph graph = trace(fn, {{"x", ones({2})}});
    simplify(graph);
    const Tensor x = tensor({0.5f, 0.25f});
    CHECK_FALSE(check_trace(graph, fn, {x}, {.raise_exception = false}).ok);
    CHECK(check_trace(graph, fn, {x}, {.same_ops = false}).ok);
    // A wrong edit: it begins at the op whose operand is another.
    Graph::Node* last = graph.nodes().back().get();
    graph.set_input(last, 0, graph.inputs()[0]);
    const std::string message = check_trace(graph, fn, {x}, {.same_ops = false, .raise_exception = false}).message;
    INFO(message);
    CHECK(has(message, "the output output: 2 of 2 elements differ"));
    CHECK(has(message, "; first at exp at " + place(line) + ": 2 of 2 elements differ"));
}

TEST_CASE("what a check is given has to fit") {
    const auto fn = [](const Tensor& x) { return x * 2; };
    const Graph graph = trace(fn, {{"x", ones({2, 3}), {"batch"}}});
    FAILS(ValueError, "check_trace: 2 inputs given, the graph has 1", check_trace(graph, fn, {ones({2, 3}), ones({1})}));
    FAILS(ValueError, "check_trace: the input x is undefined", check_trace(graph, fn, {Tensor()}));
    FAILS(ShapeError, "graph: the input x has shape (2, 4), the graph was made for (batch, 3)", check_trace(graph, fn, {ones({2, 4})}));
    FAILS(ValueError, "check_trace: the function gave an undefined tensor",
          check_trace(graph, [](const Tensor&) { return Tensor(); }, {ones({2, 3})}));
    FAILS(TapeError, "the graph has 1 outputs, the program 2",
          check_trace(graph,
                      [](const Tensor& x) {
                          const Tensor y = x * 2;
                          return std::vector<Tensor>{y, y};
                      },
                      {ones({2, 3})}));
    FAILS(TapeError, "check_trace: this thread is tracing",
          trace(
              [&](const Tensor& x) {
                  check_trace(graph, fn, {x});
                  return x;
              },
              {{"x", ones({2, 3})}}));
    // It throws what the program throws, and all is as it was.
    Tensor total = zeros({3});
    const auto fails = [&](const Tensor& x) {
        total += x[0];
        throw 7;
        return x;
    };
    CHECK_THROWS_AS(check_trace(graph, fails, {ones({2, 3})}), int);
    CHECK(equal(total, zeros({3})));
}

TEST_CASE("branches and loops of a graph are one op each") {
    const auto fn = [](const Tensor& x) {
        return cond(x.sum() > 0, [](const Tensor& t) { return exp(t); }, [](const Tensor& t) { return tanh(t) * 2.0; }, {x})[0] + 1;
    };
    const Graph graph = trace(fn, {{"x", ones({3})}});
    CHECK(check_trace(graph, fn, {ones({3}) * 2}).ok);
    CHECK(check_trace(graph, fn, {-ones({3})}).ok);
}

TEST_CASE("of branches and bodies the op within is named") {
    double scale = 2;
    bool uses_tanh = false;
    const auto looping = [&](const Tensor& x) {
        const auto body = [&](const Tensor& h) { return (uses_tanh ? tanh(h) : sin(h)) + h * scale; };
        return while_loop([](const Tensor& h) { return h.sum() < 10; }, body, {x})[0];
    };
    const int body = __LINE__ - 3;
    const auto scanning = [&](const Tensor& x) {
        return scan(
                   [&](const Tensor& h, const Tensor& row) {
                       const Tensor noisy = h + rand({3});
                       return cond(row.sum() > 0, [&] { return noisy * scale; }, [&] { return noisy + row; });
                   },
                   {zeros({3})}, {x}, {.reverse = true})
            .carry[0];
    };
    const int branch = __LINE__ - 5;
    const Graph loop = trace(looping, {{"x", ones({3})}}), steps = trace(scanning, {{"x", ones({2, 3}), {"steps"}}});
    const Tensor rows = cat({-ones({3, 3}), ones({1, 3})});
    CHECK(check_trace(loop, looping, {full({3}, 0.5)}).ok);
    CHECK(check_trace(steps, scanning, {rows}).ok);
    scale = 3;
    auto result = check_trace(loop, looping, {ones({3})}, {.raise_exception = false});
    CHECK(result.message ==
          "mul at " + place(body) +
              ": operand 1, a constant of the graph, is another one now: 2 in the graph, 3 in the program; "
              "in the first step of while_loop at " +
              place(body + 1));
    CHECK(result.where.line() == static_cast<unsigned>(body));
    result = check_trace(steps, scanning, {rows}, {.raise_exception = false});
    CHECK(result.message ==
          "mul at " + place(branch) +
              ": operand 1, a constant of the graph, is another one now: 2 in the graph, 3 in the program; "
              "in cond at " +
              place(branch) + "; in the first step of scan at " + place(branch - 3));
    scale = 2;
    uses_tanh = true;
    CHECK(has(check_trace(loop, looping, {ones({3})}, {.raise_exception = false}).message,
              "the graph goes on with sin at " + place(body) + ", the program with tanh at " + place(body) + ": it went another way; in the "));
    // Of a graph that was changed, too.
    Graph simplified = loop;
    optimize(simplified);
    const std::string message = check_trace(simplified, looping, {ones({3})}, {.same_ops = false, .raise_exception = false}).message;
    INFO(message);
    CHECK(has(message, "the output output: 3 of 3 elements differ"));
    CHECK(has(message, "in the first step of while_loop at " + place(body + 1)));
}

TEST_CASE("a body that uses another number of tensors is compared within") {
    const Tensor w = randn({3}).requires_grad_();
    bool uses_w = true;
    const auto fn = [&](const Tensor& x) { return cond(x.sum() > 0, [&] { return uses_w ? sin(x) * w : cos(x); }, [&] { return x; }); };
    const int line = __LINE__ - 1;
    const Graph graph = trace(fn, {{"x", ones({3})}});
    uses_w = false;
    CHECK(check_trace(graph, fn, {ones({3})}, {.raise_exception = false}).message ==
          "the graph goes on with sin at " + place(line) + ", the program with cos at " + place(line) + ": it went another way; in cond at " +
              place(line));
    // In the branch that is not taken: that is all that is known.
    CHECK(
        has(check_trace(graph, fn, {-ones({3})}, {.raise_exception = false}).message, "cond at " + place(line) + ", of another number of operands"));
}
