// Resampling, windows and shuffles: layouts, threads, dtypes and what is refused; and the layers. Values and gradients: the op
// table's test, against PyTorch.
#include <algorithm>

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
    FAILS(ShapeError, "windows of 5 elements do not fit into the input's 4 with padding 0", unfold(x, 5));
    FAILS(ShapeError, "needs 3 or 4 dimensions", unfold(ones({2, 3}), 2));
    FAILS(DTypeError, "unfold: needs a floating dtype", unfold(x.to(int32), 2));
    FAILS(ValueError, "unfold: stride must be at least 1, got (0,)", unfold(x, 2, {.stride = 0}));
    FAILS(ShapeError, "fold: columns of shape (1, 4, 11) are not (channels * 4, 12), as images of 4 x 5 need", fold(ones({1, 4, 11}), {4, 5}, 2));
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

// --- grid_sample -----------------------------------------------------------------------------------------------------------

namespace {

// A pixel's coordinate for a number of the grid, moved inside as the padding says: step by step, for a few reflections.
double place_of(double number, std::int64_t size, const std::string& padding, bool align_corners) {
    if (std::isnan(number)) number = -1;
    const double n = static_cast<double>(size), low = align_corners ? 0 : -0.5, high = align_corners ? n - 1 : n - 0.5;
    double at = low + (number + 1) / 2 * (high - low);
    if (padding == "reflection") {
        if (high == low) return 0;
        while (at < low || at > high) at = at < low ? 2 * low - at : 2 * high - at;
    }
    return padding == "zeros" ? at : std::min(std::max(at, 0.0), n - 1);
}

double read_at(const Tensor& image, double x, double y, bool nearest) {
    const auto pixel = [&](double column, double row) {
        const bool is_inside = column >= 0 && row >= 0 && column < static_cast<double>(image.size(1)) && row < static_cast<double>(image.size(0));
        return is_inside ? image.at<double>({static_cast<std::int64_t>(row), static_cast<std::int64_t>(column)}) : 0;
    };
    if (nearest) return pixel(std::nearbyint(x), std::nearbyint(y));
    double sum = 0;
    for (const double column : {std::floor(x), std::floor(x) + 1}) {
        for (const double row : {std::floor(y), std::floor(y) + 1}) {
            sum += std::max(0.0, 1 - std::abs(x - column)) * std::max(0.0, 1 - std::abs(y - row)) * pixel(column, row);
        }
    }
    return sum;
}

}  // namespace

TEST_CASE("grid_sample is its definition, and its gradients are those of differentiable ops") {
    manual_seed(11);
    for (const std::string padding : {"zeros", "border", "reflection"}) {
        for (const std::string mode : {"bilinear", "nearest"}) {
            for (const bool align_corners : {false, true}) {
                for (const Shape& size : {Shape{2, 3, 5, 4}, Shape{1, 2, 1, 3}}) {
                    INFO(padding << " " << mode << " " << align_corners << " " << size.str());
                    const GridSampleOptions options{mode.c_str(), padding.c_str(), align_corners};
                    Tensor x = randn(size, float64), grid = rand({size[0], 9, 11, 2}, float64) * 7 - 3.5;
                    grid.index_put_({0, 0, 0, 0}, std::nan("")).index_put_({0, 0, 1}, -1).index_put_({0, 0, 2}, 1).index_put_({0, 0, 3, 1}, 0);
                    const Tensor y = grid_sample(x, grid, options);
                    REQUIRE((y.shape() == Shape{size[0], size[1], 9, 11}));
                    for (std::int64_t n = 0; n < size[0]; ++n) {
                        for (std::int64_t i = 0; i < 9 * 11; ++i) {
                            const double column = place_of(grid.at<double>({n, i / 11, i % 11, 0}), size[3], padding, align_corners);
                            const double row = place_of(grid.at<double>({n, i / 11, i % 11, 1}), size[2], padding, align_corners);
                            const double want = read_at(x[n][size[1] - 1], column, row, mode == "nearest");
                            CHECK(y.at<double>({n, size[1] - 1, i / 11, i % 11}) == Approx(want).margin(1e-12));
                        }
                    }
                    x.requires_grad_();
                    grid.requires_grad_();
                    const Tensor weights = rand(y.shape(), float64);
                    const auto gradients = [&](bool create_graph) {
                        Tape tape;
                        return tape.gradient(sum(grid_sample(x, grid, options) * weights), {x, grid}, {.create_graph = create_graph});
                    };
                    const std::vector<Tensor> fused = gradients(false), composed = gradients(true);
                    CHECK(allclose(fused[0], composed[0], 0, 1e-12));
                    CHECK(allclose(fused[1], composed[1], 0, 1e-12));
                }
            }
        }
    }
}

