// Counting, searching, comparing, statistics and rearranging: corner cases and what is refused. Values and gradients: the op table's
// test, against PyTorch.
#include <cmath>
#include <limits>

#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {
const double inf = std::numeric_limits<double>::infinity(), nan_value = std::nan("");
}

TEST_CASE("bits of integers and bool") {
    const Tensor a = tensor({12, -7, 1}), b = tensor({10, 3, 62});
    CHECK((a & b).to_vector<int>() == std::vector<int>{8, 1, 0});
    CHECK((a | b).to_vector<int>() == std::vector<int>{14, -5, 63});
    CHECK((a ^ 6).to_vector<int>() == std::vector<int>{10, -1, 7});
    CHECK((~a).to_vector<int>() == std::vector<int>{-13, 6, -2});
    CHECK((~a.to(uint8)).to_vector<int>() == std::vector<int>{243, 6, 254});
    CHECK((a << b).to_vector<std::int64_t>() == std::vector<std::int64_t>{12 << 10, -56, std::int64_t{1} << 62});
    CHECK((a >> 1).to_vector<int>() == std::vector<int>{6, -4, 0});
    CHECK((a.to(int32) << 32).to_vector<int>() == std::vector<int>{0, 0, 0});
    CHECK((a.to(int32) << -1).to_vector<int>() == std::vector<int>{0, 0, 0});
    CHECK((a >> 64).to_vector<int>() == std::vector<int>{0, -1, 0});
    const Tensor t = tensor({true, true, false}), f = tensor({true, false, false});
    CHECK((t & f).dtype() == bool_);
    CHECK((t ^ f).to_vector<bool>() == std::vector<bool>{false, true, false});
    CHECK((~f).to_vector<bool>() == std::vector<bool>{false, true, true});
    CHECK(bitwise_or(t, f).to_vector<bool>() == std::vector<bool>{true, true, false});
    Tensor c = a.clone();
    c.bitwise_and_(b);
    CHECK(c.to_vector<int>() == std::vector<int>{8, 1, 0});
    FAILS(DTypeError, "bitwise_and: not defined for float32", a.to(float32) & 1);
    FAILS(DTypeError, "bitwise_not: not defined for float64", ~a.to(float64));
}

TEST_CASE("integers are not divided by 0") {
    Tensor a = tensor({7, -7});
    FAILS(ValueError, "remainder: integer division by 0", a % 0);
    FAILS(ValueError, "fmod: integer division by 0", fmod(a, tensor({2, 0})));
    FAILS(ValueError, "remainder: integer division by 0", remainder(a.to(int32), tensor({{1}, {0}}, int32)));
    FAILS(ValueError, "remainder: integer division by 0", a.remainder_(0));
    FAILS(ValueError, "remainder: integer division by 0", remainder(5, tensor({1, 0})));
    FAILS(ValueError, "floor_divide: integer division by 0", floor_divide(5, tensor({1, 0})));
    CHECK(a.to_vector<int>() == std::vector<int>{7, -7});
    CHECK((a % 4).to_vector<int>() == std::vector<int>{3, 1});
    CHECK(fmod(a, 4).to_vector<int>() == std::vector<int>{3, -3});
    CHECK((zeros({0}, int64) % 0).shape() == Shape(0));
    CHECK(std::isnan((a.to(float32) % 0)[0].item()));
}

TEST_CASE("truth values are not subtracted, integers have no negative powers") {
    Tensor t = tensor({true, false}), i = tensor({2, -3});
    FAILS(DTypeError, "neg: not defined for bool: write logical_not(x), or !x", -t);
    FAILS(DTypeError, "sub: not defined for bool: write logical_xor(a, b)", t - t);
    FAILS(DTypeError, "sub: not defined for bool", t - true);
    FAILS(DTypeError, "sub_: not defined for bool", t -= t);
    CHECK((t - 1).to_vector<int>() == std::vector<int>{0, -1});
    CHECK((i - t).to_vector<int>() == std::vector<int>{1, -3});
    FAILS(ValueError, "pow: integers to negative integer powers are not allowed", pow(i, -1));
    FAILS(ValueError, "pow: integers to negative integer powers are not allowed", i.pow_(-1));
    CHECK(pow(i, 3).to_vector<int>() == std::vector<int>{8, -27});
    CHECK(pow(i, -1.0).to_vector<float>() == std::vector<float>{0.5f, -1.0f / 3});
    CHECK(i.to_vector<int>() == std::vector<int>{2, -3});
}

