// Graphs in files: what is saved is what is loaded, and nothing else is loaded.
#include <catch2/catch.hpp>

#include "../../fails.h"
#include "../../nn/data/files.h"
#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/graph/graph_file.h"
#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

using namespace tapir;

TEST_CASE("a graph is saved and loaded") {
    const files::TemporaryFolder folder;
    const std::string path = (folder.path() / "model.graph").string();
    manual_seed(4);
    const Tensor w = randn({3, 4}).requires_grad_(), table = randn({20});
    TraceOptions options;
    options.reads = TraceOptions::Reads::guard;
    const Graph graph = trace(
        [&](const Tensor& x) {
            const Tensor y = linear(x, w) + table.narrow(0, 2, 3);
            if (w.sum().item<double>() > 1e9) return y;
            return y.reshape({x.size(0) * 3}) / x.size(0);
        },
        {{"x", randn({2, 4}), {"batch"}}}, options);
    save_graph(path, graph);
    const Graph loaded = load_graph(path);
    CHECK(loaded.str() == graph.str());
    const Tensor x = randn({5, 4});
    CHECK(equal(loaded({x})[0], graph({x})[0]));
    CHECK(loaded.parameters()[0]->data.requires_grad());
    FAILS_IN(FileError, "load_graph: ", "holds tensors, but no graph", {
        save_safetensors(path, {{"w", w}});
        load_graph(path);
    });
    FAILS_IN(FileError, "load_graph: ", "is of version 2, this library reads up to 1",
             (save_safetensors(path, {}, {{"tapir_graph_version", "2"}, {"tapir_graph", ""}}), load_graph(path)));
    const auto text_fails = [&](const std::string& text) {
        INFO(text);
        save_safetensors(path, {{"w", w}}, {{"tapir_graph_version", "1"}, {"tapir_graph", text}});
        CHECK_THROWS_AS(load_graph(path), FileError);
    };
    text_fails("parameter w: float32 (4, 3)\n");
    text_fails("parameter v: float32 (1000000, 1000000)\n");
    text_fails("output y = %3\n");
    // Every line of a good one cut off somewhere, or with a character changed: an error or a graph, never more.
    const std::string good = graph.str();
    NamedTensors data{{"parameter_0", w}};
    for (const Graph::Value* value : graph.constants()) data.push_back({"%" + std::to_string(value->number), value->data});
    data.push_back({"guard 0", graph.guards()[0].expected});
    int errors = 0;
    for (std::size_t i = 0; i < good.size(); i += 3) {
        for (const std::string& bad : {good.substr(0, i), good.substr(0, i) + "(" + good.substr(i + 1), good.substr(0, i) + good.substr(i + 2)}) {
            save_safetensors(path, data, {{"tapir_graph_version", "1"}, {"tapir_graph", bad}});
            try {
                const Graph changed = load_graph(path);
                changed.check();
            } catch (const FileError&) {
                ++errors;
            }
        }
    }
    CHECK(errors > 100);
}

TEST_CASE("a loaded graph knows which parameters require gradients") {
    const files::TemporaryFolder folder;
    const std::string path = (folder.path() / "model.graph").string();
    nn::BatchNorm1d norm(3);
    norm.eval();
    const Graph graph = trace(norm, {{"x", randn({4, 3})}});
    int trained = 0;
    const auto check = [&](bool all) {
        const Graph loaded = load_graph(path);
        REQUIRE(loaded.parameters().size() == graph.parameters().size());
        trained = 0;
        for (std::size_t i = 0; i < graph.parameters().size(); ++i) {
            const Tensor& mine = graph.parameters()[i]->data;
            INFO(graph.parameters()[i]->name);
            trained += mine.requires_grad();
            CHECK(loaded.parameters()[i]->data.requires_grad() == (all ? is_floating(mine.dtype()) : mine.requires_grad()));
        }
    };
    save_graph(path, graph);
    check(false);
    CHECK(trained == 2);
    // A file from before that was noted, and those that say something else.
    FileMetadata metadata;
    const NamedTensors tensors = load_safetensors(path, &metadata);
    REQUIRE(metadata.size() == 3);
    const auto with = [&](const char* text) {
        FileMetadata changed;
        for (const auto& [key, value] : metadata) {
            if (key != "tapir_graph_requires_grad")
                changed.emplace_back(key, value);
            else if (text)
                changed.emplace_back(key, text);
        }
        save_safetensors(path, tensors, changed);
    };
    with(nullptr);
    check(true);
    for (const char* text : {"99", "-1", "0,1", "x"}) {
        with(text);
        FAILS_IN(FileError, "load_graph: ", "says not which parameters require gradients", load_graph(path));
    }
}

TEST_CASE("what constants become in branches and bodies is saved") {
    const files::TemporaryFolder folder;
    const std::string path = (folder.path() / "model.graph").string();
    const auto fn = [](const Tensor& x) {
        const auto inner = [&] { return cond(x.sum() > 9, [&] { return x + eye(30).sum(0).repeat({34}).narrow(0, 0, 1000); }, [&] { return -x; }); };
        return cond(x.sum() > 0, [&] { return inner() + cumsum(full({1000}, 1.0), 0); }, [&] { return x * arange(1000, float32); });
    };
    Graph graph = trace(fn, {{"x", ones({1000})}});
    optimize(graph);
    save_graph(path, graph);
    const Graph loaded = load_graph(path);
    CHECK(loaded.str() == graph.str());
    for (const double value : {1.0, 0.002, -1.0}) {
        const Tensor x = full({1000}, value);
        CHECK(allclose(loaded.run({{"x", x}})[0], fn(x)));
    }
}

TEST_CASE("a graph whose parameter has another dtype now is not saved") {
    nn::Linear net(3, 2);
    const Graph graph = trace(net, {{"x", randn({2, 3})}});
    net.to(float64);
    const files::TemporaryFolder folder;
    const std::string path = (folder.path() / "net.graph").string();
    FAILS(DTypeError, "graph: the parameter weight is float64, the graph was made for float32", save_graph(path, graph));
    CHECK(!std::filesystem::exists(path));
}
