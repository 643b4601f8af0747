// Joining, gathering, masks, embedding and arranging: dtypes, sharing, what the table of samples does not cover (many
// inputs, equal indices, padding rows, sparse gradients), and mistakes.
#include <catch2/catch.hpp>
#include <limits>

#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

using Values = std::vector<double>;

void check(const Tensor& have, const Shape& shape, const Values& values) {
    CHECK(have.shape() == shape);
    CHECK(have.to_vector<double>() == values);
}

}  // namespace

// --- cat, stack ------------------------------------------------------------------------------------------------------

TEST_CASE("cat and stack promote, skip empty vectors and copy", "[join]") {
    const Tensor a = tensor({1.0, 2.0}), b = tensor({3, 4});
    const Tensor joined = cat({a, b, zeros({0}, float64)});
    CHECK(joined.dtype() == float64);
    check(joined, {4}, {1, 2, 3, 4});
    CHECK(cat({b, tensor({true})}).dtype() == int64);
    CHECK(stack({ones({2}, float16), ones({2}, bfloat16)}).dtype() == float32);
    const Tensor m = ones({2, 2});
    check(cat({zeros({0}), m, zeros({0})}, 1), {2, 2}, {1, 1, 1, 1});
    check(cat({zeros({0}), zeros({0})}), {0}, {});
    check(cat({m.t(), tensor({{5.0}, {6.0}})}, 1), {2, 3}, {1, 1, 5, 1, 1, 6});
    check(cat({tensor({{1.0, 2.0}, {3.0, 4.0}}).t(), ones({1, 2})}), {3, 2}, {1, 3, 2, 4, 1, 1});
    check(stack({a, tensor({3.0, 4.0})}, 1), {2, 2}, {1, 3, 2, 4});
    check(stack({tensor({1.0, 2.0}).expand({2, 2}).t(), zeros({2, 2})}, 1), {2, 2, 2}, {1, 1, 0, 0, 2, 2, 0, 0});
    const Tensor alone = cat({a});
    CHECK_FALSE(alone.shares_storage(a));
}

TEST_CASE("large joins", "[join]") {
    const Tensor a = randn({1000, 300}), b = randn({1000, 77});
    const Tensor wide = cat({a, b}, 1);
    CHECK(all(wide.narrow(1, 0, 300) == a).item<bool>());
    CHECK(all(wide.narrow(1, 300, 77) == b).item<bool>());
    const Tensor both = stack({a, a}, 1);
    CHECK(all(both.select(1, 1) == a).item<bool>());
    // Rows of a few bytes and of many, at the front, in the middle and at the end.
    for (const DType dtype : {uint8, float32, float64}) {
        for (const std::int64_t width : {1, 3, 5000}) {
            for (const int dim : {0, 1, 2}) {
                std::vector<Tensor> parts;
                for (const std::int64_t size : {2, 0, 1, 7}) {
                    Shape shape{13, 5, width};
                    shape[dim] = size;
                    parts.push_back(randint(0, 100, shape).to(dtype));
                }
                const Tensor joined = cat(parts, dim);
                std::int64_t start = 0;
                for (const Tensor& part : parts) {
                    CHECK(equal(joined.narrow(dim, start, part.size(dim)), part));
                    start += part.size(dim);
                }
                CHECK(joined.size(dim) == start);
                const Tensor together = stack({parts[0], parts[0] + 1, parts[0] + 2}, dim);
                for (int k = 0; k < 3; ++k) CHECK(equal(together.select(dim, k), parts[0] + k));
            }
        }
    }
}

TEST_CASE("a thousand recorded tensors are joined", "[join]") {
    std::vector<Tensor> leaves, rows;
    for (int i = 0; i < 1000; ++i) leaves.push_back(full({2}, static_cast<double>(i)).requires_grad_());
    Tape tape;
    for (const Tensor& leaf : leaves) rows.push_back(leaf * 2);
    const Tensor joined = cat(rows), stacked = stack(rows, 1);
    CHECK(joined.shape() == Shape{2000});
    CHECK(stacked.shape() == Shape{2, 1000});
    (joined * arange(2000).to(float32)).sum().backward();
    bool right = true;
    for (int i = 0; i < 1000; ++i) {
        right &= joined.at<float>({2 * i}) == static_cast<float>(2 * i) && stacked.at<float>({1, i}) == static_cast<float>(2 * i);
        right &= leaves[static_cast<std::size_t>(i)].grad().at<float>({1}) == static_cast<float>(2 * (2 * i + 1));
    }
    CHECK(right);
    leaves[999].zero_grad();
    Tape second;
    cat({stack(leaves, 1), zeros({2, 0})}, 1).index({0, -1}).backward();
    check(leaves[999].grad(), {2}, {1, 0});
}

