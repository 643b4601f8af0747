// Tapes as TensorBoard's graphs: names, edges, shapes.
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <thread>

#include "../../fails.h"
#include "reader.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/nn/summary/summary_writer.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

using Strings = std::vector<std::string>;

struct Node {
    std::string op;
    Strings inputs;
    std::vector<std::string> shapes;  // "2x3"
    std::map<std::string, std::string> texts;
};

struct Drawn {
    std::map<std::string, Node> nodes;
    Strings names;  // in order

    explicit Drawn(const events::Fields& event) {
        const events::Fields graph(event.text(4));
        CHECK(graph.message(4).integer(1) > 0);
        for (const events::Field& field : graph.all(1)) {
            const events::Fields fields(field.bytes);
            Node node;
            node.op = fields.text(2);
            for (const events::Field& input : fields.all(3)) node.inputs.push_back(input.bytes);
            for (const events::Field& entry : fields.all(5)) {
                const events::Fields attribute(entry.bytes);
                if (attribute.text(1) == "_output_shapes") {
                    for (const events::Field& shape : attribute.message(2).message(1).all(7)) {
                        std::string text;
                        for (const events::Field& dim : events::Fields(shape.bytes).all(2)) {
                            text += (text.empty() ? "" : "x") + std::to_string(events::Fields(dim.bytes).integer(1));
                        }
                        node.shapes.push_back(text);
                    }
                } else if (attribute.message(2).has(2)) {
                    node.texts[attribute.text(1)] = attribute.message(2).text(2);
                }
            }
            CHECK(nodes.emplace(fields.text(1), node).second);
            names.push_back(fields.text(1));
        }
        for (const auto& [name, node] : nodes) {  // every input is there
            for (const std::string& input : node.inputs) CHECK(nodes.count(input.substr(0, input.find(':'))) == 1);
        }
    }
    const Node& operator[](const std::string& name) const {
        INFO(name);
        REQUIRE(nodes.count(name) == 1);
        return nodes.at(name);
    }
    std::size_t count(const std::string& begin) const {
        return static_cast<std::size_t>(std::count_if(names.begin(), names.end(), [&](const std::string& name) { return name.find(begin) == 0; }));
    }
};

template <class Add>
Drawn graph_of(const Add& add) {
    const files::TemporaryFolder folder;
    nn::SummaryWriter writer(folder.path().string());
    add(writer);
    const std::vector<events::Fields> events = events::events_in(folder.path());
    REQUIRE(events.size() == 1);
    return Drawn(events[0]);
}

struct LeNet : nn::Module {
    nn::Conv2d first{1, 4, 5, {.padding = 2}};
    nn::Dropout dropout{0.5};
    nn::Linear second{4 * 14 * 14, 10};
    void members(nn::Members& m) override { m("first", first)("dropout", dropout)("second", second); }
    Tensor forward(const Tensor& x) const {
        const nn::ModuleScope scope(*this);
        const Tensor y = max_pool2d(relu(first(x)), 2);
        return second(dropout(y.flatten(1)));
    }
};

struct Cell : nn::Module {
    nn::Linear gate{4, 4};
    nn::Dropout dropout{0.5};
    void members(nn::Members& m) override { m("gate", gate)("dropout", dropout); }
    Tensor operator()(const Tensor& a, const Tensor& b) const {
        const nn::ModuleScope scope(*this);
        const Tensor first = gate(dropout(a));
        return tanh(first + gate(b));
    }
};

struct Tree : nn::Module {
    nn::Embedding embedding{5, 4};
    Cell cell;
    nn::Dropout dropout{0.5};
    void members(nn::Members& m) override { m("embedding", embedding)("cell", cell)("dropout", dropout); }
    Tensor encode(int depth) const {
        if (depth == 0) return dropout(embedding(tensor(depth)));
        const Tensor left = encode(depth - 1);
        return cell(left, encode(depth - 1));
    }
};

}  // namespace

