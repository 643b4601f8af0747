// What graphs know of the ops of layers: the attributes have PyTorch's names and numbers, and calls that are none are refused.
#include <catch2/catch.hpp>
#include <functional>

#include "tapir/autograd/trace/run/compiled_graph.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

using Sizes = std::vector<SymInt>;
using Named = std::vector<std::pair<std::string, Attribute>>;

// The attributes of the only node that fn makes of x.
template <class Fn>
std::string attributes_of(const Fn& fn, const std::vector<TraceInput>& inputs) {
    const Graph graph = trace(fn, inputs);
    REQUIRE(graph.nodes().size() == 1);
    std::string text(graph.nodes()[0]->op());
    for (const auto& [name, value] : graph.nodes()[0]->attributes().all()) text += " " + name + "=" + to_string(value);
    return text;
}

// Makes a call with inputs of these shapes; gives that of its first result.
std::string call(const char* op, const std::vector<Shape>& shapes, const Named& attributes) {
    Graph graph;
    std::vector<Graph::Value*> inputs;
    for (const Shape& shape : shapes) {
        inputs.push_back(graph.add_input("x" + std::to_string(inputs.size()), float32, {shape.begin(), shape.end()}));
    }
    return to_string(Attribute(graph.insert(nullptr, op, inputs, attributes)->results[0]->shape));
}

}  // namespace

TEST_CASE("a convolution in a graph has PyTorch's arguments") {
    const Tensor w = randn({4, 3, 3, 2});
    const TraceInput x{"x", randn({2, 3, 8, 9})};
    CHECK(attributes_of([&](const Tensor& t) { return conv2d(t, w, {}, {.stride = {2, 1}, .padding = {1, 0}}); }, {x}) ==
          "convolution stride=(2, 1) padding=(1, 0) dilation=(1, 1) groups=1");
    // What 'same' adds at the ends is another number than at the beginnings, where it is odd.
    CHECK(attributes_of([&](const Tensor& t) { return conv2d(t, w, {}, {.padding = "same"}); }, {x}) ==
          "convolution stride=(1, 1) padding=(1, 0, 1, 1) dilation=(1, 1) groups=1");
    const Tensor turned = randn({3, 4, 3, 2});
    CHECK(attributes_of([&](const Tensor& t) { return conv_transpose2d(t, turned, {}, {.stride = 2, .output_padding = {1, 0}}); }, {x}) ==
          "conv_transpose stride=(2, 2) padding=(0, 0) output_padding=(1, 0) dilation=(1, 1) groups=1");
    CHECK(attributes_of([&](const Tensor& t) { return max_pool2d(t, 3, {.stride = 2, .padding = 1}); }, {x}) ==
          "max_pool kernel_size=(3, 3) stride=(2, 2) padding=(1, 1) dilation=(1, 1) ceil_mode=false output_size=()");
    CHECK(attributes_of([&](const Tensor& t) { return adaptive_avg_pool2d(t, {3, -1}); }, {x}) ==
          "avg_pool kernel_size=() stride=() padding=() ceil_mode=false count_include_pad=true divisor_override=0 output_size=(3, 9)");
    CHECK(attributes_of([&](const Tensor& t) { return interpolate(t, {.scale_factor = 2, .mode = "bilinear"}); }, {x}) ==
          "interpolate size=() scale_factor_d=0.0 scale_factor_h=2.0 scale_factor_w=2.0 mode=\"linear\" align_corners=false input_size=()");
}

TEST_CASE("gradients of convolutions with ends of their own run again") {
    manual_seed(2);
    const Tensor w = randn({3, 2, 2}, {float64});
    // Both gradients of: an output_padding beyond the stride, 'same' of an even kernel, and a stride that leaves elements out.
    const auto check = [&](const auto& fn, const Tensor& x, const Tensor& weight) {
        const auto gradients = [&](const Tensor& a, const Tensor& b) {
            Tape tape;
            const Tensor x_leaf = a.clone().requires_grad_(), w_leaf = b.clone().requires_grad_();
            return tape.gradient(sum(sin(fn(x_leaf, w_leaf))), {x_leaf, w_leaf});
        };
        const Graph graph = trace(gradients, {{"x", x, {"batch"}}, {"w", weight}});
        INFO(graph.str());
        const Tensor other = randn({5, x.size(1), x.size(2)}, {float64});
        const std::vector<Tensor> got = graph({other, weight}), wanted = gradients(other, weight);
        for (std::size_t i = 0; i < 2; ++i) CHECK(allclose(got[i], wanted[i], 1e-10, 1e-10));
    };
    check([](const Tensor& x, const Tensor& weight) { return conv_transpose1d(x, weight, {}, {.output_padding = 2, .dilation = 3}); },
          randn({2, 3, 5}, {float64}), w);
    check([](const Tensor& x, const Tensor& weight) { return conv1d(x, weight, {}, {.padding = "same"}); }, randn({2, 2, 5}, {float64}), w);
    check([](const Tensor& x, const Tensor& weight) { return conv1d(x, weight, {}, {.stride = 3, .padding = 1}); }, randn({2, 2, 9}, {float64}), w);
}