TEST_CASE("one tensor several times in a join", "[join]") {
    Tensor a = tensor({1.0, 2.0}).requires_grad_();
    const Tensor g = tensor({1.0, 2.0, 10.0, 20.0, 100.0, 200.0});
    Tape tape;
    (cat({a, a, a}) * g).sum().backward();
    check(a.grad(), {2}, {111, 222});
    (stack({a, a}, 1).reshape({4}) * g.narrow(0, 0, 4)).sum().backward();
    check(a.grad(), {2}, {111 + 3, 222 + 30});
}

// --- gather and scatter ----------------------------------------------------------------------------------------------

TEST_CASE("equal indices: the last wins, or all add up in order", "[gather]") {
    const Tensor index = tensor({{0, 2, 0, -1}}), src = tensor({{1.0, 2.0, 3.0, 4.0}});
    check(scatter(zeros({1, 3}), 1, index, src), {1, 3}, {3, 0, 4});
    check(scatter_add(ones({1, 3}), 1, index, src), {1, 3}, {5, 1, 7});
    check(scatter(zeros({3, 2}), 0, tensor({{0, 1}, {0, 1}, {2, 1}}), tensor({{1.0, 2.0}, {3.0, 4.0}, {5.0, 6.0}})), {3, 2}, {3, 0, 0, 6, 5, 0});
    check(gather(tensor({{1.0, 2.0}, {3.0, 4.0}}).t(), 1, tensor({{0, 0, -1}, {1, 0, 0}})), {2, 3}, {1, 1, 3, 4, 2, 2});
    check(gather(tensor(5.0), 0, tensor(0)), {}, {5});
    check(scatter(tensor(5.0), -1, tensor(0), 7), {}, {7});
    check(scatter_add(tensor(5.0), 0, tensor(0), tensor(2.0)), {}, {7});
    check(index_select(tensor({{1, 2}, {3, 4}}), 1, tensor({1, 1}).to(int32)), {2, 2}, {2, 2, 4, 4});
    check(index_add(zeros({2}, float16), 0, zeros({3000}, int64), ones({3000}, float16)), {2}, {3000, 0});
    check(index_add(tensor({1, 2}), 0, tensor({1, 1}), tensor({10, 20}), 2), {2}, {1, 62});
    check(scatter_add(zeros({2}, bool_), 0, tensor({1}), tensor({true})), {2}, {0, 1});

    Tensor x = ones({3}).requires_grad_(), values = tensor({1.0, 2.0, 3.0}).requires_grad_();
    Tape tape;
    const Tensor out = scatter(x, 0, tensor({1, 0, 1}), values);
    (out * tensor({1.0, 10.0, 100.0})).sum().backward();
    check(x.grad(), {3}, {0, 0, 100});
    check(values.grad(), {3}, {0, 1, 10});
}

