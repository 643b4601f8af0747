// Editing graphs: what each edit does, and that a refused one changes nothing.
#include "../../fails.h"
#include "passes_check.h"
#include "tapir/autograd/trace/control_flow.h"

using namespace passes_check;

namespace {

// x (batch, 2) -> matmul with w -> relu -> * 2 -> + 1
Graph small(const Tensor& w = tensor({{1.0F, 2.0F}, {3.0F, 4.0F}}).requires_grad_()) {
    return trace([&](const Tensor& x) { return relu(matmul(x, w)) * 2 + 1; }, {{"x", ones({3, 2}), {"batch"}}});
}

Graph::Node* node_of(const Graph& graph, const std::string& op) {
    for (const auto& node : graph.nodes()) {
        if (node->op() == op) return node.get();
    }
    FAIL("there is no " << op);
    return nullptr;
}

}  // namespace

TEST_CASE("an op takes the place of another") {
    Graph graph = small();
    const Graph before = graph;
    Graph::Node* relu_node = node_of(graph, "relu");
    Graph::Node* other = graph.insert(relu_node, "leaky_relu", {relu_node->inputs[0]}, {{"negative_slope", 0.5}});
    CHECK(other->loc.line() == relu_node->loc.line());
    graph.replace(relu_node->results[0], other->results[0]);
    graph.remove(relu_node);
    graph.check();
    CHECK(listing(graph) ==
          "input x: float32 (batch, 2)\n"
          "parameter parameter_0: float32 (2, 2)\n"
          "%1: float32 (batch, 2) = matmul(x, parameter_0)\n"
          "%2: float32 (batch, 2) = leaky_relu(%1, negative_slope=0.5)\n"
          "%3: float32 (batch, 2) = mul(%2, 2.0)\n"
          "%4: float32 (batch, 2) = add(%3, 1.0)\n"
          "output output = %4\n");
    const Tensor x = randn({5, 2}), w = graph.value("parameter_0")->data;
    check_same(graph({x}), {leaky_relu(matmul(x, w), 0.5) * 2 + 1}, 1e-5, 1e-6);
    check_same(graph.run({{"x", x}}), {leaky_relu(matmul(x, w), 0.5) * 2 + 1}, 1e-5, 1e-6);
    check_same(before({x}), {relu(matmul(x, w)) * 2 + 1}, 1e-5, 1e-6);  // a copy is its own
}

TEST_CASE("a function of a value takes the value's place") {
    Graph graph = small();
    Graph::Value* product = node_of(graph, "matmul")->results[0];
    Graph::Node* after = graph.insert(node_of(graph, "relu"), "tanh", {product});
    graph.replace(product, after->results[0]);
    graph.check();
    CHECK(ops_of(graph) == "matmul tanh relu mul add");
    const Tensor x = randn({5, 2}), w = graph.value("parameter_0")->data;
    check_same(graph({x}), {relu(tanh(matmul(x, w))) * 2 + 1}, 1e-5, 1e-6);
}

TEST_CASE("nodes are added at the end, with the line of the edit, and become outputs") {
    Graph graph = small();
    Graph::Node* total = graph.insert(nullptr, "sum", {graph.value("output")}, {{"dims", std::vector<SymInt>{0}}});
    CHECK(total->loc.line() == __LINE__ - 1);
    graph.add_output("total", total->results[0]);
    CHECK(to_string(Attribute(total->results[0]->shape)) == "(2,)");
    const Tensor x = randn({5, 2});
    CHECK(allclose(graph.run({{"x", x}}, {"total"})[0], graph.run({{"x", x}}, {"output"})[0].sum({0})));
    // Many edits in one place.
    Graph::Node* first = graph.nodes()[0].get();
    for (int i = 0; i < 100; ++i) {
        Graph::Node* more = graph.insert(first, "neg", {graph.inputs()[0]});
        graph.set_input(first, 0, more->results[0]);
    }
    graph.check();
    CHECK(graph.nodes().size() == 105);
}

TEST_CASE("one use is rewired") {
    Graph graph = small();
    Graph::Node* add = node_of(graph, "add");
    graph.set_input(add, 1, graph.add_constant(tensor(5.0)));
    const Tensor x = randn({5, 2}), w = graph.value("parameter_0")->data;
    check_same(graph({x}), {relu(matmul(x, w)) * 2 + 5}, 1e-5, 1e-6);
    graph.set_input(add, 1, node_of(graph, "relu")->results[0]);
    graph.set_input(add, 1, node_of(graph, "relu")->results[0]);  // the same again
    graph.check();
    check_same(graph({x}), {relu(matmul(x, w)) * 3}, 1e-5, 1e-6);
    graph.set_input(add, 1, graph.add_constant(tensor({1.0F, -1.0F})));  // broadcasts to the same
    graph.check();
    check_same(graph({x}), {relu(matmul(x, w)) * 2 + tensor({1.0F, -1.0F})}, 1e-5, 1e-6);
}

