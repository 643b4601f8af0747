// Attention and transformer layers against PyTorch's numbers (goldens.h), and what masks mean.
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

Tensor input(const Shape& shape, double seed) {
    Tensor t = values(shape, seed);
    return t.requires_grad_();
}

std::vector<double> gradients(const nn::Module& module) {
    std::vector<double> all;
    for (const Tensor& p : module.parameters()) {
        const std::vector<double> own = p.grad().to_vector<double>();
        all.insert(all.end(), own.begin(), own.end());
    }
    return all;
}

Tensor later(std::int64_t n) { return triu(ones({n, n}), 1).to(bool_); }
const std::vector<double> kPadding = {0, 0, 1, 0, 1, 1};
Tensor padding() { return tensor(kPadding).to(bool_).reshape({2, 3}); }

}  // namespace

TEST_CASE("MultiheadAttention equals PyTorch's, with its weights") {
    nn::MultiheadAttention layer = prepared(nn::MultiheadAttention(4, 2, {.kdim = 3, .vdim = 5}), float64);
    const Tensor q = input({3, 2, 4}, 10), k = input({4, 2, 3}, 11), v = input({4, 2, 5}, 12);
    const nn::AttentionMasks masks{.attn_mask = values({4, 3, 4}, 13), .need_weights = true, .average_attn_weights = false};
    Tape tape;
    const auto [y, weights] = layer(q, k, v, masks);
    backward_of(tape, {y, weights});
    same("output", y, goldens::attention_y0);
    same("weights", weights, goldens::attention_y1);
    same("parameters", tensor(gradients(layer), float64), goldens::attention_parameters);
    same("query", q.grad(), goldens::attention_x0);
    same("key", k.grad(), goldens::attention_x1);
    same("value", v.grad(), goldens::attention_x2);
}

TEST_CASE("TransformerEncoderLayer equals PyTorch's") {
    nn::TransformerEncoderLayer layer = prepared(
        nn::TransformerEncoderLayer(4, 2, {.dim_feedforward = 3, .dropout = 0, .activation = nn::TransformerActivation::gelu, .batch_first = true}),
        float64);
    const Tensor x = input({2, 3, 4}, 10);
    Tape tape;
    const Tensor y = layer(x, {.mask = later(3), .key_padding_mask = padding()});
    backward_of(tape, {y});
    same("output", y, goldens::encoder_layer_y0);
    same("x", x.grad(), goldens::encoder_layer_x0);
    same("parameters", tensor(gradients(layer), float64), goldens::encoder_layer_parameters);
    // A causal mask may be said in words.
    same("causal", layer(x, {.key_padding_mask = padding(), .is_causal = true}), goldens::encoder_layer_y0);
}

TEST_CASE("TransformerDecoderLayer equals PyTorch's") {
    nn::TransformerDecoderLayer layer = prepared(
        nn::TransformerDecoderLayer(4, 2, {.dim_feedforward = 3, .dropout = 0, .activation = nn::TransformerActivation::gelu, .norm_first = true}),
        float64);
    const Tensor x = input({3, 2, 4}, 10), memory = input({3, 2, 4}, 11);
    Tape tape;
    const Tensor y = layer(x, memory, {.mask = later(3), .memory_key_padding_mask = padding()});
    backward_of(tape, {y});
    same("output", y, goldens::decoder_layer_y0);
    same("x", x.grad(), goldens::decoder_layer_x0);
    same("memory", memory.grad(), goldens::decoder_layer_x1);
    same("parameters", tensor(gradients(layer), float64), goldens::decoder_layer_parameters);
}

