// Layers and recurrent cells against PyTorch's numbers (goldens.h), forward and backward, in both precisions.
#include "../fails.h"
#include "check.h"
#include "goldens.h"

using namespace tapir;
using check::backward_of;
using check::prepared;
using check::same;
using check::values;

namespace {

Tensor input(const Shape& shape, double seed, DType dtype) {
    Tensor t = values(shape, seed, dtype);
    return t.requires_grad_();
}

struct Precision {
    DType dtype;
    double tolerance;
};
const Precision precisions[] = {{float64, 1e-10}, {float32, 3e-6}};

}  // namespace

TEST_CASE("Linear equals PyTorch's") {
    for (const auto [dtype, tolerance] : precisions) {
        nn::Linear layer = prepared(nn::Linear(3, 4), dtype);
        const Tensor x = input({2, 3}, 10, dtype);
        Tape tape;
        const Tensor y = layer(x);
        backward_of(tape, {y});
        same("y", y, goldens::linear_y0, tolerance);
        same("weight", layer.weight.grad(), goldens::linear_weight, tolerance);
        same("bias", layer.bias.grad(), goldens::linear_bias, tolerance);
        same("x", x.grad(), goldens::linear_x0, tolerance);
    }
}

TEST_CASE("Bilinear and PReLU equal PyTorch's") {
    for (const auto [dtype, tolerance] : precisions) {
        nn::Bilinear layer = prepared(nn::Bilinear(3, 2, 4), dtype);
        nn::PReLU activation = prepared(nn::PReLU(3), dtype);
        const Tensor a = input({2, 3}, 10, dtype), b = input({2, 2}, 11, dtype), x = input({2, 3, 2}, 10, dtype);
        Tape tape({.persistent = true});
        const Tensor y = layer(a, b);
        backward_of(tape, {y});
        same("y", y, goldens::bilinear_y0, tolerance);
        same("weight", layer.weight.grad(), goldens::bilinear_weight, tolerance);
        same("bias", layer.bias.grad(), goldens::bilinear_bias, tolerance);
        same("a", a.grad(), goldens::bilinear_x0, tolerance);
        same("b", b.grad(), goldens::bilinear_x1, tolerance);
        const Tensor z = activation(x);
        backward_of(tape, {z});
        same("z", z, goldens::prelu_y0, tolerance);
        same("PReLU's weight", activation.weight.grad(), goldens::prelu_weight, tolerance);
        same("x", x.grad(), goldens::prelu_x0, tolerance);
    }
    CHECK(equal(nn::PReLU().weight, tensor({0.25})));
    CHECK(nn::Bilinear(3, 2, 4, {.bias = false}).describe() == "3, 2, 4, no bias");
}

TEST_CASE("dropouts of channels and the small activations as layers") {
    manual_seed(1);
    nn::Sequential net(nn::Dropout1d(0.5), nn::Dropout2d(0.5), nn::AlphaDropout(0.5), nn::Hardshrink(), nn::Softshrink(0.1), nn::GLU(),
                       nn::Softmin(-1), nn::Threshold(0.1, 20), nn::Unflatten(1, {2, 2}));
    const Tensor x = randn({3, 4, 6});
    CHECK(net(x).shape() == Shape{3, 2, 2, 3});
    CHECK_FALSE(equal(net(x), net(x)));
    net.eval();
    const Tensor expected = threshold(softmin(glu(softshrink(hardshrink(x), 0.1)), -1), 0.1, 20).reshape({3, 2, 2, 3});
    CHECK(equal(net(x), expected));
    CHECK(nn::Dropout3d(0.2).describe() == "0.2");
    FAILS(ValueError, "Dropout2d: the probability 2 is outside [0, 1]", nn::Dropout2d(2));
}

TEST_CASE("LayerNorm equals PyTorch's") {
    for (const auto [dtype, tolerance] : precisions) {
        nn::LayerNorm layer = prepared(nn::LayerNorm({3, 4}), dtype);
        const Tensor x = input({2, 3, 4}, 10, dtype);
        Tape tape;
        const Tensor y = layer(x);
        backward_of(tape, {y});
        same("y", y, goldens::layer_norm_y0, tolerance);
        same("weight", layer.weight.grad(), goldens::layer_norm_weight, tolerance);
        same("bias", layer.bias.grad(), goldens::layer_norm_bias, tolerance);
        same("x", x.grad(), goldens::layer_norm_x0, tolerance);
    }
}

