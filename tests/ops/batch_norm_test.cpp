// Batch normalisation: running statistics, the ends of its numbers, layouts and threads, and what is refused. Values and
// gradients: the op table's test, against PyTorch.
#include <cmath>

#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

TEST_CASE("batch_norm moves the running statistics by the momentum") {
    const Tensor x = tensor({{1.0, 10.0}, {3.0, 30.0}, {5.0, 20.0}, {7.0, 0.0}}).to(float64);
    Tensor running_mean = zeros({2}, float64), running_var = ones({2}, float64);
    const Tensor y = batch_norm(x, running_mean, running_var, {}, {}, {.training = true, .momentum = 0.25, .eps = 0});
    // means 4 and 15; variances 5 and 125, unbiased 20 / 3 and 500 / 3
    CHECK(running_mean.to_vector<double>() == std::vector<double>{1, 3.75});
    CHECK(running_var[0].item() == Approx(0.75 + 0.25 * 20 / 3));
    CHECK(running_var[1].item() == Approx(0.75 + 0.25 * 500 / 3));
    CHECK(y[0][0].item() == Approx(-3 / std::sqrt(5.0)));
    CHECK(y[1][1].item() == Approx(15 / std::sqrt(125.0)));
    const Tensor z = batch_norm(x, running_mean, running_var, {}, {}, {.eps = 0});
    CHECK(z[0][0].item() == Approx(0).margin(1e-12));
    CHECK(running_mean[0].item() == 1);
}

TEST_CASE("batch_norm far from zero keeps the variance") {
    manual_seed(1);
    const Tensor x = randn({64, 3, 10, 10}), far = x + 1000, turned = far.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2});
    for (const Tensor& in : {far, turned}) {
        const Tensor y = batch_norm(in, {}, {}, {}, {}, {.training = true});
        const Tensor exact = batch_norm(in.to(float64), {}, {}, {}, {}, {.training = true});
        CHECK(amax(abs(y.to(float64) - exact)).item() < 2e-3);
        CHECK(var(y, {0, 2, 3}, 0)[1].item() == Approx(1).epsilon(1e-3));
    }
}

TEST_CASE("batch_norm does not depend on threads, and hardly on the layout") {
    manual_seed(2);
    const Tensor x = randn({40, 17, 9, 8}), w = randn({17}), b = randn({17});
    const int threads = num_threads();
    const auto run = [&](const Tensor& in) { return batch_norm(in, {}, {}, w, b, {.training = true}).to_vector<float>(); };
    const auto many = run(x);
    set_num_threads(1);
    CHECK(run(x) == many);
    set_num_threads(threads);
    const auto turned = run(x.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2}));
    double largest = 0;
    for (std::size_t i = 0; i < many.size(); ++i) largest = std::max(largest, std::abs(static_cast<double>(many[i] - turned[i])));
    CHECK(largest < 1e-5);
}

TEST_CASE("normalisation in 16 bits computes in float32") {
    manual_seed(3);
    const Tensor x = randn({8, 4, 5, 5}), w = randn({4}), b = randn({4});
    for (const DType dtype : {float16, bfloat16}) {
        const Tensor low = x.to(dtype);
        const Tensor y = batch_norm(low, {}, {}, w, b, {.training = true});
        CHECK(y.dtype() == dtype);
        CHECK(y.to_vector<float>() == batch_norm(low.to(float32), {}, {}, w, b, {.training = true}).to(dtype).to_vector<float>());
        CHECK(group_norm(low, 2).dtype() == dtype);
        CHECK(rms_norm(low, {5}).dtype() == dtype);
    }
}

TEST_CASE("normalisation refuses") {
    const Tensor x = ones({2, 3, 4, 4});
    FAILS(ShapeError, "batch_norm: needs (n, channels), got (3,)", batch_norm(ones({3}), {}, {}, {}, {}, {.training = true}));
    FAILS(DTypeError, "batch_norm: needs a floating dtype, got int64", batch_norm(x.to(int64), {}, {}, {}, {}, {.training = true}));
    FAILS(ShapeError, "batch_norm: the weight has shape (4,), expected (3,)", batch_norm(x, {}, {}, ones({4}), {}, {.training = true}));
    FAILS(DTypeError, "batch_norm: the bias has dtype float64, the input float32",
          batch_norm(x, {}, {}, {}, ones({3}, float64), {.training = true}));
    FAILS(ValueError, "batch_norm: needs running_mean and running_var, or training", batch_norm(x, {}, {}));
    FAILS(ValueError, "batch_norm: in training a channel needs more than one element, got shape (1, 3)",
          batch_norm(ones({1, 3}), {}, {}, {}, {}, {.training = true}));
    FAILS(ValueError, "group_norm: 2 groups do not divide 3 channels", group_norm(x, 2));
    FAILS(ValueError, "instance_norm: a channel needs more than one element, got shape (2, 3, 1)", instance_norm(ones({2, 3, 1})));
    FAILS(ShapeError, "rms_norm: the last dimensions of (2, 3, 4, 4) must be (3,)", rms_norm(x, {3}));
    FAILS(ValueError, "local_response_norm: size must be at least 1, got 0", local_response_norm(x, 0));
}