TEST_CASE("Transformer equals PyTorch's") {
    nn::Transformer model = prepared(
        nn::Transformer({.d_model = 4, .nhead = 2, .num_encoder_layers = 2, .num_decoder_layers = 1, .layer = {.dim_feedforward = 3, .dropout = 0}}),
        float64);
    const Tensor src = input({3, 2, 4}, 10), tgt = input({4, 2, 4}, 11);
    Tape tape;
    const Tensor y = model(src, tgt, {.src_key_padding_mask = padding(), .memory_key_padding_mask = padding(), .tgt_is_causal = true});
    backward_of(tape, {y});
    same("output", y, goldens::transformer_y0);
    same("src", src.grad(), goldens::transformer_x0);
    same("tgt", tgt.grad(), goldens::transformer_x1);
    same("parameters", tensor(gradients(model), float64), goldens::transformer_parameters);
    const Tensor mask = nn::Transformer::generate_square_subsequent_mask(4).to(float64);
    same("mask", model(src, tgt, {.tgt_mask = mask, .src_key_padding_mask = padding(), .memory_key_padding_mask = padding()}),
         goldens::transformer_y0);
    const Tensor fresh = nn::Transformer({.d_model = 8, .nhead = 2}).encoder.layers[0].linear1.weight;
    CHECK(abs(fresh).amax().item() > 0.9 * std::sqrt(6.0 / (8 + 2048)));
    CHECK(abs(fresh).amax().item() <= std::sqrt(6.0 / (8 + 2048)));
}

TEST_CASE("one source, several, one sequence and batch first give the same") {
    const nn::MultiheadAttention layer(6, 3), batch_first = [&] {
        nn::MultiheadAttention m(6, 3, {.batch_first = true});
        m.load_state_dict(layer.state_dict());
        return m;
    }();
    const Tensor x = randn({5, 2, 6}), copy = x.clone();
    const std::vector<double> y = layer(x, x, x).output.to_vector<double>();
    same("three products", layer(x, copy, copy).output, y, 1e-5);
    same("batch first", batch_first(x.transpose(0, 1), copy.transpose(0, 1), copy.transpose(0, 1)).output.transpose(0, 1), y, 1e-5);
    const Tensor one = x.select(1, 1);
    same("one sequence", layer(one, one, one).output, layer(x, x, x).output.select(1, 1).to_vector<double>(), 1e-5);
    const nn::AttentionResult averaged = layer(one, one, one, {.need_weights = true});
    CHECK(averaged.weights.shape() == Shape{5, 5});
    same("weights sum to 1", sum(averaged.weights, 1), std::vector<double>(5, 1), 1e-5);
}

TEST_CASE("masks of bools and of floats leave out the same") {
    const double inf = std::numeric_limits<double>::infinity();
    const nn::MultiheadAttention layer(4, 2, {.batch_first = true});
    const Tensor x = randn({2, 3, 4}), floats = masked_fill(zeros({2, 3}), padding(), -inf);
    const Tensor y = layer(x, x, x, {.key_padding_mask = padding(), .attn_mask = later(3)}).output;
    same("floats", layer(x, x, x, {.key_padding_mask = floats, .attn_mask = later(3)}).output, y.to_vector<double>(), 1e-6);
    const Tensor both = masked_fill(zeros({3, 3}), later(3), -inf);
    same("both", layer(x, x, x, {.key_padding_mask = floats, .attn_mask = both}).output, y.to_vector<double>(), 1e-6);
    // What is left out has no influence.
    Tensor other = x.clone();
    other.index_put_({1, Slice(1)}, 100);
    same("padded", layer(other, other, other, {.key_padding_mask = padding(), .attn_mask = later(3)}).output[1][0], y[1][0].to_vector<double>(),
         1e-6);
}

TEST_CASE("stacks of layers have layers of their own") {
    nn::TransformerEncoder encoder(4, 2, 3, {.dim_feedforward = 8, .dropout = 0.5}, /*final_norm=*/true);
    const NamedTensors named = encoder.named_parameters();
    CHECK(named.size() == 3 * 12 + 2);
    CHECK(named[0].name == "layers.0.self_attn.in_proj_weight");
    CHECK(named.back().name == "norm.bias");
    CHECK(!encoder.layers[0].linear1.weight.is_same(encoder.layers[1].linear1.weight));
    const Tensor x = randn({5, 2, 4});
    CHECK((encoder(x) - encoder(x)).abs().amax().item() > 0);
    encoder.eval();
    same("eval", encoder(x), encoder(x).to_vector<double>(), 0);
    nn::TransformerDecoder decoder(4, 2, 2, {.dim_feedforward = 8});
    CHECK(decoder(x, encoder(x), {.is_causal = true}).shape() == Shape{5, 2, 4});
}

