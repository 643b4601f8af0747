// The most memory that each op of the table holds at once, beside its operands and its results, by dtype: an op that is computed in
// a wider dtype converts in parts, and makes no wider copy of a whole operand.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <set>
#include <string>

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

// Those that move or look at elements. Others compute 16-bit floats in float32, whole operands at once (softmax, the norms, pooling,
// interpolation, gates), or are composed of ops whose results live beside each other (losses, cdist, cov, histc, isin): up to 4 times in
// 16 bits. Products and losses of bytes are those of int64, 8 times.
const std::set<std::string> kLean = {
    "all", "amax", "amin", "aminmax", "any", "arange", "argmax", "argmin", "argsort", "atleast_1d",
    "bincount", "block_diag", "broadcast_tensors", "cat", "channel_shuffle", "clone", "column_stack", "copy",
    "count_nonzero", "cumsum", "diag", "diagonal", "diagonal_scatter", "dstack", "embedding", "empty", "empty_like",
    "eye", "fill", "flip", "full", "full_like", "gather", "glu", "hstack", "index_copy", "index_fill", "index_put",
    "index_select", "masked_fill", "masked_scatter", "mean", "movedim"};

}  // namespace

TEST_CASE("ops that move or look at elements hold no more than operands and results once again") {
    const int threads = num_threads();
    set_num_threads(1);
    std::set<std::string> met;
    for (const test::Call& call : test::all_calls()) {
        if (call.extreme || !kLean.contains(call.op->name)) continue;
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
                CHECK(taken.times <= 1);
                if (taken.is_there) met.insert(call.op->name);
            }
        }
    }
    set_num_threads(threads);
    for (const std::string& op : kLean) {
        INFO(op);
        CHECK((met.contains(op) || op == "arange" || op == "empty" || op == "eye" || op == "full"));  // these have no operands
    }
}
