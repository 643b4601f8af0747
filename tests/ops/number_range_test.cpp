// Numbers that an op is given: those that its dtype cannot hold, bounds beside integers, and arguments that are none.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

using Doubles = std::vector<double>;
using std::int64_t;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

Doubles values(const Tensor& t) { return t.to(float64).to_vector<double>(); }

void check(const Tensor& t, DType dtype, const Doubles& want) {
    CHECK(t.dtype() == dtype);
    CHECK(values(t) == want);
}

bool all_nan(const Tensor& t) { return all(isnan(t)).item<bool>(); }

}  // namespace

TEST_CASE("Numbers that a dtype cannot hold are refused by what makes tensors") {
    FAILS(ValueError, "full: 300 does not fit into uint8", full({2}, 300, uint8));
    FAILS(ValueError, "full: 1e+30 does not fit into int32", full({2}, 1e30, int32));
    FAILS(ValueError, "full: nan does not fit into int64", full({2}, kNan, int64));
    FAILS(ValueError, "full: inf does not fit into uint8", full({2}, kInf, uint8));
    FAILS(ValueError, "does not fit into int64", full({2}, 0x1p63, int64));
    FAILS(ValueError, "full: -256 does not fit into uint8", full({2}, -256, uint8));
    FAILS(ValueError, "full: 1e+30 does not fit into float16", full({2}, 1e30, float16));
    FAILS(ValueError, "full_like: 300 does not fit into uint8", full_like(zeros({2}, uint8), 300));
    FAILS(ValueError, "tensor: 70000000000 does not fit into int32", tensor(std::vector<int64_t>{70000000000}, int32));
    FAILS(ValueError, "tensor: nan does not fit into uint8", tensor(std::vector<double>{kNan}, uint8));
    FAILS(ValueError, "tensor: 300 does not fit into uint8", tensor({300}, uint8));
    FAILS(ValueError, "arange: 300 does not fit into uint8", arange(0, 400, 100, uint8));
    FAILS(ValueError, "arange: 5000000000 does not fit into int32", arange(0, 1e10, 5e9, int32));
    FAILS(ValueError, "linspace: 1000 does not fit into uint8", linspace(0, 1000, 3, uint8));
    FAILS(ValueError, "logspace: 1e+20 does not fit into int32", logspace(0, 20, 3, 10, int32));
}

TEST_CASE("Numbers that fit are taken as PyTorch takes them") {
    check(full({2}, -1, uint8), uint8, {255, 255});
    check(full({2}, 2.7, int64), int64, {2, 2});
    check(full({1}, kInf, float16), float16, {kInf});
    check(tensor({1e30}, float16), float16, {kInf});
    check(arange(0, 300, 100, uint8), uint8, {0, 100, 200});
    check(linspace(0, 255, 3, uint8), uint8, {0, 127, 255});
    CHECK(full({}, 9007199254740993, int64).item<int64_t>() == 9007199254740993);
    CHECK(tensor(std::vector<int64_t>{9007199254740993}).item<int64_t>() == 9007199254740993);
    const Tensor u = tensor({1, 2, 3}, uint8);
    check(u + 300, uint8, {45, 46, 47});  // arithmetic wraps around
    check(u < 300, bool_, {1, 1, 1});
    check(u == 257, bool_, {0, 0, 0});
}

TEST_CASE("Numbers that a dtype cannot hold are refused before anything is written") {
    Tensor u = tensor({1, 2, 3}, uint8);
    const Tensor mask = tensor({true, false, false}), first = tensor({0});
    FAILS(ValueError, "fill_: 300 does not fit into uint8", u.fill_(300));
    FAILS(ValueError, "fill_: 300 does not fit into uint8", u[0] = 300);
    FAILS(ValueError, "index_put_: 300 does not fit into uint8", u.index_put_({0}, 300));
    FAILS(ValueError, "masked_fill_: 300 does not fit into uint8", u.masked_fill_(mask, 300));
    FAILS(ValueError, "masked_fill: 300 does not fit into uint8", masked_fill(u, mask, 300));
    FAILS(ValueError, "index_fill: 300 does not fit into uint8", index_fill(u, 0, first, 300));
    FAILS(ValueError, "scatter: 300 does not fit into uint8", scatter(u, 0, first, 300));
    FAILS(ValueError, "where: 300 does not fit into uint8", where(mask, u, 300));
    FAILS(ValueError, "where: 300 does not fit into uint8", where(mask, 300, u));
    FAILS(ValueError, "pad: 300 does not fit into uint8", pad(u, {1, 1}, "constant", 300));
    check(u, uint8, {1, 2, 3});
}

