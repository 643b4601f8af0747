// load_onnx: models made here become graphs that run, differentiate and train; what is no model is refused.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>

#include "../../../fails.h"
#include "../../../nn/data/files.h"
#include "models.h"
#include "tapir/autograd/trace/graph/grad.h"
#include "tapir/autograd/trace/onnx/onnx.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/core/module_name.h"
#include "tapir/tapir.h"

using namespace tapir;
using models::Model;

namespace {

void check_close(const Tensor& a, const Tensor& b, double tolerance = 1e-6) {
    REQUIRE(a.shape() == b.shape());
    CHECK(a.dtype() == b.dtype());
    CHECK(allclose(a, b, tolerance, tolerance));
}

// Runs it in both ways.
Tensor first(const Graph& graph, const std::vector<Tensor>& x) {
    const Tensor y = graph(x)[0];
    Graph::Inputs named;
    for (std::size_t i = 0; i < x.size(); ++i) named.emplace_back(graph.inputs()[i]->name, x[i]);
    check_close(graph.run(named)[0], y, 0);
    return y;
}

constexpr int kTypeInt64 = onnx::TensorProto::INT64, kTypeDouble = onnx::TensorProto::DOUBLE, kTypeBool = onnx::TensorProto::BOOL;

Tensor ints(const std::vector<std::int64_t>& values) { return tensor(values, int64); }

Model perceptron(const Tensor& w1, const Tensor& b1, const Tensor& w2) {
    Model model;
    const int type = w1.dtype() == float64 ? kTypeDouble : onnx::TensorProto::FLOAT;
    model.input("x", {"batch", "4"}, type).weight("w1", w1).weight("b1", b1).weight("w2", w2);
    model.node("Gemm", {"x", "w1", "b1"}, {"h"}).set("transB", 1);
    model.node("Tanh", {"h"}, {"a"});
    model.node("MatMul", {"a", "w2"}, {"y"});
    model.output("y", {"batch", "2"}, type);
    return model;
}

}  // namespace

TEST_CASE("a model is loaded, with its names, for any size of its named dimensions") {
    manual_seed(1);
    const Tensor w1 = randn({5, 4}), b1 = randn({5}), w2 = randn({5, 2});
    const files::TemporaryFolder folder;
    const std::string path = folder.write("model.onnx", perceptron(w1, b1, w2).bytes()).string();
    const Graph graph = load_onnx(path);
    INFO(graph.str());
    REQUIRE(graph.parameters().size() == 3);
    CHECK(graph.value("w1")->data.requires_grad());
    CHECK(graph.outputs()[0].name == "y");
    CHECK(graph.dims() == std::vector<std::string>{"batch"});
    CHECK(graph.nodes().size() == 3);
    for (const int n : {1, 3, 8}) {
        const Tensor x = randn({n, 4});
        check_close(first(graph, {x}), matmul(tanh(linear(x, w1, b1)), w2));
    }
    FAILS(ShapeError, "the input x has shape (2, 3)", graph({randn({2, 3})}));
}

TEST_CASE("a node has the name of the model's node: in listings, errors and drawings") {
    Model model;
    model.input("x", {"n", "4"}).input("i", {"2"}, kTypeInt64).weight("w", randn({3, 4}));
    model.node("Gemm", {"x", "w"}, {"h"}).set("transB", 1).name("/layer1/conv/Gemm");
    model.node("Relu", {"h"}, {"r"});
    model.node("Gather", {"r", "i"}, {"y"}).set("axis", 1).name("pick");
    model.output("y");
    const int line = __LINE__ + 1;
    const Graph graph = load_onnx_from_memory(model.bytes());
    INFO(graph.str());
    REQUIRE(graph.nodes().size() >= 3);
    for (const auto& node : graph.nodes()) {
        REQUIRE(node->module);
        CHECK(node->loc.line() == static_cast<unsigned>(line));
    }
    CHECK(graph.nodes()[0]->module->path == std::string("/layer1/conv/Gemm"));
    CHECK(graph.nodes()[0]->module->type == std::string("Gemm"));
    CHECK(graph.nodes().back()->module->path == std::string("pick"));
    bool has_relu = false;
    for (const auto& node : graph.nodes())
        has_relu |= node->op() == "relu" && node->module->path == std::string("r");  // it has no name but its result's
    CHECK(has_relu);
    CHECK(graph.str().find("import_test.cpp:" + std::to_string(line) + " \"/layer1/conv/Gemm\"") != std::string::npos);
    CHECK(graph.to_svg().find(">/layer1/conv/Gemm<title>Gemm<") != std::string::npos);
    model.proto.mutable_graph()->mutable_node(0)->set_name("a \"b\"\n# \xff");  // it can be saved, and read back
    const Graph odd = load_onnx_from_memory(model.bytes());
    CHECK(odd.nodes()[0]->module->path == std::string("a \"b\"\n# \xef\xbf\xbd"));
    CHECK(Graph::parse(odd.str()).str() == odd.str());
    const auto why = [&](const auto& run) {
        try {
            run();
        } catch (const IndexError& error) {
            return std::string(error.what());
        }
        return std::string("nothing thrown");
    };
    CHECK_THAT(why([&] { graph({randn({2, 4}), ints({0, 7})}); }), Catch::Contains("(in pick)"));
    CHECK_THAT(why([&] { graph.run({{"x", randn({2, 4})}, {"i", ints({0, 7})}}); }), Catch::Contains("(in pick)"));
    CHECK_THAT(why([&] { ones({2}).select(0, 5); }), !Catch::Contains("(in "));  // it is put back
}

TEST_CASE("what save_onnx wrote has its lines and modules again") {
    nn::Sequential net(nn::Linear(4, 3), relu);
    net.parameters();
    const Graph graph = trace(net, {{"x", ones({2, 4}), {"n"}}});
    const files::TemporaryFolder folder;
    const std::string path = (folder.path() / "net.onnx").string();
    save_onnx(path, graph);
    const Graph again = load_onnx(path);
    INFO(graph.str() + again.str());
    REQUIRE(again.nodes().size() == graph.nodes().size());
    for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
        const Graph::Node &a = *graph.nodes()[i], &b = *again.nodes()[i];
        CHECK(a.loc.line() == b.loc.line());
        CHECK(std::string(b.loc.file_name()) == "import_test.cpp");
        CHECK((a.module == nullptr) == (b.module == nullptr));
        if (a.module && b.module) CHECK(a.module->shown() == std::string(b.module->shown()));
    }
}

