// Running graphs: only what is asked for, in memory that is used again, by several threads.
#include <catch2/catch.hpp>
#include <thread>

#include "../../fails.h"
#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/core/allocator.h"
#include "tapir/tapir.h"
#include "unchecked.h"

using namespace tapir;

namespace {

Graph two_outputs() {
    manual_seed(1);
    const Tensor w = randn({4, 4}).requires_grad_();
    TraceOptions options;
    options.outputs = {"hidden", "logits"};
    return trace(
        [=](const Tensor& x, const Tensor& y) {
            const Tensor hidden = tanh(linear(x, w));
            return std::vector<Tensor>{hidden, log_softmax(hidden + y, 1)};
        },
        {{"x", randn({2, 4}), {"batch"}}, {"y", randn({4})}}, options);
}

}  // namespace

TEST_CASE("a run computes what is asked for") {
    const Graph graph = two_outputs();
    const Tensor x = randn({3, 4}), y = randn({4});
    const std::vector<Tensor> all = graph({x, y});
    CHECK(equal(graph.run({{"x", x}, {"y", y}})[1], all[1]));
    CHECK(equal(graph.run({{"x", x}, {"y", y}}, {"logits"})[0], all[1]));
    CHECK(equal(graph.run({{"x", x}}, {"hidden"})[0], all[0]));  // without y
    CHECK(graph.run({{"x", x}}, {"x"})[0].is_same(x));
    FAILS(ValueError, "graph: the input y is needed", graph.run({{"x", x}}, {"logits"}));
    FAILS(ValueError, "there is no input z; there are x, y", graph.run({{"z", x}}, {"logits"}));
    FAILS(ValueError, "there is no input, parameter or output logit", graph.run({{"x", x}}, {"logit"}));
    FAILS(ShapeError, "the input x has shape (3, 5), the graph was made for (batch, 4)", graph.run({{"x", randn({3, 5})}}, {"hidden"}));
    FAILS(DTypeError, "the input x is float64", graph.run({{"x", x.to(float64)}}, {"hidden"}));
}

TEST_CASE("results of a run stay as they are") {
    const Graph graph = two_outputs();
    const Tensor x = randn({3, 4}), y = randn({4});
    const Tensor first = graph.run({{"x", x}, {"y", y}}, {"logits"})[0], copy = first.clone();
    graph.run({{"x", x * 2}, {"y", y}}, {"logits"});
    graph.run({{"x", randn({7, 4})}, {"y", y}}, {"logits"});
    CHECK(equal(first, copy));
}

TEST_CASE("a run is not recorded, a call is") {
    const Graph graph = two_outputs();
    Tape tape;
    const Tensor x = randn({3, 4}).requires_grad_(), y = randn({4});
    CHECK(!graph.run({{"x", x}, {"y", y}}, {"logits"})[0].requires_grad());
    const Tensor called = sum(graph({x, y})[1] * 2);
    const std::vector<Tensor> gradients = tape.gradient(called, {x, graph.parameters()[0]->data});
    CHECK(gradients[1].shape() == Shape(4, 4));
    CHECK(gradients[0].abs().sum().item() > 0);
}

TEST_CASE("an edited graph runs as it is now") {
    Graph graph = two_outputs();
    const Tensor x = randn({3, 4}), y = randn({4});
    const Tensor before = graph.run({{"x", x}, {"y", y}}, {"logits"})[0];
    Graph::Value* hidden = graph.value("hidden");
    Graph::Node* doubled = graph.insert(hidden->uses[0].node, "mul", {hidden, graph.add_constant(tensor(2.0))});
    graph.set_input(doubled->results[0]->maker, 0, hidden);
    graph.set_input(hidden->uses[0].node == doubled ? hidden->uses[1].node : hidden->uses[0].node, 0, doubled->results[0]);
    graph.check();
    const Tensor after = graph.run({{"x", x}, {"y", y}}, {"logits"})[0];
    CHECK(!allclose(before, after));
    CHECK(equal(after, graph({x, y})[1]));
}

TEST_CASE("several threads run one graph") {
    const Graph graph = two_outputs();
    const Tensor y = randn({4});
    std::vector<Tensor> inputs, wanted;
    for (int i = 0; i < 4; ++i) {
        inputs.push_back(randn({i + 1, 4}));
        wanted.push_back(graph({inputs.back(), y})[1]);
    }
    std::vector<int> wrong(4, 0);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            for (int i = 0; i < 50; ++i) wrong[t] += !equal(graph.run({{"x", inputs[t]}, {"y", y}}, {"logits"})[0], wanted[t]);
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == std::vector<int>(4, 0));
}