TEST_CASE("scatter_reduce: dtypes, nan, places that nothing comes to", "[gather]") {
    const Tensor index = tensor({0, 2, 0, 2, 0}), values = tensor({3, -5, 7, 2, 1}), x = tensor({4, 6, -1});
    for (const DType dtype : {int32, int64, float16, bfloat16, float32, float64}) {
        const auto reduced = [&](const char* reduce, bool include_self) {
            const Tensor out = x.to(dtype).scatter_reduce(0, index, values.to(dtype), reduce, include_self);
            CHECK(out.dtype() == dtype);
            return out.to_vector<double>();
        };
        const bool is_whole = !is_floating(dtype);
        CHECK(reduced("sum", true) == Values{15, 6, -4});
        CHECK(reduced("sum", false) == Values{11, 6, -3});
        CHECK(reduced("prod", true) == Values{84, 6, 10});
        CHECK(reduced("prod", false) == Values{21, 6, -10});
        CHECK(reduced("amax", true) == Values{7, 6, 2});
        CHECK(reduced("amax", false) == Values{7, 6, 2});
        CHECK(reduced("amin", true) == Values{1, 6, -5});
        CHECK(reduced("amin", false) == Values{1, 6, -5});
        CHECK(reduced("mean", false)[2] == (is_whole ? -2 : -1.5));  // rounded down
        CHECK(reduced("mean", true)[1] == 6);
        if (is_whole) CHECK(reduced("mean", true) == Values{3, 6, -2});
    }
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const Tensor broken = scatter_reduce(tensor({0.0, nan, 0.0}), 0, tensor({0, 1, 0}), tensor({nan, 5.0, 1.0}), "amin");
    CHECK(isnan(broken).to_vector<bool>() == std::vector<bool>{true, true, false});
    check(scatter_reduce(zeros({2}, bool_), 0, tensor({0}), tensor({true}), "amax", false), {2}, {1, 0});
    check(scatter_reduce(zeros({1}, float16), 0, zeros({3000}, int64), ones({3000}, float16), "mean", false), {1}, {1});
    check(scatter_reduce(tensor(5.0), 0, tensor(0), tensor(2.0), "prod"), {}, {10});
    check(scatter_reduce(tensor({{1.0, 2.0}, {3.0, 4.0}}).t(), 0, tensor({{1, 1}}), tensor({{5.0, 7.0}}), "prod"), {2, 2}, {1, 3, 10, 28});

    const auto gradients = [&](Tensor self, Tensor src, const char* reduce, bool include_self) {
        self.requires_grad_();
        src.requires_grad_();
        Tape tape;
        const Tensor out = self.scatter_reduce(0, index, src, reduce, include_self);
        return tape.gradient(sum(out * tensor({1.0, 10.0, 100.0})), {self, src});
    };
    auto of_equal = gradients(tensor({7.0, 6.0, -1.0}), tensor({7.0, 2.0, 7.0, 2.0, 1.0}), "amax", true);
    check(of_equal[0], {3}, {Values{1.0f / 3}[0], 10, 0});
    check(of_equal[1] * 3, {5}, {1, 150, 1, 150, 0});
    of_equal = gradients(tensor({7.0, 6.0, 2.0}), tensor({7.0, 2.0, 1.0, 1.0, 1.0}), "amax", false);  // x is not among them
    check(of_equal[0], {3}, {0, 10, 0});
    check(of_equal[1], {5}, {1, 100, 0, 0, 0});
    const auto of_zeros = gradients(tensor({0.0, 6.0, 2.0}), tensor({3.0, 0.0, 5.0, 0.0, 2.0}), "prod", true);
    check(of_zeros[0], {3}, {30, 10, 0});
    check(of_zeros[1], {5}, {0, 0, 0, 0, 0});
    const auto of_zero = gradients(tensor({4.0, 6.0, 2.0}), tensor({3.0, 0.0, 5.0, 7.0, 0.0}), "prod", true);
    check(of_zero[0], {3}, {0, 10, 0});
    check(of_zero[1], {5}, {0, 1400, 0, 0, 60});

    const Tensor a = ones({3}), i = tensor({0, 7});
    FAILS(ValueError, "scatter_reduce: reduce is \"sum\", \"prod\", \"mean\", \"amax\" or \"amin\", not \"max\"",
          scatter_reduce(a, 0, index, ones({5}), "max"));
    FAILS(IndexError, "scatter_reduce: index 7 is out of range for dimension 0 of shape (3,)", scatter_reduce(a, 0, i, ones({2}), "sum"));
    FAILS(DTypeError, "scatter_reduce_: src is float64, but x is float32", a.clone().scatter_reduce_(0, i, ones({2}, float64), "sum"));
    FAILS(ShapeError, "scatter_reduce: an index of shape (2,) does not fit src of shape (1,)", scatter_reduce(a, 0, i, ones({1}), "sum"));
}

