// What load_onnx says of nodes that are not as ONNX has them, or that Tapir cannot do: each message once.
#include <catch2/catch.hpp>
#include <functional>

#include "../../../fails.h"
#include "models.h"
#include "tapir/autograd/trace/onnx/onnx.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

using namespace tapir;
using models::Model;
using models::Node;

namespace {

using Ints = std::vector<std::int64_t>;
constexpr int kTypeString = onnx::TensorProto::STRING, kTypeInt64 = onnx::TensorProto::INT64, kTypeBool = onnx::TensorProto::BOOL;

// An operand: an input of the model, a constant, or none.
struct Operand {
    Tensor value;
    bool is_input = false;
    std::vector<std::string> dims = {};
    int type = 0;
};
Operand x(const Shape& shape, DType dtype = float32) {
    Operand operand{zeros(shape, dtype), true, {}, detail::onnx_type(dtype)};
    for (const std::int64_t size : shape) operand.dims.push_back(std::to_string(size));
    return operand;
}
Operand k(const Ints& values) { return {tensor(values, int64)}; }
Operand k(std::int64_t value) { return {full({}, value, int64)}; }
Operand f(const std::vector<float>& values) { return {tensor(values)}; }
Operand f(double value) { return {full({}, value, float32)}; }
const Operand none;

using Set = std::function<void(Node&)>;

// A model of one node is refused with this text.
void refused(const std::string& text, const std::string& op, const std::vector<Operand>& operands, const Set& set = {}, int opset = 17) {
    INFO(op << ": " << text);
    Model model(opset);
    std::vector<std::string> names;
    for (const Operand& operand : operands) {
        const std::string name = "x" + std::to_string(names.size());
        names.push_back(operand.value.defined() ? name : "");
        if (operand.is_input) {
            model.input(name, operand.dims, operand.type);
        } else if (operand.value.defined()) {
            model.weight(name, operand.value);
        }
    }
    Node node = model.node(op, names, {"y"});
    if (set) set(node);
    model.output("y");
    FAILS_IN(ValueError, "load_onnx: the " + op + " that makes y: ", text, load_onnx_from_memory(model.bytes()));
}

// Attributes.
Set with(const std::string& name, const Ints& values) {
    return [=](Node& n) { n.set(name, values); };
}
Set with(const std::string& name, int value) {
    return [=](Node& n) { n.set(name, value); };
}
Set with(const std::string& name, const char* value) {
    return [=](Node& n) { n.set(name, std::string(value)); };
}
Set both(const Set& a, const Set& b) {
    return [=](Node& n) { a(n), b(n); };
}

}  // namespace

TEST_CASE("operands and attributes that are missing, or not as they should be") {
    refused("its operand 1 is missing", "Add", {x({2})});
    refused("its attribute body is missing", "Loop", {k(3), none, x({2})});
    refused("its attribute value is of type INT, not TENSOR", "ConstantOfShape", {k(Ints{2})}, with("value", 1));
    refused("the dimension 4 is none of 2", "Softmax", {x({2, 3})}, with("axis", 4));
    refused("its depth has 2 elements, not 1", "OneHot", {x({2}, int64), k(Ints{2, 3}), f({0, 1})});
    refused("its value has 2 elements, not 1", "Pad", {x({2}), k(Ints{1, 1}), f({0, 1})});
    refused("it has no operands", "Max", {});
    refused("it has no operands", "Concat", {});
    refused("its direction is \"UP\"", "BitShift", {x({2}, int64), x({2}, int64)}, with("direction", "UP"));
    Model model;
    model.weight("w", ones({2})).input("x", {"4"});
    model.node("Add", {"w", "w"}, {"sum"});
    model.node("Cast", {"sum"}, {"shape"}).set("to", kTypeInt64);
    model.node("Reshape", {"x", "shape"}, {"y"});
    model.output("y");
    FAILS_IN(ValueError, "load_onnx: ", "its shape is computed from weights or drawn at random, but the graph needs to know it",
             load_onnx_from_memory(model.bytes()));
    Model two;
    two.input("x", {"2"});
    two.node("Relu", {"x"}, {"y", "z"});
    two.output("z");
    FAILS_IN(ValueError, "load_onnx: ", "its result z is not supported", load_onnx_from_memory(two.bytes()));
}