// Such rows have strides that say nothing, in dimensions of one element.
TEST_CASE("products of single rows in every layout") {
    const Tensor weight = randn({5, 4}, float64);
    const auto check = [&](const Tensor& rows) {  // (n, 1, 5)
        const Tensor y = matmul(rows, weight);
        for (int64_t i = 0; i < rows.size(0); ++i) CHECK(allclose(y[i], matmul(rows[i].contiguous(), weight)));
    };
    const Tensor x = randn({1, 7, 5}, float64), wide = randn({1, 7, 10}, float64);
    check(permute(x, {1, 0, 2}));
    check(permute(wide, {1, 0, 2}).slice(2, Slice(2, 7)));
    check(permute(wide, {1, 0, 2}).slice(2, Slice(0, 10, 2)));
    check(permute(randn({5, 7, 1}, float64), {1, 2, 0}));
    check(expand(randn({1, 1, 5}, float64), {7, 1, 5}));
    check(unsqueeze(randn({11}, float64).unfold(0, 5, 1), 1));  // rows that overlap
    check(permute(x, {1, 0, 2})[Slice(0, 7, 3)]);
}

// matmul copies such rows into order, and multiplies them as one.
TEST_CASE("products of rows in another order are those of the rows in order") {
    manual_seed(1);
    for (const DType dtype : {float32, float64}) {
        const Tensor x = randn({3, 5, 7, 9}, dtype), w = randn({9, 40}, dtype), bias = randn({40}, dtype);
        for (const auto& [order, back] :
             {std::pair{Dims{1, 0, 2, 3}, Dims{1, 0, 2, 3}}, {{2, 1, 0, 3}, {2, 1, 0, 3}}, {{1, 2, 0, 3}, {2, 0, 1, 3}}}) {
            const Tensor turned = x.permute(order);
            CHECK(allclose(matmul(turned, w).permute(back), matmul(x, w), 1e-5, 1e-5));
            CHECK(allclose(linear(turned, w.t(), bias).permute(back), linear(x, w.t(), bias), 1e-5, 1e-5));
            const DeterministicScope exact;
            CHECK(allclose(matmul(turned, w).permute(back), matmul(x, w), 1e-5, 1e-5));
        }
    }
}

TEST_CASE("addmm with a row is a product and a sum, with their gradients", "[ops]") {
    manual_seed(1);
    for (const DType dtype : {float64, float32}) {
        const Tensor row = randn({5}, dtype).requires_grad_(), a = randn({4, 3}, dtype).requires_grad_(), b = randn({3, 5}, dtype).requires_grad_();
        Tape tape;
        const Tensor y = addmm(row, a, b), wanted = row + mm(a, b);
        const double tolerance = dtype == float64 ? 1e-12 : 1e-5;
        CHECK(allclose(y, wanted, tolerance, tolerance));
        const std::vector<Tensor> got = tape.gradient(sum(square(y)), {row, a, b}, {.retain_graph = true});
        const std::vector<Tensor> of_parts = tape.gradient(sum(square(wanted)), {row, a, b});
        for (std::size_t i = 0; i < got.size(); ++i) CHECK(allclose(got[i], of_parts[i], tolerance, tolerance));
    }
    // Not one op: other scales, other dtypes, other shapes.
    const Tensor row = ones({2}), a = eye(2), b = full({2, 2}, 2.0);
    CHECK(equal(addmm(row, a, b, 3, 2), tensor({{7.0, 7.0}, {7.0, 7.0}}, float32)));
    CHECK(addmm(row.to(float64), a, b).dtype() == float64);
    CHECK(equal(addmm(ones({2}, int64), ones({2, 2}, int64), ones({2, 2}, int64)), full({2, 2}, 3, int64)));
    CHECK(equal(addmm(ones({1}), a, b), b + 1));
    FAILS(ShapeError, "addmm", addmm(ones({3}), a, b));
}

TEST_CASE("products added to a tensor that beta = 0 leaves out") {
    const Tensor bad = full({2, 2}, NAN);
    CHECK(equal(addmm(bad, eye(2), eye(2), 0), eye(2)));
    CHECK(equal(baddbmm(full({2, 2}, NAN), ones({1, 2, 2}), eye(2).unsqueeze(0), 0, 3), full({1, 2, 2}, 3)));
    CHECK(equal(addmv(full({2}, HUGE_VAL), eye(2), ones({2}), 0), ones({2})));
    CHECK(std::isnan(addmm(bad, eye(2), eye(2), 1)[0][0].item()));
    FAILS(ShapeError, "", addmm(zeros({3, 3}), eye(2), eye(2), 0));
}

TEST_CASE("products added to a tensor in 16 bits are rounded once, at the end") {
    manual_seed(5);
    for (const DType dtype : {float16, bfloat16}) {
        const Tensor c = randn({3, 5, 6}, dtype), a = randn({3, 5, 40}, dtype), b = randn({3, 40, 6}, dtype);
        const auto check = [&](const Tensor& have, const Tensor& exact) {
            CHECK(have.dtype() == dtype);
            CHECK(equal(have, exact.to(dtype)));
        };
        const Tensor x = c.to(float64), y = a.to(float64), z = b.to(float64);
        check(baddbmm(c, a, b, 0.2, 0.6), x * 0.2 + bmm(y, z) * 0.6);
        check(addmm(c[0], a[0], b[0], 0.2, 0.6), x[0] * 0.2 + mm(y[0], z[0]) * 0.6);
        check(addmv(c[0].select(1, 0), a[0], b[0].select(1, 0)), x[0].select(1, 0) + mv(y[0], z[0].select(1, 0)));
    }
}

