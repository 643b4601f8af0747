// topk and bincount of lines that are long enough for their quick ways.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tapir/tapir.h"

using namespace tapir;

TEST_CASE("topk of long lines is the beginning of the sorted line", "[sort]") {
    manual_seed(7);
    const int64_t n = 700;
    const Tensor lines[] = {randn({3, n}),
                            arange(n).to(float32).expand({2, n}),  // each element is among the largest when it comes
                            arange(n, 0, -1).to(float32).expand({2, n}),
                            randint(0, 4, {3, n}).to(float32),  // equal ones: the first come first
                            where(randn({3, n}) > 1, NAN, randn({3, n})),
                            randint(-50, 50, {3, n}, int64)};
    for (const Tensor& x : lines) {
        for (const int64_t k : {1, 2, 10, 32, 33, 80}) {
            for (const bool largest : {true, false}) {
                INFO(k << (largest ? " largest" : " smallest"));
                const auto [values, indices] = topk(x, k, 1, largest);
                const auto [sorted, places] = sort(x, 1, largest);
                CHECK(indices.to_vector<int64_t>() == places.narrow(1, 0, k).to_vector<int64_t>());
                CHECK(topk(x.t(), k, 0, largest).indices.t().to_vector<int64_t>() == indices.to_vector<int64_t>());
            }
        }
    }
}

TEST_CASE("bincount of long lists", "[count]") {
    manual_seed(8);
    for (const int64_t length : {1, 7, 1000, 20000}) {
        const Tensor x = randint(0, length, {9001});
        std::vector<int64_t> expected(static_cast<std::size_t>(length));
        for (const int64_t i : x.to_vector<int64_t>()) ++expected[static_cast<std::size_t>(i)];
        CHECK(bincount(x, {}, length).to_vector<int64_t>() == expected);
        CHECK(bincount(x.to(uint8).to(int64), {}, 256).sum().item<int64_t>() == 9001);
    }
}
