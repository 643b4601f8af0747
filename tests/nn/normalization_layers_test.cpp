// Normalisation layers: state, training and evaluation. What they compute: tests/ops/batch_norm_test.cpp and the op table.
#include <optional>

#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

TEST_CASE("BatchNorm counts, follows the statistics, and uses them in evaluation") {
    manual_seed(1);
    nn::BatchNorm2d norm(3);
    std::vector<std::string> names;
    for (const auto& [name, tensor] : norm.state_dict()) names.push_back(name);
    CHECK(names == std::vector<std::string>{"weight", "bias", "running_mean", "running_var", "num_batches_tracked"});
    CHECK(norm.parameters().size() == 2);
    const Tensor x = randn({8, 3, 5, 5}) * 2 + 1;
    for (int i = 0; i < 100; ++i) norm(x);
    CHECK(norm.num_batches_tracked.item<int>() == 100);
    CHECK(amax(abs(norm.running_mean - mean(x, {0, 2, 3}))).item() < 1e-3);
    CHECK(amax(abs(norm.running_var - var(x, {0, 2, 3}))).item() < 1e-2);
    const Tensor trained = norm(x);
    norm.eval();
    const Tensor evaluated = norm(x);
    CHECK(norm.num_batches_tracked.item<int>() == 101);
    CHECK(amax(abs(trained - evaluated)).item() < 1e-2);
    CHECK(evaluated[0][0][0][0].item() != trained[0][0][0][0].item());
}

TEST_CASE("BatchNorm counts no batch that it refuses") {
    const nn::BatchNorm1d norm(3);
    CHECK_THROWS_AS(norm(randn({4, 5})), ShapeError);
    CHECK(norm.num_batches_tracked.item<int>() == 0);
    CHECK(norm.running_mean.to_vector<float>() == std::vector<float>(3, 0));
}

TEST_CASE("BatchNorm without momentum takes the mean of all batches, and without statistics the batch's") {
    nn::BatchNorm1d norm(1, {.momentum = std::nullopt});
    for (const double m : {1.0, 2.0, 6.0}) norm(tensor({m - 1, m + 1}).to(float32).view({2, 1}));
    CHECK(norm.running_mean.item() == Approx(3));
    CHECK(norm.running_var.item() == Approx(2));
    nn::BatchNorm1d none(2, {.affine = false, .track_running_stats = false});
    none.eval();
    CHECK(none.state_dict().empty());
    CHECK(none(tensor({{1.0f, 5.0f}, {3.0f, 5.0f}}))[0][0].item() == Approx(-1).epsilon(1e-4));
}

TEST_CASE("a network with BatchNorm learns, is saved and loaded") {
    manual_seed(2);
    const auto make = [] {
        return nn::Sequential(nn::Conv2d(1, 6, 3, {.padding = 1, .bias = false}), nn::BatchNorm2d(6), relu, nn::MaxPool2d(2), nn::Flatten(),
                              nn::Linear(6 * 9, 2));
    };
    nn::Sequential net = make(), other = make();
    const Tensor x = randn({16, 1, 6, 6}), y = (mean(x, {1, 2, 3}) > 0).to(int64);
    optim::Adam adam(net.parameters(), {.lr = 0.02});
    double loss = 0;
    for (int i = 0; i < 80; ++i) {
        Tape tape;
        const Tensor l = cross_entropy(net(x), y);
        tape.backward(l);
        adam.step();
        adam.zero_grad();
        loss = l.item();
    }
    CHECK(loss < 0.1);
    other.load_state_dict(net.state_dict());
    net.eval();
    other.eval();
    CHECK(other(x).to_vector<float>() == net(x).to_vector<float>());
}

TEST_CASE("normalisation layers are their functions, and refuse") {
    manual_seed(3);
    const Tensor x = randn({2, 6, 4});
    CHECK(nn::GroupNorm(3, 6)(x).to_vector<float>() == group_norm(x, 3).to_vector<float>());
    CHECK(nn::InstanceNorm1d(6)(x).to_vector<float>() == instance_norm(x).to_vector<float>());
    CHECK(nn::RMSNorm({4})(x).to_vector<float>() == rms_norm(x, {4}).to_vector<float>());
    CHECK(nn::LocalResponseNorm(2)(x).to_vector<float>() == local_response_norm(x, 2).to_vector<float>());
    CHECK(nn::GroupNorm(3, 6).parameters().size() == 2);
    CHECK(nn::GroupNorm(3, 6).describe() == "3 groups of 2 channels, eps 1e-05");
    FAILS(ValueError, "GroupNorm: 4 groups do not divide 6 channels", nn::GroupNorm(4, 6));
    FAILS(ValueError, "BatchNorm2d: channels must be at least 1, got 0", nn::BatchNorm2d(0));
    const nn::BatchNorm2d norm(6);
    FAILS(ShapeError, "BatchNorm2d: needs 4 dimensions, got (2, 6, 4)", norm(x));
    FAILS(ShapeError, "BatchNorm1d: needs 2 or 3 dimensions, got (2, 6, 4, 1)", nn::BatchNorm1d(6)(unsqueeze(x, 3)));
}