TEST_CASE("what the program writes to parameters is written by a whole run") {
    Tensor count = zeros({2});
    TraceOptions options;
    options.parameters = {{"count", count}};
    const Graph graph = trace(
        [&](const Tensor& x) {
            count.add_(x);
            return count * 2;
        },
        {{"x", ones({2})}}, options);
    CHECK(equal(count, ones({2})));  // it ran once
    REQUIRE(graph.updates().size() == 1);
    CHECK(equal(graph.run({{"x", ones({2}) * 3}})[0], full({2}, 8.0)));
    CHECK(equal(count, full({2}, 4.0)));
    graph.run({{"x", ones({2})}}, {"output"});
    CHECK(equal(count, full({2}, 4.0)));  // only what is asked for
}

TEST_CASE("an input that is written to shares memory with no other one") {
    const Graph graph = trace(
        [](const Tensor& a, const Tensor& b) {
            Tensor(a).add_(1);
            return a * b;
        },
        {{"a", ones({3})}, {"b", ones({3})}});
    const Graph reading = trace([](const Tensor& a, const Tensor& b) { return a * b; }, {{"a", ones({3})}, {"b", ones({3})}});
    const auto compiled = graph.compile();
    const Tensor both = ones({6}), x = both.slice(0, Slice(0, 3));
    for (const Tensor& other : {x, both.slice(0, Slice(2, 5))}) {
        const std::string text = "the input a, which it writes to, and the input b lie in the same memory";
        for (int i = 0; i < 3; ++i) {
            FAILS(ValueError, text, graph({x, other}));
            FAILS(ValueError, text, graph.run({{"a", x}, {"b", other}}));
            FAILS(ValueError, text, compiled({x, other}));
            CHECK(equal(both, ones({6})));  // nothing was written
            CHECK(equal(reading.run({{"a", x}, {"b", other}})[0], ones({3})));
        }
    }
    CHECK(equal(graph.run({{"a", x}, {"b", both.slice(0, Slice(3, 6))}})[0], full({3}, 2.0)));  // apart in one storage
    CHECK(equal(both, tensor({2.0f, 2.0f, 2.0f, 1.0f, 1.0f, 1.0f})));
}

TEST_CASE("a graph computes in the dtypes that it says, under autocast too") {
    const auto fn = [](const Tensor& x) { return matmul(x, x).to(float32); };
    const Tensor x = randn({4, 4});
    const Graph exact = trace(fn, {{"x", x}});
    const Tensor wanted = fn(x);
    const AutocastScope autocast(bfloat16);
    const Graph rounded = trace(fn, {{"x", x}});
    CHECK(equal(exact({x})[0], wanted));
    CHECK(equal(exact.run({{"x", x}})[0], wanted));
    CHECK(!equal(fn(x), wanted));
    CHECK(equal(rounded({x})[0], fn(x)));
    CHECK(equal(rounded.run({{"x", x}})[0], fn(x)));
}

TEST_CASE("parameters of the same shape and dtype take their places, others do not") {
    Graph graph;
    Graph::Value* x = graph.add_input("x", float32, {3, 4});
    Graph::Value* w = graph.add_parameter("w", arange(4).to(float32));
    Graph::Value* product = graph.insert(nullptr, "mul", {x, w})->results[0];
    graph.add_output("y", graph.insert(nullptr, "exp", {product})->results[0]);
    const Tensor a = arange(12).to(float32).reshape({3, 4}) / 12;
    const auto run = [&](Loc loc = Loc::current()) { return graph.run({{"x", a}}, {}, loc)[0]; };
    const auto call = [&](Loc loc = Loc::current()) { return graph({a}, loc)[0]; };
    for (int runs : {1, 2, 5}) {  // before the memory is laid out, and after
        w->data = arange(4).to(float32) * runs;
        for (int i = 0; i < runs; ++i) CHECK(allclose(run(), exp(a * w->data)));
        CHECK(allclose(call(), exp(a * w->data)));
        w->data = Tensor();
        FAILS(ValueError, "the parameter w is undefined", run());
        FAILS(ValueError, "the parameter w is undefined", call());
        for (const Tensor& other : {tensor(2.0f), ones({2}), ones({3, 1}), ones({2, 1, 4})}) {
            w->data = other;
            for (int i = 0; i < 3; ++i)
                FAILS(ShapeError, "the parameter w has shape " + other.shape().str() + ", the graph was made for (4,)", run());
            FAILS(ShapeError, "the graph was made for (4,)", call());
        }
        w->data = arange(4);
        for (int i = 0; i < 3; ++i) FAILS(DTypeError, "the parameter w is int64, the graph was made for float32", run());
        FAILS(DTypeError, "the graph was made for float32", call());
    }
}

