// What save_onnx() writes, as protobuf: names, shapes, doc strings, constants, external data, metadata; and what it refuses. That other
// runtimes compute the same is tests/onnx's part.
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "../../../fails.h"
#include "../../../nn/data/files.h"
#include "../unchecked.h"
#include "tapir/autograd/op.h"
#include "tapir/autograd/op_form.h"
#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/graph/grad.h"
#include "tapir/autograd/trace/onnx/onnx.h"
#include "tapir/autograd/trace/onnx/proto_impl.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/ops/onnx_form.h"
#include "tapir/tapir.h"

using namespace tapir;
using Catch::Matchers::Contains;

namespace {

struct Saved {
    files::TemporaryFolder folder;
    std::string path = (folder.path() / "model.onnx").string();
    ::onnx::ModelProto model;

    explicit Saved(const Graph& graph, const OnnxOptions& options = {}) {
        save_onnx(path, graph, options);
        std::ifstream file(path, std::ios::binary);
        REQUIRE(model.ParseFromIstream(&file));
    }
    std::vector<std::string> ops() const {
        std::vector<std::string> list;
        for (const auto& node : model.graph().node()) list.push_back(node.op_type());
        return list;
    }
    const ::onnx::NodeProto& node(const std::string& op) const {
        for (const auto& each : model.graph().node()) {
            if (each.op_type() == op) return each;
        }
        FAIL("no " << op);
        throw;
    }
    const ::onnx::TensorProto& initializer(const std::string& name) const {
        for (const auto& each : model.graph().initializer()) {
            if (each.name() == name) return each;
        }
        FAIL("no initializer " << name);
        throw;
    }
};

std::vector<std::string> sizes_of(const ::onnx::ValueInfoProto& value) {
    std::vector<std::string> sizes;
    for (const auto& dim : value.type().tensor_type().shape().dim()) {
        sizes.push_back(dim.has_dim_param() ? dim.dim_param() : dim.has_dim_value() ? std::to_string(dim.dim_value()) : "?");
    }
    return sizes;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("a model keeps names, named dimensions, weights and lines", "[onnx]") {
    nn::Sequential net(nn::Linear(3, 4), relu, nn::Linear(4, 2));
    const std::vector<Tensor> parameters = net.parameters();  // which have their names from now on
    const Graph graph = trace(net, {{"x", ones({5, 3}), {"batch"}}}, {.outputs = {"scores"}});
    const Saved saved(graph, {.metadata = {{"author", "me"}}, .graph_name = "net", .doc = "a network"});
    const auto& model = saved.model;
    CHECK(model.producer_name() == "Tapir");
    CHECK(model.doc_string() == "a network");
    CHECK(model.ir_version() == 8);
    REQUIRE(model.opset_import_size() == 1);
    CHECK(model.opset_import(0).version() == 17);
    REQUIRE(model.metadata_props_size() == 1);
    CHECK(model.metadata_props(0).key() == "author");
    CHECK(model.metadata_props(0).value() == "me");
    CHECK(model.graph().name() == "net");
    REQUIRE(model.graph().input_size() == 1);
    CHECK(model.graph().input(0).name() == "x");
    CHECK(sizes_of(model.graph().input(0)) == Names{"batch", "3"});
    REQUIRE(model.graph().output_size() == 1);
    CHECK(model.graph().output(0).name() == "scores");
    CHECK(sizes_of(model.graph().output(0)) == Names{"batch", "2"});
    CHECK(saved.ops() == Names{"Gemm", "Relu", "Gemm"});
    CHECK(model.graph().node(2).output(0) == "scores");
    CHECK(model.graph().node(0).doc_string().ends_with(" 0"));  // the module
    std::set<std::string> names;
    for (const auto& node : model.graph().node()) CHECK(names.insert(node.name()).second);
    const auto& weight = saved.initializer("0.weight");
    CHECK(weight.data_type() == ::onnx::TensorProto::FLOAT);
    REQUIRE(weight.dims_size() == 2);
    CHECK(weight.dims(0) == 4);
    const Tensor expected = parameters[0].detach();
    REQUIRE(weight.raw_data().size() == 48);
    CHECK(std::memcmp(weight.raw_data().data(), expected.raw_data(), 48) == 0);
}

TEST_CASE("each node says the line that it comes from", "[onnx]") {
    const int line = __LINE__ + 1;
    const Graph graph = trace([](const Tensor& x) { return exp(x) + 1; }, {{"x", ones({2})}});
    const Saved saved(graph);
    for (const auto& node : saved.model.graph().node()) {
        CHECK_THAT(node.doc_string(), Contains("export_test.cpp:" + std::to_string(line)));
    }
    CHECK(saved.ops() == Names{"Exp", "Add"});
}

TEST_CASE("formulas of named dimensions are computed in the model", "[onnx]") {
    const Graph graph =
        trace([](const Tensor& x) { return zeros({x.size(0) * 2 + 1, x.size(1)}) + x.sum(); }, {{"x", ones({2, 3}), {"batch", "time"}}});
    const Saved saved(graph);
    const auto ops = saved.ops();
    const auto count = [&](const char* op) { return std::count(ops.begin(), ops.end(), op); };
    CHECK(count("Shape") == 2);
    CHECK(count("Mul") == 1);
    CHECK(count("Concat") == 1);
    CHECK(sizes_of(saved.model.graph().output(0)) == Names{"2*batch + 1", "time"});
}

TEST_CASE("diagonals of matrices whose size is a named dimension come back", "[onnx]") {
    const files::TemporaryFolder folder;
    const std::string path = (folder.path() / "model.onnx").string();
    const Graph graph = trace([](const Tensor& x) -> std::vector<Tensor> { return {diagonal(x), diagonal(x, 1), diagonal(x, -2)}; },
                              {{"x", ones({4, 4}), {"n", "n"}}});
    save_onnx(path, graph);
    const Graph back = load_onnx(path);
    const Tensor x = arange(36, float32).reshape({6, 6});
    const std::vector<Tensor> y = back({x});
    CHECK(equal(y[0], diagonal(x)));
    CHECK(equal(y[1], diagonal(x, 1)));
    CHECK(equal(y[2], diagonal(x, -2)));
}

TEST_CASE("a training step that clips does in a model what it does in the graph", "[onnx]") {
    manual_seed(1);
    for (const double p : {2.0, 3.0, static_cast<double>(INFINITY)}) {
        CAPTURE(p);
        nn::Linear net(4, 3);
        optim::Adam adam(net.parameters(), {.lr = 0.05});
        const auto step = [&](const Tensor& x, const Tensor& y) {
            adam.zero_grad();
            Tape tape;
            const Tensor loss = cross_entropy(net(x), y);
            tape.backward(loss);
            const Tensor norm = optim::clip_grad_norm_(net.parameters(), 0.1, p);
            optim::clip_grad_value_(net.parameters(), 0.02);
            adam.step();
            return std::pair{loss, norm};
        };
        const Tensor x = randn({6, 4}), y = randint(0, 3, {6});
        const Graph graph = trace(step, {{"x", x, {"n"}}, {"y", y, {"n"}}}, {.outputs = {"loss", "norm"}});
        const Saved saved(graph);
        const Graph model = load_onnx(saved.path);
        const Tensor a = randn({5, 4}), b = randint(0, 3, {5});
        const std::vector<Tensor> got = model.run({{"x", a}, {"y", b}}, {"loss", "norm", "weight.updated"});
        const std::vector<Tensor> wanted = graph.run({{"x", a}, {"y", b}}, {});
        CHECK(allclose(got[0], wanted[0], 1e-5, 1e-6));
        CHECK(got[1].dtype() == float64);
        CHECK(allclose(got[1], wanted[1], 1e-5, 1e-6));
        CHECK(allclose(got[2], net.weight.detach(), 1e-5, 1e-6));
    }
}

TEST_CASE("large weights can be in a file beside the model", "[onnx]") {
    const Tensor w = randn({64, 64}).requires_grad_(), b = randn({64}).requires_grad_();
    const Graph graph = trace([&](const Tensor& x) { return matmul(x, w) + b; }, {{"x", ones({2, 64})}}, {.parameters = {{"w", w}, {"b", b}}});
    const Saved saved(graph, {.external_data = true});
    const auto& large = saved.initializer("w");
    CHECK(large.data_location() == ::onnx::TensorProto::EXTERNAL);
    CHECK(large.raw_data().empty());
    CHECK(saved.initializer("b").raw_data().size() == 256);  // small
    std::map<std::string, std::string> where;
    for (const auto& entry : large.external_data()) where[entry.key()] = entry.value();
    CHECK(where["location"] == "model.onnx.data");
    CHECK(where["length"] == std::to_string(64 * 64 * 4));
    CHECK(std::stoll(where["offset"]) % 4096 == 0);
    std::ifstream file(saved.path + ".data", std::ios::binary);
    file.seekg(std::stoll(where["offset"]));
    std::string bytes(64 * 64 * 4, '\0');
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    CHECK(file.gcount() == 64 * 64 * 4);
    CHECK(std::memcmp(bytes.data(), w.detach().raw_data(), bytes.size()) == 0);
}

TEST_CASE("what the program writes to becomes outputs", "[onnx]") {
    nn::BatchNorm1d norm(3);
    const Graph graph = trace(norm, {{"x", randn({4, 3})}}, {.parameters = {{"running_mean", norm.running_mean}, {"running_var", norm.running_var}}});
    const Saved saved(graph);
    Names names;
    for (const auto& output : saved.model.graph().output()) names.push_back(output.name());
    CHECK(std::count(names.begin(), names.end(), "running_mean.updated") == 1);
    CHECK(std::count(names.begin(), names.end(), "running_var.updated") == 1);
}

TEST_CASE("an input or a parameter can be an output, and one value two", "[onnx]") {
    const Graph graph = trace(
        [](const Tensor& x) {
            const Tensor y = x * 2;
            return std::vector<Tensor>{x, y, y};
        },
        {{"x", ones({2})}}, {.outputs = {"same", "double", "again"}});
    const Saved saved(graph);
    CHECK(saved.ops() == Names{"Mul", "Identity", "Identity"});
    CHECK(saved.node("Mul").output(0) == "double");
}

TEST_CASE("control flow is If, Loop and Scan", "[onnx]") {
    const Tensor w = ones({3, 3});
    const Graph graph = trace(
        [&](const Tensor& x) {
            const Tensor y = cond(x.sum() > 0, [&] { return x * 2; }, [&] { return matmul(x, w); });
            return while_loop([](const Tensor& i, const Tensor&) { return i < 3; },
                              [](const Tensor& i, const Tensor& h) { return std::pair{i + 1, h * 2}; }, {tensor(0), y});
        },
        {{"x", ones({2, 3})}});
    const Saved saved(graph);
    const auto& branch = saved.node("If");
    REQUIRE(branch.attribute_size() == 2);
    CHECK(branch.attribute(0).name() == "then_branch");
    CHECK(branch.attribute(0).g().node(0).op_type() == "Mul");
    CHECK(branch.attribute(1).g().node(0).op_type() == "MatMul");
    CHECK(branch.attribute(1).g().input_size() == 0);  // what it uses is visible by name
    const auto& loop = saved.node("Loop");
    CHECK(loop.input(0).empty());
    CHECK(loop.attribute(0).g().input_size() == 4);   // iteration, condition, i, h
    CHECK(loop.attribute(0).g().output_size() == 3);  // condition, i, h
}

TEST_CASE("branches and bodies say what shapes they give", "[onnx]") {
    const auto step = [](const Tensor& h, const Tensor& x) {
        const Tensor end = while_loop([](const Tensor& z) { return z.norm() > 1.0; }, [](const Tensor& z) { return z * 0.7; }, {h + x})[0];
        const Tensor y = cond(x.sum() > 0, [&] { return end * 2; }, [&] { return end; });
        return std::pair{y, y};
    };
    const auto check = [](const Saved& saved, const Names& shape, const Names& flag) {
        const auto& body = saved.node("Scan").attribute(1).g();  // behind num_scan_inputs
        REQUIRE(body.output_size() == 2);
        for (const auto& value : body.input()) CHECK(value.type().tensor_type().has_shape());
        for (const auto& value : body.output()) CHECK(sizes_of(value) == shape);
        int parts = 0;
        for (const auto& node : body.node()) {
            for (const auto& attribute : node.attribute()) {
                if (!attribute.has_g()) continue;
                ++parts;
                const bool is_loop = node.op_type() == "Loop";
                REQUIRE(attribute.g().output_size() == (is_loop ? 2 : 1));
                if (is_loop) CHECK(sizes_of(attribute.g().output(0)) == flag);
                for (const auto& value : attribute.g().output()) CHECK(value.type().tensor_type().has_shape());
                CHECK(sizes_of(attribute.g().output(is_loop ? 1 : 0)) == shape);
            }
        }
        CHECK(parts == 3);
    };
    const TraceInput x{"x", ones({4, 2, 3}), {"time", "batch"}};
    check(Saved(trace([&](const Tensor& xs) { return scan(step, {zeros({xs.size(1), 3})}, {xs}).outputs[0]; }, {x})), {"batch", "3"}, {});
    // Sizes that depend on data have no names.
    const auto chosen = [&](const Tensor& xs) {
        const Tensor kept = xs[xs > 0];
        return scan(step, {kept * 0}, {stack({kept, kept * 2})}).outputs[0];
    };
    const Graph graph = trace(chosen, {{"x", tensor({1.0f, -2.0f, 3.0f}), {"n"}}});
    const Saved saved(graph);
    check(saved, {"?"}, {});
    CHECK(sizes_of(saved.model.graph().output(0)) == Names{"?", "?"});
    const Tensor other = tensor({1.0f, 2.0f, -1.0f, 0.5f});
    CHECK(allclose(load_onnx(saved.path)({other})[0], chosen(other)));
}

TEST_CASE("norms are those of float64 and of numbers, too", "[onnx]") {
    const auto norms = [](const Tensor& x) -> std::vector<Tensor> { return {norm(x), norm(x, 1), norm(x, 3)}; };
    for (const Tensor& x : {full({}, -3.0), full({}, -3.0, float64), tensor({3.0, -4.0}, float64)}) {
        const Saved saved(trace(norms, {{"x", x}}));
        const std::vector<Tensor> got = load_onnx(saved.path)({x}), wanted = norms(x);
        for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(allclose(got[i], wanted[i]));
        const auto ops = saved.ops();
        for (const char* missing : {"ReduceL1", "ReduceL2"})
            CHECK(std::count(ops.begin(), ops.end(), missing) == 0);  // onnxruntime has none of float64
    }
    CHECK(Saved(trace([](const Tensor& x) { return norm(x); }, {{"x", ones({3})}})).ops() == Names{"ReduceL2"});
}

TEST_CASE("what onnxruntime lacks of float64 is written in what it has", "[onnx]") {
    const auto fn = [](const Tensor& x) -> std::vector<Tensor> {
        return {cos(x),     tan(x), sinh(x), cosh(x),     asinh(x),      acosh(x),    atanh(x),
                digamma(x), elu(x), selu(x), softplus(x), logsigmoid(x), softsign(x), hardsigmoid(x)};
    };
    const Tensor x = tensor({0.5, 1e-9, -0.75, -2.3, 3.0, 1.0, -1.0, 700.0, -700.0, 1e200, -1e200, 0.0, INFINITY, -INFINITY, NAN}, float64);
    const Saved saved(trace(fn, {{"x", x}}));
    for (const std::string& op : saved.ops()) {
        const std::set<std::string> missing{"Cos",   "Tan", "Sinh", "Cosh",     "Asinh",    "Acosh",
                                            "Atanh", "Elu", "Selu", "Softplus", "Softsign", "HardSigmoid"};
        CHECK(missing.count(op) == 0);
    }
    const std::vector<Tensor> got = load_onnx(saved.path)({x}), wanted = fn(x);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        CAPTURE(i, got[i], wanted[i]);
        CHECK(allclose(got[i], wanted[i], 1e-10, 1e-14, true));
    }
}

TEST_CASE("counts of as many numbers as data says come back", "[onnx]") {
    const auto fn = [](const Tensor& x) -> std::vector<Tensor> { return {bincount(x, {}, 5), repeat_interleave(x, x + 1)}; };
    const Saved saved(trace(fn, {{"x", tensor({1, 2, 3}), {"n"}}}));
    const Graph graph = load_onnx(saved.path);
    for (const Tensor& x : {tensor({1, 2, 2, 7}), tensor({0, 0}), tensor({4}), zeros({0}, int64)}) {
        const std::vector<Tensor> got = graph({x}), wanted = fn(x);
        for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(equal(got[i], wanted[i]));
    }
}

TEST_CASE("all that cannot be written is refused at once, by line", "[onnx]") {
    const files::TemporaryFolder folder;
    const std::string path = (folder.path() / "model.onnx").string();
    const int line = __LINE__ + 3;
    const Graph graph = trace(
        [](const Tensor& x) {
            const Tensor y = adaptive_max_pool2d(x, {3, 3});
            return adaptive_avg_pool2d(x, {3, 5}).sum() + y.sum();
        },
        {{"x", ones({1, 1, 7, 8}), {"", "", "height"}}});
    try {
        save_onnx(path, graph);
        FAIL("written");
    } catch (const ValueError& error) {
        CHECK_THAT(error.what(), Contains("export_test.cpp"));
        CHECK_THAT(error.what(), Contains("save_onnx: these ops cannot be written as ONNX:"));
        CHECK_THAT(error.what(), Contains("max_pool (") && Contains("export_test.cpp:" + std::to_string(line)));
        CHECK_THAT(error.what(), Contains("avg_pool (") && Contains("export_test.cpp:" + std::to_string(line + 1)));
    }
    CHECK(!std::filesystem::exists(path));
}

namespace {

struct OfOps : Function<OfOps> {
    static Tensor forward(FunctionContext& context, const std::vector<Tensor>& x) {
        context.save({x[0]});
        return exp(x[0]) * 2;
    }
    static std::vector<Tensor> backward(FunctionContext& context, const std::vector<Tensor>& g) { return {g[0] * exp(context.saved(0)) * 2}; }
};
struct OfElements : Function<OfElements> {
    static Tensor forward(FunctionContext&, const std::vector<Tensor>& x) { return full({}, x[0].to_vector<double>()[0] * 3, x[0].dtype()); }
    static std::vector<Tensor> backward(FunctionContext&, const std::vector<Tensor>& g) { return {g[0] * 3}; }
};
struct WithSymbolic : Function<WithSymbolic> {
    static Tensor forward(FunctionContext&, const std::vector<Tensor>& x) { return full({}, x[0].to_vector<double>()[0] * 3, x[0].dtype()); }
    static std::vector<Tensor> backward(FunctionContext&, const std::vector<Tensor>& g) { return {g[0] * 3}; }
    static Tensor symbolic(const std::vector<Tensor>& x) { return sum(x[0]) * 3; }
};

}  // namespace

TEST_CASE("a custom function is written as its ops, or as its symbolic form", "[onnx]") {
    const auto traced = [](auto fn) { return trace(fn, {{"x", ones({1})}}); };
    CHECK(Saved(traced([](const Tensor& x) { return OfOps::apply({x}); })).ops() == Names{"Exp", "Mul", "Identity"});
    CHECK(Saved(traced([](const Tensor& x) { return WithSymbolic::apply({x}); })).ops() == Names{"ReduceSum", "Mul"});
    CHECK(WithSymbolic::apply({full({1}, 2.0)}).item() == 6);
    const int line = __LINE__ + 1;
    const auto call = [&] { traced([](const Tensor& x) { return OfElements::apply({x}); }); };
    try {
        call();
        FAIL("traced");
    } catch (const TapeError& error) {
        CHECK_THAT(error.what(), Contains("export_test.cpp:" + std::to_string(line)) || Contains("to_vector"));
    }
    const Graph gradient = traced([](const Tensor& x) {
        Tape tape;
        const Tensor leaf = x.clone().requires_grad_();
        return tape.gradient(OfOps::apply({leaf}).sum(), std::vector<Tensor>{leaf});
    });
    const auto ops = Saved(gradient).ops();
    CHECK(std::count(ops.begin(), ops.end(), "Exp") == 1);  // backward's; forward's leads to no output
}

TEST_CASE("versions that are not known, guards, and paths that cannot be written are refused", "[onnx]") {
    const Graph graph = trace([](const Tensor& x) { return x + 1; }, {{"x", ones({2})}});
    const files::TemporaryFolder folder;
    const std::string path = (folder.path() / "model.onnx").string();
    CHECK_THROWS_WITH(save_onnx(path, graph, {.opset = 16}), Contains("save_onnx: opset is to be 17 to 28, got 16"));
    CHECK_THROWS_WITH(save_onnx(path, graph, {.opset = 29}), Contains("got 29"));
    CHECK_THROWS_AS(save_onnx((folder.path() / "none" / "model.onnx").string(), graph), FileError);
    const Graph guarded =
        trace([](const Tensor& x) { return x.sum().item() > 0 ? x : -x; }, {{"x", ones({2})}}, {.reads = TraceOptions::Reads::guard});
    CHECK_THROWS_WITH(
        save_onnx(path, guarded),
        Contains("save_onnx: the graph holds for some values only, which ONNX cannot check:") && Contains("item (") && Contains("export_test.cpp"));
    CHECK(!std::filesystem::exists(path));
}

TEST_CASE("names that a model can have only once are refused; constants get others", "[onnx]") {
    const files::TemporaryFolder folder;
    const std::string path = (folder.path() / "model.onnx").string();
    const auto twice = [](const Tensor& x) { return x * 2; };
    const Graph state = trace(twice, {{"x", ones({2})}}, {.outputs = {"x"}});
    CHECK(state.run({{"x", ones({2})}}, {"x"})[0].equal(full({2}, 2.0)));  // a graph can have it
    CHECK_THROWS_WITH(save_onnx(path, state),
                      Contains("save_onnx: an input and an output have the name x, but in an ONNX model each value has one of its own"));
    CHECK_THROWS_AS(save_onnx(path, state), ValueError);
    const Tensor w = ones({2});
    const auto scaled = [&](const Tensor& x) { return x * w; };
    const Graph scale = trace(scaled, {{"x", ones({2})}}, {.outputs = {"w"}, .parameters = {{"w", w}}});
    CHECK_THROWS_WITH(save_onnx(path, scale), Contains("save_onnx: a parameter and an output have the name w"));
    Graph both = trace(scaled, {{"x", ones({2})}}, {.parameters = {{"w", w}}});
    both.add_parameter("x", ones({2}));
    CHECK_THROWS_WITH(save_onnx(path, both), Contains("save_onnx: an input and a parameter have the name x"));
    CHECK(!std::filesystem::exists(path));
    Graph constant = trace(scaled, {{"x", ones({2})}}, {.parameters = {{"w", w}}});
    constant.make_constant(constant.value("w"));
    constant.constants()[0]->name = "x";
    const Saved saved(constant);
    REQUIRE(saved.model.graph().initializer_size() == 1);
    CHECK(saved.model.graph().initializer(0).name() != "x");
    CHECK(saved.node("Mul").input(0) == "x");
    CHECK(saved.node("Mul").input(1) == saved.model.graph().initializer(0).name());
}

TEST_CASE("metadata that has a key twice is refused", "[onnx]") {
    const Graph graph = trace([](const Tensor& x) { return x + 1; }, {{"x", ones({2})}});
    const files::TemporaryFolder folder;
    const std::string path = folder.write("model.onnx", "what was there").string();
    const OnnxOptions options = {.external_data = true, .metadata = {{"author", "me"}, {"year", "2024"}, {"author", "you"}}};
    FAILS(ValueError, "save_onnx: the metadata has the key \"author\" twice", save_onnx(path, graph, options));
    CHECK(files::read_all(path) == "what was there");
    CHECK(!std::filesystem::exists(path + ".data"));
}

TEST_CASE("every op of the table says how it is written", "[onnx]") {
    // Those without: what is never seen itself, and constants of a trace.
    std::string missing;
    for (const OpInfo* op : all_ops()) {
        if (find_form(op->name) && !find_onnx(op->name)) missing += std::string(missing.empty() ? "" : " ") + op->name;
    }
    CHECK(missing == "");
}

TEST_CASE("texts that no program has made are refused") {
    const files::TemporaryFolder folder;
    const auto refused = [&](const char* why, const std::string& call) {
        INFO(call);
        const Graph graph = test::unchecked("input x: float32 ()\n%1: float32 () = " + call + "\noutput y = %1\n");
        try {
            save_onnx((folder.path() / "model.onnx").string(), graph);
            FAIL("it was written");
        } catch (const ValueError& error) {
            CHECK_THAT(error.what(), Contains("these ops cannot be written as ONNX") && Contains(why));
        }
    };
    const std::string none = "{\n    \n}", same = "{\n    input a: float32 ()\n    output o = a\n}";
    refused("it joins nothing", "cat(dim=0)");
    refused("it joins nothing", "stack(dim=0)");
    refused("its body is missing", "scan(x, carries=1, xs=1)");
    refused("1 carried along 1 others, by a graph with 0 inputs and 0 outputs", "scan(x, carries=1, xs=1, body=" + none + ")");
    refused("-1 carried", "scan(x, carries=-1, xs=1, body=" + same + ")");
    refused("a branch of it gives 0 of 1 results", "cond(x, then_branch=" + none + ", else_branch=" + none + ")");
    refused("its then_branch is missing", "cond(x)");
    refused("0 outputs of its condition", "while_loop(x, condition=" + none + ", body=" + same + ")");
    refused("0 carried", "while_loop(x, condition=" + same + ", body=" + none + ")");
    refused("needs number 0", "convolution()");
}

TEST_CASE("numbers of the program, buffers and weights are told apart when they come back", "[onnx]") {
    const Tensor mean = full({4}, 0.5F), w = full({4}, 2.0F).requires_grad_(), table = arange(4, float32);
    TraceOptions options;
    options.parameters = {{"mean", mean}, {"w", w}};
    const Graph graph =
        trace([&](const Tensor& x) { return layer_norm(x * 0.125, {4}) + 3 + table + (x - mean) * w; }, {{"x", ones({2, 4})}}, options);
    const Saved saved(graph);
    const Graph loaded = load_onnx(saved.path);
    INFO(loaded.str());
    REQUIRE(loaded.parameters().size() == 2);
    CHECK(loaded.value("w")->data.requires_grad());
    CHECK_FALSE(loaded.value("mean")->data.requires_grad());
    const Tensor x = randn({2, 4});
    CHECK(allclose(loaded({x})[0], graph({x})[0], 1e-5, 1e-6));
    // Of another producer all are weights.
    ::onnx::ModelProto other = saved.model;
    other.set_producer_name("other");
    const Graph theirs = load_onnx_from_memory(other.SerializeAsString());
    CHECK(theirs.parameters().size() > 2);
    for (const Graph::Value* parameter : theirs.parameters()) CHECK(parameter->data.requires_grad());
}

TEST_CASE("gradients stop in a model that comes back where they stopped before", "[onnx]") {
    const files::TemporaryFolder folder;
    const std::string path = (folder.path() / "model.onnx").string();
    const Tensor x = randn({4}).requires_grad_();
    const auto check = [&](const auto& fn) {
        const Graph graph = trace(fn, {{"x", x.detach(), {"n"}}});
        save_onnx(path, graph);
        const Graph back = load_onnx(path);
        INFO(back.str());
        Tape tape;
        const Tensor wanted = tape.gradient(fn(x), {x})[0];
        CHECK(allclose(grad(back, {"output"}, {"x"})({x.detach()}).back(), wanted));
    };
    check([](const Tensor& a) { return (a.detach() * a).sum(); });
    check([](const Tensor& a) { return ((a + (round(a) - a).detach()) * 3).sum(); });
    check([](const Tensor& a) { return exp(a - a.max().detach()).sum(); });
    check([](const Tensor& a) {
        const Tensor gate = [&] {
            const NoGradScope plain;
            return sigmoid(a);
        }();
        return (gate * a).sum();
    });
}