TEST_CASE("LayerNorm of many rows adds up the weight's gradient in blocks") {
    nn::LayerNorm layer = prepared(nn::LayerNorm({40}), float64);
    const Tensor x = values({5000, 40}, 3, float64), g = values({5000, 40}, 4, float64);
    Tape tape;
    tape.backward(sum(layer(x) * g));
    const NoGradScope off;
    const Tensor centred = x - mean(x, {1}, true);
    const Tensor normal = centred / sqrt(mean(centred * centred, {1}, true) + 1e-5);
    same("weight", layer.weight.grad(), sum(normal * g, {0}).to_vector<double>(), 1e-10);
    same("bias", layer.bias.grad(), sum(g, {0}).to_vector<double>(), 1e-10);
}

TEST_CASE("LayerNorm keeps its digits around a large mean, and has no parameters when not affine") {
    const nn::LayerNorm layer({4}, {.affine = false});
    CHECK(layer.parameters().empty());
    const Tensor y = layer(tensor({{10000.0, 10001.0, 10002.0, 10003.0}}, float32));
    same("y", y, {-1.3416354, -0.4472118, 0.4472118, 1.3416354}, 1e-6);
    CHECK(nn::LayerNorm({4}, {.bias = false}).parameters().size() == 1);
}

TEST_CASE("Embedding equals PyTorch's, with dense and with sparse gradients") {
    for (const bool sparse : {false, true}) {
        nn::Embedding table = prepared(nn::Embedding(5, 3, {.padding_idx = 1, .sparse = sparse}), float64);
        Tape tape;
        const Tensor y = table(tensor({{0, 1, 4}, {4, 2, 0}}));
        backward_of(tape, {y});
        same("y", y, goldens::embedding_y0);
        same("weight", table.weight.grad(), goldens::embedding_weight);
    }
}

TEST_CASE("Embedding: padding row, pretrained tables, errors") {
    const nn::Embedding table(4, 2, {.padding_idx = 2});
    CHECK(table(tensor({2})).to_vector<float>() == std::vector<float>{0, 0});
    const nn::Embedding fixed = nn::Embedding::from_pretrained(tensor({{1.0, 2.0}, {3.0, 4.0}}));
    CHECK(!fixed.weight.requires_grad());
    CHECK(fixed(tensor({1})).to_vector<float>() == std::vector<float>{3, 4});
    CHECK(nn::Embedding::from_pretrained(tensor({{1.0, 2.0}}), /*freeze=*/false).weight.requires_grad());
    const std::string line = "layers_test.cpp:" + std::to_string(__LINE__ + 1) + ": Embedding: ";
    CHECK(check::begins(check::message<IndexError>([] { nn::Embedding(4, 2, {.padding_idx = 4}); }), line));
    CHECK(check::contains(check::message<ShapeError>([] { nn::Embedding::from_pretrained(ones({3})); }), "(3,)"));
}

TEST_CASE("RNNCell equals PyTorch's") {
    for (const auto [dtype, tolerance] : precisions) {
        const nn::RNNCell cell = prepared(nn::RNNCell(3, 4), dtype);
        const Tensor x = input({2, 3}, 10, dtype), h = input({2, 4}, 11, dtype);
        Tape tape;
        const Tensor y = cell(x, h);
        backward_of(tape, {y});
        same("y", y, goldens::rnn_y0, tolerance);
        same("weight_ih", cell.weight_ih.grad(), goldens::rnn_weight_ih, tolerance);
        same("weight_hh", cell.weight_hh.grad(), goldens::rnn_weight_hh, tolerance);
        same("bias_ih", cell.bias_ih.grad(), goldens::rnn_bias_ih, tolerance);
        same("bias_hh", cell.bias_hh.grad(), goldens::rnn_bias_hh, tolerance);
        same("x", x.grad(), goldens::rnn_x0, tolerance);
        same("h", h.grad(), goldens::rnn_x1, tolerance);
    }
}

