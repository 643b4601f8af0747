// The most memory that each op of the table holds at once beside its operands and its results, of bytes and of float16: as much as these
// again, and more only where kMore says so and why. What an op converts or computes in a wider dtype counts here.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "samples.h"
#include "tapir/core/allocator.h"
#include "tapir/core/parallel.h"

using namespace tapir;

namespace {

constexpr std::int64_t kElements = 1 << 20;  // of the largest operand, about
constexpr std::int64_t kSlack = 512 * 1024;  // for parts, and blocks that are rounded up

std::int64_t bytes_of(const std::vector<Tensor>& tensors) {
    std::int64_t bytes = 0;
    for (const Tensor& t : tensors) bytes += t.defined() ? static_cast<std::int64_t>(t.nbytes()) : 0;
    return bytes;
}

std::int64_t largest_of(const std::vector<Tensor>& tensors) {
    std::int64_t most = 0;
    for (const Tensor& t : tensors) most = std::max(most, t.numel());
    return most;
}

// The operands with the dimensions of one size so much longer that the largest of them has kElements: its elements over and over.
std::vector<Tensor> lengthened(const std::vector<Tensor>& inputs, std::int64_t size) {
    std::int64_t most = 0;  // dimensions of this size in one operand
    for (const Tensor& x : inputs) {
        std::int64_t count = 0;
        for (const std::int64_t n : x.shape()) count += n == size;
        most = std::max(most, count);
    }
    const double times = static_cast<double>(kElements) / static_cast<double>(largest_of(inputs));
    const auto factor = static_cast<std::int64_t>(std::pow(times, 1.0 / static_cast<double>(most)));
    std::vector<Tensor> result;
    for (const Tensor& x : inputs) {
        std::vector<std::int64_t> repeats;
        for (const std::int64_t n : x.shape()) repeats.push_back(n == size ? factor : 1);
        result.push_back(x.dim() == 0 ? x : repeat(x, Shape(repeats)));
    }
    return result;
}

struct Taken {
    bool is_there = false;
    double times = 0;  // of the bytes of operands and results
    std::string shapes;
};

// What the call holds at most beside its operands and results, as so many times their bytes.
Taken taken_by(const test::Call& call, const std::vector<Tensor>& inputs) {
    try {
        call.run(inputs);
        reset_peak_memory();
        const std::int64_t before = memory_stats().live_bytes;
        const std::vector<Tensor> results = call.run(inputs);
        const std::int64_t peak = memory_stats().peak_bytes, after = std::max(memory_stats().live_bytes, before);
        const std::int64_t given = bytes_of(inputs) + (after - before);
        std::string shapes;
        for (const Tensor& x : inputs) shapes += x.shape().str() + " ";
        return {true, static_cast<double>(std::max<std::int64_t>(peak - after - kSlack, 0)) / static_cast<double>(given), shapes};
    } catch (const Error&) {
        return {};
    }
}

// What else an op may hold, as so many times the bytes of its operands and results, and why.
struct More {
    std::string_view op;
    double times;
    const char* reason;
};
constexpr const char kStep[] = "a step keeps what its float32 parts give until it writes";
constexpr const char kWhole[] = "16-bit floats are computed in float32, whole operands and results at once";
constexpr const char kIntegers[] = "integers are computed in float32, and 16-bit floats so as well";
constexpr const char kComposed[] = "composed of ops whose results live beside each other, of wider numbers";
constexpr const char kProducts[] = "products of integers are added up in int64";
constexpr const char kPlaces[] = "places are int64, also on the way";
constexpr const char kDrawn[] = "numbers are drawn in float32";
constexpr More kMore[] = {
    {"adadelta", 1.5, kStep},
    {"adagrad_da", 1.5, kStep},
    {"adam", 2, kStep},
    {"adamax", 1.5, kStep},
    {"adamw", 1.5, kStep},
    {"nadam", 1.5, kStep},
    {"radam", 1.5, kStep},
    {"rmsprop", 2, kStep},
    {"rprop", 1.5, kStep},
    {"avg_pool", 4, kWhole},
    {"batch_norm", 4, kWhole},
    {"batch_norm_backward", 2, kWhole},
    {"causal_softmax", 2, kWhole},
    {"cross_entropy", 4, kWhole},
    {"cross_entropy_backward", 2, kWhole},
    {"cumprod", 1.5, kWhole},
    {"fold", 2, kWhole},
    {"grid_sample", 2, kWhole},
    {"grid_sample_backward", 2, kWhole},
    {"group_norm", 2.5, kWhole},
    {"group_norm_backward", 2.5, kWhole},
    {"gru_gates", 2, kWhole},
    {"gru_gates_backward", 2.5, kWhole},
    {"interpolate", 3.5, kWhole},
    {"layer_norm", 2, kWhole},
    {"layer_norm_backward", 2.5, kWhole},
    {"log_softmax", 2, kWhole},
    {"log_softmax_backward", 2, kWhole},
    {"logcumsumexp", 1.5, kWhole},
    {"lstm_gates", 3, kWhole},
    {"lstm_gates_backward", 3, kWhole},
    {"max_pool", 4, kWhole},
    {"max_pool_backward", 2, kWhole},
    {"nll_loss", 2, kWhole},
    {"rms_norm", 2.5, kWhole},
    {"softmax", 2, kWhole},
    {"softmax_backward", 2, kWhole},
    {"softmin", 2.5, kWhole},
    {"weighted_exps", 5, kWhole},
    {"avg_pool_gradient", 7.5, kIntegers},
    {"corrcoef", 7.5, kIntegers},
    {"cov", 7.5, kIntegers},
    {"logsumexp", 7.5, kIntegers},
    {"binary_cross_entropy", 16, kComposed},
    {"binary_cross_entropy_with_logits", 14, kComposed},
    {"cross", 6, kComposed},
    {"histc", 12.5, kComposed},
    {"histogram", 14.5, kComposed},
    {"huber_loss", 18.5, kComposed},
    {"isclose", 6, kComposed},
    {"ldexp", 1.5, kComposed},
    {"mse_loss", 20.5, kComposed},
    {"nan_to_num", 3, kComposed},
    {"nanmean", 11.5, kComposed},
    {"nansum", 5, kComposed},
    {"normal", 3, kComposed},
    {"scaled_dot_product_attention", 3, kComposed},
    {"smooth_l1_loss", 7.5, kComposed},
    {"trapezoid", 5.5, kComposed},
    {"uniform", 4, kComposed},
    {"baddbmm", 8, kProducts},
    {"linear", 8, kProducts},
    {"matmul", 8, kProducts},
    {"tensordot", 9, kProducts},
    {"cummax", 8, kPlaces},
    {"cummin", 8, kPlaces},
    {"embedding_bag", 6.5, kPlaces},
    {"index_add", 1.5, kPlaces},
    {"index_place", 2, kPlaces},
    {"index_put_add", 2.5, kPlaces},
    {"isin", 2, kPlaces},
    {"max", 4, kPlaces},
    {"min", 4, kPlaces},
    {"multinomial", 3.5, kPlaces},
    {"randint_like", 4, kPlaces},
    {"repeat_interleave", 2, kPlaces},
    {"scatter_reduce", 5.5, kPlaces},
    {"searchsorted", 3.5, kPlaces},
    {"sort", 4, kPlaces},
    {"topk", 4, kPlaces},
    {"unique", 10.5, kPlaces},
    {"unique_consecutive", 2, kPlaces},
    {"bernoulli", 1.5, kDrawn},
    {"bernoulli_fill", 1.5, kDrawn},
};

double most_of(std::string_view op) {
    for (const More& more : kMore) {
        if (more.op == op) return more.times;
    }
    return 1;
}

// Not swept: they take seconds of elements in such numbers, as index of tensors does that are all long.
constexpr std::string_view kSlow[] = {"conv", "kron", "linalg_", "bilinear", "cdist", "pdist", "ctc_loss"};

bool is_slow(std::string_view op) {
    return op == "index" || std::any_of(std::begin(kSlow), std::end(kSlow), [&](std::string_view slow) { return op.starts_with(slow); });
}

}  // namespace

