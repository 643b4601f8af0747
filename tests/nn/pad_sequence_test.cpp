// pad_sequence against its definition, by loops, and its gradient against central differences.
#include <vector>

#include "../fails.h"
#include "check.h"
#include "tapir/autograd/gradcheck.h"

using namespace tapir;

TEST_CASE("sequences of different lengths become one tensor") {
    const std::vector<std::int64_t> lengths = {3, 0, 5, 1};
    std::vector<Tensor> sequences;
    for (std::size_t i = 0; i < lengths.size(); ++i) sequences.push_back(check::values({lengths[i], 2}, static_cast<int>(i), float64));
    for (const bool batch_first : {false, true}) {
        for (const char* side : {"right", "left"}) {
            const Tensor padded = nn::pad_sequence(sequences, batch_first, -7, side);
            REQUIRE(padded.shape() == (batch_first ? Shape{4, 5, 2} : Shape{5, 4, 2}));
            CHECK(padded.dtype() == float64);
            for (std::int64_t i = 0; i < 4; ++i) {
                const std::int64_t length = lengths[static_cast<std::size_t>(i)], skipped = side[0] == 'l' ? 5 - length : 0;
                for (std::int64_t t = 0; t < 5; ++t) {
                    for (std::int64_t j = 0; j < 2; ++j) {
                        const bool is_there = t >= skipped && t < skipped + length;
                        const double expected = is_there ? sequences[static_cast<std::size_t>(i)].at<double>({t - skipped, j}) : -7;
                        CHECK((batch_first ? padded.at<double>({i, t, j}) : padded.at<double>({t, i, j})) == expected);
                    }
                }
            }
        }
    }
    // PyTorch's example: (25, 300), (22, 300), (15, 300) -> (25, 3, 300); and tokens.
    CHECK(nn::pad_sequence({ones({25, 300}), ones({22, 300}), ones({15, 300})}).shape() == Shape{25, 3, 300});
    const Tensor tokens = nn::pad_sequence({tensor({1, 2, 3}), tensor({4})}, true);
    CHECK(tokens.dtype() == int64);
    CHECK(tokens.to_vector<int>() == std::vector<int>{1, 2, 3, 4, 0, 0});
    CHECK(nn::pad_sequence({ones({2}), tensor({1.5, 2.5}, float64)}).dtype() == float32);  // the first one's
    CHECK(nn::pad_sequence({ones({3, 2})}).shape() == Shape{3, 1, 2});
}

TEST_CASE("pad_sequence hands gradients to what was padded") {
    const std::vector<Tensor> inputs = {check::values({3, 2}, 1, float64), check::values({1, 2}, 2, float64)};
    for (const char* side : {"right", "left"}) {
        CHECK(gradcheck([&](const std::vector<Tensor>& x) { return nn::pad_sequence(x, true, 3, side).square(); }, inputs));
    }
}

TEST_CASE("what pad_sequence refuses") {
    const Tensor a = ones({3, 2}), b = ones({3, 4}), scalar = ones({});
    FAILS_IN(ShapeError, "pad_sequence: sequence 1 has shape (3, 4), the first (3, 2)", "", nn::pad_sequence({a, b}));
    FAILS(ShapeError, "sequence 0 has no dimensions", nn::pad_sequence({scalar}));
    FAILS(ValueError, "no sequences", nn::pad_sequence(std::vector<Tensor>{}));
    FAILS(ValueError, "sequence 1 is undefined", nn::pad_sequence({a, Tensor()}));
    FAILS(ValueError, "\"left\" or \"right\", got \"middle\"", nn::pad_sequence({a}, false, 0, "middle"));
}
