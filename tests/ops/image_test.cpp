// Resampling, windows and shuffles: layouts, threads, dtypes and what is refused; and the layers. Values and gradients: the op
// table's test, against PyTorch.
#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

Tensor turned(const Tensor& x) { return x.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2}); }
bool is_turned(const Tensor& x) { return x.permute({0, 2, 3, 1}).is_contiguous(); }

}  // namespace

TEST_CASE("the layout of images makes no difference, is kept, nor do threads make one") {
    manual_seed(1);
    const Tensor x = randn({3, 8, 40, 36});
    const auto check = [&](const auto& op) {
        const Tensor want = op(x), have = op(turned(x));
        CHECK(want.is_contiguous());
        CHECK(is_turned(have));
        CHECK(allclose(have, want, 1e-5, 1e-6));
        const int threads = num_threads();
        set_num_threads(1);
        const auto once = op(x).template to_vector<float>();
        set_num_threads(threads);
        CHECK(want.template to_vector<float>() == once);
    };
    for (const char* mode : {"nearest", "nearest-exact", "bilinear", "bicubic"}) {
        INFO(mode);
        check([&](const Tensor& t) { return interpolate(t, {.size = {55, 20}, .mode = mode}); });
    }
    check([](const Tensor& t) { return pixel_shuffle(t, 2); });
    check([](const Tensor& t) { return channel_shuffle(t, 4); });
    check([](const Tensor& t) { return pixel_unshuffle(t, 2); });
    const Tensor columns = unfold(x, 3, {.padding = 1});
    CHECK(columns.to_vector<float>() == unfold(turned(x), 3, {.padding = 1}).to_vector<float>());
    const auto many = fold(columns, {40, 36}, 3, {.padding = 1}).to_vector<float>();
    const int threads = num_threads();
    set_num_threads(1);
    CHECK(fold(columns, {40, 36}, 3, {.padding = 1}).to_vector<float>() == many);
    set_num_threads(threads);
}

TEST_CASE("an interpolation to the same size is a copy, and a linear one keeps a plane") {
    manual_seed(2);
    const Tensor x = randn({1, 2, 5, 6});
    for (const char* mode : {"nearest", "nearest-exact", "bilinear", "area"}) {
        CHECK(interpolate(x, {.size = {5, 6}, .mode = mode}).to_vector<float>() == x.to_vector<float>());
    }
    const Tensor plane = (unsqueeze(arange(5, float64), 1) * 2 + arange(6, float64)).view({1, 1, 5, 6});
    const Tensor finer = interpolate(plane, {.size = {9, 11}, .mode = "bilinear", .align_corners = true});
    const Tensor want = (unsqueeze(linspace(0, 4, 9, float64), 1) * 2 + linspace(0, 5, 11, float64)).view({1, 1, 9, 11});
    CHECK(allclose(finer, want));
    CHECK(interpolate(x, {.scale_factor = 2}).shape() == Shape{1, 2, 10, 12});
    CHECK(interpolate(x, {.scale_factor = {0.5, 1.5}}).shape() == Shape{1, 2, 2, 9});
    CHECK(interpolate(x.to(bfloat16), {.size = 3, .mode = "bilinear"}).dtype() == bfloat16);
    CHECK(interpolate(zeros({0, 2, 5, 6}), {.size = 3, .mode = "bilinear"}).shape() == Shape{0, 2, 3, 3});
}