TEST_CASE("covariances of one variable are a number") {
    CHECK(cov(tensor({{1.0, 2.0, 4.0}})).shape() == Shape{});
    CHECK(cov(tensor({{1.0, 2.0, 4.0}})).item() == Approx(7.0 / 3));
    CHECK(corrcoef(tensor({{1.0, 2.0, 4.0}})).shape() == Shape{});
    CHECK(corrcoef(tensor({{1.0, 2.0, 4.0}})).item() == 1);
    CHECK(cov(ones({2, 3})).shape() == Shape{2, 2});
}

TEST_CASE("normalization of 16-bit rows with float32 parameters") {
    const Tensor x = tensor({{1.0, 2.0, 4.0}}), scale = tensor({1.0, 2.0, 3.0}), shift = tensor({0.5, 0.0, -0.5});
    for (const DType dtype : {float16, bfloat16}) {
        const Tensor y = layer_norm(x.to(dtype), {3}, scale, shift);
        CHECK(y.dtype() == dtype);
        CHECK(equal(y, layer_norm(x, {3}, scale, shift).to(dtype)));
        CHECK(layer_norm(x.to(dtype), {3}, {}, shift).dtype() == dtype);
    }
    FAILS(DTypeError, "layer_norm: the weight has dtype float64", layer_norm(x.to(float16), {3}, scale.to(float64)));
}

TEST_CASE("bilinear of no features is the bias") {
    const Tensor bias = tensor({1.0, 2.0});
    CHECK(equal(bilinear(zeros({3, 0}), zeros({3, 4}), zeros({2, 0, 4}), bias), bias.expand({3, 2})));
    CHECK(equal(bilinear(zeros({3, 4}), zeros({3, 0}), zeros({2, 4, 0})), zeros({3, 2})));
    CHECK(bilinear(zeros({0, 4}), zeros({0, 5}), zeros({2, 4, 5})).shape() == Shape{0, 2});
}

TEST_CASE("logcumsumexp's second derivative where a gradient is 0, and nan in a gradient") {
    const Tensor x = tensor({0.0, 1.0, -1.0}, {float64});
    // d/dy of the square is 0 at y[0] = 0.
    CHECK(gradgradcheck([](const auto& in) { return sum(square(logcumsumexp(in[0], 0))); }, {x}).ok);
    Tensor leaf = x.clone().requires_grad_();
    Tape tape;
    logcumsumexp(leaf, 0).backward(full({3}, NAN, float64));
    CHECK(isnan(leaf.grad()).to_vector<bool>() == std::vector<bool>(3, true));
}

TEST_CASE("sinc's gradients near 0") {
    const std::vector<double> at = {0, 1e-8, 1e-4, 1e-3, -0.02, 0.1, 0.159, 0.161, -0.5};
    const double pi = 3.14159265358979323846;
    for (const DType dtype : {float32, float64}) {
        Tensor x = tensor(at, {dtype}).requires_grad_();
        Tape tape;
        tape.backward(sum(sinc(x)));
        const std::vector<double> g = x.grad().to_vector<double>();
        for (std::size_t i = 0; i < at.size(); ++i) {
            // By the series in long double, of which 20 terms are exact here.
            const long double t = static_cast<long double>(pi) * at[i];
            long double expected = 0, term = 1;
            for (int n = 1; n < 20; ++n) {
                term *= -t * t / (2 * n * (2 * n + 1));
                if (t != 0) expected += 2 * n * term / t * pi;
            }
            INFO(name(dtype) << " at " << at[i]);
            CHECK(std::abs(g[i] - static_cast<double>(expected)) <= (dtype == float32 ? 3e-6 : 1e-12) * std::abs(static_cast<double>(expected)));
        }
    }
    CHECK(gradgradcheck([](const auto& in) { return sinc(in[0]); }, {tensor({0.0, 0.1}, {float64})}).ok);
}

TEST_CASE("numbers that a dimension cannot have are refused, not cut") {
    FAILS(IndexError, "argmax", argmax(zeros({2, 2}), std::int64_t{1} << 32));
    FAILS(IndexError, "sum", sum(zeros({2, 2}), -(std::int64_t{1} << 32)));
}

TEST_CASE("uniform numbers stay below the end in any dtype") {
    manual_seed(4);
    for (const DType dtype : {float16, bfloat16, float32, float64}) {
        INFO(name(dtype));
        for (const auto& [low, high] : {std::pair{0.0, 1.0}, {-1.0, 0.0}, {100.0, 100.001}, {-3.0, -2.5}}) {
            Tensor x = zeros({100000}, dtype);
            x.uniform_(low, high);
            const double largest = amax(x).item<double>();
            CHECK((largest < high || (dtype != float64 && low == 100)));  // no 16-bit number lies between 100 and 100.001
        }
    }
}