TEST_CASE("Bounds of clamp that are fractions make integers floats, and nan makes all nan") {
    const Tensor i = tensor({1, 2, 3}), f = tensor({-8.0, 0.0, 8.0});
    check(clamp_min(i, 1.5), float32, {1.5, 2, 3});
    check(clamp_max(i, 2.0), float32, {1, 2, 2});
    check(clamp(i, 1.5, 2.5), float32, {1.5, 2, 2.5});
    check(clamp_max(i, 2), int64, {1, 2, 2});
    check(clamp(i, 2, 1), int64, {1, 1, 1});
    check(clamp(f, 0.5, -0.5), float32, {-0.5, -0.5, -0.5});
    check(f.clone().clamp_(0.5, -0.5), float32, {-0.5, -0.5, -0.5});
    CHECK(clamp_min(i, 9007199254740993)[0].item<int64_t>() == 9007199254740993);
    CHECK(all_nan(clamp(f, kNan, 2)));
    CHECK(all_nan(clamp(f, 0, kNan)));
    CHECK(all_nan(clamp(i, kNan)));
    CHECK(all_nan(f.clone().clamp_(kNan, 1)));
    FAILS(DTypeError, "clamp_: a floating-point value cannot be written into int64", i.clone().clamp_(1.5));
}

TEST_CASE("Bounds that integers do not hold are refused where they would be the result") {
    const Tensor u = tensor({1, 100, 250}, uint8), i = tensor({1, -7}, int32);
    FAILS(ValueError, "maximum: 300 does not fit into uint8", maximum(u, 300));
    FAILS(ValueError, "maximum: 300 does not fit into uint8", maximum(300, u));
    FAILS(ValueError, "maximum: 300 does not fit into uint8", u.clone().maximum_(300));
    FAILS(ValueError, "minimum: -1 does not fit into uint8", minimum(u, -1));
    FAILS(ValueError, "fmax: 300 does not fit into uint8", fmax(u, 300));
    FAILS(ValueError, "fmin: -5000000000 does not fit into int32", fmin(i, int64_t{-5000000000}));
    FAILS(ValueError, "clamp: 300 does not fit into uint8", clamp(u, 300, 400));
    FAILS(ValueError, "clamp: -5 does not fit into uint8", clamp_max(u, -5));
    FAILS(ValueError, "clamp: 1000000000000 does not fit into int32", i.clone().clamp_(1e12, 2e12));
    FAILS(ValueError, "clamp: inf does not fit into int64", clamp(tensor({1}), kInf, kInf));
    FAILS(ValueError, "hardtanh: 300 does not fit into uint8", hardtanh(u, 300, 400));
    FAILS(ValueError, "pow: 300 does not fit into uint8", pow(u, 300));
    check(maximum(u, -1), uint8, {1, 100, 250});
    check(minimum(u, 300), uint8, {1, 100, 250});
    check(fmin(i, int64_t{5000000000}), int32, {1, -7});
    check(clamp(u, -5, 10), uint8, {1, 10, 10});
    check(clamp(i, -1e12, 1e12), int32, {1, -7});
    FAILS(ValueError, "hardtanh: min_val 0.5 is above max_val -0.5", hardtanh(ones({2}), 0.5, -0.5));
    FAILS(ValueError, "hardtanh: min_val", ones({2}).hardtanh_(1, -1));
}

TEST_CASE("Numbers that a norm or a loss has no meaning for are refused") {
    const Tensor x = randn({2, 3, 4});
    FAILS(ValueError, "layer_norm: eps must not be negative, got -1", layer_norm(x, {4}, {}, {}, -1));
    FAILS(ValueError, "layer_norm: eps must not be negative, got nan", layer_norm(x, {4}, {}, {}, kNan));
    FAILS(ValueError, "group_norm: eps must not be negative", group_norm(x, 1, {}, {}, -1));
    FAILS(ValueError, "instance_norm: eps must not be negative", instance_norm(x, {}, {}, -1));
    FAILS(ValueError, "batch_norm: eps must not be negative", batch_norm(x, {}, {}, {}, {}, {.training = true, .eps = -1}));
    FAILS(ValueError, "rms_norm: eps is nan", rms_norm(x, {4}, {}, kNan));
    FAILS(ValueError, "cosine_similarity: eps must not be negative", cosine_similarity(x, x, 1, -1));
    FAILS(ValueError, "triplet_margin_loss: margin must be above 0, got -1", triplet_margin_loss(x, x, x, -1));
    FAILS(ValueError, "triplet_margin_with_distance_loss: margin must be above 0, got nan", triplet_margin_with_distance_loss(x, x, x, {}, kNan));
    const Tensor losses = kl_div(zeros({3}), tensor({-1.0, 0.0, 0.5}), Reduction::none);
    CHECK(std::isnan(losses[0].item()));  // as PyTorch's: -1 is no probability
    CHECK(losses[1].item() == 0);
    CHECK(losses[2].item() == Approx(-0.5 * std::log(2.0)));
}

