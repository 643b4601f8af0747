// Convolution, pooling and activation layers: shapes, initialisation, names, and that a small network of them learns.
#include <cmath>
#include <sstream>

#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

TEST_CASE("convolution layers have PyTorch's shapes and initialisation") {
    manual_seed(1);
    const nn::Conv2d conv(8, 12, {5, 3}, {.stride = 2, .padding = 1, .groups = 4});
    CHECK(conv.weight.shape() == Shape{12, 2, 5, 3});
    CHECK(conv.bias.shape() == Shape(12));
    const double bound = 1 / std::sqrt(2.0 * 15);
    const double largest = amax(abs(conv.weight)).item();
    CHECK(largest <= bound);
    CHECK(largest > 0.9 * bound);
    CHECK(amax(abs(conv.bias)).item() <= bound);
    CHECK(conv(ones({1, 8, 9, 9})).shape() == Shape{1, 12, 4, 5});
    CHECK(nn::Conv1d(3, 4, 3, {.padding = "same", .dilation = 2})(ones({2, 3, 7})).shape() == Shape{2, 4, 7});
    CHECK(nn::Conv3d(1, 2, 2, {.bias = false})(ones({1, 1, 3, 4, 5})).shape() == Shape{1, 2, 2, 3, 4});
    const nn::ConvTranspose2d up(6, 4, 3, {.stride = 2, .padding = 1, .output_padding = 1, .groups = 2});
    CHECK(up.weight.shape() == Shape{6, 2, 3, 3});
    CHECK(up.bias.shape() == Shape(4));
    CHECK(up(ones({1, 6, 5, 5})).shape() == Shape{1, 4, 10, 10});
    CHECK(nn::ConvTranspose1d(2, 3, 4)(ones({1, 2, 5})).shape() == Shape{1, 3, 8});
    CHECK(nn::ConvTranspose3d(2, 3, 2)(ones({1, 2, 2, 2, 2})).shape() == Shape{1, 3, 3, 3, 3});
    CHECK(conv.describe() == "weight (12, 2, 5, 3), stride (2,), padding (1,), groups 4");
    CHECK(nn::Conv2d(1, 1, 3, {.padding = "same", .bias = false}).describe() == "weight (1, 1, 3, 3), padding same, no bias");
}

TEST_CASE("convolution layers refuse") {
    FAILS(ValueError, "Conv2d: channels must be at least 1, got 0 and 4", nn::Conv2d(0, 4, 3));
    FAILS(ValueError, "Conv2d: 2 groups do not divide 3 and 4 channels", nn::Conv2d(3, 4, 3, {.groups = 2}));
    FAILS(ValueError, "Conv1d: kernel_size needs 1 number, got (3, 3)", nn::Conv1d(3, 4, {3, 3}));
    FAILS(ValueError, "Conv2d: padding 'same' needs stride 1, got (2,)", nn::Conv2d(3, 4, 3, {.stride = 2, .padding = "same"}));
    FAILS(ValueError, "Conv2d: padding 'same' needs stride 1, got (1, 2)", nn::Conv2d(3, 4, 3, {1, 2}, "same"));
    FAILS(ValueError, "Conv1d: padding 'same' needs stride 1, got (2,)", nn::Conv1d(3, 4, 3, 2, "same", 1, 1, true, "reflect"));
    CHECK(nn::Conv2d(3, 4, 3, {.stride = {1, 1}, .padding = "same"}).weight.defined());
    FAILS(ValueError, "ConvTranspose2d: kernel_size must be at least 1, got (3, 0)", nn::ConvTranspose2d(3, 4, {3, 0}));
}

TEST_CASE("a network of convolutions learns, and its file has PyTorch's names") {
    manual_seed(2);
    nn::Sequential net(nn::Conv2d(1, 8, 3, {.padding = 1}), nn::ReLU(), nn::MaxPool2d(2), nn::Conv2d(8, 16, 3, {.padding = "same"}), nn::GELU(),
                       nn::AvgPool2d(2, {.stride = 2}), nn::AdaptiveAvgPool2d(2), nn::Flatten(), nn::Linear(64, 4));
    std::vector<std::string> names;
    for (const auto& [name, tensor] : net.named_parameters()) names.push_back(name);
    CHECK(names == std::vector<std::string>{"0.weight", "0.bias", "3.weight", "3.bias", "8.weight", "8.bias"});
    // Which quarter of the image is bright.
    const Tensor where = randint(0, 4, {32});
    Tensor x = randn({32, 1, 12, 12}) * 0.3;
    for (int i = 0; i < 32; ++i) {
        const int quarter = where[i].item<int>();
        const Tensor part = x.index({i, 0, Slice(quarter / 2 * 6, quarter / 2 * 6 + 6), Slice(quarter % 2 * 6, quarter % 2 * 6 + 6)});
        x.index_put_({i, 0, Slice(quarter / 2 * 6, quarter / 2 * 6 + 6), Slice(quarter % 2 * 6, quarter % 2 * 6 + 6)}, part + 1);
    }
    optim::Adam adam(net.parameters(), {.lr = 0.01});
    double loss = 0;
    for (int step = 0; step < 60; ++step) {
        Tape tape;
        const Tensor l = cross_entropy(net(x), where);
        tape.backward(l);
        adam.step();
        adam.zero_grad();
        loss = l.item();
    }
    CHECK(loss < 0.1);
}

