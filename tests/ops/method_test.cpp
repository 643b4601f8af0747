// Methods of Tensor against the functions of the same names, each called once in every form; and the in-place ones.
#include <utility>

#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

// Equal to the bit, in dtype too; nan is nan.
void same(const Tensor& a, const Tensor& b) {
    CHECK(a.dtype() == b.dtype());
    CHECK(a.shape() == b.shape());
    CHECK(allclose(a, b, 0, 0, /*equal_nan=*/true));
}
void same(const ValuesIndices& a, const ValuesIndices& b) {
    same(a.values, b.values);
    same(a.indices, b.indices);
}

Tensor numbers() { return tensor({{0.5, -2.0, 3.0, 0.0}, {1.5, 0.25, -1.0, 3.0}, {-0.5, 2.0, 0.75, -4.0}}); }
Tensor others() { return tensor({{1.0, -2.5, 2.0, 0.5}, {1.5, 4.0, -3.0, 1.0}, {0.5, 1.0, 0.25, -4.0}}); }

}  // namespace

TEST_CASE("methods are the functions: what is read of a tensor") {
    const Tensor x = numbers().t();
    CHECK(x.stride(0) == 1);
    CHECK(x.stride(-1) == 4);
    FAILS(IndexError, "stride: ", x.stride(2));
    FAILS(IndexError, "stride: a 0-d tensor has no dimension 0", tensor(1.0).stride(0));
    same(numbers().view_as(x), numbers().reshape({4, 3}));
    same(x.reshape_as(zeros({2, 6})), x.reshape({2, 6}));
    same(x.movedim({0}, {1}), movedim(x, {0}, {1}));
    same(x.broadcast_to({2, 4, 3}), broadcast_to(x, {2, 4, 3}));
    same(x.type_as(zeros({1}, int32)), x.to(int32));
    same(x.to(float64).new_zeros({2}), zeros({2}, float64));
    same(x.to(int32).new_ones({2, 1}), ones({2, 1}, int32));
    same(x.to(float64).new_full({2}, 3), full({2}, 3, float64));
    CHECK(x.to(float16).new_empty({5}).shape() == Shape(5));
    CHECK(x.to(float16).new_empty({5}).dtype() == float16);
    FAILS(ValueError, "", Tensor().new_zeros({2}));
}

TEST_CASE("names that PyTorch has for the same, and bare integers") {
    const Tensor x = numbers();
    same(x.T(), x.t());
    FAILS(ShapeError, "needs at most 2 dimensions", zeros({1, 2, 3}).T());
    same(x.half(), x.to(float16));
    CHECK(x.is_floating_point());
    CHECK_FALSE(x.to(int32).is_floating_point());
    CHECK(x.to(float64).element_size() == 8);
    CHECK(x.half().element_size() == 2);
    same(x.T().ravel(), tensor({0.5, 1.5, -0.5, -2.0, 0.25, 2.0, 3.0, -1.0, 0.75, 0.0, 3.0, -4.0}));
    same(x.swapaxes(0, -1), x.t());
    same(x.div(2, "floor"), floor_divide(x, 2));
    same(x.div(others(), "trunc"), trunc(x / others()));
    FAILS(ValueError, "", x.div(2, "round"));
    same(concat({x, others()}, 1), cat({x, others()}, 1));
    same(clip(x, -1, 1), clamp(x, -1, 1));
    same(x.clip(-1), x.clamp(-1));
    same(clip(x, others(), others() + 1), clamp(x, others(), others() + 1));
    same(x.clip(others(), others() + 1), clamp(x, others(), others() + 1));
    same(x.clone().clip_(0, 2), x.clamp(0, 2));
    CHECK(numel(x) == 12);
    CHECK(get_num_threads() == num_threads());
    FAILS(ValueError, "", x.half(), numel(Tensor()));

    same(x.view(2, 6), x.view({2, 6}));
    same(x.reshape(2, -1, 3), x.reshape({2, -1, 3}));
    same(x.permute(1, 0), x.t());
    same(x.expand(2, 3, -1), x.expand({2, 3, -1}));
    same(x.repeat(1, 2), x.repeat({1, 2}));
    same(x.flip(0, 1), x.flip({0, 1}));
    const std::int64_t rows = 4;
    const std::size_t columns = 3;
    CHECK(x.view(rows, columns).shape() == Shape{4, 3});
    FAILS(ShapeError, "view", x.view(5, 2));
    FAILS(IndexError, "permute", x.permute(0, 2));
    same(zeros(2, 3), zeros({2, 3}));
    same(ones(2, 3, 1), ones({2, 3, 1}));
    CHECK(empty(2, 3).shape() == Shape{2, 3});
    manual_seed(5);
    const Tensor u = rand(2, 3), n = randn(2, 3);
    manual_seed(5);
    same(u, rand({2, 3}));
    same(n, randn({2, 3}));
    FAILS(ValueError, "", zeros(2, -3));
}