TEST_CASE("calls that fit no layer are refused in a graph") {
    CHECK_THROWS_WITH(call("conv_weight", {{2, 3, 5, 5}, {3, 4, 3, 3}}, {{"kernel_size", Sizes{3, 3}}}),
                      Catch::Contains("are no input and result of a convolution"));
    CHECK_THROWS_WITH(call("conv_weight", {{2, 3, 5, 5}, {2, 4, 3, 3}}, {{"kernel_size", Sizes{3, 3}}, {"groups", SymInt(2)}}),
                      Catch::Contains("2 groups do not divide 3 and 4 channels"));
    CHECK_THROWS_WITH(call("avg_pool_gradient", {{2, 3, 4, 4}}, {{"kernel_size", Sizes{2}}, {"input_size", Sizes{6, 6}}}),
                      Catch::Contains("is not what windows of an input of (6, 6) give"));
    CHECK(call("avg_pool_gradient", {{2, 3, 3, 3}}, {{"kernel_size", Sizes{2}}, {"input_size", Sizes{6, 6}}}) == "(2, 3, 6, 6)");
    const char* const no_gates = "with these layouts, do not hold the gates of";
    CHECK_THROWS_WITH(call("lstm_gates", {{2, 12}}, {}), Catch::Contains(no_gates));  // no child's c
    CHECK_THROWS_WITH(call("lstm_gates", {{2, 12}, {2, 3}}, {{"layouts", Sizes{4, 0, 1, 0, 3, 7}}}), Catch::Contains(no_gates));
    CHECK_THROWS_WITH(call("lstm_gates", {{2, 12}, {2, 3}}, {{"layouts", Sizes{4, 0, -1, 0, 3, 2}}}), Catch::Contains(no_gates));
    CHECK_THROWS_WITH(call("dropout", {{2, 3}, {4, 3}}, {}), Catch::Contains("expand"));
    CHECK_THROWS_WITH(call("causal_softmax", {{3}}, {}), Catch::Contains("causal_softmax: needs 2 dimensions, got shape (3,)"));
}

