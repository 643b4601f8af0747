// What later opsets and versions of the format have added, and what models of these must not be taken for. Numbers are onnxruntime's, or the
// specification's.
#include <catch2/catch.hpp>

#include <cmath>
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

// --- Types that Tapir has not ------------------------------------------------------------------------------------------------------

namespace {

// x as the type and back.
std::vector<float> through(int type, const std::vector<float>& x, bool saturate = true, const char* round_mode = "up") {
    Model model(25);
    model.input("x", {std::to_string(x.size())});
    models::Node cast = model.node("Cast", {"x"}, {"z"});
    cast.set("to", type).set("saturate", saturate ? 1 : 0).set("round_mode", std::string(round_mode));
    model.node("Cast", {"z"}, {"y"}).set("to", onnx::TensorProto::FLOAT);
    model.output("y");
    return result_of(model, tensor(x)).to_vector<float>();
}

}  // namespace

// Values of the papers' tables; halves go to the even number.
TEST_CASE("casts to floating types of 8 and 4 bits and back") {
    const float inf = std::numeric_limits<float>::infinity();
    const int e4m3fn = 17, e4m3fnuz = 18, e5m2 = 19, e5m2fnuz = 20, e2m1 = 23, e8m0 = 24;
    using Floats = std::vector<float>;
    CHECK(through(e4m3fn, {0.3f, -1.0625f, 1.1875f, 464.0f, -1e4f, inf, 0x1p-10f, 0x1.8p-10f}) ==
          Floats{0.3125f, -1, 1.25f, 448, -448, 448, 0, 0x1p-9f});
    CHECK(std::isnan(through(e4m3fn, {465.0f}, /*saturate=*/false)[0]));
    CHECK(through(e4m3fn, {464.0f}, false) == Floats{448});
    CHECK(through(e4m3fnuz, {0.3f, 1e4f, -0.0f}) == Floats{0.3125f, 240, 0});
    CHECK(through(e5m2, {0.3f, 61439.0f, -1e6f}) == Floats{0.3125f, 57344, -57344});
    CHECK(through(e5m2, {61439.0f, 61440.0f, -inf}, false) == Floats{57344, inf, -inf});
    CHECK(std::isnan(through(e5m2fnuz, {inf}, false)[0]));
    CHECK(through(e2m1, {0.25f, 0.26f, 0.75f, -2.5f, 3.5f, 5.0f, 100.0f}) == Floats{0, 0.5f, 1, -2, 4, 4, 6});
    CHECK(through(e8m0, {1.0f, 1.1f, 3.0f}) == Floats{1, 2, 4});
    CHECK(through(e8m0, {1.9f, 3.0f}, true, "down") == Floats{1, 2});
    CHECK(through(e8m0, {1.4f, 1.5f, 3.5f}, true, "nearest") == Floats{1, 2, 4});
}

TEST_CASE("integers of 4 and 2 bits wrap around, and lie several in a byte") {
    const int uint4 = 21, int4 = 22, uint2 = 25, int2 = 26;
    using Floats = std::vector<float>;
    CHECK(through(int4, {7.9f, 8.0f, -8.0f, -9.0f}) == Floats{7, -8, -8, 7});
    CHECK(through(uint4, {15.0f, 16.0f, -1.0f}) == Floats{15, 0, 15});
    CHECK(through(int2, {1.0f, 2.0f, -2.0f}) == Floats{1, -2, -2});
    CHECK(through(uint2, {3.0f, 4.0f}) == Floats{3, 0});
    Model model(25);
    auto* weight = model.proto.mutable_graph()->add_initializer();
    weight->set_name("w");
    weight->set_data_type(int4);
    weight->add_dims(3);
    weight->set_raw_data(std::string("\xf1\x08", 2));  // 1, -1, -8
    model.input("x", {"3"});
    model.node("Cast", {"w"}, {"z"}).set("to", onnx::TensorProto::FLOAT);
    model.node("Add", {"x", "z"}, {"y"});
    model.output("y");
    CHECK(result_of(model, zeros({3})).to_vector<float>() == Floats{1, -1, -8});
}

// --- Operators ------------------------------------------------------------------------------------------------------------------------

// 1, 2, 3, 4 have the spectrum 10, -2 + 2i, -2, -2 - 2i.
TEST_CASE("a real signal comes back from the half of its spectrum") {
    Model model(20);
    model.input("x", {"1", "3", "2"});
    model.node("DFT", {"x"}, {"y"}).set("inverse", 1).set("onesided", 1);
    model.output("y");
    const Tensor half = tensor({10.0f, 0.0f, -2.0f, 2.0f, -2.0f, 0.0f}).reshape({1, 3, 2});
    CHECK(allclose(result_of(model, half), tensor({1.0f, 2.0f, 3.0f, 4.0f}).reshape({1, 4, 1})));
}

TEST_CASE("pools whose windows have gaps") {
    const std::vector<std::int64_t> two{2};
    const Tensor x = tensor({3.0f, 0.0f, 4.0f, 5.0f, 3.0f}).reshape({1, 1, 5});
    const auto pooled = [&](const char* op) {
        Model model(22);
        model.input("x", {"1", "1", "5"});
        model.node(op, {"x"}, {"y"}).set("kernel_shape", two).set("dilations", two);
        model.output("y");
        return result_of(model, x).to_vector<float>();
    };
    CHECK(pooled("LpPool") == std::vector<float>{5, 5, 5});
    CHECK(pooled("AveragePool") == std::vector<float>{3.5f, 2.5f, 3.5f});
}

// Keys of zeros weigh all values alike; a query that may see none gives zeros.
TEST_CASE("attention with a mask, and positions that are masked") {
    Model model(24);
    model.input("v", {"1", "1", "2", "1"}).weight("q", zeros({1, 1, 2, 1})).weight("m", tensor({1.0f, 1.0f, 0.0f, 0.0f}).reshape({2, 2}).to(bool_));
    model.node("Attention", {"q", "q", "v", "m"}, {"y"});
    model.output("y");
    CHECK(result_of(model, tensor({2.0f, 4.0f}).reshape({1, 1, 2, 1})).to_vector<float>() == std::vector<float>{3, 0});
    Model causal(24);
    causal.input("v", {"1", "1", "2", "1"}).weight("q", zeros({1, 1, 2, 1}));
    causal.node("Attention", {"q", "q", "v"}, {"y"}).set("is_causal", 1);
    causal.output("y");
    CHECK(result_of(causal, tensor({2.0f, 4.0f}).reshape({1, 1, 2, 1})).to_vector<float>() == std::vector<float>{2, 3});
}

TEST_CASE("a loop of as many turns as a constant says is bounded as others are") {
    Model model(21);
    model.weight("count", full({}, std::int64_t{1'000'000'000'000}, int64)).input("x", {"2"});
    onnx::GraphProto* body = model.node("Loop", {"count", "", "x"}, {"y"}).graph("body");
    for (const char* name : {"i", "go", "state"}) body->add_input()->set_name(name);
    models::add_node(body, "Identity", {"go"}, {"goes_on"});
    models::add_node(body, "Neg", {"state"}, {"next"});
    for (const char* name : {"goes_on", "next"}) body->add_output()->set_name(name);
    model.output("y");
    FAILS_IN(ValueError, "load_onnx: ", "did not end within 10000 turns", load_onnx_from_memory(model.bytes()));
}
