// The library that a program is compiled for, under one name, so that the rows of tiny.cpp, ops.cpp, steps.cpp, infer.cpp, adbench.cpp and
// convnets.cpp are one source for both: Tapir, or with TAPIR_BENCH_TORCH PyTorch. What is called alike in both is called as lib::...; what is
// not has a function here.
#pragma once

#ifdef TAPIR_BENCH_TORCH
#include <ATen/autocast_mode.h>
#include <torch/torch.h>
#else
#include <tapir/autograd/trace/graphs.h>
#include <tapir/core/parallel.h>
#include <tapir/tapir.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sst.h"

namespace bench {

#ifdef TAPIR_BENCH_TORCH
namespace lib = torch;
using Shape = std::vector<std::int64_t>;
constexpr auto kFloat64 = torch::kFloat64, kInt64 = torch::kInt64, kBFloat16 = torch::kBFloat16;
#else
namespace lib = tapir;
using tapir::Shape;
constexpr auto kFloat64 = tapir::float64, kInt64 = tapir::int64, kBFloat16 = tapir::bfloat16;
#endif
using lib::Tensor;
using Tensors = std::vector<Tensor>;
using Optimizer = std::shared_ptr<lib::optim::Optimizer>;

// --- Tensors of fixed numbers, the same for both

template <class T>
T* data_of(Tensor t) {
#ifdef TAPIR_BENCH_TORCH
    return t.data_ptr<T>();
#else
    return t.data<T>();
#endif
}

/// Numbers from `low` to `high`, by a formula of `seed`.
inline void fill(const Tensor& t, std::uint32_t seed, float low, float high) {
    const std::vector<float> unit = fixed_weights(static_cast<std::size_t>(t.numel()), seed * 7919, 1);
    std::transform(unit.begin(), unit.end(), data_of<float>(t), [&](float u) { return (low + high) / 2 + (high - low) / 2 * u; });
}

inline Tensor uniform(const Shape& shape, std::uint32_t seed = 1, float low = -1, float high = 1) {
    Tensor made = lib::empty(shape);
    fill(made, seed, low, high);
    return made;
}

/// Whole numbers from 0 to below `end`, of dtype int64.
inline Tensor integers(const Shape& shape, std::uint32_t seed, std::int64_t end) {
    Tensor made = lib::zeros(shape).to(kInt64);
    const std::vector<float> unit = fixed_weights(static_cast<std::size_t>(made.numel()), seed * 7919, 0.5f);
    const auto whole = [&](float u) { return std::min(end - 1, static_cast<std::int64_t>((u + 0.5f) * static_cast<float>(end))); };
    std::transform(unit.begin(), unit.end(), data_of<std::int64_t>(made), whole);
    return made;
}

inline Tensor leaf(Tensor t) { return t.requires_grad_(true); }

/// The sum of all numbers, in float64: by it the two programs are compared.
inline double total(const Tensor& t) { return t.to(kFloat64).sum().item<double>(); }

// --- Recording and training

#ifdef TAPIR_BENCH_TORCH
/// While it lives nothing is recorded.
using NoGradients = c10::InferenceMode;
#else
struct NoGradients {  // Tapir records under a Tape only
    NoGradients() {}
};
#endif

/// The gradients of loss(); returns its value.
template <class Loss>
double gradients(const Tensors& parameters, const Loss& loss) {
#ifdef TAPIR_BENCH_TORCH
    for (const Tensor& p : parameters) p.mutable_grad() = Tensor();
    const Tensor value = loss();
    value.backward();
    return value.item<double>();
#else
    for (Tensor p : parameters) p.zero_grad();
    tapir::Tape tape;
    const Tensor value = loss();
    tape.backward(value);
    return value.item<double>();
#endif
}

/// A step on loss(); returns its value.
template <class Loss>
double train(const Optimizer& optimizer, const Tensors& parameters, const Loss& loss) {
    const double value = gradients(parameters, loss);
    optimizer->step();
    return value;
}

/// loss() under an autocast scope for bfloat16.
template <class Loss>
Tensor in_bfloat16(const Loss& loss) {
#ifdef TAPIR_BENCH_TORCH
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, torch::kBFloat16);
    Tensor value = loss();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    return value;
#else
    const tapir::AutocastScope scope(tapir::bfloat16);
    return loss();
#endif
}