TEST_CASE("convolutions and windows of absurd sizes are refused") {
    const Tensor x = zeros({1, 1, 4, 4}), w = zeros({1, 1, 2, 2});
    FAILS(ValueError, "conv2d: padding 9223372036854775807 is too large", conv2d(x, w, {}, {.padding = INT64_MAX}));
    FAILS(ValueError, "conv2d: dilation 9223372036854775807 is too large", conv2d(x, w, {}, {.dilation = INT64_MAX}));
    FAILS(ValueError, "is too large", max_pool2d(x, 2, {.dilation = INT64_MAX}));
}

TEST_CASE("division rounded down and towards 0") {
    using V = std::vector<double>;
    const std::vector<double> values = {7, -7, 7, -7, 6, -6, 0, 1}, by = {2, 2, -2, -2, -3, 3, 5, 1};
    V down, towards_0;
    for (std::size_t i = 0; i < values.size(); ++i) {
        down.push_back(std::floor(values[i] / by[i]));
        towards_0.push_back(std::trunc(values[i] / by[i]));
    }
    for (const DType dtype : {int32, int64, float32, float64, float16}) {
        const Tensor a = tensor(values, {dtype}), b = tensor(by, {dtype});
        INFO(name(dtype));
        CHECK(floor_divide(a, b).dtype() == dtype);
        CHECK(floor_divide(a, b).to_vector<double>() == down);
        CHECK(div(a, b, "floor").to_vector<double>() == down);
        CHECK(div(a, b, "trunc").to_vector<double>() == towards_0);
        CHECK(div(a, b, "trunc").dtype() == dtype);
    }
    // 1 / 0.1 is 10 rounded, but ten times 0.1 as it is are more than 1.
    CHECK(floor_divide(tensor(1.0, {float64}), 0.1).item() == 9);
    CHECK(floor_divide(tensor(-1.0), tensor(0.0)).item() == -inf);
    CHECK(floor_divide(tensor({-5, 5}), 3).to_vector<int>() == std::vector<int>{-2, 1});
    CHECK(floor_divide(INT64_MIN, tensor({-1})).item<std::int64_t>() == INT64_MIN);  // wraps, does not trap
    for (const std::int64_t by_number : {2, 3, 10, -3, 7}) {
        for (const std::int64_t a : {INT64_MIN, INT64_MIN + 1, INT64_MAX, std::int64_t{INT32_MIN}, std::int64_t{INT32_MAX}}) {
            const auto rounded = static_cast<std::int64_t>(std::floor(static_cast<long double>(a) / static_cast<long double>(by_number)));
            INFO(a << " // " << by_number);
            CHECK(floor_divide(tensor(a), by_number).item<std::int64_t>() == rounded);
            CHECK(div(tensor(a), by_number, "trunc").item<std::int64_t>() == a / by_number);
            if (a >= INT32_MIN && a <= INT32_MAX) CHECK(floor_divide(tensor(a, int32), by_number).item<std::int64_t>() == rounded);
        }
    }
    FAILS(ValueError, "div: rounding_mode is", div(tensor({1}), 2, "up"));
    FAILS(ValueError, "div: integer division by 0", div(tensor({1}), 0, "floor"));
}

namespace {

// Whether a call compiles with this argument.
template <class A>
constexpr bool sums = requires(const Tensor& x, A a) { sum(x, a); };
template <class A>
constexpr bool sums_as_method = requires(const Tensor& x, A a) { x.sum(a); };
template <class A>
constexpr bool finds = requires(const Tensor& x, A a) { argmax(x, a); };
template <class A>
constexpr bool finds_as_method = requires(const Tensor& x, A a) { x.argmax(a); };
template <class A>
constexpr bool sorts = requires(const Tensor& x, A a) { sort(x, a); };
template <class A>
constexpr bool takes_a_norm = requires(const Tensor& x, A a) { norm(x, 2, a); };
template <class A>
constexpr bool joins = requires(const std::vector<Tensor>& x, A a) { cat(x, a); };
template <class A>
constexpr bool var_then_keepdim = requires(const Tensor& x, A a) { var(x, a, 1, true); };

}  // namespace