TEST_CASE("gradients that fit no layer are refused in a graph") {
    const char* const of_one_shape = "needs a gradient and a result of one shape and floating dtype, got (2, 3) of float32 and (3, 2) of float32";
    CHECK_THROWS_WITH(call("softmax_backward", {{2, 3}, {3, 2}}, {{"dim", SymInt(0)}}), Catch::Contains(of_one_shape));
    CHECK_THROWS_WITH(call("log_softmax_backward", {{2, 3}, {3, 2}}, {{"dim", SymInt(0)}}), Catch::Contains(of_one_shape));
    CHECK_THROWS_WITH(call("layer_norm_backward", {{2, 3}, {3, 2}}, {{"normalized_shape", Sizes{2}}}),
                      Catch::Contains("layer_norm_backward: needs a gradient and an input of one shape and floating dtype"));
    CHECK_THROWS_WITH(call("layer_norm_backward", {{2, 3}, {2, 3}}, {{"normalized_shape", Sizes{2}}}), Catch::Contains("the last dimensions of"));
    CHECK_THROWS_WITH(
        call("batch_norm_backward", {{2, 3, 4}, {2, 4, 3}}, {}),
        Catch::Contains("batch_norm_backward: needs a gradient and an input of one shape and floating dtype, got (2, 3, 4) of float32"));
    CHECK_THROWS_WITH(call("batch_norm_backward", {{2, 3}, {2, 3}, {2}}, {{"has_weight", true}}),
                      Catch::Contains("batch_norm_backward: the weight has shape (2,), expected (3,)"));
    CHECK_THROWS_WITH(
        call("group_norm_backward", {{2, 4, 3}, {2, 3, 4}}, {{"num_groups", SymInt(1)}}),
        Catch::Contains("group_norm_backward: needs a gradient and an input of one shape and floating dtype, got (2, 4, 3) of float32"));
    CHECK_THROWS_WITH(call("group_norm_backward", {{2, 4, 3}, {2, 4, 3}}, {{"num_groups", SymInt(3)}}),
                      Catch::Contains("group_norm_backward: 3 groups do not divide 4 channels"));
    const auto of_windows = [&](const Shape& indices, DType dtype) {
        Graph graph;
        const std::vector<Graph::Value*> inputs = {graph.add_input("g", float32, {2, 3, 4, 4}),
                                                   graph.add_input("indices", dtype, {indices.begin(), indices.end()})};
        graph.insert(nullptr, "max_pool_backward", inputs, {{"kernel_size", Sizes{2}}, {"input_size", Sizes{8, 8}}});
    };
    CHECK_NOTHROW(of_windows({2, 3, 4, 4}, int64));
    const char* const no_indices = "max_pool_backward: needs a gradient and indices of one shape, got (2, 3, 4, 4) of float32 and (2, 3, 4, ";
    CHECK_THROWS_WITH(of_windows({2, 3, 4, 5}, int32), Catch::Contains(std::string(no_indices) + "5) of int32"));
    CHECK_THROWS_WITH(of_windows({2, 3, 4, 4}, float32), Catch::Contains(std::string(no_indices) + "4) of float32"));
    const char* const no_gates = "lstm_gates_backward: 2 operands, with these layouts, do not hold the gates of 1 children";
    CHECK_THROWS_WITH(call("lstm_gates_backward", {{2, 3}, {2, 12}}, {}), Catch::Contains(no_gates));
    const Named no_gradient = {{"has_grad_h", false}, {"has_grad_c", false}};
    CHECK_THROWS_WITH(call("lstm_gates_backward", {{2, 12}, {2, 3}}, no_gradient), Catch::Contains("needs the gradient of h or that of c"));
    CHECK_THROWS_WITH(call("lstm_gates_backward", {{3, 2}, {2, 3}, {2, 12}, {2, 3}}, {}),
                      Catch::Contains("the gradient of h has shape (3, 2), expected (2, 3)"));
    CHECK_THROWS_WITH(call("lstm_gates_backward", {{2, 3}, {2, 3}, {2, 4, 3}, {2, 12}, {2, 3}}, {{"has_activations", true}}),
                      Catch::Contains("the activations must have shape (2, 5, 3) and float32, got (2, 4, 3) and float32"));
    CHECK(call("lstm_gates_backward", {{2, 3}, {2, 12}, {2, 3}}, {{"has_grad_h", false}}) == "(2, 12)");
    CHECK_THROWS_WITH(call("gru_gates_backward", {{3, 2}, {2, 9}, {2, 9}, {2, 3}}, {}),
                      Catch::Contains("gru_gates_backward: the gradient has shape (3, 2), expected (2, 3)"));
    CHECK_THROWS_WITH(call("gru_gates_backward", {{2, 3}, {2, 4, 3}, {2, 9}, {2, 9}, {2, 3}}, {{"has_activations", true}}),
                      Catch::Contains("gru_gates_backward: the activations have shape (2, 4, 3), expected (2, 3, 3)"));
    CHECK(call("gru_gates_backward", {{2, 3}, {2, 3, 3}, {2, 9}, {2, 9}, {2, 3}}, {{"has_activations", true}}) == "(2, 9)");
    CHECK_THROWS_WITH(call("grid_sample_backward", {{1, 2, 4, 5}, {1, 2, 6, 7}, {1, 5, 4, 2}}, {}),
                      Catch::Contains("grid_sample_backward: needs a gradient of shape (1, 2, 5, 4) and float32, got (1, 2, 4, 5) and float32"));
    CHECK(call("grid_sample_backward", {{1, 2, 5, 4}, {1, 2, 6, 7}, {1, 5, 4, 2}}, {{"of_input", false}}) == "(1, 5, 4, 2)");
    const auto of_classes = [&](const Shape& g, DType dtype) {
        Graph graph;
        const std::vector<Graph::Value*> inputs = {graph.add_input("g", float32, {g.begin(), g.end()}), graph.add_input("x", dtype, {4, 5}),
                                                   graph.add_input("targets", int64, {4})};
        graph.insert(nullptr, "cross_entropy_backward", inputs, {});
    };
    CHECK_NOTHROW(of_classes({}, float32));
    CHECK_THROWS_WITH(of_classes({4}, float32),
                      Catch::Contains("cross_entropy_backward: needs a gradient of shape () and float32, got (4,) and float32"));
    CHECK_THROWS_WITH(of_classes({}, int64), Catch::Contains("cross_entropy_backward: needs an input of a floating dtype, not int64"));
}

