// Sorting on a CUDA device against the CPU's: the orders are stable, so that indices are the same.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "check.h"
#include "tapir/autograd/tape.h"
#include "tapir/core/stream.h"
#include "tapir/ops/arrange/sort.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/view/view.h"

using namespace tapir;

namespace {

// Numbers of which some are equal; nan, infinities and both zeros among floats.
Tensor with_ties(const Shape& shape, DType dtype, double different = 300, unsigned seed = 3) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> value(-1, 1);
    constexpr double special[] = {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                                  -std::numeric_limits<double>::infinity(), 0.0, -0.0};
    std::vector<double> values(static_cast<std::size_t>(shape.numel()));
    for (double& v : values) {
        v = std::trunc(value(random) * different);
        if (dtype == uint8 || dtype == bool_) v = std::abs(std::fmod(v, dtype == bool_ ? 2 : 256));
        if (is_floating(dtype)) v = random() % 9 == 0 ? special[random() % 5] : v / 7;
    }
    return tensor(values).reshape(shape).to(dtype);
}

void check_same(const Tensor& have, const Tensor& want) {
    REQUIRE(have.shape() == want.shape());
    REQUIRE(have.dtype() == want.dtype());
    const std::vector<double> a = have.to_vector<double>(), b = want.to_vector<double>();
    for (std::size_t i = 0; i < a.size(); ++i) {
        if ((a[i] == b[i] && std::signbit(a[i]) == std::signbit(b[i])) || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
        INFO("element " << i << ": " << a[i] << ", the CPU has " << b[i]);
        CHECK(false);
        return;
    }
}

void check_same(const ValuesIndices& have, const ValuesIndices& want) {
    check_same(have.values, want.values);
    check_same(have.indices, want.indices);
}

void compare_sorts(const Tensor& x, int dim, const std::vector<std::int64_t>& ks = {}) {
    INFO(name(x.dtype()) << " " << x.shape().str() << " along " << dim);
    const Tensor there = x.to(cuda);
    for (const bool flag : {false, true}) {
        INFO("flag " << flag);
        if (ks.empty()) check_same(sort(there, dim, flag), sort(x, dim, flag));
        for (const std::int64_t k : ks) {
            INFO("k " << k);
            check_same(topk(there, k, dim, flag), topk(x, k, dim, flag));
        }
    }
}

const DType kAll[] = {bool_, uint8, int32, int64, float16, bfloat16, float32, float64};

}  // namespace

TEST_CASE("short lines are sorted on a device", "[cuda][sort]") {
    NEEDS_CUDA;
    for (const DType dtype : kAll) {
        compare_sorts(with_ties({9, 33}, dtype), 1);
        compare_sorts(with_ties({40, 3, 5}, dtype), 1);
        compare_sorts(with_ties({70, 4}, dtype), 0, {1, 7, 70});
    }
    for (const std::int64_t size : {1, 2, 3, 64, 65, 500, 1023, 1024}) {
        compare_sorts(with_ties({3, size}, float32), 1);
        compare_sorts(with_ties({size, 3}, float64), 0);
    }
    compare_sorts(with_ties({5, 20}, int32).transpose(0, 1), 1);
    compare_sorts(with_ties({}, float32), 0);
    check_same(argsort(with_ties({4, 40}, float32).to(cuda), 1, true), argsort(with_ties({4, 40}, float32), 1, true));
}

TEST_CASE("long lines are sorted on a device", "[cuda][sort]") {
    NEEDS_CUDA;
    for (const DType dtype : kAll) {
        compare_sorts(with_ties({1500}, dtype), 0);
        compare_sorts(with_ties({3, 1025}, dtype), 1);
        compare_sorts(with_ties({2, 1100, 3}, dtype), 1);
    }
    compare_sorts(with_ties({40000}, float32, 1e7), 0);
    compare_sorts(with_ties({300, 1030}, bfloat16, 1e4), 1);  // the line's number does not fit beside the key
    compare_sorts(with_ties({2, 2000}, float64), 1, {600, 1999});
    compare_sorts(with_ties({2000, 3}, float32), 0, {700});
}

TEST_CASE("the first elements of long lines are selected on a device", "[cuda][sort]") {
    NEEDS_CUDA;
    for (const DType dtype : kAll) {
        compare_sorts(with_ties({2, 1025}, dtype), 1, {1, 100});
        compare_sorts(with_ties({4100, 2}, dtype), 0, {1, 5});  // a second part of a few
    }
    compare_sorts(with_ties({9000}, float32, 1e7), 0, {1, 17, 512});
    compare_sorts(with_ties({3, 12289}, float16, 2), 1, {300});  // many ties; the last part has one
    compare_sorts(with_ties({70000}, float32, 1e7), 0, {500});   // two rounds
    compare_sorts(full({20000}, 1.5), 0, {400});
}

TEST_CASE("gradients go to where elements were picked on a device", "[cuda][sort]") {
    NEEDS_CUDA;
    const auto gradient = [](const Tensor& x, int dim) {
        Tensor leaf = x.detach();
        leaf.requires_grad_();
        Tape tape;
        const Tensor top = topk(leaf, 3, dim).values, sorted = sort(leaf, dim).values, least = min(leaf, dim).values;
        tape.backward(sum(top * top) + sum(sorted * sorted * sorted) + sum(least));
        return leaf.grad();
    };
    const Tensor x = (arange(2 * 30 * 4, float64) * 7.3).sin().reshape({2, 30, 4});
    for (const int dim : {1, 2}) {
        const Tensor have = gradient(x.to(cuda), dim).to(cpu), want = gradient(x, dim);
        CHECK(amax(abs(have - want)).item<double>() < 1e-12);
    }
}
