// Texts of graphs that no program has made: refused where passes and exporters would trip over them.
#include <catch2/catch.hpp>

#include "../../fails.h"
#include "tapir/autograd/trace/graph.h"
#include "tapir/autograd/trace/passes.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

std::string text_of(const std::string& inputs, const std::string& types, const std::string& call) {
    return inputs + "%1: " + types + " = " + call + "\noutput y = %1\n";
}

void refused(const char* why, const std::string& call, const std::string& types = "float32 (2, 3)", const std::string& inputs = "input x: float32 (2, 3)\n") {
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
    CHECK(Graph::parse(text_of("input x: float32 (2, 3)\n", "int64 (4,)", "bincount(x)")).nodes().size() == 1);  // the second may be left out
    CHECK(Graph::parse(text_of("", "float32 (4,)", "rand(shape=(4,), dtype=float32)")).nodes().size() == 1);
}

TEST_CASE("dimensions that are not there are refused") {
    refused("transpose has the dimension 100000000, of 2", "transpose(x, dims=(100000000, 0))", "float32 (3, 2)");
    refused("transpose has 1 dimensions", "transpose(x, dims=(0,))", "float32 (3, 2)");
    refused("a dimension of transpose is no number: n", "transpose(x, dims=(n, 0))", "float32 (3, 2)", "input x: float32 (2, n)\n");
    refused("permute has the dimension 2, of 2", "permute(x, dims=(2, 0))", "float32 (3, 2)");
    refused("permute names not each dimension once", "permute(x, dims=(1, 1))", "float32 (3, 2)");
    refused("permute names not each dimension once", "permute(x, dims=(1,))", "float32 (3, 2)");
    refused("transpose makes 3 dimensions of 2", "transpose(x, dims=(0, 1))", "float32 (3, 2, 1)");
    refused("sum has the dimension 7, of 2", "sum(x, dims=(7,))", "float32 (2,)");
    refused("sum leaves 1 dimensions of 2, not 2", "sum(x, dims=(1,))");
    refused("mean leaves 0 dimensions of 2, not 1", "mean(x)", "float32 (2,)");
    refused("amax leaves 2 dimensions of 2, not 1", "amax(x, dims=(1,), keepdim=true)", "float32 (2,)");
    refused("add makes 1 dimensions of 2", "add(x, x)", "float32 (2,)");
    refused("copy makes 1 dimensions of 2", "copy(x, x)", "float32 (2,)");
    refused("copy puts 3 dimensions into 2", "copy(x, z)", "float32 (2, 3)", "input x: float32 (2, 3)\ninput z: float32 (1, 2, 3)\n");
    refused("expand makes 1 dimensions of 2", "expand(x, shape=(6,))", "float32 (6,)");
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
        Graph graph = Graph::parse(text);
        optimize(graph);
        graph.check();
        const Graph::Inputs inputs = {{"x", ones({1, 32})}, {"z", ones({1, 32})}};
        for (int i = 0; i < 3; ++i) {
            try {
                graph.run(inputs);
            } catch (const ValueError&) {  // linear gives no result 1
            }
        }
    }
    // A batch normalisation behind a layer without weights.
    Graph graph = Graph::parse(
        "input x: float32 (2, 3)\nconstant m: float32 ()\nconstant v: float32 ()\nconstant w: float32 (3, 3)\n%1: float32 (2, 3) = linear(x, w)\n"
        "%2: float32 (2, 3) = batch_norm(%1, m, v, training=false, has_running_mean=true, has_running_var=true)\noutput y = %2\n");
    CHECK(fold_batch_norm(graph) == 0);
}