TEST_CASE("shapes that do not fit") {
    refused("0 in its shape stands for a dimension that its operand of shape (4,) has not", "Reshape", {x({4}), k(Ints{4, 0})});
    refused("its axis is 3, of 2 dimensions", "Flatten", {x({2, 2})}, with("axis", 3));
    refused("the dimension 0 of a shape (2, 1) is not 1", "Squeeze", {x({2, 1}), k(Ints{0})});
    refused("its result would have 9 dimensions", "Unsqueeze", {x({1, 1, 1, 1, 1, 1, 1, 1}), k(Ints{0})});
    refused("it names a dimension twice", "Unsqueeze", {x({2}), k(Ints{0, 0})});
    refused("num_outputs is 0, and it has 1 results", "Split", {x({4})}, with("num_outputs", 0), 18);
    refused("num_outputs is 9223372036854775807, and it has 1 results", "Split", {x({4})}, [](Node& n) { n.set("num_outputs", INT64_MAX); }, 18);
    refused("it has 1 starts, 2 ends, 1 axes and 1 steps", "Slice", {x({4}), k(Ints{0}), k(Ints{1, 2})});
    refused("a step of it is 0, which leads nowhere", "Slice", {x({4}), k(Ints{0}), k(Ints{1}), k(Ints{0}), k(Ints{0})});
    refused("it has 3 pads for 2 dimensions", "Pad", {x({2, 2}), k(Ints{1, 1, 1})});
    refused("its mode is \"mirror\"", "Pad", {x({2}), k(Ints{1, 1})}, with("mode", "mirror"));
    refused("strings are not supported", "Cast", {x({2})}, with("to", kTypeString));
    refused("there is no type COMPLEX64 in Tapir", "Cast", {x({2})}, with("to", 14));
    refused("blocks of 3 in a shape (1, 4, 2, 2)", "DepthToSpace", {x({1, 4, 2, 2})}, with("blocksize", 3));
    refused("blocks of 3 in a shape (1, 4, 2, 2)", "SpaceToDepth", {x({1, 4, 2, 2})}, with("blocksize", 3));
    const auto huge = [](Node& n) { n.set("blocksize", std::int64_t{1} << 32); };
    refused("blocks of 4294967296 in a shape (1, 4, 2, 2)", "DepthToSpace", {x({1, 4, 2, 2})}, huge);
    refused("blocks of 4294967296 in a shape (1, 4, 2, 2)", "DepthToSpace", {x({1, 4, 2, 2})}, both(huge, with("mode", "CRD")));
    refused("blocks of 4294967296 in a shape (1, 4, 0, 0)", "SpaceToDepth", {x({1, 4, 0, 0})}, huge);
    Model model;
    model.input("x", {"4"});
    model.node("NonZero", {"x"}, {"places"});
    model.node("Shape", {"places"}, {"y"});
    model.output("y", {}, kTypeInt64);
    FAILS_IN(ValueError, "load_onnx: ", "the sizes of its operand depend on data: a graph cannot know them", load_onnx_from_memory(model.bytes()));
}

TEST_CASE("indices and what is made that do not fit") {
    refused("the index 5 for a dimension of size 3", "Gather", {x({3}), k(5)});
    refused("indices of shape (2,), 1 batch dimensions", "GatherND", {x({3, 3}), k(Ints{0, 1})}, with("batch_dims", 1));
    refused("indices of shape (3,) for an operand of shape (3, 3)", "GatherND", {x({3, 3}), k(Ints{0, 1, 2})});
    refused("indices of shape (3,) for an operand of shape (3, 3)", "ScatterND", {x({3, 3}), k(Ints{0, 1, 2}), x({1})});
    refused("its reduction is \"median\"", "ScatterElements", {x({3}), k(Ints{0}), x({1})}, with("reduction", "median"));
    refused("it is a sparse tensor or strings, which are not supported", "Constant", {}, with("value_string", "a"));
    refused("its value has 2 elements", "ConstantOfShape", {k(Ints{2})}, [](Node& n) { n.set("value", ones({2})); });
    refused("its delta is 0", "Range", {k(0), k(3), k(0)});
    refused("there is no type STRING in Tapir", "EyeLike", {x({2, 2})}, with("dtype", kTypeString));
    refused("its operand has shape (2,)", "EyeLike", {x({2})});
    refused("slices of 1001 elements; up to 1000 are supported", "Unique", {x({2, 1001})}, with("axis", 0));
}

