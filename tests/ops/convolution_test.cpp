// Convolutions against loops over their definition, in every combination of sizes, strides, paddings and groups that is small
// enough; layouts, dtypes, autocast, and what is refused. Gradients: the op table's test.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "../fails.h"
#include "../threads_scope.h"
#include "tapir/tapir.h"

using namespace tapir;

template <class Options>
concept kMadeByPosition = requires { Options{2}; };
using std::int64_t;

namespace {

struct Case {
    int64_t batch, in, out, groups, size[2], kernel[2], stride[2], padding[2], dilation[2];
};

// y[n, o, i, j] by its definition, in double.
std::vector<double> by_definition(const Case& c, const Tensor& x, const Tensor& w, const Tensor& bias, int64_t (&size)[2]) {
    for (int d = 0; d < 2; ++d) size[d] = (c.size[d] + 2 * c.padding[d] - c.dilation[d] * (c.kernel[d] - 1) - 1) / c.stride[d] + 1;
    const auto xs = x.to_vector<double>(), ws = w.to_vector<double>(), bs = bias.to_vector<double>();
    const int64_t group_in = c.in / c.groups, group_out = c.out / c.groups;
    std::vector<double> y;
    for (int64_t n = 0; n < c.batch; ++n)
        for (int64_t o = 0; o < c.out; ++o)
            for (int64_t i = 0; i < size[0]; ++i)
                for (int64_t j = 0; j < size[1]; ++j) {
                    double sum = bs[static_cast<std::size_t>(o)];
                    for (int64_t k = 0; k < group_in; ++k)
                        for (int64_t a = 0; a < c.kernel[0]; ++a)
                            for (int64_t b = 0; b < c.kernel[1]; ++b) {
                                const int64_t row = i * c.stride[0] + a * c.dilation[0] - c.padding[0];
                                const int64_t col = j * c.stride[1] + b * c.dilation[1] - c.padding[1];
                                if (row < 0 || row >= c.size[0] || col < 0 || col >= c.size[1]) continue;
                                const int64_t channel = o / group_out * group_in + k;
                                sum += xs[static_cast<std::size_t>(((n * c.in + channel) * c.size[0] + row) * c.size[1] + col)] *
                                    ws[static_cast<std::size_t>(((o * group_in + k) * c.kernel[0] + a) * c.kernel[1] + b)];
                            }
                    y.push_back(sum);
                }
    return y;
}

void check_values(const Tensor& have, const std::vector<double>& want, double tolerance) {
    const std::vector<double> values = have.to_vector<double>();
    REQUIRE(values.size() == want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
        if (std::abs(values[i] - want[i]) <= tolerance * (1 + std::abs(want[i]))) continue;
        INFO("element " << i << ": " << values[i] << ", not " << want[i]);
        CHECK(false);
        return;
    }
}

}  // namespace

