// Choosing by a mask, positions where one holds, and triangles on a CUDA device against the CPU: several blocks, odd
// tails, views that are not aligned, every element size.
#include <catch2/catch.hpp>
#include <functional>

#include "check.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

using Inputs = std::vector<Tensor>;

void check_same(const Tensor& have, const Tensor& want) {
    REQUIRE(have.device() == cuda);
    REQUIRE(have.shape() == want.shape());
    REQUIRE(have.dtype() == want.dtype());
    CHECK(have.to_vector<double>() == want.to_vector<double>());
}

void compare(const Inputs& inputs, const std::function<Tensor(const Inputs&)>& op) {
    Inputs there;
    for (const Tensor& x : inputs) there.push_back(x.to(cuda));
    check_same(op(there), op(inputs));
}

// The same of what lies behind the first elements: views that do not begin at multiples of 16 bytes.
void compare_from(int first, const Inputs& inputs, const std::function<Tensor(const Inputs&)>& op) {
    compare(inputs, [&](const Inputs& v) {
        Inputs parts;
        for (const Tensor& x : v) parts.push_back(x.slice(0, Slice(first)));
        return op(parts);
    });
}

Tensor choose(const Inputs& v) { return where(v[0], v[1], v[2]); }

}  // namespace

TEST_CASE("where chooses among arrays, single elements and numbers", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(3);
    for (const DType dtype : {bool_, uint8, int32, int64, float16, bfloat16, float32, float64}) {
        INFO(name(dtype));
        for (const int n : {1, 31, 4096, 20000, 20003}) {
            INFO(n);
            const Tensor mask = rand({n}) < 0.5, a = randint(0, 100, {n}).to(dtype), b = randint(0, 100, {n}).to(dtype);
            compare({mask, a, b}, choose);
            compare({mask, a}, [](const Inputs& v) { return where(v[0], v[1], 1); });
            compare({mask, b}, [](const Inputs& v) { return where(v[0], 1, v[1]); });
            compare({mask, a, b.slice(0, Slice(0, 1))}, choose);
            compare({mask, a.select(0, 0), b.select(0, 0)}, choose);
            compare({mask.select(0, 0), a, b}, choose);
            compare_from(1, {mask, a, b}, choose);
        }
        const Tensor wide = randint(0, 100, {40, 30, 20}).to(dtype);
        compare({rand({40, 1, 20}) < 0.5, wide, randint(0, 100, {30, 1}).to(dtype)}, choose);
        compare({rand({20}) < 0.5, wide.transpose(0, 1), randint(0, 100, {40, 1}).to(dtype)}, choose);
        compare({wide, rand({30, 20}) < 0.5}, [](const Inputs& v) { return masked_fill(v[0], v[1], 1); });
    }
    compare({rand({9}) < 0.5}, [](const Inputs& v) { return where(v[0], 1.5, -2); });
    compare({rand({9}) < 0.5, randint(0, 9, {9}), randn({9})}, choose);
    CHECK(where(tensor({true}).to(cuda), tensor(2.5), zeros({2}, cuda)).to_vector<double>() == std::vector<double>{2.5, 2.5});
    CHECK_THROWS_AS(where(tensor({true}).to(cuda), ones({2}), zeros({2}, cuda)), DeviceError);
    CHECK_THROWS_AS(where(tensor({true}), ones({2}, cuda), zeros({2}, cuda)), DeviceError);
    CHECK_THROWS_AS(masked_fill(ones({2}, cuda), tensor({true}), 1), DeviceError);
}

