// Random activations and dropouts of channels, and what the ops of activation.h refuse.
#include <catch2/catch.hpp>
#include <cmath>

#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

TEST_CASE("dropout of channels drops whole ones") {
    manual_seed(1);
    const auto check = [](const Tensor& x, const Tensor& y, int dims_of_channels) {
        // Each channel is x / (1 - p) or 0.
        const Tensor ratio = flatten(y / x, dims_of_channels);
        std::int64_t dropped = 0;
        for (const Tensor& channel : reshape(ratio, {-1, ratio.size(-1)})) {
            const double first = channel[0].item();
            CHECK((first == 0 || std::abs(first - 1 / 0.7) < 1e-6));
            CHECK(allclose(channel, full_like(channel, first)));
            dropped += first == 0;
        }
        const double share = static_cast<double>(dropped) / static_cast<double>(ratio.numel() / ratio.size(-1));
        CHECK(std::abs(share - 0.3) < 0.06);  // 4 standard deviations of 1,000 or more channels
    };
    const Tensor a = rand({20, 50, 7}) + 1, b = rand({20, 50, 3, 5}) + 1, c = rand({20, 50, 2, 3, 2}) + 1, d = rand({1000, 6}) + 1;
    check(a, dropout1d(a, 0.3), 2);
    check(d, dropout1d(d, 0.3), 1);
    check(a, dropout2d(a, 0.3), 2);
    check(b, dropout2d(b, 0.3), 2);
    check(c, dropout3d(c, 0.3), 2);
    CHECK(dropout2d(b, 0.3, false).is_same(b));
    CHECK(equal(dropout3d(c, 1), zeros_like(c)));
    FAILS(ShapeError, "dropout2d: needs 3 or 4 dimensions, got shape (2, 3)", dropout2d(zeros({2, 3})));
    FAILS(ValueError, "dropout1d: p must be in [0, 1], got 1.5", dropout1d(a, 1.5));
    Tensor x = rand({20, 50, 4}).requires_grad_();
    Tape tape;
    const Tensor y = dropout1d(x, 0.5);
    const Tensor g = tape.gradient(sum(y), {x})[0];
    CHECK(allclose(g * x.detach(), y.detach()));
}

TEST_CASE("alpha dropout keeps mean and variance") {
    manual_seed(2);
    const Tensor x = randn({200000});
    for (const double p : {0.1, 0.5}) {
        const Tensor y = alpha_dropout(x, p);
        CHECK(std::abs(mean(y).item()) < 0.015);
        CHECK(std::abs(y.var().item() - 1) < 0.02);
        const double lowest = -1.7580993408473766, scale = 1 / std::sqrt((1 - p) * (1 + p * lowest * lowest));
        const Tensor dropped = isclose(y, full_like(y, scale * (lowest - p * lowest)), 1e-6);
        CHECK(std::abs(static_cast<double>(count_nonzero(dropped).item()) / 200000 - p) < 0.01);
    }
    CHECK(alpha_dropout(x, 0.5, false).is_same(x));
    FAILS(ValueError, "alpha_dropout: p must be in [0, 1], got -1", alpha_dropout(x, -1));
}

TEST_CASE("gumbel_softmax samples the categories") {
    manual_seed(3);
    const Tensor logits = log(tensor({0.1, 0.2, 0.7})).expand({30000, 3});
    const Tensor hard = gumbel_softmax(logits, 0.5, true);
    CHECK(allclose(sum(hard, {1}), ones({30000})));
    CHECK(equal(amax(hard, {1}), ones({30000})));
    const Tensor share = mean(hard, {0});
    CHECK(allclose(share, tensor({0.1, 0.2, 0.7}), 0, 0.012));
    const Tensor soft = gumbel_softmax(logits, 0.5);
    CHECK(allclose(sum(soft, {1}), ones({30000})));
    // A generator of one's own, and the gradient of hard samples is that of soft ones.
    Generator a(7), b(7);
    Tensor l = randn({4, 3}, float64).requires_grad_();
    const Tensor weight = randn({4, 3}, float64);
    Tape tape({.persistent = true});
    const Tensor of_hard = tape.gradient(sum(gumbel_softmax(l, 0.7, true, -1, a) * weight), {l})[0];
    const Tensor of_soft = tape.gradient(sum(gumbel_softmax(l, 0.7, false, -1, b) * weight), {l})[0];
    CHECK(allclose(of_hard, of_soft));
    CHECK(amax(abs(of_soft)).item() > 0);
    FAILS(ValueError, "gumbel_softmax: tau must be above 0, got 0", gumbel_softmax(l, 0));
    FAILS(DTypeError, "gumbel_softmax: needs a floating dtype, got int64", gumbel_softmax(tensor({1, 2})));
}

TEST_CASE("prelu's gradients where the input is infinite") {
    Tensor x = tensor({HUGE_VAL, -1.0, 2.0}, {float64}).requires_grad_(), w = tensor({0.25}, {float64}).requires_grad_();
    Tape tape;
    tape.backward(sum(prelu(x, w)));
    CHECK(w.grad().item() == -1);
    CHECK(x.grad().to_vector<double>() == std::vector<double>{1, 0.25, 1});
}

TEST_CASE("what activations refuse") {
    FAILS(ShapeError, "glu: dimension 1 of shape (2, 3) has an odd size, and so no halves", glu(zeros({2, 3}), 1));
    FAILS(ShapeError, "prelu: the weight has shape (4,), needs 1 element or 3, for the channels of (2, 3)", prelu(zeros({2, 3}), zeros({4})));
    CHECK(std::isnan(threshold(tensor(NAN), 0, 5).item()));
}

TEST_CASE("activations refuse the numbers that PyTorch refuses") {
    Tensor x = ones({3});
    FAILS_IN(ValueError, "softshrink: lambd must not be negative, got -0.5", "", softshrink(x, -0.5));
    FAILS_IN(ValueError, "softshrink: lambd must not be negative, got nan", "", x.softshrink(NAN));
    FAILS_IN(ValueError, "softshrink: lambd must not be negative, got -1", "", x.softshrink_(-1));
    FAILS_IN(ValueError, "softshrink: lambd must not be negative, got -1", "", nn::Softshrink(-1)(x));
    FAILS_IN(ValueError, "celu: alpha must not be 0", "", celu(x, 0));
    FAILS_IN(ValueError, "celu: alpha must not be 0", "", x.celu_(0));
    CHECK(x.to_vector<int>() == std::vector<int>{1, 1, 1});
    CHECK(softshrink(x, 0).to_vector<int>() == std::vector<int>{1, 1, 1});
    CHECK(hardshrink(x, -1).to_vector<int>() == std::vector<int>{1, 1, 1});
}