TEST_CASE("what is written to keeps its shape") {
    const Tensor kept = zeros({3, 4});
    TraceOptions options;
    options.parameters = {{"kept", kept}};
    const Graph graph = trace(
        [&](const Tensor& x) {
            Tensor target = kept;
            target.copy_(x * 2 + 1);
            return x.sum();
        },
        {{"x", ones({3, 4})}}, options);
    REQUIRE(graph.updates().size() == 1);
    const Tensor x = arange(12).to(float32).reshape({3, 4});
    for (int i = 0; i < 3; ++i) graph.run({{"x", x}});
    CHECK(equal(kept, x * 2 + 1));
    graph.parameters()[0]->data = zeros({2});
    for (int i = 0; i < 3; ++i) CHECK_THROWS_AS(graph.run({{"x", x}}), ShapeError);
    const Tensor other = zeros({3, 4});
    graph.parameters()[0]->data = other;
    for (int i = 0; i < 3; ++i) graph.run({{"x", x * i}});
    CHECK(equal(other, x * 4 + 1));
}

TEST_CASE("a constant of the same shape takes the place of another one") {
    Graph graph;
    Graph::Value* x = graph.add_input("x", float32, {4});
    Graph::Value* c = graph.add_constant(arange(4).to(float32));
    Graph::Value* both = graph.insert(nullptr, "add", {x, graph.insert(nullptr, "exp", {c})->results[0]})->results[0];
    graph.add_output("y", both);
    for (int i = 0; i < 20; ++i) {
        c->data = Tensor();
        c->data = full({4}, 0.1 * i);  // where the other one was, perhaps
        for (int k = 0; k < i % 4; ++k) CHECK(allclose(graph.run({{"x", ones({4})}})[0], exp(c->data) + 1));
    }
}

TEST_CASE("a graph in a node is replaced by one with the same text") {
    const auto times = [](double factor) {
        Graph branch;
        Graph::Value* c = branch.add_constant(full({20}, factor));  // too long to be listed
        branch.add_output("o", branch.insert(nullptr, "mul", {branch.add_input("a", float32, {20}), c})->results[0]);
        return std::make_shared<const Graph>(branch);
    };
    Graph graph = trace([](const Tensor& x) { return cond(x.sum() > 0, [&] { return x * 2; }, [&] { return x * 3; }); }, {{"x", ones({20})}});
    const auto node = std::find_if(graph.nodes().begin(), graph.nodes().end(), [](const auto& one) { return one->op() == "cond"; });
    REQUIRE(node != graph.nodes().end());
    for (double factor : {10.0, 7.0, 5.0}) {
        graph.set_attribute(node->get(), "then_branch", times(factor));
        CHECK(graph.run({{"x", ones({20})}})[0].sum().item() == 20 * factor);
    }
}

TEST_CASE("attributes are set again and again") {
    Graph graph = trace([](const Tensor& x) { return softmax(clamp(x, 0, 1), 1) + 1; }, {{"x", ones({200, 200})}});
    const auto node = std::find_if(graph.nodes().begin(), graph.nodes().end(), [](const auto& one) { return one->op() == "clamp"; });
    REQUIRE(node != graph.nodes().end());
    const Tensor x = full({200, 200}, 3.0);
    const auto run = [&](int k) {
        graph.set_attribute(node->get(), "max", 1.0 + k);
        for (int r = 0; r < 3; ++r) graph.run({{"x", x}});
    };
    for (int k = 0; k < 10; ++k) run(k);
    const std::int64_t before = memory_stats().live_bytes;
    for (int k = 0; k < 50; ++k) run(k % 2);
    CHECK(memory_stats().live_bytes <= before);
    CHECK(graph.run({{"x", x}}, {"output"})[0].shape() == Shape(200, 200));
}