TEST_CASE("a bool is not a dimension") {
    STATIC_REQUIRE((sums<int> && sums_as_method<int> && finds<int> && finds_as_method<std::int64_t> && sorts<int> && joins<int>));
    STATIC_REQUIRE((takes_a_norm<int> && var_then_keepdim<int>));
    STATIC_REQUIRE_FALSE((sums<bool> || sums_as_method<bool> || finds<bool> || finds_as_method<bool> || sorts<bool> || joins<bool>));
    STATIC_REQUIRE_FALSE((takes_a_norm<bool> || var_then_keepdim<bool>));
    STATIC_REQUIRE_FALSE((std::is_constructible_v<Shape, bool> || std::is_constructible_v<Shape, int, bool>));
    // Of all elements, as in PyTorch.
    const Tensor x = tensor({{1.0, 2.0}, {4.0, 9.0}});
    CHECK(var(x, false).item() == Approx(9.5));
    CHECK(var(x, true).item() == Approx(38.0 / 3));
    CHECK(x.var(false).item() == Approx(9.5));
    CHECK(tapir::std(x, false).item() == Approx(std::sqrt(9.5)));
    CHECK(x.std(true).item() == Approx(std::sqrt(38.0 / 3)));
    CHECK(var_mean(x, false).first.item() == Approx(9.5));
    CHECK(std_mean(x, true).first.item() == Approx(std::sqrt(38.0 / 3)));
    CHECK(x.var(0, false)[1].item() == Approx(12.25));
    FAILS(DTypeError, "var: ", var(x.to(int64), false));
}

TEST_CASE("stacked, contracted, filled, chosen: what is refused") {
    const Tensor v = tensor({1.0, 2.0}), m = ones({2, 3}), nothing = zeros({0});
    CHECK(vstack({v, v, v}).shape() == Shape(3, 2));
    CHECK(hstack({m, m}).shape() == Shape(2, 6));
    CHECK(dstack({m, m}).shape() == Shape(2, 3, 2));
    FAILS(ShapeError, "", vstack({v, m}));
    FAILS(ValueError, "", hstack(std::vector<Tensor>{}));
    FAILS(ValueError, "dstack: the tensor is undefined", dstack({v, Tensor()}));
    CHECK(tensordot(v, v, 1).item() == 5);
    CHECK(tensordot(m, m.t(), {0, -1}, {1, 0}).item() == 6);
    CHECK(tensordot(tensor({2, 3}), tensor({5, 7}), 1).item<int>() == 31);
    FAILS(ShapeError, "tensordot: dimension 1 of shape (2, 3) and dimension 0 of shape (2, 3) differ", tensordot(m, m, 1));
    FAILS(ShapeError, "tensordot: 3 dimensions of shapes (2, 3) and (2, 3)", tensordot(m, m, 3));
    FAILS(ShapeError, "tensordot: dimensions (0, 1) of the first tensor, (0,) of the second", tensordot(m, m, {0, 1}, {0}));
    FAILS(IndexError, "tensordot: dimension 1 is named twice", tensordot(m, ones({3, 3}), {1, -1}, {0, 1}));
    FAILS(IndexError, "tensordot: dimension 2", tensordot(m, m, {2}, {0}));

    const Tensor holes = tensor({{nan_value, 1.0, 3.0}, {nan_value, nan_value, nan_value}});
    CHECK(kthvalue(holes, 2).values[0].item() == 3);
    CHECK(kthvalue(holes, 2).indices[0].item<int>() == 2);
    CHECK(kthvalue(tensor(4.0), 1).values.shape() == Shape());
    FAILS(ValueError, "kthvalue: k = 0 of 3 elements along dimension 1", kthvalue(m, 0));
    FAILS(ValueError, "kthvalue: k = 4 of 3 elements", kthvalue(m, 4));
    FAILS(IndexError, "kthvalue: ", kthvalue(m, 1, 2));
    CHECK(nansum(holes, {1}).to_vector<double>() == std::vector<double>{4, 0});
    CHECK(nansum(tensor({2, 3})).item<int>() == 5);
    CHECK(nanmean(holes, {1})[0].item() == 2);
    CHECK(std::isnan(nanmean(holes, {1})[1].item()));
    FAILS(DTypeError, "nanmean: needs a floating dtype, got int64", nanmean(tensor({2, 3})));
    Tensor w = holes.clone().requires_grad_();
    Tape tape;
    tape.backward(nanmean(w));
    CHECK(w.grad().to_vector<double>() == std::vector<double>{0, 0.5, 0.5, 0, 0, 0});

    const Tensor filled = index_fill(m, 1, tensor({-1, 0}, int32), 5);
    CHECK(filled.to_vector<int>() == std::vector<int>{5, 1, 5, 5, 1, 5});
    CHECK(index_fill(m, 0, zeros({0}, int64), 5).equal(m));
    FAILS(IndexError, "index_fill: ", index_fill(m, 1, tensor({3}), 5));
    FAILS(IndexError, "index_fill_: ", m.clone().index_fill_(1, tensor({3}), 5));
    FAILS(ShapeError, "index_fill: the index must be 1-d", index_fill(m, 1, tensor({{0}}), 5));
    FAILS(ShapeError, "index_fill: the value must be a number or a 0-d tensor, got shape (2,)", index_fill(m, 1, tensor({0}), v));
    FAILS(DTypeError, "index_fill: ", index_fill(m, 1, tensor({0.5}), 5));
    FAILS(DTypeError, "index_fill: a floating-point value cannot be written into int64", index_fill(tensor({1}), 0, tensor({0}), 0.5));
}