TEST_CASE("an attribute is set") {
    Graph graph = trace([](const Tensor& x) { return softmax(transpose(x, 0, 1), 1).to(float64); }, {{"x", ones({3, 3}), {"n", "n"}}});
    const Tensor x = randn({4, 4});
    Graph::Node* softmax_node = node_of(graph, "softmax");
    for (const int dim : {1, 0, 1}) {  // runs before it have made plans
        graph.set_attribute(softmax_node, "dim", dim);
        graph.check();
        check_same(graph({x}), {softmax(transpose(x, 0, 1), dim).to(float64)}, 1e-5, 1e-6);
        check_same(graph.run({{"x", x}}), {softmax(transpose(x, 0, 1), dim).to(float64)}, 1e-5, 1e-6);
    }
    const std::string before = graph.str();
    FAILS(ValueError, "softmax has no attribute axis; it has dim", graph.set_attribute(softmax_node, "axis", 0));
    FAILS(ValueError, "softmax: the attribute dim cannot be 0.5", graph.set_attribute(softmax_node, "dim", 0.5));
    FAILS(IndexError, "", graph.set_attribute(softmax_node, "dim", 2));
    FAILS(DTypeError, "Graph::set_attribute: the result of to_dtype would be int64, not float64",
          graph.set_attribute(node_of(graph, "to_dtype"), "dtype", int64));
    Graph sum = trace([](const Tensor& a) { return a.sum(0); }, {{"x", ones({2, 3})}});
    FAILS(ShapeError, "Graph::set_attribute: the result of sum would have shape (2,), not (3,)",
          sum.set_attribute(sum.nodes()[0].get(), "dims", std::vector<SymInt>{1}));
    FAILS(ValueError, "is not of this graph", graph.set_attribute(sum.nodes()[0].get(), "keepdim", true));
    CHECK(graph.str() == before);
}

TEST_CASE("the graph between any values is taken out") {
    const Graph graph = small();
    const Tensor x = randn({5, 2});
    Graph::Value *product = node_of(graph, "matmul")->results[0], *active = node_of(graph, "relu")->results[0];
    const Graph end = graph.extract({active}, {graph.value("output")});
    end.check();
    CHECK(ops_of(end) == "mul add");
    CHECK(end.parameters().empty());
    check_same(end({x}), {x * 2 + 1});
    const Graph middle = graph.extract({product}, {active, product});
    CHECK(ops_of(middle) == "relu");
    CHECK(middle.inputs()[0]->name == "value_" + std::to_string(product->number));
    check_same(middle({x}), {relu(x), x});
    const Graph begin = graph.extract({graph.value("x")}, {product});
    CHECK(ops_of(begin) == "matmul");
    CHECK(begin.parameters().size() == 1);
    FAILS(ValueError, "Graph::extract: the input x is needed too", graph.extract({}, {graph.value("output")}));
}

TEST_CASE("a part cut at one result of several, and with guards, is whole") {
    const auto fn = [](const Tensor& x) {
        const auto sorted = sort(x * 2, 0);
        return x.sum().item() > 0 ? sorted.values * sorted.indices : x;
    };
    const Tensor x = tensor({3.0F, 1.0F, 2.0F});
    const Graph graph = trace(fn, {{"x", x}}, {.reads = TraceOptions::Reads::guard});
    const Graph::Node* sorted = node_of(graph, "sort");
    const Graph part = graph.extract({sorted->results[0], graph.inputs()[0]}, {graph.value("output")});
    part.check();
    REQUIRE(part.guards().size() == 1);
    check_same({part({ones({3}), x})[0]}, {sort(x, 0).indices.to(float32)});
    CHECK_THROWS_AS(part({ones({3}), -x}), ValueError);
    CHECK(graph.extract({sorted->results[0], sorted->results[1]}, {graph.value("output")}).guards().empty());
}

