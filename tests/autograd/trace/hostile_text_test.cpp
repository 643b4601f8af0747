// Texts of graphs that no program has made: refused where passes and exporters would trip over them.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "../../fails.h"
#include "../../nn/data/files.h"
#include "tapir/autograd/trace/graph/graph_file.h"
#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/core/format.h"
#include "tapir/tapir.h"
#include "unchecked.h"

using namespace tapir;

namespace {

std::string text_of(const std::string& inputs, const std::string& types, const std::string& call) {
    return inputs + "%1: " + types + " = " + call + "\noutput y = %1\n";
}

void refused(const char* why, const std::string& call, const std::string& types = "float32 (2, 3)",
             const std::string& inputs = "input x: float32 (2, 3)\n") {
    INFO(call);
    FAILS_IN(ValueError, "Graph::parse: line ", why, Graph::parse(text_of(inputs, types, call)));
}

}  // namespace

TEST_CASE("calls with too few operands are refused") {
    for (const char* op : {"sum", "reshape", "expand", "slice", "to_dtype", "clone", "neg", "exp", "amax", "logsumexp", "flip"}) {
        refused((std::string(op) + " has 0 operands, and needs 1").c_str(), std::string(op) + "()");
    }
    for (const char* op : {"add", "mul", "copy", "fill", "linear", "matmul"}) {
        refused((std::string(op) + " has 1 operands, and needs 2").c_str(), std::string(op) + "(x)");
    }
    refused("where has 1 operands, and needs 3", "where(x)");
    CHECK(Graph::parse(text_of("input x: int64 (3,)\n", "int64 (n,)", "bincount(x)")).nodes().size() == 1);  // the second may be left out
    CHECK(Graph::parse(text_of("", "float32 (4,)", "rand(shape=(4,), dtype=float32)")).nodes().size() == 1);
}

TEST_CASE("dimensions that are not there are refused") {
    refused("transpose: dimension 100000000 is out of range", "transpose(x, dims=(100000000, 0))", "float32 (3, 2)");
    for (const char* dims : {"(0,)", "(1)", "(0, 1, 0)"})
        refused("transpose: takes two dimensions", std::string("transpose(x, dims=") + dims + ")", "float32 (2, 3)");
    refused("a dimension of transpose is no number: n", "transpose(x, dims=(n, 0))", "float32 (3, 2)", "input x: float32 (2, n)\n");
    refused("permute: dimension 2 is out of range", "permute(x, dims=(2, 0))", "float32 (3, 2)");
    refused("permute: dimension 1 is named twice", "permute(x, dims=(1, 1))", "float32 (3, 2)");
    refused("permute: 1 dimensions are named of 2", "permute(x, dims=(1,))", "float32 (3, 2)");
    refused("transpose gives (3, 2), not (3, 2, 1)", "transpose(x, dims=(0, 1))", "float32 (3, 2, 1)");
    refused("sum: dimension 7 is out of range", "sum(x, dims=(7,))", "float32 (2,)");
    refused("sum gives (2,), not (2, 3)", "sum(x, dims=(1,))");
    refused("mean gives (), not (2,)", "mean(x)", "float32 (2,)");
    refused("amax gives (2, 1), not (2,)", "amax(x, dims=(1,), keepdim=true)", "float32 (2,)");
    refused("add makes 1 dimensions of 2", "add(x, x)", "float32 (2,)");
    refused("copy gives (2, 3), not (2,)", "copy(x, x)", "float32 (2,)");
    refused("copy puts 3 dimensions into 2", "copy(x, z)", "float32 (2, 3)", "input x: float32 (2, 3)\ninput z: float32 (1, 2, 3)\n");
    refused("expand: 1 dimensions are too few for 2", "expand(x, shape=(6,))", "float32 (6,)");
}

TEST_CASE("sizes that an op's operands do not give are refused") {
    const std::string four = "input x: float32 (4,)\n", z = "input x: float32 (2, 3)\ninput z: float32 (4, 1)\n";
    refused("add gives (4,), not (3,)", "add(x, x)", "float32 (3,)", four);
    refused("line 3: add: sizes 2 and 4 do not broadcast", "add(x, z)", "float32 (4, 3)", z);
    refused("mul gives (4, 3), not (4, 1)", "mul(x, z)", "float32 (4, 1)", "input x: float32 (1, 3)\ninput z: float32 (4, 1)\n");
    refused("exp gives (2, 3), not (2, 4)", "exp(x)", "float32 (2, 4)");
    refused("softmax gives (2, 3), not (3, 2)", "softmax(x, dim=1)", "float32 (3, 2)");
    refused("clone gives (2, 3), not (0, 3)", "clone(x)", "float32 (0, 3)");
    refused("transpose gives (3, 2), not (2, 3)", "transpose(x, dims=(0, 1))");
    refused("permute gives (3, 2), not (2, 3)", "permute(x, dims=(-1, 0))");
    refused("sum gives (3,), not (2,)", "sum(x, dims=(0,))", "float32 (2,)");
    refused("mean gives (2, 1), not (2, 3)", "mean(x, dims=(1,), keepdim=true)");
    refused("reshape: 6 elements do not fit into 8", "reshape(x, shape=(8,))", "float32 (8,)");
    refused("expand: a size of 3 does not broadcast to 5", "expand(x, shape=(2, 5))", "float32 (2, 5)");
    refused("a size must not be negative: -1", "exp(x)", "float32 (-1, 3)");
    refused("a tensor has at most 8 dimensions, got 9", "exp(x)", "float32 (1, 1, 1, 1, 1, 1, 1, 1, 1)");
    // Dimensions with names may be 1, and formulas alike for the sizes of a run.
    for (const char* types : {"float32 (n, 3)", "float32 (m, 3)", "float32 (5, 3)"}) {
        CHECK_NOTHROW(Graph::parse(text_of("input x: float32 (n, 3)\ninput z: float32 (m, 1)\n", types, "add(x, z)")));
    }
    refused("line 1: no memory has room for so many elements", "exp(x)", "float32 (2, 3)", "input x: float32 (9000000000000000000, 3)\n");
    refused("line 2: ", "exp(x)", "float32 (9223372036854775807*n*9223372036854775807, 3)");
}