TEST_CASE("a traced training step calls one kernel for the gradient of a layer, as an eager one does") {
    const Tensor x = randn({6, 5}), w = randn({5}), b = randn({5}), targets = randint(0, 5, {6});
    const auto ops_of = [&](const auto& fn) {
        const Graph graph = trace(
            [&](const Tensor& t) {
                Tape tape;
                const Tensor leaf = t.detach().requires_grad_();
                return tape.gradient(fn(leaf), {leaf})[0];
            },
            {{"x", x}});
        std::string list;
        for (const auto& node : graph.nodes()) list += std::string(node->op()) + " ";
        return list;
    };
    CHECK(ops_of([&](const Tensor& t) { return cross_entropy(t, targets); }) == "detach cross_entropy ones cross_entropy_backward ");
    CHECK_THAT(ops_of([&](const Tensor& t) { return sum(softmax(t, 1)); }), Catch::EndsWith("softmax_backward "));
    CHECK_THAT(ops_of([&](const Tensor& t) { return sum(log_softmax(t, 1)); }), Catch::EndsWith("log_softmax_backward "));
    CHECK_THAT(ops_of([&](const Tensor& t) { return sum(layer_norm(t, {5}, w, b)); }), Catch::EndsWith("layer_norm_backward "));
    CHECK_THAT(ops_of([&](const Tensor& t) { return sum(max_pool1d(unsqueeze(t, 1), 2)); }), Catch::Contains(" max_pool_backward "));
    CHECK_THAT(ops_of([&](const Tensor& t) { return sum(batch_norm(t, {}, {}, w, b, {.training = true})); }),
               Catch::EndsWith("batch_norm_backward "));
    CHECK_THAT(ops_of([&](const Tensor& t) { return sum(group_norm(unsqueeze(t, 0), 2)); }), Catch::Contains(" group_norm_backward "));
    const Tensor grid = rand({1, 3, 3, 2});
    CHECK_THAT(ops_of([&](const Tensor& t) { return sum(square(grid_sample(t.reshape({1, 1, 6, 5}), grid))); }),
               Catch::Contains("grid_sample_backward "));
    const Tensor gates = randn({6, 20});
    CHECK_THAT(ops_of([&](const Tensor& t) { return sum(lstm_gates(gates, t).h); }), Catch::EndsWith("lstm_gates_backward "));
    CHECK_THAT(ops_of([&](const Tensor& t) { return sum(gru_gates(gates.narrow(1, 0, 15), gates.narrow(1, 5, 15), t)); }),
               Catch::EndsWith("gru_gates_backward "));
    const Tensor steps = tensor(6), count = tensor(2);
    CHECK_THAT(ops_of([&](const Tensor& t) { return ctc_loss(t, tensor({1, 2}), steps, count, {.reduction = Reduction::sum}); }),
               Catch::EndsWith(" ctc_loss sum ones reshape expand reshape gated_mul reshape "));
}

TEST_CASE("a graph of ctc_loss's gradient takes any number of steps, and can be differentiated again") {
    const Tensor targets = tensor({{1, 2}, {2, 2}}), counts = tensor({2, 1});
    const auto gradient = [&](const Tensor& x, const Tensor& steps) {
        Tape tape;
        const Tensor leaf = x.clone().requires_grad_();
        return tape.gradient(ctc_loss(log_softmax(leaf, 2), targets, steps, counts), {leaf})[0];
    };
    const Graph graph = trace(gradient, {{"x", randn({5, 2, 3}, {float64}), {"time"}}, {"steps", tensor({5, 4})}});
    for (const std::int64_t time : {4, 9}) {
        Tensor x = randn({time, 2, 3}, {float64});
        const Tensor steps = tensor({time, time - 1});
        CHECK(allclose(graph({x, steps})[0], gradient(x, steps), 1e-12, 1e-12));
        CHECK(gradcheck([&](const std::vector<Tensor>& t) { return graph({t[0], steps})[0]; }, {x.requires_grad_()}));
    }
}