TEST_CASE("interpolation refuses") {
    const Tensor x = ones({1, 2, 4, 4});
    FAILS(ValueError, "one of size and scale_factor must be given, got neither", interpolate(x, {}));
    FAILS(ValueError, "must be given, got both", interpolate(x, {.size = 3, .scale_factor = 2}));
    FAILS(ValueError, "there is no mode \"linar\"", interpolate(x, {.size = 3, .mode = "linar"}));
    FAILS(ValueError, "mode \"linear\" is for 1 spatial dimensions, not 2", interpolate(x, {.size = 3, .mode = "linear"}));
    FAILS(ValueError, "align_corners is for linear and cubic modes", interpolate(x, {.size = 3, .align_corners = true}));
    FAILS(ValueError, "size needs 1 number or 2, got 3", interpolate(x, {.size = {3, 3, 3}}));
    FAILS(ShapeError, "dimension 2 of shape (1, 2, 4, 4) cannot have 0 elements", interpolate(x, {.scale_factor = 0.1}));
    FAILS(ShapeError, "needs (batch, channels, 1 to 3 spatial dimensions)", interpolate(ones({2, 3}), {.size = 3}));
    FAILS(DTypeError, "needs a floating dtype, got int64", interpolate(x.to(int64), {.size = 3}));
}

TEST_CASE("fold adds up what unfold took, and windows are views") {
    const Tensor x = arange(20, float32).view({1, 1, 4, 5});
    const Tensor times = fold(unfold(ones_like(x), 2), {4, 5}, 2);
    CHECK(allclose(fold(unfold(x, 2), {4, 5}, 2), x * times));
    const Tensor windows = x.view({4, 5}).unfold(1, 3, 2);
    CHECK(windows.shape() == Shape{4, 2, 3});
    CHECK(windows.shares_storage(x));
    CHECK(windows[1].to_vector<int>() == std::vector<int>{5, 6, 7, 7, 8, 9});
    FAILS(ShapeError, "windows of 5 elements do not fit into 4 with padding 0", unfold(x, 5));
    FAILS(ShapeError, "needs 3 or 4 dimensions", unfold(ones({2, 3}), 2));
    FAILS(DTypeError, "unfold: needs a floating dtype", unfold(x.to(int32), 2));
    FAILS(ValueError, "unfold: stride must be at least 1, got (0,)", unfold(x, 2, {.stride = 0}));
    FAILS(ShapeError, "fold: columns of shape (1, 4, 11) are not (channels * 4, 12), as images of 4 x 5 need",
          fold(ones({1, 4, 11}), {4, 5}, 2));
    FAILS(ShapeError, "a window of 6 elements does not fit into dimension 1", x.view({4, 5}).unfold(1, 6, 1));
    FAILS(ValueError, "there are no windows of 2 elements, one every 0", x.view({4, 5}).unfold(1, 2, 0));
}

TEST_CASE("shuffles refuse") {
    FAILS(ShapeError, "pixel_shuffle: 6 channels do not divide by 2^2", pixel_shuffle(ones({1, 6, 2, 2}), 2));
    FAILS(ShapeError, "pixel_unshuffle: an image of 3 x 4 does not divide by 2", pixel_unshuffle(ones({1, 1, 3, 4}), 2));
    FAILS(ValueError, "channel_shuffle: 4 groups do not divide 6 channels", channel_shuffle(ones({1, 6, 2, 2}), 4));
    FAILS(ShapeError, "needs (..., channels, height, width)", pixel_shuffle(ones({4, 2}), 2));
}

TEST_CASE("layers of images") {
    manual_seed(3);
    const Tensor x = randn({2, 8, 4, 6});
    CHECK(nn::Upsample({.scale_factor = 2, .mode = "bilinear"})(x).shape() == Shape{2, 8, 8, 12});
    CHECK(nn::PixelShuffle(2)(x).shape() == Shape{2, 2, 8, 12});
    CHECK(nn::PixelUnshuffle(2)(x).shape() == Shape{2, 32, 2, 3});
    CHECK(nn::ChannelShuffle(2)(x).shape() == x.shape());
    CHECK(nn::Unfold(3, {.padding = 1})(x).shape() == Shape{2, 72, 24});
    CHECK(nn::Fold({4, 6}, 3, {.padding = 1})(nn::Unfold(3, {.padding = 1})(x)).shape() == x.shape());
}
