// Layers can be traced: the graph does what the layer does, on other numbers and on batches of other sizes; so does that of the
// gradients. The layers themselves are the reference.
#include <catch2/catch.hpp>
#include <functional>

#include "../fails.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

using Tensors = std::vector<Tensor>;
using Program = std::function<Tensors(const Tensors&)>;

struct Input {
    Shape shape;               // with a batch of 2
    int batch_dim = 0;         // -1: it has none
    std::int64_t classes = 0;  // above 0: it holds class numbers below it

    Tensor drawn(std::int64_t batch) const {
        Shape sizes = shape;
        if (batch_dim >= 0) sizes[batch_dim] = batch;
        return classes > 0 ? randint(0, classes, sizes) : randn(sizes, {float64});
    }
};

Tensors drawn(const std::vector<Input>& inputs, std::int64_t batch) {
    Tensors list;
    for (const Input& input : inputs) list.push_back(input.drawn(batch));
    return list;
}

void check_same(const Tensors& got, const Tensors& wanted) {
    REQUIRE(got.size() == wanted.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
        INFO("output " << i);
        REQUIRE(got[i].shape() == wanted[i].shape());
        CHECK(got[i].dtype() == wanted[i].dtype());
        CHECK(allclose(got[i].to(float64), wanted[i].to(float64), 1e-10, 1e-10));
    }
}

Graph traced(const Program& fn, const std::vector<Input>& inputs, bool named) {
    std::vector<TraceInput> given;
    for (const Input& input : inputs) {
        TraceInput one{"x" + std::to_string(given.size()), input.drawn(2)};
        if (named && input.batch_dim >= 0) {
            one.dims.resize(static_cast<std::size_t>(input.batch_dim) + 1);
            one.dims.back() = "batch";
        }
        given.push_back(one);
    }
    return trace(fn, given);
}

// fn has no state, but for the generator.
void check_graph(const Program& fn, const std::vector<Input>& inputs) {
    for (const bool named : {false, true}) {
        INFO((named ? "a named batch" : "a fixed batch"));
        try {
            const Graph graph = traced(fn, inputs, named);
            INFO(graph.str());
            for (const std::int64_t batch : {2, 3, 6}) {
                if (batch > 2 && !named) continue;
                const Tensors x = drawn(inputs, batch);
                manual_seed(7);
                const Tensors got = graph(x);
                manual_seed(7);
                check_same(got, fn(x));
            }
        } catch (const Error& error) {
            FAIL_CHECK(error.what());
        }
    }
}

// The gradients of a sum of all results, each element with a weight of its own, for the inputs and parameters.
Program gradients_of(const Program& fn, nn::Module& module) {
    return [fn, &module](const Tensors& x) {
        Tape tape;
        Tensors leaves, sources = module.parameters();
        for (const Tensor& t : x) {
            leaves.push_back(is_floating(t.dtype()) ? t.clone().requires_grad_() : t);
            if (is_floating(t.dtype())) sources.push_back(leaves.back());
        }
        Tensor total;
        for (const Tensor& y : fn(leaves)) {
            const Tensor part = mean(y * cos(y.detach()));
            total = total.defined() ? total + part : part;
        }
        return tape.gradient(total, sources);
    };
}

// Both, of a layer in evaluation and in training; what it draws in training is drawn again.
void check_layer(nn::Module& module, const Program& fn, const std::vector<Input>& inputs) {
    module.to(float64);
    for (const bool training : {false, true}) {
        module.train(training);
        INFO((training ? "in training" : "in evaluation"));
        {
            INFO("the layer");
            check_graph(fn, inputs);
        }
        INFO("its gradients");
        check_graph(gradients_of(fn, module), inputs);
    }
}

template <class Layer>
void check_layer(Layer layer, const std::vector<Input>& inputs) {
    INFO(layer.describe());
    check_layer(layer, [&](const Tensors& x) { return Tensors{layer(x[0])}; }, inputs);
}

// A layer that changes its buffers: a copy of it is the reference, which has seen what the traced one has.
template <class Layer>
void check_with_buffers(Layer layer, const Input& input) {
    layer.to(float64);
    for (const bool named : {false, true}) {
        Layer twin = nn::clone(layer);
        const Tensor first = input.drawn(2);
        TraceInput given{"x", first};
        if (named) given.dims = {"batch"};
        const Graph graph = trace([&](const Tensor& x) { return layer(x); }, {given});
        INFO(graph.str());
        check_same(layer.buffers(), (twin(first), twin.buffers()));
        for (const std::int64_t batch : {2, 5}) {
            if (batch > 2 && !named) continue;
            const Tensor x = input.drawn(batch);
            check_same(graph({x}), {twin(x)});
            check_same(layer.buffers(), twin.buffers());
        }
    }
}