TEST_CASE("a node with fewer results than its op gives") {
    const Graph graph = Graph::parse(
        "input x: float32 (4,)\n"
        "%1: float32 (4,) = fused(x, body={\n"
        "    input x: float32 (4,)\n    %1: float32 (4,) = exp(x)\n    %2: float32 (4,) = neg(%1)\n    output a = %1\n    output b = %2\n"
        "})\n"
        "%2: float32 (4,) = add(%1, %1)\noutput y = %2\n");
    const Tensor x = arange(4).to(float32) / 4;
    for (int i = 0; i < 4; ++i) CHECK(allclose(graph.run({{"x", x}})[0], exp(x) * 2));
    // What one op gave too much is no result of the next.
    const Graph other =
        test::unchecked("input x: float32 (4,)\n%1: float32 (2,) = topk(x, k=2)\n%2: float32 (2,), %3: float32 (2,) = neg(%1)\noutput y = %3\n");
    for (int i = 0; i < 3; ++i) FAILS(ValueError, "neg gives no result 1", other.run({{"x", x}}));
}

TEST_CASE("parts of control flow without outputs") {
    const auto refused = [](const char* why, const std::string& text) {
        INFO(text);
        const Graph graph = test::unchecked(text);
        const Tensor x = ones({});
        for (int i = 0; i < 3; ++i) FAILS(ValueError, why, graph.run({{"x", x}}));
        FAILS(ValueError, why, graph({x}));
    };
    const std::string body = "body={\n    input a: float32 ()\n    output o = a\n})\noutput y = %1\n";
    const std::string loop = "input x: float32 ()\n%1: float32 () = while_loop(x, condition={\n    ";
    refused("the graph of the condition has 0 outputs, not one", loop + "input a: float32 ()\n}, " + body);
    refused("the graph of the condition has 0 outputs, not one", loop + "\n}, " + body);
    refused("a graph of it is missing", "input x: float32 ()\n%1: float32 () = while_loop(x, condition={}, " + body);
    refused("nothing is carried", loop + "input a: float32 ()\n    output o = a\n}, body={\n    \n})\noutput y = %1\n");
    refused("cond gives no result 0",
            "input x: float32 ()\n%1: float32 () = cond(x, then_branch={\n    \n}, else_branch={\n    \n})\noutput y = %1\n");
    refused("tensors are carried along", "input x: float32 ()\n%1: float32 () = scan(x, carries=1, xs=1, body={\n    \n})\noutput y = %1\n");
    refused("cond: 0 operands are given, its graphs need 1",
            "input x: float32 ()\n%1: float32 () = cond(then_branch={\n    \n}, else_branch={\n    \n})\noutput y = %1\n");
}

TEST_CASE("updates see the values that were there before all of them") {
    const auto check = [](const std::string& updates, const Tensor& wanted_a, const Tensor& wanted_b) {
        INFO(updates);
        Graph graph = Graph::parse(
            "input x: float32 (2,)\n"
            "parameter a: float32 (2,) = [1.0, 2.0]\n"
            "parameter b: float32 (2,) = [3.0, 4.0]\n"
            "%3: float32 (2,) = add(b, 1.0)\n"
            "%4: float32 (2,) = reshape(b, shape=(2,))\n" +
            updates + "output y = x\n");
        Tensor a = graph.value("a")->data, b = graph.value("b")->data;
        a.copy_(tensor({1.0F, 2.0F}));
        b.copy_(tensor({3.0F, 4.0F}));
        const Tensor first_a = a.clone(), first_b = b.clone(), x = zeros({2});
        for (int i = 0; i < 4; ++i) {
            a.copy_(first_a);
            b.copy_(first_b);
            i == 0 ? static_cast<void>(graph({x})) : static_cast<void>(graph.run({{"x", x}}));
            CHECK(equal(a, wanted_a));
            CHECK(equal(b, wanted_b));
        }
    };
    const Tensor a = tensor({1.0F, 2.0F}), b = tensor({3.0F, 4.0F});
    check("update a = b\nupdate b = a\n", b, a);
    check("update b = a\nupdate a = b\n", b, a);
    check("update b = a\nupdate a = %4\n", b, a);
    check("update b = a\nupdate a = %3\n", b + 1, a);
    check("update a = %3\nupdate b = a\n", b + 1, a);
}