TEST_CASE("gradients of layers of images are the same where they are recorded, and lie in memory as else") {
    for (const DType dtype : {float64, float32, float16, bfloat16}) {
        INFO(name(dtype));
        const Tensor images = randn({3, 4, 5, 6}, {dtype}), last = images.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2});
        const DType of_parameters = dtype == float64 ? float64 : float32;  // wider than 16-bit images
        const Tensor w = rand({4}, {of_parameters}).requires_grad_(), b = rand({4}, {of_parameters}).requires_grad_();
        const auto check = [&](const char* what, const auto& fn, const std::vector<Tensor>& parameters) {
            for (const Tensor& x : {images, last}) {
                INFO(what << (x.is_contiguous() ? "" : ", channels last"));
                const auto gradients = [&](bool create_graph) {
                    Tape tape;
                    std::vector<Tensor> leaves = parameters;
                    leaves.push_back(x.detach().requires_grad_());
                    const Tensor y = fn(leaves.back());
                    return tape.gradient(sum(square(y.to(of_parameters))), leaves, {.create_graph = create_graph});
                };
                const std::vector<Tensor> wanted = gradients(false), got = gradients(true);
                for (std::size_t i = 0; i < wanted.size(); ++i) {
                    CHECK(got[i].dtype() == wanted[i].dtype());
                    CHECK(got[i].strides() == wanted[i].strides());
                    CHECK(equal(got[i], wanted[i]));
                }
            }
        };
        check("max_pool2d", [](const Tensor& x) { return max_pool2d(x, 2, {.stride = 1, .padding = 1}); }, {});
        check("batch_norm", [&](const Tensor& x) { return batch_norm(x, {}, {}, w, b, {.training = true}); }, {w, b});
        check("group_norm", [&](const Tensor& x) { return group_norm(x, 2, w, b); }, {w, b});
    }
}

TEST_CASE("traced gradients of LSTM steps, in any layout, and of GRU steps are those of eager ones") {
    manual_seed(4);
    const nn::LSTMCell cell(3, 2);
    const nn::GRUCell gru(3, 2);
    const nn::ChildSumTreeLSTMCell sums(3, 2);
    const nn::NaryTreeLSTMCell binary(3, 2, 2, {.inner_input = true});
    const auto both = [](const LSTMState& s) { return sum(sin(s.h)) + sum(square(s.c)); };
    // What is differentiated, of x (batch, 3) and a state (batch, 2): both results, one of them, sources that share a gradient, forget gates
    // that children share, leaves, whose shared forget gate has no child.
    const std::vector<std::function<Tensor(const Tensor&, const Tensor&)>> steps = {
        [&](const Tensor& x, const Tensor& s) { return both(cell(x, {s, s * 2})); },
        [&](const Tensor& x, const Tensor& s) { return sum(sin(cell(x, {s, s * 2}).h)); },
        [&](const Tensor& x, const Tensor& s) { return sum(sin(cell(x, {s, s * 2}).c)); },
        [&](const Tensor& x, const Tensor& s) { return sum(sin(gru(x, gru(x * 2, s)))); },
        [&](const Tensor& x, const Tensor& s) { return both(sums(x, {{s, s * 2}, {s.cos(), s + 1}})); },
        [&](const Tensor& x, const Tensor& s) { return both(sums(x, {})) + sum(sin(s)); },
        [&](const Tensor& x, const Tensor& s) { return both(binary(x, {{s, s * 2}, {s.cos(), s + 1}})); },
    };
    for (std::size_t i = 0; i < steps.size(); ++i) {
        const auto gradients = [&](const Tensor& a, const Tensor& b) {
            Tape tape;
            const Tensor x = a.clone().requires_grad_(), s = b.clone().requires_grad_();
            return tape.gradient(steps[i](x, s), {x, s});
        };
        const Tensor x = randn({4, 3}), s = randn({4, 2});
        const Graph graph = trace(gradients, {{"x", x, {"batch"}}, {"s", s, {"batch"}}});
        INFO(graph.str());
        const CompiledGraph compiled = graph.compile();
        const Tensor other = randn({5, 3}), state = randn({5, 2});
        const std::vector<Tensor> wanted = gradients(other, state), got = graph({other, state});
        const auto fast = compiled.call<2>(other, state);
        for (std::size_t k = 0; k < 2; ++k) {
            CHECK(allclose(got[k], wanted[k], 1e-5, 1e-6));
            CHECK(allclose(fast[k], wanted[k], 1e-5, 1e-6));
        }
    }
}

