// Sizes of what load_onnx() reads: what strides halve, lengths with two names, how much a model may take while it is tried, and which weights
// are parameters.
#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <limits>

#include "../../../fails.h"
#include "../../../nn/data/files.h"
#include "models.h"
#include "tapir/autograd/trace/onnx/onnx.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

using namespace tapir;
using models::Model;
using models::Node;

namespace {

using Ints = std::vector<std::int64_t>;
constexpr int kTypeInt64 = onnx::TensorProto::INT64;

// As auto_pad defines it: what is missing to whole windows, the rest of an odd number at the end, or at the beginning.
std::vector<std::int64_t> same_widths(const Shape& shape, std::int64_t kernel, std::int64_t stride, bool lower) {
    std::vector<std::int64_t> widths;
    for (int d = shape.rank(); d-- > 2;) {
        const std::int64_t size = shape[d], steps = (size + stride - 1) / stride;
        const std::int64_t needed = std::max<std::int64_t>((steps - 1) * stride + kernel - size, 0), less = needed / 2;
        widths.insert(widths.end(),
                      lower ? std::initializer_list<std::int64_t>{needed - less, less} : std::initializer_list<std::int64_t>{less, needed - less});
    }
    return widths;
}

const std::vector<std::pair<int, int>> kImages{{33, 51}, {32, 48}, {7, 8}, {64, 31}, {100, 101}};

}  // namespace

TEST_CASE("windows with auto_pad take images of any size") {
    manual_seed(1);
    const float lowest = -std::numeric_limits<float>::infinity();
    for (const char* automatic : {"SAME_UPPER", "SAME_LOWER"}) {
        for (const int kernel : {2, 3, 5}) {
            const int stride = kernel == 5 ? 3 : 2;
            const Tensor w = randn({4, 3, kernel, kernel});
            for (const char* op : {"MaxPool", "AveragePool", "Conv"}) {
                INFO(op << " of " << kernel << " " << automatic);
                const bool is_conv = op[0] == 'C';
                Model model;
                model.input("x", {"n", "3", "h", "w"}).weight("weight", w);
                Node node = model.node(op, is_conv ? std::vector<std::string>{"x", "weight"} : std::vector<std::string>{"x"}, {"y"});
                node.set("strides", Ints{stride, stride}).set("auto_pad", std::string(automatic)).set("kernel_shape", Ints{kernel, kernel});
                model.output("y");
                const Graph graph = load_onnx_from_memory(model.bytes());
                for (const auto& [height, width] : kImages) {
                    INFO(height << " x " << width);
                    const Tensor x = randn({2, 3, height, width});
                    const std::vector<std::int64_t> widths = same_widths(x.shape(), kernel, stride, automatic[5] == 'L');
                    const Tensor y = graph.run({{"x", x}})[0];
                    if (is_conv) {
                        CHECK(allclose(y, conv2d(pad(x, widths), w, {}, {.stride = stride}), 1e-4, 1e-4));
                    } else if (op[0] == 'M') {
                        CHECK(equal(y, max_pool2d(pad(x, widths, lowest), {kernel, kernel}, {.stride = {stride, stride}})));
                    } else {
                        AvgPoolOptions sums{.stride = {stride, stride}, .divisor_override = 1};
                        const Tensor counts = avg_pool2d(pad(ones_like(x), widths), {kernel, kernel}, sums);
                        CHECK(allclose(y, avg_pool2d(pad(x, widths), {kernel, kernel}, sums) / counts, 1e-5, 1e-5));
                    }
                }
            }
        }
    }
}

namespace {

// What the model gives, loaded for the sizes of each image, is what it gives loaded for all.
void check_all_sizes(const Model& model, const std::vector<std::pair<int, int>>& images) {
    const Graph graph = load_onnx_from_memory(model.bytes());
    INFO(graph.str());
    for (const auto& [height, width] : images) {
        INFO(height << " x " << width);
        const Graph fixed = load_onnx_from_memory(model.bytes(), {.sizes = {{"n", 2}, {"h", height}, {"w", width}}});
        const Tensor x = randn({2, 3, height, width}), y = graph.run({{"x", x}})[0], wanted = fixed.run({{"x", x}})[0];
        CHECK(y.shape() == wanted.shape());
        CHECK(allclose(y, wanted, 1e-5, 1e-5));
    }
}

}  // namespace

