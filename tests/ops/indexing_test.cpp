// Indexing with numbers, slices, masks and tensors: against NumPy's results (made with NumPy 2 and written down here),
// what is shared and what is copied, writing through an index, gradients, and mistakes.
#include <catch2/catch.hpp>
#include <numeric>

#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

using Values = std::vector<double>;

// 0, 1, 2, ... in this shape.
Tensor counted(const Shape& shape) { return arange(shape.numel()).to(float32).reshape(shape); }

void check(const Tensor& have, const Shape& shape, const Values& values) {
    CHECK(have.shape() == shape);
    CHECK(have.to_vector<double>() == values);
}

const Tensor i = tensor({1, 0}), j = tensor({2, 0}), column = tensor({{0}, {1}});

}  // namespace

TEST_CASE("integers, slices, None and Ellipsis are views", "[indexing]") {
    const Tensor x = counted({2, 3, 4});
    check(x[1], {3, 4}, {12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23});
    check(x[-1][0][-1], {}, {15});
    check(x[Slice(1, 2)][0][Slice(0, 3, 2)], {2, 4}, {12, 13, 14, 15, 20, 21, 22, 23});
    check(x.index({0, 1}), {4}, {4, 5, 6, 7});
    check(x.index({0, Slice(), -1}), {3}, {3, 7, 11});
    check(x.index({Ellipsis, 2}), {2, 3}, {2, 6, 10, 14, 18, 22});
    check(x.index({1, Ellipsis, Slice(2)}), {3, 2}, {14, 15, 18, 19, 22, 23});
    check(x.index({None, 1, None, 0, Slice(1, -1)}), {1, 1, 2}, {13, 14});
    check(x.index({Slice(), Slice(), Slice(), Ellipsis, None}), {2, 3, 4, 1}, x.to_vector<double>());
    check(x.index({Slice(0, 100, 5), Slice(-2), Slice(-100, 1)}), {1, 2, 1}, {4, 8});
    check(x.index({Slice(2), 0}), {0, 4}, {});
    check(x.index({Slice(1, 0), Slice(5, 2)}), {0, 0, 4}, {});
    check(x[None], {1, 2, 3, 4}, x.to_vector<double>());
    check(x[Ellipsis], {2, 3, 4}, x.to_vector<double>());
    check(x.index({}), {2, 3, 4}, x.to_vector<double>());
    check(x.permute({2, 0, 1}).index({Slice(1, 3), 1, Slice(0, 3, 2)}), {2, 2}, {13, 21, 14, 22});
    for (const Tensor& view : {x[1], x[Slice(1)], x[None], x[Ellipsis], x.index({0, Slice(), -1})}) {
        CHECK(view.shares_storage(x));
    }
    x.index({0, Slice(), -1}).fill_(-1);
    check(x[0], {3, 4}, {0, 1, 2, -1, 4, 5, 6, -1, 8, 9, 10, -1});
}

TEST_CASE("an index made at run time reads and writes as the list does", "[indexing]") {
    const Tensor x = counted({2, 3, 4});
    for (int d = 0; d < 3; ++d) {
        std::vector<Index> at(3, Slice());
        at[static_cast<std::size_t>(d)] = 1;
        CHECK(equal(x.index(at), x.select(d, 1)));
        CHECK(x.index(at).shares_storage(x));
        Tensor y = x.clone(), z = x.clone();
        y.index_put_(at, 7);
        z.select(d, 1).fill_(7);
        CHECK(equal(y, z));
        y.index_put_(at, x.select(d, 0));
        CHECK(equal(y.select(d, 1), x.select(d, 0)));
    }
    std::vector<Index> mixed = {Ellipsis, tensor({3, 0}), None};  // it holds its tensors
    CHECK(equal(x.index(mixed), x.index({Ellipsis, tensor({3, 0}), None})));
    mixed = {x > 20};
    check(x.index(mixed), {3}, {21, 22, 23});
    CHECK(x.index(std::vector<Index>()).shape() == x.shape());
    FAILS(IndexError, "index 5 is out of range for dimension 0", x.index(std::vector<Index>{5}));
    FAILS(IndexError, "4 indices are too many", Tensor(x).index_put_(std::vector<Index>(4, Slice()), 1));
}

