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

TEST_CASE("sums of 16-bit floats at indices are those of float32, rounded once, and need no wider copy of all") {
    manual_seed(12);
    for (const DType dtype : {float16, bfloat16}) {
        INFO(name(dtype));
        const std::int64_t n = 4 << 20;
        Tensor x = ones({n}, dtype);
        const Tensor index = tensor({7, 3'000'000, 7}), more = tensor({3.0, 4.0, 5.0}).to(dtype);
        const std::vector<Index> places = {index};
        CHECK(peak_of([&] { x.index_add_(0, index, more); }) < 2 * kSlack);
        CHECK(peak_of([&] { x.scatter_add_(0, index, more); }) < 2 * kSlack);
        CHECK(peak_of([&] { x.index_put_(places, more, /*accumulate=*/true); }) < 2 * kSlack);
        CHECK(x[7].item() == 1 + 6 * 8);  // each is called twice
        CHECK(x[3'000'000].item() == 1 + 6 * 4);
        CHECK(sum(x.to(float64)).item() == static_cast<double>(n) + 6 * 12);

        const Tensor table = randn({301, 703}).to(dtype), wide = table.to(float32);
        for (const int dim : {0, 1}) {
            INFO("dimension " << dim);
            const std::int64_t size = table.size(dim);
            const Tensor at = randint(-size, size, {40});
            Shape shape = table.shape();
            shape[dim] = 40;
            const Tensor source = randn(shape).to(dtype);
            const Tensor elements = randint(0, size, shape);
            const std::vector<Index> picked = dim == 0 ? std::vector<Index>{at} : std::vector<Index>{Slice(), at};
            for (const bool turned : {false, true}) {
                const Tensor a = turned ? table.t().contiguous().t() : table;
                CHECK(equal(index_add(a, dim, at, source), index_add(wide, dim, at, source.to(float32)).to(dtype)));
                CHECK(equal(scatter_add(a, dim, elements, source), scatter_add(wide, dim, elements, source.to(float32)).to(dtype)));
                CHECK(equal(a.index_put(picked, source, true), wide.index_put(picked, source.to(float32), true).to(dtype)));
                CHECK(equal(a.index_put(picked, tensor(2.0).to(dtype), true), wide.index_put(picked, tensor(2.0f), true).to(dtype)));
            }
        }
        const Tensor rows = randint(0, 301, {50}), columns = randint(0, 703, {50}), values = randn({50}).to(dtype);
        CHECK(equal(table.index_put({rows, columns}, values, true), wide.index_put({rows, columns}, values.to(float32), true).to(dtype)));
    }
}

TEST_CASE("running sums and extremes of narrow elements are made in one wider copy") {
    const std::int64_t n = 4 << 20;
    const Tensor bytes = ones({n}, uint8), halves = zeros({n}, float16);
    CHECK(peak_of([&] { cumsum(bytes, 0); }) < n * 8 + kSlack);  // the result
    CHECK(peak_of([&] { cumprod(bytes, 0); }) < n * 8 + kSlack);
    CHECK(peak_of([&] { cumsum(halves, 0); }) < n * 6 + kSlack);  // the result, and that copy
    CHECK(peak_of([&] { cummax(bytes, 0); }) < n * 17 + kSlack);  // values, indices, and that copy
    CHECK(peak_of([&] { cummin(halves, 0); }) < n * 14 + kSlack);
    const Tensor x = randint(0, 9, {70, 90}), turned = x.to(uint8).t();
    for (const int dim : {0, 1}) {
        CHECK(equal(cumsum(x.to(uint8), dim), cumsum(x, dim)));
        CHECK(equal(cumsum(turned, dim), cumsum(x.t(), dim)));
        CHECK(equal(cumsum(turned.to(float16), dim).to(int64), cumsum(x.t(), dim)));
        CHECK(equal(cummax(turned, dim).values.to(int64), cummax(x.t(), dim).values));
        CHECK(equal(cummax(turned, dim).indices, cummax(x.t(), dim).indices));
        CHECK(equal(cummin(turned.to(float16), dim).indices, cummin(x.t(), dim).indices));
    }
    CHECK(equal(turned, x.to(uint8).t()));
}