TEST_CASE("index_fill takes an index, and a tensor, of no dimensions", "[gather]") {
    check(index_fill(tensor({1, 2, 3}), 0, tensor(-1), 7), {3}, {1, 2, 7});
    check(index_fill(tensor({{1, 2}, {3, 4}}), 1, tensor(0), 7), {2, 2}, {7, 2, 7, 4});
    check(index_fill(tensor(5), 0, tensor({0, 0}), 7), {}, {7});
    check(index_fill(tensor(5), -1, tensor(0), 7), {}, {7});
    check(index_fill(tensor(5), 0, zeros({0}, int64), 7), {}, {5});
    check(tensor(5).index_fill_(0, tensor(0), 7), {}, {7});
    FAILS(IndexError, "index_fill: index 1 is out of range", index_fill(tensor(5), 0, tensor(1), 7));
    FAILS(ShapeError, "index_fill: the index must be 1-d", index_fill(tensor({5}), 0, tensor({{0}}), 7));
}

TEST_CASE("scatter leaves its source alone", "[gather]") {
    const Tensor x = zeros({3}), y = scatter(x, 0, tensor({1}), 5), z = scatter_add(x, 0, tensor({1}), ones({1}));
    check(x, {3}, {0, 0, 0});
    check(y, {3}, {0, 5, 0});
    check(z, {3}, {0, 1, 0});
}

TEST_CASE("large gathers on threads", "[gather]") {
    const Tensor x = randn({600, 50}), index = randint(50, {600, 200});
    const Tensor picked = gather(x, 1, index), back = scatter_add(zeros({600, 50}), 1, index, picked);
    const auto at = index.to_vector<std::int64_t>();
    const auto from = x.to_vector<float>(), have = picked.to_vector<float>();
    bool right = true;
    std::vector<double> sums(600 * 50);
    for (std::size_t i = 0; i < have.size(); ++i) {
        const std::size_t place = i / 200 * 50 + static_cast<std::size_t>(at[i]);
        right &= have[i] == from[place];
        sums[place] += have[i];
    }
    CHECK(right);
    const auto total = back.to_vector<double>();
    for (std::size_t i = 0; i < sums.size(); ++i) right &= std::abs(total[i] - sums[i]) < 1e-3;
    CHECK(right);
    CHECK(all(gather(x.t(), 0, index.t()) == picked.t()).item<bool>());
}

// --- Masks -----------------------------------------------------------------------------------------------------------

TEST_CASE("where keeps the tensors' dtype beside numbers", "[mask]") {
    const Tensor mask = tensor({true, false, true});
    CHECK(where(mask, ones({3}, float16), 0.5).dtype() == float16);
    CHECK(where(mask, 0, ones({3}, bfloat16)).dtype() == bfloat16);
    CHECK(where(mask, ones({3}, int32), 2).dtype() == int32);
    CHECK(where(mask, ones({3}, int32), 0.5).dtype() == float32);
    CHECK(where(mask, mask, 2).dtype() == int64);
    CHECK(where(mask, mask, false).dtype() == bool_);
    CHECK(where(mask, 1.0, 2).dtype() == float32);
    CHECK(where(mask, 1, 2).dtype() == int64);
    CHECK(where(mask, ones({3}), tensor(1.0, float64)).dtype() == float32);
    CHECK(where(mask, ones({3}), ones({3}, float64)).dtype() == float64);
    check(where(mask, 1.0, -1.0), {3}, {1, -1, 1});
    check(where(mask, tensor({1, 2, 3}), 0.5), {3}, {1, 0.5, 3});
    check(where(mask, tensor({{1.0}, {2.0}}), tensor(7.0)), {2, 3}, {1, 7, 1, 2, 7, 2});
    check(where(zeros({0}, bool_), zeros({0}), 1), {0}, {});
    const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
    check(where(mask, tensor({inf, nan, -0.0}), 2), {3}, {inf, 2, -0.0});
    for (const DType dtype : {bool_, uint8, int32, int64, float16, bfloat16, float32, float64}) {
        const Tensor big = arange(100).remainder(2).to(dtype), holds = arange(100) % 3 == 0;
        check(where(holds, big, tensor(1).to(dtype)), {100}, where(holds, big.to(float64), 1.0).to_vector<double>());
    }
}

