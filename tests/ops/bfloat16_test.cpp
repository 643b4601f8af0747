// bfloat16 products by oneDNN against sums in double, whether or not this processor has instructions for them.
#include <array>
#include <catch2/catch.hpp>
#include <cmath>

#include "tapir/ops/linear/matmul_impl.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

// The rounding of the result, and of float32 sums of k terms.
void check(const Tensor& have, const Tensor& a, const Tensor& b, const Tensor& bias = {}) {
    Tensor want = matmul(a.to(float64), b.to(float64));
    if (bias.defined()) want = want + bias.to(float64);
    const Tensor error = abs(have.to(float64) - want), size = matmul(abs(a.to(float64)), abs(b.to(float64)));
    CHECK(all(le(error, abs(want) * 0x1p-8 + size * 1e-5 + 1e-30)).item<bool>());
}

MatrixProduct product_of(const Tensor& a, const Tensor& b, const Tensor& c) {
    return {bfloat16,
            a.size(-2),
            b.size(-1),
            a.size(-1),
            a.raw_data(),
            a.strides()[a.dim() - 2],
            a.strides()[a.dim() - 1],
            b.raw_data(),
            b.strides()[b.dim() - 2],
            b.strides()[b.dim() - 1],
            c.raw_data(),
            b.size(-1)};
}

}  // namespace

TEST_CASE("bfloat16 matrices are multiplied as they are", "[ops]") {
    manual_seed(1);
    for (const auto& [m, k, n] : {std::array{1, 7, 5}, std::array{33, 65, 17}, std::array{64, 128, 96}}) {
        const Tensor a = randn({m, k}, bfloat16), b = randn({k, n}, bfloat16), bias = randn({n}, bfloat16);
        for (const Tensor& left : {a, a.t().contiguous().t()}) {
            for (const Tensor& right : {b, b.t().contiguous().t()}) {
                INFO(m << " x " << k << " x " << n << ", strides " << left.strides() << " and " << right.strides());
                const Tensor c = empty({m, n}, bfloat16);
                MatrixProduct p = product_of(left, right, c);
                multiply(p, cpu);
                check(c, left, right);
                p.bias = bias.raw_data();
                multiply(p, cpu);
                check(c, left, right, bias);
            }
        }
    }
}

TEST_CASE("batches of bfloat16 matrices", "[ops]") {
    manual_seed(2);
    const Tensor a = randn({4, 9, 16}, bfloat16), b = randn({4, 16, 11}, bfloat16), c = empty({4, 9, 11}, bfloat16);
    MatrixProduct p = product_of(a, b, c);
    p.batch = 4;
    p.a_batch = 9 * 16;
    p.b_batch = 16 * 11;
    p.c_batch = 9 * 11;
    multiply(p, cpu);
    check(c, a, b);
    p.b_batch = 0;  // one matrix for all
    multiply(p, cpu);
    check(c, a, b.narrow(0, 0, 1));
}

TEST_CASE("large products of 16-bit floats", "[ops]") {
    manual_seed(3);
    for (const DType dtype : {bfloat16, float16}) {
        const Tensor x = randn({70, 80}, dtype), w = randn({90, 80}, dtype), b = randn({90}, dtype);
        check(matmul(x, w.t()), x, w.t());
        check(linear(x, w, b), x, w.t(), b);
    }
}