inline void clip(const Tensors& parameters, double norm) {
#ifdef TAPIR_BENCH_TORCH
    torch::nn::utils::clip_grad_norm_(parameters, norm);
#else
    tapir::optim::clip_grad_norm_(parameters, norm);
#endif
}

inline void set_gradient(Tensor p, const Tensor& gradient) {
#ifdef TAPIR_BENCH_TORCH
    p.mutable_grad() = gradient;
#else
    p.set_grad(gradient);
#endif
}

inline Optimizer adam(const Tensors& parameters) {
#ifdef TAPIR_BENCH_TORCH
    return std::make_shared<torch::optim::Adam>(parameters, torch::optim::AdamOptions(1e-3));
#else
    return std::make_shared<tapir::optim::Adam>(parameters, tapir::optim::AdamOptions{.lr = 1e-3});
#endif
}

inline Optimizer adamw(const Tensors& parameters) {
#ifdef TAPIR_BENCH_TORCH
    return std::make_shared<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-3));
#else
    return std::make_shared<tapir::optim::AdamW>(parameters, tapir::optim::AdamWOptions{.lr = 1e-3});
#endif
}

inline Optimizer sgd(const Tensors& parameters, double rate, double momentum = 0) {
#ifdef TAPIR_BENCH_TORCH
    return std::make_shared<torch::optim::SGD>(parameters, torch::optim::SGDOptions(rate).momentum(momentum));
#else
    return std::make_shared<tapir::optim::SGD>(parameters, tapir::optim::SGDOptions{.lr = rate, .momentum = momentum});
#endif
}

inline Optimizer adagrad(const Tensors& parameters, double rate) {
#ifdef TAPIR_BENCH_TORCH
    return std::make_shared<torch::optim::Adagrad>(parameters, torch::optim::AdagradOptions(rate));
#else
    return std::make_shared<tapir::optim::Adagrad>(parameters, tapir::optim::AdagradOptions{.lr = rate});
#endif
}

// --- Ops whose arguments differ

struct Window {
    int stride = 1, padding = 0, groups = 1;
};

#ifdef TAPIR_BENCH_TORCH

inline Tensor conv1d(const Tensor& x, const Tensor& w, const Tensor& b, Window at = {}) { return torch::conv1d(x, w, b, at.stride, at.padding); }
inline Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& b, Window at = {}) {
    return torch::conv2d(x, w, b, at.stride, at.padding, /*dilation=*/1, at.groups);
}
inline Tensor conv3d(const Tensor& x, const Tensor& w, const Tensor& b, Window at = {}) { return torch::conv3d(x, w, b, at.stride, at.padding); }
inline Tensor conv_transpose2d(const Tensor& x, const Tensor& w, const Tensor& b, Window at = {}) {
    return torch::conv_transpose2d(x, w, b, at.stride, at.padding);
}
inline Tensor max_pool2d(const Tensor& x, int size, Window at) { return torch::max_pool2d(x, size, at.stride, at.padding); }
inline Tensor avg_pool2d(const Tensor& x, int size) { return torch::avg_pool2d(x, size); }
/// relu of a result that nothing else reads: PyTorch's can take its memory.
inline Tensor relu_of_result(Tensor x) { return torch::relu_(x); }
inline Tensor batch_norm(const Tensor& x, const Tensor& mean, const Tensor& variance, const Tensor& w, const Tensor& b, bool training) {
    return torch::batch_norm(x, w, b, mean, variance, training, /*momentum=*/0.1, /*eps=*/1e-5, /*cudnn_enabled=*/false);
}
inline Tensor layer_norm(const Tensor& x, const Tensor& w, const Tensor& b) { return torch::layer_norm(x, w.sizes(), w, b); }
inline Tensor cross_entropy(const Tensor& x, const Tensor& target) { return torch::cross_entropy_loss(x, target); }
inline Tensor embedded(const Tensor& rows, const Tensor& table) { return torch::embedding(table, rows); }
/// The table's gradient is sparse, as it always is in Tapir.
inline Tensor sparsely_embedded(const Tensor& rows, const Tensor& table) {
    return torch::embedding(table, rows, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false, /*sparse=*/true);
}
inline Tensor embedding_bag(const Tensor& rows, const Tensor& table) {
    namespace F = torch::nn::functional;
    return F::embedding_bag(rows, table, F::EmbeddingBagFuncOptions().mode(torch::kMean).sparse(true));
}
inline Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal = false) {
    return at::scaled_dot_product_attention(q, k, v, {}, 0, causal);
}
inline Tensor twice_as_large(const Tensor& x, bool bilinear) {
    namespace F = torch::nn::functional;
    auto options = F::InterpolateFuncOptions().scale_factor(std::vector<double>{2, 2});
    return F::interpolate(x, bilinear ? options.mode(torch::kBilinear).align_corners(false) : options.mode(torch::kNearest));
}
inline Tensor pad_by_1(const Tensor& x) { return torch::constant_pad_nd(x, {1, 1, 1, 1}); }
inline Tensor patches_3x3(const Tensor& x) { return torch::im2col(x, {3, 3}, {1, 1}, {1, 1}, {1, 1}); }
template <class Pair>
Tensor values(const Pair& pair) {
    return std::get<0>(pair);
}
inline Tensor eigvalsh(const Tensor& a) { return torch::linalg_eigvalsh(a); }
inline Tensor svdvals(const Tensor& a) { return torch::linalg_svdvals(a); }
inline Tensor cholesky(const Tensor& a) { return torch::linalg_cholesky(a); }
inline Tensor solve(const Tensor& a, const Tensor& b) { return torch::linalg_solve(a, b); }
inline Tensor inverted(const Tensor& a) { return torch::linalg_inv(a); }