TEST_CASE("large and broadcast choices on threads", "[mask]") {
    const Tensor mask = randn({300, 1}) > 0, a = randn({300, 400}), b = randn({400, 300}).t();
    const Tensor chosen = where(mask, a, b);
    CHECK(all(chosen == mask.to(float32) * a + (!mask).to(float32) * b).item<bool>());
    const Tensor flat = randn({200000}), half = flat > 0;
    CHECK(all(where(half, flat, 0) == flat.relu()).item<bool>());
}

TEST_CASE("masked_fill, masked_select, nonzero", "[mask]") {
    const Tensor mask = tensor({{true, false}, {false, true}}), x = tensor({{1, 2}, {3, 4}});
    check(masked_fill(x, mask, 9), {2, 2}, {9, 2, 3, 9});
    CHECK(masked_fill(ones({2}, float16), mask[0], 2.5).dtype() == float16);
    check(masked_fill(ones({2}), mask, tensor(5)), {2, 2}, {5, 1, 1, 5});
    check(masked_select(x, mask), {2}, {1, 4});
    check(masked_select(x.t(), mask[0]), {2}, {1, 2});
    check(masked_select(tensor(3), tensor(true)), {1}, {3});
    check(nonzero(x - 2), {3, 2}, {0, 0, 1, 0, 1, 1});
    check(nonzero(tensor({0.0, 0.5, std::numeric_limits<double>::quiet_NaN()})), {2, 1}, {1, 2});
    check(nonzero(tensor(5)), {1, 0}, {});
    check(nonzero(tensor(0)), {0, 0}, {});
    check(nonzero(zeros({0, 3})), {0, 2}, {});
    CHECK(nonzero(mask).dtype() == int64);
    manual_seed(6);
    for (const Shape& shape : {Shape{5, 700}, Shape{3, 4, 5}, Shape{2, 3, 1, 300}, Shape{1000}}) {  // dense and sparse masks, long rows
        for (const double p : {0.5, 0.01}) {
            const Tensor found = bernoulli(shape, p), places = nonzero(found);
            std::vector<double> expected;
            const std::vector<double> all = found.to_vector<double>();
            for (std::size_t i = 0; i < all.size(); ++i) {
                if (all[i] == 0) continue;
                auto stride = static_cast<std::size_t>(found.numel());
                std::size_t rest = i;
                for (const std::int64_t size : shape) {
                    stride /= static_cast<std::size_t>(size);
                    expected.push_back(static_cast<double>(rest / stride));
                    rest %= stride;
                }
            }
            check(places, {static_cast<std::int64_t>(expected.size()) / shape.rank(), shape.rank()}, expected);
        }
    }

    Tensor v = ones({2}).requires_grad_(), value = tensor(5.0).requires_grad_();
    Tape tape;
    (masked_fill(v, mask, value) * tensor({{1.0, 2.0}, {3.0, 4.0}})).sum().backward();
    check(v.grad(), {2}, {3, 2});
    check(value.grad(), {}, {5});
}

// --- Embedding -------------------------------------------------------------------------------------------------------

TEST_CASE("embedding: index dtypes, strides, padding", "[embedding]") {
    Tensor weight = tensor({{0.0, 1.0}, {2.0, 3.0}, {4.0, 5.0}});
    check(embedding(tensor({2, 0}).to(int32), weight), {2, 2}, {4, 5, 0, 1});
    check(embedding(tensor({{2}, {1}}), weight), {2, 1, 2}, {4, 5, 2, 3});
    check(embedding(tensor(2), weight), {2}, {4, 5});
    check(embedding(tensor({0, 1}), weight.t()), {2, 3}, {0, 2, 4, 1, 3, 5});
    check(embedding(tensor({1}), weight.t()), {1, 3}, {1, 3, 5});
    check(embedding(arange(6).reshape({3, 2}).select(1, 0).remainder(3), weight), {3, 2}, {0, 1, 4, 5, 2, 3});
    CHECK(embedding(tensor({1}), weight.to(float16)).dtype() == float16);

    weight.requires_grad_();
    Tape tape;
    embedding(tensor({1, 0, 1, 1}), weight, /*padding_idx=*/1).sum().backward();
    check(weight.grad(), {3, 2}, {1, 1, 0, 0, 0, 0});
    embedding(tensor(1), weight, 1).sum().backward();
    embedding(tensor(1), weight).sum().backward();
    (embedding(tensor({2, 2}), weight) * 2).sum().backward();
    check(weight.grad(), {3, 2}, {1, 1, 1, 1, 4, 4});
}

