// The text of graphs: odd names come back, and what is wrong is refused, by line.
#include <catch2/catch.hpp>

#include "../../fails.h"
#include "../../nn/data/files.h"
#include "tapir/autograd/trace/graph/graph_file.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/core/made_loc_impl.h"
#include "tapir/core/module_name.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

const std::string kOddNames[] = {"a b",  "a=b",  "a,b", "a#b", "a:b", "(a",   "a)", "[", "\"",           "\\x22",        "a\nb", "%3",
                                 "-1.5", "true", "nan", "12",  "é",   "\x01", "{",  "}", "output y = x", "# no comment", "/",    "a/b.c-d"};

}  // namespace

TEST_CASE("names of any characters come back") {
    const files::TemporaryFolder folder;
    const std::string path = (folder.path() / "odd.graph").string();
    Graph graph;
    std::vector<Graph::Value*> values;
    const std::string odd_dim = "sequence length*2, \"x\"";
    for (const std::string& name : kOddNames) values.push_back(graph.add_input("in" + name, float32, {SymInt::dim(odd_dim)}));
    for (const std::string& name : kOddNames) values.push_back(graph.add_parameter(name, full({1}, 2.0)));
    for (const std::string& name : kOddNames) values.push_back(graph.add_constant(full({20}, 3.0), name));  // named as parameters are
    Graph::Value* sum = values[0];
    for (std::size_t i = 1; i < 2 * std::size(kOddNames); ++i) sum = graph.insert(nullptr, "add", {sum, values[i]})->results[0];
    for (std::size_t i = 2 * std::size(kOddNames); i < values.size(); ++i) graph.insert(nullptr, "exp", {values[i]});
    std::size_t next = 0;
    for (const auto& node : graph.nodes()) {
        const std::string& name = kOddNames[next++ % std::size(kOddNames)];
        node->module = detail::module_name(name, "");
        node->loc = detail::made_loc(name, "", 7);
    }
    for (const std::string& name : kOddNames) graph.add_output(name, sum);
    save_graph(path, graph);
    const Graph loaded = load_graph(path);
    CHECK(loaded.str() == graph.str());
    for (std::size_t i = 0; i < std::size(kOddNames); ++i) {
        INFO(kOddNames[i]);
        CHECK(loaded.inputs()[i]->name == "in" + kOddNames[i]);
        CHECK(loaded.parameters()[i]->name == kOddNames[i]);
        CHECK(loaded.outputs()[i].name == kOddNames[i]);
        CHECK(std::string(loaded.nodes()[i]->module->path) == kOddNames[i]);
    }
    CHECK(loaded.dims() == std::vector{odd_dim});
    CHECK(loaded.constants()[3]->data.numel() == 20);
    std::vector<Tensor> inputs(std::size(kOddNames), ones({3}));
    CHECK(allclose(loaded(inputs)[0], full({3}, 3.0 * static_cast<double>(std::size(kOddNames)))));
}

TEST_CASE("numbers of every kind come back") {
    Graph graph;
    Graph::Value* x = graph.add_input("x", float32, {2});
    for (const DType dtype : {bool_, uint8, int32, int64, float16, bfloat16, float32, float64}) {
        graph.add_output(std::string("number ") + name(dtype), graph.add_constant(full({}, 1, {dtype})));
        graph.add_output(std::string("list ") + name(dtype), graph.add_constant(full({3}, 1, {dtype})));
    }
    const double infinity = std::numeric_limits<double>::infinity();
    graph.add_output("odd", graph.add_constant(tensor({infinity, -infinity, std::nan(""), 1e-310, 0.1, -0.0}, {float64})));
    graph.add_output("whole", graph.add_constant(tensor({INT64_MIN, INT64_MAX})));
    graph.add_output("least", graph.add_constant(tensor(INT64_MIN)));
    graph.add_output("y", graph.insert(nullptr, "clamp", {x})->results[0]);
    const Graph back = Graph::parse(graph.str());
    CHECK(back.str() == graph.str());
    for (std::size_t i = 0; i + 1 < graph.outputs().size(); ++i) {
        INFO(graph.outputs()[i].name);
        const Tensor &a = graph.outputs()[i].value->data, &b = back.outputs()[i].value->data;
        REQUIRE(a.dtype() == b.dtype());
        CHECK(allclose(a, b, 0, 0, /*equal_nan=*/true));
    }
}