TEST_CASE("layers that do not fit") {
    refused("its operand has shape (1, 1, 1, 1, 1, 1): 1, 2 or 3 spatial dimensions are supported", "AveragePool", {x({1, 1, 1, 1, 1, 1})});
    refused("it has 1 strides for 2 dimensions", "Conv", {x({1, 1, 4, 4}), x({1, 1, 2, 2})}, with("strides", Ints{1}));
    refused("strides of 0", "Conv", {x({1, 1, 4, 4}), x({1, 1, 2, 2})}, with("strides", Ints{0, 1}));
    refused("it has 2 pads for 2 dimensions", "Conv", {x({1, 1, 4, 4}), x({1, 1, 2, 2})}, with("pads", Ints{0, 1}));
    refused("a weight of shape (1, 1, 2) for an operand of shape (1, 1, 4, 4)", "Conv", {x({1, 1, 4, 4}), x({1, 1, 2})});
    refused("a weight of shape (1, 1, 2) for an operand of shape (1, 1, 4, 4)", "ConvTranspose", {x({1, 1, 4, 4}), x({1, 1, 2})});
    refused("it has 1 output_padding for 2 dimensions", "ConvTranspose", {x({1, 1, 4, 4}), x({1, 1, 2, 2})}, with("output_padding", Ints{1}));
    refused("it has 1 sizes of the result for 2 dimensions", "ConvTranspose", {x({1, 1, 4, 4}), x({1, 1, 2, 2})}, with("output_shape", Ints{8}));
    refused("spatial = 0, a mean for each place, is not supported", "BatchNormalization", {x({3, 2}), x({3}), x({3}), x({3}), x({3})},
            with("spatial", 0), 8);
    refused("its operand has shape (3,)", "BatchNormalization", {x({3}), x({3}), x({3}), x({3}), x({3})});
    refused("targets of shape (2, 3) for an operand of shape (2, 3)", "NegativeLogLikelihoodLoss", {x({2, 3}), x({2, 3}, int64)});
    refused("quantised numbers of type INT64 are not supported", "QuantizeLinear", {x({2}), f(1), k(0)});
    refused("its operand has shape (2, 3)", "RNN", {x({2, 3}), x({1, 4, 3}), x({1, 4, 4})});
    refused("weights of shapes (1, 4, 3) and (1, 4, 4) for 2 directions", "RNN", {x({2, 2, 3}), x({1, 4, 3}), x({1, 4, 4})},
            with("direction", "bidirectional"));
    const auto activations = [](const std::vector<std::string>& names) { return [=](Node& n) { n.set("activations", names); }; };
    refused("there is no activation swish", "RNN", {x({2, 2, 3}), x({1, 4, 3}), x({1, 4, 4})}, activations({"Swish"}));
    refused("it has 2 activations", "RNN", {x({2, 2, 3}), x({1, 4, 3}), x({1, 4, 4})}, activations({"Tanh", "Tanh"}));
    const auto training = [](Node& n) { n.domain("ai.onnx.preview.training"); };
    Model model;
    model.input("r", {}).input("t", {}, kTypeInt64).input("x", {"1"});
    Node node = model.node("Momentum", {"r", "t", "x"}, {"y"});
    training(node);
    model.output("y");
    auto* import = model.proto.add_opset_import();
    import->set_domain("ai.onnx.preview.training");
    import->set_version(1);
    FAILS_IN(ValueError, "load_onnx: ", "it has 3 operands", load_onnx_from_memory(model.bytes()));
}

TEST_CASE("images that do not fit") {
    const Operand image = x({1, 1, 4, 4});
    const Operand scales = f({1, 1, 2, 2});
    refused("its coordinate_transformation_mode is \"centre\"", "Resize", {image, none, scales}, with("coordinate_transformation_mode", "centre"));
    refused("its nearest_mode is \"any\"", "Resize", {image, none, scales}, with("nearest_mode", "any"));
    refused("a dimension of size 4 becomes one of size 0", "Resize", {image, none, f({1, 1, 0.1F, 1})});
    refused("it has 2 scales for 4 dimensions", "Resize", {image, none, f({1, 1})});
    refused("a scale is -1", "Resize", {image, none, f({1, 1, -1, 1})});
    refused("its mode is \"lanczos\"", "Resize", {image, none, scales}, with("mode", "lanczos"));
    refused("it has 2 sizes for 4 dimensions", "Resize", {image, none, none, k(Ints{8, 8})});
    refused("its roi has 2 numbers for 4 dimensions", "Resize", {image, f({0, 1}), scales},
            with("coordinate_transformation_mode", "tf_crop_and_resize"));
    refused("its mode is \"area\"", "GridSample", {image, x({1, 2, 2, 2})}, with("mode", "area"));
    const std::vector<Operand> regions{image, x({1, 4}), k(Ints{0})};
    refused("its mode is \"max\"; avg is supported", "RoiAlign", regions, with("mode", "max"));
    refused("sampling_ratio 0, by which the number of samples depends on data, is not supported", "RoiAlign", regions);
    refused("boxes of shape (4, 4), scores of shape (1, 1, 4)", "NonMaxSuppression", {x({4, 4}), x({1, 1, 4}), k(1)});
}