struct LeNet : nn::Module {
    nn::Conv2d conv1{1, 6, 5, {.padding = 2}}, conv2{6, 16, 5};
    nn::Linear fc1{16 * 5 * 5, 120}, fc2{120, 84}, fc3{84, 10};
    void members(nn::Members& m) override { m("conv1", conv1)("conv2", conv2)("fc1", fc1)("fc2", fc2)("fc3", fc3); }
    std::string describe() const override { return ""; }
    Tensor operator()(const Tensor& x) const {  // (batch, 1, 28, 28)
        const Tensor h = max_pool2d(relu(conv2(max_pool2d(relu(conv1(x)), 2))), 2);
        return fc3(relu(fc2(relu(fc1(h.flatten(1))))));
    }
};

// The net of examples/cifar, narrower.
struct CifarNet : nn::Module {
    nn::Conv2d conv1{3, 6, 5, {.padding = 2}}, conv2{6, 6, 5, {.padding = 2}};
    nn::Linear local3{6 * 3 * 3, 12}, local4{12, 10};
    nn::MaxPool2d pool{3, {.stride = 2, .padding = 1}};
    nn::LocalResponseNorm norm{9, 0.001, 0.75, 1};
    void members(nn::Members& m) override { m("conv1", conv1)("conv2", conv2)("local3", local3)("local4", local4); }
    std::string describe() const override { return ""; }
    Tensor operator()(const Tensor& x) const {
        const Tensor h = norm(pool(relu(conv1(x)))), g = pool(norm(relu(conv2(h))));
        return local4(relu(local3(g.flatten(1))));
    }
};

struct Tree {
    std::vector<Tree> children = {};
};

}  // namespace

TEST_CASE("linear layers and embeddings can be traced") {
    check_layer(nn::Linear(3, 4), {{{2, 3}}});
    nn::Bilinear bilinear(3, 2, 4);
    check_layer(bilinear, [&](const Tensors& x) { return Tensors{bilinear(x[0], x[1])}; }, {{{2, 3}}, {{2, 2}}});
    check_layer(nn::PReLU(3), {{{2, 3}}});
    check_layer(nn::Embedding(7, 3), {{{2, 4}, 0, 7}});
    check_layer(nn::EmbeddingBag(7, 3), {{{2, 4}, 0, 7}});
    check_layer(nn::LayerNorm({4}), {{{2, 3, 4}}});
    check_layer(nn::RMSNorm({4}), {{{2, 3, 4}}});
    check_layer(nn::GLU(), {{{2, 4}}});
    check_layer(nn::Sequential(nn::Linear(3, 8), nn::GELU(), nn::Dropout(0.4), nn::Linear(8, 2), nn::LogSoftmax(1)), {{{2, 3}}});
}

TEST_CASE("layers of images can be traced") {
    check_layer(nn::Conv1d(4, 6, 3, {.stride = 2, .padding = 2, .groups = 2}), {{{2, 4, 9}}});
    check_layer(nn::Conv2d(3, 4, 3, {.padding = "same"}), {{{2, 3, 5, 6}}});
    check_layer(nn::Conv2d(3, 4, {3, 2}, {.stride = {2, 1}, .dilation = 2}), {{{2, 3, 8, 7}}});
    check_layer(nn::Conv3d(1, 2, 2), {{{2, 1, 3, 4, 3}}});
    check_layer(nn::ConvTranspose2d(3, 2, 3, {.stride = 2, .padding = 1, .output_padding = 1}), {{{2, 3, 4, 3}}});
    check_layer(nn::MaxPool2d(2), {{{2, 3, 5, 6}}});
    check_layer(nn::AvgPool2d(3, {.stride = 2, .padding = 1, .ceil_mode = true}), {{{2, 3, 6, 6}}});
    check_layer(nn::AdaptiveAvgPool2d(2), {{{2, 3, 5, 6}}});
    check_layer(nn::AdaptiveMaxPool2d(2), {{{2, 3, 5, 6}}});
    check_layer(nn::ZeroPad2d(1), {{{2, 3, 4, 4}}});
    check_layer(nn::ReflectionPad2d(1), {{{2, 3, 4, 4}}});
    check_layer(nn::Upsample({.scale_factor = 2, .mode = "bilinear"}), {{{2, 3, 4, 3}}});
    check_layer(nn::PixelShuffle(2), {{{2, 8, 2, 3}}});
    check_layer(nn::Unfold(3), {{{2, 2, 4, 5}}});
    check_layer(nn::GroupNorm(2, 4), {{{2, 4, 5, 4}}});
    check_layer(nn::InstanceNorm2d(3), {{{2, 3, 5, 4}}});
    check_layer(nn::LocalResponseNorm(3, 0.1), {{{2, 4, 3, 3}}});
    check_layer(nn::Dropout2d(0.4), {{{2, 3, 4, 4}}});
}

