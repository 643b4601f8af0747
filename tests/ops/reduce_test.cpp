// Reductions, scans, softmax and sorting: every layout against loops in float64, accuracy of long sums, nan and infinity,
// empty tensors, dtypes, ties, zeros in products, gradients where they are subtle, and mistakes.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "../fails.h"
#include "tapir/autograd/gradcheck.h"
#include "tapir/autograd/tape.h"
#include "tapir/core/parallel.h"
#include "tapir/ops/arrange/sort.h"
#include "tapir/ops/arrange/unique.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/random/random.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/reduce/softmax.h"
#include "tapir/ops/reduce/statistics.h"
#include "tapir/ops/scan/scan.h"
#include "tapir/ops/view/view.h"

using namespace tapir;

namespace {

using Values = std::vector<double>;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

void check(const Tensor& have, const Shape& shape, const Values& values) {
    CHECK(have.shape() == shape);
    const Values got = have.to_vector<double>();
    REQUIRE(got.size() == values.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
        INFO("element " << i << ": " << got[i] << ", wanted " << values[i]);
        CHECK((std::isnan(values[i]) ? std::isnan(got[i]) : got[i] == Approx(values[i]).epsilon(1e-6).margin(1e-12)));
    }
}

// Numbers in [-1, 1), the same every time.
Tensor numbers(const Shape& shape, DType dtype = float32, unsigned seed = 1) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> value(-1, 1);
    std::vector<double> values(static_cast<std::size_t>(shape.numel()));
    for (double& v : values) v = value(random);
    return tensor(values).reshape(shape).to(dtype);
}

// The elements that make each result, in float64: a loop over all positions.
struct Groups {
    std::string what;  // of which tensor
    Shape shape;       // of the result
    std::vector<Values> members;
};
Groups groups(const Tensor& x, const Dims& dims) {
    unsigned mask = dims.empty() ? ~0u : 0u;
    for (const auto d : dims) mask |= 1u << (d < 0 ? d + x.dim() : d);
    Groups result;
    result.what = std::string(name(x.dtype())) + " " + x.shape().str() + " strides " + x.strides().str() + " over " + dims.str();
    for (int d = 0; d < x.dim(); ++d) {
        if (!(mask >> d & 1)) result.shape.push_back(x.shape()[d]);
    }
    result.members.resize(static_cast<std::size_t>(result.shape.numel()));
    const Values values = x.to_vector<double>();
    for (std::size_t i = 0; i < values.size(); ++i) {
        std::int64_t index[kMaxRank], rest = static_cast<std::int64_t>(i), at = 0;
        for (int d = x.dim(); d-- > 0;) {
            index[d] = rest % x.shape()[d];
            rest /= x.shape()[d];
        }
        for (int d = 0; d < x.dim(); ++d) {
            if (!(mask >> d & 1)) at = at * x.shape()[d] + index[d];
        }
        result.members[static_cast<std::size_t>(at)].push_back(values[i]);
    }
    return result;
}

// |have - fn(members)| <= tolerance * max(1, |fn(members)|)
template <class Fn>
void check_groups(const char* op, const Tensor& have, const Groups& want, double tolerance, const Fn& fn) {
    INFO(op << " of " << want.what);
    REQUIRE(have.shape() == want.shape);
    const Values got = have.to_vector<double>();
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double expected = fn(want.members[i]);
        if (!(std::abs(got[i] - expected) <= tolerance * std::max(1.0, std::abs(expected)))) {
            INFO("element " << i << ": " << got[i] << ", wanted " << expected);
            CHECK(false);
            return;
        }
    }
}

// The error of a sum, beside the rounding of the result, against the sum of the magnitudes.
void check_sums(const Tensor& have, const Groups& want, double tolerance) {
    INFO("sum of " << want.what);
    REQUIRE(have.shape() == want.shape);
    const Values got = have.to_vector<double>();
    for (std::size_t i = 0; i < got.size(); ++i) {
        double expected = 0, magnitude = 0;
        for (const double x : want.members[i]) {
            expected += x;
            magnitude += std::abs(x);
        }
        if (!(std::abs(got[i] - expected) <= tolerance * magnitude)) {
            INFO("element " << i << ": " << got[i] << ", wanted " << expected);
            CHECK(false);
            return;
        }
    }
}

double sum_of(const Values& v) { return std::accumulate(v.begin(), v.end(), 0.0); }
double mean_of(const Values& v) { return sum_of(v) / static_cast<double>(v.size()); }
double prod_of(const Values& v) { return std::accumulate(v.begin(), v.end(), 1.0, std::multiplies<>()); }
double max_of(const Values& v) { return *std::max_element(v.begin(), v.end()); }
double min_of(const Values& v) { return *std::min_element(v.begin(), v.end()); }
double var_of(const Values& v) {
    const double mean = mean_of(v);
    double squares = 0;
    for (const double x : v) squares += (x - mean) * (x - mean);
    return squares / static_cast<double>(v.size());
}
double norm_of(const Values& v, double p) {
    double total = 0;
    for (const double x : v) total += std::pow(std::abs(x), p);
    return std::pow(total, 1 / p);
}

// x with its dimensions stored in each of several ways: as they are, reversed, every second element, repeated.
std::vector<Tensor> layouts(const Tensor& x) {
    Dims order, reversed_sizes;
    for (int d = x.dim(); d-- > 0;) {
        order.push_back(d);
        reversed_sizes.push_back(x.shape()[d]);
    }
    Tensor reversed = empty(reversed_sizes, x.dtype());
    Tensor view = reversed.permute(order);
    view.copy_(x);
    Shape wide = x.shape();
    wide.push_back(2);
    Tensor spaced = zeros(wide, x.dtype());
    Tensor every_second = spaced.select(-1, 1);
    every_second.copy_(x);
    std::vector<Tensor> all = {x, view, every_second};
    if (x.dim() > 0) all.push_back(x.narrow(0, 0, 1).expand(x.shape()));
    if (x.dim() > 1) all.push_back(x.transpose(0, 1));
    return all;
}

struct ThreadsScope {
    int before = num_threads();
    explicit ThreadsScope(int count) { set_num_threads(count); }
    ~ThreadsScope() { set_num_threads(before); }
};

// The gradient of fn(x) weighted with w (ones unless given).
template <class Fn>
Tensor gradient(const Tensor& x, const Fn& fn) {
    Tensor leaf = x.clone();
    leaf.requires_grad_();
    Tape tape;
    const Tensor y = fn(leaf);
    tape.backward(y, {.gradient = ones_like(y)});
    return leaf.grad();
}