TEST_CASE("parameters become constants and the other way round") {
    Tensor w = eye(2).requires_grad_();
    Graph graph = small(w);
    Graph::Value* parameter = graph.value("parameter_0");
    graph.make_constant(parameter);
    graph.check();
    CHECK(graph.parameters().empty());
    FAILS(ValueError, "is no parameter", graph.make_constant(parameter));
    graph.make_parameter(parameter, "w");
    CHECK(graph.value("w") == parameter);
    FAILS(ValueError, "is no constant", graph.make_parameter(parameter, "v"));
    FAILS(ValueError, "Graph::make_parameter: there is a parameter w already", graph.make_parameter(graph.add_constant(ones({2})), "w"));
    graph.add_update(parameter, parameter);
    FAILS(ValueError, "the graph writes to w", graph.make_constant(parameter));
}

TEST_CASE("what would break a graph is refused, and changes nothing") {
    Graph graph = small(), other = small();
    const std::string before = graph.str();
    Graph::Node *first = graph.nodes().front().get(), *last = graph.nodes().back().get();
    Graph::Value *x = graph.inputs()[0], *end = last->results[0], *foreign = other.inputs()[0];
    FAILS(ValueError, "Graph::insert: there is no op nosuchop", graph.insert(nullptr, "nosuchop", {}));
    FAILS(ValueError, "Graph::insert: there is no op gelo, is it gelu?", graph.insert(nullptr, "gelo", {end}));
    FAILS(ValueError, "Graph::insert: there is no op amtmul, is it matmul?", graph.insert(nullptr, "amtmul", {end, end}));
    FAILS(ValueError, "graph: matmul is given 1 input, and needs at least 2", graph.insert(nullptr, "matmul", {end}));
    FAILS(ValueError, "graph: neg is given 0 inputs, and needs at least 1", graph.insert(nullptr, "neg", {}));
    FAILS(ValueError, "is made after the matmul that would use it", graph.insert(first, "neg", {end}));
    FAILS(ValueError, "leaky_relu has no attribute slope", graph.insert(nullptr, "leaky_relu", {end}, {{"slope", 1.0}}));
    FAILS(ValueError, "the attribute negative_slope cannot be \"much\"",
          graph.insert(nullptr, "leaky_relu", {end}, {{"negative_slope", std::string("much")}}));
    FAILS(ShapeError, "matmul", graph.insert(nullptr, "matmul", {end, end}));
    FAILS(ValueError, "is not of this graph", graph.insert(nullptr, "neg", {foreign}));
    FAILS(ValueError, "is not of this graph", graph.insert(other.nodes()[0].get(), "neg", {x}));
    FAILS(ValueError, "the value is null", graph.insert(nullptr, "neg", {nullptr}));
    FAILS(ValueError, "is made after the matmul that would use it", graph.replace(x, end));
    FAILS(ShapeError, "Graph::replace: parameter_0 has shape (2, 2), x (batch, 2)", graph.replace(graph.value("parameter_0"), x));
    FAILS(DTypeError, "Graph::replace: x is float32, y is float64", other.replace(foreign, other.add_input("y", float64, foreign->shape)));
    FAILS(DeviceError, "Graph::replace: x is on cpu, z on cuda:0", other.replace(foreign, other.add_input("z", float32, foreign->shape, cuda(0))));
    FAILS(ValueError, "is not of this graph", graph.replace(foreign, x));
    FAILS(ValueError, "is made after the matmul that would use it", graph.set_input(first, 0, end));
    FAILS(IndexError, "add has 2 inputs, there is no 7", graph.set_input(last, 7, x));
    FAILS(IndexError, "there is no -1", graph.set_input(last, -1, x));
    FAILS(ValueError, "is not of this graph", graph.set_input(last, 0, foreign));
    FAILS(ValueError, "a result of matmul, is used", graph.remove(first));
    FAILS(ValueError, "a result of add, is used", graph.remove(last));  // an output
    FAILS(ValueError, "is not of this graph", graph.remove(other.nodes()[0].get()));
    FAILS(ValueError, "there is an input x already", graph.add_input("x", float32, {2}));
    FAILS(ValueError, "there is an output output already", graph.add_output("output", x));
    FAILS(ValueError, "is not of this graph", graph.add_output("foreign", foreign));
    FAILS(ValueError, "only parameters and inputs are written to", graph.add_update(end, x));
    FAILS(ValueError, "is not of this graph", static_cast<void>(graph.extract({foreign}, {end})));
    CHECK(graph.str() == before);
    graph.check();
    Graph::Value* row = graph.add_constant(ones({7}));
    FAILS(ShapeError, "", graph.set_input(last, 1, row));
    row = graph.add_constant(ones({4, 1, 1}));
    FAILS(ShapeError, "Graph::set_input: the result of add would have shape (4, batch, 2), not (batch, 2)", graph.set_input(last, 1, row));
    row = graph.add_constant(ones({2}, float64));
    FAILS(DTypeError, "Graph::set_input: the result of add would be float64, not float32", graph.set_input(last, 1, row));
    graph.check();
    eliminate_dead_code(graph);
    CHECK(graph.str() == before);
}