TEST_CASE("images of other sizes go through the graph of a net") {
    nn::Sequential net(nn::Conv2d(3, 4, 3, {.stride = 2, .padding = 1}), nn::GroupNorm(2, 4), nn::ReLU(), nn::MaxPool2d(2, 1),
                       nn::Upsample({.scale_factor = 2, .mode = "bilinear"}), nn::AvgPool2d(3, {.stride = 2, .ceil_mode = true}),
                       nn::AdaptiveAvgPool2d({2, 3}), nn::Flatten(), nn::Linear(24, 5));
    for (const bool batch : {false, true}) {
        std::vector<std::string> dims = {"", "", "height"};
        if (batch) dims = {"batch", "", "height", "width"};
        const Graph graph = trace([&](const Tensor& x) { return net(x); }, {{"x", randn({2, 3, 12, 13}), dims}});
        INFO(graph.str());
        for (const int extra : {0, 1, 4, 7}) {
            const Tensor x = batch ? randn({2 + extra, 3, 12 + extra, 13 + 2 * extra}) : randn({2, 3, 12 + extra, 13});
            CHECK(allclose(graph({x})[0], net(x), 1e-5, 1e-5));
        }
    }
}

TEST_CASE("batch normalisation can be traced, and its running statistics go on") {
    nn::BatchNorm2d layer(3);
    for (int i = 0; i < 3; ++i) layer(randn({4, 3, 5, 5}) * 2 + 1);  // statistics to evaluate with
    layer.to(float64);
    layer.eval();
    const Program fn = [&](const Tensors& x) { return Tensors{layer(x[0])}; };
    check_graph(fn, {{{2, 3, 4, 4}}});
    check_graph(gradients_of(fn, layer), {{{2, 3, 4, 4}}});

    check_with_buffers(nn::BatchNorm1d(3), {{2, 3}});
    check_with_buffers(nn::BatchNorm2d(3), {{2, 3, 4, 4}});
    check_with_buffers(nn::BatchNorm2d(3, {.momentum = 0.3, .affine = false}), {{2, 3, 4, 4}});
    check_layer(nn::BatchNorm2d(3, {.track_running_stats = false}), {{{2, 3, 4, 4}}});

    nn::BatchNorm1d cumulative(3, {.momentum = {}});
    const auto call = [&](const Tensor& x) { return cumulative(x); };
    CHECK_THROWS_WITH(trace(call, {{"x", randn({4, 3})}}), Catch::Contains("BatchNorm1d: without a momentum, in training, each call counts less"));
    CHECK(cumulative.num_batches_tracked.item<int>() == 0);
    cumulative.eval();
    CHECK_NOTHROW(trace(call, {{"x", randn({4, 3})}}));
}

TEST_CASE("recurrent layers can be traced") {
    nn::LSTM lstm(3, 4, {.num_layers = 2, .batch_first = true, .dropout = 0.3, .bidirectional = true});
    check_layer(lstm,
                [&](const Tensors& x) {
                    const auto [output, state] = lstm(x[0]);
                    return Tensors{output, state.h, state.c};
                },
                {{{2, 5, 3}}});
    nn::GRU gru(3, 4);
    check_layer(gru,
                [&](const Tensors& x) {
                    const auto [output, h] = gru(x[0], x[1]);
                    return Tensors{output, h};
                },
                {{{5, 2, 3}, 1}, {{1, 2, 4}, 1}});
    nn::RNN rnn(3, 4, {.relu = true});
    check_layer(rnn, [&](const Tensors& x) { return Tensors{rnn(x[0]).output}; }, {{{5, 2, 3}, 1}});
    nn::LSTMCell cell(3, 4);
    check_layer(cell,
                [&](const Tensors& x) {
                    LSTMState state = cell(x[0]);
                    state = cell(x[0] * 2, state);
                    return Tensors{state.h, state.c};
                },
                {{{2, 3}}});
    nn::GRUCell gru_cell(3, 4);
    check_layer(gru_cell, [&](const Tensors& x) { return Tensors{gru_cell(x[0], gru_cell(x[0]))}; }, {{{2, 3}}});
    // Lengths that the program knows are a part of the graph, and with them the number of examples.
    const Tensor lengths = tensor({4, 2});
    check_layer(gru, [&](const Tensors& x) { return Tensors{gru(x[0], {}, lengths).output}; }, {{{4, 2, 3}, -1}});
}