template <class Fn>
void check_gradients(const Tensor& x, const Fn& fn) {
    const auto of_list = [&](const std::vector<Tensor>& list) { return fn(list[0]); };
    CHECK(gradcheck(of_list, {x}).message == "");
    CHECK(gradgradcheck(of_list, {x}).message == "");
}

}  // namespace

TEST_CASE("reductions over any dimensions of any layout", "[reduce]") {
    const std::vector<Shape> shapes = {{},        {1},        {5},        {67},         {3, 4},       {40, 5},   {5, 40},     {33, 130},  {1, 7, 1},
                                       {2, 3, 4}, {7, 9, 35}, {65, 2, 3}, {2, 3, 2, 5}, {3, 1, 1030}, {1030, 2}, {21, 2, 64}, {9, 3, 127}};
    for (const Shape& shape : shapes) {
        for (const Tensor& x : layouts(numbers(shape))) {
            for (int mask = 0; mask < 1 << shape.rank(); ++mask) {
                Dims dims;
                for (int d = shape.rank(); d-- > 0;) {  // listed in falling order
                    if (mask >> d & 1) dims.push_back(d % 2 ? d : d - shape.rank());
                }
                const Groups want = groups(x, dims);
                check_sums(sum(x, dims), want, 5e-7);
                check_groups("mean", mean(x, dims), want, 1e-6, mean_of);
                check_groups("amax", amax(x, dims), want, 0, max_of);
                check_groups("amin", amin(x, dims), want, 0, min_of);
                check_groups("var", var(x, dims, 0), want, 1e-6, var_of);
                check_groups("norm 2", norm(x, 2, dims), want, 1e-6, [](const Values& v) { return norm_of(v, 2); });
                check_groups("norm 1", norm(x, 1, dims), want, 1e-6, [](const Values& v) { return norm_of(v, 1); });
                check_groups("norm 3", norm(x, 3, dims), want, 1e-6, [](const Values& v) { return norm_of(v, 3); });
                check_groups("logsumexp", logsumexp(x, dims), want, 1e-6, [](const Values& v) {
                    double total = 0;
                    for (const double e : v) total += std::exp(e);
                    return std::log(total);
                });
                const Tensor flags = gt(x, -0.9), rare = gt(x, 0.9);
                check_groups("all", all(flags, dims), groups(flags, dims), 0, min_of);
                check_groups("any", any(rare, dims), groups(rare, dims), 0, max_of);
            }
            for (int d = 0; d < shape.rank(); ++d) {
                if (shape[d] < 100) check_groups("prod", prod(x * 1.5, d), groups(x * 1.5, {d}), 1e-5, prod_of);
            }
        }
    }
}

TEST_CASE("reductions of every dtype", "[reduce]") {
    const std::vector<std::pair<DType, double>> dtypes = {{float64, 1e-12}, {float16, 2e-3}, {bfloat16, 1e-2}, {int32, 0},
                                                          {int64, 0},       {uint8, 0},      {bool_, 0}};
    for (const auto& [dtype, tolerance] : dtypes) {
        for (const Shape& shape : {Shape{70}, Shape{40, 5}, Shape{5, 70}, Shape{3, 4, 20}}) {
            const Tensor base = is_floating(dtype) ? numbers(shape, dtype) : (numbers(shape) * 100 + 100).to(dtype);
            for (const Tensor& x : layouts(base)) {
                const DType whole = is_floating(dtype) ? dtype : int64;
                for (int d = 0; d < shape.rank(); ++d) {
                    CHECK(sum(x, {d}).dtype() == whole);
                    const Groups want = groups(x, {d});
                    check_sums(sum(x, {d}), want, tolerance);
                    check_groups("amax", amax(x, {d}), want, 0, max_of);
                    check_groups("max", max(x, d).values, want, 0, max_of);
                    check_groups("min", min(x, d).values, want, 0, min_of);
                    CHECK(amin(x, {d}).dtype() == dtype);
                    CHECK(min(x, d).values.dtype() == dtype);
                    CHECK(prod(x, d).dtype() == whole);
                    check_groups("all", all(x, {d}), want, 0, [](const Values& v) { return std::count(v.begin(), v.end(), 0.0) == 0; });
                }
                check_sums(sum(x), groups(x, {}), tolerance);
                if (is_floating(dtype)) check_groups("mean", mean(x), groups(x, {}), tolerance, mean_of);
            }
        }
    }
    check(prod(tensor({{2, 3}, {4, 5}}, uint8)), {}, {120});
    CHECK(sum(full({1000}, 0x7fffffff, int32)).item<std::int64_t>() == 1000LL * 0x7fffffff);
    CHECK(amax(tensor({INT64_MIN, INT64_MAX - 1})).item<std::int64_t>() == INT64_MAX - 1);
    CHECK(max(tensor({INT64_MAX - 1, INT64_MAX}), 0).indices.item<std::int64_t>() == 1);
    CHECK(sum(tensor({INT64_MAX, std::int64_t{1}})).item<std::int64_t>() == INT64_MIN);  // wraps around
}

TEST_CASE("keepdim, negative and repeated dimensions", "[reduce]") {
    const Tensor x = arange(24).to(float32).reshape({2, 3, 4});
    CHECK(sum(x, {-1}, true).shape() == Shape(2, 3, 1));
    CHECK(sum(x, {2, 0}, true).shape() == Shape(1, 3, 1));
    CHECK(sum(x, {}, true).shape() == Shape(1, 1, 1));
    CHECK(var(x, {-2}, 1, true).shape() == Shape(2, 1, 4));
    CHECK(prod(x, -3, true).shape() == Shape(1, 3, 4));
    CHECK(argmax(x, -2, true).shape() == Shape(2, 1, 4));
    CHECK(max(x, 1, true).indices.shape() == Shape(2, 1, 4));
    CHECK(logsumexp(x, {0, 1}, true).shape() == Shape(1, 1, 4));
    CHECK(all(x, {1}, true).shape() == Shape(2, 1, 4));
    check(x.sum({0, -1}), {3}, {60, 92, 124});
    check(x.mean({0, 1}), {4}, {10, 11, 12, 13});
    const Tensor scalar = tensor(-3.0);
    check(sum(scalar, {0}), {}, {-3});
    check(mean(scalar, {-1}), {}, {-3});
    check(prod(scalar, 0), {}, {-3});
    check(amax(scalar), {}, {-3});
    check(max(scalar, 0).values, {}, {-3});
    check(max(scalar, -1).indices, {}, {0});
    check(argmax(scalar), {}, {0});
    check(cumsum(scalar, 0), {}, {-3});
    check(softmax(scalar, 0), {}, {1});
    check(sort(scalar).values, {}, {-3});
    check(topk(scalar, 1).values, {}, {-3});
    check(norm(scalar), {}, {3});
    check(var(scalar, {}, 0), {}, {0});
}

