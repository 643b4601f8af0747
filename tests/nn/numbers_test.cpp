// The numbers that layers, initialisers and losses are made with: those that have no meaning, or would make weights and statistics
// nan without a word, are refused where they are given; what PyTorch takes and has a meaning is taken.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("sizes of layers", "[nn]") {
    FAILS(ValueError, "a size must not be negative", nn::Linear(-1, 3));
    FAILS(ValueError, "a size must not be negative", nn::Linear(3, -1));
    FAILS(ValueError, "Bilinear: in1_features must be at least 1, got 0", nn::Bilinear(0, 1, 1));
    FAILS(ValueError, "Bilinear: in1_features must be at least 1, got -1", nn::Bilinear(-1, 1, 1));
    FAILS(ValueError, "a size must not be negative", nn::Bilinear(1, -1, 1));
    FAILS(ValueError, "a size must not be negative", nn::PReLU(-1));
    FAILS(ValueError, "a size must not be negative", nn::Embedding(-1, 2));
    FAILS(ValueError, "a size must not be negative", nn::Embedding(2, -1));
    FAILS(ValueError, "a size must not be negative", nn::EmbeddingBag(-1, 2));
    FAILS(ValueError, "a size must not be negative", nn::LayerNorm({-1}));
    FAILS(ValueError, "a size must not be negative", nn::RMSNorm({-1}));
    FAILS(ValueError, "BatchNorm1d: channels must be at least 1, got 0", nn::BatchNorm1d(0));
    FAILS(ValueError, "InstanceNorm2d: channels must be at least 1, got -1", nn::InstanceNorm2d(-1));
    FAILS(ValueError, "GroupNorm: 0 groups do not divide 4 channels", nn::GroupNorm(0, 4));
    FAILS(ValueError, "GroupNorm: 3 groups do not divide 4 channels", nn::GroupNorm(3, 4));
    FAILS(ValueError, "GroupNorm: 2 groups do not divide -4 channels", nn::GroupNorm(2, -4));
    FAILS(ValueError, "MultiheadAttention: 0 heads do not divide embed_dim 4", nn::MultiheadAttention(4, 0));
    FAILS(ValueError, "MultiheadAttention: 3 heads do not divide embed_dim 4", nn::MultiheadAttention(4, 3));
    FAILS(ValueError, "a size must not be negative", nn::MultiheadAttention(4, 2, {.kdim = -1}));
    FAILS(ValueError, "a size must not be negative", nn::TransformerEncoderLayer(4, 2, {.dim_feedforward = -1}));
    FAILS(ValueError, "LSTM: sizes and num_layers must be at least 1, got 0, 3 and 1", nn::LSTM(0, 3));
    FAILS(ValueError, "GRU: sizes and num_layers must be at least 1, got 3, 0 and 1", nn::GRU(3, 0));
    FAILS(ValueError, "RNN: sizes and num_layers must be at least 1, got 3, 3 and 0", nn::RNN(3, 3, {.num_layers = 0}));
    FAILS(ValueError, "RNN: num_layers must be at most 100000, got 9223372036854775807", nn::RNN(3, 3, {.num_layers = INT64_MAX}));
    FAILS(ValueError, "TransformerEncoder: num_layers must be at most 100000, got 9223372036854775807", nn::TransformerEncoder(4, 2, INT64_MAX));
    FAILS(ValueError, "a size must not be negative", nn::LSTMCell(-1, 3));
    FAILS(ValueError, "a size must not be negative", nn::GRUCell(3, -1));
    FAILS(ValueError, "a size must not be negative", nn::ChildSumTreeLSTMCell(3, -1));
    FAILS(ValueError, "NaryTreeLSTMCell: the arity 0 is outside", nn::NaryTreeLSTMCell(3, 3, 0));
    CHECK(nn::Linear(0, 3)(ones({2, 0})).shape() == Shape{2, 3});
    CHECK(nn::Linear(3, 0)(ones({2, 3})).shape() == Shape{2, 0});
    CHECK(nn::Bilinear(1, 0, 2)(ones({4, 1}), ones({4, 0})).shape() == Shape{4, 2});
    CHECK(nn::Embedding(0, 2).weight.shape() == Shape{0, 2});
    CHECK(nn::RNNCell(3, 0)(ones({2, 3})).shape() == Shape{2, 0});
    CHECK(nn::RNNCell(0, 3)(ones({2, 0})).shape() == Shape{2, 3});
}