TEST_CASE("element-wise ops of a compiled graph leave channels last in memory, as the program does") {
    manual_seed(4);
    const auto in_layout = [](const Tensor& x) { return x.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2}); };
    const Tensor x = in_layout(randn({2, 3, 5, 4})), y = in_layout(randn({2, 3, 5, 4})), plain = randn({2, 3, 5, 4});
    const Tensor scale = randn({3, 1, 1}), shift = randn({1, 3, 1, 1}), row = randn({4});
    const auto check = [&](const char* what, const auto& fn, const std::vector<Tensor>& inputs) {
        INFO(what);
        std::vector<TraceInput> named;
        for (std::size_t i = 0; i < inputs.size(); ++i) named.push_back({"x" + std::to_string(i), inputs[i]});
        const std::vector<Tensor> wanted = fn(inputs);
        const auto run = trace(fn, named).compile();
        for (int time = 0; time < 3; ++time) {
            const std::vector<Tensor> got = run(inputs);
            REQUIRE(got.size() == wanted.size());
            for (std::size_t i = 0; i < got.size(); ++i) {
                CHECK(got[i].strides() == wanted[i].strides());
                CHECK(allclose(got[i].to(float64), wanted[i].to(float64), 1e-6, 1e-6));
            }
        }
    };
    using List = std::vector<Tensor>;
    check("one operand, two results",
          [](const List& t) {
              const Tensor z = relu(t[0]);
              return List{z * 2 + 1, z > 0.5};
          },
          {x});
    check("two operands", [](const List& t) { return List{tanh(t[0] * t[1]) + t[0]}; }, {x, y});
    check("one without gaps", [](const List& t) { return List{tanh(t[0] * t[1]) + t[0]}; }, {x, plain});
    check("that first", [](const List& t) { return List{tanh(t[0] * t[1]) + t[0]}; }, {plain, x});
    check("a number of each channel", [](const List& t) { return List{tanh(t[0] * t[1]) + 1}; }, {x, shift});
    check("of fewer dimensions", [](const List& t) { return List{tanh(t[0] * t[1]) + t[2]}; }, {x, scale, row});
    check("where", [](const List& t) { return List{where(t[0] > 0, t[1], 0.5), where(t[0] > 0, 1.0, t[1])}; }, {x, y});
    check("where, one without gaps", [](const List& t) { return List{where(t[0] > 0, t[1], t[2])}; }, {x, plain, y});
    check("where, that first", [](const List& t) { return List{where(t[0] > 0, t[1], t[2])}; }, {plain, x, row});
    CHECK(where(x > 0, y, 0.5).strides() == x.strides());
    CHECK(where(scale > 0, y, x).strides() == x.strides());
    CHECK(where(x > 0, 1.0, 0.0).strides() == x.strides());
    CHECK(masked_fill(x, scale > 0, 0.5).strides() == x.strides());
    CHECK(masked_fill(x, plain > 0, 0.5).strides() == x.strides());
    CHECK(masked_fill(plain, x > 0, 0.5).strides() == plain.strides());
    CHECK(equal(where(plain > 0, y, row), where(plain > 0, y.contiguous(), row)));
    CHECK(equal(masked_fill(x, scale > 0, 0.5), masked_fill(x.contiguous(), scale > 0, 0.5)));
}

TEST_CASE("a listing keeps all digits of constants") {
    const Tensor c = tensor({1.0 / 3, 0.1, 2.0}, {float64});
    const Graph graph = trace([&](const Tensor& x) { return x * c; }, {{"x", ones({3}, {float64})}});
    CHECK(equal(Graph::parse(graph.str())({ones({3}, {float64})})[0], c));
}