TEST_CASE("what is wrong in a text is refused, by line") {
    const Tensor w = ones({2, 3});
    const auto refused = [&](const std::string& line, const std::string& why) {
        INFO(line);
        try {
            Graph::parse("input x: float32 (2, 3)\nparameter w: float32 (2, 3)\n" + line + "\noutput o = x\n", {{"w", w}});
            CHECK(std::string("an error") == "nothing thrown");
        } catch (const ValueError& error) {
            const std::string what = error.what();
            INFO(what);
            CHECK(what.find(why) != std::string::npos);
        }
    };
    refused("input x: float32 (2, 3)", "line 3: there is an input x already");
    refused("parameter w: float32 (2, 3)", "line 3: there is a parameter w already");
    refused("parameter x: float32 (2,) = [1, 2]", "line 3: x is made twice");
    refused("parameter v: float32 (1000000, 1000000)", "line 3: the elements of v are missing");
    refused("constant %1: float32 (1000000, 1000000) = [1]", "line 3: another number of elements");
    refused("constant %1: float32 (1000000000, 10000000000, 100000) = [1]", "line 3: no memory has room for so many elements");
    refused("constant %1: float32 (-1,) = []", "");
    refused("constant %1: int32 (1,) = [3000000000]", "line 3: 3000000000 is no element of dtype int32");
    refused("constant %1: uint8 (1,) = [-1]", "is no element of dtype uint8");
    refused("constant %1: int64 (1,) = [1e300]", "is no element of dtype int64");
    refused("constant %1: bool (1,) = [2]", "is no element of dtype bool");
    refused("constant %1: float32 (1,) = [abc]", "abc is no element of dtype float32");
    refused("constant %1: float32 (1,) = 1", "line 3: a list is missing");
    refused("constant %4194304: float32 () = 1", "line 3: %4194304 is no name of a value");
    refused("constant %-1: float32 () = 1", "is no name of a value");
    refused("constant %1 : float33 () = 1", "float33 is no dtype");
    refused("input %1: float32 ()", "a name is missing");
    refused("input \"y\\x2: float32 ()", "");
    refused("input \"y\\x2\": float32 ()", "line 3: \"y\\x2\" is no name");
    refused("input y: float32 () cuda:999", "cuda:999 is no device");
    refused("input y: float32 () cuda:0x", "cuda:0x is no device");
    refused("%1: float32 (2, 3) = nothing(x)", "there is no op nothing");
    refused("%1: float32 (2, 3) = sigmiod(x)", "there is no op sigmiod, is it sigmoid?");
    refused("%1: float32 (2, 3) = exp(y)", "there is no value y");
    refused("%1: float32 (2, 3) = exp x", "there is no op");
    refused("%1: float32 (2, 3) = softmax(x, dim=1, dim=0)", "line 3: dim is given twice");
    refused("%1: float32 (2, 3) = softmax(x, dim=99999999999999999999)", "");
    refused("%1: float32 (2, 3) = softmax(x, dim=x*9223372036854775807*y*4)", "does not fit into 64 bits");
    refused("%1: float32 (2, 3) = softmax(x, colour=1)", "softmax has no attribute colour");
    refused("%1: float32 (2, 3) = sum(x, dims=(1,), keepdim=maybe)", "maybe is no value of keepdim");
    refused("%1: float32 (2, 3) = exp(x)  # file:12x", "file:12x is no line of a program");
    refused("update %1 = x", "there is no value %1");
    refused("update 2 = x", "only parameters and inputs are written to");
    refused("update w = x\nupdate w = x", "line 4: w is written to already");
    refused("output o = x", "line 4: there is an output o already");
    refused("guard x = 1  # item() at f:1", "what a guard expects is missing");
}

// Quadratic work would make this the slowest test by far: nothing measures it.
TEST_CASE("a long text is read") {
    // Quadratic work on these would take minutes.
    std::string text;
    for (int i = 0; i < 30000; ++i) text += "input i" + std::to_string(i) + ": float32 ()\nparameter p" + std::to_string(i) + ": float32 () = 1\n";
    for (int i = 0; i < 30000; ++i) text += "%" + std::to_string(i) + ": float32 () = add(i0, p0)\n";
    for (int i = 0; i < 30000; ++i) text += "update p" + std::to_string(i) + " = i0\noutput o" + std::to_string(i) + " = i0\n";
    CHECK(Graph::parse(text).nodes().size() == 30000);
    std::string sum = "1", product = "a";
    for (int i = 0; i < 50000; ++i) sum += " + a" + std::to_string(i), product += "*a";
    CHECK_THROWS_AS(Graph::parse("input x: float32 (" + sum + ",)\n"), ValueError);
    CHECK_THROWS_AS(Graph::parse("input x: float32 (" + product + ",)\n"), ValueError);
}

