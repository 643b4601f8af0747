// Batch normalisation: running statistics, the ends of its numbers, layouts and threads, and what is refused. Values and
// gradients: the op table's test, against PyTorch.
#include <algorithm>
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

TEST_CASE("an empty batch is recorded, and its parameters' gradients are zeros") {
    const Tensor x = zeros({0, 3, 2, 2});
    Tensor w = ones({3}).requires_grad_(), b = ones({3}).requires_grad_();
    const auto check = [&](auto&& norm) {
        Tape tape;
        const Tensor y = norm();
        CHECK(y.shape() == x.shape());
        tape.backward(sum(y));
        CHECK(w.grad().to_vector<float>() == std::vector<float>(3, 0));
        CHECK(b.grad().to_vector<float>() == std::vector<float>(3, 0));
        w.zero_grad();
        b.zero_grad();
    };
    check([&] { return batch_norm(x, {}, {}, w, b, {.training = true}); });
    check([&] { return batch_norm(x, zeros({3}), ones({3}), w, b); });
    check([&] { return group_norm(x, 3, w, b); });
    nn::BatchNorm2d layer(3);
    Tape tape;
    tape.backward(sum(layer(x)));
    CHECK(layer.weight.grad().to_vector<float>() == std::vector<float>(3, 0));
}

// As it is defined, of ops: they have gradients of their own.
static Tensor defined_group_norm(const Tensor& x, int64_t groups, const Tensor& w, const Tensor& b) {
    const Tensor rows = reshape(x, {x.size(0), groups, x.numel() / (x.size(0) * groups)}), centred = rows - mean(rows, {2}, true);
    const Tensor y = reshape(centred / sqrt(mean(square(centred), {2}, true) + 1e-5), x.shape());
    Shape channels{x.size(1)};
    for (int d = 2; d < x.dim(); ++d) channels.push_back(1);
    return y * reshape(w, channels) + reshape(b, channels);
}

TEST_CASE("group_norm is its definition in every layout, at any number of threads, and keeps the layout") {
    manual_seed(6);
    struct Case {
        Shape shape;
        int64_t groups;
    };
    // Many small examples, a few that are cut into parts, channels of few elements, and rows longer than a block of sums.
    for (const auto& [shape, groups] : {Case{{40, 6, 5, 3}, 3}, Case{{2, 8, 130, 70}, 2}, Case{{3, 64, 33, 40}, 64}, Case{{5, 4, 2, 2}, 1},
                                        Case{{2, 96, 64, 16}, 8}, Case{{3, 6, 7}, 2}, Case{{4, 6, 3}, 2}}) {
        const Tensor plain = randn(shape) * 2 + 100, g = randn(shape);
        const Tensor turned = shape.rank() == 4 ? plain.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2}) : plain;
        const Tensor w = randn({shape[1]}), b = randn({shape[1]});
        const auto run = [&](const Tensor& in, DType dtype, auto&& norm) {
            std::vector<Tensor> leaves;
            for (const Tensor* t : {&in, &w, &b}) leaves.push_back(t->to(dtype).detach().requires_grad_());
            Tape tape;
            const Tensor y = norm(leaves[0], leaves[1], leaves[2]);
            tape.backward(sum(y * g.to(dtype)));
            return std::vector<Tensor>{y, leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
        };
        const auto fused = [&](const Tensor& x, const Tensor& ws, const Tensor& bs) { return group_norm(x, groups, ws, bs); };
        const auto definition = [&](const Tensor& x, const Tensor& ws, const Tensor& bs) { return defined_group_norm(x, groups, ws, bs); };
        const auto want = run(plain, float64, definition);
        for (const Tensor& in : {plain, turned}) {
            CHECK(group_norm(in, groups, w, b).is_contiguous() == in.is_contiguous());
            const auto exact = run(in, float64, fused), got = run(in, float32, fused);
            const int threads = num_threads();
            set_num_threads(1);
            const auto single = run(in, float32, fused);
            set_num_threads(threads);
            for (std::size_t i = 0; i < 4; ++i) {
                INFO("of shape " << shape[0] << ", " << shape[1] << ", result " << i);
                CHECK(allclose(exact[i], want[i], 1e-8, 1e-8));
                CHECK(allclose(got[i].to(float64), want[i], 1e-3, 1e-3));
                CHECK(equal(got[i], single[i]));
            }
        }
    }
}

TEST_CASE("rms_norm of many rows is its definition, at any number of threads") {
    manual_seed(7);
    const Tensor x = randn({300, 2, 130}) * 3, w = randn({2, 130}), g = randn({300, 2, 130});
    const auto run = [&](DType dtype, bool by_definition) {
        const Tensor xs = x.to(dtype).detach().requires_grad_(), ws = w.to(dtype).detach().requires_grad_();
        Tape tape;
        const Tensor y = by_definition ? xs / sqrt(mean(square(xs), {1, 2}, true) + 1e-3) * ws : rms_norm(xs, {2, 130}, ws, 1e-3);
        tape.backward(sum(y * g.to(dtype)));
        return std::vector<Tensor>{y, xs.grad(), ws.grad()};
    };
    const auto want = run(float64, true), exact = run(float64, false), got = run(float32, false);
    const int threads = num_threads();
    set_num_threads(1);
    const auto single = run(float32, false);
    set_num_threads(threads);
    for (std::size_t i = 0; i < 3; ++i) {
        CHECK(allclose(exact[i], want[i], 1e-10, 1e-10));
        CHECK(allclose(got[i].to(float64), want[i], 1e-4, 1e-4));
        CHECK(equal(got[i], single[i]));
    }
    CHECK(rms_norm(zeros({0, 4}), {4}, ones({4})).shape() == Shape{0, 4});
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
    FAILS(DTypeError, "batch_norm: the bias has dtype float64, the input has float32",
          batch_norm(x, {}, {}, {}, ones({3}, float64), {.training = true}));
    FAILS(ValueError, "batch_norm: needs running_mean and running_var, or training", batch_norm(x, {}, {}));
    FAILS(ValueError, "batch_norm: in training a channel needs more than one element, got shape (1, 3)",
          batch_norm(ones({1, 3}), {}, {}, {}, {}, {.training = true}));
    FAILS(ValueError, "group_norm: 2 groups do not divide 3 channels", group_norm(x, 2));
    FAILS(ValueError, "group_norm: a group needs more than one element, got 4 groups in shape (1, 4, 1)", group_norm(ones({1, 4, 1}), 4));
    CHECK(group_norm(ones({2, 4, 1}), 4).to_vector<float>() == std::vector<float>(8, 0));  // as PyTorch
    FAILS(ValueError, "instance_norm: a channel needs more than one element, got shape (2, 3, 1)", instance_norm(ones({2, 3, 1})));
    FAILS(ShapeError, "rms_norm: the last dimensions of (2, 3, 4, 4) must be (3,)", rms_norm(x, {3}));
    FAILS(ValueError, "local_response_norm: size must be at least 1, got 0", local_response_norm(x, 0));
}