TEST_CASE("ops hold no more than operands and results once again, beside these") {
    const int threads = num_threads();
    set_num_threads(1);
    std::map<std::string_view, double> found;
    for (const test::Call& call : test::all_calls()) {
        if (call.extreme || is_slow(call.op->name)) continue;
        const std::vector<Tensor> inputs = test::make_inputs(call);
        std::set<std::int64_t> sizes;
        for (const Tensor& x : inputs) {
            for (const std::int64_t size : x.shape()) sizes.insert(size);
        }
        for (const DType dtype : {uint8, float16}) {
            for (const std::int64_t size : sizes) {
                std::vector<Tensor> large;
                for (const Tensor& x : lengthened(inputs, size)) large.push_back(is_floating(x.dtype()) ? x.to(dtype) : x);
                if (largest_of(large) < kElements / 4) continue;
                const Taken taken = taken_by(call, large);
                INFO(call.name << " of " << name(dtype) << " " << taken.shapes);
                CHECK(taken.times <= most_of(call.op->name));
                if (!taken.is_there) continue;
                found[call.op->name] = std::max(found[call.op->name], taken.times);
                break;  // one size of the call is enough
            }
        }
    }
    set_num_threads(threads);
    CHECK(found.size() > 200);
    for (const More& more : kMore) {
        INFO(more.op << ": " << more.reason);
        CHECK(found[more.op] > more.times / 2);
    }
}