TEST_CASE("a model's graph has its modules for boxes") {
    LeNet model;
    const Drawn graph = graph_of([&](nn::SummaryWriter& writer) { writer.add_graph(model, zeros({2, 1, 28, 28})); });
    CHECK(model.is_training());
    CHECK(model.dropout.is_training());
    CHECK(graph["input"].op == "Input");
    CHECK(graph["input"].shapes == Strings{"2x1x28x28"});
    CHECK(graph["first/weight"].op == "Parameter");
    CHECK(graph["first/weight"].shapes == Strings{"4x1x5x5"});
    CHECK(graph["first/convolution"].inputs == Strings{"input", "first/weight", "first/bias"});
    CHECK(graph["first/convolution"].shapes == Strings{"2x4x28x28"});
    CHECK(graph["first/convolution"].texts.at("module") == "first");
    CHECK(graph["first/convolution"].texts.at("line").find("summary_graph_test.cpp:") == 0);
    CHECK(graph["relu"].inputs == Strings{"first/convolution"});  // of the model itself: outside of boxes
    CHECK(graph["second/linear"].shapes == Strings{"2x10"});
    CHECK(graph.count("dropout") == 0);  // eval mode
    CHECK(model.first.weight.grad().defined() == false);
}

TEST_CASE("a traced graph has the same boxes, and its parameters, constants, updates and outputs") {
    LeNet model;
    model.parameters();
    model.eval();
    const Tensor scale = full({10}, 2.0F);
    Tensor calls = zeros({});
    TraceOptions options;
    options.parameters = {{"calls", calls}};
    options.outputs = {"logits"};
    const tapir::Graph traced = trace(
        [&](const Tensor& x) {
            NoGradScope off;
            calls.add_(1);
            return model.forward(x * 0.5) * scale;
        },
        {{"image", zeros({2, 1, 28, 28}), {"batch"}}}, options);
    const Drawn graph = graph_of([&](nn::SummaryWriter& writer) { writer.add_graph(traced); });
    CHECK(graph["image"].op == "Input");
    CHECK(graph["image"].shapes == Strings{"-1x1x28x28"});
    CHECK(graph["image"].texts.at("shape") == "(batch, 1, 28, 28)");
    CHECK(graph["first/weight"].op == "Parameter");
    CHECK(graph["mul"].inputs == Strings{"image"});
    CHECK(graph["mul"].texts.at("numbers") == "0.5");
    CHECK(graph["first/convolution"].inputs == Strings{"mul", "first/weight", "first/bias"});
    CHECK(graph["first/convolution"].shapes == Strings{"-1x4x28x28"});
    CHECK(graph["first/convolution"].texts.at("line").find("summary_graph_test.cpp:") == 0);
    CHECK(graph["first/convolution"].texts.at("attributes").find("padding=(2, 2)") != std::string::npos);
    CHECK(graph["second/linear"].shapes == Strings{"-1x10"});
    CHECK(graph.count("constant_") == 1);
    CHECK(graph["logits"].op == "Output");
    CHECK(graph["logits"].inputs == Strings{"detach"});
    CHECK(graph["update_calls"].op == "Update");
    CHECK(graph["update_calls"].inputs == Strings{"add"});
}

TEST_CASE("a tape's graph is the same before and after its backward pass") {
    LeNet model;
    const auto names = [&](bool after) {
        return graph_of([&](nn::SummaryWriter& writer) {
                   Tape tape;
                   const Tensor loss = cross_entropy(model.forward(zeros({2, 1, 28, 28})), tensor({1, 2}));
                   if (after) tape.backward(loss);
                   writer.add_graph(tape);
               })
            .names;
    };
    (void)model.parameters();
    const Strings before = names(false);
    CHECK(before == names(true));
    CHECK(std::count(before.begin(), before.end(), "dropout/dropout") == 1);
    CHECK(std::count(before.begin(), before.end(), "cross_entropy") == 1);
    CHECK(std::count(before.begin(), before.end(), "second/bias") == 1);
}