template <class T>
concept TakesNumberAsKeepdim = requires(const T& x) { x.sum(0, 1); } || requires(const T& x) { x.mean(0, 1); } ||
    requires(const T& x) { x.max(0, 1); } || requires(const T& x) { x.argmin(0, 1); } || requires(const T& x) { sum(x, 0, 1); } ||
    requires(const T& x) { min(x, 0, 1); } || requires(const T& x) { logsumexp(x, 0, 1); } || requires(const T& x) { x.prod(0, 1.0); };
template <class T>
concept TakesBoolAsSize =
    requires(const T& x) { x.view(2, true); } || requires(const T& x) { x.reshape(true, 2); } || requires(const T& x) { x.repeat(1, 2, false); };
static_assert(!TakesNumberAsKeepdim<Tensor>);  // of PyTorch's x.sum(0, 1) it would make dimension 0 with keepdim
static_assert(!TakesBoolAsSize<Tensor>);

TEST_CASE("methods are the functions: reductions") {
    const Tensor x = numbers();
    same(x.max(), max(x));
    same(x.min(), min(x));
    same(x.max(1), max(x, 1));
    same(x.min(0, true), min(x, 0, true));
    same(x.max(others()), maximum(x, others()));
    same(x.min(others()), minimum(x, others()));
    same(x.argmin(), argmin(x));
    same(x.argmin(1, true), argmin(x, 1, true));
    same((x > 0).all(1), all(x > 0, {1}));
    same((x > 2).any({0, 1}, true), any(x > 2, {0, 1}, true));
    same(x.prod(), prod(x));
    same(x.prod(1, true), prod(x, 1, true));
    same(x.var(), var(x));
    same(x.var(0, 0, true), var(x, {0}, 0, true));
    same(x.std(), tapir::std(x));
    same(x.std({0, 1}, 0), tapir::std(x, {0, 1}, 0));
    same(x.norm(), norm(x));
    same(x.norm(1, 1, true), norm(x, 1, {1}, true));
    same(x.logsumexp(1), logsumexp(x, {1}));
    same(x.var(false), var(x, {}, 0));
    same(x.std(true), tapir::std(x, {}, 1));
    same(x.kthvalue(2), kthvalue(x, 2));
    same(x.kthvalue(3, 0, true), kthvalue(x, 3, 0, true));
    same(x.log().nansum(), nansum(log(x)));
    same(x.sqrt().nanmean(1, true), nanmean(sqrt(x), {1}, true));
    same(x.median(), median(x));
    same(x.median(0), median(x, 0));
    same(x.quantile(0.3), quantile(x, 0.3));
    same(x.quantile(0.3, 1, true), quantile(x, 0.3, 1, true));
    same(x.count_nonzero(), count_nonzero(x));
    same(x.count_nonzero(0), count_nonzero(x, {0}));
    same(x.trace(), trace(x));
    same(x.cumsum(1), cumsum(x, 1));
    same(x.cumprod(0), cumprod(x, 0));
    same(x.logcumsumexp(1), logcumsumexp(x, 1));
    same(x.cummax(0), cummax(x, 0));
    same(x.cummin(-1), cummin(x, -1));
    same(x.sort(), sort(x));
    same(x.sort(0, true), sort(x, 0, true));
    same(x.argsort(1), argsort(x, 1));
    same(x.topk(2), topk(x, 2));
    same(x.topk(1, 0, false), topk(x, 1, 0, false));
    const UniqueResult method = x.unique(true, true, true), function = unique(x, true, true, true);
    same(method.values, function.values);
    same(method.inverse, function.inverse);
    same(method.counts, function.counts);
}