TEST_CASE("tensors of nested vectors") {
    const std::vector<std::vector<float>> rows = {{1, 2, 3}, {4, 5, 6}};
    const Tensor x = tensor(rows);
    CHECK(x.shape() == Shape(2, 3));
    CHECK(x.dtype() == float32);
    CHECK(x.to_vector<int>() == std::vector<int>{1, 2, 3, 4, 5, 6});
    CHECK(tensor(std::vector<std::vector<std::vector<int>>>{{{1}, {2}}}).shape() == Shape(1, 2, 1));
    CHECK(tensor(std::vector<std::vector<double>>{{1}}, float32).dtype() == float32);
    const Tensor flags = tensor(std::vector<std::vector<bool>>{{true, false}});
    CHECK(flags.dtype() == bool_);
    CHECK(flags.to_vector<bool>() == std::vector<bool>{true, false});
    CHECK(tensor(std::vector<std::vector<float>>{}).shape() == Shape(0, 0));
    CHECK(tensor(std::vector<std::vector<float>>{{}, {}}).shape() == Shape(2, 0));
    FAILS(ShapeError, "tensor: lists of 2 and of 1 stand side by side", tensor(std::vector<std::vector<float>>{{1, 2}, {3}}));
    using Deep = std::vector<std::vector<std::vector<int>>>;
    FAILS(ShapeError, "tensor: lists of 1 and of 2 stand side by side", tensor(Deep{{{1}, {2}}, {{3}, {4, 5}}}));
    FAILS(ShapeError, "tensor: lists of 0 and of 1 stand side by side", tensor(std::vector<std::vector<int>>{{}, {3}}));
}

TEST_CASE("searching: threads, nan, both sides") {
    const Tensor s = tensor({1.0, 2.0, 2.0, nan_value});
    const Tensor v = tensor({0.5, 2.0, 3.0, nan_value, inf});
    CHECK(searchsorted(s, v).to_vector<int>() == std::vector<int>{0, 1, 3, 3, 3});
    CHECK(searchsorted(s, v, true).to_vector<int>() == std::vector<int>{0, 3, 3, 4, 3});
    CHECK(searchsorted(s, 2).item<int>() == 1);
    CHECK(searchsorted(zeros({0}), v).to_vector<int>() == std::vector<int>(5, 0));
    manual_seed(1);
    const Tensor many = randint(0, 1000, {30000}), edges = arange(0, 1000, 7);
    const Tensor found = bucketize(many, edges);
    CHECK(all(gt(pad(edges, {0, 1}, 10000).index({found}), many - 1)).item<bool>());
    CHECK(equal(sum(unsqueeze(many, 1) > edges, {1}), found));
    FAILS(ShapeError, "a sequence of shape (2, 3) does not fit values of shape (3, 3)", searchsorted(ones({2, 3}), ones({3, 3})));
    FAILS(ShapeError, "bucketize: the boundaries need one dimension", bucketize(v, ones({2, 2})));
    CHECK(isin(tensor({1, 2}), zeros({0}, int64)).to_vector<bool>() == std::vector<bool>{false, false});
}

TEST_CASE("counting refuses, and counts what is in range") {
    CHECK(bincount(zeros({0}, int64)).shape() == Shape(0));
    CHECK(bincount(tensor({1, 1}), tensor({2, 3})).dtype() == float64);
    FAILS(ValueError, "bincount: numbers must not be negative, got -2", bincount(tensor({1, -2})));
    FAILS(DTypeError, "bincount: needs whole numbers", bincount(ones({2})));
    FAILS(ShapeError, "bincount: weights of shape (3,) for elements of shape (2,)", bincount(tensor({1, 2}), ones({3})));
    const Tensor x = tensor({0.0, 1.0, 0.5, -0.1, 1.1, nan_value});
    CHECK(histc(x, 2, 0, 1).to_vector<int>() == std::vector<int>{1, 2});
    CHECK(histc(full({3}, 2.0), 2).to_vector<int>() == std::vector<int>{0, 3});
    FAILS(ValueError, "histc: the range from 1 to 0 is empty", histc(x, 2, 1, 0));
    FAILS(DTypeError, "histc: needs a floating dtype", histc(tensor({1, 2})));
}