TEST_CASE("a module that runs often is one box, with a box for each run") {
    Tree model;
    (void)model.parameters();
    const Drawn graph = graph_of([&](nn::SummaryWriter& writer) {
        const Tape tape;
        (void)model.encode(2);
        writer.add_graph(tape);
    });
    std::set<std::string> tops;
    for (const std::string& name : graph.names) tops.insert(name.substr(0, name.find('/')));
    // Dropouts have nothing that would join them.
    CHECK(tops == std::set<std::string>{"embedding", "cell", "dropout", "dropout_1", "dropout_2", "dropout_3"});
    CHECK(graph.count("cell/call_1/") == graph.count("cell/call_2/"));
    CHECK(graph.count("cell/call_4/") == 0);
    CHECK(graph["cell/gate.weight"].shapes == Strings{"4x4"});
    CHECK(graph["cell/call_3/tanh"].shapes == Strings{"4"});
    CHECK(graph["cell/call_3/dropout/dropout"].inputs == Strings{"cell/call_1/tanh"});
    CHECK(graph["cell/call_3/gate/call_2/linear"].inputs == Strings{"cell/call_2/tanh", "cell/gate.weight", "cell/gate.bias"});
    CHECK(graph["cell/call_3/add"].inputs == Strings{"cell/call_3/gate/call_1/linear", "cell/call_3/gate/call_2/linear"});
    CHECK(graph["cell/call_1/dropout/dropout"].inputs == Strings{"dropout/dropout"});
    CHECK(graph["embedding/call_4/embedding"].inputs == Strings{"embedding/weight"});
}

TEST_CASE("ops outside of modules, several outputs, and modules that nobody has named") {
    const Tensor w = ones({2, 3}).requires_grad_();
    const nn::Linear one(3, 3), two(3, 3);
    const Drawn graph = graph_of([&](nn::SummaryWriter& writer) {
        const Tape tape;
        const auto [values, indices] = max(w + 1 + 2, 1);
        const std::vector<Tensor> parts = unbind(two(one(w)));
        (void)(parts[0] * parts[1]);
        (void)linalg::qr(w.t());
        writer.add_graph(tape);
    });
    CHECK(graph["input"].shapes == Strings{"2x3"});
    CHECK(graph["add_1"].inputs == Strings{"add"});
    CHECK(graph["max"].shapes[0] == "2");
    CHECK(graph["Linear/linear"].inputs[0] == "input");
    CHECK(graph["Linear_1/linear"].inputs[0] == "Linear/linear");
    bool several = false;
    for (const auto& [name, node] : graph.nodes) several = several || node.shapes.size() > 1;
    CHECK(several);
}

TEST_CASE("a tape within a tape has its own records only") {
    const Tensor w = ones({2}).requires_grad_();
    const Tape outer;
    const Tensor x = w * 2;
    const Drawn graph = graph_of([&](nn::SummaryWriter& writer) {
        const Tape inner;
        (void)exp(x);
        writer.add_graph(inner);
    });
    CHECK(graph.names == Strings{"exp"});
    CHECK(graph["exp"].inputs.empty());
}

TEST_CASE("names of parameters with odd characters, and two of one name") {
    struct Odd : nn::Module {
        std::map<std::string, nn::Linear> parts{{"a/b c", nn::Linear(2, 2)}, {"a_b_c", nn::Linear(2, 2)}};
        void members(nn::Members& m) override { m("", parts); }
        Tensor forward(const Tensor& x) { return parts.at("a/b c")(x) + parts.at("a_b_c")(x); }
    };
    Odd model;
    const Drawn graph = graph_of([&](nn::SummaryWriter& writer) { writer.add_graph(model, ones({1, 2})); });
    CHECK(graph.count("a_b_c/") >= 6);
    FAILS_IN(ValueError, "add_graph: ", "undefined", graph_of([&](nn::SummaryWriter& writer) { writer.add_graph(model, Tensor()); }));
}

TEST_CASE("a model that throws is in its mode again") {
    LeNet model;
    const files::TemporaryFolder folder;
    nn::SummaryWriter writer(folder.path().string());
    model.dropout.train(false);
    CHECK_THROWS_AS(writer.add_graph(model, ones({2, 2})), ShapeError);
    CHECK(model.is_training());
    CHECK(!model.dropout.is_training());
    CHECK(events::events_in(folder.path()).empty());
}