TEST_CASE("Writes into views whose elements overlap are refused") {
    const Tensor base = arange(5);
    Tensor windows = base.unfold(0, 2, 1);
    FAILS(ValueError, "mul_: several elements of the (4, 2) tensor share memory", windows.mul_(2));
    FAILS(ValueError, "fill_: several elements", windows.fill_(1));
    FAILS(ValueError, "copy_: several elements", windows.copy_(zeros({4, 2}, int64)));
    FAILS(ValueError, "index_put_: several elements", windows.index_put_({0}, 5));
    FAILS(ValueError, "share memory", arange(8).unfold(0, 4, 3).mul_(2));
    check(base, int64, {0, 1, 2, 3, 4});
    check(arange(6).unfold(0, 2, 2).mul_(2).reshape({6}), int64, {0, 2, 4, 6, 8, 10});
    // Every other element of windows of 5: 0 2 4, 3 5 7, 6 8 10. The rows interleave, and no two elements meet.
    const Tensor all = arange(12);
    Tensor apart = all.unfold(0, 5, 3).transpose(0, 1)[Slice(0, Slice::kOpen, 2)];
    apart.mul_(10);
    check(all, int64, {0, 1, 20, 30, 40, 50, 60, 70, 80, 9, 100, 11});
}

TEST_CASE("Sums of repeats, strides and parts beyond what there can be are refused") {
    FAILS(OutOfMemory, "repeat_interleave: the repeats add up", repeat_interleave(full({5}, 4), full({5}, int64_t{1} << 62)));
    const Tensor x = ones({1, 3, 4}), w = ones({3, 3, 3});
    FAILS(ValueError, "conv1d: stride 9223372036854775807 is too large", conv1d(x, w, {}, {.stride = INT64_MAX, .padding = 2}));
    check(conv1d(x, w, {}, {.stride = INT32_MAX, .padding = 2}).reshape({3}), float32, {3, 3, 3});
    FAILS(ValueError, "tensor_split: 2147483647 parts are too many", tensor_split(x, INT32_MAX));
}

TEST_CASE("Classes that are none, matrices of nan and dimensions named twice are refused") {
    const auto classes = [](std::vector<int64_t> c) { return tensor(c); };
    FAILS(IndexError, "multi_margin_loss: target -1 is out of range for 3 classes", multi_margin_loss(ones({1, 3}), classes({-1})));
    FAILS(IndexError, "multilabel_margin_loss: target -7 is out of range", multilabel_margin_loss(ones({3}), classes({0, -1, -7})));
    CHECK(multilabel_margin_loss(ones({3}), classes({0, -1, -1})).item() == Approx(2.0 / 3));
    FAILS(ValueError, "the matrix is not positive definite: it has nan", linalg::cholesky(full({1, 1}, kNan)));
    FAILS(ValueError, "it has nan", linalg::cholesky(tensor({{1.0, 0.0}, {0.0, kNan}})));
    check(linalg::cholesky(tensor({{4.0, kNan}, {2.0, 5.0}})).reshape({4}), float32, {2, 0, 1, 2});  // reads the lower triangle
    FAILS(IndexError, "sum: a 0-d tensor has one dimension to name", sum(tensor(1.0), {0, -1}));
    FAILS(IndexError, "tensordot: a 0-d tensor has no dimension 0", tensordot(tensor(1.0), ones({3}), Dims{0}, Dims{0}));
}

TEST_CASE("Null words and functions are refused") {
    const char* none = nullptr;
    const Tensor x = ones({3}), m = ones({2, 2});
    FAILS(ValueError, "gelu: a word that was given is a null pointer", gelu(x, none));
    FAILS(ValueError, "null pointer", div(x, x, none));
    FAILS(ValueError, "null pointer", einsum(none, {x}));
    FAILS(ValueError, "null pointer", meshgrid({x}, none));
    FAILS(ValueError, "null pointer", linalg::qr(m, none));
    FAILS(ValueError, "null pointer", linalg::eigh(m, none));
    FAILS(ValueError, "null pointer", interpolate(ones({1, 1, 3}), {.size = 2, .mode = none}));
    FAILS(ValueError, "null pointer", scatter_reduce(x, 0, tensor({0, 1, 2}), x, none));
    FAILS(ValueError, "padding: a word", conv1d(ones({1, 3, 4}), ones({3, 3, 3}), {}, {.padding = none}));
    FAILS(ValueError, "checkpoint: the function is null", checkpoint(nullptr, {x}));
}
