// Conversion between dtypes: values, gradients, the ends of ranges.
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
