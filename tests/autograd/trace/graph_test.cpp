// Graphs: sizes made of named dimensions, listings, editing.
#include <catch2/catch.hpp>

#include "../../fails.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

using namespace tapir;

TEST_CASE("sizes are computed with named dimensions") {
    const SymInt batch = SymInt::dim("batch"), time = SymInt::dim("time");
    CHECK((batch * time * 2 + 3).str() == "2*batch*time + 3");
    CHECK((batch + -1 * batch).is_number());
    CHECK((batch * 4 + 2).floor_div(2).str() == "2*batch + 1");
    CHECK((time + -3).floor_div(2).str() == "(time + 1)//2 - 2");
    const DimSizes sizes{{"batch", 4}, {"time", 7}};
    CHECK((batch * time + -5).value(sizes) == 23);
    CHECK((time + -3).floor_div(2).value({{"time", 6}}) == 1);
    CHECK((time + -3).floor_div(2).value({{"time", 2}}) == -1);
    for (const char* text : {"0", "-3", "batch", "2*batch*time - 7", "(3*time + 1)//2 + 5", "-batch + time"}) {
        CHECK(SymInt::parse(text).str() == text);
    }
    for (const char* text :
         {"", "batch +", "2batch", "batch//0", "(batch)", "9999999999999999999", "a b", "2*(a + 1)", "(a + 1)*2", "((a)//2 + 1)*2", "\"(a)//2\""}) {
        INFO(text);
        CHECK_THROWS_AS(SymInt::parse(text), ValueError);
    }
    CHECK_THROWS_AS((batch * 2).value({{"time", 1}}), ValueError);
    CHECK_THROWS_AS((batch * batch * batch).value({{"batch", std::int64_t{1} << 40}}), ValueError);
}

namespace {

Graph small() {
    const Tensor w = tensor({{1.0, 2.0}, {3.0, 4.0}}).requires_grad_();
    return trace([&](const Tensor& x) { return relu(matmul(x, w)) * 2 + 1; }, {{"x", ones({3, 2}), {"batch"}}});
}

}  // namespace

TEST_CASE("the listing of a graph can be read again") {
    const Graph graph = small();
    const Graph again = Graph::parse(graph.str(), {{"parameter_0", graph.value("parameter_0")->data}});
    CHECK(again.str() == graph.str());
    const Tensor x = randn({5, 2});
    CHECK(equal(again({x})[0], graph({x})[0]));
    for (const char* text : {"input x float32 (2,)", "input x: float33 (2,)", "%1: float32 (2,) = nosuchop(%0)", "output y = %7",
                             "input x: float32 (2,)\ninput x: float32 (2,)", "what", "parameter p: float32 (n,)"}) {
        INFO(text);
        CHECK_THROWS_AS(Graph::parse(text), Error);
    }
    CHECK_THROWS_AS(Graph::parse("%1: float32 (2,) = relu()\noutput y = %1")({}), ValueError);
}

TEST_CASE("a graph is edited") {
    Graph graph = small();
    Graph::Node* relu_node = graph.nodes()[1].get();
    REQUIRE(relu_node->op() == "relu");
    Graph::Node* other = graph.insert(relu_node, "leaky_relu", {relu_node->inputs[0]}, {{"negative_slope", 0.5}});
    CHECK(to_string(Attribute(other->results[0]->shape)) == "(batch, 2)");
    graph.replace(relu_node->results[0], other->results[0]);
    CHECK_THROWS_AS(graph.remove(other), ValueError);
    graph.remove(relu_node);
    graph.check();
    const Tensor x = randn({5, 2}), w = graph.value("parameter_0")->data;
    CHECK(allclose(graph({x})[0], leaky_relu(matmul(x, w), 0.5) * 2 + 1));
    SECTION("a part of it is taken out") {
        const Graph part = graph.extract({other->results[0]}, {graph.value("output")});
        part.check();
        CHECK(part.nodes().size() == 2);
        CHECK(allclose(part({x})[0], x * 2 + 1));
        CHECK_THROWS_AS(graph.extract({}, {graph.value("output")}), ValueError);
    }
    SECTION("a copy is its own") {
        Graph copy = graph;
        copy.check();
        copy.set_input(copy.nodes().back().get(), 1, copy.add_constant(tensor(5.0)));
        copy.check();
        CHECK(allclose(copy({x})[0], graph({x})[0] + 4));
    }
    SECTION("what would break it is refused") {
        Graph::Node* last = graph.nodes().back().get();
        CHECK_THROWS_AS(graph.set_input(graph.nodes().front().get(), 0, last->results[0]), ValueError);
        CHECK_THROWS_AS(graph.set_input(last, 7, last->inputs[0]), IndexError);
        CHECK_THROWS_AS(graph.replace(graph.inputs()[0], last->results[0]), ValueError);
        CHECK_THROWS_AS(graph.insert(nullptr, "nosuchop", {}), ValueError);
        CHECK_THROWS_AS(graph.insert(nullptr, "matmul", {last->results[0], last->results[0]}), ShapeError);
        CHECK_THROWS_AS(graph.insert(nullptr, "leaky_relu", {last->results[0]}, {{"slope", 1.0}}), ValueError);
        graph.check();
    }
}