TEST_CASE("signals and words that do not fit") {
    refused("a transform of length 20000; up to 16384 are supported", "DFT", {x({1, 20000, 1})});
    refused("its operand has shape (4,)", "DFT", {x({4})});
    refused("its axis is the last dimension", "DFT", {x({1, 4, 1})}, with("axis", 2));
    refused("its operand has shape (4,), its frame_step is 1", "STFT", {x({4}), k(1), none, k(2)});
    refused("frames of 9 of a signal of 4", "STFT", {x({1, 4}), k(1), none, k(9)});
    refused("its size is -1", "HannWindow", {k(-1)});
    refused("there is no type STRING in Tapir", "HannWindow", {k(4)}, with("output_datatype", kTypeString));
    refused("-2 bins, length 16, rate 8000", "MelWeightMatrix", {k(-2), k(16), k(8000), f(0), f(4000)});
    refused("there is no type STRING in Tapir", "MelWeightMatrix", {k(2), k(16), k(8000), f(0), f(4000)}, with("output_datatype", kTypeString));
    const auto words = [](const Ints& counts, const Ints& columns, const Ints& pool) {
        return [=](Node& n) { n.set("ngram_counts", counts).set("ngram_indexes", columns).set("pool_int64s", pool); };
    };
    const Operand row = x({4}, int64);
    refused("strings are not supported", "TfIdfVectorizer", {row}, [](Node& n) { n.set("pool_strings", std::vector<std::string>{"a"}); });
    refused("its attributes do not fit", "TfIdfVectorizer", {row}, words({0}, {}, {1}));
    refused("its ngram_indexes are out of range", "TfIdfVectorizer", {row}, words({0}, {-1}, {1}));
    refused("its ngram_counts do not fit", "TfIdfVectorizer", {row}, words({2}, {0}, {1}));
    refused("its ngram_indexes are too few", "TfIdfVectorizer", {row}, words({0}, {0}, {1, 2}));
}

TEST_CASE("loops that do not fit") {
    refused("its body has 0 inputs and 0 outputs", "Loop", {k(3), none, x({2})}, [](Node& n) { n.graph("body"); });
    refused("its body has 0 inputs and 0 outputs", "Scan", {x({2})}, [](Node& n) { n.set("num_scan_inputs", 1).graph("body"); });
    const auto carrying = [](int carried, int type) {
        return [=](Node& n) {
            auto* body = n.graph("body");
            models::set_type(body->add_input(), "i", kTypeInt64, {});
            models::set_type(body->add_input(), "going", kTypeBool, {});
            models::add_node(body, "Identity", {"going"}, {"goes"});
            models::set_type(body->add_output(), "goes", kTypeBool, {});
            if (carried > 0) models::set_type(body->add_input(), "v", 1, {"2"});
            models::add_node(body, "Identity", {carried > 0 ? "v" : "i"}, {"next"});
            models::set_type(body->add_output(), "next", type, {});
        };
    };
    refused("it has no end", "Loop", {none, none, x({2})}, carrying(1, 1));
    refused("the type of its result next is not known", "Loop", {k(0), none}, carrying(0, kTypeString));
    // A sequence that goes round many times.
    Model model;
    model.input("x", {"2"}).weight("times", full({}, 100, int64));
    model.node("SequenceConstruct", {"x"}, {"s"});
    Node loop = model.node("Loop", {"times", "", "s"}, {"t"});
    carrying(1, 1)(loop);
    model.node("SequenceLength", {"t"}, {"y"});
    model.output("y", {}, kTypeInt64);
    FAILS_IN(ValueError, "load_onnx: ", "it carries a sequence or an optional, and runs too long to be written out",
             load_onnx_from_memory(model.bytes()));
    refused("a loop that collects what its turns give, and draws random numbers, whose condition depends on data, is not supported", "Loop",
            {k(9), {full({}, true, bool_)}}, [](Node& n) {
                auto* body = n.graph("body");
                models::set_type(body->add_input(), "i", kTypeInt64, {});
                models::set_type(body->add_input(), "going", kTypeBool, {});
                models::add_node(body, "RandomUniform", {}, {"r"}).set("shape", Ints{1});
                models::add_node(body, "Cast", {"r"}, {"goes"}).set("to", kTypeBool);
                models::add_node(body, "Identity", {"i"}, {"next"});
                models::set_type(body->add_output(), "goes", kTypeBool, {});
                models::set_type(body->add_output(), "next", kTypeInt64, {});
            });
    const auto summing = [](int xs) {
        return [=](Node& n) {
            n.set("num_scan_inputs", xs);
            auto* body = n.graph("body");
            for (int i = 0; i < xs; ++i) models::set_type(body->add_input(), "r" + std::to_string(i), 1, {"2"});
            models::add_node(body, "Identity", {"r0"}, {"u"});
            models::set_type(body->add_output(), "u", 1, {"2"});
        };
    };
    refused("its sequences have lengths 3 and 4", "Scan", {x({3, 2}), x({4, 2})}, summing(2));
    refused("lengths of sequences are not supported", "Scan", {k(Ints{3}), x({1, 3, 2})}, summing(1), 8);
    refused("it runs more than 32 times, which is too often to be written out", "Scan", {none, x({1, 100, 2})}, summing(1), 8);
}