TEST_CASE("a model's graph leaves the caller's tape as it was") {
    struct Cached : nn::Module {
        nn::Linear part{2, 2};
        Tensor weight, last;  // of the tape outside; of the last call
        void members(nn::Members& m) override { m("part", part); }
        Tensor forward(const Tensor& x) {
            last = part(x) * weight;
            if (x.size(0) == 3) throw std::runtime_error("three");
            return last;
        }
    };
    Cached model;
    const Tensor w = full({2}, 3.0).requires_grad_();
    Tape tape;
    model.weight = w * 2;
    const std::string before = tape.str();
    const Drawn graph = graph_of([&](nn::SummaryWriter& writer) {
        CHECK_THROWS_AS(writer.add_graph(model, ones({3, 2})), std::runtime_error);
        writer.add_graph(model, ones({1, 2}));
    });
    CHECK(graph["mul"].inputs == Strings{"part/linear"});
    CHECK(Tape::current() == &tape);
    CHECK(tape.str() == before);
    const Tensor y = sum(w * 5) + sum(model.last);  // what the model keeps is a constant here
    CHECK(tape.gradient(y, {w})[0].to_vector<float>() == std::vector<float>{5, 5});
    std::thread([&] { FAILS(TapeError, "of another thread", const Tape own; (void)(model.weight * 2)); }).join();
}

namespace {

// Each of these is called with a tensor in the header of the library, and takes the line of that call.
struct Overloaded : nn::Module {
    nn::Linear layer{3, 4};
    void members(nn::Members& m) override { m("layer", layer); }
    Tensor operator()(In x) const { return layer(x); }
    Tensor operator()(In x, double factor) const { return layer(x) * factor; }
};
struct Templated : nn::Module {
    nn::Linear layer{3, 4};
    void members(nn::Members& m) override { m("layer", layer); }
    template <int factor = 2>
    Tensor forward(In x) const {
        return layer(x);
    }
};
struct Located : nn::Module {
    nn::Linear layer{3, 4};
    void members(nn::Members& m) override { m("layer", layer); }
    Tensor forward(const Tensor& x, Loc loc = Loc::current()) const { return layer(In(x, loc)); }
};
constexpr int kOwnLine = __LINE__ + 4;
struct Owned : nn::Module {
    nn::Linear layer{3, 4};
    void members(nn::Members& m) override { m("layer", layer); }
    Tensor operator()(const auto& x) const { return layer(x); }
};

template <class M>
void check_line(const M& run, int line) {
    const Drawn graph = graph_of(run);
    CHECK(graph.nodes.size() == 4);
    for (const auto& [name, node] : graph.nodes) {
        INFO(name);
        CHECK(node.texts.at("line") == "summary_graph_test.cpp:" + std::to_string(line));
    }
}

struct Generic : nn::Module {
    Tensor forward(const auto& x) { return exp(x.detach().requires_grad_()); }
};

}  // namespace

TEST_CASE("a model's graph names the caller's line") {
    nn::Linear linear(3, 4);
    nn::Sequential layers{nn::Linear(3, 4), relu};
    Generic generic;
    const files::TemporaryFolder folder;
    nn::SummaryWriter writer(folder.path().string());
    FAILS(ShapeError, "linear: ", writer.add_graph(linear, ones({2, 5})));
    FAILS(ShapeError, "linear: ", writer.add_graph(layers, ones({2, 5})));
    writer.add_graph(linear, ones({2, 3}));
    const int line = __LINE__ - 1;
    const Drawn graph(events::events_in(folder.path()).at(0));
    for (const auto& [name, node] : graph.nodes) CHECK(node.texts.at("line") == "summary_graph_test.cpp:" + std::to_string(line));
    CHECK(graph.nodes.size() == 4);
    writer.add_graph(generic, ones({2}));

    Overloaded overloaded;
    check_line([&](nn::SummaryWriter& w) { w.add_graph(overloaded, ones({2, 3})); }, __LINE__);
    FAILS(ShapeError, "linear: ", writer.add_graph(overloaded, ones({2, 5})));
    Templated templated;
    check_line([&](nn::SummaryWriter& w) { w.add_graph(templated, ones({2, 3})); }, __LINE__);
    FAILS(ShapeError, "linear: ", writer.add_graph(templated, ones({2, 5})));
    Located located;
    check_line([&](nn::SummaryWriter& w) { w.add_graph(located, ones({2, 3})); }, __LINE__);
    FAILS(ShapeError, "linear: ", writer.add_graph(located, ones({2, 5})));
    Owned owned;  // its own lines stay
    const Drawn own = graph_of([&](nn::SummaryWriter& w) { w.add_graph(owned, ones({2, 3})); });
    CHECK(own["layer/linear"].texts.at("line") == "summary_graph_test.cpp:" + std::to_string(kOwnLine));
}