TEST_CASE("InstanceNorm is affine only on demand, takes one example, and checks its dimensions") {
    manual_seed(4);
    const auto check = [](auto make, const Shape& shape) {
        const Tensor x = randn(shape) * 3 + 1;
        const auto plain = make(nn::InstanceNormOptions{.eps = 1e-3});
        CHECK(plain.parameters().empty());
        // By its definition, of float64.
        Dims inner(2);
        for (int d = 3; d < shape.rank(); ++d) inner.push_back(d);
        const Tensor wide = x.to(float64), centred = wide - wide.mean(inner, true);
        const Tensor expected = centred / sqrt(centred.square().mean(inner, true) + 1e-3);
        CHECK(allclose(plain(x).to(float64), expected, 1e-5, 1e-5));
        CHECK(allclose(plain(x[1]).to(float64), expected[1], 1e-5, 1e-5));
        auto affine = make(nn::InstanceNormOptions{.affine = true});
        REQUIRE(affine.parameters().size() == 2);
        affine.weight.detach().copy_(tensor({1.0, 2.0, 3.0}));
        affine.bias.detach().copy_(tensor({0.5, 0.0, -0.5}));
        const Tensor batch = affine(x), one = affine(x[0]);
        CHECK(one.shape() == x[0].shape());
        CHECK(allclose(one, batch[0], 1e-6, 1e-6));
        CHECK_FALSE(allclose(batch, make(nn::InstanceNormOptions{})(x)));
    };
    check([](const nn::InstanceNormOptions& o) { return nn::InstanceNorm1d(3, o); }, {2, 3, 5});
    check([](const nn::InstanceNormOptions& o) { return nn::InstanceNorm2d(3, o); }, {2, 3, 4, 5});
    check([](const nn::InstanceNormOptions& o) { return nn::InstanceNorm3d(3, o); }, {2, 3, 2, 4, 5});
    CHECK(nn::InstanceNorm2d(3, {.eps = 1e-3}).parameters().empty());
    CHECK(nn::InstanceNorm2d(3, {.affine = true}).describe() == "3 channels, eps 1e-05, affine");
    FAILS(ValueError, "InstanceNorm1d: channels must be at least 1, got 0", nn::InstanceNorm1d(0));
    FAILS(ShapeError, "InstanceNorm1d: needs 3 dimensions, or 2 without a batch, got (1, 3, 4, 5)", nn::InstanceNorm1d(3)(zeros({1, 3, 4, 5})));
    FAILS(ShapeError, "InstanceNorm2d: needs 4 dimensions, or 3 without a batch, got (3, 4)", nn::InstanceNorm2d(3)(zeros({3, 4})));
    FAILS(ShapeError, "InstanceNorm3d: needs 5 dimensions, or 4 without a batch, got (3, 4, 5)", nn::InstanceNorm3d(3)(zeros({3, 4, 5})));
    FAILS(ShapeError, "InstanceNorm2d: it has 3 channels, but dimension 1 of the input, its channels, has 4: (2, 4, 5, 5)",
          nn::InstanceNorm2d(3, {.affine = true})(zeros({2, 4, 5, 5})));
    FAILS(ShapeError, "InstanceNorm2d: it has 3 channels, but dimension 0 of the input, its channels, has 4: (4, 5, 5)",
          nn::InstanceNorm2d(3, {.affine = true})(zeros({4, 5, 5})));
    FAILS(ShapeError, "got an undefined tensor", nn::InstanceNorm2d(3)(Tensor()));
    FAILS(ValueError, "needs more than one element", nn::InstanceNorm2d(3)(zeros({3, 1, 1})));
}

TEST_CASE("BatchNorm says which dimension is the channels, and why they may be wrong") {
    const nn::BatchNorm2d images(3);
    FAILS_IN(ShapeError,
             "BatchNorm2d: it has 3 channels, but dimension 1 of the input, its channels, has 8: (2, 8, 9, 3); are the channels "
             "last? x.permute({0, 3, 1, 2})",
             "", images(ones({2, 8, 9, 3})));
    CHECK(images(ones({2, 8, 9, 3}).permute({0, 3, 1, 2})).shape() == Shape(2, 3, 8, 9));
    FAILS_IN(ShapeError,
             "BatchNorm2d: it has 3 channels, but dimension 1 of the input, its channels, has 4: (2, 4, 8, 8); it must have as "
             "many as the layer before it gives",
             "", images(ones({2, 4, 8, 8})));
    FAILS(ShapeError, "x.permute({0, 2, 1})", nn::BatchNorm1d(3)(ones({2, 5, 3})));
    FAILS(ShapeError, "is it to be transposed? x.t()", nn::BatchNorm1d(3)(ones({3, 5})));
    FAILS(ShapeError, "x.permute({0, 4, 1, 2, 3})", nn::BatchNorm3d(3)(ones({2, 5, 5, 5, 3})));
    // Without parameters and statistics it has no number of channels of its own.
    CHECK(nn::BatchNorm1d(3, {.affine = false, .track_running_stats = false})(ones({2, 5})).shape() == Shape(2, 5));
}