TEST_CASE("sequences that do not fit") {
    refused("its operand 0 is no sequence", "SequenceAt", {x({2}), k(0)});
    refused("pieces of 0", "SplitToSequence", {x({4}), k(0)});
    const auto chain = [](const std::string& text, const std::function<void(Model&)>& nodes) {
        INFO(text);
        Model model;
        model.input("x", {"2"}).weight("five", full({}, 5, int64));
        model.node("SequenceEmpty", {}, {"empty"});
        model.node("SequenceConstruct", {"x"}, {"one"});
        model.node("Optional", {}, {"nothing"});
        nodes(model);
        model.output("y");
        FAILS_IN(ValueError, "load_onnx: ", text, load_onnx_from_memory(model.bytes()));
    };
    chain("the position 5 in a sequence of 1", [](Model& m) { m.node("SequenceAt", {"one", "five"}, {"y"}); });
    chain("its sequence is empty", [](Model& m) { m.node("SequenceErase", {"empty"}, {"y"}); });
    chain("its sequence is empty", [](Model& m) { m.node("ConcatFromSequence", {"empty"}, {"y"}).set("axis", 0); });
    chain("its optional is empty", [](Model& m) { m.node("OptionalGetElement", {"nothing"}, {"y"}); });
    chain("a sequence, or an optional that is empty, stands where it takes a tensor", [](Model& m) { m.node("Relu", {"one"}, {"y"}); });
    chain("its body has 0 inputs", [](Model& m) { m.node("SequenceMap", {"one"}, {"y"}).graph("body"); });
    chain("sequences of 1 and 0", [](Model& m) {
        auto node = m.node("SequenceMap", {"one", "empty"}, {"y"});
        auto* body = node.graph("body");
        models::set_type(body->add_input(), "a", 1, {});
        models::set_type(body->add_input(), "b", 1, {});
        models::set_type(body->add_output(), "a", 1, {});
    });
    chain("the output y is a sequence of sequences", [](Model& m) { m.node("SequenceConstruct", {"one"}, {"y"}); });
}

TEST_CASE("inputs and options that do not fit") {
    const auto relu = [](const std::vector<std::string>& dims, int type = 1) {
        Model model;
        model.input("x", dims, type);
        model.node("Relu", {"x"}, {"y"});
        model.output("y");
        return model;
    };
    const auto fails_with = [](const std::string& text, const Model& model, const LoadOnnxOptions& options = {}) {
        INFO(text);
        FAILS_IN(ValueError, "load_onnx: ", text, load_onnx_from_memory(model.bytes(), options));
    };
    fails_with("the input x has elements of type STRING, which Tapir has not", relu({"2"}, kTypeString));
    Model map = relu({"2"});
    map.proto.mutable_graph()->mutable_input(0)->mutable_type()->mutable_map_type();
    fails_with("the input x is of a type that Tapir has not", map);
    Model unranked = relu({"2"});
    unranked.proto.mutable_graph()->mutable_input(0)->mutable_type()->mutable_tensor_type()->clear_shape();
    fails_with("the model does not tell how many dimensions the input x has: give an example", unranked);
    CHECK(load_onnx_from_memory(unranked.bytes(), {.examples = {{"x", ones({2, 3})}}})({ones({2, 3})})[0].shape() == Shape{2, 3});
    fails_with("the tensor given for the input x is undefined", relu({"2"}), {.known = {{"x", Tensor()}}});
    fails_with("it has no weight nope, which LoadOnnxOptions::constants names", relu({"2"}), {.constants = {"nope"}});
    fails_with("the size -3 of the dimension n", relu({"n"}), {.sizes = {{"n", -3}}});
    fails_with("5 dimensions may differ in size, but a graph can have 4: a, b, c, d, e: give sizes", relu({"a", "b", "c", "d", "e"}));
    FAILS_IN(DTypeError, "load_onnx: ", "the input x is float32, its example int64",
             load_onnx_from_memory(relu({"n"}).bytes(), {.examples = {{"x", ones({2}, int64)}}}));
    FAILS_IN(ShapeError, "load_onnx: ", "the input x has 1 dimensions, its example 2",
             load_onnx_from_memory(relu({"n"}).bytes(), {.examples = {{"x", ones({2, 2})}}}));
    FAILS_IN(ShapeError, "load_onnx: ", "the example of the input x has shape (3,), not (2,)",
             load_onnx_from_memory(relu({"2"}).bytes(), {.examples = {{"x", ones({3})}}}));
    Model sparse = relu({"2"});
    sparse.proto.mutable_graph()->add_sparse_initializer();
    fails_with("sparse tensors are not supported", sparse);
    const auto inside = [&] { trace([&](const Tensor& x) { return load_onnx_from_memory(relu({"2"}).bytes())({x})[0]; }, {{"x", ones({2})}}); };
    CHECK_THROWS_WITH(inside(), Catch::Contains("this thread traces; load the model before"));
}