TEST_CASE("histograms: edges, ranges, and what is refused") {
    using Values = std::vector<double>;
    const Tensor x = tensor({0.0, 1.0, 0.5, -0.1, 1.1, nan_value, 0.25});
    const auto check = [](const HistogramResult& result, const Values& hist, const Values& edges) {
        CHECK(result.hist.to_vector<double>() == hist);
        CHECK(result.bin_edges.to_vector<double>() == edges);
    };
    check(histogram(x, 2, {.range = {{0.0, 1.0}}}), {2, 2}, {0, 0.5, 1});  // an edge belongs to the bin above, the last one below
    check(histogram(x, tensor({0.0, 0.25, 0.5, 1.0})), {1, 1, 2}, {0, 0.25, 0.5, 1});
    check(histogram(x, tensor({0.25, 0.25, 2.0})), {0, 4}, {0.25, 0.25, 2});
    check(histogram(x, tensor({0.5})), {}, {0.5});
    check(histogram(full({2, 2}, 3.0), 2), {0, 4}, {2.5, 3, 3.5});
    check(histogram(x, 1, {.range = {{0.5, 0.5}}}), {4}, {0, 1});
    check(histogram(zeros({0}), 2), {0, 0}, {0, 0.5, 1});
    check(histogram(tensor(0.3), 2, {.range = {{0.0, 1.0}}}), {1, 0}, {0, 0.5, 1});
    const Tensor weight = tensor({1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0});
    check(histogram(x, 2, {.range = {{0.0, 1.0}}, .weight = weight}), {65, 6}, {0, 0.5, 1});
    check(histogram(x, tensor({0.0, 0.125, 0.25, 1.0}), {.density = true}), {2, 0, 1}, {0, 0.125, 0.25, 1});
    check(histogram(x.to(float16), 2, {.range = {{0.0, 1.0}}}), {2, 2}, {0, 0.5, 1});
    CHECK(histogram(x.to(float16), 2, {.range = {{0.0, 1.0}}}).hist.dtype() == float16);
    CHECK(histogram(full({100000}, 0.5, float64), 1).hist.item() == 100000);
    const auto [hist, edges] = histogram(x.narrow(0, 0, 5), 10);
    CHECK(hist.sum().item() == 5);
    CHECK(edges[0].item<float>() == -0.1f);
    CHECK(edges[-1].item<float>() == 1.1f);
    FAILS(ValueError, "histogram: the number of bins must be in [1, 2^48], got 0", histogram(x, 0));
    FAILS(ValueError, "histogram: the range from nan to nan is not finite", histogram(x));
    FAILS(ValueError, "histogram: the range from 1 to 0 is empty", histogram(x, 2, {.range = {{1.0, 0.0}}}));
    FAILS(ValueError, "histogram: the range from 0 to inf is not finite", histogram(x, 2, {.range = {{0.0, inf}}}));
    FAILS(ValueError, "histogram: needs at least one edge", histogram(x, zeros({0})));
    FAILS(ValueError, "histogram: the edges must be sorted", histogram(x, tensor({0.0, 2.0, 1.0})));
    FAILS(ValueError, "histogram: the edges must be sorted", histogram(x, tensor({0.0, nan_value})));
    FAILS(ValueError, "histogram: a range is for a number of bins", histogram(x, tensor({0.0, 1.0}), {.range = {{0.0, 1.0}}}));
    FAILS(ShapeError, "histogram: the edges need one dimension, got shape (1, 2)", histogram(x, ones({1, 2})));
    FAILS(DTypeError, "histogram: edges of float64 for elements of float32", histogram(x, ones({2}, float64)));
    FAILS(DTypeError, "histogram: needs a floating dtype, got int64", histogram(tensor({1, 2}), 2));
    FAILS(ShapeError, "histogram: weights of shape (2,) for elements of shape (7,)", histogram(x, 2, {.weight = ones({2})}));
    FAILS(DTypeError, "histogram: weights of float64", histogram(x, 2, {.weight = ones({7}, float64)}));
    FAILS(ValueError, "histogram: the tensor is undefined", histogram(Tensor(), 2));
}

TEST_CASE("comparing as a whole") {
    const Tensor a = tensor({1.0, inf, nan_value}), b = tensor({1.0 + 1e-7, inf, nan_value});
    CHECK(!allclose(a, b));
    CHECK(allclose(a, b, 1e-5, 1e-8, true));
    CHECK(!allclose(a.narrow(0, 0, 2), -b.narrow(0, 0, 2)));
    CHECK(equal(tensor({1, 2}), tensor({1, 2})));
    CHECK(!equal(tensor({1, 2}), tensor({1, 2}).view({1, 2})));
    FAILS(ValueError, "isclose: tolerances must not be negative", isclose(a, b, -1));
    const std::vector<float> want = {1, std::numeric_limits<float>::max(), 0};
    CHECK(nan_to_num(a).to_vector<float>() == want);
    CHECK(nan_to_num(-a.to(float16)).to_vector<float>() == std::vector<float>{-1, -65504, 0});
}

TEST_CASE("what is larger than memory is refused before its parts fill it") {
    const std::int64_t far = std::int64_t{1} << 31, most = std::numeric_limits<std::int64_t>::max();
    const Tensor x = ones({15}, bool_), rows = ones({5, 6}, uint8);
    for (const std::int64_t offset : {far, -far, most / 2, most, -most - 1}) {
        CHECK_THROWS_AS(diag(x, offset), OutOfMemory);
        CHECK_THROWS_AS(diag_embed(rows, offset), OutOfMemory);
    }
    FAILS(OutOfMemory, "diag_embed: a matrix with elements", diag_embed(rows, most));
    FAILS(ValueError, "local_response_norm: ", local_response_norm(ones({1, 2, 3}), most));
}