TEST_CASE("GRUCell equals PyTorch's") {
    for (const auto [dtype, tolerance] : precisions) {
        const nn::GRUCell cell = prepared(nn::GRUCell(3, 4), dtype);
        const Tensor x = input({2, 3}, 10, dtype), h = input({2, 4}, 11, dtype);
        Tape tape;
        const Tensor y = cell(x, h);
        backward_of(tape, {y});
        same("y", y, goldens::gru_y0, tolerance);
        same("weight_ih", cell.weight_ih.grad(), goldens::gru_weight_ih, tolerance);
        same("weight_hh", cell.weight_hh.grad(), goldens::gru_weight_hh, tolerance);
        same("bias_ih", cell.bias_ih.grad(), goldens::gru_bias_ih, tolerance);
        same("bias_hh", cell.bias_hh.grad(), goldens::gru_bias_hh, tolerance);
        same("x", x.grad(), goldens::gru_x0, tolerance);
        same("h", h.grad(), goldens::gru_x1, tolerance);
    }
}

TEST_CASE("LSTMCell equals PyTorch's") {
    for (const auto [dtype, tolerance] : precisions) {
        const nn::LSTMCell cell = prepared(nn::LSTMCell(3, 4), dtype);
        const Tensor x = input({2, 3}, 10, dtype), h = input({2, 4}, 11, dtype), c = input({2, 4}, 12, dtype);
        Tape tape;
        const LSTMState y = cell(x, {h, c});
        backward_of(tape, {y.h, y.c});
        same("h'", y.h, goldens::lstm_y0, tolerance);
        same("c'", y.c, goldens::lstm_y1, tolerance);
        same("weight_ih", cell.weight_ih.grad(), goldens::lstm_weight_ih, tolerance);
        same("weight_hh", cell.weight_hh.grad(), goldens::lstm_weight_hh, tolerance);
        same("bias_ih", cell.bias_ih.grad(), goldens::lstm_bias_ih, tolerance);
        same("bias_hh", cell.bias_hh.grad(), goldens::lstm_bias_hh, tolerance);
        same("x", x.grad(), goldens::lstm_x0, tolerance);
        same("h", h.grad(), goldens::lstm_x1, tolerance);
        same("c", c.grad(), goldens::lstm_x2, tolerance);
    }
}

TEST_CASE("cells begin with zeros, take vectors, and live without bias") {
    const nn::LSTMCell lstm(3, 4);
    const Tensor x = randn({2, 3});
    const LSTMState a = lstm(x), b = lstm(x, {zeros({2, 4}), zeros({2, 4})});
    same("h", a.h, b.h.to_vector<double>(), 0);
    const LSTMState row = lstm(x[1]);
    CHECK(row.h.shape() == Shape(4));
    same("row", row.c, a.c[1].to_vector<double>(), 1e-6);
    const nn::GRUCell gru(3, 4, /*with_bias=*/false);
    CHECK(gru.parameters().size() == 2);
    CHECK(gru(x).shape() == Shape(2, 4));
    const nn::RNNCell rnn(3, 4, true, /*relu=*/true);
    CHECK(amin(rnn(x)).item() >= 0);
}

TEST_CASE("gates of every width, with the tails of the vectors") {
    for (const std::int64_t width : {1, 3, 15, 16, 17, 31, 64, 100, 127, 128, 129, 150, 300}) {
        const Tensor gates = randn({3, 4 * width}) * 3, c = randn({3, width});
        const LSTMState y = lstm_gates(gates, c);
        const auto part = [&](std::int64_t k) { return gates.to(float64).narrow(1, k * width, width); };
        const Tensor cell = sigmoid(part(1)) * c.to(float64) + sigmoid(part(0)) * tanh(part(2));
        INFO(width);
        same("c", y.c, cell.to_vector<double>(), 1e-6);
        same("h", y.h, (sigmoid(part(3)) * tanh(cell)).to_vector<double>(), 1e-6);
        const Tensor x = randn({2, 3 * width}), z = randn({2, 3 * width}), h = randn({2, width});
        const auto of = [&](const Tensor& t, std::int64_t k) { return t.to(float64).narrow(1, k * width, width); };
        const Tensor r = sigmoid(of(x, 0) + of(z, 0)), u = sigmoid(of(x, 1) + of(z, 1));
        const Tensor n = tanh(of(x, 2) + r * of(z, 2));
        same("gru", gru_gates(x, z, h), ((1 - u) * n + u * h.to(float64)).to_vector<double>(), 1e-6);
    }
}