TEST_CASE("what the program reads is refused or guarded") {
    const auto fn = [](const Tensor& x) {
        const Tensor total = sum(x);
        if (total.item<float>() > 0) return x * 2;
        return x;
    };
    CHECK_THROWS_WITH(trace(fn, {{"x", ones({3})}}),
                      Catch::StartsWith("graph_test.cpp:96: ") && Catch::Contains("item() reads a value that sum made at graph_test.cpp:95"));
    TraceOptions options;
    options.reads = TraceOptions::Reads::guard;
    const Graph graph = trace(fn, {{"x", ones({3})}}, options);
    CHECK(equal(graph({ones({3})})[0], full({3}, 2.0)));
    CHECK_THROWS_AS(graph({-ones({3})}), ValueError);
}

TEST_CASE("a guard that fails shows both values") {
    const auto graph_for = [](const Tensor& example) {
        const auto fn = [](const Tensor& x) { return equal(x, zeros(x.shape())) ? x : x * 2; };
        return trace(fn, {{"x", example}}, {.reads = TraceOptions::Reads::guard});
    };
    const Graph few = graph_for(tensor({{1.0f, 2.0f}, {3.0f, 4.0f}})), one = graph_for(ones({1, 1}));
    const std::string line = "graph_test.cpp:" + std::to_string(__LINE__ - 4);
    FAILS_IN(ValueError, "graph: the program read a value with equal() at " + line,
             "when it was traced: float32 (2, 2): 1., 2., 3., 4.; it is float32 (2, 2): 1., 2., 3., 5. now",
             few({tensor({{1.0f, 2.0f}, {3.0f, 5.0f}})}));
    FAILS(ValueError, "when it was traced: 1.; it is 1.000001 now", one({full({1, 1}, 1.000001f)}));
    // Of many elements those that differ.
    const Graph many = graph_for(arange(20).reshape({4, 5}));
    Tensor other = arange(20).reshape({4, 5});
    other[1][1] = 60;
    FAILS(ValueError, "traced: int64 (4, 5), from element 6 on: 6, 7, 8, 9, 10, 11, 12, 13, ...; it is int64 (4, 5), from element 6 on: 60, 7, 8,",
          many.run({{"x", other}}));
    other = arange(20).reshape({4, 5});
    other[3][4] = -1;
    FAILS(ValueError, "traced: int64 (4, 5), from element 19 on: 19; it is int64 (4, 5), from element 19 on: -1 now", many.run({{"x", other}}));
}

TEST_CASE("quotients of dimensions are added, multiplied and divided as dimensions are") {
    const SymInt batch = SymInt::dim("batch"), time = SymInt::dim("time");
    const SymInt half = (time + 1).floor_div(2), odd = time + -2 * time.floor_div(2);
    CHECK(half.floor_div(2).str() == "(time + 1)//4");
    CHECK((half + 1).floor_div(3).str() == "(time + 3)//6");
    CHECK((half + -1 * half).is_number());
    CHECK((half * batch * 2).str() == "2*((time + 1)//2)*batch");
    CHECK((half * 4).floor_div(2).str() == "2*((time + 1)//2)");
    CHECK((half * 3).floor_div(2).str() == "(3*((time + 1)//2))//2");
    CHECK(SymInt::parse("((a)//2)//2").str() == "(a)//4");
    CHECK((half * batch).dims() == std::vector<std::string>{"batch", "time"});
    CHECK_FALSE((half * 2).of_one_dim());
    for (const SymInt& size : {half * 3 + time * batch + 2, odd, half * half + -1 * half, (half * 3).floor_div(2) + odd * batch}) {
        INFO(size.str());
        CHECK(SymInt::parse(size.str()) == size);
    }
    for (const std::int64_t n : {0, 1, 2, 7, 8}) {
        const DimSizes of{{"time", n}, {"batch", 3}};
        CHECK(odd.value(of) == n % 2);
        CHECK((half * batch + half).value(of) == 4 * ((n + 1) / 2));
        CHECK((half * 3).floor_div(2).value(of) == (n + 1) / 2 * 3 / 2);
    }
    CHECK_THROWS_AS(SymInt::dim("time").floor_div(0), ValueError);
}
