// The parts of the models of steps.cpp, infer.cpp and convnets.cpp, written with the functions that both libraries have, their weights
// from formulas.
#pragma once

#include "both.h"

namespace bench {

/// The parameters of a model, in the order of their making.
struct Network {
    Tensors parameters = {};
    std::uint32_t seed = 100;
    float gain = 1;

    /// Uniform within gain / sqrt(inputs of an output).
    Tensor weight(const Shape& shape) {
        Tensor made = lib::empty(shape);
        const float reach = gain / std::sqrt(static_cast<float>(made.numel() / made.size(0)));
        fill(made, ++seed, -reach, reach);
        return parameters.emplace_back(leaf(made));
    }
    Tensor vector(std::int64_t n, float around = 0) { return parameters.emplace_back(leaf(uniform({n}, ++seed, around - 0.1f, around + 0.1f))); }
};

struct Linear {
    Linear(Network& net, std::int64_t in, std::int64_t out) : weight(net.weight({out, in})), bias(net.vector(out)) {}
    Tensor operator()(const Tensor& x) const { return lib::linear(x, weight, bias); }
    Tensor weight, bias;
};

struct Conv2d {
    Conv2d(Network& net, std::int64_t in, std::int64_t out, std::int64_t size, Window at = {})
        : weight(net.weight({out, in / at.groups, size, size})), bias(net.vector(out)), window(at) {}
    Tensor operator()(const Tensor& x) const { return conv2d(x, weight, bias, window); }
    Tensor weight, bias;
    Window window;
};

struct BatchNorm {
    BatchNorm(Network& net, std::int64_t channels)
        : weight(net.vector(channels, 1)), bias(net.vector(channels)), mean(uniform({channels}, 1, 0, 0)), variance(uniform({channels}, 1, 1, 1)) {}
    Tensor operator()(const Tensor& x, bool training = true) const { return batch_norm(x, mean, variance, weight, bias, training); }
    Tensor weight, bias, mean, variance;
};

struct LayerNorm {
    LayerNorm(Network& net, std::int64_t width) : weight(net.vector(width, 1)), bias(net.vector(width)) {}
    Tensor operator()(const Tensor& x) const { return layer_norm(x, weight, bias); }
    Tensor weight, bias;
};

/// relu or tanh between three linear layers.
struct Mlp {
    Mlp(Network& net, std::int64_t in, std::int64_t first, std::int64_t second, std::int64_t out)
        : a(net, in, first), b(net, first, second), c(net, second, out) {}
    Tensor operator()(const Tensor& x) const { return c(lib::relu(b(lib::relu(a(x))))); }
    Tensor with_tanh(const Tensor& x) const { return c(lib::tanh(b(lib::tanh(a(x))))); }
    Linear a, b, c;
};

/// (batch, 1, 28, 28) -> (batch, 10): two convolutions with relu and max pooling, two linear layers.
struct Cnn {
    Cnn(Network& net, int size)
        : first(net, 1, 32, size, {.padding = size / 2}), second(net, 32, 64, size, {.padding = size / 2}), inner(net, 3136, 128),
          last(net, 128, 10) {}
    Tensor operator()(const Tensor& x) const {
        const Tensor y = max_pool2d(lib::relu(first(x)), 2, {.stride = 2});
        const Tensor z = max_pool2d(lib::relu(second(y)), 2, {.stride = 2});
        return last(lib::relu(inner(z.flatten(1))));
    }
    Conv2d first, second;
    Linear inner, last;
};

struct ResidualBlock {
    ResidualBlock(Network& net, std::int64_t in, std::int64_t out, int stride)
        : first(net, in, out, 3, {.stride = stride, .padding = 1}), second(net, out, out, 3, {.padding = 1}),
          shortcut(net, in, out, 1, {.stride = stride}), first_norm(net, out), second_norm(net, out), shortcut_norm(net, out),
          changes_shape(stride != 1 || in != out) {}
    Tensor operator()(const Tensor& x, bool training) const {
        const Tensor inner = lib::relu(first_norm(first(x), training));
        const Tensor y = second_norm(second(inner), training);
        return lib::relu(y + (changes_shape ? shortcut_norm(shortcut(x), training) : x));
    }
    Conv2d first, second, shortcut;
    BatchNorm first_norm, second_norm, shortcut_norm;
    bool changes_shape;
};

/// (batch, 3, 32, 32) -> (batch, 10): three residual blocks of 32, 64 and 128 channels.
struct ResNet {
    explicit ResNet(Network& net)
        : stem(net, 3, 32, 3, {.padding = 1}), norm(net, 32), a(net, 32, 32, 1), b(net, 32, 64, 2), c(net, 64, 128, 2), last(net, 128, 10) {}
    Tensor operator()(const Tensor& x, bool training) const {
        const Tensor y = lib::relu(norm(stem(x), training));
        return last(c(b(a(y, training), training), training).mean({2, 3}));
    }
    Conv2d stem;
    BatchNorm norm;
    ResidualBlock a, b, c;
    Linear last;
};

/// (batch, steps, width) -> the same: layer norm, attention, layer norm, two linear layers with gelu.
struct TransformerBlock {
    TransformerBlock(Network& net, std::int64_t width_, std::int64_t heads_, bool causal_)
        : attention_norm(net, width_), norm(net, width_), qkv(net, width_, 3 * width_), out(net, width_, width_), up(net, width_, 4 * width_),
          down(net, 4 * width_, width_), width(width_), heads(heads_), causal(causal_) {}
    Tensor operator()(const Tensor& x) const {
        const std::int64_t batch = x.size(0), steps = x.size(1);
        const Tensor parts = qkv(attention_norm(x)).view({batch, steps, 3, heads, width / heads}).permute({2, 0, 3, 1, 4});
        const Tensor mixed = attention(parts[0], parts[1], parts[2], causal);
        const Tensor y = x + out(mixed.transpose(1, 2).reshape({batch, steps, width}));
        return y + down(lib::gelu(up(norm(y))));
    }
    LayerNorm attention_norm, norm;
    Linear qkv, out, up, down;
    std::int64_t width, heads;
    bool causal;
};

}  // namespace bench