TEST_CASE("Tree-LSTM cells can be traced") {
    const Tree tree{{Tree{{Tree{}, Tree{}}}, Tree{}}};
    nn::NaryTreeLSTMCell binary(3, 4);
    const std::function<LSTMState(const Tree&, const Tensor&)> encode = [&](const Tree& t, const Tensor& x) {
        if (t.children.empty()) return binary(x);
        return binary(encode(t.children[0], x * 0.5), encode(t.children[1], x * 2));
    };
    check_layer(binary,
                [&](const Tensors& x) {
                    const LSTMState root = encode(tree, x[0]);
                    return Tensors{root.h, root.c};
                },
                {{{2, 3}}});
    nn::NaryTreeLSTMCell with_input(3, 4, 3, {.inner_input = true});
    check_layer(with_input,
                [&](const Tensors& x) {
                    const LSTMState leaf = with_input(x[0]), node = with_input(x[0] * 2, std::vector<LSTMState>{leaf, LSTMState(), leaf});
                    return Tensors{node.h, node.c};
                },
                {{{2, 3}}});
    nn::ChildSumTreeLSTMCell child_sum(3, 4);
    check_layer(child_sum,
                [&](const Tensors& x) {
                    const LSTMState a = child_sum(x[0]), b = child_sum(x[0] * 2, {a}), c = child_sum(x[0] * 3, {a, b, a});
                    return Tensors{c.h, c.c};
                },
                {{{2, 3}}});
}

TEST_CASE("attention and transformers can be traced") {
    nn::MultiheadAttention attention(4, 2, {.dropout = 0.2, .batch_first = true});
    check_layer(attention,
                [&](const Tensors& x) {
                    const auto [output, weights] = attention(x[0], x[1], x[1], {.need_weights = true});
                    return Tensors{output, weights};
                },
                {{{2, 3, 4}}, {{2, 5, 4}}});
    nn::TransformerEncoderLayer encoder(4, 2, {.dim_feedforward = 8, .batch_first = true});
    check_layer(encoder, [&](const Tensors& x) { return Tensors{encoder(x[0], {.is_causal = true})}; }, {{{2, 5, 4}}});
    const Tensor padded = tensor({{false, false, true}, {false, true, true}});
    check_layer(encoder, [&](const Tensors& x) { return Tensors{encoder(x[0], {.key_padding_mask = padded})}; }, {{{2, 3, 4}, -1}});
    nn::Transformer model({.d_model = 4,
                           .nhead = 2,
                           .num_encoder_layers = 1,
                           .num_decoder_layers = 2,
                           .layer = {.dim_feedforward = 6, .dropout = 0, .activation = nn::TransformerActivation::gelu, .norm_first = true}});
    check_layer(model, [&](const Tensors& x) { return Tensors{model(x[0], x[1], {.tgt_is_causal = true})}; }, {{{5, 2, 4}, 1}, {{3, 2, 4}, 1}});
}

TEST_CASE("nets can be traced, with their losses") {
    check_layer(LeNet(), {{{2, 1, 28, 28}}});
    CifarNet net;
    check_layer(net,
                [&](const Tensors& x) {
                    const Tensor logits = net(x[0]);
                    return Tensors{logits,
                                   cross_entropy(logits, x[1]),
                                   cross_entropy(logits, x[1], {.reduction = Reduction::sum, .label_smoothing = 0.1}),
                                   mse_loss(logits, x[2]),
                                   huber_loss(logits, x[2]),
                                   kl_div(log_softmax(logits, 1), softmax(x[2], 1), Reduction::batchmean),
                                   cross_entropy(logits, softmax(x[2], 1))};
                },
                {{{2, 3, 12, 12}}, {{2}, 0, 10}, {{2, 10}}});
}