TEST_CASE("one_hot", "[embedding]") {
    check(one_hot(tensor({1, 0}), 3), {2, 3}, {0, 1, 0, 1, 0, 0});
    check(one_hot(tensor({{2}})), {1, 1, 3}, {0, 0, 1});
    check(one_hot(zeros({0}, int64), 3), {0, 3}, {});
    CHECK(one_hot(tensor(1)).dtype() == int64);
}

// --- Arranging -------------------------------------------------------------------------------------------------------

TEST_CASE("tril, triu, flip, roll, repeat and pad give copies of any dtype", "[arrange]") {
    const Tensor x = tensor({{1, 2, 3}, {4, 5, 6}});
    check(tril(x.t()), {3, 2}, {1, 0, 2, 5, 3, 6});
    check(triu(x, std::numeric_limits<std::int64_t>::max()), {2, 3}, {0, 0, 0, 0, 0, 0});
    check(triu(x, std::numeric_limits<std::int64_t>::min()), {2, 3}, {1, 2, 3, 4, 5, 6});
    check(tril(zeros({2, 0})), {2, 0}, {});
    check(flip(x.t(), {0}), {3, 2}, {3, 6, 2, 5, 1, 4});
    check(flip(x, {}), {2, 3}, {1, 2, 3, 4, 5, 6});
    check(flip(zeros({0, 2}), {0, 1}), {0, 2}, {});
    check(flip(tensor(5), {0}), {}, {5});
    check(roll(x, {1, 1}, {0, 1}), {2, 3}, {6, 4, 5, 3, 1, 2});
    check(roll(x, {1, 1}, {1, -1}), {2, 3}, {2, 3, 1, 5, 6, 4});
    check(roll(x, 1), {2, 3}, {6, 1, 2, 3, 4, 5});
    check(roll(zeros({0, 2}), {3}, {0}), {0, 2}, {});
    check(repeat(x.t(), {1, 2}), {3, 4}, {1, 4, 1, 4, 2, 5, 2, 5, 3, 6, 3, 6});
    CHECK(all(repeat(x.to(bool_), {2, 2, 2})).item<bool>());
    check(pad(x, {1, -1}, 7), {2, 3}, {7, 1, 2, 7, 4, 5});
    check(pad(x, {-3, 1, 0, 0}, 7), {2, 1}, {7, 7});
    check(pad(x, {0, 0, -2, 0}), {0, 3}, {});
    check(pad(zeros({0}), {1, 1}, 0.5), {2}, {0.5, 0.5});
    CHECK(pad(x, {1, 1}).dtype() == int64);
    CHECK_FALSE(pad(x, {}).shares_storage(x));
    CHECK_FALSE(flip(x, {}).shares_storage(x));
    CHECK_FALSE(repeat(x, {1, 1}).shares_storage(x));
}

TEST_CASE("repeat works in eight dimensions", "[arrange]") {
    const Shape twos{2, 2, 2, 2, 2, 2, 2, 2};
    Tensor x = arange(256).to(float32).reshape(twos).requires_grad_();
    Tape tape;
    const Tensor y = repeat(x, twos);
    bool right = true;
    for (int i = 0; i < 65536; i += 97) {
        std::int64_t from = 0, place = i;
        for (int d = 0; d < 8; ++d, place /= 4) from += place % 4 % 2 << d;
        right &= y.reshape({-1}).at<float>({i}) == static_cast<float>(from);
    }
    CHECK(right);
    y.sum().backward();
    CHECK(all(x.grad() == 256).item<bool>());
}

// --- Mistakes --------------------------------------------------------------------------------------------------------

