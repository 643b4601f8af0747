// Batch normalisation on a CUDA device: the layouts and sizes that have kernels of their own, what several blocks share, running
// statistics and gradients.
#include "compare.h"

using namespace tapir;
using namespace tapir::test;

namespace {

const OpCall with_both = [](const auto& x) { return batch_norm(x[0], {}, {}, x[1], x[2], {.training = true}); };
const OpCall with_weight = [](const auto& x) { return batch_norm(x[0], {}, {}, x[1], {}, {.training = true}); };
const OpCall with_bias = [](const auto& x) { return batch_norm(x[0], {}, {}, {}, x[1], {.training = true, .eps = 1e-3}); };
const OpCall alone = [](const auto& x) { return batch_norm(x[0], {}, {}, {}, {}, {.training = true}); };

std::vector<Tensor> inputs_of(const Shape& shape, DType dtype, double mean = 3) {
    return {(randn(shape) * 2 + mean).to(dtype), (rand({shape[1]}) + 0.5).to(dtype), randn({shape[1]}).to(dtype)};
}

double limit_for(DType dtype) { return dtype == bfloat16 ? 6e-2 : dtype == float16 ? 1e-2 : 4 * limit_of(dtype); }

// (n, channels, ...) with its channels last in memory.
Tensor channels_last(const Tensor& x) {
    return x.dim() == 4 ? x.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2}) : x.permute({0, 2, 1}).contiguous().permute({0, 2, 1});
}

// In training and with statistics that are there, on both devices: the results and what the running statistics are then.
void compare_running(const Tensor& x, DType running, double limit) {
    const NoGradScope pause;
    const Tensor mean = randn({x.size(1)}).to(running), var = (rand({x.size(1)}) + 0.5).to(running);
    for (const bool training : {true, false}) {
        Tensor results[2], means[2], vars[2];
        for (int k = 0; k < 2; ++k) {
            const Device device = k == 0 ? cpu : Device(cuda);
            means[k] = mean.clone().to(device);
            vars[k] = var.clone().to(device);
            results[k] = batch_norm(x.to(device), means[k], vars[k], {}, {}, {.training = training, .momentum = 0.3});
        }
        INFO((training ? "training" : "evaluation"));
        check_close(results[1], results[0], limit);
        check_close(means[1], means[0], limit);
        check_close(vars[1], vars[0], limit);
        CHECK((means[1].to_vector<double>() == mean.to_vector<double>()) == !training);
    }
}

}  // namespace

TEST_CASE("batch_norm of any shape and layout", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(1);
    const Shape shapes[] = {{7, 3}, {2, 1}, {33, 8}, {5, 40}, {3, 300}, {2, 5, 3}, {1, 4, 9}, {4, 3, 8}, {3, 2, 7, 7}, {2, 8, 4, 6}, {2, 3, 2, 3, 2}};
    for (const DType dtype : {float32, float64, float16, bfloat16}) {
        for (const Shape& shape : shapes) {
            std::vector<Tensor> inputs = inputs_of(shape, dtype);
            INFO(name(dtype) << ", " << inputs[0].dim() << " dimensions, " << inputs[0].numel() << " elements");
            compare(inputs, limit_for(dtype), with_both);
            compare({inputs[0], inputs[1]}, limit_for(dtype), with_weight);
            compare({inputs[0], inputs[2]}, limit_for(dtype), with_bias);
            compare({inputs[0]}, limit_for(dtype), alone);
            if (shape.rank() != 3 && shape.rank() != 4) continue;
            inputs[0] = channels_last(inputs[0]);
            compare(inputs, limit_for(dtype), with_both);
        }
    }
}

TEST_CASE("batch_norm with many elements for each channel, and with many channels", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(2);
    const Shape shapes[] = {{5000, 3}, {3001, 16}, {2, 2, 16384}, {1, 1, 30001}, {40, 3, 21, 21}, {3, 700, 5}, {4, 1024}};
    for (const Shape& shape : shapes) {
        INFO(shape[0] << " x " << shape[1]);
        compare(inputs_of(shape, float32, 0), 1e-3, with_both);  // a weight's gradient adds up the mean's rounding for each element
        compare(inputs_of(shape, float64), 1e-11, with_both);
    }
    std::vector<Tensor> inputs = inputs_of({16, 24, 12, 12}, float32, 0);
    compare(inputs, 1e-3, with_both);
    inputs[0] = channels_last(inputs[0]);
    compare(inputs, 1e-3, with_both);
    compare(inputs_of({600, 8, 4, 4}, bfloat16, 0), 1e-1, with_both);
}