TEST_CASE("a loaded model differentiates, and learns") {
    manual_seed(2);
    const auto of = [](const Shape& shape) { return randn(shape, float64); };
    const Graph graph = load_onnx_from_memory(perceptron(of({5, 4}), of({5}), of({5, 2})).bytes());
    std::vector<Tensor> weights;
    for (const Graph::Value* value : graph.parameters()) weights.push_back(value->data);
    const Tensor x = of({6, 4}).requires_grad_(), want = of({6, 2});
    std::vector<Tensor> leaves{x};
    leaves.insert(leaves.end(), weights.begin(), weights.end());
    CHECK(gradcheck([&](const std::vector<Tensor>&) { return sum(square(graph({x})[0])); }, leaves));
    const Graph gradients = grad(graph, {"y"}, {"x", "w1"});
    {
        Tape tape;
        const std::vector<Tensor> wanted = tape.gradient(sum(graph({x})[0]), {x, graph.value("w1")->data});
        const std::vector<Tensor> got = gradients.run({{"x", x.detach()}});
        check_close(got[got.size() - 2], wanted[0]);
        check_close(got.back(), wanted[1]);
    }
    optim::SGD sgd(weights, {.lr = 0.05});
    double before = 0, loss = 0;
    for (int step = 0; step < 30; ++step) {
        Tape tape;
        const Tensor now = mse_loss(graph({x.detach()})[0], want);
        loss = now.item();
        if (step == 0) before = loss;
        sgd.zero_grad();
        tape.backward(now);
        sgd.step();
    }
    CHECK(loss < 0.7 * before);
    check_close(graph.run({{"x", x.detach()}})[0], graph({x.detach()})[0]);  // of the weights as they are now
}

TEST_CASE("weights can stay constants, and running statistics are no weights") {
    Model model;
    model.input("x", {"n", "2", "3"}).weight("scale", ones({2})).weight("bias", zeros({2})).weight("mean", tensor({1.0f, 2.0f}));
    model.weight("var", tensor({4.0f, 9.0f})).weight("factor", full({}, 2.0));
    model.node("BatchNormalization", {"x", "scale", "bias", "mean", "var"}, {"h"}).set("epsilon", 0.0);
    model.node("Mul", {"h", "factor"}, {"y"});
    model.output("y");
    const Graph graph = load_onnx_from_memory(model.bytes(), {.constants = {"factor"}});
    CHECK(graph.value("scale")->data.requires_grad());
    CHECK_FALSE(graph.value("mean")->data.requires_grad());
    CHECK(graph.parameters().size() == 4);
    const Tensor x = randn({2, 2, 3});
    check_close(first(graph, {x}), (x - tensor({1.0f, 2.0f}).reshape({2, 1})) / tensor({2.0f, 3.0f}).reshape({2, 1}) * 2, 1e-5);
}

TEST_CASE("shapes are computed while the model is read, and stay formulas") {
    Model model;
    model.input("x", {"batch", "time", "6"});
    model.node("Shape", {"x"}, {"shape"});
    model.node("Constant", {}, {"zero"}).set("value", full({}, 0, int64));
    model.node("Constant", {}, {"one"}).set("value", full({}, 1, int64));
    model.node("Gather", {"shape", "zero"}, {"b"});
    model.node("Gather", {"shape", "one"}, {"t"});
    model.node("Constant", {}, {"first"}).set("value", ints({0}));
    model.node("Unsqueeze", {"b", "first"}, {"b1"});
    model.node("Unsqueeze", {"t", "first"}, {"t1"});
    model.node("Constant", {}, {"heads"}).set("value", ints({2, 3}));
    model.node("Concat", {"b1", "t1", "heads"}, {"split"}).set("axis", 0);
    model.node("Reshape", {"x", "split"}, {"h"});
    model.node("Range", {"zero", "t", "one"}, {"positions"});  // as an operand, and of any length
    model.node("Cast", {"positions"}, {"p"}).set("to", onnx::TensorProto::FLOAT);
    model.node("Constant", {}, {"last"}).set("value", ints({1, 2}));
    model.node("Unsqueeze", {"p", "last"}, {"p3"});
    model.node("Add", {"h", "p3"}, {"moved"});
    model.node("Cast", {"t"}, {"length"}).set("to", onnx::TensorProto::FLOAT);
    model.node("Div", {"moved", "length"}, {"scaled"});
    model.node("Sqrt", {"length"}, {"root"});
    model.node("Mul", {"scaled", "root"}, {"y"});
    model.output("y");
    const Graph graph = load_onnx_from_memory(model.bytes());
    INFO(graph.str());
    CHECK(graph.dims() == std::vector<std::string>{"batch", "time"});
    for (const auto& [b, t] : {std::pair{1, 5}, {3, 2}, {4, 30}}) {
        const Tensor x = randn({b, t, 6});
        check_close(first(graph, {x}), (x.reshape({b, t, 2, 3}) + arange(t, float32).reshape({t, 1, 1})) / std::sqrt(t), 1e-5);
    }
    // A dimension that is given is no formula.
    const Graph fixed = load_onnx_from_memory(model.bytes(), {.sizes = {{"time", 4}}});
    CHECK(fixed.dims() == std::vector<std::string>{"batch"});
    CHECK_THROWS_AS(fixed({randn({2, 5, 6})}), ShapeError);
}

TEST_CASE("all ops that are not supported are listed at once") {
    Model model;
    model.input("x", {"3"}, onnx::TensorProto::FLOAT);
    model.node("Foo", {"x"}, {"a"});
    model.node("Foo", {"a"}, {"b"});
    model.node("Bar", {"b"}, {"c"}).domain("com.example");
    auto branch = model.node("If", {"c"}, {"y"}).graph("then_branch");
    models::add_node(branch, "Inside", {"x"}, {"z"});
    model.output("y");
    FAILS_IN(ValueError, "load_onnx: the model in memory: ", "these ops are not supported: Foo (2 nodes), Inside, com.example.Bar",
             load_onnx_from_memory(model.bytes()));
}

TEST_CASE("a range may be as long as an input says") {
    Model model;
    model.input("x", {"n"}).input("limit", {}, kTypeInt64).input("start", {}, kTypeInt64);
    model.node("Constant", {}, {"step"}).set("value", full({}, 3, int64));
    model.node("Constant", {}, {"back"}).set("value", full({}, -2, int64));
    model.node("Range", {"start", "limit", "step"}, {"up"});
    model.node("Range", {"start", "limit", "back"}, {"down"});
    model.output("up", {}, kTypeInt64).output("down", {}, kTypeInt64);
    const Graph graph = load_onnx_from_memory(model.bytes());
    for (const auto& [start, limit] : {std::pair{0, 10}, {2, 11}, {5, 5}, {-4, -3}, {7, 0}, {6, 1}, {3, -9}}) {
        CAPTURE(start, limit);
        const std::vector<Tensor> got = graph({ones({2}), tensor(limit), tensor(start)});
        CHECK(equal(got[0], limit > start ? arange(start, limit, 3) : zeros({0}, int64)));
        CHECK(equal(got[1], limit < start ? arange(start, limit, -2) : zeros({0}, int64)));
    }
}

TEST_CASE("of inputs with named dimensions it says the same") {
    Model model;
    model.input("x", {"n", "6"}).input("shape", {"2"}, kTypeInt64);
    model.node("Reshape", {"x", "shape"}, {"y"}).name("fold");
    model.output("y");
    try {
        load_onnx_from_memory(model.bytes());
        FAIL();
    } catch (const ValueError& error) {
        CHECK(std::string(error.what()).ends_with("the graph holds for this value then"));
    }
}

