// ShapesOnly: results have their shapes, large loops are left out, and new memory is zero.
#include "tapir/core/shapes_only_impl.h"

#include <catch2/catch.hpp>

#include "tapir/tapir.h"

using namespace tapir;
using detail::ShapesOnly;

TEST_CASE("under ShapesOnly large ops give zeros of the right shape, which take no memory") {
    const Tensor x = ones({64, 64}), w = ones({64, 64});
    reset_peak_memory();
    const std::int64_t before = memory_stats().peak_bytes;
    Tensor y, kept;
    {
        const ShapesOnly shapes;
        y = matmul(x.expand({1000, 64, 64}), w);
        CHECK(y.shape() == Shape{1000, 64, 64});
        CHECK(sum(y, {1, 2}).shape() == Shape{1000});
        CHECK(softmax(conv2d(ones({100, 1, 64, 64}), ones({8, 1, 3, 3})), 1).shape() == Shape{100, 8, 62, 62});
        CHECK(zeros({1 << 20, 1 << 14}).exp().numel() == std::int64_t{1} << 34);
        kept = zeros({1 << 10, 1 << 10});
    }
    CHECK(memory_stats().peak_bytes - before < 1 << 20);
    CHECK(sum(y).item() == 0);
    CHECK(sum(kept + 1).item() == 1 << 20);  // it is memory like other memory
}

TEST_CASE("under ShapesOnly small ops compute, and small results of large ones are zeros") {
    for (int i = 0; i < 100; ++i) ones({100}) * 7;  // leaves blocks that are not zero
    const ShapesOnly shapes;
    CHECK(sum(arange(10)).item<std::int64_t>() == 45);
    CHECK(argmax(ones({10, 1 << 16}), 1).to_vector<std::int64_t>() == std::vector<std::int64_t>(10, 0));
    CHECK(sum(ones({1 << 20})).item() == 0);
    {
        const ShapesOnly computes(false);
        CHECK(sum(ones({1 << 20})).item() == 1 << 20);
        for (int i = 0; i < 100; ++i) ones({100}) * 7;
    }
    CHECK(argmax(ones({10, 1 << 16}), 1).to_vector<std::int64_t>() == std::vector<std::int64_t>(10, 0));
}

TEST_CASE("after ShapesOnly the thread keeps its small blocks again") {
    { const ShapesOnly shapes; }
    static_cast<void>(ones({10}));
    const std::int64_t calls = memory_stats().system_calls;
    for (int i = 0; i < 1000; ++i) static_cast<void>(ones({10}) + ones({10}));
    CHECK(memory_stats().system_calls == calls);
    CHECK(sum(ones({1 << 20})).item() == 1 << 20);
}