TEST_CASE("Resize by scales or by sizes takes images of any size") {
    manual_seed(2);
    const std::vector<std::pair<int, int>> images{{8, 12}, {9, 31}, {40, 7}};
    const auto text = [](Node& node, const char* name, const char* value) { node.set(name, std::string(value)); };
    for (const char* mode : {"nearest", "linear", "cubic"}) {
        for (const char* coordinates :
             {"half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric", "tf_crop_and_resize"}) {
            for (const char* nearest : {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"}) {
                if (mode[0] != 'n' && nearest[0] != 'f') continue;
                for (const char* by : {"scales", "half", "of another", "to 20 x 30"}) {
                    INFO(mode << " " << coordinates << " " << nearest << " by " << by);
                    const bool is_scaled = by[0] == 's' || by[0] == 'h';
                    Model model;
                    model.input("x", {"n", "3", "h", "w"});
                    if (is_scaled) model.weight("scales", by[0] == 's' ? tensor({1.0f, 1.0f, 2.0f, 3.0f}) : tensor({1.0f, 1.0f, 0.5f, 0.5f}));
                    model.weight("roi", tensor({0.0f, 0.0f, 0.25f, -0.5f, 1.0f, 1.0f, 0.75f, 1.5f}));
                    std::string small = "x";
                    if (by[0] == 'o') {  // back to the size of x after a pool that may drop a row
                        model.node("MaxPool", {"x"}, {"small"}).set("kernel_shape", Ints{2, 2}).set("strides", Ints{2, 2});
                        model.node("Shape", {"x"}, {"sizes"});
                        small = "small";
                    } else if (by[0] == 't') {
                        model.node("Shape", {"x"}, {"shape"}).set("end", 2);
                        model.weight("image", tensor({20, 30}, int64));
                        model.node("Concat", {"shape", "image"}, {"sizes"}).set("axis", 0);
                    }
                    Node node = model.node(
                        "Resize", is_scaled ? std::vector<std::string>{small, "roi", "scales"} : std::vector<std::string>{small, "roi", "", "sizes"},
                        {"y"});
                    text(node, "mode", mode);
                    text(node, "coordinate_transformation_mode", coordinates);
                    text(node, "nearest_mode", nearest);
                    model.output("y");
                    check_all_sizes(model, images);
                }
            }
        }
    }
    for (const char* option : {"antialias", "exclude_outside"}) {
        for (const char* mode : {"linear", "cubic"}) {
            INFO(mode << " " << option);
            Model model(18);
            model.input("x", {"n", "3", "h", "w"}).weight("scales", tensor({1.0f, 1.0f, 0.5f, 0.25f}));
            Node node = model.node("Resize", {"x", "", "scales"}, {"y"});
            text(node, "mode", mode);
            node.set(option, 1);
            model.output("y");
            check_all_sizes(model, images);
        }
    }
    for (const char* mode : {"nearest", "linear"}) {  // of opset 10
        for (const float scale : {2.0f, 0.5f}) {
            INFO(mode << " Upsample by " << scale);
            Model model(10);
            model.input("x", {"n", "3", "h", "w"}).weight("scales", tensor({1.0f, 1.0f, scale, scale}));
            Node node = model.node("Resize", {"x", "scales"}, {"y"});
            text(node, "mode", mode);
            model.output("y");
            check_all_sizes(model, images);
        }
    }
}

TEST_CASE("pools whose last window may be cut off take images of any size") {
    manual_seed(3);
    const std::vector<Ints> pads{{0, 0, 0, 0}, {1, 1, 1, 1}, {1, 0, 0, 0}, {0, 1, 1, 0}, {0, 0, 1, 1}, {0, 0, 2, 2}};
    for (const char* op : {"MaxPool", "AveragePool", "LpPool"}) {
        for (const Ints& widths : pads) {
            for (const int stride : {2, 3}) {
                for (const int dilation : {1, 2}) {
                    for (const int counts_pads : {0, 1}) {
                        if (op[0] != 'A' && counts_pads) continue;
                        INFO(op << " pads " << widths[0] << widths[1] << widths[2] << widths[3] << " stride " << stride << " dilation " << dilation
                                << " counts pads " << counts_pads);
                        Model model(19);
                        model.input("x", {"n", "3", "h", "w"});
                        Node node = model.node(op, {"x"}, {"y"});
                        node.set("kernel_shape", Ints{3, 3}).set("strides", Ints{stride, stride}).set("pads", widths).set("ceil_mode", 1);
                        if (dilation > 1) node.set("dilations", Ints{dilation, dilation});
                        if (op[0] == 'A') node.set("count_include_pad", counts_pads);
                        model.output("y");
                        check_all_sizes(model, {{8, 12}, {9, 31}, {40, 7}, {10, 11}});
                    }
                }
            }
        }
    }
}

TEST_CASE("images that are halved three times, and reshaped by their sizes") {
    for (const bool is_deep : {false, true}) {
        Model model;
        model.input("x", {"n", "3", "h", "w"})
            .weight("zero", tensor({0}, int64))
            .weight("two", tensor({2}, int64))
            .weight("three", tensor({3}, int64));
        std::string last = "x";
        for (int i = 0; i < 3; ++i) {
            const std::string next = "p" + std::to_string(i);
            Node node = model.node("MaxPool", {last}, {next});
            node.set("kernel_shape", Ints{2, 2}).set("strides", Ints{2, 2});
            if (is_deep) node.set("auto_pad", std::string("SAME_UPPER"));
            last = next;
        }
        model.node("Shape", {last}, {"shape"});
        model.node("Gather", {"shape", "zero"}, {"n0"});
        model.node("Gather", {"shape", "two"}, {"h0"});
        model.node("Gather", {"shape", "three"}, {"w0"});
        model.node("Mul", {"h0", "w0"}, {"places"});
        model.weight("channels", tensor({3}, int64));
        model.node("Concat", {"n0", "channels", "places"}, {"flat"}).set("axis", 0);
        model.node("Reshape", {last, "flat"}, {"y"});
        model.output("y");
        const Graph graph = load_onnx_from_memory(model.bytes());
        INFO(graph.str());
        for (const auto& [height, width] : {std::pair{33, 51}, {64, 8}, {15, 71}, {100, 37}, {224, 224}}) {
            INFO(height << " x " << width);
            Tensor x = randn({2, 3, height, width}), y = x;
            for (int i = 0; i < 3; ++i) {
                if (is_deep) y = pad(y, {0, y.size(3) % 2, 0, y.size(2) % 2}, -std::numeric_limits<float>::infinity());
                y = max_pool2d(y, {2, 2});
            }
            CHECK(equal(graph.run({{"x", x}})[0], y.reshape({2, 3, -1})));
        }
    }
}

TEST_CASE("what pad and diagonal of named sizes are exported as is loaded for all of them") {
    const auto each = [](const char* what, const auto& fn, const std::vector<Shape>& shapes) {
        INFO(what);
        const files::TemporaryFolder folder;
        const std::string path = (folder.path() / "model.onnx").string();
        save_onnx(path, trace(fn, {{"x", randn({2, 9, 11}), {"n", "t", "s"}}}));
        const Graph graph = load_onnx(path);
        for (const Shape& shape : shapes) {
            const Tensor x = randn(shape);
            CHECK(equal(graph.run({{"x", x}})[0], fn(x)));
        }
    };
    const std::vector<Shape> shapes{{1, 5, 7}, {3, 8, 33}, {2, 21, 6}};
    each("reflect", [](const Tensor& x) { return pad(x, {2, 3, 1, 2}, "reflect"); }, shapes);
    each("diagonal", [](const Tensor& x) { return diagonal(x.matmul(x.transpose(1, 2)), 0, 1, 2) * 2; }, shapes);
}

TEST_CASE("a network that takes no other sizes has multiples, and one that cannot be held for all sizes says so") {
    // x is halved and doubled, and added to itself: odd sizes do not fit.
    Model skips;
    skips.input("x", {"1", "1", "h", "w"}).weight("scales", tensor({1.0f, 1.0f, 2.0f, 2.0f}));
    skips.node("MaxPool", {"x"}, {"half"}).set("kernel_shape", Ints{2, 2}).set("strides", Ints{2, 2});
    Node resize = skips.node("Resize", {"half", "", "scales"}, {"whole"});
    resize.set("coordinate_transformation_mode", std::string("asymmetric")).set("nearest_mode", std::string("floor"));
    skips.node("Concat", {"x", "whole"}, {"y"}).set("axis", 1);
    skips.output("y");
    const Graph graph = load_onnx_from_memory(skips.bytes());
    CHECK(graph.run({{"x", ones({1, 1, 16, 8})}})[0].shape() == Shape{1, 2, 16, 8});
    const Graph by_two = load_onnx_from_memory(skips.bytes(), {.multiples = {{"h", 2}, {"w", 2}}});
    CHECK(by_two.run({{"x", ones({1, 1, 6, 10})}})[0].shape() == Shape{1, 2, 6, 10});
    FAILS_IN(ValueError, "load_onnx: ", "none of its inputs has a dimension deep",
             load_onnx_from_memory(skips.bytes(), {.multiples = {{"deep", 2}}}));
    FAILS_IN(ValueError, "load_onnx: ", "multiples of 0 for the dimension h", load_onnx_from_memory(skips.bytes(), {.multiples = {{"h", 0}}}));
    // As many rows as the remainder of 8 says, doubled: for multiples of 8 a number.
    Model rest;
    rest.input("x", {"1", "h"}).weight("eight", tensor({8}, int64)).weight("one", tensor({1}, int64)).weight("zero", tensor({0}, int64));
    rest.node("Shape", {"x"}, {"shape"});
    rest.node("Gather", {"shape", "one"}, {"h0"});
    rest.node("Mod", {"h0", "eight"}, {"r"});
    rest.node("Mul", {"r", "r"}, {"square"});
    rest.node("Mul", {"square", "h0"}, {"much"});
    rest.node("Add", {"much", "one"}, {"end"});
    rest.node("Concat", {"end", "one"}, {"to"}).set("axis", 0);
    rest.node("Expand", {"one", "to"}, {"rows"});
    rest.output("rows", {}, kTypeInt64);
    FAILS_IN(TapeError, "trace: ", "there is a graph of multiples, with LoadOnnxOptions::multiples = {{\"h\", 8}}",
             load_onnx_from_memory(rest.bytes()));
    const Graph by_eight = load_onnx_from_memory(rest.bytes(), {.multiples = {{"h", 8}}});
    CHECK(by_eight.run({{"x", ones({1, 24})}})[0].shape() == Shape{1, 1});
}

TEST_CASE("lengths with two names are one where options or examples say so") {
    Model model;
    model.input("k", {"1", "s63", "4"}).input("v", {"1", "s10", "4"});
    model.node("Mul", {"k", "v"}, {"y"});
    model.output("y");
    FAILS_IN(ShapeError, "load_onnx: ", "dimensions that are one length under two names are told in LoadOnnxOptions::same",
             load_onnx_from_memory(model.bytes()));
    const Tensor k = randn({1, 3, 4}), v = randn({1, 3, 4});
    const Graph told = load_onnx_from_memory(model.bytes(), {.same = {{"s63", "s10"}}});
    CHECK(equal(told.run({{"k", k}, {"v", v}})[0], k * v));
    CHECK(told.dims() == std::vector<std::string>{"s63"});
    const Graph seen = load_onnx_from_memory(model.bytes(), {.examples = {{"k", randn({1, 5, 4})}, {"v", randn({1, 5, 4})}}});
    CHECK(equal(seen.run({{"k", k}, {"v", v}})[0], k * v));
    CHECK(load_onnx_from_memory(model.bytes(), {.sizes = {{"s10", 3}}, .same = {{"s63", "s10"}}}).dims().empty());
    FAILS_IN(ValueError, "load_onnx: ", "none of its inputs has a dimension s11", load_onnx_from_memory(model.bytes(), {.same = {{"s63", "s11"}}}));
}

TEST_CASE("a model that is tried holds what is still needed only") {
    // A chain of 40 layers, of 4 MiB each for the largest images that it is tried with.
    Model model;
    model.input("x", {"1", "1", "h", "w"}).weight("w", ones({1, 1, 3, 3}));
    std::string last = "x";
    for (int i = 0; i < 40; ++i) {
        const std::string next = "y" + std::to_string(i);
        model.node(i % 2 ? "Relu" : "Conv", i % 2 ? std::vector<std::string>{last} : std::vector<std::string>{last, "w"}, {next});
        if (i % 2 == 0) models::Node(model.proto.mutable_graph()->mutable_node(i)).set("pads", Ints{1, 1, 1, 1});
        last = next;
    }
    model.output(last);
    const Tensor image = ones({1, 1, 1000, 1000});
    for (const bool has_example : {false, true}) {
        LoadOnnxOptions options;
        if (has_example) options.examples = {{"x", image}};
        CHECK(load_onnx_from_memory(model.bytes(), options).run({{"x", image}})[0].shape() == image.shape());
    }
}

TEST_CASE("a weight of one element is a number of the program, but for places of weights") {
    Model model;
    model.input("x", {"2", "1"}).weight("root", full({}, 1.414f)).weight("half", full({1}, 0.5f)).weight("w", full({1, 1}, 3.0f));
    model.weight("b", full({1}, 1.0f)).weight("scale", full({}, 2.0f)).weight("slope", full({1}, 0.25f));
    model.node("MatMul", {"x", "w"}, {"h"});
    model.node("Add", {"h", "b"}, {"biased"});
    model.node("Div", {"biased", "root"}, {"d"});
    model.node("Add", {"d", "half"}, {"e"});
    model.node("PRelu", {"e", "slope"}, {"p"});
    model.node("Mul", {"p", "scale"}, {"y"});
    model.output("y");
    const auto names = [&](const LoadOnnxOptions& options) {
        std::string text;
        const Graph graph = load_onnx_from_memory(model.bytes(), options);
        for (const Graph::Value* value : graph.parameters()) text += value->name + " ";
        return text;
    };
    CHECK(names({}) == "w b slope ");
    CHECK(names({.parameters = {"scale"}}) == "w b slope scale ");
    CHECK(names({.constants = {"slope"}, .parameters = {"half"}}) == "w b half ");
    FAILS_IN(ValueError, "load_onnx: ", "it has no weight gain, which LoadOnnxOptions::parameters names",
             load_onnx_from_memory(model.bytes(), {.parameters = {"gain"}}));
}

TEST_CASE("NonMaxSuppression takes as many boxes as a run has") {
    Model model(11);
    model.input("boxes", {"1", "n", "4"})
        .input("scores", {"1", "2", "n"})
        .weight("most", tensor({10}, int64))
        .weight("iou", tensor({0.5f}))
        .weight("least", tensor({0.1f}));
    model.node("NonMaxSuppression", {"boxes", "scores", "most", "iou", "least"}, {"found"});
    model.output("found", {}, kTypeInt64);
    const Graph graph = load_onnx_from_memory(model.bytes());
    // Two boxes that overlap by 0.9 / 1.1, and one beside them.
    const Tensor boxes = tensor({0.0f, 0.0f, 1.0f, 1.0f, 0.0f, 0.1f, 1.0f, 1.1f, 0.0f, 10.0f, 1.0f, 11.0f}).reshape({1, 3, 4});
    const Tensor scores = tensor({0.9f, 0.75f, 0.6f, 0.3f, 0.8f, 0.05f}).reshape({1, 2, 3});
    CHECK(graph.run({{"boxes", boxes}, {"scores", scores}})[0].to_vector<std::int64_t>() == Ints{0, 0, 0, 0, 0, 2, 0, 1, 1});
    const Tensor fewer = boxes.narrow(1, 0, 2), their_scores = scores.narrow(2, 0, 2);
    CHECK(graph.run({{"boxes", fewer}, {"scores", their_scores}})[0].to_vector<std::int64_t>() == Ints{0, 0, 0, 0, 1, 1});
}

TEST_CASE("what depends on sizes is told with the node that it happens in") {
    Model model;
    model.input("x", {"n", "2"}).input("v", {"1"}).weight("one", tensor({1}, int64)).weight("zero", tensor({0}, int64));
    model.node("Shape", {"x"}, {"shape"});
    model.node("Gather", {"shape", "zero"}, {"n0"});
    model.node("Mod", {"n0", "seven"}, {"r"});
    model.node("Mul", {"r", "r"}, {"square"});
    model.node("Mul", {"square", "n0"}, {"much"});
    model.node("Concat", {"much", "one"}, {"to"}).set("axis", 0);
    model.node("Expand", {"v", "to"}, {"y"}).name("/rows/Expand");
    model.weight("seven", tensor({7}, int64));
    model.output("y");
    FAILS_IN(TapeError, "trace: ", "(in /rows/Expand)", load_onnx_from_memory(model.bytes()));
}

TEST_CASE("loops of constants inside each other are bounded by all of their turns") {
    Model model(21);
    model.weight("count", full({}, std::int64_t{5000}, int64)).input("x", {"2"});
    onnx::GraphProto* outer = model.node("Loop", {"count", "", "x"}, {"y"}).graph("body");
    for (const char* name : {"i", "go", "state"}) outer->add_input()->set_name(name);
    models::add_node(outer, "Identity", {"go"}, {"goes_on"});
    onnx::GraphProto* inner = models::add_node(outer, "Loop", {"count", "", "state"}, {"next"}).graph("body");
    for (const char* name : {"j", "going", "inside"}) inner->add_input()->set_name(name);
    models::add_node(inner, "Identity", {"going"}, {"on"});
    models::add_node(inner, "Neg", {"inside"}, {"turned"});
    for (const char* name : {"on", "turned"}) inner->add_output()->set_name(name);
    for (const char* name : {"goes_on", "next"}) outer->add_output()->set_name(name);
    model.output("y");
    FAILS_IN(ValueError, "load_onnx: ", "did not end within 10000 turns", load_onnx_from_memory(model.bytes()));
}

TEST_CASE("integers divided by 0 are Div's, and sequences have examples") {
    Model model;
    model.input("a", {"2"}, kTypeInt64).input("b", {"2"}, kTypeInt64);
    model.node("Div", {"a", "b"}, {"y"}).name("/quotient/Div");
    model.output("y", {}, kTypeInt64);
    const Graph graph = load_onnx_from_memory(model.bytes());
    const Tensor a = tensor({7, -7}, int64);
    CHECK(graph({a, tensor({2, 2}, int64)})[0].to_vector<std::int64_t>() == Ints{3, -3});
    const auto run = [&] { graph.run({{"a", a}, {"b", tensor({1, 0}, int64)}}); };
    CHECK_THROWS_WITH(run(), Catch::Contains(": Div: integer division by 0 (in /quotient/Div)"));
    CHECK_THROWS_WITH(graph({a, tensor({1, 0}, int64)}), Catch::Contains(": Div: integer division by 0 (in /quotient/Div)"));
    CHECK_THROWS_WITH(graph.compile()(a, tensor({1, 0}, int64)), Catch::Contains(": Div: integer division by 0 (in /quotient/Div)"));
    for (const int fmod : {0, 1}) {
        Model rest(14);
        rest.input("a", {"2"}, kTypeInt64).input("b", {"2"}, kTypeInt64);
        rest.node("Mod", {"a", "b"}, {"y"}).set("fmod", fmod);
        rest.output("y", {}, kTypeInt64);
        CHECK_THROWS_WITH(load_onnx_from_memory(rest.bytes())({a, tensor({1, 0}, int64)}), Catch::Contains(": Mod: integer division by 0 (in y)"));
    }
    const Graph traced = trace([](const std::vector<Tensor>& x) { return std::vector<Tensor>{div(x[0], x[1], "trunc"), div(x[0], x[1], "floor")}; },
                               {{"a", a}, {"b", a}});
    CHECK_THROWS_WITH(traced({a, tensor({1, 0}, int64)}), Catch::Contains(": div: integer division by 0"));
    FAILS(ValueError, "div: integer division by 0", div(a, tensor({1, 0}, int64), "trunc"));
    FAILS(ValueError, "div: integer division by 0", div(a, 0, "trunc"));
    Model sequence;
    auto* input = sequence.proto.mutable_graph()->add_input();
    input->set_name("xs");
    input->mutable_type()->mutable_sequence_type()->mutable_elem_type()->mutable_tensor_type()->set_elem_type(onnx::TensorProto::FLOAT);
    input->mutable_type()->mutable_sequence_type()->mutable_elem_type()->mutable_tensor_type()->mutable_shape()->add_dim()->set_dim_value(2);
    sequence.node("ConcatFromSequence", {"xs"}, {"y"}).set("axis", 0);
    sequence.output("y");
    FAILS_IN(
        ValueError, "load_onnx: ",
        "the input xs is a sequence: give as many examples as it is long in LoadOnnxOptions::examples, xs_0, xs_1, ..., or xs as an undefined Tensor",
        load_onnx_from_memory(sequence.bytes()));
    const Graph of_two = load_onnx_from_memory(sequence.bytes(), {.examples = {{"xs_0", ones({2})}, {"xs_1", zeros({2})}}});
    Model lengths = sequence;
    lengths.proto.mutable_graph()->mutable_node(0)->set_op_type("SequenceLength");
    lengths.proto.mutable_graph()->mutable_node(0)->clear_attribute();
    CHECK(load_onnx_from_memory(lengths.bytes(), {.examples = {{"xs", Tensor()}}})({})[0].item<std::int64_t>() == 0);
    CHECK(of_two({ones({2}), zeros({2})})[0].to_vector<float>() == std::vector<float>{1, 1, 0, 0});
}

TEST_CASE("weights may lie anywhere in the model's folder") {
    const files::TemporaryFolder folder;
    std::filesystem::create_directory(folder.path() / "sub");
    std::ofstream(folder.path() / "sub" / "ok.bin", std::ios::binary).write("\0\0\x80\x3f", 4);  // 1.0f
    Model model;
    model.input("x", {"1"});
    auto* weight = model.proto.mutable_graph()->add_initializer();
    weight->set_name("w");
    weight->set_data_type(onnx::TensorProto::FLOAT);
    weight->add_dims(1);
    weight->set_data_location(onnx::TensorProto::EXTERNAL);
    auto* location = weight->add_external_data();
    location->set_key("location");
    model.node("Add", {"x", "w"}, {"y"});
    model.output("y");
    for (const char* path : {"sub/ok.bin", "sub/../sub/ok.bin", "./sub/./ok.bin"}) {
        INFO(path);
        location->set_value(path);
        const std::string file = folder.write("model.onnx", model.bytes()).string();
        CHECK(load_onnx(file)({ones({1})})[0].item() == 2);
    }
    location->set_value("sub/../../ok.bin");
    FAILS_IN(FileError, "load_onnx: ", "outside the model's folder", load_onnx(folder.write("model.onnx", model.bytes()).string()));
}