TEST_CASE("an input that decides on shapes is to be given") {
    Model model;
    model.input("x", {"2", "6"}).input("shape", {"2"}, kTypeInt64);
    model.node("Reshape", {"x", "shape"}, {"y"}).name("fold");
    model.output("y");
    FAILS_IN(ValueError, "load_onnx: the node fold (Reshape): ", "its shape depends on the value of the input shape",
             load_onnx_from_memory(model.bytes()));
    const Graph graph = load_onnx_from_memory(model.bytes(), {.known = {{"shape", ints({3, -1})}}});
    REQUIRE(graph.inputs().size() == 1);
    CHECK(first(graph, {ones({2, 6})}).shape() == Shape{3, 4});
    FAILS_IN(DTypeError, "load_onnx: ", "the input shape is of type INT64, the value given is float32",
             load_onnx_from_memory(model.bytes(), {.known = {{"shape", ones({2})}}}));
    FAILS_IN(ValueError, "load_onnx: ", "it has no input z", load_onnx_from_memory(model.bytes(), {.known = {{"z", ones({2})}}}));
    FAILS_IN(ValueError, "load_onnx: ", "none of its inputs has a dimension time", load_onnx_from_memory(model.bytes(), {.sizes = {{"time", 4}}}));
    FAILS_IN(ShapeError, "load_onnx: the node fold (Reshape): reshape: ", "do not fit",
             load_onnx_from_memory(model.bytes(), {.known = {{"shape", ints({5, 5})}}}));
}

TEST_CASE("functions of a model are read as their nodes") {
    Model model;
    auto* function = model.proto.add_functions();
    function->set_name("Scaled");
    function->set_domain("own");
    function->add_opset_import()->set_version(17);
    function->add_input("a");
    function->add_input("limit");
    function->add_output("result");
    function->add_attribute("slope");
    models::add_node(function, "LeakyRelu", {"a"}, {"b"}).refer("alpha", "slope", onnx::AttributeProto::FLOAT);
    models::add_node(function, "Clip", {"b", "", "limit"}, {"result"});
    model.input("x", {"3"}).weight("most", full({}, 1.5));
    model.node("Scaled", {"x", "most"}, {"h"}).domain("own").set("slope", 0.5);
    model.node("Scaled", {"h"}, {"y"}).domain("own").set("slope", 0.25);  // without the second operand
    model.output("y");
    const Tensor x = tensor({-4.0f, 1.0f, 8.0f});
    check_close(first(load_onnx_from_memory(model.bytes()), {x}), tensor({-0.5f, 1.0f, 1.5f}));
    // One that calls itself has no end.
    models::add_node(function, "Scaled", {"a"}, {"c"}).domain("own");
    FAILS_IN(FileError, "load_onnx: ", "more than 64 deep", load_onnx_from_memory(model.bytes()));
}

TEST_CASE("branches and loops that data decides stay branches and loops") {
    SECTION("If") {
        Model model;
        model.input("x", {"3"}).weight("w", tensor({2.0f, 3.0f, 4.0f}));
        model.node("ReduceSum", {"x"}, {"sum"}).set("keepdims", 0);
        model.node("Constant", {}, {"zero"}).set("value", full({}, 0.0));
        model.node("Greater", {"sum", "zero"}, {"positive"});
        auto node = model.node("If", {"positive"}, {"y"});
        auto* yes = node.graph("then_branch");
        models::add_node(yes, "Mul", {"x", "w"}, {"a"});
        models::set_type(yes->add_output(), "a", 1, {"3"});
        auto* no = node.graph("else_branch");
        models::add_node(no, "Neg", {"x"}, {"b"});
        models::set_type(no->add_output(), "b", 1, {"3"});
        model.output("y");
        const Graph graph = load_onnx_from_memory(model.bytes());
        INFO(graph.str());
        const Tensor x = tensor({1.0f, 2.0f, 3.0f});
        check_close(first(graph, {x}), tensor({2.0f, 6.0f, 12.0f}));
        check_close(first(graph, {-x}), x);
        Tape tape;
        const Tensor w = graph.value("w")->data;
        check_close(tape.gradient(sum(graph({x})[0]), {w})[0], x);
    }
    SECTION("Loop") {
        Model model;  // doubled as long as the sum is below a limit
        model.input("x", {"2"}).input("limit", {}).weight("most", full({}, 100, int64));
        model.node("Constant", {}, {"yes"}).set("value", full({}, true, bool_));
        auto* body = model.node("Loop", {"most", "yes", "x"}, {"y"}).graph("body");
        models::set_type(body->add_input(), "i", kTypeInt64, {});
        models::set_type(body->add_input(), "going", kTypeBool, {});
        models::set_type(body->add_input(), "v", 1, {"2"});
        models::add_node(body, "Add", {"v", "v"}, {"next"});
        models::add_node(body, "ReduceSum", {"next"}, {"sum"}).set("keepdims", 0);
        models::add_node(body, "Less", {"sum", "limit"}, {"goes"});
        models::set_type(body->add_output(), "goes", kTypeBool, {});
        models::set_type(body->add_output(), "next", 1, {"2"});
        model.output("y");
        const Graph graph = load_onnx_from_memory(model.bytes());
        INFO(graph.str());
        const Tensor x = tensor({1.0f, 2.0f});
        check_close(first(graph, {x, full({}, 10.0)}), x * 4);
        check_close(first(graph, {x, full({}, 1000.0)}), x * 512);
    }
    SECTION("a Loop that collects what its turns give") {
        Model model;  // x, 2 x, 4 x ... while the sum is below a limit, and the squares of these
        model.input("x", {"n"}).input("limit", {}).weight("most", full({}, 100, int64));
        model.node("ReduceSum", {"x"}, {"first"}).set("keepdims", 0);
        model.node("Less", {"first", "limit"}, {"start"});
        auto* body = model.node("Loop", {"most", "start", "x"}, {"end", "turns", "squares"}).graph("body");
        models::set_type(body->add_input(), "i", kTypeInt64, {});
        models::set_type(body->add_input(), "going", kTypeBool, {});
        models::set_type(body->add_input(), "v", 1, {"n"});
        models::add_node(body, "Add", {"v", "v"}, {"next"});
        models::add_node(body, "Mul", {"v", "v"}, {"square"});
        models::add_node(body, "Identity", {"i"}, {"turn"});
        models::add_node(body, "ReduceSum", {"next"}, {"sum"}).set("keepdims", 0);
        models::add_node(body, "Less", {"sum", "limit"}, {"goes"});
        models::set_type(body->add_output(), "goes", kTypeBool, {});
        models::set_type(body->add_output(), "next", 1, {"n"});
        models::set_type(body->add_output(), "turn", kTypeInt64, {});
        models::set_type(body->add_output(), "square", 1, {"n"});
        model.output("end").output("turns", {}, kTypeInt64).output("squares");
        const Graph graph = load_onnx_from_memory(model.bytes());
        INFO(graph.str());
        for (const int n : {2, 3}) {
            const Tensor x = arange(n, float32) + 1;
            for (const int turns : {0, 1, 4}) {
                const Tensor limit = x.sum() * std::pow(2.0, turns) * 0.75;
                const std::vector<Tensor> y = graph({x, limit});
                check_close(y[0], x * std::pow(2.0, turns));
                CHECK(y[1].equal(arange(turns, int64)));
                REQUIRE(y[2].shape() == Shape{turns, n});
                for (int t = 0; t < turns; ++t) check_close(y[2][t], x * x * std::pow(4.0, t));
                const std::vector<Tensor> again = graph.run({{"x", x}, {"limit", limit}});
                CHECK(again[2].equal(y[2]));
            }
        }
    }
    SECTION("a Loop over a named dimension, and a Scan") {
        Model model;
        model.input("x", {"time", "2"});
        model.node("Shape", {"x"}, {"shape"});
        model.node("Constant", {}, {"zero"}).set("value", full({}, 0, int64));
        model.node("Gather", {"shape", "zero"}, {"steps"});
        model.node("Constant", {}, {"start"}).set("value", zeros({2}));
        auto* body = model.node("Loop", {"steps", "", "start"}, {"end", "all"}).graph("body");
        models::set_type(body->add_input(), "i", kTypeInt64, {});
        models::set_type(body->add_input(), "going", kTypeBool, {});
        models::set_type(body->add_input(), "h", 1, {"2"});
        models::add_node(body, "Gather", {"x", "i"}, {"row"});
        models::add_node(body, "Add", {"h", "row"}, {"next"});
        models::add_node(body, "Identity", {"going"}, {"goes"});
        models::add_node(body, "Identity", {"next"}, {"kept"});
        models::set_type(body->add_output(), "goes", kTypeBool, {});
        models::set_type(body->add_output(), "next", 1, {"2"});
        models::set_type(body->add_output(), "kept", 1, {"2"});
        auto scan = model.node("Scan", {"start", "all"}, {"last", "sums"}).set("num_scan_inputs", 1);
        scan.set("scan_input_directions", std::vector<std::int64_t>{1});
        auto* step = scan.graph("body");
        models::set_type(step->add_input(), "s", 1, {"2"});
        models::set_type(step->add_input(), "r", 1, {"2"});
        models::add_node(step, "Add", {"s", "r"}, {"t"});
        models::add_node(step, "Identity", {"t"}, {"u"});
        models::set_type(step->add_output(), "t", 1, {"2"});
        models::set_type(step->add_output(), "u", 1, {"2"});
        model.output("sums").output("end");
        const Graph graph = load_onnx_from_memory(model.bytes());
        INFO(graph.str());
        for (const int steps : {1, 4, 50}) {
            const Tensor x = randn({steps, 2}), all = cumsum(x, 0);
            check_close(first(graph, {x}), cumsum(flip(all, {0}), 0), 1e-4);
            check_close(graph({x})[1], all[-1], 1e-4);
        }
    }
}

