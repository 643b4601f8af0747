// Pooling: corner cases and what is refused. Values and gradients: the op table's test, against PyTorch.
#include <array>
#include <cmath>
#include <limits>

#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

template <class Options>
concept kMadeByPosition = requires { Options{2}; };

TEST_CASE("max pooling of nan, infinities, equal elements and padding only") {
    const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
    const Tensor x = tensor({1.0f, nan, 3.0f, 3.0f, -inf, -inf}).view({1, 1, 6});
    const ValuesIndices y = max_pool1d_with_indices(x, 2);
    CHECK(std::isnan(y.values[0][0][0].item()));
    CHECK(y.values[0][0][1].item() == 3);
    CHECK(y.values[0][0][2].item() == -inf);
    CHECK(y.indices.dtype() == int64);
    CHECK(y.indices.to_vector<int>() == std::vector<int>{1, 2, 4});
    // A window that has only padding.
    Tensor leaf = ones({1, 1, 2}).requires_grad_();
    Tape tape;
    const Tensor z = max_pool1d(leaf, 2, {.padding = 2, .dilation = 4});
    CHECK(z.to_vector<float>() == std::vector<float>{-inf});
    tape.backward(sum(z));
    CHECK(leaf.grad().to_vector<float>() == std::vector<float>{0, 0});
}

TEST_CASE("overlapping windows add up their gradients") {
    Tensor x = tensor({1.0, 5.0, 2.0, 4.0, 3.0}).view({1, 1, 5}).to(float64).requires_grad_();
    Tape tape;
    tape.backward(sum(max_pool1d(x, 3, {.stride = 1})));
    CHECK(x.grad().to_vector<double>() == std::vector<double>{0, 2, 0, 1, 0});
}

TEST_CASE("pooling in every floating dtype") {
    manual_seed(1);
    const Tensor x = randn({2, 5, 7, 6});
    for (const DType dtype : {float16, bfloat16, float64}) {
        const Tensor low = x.to(dtype);
        CHECK(max_pool2d(low, 2).dtype() == dtype);
        CHECK(max_pool2d(low, 2).to_vector<float>() == max_pool2d(low.to(float32), 2).to_vector<float>());
        CHECK(avg_pool2d(low, 3).to_vector<double>() == avg_pool2d(low.to(dtype == float64 ? float64 : float32), 3).to(dtype).to_vector<double>());
    }
}

TEST_CASE("the layout of what is pooled makes no difference, nor do threads") {
    manual_seed(2);
    const Tensor x = randn({70, 9, 12, 11}), turned = x.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2});
    CHECK(max_pool2d(x, 3, {.stride = 2}).to_vector<float>() == max_pool2d(turned, 3, {.stride = 2}).to_vector<float>());
    const int threads = num_threads();
    set_num_threads(1);
    const auto once = avg_pool2d(x, 3, {.stride = 2}).to_vector<float>();
    set_num_threads(threads);
    CHECK(avg_pool2d(turned, 3, {.stride = 2}).to_vector<float>() == once);
}