TEST_CASE("rows that stand for padding", "[nn]") {
    for (const std::int64_t row : {std::int64_t{3}, std::int64_t{-4}, std::numeric_limits<std::int64_t>::min()}) {
        FAILS(IndexError, "Embedding: padding_idx", nn::Embedding(3, 2, {.padding_idx = row}));
        FAILS(IndexError, "Embedding: padding_idx", nn::Embedding::from_pretrained(ones({3, 2}), true, {.padding_idx = row}));
        FAILS(IndexError, "EmbeddingBag: padding_idx", nn::EmbeddingBag(3, 2, {.padding_idx = row}));
    }
    FAILS(IndexError, "Embedding: padding_idx", nn::Embedding(0, 2, {.padding_idx = 0}));
    CHECK(nn::Embedding(3, 2, {.padding_idx = -3}).weight[0].to_vector<float>() == std::vector<float>{0, 0});
}

TEST_CASE("eps, momentum and first values of layers", "[nn]") {
    for (const double bad : {kNan, -1.0, -kInf}) {
        FAILS(ValueError, "LayerNorm: eps must not be negative", nn::LayerNorm({3}, {.eps = bad}));
        FAILS(ValueError, "BatchNorm1d: eps must not be negative", nn::BatchNorm1d(3, {.eps = bad}));
        FAILS(ValueError, "BatchNorm3d: eps must not be negative", nn::BatchNorm3d(3, {.eps = bad}));
        FAILS(ValueError, "GroupNorm: eps must not be negative", nn::GroupNorm(1, 3, {.eps = bad}));
        FAILS(ValueError, "InstanceNorm1d: eps must not be negative", nn::InstanceNorm1d(3, {.eps = bad}));
        FAILS(ValueError, "LayerNorm: eps must not be negative", nn::TransformerEncoderLayer(4, 2, {.layer_norm_eps = bad}));
    }
    for (const double bad : {kNan, kInf, -kInf}) {
        FAILS(ValueError, "BatchNorm2d: momentum must be finite", nn::BatchNorm2d(3, {.momentum = bad}));
        FAILS(ValueError, "PReLU: init must be finite", nn::PReLU(1, bad));
        Tensor mean = zeros({3}), var = ones({3});
        FAILS(ValueError, "batch_norm: momentum must be finite", batch_norm(ones({2, 3}), mean, var, {}, {}, {.training = true, .momentum = bad}));
        CHECK(mean.to_vector<float>() == std::vector<float>{0, 0, 0});
    }
    FAILS(ValueError, "RMSNorm: eps is nan", nn::RMSNorm({3}, kNan));
    nn::BatchNorm1d all(2, {.eps = 0, .momentum = 1.5});
    all(tensor({{1.0, 2.0}, {3.0, 6.0}}));
    CHECK(all.running_mean.to_vector<float>() == std::vector<float>{3, 6});
}

TEST_CASE("probabilities of layers", "[nn]") {
    for (const double bad : {kNan, -0.1, 1.5, kInf}) {
        FAILS(ValueError, "Dropout: the probability", (nn::Dropout(bad)));
        FAILS(ValueError, "Dropout1d: the probability", (nn::Dropout1d(bad)));
        FAILS(ValueError, "Dropout2d: the probability", (nn::Dropout2d(bad)));
        FAILS(ValueError, "Dropout3d: the probability", (nn::Dropout3d(bad)));
        FAILS(ValueError, "AlphaDropout: the probability", (nn::AlphaDropout(bad)));
        FAILS(ValueError, "MultiheadAttention: dropout must be in [0, 1]", nn::MultiheadAttention(4, 2, {.dropout = bad}));
        FAILS(ValueError, "dropout must be in [0, 1]", nn::TransformerDecoderLayer(4, 2, {.dropout = bad}));
        FAILS(ValueError, "LSTM: dropout must be in [0, 1]", nn::LSTM(3, 3, {.dropout = bad}));
    }
}