TEST_CASE("what data chooses is loaded for other data") {
    const Tensor whole = tensor({3.0f, -1.0f, 2.0f, -4.0f, 5.0f, 6.0f}).reshape({3, 2}), none = zeros({3}, bool_);
    const Tensor masks[] = {none, tensor({0, 1, 1}, bool_), tensor({1, 0, 0}, bool_), ones({3}, bool_)};
    const files::TemporaryFolder folder;
    const std::string path = (folder.path() / "model.onnx").string();
    SECTION("rows of a mask") {
        const auto check = [&](const auto& fn) {
            save_onnx(path, trace(fn, {{"x", whole}, {"mask", masks[1]}}));
            const Graph graph = load_onnx(path);
            INFO(graph.str());
            for (const Tensor& mask : masks) check_close(first(graph, {whole, mask}), fn(whole, mask));
        };
        check([](const Tensor& x, const Tensor& mask) { return x.index({mask}).sum(0); });
        check([](const Tensor& x, const Tensor& mask) { return x.index({mask}) * 2; });
        check([](const Tensor& x, const Tensor& mask) { return x.index({mask}).reshape({-1, 1, 2}); });
        check([](const Tensor& x, const Tensor& mask) { return x.index({mask}).unsqueeze(1) * x; });
    }
    SECTION("elements above 0") {
        const auto check = [&](const auto& fn) {
            save_onnx(path, trace(fn, {{"x", whole, {"rows"}}}));
            const Graph graph = load_onnx(path);
            INFO(graph.str());
            for (const Tensor& given : {whole, -whole, whole.abs(), -whole.abs(), randn({7, 2})}) check_close(first(graph, {given}), fn(given));
        };
        check([](const Tensor& x) { return masked_select(x, x > 0) * 2; });
        check([](const Tensor& x) { return sum(masked_select(x, x > 0)); });
        check([](const Tensor& x) { return masked_select(x, x > 0).reshape({1, -1}); });
        check([](const Tensor& x) { return masked_select(x, x > 0).unsqueeze(1).expand({-1, 3}); });
    }
    SECTION("GatherND, as others write it") {
        Model model;
        model.input("x", {"3", "2"}).weight("limit", full({}, 2.5));
        model.node("Greater", {"x", "limit"}, {"mask"});
        model.node("NonZero", {"mask"}, {"places"});
        model.node("Transpose", {"places"}, {"rows"}).set("perm", std::vector<std::int64_t>{1, 0});
        model.node("GatherND", {"x", "rows"}, {"kept"});
        model.weight("axes", ints({1})).node("Unsqueeze", {"kept", "axes"}, {"column"});
        model.node("Mul", {"column", "column"}, {"y"});
        model.output("y");
        const Graph graph = load_onnx_from_memory(model.bytes());
        INFO(graph.str());
        for (const Tensor& given : {whole, -whole, zeros({3, 2})})
            check_close(first(graph, {given}), square(masked_select(given, given > 2.5)).unsqueeze(1));
    }
}

TEST_CASE("a loop that has no end on inputs that are made up is not waited for") {
    Model model;  // halved until the sum is 1 or less, but not 0
    model.input("x", {"2"}).weight("one", full({}, 1.0)).weight("start", full({}, true, bool_)).weight("half", full({}, 0.5));
    auto node = model.node("Loop", {"", "start", "x"}, {"y"});
    node.name("halve");
    auto* body = node.graph("body");
    models::set_type(body->add_input(), "i", kTypeInt64, {});
    models::set_type(body->add_input(), "going", kTypeBool, {});
    models::set_type(body->add_input(), "v", 1, {"2"});
    models::add_node(body, "Mul", {"v", "half"}, {"next"});
    models::add_node(body, "ReduceSum", {"next"}, {"sum"}).set("keepdims", 0);
    models::add_node(body, "Greater", {"sum", "one"}, {"large"});
    models::add_node(body, "Cast", {"sum"}, {"is_not_zero"}).set("to", kTypeBool);
    models::add_node(body, "Not", {"is_not_zero"}, {"is_zero"});
    models::add_node(body, "Or", {"large", "is_zero"}, {"goes"});
    models::set_type(body->add_output(), "goes", kTypeBool, {});
    models::set_type(body->add_output(), "next", 1, {"2"});
    model.output("y");
    const Graph graph = load_onnx_from_memory(model.bytes());
    check_close(first(graph, {tensor({3.0f, 5.0f})}), tensor({0.375f, 0.625f}));
}