// Kernels take as many channels at once as a vector has room for; one channel alone is the definition.
// The kernel that finds no places goes over rows of windows, the other one over each window.
TEST_CASE("maximum pooling without its indices gives the same numbers") {
    manual_seed(3);
    const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
    struct Case {
        int dims;
        Shape kernel;
        MaxPoolOptions options;
    };
    const std::vector<Case> cases = {
        {1, {3}, {.stride = 1}},
        {1, {2}, {.stride = 5, .padding = 1}},
        {1, {5}, {.stride = 2, .padding = 2, .dilation = 2}},
        {2, {3}, {.stride = 1, .padding = 1}},
        {2, {3}, {.stride = 2, .ceil_mode = true}},
        {2, {2}, {}},
        {2, {5, 4}, {.stride = {2, 1}, .padding = {2, 1}}},
        {2, {3, 3}, {.stride = {1, 2}, .padding = 1, .dilation = {1, 2}}},
        {2, {1, 4}, {.stride = 1, .padding = {0, 2}, .dilation = {1, 3}}},
        {3, {3}, {.stride = 1, .padding = 1}},
        {3, {2, 3, 2}, {.stride = {2, 1, 1}, .dilation = {1, 1, 2}}},
    };
    for (const DType dtype : {float32, float64, bfloat16}) {
        for (const int channels : {1, 3, 16, 37, 64}) {
            for (const Case& at : cases) {
                Shape shape = {2, channels};
                for (int d = 0; d < at.dims; ++d) shape.push_back(9 + 2 * d);
                Tensor x = randn(shape);
                x = where(rand(shape) < 0.02, nan, where(rand(shape) < 0.3, -inf, x)).to(dtype);
                const auto both = at.dims == 1 ? max_pool1d_with_indices(x, at.kernel, at.options)
                    : at.dims == 2             ? max_pool2d_with_indices(x, at.kernel, at.options)
                                               : max_pool3d_with_indices(x, at.kernel, at.options);
                const Tensor values = at.dims == 1 ? max_pool1d(x, at.kernel, at.options)
                    : at.dims == 2                 ? max_pool2d(x, at.kernel, at.options)
                                                   : max_pool3d(x, at.kernel, at.options);
                CAPTURE(at.dims, at.kernel, channels, name(dtype));
                CHECK(allclose(values, both.values, 0, 0, /*equal_nan=*/true));
            }
        }
    }
    for (const std::int64_t width : {6, 11, 30}) {  // dilated windows at the edge begin behind the next ones
        for (const std::int64_t kernel : {2, 3, 4}) {
            for (const std::int64_t dilation : {1, 2, 3}) {
                for (std::int64_t padding = 0; 2 * padding <= (kernel - 1) * dilation + 1; ++padding) {
                    if (width + 2 * padding < (kernel - 1) * dilation + 1) continue;
                    const Tensor x = randn({2, 5, 4, width});
                    const MaxPoolOptions options{.stride = 1, .padding = {0, padding}, .dilation = {1, dilation}};
                    CAPTURE(width, kernel, dilation, padding);
                    CHECK(equal(max_pool2d(x, {2, kernel}, options), max_pool2d_with_indices(x, {2, kernel}, options).values));
                }
            }
        }
    }
    const Tensor x = randn({2, 20, 11, 13});  // adaptive windows share elements, too; a tape has the indices found
    Tensor leaf = x.clone().requires_grad_();
    Tape tape;
    const Tensor recorded = adaptive_max_pool2d(leaf, {4, 5});
    const NoGradScope no_grad;
    CHECK(recorded.equal(adaptive_max_pool2d(x, {4, 5})));
}

TEST_CASE("any number of channels is pooled as each of them alone") {
    manual_seed(3);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const DType dtype : {float32, float64}) {
        for (const std::int64_t channels : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 31, 33, 48, 50}) {
            INFO(channels);
            const Tensor numbers = round(randn({2, channels, 5, 6}, dtype) * 2);  // with equal ones
            const Tensor x = numbers.masked_fill(numbers == 4, nan).requires_grad_();
            const auto pools = [](const Tensor& t) {
                const ValuesIndices most = max_pool2d_with_indices(t, 3, {.stride = 2, .padding = 1});
                const Tensor means = avg_pool2d(t, 2, {.stride = 1, .padding = 1, .count_include_pad = false});
                return std::array<Tensor, 3>{most.values, most.indices, means};
            };
            Tape tape(TapeOptions{.persistent = true});
            const auto together = pools(x);
            const auto weights_of = [&](const Tensor& y) { return arange(y.numel()).view(y.shape()).to(dtype); };
            const std::array<Tensor, 2> w{weights_of(together[0]), weights_of(together[2])};
            const auto loss = [](const std::array<Tensor, 3>& y, const Tensor& w0, const Tensor& w1) {
                return nansum(y[0] * w0) + nansum(y[2] * w1);
            };
            const Tensor gradient = tape.gradient(loss(together, w[0], w[1]), {x})[0];
            for (std::int64_t c = 0; c < channels; ++c) {
                const Tensor one = x.detach().narrow(1, c, 1).clone().requires_grad_();
                const auto alone = pools(one);
                for (const std::size_t k : {0, 2}) CHECK(allclose(together[k].narrow(1, c, 1), alone[k], 1e-6, 1e-7, true));
                CHECK(equal(together[1].narrow(1, c, 1), alone[1]));
                const Tensor own = tape.gradient(loss(alone, w[0].narrow(1, c, 1), w[1].narrow(1, c, 1)), {one})[0];
                CHECK(allclose(gradient.narrow(1, c, 1), own, 1e-5, 1e-6, true));
            }
        }
    }
}

TEST_CASE("adaptive pooling to one element is the mean, and keeps sizes of -1") {
    const Tensor x = arange(24, float32).view({1, 2, 3, 4});
    CHECK(adaptive_avg_pool2d(x, 1).to_vector<float>() == std::vector<float>{5.5, 17.5});
    CHECK(adaptive_avg_pool2d(x, {-1, 2}).shape() == Shape{1, 2, 3, 2});
    CHECK(adaptive_max_pool2d(x[0], {1, 4}).shape() == Shape{2, 1, 4});
    CHECK(adaptive_avg_pool2d(x, 0).numel() == 0);
}