TEST_CASE("gates at the ends: saturated, infinite, nan") {
    const double inf = INFINITY, nan = NAN;
    const auto one = [](double i, double f, double g, double o, double c) {
        const LSTMState y = lstm_gates(tensor({i, f, g, o}, float32), tensor({c}, float32));
        return std::pair(y.h.item(), y.c.item());
    };
    CHECK(one(100, -100, 100, 100, 5).second == Approx(1));
    CHECK(one(inf, -inf, inf, inf, 5).first == Approx(std::tanh(1.0)));
    CHECK(one(-inf, inf, 1, -inf, 0.5).second == Approx(0.5));
    CHECK(std::abs(one(-inf, inf, 1, -inf, 0.5).first) < 1e-30);
    CHECK(std::isnan(one(nan, 0, 0, 0, 1).second));
    CHECK(std::isnan(one(0, nan, 0, 0, 1).second));
    CHECK(std::isnan(one(0, 0, nan, 0, 1).second));
    CHECK(std::isnan(one(0, 0, 0, nan, 1).first));
    CHECK(!std::isnan(one(0, 0, 0, nan, 1).second));
}

TEST_CASE("16-bit floats go through float32") {
    for (const DType dtype : {float16, bfloat16}) {
        nn::LSTMCell cell(3, 4);
        cell.to(dtype);
        const Tensor x = randn({2, 3}).to(dtype);
        Tape tape;
        const LSTMState y = cell(x);
        CHECK(y.h.dtype() == dtype);
        tape.backward(sum(y.h));
        CHECK(cell.weight_ih.grad().dtype() == dtype);
        nn::LayerNorm norm({3});
        norm.to(dtype);
        CHECK(norm(x).dtype() == dtype);
    }
}

TEST_CASE("gradients of gradients flow through the fused gates and the norm") {
    Tensor gates = values({2, 12}, 1), c = values({2, 3}, 2), x = values({2, 9}, 3), z = values({2, 9}, 4);
    Tensor w = values({3}, 5), b = values({3}, 6);
    const std::vector<Tensor> leaves{gates, c, x, z, w, b};
    for (Tensor t : leaves) t.requires_grad_();
    // The squared norm of the first gradients, as a function of the leaves.
    const auto loss = [&] {
        Tape inner;
        const LSTMState s = lstm_gates(gates, c);
        const Tensor h = gru_gates(x, z, s.h);
        const Tensor y = sum(square(layer_norm(h, {3}, w, b)) * values({2, 3}, 7)) + sum(s.c * s.c);
        Tensor total;
        for (const Tensor& g : inner.gradient(y, {gates, c, x, z, w, b}, {.create_graph = true})) {
            total = total.defined() ? total + sum(g * g) : sum(g * g);
        }
        return total;
    };
    CHECK(check::gradient_error(leaves, loss) < 1e-5);
}

TEST_CASE("Dropout works while training only") {
    nn::Dropout drop(0.5);
    const Tensor x = ones({1000});
    CHECK(sum(drop(x) == 0).item<int>() > 300);
    drop.eval();
    CHECK(drop(x).is_same(x));
    const std::string line = "layers_test.cpp:" + std::to_string(__LINE__ + 1) + ": Dropout: ";
    CHECK(check::begins(check::message<ValueError>([] { nn::Dropout(1.5); }), line));
}