TEST_CASE("batch_norm with statistics that are there, and its gradients", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(3);
    const auto evaluated = [](const auto& x) {
        const NoGradScope pause;
        const Tensor half = full_like(x[1], 0.5);
        return std::pair(half, half * 4);
    };
    const OpCall with_parameters = [&](const auto& x) {
        const auto [mean, var] = evaluated(x);
        return batch_norm(x[0], mean, var, x[1], x[2], {.eps = 0.01});
    };
    for (const DType dtype : {float32, float64, float16, bfloat16}) {
        for (const Shape& shape : {Shape{6, 5}, Shape{4, 16}, Shape{3, 4, 5}, Shape{2, 3, 4, 4}}) {
            std::vector<Tensor> inputs = inputs_of(shape, dtype);
            compare(inputs, limit_for(dtype), with_parameters);
            if (shape.rank() != 4) continue;
            inputs[0] = channels_last(inputs[0]);
            compare(inputs, limit_for(dtype), with_parameters);
        }
    }
    const std::vector<Tensor> inputs = inputs_of({3, 4, 5}, float32);
    compare({inputs[0]}, 2e-5, [](const auto& x) {  // no weight, and none but the input's gradient
        return batch_norm(x[0], full({4}, 0.5, x[0].device()), full({4}, 2.0, x[0].device()));
    });
}

TEST_CASE("batch_norm moves the running statistics on the device", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(4);
    const Shape shapes[] = {{9, 6}, {2, 5, 3}, {4, 3, 20, 20}, {3000, 4}};
    for (const Shape& shape : shapes) {
        const Tensor x = randn(shape) * 2 + 3;
        compare_running(x, float32, 1e-4);
        compare_running(x.to(float64), float64, 1e-12);
        compare_running(x.to(float16), float32, 1e-2);
        compare_running(x.to(bfloat16), bfloat16, 6e-2);
    }
    // Views with a stride, and one alone.
    const Tensor x = randn({8, 3, 5}), both = zeros({3, 2}, cuda), other = zeros({3, 2});
    batch_norm(x.to(cuda), select(both, 1, 0), {}, {}, {}, {.training = true});
    batch_norm(x.to(cuda), {}, select(both, 1, 1), {}, {}, {.training = true});
    batch_norm(x, select(other, 1, 0), {}, {}, {}, {.training = true});
    batch_norm(x, {}, select(other, 1, 1), {}, {}, {.training = true});
    check_close(both, other, 1e-5);
    // What they were is not to be used in backward any more.
    Tensor mean = zeros({3}, cuda), var = ones({3}, cuda);
    const Tensor leaf = rand({3}, {float32, cuda, /*requires_grad=*/true});
    Tape tape;
    const Tensor y = leaf * mean;
    batch_norm(x.to(cuda), mean, var, {}, {}, {.training = true});
    CHECK_THROWS_AS(tape.backward(sum(y)), Error);
}

TEST_CASE("batch_norm where not all gradients are wanted, and of views", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(5);
    for (const Shape& shape : {Shape{9, 8}, Shape{3, 4, 8}, Shape{40, 3, 7, 9}}) {
        const std::vector<Tensor> inputs = inputs_of(shape, float32);
        for (int k = 0; k < 3; ++k) {
            INFO("only input " << k);
            compare({inputs[static_cast<std::size_t>(k)]}, 1e-4, [&](const auto& in) {
                std::vector<Tensor> all;
                for (const Tensor& t : inputs) all.push_back(t.to(in[0].device()));
                all[static_cast<std::size_t>(k)] = in[0];
                return with_both(all);
            });
        }
        compare_on(inputs, {shifted(inputs[0]), inputs[1].to(cuda), inputs[2].to(cuda)}, 1e-4, with_both);
        compare_on(inputs, {inputs[0].to(cuda), shifted(inputs[1]), shifted(inputs[2])}, 1e-4, with_both);
        compare({transpose(inputs[0], 0, 1).contiguous(), inputs[1], inputs[2]}, 1e-4,
                [](const auto& x) { return with_both({transpose(x[0], 0, 1), x[1], x[2]}); });
    }
    const std::vector<Tensor> low = inputs_of({6, 4, 5}, float16);  // 16 bits with float32 parameters
    compare({low[0], low[1].to(float32), low[2].to(float32)}, 1e-2, with_both);
    compare({randn({6, 4}), rand({2, 4}), randn({4, 3})}, 1e-4,  // parameters with a stride
            [](const auto& x) { return with_both({x[0], select(x[1], 0, 1), select(x[2], 1, 2)}); });
    compare({randn({0, 5}), rand({5}), rand({5})}, 0, with_both);
}

TEST_CASE("batch_norm keeps its digits where the mean is large, and is differentiated twice", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(6);
    for (const Shape& shape : {Shape{200, 3}, Shape{2, 3, 1000}, Shape{9000, 8}, Shape{64, 3, 10, 10}}) {
        const Tensor x = (randn(shape, float64) + 1e4).to(float32);
        const Tensor exact = alone({x.to(float64)});
        check_close(alone({x.to(cuda)}).to(float64), exact, 2e-3);
        Tensor outlier = x.clone();  // first, where a single shift for all would be taken from
        outlier.view({-1})[0].fill_(-1e5);
        check_close(alone({outlier.to(cuda)}).to(float64), alone({outlier.to(float64)}), 2e-3);
    }
    for (const DType dtype : {float32, float64}) {
        for (const Shape& shape : {Shape{6, 3}, Shape{3, 2, 4}}) {
            const std::vector<Tensor> inputs = inputs_of(shape, dtype);
            compare_twice(inputs, 10 * limit_for(dtype), with_both);
            compare_twice({inputs[0]}, 10 * limit_for(dtype), alone);
        }
    }
}