TEST_CASE("methods are the functions: rearranged, picked and compared elements") {
    const Tensor x = numbers(), y = others(), index = tensor({{1, 0, 2, 2}}), rows = tensor({2, 0}), mask = x > 0;
    same(x.repeat({2, 1}), repeat(x, {2, 1}));
    same(x.tile(2), tile(x, {2}));
    same(x.repeat_interleave(2), repeat_interleave(x, 2));
    same(x.repeat_interleave(2, 1), repeat_interleave(x, 2, 1));
    same(rows.repeat_interleave(tensor({1, 3})), repeat_interleave(rows, tensor({1, 3})));
    same(x.repeat_interleave(tensor({1, 0, 2}), 0), repeat_interleave(x, tensor({1, 0, 2}), 0));
    same(x.flip({0, 1}), flip(x, {0, 1}));
    same(x.roll(1), roll(x, {1}));
    same(x.roll({1, 2}, {0, 1}), roll(x, {1, 2}, {0, 1}));
    same(x.tril(), tril(x));
    same(x.triu(1), triu(x, 1));
    same(x.diag(1), diag(x, 1));
    same(x.diff(2), diff(x, 2));
    same(x.gather(0, index), gather(x, 0, index));
    same(x.scatter(0, index, y), scatter(x, 0, index, y));
    same(x.scatter(0, index, 7), scatter(x, 0, index, 7));
    same(x.scatter_add(0, index, y), scatter_add(x, 0, index, y));
    same(x.scatter_reduce(0, index, y, "amax"), scatter_reduce(x, 0, index, y, "amax"));
    same(x.index_put({rows}, y[0], true), x.clone().index_put_({rows}, y[0], true));
    same(x.index_put({rows, 1}, 5), x.clone().index_put_({rows, 1}, 5));
    same(x.ldexp(y), x * pow(2, y));
    same(x.index_select(0, rows), index_select(x, 0, rows));
    same(x.index_add(0, rows, y[Slice(0, 2)], 3), index_add(x, 0, rows, y[Slice(0, 2)], 3));
    same(x.index_copy(0, rows, y[Slice(0, 2)]), index_copy(x, 0, rows, y[Slice(0, 2)]));
    same(x.clone().index_copy_(0, rows, y[Slice(0, 2)]), index_copy(x, 0, rows, y[Slice(0, 2)]));
    same(x.index_fill(0, rows, 7), index_fill(x, 0, rows, 7));
    same(x.index_fill(1, rows, tensor(2.5)), index_fill(x, 1, rows, tensor(2.5)));
    same(x.clone().index_fill_(0, rows, 7), index_fill(x, 0, rows, 7));
    same(x.masked_fill(mask, -1), masked_fill(x, mask, -1));
    same(x.masked_fill(mask, tensor(2.5)), masked_fill(x, mask, tensor(2.5)));
    same(x.masked_select(mask), masked_select(x, mask));
    same(x.nonzero(), nonzero(x));
    same(x.where(mask, y), where(mask, x, y));
    same(x.where(mask, 0), where(mask, x, 0));
    same(x.lerp(y, 0.25), lerp(x, y, 0.25));
    same(x.lerp(y, mask.to(float32)), lerp(x, y, mask.to(float32)));
    same(x.addcmul(y, x), addcmul(x, y, x));
    same(x.addcdiv(y, y), addcdiv(x, y, y));
    same(x.clamp(y, tensor(1.0)), clamp(x, y, tensor(1.0)));
    same(x.clamp_min(0), clamp_min(x, 0));
    same(x.clamp_max(0.5), clamp_max(x, 0.5));
    same(rows.bitwise_not(), bitwise_not(rows));
    same(x.isclose(y, 0.5), isclose(x, y, 0.5));
    CHECK(x.allclose(x.clone()));
    CHECK_FALSE(x.allclose(y));
    CHECK(x.allclose(y, 0, 100));
    CHECK(x.equal(numbers()));
    CHECK_FALSE(x.equal(y));
    const Tensor broken = x / 0;
    same(broken.nan_to_num(), nan_to_num(broken));
    same(broken.nan_to_num(1, 2, -2), nan_to_num(broken, 1, 2, -2));
}

