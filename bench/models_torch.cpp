// The models of work.h on libtorch.
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <vector>

#include "sst.h"
#include "work.h"

namespace bench {
namespace {

using torch::Tensor;
namespace F = torch::nn::functional;
namespace nn = torch::nn;

void fill(const Tensor& t, std::uint32_t seed, float scale) {
    const std::vector<float> weights = fixed_weights(static_cast<std::size_t>(t.numel()), seed, scale);
    std::copy(weights.begin(), weights.end(), t.data_ptr<float>());
}

Tensor fixed_input(std::vector<std::int64_t> sizes) {
    const Tensor made = torch::empty(sizes);
    fill(made, 100, 1);
    return made;
}

template <class Holder>
Holder fixed_model(Holder module) {
    std::uint32_t seed = 0;
    for (const Tensor& p : module->parameters()) fill(p, ++seed, 0.05f);
    return module;
}

/// A step of `optimizer`, if any, on loss().
template <class Loss>
void train(State& state, const std::vector<Tensor>& parameters, torch::optim::Optimizer* optimizer, bool bfloat16, const Loss& loss) {
    time_training(state, !bfloat16, [&] {
        for (const Tensor& p : parameters) p.mutable_grad() = Tensor();
        at::autocast::set_cpu_enabled(bfloat16);
        at::autocast::set_autocast_cpu_dtype(torch::kBFloat16);
        const Tensor value = loss();
        at::autocast::clear_cache();
        at::autocast::set_cpu_enabled(false);
        value.backward();
        if (optimizer) optimizer->step();
        return value.template item<double>();
    });
}

}  // namespace

void mlp_adam(State& state) {
    nn::Sequential net = fixed_model(nn::Sequential(nn::Linear(784, 256), nn::ReLU(), nn::Linear(256, 128), nn::ReLU(), nn::Linear(128, 10)));
    torch::optim::Adam adam(net->parameters(), 1e-3);
    const Tensor x = fixed_input({64, 784}), target = torch::arange(64) % 10;
    train(state, net->parameters(), &adam, false, [&] { return F::cross_entropy(net->forward(x), target); });
}

void cnn_adam(State& state, bool bfloat16) {
    nn::Sequential net = fixed_model(nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 32, 5).padding(2)), nn::ReLU(), nn::MaxPool2d(2),
                                                    nn::Conv2d(nn::Conv2dOptions(32, 64, 5).padding(2)), nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(),
                                                    nn::Linear(3136, 128), nn::ReLU(), nn::Linear(128, 10)));
    torch::optim::Adam adam(net->parameters(), 1e-3);
    const Tensor x = fixed_input({64, 1, 28, 28}), target = torch::arange(64) % 10;
    train(state, net->parameters(), &adam, bfloat16, [&] { return F::cross_entropy(net->forward(x), target); });
}

void lstm(State& state) {
    nn::LSTM layer = fixed_model(nn::LSTM(128, 256));
    const Tensor x = fixed_input({64, 32, 128});
    train(state, layer->parameters(), nullptr, false, [&] { return std::get<0>(layer->forward(x)).square().mean(); });
}

void transformer(State& state, bool bfloat16) {
    nn::TransformerEncoderLayer layer =
        fixed_model(nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(256, 4).dim_feedforward(1024).dropout(0)));
    const Tensor x = fixed_input({16, 64, 256}).transpose(0, 1).contiguous();  // it has no batch_first
    train(state, layer->parameters(), nullptr, bfloat16, [&] { return layer->forward(x).square().mean(); });
}

}  // namespace bench