TEST_CASE("index tensors and masks give NumPy's numbers", "[indexing]") {
    const Tensor x = counted({2, 3, 4});
    const Tensor mask = tensor({{true, false, false, true}, {false, false, true, false}, {false, true, false, false}});
    check(x[i], {2, 3, 4}, {12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
    check(x.index({Slice(), j}), {2, 2, 4}, {8, 9, 10, 11, 0, 1, 2, 3, 20, 21, 22, 23, 12, 13, 14, 15});
    check(x.index({i, j}), {2, 4}, {20, 21, 22, 23, 0, 1, 2, 3});
    check(x.index({Slice(), j, i}), {2, 2}, {9, 0, 21, 12});
    check(x.index({column, j}), {2, 2, 4}, {8, 9, 10, 11, 0, 1, 2, 3, 20, 21, 22, 23, 12, 13, 14, 15});
    check(x.index({Ellipsis, j, Slice(1, 3)}), {2, 2, 2}, {9, 10, 1, 2, 21, 22, 13, 14});
    check(x.index({Slice(), None, j, Slice(0, Slice::kOpen, 2)}), {2, 1, 2, 2}, {8, 10, 0, 2, 20, 22, 12, 14});
    check(x.index({i, Slice(), Slice(1, 3)}), {2, 3, 2}, {13, 14, 17, 18, 21, 22, 1, 2, 5, 6, 9, 10});
    check(x.index({Slice(), tensor({-1, -2})}), {2, 2, 4}, {8, 9, 10, 11, 4, 5, 6, 7, 20, 21, 22, 23, 16, 17, 18, 19});
    check(x[tensor({1}).to(int32)], {1, 3, 4}, {12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23});
    check(x.permute({2, 0, 1}).index({Slice(), i}), {4, 2, 3},
          {12, 16, 20, 0, 4, 8, 13, 17, 21, 1, 5, 9, 14, 18, 22, 2, 6, 10, 15, 19, 23, 3, 7, 11});

    SECTION("separated index tensors come first") {
        check(x.index({i, Slice(), j}), {2, 3}, {14, 18, 22, 0, 4, 8});
        check(x.index({column, Slice(), j}), {2, 2, 3}, {2, 6, 10, 0, 4, 8, 14, 18, 22, 12, 16, 20});
        check(x.index({i, None, j}), {2, 1, 4}, {20, 21, 22, 23, 0, 1, 2, 3});
    }
    SECTION("integers select first, as in PyTorch") {
        check(x.index({1, Slice(), j}), {3, 2}, {14, 12, 18, 16, 22, 20});
        check(x.index({1, Slice(0, 2), j}), {2, 2}, {14, 12, 18, 16});
        check(x.index({i, 1, j}), {2}, {18, 4});
    }
    SECTION("masks") {
        check(x.index({Slice(), mask}), {2, 4}, {0, 3, 6, 9, 12, 15, 18, 21});
        check(x[x % 5 == 0], {5}, {0, 5, 10, 15, 20});
        check(x.index({tensor({true, false}), Slice(), j}), {2, 3}, {2, 6, 10, 0, 4, 8});
        check(x.index({Slice(), tensor({true, false, true}), j}), {2, 2}, {2, 8, 14, 20});
        check(x.transpose(1, 2).index({0, mask.t()}), {4}, {0, 9, 6, 3});
        check(x[tensor({false, false})], {0, 3, 4}, {});
        check(x[tensor(true)], {1, 2, 3, 4}, x.to_vector<double>());
        check(x[tensor(false)], {0, 2, 3, 4}, {});
    }
    SECTION("few") {
        check(x[tensor(1)], {3, 4}, {12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23});
        check(x[zeros({0}, int64)], {0, 3, 4}, {});
        check(zeros({0, 3}).index({Slice(), i}), {0, 2}, {});
        check(zeros({0, 3}).index({zeros({0}, int64)}), {0, 3}, {});
        CHECK_FALSE(x[i].shares_storage(x));
        CHECK_FALSE(x[tensor(1)].shares_storage(x));
    }
}

TEST_CASE("all dtypes and large tables can be indexed", "[indexing]") {
    for (const DType dtype : {bool_, uint8, int32, int64, float16, bfloat16, float32, float64}) {
        const Tensor x = tensor({{0, 1}, {1, 0}, {1, 1}}).to(dtype), rows = x[tensor({2, 0})];
        CHECK(rows.dtype() == dtype);
        check(rows, {2, 2}, {1, 1, 0, 1});
        check(x.index({tensor({2, 0}), tensor({0, 0})}), {2}, {1, 0});
        Tensor y = x.clone();
        y.index_put_({tensor({0, 0, 1})}, tensor({{1.0, 1.0}, {0.0, 1.0}, {1.0, 1.0}}));
        check(y, {3, 2}, {0, 1, 1, 1, 1, 1});
    }
    const Tensor x = randn({1000, 130}), index = randint(1000, {700});  // enough for several threads
    const Tensor rows = x[index], columns = x.t().contiguous().index({Slice(), index});
    const std::vector<float> flat = x.to_vector<float>(), have = rows.to_vector<float>();
    const std::vector<std::int64_t> at = index.to_vector<std::int64_t>();
    bool same = true;
    for (std::size_t r = 0; r < 700; ++r) {
        for (std::size_t c = 0; c < 130; ++c) same &= have[r * 130 + c] == flat[static_cast<std::size_t>(at[r]) * 130 + c];
    }
    CHECK(same);
    CHECK(all(columns == rows.t()).item<bool>());
    const Tensor elements = x.index({index, index % 130});
    CHECK(elements.at<float>({699}) == x.at<float>({at[699], at[699] % 130}));
}

TEST_CASE("gradients flow back through an index", "[indexing]") {
    Tensor x = counted({2, 3, 4}).requires_grad_();
    SECTION("of views in one record, of tensors added up") {
        Tape tape;
        (x.index({0, Slice(1, 3), 0}).sum() * 2 + x[tensor({1, 1, 1})].sum() + x.permute({2, 0, 1}).index({1, i, j}).sum()).backward();
        check(x.grad(), {2, 3, 4}, {0, 1, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4, 3, 3});
    }
    SECTION("masked") {
        Tape tape;
        (x[x > 20] * tensor({1.0, 2.0, 3.0})).sum().backward();
        check(x.grad()[1][2], {4}, {0, 1, 2, 3});
        CHECK(x.grad().sum().item() == 6);
    }
    SECTION("many small numbers add up in bfloat16") {
        Tensor one = ones({1}, bfloat16).requires_grad_();
        Tape tape;
        one[zeros({1000}, int64)].to(float32).sum().backward();
        CHECK(one.grad().item() == 1000);
    }
}

TEST_CASE("index_put_ writes through any index", "[indexing]") {
    Tensor x = counted({2, 3, 4});
    SECTION("views") {
        x.index_put_({0, 1}, -1).index_put_({Slice(), 2, Slice(0, 4, 2)}, tensor({-2.0, -3.0}));
        check(x, {2, 3, 4}, {0, 1, 2, 3, -1, -1, -1, -1, -2, 9, -3, 11, 12, 13, 14, 15, 16, 17, 18, 19, -2, 21, -3, 23});
        x.index_put_({Ellipsis}, 7);
        CHECK(all(x == 7).item<bool>());
    }
    SECTION("masks and tensors, the last of equal positions wins") {
        x.index_put_({x > 1}, 0).index_put_({tensor({0, 0}), tensor({0, 0}), tensor({3, 3})}, tensor({5.0, 6.0}));
        check(x, {2, 3, 4}, {0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
        x.index_put_({i, Slice(), j}, tensor({{1.0, 2.0, 3.0}}));
        check(x, {2, 3, 4}, {1, 1, 0, 6, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0});
        x.index_put_({zeros({0}, int64)}, 9);
        CHECK_FALSE(any(x == 9).item<bool>());
    }
    SECTION("non-contiguous tensors, other dtypes") {
        x.permute({2, 0, 1}).index_put_({tensor({3}), 1}, tensor({7, 8, 9}));
        check(x.index({1, Slice(), 3}), {3}, {7, 8, 9});
    }
    SECTION("values that overlap with what is written") {
        x.index_put_({0, Slice(1)}, x.index({0, Slice(0, 2)}));
        check(x[0], {3, 4}, {0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7});
        x.index_put_({Slice()}, x);
        check(x[0], {3, 4}, {0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7});
    }
}

TEST_CASE("index_put_ adds as often as a position comes", "[indexing]") {
    const Tensor rows = tensor({1, -1, 1}), columns = tensor({0, 2, 0});
    for (const DType dtype : {uint8, int32, int64, float16, bfloat16, float32, float64}) {
        for (const bool is_turned : {false, true}) {
            Tensor x = is_turned ? ones({3, 2}, dtype).t() : ones({2, 3}, dtype);
            x.index_put_({rows}, tensor({{1, 2, 3}, {10, 20, 30}, {5, 5, 5}}).to(dtype), true);
            CHECK(x.to_vector<double>() == std::vector<double>{1, 1, 1, 17, 28, 39});
            x.index_put_({rows, columns}, 2, true);
            CHECK(x.to_vector<double>() == std::vector<double>{1, 1, 1, 21, 28, 41});
            x.index_put_({0}, tensor({1, 2, 3}), true);
            CHECK(x.to_vector<double>() == std::vector<double>{2, 3, 4, 21, 28, 41});
            x.index_put_({Slice(), Slice(1, 3)}, 1, true).index_put_({x > 40}, 1, true);
            CHECK(x.to_vector<double>() == std::vector<double>{2, 4, 5, 21, 29, 43});
        }
    }
    Tensor many = zeros({2}, float16);
    many.index_put_({zeros({3000}, int64)}, 1, true);
    CHECK(many.to_vector<double>() == std::vector<double>{3000, 0});
    Tensor own = tensor({1, 2, 3});
    own.index_put_({tensor({0, 0, 2})}, own, true);
    CHECK(own.to_vector<int>() == std::vector<int>{4, 2, 6});
    FAILS(ShapeError, "index_put_: a value of shape (2,) cannot be written into a region of shape (3,)",
          own.index_put_({tensor({0, 0, 2})}, tensor({1, 2}), true));
    CHECK(own.to_vector<int>() == std::vector<int>{4, 2, 6});
}

TEST_CASE("index_put_ is recorded on the tensor itself", "[indexing]") {
    Tensor a = tensor({1.0, 2.0}).requires_grad_(), b = tensor({3.0, 4.0}).requires_grad_();
    SECTION("a preallocated tensor is filled") {
        Tape tape;
        Tensor out = zeros({3, 2});
        out.index_put_({0}, a * 2).index_put_({tensor({2})}, b).index_put_({1}, -out[0]);
        check(out, {3, 2}, {2, 4, -2, -4, 3, 4});
        (out * tensor({{1.0, 10.0}, {100.0, 1000.0}, {5.0, 7.0}})).sum().backward();
        check(a.grad(), {2}, {2 * (1 - 100), 2 * (10 - 1000)});
        check(b.grad(), {2}, {5, 7});
    }
    SECTION("what is overwritten gets no gradient") {
        Tape tape;
        Tensor out = a * 1;
        out.index_put_({0}, 5).index_put_({tensor({false, true})}, b[0]);
        check(out, {2}, {5, 3});
        out.sum().backward();
        check(a.grad(), {2}, {0, 0});
        check(b.grad(), {2}, {1, 0});
    }
    SECTION("equal positions: only the last value counts") {
        Tensor values = tensor({{1.0, 1.0}, {2.0, 2.0}, {3.0, 3.0}}).requires_grad_();
        Tape tape;
        Tensor out = zeros({2, 2});
        out.index_put_({tensor({1, 0, 1})}, values);
        check(out, {2, 2}, {2, 2, 3, 3});
        (out * out).sum().backward();
        check(values.grad(), {3, 2}, {0, 0, 4, 4, 6, 6});
    }
    SECTION("values broadcast") {
        Tape tape;
        Tensor out = zeros({3, 2});
        out.index_put_({Slice(1)}, a).index_put_({0, 0}, b[1]);
        out.sum().backward();
        check(a.grad(), {2}, {2, 2});
        check(b.grad(), {2}, {0, 1});
    }
    SECTION("a view of the tensor itself as value") {
        Tape tape;
        Tensor out = a * 1;
        out.index_put_({0}, -out[1]).index_put_({1}, out[0]);
        (out * tensor({1.0, 10.0})).sum().backward();
        check(a.grad(), {2}, {0, -11});
    }
    SECTION("second derivatives") {
        Tape tape;
        Tensor out = zeros({3});
        out.index_put_({Slice(0, 2)}, a * a).index_put_({tensor({2, 2})}, b * b * b);
        const Tensor y = (out * out).sum();  // a^4 + b1^6
        const std::vector<Tensor> first = tape.gradient(y, {a, b}, {Tensor(), true});
        check(first[0], {2}, {4, 32});
        check(first[1], {2}, {0, 6 * 1024});
        const std::vector<Tensor> second = tape.gradient(first[0].sum() + first[1].sum(), {a, b});
        check(second[0], {2}, {12, 48});
        check(second[1], {2}, {0, 30 * 256});
    }
}

TEST_CASE("filling a long tensor step by step costs each step once", "[indexing]") {
    // 20,000 rows; a gradient copied as a whole at every step would be 20,000 * 20,000 * 8 bytes.
    constexpr int n = 20000;
    Tensor w = ones({2}).requires_grad_();
    Tape tape;
    Tensor out = zeros({n, 2});
    for (int r = 0; r < n; ++r) out.index_put_({r}, w);
    out.sum().backward();
    check(w.grad(), {2}, {n, n});
}

TEST_CASE("mistakes in an index", "[indexing]") {
    Tensor x = counted({2, 3});
    const Tensor before = x.clone();
    const Tensor floats = tensor({0.0}), bytes = zeros({2}, uint8), undefined;
    FAILS(IndexError, "index 2 is out of range for dimension 0 of shape (2, 3)", x[2]);
    FAILS(IndexError, "index -4 is out of range for dimension 1 of shape (2, 3)", x.index({Slice(), -4}));
    FAILS(IndexError, "index 5 is out of range for dimension 1 of shape (2, 3)", x.index({Slice(), tensor({0, 5})}));
    FAILS(IndexError, "index -3 is out of range for dimension 0 of shape (2, 3)", x[tensor({0, -3})]);
    FAILS(IndexError, "3 indices are too many for shape (2, 3)", x.index({0, 0, 0}));
    FAILS(IndexError, "too many", x.index({Ellipsis, 0, x > 0}));
    FAILS(IndexError, "too many", tensor(1.0).index({0}));
    FAILS(IndexError, "cannot be indexed", tensor(1.0)[0]);
    FAILS(IndexError, "only one Ellipsis", x.index({Ellipsis, Ellipsis}));
    FAILS(IndexError, "a mask of shape (3,) does not fit dimension 0 of shape (2, 3)", x[tensor({true, true, true})]);
    FAILS(IndexError, "too many", x.index({Slice(), x > 0}));
    FAILS(ShapeError, "index", x.index({tensor({0, 1}), tensor({0, 1, 2})}));
    FAILS(DTypeError, "float32", x[floats]);
    FAILS(DTypeError, "uint8", x[bytes]);
    FAILS(ValueError, "undefined", x[undefined]);
    FAILS(ValueError, "undefined", undefined[0]);
    FAILS(ValueError, "step", x[Slice(0, 2, 0)]);
    FAILS(ValueError, "step", x.index({0, Slice(0, 2, -1)}));
    FAILS(ShapeError, "", x.index({None, None, None, None, None, None, None}));
    FAILS(IndexError, "index 3", x.index_put_({0, 3}, 1));
    FAILS(IndexError, "index_put_: index 9", x.index_put_({tensor({0, 9})}, 1));
    FAILS(ShapeError, "value of shape (3,) cannot be written into a region of shape (2,)", x.index_put_({Slice(), 0}, tensor({1.0, 2.0, 3.0})));
    FAILS(ShapeError, "cannot be written", x.index_put_({0}, ones({1, 3})));
    FAILS(ValueError, "undefined", x.index_put_({0}, undefined));
    CHECK(all(x == before).item<bool>());
    CHECK(x.impl()->storage->version == 0);

    Tensor leaf = ones({3}).requires_grad_();
    const Tape tape;
    FAILS(TapeError, "leaf", leaf.index_put_({0}, 1));
    Tensor made = leaf * 1, view = made[Slice(1)];
    FAILS(TapeError, "view", view.index_put_({0}, 1));
    Tensor whole = zeros({3}), part = whole[Slice(1)];
    FAILS(TapeError, "view", part.index_put_({0}, leaf[0]));
    CHECK(sum(leaf + made.sum() + part.sum()).item() == 12);
}

TEST_CASE("saved indices must stay what they were", "[indexing]") {
    Tensor x = ones({3}).requires_grad_(), at = tensor({0, 2});
    Tape tape;
    const Tensor y = x[at];
    at.fill_(1);
    CHECK_THROWS_AS(y.sum().backward(), TapeError);
}

TEST_CASE("index_put_ whose index is the tensor itself reads it before it writes") {
    for (const bool accumulate : {false, true}) {
        Tensor base = zeros({10}, int64);
        Tensor x = base.narrow(0, 0, 4);
        x.copy_(tensor({1, 0, 0, 0}));
        x.index_put_({x}, tensor({5, 6, 7, 8}), accumulate);
        // x[1] = 5, then x[0] = 6, 7 and 8, or all of them added to 1.
        CHECK(x[0].item<int>() == (accumulate ? 22 : 8));
        CHECK(x[1].item<int>() == 5);
        CHECK(base.narrow(0, 2, 8).sum().item<int>() == 0);
    }
}
