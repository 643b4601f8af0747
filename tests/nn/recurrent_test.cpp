// RNN, GRU and LSTM over sequences: against PyTorch's numbers (goldens.h), against their cells, and what they refuse.
#include "../fails.h"
#include "check.h"
#include "goldens.h"

using namespace tapir;
using check::backward_of;
using check::begins;
using check::contains;
using check::message;
using check::prepared;
using check::same;
using check::values;

namespace {

Tensor input(const Shape& shape, double seed, DType dtype) {
    Tensor t = values(shape, seed, dtype);
    return t.requires_grad_();
}

const nn::RecurrentOptions kTwoLayers{.num_layers = 2, .bidirectional = true};

std::vector<Tensor> results(const nn::RecurrentResult& r) { return {r.output, r.h}; }
std::vector<Tensor> results(const nn::LSTMResult& r) { return {r.output, r.state.h, r.state.c}; }

// x (5, 4, 3), states (4, 4, 2).
std::vector<Tensor> call(const nn::LSTM& layer, const Tensor& x, const std::vector<Tensor>& states, const Tensor& lengths) {
    return results(layer(x, {states[0], states[1]}, lengths));
}
template <class Layer>
std::vector<Tensor> call(const Layer& layer, const Tensor& x, const std::vector<Tensor>& states, const Tensor& lengths) {
    return results(layer(x, states[0], lengths));
}

using Numbers = const std::vector<double>;
struct Golden {
    std::vector<Numbers*> outputs, inputs;
    Numbers *ih, *hh, *bias_ih, *bias_hh, *hh_reverse, *ih_1, *hh_1_reverse;
};
#define TAPIR_GOLDEN_PARAMETERS(name)                                                                                       \
    &goldens::name##_weight_ih_l0, &goldens::name##_weight_hh_l0, &goldens::name##_bias_ih_l0, &goldens::name##_bias_hh_l0, \
        &goldens::name##_weight_hh_l0_reverse, &goldens::name##_weight_ih_l1, &goldens::name##_weight_hh_l1_reverse
#define TAPIR_GOLDEN_2(name) \
    Golden { {&goldens::name##_y0, &goldens::name##_y1}, {&goldens::name##_x1}, TAPIR_GOLDEN_PARAMETERS(name) }
#define TAPIR_GOLDEN_3(name)                                                                                                                       \
    Golden {                                                                                                                                       \
        {&goldens::name##_y0, &goldens::name##_y1, &goldens::name##_y2}, {&goldens::name##_x1, &goldens::name##_x2}, TAPIR_GOLDEN_PARAMETERS(name) \
    }

template <class Layer>
void check_layer(const nn::RecurrentOptions& options, const Tensor& lengths, const Golden& golden, Numbers& grad_x) {
    for (const auto& [dtype, tolerance] : {std::pair(float64, 1e-10), std::pair(float32, 5e-6)}) {
        const Layer layer = prepared(Layer(3, 2, options), dtype);
        const Tensor x = input({5, 4, 3}, 10, dtype);
        std::vector<Tensor> states;
        for (std::size_t i = 0; i < golden.inputs.size(); ++i) states.push_back(input({4, 4, 2}, 11 + static_cast<double>(i), dtype));
        Tape tape;
        const std::vector<Tensor> y = call(layer, x, states, lengths);
        backward_of(tape, y);
        for (std::size_t i = 0; i < y.size(); ++i) same("output", y[i], *golden.outputs[i], tolerance);
        for (std::size_t i = 0; i < states.size(); ++i) same("state", states[i].grad(), *golden.inputs[i], tolerance);
        same("x", x.grad(), grad_x, tolerance);
        same("weight_ih_l0", layer.weights[0].weight_ih.grad(), *golden.ih, tolerance);
        same("weight_hh_l0", layer.weights[0].weight_hh.grad(), *golden.hh, tolerance);
        same("bias_ih_l0", layer.weights[0].bias_ih.grad(), *golden.bias_ih, tolerance);
        same("bias_hh_l0", layer.weights[0].bias_hh.grad(), *golden.bias_hh, tolerance);
        same("weight_hh_l0_reverse", layer.weights[1].weight_hh.grad(), *golden.hh_reverse, tolerance);
        same("weight_ih_l1", layer.weights[2].weight_ih.grad(), *golden.ih_1, tolerance);
        same("weight_hh_l1_reverse", layer.weights[3].weight_hh.grad(), *golden.hh_1_reverse, tolerance);
    }
}

}  // namespace

TEST_CASE("layers over sequences equal PyTorch's") {
    check_layer<nn::RNN>(kTwoLayers, {}, TAPIR_GOLDEN_2(rnn_layers), goldens::rnn_layers_x0);
    check_layer<nn::GRU>(kTwoLayers, {}, TAPIR_GOLDEN_2(gru_layers), goldens::gru_layers_x0);
    check_layer<nn::LSTM>(kTwoLayers, {}, TAPIR_GOLDEN_3(lstm_layers), goldens::lstm_layers_x0);
}

TEST_CASE("layers over sequences of several lengths equal PyTorch's over packed ones") {
    const Tensor lengths = tensor({2, 4, 1, 4});
    const nn::RecurrentOptions relu{.num_layers = 2, .bidirectional = true, .relu = true};
    check_layer<nn::RNN>(relu, lengths, TAPIR_GOLDEN_2(rnn_lengths), goldens::rnn_lengths_x0);
    check_layer<nn::GRU>(kTwoLayers, lengths, TAPIR_GOLDEN_2(gru_lengths), goldens::gru_lengths_x0);
    check_layer<nn::LSTM>(kTwoLayers, lengths, TAPIR_GOLDEN_3(lstm_lengths), goldens::lstm_lengths_x0);
}

TEST_CASE("a layer does what its cell does, step by step") {
    const nn::LSTM layer(3, 4);
    nn::LSTMCell cell(3, 4);
    static_cast<nn::RecurrentWeights&>(cell) = layer.weights[0];
    const Tensor x = randn({6, 2, 3});
    const auto [output, last] = layer(x);
    LSTMState state;
    for (int t = 0; t < 6; ++t) {
        state = cell(x[t], state);
        same("h", output[t], state.h.to_vector<double>(), 1e-6);
    }
    same("c", last.c[0], state.c.to_vector<double>(), 1e-6);
}

TEST_CASE("layouts: batch first, one sequence, no steps") {
    const nn::GRU layer(3, 4, {.bidirectional = true}), batch_first = [&] {
        nn::GRU g(3, 4, {.batch_first = true, .bidirectional = true});
        g.weights = layer.weights;
        return g;
    }();
    const Tensor x = randn({5, 2, 3}), lengths = tensor({5, 3});
    const auto [output, h] = layer(x, {}, lengths);
    const auto [turned, h_2] = batch_first(x.transpose(0, 1), {}, lengths);
    CHECK(turned.shape() == Shape{2, 5, 8});
    same("batch first", turned.transpose(0, 1), output.to_vector<double>(), 1e-6);
    same("its state", h_2, h.to_vector<double>(), 1e-6);
    const auto [one, h_one] = layer(x.select(1, 0));
    CHECK(one.shape() == Shape{5, 8});
    CHECK(h_one.shape() == Shape{2, 4});
    same("one sequence", one, output.select(1, 0).to_vector<double>(), 1e-6);
    const auto [short_one, h_short] = layer(x.select(1, 1), {}, tensor(3));
    same("with a length", short_one, output.select(1, 1).to_vector<double>(), 1e-6);
    same("its state", h_short, h.select(1, 1).to_vector<double>(), 1e-6);

    // An example without a step keeps its initial state.
    const Tensor initial = randn({2, 2, 4});
    const auto [none, h_none] = layer(x, initial, tensor({0, 2}));
    CHECK(none.select(1, 0).abs().sum().item() == 0);
    same("kept", h_none.select(1, 0), initial.select(1, 0).to_vector<double>(), 0);
    CHECK(layer(x, initial, tensor({0, 0})).output.abs().sum().item() == 0);
    CHECK(layer(randn({0, 2, 3})).output.shape() == Shape{0, 2, 8});
}

TEST_CASE("what lies behind an example's end has no influence, not even nan") {
    nn::LSTM layer(3, 4, {.num_layers = 2, .bidirectional = true});
    Tensor x = randn({5, 2, 3});
    x.index_put_({Slice(3), 1}, NAN);
    Tape tape;
    const auto [output, state] = layer(x, {}, tensor({5, 3}));
    tape.backward(sum(output) + sum(state.c));
    CHECK(output.isnan().any().item() == 0);
    for (const Tensor& p : layer.parameters()) CHECK(p.grad().isnan().any().item() == 0);
}

TEST_CASE("each matrix has an initialiser of its own") {
    const nn::RecurrentInit init{.input = [](const Tensor& w) { nn::init::constant_(w, 2); },
                                 .recurrent = [](const Tensor& w) { nn::init::orthogonal_(w); },
                                 .bias = [](const Tensor& b) { nn::init::zeros_(b); }};
    const nn::GRU layer(3, 4, {.num_layers = 2, .init = init});
    for (const nn::RecurrentWeights& w : layer.weights) {
        CHECK(w.weight_ih.requires_grad());
        CHECK(w.weight_ih.amin().item() == 2);
        CHECK(w.bias_hh.abs().amax().item() == 0);
        for (int gate = 0; gate < 3; ++gate) {  // orthogonal each
            const Tensor m = w.weight_hh.narrow(0, gate * 4, 4);
            same("product", matmul(m, m.transpose(0, 1)), eye(4).to_vector<double>(), 1e-6);
        }
    }
    CHECK(nn::LSTMCell(3, 4, true, init).weight_ih.amax().item() == 2);
    CHECK(nn::LSTM(3, 4, {.bias = false}).parameters().size() == 2);
}

TEST_CASE("names, printing and dropout between layers") {
    nn::LSTM layer(3, 4, {.num_layers = 2, .dropout = 0.5, .bidirectional = true});
    const NamedTensors named = layer.named_parameters();
    REQUIRE(named.size() == 16);
    CHECK(named[0].name == "weight_ih_l0");
    CHECK(named[7].name == "bias_hh_l0_reverse");
    CHECK(named[12].name == "weight_ih_l1_reverse");
    CHECK(layer.describe() == "3, 4, layers 2, dropout 0.5, bidirectional");
    const Tensor x = randn({3, 2, 3});
    const Tensor trained = layer(x).output, again = layer(x).output;
    CHECK((trained - again).abs().amax().item() > 0);
    layer.eval();
    same("eval", layer(x).output, layer(x).output.to_vector<double>(), 0);
}

TEST_CASE("dropout is between layers, not behind the last") {
    const auto check_layer = [](const auto& two, auto& last) {
        const NamedTensors weights = two.named_parameters();
        for (const NamedTensor& own : last.named_parameters()) {
            Tensor weight = own.tensor;
            weight.copy_(weights[own.name.substr(0, own.name.size() - 1) + "1"]);
        }
        const Tensor y = two(randn({5, 2, 3})).output;  // of all that the first layer gives nothing is left
        CHECK(equal(y, last(zeros({5, 2, 4})).output));
        CHECK(y.abs().amin().item() > 0);
    };
    nn::LSTM lstm(4, 4);
    check_layer(nn::LSTM(3, 4, {.num_layers = 2, .dropout = 1}), lstm);
    nn::GRU gru(4, 4);
    check_layer(nn::GRU(3, 4, {.num_layers = 2, .dropout = 1}), gru);
    nn::RNN rnn(4, 4);
    check_layer(nn::RNN(3, 4, {.num_layers = 2, .dropout = 1}), rnn);
}

TEST_CASE("what recurrent layers refuse") {
    const nn::LSTM layer(3, 4);
    const Tensor x = randn({5, 2, 3});
    const std::string here = "recurrent_test.cpp:";
    CHECK(begins(message<ShapeError>([&] { layer(randn({5, 2, 4})); }), here));
    CHECK(contains(message<ShapeError>([&] { layer(randn({3})); }), "LSTM: the input must have shape (time, batch, 3)"));
    CHECK(contains(message<ShapeError>([&] { layer(x, {zeros({2, 4}), {}}); }), "h has shape (2, 4), expected (1, 2, 4)"));
    CHECK(contains(message<ValueError>([&] { layer(x, {}, tensor({5, 6})); }), "length 6 of a sequence of 5 steps"));
    CHECK(begins(message<ValueError>([&] { layer(x, {}, tensor({5, -1})); }), here));
    CHECK(contains(message<ShapeError>([&] { layer(x, {}, tensor({5, 5, 5})); }), "lengths have shape (3,), expected (2,)"));
    CHECK(contains(message<DTypeError>([&] { layer(x, {}, tensor({5.0, 5.0})); }), "lengths must be integers"));
    CHECK(begins(message<ValueError>([&] { nn::GRU(3, 0); }), here));
    CHECK(begins(message<ValueError>([&] { nn::GRU(3, 4, {.dropout = 2}); }), here));
    CHECK(contains(message<ValueError>([&] { nn::GRU(3, 4, {.relu = true}); }), "relu is an option of RNN only"));
}

TEST_CASE("recurrent layers say when the layout looks like the other one") {
    const nn::LSTM time_first(5, 6), batch_first(5, 6, {.batch_first = true});
    const Tensor x = ones({4, 7, 5}), h = zeros({1, 4, 6}), lengths = full({4}, 3, int64);  // a batch of 4
    const std::string hint = "; is the input (batch, time, features)? Then make the LSTM with {.batch_first = true}";
    FAILS_IN(ShapeError, "LSTM: the state h has shape (1, 4, 6), expected (1, 7, 6)" + hint, "", time_first(x, {h, h}));
    FAILS_IN(ShapeError, "LSTM: lengths have shape (4,), expected (7,)" + hint, "", time_first(x, {}, lengths));
    CHECK(batch_first(x, {h, h}, lengths).output.shape() == Shape(4, 7, 6));
    FAILS(ShapeError, "expected (1, 7, 6); is the input (time, batch, features)? This LSTM was made with .batch_first = true",
          batch_first(x.transpose(0, 1), {h, h}));
    FAILS(ShapeError, "GRU: the state h has shape (1, 4, 6)", nn::GRU(5, 6)(x, h));
    FAILS(ShapeError, "got (4, 5, 7); are its features in dimension 1? x.transpose(1, 2)", time_first(x.transpose(1, 2)));
    const auto plain = [](const std::string& text) { return text.find("batch_first") == std::string::npos; };
    CHECK(plain(check::message<ShapeError>([&] { time_first(x, {zeros({1, 3, 6}), zeros({1, 3, 6})}); })));
    CHECK(plain(check::message<ShapeError>([&] { time_first(ones({4, 4, 5}), {zeros({2, 4, 6}), zeros({2, 4, 6})}); })));
}

TEST_CASE("cells take their options by name or by position, and one layer has nothing to drop out of") {
    CHECK(!nn::LSTMCell(2, 3, {.bias = false}).bias_ih.defined());
    CHECK(nn::LSTMCell(2, 3, {}).bias_ih.defined());
    CHECK(!nn::LSTMCell(2, 3, false).bias_ih.defined());
    CHECK(!nn::GRUCell(2, 3, {.bias = false}).bias_hh.defined());
    const auto zero = [](const Tensor& w) { nn::init::zeros_(w); };
    const nn::GRUCell zeros_in(2, 3, {.init = {.input = zero}}), positional(2, 3, true, {.input = zero});
    CHECK(zeros_in.weight_ih.detach().abs().sum().item() == 0);
    CHECK(positional.weight_ih.detach().abs().sum().item() == 0);
    CHECK(zeros_in.weight_hh.detach().abs().sum().item() > 0);
    const nn::RNNCell with_relu(2, 3, {.relu = true});
    CHECK(with_relu(ones({50, 2}) * 100).max().item() > 1);
    FAILS(ValueError, "LSTMCell: relu is an option of RNNCell only", nn::LSTMCell(2, 3, {.relu = true}));
    CHECK(nn::LSTM(2, 3, {.dropout = 0.5}).describe() == "2, 3, dropout 0.5 (none: one layer)");
    CHECK(nn::LSTM(2, 3, {.num_layers = 2, .dropout = 0.5}).describe() == "2, 3, layers 2, dropout 0.5");
}