TEST_CASE("layers take kernels, strides and the rest by PyTorch's positions") {
    CHECK(nn::Conv2d(3, 16, 3, 2, 1).describe() == nn::Conv2d(3, 16, 3, {.stride = 2, .padding = 1}).describe());
    CHECK(nn::Conv2d(3, 16, 3, 2).describe() == nn::Conv2d(3, 16, 3, {.stride = 2}).describe());
    CHECK(nn::Conv2d(4, 8, {3, 5}, {2, 1}, {1, 2}, 2, 4, false, "reflect").describe() ==
          nn::Conv2d(4, 8, {3, 5}, {.stride = {2, 1}, .padding = {1, 2}, .dilation = 2, .groups = 4, .bias = false, .padding_mode = "reflect"})
              .describe());
    CHECK(nn::Conv1d(4, 8, 3, 1, "same").describe() == nn::Conv1d(4, 8, 3, {.padding = "same"}).describe());
    CHECK(nn::Conv3d(4, 8, 3, Shape{2, 1, 1}).describe() == nn::Conv3d(4, 8, 3, {.stride = {2, 1, 1}}).describe());
    const nn::ConvTranspose2d up(6, 4, 3, 2, 1, 1, 2, false, 1);
    CHECK(up.describe() == nn::ConvTranspose2d(6, 4, 3, {.stride = 2, .padding = 1, .groups = 2, .bias = false}).describe());
    CHECK(up(ones({1, 6, 5, 5})).shape() == Shape{1, 4, 10, 10});
    CHECK(nn::ConvTranspose1d(2, 3, 4, 2)(ones({1, 2, 5})).shape() == Shape{1, 3, 12});
    const Tensor x = randn({1, 2, 9, 9});
    const auto same = [](const Tensor& a, const Tensor& b) {
        CHECK(a.shape() == b.shape());
        CHECK(a.to_vector<float>() == b.to_vector<float>());
    };
    same(nn::MaxPool2d(2, 2)(x), max_pool2d(x, 2));
    same(nn::MaxPool2d(3, 2, 1)(x), max_pool2d(x, 3, {.stride = 2, .padding = 1}));
    same(nn::MaxPool2d({3, 2}, {2, 1}, 1, 2, true)(x), max_pool2d(x, {3, 2}, {.stride = {2, 1}, .padding = 1, .dilation = 2, .ceil_mode = true}));
    same(nn::AvgPool2d(3, 2)(x), avg_pool2d(x, 3, {.stride = 2}));
    same(nn::AvgPool2d(3, 2, 1, true, false, 5)(x),
         avg_pool2d(x, 3, {.stride = 2, .padding = 1, .ceil_mode = true, .count_include_pad = false, .divisor_override = 5}));
    same(nn::LPPool2d(2, 3, 2)(x), lp_pool2d(x, 2, 3, {.stride = 2}));
    same(nn::LPPool2d(2, 3, {2, 1}, true)(x), lp_pool2d(x, 2, 3, {.stride = {2, 1}, .ceil_mode = true}));
}

TEST_CASE("activation layers are their functions") {
    const Tensor x = linspace(-3, 3, 13).view({1, 13});
    const auto same = [](const Tensor& a, const Tensor& b) { CHECK(a.to_vector<float>() == b.to_vector<float>()); };
    same(nn::ReLU()(x), relu(x));
    same(nn::ReLU6()(x * 3), clamp(x * 3, 0, 6));
    same(nn::LeakyReLU(0.2)(x), leaky_relu(x, 0.2));
    same(nn::ELU()(x), elu(x, 1));
    same(nn::GELU(true)(x), gelu_tanh(x));
    same(nn::Tanhshrink()(x), x - tanh(x));
    same(nn::Softplus(2, 10)(x), softplus(x, 2, 10));
    same(nn::Hardtanh(-2, 1)(x), hardtanh(x, -2, 1));
    same(nn::Softmax(1)(x), softmax(x, 1));
    same(nn::LogSoftmax(-1)(x), log_softmax(x, -1));
    same(nn::Identity()(x), x);
    CHECK(nn::Flatten()(ones({2, 3, 4})).shape() == Shape{2, 12});
    CHECK(nn::LPPool2d(2, 2)(ones({1, 1, 4, 4})).to_vector<float>() == std::vector<float>{2, 2, 2, 2});
}