TEST_CASE("where chooses in rows of any layout", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(4);
    for (const DType dtype : {uint8, float16, float32, float64}) {
        for (const int width : {16, 64, 67}) {
            INFO(name(dtype) << ", rows of " << width);
            const Tensor x = randint(0, 100, {3, 2, 9, width}).to(dtype), y = randint(0, 100, {width}).to(dtype);
            const Tensor row = rand({3, 1, 1, width}) < 0.5, column = rand({9, 1}) < 0.5;
            for (const Tensor& mask : {row, column}) {
                compare({mask, x}, [](const Inputs& v) { return masked_fill(v[1], v[0], 7); });
                compare({mask, x, y}, choose);
                compare({mask, x.slice(3, Slice(0, 1)), y}, choose);
                compare({mask, x.slice(0, Slice(0, 1)), x}, choose);
            }
            for (const int first : {0, 1, 16}) {
                compare({row, x, y}, [=](const Inputs& v) {
                    const auto part = [&](const Tensor& t) { return t.narrow(t.dim() - 1, first, width - first); };
                    return first == width ? v[1] : where(part(v[0]), part(v[1]), part(v[2]));
                });
            }
        }
    }
}

TEST_CASE("positions come in order", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(3);
    for (const double density : {0.0, 0.01, 0.5, 1.0}) {
        INFO(density);
        for (const int n : {1, 17, 4096, 4097, 30001}) {
            const Tensor mask = rand({n}) < density, x = arange(n).to(float32);
            compare({mask}, [](const Inputs& v) { return nonzero(v[0]); });
            compare_from(1, {mask, x}, [](const Inputs& v) { return masked_select(v[1], v[0]); });
        }
        const Tensor grid = rand({30, 7, 90}) < density, x = arange(30 * 7 * 90).reshape({30, 7, 90});
        compare({grid}, [](const Inputs& v) { return nonzero(v[0]); });
        compare({grid}, [](const Inputs& v) { return nonzero(v[0].permute({2, 0, 1})); });
        compare({grid, x}, [](const Inputs& v) { return v[1][v[0]]; });
        compare({grid.select(0, 0), x}, [](const Inputs& v) { return v[1].permute({1, 2, 0})[v[0]]; });
    }
    compare({randint(0, 3, {50, 60}).to(float16)}, [](const Inputs& v) { return nonzero(v[0]); });
    compare({tensor(5)}, [](const Inputs& v) { return nonzero(v[0]); });
    compare({zeros({0, 3})}, [](const Inputs& v) { return nonzero(v[0]); });
    // More than 2048 tiles of 4096: parts of two.
    const int n = 2048 * 4096 + 5000;
    Tensor sparse = zeros({n}, {bool_, cuda});
    for (const int i : {0, 4095, 4096, 8191, 8192, 5000000, n - 1}) sparse.index_put_({i}, true);
    CHECK(nonzero(sparse).to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 4095, 4096, 8191, 8192, 5000000, n - 1});
}

TEST_CASE("triangles of matrices", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(3);
    for (const DType dtype : {bool_, int32, float16, float64}) {
        for (const Shape& shape : {Shape{3, 40, 64}, Shape{3, 40, 37}, Shape{70, 80}, Shape{2, 2, 5, 1}, Shape{0, 4}, Shape{4, 0}}) {
            INFO(name(dtype) << shape.str());
            const Tensor x = randint(0, 2, shape).to(dtype);
            for (const int diagonal : {-100, -5, 0, 3, 100}) {
                compare({x}, [&](const Inputs& v) { return tril(v[0], diagonal); });
                compare({x}, [&](const Inputs& v) { return triu(v[0].transpose(-1, -2), diagonal); });
            }
        }
    }
}

TEST_CASE("elements in another arrangement", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(3);
    const Tensor x = randn({13, 17, 19});
    compare({x}, [](const Inputs& v) { return flip(v[0], {0, 2}); });
    compare({x}, [](const Inputs& v) { return roll(v[0], {5, -3, 40}, {0, 1, 2}); });
    compare({x}, [](const Inputs& v) { return repeat(v[0], {2, 1, 3, 2}); });
    compare({x}, [](const Inputs& v) { return pad(v[0], {1, -2, 3, 0, -1, 2}, 0.25); });
}