TEST_CASE("ops whose results data says the size of are inserted") {
    Graph graph = trace([](const Tensor& x) { return x * 2; }, {{"x", ones({4}, float64)}});
    Graph::Node* found = graph.insert(nullptr, "nonzero", {graph.value("output")});
    Graph::Node* others = graph.insert(nullptr, "nonzero", {graph.inputs()[0]});
    CHECK_FALSE(found->results[0]->shape[0].is_number());
    CHECK(found->results[0]->shape[1] == SymInt(1));
    CHECK(found->results[0]->shape[0] != others->results[0]->shape[0]);
    Graph::Node* total = graph.insert(nullptr, "sum", {found->results[0]});
    graph.add_output("found", found->results[0]);
    graph.add_output("total", total->results[0]);
    const auto check = [&] {
        INFO(graph.str());
        const Tensor x = tensor({0.0, 1.0, 0.0, 2.0}, float64);
        for (int i = 0; i < 3; ++i) {
            const std::vector<Tensor> got = graph.run({{"x", x}}, {"found", "total"});
            CHECK(equal(got[0], tensor({1, 3}).reshape({2, 1})));
            CHECK(got[1].item<std::int64_t>() == 4);
        }
    };
    check();
    optimize(graph);
    check();
    CHECK(Graph::parse(graph.str()).str() == graph.str());
}

TEST_CASE("loops are inserted, and those that have no end on what is made up are not") {
    const auto check = [](const auto& body) {
        Graph graph =
            trace([&](const Tensor& x) { return while_loop([](const Tensor& h) { return h.sum() < 8; }, body, {x})[0]; }, {{"x", full({2}, 4.0)}});
        const Graph::Node* loop = node_of(graph, "while_loop");
        return graph.insert(nullptr, "while_loop", {loop->results[0]}, loop->attributes().all())->results[0]->shape;
    };
    CHECK(check([](const Tensor& h) { return h * 2; }) == std::vector<SymInt>{2});  // of zeros it has no end, of others it has
    CHECK_THROWS_AS(check([](const Tensor& h) { return h - 1; }), ValueError);
    CHECK_THROWS_WITH(check([](const Tensor& h) { return h - 1; }),
                      Catch::Contains("while_loop: on numbers that are made up it did not end within 10000 turns"));
}

TEST_CASE("ops that do not take zeros are inserted") {
    Graph graph = trace([](const Tensor& x, const Tensor& y, const Tensor& a) { return std::tuple(x * y, a); },
                        {{"x", ones({3}, int64)}, {"y", ones({3}, int64)}, {"a", ones({3, 3}, float64)}});
    for (const char* op : {"floor_divide", "remainder", "fmod"}) {
        INFO(op);
        graph.add_output(op, graph.insert(nullptr, op, {graph.inputs()[0], graph.inputs()[1]})->results[0]);
    }
    const std::vector<Tensor> got = graph({tensor({7, 8, 9}), tensor({2, 3, 5}), eye(3).to(float64)});
    CHECK(equal(got[2], tensor({3, 2, 1})));
    CHECK(equal(got[3], tensor({1, 2, 4})));
    CHECK(equal(got[4], tensor({1, 2, 4})));
}

TEST_CASE("guards and sizes that do not fit the graph are refused") {
    Graph graph = small();
    const Graph other = graph;
    FAILS_IN(ValueError, "Graph::add_guard: ", "is not of this graph", graph.add_guard({other.inputs()[0], ones({2}), "item", {}}));
    FAILS_IN(ValueError, "Graph::add_guard: ", "is undefined", graph.add_guard({graph.inputs()[0], Tensor(), "item", {}}));
    CHECK(graph.guards().empty());
    FAILS_IN(ValueError, "Graph::with: ", "there is no dimension bath; there are batch", graph.with({{"bath", 3}}));
    FAILS_IN(ValueError, "Graph::with: ", "the size of batch is -1", graph.with({{"batch", -1}}));
    CHECK(graph.with({{"batch", 3}}).inputs()[0]->shape[0] == SymInt(3));
    FAILS_IN(ValueError, "Graph::with: ", "all sizes are numbers", graph.with({{"batch", 3}}).with({{"batch", 3}}));
    FAILS_IN(ValueError, "Graph::remove_output: ", "there is no output y", graph.remove_output("y"));
    graph.remove_output("output");
    CHECK(graph.outputs().empty());
}
