// Ops that compute narrow elements in a wider type: that they make no wider copy of all of them, and what they give.
#include <catch2/catch.hpp>
#include <limits>

#include "tapir/core/allocator.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

// The most bytes that the call had beside what was there.
template <class Call>
std::int64_t peak_of(const Call& call) {
    call();
    reset_peak_memory();
    const std::int64_t before = memory_stats().live_bytes;
    call();
    return memory_stats().peak_bytes - before;
}

constexpr std::int64_t kSlack = 512 * 1024;  // for parts, and blocks that are rounded up

}  // namespace

TEST_CASE("the best of narrow elements is that of the same elements as int64 or float64") {
    manual_seed(11);
    for (const DType dtype : {uint8, int32, bool_, float16, bfloat16}) {
        for (const Shape& shape : {Shape(9000), Shape(3, 5000), Shape(5000, 3), Shape(2, 70, 300), Shape(40, 600, 2), Shape(7, 1)}) {
            INFO(name(dtype) << " " << shape.str());
            const Tensor x = randint(0, dtype == bool_ ? 2 : 200, shape).to(dtype), wide = x.to(is_floating(dtype) ? float64 : int64);
            for (int d = 0; d < x.dim(); ++d) {
                for (const bool turned : {false, true}) {
                    const Tensor a = turned ? x.transpose(0, -1) : x, b = turned ? wide.transpose(0, -1) : wide;
                    const ValuesIndices most = max(a, d), least = min(a, d), wide_most = max(b, d), wide_least = min(b, d);
                    CHECK(equal(most.values.to(wide.dtype()), wide_most.values));
                    CHECK(equal(least.values.to(wide.dtype()), wide_least.values));
                    CHECK(equal(most.indices, wide_most.indices));
                    CHECK(equal(least.indices, wide_least.indices));
                    CHECK(equal(argmax(a, d), wide_most.indices));
                    CHECK(equal(argmin(a, d), wide_least.indices));
                }
            }
            CHECK(argmax(x).item<std::int64_t>() == argmax(wide).item<std::int64_t>());
        }
    }
    Tensor x = ones({9000}, float16);
    x.index_put_({7000}, std::numeric_limits<double>::quiet_NaN());
    x.index_put_({8000}, std::numeric_limits<double>::quiet_NaN());
    CHECK(argmax(x).item<std::int64_t>() == 7000);
    CHECK(argmin(x).item<std::int64_t>() == 7000);
}

TEST_CASE("the best of narrow elements needs no wider copy of them") {
    const std::int64_t n = 4 << 20;
    for (const DType dtype : {uint8, float16}) {
        INFO(name(dtype));
        const Tensor x = zeros({n}, dtype), rows = zeros({2048, 2048}, dtype);
        CHECK(peak_of([&] { argmax(x); }) < kSlack);
        CHECK(peak_of([&] { argmin(rows, 0); }) < kSlack);
        CHECK(peak_of([&] { max(rows, 1); }) < kSlack);
        CHECK(peak_of([&] { amax(rows, {0}); }) < n / 2);  // what the parts of rows come to, until all are there
        CHECK(peak_of([&] { amax(x); }) < kSlack);
    }
}

TEST_CASE("sums of bytes at indices wrap, need no wider copy, and those of bools are whether any holds") {
    const std::int64_t n = 4 << 20;
    Tensor x = full({n}, 250, uint8);
    const Tensor index = tensor({7, 9, 7}), more = tensor({3, 4, 5}).to(uint8);
    const std::vector<Index> places = {index};
    CHECK(peak_of([&] { x.index_add_(0, index, more); }) < kSlack);
    CHECK(x[7].item<int>() == (250 + 16) % 256);
    CHECK(x[9].item<int>() == (250 + 8) % 256);
    CHECK(x[8].item<int>() == 250);
    CHECK(peak_of([&] { x.scatter_add_(0, index, more); }) < kSlack);
    CHECK(x[7].item<int>() == (250 + 32) % 256);
    CHECK(peak_of([&] { x.index_put_(places, more, /*accumulate=*/true); }) < kSlack);
    CHECK(x[7].item<int>() == (250 + 48) % 256);
    CHECK(peak_of([&] { x.index_fill_(0, index, 3); }) < kSlack);
    CHECK(x[7].item<int>() == 3);
    CHECK(x[8].item<int>() == 250);
    Tensor table = zeros({2, 3, 2});
    table.index_fill_(1, tensor({-1, 0, 0}), 4);
    CHECK(equal(table, tensor({4.0f, 4.0f, 0.0f, 0.0f, 4.0f, 4.0f}).reshape({1, 3, 2}).expand({2, 3, 2})));
    const Tensor truth = zeros({4}, bool_), held = tensor({1, 1, 0}).to(bool_), at = tensor({1, 1, 2});
    const std::vector<bool> wanted = {false, true, false, false};
    CHECK(index_add(truth, 0, at, held).to_vector<bool>() == wanted);
    CHECK(scatter_add(truth, 0, at, held).to_vector<bool>() == wanted);
}
