// What later opsets and versions of the format have added, and what models of these must not be taken for. Numbers are onnxruntime's, or the
// specification's.
#include <catch2/catch.hpp>

#include <limits>

#include "../../../fails.h"
#include "models.h"
#include "tapir/autograd/trace/onnx/onnx.h"
#include "tapir/tapir.h"

using namespace tapir;
using models::Model;

namespace {

Tensor result_of(const Model& model, const Tensor& x) { return load_onnx_from_memory(model.bytes())({x})[0]; }

// Of fields that the schema at build may not know.
void add_text(google::protobuf::Message* message, int number, const std::string& text) {
    const auto* known = message->GetDescriptor()->FindFieldByNumber(number);
    if (!known) {
        message->GetReflection()->MutableUnknownFields(message)->AddLengthDelimited(number, text);
    } else if (known->message_type()) {
        message->GetReflection()->AddMessage(message, known)->ParseFromString(text);
    } else {
        message->GetReflection()->SetString(message, known, text);
    }
}

}  // namespace

TEST_CASE("scales of blocks, and output types, of quantised numbers") {
    Model blocks(21);
    blocks.input("x", {"2", "3"}, onnx::TensorProto::INT32).weight("s", tensor({1.0f, 10.0f, 2.0f, 20.0f}).reshape({2, 2}));
    blocks.node("DequantizeLinear", {"x", "s"}, {"y"}).set("axis", 1).set("block_size", 2);
    blocks.output("y");
    CHECK(equal(result_of(blocks, ones({2, 3}, int32)), tensor({1.0f, 1.0f, 10.0f, 2.0f, 2.0f, 20.0f}).reshape({2, 3})));
    Model plain(21);  // of the same scale, without the blocks
    plain.input("x", {"2", "3"}, onnx::TensorProto::INT32).weight("s", ones({2, 2}));
    plain.node("DequantizeLinear", {"x", "s"}, {"y"}).set("axis", 1);
    plain.output("y");
    FAILS_IN(ValueError, "load_onnx: ", "there is no block_size", load_onnx_from_memory(plain.bytes()));
    plain.proto.mutable_graph()->mutable_node(0)->mutable_attribute()->RemoveLast();
    models::Node(plain.proto.mutable_graph()->mutable_node(0)).set("axis", 1).set("block_size", 1);
    FAILS_IN(ValueError, "load_onnx: ", "blocks of 1 with a scale of shape (2, 2) do not cover shape (2, 3)", load_onnx_from_memory(plain.bytes()));
    plain.node("DequantizeLinear", {"x", "t"}, {"z"}).set("block_size", 2);
    plain.weight("t", ones({3}));
    plain.proto.mutable_graph()->mutable_node()->SwapElements(0, 1);
    FAILS_IN(ValueError, "load_onnx: ", "blocks of 2 with a scale of shape (3,)", load_onnx_from_memory(plain.bytes()));
    Model narrow(21);
    narrow.input("x", {"2"}).weight("s", full({}, 1.0f));
    narrow.node("QuantizeLinear", {"x", "s"}, {"y"}).set("output_dtype", onnx::TensorProto::INT8);
    narrow.output("y");
    CHECK(result_of(narrow, tensor({-100.0f, 300.0f})).to_vector<int>() == std::vector<int>{-100, 127});
    for (const char* op : {"QuantizeLinear", "DequantizeLinear"}) {
        Model other(23);
        other.input("x", {"2"}).weight("s", full({}, 1.0f)).weight("z", full({}, 0, uint8));
        other.node(op, {"x", "s", "z"}, {"y"}).set("output_dtype", onnx::TensorProto::INT8);
        other.output("y");
        FAILS_IN(ValueError, "load_onnx: ", "its output_dtype is INT8", load_onnx_from_memory(other.bytes()));
    }
}

TEST_CASE("functions whose attributes have defaults, and functions of one name") {
    Model model;
    const auto add = [&](const char* op, const char* overload) {
        auto* function = model.proto.add_functions();
        function->set_name("F");
        function->set_domain("own");
        function->add_opset_import()->set_version(17);
        function->add_input("a");
        function->add_output("b");
        if (*overload) add_text(function, 13, overload);
        return std::pair(function, models::add_node(function, op, {"a"}, {"b"}));
    };
    add("Neg", "one");
    add("LeakyRelu", "two").second.refer("alpha", "slope", onnx::AttributeProto::FLOAT);
    onnx::AttributeProto slope;
    slope.set_name("slope");
    slope.set_type(onnx::AttributeProto::FLOAT);
    slope.set_f(0.5f);
    add_text(model.proto.mutable_functions(1), 11, slope.SerializeAsString());
    model.input("x", {"2"});
    model.node("F", {"x"}, {"h"}).domain("own");
    model.node("F", {"h"}, {"y"}).domain("own").set("slope", 0.25);
    for (auto& node : *model.proto.mutable_graph()->mutable_node()) add_text(&node, 8, "two");
    model.output("y");
    CHECK(equal(result_of(model, tensor({-8.0f, 1.0f})), tensor({-1.0f, 1.0f})));
    add_text(model.proto.mutable_functions(1), 11, "no attribute");
    FAILS(FileError, "load_onnx: the model in memory: a default of the function F cannot be read", load_onnx_from_memory(model.bytes()));
}