TEST_CASE("a result of another shape than the graph states is an error of the op's line") {
    const std::string loop = "scan(x, carries=0, xs=1, body={\n    input a: float32 (3,)\n    %0: float32 (3,) = exp(a)\n    output o = %0\n})";
    const struct {
        const char* op;
        std::string call, types, shape, stated;
    } cases[] = {{"matmul", "matmul(x, x)", "float32 (3, 4)", "(3, 3)", "(3, 4)"},
                 {"matmul", "matmul(x, x)", "float32 (9,)", "(3, 3)", "(9,)"},
                 {"cat", "cat(x, x, dim=0)", "float32 (5, n)", "(6, 3)", "(5, n)"},
                 {"cat", "cat(x, x, dim=0)", "float32 (6, 2)", "(6, 3)", "(6, 2)"},
                 {"scan", loop, "float32 (4, 3)", "(3, 3)", "(4, 3)"},
                 {"tril", "tril(x)", "float32 ()", "(3, 3)", "()"}};
    for (const auto& [op, call, types, shape, stated] : cases) {
        INFO(call << " " << types);
        const std::string text =
            "input x: float32 (3, 3)\n%1: " + types + " = " + call + "  # model.cpp:7\n%2: " + types + " = exp(%1)\noutput y = %2\n";
        FAILS_IN(ValueError, "Graph::parse: line ", op + (" gives (" + shape.substr(1) + ", not " + stated), Graph::parse(text));
        Graph graph = test::unchecked(text);
        FAILS_IN(ValueError, "Graph::check: ", op, graph.check());
        const Tensor x = ones({3, 3});
        const auto fails_so = [&](const auto& run) {
            try {
                run();
                FAIL("nothing thrown");
            } catch (const ShapeError& error) {
                CHECK(error.what() == fmt::format("model.cpp:7: graph: {} gives %1 of shape {}, the graph says {}", op, shape, stated));
            }
        };
        for (int i = 0; i < 3; ++i) {
            fails_so([&] { graph({x}); });
            fails_so([&] { graph.run({{"x", x}}); });
        }
        optimize(graph);
        fails_so([&] { graph.run({{"x", x}}); });
    }
}

TEST_CASE("formulas that do not hold for all sizes are no lies") {
    const auto rows = [](const Tensor& x) { return linalg::qr(x).q * 2; };
    const Graph graph = trace(rows, {{"x", randn({2, 8}), {"n", ""}}});
    CHECK(graph.outputs()[0].value->shape[1] == SymInt::dim("n"));  // min(n, 8)
    const Tensor x = randn({12, 8});
    CHECK(equal(graph({x})[0], rows(x)));
    for (int i = 0; i < 3; ++i) CHECK(equal(graph.run({{"x", x}})[0], rows(x)));
}

TEST_CASE("a file whose graph states what its ops do not give is refused") {
    const files::TemporaryFolder folder;
    const std::string path = (folder.path() / "model.graph").string();
    const auto save = [&](const std::string& types, const std::string& call) {
        save_safetensors(
            path, {{"w", ones({3, 3})}},
            {{"tapir_graph_version", "1"},
             {"tapir_graph",
              "input x: float32 (3, 3)\nparameter w: float32 (3, 3)\n%1: " + types + " = " + call + "  # model.cpp:7\noutput y = %1\n"}});
    };
    save("float32 (3, 4)", "add(x, w)");
    FAILS_IN(FileError, "load_graph: ", "line 3: add gives (3, 3), not (3, 4)", load_graph(path));
    save("float32 (4611686018427387904, 4)", "matmul(x, w)");
    FAILS_IN(FileError, "load_graph: ", "line 3: no memory has room for so many elements", load_graph(path));
    save("float32 (3, 4)", "matmul(x, w)");
    FAILS_IN(FileError, "load_graph: ", "line 3: matmul gives (3, 3), not (3, 4)", load_graph(path));
    // What names of dimensions hide comes out when it runs.
    save("float32 (3, n)", "matmul(x, w)");
    CHECK(load_graph(path).run({{"x", ones({3, 3})}})[0].shape() == Shape(3, 3));
}