TEST_CASE("layers name the user's line") {
    const nn::Linear linear(3, 4);
    const nn::LSTMCell lstm(3, 4);
    const nn::GRUCell gru(3, 4);
    const nn::LayerNorm norm({4});
    const Tensor x = randn({2, 5});
    const auto line = [](int n) { return "layers_test.cpp:" + std::to_string(n) + ": "; };
    CHECK(check::begins(check::message<ShapeError>([&] { linear(x); }), line(__LINE__)));
    CHECK(check::begins(check::message<ShapeError>([&] { lstm(x); }), line(__LINE__)));
    CHECK(check::begins(check::message<ShapeError>([&] { lstm(randn({2, 3}), {randn({2, 4}), randn({2, 5})}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ShapeError>([&] { gru(randn({2, 3}), randn({2, 5})); }), line(__LINE__)));
    CHECK(check::begins(check::message<ShapeError>([&] { norm(x); }), line(__LINE__)));
    CHECK(check::begins(check::message<ShapeError>([&] { lstm_gates(x, x); }), line(__LINE__)));
    CHECK(check::begins(check::message<ShapeError>([&] { gru_gates(x, x, x); }), line(__LINE__)));
    CHECK(check::begins(check::message<DTypeError>([&] { lstm_gates(ones({4}, int64), ones({1}, int64)); }), line(__LINE__)));
    CHECK(check::begins(check::message<DTypeError>([&] { layer_norm(ones({4}, float64), {4}, ones({4})); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { lstm_gates(Tensor(), x); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { nn::Linear(-1, 4); }), line(__LINE__)));
}

TEST_CASE("Linear takes its bias by name or by position") {
    CHECK(nn::Linear(3, 4).bias.defined());
    CHECK(nn::Linear(3, 4, {}).bias.defined());
    CHECK(!nn::Linear(3, 4, {.bias = false}).bias.defined());
    CHECK(nn::Linear(3, 4, {.bias = true}).bias.shape() == Shape{4});
    CHECK(!nn::Linear(3, 4, false).bias.defined());
    CHECK(nn::Linear(3, 4, true).bias.defined());
}

TEST_CASE("layers with floating weights say what to do with integers") {
    const nn::Linear linear(3, 2);
    FAILS_IN(DTypeError, "Linear: the input must be floating, got uint8 (2, 3); images of bytes become so by x.to(float32) / 255", "",
             linear(ones({2, 3}, uint8)));
    FAILS_IN(DTypeError, "Linear: the input must be floating, got int64 (3,); ", "nn::Embedding takes indices", linear(ones({3}, int64)));
    FAILS_IN(DTypeError, "Linear: the input must be floating, got bool (3,)", "x.to(float32)", linear(ones({3}, bool_)));
    FAILS(ValueError, "linear", linear(Tensor()));
    const Tensor images = ones({1, 2, 4, 4}, uint8), lines = ones({1, 2, 4}, uint8), volumes = ones({1, 2, 4, 4, 4}, uint8);
    FAILS_IN(DTypeError, "Conv1d: the input must be floating, got uint8", "/ 255", nn::Conv1d(2, 2, 3)(lines));
    FAILS_IN(DTypeError, "Conv2d: the input must be floating, got uint8", "/ 255", nn::Conv2d(2, 2, 3)(images));
    FAILS_IN(DTypeError, "Conv2d: ", "/ 255", nn::Conv2d(2, 2, 3, {.padding = 1, .padding_mode = "reflect"})(images));
    FAILS_IN(DTypeError, "Conv3d: the input must be floating, got uint8", "/ 255", nn::Conv3d(2, 2, 3)(volumes));
    FAILS_IN(DTypeError, "ConvTranspose1d: the input must be floating", "/ 255", nn::ConvTranspose1d(2, 2, 3)(lines));
    FAILS_IN(DTypeError, "ConvTranspose2d: the input must be floating", "/ 255", nn::ConvTranspose2d(2, 2, 3)(images));
    FAILS_IN(DTypeError, "ConvTranspose3d: the input must be floating", "/ 255", nn::ConvTranspose3d(2, 2, 3)(volumes));
    FAILS_IN(DTypeError, "BatchNorm2d: the input must be floating", "/ 255", nn::BatchNorm2d(2)(images));
    FAILS_IN(DTypeError, "LSTM: the input must be floating", "Embedding", nn::LSTM(3, 2)(ones({4, 3}, int64)));
    FAILS_IN(DTypeError, "LSTMCell: the input must be floating", "Embedding", nn::LSTMCell(3, 2)(ones({3}, int64)));
    FAILS_IN(DTypeError, "GRUCell: the input must be floating", "Embedding", nn::GRUCell(3, 2)(ones({3}, int64)));
    FAILS_IN(DTypeError, "RNNCell: the input must be floating", "Embedding", nn::RNNCell(3, 2)(ones({3}, int64)));
}