TEST_CASE("transformer layers drop the attention's weights, what it gives, and both layers behind it") {
    const Tensor x = randn({3, 2, 8});
    for (const bool norm_first : {false, true}) {
        nn::TransformerEncoderLayer layer(8, 2, {.dim_feedforward = 16, .dropout = 0.5, .norm_first = norm_first});
        const auto drop = [](const Tensor& t) { return dropout(t, 0.5, /*training=*/true); };
        const auto attend = [&](const Tensor& t) { return drop(layer.self_attn(t, t, t).output); };
        const auto feed = [&](const Tensor& t) { return drop(layer.linear2(drop(relu(layer.linear1(t))))); };
        manual_seed(5);
        const Tensor y = layer(x);
        manual_seed(5);
        if (norm_first) {
            const Tensor h = x + attend(layer.norm1(x));
            CHECK(equal(y, h + feed(layer.norm2(h))));
        } else {
            const Tensor h = layer.norm1(x + attend(x));
            CHECK(equal(y, layer.norm2(h + feed(h))));
        }
    }
    nn::TransformerDecoderLayer layer(8, 2, {.dropout = 1});
    for (const nn::MultiheadAttention* attention : {&layer.self_attn, &layer.multihead_attn}) {
        Tensor bias = attention->out_proj.bias;
        bias.copy_(randn({8}));
        CHECK(equal((*attention)(x, x, x).output, bias.expand({3, 2, 8})));  // no weight is left
    }
}

TEST_CASE("what attention layers refuse") {
    const nn::MultiheadAttention layer(4, 2);
    const Tensor x = randn({5, 2, 4});
    const std::string here = "attention_layers_test.cpp:";
    CHECK(begins(message<ValueError>([] { nn::MultiheadAttention(4, 3); }), here));
    CHECK(begins(message<ShapeError>([&] { layer(x, x, randn({4, 2, 4})); }), here));
    CHECK(begins(message<ShapeError>([&] { layer(randn({5, 3, 4}), x, x); }), here));
    CHECK(contains(message<ShapeError>([&] { layer(x, x, x, {.attn_mask = later(4)}); }), "attn_mask has shape (4, 4), expected (5, 5)"));
    CHECK(contains(message<DTypeError>([&] { layer(x, x, x, {.key_padding_mask = zeros({2, 5}, int64)}); }),
                   "MultiheadAttention: key_padding_mask must hold bools (true: not looked at) or floats, not int64: convert it with "
                   "mask.to(bool_)"));
    CHECK(contains(message<DTypeError>([&] { layer(x, x, x, {.attn_mask = zeros({5, 5}, uint8)}); }), "attn_mask must hold bools"));
    CHECK(contains(message<ShapeError>([&] { layer(x, x, x, {.key_padding_mask = padding()}); }),
                   "key_padding_mask has shape (2, 3), expected (2, 5)"));
}

TEST_CASE("attention whose weights of each head are wanted, but not asked for, is refused") {
    const nn::MultiheadAttention attention(4, 2);
    const Tensor x = ones({3, 4});
    FAILS_IN(ValueError, "MultiheadAttention: .average_attn_weights = false asks for the weights of each head, but .need_weights is false", "",
             attention(x, x, x, {.average_attn_weights = false}));
    CHECK(attention(x, x, x, {.need_weights = true, .average_attn_weights = false}).weights.shape() == Shape(2, 3, 3));
    CHECK(!attention(x, x, x).weights.defined());
}

TEST_CASE("reading weights that were not asked for says how to ask") {
    const nn::MultiheadAttention attention(4, 2);
    const Tensor x = ones({3, 4});
    const auto [output, weights] = attention(x, x, x);
    const int asked = __LINE__ - 1;
    const std::string hint =
        "the tensor is undefined; if it is the weights of MultiheadAttention ({.need_weights = true}), ask for it at "
        "attention_layers_test.cpp:" +
        std::to_string(asked);
    // A transformer's own attention is none of the user's.
    nn::TransformerEncoderLayer(4, 2, {.dim_feedforward = 4})(x);
    FAILS_IN(ValueError, "sum: " + hint, "", weights.sum());
    // Once: the next undefined tensor may be another.
    CHECK(check::message<ValueError>([&] { static_cast<void>(matmul(weights, x)); }).find("MultiheadAttention") == std::string::npos);
    attention(x, x, x);
    attention(x, x, x, {.need_weights = true});
    const std::string without = check::message<ValueError>([&] { weights.shape(); });
    CHECK(without.find("undefined") + 9 == without.size());
}