TEST_CASE("what Resize takes is not mixed with what lies beside it") {
    const float inf = std::numeric_limits<float>::infinity();
    Model model(18);
    model.input("x", {"1", "1", "3"}).weight("s", tensor({1.0f, 1.0f, 2.0f}));
    model.node("Resize", {"x", "", "s"}, {"y"});
    model.output("y");
    CHECK(equal(result_of(model, tensor({1.0f, -inf, 3.0f}).reshape({1, 1, 3})).reshape({6}), tensor({1.0f, 1.0f, -inf, -inf, 3.0f, 3.0f})));
    for (const std::int64_t size : {std::int64_t{1} << 40, std::int64_t{1} << 61}) {
        Model huge(18);
        huge.input("x", {"1", "1", "3"}).weight("n", tensor({std::int64_t{1}, std::int64_t{1}, size}));
        huge.node("Resize", {"x", "", "", "n"}, {"y"}).set("mode", "cubic");  // a matrix
        huge.output("y");
        CHECK_THROWS_AS(load_onnx_from_memory(huge.bytes()), OutOfMemory);
    }
}

TEST_CASE("reductions over nothing still do what they do to an element") {
    const Tensor x = tensor({-2.0f, 3.0f});
    const auto reduced = [&](const char* op) {
        Model model(18);
        model.input("x", {"2"});
        model.node(op, {"x"}, {"y"}).set("noop_with_empty_axes", 1);
        model.output("y");
        return result_of(model, x);
    };
    CHECK(equal(reduced("ReduceSumSquare"), x * x));
    CHECK(equal(reduced("ReduceL1"), abs(x)));
    CHECK(equal(reduced("ReduceL2"), abs(x)));
    CHECK(allclose(reduced("ReduceLogSum"), log(x), 1e-6, 1e-6, true));
    for (const char* op : {"ReduceLogSumExp", "ReduceSum", "ReduceMean", "ReduceMax", "ReduceProd"}) CHECK(allclose(reduced(op), x));
}

TEST_CASE("zeros that are normalised, and integers that shrink") {
    Model norms;
    norms.input("x", {"2", "2"});
    norms.node("LpNormalization", {"x"}, {"y"});
    norms.output("y");
    CHECK(allclose(result_of(norms, tensor({0.0f, 0.0f, 3.0f, 4.0f}).reshape({2, 2})), tensor({0.0f, 0.0f, 0.6f, 0.8f}).reshape({2, 2})));
    Model shrinks;
    shrinks.input("x", {"2"}, onnx::TensorProto::INT32);
    shrinks.node("Shrink", {"x"}, {"y"}).set("lambd", 1.5).set("bias", 1.5);
    shrinks.output("y");
    CHECK(equal(result_of(shrinks, tensor({-3, 4}, int32)), tensor({-1, 2}, int32)));
}

TEST_CASE("what would be taken for something else is refused") {
    Model dilated(18);
    dilated.input("x", {"1", "1", "5"});
    dilated.node("LpPool", {"x"}, {"y"}).set("kernel_shape", std::vector<std::int64_t>{2}).set("dilations", std::vector<std::int64_t>{2});
    dilated.output("y");
    FAILS_IN(ValueError, "load_onnx: ", "dilated pools of powers", load_onnx_from_memory(dilated.bytes()));
    Model twice;
    twice.input("x", {"2"});
    twice.node("Exp", {"x"}, {"y"});
    twice.node("Neg", {"x"}, {"y"});
    twice.output("y");
    FAILS_IN(FileError, "load_onnx: ", "two nodes make y", load_onnx_from_memory(twice.bytes()));
    Model later(99);
    later.input("x", {"2"});
    later.node("Exp", {"x"}, {"y"});
    later.output("y");
    FAILS_IN(FileError, "load_onnx: ", "its opset is 99", load_onnx_from_memory(later.bytes()));
}