#else

inline Tensor conv1d(const Tensor& x, const Tensor& w, const Tensor& b, Window at = {}) {
    return tapir::conv1d(x, w, b, {.stride = at.stride, .padding = at.padding});
}
inline Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& b, Window at = {}) {
    return tapir::conv2d(x, w, b, {.stride = at.stride, .padding = at.padding, .groups = at.groups});
}
inline Tensor conv3d(const Tensor& x, const Tensor& w, const Tensor& b, Window at = {}) {
    return tapir::conv3d(x, w, b, {.stride = at.stride, .padding = at.padding});
}
inline Tensor conv_transpose2d(const Tensor& x, const Tensor& w, const Tensor& b, Window at = {}) {
    return tapir::conv_transpose2d(x, w, b, {.stride = at.stride, .padding = at.padding});
}
inline Tensor max_pool2d(const Tensor& x, int size, Window at) { return tapir::max_pool2d(x, size, {.stride = at.stride, .padding = at.padding}); }
inline Tensor avg_pool2d(const Tensor& x, int size) { return tapir::avg_pool2d(x, size); }
inline Tensor relu_of_result(const Tensor& x) { return tapir::relu(x); }
inline Tensor batch_norm(const Tensor& x, const Tensor& mean, const Tensor& variance, const Tensor& w, const Tensor& b, bool training) {
    return tapir::batch_norm(x, mean, variance, w, b, {.training = training});
}
inline Tensor layer_norm(const Tensor& x, const Tensor& w, const Tensor& b) { return tapir::layer_norm(x, w.sizes(), w, b); }
inline Tensor cross_entropy(const Tensor& x, const Tensor& target) { return tapir::cross_entropy(x, target); }
inline Tensor embedded(const Tensor& rows, const Tensor& table) { return tapir::embedding(rows, table); }
inline Tensor sparsely_embedded(const Tensor& rows, const Tensor& table) { return tapir::embedding(rows, table); }
inline Tensor embedding_bag(const Tensor& rows, const Tensor& table) { return tapir::embedding_bag(rows, table); }
inline Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal = false) {
    return tapir::scaled_dot_product_attention(q, k, v, {}, 0, causal);
}
inline Tensor twice_as_large(const Tensor& x, bool bilinear) {
    return tapir::interpolate(x, {.scale_factor = 2, .mode = bilinear ? "bilinear" : "nearest"});
}
inline Tensor pad_by_1(const Tensor& x) { return tapir::pad(x, {1, 1, 1, 1}); }
inline Tensor patches_3x3(const Tensor& x) { return tapir::unfold(x, 3, {.padding = 1}); }
inline Tensor values(const tapir::ValuesIndices& pair) { return pair.values; }
inline Tensor eigvalsh(const Tensor& a) { return tapir::linalg::eigvalsh(a); }
inline Tensor svdvals(const Tensor& a) { return tapir::linalg::svdvals(a); }
inline Tensor cholesky(const Tensor& a) { return tapir::linalg::cholesky(a); }
inline Tensor solve(const Tensor& a, const Tensor& b) { return tapir::linalg::solve(a, b); }
inline Tensor inverted(const Tensor& a) { return tapir::linalg::inv(a); }