TEST_CASE("pooling refuses") {
    const Tensor x = ones({1, 2, 6, 6});
    FAILS(ShapeError, "max_pool2d: needs 3 or 4 dimensions, got (2, 3)", max_pool2d(ones({2, 3}), 2));
    FAILS(DTypeError, "avg_pool2d: needs a floating dtype, got int64", avg_pool2d(x.to(int64), 2));
    FAILS(ValueError, "max_pool2d: kernel_size must be at least 1, got (0,)", max_pool2d(x, 0));
    FAILS(ValueError, "max_pool2d: stride must be at least 1, got (2, 0)", max_pool2d(x, 2, {.stride = {2, 0}}));
    FAILS(ValueError, "max_pool2d: padding 2 is above half of the kernel's reach 3", max_pool2d(x, 3, {.padding = 2}));
    FAILS(ValueError, "avg_pool2d: kernel_size needs 1 number or 2, got (1, 2, 3)", avg_pool2d(x, {1, 2, 3}));
    FAILS(ShapeError, "max_pool2d: a window that reaches over 7 elements does not fit into the input's 6 with padding 0", max_pool2d(x, 7));
    FAILS(ValueError, "adaptive_avg_pool2d: output_size must not be negative, got (-2,)", adaptive_avg_pool2d(x, -2));
    FAILS(ValueError, "lp_pool2d: norm_type must be above 0, got 0", lp_pool2d(x, 0, 2));
    FAILS(ValueError, "max_pool1d: the tensor is undefined", max_pool1d(Tensor(), 2));
}

template <class... A>
constexpr bool kTakesByPosition = requires(Tensor x, A... a) { max_pool2d(x, 2, a...); };

TEST_CASE("pooling takes its numbers by PyTorch's positions") {
    static_assert(kTakesByPosition<int> && kTakesByPosition<std::size_t, short> && kTakesByPosition<int, int, int, bool>);
    static_assert(!kTakesByPosition<bool> && !kTakesByPosition<double> && !kTakesByPosition<int, int, int, int>);
    const auto same = [](const Tensor& a, const Tensor& b) {
        CHECK(a.shape() == b.shape());
        CHECK(a.to_vector<float>() == b.to_vector<float>());
    };
    const Tensor x = randn({2, 3, 10, 10}), line = x[0], cube = randn({2, 1, 6, 6, 6});
    const std::int64_t two = 2;
    const Shape wide{2, 1};
    same(max_pool2d(x, 2, 2), max_pool2d(x, 2));
    same(max_pool2d(x, 3, two), max_pool2d(x, 3, {.stride = 2}));
    same(max_pool2d(x, 3, wide), max_pool2d(x, 3, {.stride = {2, 1}}));
    same(max_pool2d(x, {3, 2}, {2, 1}, {1, 0}), max_pool2d(x, {3, 2}, {.stride = {2, 1}, .padding = {1, 0}}));
    same(max_pool2d(x, 3, 2, 1, 2, true), max_pool2d(x, 3, {.stride = 2, .padding = 1, .dilation = 2, .ceil_mode = true}));
    same(max_pool1d(line, 3, 2), max_pool1d(line, 3, {.stride = 2}));
    same(max_pool3d(cube, 3, 2, 1), max_pool3d(cube, 3, {.stride = 2, .padding = 1}));
    same(max_pool2d_with_indices(x, 3, 1).indices, max_pool2d_with_indices(x, 3, {.stride = 1}).indices);
    same(avg_pool2d(x, 2, 2), avg_pool2d(x, 2));
    same(avg_pool2d(x, 3, 2, 1, true, false, 7),
         avg_pool2d(x, 3, {.stride = 2, .padding = 1, .ceil_mode = true, .count_include_pad = false, .divisor_override = 7}));
    same(avg_pool1d(line, 4, 1), avg_pool1d(line, 4, {.stride = 1}));
    same(avg_pool3d(cube, 3, 2, 1), avg_pool3d(cube, 3, {.stride = 2, .padding = 1}));
    same(lp_pool2d(x, 2, 3, 2), lp_pool2d(x, 2, 3, {.stride = 2}));
    same(lp_pool1d(line, 2, 3, 2, true), lp_pool1d(line, 2, 3, {.stride = 2, .ceil_mode = true}));
    // Structs by names only: {2, 1} would be a stride and a padding here, and a stride of two numbers in PyTorch.
    static_assert(!kMadeByPosition<MaxPoolOptions> && !kMadeByPosition<AvgPoolOptions> && !kMadeByPosition<LpPoolOptions>);
    same(max_pool2d(x, 3, {}), max_pool2d(x, 3));
    FAILS(ValueError, "max_pool2d: ", max_pool2d(x, 2, -1));
    FAILS(ValueError, "avg_pool2d: ", avg_pool2d(x, 2, 2, 5));
}