TEST_CASE("convolution by its definition") {
    manual_seed(1);
    const Case cases[] = {
        {2, 3, 4, 1, {7, 6}, {3, 3}, {1, 1}, {0, 0}, {1, 1}},    {2, 3, 4, 1, {7, 6}, {3, 2}, {2, 3}, {2, 1}, {1, 2}},
        {1, 1, 32, 1, {28, 28}, {5, 5}, {1, 1}, {2, 2}, {1, 1}}, {3, 16, 24, 1, {9, 10}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
        {2, 6, 9, 3, {5, 8}, {2, 3}, {1, 2}, {1, 0}, {2, 1}},    {2, 8, 8, 8, {6, 6}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
        {2, 4, 3, 1, {5, 5}, {1, 1}, {1, 1}, {0, 0}, {1, 1}},    {1, 2, 2, 1, {4, 4}, {4, 4}, {1, 1}, {0, 0}, {1, 1}},
        {1, 2, 2, 1, {3, 3}, {2, 2}, {1, 1}, {5, 4}, {1, 1}},    {2, 3, 2, 1, {9, 9}, {2, 2}, {4, 5}, {0, 0}, {1, 1}},
    };
    for (const Case& c : cases) {
        for (const DType dtype : {float32, float64}) {
            INFO(name(dtype) << ", " << c.in << " -> " << c.out << ", " << c.size[0] << " x " << c.size[1]);
            const Tensor x = randn({c.batch, c.in, c.size[0], c.size[1]}, dtype), bias = randn({c.out}, dtype);
            const Tensor w = randn({c.out, c.in / c.groups, c.kernel[0], c.kernel[1]}, dtype);
            const ConvOptions options{.stride = {c.stride[0], c.stride[1]},
                                      .padding = {c.padding[0], c.padding[1]},
                                      .dilation = {c.dilation[0], c.dilation[1]},
                                      .groups = c.groups};
            int64_t size[2];
            const std::vector<double> want = by_definition(c, x, w, bias, size);
            const double tolerance = dtype == float64 ? 1e-12 : 1e-4;
            const Tensor y = conv2d(x, w, bias, options);
            CHECK(y.shape() == Shape{c.batch, c.out, size[0], size[1]});
            check_values(y, want, tolerance);
            check_values(conv2d(x.transpose(2, 3).contiguous().transpose(2, 3), w.transpose(0, 1).contiguous().transpose(0, 1), bias, options), want,
                         tolerance);
            check_values(conv2d(x[0], w, bias, options), {want.begin(), want.begin() + y[0].numel()}, tolerance);
            const Tensor flat = conv2d(x, w, {}, options) + bias.view({c.out, 1, 1});
            check_values(flat, want, tolerance);
        }
    }
}

TEST_CASE("convolution in 16 bits is float64's rounded once") {
    manual_seed(2);
    const Tensor x = randn({2, 8, 6, 6}), w = randn({4, 8, 3, 3}), b = randn({4});
    for (const DType dtype : {float16, bfloat16}) {
        const Tensor low[] = {x.to(dtype), w.to(dtype), b.to(dtype)};
        const Tensor y = conv2d(low[0], low[1], low[2], {.padding = 1});
        CHECK(y.dtype() == dtype);
        const Tensor want = conv2d(low[0].to(float64), low[1].to(float64), low[2].to(float64), {.padding = 1});
        check_values(y, want.to_vector<double>(), dtype == float16 ? 2e-3 : 1e-2);
    }
    const AutocastScope scope(bfloat16);
    CHECK(conv2d(x, w, b).dtype() == bfloat16);
    CHECK(conv_transpose2d(x, w.transpose(0, 1)).dtype() == bfloat16);
}

TEST_CASE("a transposed convolution whose end no stride reaches is float32's in bfloat16 too") {
    manual_seed(5);
    for (const int64_t dilation : {2, 3}) {  // oneDNN takes none of these, also where the processor has bfloat16
        const ConvTransposeOptions options{.output_padding = {1, 0}, .dilation = dilation};
        const Tensor x = randn({2, 3, 4, 5}, bfloat16), w = randn({3, 2, 2, 2}, bfloat16);
        const Tensor y = conv_transpose2d(x, w, {}, options), wide = conv_transpose2d(x.to(float32), w.to(float32), {}, options);
        CHECK(y.dtype() == bfloat16);
        CHECK(allclose(y.to(float32), wide, 1e-2, 1e-2));
    }
}

TEST_CASE("convolution is closed under gradients: x, w and y agree on one product") {
    // <conv(x, w), g> = <x, conv_transpose(g, w)>
    manual_seed(3);
    const Tensor x = randn({2, 4, 9, 8}, float64), w = randn({6, 2, 3, 2}, float64);
    const ConvOptions options{.stride = {2, 3}, .padding = {1, 0}, .dilation = {1, 2}, .groups = 2};
    const Tensor y = conv2d(x, w, {}, options), g = randn(y.shape(), float64);
    const Tensor back = conv_transpose2d(g, w, {}, {.stride = {2, 3}, .padding = {1, 0}, .output_padding = {0, 2}, .groups = 2, .dilation = {1, 2}});
    REQUIRE(back.shape() == x.shape());
    CHECK(sum(y * g).item() == Approx(sum(x * back).item()));
}

TEST_CASE("what follows a convolution keeps its layout, and nobody sees it") {
    manual_seed(4);
    const Tensor x = randn({2, 3, 8, 8}), w = randn({5, 3, 3, 3});
    const Tensor y = conv2d(x, w), plain = y.contiguous();
    const auto same = [](const Tensor& a, const Tensor& b) { CHECK(a.to_vector<float>() == b.to_vector<float>()); };
    same(relu(y) * 2 + y, relu(plain) * 2 + plain);
    same(y + w[0][0][0][0], plain + w[0][0][0][0]);
    same(y * ones({5, 1, 1}), plain);
    same(y.flatten(1), plain.flatten(1));
    CHECK(y.is_contiguous() == !TAPIR_ONEDNN);  // or this tests nothing
    CHECK(y[1][2][3][4].item() == plain[1][2][3][4].item());
}

TEST_CASE("empty batches and channels") {
    const Tensor w = ones({4, 3, 3, 3}), b = ones({4});
    CHECK(conv2d(zeros({0, 3, 8, 8}), w, b).shape() == Shape{0, 4, 6, 6});
    Tensor leaf = ones({4, 3, 3, 3}).requires_grad_();
    Tape tape;
    tape.backward(sum(conv2d(zeros({0, 3, 8, 8}), leaf, b)));
    CHECK(leaf.grad().abs().sum().item() == 0);
}

TEST_CASE("convolutions on several threads, which share out the batch, are those on one") {
    manual_seed(3);
    for (const int64_t batch : {1, 2, 7, 24}) {
        for (const int64_t groups : {1, 4, 32}) {
            for (const DType dtype : {float32, bfloat16}) {
                INFO("batch " << batch << ", " << groups << " groups, " << name(dtype));
                const Tensor x = randn({batch, 32, 20, 20}).to(dtype).requires_grad_(), w = randn({64, 32 / groups, 3, 3}).to(dtype).requires_grad_();
                const Tensor bias = randn({64}).to(dtype).requires_grad_();
                const auto outcome = [&](int threads) {
                    const test::ThreadsScope scope(threads);
                    Tape tape;
                    const Tensor y = conv2d(x, w, bias, {.stride = 2, .padding = 1, .groups = groups});
                    std::vector<Tensor> results = tape.gradient(sum(cos(y)), {x, w, bias});
                    results.push_back(y.detach());
                    return results;
                };
                const std::vector<Tensor> want = outcome(1), have = outcome(3);
                for (std::size_t k = 0; k < want.size(); ++k) {
                    // A sum of two parts, each with digits enough for itself.
                    const double error = (have[k].to(float64) - want[k].to(float64)).abs().max().item();
                    CHECK(error <= (dtype == float32 ? 1e-5 : 1e-2) * want[k].to(float64).abs().max().item());
                }
            }
        }
    }
}

namespace {

// Checks a convolution in one or several dimensions and its gradients, of numbers that bfloat16 has, beside float64.
void check_beside_float64(const Shape& x_shape, const Shape& w_shape, const ConvOptions& options, DType dtype) {
    INFO(x_shape << ", " << w_shape << ", stride " << options.stride[0] << ", dilation " << options.dilation[0] << ", " << options.groups
                 << " groups, " << name(dtype));
    const Tensor x = randn(x_shape).to(bfloat16), w = randn(w_shape).to(bfloat16);
    const auto outcome = [&](DType in) {
        const Tensor of_x = x.to(in).requires_grad_(), of_w = w.to(in).requires_grad_();
        Tape tape;
        const int dims = x.dim() - 2;
        const Tensor y = dims == 1 ? conv1d(of_x, of_w, {}, options) : dims == 2 ? conv2d(of_x, of_w, {}, options) : conv3d(of_x, of_w, {}, options);
        const Tensor signs = cos(arange(y.numel(), float32)).to(bfloat16).reshape(y.shape()).to(in);
        std::vector<Tensor> results = tape.gradient(sum(y * signs), {of_x, of_w});
        results.push_back(y.detach());
        return results;
    };
    const std::vector<Tensor> have = outcome(dtype), want = outcome(float64);
    for (std::size_t k = 0; k < want.size(); ++k) {
        const double error = (have[k].to(float64) - want[k]).abs().max().item();
        CHECK(error <= (dtype == float32 ? 1e-5 : 0.02) * (1 + want[k].abs().max().item()));
    }
}

}  // namespace

TEST_CASE("convolutions of random sizes and their gradients are those of float64") {
    manual_seed(5);
    std::mt19937 random(7);
    const auto draw = [&](int least, int most) { return least + static_cast<int>(random() % static_cast<unsigned>(most - least + 1)); };
    for (int repeat = 0; repeat < 400; ++repeat) {
        const int dims = draw(1, 3), groups = draw(1, 4) == 1 ? 2 : 1, wide = draw(1, 4) == 1 ? 8 : 1;
        const int stride = draw(1, 2), padding = draw(0, 1), dilation = draw(1, 2);
        Shape x_shape{draw(1, 3), groups * wide * draw(1, 3)}, w_shape{groups * wide * draw(1, 3), x_shape[1] / groups};
        for (int d = 0; d < dims; ++d) {
            const int kernel = draw(1, 3);
            x_shape.push_back(std::max(draw(2, 10), dilation * (kernel - 1) + 1));
            w_shape.push_back(kernel);
        }
        for (const DType dtype : {float32, bfloat16}) {
            check_beside_float64(x_shape, w_shape, {.stride = stride, .padding = padding, .dilation = dilation, .groups = groups}, dtype);
        }
    }
}

TEST_CASE("gradients of bfloat16 that oneDNN gets wrong are right") {
    manual_seed(4);
    check_beside_float64({2, 3, 5, 6}, {3, 3, 1, 1}, {}, bfloat16);
    check_beside_float64({1, 1, 9, 12}, {1, 1, 1, 1}, {.stride = 2}, bfloat16);
    check_beside_float64({1, 16, 10, 6}, {5, 16, 1, 1}, {}, bfloat16);
    check_beside_float64({1, 2, 2, 3, 2}, {1, 2, 2, 2, 2}, {.stride = 2, .padding = 1}, bfloat16);
    check_beside_float64({1, 16, 2, 6, 2}, {8, 16, 2, 2, 3}, {.stride = 2, .padding = 1}, bfloat16);
}

TEST_CASE("convolutions of large kernels, for which oneDNN has loops over elements alone, are those of float64") {
    struct Sizes {
        Shape x, w, y;
    };
    // Input, weight and result of a stride of 2. On AVX2 the first has none, on AVX-512 the second and third.
    for (const Sizes& s : {Sizes{{1, 3, 27, 27, 27}, {5, 3, 9, 9, 9}, {1, 5, 10, 10, 10}}, Sizes{{1, 3, 95, 95}, {5, 3, 31, 31}, {1, 5, 33, 33}},
                           Sizes{{1, 1, 27, 27, 27}, {5, 1, 21, 21, 21}, {1, 5, 4, 4, 4}}}) {
        const Tensor x = randn(s.x), w = randn(s.w), g = randn(s.y);
        const auto gradients = [&](DType dtype) {
            const Tensor a = x.to(dtype).clone().requires_grad_(), b = w.to(dtype).clone().requires_grad_();
            Tape tape;
            const Tensor y = s.x.rank() == 5 ? conv3d(a, b, {}, {.stride = 2}) : conv2d(a, b, {}, {.stride = 2});
            return tape.gradient(y, {a, b}, {.gradient = g.to(dtype)});
        };
        const std::vector<Tensor> got = gradients(float32), want = gradients(float64);
        CHECK(allclose(got[0].to(float64), want[0], 1e-3, 1e-3));
        CHECK(allclose(got[1].to(float64), want[1], 1e-3, 1e-3));
    }
}

TEST_CASE("convolution refuses") {
    const Tensor x = ones({2, 3, 8, 8}), w = ones({4, 3, 3, 3}), b = ones({4});
    FAILS(ShapeError, "conv2d: needs an input of 3 or 4 dimensions and a weight of 4, got (2, 3) and (4, 3, 3, 3)", conv2d(ones({2, 3}), w));
    FAILS(ShapeError, "conv2d: an input of shape (2, 3, 8, 8) does not fit a weight of shape (4, 2, 3, 3) (out, in / groups, ...) in 1 group",
          conv2d(x, ones({4, 2, 3, 3})));
    FAILS(ShapeError, "in 2 groups", conv2d(x, w, {}, {.groups = 2}));
    FAILS(ValueError, "conv2d: groups must be at least 1, got 0", conv2d(x, w, {}, {.groups = 0}));
    FAILS(ShapeError, "conv2d: a bias of shape (3,) does not fit 4 output channels", conv2d(x, w, ones({3})));
    FAILS(DTypeError, "conv2d: input, weight and bias must have one floating dtype, got float32, float64 and no bias", conv2d(x, w.to(float64)));
    FAILS(DTypeError, "got int64, int64 and no bias", conv2d(x.to(int64), w.to(int64)));
    FAILS(ValueError, "conv2d: stride must be at least 1, got (0,)", conv2d(x, w, b, {.stride = 0}));
    FAILS(ValueError, "conv2d: dilation must be at least 1, got (1, -1)", conv2d(x, w, b, {.dilation = {1, -1}}));
    FAILS(ValueError, "conv2d: padding must be at least 0, got (-1,)", conv2d(x, w, b, {.padding = -1}));
    FAILS(ValueError, "conv2d: stride needs 1 number or 2, got (1, 2, 3)", conv2d(x, w, b, {.stride = {1, 2, 3}}));
    FAILS(ValueError, "conv2d: padding 'same' needs stride 1, got 2", conv2d(x, w, b, {.stride = 2, .padding = "same"}));
    FAILS(ValueError, "padding: it must be a number, 'same' or 'valid', not 'full'", conv2d(x, w, b, {.padding = "full"}));
    FAILS(ShapeError, "conv2d: a kernel that reaches over 17 elements does not fit into the input's 8 with padding",
          conv2d(x, w, b, {.dilation = 8}));
    FAILS(ValueError, "conv_transpose2d: output_padding 2 must be below the stride 2 or the dilation 1",
          conv_transpose2d(ones({1, 4, 3, 3}), w, {}, {.stride = 2, .output_padding = 2}));
    FAILS(ShapeError, "conv_transpose2d: an input of shape (2, 3, 8, 8) does not fit a weight", conv_transpose2d(x, w));
    FAILS(ValueError, "conv2d: the tensor is undefined", conv2d(Tensor(), w));
}

TEST_CASE("convolutions take their numbers by PyTorch's positions") {
    const auto same = [](const Tensor& a, const Tensor& b) {
        CHECK(a.shape() == b.shape());
        CHECK(a.to_vector<float>() == b.to_vector<float>());
    };
    const Tensor x = randn({2, 4, 9, 9}), w = randn({6, 4, 3, 3}), b = randn({6}), grouped = randn({6, 2, 3, 3});
    const Shape wide{2, 1};
    same(conv2d(x, w, b, 2, 1), conv2d(x, w, b, {.stride = 2, .padding = 1}));
    same(conv2d(x, w, b, 2), conv2d(x, w, b, {.stride = 2}));
    same(conv2d(x, w, {}, wide), conv2d(x, w, {}, {.stride = {2, 1}}));
    same(conv2d(x, w, {}, {2, 1}, {1, 0}), conv2d(x, w, {}, {.stride = {2, 1}, .padding = {1, 0}}));
    same(conv2d(x, w, b, 1, "same", 2), conv2d(x, w, b, {.padding = "same", .dilation = 2}));
    same(conv2d(x, grouped, b, 1, 0, 1, 2), conv2d(x, grouped, b, {.groups = 2}));
    const Tensor lines = randn({2, 4, 9}), short_ones = randn({6, 4, 3});
    same(conv1d(lines, short_ones, b, 2, 1), conv1d(lines, short_ones, b, {.stride = 2, .padding = 1}));
    same(conv3d(ones({1, 1, 5, 5, 5}), ones({1, 1, 3, 3, 3}), {}, 2), conv3d(ones({1, 1, 5, 5, 5}), ones({1, 1, 3, 3, 3}), {}, {.stride = 2}));
    const Tensor t = randn({4, 6, 3, 3});
    same(conv_transpose2d(x, t, b, 2, 1, 1), conv_transpose2d(x, t, b, {.stride = 2, .padding = 1, .output_padding = 1}));
    same(conv_transpose2d(x, t, {}, 2), conv_transpose2d(x, t, {}, {.stride = 2}));
    same(conv_transpose2d(x, t, {}, 1, 0, 0, 2, 2), conv_transpose2d(x, t, {}, {.groups = 2, .dilation = 2}));
    static_assert(!kMadeByPosition<ConvOptions> && !kMadeByPosition<ConvTransposeOptions> && !kMadeByPosition<nn::ConvLayerOptions>);
    same(conv2d(x, w, b, {}), conv2d(x, w, b));
    FAILS(ValueError, "conv2d: ", conv2d(x, w, b, 0));
}