#endif

// --- The libraries' own modules

/// A module of either library with fixed weights: what it makes of x, and its parameters.
struct Module {
    std::function<Tensor(const Tensor&)> call;
    Tensors parameters;
};

inline Tensors fixed_parameters(const Tensors& parameters) {
    std::uint32_t seed = 0;
    for (const Tensor& p : parameters) {
        const float reach = p.dim() < 2 ? 0.1f : 1 / std::sqrt(static_cast<float>(p.numel() / p.size(0)));
        fill(p, ++seed, -reach, reach);
    }
    return parameters;
}

struct Layers {
    int count = 1;
    bool bidirectional = false;
};

/// (steps, batch, input) -> (steps, batch, hidden).
inline Module lstm(std::int64_t input, std::int64_t hidden, Layers layers = {}) {
#ifdef TAPIR_BENCH_TORCH
    torch::nn::LSTM module(torch::nn::LSTMOptions(input, hidden).num_layers(layers.count).bidirectional(layers.bidirectional));
    return {[=](const Tensor& x) mutable { return std::get<0>(module->forward(x)); }, fixed_parameters(module->parameters())};
#else
    const tapir::nn::LSTM module(input, hidden, {.num_layers = layers.count, .bidirectional = layers.bidirectional});
    return {[=](const Tensor& x) { return module(x).output; }, fixed_parameters(module.parameters())};
#endif
}

inline Module gru(std::int64_t input, std::int64_t hidden) {
#ifdef TAPIR_BENCH_TORCH
    torch::nn::GRU module(torch::nn::GRUOptions(input, hidden));
    return {[=](const Tensor& x) mutable { return std::get<0>(module->forward(x)); }, fixed_parameters(module->parameters())};
#else
    const tapir::nn::GRU module(input, hidden);
    return {[=](const Tensor& x) { return module(x).output; }, fixed_parameters(module.parameters())};
#endif
}

/// (steps, 1, input) -> (1, hidden): the state after a step of an LSTM cell for each of the steps.
inline Module lstm_cell_loop(std::int64_t input, std::int64_t hidden) {
#ifdef TAPIR_BENCH_TORCH
    torch::nn::LSTMCell cell(input, hidden);
    const auto run = [=](const Tensor& x) mutable {
        auto state = cell->forward(x[0]);
        for (std::int64_t i = 1; i < x.size(0); ++i) state = cell->forward(x[i], state);
        return std::get<0>(state);
    };
    return {run, fixed_parameters(cell->parameters())};
#else
    const tapir::nn::LSTMCell cell(input, hidden);
    const auto run = [=](const Tensor& x) {
        tapir::LSTMState state = cell(x[0]);
        for (std::int64_t i = 1; i < x.size(0); ++i) state = cell(x[i], state);
        return state.h;
    };
    return {run, fixed_parameters(cell.parameters())};
#endif
}

/// (steps, batch, width) -> the same.
inline Module encoder_layer(std::int64_t width, std::int64_t heads, std::int64_t inside, double dropout) {
#ifdef TAPIR_BENCH_TORCH
    torch::nn::TransformerEncoderLayer module(torch::nn::TransformerEncoderLayerOptions(width, heads).dim_feedforward(inside).dropout(dropout));
    return {[=](const Tensor& x) mutable { return module->forward(x); }, fixed_parameters(module->parameters())};
#else
    const tapir::nn::TransformerEncoderLayer module(width, heads, {.dim_feedforward = inside, .dropout = dropout});
    return {[=](const Tensor& x) { return module(x); }, fixed_parameters(module.parameters())};
#endif
}

}  // namespace bench
