// Layers on a batch of no examples: the result has none, every parameter that was used gets a gradient of zeros, to the second order.
#include <functional>

#include "check.h"

using namespace tapir;

namespace {

bool is_zeros(const Tensor& t) {
    for (const double v : t.to_vector<double>()) {
        if (v != 0) return false;
    }
    return true;
}

// results(x) of the layer: their gradients, recorded and not, by each parameter and by x.
void check_layer(const char* layer, nn::Module& module, const Shape& shape, const std::function<std::vector<Tensor>(const Tensor&)>& results) {
    INFO(layer << " of " << shape.rank() << " dimensions");
    const Tensor x = zeros(shape).requires_grad_();
    std::vector<Tensor> sources = module.parameters();
    for (Tensor& p : sources) p.zero_grad();
    sources.push_back(x);
    Tape tape;
    Tensor total;
    for (const Tensor& y : results(x)) {
        CHECK(y.numel() == 0);
        const Tensor part = sum(y);
        total = total.defined() ? total + part : part;
    }
    REQUIRE(total.requires_grad());
    Tensor first;
    for (const Tensor& g : tape.gradient(total, sources, {.create_graph = true})) first = first.defined() ? first + sum(g) : sum(g);
    tape.backward(first.requires_grad() ? total + first : total);
    for (const auto& [name, p] : module.named_parameters()) {
        INFO(name);
        REQUIRE(p.grad().defined());
        CHECK((p.grad().shape() == p.shape() && is_zeros(p.grad())));
    }
    REQUIRE(x.grad().defined());
    CHECK(x.grad().shape() == shape);
}

template <class Layer>
void check_layer(const char* name, Layer layer, const Shape& shape) {
    check_layer(name, layer, shape, [&](const Tensor& x) { return std::vector<Tensor>{layer(x)}; });
}

// With and without lengths, and from a state of a batch of no examples.
template <class Layer>
void check_sequence(const char* name, Layer layer, const Shape& shape) {
    const auto results = [](const auto& made) {
        if constexpr (requires { made.state; }) {
            return std::vector<Tensor>{made.output, made.state.h, made.state.c};
        } else {
            return std::vector<Tensor>{made.output, made.h};
        }
    };
    check_layer(name, layer, shape, [&](const Tensor& x) { return results(layer(x)); });
    check_layer(name, layer, shape, [&](const Tensor& x) { return results(layer(x, {}, zeros({0}, int64))); });
}

}  // namespace

TEST_CASE("layers on a batch of no examples have gradients of zeros") {
    check_layer("Linear", nn::Linear(3, 4), {0, 3});
    check_layer("Linear", nn::Linear(3, 4), {2, 0, 3});
    check_layer("PReLU", nn::PReLU(), {0, 3});
    check_layer("Conv1d", nn::Conv1d(3, 4, 2), {0, 3, 5});
    check_layer("Conv2d", nn::Conv2d(4, 4, 3, {.padding = 1, .groups = 2}), {0, 4, 5, 6});
    check_layer("Conv3d", nn::Conv3d(2, 3, 2), {0, 2, 3, 4, 5});
    check_layer("ConvTranspose2d", nn::ConvTranspose2d(2, 3, 2), {0, 2, 3, 4});
    check_layer("LayerNorm", nn::LayerNorm({3}), {0, 3});
    check_layer("GroupNorm", nn::GroupNorm(2, 4), {0, 4, 5});
    check_layer("RMSNorm", nn::RMSNorm({3}), {0, 3});
    nn::BatchNorm2d batch_norm(3);
    batch_norm.eval();
    check_layer("BatchNorm2d", batch_norm, {0, 3, 4, 4});
    check_layer("TransformerEncoderLayer", nn::TransformerEncoderLayer(4, 2, {.dropout = 0}), {5, 0, 4});
    check_layer("TransformerEncoderLayer", nn::TransformerEncoderLayer(4, 2, {.dropout = 0, .batch_first = true}), {0, 5, 4});
    nn::Bilinear bilinear(3, 3, 2);
    check_layer("Bilinear", bilinear, {0, 3}, [&](const Tensor& x) { return std::vector<Tensor>{bilinear(x, x)}; });
    nn::MultiheadAttention attention(4, 2);
    check_layer("MultiheadAttention", attention, {5, 0, 4}, [&](const Tensor& x) { return std::vector<Tensor>{attention(x, x, x).output}; });
    nn::TransformerDecoderLayer decoder(4, 2, {.dropout = 0});
    check_layer("TransformerDecoderLayer", decoder, {5, 0, 4}, [&](const Tensor& x) { return std::vector<Tensor>{decoder(x, x)}; });
}

TEST_CASE("recurrent layers on a batch of no examples have gradients of zeros") {
    for (const bool batch_first : {false, true}) {
        const Shape shape = batch_first ? Shape{0, 5, 3} : Shape{5, 0, 3};
        for (const bool bidirectional : {false, true}) {
            const nn::RecurrentOptions options{.num_layers = 2, .batch_first = batch_first, .bidirectional = bidirectional};
            check_sequence("LSTM", nn::LSTM(3, 4, options), shape);
            check_sequence("GRU", nn::GRU(3, 4, options), shape);
            check_sequence("RNN", nn::RNN(3, 4, options), shape);
        }
    }
    check_layer("RNNCell", nn::RNNCell(3, 4), {0, 3});
    check_layer("GRUCell", nn::GRUCell(3, 4), {0, 3});
    nn::LSTMCell cell(3, 4);
    check_layer("LSTMCell", cell, {0, 3}, [&](const Tensor& x) {
        const LSTMState state = cell(x);
        return std::vector<Tensor>{state.h, state.c};
    });
}

TEST_CASE("sequences of which none has a step leave the state, and gradients of zeros") {
    for (const bool bidirectional : {false, true}) {
        nn::GRU gru(3, 4, {.num_layers = 2, .bidirectional = bidirectional});
        const Tensor x = ones({5, 2, 3}), h = ones({bidirectional ? 4 : 2, 2, 4}).requires_grad_();
        Tape tape;
        const auto made = gru(x, h, zeros({2}, int64));
        CHECK(is_zeros(made.output));
        CHECK(made.output.shape() == Shape{5, 2, bidirectional ? 8 : 4});
        CHECK(is_zeros(made.h - h));
        tape.backward(sum(made.output) + sum(made.h));
        for (const auto& [name, p] : gru.named_parameters()) {
            INFO(name);
            REQUIRE(p.grad().defined());
            CHECK(is_zeros(p.grad()));
        }
        CHECK(is_zeros(h.grad() - 1));
    }
}