TEST_CASE("windows of layers", "[nn]") {
    FAILS(ValueError, "Conv2d: channels must be at least 1", nn::Conv2d(0, 1, 1));
    FAILS(ValueError, "Conv2d: channels must be at least 1", nn::Conv2d(1, -1, 1));
    FAILS(ValueError, "ConvTranspose2d: 0 groups do not divide", nn::ConvTranspose2d(1, 1, 1, {.groups = 0}));
    for (const std::int64_t bad : {0, -1}) {
        FAILS(ValueError, "Conv1d: kernel_size must be at least 1", nn::Conv1d(1, 1, bad));
        FAILS(ValueError, "Conv2d: kernel_size must be at least 1", nn::Conv2d(1, 1, {1, bad}));
        FAILS(ValueError, "Conv2d: stride must be at least 1, got", nn::Conv2d(1, 1, 1, {.stride = bad}));
        FAILS(ValueError, "Conv2d: dilation must be at least 1, got", nn::Conv2d(1, 1, 1, {.dilation = {1, bad}}));
        FAILS(ValueError, "ConvTranspose3d: stride must be at least 1, got", nn::ConvTranspose3d(1, 1, 1, {.stride = bad}));
        FAILS(ValueError, "max_pool2d: kernel_size", (nn::MaxPool2d(bad))(ones({1, 1, 4, 4})));
        FAILS(ValueError, "max_pool2d: stride", nn::MaxPool2d(2, {.stride = bad})(ones({1, 1, 4, 4})));
        FAILS(ValueError, "max_pool2d: dilation", nn::MaxPool2d(2, {.dilation = bad})(ones({1, 1, 4, 4})));
        FAILS(ValueError, "avg_pool1d: kernel_size", (nn::AvgPool1d(bad))(ones({1, 1, 4})));
        FAILS(ValueError, "pixel_shuffle: upscale_factor", (nn::PixelShuffle(bad))(ones({1, 4, 4, 4})));
        FAILS(ValueError, "local_response_norm: size must be at least 1", (nn::LocalResponseNorm(bad))(ones({1, 4, 4})));
    }
    FAILS(ValueError, "Conv2d: padding must be at least 0, got (-1,)", nn::Conv2d(1, 1, 1, {.padding = -1}));
    FAILS(ValueError, "ConvTranspose1d: padding must be at least 0", nn::ConvTranspose1d(1, 1, 1, {.padding = -1}));
    FAILS(ValueError, "Conv2d: stride needs 1 number or 2, got (1, 1, 1)", nn::Conv2d(1, 1, 1, {.stride = {1, 1, 1}}));
    FAILS(ValueError, "Conv1d: padding needs 1 number, got (1, 1)", nn::Conv1d(1, 1, 1, {.padding = Shape{1, 1}}));
    FAILS(ValueError, "max_pool2d: padding 2 is above half", nn::MaxPool2d(2, {.padding = 2})(ones({1, 1, 4, 4})));
    FAILS(ValueError, "adaptive_avg_pool1d: output_size must not be negative", nn::AdaptiveAvgPool1d(-2)(ones({1, 1, 4})));
    FAILS(ValueError, "conv_transpose2d: output_padding 5 must be below", nn::ConvTranspose2d(1, 1, 1, {.output_padding = 5})(ones({1, 1, 4, 4})));
}