TEST_CASE("damaged tensors and graphs") {
    const auto refused_file = [](const std::string& text, const std::function<void(onnx::ModelProto&)>& change) {
        INFO(text);
        Model model;
        model.input("x", {"2"}).weight("w", ones({2}));
        model.node("Add", {"x", "w"}, {"y"});
        model.output("y");
        change(model.proto);
        FAILS_IN(FileError, "load_onnx: ", text, load_onnx_from_memory(model.bytes()));
    };
    const auto tensor_of = [](onnx::ModelProto& proto) { return proto.mutable_graph()->mutable_initializer(0); };
    refused_file("the tensor w is stored in segments", [&](auto& proto) { tensor_of(proto)->mutable_segment(); });
    refused_file("the tensor w has 1 elements of data, but 2 by its shape", [&](auto& proto) {
        tensor_of(proto)->clear_raw_data();
        tensor_of(proto)->add_float_data(1);
    });
    refused_file("the tensor w has an element above the largest of int64", [&](auto& proto) {
        tensor_of(proto)->set_data_type(onnx::TensorProto::UINT64);
        tensor_of(proto)->set_raw_data(std::string(16, '\xff'));
    });
    refused_file("an initializer has no name", [&](auto& proto) { tensor_of(proto)->clear_name(); });
    refused_file("an input has no name", [](auto& proto) { proto.mutable_graph()->mutable_input(0)->clear_name(); });
    refused_file("the input x has 9 dimensions", [](auto& proto) {
        for (int i = 0; i < 8; ++i) proto.mutable_graph()->mutable_input(0)->mutable_type()->mutable_tensor_type()->mutable_shape()->add_dim();
    });
    refused_file("the input x has 4000000000000 elements in a dimension", [](auto& proto) {
        proto.mutable_graph()->mutable_input(0)->mutable_type()->mutable_tensor_type()->mutable_shape()->mutable_dim(0)->set_dim_value(
            4'000'000'000'000);
    });
    // Each of 40 functions calls the next one twice.
    refused_file("functions that call each other make more than 1048576 nodes", [](auto& proto) {
        for (int i = 0; i < 40; ++i) {
            auto* function = proto.add_functions();
            function->set_name("F" + std::to_string(i));
            function->set_domain("own");
            function->add_opset_import()->set_version(17);
            auto* import = function->add_opset_import();
            import->set_domain("own");
            import->set_version(1);
            function->add_input("a");
            function->add_output("c");
            const std::string next = i == 39 ? "Identity" : "F" + std::to_string(i + 1), domain = i == 39 ? "" : "own";
            models::add_node(function, next, {"a"}, {"b"}).domain(domain);
            models::add_node(function, next, {"b"}, {"c"}).domain(domain);
        }
        auto* import = proto.add_opset_import();
        import->set_domain("own");
        import->set_version(1);
        auto* node = proto.mutable_graph()->mutable_node(0);
        node->set_op_type("F0");
        node->set_domain("own");
        node->mutable_input()->RemoveLast();
    });
    refused_file("nothing makes the output z of the function Own", [](auto& proto) {
        auto* function = proto.add_functions();
        function->set_name("Own");
        function->add_output("z");
        proto.mutable_graph()->mutable_node(0)->set_op_type("Own");
    });
}