TEST_CASE("grid_sample's recorded gradients are its kernels', wherever the grid names") {
    const double inf = std::numeric_limits<double>::infinity();
    for (const DType dtype : {float32, float64}) {
        for (const std::int64_t size : {1, 2, 3, 5, 7, 10}) {
            std::vector<double> numbers{std::nan(""), inf, -inf, 1e30, -1e30, 1e5, -1e5, 3.3, 1, -1, 0.123};
            for (std::int64_t k = -3; k < 2 * size + 3; ++k) {
                numbers.push_back(static_cast<double>(k + 1) / static_cast<double>(size) - 1);  // halves and whole pixels
                if (size > 1) numbers.push_back(static_cast<double>(k) / static_cast<double>(size - 1) - 1);
            }
            const auto count = static_cast<std::int64_t>(numbers.size());
            const Tensor row = tensor(numbers, {dtype});
            Tensor grid = stack({expand(row, {count, count}), expand(unsqueeze(row, 1), {count, count})}, 2).unsqueeze(0).contiguous();
            for (const int infinite : {0, 1, 2}) {  // nothing, a pixel, a gradient
                Tensor x = arange(1, 2 * size * size + 1).to(dtype).view({1, 2, size, size});
                if (infinite == 1) x.index_put_({0, 0, 0, 0}, inf);
                Tensor g = ones({1, 2, count, count}, dtype);
                if (infinite == 2) g.index_put_({0, 1, 8, 9}, inf);
                x.requires_grad_();
                grid.requires_grad_();
                for (const std::string padding : {"zeros", "border", "reflection"}) {
                    for (const std::string mode : {"bilinear", "nearest"}) {
                        for (const bool align_corners : {false, true}) {
                            INFO(name(dtype) << " " << size << " " << infinite << " " << padding << " " << mode << " " << align_corners);
                            const auto gradients = [&](bool create_graph) {
                                Tape tape;
                                const Tensor y = grid_sample(x, grid, {mode.c_str(), padding.c_str(), align_corners});
                                return tape.gradient(y, {x, grid}, {.gradient = g, .create_graph = create_graph});
                            };
                            const std::vector<Tensor> fused = gradients(false), recorded = gradients(true);
                            for (std::size_t i = 0; i < (infinite == 2 ? 1 : 2); ++i) {  // with an infinite gradient the grid's is nan
                                const double near = dtype == float32 ? 1e-4 : 1e-12;
                                CHECK(allclose(fused[i], recorded[i], near, 10 * near, true));
                            }
                            if (mode == "nearest") CHECK(allclose(fused[0], recorded[0], 0, 0, true));
                            if (!infinite) CHECK(isfinite(recorded[0]).all().item<bool>());
                            if (!infinite) CHECK(isfinite(recorded[1]).all().item<bool>());
                        }
                    }
                }
            }
        }
    }
}