TEST_CASE("a Loop whose condition counts is a scan, as that of an LSTM of TensorFlow") {
    // As tf2onnx writes it: as many turns as an int64 can say, while two counters, which are carried, are below the number of times.
    const std::int64_t inputs = 3, units = 2;
    const auto model_of = [&](const std::string& time) {
        Model model;
        model.input("x", {"2", time, std::to_string(inputs)});
        model.node("Transpose", {"x"}, {"steps"}).set("perm", std::vector<std::int64_t>{1, 0, 2});
        model.weight("first", full({}, 0, int64)).weight("zero", full({}, 0, int32)).weight("one", full({}, 1, int32));
        model.node("Shape", {"steps"}, {"shape"});
        model.node("Gather", {"shape", "first"}, {"length"});
        model.node("Cast", {"length"}, {"times"}).set("to", onnx::TensorProto::INT32);
        model.node("Less", {"zero", "times"}, {"begins"});
        model.weight("trip_count", full({}, INT64_MAX, int64)).weight("none", zeros({2, units}));
        model.weight("kernel", randn({inputs + units, 4 * units})).weight("bias", randn({4 * units})).weight("forget", full({}, 1.0));
        auto* body =
            model.node("Loop", {"trip_count", "begins", "zero", "zero", "none", "none"}, {"count", "at", "h_end", "c_end", "all"}).graph("body");
        models::set_type(body->add_input(), "turn", kTypeInt64, {});
        models::set_type(body->add_input(), "going", kTypeBool, {});
        for (const char* name : {"counter", "time"}) models::set_type(body->add_input(), name, onnx::TensorProto::INT32, {});
        for (const char* name : {"h", "c"}) models::set_type(body->add_input(), name, 1, {"2", "2"});
        models::add_node(body, "Add", {"counter", "one"}, {"next_counter"});
        models::add_node(body, "Add", {"time", "one"}, {"next_time"});
        models::add_node(body, "Less", {"next_counter", "times"}, {"counts"});
        models::add_node(body, "Less", {"next_time", "times"}, {"lasts"});
        models::add_node(body, "And", {"counts", "lasts"}, {"goes"});
        models::add_node(body, "Gather", {"steps", "time"}, {"row"}).set("axis", 0);
        models::add_node(body, "Concat", {"row", "h"}, {"given"}).set("axis", 1);
        models::add_node(body, "MatMul", {"given", "kernel"}, {"product"});
        models::add_node(body, "Add", {"product", "bias"}, {"gates"});
        models::add_node(body, "Split", {"gates"}, {"i", "j", "f", "o"}).set("axis", 1);
        models::add_node(body, "Add", {"f", "forget"}, {"kept"});
        for (const char* gate : {"kept", "i", "o"}) models::add_node(body, "Sigmoid", {gate}, {std::string(gate) + "_open"});
        models::add_node(body, "Tanh", {"j"}, {"new"});
        models::add_node(body, "Mul", {"i_open", "new"}, {"added"});
        models::add_node(body, "Mul", {"kept_open", "c"}, {"left"});
        models::add_node(body, "Add", {"left", "added"}, {"next_c"});
        models::add_node(body, "Tanh", {"next_c"}, {"shown"});
        models::add_node(body, "Mul", {"o_open", "shown"}, {"next_h"});
        models::add_node(body, "Identity", {"next_h"}, {"output"});
        models::set_type(body->add_output(), "goes", kTypeBool, {});
        for (const char* name : {"next_counter", "next_time"}) models::set_type(body->add_output(), name, onnx::TensorProto::INT32, {});
        for (const char* name : {"next_h", "next_c", "output"}) models::set_type(body->add_output(), name, 1, {"2", "2"});
        model.node("Transpose", {"all"}, {"y"}).set("perm", std::vector<std::int64_t>{1, 0, 2});
        model.output("y").output("h_end").output("at", {}, onnx::TensorProto::INT32);
        return model;
    };
    const auto check = [&](const Graph& graph, const Tensor& x) {
        const Tensor kernel = graph.value("kernel")->data, bias = graph.value("bias")->data;
        Tensor h = zeros({2, units}), c = h;
        std::vector<Tensor> all;
        for (std::int64_t t = 0; t < x.size(1); ++t) {
            const auto gates = chunk(matmul(cat({select(x, 1, t), h}, 1), kernel) + bias, 4, 1);
            c = sigmoid(gates[2] + 1) * c + sigmoid(gates[0]) * tanh(gates[1]);
            h = sigmoid(gates[3]) * tanh(c);
            all.push_back(h);
        }
        const std::vector<Tensor> y = graph({x});
        check_close(y[0], stack(all, 1));
        check_close(y[1], h);
        CHECK(y[2].item<std::int64_t>() == x.size(1));
        check_close(graph.run({{"x", x}}, {"y"})[0], y[0]);
    };
    const Graph named = load_onnx_from_memory(model_of("time").bytes());
    INFO(named.str());
    CHECK(to_string(Attribute(named.outputs()[0].value->shape)) == "(2, time, 2)");
    for (const int times : {1, 5, 50}) check(named, randn({2, times, inputs}));
    for (const char* times : {"4", "50"}) {  // few turns are written out, more are not
        const Graph graph = load_onnx_from_memory(model_of(times).bytes());
        check(graph, randn({2, std::atoi(times), inputs}));
        if (std::atoi(times) == 50) CHECK(graph.nodes().size() < 20);
    }
}

TEST_CASE("recurrent layers, of a fixed length and of any") {
    manual_seed(3);
    nn::LSTM lstm(3, 4, {.num_layers = 1});
    // PyTorch's gates are i, f, g, o, ONNX's i, o, f, g.
    const auto rows = [](const Tensor& x) { return cat({x.narrow(0, 0, 4), x.narrow(0, 12, 4), x.narrow(0, 4, 8)}, 0).detach(); };
    const auto named = lstm.named_parameters();
    const auto find = [&](const std::string& part) {
        for (const auto& [name, p] : named) {
            if (name.find(part) != std::string::npos) return p;
        }
        FAIL("no parameter " << part);
        return Tensor();
    };
    for (const std::string time : {"5", "time", "40"}) {
        Model model;
        model.input("x", {time, "2", "3"});
        model.weight("w", rows(find("weight_ih")).unsqueeze(0)).weight("r", rows(find("weight_hh")).unsqueeze(0));
        model.weight("b", cat({rows(find("bias_ih")), rows(find("bias_hh"))}, 0).unsqueeze(0));
        model.node("LSTM", {"x", "w", "r", "b"}, {"y", "h", "c"}).set("hidden_size", 4);
        model.output("y").output("h").output("c");
        const Graph graph = load_onnx_from_memory(model.bytes());
        const auto is_scan = [](const auto& node) { return node->op() == "scan"; };
        CHECK(std::any_of(graph.nodes().begin(), graph.nodes().end(), is_scan) == (time != "5"));  // few steps are written out
        for (const int steps : {5, 40, 7}) {
            if (time != "time" && time != std::to_string(steps)) continue;
            const Tensor x = randn({steps, 2, 3});
            const auto [y, state] = lstm(x);
            check_close(first(graph, {x}), y.unsqueeze(1), 1e-5);
            check_close(graph({x})[2].reshape({2, 4}), state.c.reshape({2, 4}), 1e-5);
        }
    }
}