TEST_CASE("mistakes in joining and gathering", "[indexing]") {
    const Tensor v = ones({3}), m = ones({2, 3}), i = tensor({0, 1}), far = tensor({0, 7}), none;
    FAILS(ShapeError, "cat: shapes (3,) and (2, 3)", cat({v, m}));
    FAILS(ShapeError, "cat: shapes (2, 3) and (2, 2)", cat({m, m.narrow(1, 0, 2)}));
    FAILS(ShapeError, "0-d", cat({tensor(1.0), tensor(2.0)}));
    FAILS(ShapeError, "cat", cat({ones({0, 3}), ones({2, 2})}));
    FAILS(IndexError, "cat: dimension 2", cat({m, m}, 2));
    FAILS(IndexError, "cat: dimension 1", cat({zeros({0})}, 1));
    FAILS(ValueError, "at least one", cat(std::vector<Tensor>{}));
    FAILS(ValueError, "undefined", cat({v, none}));
    FAILS(ShapeError, "stack: shapes (3,) and (2, 3)", stack({v, m}));
    FAILS(IndexError, "stack: dimension -3", stack({v, v}, -3));
    FAILS(ShapeError, "gather: an index of shape (2,) does not fit shape (2, 3)", gather(m, 0, i));
    FAILS(ShapeError, "does not fit", gather(m, 1, zeros({3, 1}, int64)));
    FAILS(IndexError, "gather: index 7 is out of range for dimension 0 of shape (3,)", gather(v, 0, far));
    FAILS(DTypeError, "gather: an index tensor must be int64 or int32, not float32", gather(v, 0, v));
    FAILS(DTypeError, "scatter: src is float64, but x is float32", scatter(v, 0, i, ones({2}, float64)));
    FAILS(ShapeError, "scatter: an index of shape (2,) does not fit src of shape (1,)", scatter(v, 0, i, ones({1})));
    FAILS(DTypeError, "scatter: a floating-point value", scatter(tensor({1, 2}), 0, i, 0.5));
    FAILS(IndexError, "scatter_add: index 7", scatter_add(v, 0, far, ones({2})));
    FAILS(ShapeError, "index_select: the index must be 1-d", index_select(v, 0, zeros({1, 1}, int64)));
    FAILS(ShapeError, "0-d", index_select(tensor(1.0), 0, i));
    FAILS(IndexError, "index_select: index 7 is out of range for dimension 1 of shape (2, 3)", index_select(m, 1, far));
    FAILS(ShapeError, "index_add: src must be of shape (2,), got (3,)", index_add(v, 0, i, v));
    FAILS(DTypeError, "index_add", index_add(v, 0, i, ones({2}, int64)));
}

