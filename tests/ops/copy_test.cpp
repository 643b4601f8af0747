// Conversion between dtypes: values, gradients, the ends of ranges.
#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tapir/tapir.h"

using namespace tapir;

TEST_CASE("to() converts and gradients come back in the input's dtype") {
    Tensor x = tensor({1.5, -2.25}, float64).requires_grad_();
    Tape tape;
    Tensor y = x.to(float32) * 3;
    CHECK(y.dtype() == float32);
    tape.backward(sum(y.to(float16).to(float32)));
    CHECK(x.grad().dtype() == float64);
    CHECK(x.grad().to_vector<double>() == std::vector<double>{3, 3});
    CHECK(x.to(float64).is_same(x));
}

TEST_CASE("to() keeps the order of channels that are last in memory") {
    const Tensor image = randn({2, 5, 4, 3});
    const Tensor turned = image.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2});
    for (const DType dtype : {float64, bfloat16, int32}) {
        const Tensor converted = turned.to(dtype);
        CHECK(converted.strides()[1] == 1);
        CHECK(converted.to_vector<double>() == image.to(dtype).to_vector<double>());
        CHECK(image.to(dtype).is_contiguous());
    }
}

TEST_CASE("matrices of few rows or columns are turned") {
    for (const DType dtype : {uint8, bfloat16, float32, float64}) {
        for (const std::int64_t few : {1, 2, 3, 4, 5}) {
            for (const std::int64_t many : {1, 2, 7, 16, 33, 64, 200}) {
                INFO(name(dtype) << " " << few << " x " << many);
                const Tensor x = remainder(arange(few * many), 251).to(dtype).view({few, many});
                const auto given = x.to_vector<double>();
                std::vector<double> turned;
                for (std::int64_t i = 0; i < few * many; ++i) turned.push_back(given[static_cast<std::size_t>(i % few * many + i / few)]);
                const Tensor y = x.t().contiguous();
                CHECK(y.to_vector<double>() == turned);
                CHECK(y.t().contiguous().to_vector<double>() == given);
                CHECK(cat({y.t(), y.t()}, 1).slice(1, many).contiguous().to_vector<double>() == given);
            }
        }
    }
}

TEST_CASE("every pair of dtypes") {
    const DType dtypes[] = {bool_, uint8, int32, int64, float16, bfloat16, float32, float64};
    for (const DType from : dtypes) {
        for (const DType to : dtypes) {
            INFO(name(from) << " to " << name(to));
            const Tensor x = tensor({0.0, 1.0, 2.0, 100.0}).to(from).to(to);
            const bool was_bool = from == bool_ || to == bool_;
            CHECK(x.to_vector<double>() == (was_bool ? std::vector<double>{0, 1, 1, 1} : std::vector<double>{0, 1, 2, 100}));
        }
    }
}

// Kernels convert rows a vector at a time, and a vector that holds a number out of their reach one by one.
TEST_CASE("rows of numbers of all sizes become integers and come back") {
    std::vector<double> numbers = {0.5, -0.5, -0.0, 2.5, -2.5, 1e300, -1e300, INFINITY, -INFINITY, NAN, 0x1p-1074};
    for (int k = 0; k < 66; ++k) {
        for (const double near : {-1.5, -1.0, -0.75, 0.0, 0.75, 1.0}) {
            numbers.push_back(std::ldexp(1.0, k) + near);
            numbers.push_back(-std::ldexp(1.0, k) - near);
        }
    }
    for (const DType dtype : {float32, float64}) {
        for (const bool is_mixed : {true, false}) {  // or in order of size, so that most vectors hold numbers in reach
            std::vector<double> row = tensor(numbers).to(dtype).to_vector<double>();
            if (!is_mixed) std::sort(row.begin() + 11, row.end());
            std::vector<std::int64_t> whole;
            for (const double x : row) whole.push_back(x >= -0x1p63 && x < 0x1p63 ? static_cast<std::int64_t>(x) : INT64_MIN);
            CHECK(tensor(row).to(dtype).to(int64).to_vector<std::int64_t>() == whole);
            std::vector<float> narrow;
            std::vector<double> wide;
            for (const std::int64_t x : whole) narrow.push_back(static_cast<float>(x)), wide.push_back(static_cast<double>(x));
            CHECK(tensor(whole).to(float32).to_vector<float>() == narrow);
            CHECK(tensor(whole).to(float64).to_vector<double>() == wide);
        }
    }
}

TEST_CASE("float32 is rounded to the nearest bfloat16, of two the even one") {
    std::vector<float> numbers;
    for (std::uint64_t bits = 0; bits <= UINT32_MAX; bits += 0x7ff1) numbers.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
    for (std::uint32_t high = 0x100; high < 0x7f80; high += 0x31) {  // halfway, and beside it
        for (const std::uint32_t low : {0x7fffU, 0x8000U, 0x8001U}) numbers.push_back(std::bit_cast<float>(high << 16 | low));
    }
    const std::vector<float> rounded = tensor(numbers).to(bfloat16).to(float32).to_vector<float>();
    const std::vector<float> strided = tensor(numbers)
                                           .reshape({-1, 1})
                                           .expand({static_cast<std::int64_t>(numbers.size()), 2})
                                           .select(1, 1)
                                           .to(bfloat16)
                                           .to(float32)
                                           .to_vector<float>();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        const double x = numbers[i], unit = std::ldexp(1.0, std::max(std::ilogb(x == 0 || !std::isfinite(x) ? 1.0 : x), -126) - 7);
        const double exact = std::nearbyint(x / unit) * unit;
        const double want = std::abs(exact) > 0x1.fep127 ? std::copysign(INFINITY, x) : exact;
        const auto is = [&](double y) { return std::isnan(x) ? std::isnan(y) : y == want && std::signbit(y) == std::signbit(x); };
        wrong += !is(rounded[i]) || !is(strided[i]);
    }
    CHECK(wrong == 0);
}

TEST_CASE("the ends of the ranges") {
    const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
    const Tensor x = tensor({2.9, -2.9, 1e300, inf, -inf, nan}, float64);
    const auto smallest = std::numeric_limits<std::int64_t>::min();
    CHECK(x.to(int64).to_vector<std::int64_t>() == std::vector<std::int64_t>{2, -2, smallest, smallest, smallest, smallest});
    const auto half = tensor({65504.0, 65520.0, 6e-8, 1e-9, inf, -0.0}).to(float16).to_vector<double>();
    CHECK(half[0] == 65504);
    CHECK(half[1] == inf);
    CHECK(half[2] == Approx(5.96e-8).epsilon(1e-3));
    CHECK(half[3] == 0);
    CHECK(half[4] == inf);
    CHECK(std::signbit(half[5]));
    CHECK(std::isnan(tensor(nan).to(bfloat16).item()));
    CHECK(tensor(1.00390625).to(bfloat16).item() == 1);         // halfway: to even
    CHECK(tensor(1.01171875).to(bfloat16).item() == 1.015625);  // halfway: to even
}