TEST_CASE("attributes that the operator has not in the model's opset") {
    refused("it has an attribute axes; Softmax has only axis in opset 17", "Softmax", {x({2})}, with("axes", 0));
    refused("it has an attribute axes; ReduceSum has only these: keepdims, noop_with_empty_axes in opset 13", "ReduceSum", {x({2})},
            with("axes", Ints{0}), 13);
    refused("it has an attribute alpha; Relu has none in opset 17", "Relu", {x({2})}, [](Node& n) { n.set("alpha", 0.5); });
    refused("its attribute axis is there twice", "Softmax", {x({2})}, both(with("axis", 0), with("axis", 0)));
    // In a branch that is not taken, and in a function, whose call has its own.
    Model model;
    model.weight("yes", full({}, true, bool_)).input("x", {"2"});
    Node choice = model.node("If", {"yes"}, {"y"});
    for (const char* branch : {"then_branch", "else_branch"}) {
        auto* graph = choice.graph(branch);
        Node node = models::add_node(graph, "Softmax", {"x"}, {"z"});
        if (branch[0] == 'e') node.set("dim", 0);
        models::set_type(graph->add_output(), "z", 1, {"2"});
    }
    model.output("y");
    FAILS_IN(ValueError, "load_onnx: the Softmax that makes z: ", "it has an attribute dim; Softmax has only axis",
             load_onnx_from_memory(model.bytes()));
    Model calls;
    auto* function = calls.proto.add_functions();
    function->set_name("F");
    function->set_domain("own");
    function->add_opset_import()->set_version(17);
    function->add_input("a");
    function->add_output("b");
    function->add_attribute("slope");
    models::add_node(function, "LeakyRelu", {"a"}, {"b"}).refer("alpha", "slope", onnx::AttributeProto::FLOAT);
    calls.input("x", {"2"});
    calls.node("F", {"x"}, {"y"}).domain("own").set("slope", 0.5).set("slant", 0.5);
    calls.output("y");
    FAILS_IN(ValueError, "load_onnx: the own.F that makes y: ", "it has an attribute slant, which the function has not",
             load_onnx_from_memory(calls.bytes()));
}

TEST_CASE("attributes of another type than the operator has") {
    refused("its attribute axis is of type FLOAT, not INT", "Softmax", {x({2})}, [](Node& n) { n.set("axis", 1.0); });
    refused("its attribute axes is of type INT, not INTS", "ReduceMean", {x({2})}, with("axes", 0));
    refused("its attribute alpha is of type INT, not FLOAT", "Elu", {x({2})}, with("alpha", 1));
    refused("its attribute mode is of type INT, not STRING", "Resize", {x({1, 1, 2})}, with("mode", 1));
}

TEST_CASE("attention that does not fit") {
    const int opset = 24;
    const Operand four = x({1, 2, 3, 4}), three = x({1, 3, 8});
    const std::vector<Operand> plain{four, four, four};
    const Set heads = both(with("q_num_heads", 2), with("kv_num_heads", 2));
    const Set negative_scale = [](Node& n) { n.set("scale", -1.0); };
    refused("3 heads in a shape (1, 3, 8)", "Attention", {three, three, three}, with("q_num_heads", 3), opset);
    refused("its query has shape (2, 2)", "Attention", {x({2, 2}), x({2, 2}), x({2, 2})}, {}, opset);
    refused("keys of shape (1, 3, 8) and values of shape (1, 3, 8)", "Attention", {four, three, three}, {}, opset);
    refused("it has only one of past_key and past_value", "Attention", {four, four, four, none, four}, {}, opset);
    refused("windows of -2 to the left and -1 to the right", "Attention", plain, with("left_window_size", -2), opset + 1);
    refused("2 heads of queries, 3 of keys", "Attention", {four, x({1, 3, 3, 4}), x({1, 3, 3, 4})}, {}, opset);
    refused("its scale is -1", "Attention", plain, negative_scale, opset);
    refused("its softmax_precision is INT64", "Attention", plain, with("softmax_precision", kTypeInt64), opset);
    Model model(opset);
    model.input("x", {"1", "2", "3", "4"});
    model.node("Attention", {"x", "x", "x"}, {"y", "", "", "z"}).set("qk_matmul_output_mode", 7);
    model.output("z");
    FAILS_IN(ValueError, "load_onnx: ", "its qk_matmul_output_mode is 7", load_onnx_from_memory(model.bytes()));
    const Operand table = x({1, 3, 2});
    refused("its operand has shape (2, 2)", "RotaryEmbedding", {x({2, 2}), table, table}, {}, opset);
    refused("it turns 3 of 4 elements", "RotaryEmbedding", {four, table, table}, with("rotary_embedding_dim", 3), opset);
    refused("a table of shape (1, 3, 3) for 4 elements", "RotaryEmbedding", {four, x({1, 3, 3}), table}, {}, opset);
    refused("an update of shape (2, 3) of a cache of shape (2, 3) along 0", "TensorScatter", {x({2, 3}), x({2, 3})}, with("axis", 0), opset);
    refused("its mode is \"round\"", "TensorScatter", {x({2, 3}), x({2, 3})}, both(with("mode", "round"), with("axis", 1)), opset);
}