TEST_CASE("numbers that are none, infinities and -0 come back from a listing") {
    for (const DType dtype : {float16, bfloat16, float32, float64}) {
        for (const double number : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                                    -std::numeric_limits<double>::infinity(), -0.0, 0.0, -1.5}) {
            const Tensor value = full({}, number, dtype);
            Graph graph;
            Graph::Value* x = graph.add_input("x", dtype, {2});
            Graph::Value* sum = graph.insert(nullptr, "add", {x, graph.add_constant(value)})->results[0];
            sum = graph.insert(nullptr, "mul", {sum, graph.add_constant(full({2}, number, dtype), "list")})->results[0];
            graph.add_output("y", sum);
            graph.add_output("z", graph.insert(nullptr, "clamp", {x}, {{"min", number}})->results[0]);
            const std::string text = graph.str();
            INFO(text);
            const Graph back = Graph::parse(text);
            CHECK(back.str() == text);
            for (const Graph::Value* constant : back.constants()) {
                CHECK(constant->dtype == dtype);
                const double read = constant->data.reshape({-1})[0].item<double>();
                CHECK((std::isnan(number) ? std::isnan(read) : read == number && std::signbit(read) == std::signbit(number)));
            }
        }
    }
    CHECK_THROWS_AS(Graph::parse("input x: float32 (2,)\n%1: float32 (2,) = add(x, nan:int64)\noutput y = %1\n"), ValueError);
    CHECK_THROWS_AS(Graph::parse("input x: float32 (2,)\n%1: float32 (2,) = add(x, nano)\noutput y = %1\n"), ValueError);
}

TEST_CASE("graphs are whole after passes that bring two sizes together which do not fit") {
    for (const char* text :
         {"input x: float64 (2, 6, 2, 2)\n%1: float64 (2, 3, 2, n, 2) = reshape(x, shape=(2, 3, 2, 2, 2))\n"
          "%2: int64 (2, 2) = reshape(%1, shape=(m, 6, 2, 2))\noutput y = %2\n",
          "input x: int64 (n, 2)\n%1: int64 (m, 2) = reshape(x, shape=(1, 255))\n%2: int64 (4,) = slice(%1, dim=0, start=0, end=4, step=1)\n"
          "%3: int64 (4, 3) = copy(x, %2)\noutput y = %3\n",
          "input x: float64 (n, 3)\ninput z: float64 (4,)\n%1: float64 (m, k) = clone(x)\n%2: float64 (4, 3) = copy(%1, z)\noutput y = %2\n"}) {
        INFO(text);
        try {
            Graph graph = Graph::parse(text);
            optimize(graph);
            graph.check();
        } catch (const ValueError& error) {  // by its text alone, or where a pass has shown the sizes that a name hid
            CHECK_THAT(error.what(), Catch::Matchers::Contains("Graph::parse: line ") || Catch::Matchers::Contains("does not broadcast to"));
        }
    }
}

TEST_CASE("passes know the dimension 0 of a number") {
    const Tensor x = full({}, 3.0);
    Graph graph = Graph::parse("input x: float32 ()\n%1: float32 () = sum(x, dims=(0,))\noutput y = %1\n");
    const Tensor before = graph.run({{"x", x}})[0];
    optimize(graph);
    graph.check();
    CHECK(equal(graph.run({{"x", x}})[0], before));
}

TEST_CASE("passes leave calls with results that are not theirs alone") {
    // Products with one matrix, whose results have further ones, or other numbers of dimensions.
    for (const char* types : {"float32 (1, 32), %9: float32 (1, 32)", "float32 ()"}) {
        std::string text = "input x: float32 (1, 32)\ninput z: float32 (1, 32)\nparameter w: float32 (32, 32)\n";
        text += std::string("%1: ") + types + " = linear(x, w)\n%2: float32 (1, 32) = linear(z, w)\n%3: float32 (1, 32) = add(%1, %2)\n";
        text += std::string("output y = %3\n") + (std::string(types).find("%9") == std::string::npos ? "" : "output second = %9\n");
        Graph graph = test::unchecked(text);
        optimize(graph);
        const Graph::Inputs inputs = {{"x", ones({1, 32})}, {"z", ones({1, 32})}};
        for (int i = 0; i < 3; ++i) {
            try {
                graph.run(inputs);
            } catch (const ValueError&) {  // linear gives no result 1
            } catch (const ShapeError&) {  // nor a number
            }
        }
    }
    // A batch normalisation behind a layer without weights.
    Graph graph = test::unchecked(
        "input x: float32 (2, 3)\nconstant m: float32 ()\nconstant v: float32 ()\nconstant w: float32 (3, 3)\n%1: float32 (2, 3) = linear(x, w)\n"
        "%2: float32 (2, 3) = batch_norm(%1, m, v, training=false, has_running_mean=true, has_running_var=true)\noutput y = %2\n");
    CHECK(fold_batch_norm(graph) == 0);
}
