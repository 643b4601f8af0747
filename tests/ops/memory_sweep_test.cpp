// The most memory that each op of the table holds at once, beside its operands and its results, by dtype: an op that is computed in
// a wider dtype converts in parts, and makes no wider copy of a whole operand.
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

constexpr std::int64_t kElements = 1 << 20;       // of the largest operand, about
constexpr std::int64_t kSlack = 512 * 1024;       // for parts, and blocks that are rounded up

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
    double times = 0;   // of the bytes of operands and results
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
constexpr More kMore[] = {
    {"", 1, ""},
};

double most_of(std::string_view op) {
    for (const More& more : kMore) {
        if (more.op == op) return more.times;
    }
    return 1;
}

// Not swept: they take seconds of elements in such numbers.
constexpr std::string_view kSlow[] = {"conv", "kron", "linalg_", "bilinear", "cdist", "pdist", "ctc_loss"};

bool is_slow(std::string_view op) {
    return std::any_of(std::begin(kSlow), std::end(kSlow), [&](std::string_view slow) { return op.starts_with(slow); });
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
                if (taken.is_there) found[call.op->name] = std::max(found[call.op->name], taken.times);
            }
        }
    }
    set_num_threads(threads);
    CHECK(found.size() > 200);
    for (const More& more : kMore) {
        INFO(more.op << ": " << more.reason);
        CHECK((more.op.empty() || found[more.op] > more.times / 2));
    }
}
