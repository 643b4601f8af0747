// The models of work.h on Tapir.
#include <tapir/core/parallel.h>
#include <tapir/tapir.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "sst.h"
#include "work.h"

namespace bench {
namespace {

using tapir::Tape;
using tapir::Tensor;
namespace nn = tapir::nn;

void fill(Tensor t, std::uint32_t seed, float scale) {
    const std::vector<float> weights = fixed_weights(static_cast<std::size_t>(t.numel()), seed, scale);
    std::copy(weights.begin(), weights.end(), t.data<float>());
}

Tensor fixed_input(const tapir::Shape& shape) {
    Tensor made = tapir::empty(shape);
    fill(made, 100, 1);
    return made;
}

template <class Module>
Module fixed_model(Module module) {
    std::uint32_t seed = 0;
    for (const Tensor& p : module.parameters()) fill(p, ++seed, 0.05f);
    return module;
}

/// A step of `optimizer`, if any, on loss().
template <class Loss>
void train(State& state, const std::vector<Tensor>& parameters, tapir::optim::Optimizer* optimizer, bool bfloat16, const Loss& loss) {
    time_training(state, !bfloat16, [&] {
        for (Tensor p : parameters) p.zero_grad();
        Tape tape;
        std::optional<tapir::AutocastScope> autocast;
        if (bfloat16) autocast.emplace(tapir::bfloat16);
        const Tensor value = loss();
        autocast.reset();
        tape.backward(value);
        if (optimizer) optimizer->step();
        return value.item();
    });
}

}  // namespace

void mlp_adam(State& state) {
    const nn::Sequential net = fixed_model(nn::Sequential(nn::Linear(784, 256), nn::ReLU(), nn::Linear(256, 128), nn::ReLU(), nn::Linear(128, 10)));
    tapir::optim::Adam adam(net.parameters(), {.lr = 1e-3});
    const Tensor x = fixed_input({64, 784}), target = tapir::arange(64) % 10;
    train(state, net.parameters(), &adam, false, [&] { return tapir::cross_entropy(net(x), target); });
}

void cnn_adam(State& state, bool bfloat16) {
    const nn::Sequential net =
        fixed_model(nn::Sequential(nn::Conv2d(1, 32, 5, {.padding = 2}), nn::ReLU(), nn::MaxPool2d(2), nn::Conv2d(32, 64, 5, {.padding = 2}),
                                   nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(), nn::Linear(3136, 128), nn::ReLU(), nn::Linear(128, 10)));
    tapir::optim::Adam adam(net.parameters(), {.lr = 1e-3});
    const Tensor x = fixed_input({64, 1, 28, 28}), target = tapir::arange(64) % 10;
    train(state, net.parameters(), &adam, bfloat16, [&] { return tapir::cross_entropy(net(x), target); });
}

void lstm(State& state) {
    const nn::LSTM layer = fixed_model(nn::LSTM(128, 256));
    const Tensor x = fixed_input({64, 32, 128});
    train(state, layer.parameters(), nullptr, false, [&] { return tapir::mean(tapir::square(layer(x).output)); });
}

void transformer(State& state, bool bfloat16) {
    const nn::TransformerEncoderLayer layer =
        fixed_model(nn::TransformerEncoderLayer(256, 4, {.dim_feedforward = 1024, .dropout = 0, .batch_first = true}));
    const Tensor x = fixed_input({16, 64, 256});
    train(state, layer.parameters(), nullptr, bfloat16, [&] { return tapir::mean(tapir::square(layer(x))); });
}

}  // namespace bench