TEST_CASE("sizes that a model needs to be multiples are, and come back from a file so") {
    Model model;  // halves three times and doubles again, as networks that find things in images do
    model.input("x", {"batch", "1", "height", "width"});
    std::string from = "x";
    for (const std::string to : {"h2", "h4", "h8"}) {
        model.node("MaxPool", {from}, {to}).set("kernel_shape", std::vector<std::int64_t>{2, 2}).set("strides", std::vector<std::int64_t>{2, 2});
        from = to;
    }
    model.node("Constant", {}, {"scales"}).set("value", tensor({1.0, 1.0, 8.0, 8.0}, float32));
    model.node("Resize", {"h8", "", "scales"}, {"large"})
        .set("mode", "nearest")
        .set("coordinate_transformation_mode", "asymmetric")
        .set("nearest_mode", "floor");
    model.node("Add", {"x", "large"}, {"y"});
    model.output("y");
    const auto wanted = [](const Tensor& x) { return x + interpolate(max_pool2d(x, 8), {.scale_factor = {8.0, 8.0}}); };
    const Graph graph = load_onnx_from_memory(model.bytes());
    CHECK(to_string(Attribute(graph.inputs()[0]->shape)) == "(batch, 1, 8*height, 8*width)");
    const Tensor x = randn({2, 1, 24, 40});
    check_close(first(graph, {x}), wanted(x));
    const files::TemporaryFolder folder;
    save_onnx((folder.path() / "saved.onnx").string(), graph);
    const Graph again = load_onnx((folder.path() / "saved.onnx").string());
    CHECK(again.inputs()[0]->shape == graph.inputs()[0]->shape);
    check_close(first(again, {x}), wanted(x));
    FAILS(ShapeError, "the graph was made for (batch, 1, 8*height, 8*width)", graph({randn({2, 1, 28, 40})}));
}

TEST_CASE("a model is read without the memory of its results") {
    Model model;  // images whose sizes can be divided by 8, in 64 channels between the ends
    model.input("x", {"batch", "1", "height", "width"});
    model.weight("repeats", tensor({1, 64, 1, 1}));
    model.node("Tile", {"x", "repeats"}, {"wide"});
    model.node("MaxPool", {"wide"}, {"small"}).set("kernel_shape", std::vector<std::int64_t>{8, 8}).set("strides", std::vector<std::int64_t>{8, 8});
    model.weight("scales", tensor({1.0, 1.0, 8.0, 8.0}, float32));
    model.node("Resize", {"small", "", "scales"}, {"large"})
        .set("mode", "nearest")
        .set("coordinate_transformation_mode", "asymmetric")
        .set("nearest_mode", "floor");
    model.node("Add", {"wide", "large"}, {"y"});
    model.output("y");
    reset_peak_memory();
    const std::int64_t before = memory_stats().peak_bytes;
    const Graph graph = load_onnx_from_memory(model.bytes());
    CHECK(memory_stats().peak_bytes - before <= 4 << 20);  // one result of 224 x 224 pixels would take 12 MiB
    CHECK(to_string(Attribute(graph.inputs()[0]->shape)) == "(batch, 1, 8*height, 8*width)");
    const Tensor x = randn({2, 1, 16, 24});
    check_close(first(graph, {x}), x.expand({2, 64, 16, 24}) + interpolate(max_pool2d(x, 8), {.scale_factor = {8.0, 8.0}}));

    Model huge;
    huge.input("x", {"1048576", "1048576", "1024"});
    huge.node("Relu", {"x"}, {"y"});
    huge.output("y");
    FAILS(OutOfMemory, "no memory for the input x of shape (1048576, 1048576, 1024)", load_onnx_from_memory(huge.bytes()));
    Model large;  // 64 GiB
    large.input("x", {"131072", "131072"});
    large.node("Relu", {"x"}, {"y"});
    large.node("Transpose", {"y"}, {"z"});
    large.output("z");
    CHECK(load_onnx_from_memory(large.bytes()).outputs()[0].value->shape == std::vector<SymInt>{131072, 131072});
    CHECK(memory_stats().peak_bytes - before <= 4 << 20);
}