TEST_CASE("methods are the functions: products") {
    const Tensor x = numbers(), y = others().t();
    same(x.unsqueeze(0).bmm(y.unsqueeze(0)), bmm(x.unsqueeze(0), y.unsqueeze(0)));
    same(x.mv(y.select(1, 0)), mv(x, y.select(1, 0)));
    same(x[0].dot(x[1]), dot(x[0], x[1]));
    same(x[0].outer(x[1]), outer(x[0], x[1]));
    same(eye(3).addmm(x, y, 2, 0.5), addmm(eye(3), x, y, 2, 0.5));
}

TEST_CASE("a method's errors name the caller's line, whichever operand is wrong") {
    const Tensor x = numbers(), none;
    FAILS(DTypeError, "masked_fill: the mask must be bool", x.masked_fill(x, 1));
    FAILS(DTypeError, "where: the mask must be bool", x.where(x, x));
    FAILS(ValueError, "gather: the tensor is undefined", x.gather(0, none));
    FAILS(ValueError, "scatter_add: the tensor is undefined", x.scatter_add(0, zeros({1, 4}, int64), none));
    FAILS(ValueError, "max", none.max());
    FAILS(ShapeError, "bmm", x.bmm(x));
    FAILS(ValueError, "lerp: the tensor is undefined", x.lerp(none, 0.5));
    FAILS(ValueError, "allclose: the tensor is undefined", std::ignore = x.allclose(none));
}

// --- In place --------------------------------------------------------------------------------------------------------------

namespace {

// An op in place gives what the function gives: in a contiguous tensor, in a transposed one, and on a tape, where both give the
// gradients of x and of y that `function` has.
template <class InPlace, class Function>
void in_place_is(const InPlace& in_place, const Function& function) {
    const Tensor expected = function(numbers(), others());
    Tensor x = numbers();
    CHECK(in_place(x, others()).is_same(x));
    same(x, expected);
    Tensor columns = numbers().t().contiguous().t();
    in_place(columns, others());
    same(columns, expected);
    CHECK(columns.stride(0) == 1);

    Tensor gradients[2][2];
    for (const bool writes : {false, true}) {
        Tensor a = numbers().requires_grad_(), b = others().requires_grad_();
        Tape tape;
        Tensor h = a * 1.5, c = b * 0.5, y;
        if (writes) {
            in_place(h, c);
            y = h;
        } else {
            y = function(h, c);
        }
        tape.backward(sum(y * y));
        gradients[writes][0] = a.grad();
        gradients[writes][1] = b.grad();
    }
    for (const int k : {0, 1}) {
        CHECK(gradients[0][k].defined() == gradients[1][k].defined());
        if (gradients[0][k].defined()) CHECK(allclose(gradients[0][k], gradients[1][k], 1e-6, 1e-7));
    }
}

}  // namespace