TEST_CASE("mistakes with masks, classes and arrangements", "[indexing]") {
    const Tensor v = ones({3}), m = ones({2, 3}), mask = tensor({true, false, true}), none;
    FAILS(DTypeError, "where: the mask must be bool, not float32", where(v, v, v));
    FAILS(ShapeError, "where", where(mask, v, ones({2})));
    FAILS(ShapeError, "where", where(tensor({true, false}), v, v));
    FAILS(ValueError, "where", where(mask, none, 1));
    FAILS(DTypeError, "masked_fill: a floating-point value cannot be written into int64", masked_fill(tensor({1, 2, 3}), mask, 0.5));
    FAILS(ShapeError, "masked_fill: the value must be a number", masked_fill(v, mask, v));
    FAILS(DTypeError, "masked_select", masked_select(v, v));
    FAILS(ShapeError, "masked_select", masked_select(ones({2}), mask));
    FAILS(ShapeError, "embedding: the weight must be (rows, width), got shape (3,)", embedding(tensor({0}), v));
    FAILS(IndexError, "embedding: index 2 is out of range for dimension 0 of shape (2, 3)", embedding(tensor(2), m));
    FAILS(IndexError, "embedding: index -3 is out of range for dimension 0 of shape (2, 3)", embedding(tensor({0, -3}), m));
    // As in PyTorch, the last row is not -1: a mask's or a padding's -1 would be taken for it.
    for (const Tensor& index : {tensor({0, -1}), tensor(-1), tensor({{-1}}), tensor(-1, int32), tensor({0, 1, -1}).narrow(0, 1, 2)}) {
        FAILS_IN(IndexError, "embedding: index -1 is out of range for dimension 0 of shape (2, 3)", "; negative ones do not count from the end",
                 embedding(index, m));
    }
    FAILS(IndexError, "embedding_bag: index -1 is out of range", embedding_bag(tensor({{0, -1}}), m));
    FAILS(IndexError, "embedding: index -1", nn::Embedding(4, 2, {.padding_idx = -1})(tensor(-1)));
    FAILS(IndexError, "padding_idx 2", embedding(tensor({0}), m, 2));
    FAILS(IndexError, "padding_idx -3", embedding(tensor({0}), m, -3));
    FAILS(DTypeError, "embedding", embedding(v, m));
    FAILS(DTypeError, "one_hot", one_hot(v));
    FAILS(IndexError, "one_hot: class 3 is out of range for 3 classes", one_hot(tensor({3}), 3));
    FAILS(IndexError, "one_hot: class -1 is out of range for 3 classes", one_hot(tensor({-1}), 3));
    FAILS(ValueError, "one_hot: a class must not be negative, got -1", one_hot(tensor({-1})));
    FAILS(ValueError, "one_hot", one_hot(zeros({0}, int64)));
    FAILS(ValueError, "one_hot", one_hot(tensor({0}), 0));
    FAILS(ShapeError, "tril: needs a matrix, got shape (3,)", tril(v));
    FAILS(IndexError, "flip: dimension 1", flip(v, {1}));
    FAILS(IndexError, "flip: dimension 0 is named twice", flip(v, {0, -1}));
    FAILS(ShapeError, "roll: 1 shifts for 2 dimensions", roll(m, {1}, {0, 1}));
    FAILS(IndexError, "roll: dimension 5", roll(m, {1}, {5}));
    FAILS(ShapeError, "repeat: (2,) has fewer dimensions than shape (2, 3)", repeat(m, {2}));
    FAILS(ValueError, "negative", repeat(v, {-1}));
    FAILS(OutOfMemory, "repeat", repeat(v, {std::numeric_limits<std::int64_t>::max()}));
    FAILS(ValueError, "pad: widths come in pairs, got 3", pad(m, {1, 1, 1}));
    FAILS(ShapeError, "pad: 4 widths are too many for shape (3,)", pad(v, {1, 1, 1, 1}));
    FAILS(ShapeError, "pad: widths -2 and -2 cut off more than dimension 0 of shape (3,) has", pad(v, {-2, -2}));
    FAILS(ValueError, "pad: width", pad(v, {0, std::numeric_limits<std::int64_t>::max()}));
    FAILS(DTypeError, "pad", pad(tensor({1, 2}), {1, 1}, 0.5));
}

TEST_CASE("scatter_reduce of more 16-bit elements than their dtype counts to has its gradient") {
    const std::int64_t n = 70000;
    for (const char* reduce : {"mean", "amax"}) {
        const Tensor x = zeros({2}, float16), src = ones({n}, float16).requires_grad_();
        Tape tape;
        const Tensor y = scatter_reduce(x, 0, zeros({n}, int64), src, reduce, /*include_self=*/false);
        tape.backward(y[0]);
        CHECK(src.grad()[0].item() == Approx(1.0 / static_cast<double>(n)).epsilon(0.01));
    }
}

TEST_CASE("scatter_reduce_ refuses before it works, in its own name, and writes into views and over its own index") {
    Tensor leaf = zeros({3}).requires_grad_();
    const Tensor index = tensor({0, 0, 2}), src = tensor({1.0f, 2.0f, 3.0f});
    Tape tape;
    FAILS(TapeError, "scatter_reduce_: a leaf that requires a gradient", leaf.scatter_reduce_(0, index, src, "sum"));
    CHECK(tape.size() == 0);
    FAILS(ValueError, "scatter_reduce_: several elements", zeros({1}).expand({3}).scatter_reduce_(0, index, src, "sum"));
    Tensor whole = ones({3, 2});
    whole.t()[1].scatter_reduce_(0, index, src, "prod");
    CHECK(whole.to_vector<float>() == std::vector<float>{1, 2, 1, 1, 1, 3});
    Tensor own = tensor({1, 0, 0});
    own.scatter_reduce_(0, own, tensor({5, 6, 7}), "amax");
    CHECK(own.to_vector<int>() == std::vector<int>{7, 5, 0});
}