TEST_CASE("an example tells a size that data decides on, where a model needs it") {
    Model model;  // takes as many positive elements as there are weights
    model.input("x", {"200000"}).weight("zero", full({}, 0.0f)).weight("w", tensor({1, 2, 3}, float32));
    model.node("Greater", {"x", "zero"}, {"is_positive"});
    model.node("NonZero", {"is_positive"}, {"places"});
    model.node("Transpose", {"places"}, {"rows"});
    model.node("GatherND", {"x", "rows"}, {"chosen"});
    model.node("Add", {"chosen", "w"}, {"y"});
    model.output("y");
    FAILS(ShapeError, "load_onnx: ", load_onnx_from_memory(model.bytes()));
    Tensor x = zeros({200'000});
    for (const int place : {70'000, 100'000, 150'000}) x[place].fill_(place);
    const Graph graph = load_onnx_from_memory(model.bytes(), {.examples = {{"x", x}}});
    check_close(first(graph, {x}), tensor({70'001.0f, 100'002.0f, 150'003.0f}));
}

TEST_CASE("dimensions without a name of their own are one where they need to be, or are told") {
    Model model;
    model.input("x", {"", "3"}).input("y", {"?", "3"});
    model.node("Add", {"x", "y"}, {"z"});
    model.output("z");
    FAILS(ShapeError,
          "x_0 = 2, y_0 = 2 or a little more, and the other sizes tried do not fit either: a dimension that must have a certain size is told it in "
          "LoadOnnxOptions::sizes",
          load_onnx_from_memory(model.bytes()));
    const Graph graph = load_onnx_from_memory(model.bytes(), {.examples = {{"x", ones({2, 3})}, {"y", ones({2, 3})}}});
    const Tensor a = randn({5, 3}), b = randn({5, 3});
    check_close(first(graph, {a, b}), a + b);
    const Graph told = load_onnx_from_memory(model.bytes(), {.sizes = {{"x_0", 4}, {"y_0", 4}}});
    CHECK(to_string(Attribute(told.inputs()[0]->shape)) == "(4, 3)");
}

TEST_CASE("sequences are their tensors") {
    Model model;
    model.input("x", {"6"});
    model.node("Constant", {}, {"sizes"}).set("value", ints({1, 2, 3}));
    model.node("SplitToSequence", {"x", "sizes"}, {"parts"});
    model.node("Constant", {}, {"last"}).set("value", full({}, -1, int64));
    model.node("SequenceAt", {"parts", "last"}, {"tail"});
    model.node("SequenceInsert", {"parts", "tail"}, {"more"});
    model.node("ConcatFromSequence", {"more"}, {"y"}).set("axis", 0);
    model.output("y");
    const Tensor x = arange(6, float32);
    check_close(first(load_onnx_from_memory(model.bytes()), {x}), cat({x, x.narrow(0, 3, 3)}));
}

TEST_CASE("sequences that a loop of many turns appends to are joined, and picked from") {
    Model model;
    model.input("x", {"time", "2"}).weight("zero", full({}, 0, int64)).weight("last", full({}, -1, int64)).weight("none", zeros({2}));
    model.node("Shape", {"x"}, {"shape"});
    model.node("Gather", {"shape", "zero"}, {"times"});
    model.node("SequenceEmpty", {}, {"empty"});
    auto* body = model.node("Loop", {"times", "", "empty", "none"}, {"sums", "end", "rows"}).graph("body");
    models::set_type(body->add_input(), "i", kTypeInt64, {});
    models::set_type(body->add_input(), "going", kTypeBool, {});
    body->add_input()->set_name("sequence");
    models::set_type(body->add_input(), "h", 1, {"2"});
    models::add_node(body, "Gather", {"x", "i"}, {"row"});
    models::add_node(body, "Add", {"h", "row"}, {"next"});
    models::add_node(body, "SequenceInsert", {"sequence", "next"}, {"longer"});
    models::add_node(body, "Identity", {"going"}, {"goes"});
    models::set_type(body->add_output(), "goes", kTypeBool, {});
    body->add_output()->set_name("longer");
    models::set_type(body->add_output(), "next", 1, {"2"});
    models::set_type(body->add_output(), "row", 1, {"2"});
    const Model appending = model;
    model.node("ConcatFromSequence", {"sums"}, {"columns"}).set("axis", 1).set("new_axis", 1);
    model.node("ConcatFromSequence", {"sums"}, {"flat"}).set("axis", 0);
    model.node("SequenceAt", {"sums", "last"}, {"at_end"});
    model.node("SequenceLength", {"sums"}, {"length"});
    model.output("columns").output("flat").output("at_end").output("length", {}, kTypeInt64).output("end").output("rows");
    const Graph graph = load_onnx_from_memory(model.bytes());
    INFO(graph.str());
    for (const int times : {1, 4, 50}) {
        const Tensor x = randn({times, 2}), sums = cumsum(x, 0);
        const std::vector<Tensor> y = graph({x});
        check_close(y[0], sums.t(), 1e-5);
        check_close(y[1], sums.reshape({-1}), 1e-5);
        check_close(y[2], sums[-1], 1e-5);
        CHECK(y[3].item<std::int64_t>() == times);
        check_close(y[4], sums[-1], 1e-5);
        check_close(y[5], x);
    }
    const auto refused = [&](const std::string& text, const auto& change) {
        Model other = appending;
        change(other);
        FAILS_IN(ValueError, "load_onnx: ", text, load_onnx_from_memory(other.bytes()));
    };
    refused("the output sums is a sequence that a loop of many turns made", [](Model& m) { m.output("sums"); });
    refused("its operand 0 is a sequence that a loop of many turns made", [](Model& m) {
        m.node("SequenceErase", {"sums"}, {"y"});
        m.output("y");
    });
    refused("it carries a sequence or an optional, and runs too long to be written out", [](Model& m) {  // and does more than append
        auto* nodes = m.proto.mutable_graph()->mutable_node();
        for (auto& node : *nodes) {
            if (node.op_type() == "Loop") models::add_node(node.mutable_attribute(0)->mutable_g(), "SequenceLength", {"longer"}, {"count"});
        }
        m.output("end");
    });
}

TEST_CASE("integers that Tapir has not are wider, and wrap as theirs do") {
    Model model;
    model.input("x", {"3"}, onnx::TensorProto::INT8);
    model.node("Add", {"x", "x"}, {"y"});
    model.node("Cast", {"y"}, {"z"}).set("to", onnx::TensorProto::UINT16);
    model.output("y").output("z");
    const Graph graph = load_onnx_from_memory(model.bytes());
    const Tensor x = tensor({100, -100, 5}, int32);
    CHECK(equal(first(graph, {x}), tensor({-56, 56, 10}, int32)));
    CHECK(equal(graph({x})[1], tensor({65480, 56, 10}, int32)));
}

TEST_CASE("weights may be in files beside the model, not elsewhere") {
    const files::TemporaryFolder folder;
    const Tensor w = randn({3});
    Model model;
    model.input("x", {"3"}).weight("w", w);
    model.node("Mul", {"x", "w"}, {"y"});
    model.output("y");
    auto* proto = model.proto.mutable_graph()->mutable_initializer(0);
    const std::string bytes = "...." + proto->raw_data();
    proto->clear_raw_data();
    proto->set_data_location(onnx::TensorProto::EXTERNAL);
    const auto set = [&](const std::string& location, const std::string& offset, const std::string& length = "12") {
        proto->clear_external_data();
        for (const auto& [key, value] : {std::pair{std::string("location"), location}, {"offset", offset}, {"length", length}}) {
            auto* entry = proto->add_external_data();
            entry->set_key(key);
            entry->set_value(value);
        }
        return folder.write("model.onnx", model.bytes()).string();
    };
    std::filesystem::create_directories(folder.path() / "inside");
    folder.write("inside/weights.bin", bytes);
    const Tensor x = randn({3});
    check_close(load_onnx(set("inside/weights.bin", "4"))({x})[0], x * w);
    const auto refused = [&](const std::string& path, const std::string& text) {
        INFO(text);
        FAILS_IN(FileError, "load_onnx: ", text, load_onnx(path));
    };
    refused(set("inside/weights.bin", "8"), "is at 8 bytes in the file inside/weights.bin, which has 16 bytes");
    refused(set("inside/weights.bin", "18446744073709551615"), "which has 16 bytes");
    refused(set("inside/weights.bin", "-1"), "says \"-1\" where a number should be");
    refused(set("inside/weights.bin", "4", "13"), "has 13 bytes of data; by its shape 12");
    refused(set("../weights.bin", "4"), "is in the file ../weights.bin, outside the model's folder");
    refused(set("inside/../../weights.bin", "4"), "outside the model's folder");
    refused(set("/etc/passwd", "0"), "which is no path relative to the model's folder");
    refused(set("", "0"), "which is no path relative to the model's folder");
    refused(set("missing.bin", "0"), "missing.bin");
    std::filesystem::create_symlink("/etc/passwd", folder.path() / "link");
    refused(set("link", "0"), "outside the model's folder");
    refused(set("inside", "0"), "inside");
}

TEST_CASE("what is no model is refused") {
    const files::TemporaryFolder folder;
    FAILS_IN(FileError, "load_onnx: ", "missing.onnx", load_onnx((folder.path() / "missing.onnx").string()));
    FAILS_IN(FileError, "load_onnx: ", "it is no ONNX model, or is damaged", load_onnx(folder.write("text.onnx", "not a model").string()));
    FAILS_IN(FileError, "load_onnx: ", "it has no graph", load_onnx_from_memory(""));
    const auto large = folder.write("large.onnx", "");
    std::filesystem::resize_file(large, std::uintmax_t{1} << 31);  // takes no room
    FAILS_IN(FileError, "load_onnx: ", "is larger than a model can be, 2 GiB", load_onnx(large.string()));
    const auto refused = [](const std::string& text, const auto& change) {
        INFO(text);
        Model model = perceptron(ones({5, 4}), ones({5}), ones({5, 2}));
        change(model.proto);
        FAILS_IN(FileError, "load_onnx: ", text, load_onnx_from_memory(model.bytes()));
    };
    refused("its IR version is 1; 3 is the oldest", [](auto& proto) { proto.set_ir_version(1); });
    refused("it names no opset", [](auto& proto) { proto.clear_opset_import(); });
    refused("has 80 bytes of data; 4000000000000 elements of FLOAT have 16000000000000",
            [](auto& proto) { proto.mutable_graph()->mutable_initializer(0)->set_dims(0, 1'000'000'000'000); });
    refused("is larger than any tensor can be", [](auto& proto) {
        for (int i = 0; i < 2; ++i) proto.mutable_graph()->mutable_initializer(0)->set_dims(i, 1'000'000'000'000);
    });
    refused("has a dimension of size -4", [](auto& proto) { proto.mutable_graph()->mutable_initializer(0)->set_dims(1, -4); });
    refused("has 20 dimensions; tensors have up to 8", [](auto& proto) {
        for (int i = 0; i < 18; ++i) proto.mutable_graph()->mutable_initializer(0)->add_dims(1);
    });
    refused("the initializer w1 is there twice", [](auto& proto) { *proto.mutable_graph()->add_initializer() = proto.graph().initializer(0); });
    refused("takes h, which nothing before it makes", [](auto& proto) { proto.mutable_graph()->mutable_node(0)->set_output(0, "other"); });
    refused("nothing makes the output z", [](auto& proto) { proto.mutable_graph()->mutable_output(0)->set_name("z"); });
    refused("has strings, which are not supported",
            [](auto& proto) { proto.mutable_graph()->mutable_initializer(0)->set_data_type(onnx::TensorProto::STRING); });
}

TEST_CASE("a damaged model is an error or a graph, never more") {
    const std::string good = perceptron(ones({5, 4}), ones({5}), ones({5, 2})).bytes();
    int errors = 0, graphs = 0;
    const auto attempt = [&](const std::string& bytes) {
        try {
            const Graph graph = load_onnx_from_memory(bytes);
            graph.check();
            ++graphs;
        } catch (const Error&) {  // of any kind: a change may ask for an op or a shape that cannot be
            ++errors;
        }
    };
    for (std::size_t size = 0; size < good.size(); size += 3) attempt(good.substr(0, size));
    CHECK(graphs == 0);
    for (std::size_t at = 0; at < good.size(); ++at) {
        for (const int change : {1, 16, 128}) {
            std::string bytes = good;
            bytes[at] = static_cast<char>(bytes[at] ^ change);
            attempt(bytes);
        }
    }
    CHECK(errors > 500);
    CHECK(graphs > 100);  // in a weight, a name, ...
}

TEST_CASE("slices come back with the bounds that were said", "[onnx]") {
    const files::TemporaryFolder folder;
    const std::string path = (folder.path() / "model.onnx").string();
    for (const Slice& range :
         {Slice(0, 100), Slice(-100, None), Slice(100, None), Slice(0, -100), Slice(0, 1000, 2), Slice(-3, None), Slice(2, -2)}) {
        INFO(range.start << ":" << range.stop << ":" << range.step);
        const auto fn = [&](const Tensor& x) { return x.slice(0, range) * 2; };
        save_onnx(path, trace(fn, {{"x", randn({10, 2}), {"n"}}}));
        const Graph graph = load_onnx(path);
        for (const int n : {1, 3, 10, 101, 250}) {
            const Tensor x = randn({n, 2});
            CHECK(graph({x})[0].equal(fn(x)));
        }
    }
}

TEST_CASE("sizes of Resize are rounded as float32 products", "[onnx]") {  // as onnxruntime gives them
    for (const auto& [size, scale, wanted] :
         {std::tuple{10, 0.7F, 7}, std::tuple{20, 0.7F, 14}, std::tuple{100, 2.3F, 230}, std::tuple{10, 0.25F, 2}}) {
        INFO(size << " by " << scale);
        Model model;
        model.input("x", {"1", "1", std::to_string(size), "2"});
        model.weight("roi", zeros({0})).weight("scales", tensor({1.0F, 1.0F, scale, 1.0F}));
        model.node("Resize", {"x", "roi", "scales"}, {"y"}).set("mode", std::string("linear"));
        model.output("y", {"", "", "", ""});
        CHECK(first(load_onnx_from_memory(model.bytes()), {rand({1, 1, size, 2})}).size(2) == wanted);
    }
}

// What onnxruntime gives.
TEST_CASE("what is too much of a ConvTranspose goes from the beginning, and an old Resize takes the next pixel") {
    Model transposed;
    transposed.input("x", {"1", "1", "3"}).weight("w", tensor({1.0f, 10.0f, 100.0f}).reshape({1, 1, 3}));
    transposed.node("ConvTranspose", {"x", "w"}, {"y"})
        .set("output_shape", std::vector<std::int64_t>{8})
        .set("strides", std::vector<std::int64_t>{3});
    transposed.output("y");
    const Tensor y = first(load_onnx_from_memory(transposed.bytes()), {tensor({1.0f, 2.0f, 3.0f}).reshape({1, 1, 3})});
    check_close(y.reshape({8}), tensor({10.0f, 100.0f, 2.0f, 20.0f, 200.0f, 3.0f, 30.0f, 300.0f}));
    Model smaller(10);
    smaller.input("x", {"1", "1", "2", "4"}).weight("scales", tensor({1.0f, 1.0f, 0.6f, 0.6f}));
    smaller.node("Resize", {"x", "scales"}, {"y"}).set("mode", "nearest");
    smaller.output("y");
    const Tensor z = first(load_onnx_from_memory(smaller.bytes()), {(arange(8, float32) + 1).reshape({1, 1, 2, 4})});
    check_close(z.reshape({2}), tensor({1.0f, 3.0f}));
}
