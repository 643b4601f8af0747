// Softmax and its like on a CUDA device: every way that a line may be worked on (see cuda/lines.cuh), and lines of
// infinities and nan.
#include <limits>

#include "compare.h"
#include "tapir/ops/attention/attention_impl.h"

using namespace tapir;
using namespace tapir::test;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

struct Op {
    const char* name;
    OpCall f;
};
std::vector<Op> ops_along(int dim) {
    return {{"softmax", [=](const auto& x) { return softmax(x[0], dim); }},
            {"log_softmax", [=](const auto& x) { return log_softmax(x[0], dim); }},
            {"logsumexp", [=](const auto& x) { return logsumexp(x[0], {dim}); }}};
}

void compare_all(const Tensor& x, int dim, double limit, bool is_shifted = false) {
    for (const Op& op : ops_along(dim)) {
        INFO(op.name << " of " << name(x.dtype()) << " of shape (" << x.size(0) << ", " << x.size(1) << ", ...)"
                     << (is_shifted ? ", not aligned" : ""));
        compare_on({x}, {is_shifted ? shifted(x) : x.to(cuda)}, limit, op.f);
    }
}

}  // namespace

TEST_CASE("softmax, log_softmax and logsumexp of rows of any length", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(1);
    for (const DType dtype : {float32, float64, float16, bfloat16}) {
        for (const std::int64_t size : {1, 2, 5, 8, 31, 32, 40, 100, 128, 200, 257, 512, 1000, 1024, 1030, 2048}) {
            compare_all((randn({5, size}) * 3).to(dtype), 1, limit_of(dtype));
        }
    }
    compare_all(randn({1031, 3}), 1, 1e-5);
    compare({randn({70001, 3})}, 1e-5, [](const auto& x) { return softmax(x[0], 1); });
    compare_all(randn({301, 20}), 1, 1e-5);
    compare_all(randn({2, 16384}), 1, 1e-5);
    compare_all(randn({2, 8191}), 1, 1e-5);
    compare_all(randn({2, 8192}, float64), 1, 1e-12);
}

TEST_CASE("softmax and its like of rows that are not aligned", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(2);
    for (const std::int64_t size : {4, 64, 1000, 4000, 17000}) {
        compare_all(randn({3, size}), 1, 1e-5, true);
        compare_all(randn({3, size}).to(float16), 1, 4e-3, true);
    }
}

TEST_CASE("softmax and its like of rows that registers do not hold", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(3);
    compare_all(randn({1, 34001}), 1, 1e-5);  // in parts
    compare_all(randn({2, 20002}), 1, 1e-5);
    compare_all(randn({9, 16401}), 1, 1e-5);  // a block each
    compare_all(randn({1, 17003}, float64), 1, 1e-12);
    compare_all(randn({1, 17003}).to(bfloat16), 1, 3e-2);
}

TEST_CASE("causal softmax of rows of any length", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(5);
    for (const DType dtype : {float32, float64, float16}) {
        for (const std::int64_t size : {1, 3, 32, 100, 1000, 1030, 9000, 20002}) {
            for (const std::int64_t first : {std::int64_t{0}, size / 2, size}) {
                INFO(name(dtype) << " rows of " << size << " from " << first + 1);
                compare({(randn({2, 3, size}) * 3).to(dtype)}, limit_of(dtype), [=](const auto& x) { return causal_softmax(x[0], first); });
            }
        }
    }
    compare({randn({1, 34001})}, 1e-5, [](const auto& x) { return causal_softmax(x[0], 30000); });  // in parts
}

TEST_CASE("softmax and its like along dimensions that are not the last", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(4);
    for (const DType dtype : {float32, float64, float16}) {
        for (const std::int64_t size : {1, 3, 8, 20, 33, 300, 600}) {
            compare_all(randn({2, size, 3}).to(dtype), 1, limit_of(dtype));
            compare_all(randn({size, 37}).to(dtype), 0, limit_of(dtype));
        }
    }
    compare_all(randn({3, 4, 501}), 1, 1e-5);
    compare_all(randn({1000, 33}), 0, 1e-5);  // longer than registers hold
    compare_all(randn({1, 1100, 70}), 1, 1e-5);
    const Tensor x = randn({3, 4, 5, 6});
    compare({x}, 1e-5, [](const auto& in) { return logsumexp(in[0], {0, 2}); });
    compare({x}, 1e-5, [](const auto& in) { return logsumexp(in[0], {1, 2}, true); });
    compare({x}, 1e-5, [](const auto& in) { return logsumexp(transpose(in[0], 0, 3), {1}); });
    compare({x}, 1e-5, [](const auto& in) { return softmax(transpose(in[0], 0, 3), 1); });
    compare({x}, 1e-5, [](const auto& in) { return logsumexp(in[0], {}); });
}

TEST_CASE("softmax and its like of infinities and nan", "[cuda]") {
    NEEDS_CUDA;
    for (const std::int64_t size : {4, 100, 1200, 16500}) {
        Tensor x = zeros({7, size});
        const double first[7] = {-inf, inf, NAN, -inf, 0, 3e38, -3e38};
        for (int r = 0; r < 7; ++r) narrow(x, 0, r, 1).fill_(r == 3 ? -inf : 1.0);
        for (int r = 0; r < 7; ++r) narrow(narrow(x, 0, r, 1), 1, 1, 2).fill_(first[r]);
        INFO("size " << size);
        for (const Op& op : ops_along(1)) {
            INFO(op.name);
            check_close(op.f({x.to(cuda)}), op.f({x}), 1e-5);
            check_close(op.f({x.to(cuda).t().contiguous().t()}), op.f({x}), 1e-5);
        }
        if (size > 2000) continue;
        for (const Op& op : ops_along(0)) check_close(op.f({x.t().contiguous().to(cuda)}), op.f({x.t().contiguous()}), 1e-5);
    }
    CHECK((softmax(zeros({0, 3}, cuda), 1).shape() == Shape{0, 3}));
    CHECK((softmax(zeros({3, 0}, cuda), 1).shape() == Shape{3, 0}));
    check_close(logsumexp(zeros({3, 0}, cuda), {1}), logsumexp(zeros({3, 0}), {1}), 0);
}

TEST_CASE("ops on lines, random numbers and gates on another device and another stream", "[cuda]") {
    if (!cuda_is_available() || cuda_device_count() < 2) {
        WARN("no second CUDA device: not tested");
        return;
    }
    manual_seed(5);
    const Tensor x = randn({6, 8}), targets = randint(8, {6}), weight = rand({8});
    const auto all = [&](const auto& in) {
        const Device device = in[0].device();
        manual_seed(3);
        const Tensor noise = randn({6, 8}, device) + randint(0, 5, {6, 8}, {float32, device});
        const Tensor gates = lstm_gates(in[0], narrow(in[0], 1, 0, 2)).h;
        const Tensor normal = layer_norm(dropout(in[0] * noise, 0.25), {8}, weight.to(device));
        const Tensor losses = cross_entropy(normal, targets.to(device), {.reduction = Reduction::none});
        return mse_loss(softmax(losses, 0), logsumexp(in[0], {1})) * narrow(gates.reshape({12}), 0, 0, 6);
    };
    compare_on({x}, {x.to(cuda(1))}, 1e-5, all);
    const Stream stream(cuda(0));
    const StreamScope scope(stream);
    compare_on({x}, {x.to(cuda(0))}, 1e-5, all);
}