// Found by tests/fuzz/graph.cpp: each of these read or wrote memory that is not the graph's, or ended the program.
TEST_CASE("what a text says of ops may be anything") {
    const auto refused = [](const std::string& lines) {
        INFO(lines);
        CHECK_THROWS_AS(
            Graph::parse("input x: float32 (2, 3)\ninput i: int64 (2,)\n" + lines + "\noutput y = %1\n")({ones({2, 3}), zeros({2}, int64)}), Error);
    };
    refused("%1: float32 () = sum(x, dims=(0, batch), keepdim=true)");  // kept as a mask: nothing can wait for numbers there
    refused("%1: float32 () = std(x, dims=(0, -inf), keepdim=true, correction=1)");
    refused("%1: float32 () = sum(x, dims=(-1,), keepdim=true)");
    refused("%1: float32 () = sum(x, dims=(64,), keepdim=true)");
    refused("%1: float32 (2,) = sum(x, dims=(1,), keepdim=false, keepdim=false)");
    refused("%1: float32 (9,) = part(x, sizes=(9,), strides=(1,), offset=0)");
    refused("%1: float32 (2,) = part(x, sizes=(2,), strides=(1,), offset=-1)");
    refused("%1: float32 (2,) = part(x, sizes=(2,), strides=(9223372036854775807,), offset=1)");
    refused("%1: float32 (2,) = part(x, sizes=(2, 2), strides=(1,), offset=0)");
    refused("%1: float32 (4,) = place(x, shape=(4,), sizes=(6,), strides=(1,), offset=0)");
    refused("%1: float32 (-1,) = place(x, shape=(-1,), sizes=(2, 3), strides=(3, 1), offset=0)");
    refused("%1: float32 (2,) = index(x, i, sizes=(3,), strides=(1,), offset=4, at=0, scale=1, distinct=false)");
    refused("%1: float32 (2,) = index(x, i, sizes=(3,), strides=(1,), offset=0, at=7, scale=1, distinct=false)");
    refused("%1: float32 (2,) = index(x, x, sizes=(), strides=(), offset=0, at=0, scale=1, distinct=false)");
    refused("%1: float32 (2,) = index_put(x, x, i, sizes=(), strides=(), offset=6, at=0, scale=1, distinct=false)");
    refused("%1: float32 (2,) = index_put_add(x, x, i, sizes=(), strides=(), offset=-1, at=0, scale=1, distinct=false)");
    refused("%1: float32 (2,) = index_place(x, i, whole=(-5,), sizes=(), strides=(), offset=0, at=0, scale=1, distinct=false)");
    refused("%1: float32 (2,) = index_place(x, i, whole=(5,), sizes=(), strides=(), offset=0, at=0, scale=1, distinct=false)");
    refused("%1: float32 (2, 3), %2: float32 () = exp(x)\noutput z = %2");  // has one result only
    refused("%1: float32 () = exp()");
    refused("%0: int64 (2, 0) = triu_indices(dtype=int64, device=cpu, row=2147483648, col=0, offset=0)\n%1: float32 (2, 3) = exp(x)");
    refused("%1: float32 (2,) = select(x, dim=0, index=0)\n%2: float32 (2,) = causal_softmax(%1, first_query=1)\noutput z = %2");
    const Graph last =
        Graph::parse("input x: float64 (3, 3)\n%1: float64 (3, 3) = causal_softmax(x, first_query=9223372036854775807)\noutput y = %1\n");
    const Tensor scores = randn({3, 3}, {float64});
    CHECK(allclose(last({scores})[0], softmax(scores, 1)));
    // More results than there is room for.
    CHECK_THROWS_AS(Graph::parse("input x: float32 (300,)\n%1: float32 () = pieces(x, dim=0, drop=true, sizes=(1,))\noutput y = %1\n")({ones({300})}),
                    ValueError);
    // What is in the region is read.
    const Graph good = Graph::parse(
        "input x: float32 (2, 3)\ninput i: int64 (2,)\n"
        "%1: float32 (2, 3) = index(x, i, sizes=(3,), strides=(1,), offset=0, at=0, scale=3, distinct=false)\noutput y = %1\n");
    const Tensor x = randn({2, 3});
    CHECK(equal(good({x, tensor({1, 0})})[0], x.flip({0})));
    CHECK_THROWS_AS(good({x, tensor({1, 2})}), IndexError);
    CHECK_THROWS_AS(good({x, tensor({-1, 0})}), IndexError);
}

TEST_CASE("the places of a triangle are as before") {
    CHECK(equal(triu_indices(3, 4, 1), tensor({{0, 0, 0, 1, 1, 2}, {1, 2, 3, 2, 3, 3}})));
    CHECK(equal(tril_indices(3, 2, -1), tensor({{1, 2, 2}, {0, 0, 1}})));
    CHECK(triu_indices(3, 4, INT64_MAX).size(1) == 0);
    CHECK(triu_indices(3, 4, INT64_MIN).size(1) == 12);
    CHECK(tril_indices(3, 4, INT64_MAX).size(1) == 12);
}

TEST_CASE("an op is not given more operands than it takes") {
    const char* const text = "input x: float32 (3,)\n";
    for (const char* line : {"%1: float32 (3,) = add(x, x, x)", "%1: float32 (3,) = relu(x, x)", "%1: float32 (3,) = flip(x, x, dims=(0,))"}) {
        CHECK_THROWS_WITH(Graph::parse(std::string(text) + line + "\noutput o = %1\n"), Catch::Contains("operands, and takes"));
    }
    Graph graph = Graph::parse(std::string(text) + "%1: float32 (3,) = relu(x)\noutput o = %1\n");
    Graph::Value* x = graph.inputs()[0];
    CHECK_THROWS_WITH(graph.insert(nullptr, "add", {x, x, x}), Catch::Contains("operands, and takes 2"));
}