TEST_CASE("in-place methods give what the functions give, with the same gradients") {
    const Tensor index = tensor({{1, 0, 2, 2}, {1, 2, 0, 2}}), rows = tensor({2, 0, 2}), mask = numbers() > 0;
    const Tensor row_mask = tensor({true, false, true, false});
    const auto compare = [](const auto& in_place, const auto& function) { in_place_is(in_place, function); };
    SECTION("masked_fill_") {
        compare([&](Tensor& x, const Tensor&) -> Tensor& { return x.masked_fill_(mask, 7); },
                [&](const Tensor& x, const Tensor&) { return masked_fill(x, mask, 7); });
        compare([&](Tensor& x, const Tensor&) -> Tensor& { return x.masked_fill_(row_mask, -0.5); },
                [&](const Tensor& x, const Tensor&) { return masked_fill(x, row_mask, -0.5); });
        compare([&](Tensor& x, const Tensor& y) -> Tensor& { return x.masked_fill_(mask, y[0][1]); },
                [&](const Tensor& x, const Tensor& y) { return masked_fill(x, mask, y[0][1]); });
    }
    SECTION("scatter_") {
        compare([&](Tensor& x, const Tensor& y) -> Tensor& { return x.scatter_(0, index, y); },
                [&](const Tensor& x, const Tensor& y) { return scatter(x, 0, index, y); });
        compare([&](Tensor& x, const Tensor&) -> Tensor& { return x.scatter_(0, index, 2); },
                [&](const Tensor& x, const Tensor&) { return scatter(x, 0, index, 2); });
    }
    SECTION("scatter_add_") {
        compare([&](Tensor& x, const Tensor& y) -> Tensor& { return x.scatter_add_(0, index, y); },
                [&](const Tensor& x, const Tensor& y) { return scatter_add(x, 0, index, y); });
    }
    SECTION("scatter_reduce_") {
        compare([&](Tensor& x, const Tensor& y) -> Tensor& { return x.scatter_reduce_(0, index, y, "prod"); },
                [&](const Tensor& x, const Tensor& y) { return scatter_reduce(x, 0, index, y, "prod"); });
        compare([&](Tensor& x, const Tensor& y) -> Tensor& { return x.scatter_reduce_(0, index, y, "amin", false); },
                [&](const Tensor& x, const Tensor& y) { return scatter_reduce(x, 0, index, y, "amin", false); });
    }
    SECTION("index_put_ that adds") {
        compare([&](Tensor& x, const Tensor& y) -> Tensor& { return x.index_put_({rows}, y, true); },
                [&](const Tensor& x, const Tensor& y) { return x.index_put({rows}, y, true); });
        compare([&](Tensor& x, const Tensor& y) -> Tensor& { return x.index_put_({rows}, y, true); },
                [&](const Tensor& x, const Tensor& y) { return index_add(x, 0, rows, y); });
    }
    SECTION("index_add_") {
        compare([&](Tensor& x, const Tensor& y) -> Tensor& { return x.index_add_(0, rows, y); },
                [&](const Tensor& x, const Tensor& y) { return index_add(x, 0, rows, y); });
        compare([&](Tensor& x, const Tensor& y) -> Tensor& { return x.index_add_(0, rows, y, -2); },
                [&](const Tensor& x, const Tensor& y) { return index_add(x, 0, rows, y, -2); });
    }
    SECTION("index_copy_") {
        compare([&](Tensor& x, const Tensor& y) -> Tensor& { return x.index_copy_(0, rows, y); },
                [&](const Tensor& x, const Tensor& y) { return index_copy(x, 0, rows, y); });
    }
    SECTION("lerp_") {
        compare([&](Tensor& x, const Tensor& y) -> Tensor& { return x.lerp_(y, 0.25); },
                [&](const Tensor& x, const Tensor& y) { return lerp(x, y, 0.25); });
        compare([&](Tensor& x, const Tensor& y) -> Tensor& { return x.lerp_(y, y); },
                [&](const Tensor& x, const Tensor& y) { return lerp(x, y, y); });
    }
    SECTION("addcmul_ and addcdiv_") {
        compare([&](Tensor& x, const Tensor& y) -> Tensor& { return x.addcmul_(y, y[0]); },
                [&](const Tensor& x, const Tensor& y) { return addcmul(x, y, y[0]); });
        compare([&](Tensor& x, const Tensor& y) -> Tensor& { return x.addcmul_(y, x); },  // its rule reads the old x
                [&](const Tensor& x, const Tensor& y) { return addcmul(x, y, x); });
        compare([&](Tensor& x, const Tensor& y) -> Tensor& { return x.addcdiv_(x, y); },
                [&](const Tensor& x, const Tensor& y) { return addcdiv(x, x, y); });
    }
    SECTION("clamp_min_ and clamp_max_") {
        compare([&](Tensor& x, const Tensor&) -> Tensor& { return x.clamp_min_(0.2); },
                [&](const Tensor& x, const Tensor&) { return clamp_min(x, 0.2); });
        compare([&](Tensor& x, const Tensor&) -> Tensor& { return x.clamp_max_(0.2); },
                [&](const Tensor& x, const Tensor&) { return clamp_max(x, 0.2); });
    }
}