TEST_CASE("numbers of losses", "[nn]") {
    const Tensor x = randn({4, 3}), y = randn({4, 3}), sign = ones({4, 3}), classes = tensor({0, 1, 2, 0}), row_sign = ones({4});
    for (const double bad : {kNan, 2.0, -0.1}) {
        FAILS(ValueError, "cross_entropy: label_smoothing must be in [0, 1]", nn::CrossEntropyLoss({.label_smoothing = bad})(x, classes));
    }
    for (const double bad : {kNan, -1.0}) {
        FAILS(ValueError, "huber_loss: delta must be above 0", nn::HuberLoss({.delta = bad})(x, y));
        FAILS(ValueError, "smooth_l1_loss: beta must not be negative", nn::SmoothL1Loss({.beta = bad})(x, y));
        FAILS(ValueError, "triplet_margin_loss: margin must be above 0", nn::TripletMarginLoss({.margin = bad})(x, y, x));
        FAILS(ValueError, "cosine_similarity: eps must not be negative", nn::CosineSimilarity(1, bad)(x, y));
    }
    FAILS(ValueError, "huber_loss: delta must be above 0, got 0", nn::HuberLoss({.delta = 0})(x, y));
    FAILS(ValueError, "hinge_embedding_loss: margin is nan", nn::HingeEmbeddingLoss({.margin = kNan})(x, sign));
    FAILS(ValueError, "margin_ranking_loss: margin is nan", nn::MarginRankingLoss({.margin = kNan})(x, y, sign));
    FAILS(ValueError, "cosine_embedding_loss: margin is nan", nn::CosineEmbeddingLoss({.margin = kNan})(x, y, row_sign));
    FAILS(ValueError, "multi_margin_loss: margin is nan", nn::MultiMarginLoss({.margin = kNan})(x, classes));
    FAILS(ValueError, "multi_margin_loss: p must be 1 or 2", nn::MultiMarginLoss({.p = 3})(x, classes));
    FAILS(ValueError, "poisson_nll_loss: eps is nan", nn::PoissonNLLLoss({.log_input = false, .eps = kNan})(abs(x), abs(y)));
    FAILS(ValueError, "gaussian_nll_loss: eps is nan", nn::GaussianNLLLoss({.eps = kNan})(x, y, abs(x)));
    FAILS(ValueError, "gumbel_softmax: tau must be above 0", gumbel_softmax(x, kNan));
    CHECK(hinge_embedding_loss(full({2}, 0.5), tensor({1.0, -1.0}), -1).item() == Approx(0.25));
    CHECK(cosine_embedding_loss(x, x, -row_sign, 2).item() == 0);
}

TEST_CASE("numbers of initialisers", "[nn]") {
    const Tensor t = ones({3, 3});
    FAILS(ValueError, "uniform_: low 2 is above high 1", nn::init::uniform_(t, 2, 1));
    FAILS(ValueError, "uniform_: low", nn::init::uniform_(t, kNan, 1));
    FAILS(ValueError, "uniform_: float32 does not hold numbers from -inf to inf", nn::init::uniform_(t, -kInf, kInf));
    FAILS(ValueError, "normal_: ", nn::init::normal_(t, 0, -1));
    FAILS(ValueError, "normal_: ", nn::init::normal_(t, 0, kNan));
    FAILS(ValueError, "normal_: ", nn::init::normal_(t, kNan, 1));
    FAILS(ValueError, "normal_: ", nn::init::normal_(t, 0, kInf));
    FAILS(ValueError, "trunc_normal_: mean nan", nn::init::trunc_normal_(t, kNan));
    FAILS(ValueError, "trunc_normal_: needs", nn::init::trunc_normal_(t, 0, kNan));
    FAILS(ValueError, "trunc_normal_: needs", nn::init::trunc_normal_(t, 0, 1, kNan, 1));
    FAILS(ValueError, "trunc_normal_: needs", nn::init::trunc_normal_(t, 0, 1, 2, 1));
    FAILS(ValueError, "uniform_: ", nn::init::xavier_uniform_(t, kNan));
    FAILS(ValueError, "uniform_: ", nn::init::xavier_uniform_(t, -1));
    FAILS(ValueError, "normal_: ", nn::init::xavier_normal_(t, kNan));
    FAILS(ValueError, "normal_: ", nn::init::xavier_normal_(t, -1));
    FAILS(ValueError, "uniform_: ", nn::init::kaiming_uniform_(t, {.slope = kNan}));
    FAILS(ValueError, "normal_: ", nn::init::kaiming_normal_(t, {.slope = kNan}));
    FAILS(ValueError, "orthogonal_: gain must be finite, got nan", nn::init::orthogonal_(t, kNan));
    FAILS(ValueError, "dirac_: ", nn::init::dirac_(ones({3, 3, 3}), 2));
    CHECK(t.to_vector<float>() == std::vector<float>(9, 1));         // none of them has written
    CHECK(std::isnan(nn::init::constant_(ones({1}), kNan).item()));  // asked for by name
}