TEST_CASE("long sums keep their digits", "[reduce]") {
    const std::int64_t n = 10'000'000;
    std::vector<float> values(static_cast<std::size_t>(n));
    std::mt19937 random(3);
    std::uniform_real_distribution<float> value(0, 1);
    double want = 0;
    for (float& v : values) want += v = value(random);
    const Tensor x = tensor(values);
    const auto error = [&](const Tensor& t, double expected) {
        double worst = 0;
        for (const double have : t.to_vector<double>()) worst = std::max(worst, std::abs(have - expected) / std::abs(expected));
        return worst;
    };
    CHECK(error(sum(x), want) < 1e-7);
    CHECK(error(mean(x), want / static_cast<double>(n)) < 1e-7);
    CHECK(error(sum(x.view({1000, 10000}).transpose(0, 1)), want) < 1e-7);
    CHECK(error(sum(sum(x.view({n / 8, 8}), {0})), want) < 1.2e-7);
    CHECK(error(sum(x.view({n / 2, 2}).select(1, 0) * 0 + 1), static_cast<double>(n / 2)) == 0);
    CHECK(error(sum(full({n}, 0.1f)), static_cast<double>(n) * static_cast<double>(0.1f)) < 3e-7);
    CHECK(error(sum(full({n / 8, 8}, 0.1f), {0}), static_cast<double>(n / 8) * static_cast<double>(0.1f)) < 3e-7);
    CHECK(error(sum(full({100, n / 100}, 0.1f), {1}), static_cast<double>(n / 100) * static_cast<double>(0.1f)) < 3e-7);
    CHECK(error(sum(full({n}, 0.1, float64)), static_cast<double>(n) * 0.1) < 1e-14);
    CHECK(error(sum(full({60000}, 1, float16)), 60000) == 0);   // in float16 alone it would stop at 2048
    CHECK(error(sum(full({60000}, 1, bfloat16)), 59904) == 0);  // 60000, rounded once
    CHECK(error(cumsum(full({1'000'000}, 0.1f), 0).narrow(0, 999'999, 1), 1e6 * static_cast<double>(0.1f)) < 1e-7);
    CHECK(error(var(x + 1000, {}, 0), 1 / 12.0) < 1e-3);
}

TEST_CASE("large reductions are cut into parts", "[reduce]") {
    for (const Shape& shape : {Shape{150'000}, Shape{50'000, 3}, Shape{3, 50'000}, Shape{80, 60, 30}, Shape{600, 250}}) {
        for (const Tensor& x : layouts(numbers(shape))) {
            for (int mask = 0; mask < 1 << shape.rank(); ++mask) {
                Dims dims;
                for (int d = 0; d < shape.rank(); ++d) {
                    if (mask >> d & 1) dims.push_back(d);
                }
                const Groups want = groups(x, dims);
                check_sums(sum(x, dims), want, 5e-7);
                check_groups("mean", mean(x, dims), want, 1e-6, mean_of);
                check_groups("amin", amin(x, dims), want, 0, min_of);
                check_groups("norm", norm(x, 2, dims), want, 1e-6, [](const Values& v) { return norm_of(v, 2); });
            }
        }
    }
    const Tensor x = numbers({500'000});
    Values one, several;
    for (const int threads : {1, 2, 3, 7}) {
        const ThreadsScope scope(threads);
        Values& results = threads == 1 ? one : several;
        results = {sum(x).item<double>(),
                   mean(x).item<double>(),
                   norm(x).item<double>(),
                   sum(x.view({1000, 500}), {0})[7].item<double>(),
                   var(x.view({1000, 500}), {1})[9].item<double>(),
                   softmax(x.view({50, 10000}), 1)[3][5].item<double>(),
                   cumsum(x.view({50, 10000}), 1)[3][99].item<double>(),
                   argmax(x.view({100, 5000}), 0)[77].item<double>(),
                   sort(x.view({50, 10000}), 0).values[3][1].item<double>()};
        if (threads > 1) CHECK(one == several);
    }
}

TEST_CASE("empty tensors", "[reduce]") {
    const Tensor x = empty({0, 3}), none = empty({0});
    check(sum(none), {}, {0});
    check(sum(x, {0}), {3}, {0, 0, 0});
    check(sum(x, {1}), {0}, {});
    check(sum(empty({0, 3}, int32), {0}, true), {1, 3}, {0, 0, 0});
    check(mean(x, {0}), {3}, {kNan, kNan, kNan});
    check(mean(none), {}, {kNan});
    check(prod(none), {}, {1});
    check(prod(x, 0), {3}, {1, 1, 1});
    check(all(none), {}, {1});
    check(any(none), {}, {0});
    check(all(x, {0}), {3}, {1, 1, 1});
    check(any(x, {1}), {0}, {});
    check(amax(x, {1}), {0}, {});
    check(max(x, 1).values, {0}, {});
    check(argmax(x, 1), {0}, {});
    check(var(none), {}, {kNan});
    check(tapir::std(x, {0}), {3}, {kNan, kNan, kNan});
    check(norm(none), {}, {0});
    check(norm(none, 1), {}, {0});
    check(norm(x, 3, {0}), {3}, {0, 0, 0});
    check(logsumexp(x, {0}), {3}, {-kInf, -kInf, -kInf});
    check(cumsum(x, 0), {0, 3}, {});
    check(cumprod(x, 1), {0, 3}, {});
    check(softmax(x, 0), {0, 3}, {});
    check(softmax(x, 1), {0, 3}, {});
    check(log_softmax(none, 0), {0}, {});
    check(sort(x, 0).values, {0, 3}, {});
    check(sort(x, 1).indices, {0, 3}, {});
    check(topk(none, 0).values, {0}, {});
    check(topk(empty({3, 2}), 0).indices, {3, 0}, {});
    const Tensor g = gradient(empty({0, 3}), [](const Tensor& t) { return sum(t, {0}) + prod(t, 0) + logsumexp(t, {0}); });
    check(g, {0, 3}, {});
}

TEST_CASE("nan and infinity", "[reduce]") {
    const Tensor x = tensor({{1.0, kNan, 3.0}, {4.0, 5.0, -kInf}, {kNan, 2.0, kNan}});
    check(sum(x, {1}), {3}, {kNan, -kInf, kNan});
    check(amax(x, {1}), {3}, {kNan, 5, kNan});
    check(amin(x, {1}), {3}, {kNan, -kInf, kNan});
    check(amax(x, {0}), {3}, {kNan, kNan, kNan});
    check(max(x), {}, {kNan});
    check(max(x, 1).values, {3}, {kNan, 5, kNan});
    check(max(x, 1).indices, {3}, {1, 1, 0});
    check(min(x, 0).indices, {3}, {2, 0, 2});
    check(argmax(x), {}, {1});
    check(argmin(x, 1), {3}, {1, 2, 0});
    check(norm(x, 2, {1}), {3}, {kNan, kInf, kNan});
    check(norm(x, kInf, {1}), {3}, {kNan, kInf, kNan});
    check(all(x, {1}), {3}, {1, 1, 1});  // nan is not 0
    check(any(tensor({0.0, -0.0})), {}, {0});
    check(any(tensor({0.0, kNan})), {}, {1});
    check(all(tensor({0.5, 1e-30})), {}, {1});
    for (const std::int64_t n : {2, 17, 64, 100, 3000, 200'000}) {  // a nan anywhere in a row or a column
        for (const std::int64_t at : {std::int64_t{0}, n / 2, n - 1}) {
            Tensor row = zeros({1, n});
            row.data<float>()[at] = std::numeric_limits<float>::quiet_NaN();
            for (const Tensor& t : {row, row.view({n, 1}).expand({n, 2}).contiguous().transpose(0, 1)}) {
                check(amax(t, {1}).narrow(0, 0, 1), {1}, {kNan});
                check(max(t, 1).indices.narrow(0, 0, 1), {1}, {static_cast<double>(at)});
            }
        }
    }
    check(amax(full({100}, -kInf)), {}, {-kInf});
    check(argmax(full({100}, -kInf)), {}, {0});
    check(amin(full({3, 40}, kInf), {0}).narrow(0, 0, 2), {2}, {kInf, kInf});
}

TEST_CASE("the first extreme counts", "[reduce]") {
    for (const std::int64_t n : {1, 2, 15, 16, 17, 64, 65, 130, 1000}) {
        for (std::int64_t at = 0; at < n; at += 1 + n / 7) {
            Tensor x = zeros({n});
            for (std::int64_t i = at; i < n; i += 3) x.data<float>()[i] = 2;
            CHECK(argmax(x).item<std::int64_t>() == at);
            CHECK(argmin(-x).item<std::int64_t>() == at);
            CHECK(max(x, 0).indices.item<std::int64_t>() == at);
            const Tensor columns = x.view({n, 1}).expand({n, 5}).contiguous();
            check(argmax(columns, 0), {5}, Values(5, static_cast<double>(at)));
            check(argmax(columns.to(int64), 0), {5}, Values(5, static_cast<double>(at)));
            check(argmin(-columns.to(float64), 0), {5}, Values(5, static_cast<double>(at)));
        }
    }
}

TEST_CASE("gradients of sums and means", "[reduce]") {
    const Tensor x = numbers({2, 3, 4}, float64);
    for (const bool keepdim : {false, true}) {
        check(gradient(x, [&](const Tensor& t) { return sum(t, {2, 0}, keepdim); }), {2, 3, 4}, Values(24, 1));
        check(gradient(x, [&](const Tensor& t) { return mean(t, {1}, keepdim); }), {2, 3, 4}, Values(24, 1 / 3.0));
    }
    check(gradient(numbers({5}, float16), [](const Tensor& t) { return mean(t); }).to(float32), {5}, Values(5, 0.19995117));
    check_gradients(x, [](const Tensor& t) { return sum(square(t) * t, {0, 2}); });
    check_gradients(x, [](const Tensor& t) { return mean(square(t) * t, {-1}, true); });
}

TEST_CASE("ties share the gradient of extremes", "[reduce]") {
    const Tensor x = tensor({{1.0, 3.0, 3.0}, {2.0, 2.0, 2.0}});
    check(gradient(x, [](const Tensor& t) { return amax(t, {1}); }), {2, 3}, {0, 0.5, 0.5, 1 / 3.0, 1 / 3.0, 1 / 3.0});
    check(gradient(x, [](const Tensor& t) { return amin(t); }), {2, 3}, {1, 0, 0, 0, 0, 0});
    check(gradient(x, [](const Tensor& t) { return max(t); }), {2, 3}, {0, 0.5, 0.5, 0, 0, 0});
    check(gradient(x, [](const Tensor& t) { return max(t, 1).values; }), {2, 3}, {0, 1, 0, 1, 0, 0});
    check(gradient(x, [](const Tensor& t) { return min(t, 0, true).values; }), {2, 3}, {1, 0, 0, 0, 1, 1});
    check(gradient(x, [](const Tensor& t) { return norm(t, kInf, {1}); }), {2, 3}, {0, 0.5, 0.5, 1 / 3.0, 1 / 3.0, 1 / 3.0});
    check(max(tensor({1.0, 5.0}), tensor({4.0, 2.0})), {2}, {4, 5});
    check(min(tensor({1.0, 5.0}), tensor({4.0, 2.0})), {2}, {1, 2});
}

TEST_CASE("products with zeros", "[reduce]") {
    const Tensor none = tensor({{2.0, -3.0, 0.5, 1.5}}, float64), one = tensor({{2.0, 0.0, 0.5, 1.5}}, float64),
                 two = tensor({{2.0, 0.0, 0.5, 0.0}}, float64), three = tensor({{0.0, 0.0, 0.5, 0.0}}, float64);
    const auto whole = [](const Tensor& t) { return prod(t); };
    check(gradient(none, whole), {1, 4}, {-2.25, 1.5, -9, -3});
    check(gradient(one, whole), {1, 4}, {0, 1.5, 0, 0});
    check(gradient(two, whole), {1, 4}, {0, 0, 0, 0});
    check(gradient(one.to(float32), whole), {1, 4}, {0, 1.5, 0, 0});
    for (const Tensor& x : {none, one, two, three, one.t(), two.t()}) {
        for (int d : {0, 1}) {
            check_gradients(x, whole);
            check_gradients(x, [d](const Tensor& t) { return prod(t, d); });
            check_gradients(x, [d](const Tensor& t) { return prod(t, d, true); });
            check_gradients(x, [d](const Tensor& t) { return cumprod(t, d); });
        }
    }
    check_gradients(tensor({{0.0, 2.0, 3.0, 0.0, 1.0, 2.0, 1.0}, {1.0, 2.0, 0.0, 3.0, 1.0, 1.0, 2.0}}, float64),
                    [](const Tensor& t) { return cumprod(t, 1); });
    check_gradients(tensor(0.0, float64), whole);
    check_gradients(tensor(0.0, float64), [](const Tensor& t) { return cumprod(t, 0) * t; });
    // The second derivative of two zeros is the product of the others: d2(a b c d)/(db dd) = a c.
    Tensor leaf = two.clone();
    leaf.requires_grad_();
    Tape tape;
    const Tensor first = tape.gradient(prod(leaf), {leaf}, {.create_graph = true})[0];
    check(tape.gradient(first[0][1], {leaf})[0], {1, 4}, {0, 0, 0, 1});
}

TEST_CASE("variance", "[reduce]") {
    check(var(tensor({1.0, 2.0, 3.0, 4.0})), {}, {5 / 3.0});
    check(var(tensor({1.0, 2.0, 3.0, 4.0}), {}, 0), {}, {1.25});
    check(tapir::std(tensor({{1.0, 3.0}, {2.0, 8.0}}), {1}), {2}, {std::sqrt(2.0), std::sqrt(18.0)});
    check(var(tensor({3.0})), {}, {kNan});
    check(var(tensor({3.0, 4.0}), {}, 2), {}, {kInf});
    check(var(tensor({1e8, 1e8 + 1, 1e8 + 2}, float64) * 1e4), {}, {1e8});  // far from 0, without cancellation
    check(var(full({1000, 3}, 0.1), {0}), {3}, {0, 0, 0});
    check(var(tensor({1.0, kInf})), {}, {kNan});
    check(var(tensor({60000, 59968}, float16)), {}, {512});
    check(gradient(tensor({2.0, 2.0, 2.0}), [](const Tensor& t) { return tapir::std(t); }), {3}, {0, 0, 0});
    check_gradients(numbers({3, 5}, float64), [](const Tensor& t) { return var(t, {1}, 0) * var(t, {1}, 2); });
    check_gradients(numbers({3, 5}, float64), [](const Tensor& t) { return tapir::std(t, {0}, 1, true); });
}

TEST_CASE("norms", "[reduce]") {
    const Tensor x = tensor({{3.0, -4.0, 0.0}, {0.0, 0.0, 0.0}});
    check(norm(x, 2, {1}), {2}, {5, 0});
    check(norm(x, 1, {1}), {2}, {7, 0});
    check(norm(x, 0, {1}), {2}, {2, 0});
    check(norm(x, kInf, {1}), {2}, {4, 0});
    check(norm(x, -kInf, {1}), {2}, {0, 0});
    check(norm(x, 3, {1}), {2}, {std::cbrt(91.0), 0});
    check(norm(x, -1, {1}), {2}, {0, 0});
    check(norm(tensor({1e30f, 1e30f})), {}, {std::sqrt(2.0) * 1e30});  // the squares would overflow float32
    check(norm(tensor({1e-30f, 1e-30f})) * 1e30, {}, {std::sqrt(2.0)});
    for (const double p : {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.5, kInf}) {
        INFO("p = " << p);
        const Tensor g = gradient(zeros({2, 3}), [p](const Tensor& t) { return norm(t, p, {1}); });
        check(g, {2, 3}, Values(6, 0));  // the subgradient at 0
        const Tensor partly = gradient(x.to(float64), [p](const Tensor& t) { return norm(t, p, {1}); });
        for (const double v : partly.to_vector<double>()) CHECK(std::isfinite(v));
        if (p != 0) {
            check_gradients(numbers({3, 4}, float64), [p](const Tensor& t) { return norm(t, p, {0}); });
        }
    }
    check(gradient(x, [](const Tensor& t) { return norm(t, 2, {1}); }), {2, 3}, {0.6, -0.8, 0, 0, 0, 0});
    check_gradients(numbers({3, 4}, float64), [](const Tensor& t) { return norm(t, -2, {1}, true); });
    check_gradients(numbers({3, 4}, float64), [](const Tensor& t) { return norm(t, -kInf, {1}); });
}

TEST_CASE("softmax and its logarithm", "[reduce]") {
    for (const std::int64_t n : {1, 2, 5, 15, 16, 17, 33, 1000, 5000}) {
        for (const DType dtype : {float32, float64, float16, bfloat16}) {
            const double tolerance = dtype == float64 ? 1e-13 : dtype == float32 ? 2e-6 : dtype == float16 ? 4e-3 : 2e-2;
            const Tensor rows = (numbers({3, n}) * 20).to(dtype);
            for (const auto& [x, dim] : {std::pair{rows, 1}, {rows.t().contiguous(), 0}, {rows.t(), 0}}) {
                const Tensor y = softmax(x, dim), logs = log_softmax(x, dim);
                REQUIRE(y.dtype() == dtype);
                REQUIRE(y.shape() == x.shape());
                const Values in = (dim == 1 ? x : x.t()).to_vector<double>(), p = (dim == 1 ? y : y.t()).to_vector<double>(),
                             l = (dim == 1 ? logs : logs.t()).to_vector<double>();
                double worst = 0, worst_log = 0;
                for (std::size_t row = 0; row < 3; ++row) {
                    const auto first = in.begin() + static_cast<std::ptrdiff_t>(row) * n;
                    const double max = *std::max_element(first, first + n);
                    double total = 0;
                    for (auto v = first; v != first + n; ++v) total += std::exp(*v - max);
                    for (std::size_t i = row * static_cast<std::size_t>(n); i < (row + 1) * static_cast<std::size_t>(n); ++i) {
                        const double log_want = in[i] - max - std::log(total), want = std::exp(log_want);
                        worst = std::max(worst, std::abs(p[i] - want) / (want + 1e-6));
                        worst_log = std::max(worst_log, std::abs(l[i] - log_want) / std::max(1.0, std::abs(log_want)));
                    }
                }
                INFO(n << " of " << name(dtype) << ", dim " << dim);
                CHECK(worst < (dtype == float16 ? 4e-2 : tolerance * 2));
                CHECK(worst_log < tolerance);
            }
        }
    }
    for (const int dim : {0, 1}) {
        const auto along = [dim](const Tensor& t) { return dim ? t : t.t().contiguous(); };
        const Tensor x = along(tensor({{0.0, -kInf, 0.0}, {1000.0, 0.0, -1000.0}, {-kInf, -kInf, -kInf}, {kInf, 0.0, 1.0}, {1.0, kNan, 0.0}}));
        const Shape shape = x.shape();
        CHECK(softmax(x, dim).shape() == shape);
        check(along(softmax(x, dim).contiguous().view(shape)).contiguous(), {5, 3},
              {0.5, 0, 0.5, 1, 0, 0, kNan, kNan, kNan, kNan, kNan, kNan, kNan, kNan, kNan});
        check(along(log_softmax(x, dim)).narrow(0, 0, 2), {2, 3}, {-std::log(2), -kInf, -std::log(2), 0, -1000, -2000});
    }
    check_gradients(numbers({3, 20}, float64), [](const Tensor& t) { return square(softmax(t, 1)); });
    check_gradients(numbers({4, 3, 2}, float64), [](const Tensor& t) { return square(log_softmax(t, 1)); });
}

TEST_CASE("fused and recorded gradients of softmax agree", "[reduce]") {
    for (const Shape& shape : {Shape{1, 5}, Shape{3, 16}, Shape{7, 1000}, Shape{2, 5, 9}}) {
        for (int dim = 0; dim < shape.rank(); ++dim) {
            for (const bool as_log : {false, true}) {
                Tensor x = numbers(shape);
                x.requires_grad_();
                const Tensor weight = numbers(shape, float32, 5);
                Tape tape;
                const Tensor y = sum((as_log ? log_softmax(x, dim) : softmax(x, dim)) * weight);
                const Tensor recorded = tape.gradient(y, {x}, {.create_graph = true})[0], fused = tape.gradient(y, {x})[0];
                CHECK(amax(abs(recorded - fused)).item<double>() < 2e-6);
            }
        }
    }
    // g repeated by an expand, as sum's rule hands it on
    const Tensor g = gradient(numbers({4, 6}), [](const Tensor& t) { return sum(log_softmax(t, 0)); });
    CHECK(std::abs(sum(g).item<double>()) < 1e-5);
    const Tensor half = gradient(numbers({4, 6}, bfloat16), [](const Tensor& t) { return sum(softmax(t, 1), {0}); });
    CHECK(half.dtype() == bfloat16);
}

TEST_CASE("logsumexp", "[reduce]") {
    const Tensor x = tensor({{1000.0, 1000.0}, {-kInf, -kInf}, {-kInf, 2.0}, {kInf, 1.0}, {kNan, 1.0}, {kInf, -kInf}});
    check(logsumexp(x, {1}), {6}, {1000 + std::log(2), -kInf, 2, kInf, kNan, kInf});
    check(logsumexp(tensor({-1000.0, -1000.0}), {0}), {}, {-1000 + std::log(2)});
    check(gradient(x.narrow(0, 0, 3).to(float64), [](const Tensor& t) { return logsumexp(t, {1}); }), {3, 2}, {0.5, 0.5, 0, 0, 0, 1});
    check_gradients(numbers({2, 3, 4}, float64), [](const Tensor& t) { return logsumexp(t, {2, 0}); });
    for (const std::int64_t n : {1, 5, 64, 65, 700}) {  // short rows are taken together
        for (const DType dtype : {float32, float64}) {
            const Tensor rows = numbers({7, n}, dtype);
            const auto summed = [](const Tensor& t) { return logsumexp(t, {1}); };
            check(gradient(rows, summed), {7, n}, softmax(rows.to(float64), 1).to_vector<double>());
        }
    }
    check(gradient(tensor({{0.0, -720.0, -90.0}}), [](const Tensor& t) { return logsumexp(t, {1}); }), {1, 3}, {1, 0, 0});  // no subnormals
}

TEST_CASE("running sums and products", "[reduce]") {
    const Tensor x = tensor({{1, 2, 3}, {4, 5, 6}});
    CHECK(cumsum(x, 0).dtype() == int64);
    CHECK(cumsum(x.to(uint8), 0).dtype() == int64);
    CHECK(cumprod(x.to(float16), 0).dtype() == float16);
    check(cumsum(x, 0), {2, 3}, {1, 2, 3, 5, 7, 9});
    check(cumsum(x.to(float32), 1), {2, 3}, {1, 3, 6, 4, 9, 15});
    check(cumprod(x, -1), {2, 3}, {1, 2, 6, 4, 20, 120});
    check(cumsum(x.t(), 0), {3, 2}, {1, 4, 3, 9, 6, 15});
    check(cumsum(tensor({true, false, true}), 0), {3}, {1, 1, 2});
    check(cumsum(tensor({1.0, kNan, 2.0}), 0), {3}, {1, kNan, kNan});
    const Tensor wide = numbers({7, 600, 3});
    for (int d = 0; d < 3; ++d) {
        const Tensor sums = cumsum(wide, d), last = sums.select(d, wide.size(d) - 1);
        CHECK(amax(abs(last - sum(wide, {d}))).item<double>() < 1e-5);
        const Tensor reversed = gradient(wide, [d](const Tensor& t) { return cumsum(t, d); });
        CHECK(amax(abs(reversed.select(d, 0) - static_cast<double>(wide.size(d)))).item<double>() == 0);
    }
    check_gradients(numbers({3, 4}, float64), [](const Tensor& t) { return square(cumsum(t, 0)); });
    check_gradients(numbers({3, 4}, float64), [](const Tensor& t) { return cumprod(t, 1); });
}

TEST_CASE("running extremes and where they are", "[reduce]") {
    const Tensor whole = (numbers({4, 600, 3}) * 5).round(), x = where(numbers({4, 600, 3}, float32, 2) > 0.99, kNan, whole);
    for (const DType dtype : {float32, float64, float16, bfloat16, int32, int64, uint8, bool_}) {
        for (int d = 0; d < 3; ++d) {
            for (const bool largest : {true, false}) {
                const Tensor in = (is_floating(dtype) ? x : whole.abs()).to(dtype), lines = in.movedim({d}, {2});
                for (const Tensor& given : {in, in.transpose(0, 1).contiguous().transpose(0, 1)}) {
                    const ValuesIndices found = largest ? cummax(given, d) : cummin(given, d);
                    CHECK(found.values.dtype() == dtype);
                    CHECK(found.indices.dtype() == int64);
                    Values values, places;
                    const Values all = lines.to_vector<double>();
                    const auto n = static_cast<std::size_t>(x.size(d));
                    for (std::size_t first = 0; first < all.size(); first += n) {
                        std::size_t best = 0;
                        for (std::size_t i = 0; i < n; ++i) {
                            const double now = all[first + i], before = all[first + best];
                            if (std::isnan(now) || (largest ? now >= before : now <= before)) best = i;
                            values.push_back(all[first + best]);
                            places.push_back(static_cast<double>(best));
                        }
                    }
                    check(found.values.movedim({d}, {2}), lines.shape(), values);
                    check(found.indices.movedim({d}, {2}), lines.shape(), places);
                }
            }
        }
    }
    Tensor leaf = tensor({1.0, 3.0, 2.0, 3.0, 0.0}).requires_grad_();
    Tape tape;
    tape.backward(sum(cummax(leaf, 0).values * tensor({1.0, 10.0, 100.0, 1000.0, 10000.0})));
    check(leaf.grad(), {5}, {1, 110, 0, 11000, 0});
    check(cummin(tensor(2.0), 0).values, {}, {2});
    check(cummin(zeros({0, 3}), 1).indices, {0, 3}, {});
    FAILS(IndexError, "cummax: dimension 2", cummax(x[0], 2));
}

TEST_CASE("one element of each line: what sorting gives", "[reduce]") {
    for (const Tensor& x : {numbers({3, 700, 2}), (numbers({3, 700, 2}) * 4).round(), numbers({3, 5, 2}, float64)}) {
        const ValuesIndices sorted = sort(x, 1);
        const std::int64_t n = x.size(1);
        for (const std::int64_t k : {std::int64_t{1}, n / 3, n}) {
            const ValuesIndices found = kthvalue(x, k, 1);
            CHECK(found.values.equal(sorted.values.select(1, k - 1)));
            CHECK(found.indices.equal(sorted.indices.select(1, k - 1)));
        }
        CHECK(median(x, 1, true).indices.equal(sorted.indices.narrow(1, (n - 1) / 2, 1)));
    }
    const Tensor broken = tensor({{3.0, kNan, 1.0, kNan}, {3.0, 4.0, 1.0, 2.0}});
    check(median(broken, 1).values, {2}, {kNan, 2});
    check(median(broken, 1).indices, {2}, {1, 3});
    check(kthvalue(broken, 2, 1).values, {2}, {3, 2});  // nan counts as the largest
    check(kthvalue(broken, 4, 1).indices, {2}, {3, 1});
    check(kthvalue(broken.to(float16), 3, 1).values, {2}, {kNan, 3});
    check(median(tensor({INT64_MAX, INT64_MIN, std::int64_t{-1}}), 0).indices, {}, {2});
    Tensor leaf = tensor({{3.0, 9.0, 1.0}, {5.0, 4.0, 6.0}}, {float64}).requires_grad_();
    Tape tape;
    tape.backward(sum(median(leaf, 1).values * tensor({2.0, 3.0})) + sum(kthvalue(leaf, 1, 0, true).values));
    check(leaf.grad(), {2, 3}, {3, 0, 1, 3, 1, 0});
}

TEST_CASE("sort", "[reduce]") {
    const Tensor x = tensor({3.0, kNan, -kInf, 0.0, -0.0, kInf, 3.0, kNan, -1.0});
    check(sort(x).values, {9}, {-kInf, -1, 0, 0, 3, 3, kInf, kNan, kNan});
    check(sort(x).indices, {9}, {2, 8, 3, 4, 0, 6, 5, 1, 7});
    check(sort(x, 0, true).values, {9}, {kNan, kNan, kInf, 3, 3, 0, 0, -1, -kInf});
    check(sort(x, 0, true).indices, {9}, {1, 7, 5, 0, 6, 3, 4, 8, 2});
    CHECK(std::signbit(sort(x).values.at<float>({3})));  // the values themselves, not their keys
    check(argsort(tensor({{3, 1, 2}, {1, 3, 2}}), 0), {2, 3}, {1, 0, 0, 0, 1, 1});
    check(sort(tensor({true, false, true, false})).indices, {4}, {1, 3, 0, 2});
    check(sort(tensor({INT64_MAX, INT64_MIN, std::int64_t{0}})).indices, {3}, {1, 2, 0});
    check(sort(tensor({-2, 5, -7}, int32), 0, true).values, {3}, {5, -2, -7});
    for (const DType dtype : {float32, float64, float16, bfloat16, int32, int64, uint8}) {
        for (const std::int64_t n : {2, 31, 511, 512, 5000}) {
            for (const bool descending : {false, true}) {
                const Tensor t = ((numbers({n, 3}, float64) + 1) * 60).to(dtype);  // many equal ones
                for (const auto& [in, dim] : {std::pair{t, 0}, {t.t().contiguous(), 1}}) {
                    const auto [values, indices] = sort(in, dim, descending);
                    const Values keys = in.select(1 - dim, 1).to_vector<double>();
                    std::vector<std::int64_t> want(static_cast<std::size_t>(n));
                    std::iota(want.begin(), want.end(), 0);
                    std::stable_sort(want.begin(), want.end(), [&](std::int64_t a, std::int64_t b) {
                        const double u = keys[static_cast<std::size_t>(a)], v = keys[static_cast<std::size_t>(b)];
                        return descending ? u > v : u < v;
                    });
                    REQUIRE(indices.select(1 - dim, 1).to_vector<std::int64_t>() == want);
                    Values sorted;
                    for (const std::int64_t i : want) sorted.push_back(keys[static_cast<std::size_t>(i)]);
                    REQUIRE(values.dtype() == dtype);
                    REQUIRE(values.select(1 - dim, 1).to_vector<double>() == sorted);
                    const std::int64_t k = n / 3;
                    const auto best = topk(in, k, dim, descending);
                    REQUIRE(best.values.select(1 - dim, 1).to_vector<double>() == Values(sorted.begin(), sorted.begin() + k));
                    REQUIRE(best.indices.select(1 - dim, 1).to_vector<std::int64_t>() == std::vector<std::int64_t>(want.begin(), want.begin() + k));
                }
            }
        }
    }
    check(topk(tensor({1.0, kNan, 5.0, 2.0}), 2).values, {2}, {kNan, 5});
    check(topk(tensor({1.0, kNan, 5.0, 2.0}), 2, 0, false).indices, {2}, {0, 3});
}

TEST_CASE("unique", "[sort]") {
    const Tensor x = tensor({{3, 1, 3}, {2, 1, 3}});
    const auto [values, inverse, counts] = unique(x, true, true, true);
    check(values, {3}, {1, 2, 3});
    check(inverse, {2, 3}, {2, 0, 2, 1, 0, 2});
    check(counts, {3}, {2, 1, 3});
    CHECK(values.dtype() == int64);
    CHECK(!unique(x).inverse.defined());
    CHECK(!unique(x).counts.defined());
    check(unique(x.transpose(0, 1), true, true).inverse, {3, 2}, {2, 1, 0, 0, 2, 2});
    check(unique(tensor({true, false, true})).values, {2}, {0, 1});
    check(unique(tensor({-0.0, 1.0, 0.0})).values, {2}, {0, 1});
    check(unique(tensor({kNan, 1.0, kNan}), true, false, true).counts, {3}, {1, 1, 1});
    check(unique(tensor(7), true, true, true).counts, {1}, {1});
    CHECK(unique(tensor(7), true, true).inverse.dim() == 0);
    const auto none = unique(zeros({0, 3}), true, true, true);
    check(none.values, {0}, {});
    check(none.inverse, {0, 3}, {});
    check(none.counts, {0}, {});
    // Long lines are sorted another way.
    const Tensor many = randint(0, 1000, {50000});
    const auto all = unique(many, true, true, true);
    CHECK(sum(all.counts).item<std::int64_t>() == 50000);
    CHECK(tapir::all(all.values.index({all.inverse}) == many).item<bool>());
}

TEST_CASE("gradients go where the elements came from", "[reduce]") {
    const Tensor x = tensor({{0.3, -1.0, 2.0}, {1.0, 4.0, 0.5}}, float64);
    const Tensor weight = tensor({{1.0, 2.0, 3.0}, {4.0, 5.0, 6.0}}, float64);
    check(gradient(x, [&](const Tensor& t) { return sort(t, 1).values * weight; }), {2, 3}, {2, 1, 3, 5, 6, 4});
    check(gradient(x, [&](const Tensor& t) { return topk(t, 2, 1).values * weight.narrow(1, 0, 2); }), {2, 3}, {2, 0, 1, 5, 4, 0});
    for (int d : {0, 1}) {
        check_gradients(x, [d](const Tensor& t) { return square(sort(t, d, true).values) * t; });
        check_gradients(x, [d](const Tensor& t) { return square(topk(t, 1, d).values); });
        check_gradients(x, [d](const Tensor& t) { return square(max(t, d).values); });
        check_gradients(x, [d](const Tensor& t) { return square(min(t, d, true).values); });
    }
    check_gradients(tensor(2.0, float64), [](const Tensor& t) { return square(max(t, 0).values) * sort(t).values; });
    const auto [values, indices] = max(x.to(float32), 1);
    CHECK(!indices.requires_grad());
}

TEST_CASE("mistakes in reductions", "[reduce]") {
    Tensor x = numbers({2, 3});
    const Values before = x.to_vector<double>();
    const Tensor none, whole = tensor({{1, 2}}), empty_rows = empty({0, 3});
    FAILS(IndexError, "sum: ", sum(x, {2}));
    FAILS(IndexError, "sum: ", x.sum({-3}));
    FAILS(IndexError, "sum: dimension 1 is named twice in (1, -1)", sum(x, {1, -1}));
    FAILS(IndexError, "mean: dimension 0 is named twice", mean(x, {0, 1, 0}));
    FAILS(IndexError, "amax: ", amax(x, {5}));
    FAILS(IndexError, "prod: ", prod(x, 2));
    FAILS(IndexError, "max: ", max(x, 2));
    FAILS(IndexError, "argmin: ", argmin(x, -3));
    FAILS(IndexError, "all: ", all(x, {2}));
    FAILS(IndexError, "var: ", var(x, {2}));
    FAILS(IndexError, "norm: ", norm(x, 2, {2}));
    FAILS(IndexError, "logsumexp: ", logsumexp(x, {2}));
    FAILS(IndexError, "cumsum: ", cumsum(x, 2));
    FAILS(IndexError, "cumprod: ", cumprod(x, -3));
    FAILS(IndexError, "softmax: ", softmax(x, 2));
    FAILS(IndexError, "log_softmax: ", x.log_softmax(-3));
    FAILS(IndexError, "sort: ", sort(x, 2));
    FAILS(IndexError, "topk: ", topk(x, 1, 2));
    FAILS(IndexError, "sum: ", sum(tensor(1.0), {1}));
    FAILS(DTypeError, "mean: needs a floating dtype, got int64", mean(whole));
    FAILS(DTypeError, "var: needs a floating dtype, got int64", var(whole));
    FAILS(DTypeError, "std: needs a floating dtype", tapir::std(whole));
    FAILS(DTypeError, "norm: needs a floating dtype", norm(whole));
    FAILS(DTypeError, "softmax: needs a floating dtype, got int64", softmax(whole, 0));
    FAILS(DTypeError, "log_softmax: needs a floating dtype", log_softmax(whole, 0));
    FAILS(ShapeError, "amax: no elements to choose from in shape (0, 3)", amax(empty_rows, {0}));
    FAILS(ShapeError, "amin: no elements", amin(empty_rows));
    FAILS(ShapeError, "max: no elements", max(empty_rows, 0));
    FAILS(ShapeError, "argmax: no elements", argmax(empty_rows));
    FAILS(ShapeError, "argmin: no elements", argmin(empty_rows, 0));
    FAILS(ShapeError, "norm: no elements", norm(empty_rows, kInf, {0}));
    FAILS(ValueError, "norm: p must not be nan", norm(x, kNan));
    FAILS(ValueError, "topk: k is 4, dimension 1 of shape (2, 3) has 3 elements", topk(x, 4));
    FAILS(ValueError, "topk: k is -1", topk(x, -1));
    FAILS(ValueError, "sum: the tensor is undefined", sum(none));
    FAILS(ValueError, "mean: the tensor is undefined", mean(none));
    FAILS(ValueError, "prod: the tensor is undefined", prod(none, 0));
    FAILS(ValueError, "amax: the tensor is undefined", amax(none));
    FAILS(ValueError, "argmax: the tensor is undefined", argmax(none));
    FAILS(ValueError, "max: the tensor is undefined", max(none, 0));
    FAILS(ValueError, "any: the tensor is undefined", any(none));
    FAILS(ValueError, "std: the tensor is undefined", tapir::std(none));
    FAILS(ValueError, "softmax: the tensor is undefined", softmax(none, 0));
    FAILS(ValueError, "sort: the tensor is undefined", sort(none));
    FAILS(ValueError, "unique: the tensor is undefined", unique(none));
    CHECK(x.to_vector<double>() == before);
}