TEST_CASE("quantiles and medians: nan, and what is refused") {
    const Tensor x = tensor({{3.0, 1.0, 2.0}, {nan_value, 1.0, 2.0}});
    CHECK(quantile(x, 0.5, 1)[0].item() == 2);
    CHECK(std::isnan(quantile(x, 0.5, 1)[1].item()));
    const ValuesIndices middle = median(x, 1);
    CHECK(middle.values[0].item() == 2);
    CHECK(middle.indices[0].item<int>() == 2);
    CHECK(std::isnan(middle.values[1].item()));
    CHECK(middle.indices[1].item<int>() == 0);
    CHECK(median(tensor({4, 1, 3, 2})).item<int>() == 2);
    FAILS(ValueError, "quantile: q must be in [0, 1], got 2", quantile(x, 2.0));
    const Tensor none = zeros({0});  // no quantiles, as PyTorch gives them
    CHECK((quantile(x, none).shape() == Shape{0} && quantile(x, none, 1).shape() == Shape{0, x.size(0)}));
    CHECK((quantile(x, none, 1, true).shape() == Shape{0, x.size(0), 1} && quantile(zeros({}), none).shape() == Shape{0}));
    FAILS(ValueError, "interpolation is \"linear\"", quantile(x, 0.5, "cubic"));
    FAILS(DTypeError, "quantile: needs float32 or float64", quantile(x.to(float16), 0.5));
    FAILS(ShapeError, "median: there are no elements", median(zeros({0})));
    CHECK(logcumsumexp(tensor({-inf, -inf, 0.0}), 0).to_vector<float>() == std::vector<float>{-HUGE_VALF, -HUGE_VALF, 0});
}

TEST_CASE("distances of equal rows have no gradient") {
    for (const std::int64_t n : {2, 30}) {
        Tensor a = ones({n, 3}, float64);
        a.requires_grad_();
        Tape tape;
        tape.backward(sum(cdist(a, ones({n, 3}, float64))));
        CHECK(a.grad().to_vector<double>() == std::vector<double>(static_cast<std::size_t>(3 * n), 0));
    }
    CHECK(cdist(zeros({2, 0}), zeros({3, 0})).to_vector<float>() == std::vector<float>(6, 0));
    for (const std::int64_t n : {3, 30}) {  // directly, and by products
        Tensor x = randn({n, 3}).requires_grad_();
        x.detach().index_put_({0}, NAN);
        for (const Tensor& d : {cdist(x, x), cdist(x.detach(), x.detach())}) {
            CHECK(std::isnan(d[0][0].item()));
            CHECK(std::isnan(d[1][0].item()));
            CHECK(std::isfinite(d[2][1].item()));
        }
    }
    FAILS(ShapeError, "cdist: needs rows of the same length", cdist(ones({2, 3}), ones({2, 4})));
    FAILS(ValueError, "cdist: p must not be negative", cdist(ones({2, 3}), ones({2, 3}), -1));
    CHECK(normalize(zeros({2, 3})).to_vector<float>() == std::vector<float>(6, 0));
}

TEST_CASE("rearranging: corner cases and what is refused") {
    const Tensor x = arange(6).view({2, 3});
    CHECK(repeat_interleave(x, tensor({2, 0}), 0).to_vector<int>() == std::vector<int>{0, 1, 2, 0, 1, 2});
    CHECK(repeat_interleave(tensor(3), 2).to_vector<int>() == std::vector<int>{3, 3});
    CHECK(diag(tensor({1, 2}), 1).to_vector<int>() == std::vector<int>{0, 1, 0, 0, 0, 2, 0, 0, 0});
    CHECK(diag(tensor({1, 2})).dtype() == int64);
    CHECK(diff(tensor({true, false, false})).to_vector<bool>() == std::vector<bool>{true, false});
    CHECK(vander(tensor({2, 3})).to_vector<int>() == std::vector<int>{2, 1, 3, 1});
    CHECK(movedim(ones({2, 3, 4}), {0}, {-1}).shape() == Shape{3, 4, 2});
    FAILS(ValueError, "repeat_interleave: repeats must not be negative, got -1", repeat_interleave(x, -1));
    FAILS(ValueError, "repeat_interleave: repeats must not be negative, got -2", repeat_interleave(x, tensor({1, -2}), 0));
    FAILS(ShapeError, "repeat_interleave: repeats of shape (3,) for 2 elements", repeat_interleave(x, tensor({1, 2, 3}), 0));
    FAILS(ShapeError, "cross: needs 3 elements along dimension 0", cross(x, x, 0));
    FAILS(ShapeError, "trace: needs a matrix", trace(tensor({1, 2})));
    FAILS(ValueError, "meshgrid: indexing is \"ij\" or \"xy\", not \"yx\"", meshgrid({tensor({1})}, "yx"));
    FAILS(IndexError, "movedim: a dimension is named twice", movedim(x, {0, 0}, {0, 1}));
}