TEST_CASE("recurrent attention that does not fit") {
    const int opset = 27;
    const Operand sequence = x({1, 3, 8}), decay = x({1, 3, 2});
    const Set heads = both(with("q_num_heads", 2), with("kv_num_heads", 2));
    const auto linear = [&](const Set& more) { return both(both(heads, with("update_rule", "linear")), more); };
    refused("a weight of shape (2,) for an operand of shape (1, 3, 8)", "CausalConvWithState", {sequence, x({2})}, {}, opset);
    refused("its activation is \"exp\"", "CausalConvWithState", {sequence, x({3, 1, 2})}, with("activation", "exp"), opset);
    refused("its update_rule is \"other\"", "LinearAttention", {sequence, sequence, sequence}, with("update_rule", "other"), opset);
    refused("its operands decay and beta do not fit its update_rule \"linear\"", "LinearAttention", {sequence, sequence, sequence, none, decay},
            linear(with("chunk_size", 1)), opset);
    refused("0 heads of queries, 0 of keys", "LinearAttention", {sequence, sequence, sequence}, with("update_rule", "linear"), opset);
    const Operand far = x({1, 5000, 2});
    refused("5000 steps; up to 4096 are supported", "LinearAttention", {far, far, far}, linear(with("chunk_size", 1)), opset);
}

TEST_CASE("windows and places in images that do not fit") {
    const Operand columns = x({1, 4, 4});
    refused("an operand of shape (4,), images of 2 and windows of 2 dimensions", "Col2Im", {x({4}), k(Ints{3, 3}), k(Ints{2, 2})}, {}, 18);
    refused("a window has a size of 0", "Col2Im", {columns, k(Ints{3, 3}), k(Ints{0, 2})}, {}, 18);
    refused("windows of 6 elements in a shape (1, 4, 4)", "Col2Im", {columns, k(Ints{3, 3}), k(Ints{2, 3})}, {}, 18);
    refused("a window of 4 in an image of 3", "Col2Im", {columns, k(Ints{3, 3}), k(Ints{4, 1})}, {}, 18);
    refused("maps of shape (1, 2, 3) for a size (1, 1, 2, 2, 2)", "AffineGrid", {x({1, 2, 3}), k(Ints{1, 1, 2, 2, 2})}, {}, 20);
    const Operand image = x({1, 1, 3, 3}), weight = x({1, 1, 2, 2});
    refused("a weight of shape (1, 1, 2), offsets of shape (1, 8, 2, 2)", "DeformConv", {image, x({1, 1, 2}), x({1, 8, 2, 2})}, {}, 19);
    refused("offsets of shape (1, 6, 2, 2) in 1 and 1 groups", "DeformConv", {image, weight, x({1, 6, 2, 2})}, {}, 19);
    const Operand volume = x({1, 1, 2, 2, 2}), grid = x({1, 1, 1, 1, 3});
    refused("its mode is \"cubic\" for a shape (1, 1, 2, 2, 2)", "GridSample", {volume, grid}, with("mode", "cubic"), 20);
    refused("its padding_mode is \"wrap\"", "GridSample", {volume, grid}, with("padding_mode", "wrap"), 20);
    refused("a grid of shape (1, 1, 1, 1, 2) for a shape (1, 1, 2, 2, 2)", "GridSample", {volume, x({1, 1, 1, 1, 2})}, {}, 20);
    refused("its keep_aspect_ratio_policy is \"larger\"", "Resize", {x({2, 2}), none, none, k(Ints{4, 4})},
            with("keep_aspect_ratio_policy", "larger"), 18);
}

TEST_CASE("bits, sizes and precisions that do not fit") {
    refused("there is no type COMPLEX64 in Tapir", "BitCast", {x({2})}, with("to", 14), 26);
    refused("bits of FLOAT as FLOAT8E4M3FN are not supported", "BitCast", {x({2})}, with("to", 17), 26);
    refused("bits of FLOAT as INT64 are not supported", "BitCast", {f({1, 2})}, with("to", kTypeInt64), 26);
    refused("it has 1 sizes for 2 dimensions", "CenterCropPad", {x({2, 2}), k(Ints{1})}, {}, 18);
    refused("it asks for a dimension of size -1", "CenterCropPad", {x({2}), k(Ints{-1})}, {}, 18);
    refused("its precision is INT64", "QuantizeLinear", {x({2}), f(1)}, with("precision", kTypeInt64), 23);
    refused("a transform of length 0", "DFT", {x({1, 4, 1}), k(0)}, {}, 20);
    refused("a transform of length 65536; 1 to 16384 are supported", "DFT", {x({1, 4, 2}), k(65536)}, both(with("inverse", 1), with("onesided", 1)),
            20);
}