TEST_CASE("grid_sample: infinite places, many pixels on threads, 16-bit floats, and what is refused") {
    const double inf = std::numeric_limits<double>::infinity();
    const Tensor x = arange(1, 7).to(float32).view({1, 1, 2, 3}), far = tensor({{inf, inf}, {-inf, 1e30}, {1e30, -1e30}}).view({1, 1, 3, 2});
    CHECK(grid_sample(x, far).to_vector<float>() == std::vector<float>{0, 0, 0});
    CHECK(grid_sample(x, far, {.padding_mode = "border"}).to_vector<float>() == std::vector<float>{6, 4, 3});
    const Tensor mirrored = grid_sample(x, far, {.padding_mode = "reflection"});
    for (const float v : mirrored.to_vector<float>()) CHECK((v >= 0 && v <= 6));

    // Finite numbers are mirrored to some pixel, however large they are; the image of one pixel is that everywhere.
    const Tensor large = tensor({{1e38, -1e38}, {-3e38, 3.4e38}, {1e20, 1e9}, {-8e18, 5e18}}).view({1, 1, 4, 2});
    for (const bool align_corners : {false, true}) {
        for (const Shape& size : {Shape{1, 1, 1, 1}, Shape{1, 1, 4, 1000}}) {
            const Tensor fives = full(size, 5.0f);
            const Tensor folded = grid_sample(fives, large, {.padding_mode = "reflection", .align_corners = align_corners});
            CHECK(folded.to_vector<float>() == std::vector<float>{5, 5, 5, 5});
            const Tensor clamped = grid_sample(fives, cat({large, far}, 2), {.padding_mode = "border", .align_corners = align_corners});
            CHECK(clamped.to_vector<float>() == std::vector<float>(7, 5));
        }
    }
    CHECK(grid_sample(full({1, 1, 4, 4}, 5.0f), far, {.padding_mode = "reflection"}).to_vector<float>() == std::vector<float>{0, 0, 5});
    // 8 numbers are mirrored twice, exactly: 2^40 + 0.5 is 0.5, 2^40 + 2.5 is -0.5.
    const Tensor line = arange(8).to(float64).view({1, 1, 1, 8}), turned = tensor({0x1p40 + 0.5, 0x1p40 + 2.5, 0.5, -0.5}, {float64});
    const Tensor read = grid_sample(line, stack({turned, zeros_like(turned)}, 1).view({1, 1, 4, 2}), {.padding_mode = "reflection"});
    CHECK(read.to_vector<double>() == std::vector<double>{5.5, 1.5, 5.5, 1.5});

    const Tensor image = rand({3, 2, 70, 50}), identity = tensor({{1.0, 0.0, 0.0}, {0.0, 1.0, 0.0}}).expand({3, 2, 3});
    for (const bool align_corners : {false, true}) {
        const Tensor grid = affine_grid(identity, image.shape(), align_corners);
        CHECK(allclose(grid_sample(image, grid, {.align_corners = align_corners}), image, 1e-4, 1e-4));
    }
    {
        const Tensor wanted = affine_grid(identity, image.shape());
        const AutocastScope scope(bfloat16);
        CHECK(affine_grid(identity, image.shape()).equal(wanted));
    }
    const Tensor grid = rand({3, 80, 60, 2}) * 2 - 1, whole = grid_sample(image, grid);
    CHECK(whole.narrow(0, 1, 1).equal(grid_sample(image.narrow(0, 1, 1), grid.narrow(0, 1, 1))));
    CHECK(allclose(grid_sample(image.half(), grid.half()).to(float32), grid_sample(image.half().to(float32), grid.half().to(float32)), 1e-3, 1e-3));
    const auto gradient = [](const Tensor& pixels, const Tensor& places, bool create_graph) {
        Tensor leaf = places.clone();
        leaf.requires_grad_();
        Tape tape;
        return tape.gradient(sum(grid_sample(pixels, leaf)), {leaf}, {.create_graph = create_graph})[0].to(float64);
    };
    CHECK(allclose(gradient(image.half(), grid.half(), true), gradient(image.half(), grid.half(), false), 1e-2, 1e-2));
    CHECK(grid_sample(zeros({0, 2, 3, 3}), zeros({0, 4, 5, 2})).numel() == 0);

    FAILS(ShapeError, "grid_sample: needs x (n, channels, height, width)", grid_sample(image, grid.narrow(0, 0, 1)));
    FAILS(ShapeError, "got (3, 2, 70, 50) and (3, 80, 60)", grid_sample(image, grid.select(3, 0)));
    FAILS(ShapeError, "with pixels", grid_sample(zeros({3, 2, 0, 5}), grid));
    FAILS(DTypeError, "need one floating dtype, got float32 and float64", grid_sample(image, grid.to(float64)));
    FAILS(ValueError, "mode is \"bilinear\" or \"nearest\", not \"bicubic\"", grid_sample(image, grid, {.mode = "bicubic"}));
    FAILS(ValueError, "not \"circular\"", grid_sample(image, grid, {.padding_mode = "circular"}));
    FAILS(ShapeError, "affine_grid: needs theta (n, 2, 3)", affine_grid(zeros({2, 3, 4}), {2, 1, 3, 4}));
    FAILS(ShapeError, "affine_grid: every size must be at least 1", affine_grid(zeros({2, 2, 3}), {2, 1, 0, 4}));
    FAILS(DTypeError, "affine_grid: needs a floating dtype, got int64", affine_grid(zeros({2, 2, 3}, int64), {2, 1, 3, 4}));
}