TEST_CASE("in-place methods whose sources lie in what they write") {
    Tensor x = numbers().to(int64);
    const Tensor old = x.clone();
    SECTION("values that are a view of it") {
        x = numbers().narrow(1, 0, 3).contiguous();
        const Tensor before = x.clone();
        const Tensor index = tensor({{0, 1, 2}, {2, 0, 1}, {1, 2, 0}});
        x.scatter_(0, index, x.t());
        same(x, scatter(before, 0, index, before.t()));
        x.copy_(before).scatter_add_(1, index, x.t());
        same(x, scatter_add(before, 1, index, before.t()));
        x.copy_(before).index_add_(0, tensor({2, 0, 1}), x.t());
        same(x, index_add(before, 0, tensor({2, 0, 1}), before.t()));
        x.copy_(before).addcmul_(x.t(), x);
        same(x, addcmul(before, before.t(), before));
        x.copy_(before).masked_fill_(before < 1, x[2][0]);
        same(x, masked_fill(before, before < 1, before[2][0]));
    }
    SECTION("an index and a mask that are the tensor itself") {
        Tensor places = tensor({2, 0, 1});
        places.scatter_(0, places, tensor({7, 8, 9}));
        CHECK(places.to_vector<int>() == std::vector<int>{8, 9, 7});
        Tensor holds = tensor({true, false, true});
        holds.masked_fill_(holds, false);
        CHECK(holds.to_vector<bool>() == std::vector<bool>{false, false, false});
    }
    SECTION("0-d") {
        Tensor number = tensor(3.0);
        CHECK(number.scatter_add_(0, tensor(0), tensor(2.0)).item() == 5);
        CHECK(number.scatter_(0, tensor(0), 1).item() == 1);
    }
}

TEST_CASE("what in-place methods refuse leaves the tensor as it was") {
    Tensor x = numbers();
    const Tensor before = x.clone(), index = tensor({{1, 0, 2, 2}});
    FAILS(ShapeError, "masked_fill_: a mask of shape (2, 3, 4)", x.masked_fill_(ones({2, 3, 4}, bool_), 1));
    FAILS(DTypeError, "masked_fill_: the mask must be bool", x.masked_fill_(x, 1));
    FAILS(ShapeError, "masked_fill_: the value must be a number or a 0-d tensor", x.masked_fill_(x > 0, x));
    FAILS(DTypeError, "masked_fill_: a floating-point value", ones({2}, int64).masked_fill_(ones({2}, bool_), 0.5));
    FAILS(IndexError, "scatter_: ", x.scatter_(0, index + 1, x));
    FAILS(DTypeError, "scatter_add_: src is float64", x.scatter_add_(0, index, x.to(float64)));
    FAILS(ShapeError, "index_add_: src must be of shape (2, 4)", x.index_add_(0, tensor({0, 1}), x));
    FAILS(IndexError, "index_add_: ", x.index_add_(0, tensor({0, 1, 3}), x));
    FAILS(ShapeError, "index_copy_: x (3, 4) and index (2,) need a src of shape (2, 4), got (3, 4)", x.index_copy_(0, tensor({0, 1}), x));
    FAILS(IndexError, "", x.index_copy_(0, tensor({0, 1, 3}), x));
    FAILS(ShapeError, "lerp_: a result of shape (2, 3, 4)", x.lerp_(ones({2, 3, 4}), 0.5));
    FAILS(DTypeError, "addcdiv_: a result of float32 cannot be written into int64", ones({2}, int64).addcdiv_(ones({2}), ones({2})));
    FAILS(ValueError, "addcmul: the tensor is undefined", x.addcmul_(x, Tensor()));
    FAILS(ValueError, "scatter_: several elements", ones({1, 4}).expand({3, 4}).scatter_(0, index, 1));
    same(x, before);
    CHECK(x.impl()->storage->version == before.impl()->storage->version);
    Tensor leaf = numbers().requires_grad_();
    Tape tape;
    FAILS(TapeError, "masked_fill_: a leaf that requires a gradient", leaf.masked_fill_(leaf > 0, 1));
    FAILS(TapeError, "scatter_add_: a leaf that requires a gradient", leaf.scatter_add_(0, index, leaf));
    FAILS(TapeError, "lerp_: a leaf that requires a gradient", leaf.lerp_(leaf, 0.5));
}
