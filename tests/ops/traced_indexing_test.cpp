// Graphs of indexing: with other index tensors and masks than those of the trace, they do what the program does. And the parts that
// are put back.
#include <functional>
#include <set>
#include <string>

#include "../fails.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

using namespace tapir;
using Catch::Matchers::Contains;

namespace {

using Traced = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

void check_same(const std::vector<Tensor>& got, const std::vector<Tensor>& wanted) {
    REQUIRE(got.size() == wanted.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
        CHECK(got[i].dtype() == wanted[i].dtype());
        REQUIRE(got[i].shape() == wanted[i].shape());
        CHECK(allclose(got[i].to(float64), wanted[i].to(float64), 1e-12, 1e-12));  // sums may be made in another order
    }
}

// The graph of a run on `first` does with `others` what the program does.
void check(const Traced& fn, const std::vector<Tensor>& first, const std::vector<Tensor>& others) {
    std::vector<TraceInput> inputs;
    for (std::size_t i = 0; i < first.size(); ++i) inputs.push_back({"x" + std::to_string(i), first[i].clone()});
    const Graph graph = trace(fn, inputs);
    INFO(graph.str());
    check_same(graph(others), fn(others));
}

// The same of what it gives, and of the gradients of all floating inputs.
void check_with_gradients(const Traced& fn, const std::vector<Tensor>& first, const std::vector<Tensor>& others) {
    check(fn, first, others);
    check(
        [&](const std::vector<Tensor>& x) {
            Tape tape;
            std::vector<Tensor> leaves, sources;
            for (const Tensor& t : x) {
                leaves.push_back(is_floating(t.dtype()) ? t.clone().requires_grad_() : t);
                if (is_floating(t.dtype())) sources.push_back(leaves.back());
            }
            const Tensor y = fn(leaves)[0];
            return tape.gradient(sum(y * cos(y.detach())), sources);
        },
        first, others);
}

Tensor numbers(const Shape& shape) { return randn(shape, float64); }
Tensor mask(std::initializer_list<bool> holds) {
    std::vector<std::int64_t> list(holds.begin(), holds.end());
    return tensor(list).to(bool_);
}

}  // namespace

TEST_CASE("a graph of indexing takes other indices and masks", "[trace]") {
    manual_seed(1);
    const Tensor x = numbers({4, 3, 5}), z = numbers({4, 3, 5});
    const Tensor i = tensor({1, 0, 3}), other_i = tensor({-1, 2, 2}), j = tensor({{4}, {0}}), other_j = tensor({{-5}, {3}});
    const Tensor holds = mask({true, false, true, true}), other = mask({false, true, false, false}), none = mask({false, false, false, false});
    using L = std::vector<Tensor>;
    const auto two = [&](const std::vector<Index>& before, const std::vector<Index>& after) {
        return [=](const L& t) {
            std::vector<Index> all = before;
            all.emplace_back(t[1]);
            all.insert(all.end(), after.begin(), after.end());
            return L{t[0].index(all)};
        };
    };
    check_with_gradients(two({}, {}), {x, i}, {z, other_i});
    check_with_gradients(two({}, {1}), {x, i}, {z, other_i});
    check_with_gradients(two({Slice(), Slice()}, {}), {x, j}, {z, other_j});
    check_with_gradients(two({2, None}, {Slice(1, 5, 2)}), {x, tensor({0, 2})}, {z, tensor({-3, 1})});
    check_with_gradients(two({Ellipsis}, {None}), {x, j}, {z, other_j});
    check_with_gradients(two({}, {}), {x, tensor(std::int64_t{2})}, {z, tensor(std::int64_t{-4})});
    check_with_gradients(two({Slice()}, {}), {x, tensor({1, 1}).to(int32)}, {z, tensor({-1, 0}).to(int32)});
    check(two({}, {}), {x, holds}, {z, flip(holds, {0})});
    check(two({}, {}), {x, holds}, {z, other});
    check(two({}, {}), {x, holds}, {z, none});
    check(two({}, {}), {x, gt(x, 0)}, {z, gt(z, 0.5)});
    check(two({}, {}), {x, gt(x, 0)}, {z, flip(gt(x, 0), {0, 2})});
    check(two({}, {Slice(2, None)}), {x, gt(x.select(2, 0), 0)}, {z, gt(z.select(2, 0), 0.5)});
    check_with_gradients([](const L& t) { return L{t[0].index({t[1], Slice(), t[2]})}; }, {x, i, j}, {z, other_i, other_j});
    check_with_gradients([](const L& t) { return L{t[0].index({Slice(), t[1], t[2]})}; }, {x, tensor({1, 0, 2}), j},
                         {z, tensor({-1, 2, 2}), other_j});
    check_with_gradients([](const L& t) { return L{t[0].index({t[1], 2, t[2]})}; }, {x, i, j}, {z, other_i, other_j});
    check_with_gradients([](const L& t) { return L{t[0].index({t[1], None, t[2]})}; }, {x, i, tensor({0, 1, 2})}, {z, other_i, tensor({2, 2, 2})});
    check([](const L& t) { return L{t[0].index({t[1], t[2]})}; }, {x, holds, tensor({2})}, {z, other, tensor({-2})});
    check_with_gradients([](const L& t) { return L{t[0].index({Ellipsis})}; }, {x}, {z});
    check([](const L& t) { return L{masked_select(t[0], t[1])}; }, {x, gt(x, 0)}, {z, gt(z, 1)});

    SECTION("and refuses what is out of range") {
        const Graph graph = trace([](const L& t) { return L{t[0].index({t[1], Slice(), t[2]})}; }, {{"x", x}, {"i", i}, {"j", j}});
        CHECK_THROWS_WITH(graph({x, tensor({0, 7, 0}), j}), Contains("index 7 is out of range"));
        CHECK_THROWS_WITH(graph({x, i, tensor({{0}, {5}})}), Contains("index 5 is out of range"));
    }
    SECTION("with a mask of two dimensions beside an index") {
        const auto fn = [](const L& t) { return L{t[0].index({Slice(), gt(t[0].select(0, 0), t[1])})}; };
        check(fn, {x, tensor(0.0, float64)}, {z, tensor(0.3, float64)});
    }
}

TEST_CASE("a graph writes where other indices and masks say", "[trace]") {
    manual_seed(2);
    const Tensor x = numbers({4, 3, 5}), z = numbers({4, 3, 5});
    const Tensor i = tensor({1, 0, 1}), other_i = tensor({-1, 2, 2}), j = tensor({4, 0, 4}), other_j = tensor({-5, 3, 3});
    const Tensor holds = mask({true, false, true, true}), other = mask({false, true, false, false});
    using L = std::vector<Tensor>;
    for (const bool accumulate : {false, true}) {
        INFO("accumulate " << accumulate);
        const auto put = [&](const std::vector<Index>& before, const std::vector<Index>& after) {
            return [=](const L& t) {
                std::vector<Index> all = before;
                all.emplace_back(t[2]);
                all.insert(all.end(), after.begin(), after.end());
                Tensor y = t[0].clone();
                y.index_put_(all, t[1], accumulate);
                return L{y, t[0].index_put(all, t[1], accumulate)};
            };
        };
        const auto values = [](const Shape& shape) { return numbers(shape); };
        check_with_gradients(put({}, {}), {x, values({3, 3, 5}), i}, {z, values({3, 3, 5}), other_i});
        check_with_gradients(put({}, {}), {x, values({5}), i}, {z, values({5}), other_i});
        check_with_gradients(put({Slice(1, 3), 2}, {}), {x, values({2, 3}), j}, {z, values({2, 3}), other_j});
        check_with_gradients(put({}, {Slice(0, 2)}), {x, values({3, 2, 1}), i}, {z, values({3, 2, 1}), other_i});
        check_with_gradients(put({}, {}), {x, values({}), tensor(std::int64_t{2})}, {z, values({}), tensor(std::int64_t{-4})});
        check_with_gradients(put({}, {}), {x, values({3, 3, 5}), holds}, {z, values({3, 3, 5}), flip(holds, {0})});
        check_with_gradients(put({}, {}), {x, values({3, 3, 5}), holds}, {z, values({3, 3, 5}), mask({true, true, false, true})});
        check_with_gradients(put({}, {}), {x, values({}), holds}, {z, values({}), other});
        check_with_gradients(put({}, {1}), {x, values({1, 5}), holds}, {z, values({1, 5}), other});
        check_with_gradients(put({}, {}), {x, values({}), gt(x, 0)}, {z, values({}), gt(z, 0.5)});
        check_with_gradients(
            [=](const L& t) {
                Tensor y = t[0].clone();
                y.index_put_({t[2], Slice(), t[3]}, t[1], accumulate);
                return L{y};
            },
            {x, values({3, 3}), i, j}, {z, values({3, 3}), other_i, other_j});
        check_with_gradients(
            [=](const L& t) {
                Tensor y = t[0].clone();
                y.index_put_({Slice(), t[2], t[3]}, t[1], accumulate);
                return L{y};
            },
            {x, values({4, 3}), tensor({1, 0, 1}), j}, {z, values({4, 3}), tensor({-1, 2, 2}), other_j});
        check_with_gradients(
            [=](const L& t) {
                Tensor y = t[0].clone();
                y.index_put_({Slice(None, None, 2), 1}, t[1], accumulate);
                y.index_put_({Ellipsis}, 0.5, accumulate);
                y.index_put_({2, None, -1}, t[1].sum(), accumulate);
                return L{y};
            },
            {x, values({2, 5})}, {z, values({2, 5})});
    }
}

TEST_CASE("a graph holds what is written into views", "[trace]") {
    manual_seed(3);
    const auto fn = [](const std::vector<Tensor>& t) {
        Tensor y = t[0].clone();
        y[1] = t[1];
        y.slice(1, Slice(0, 4, 2)).mul_(3);
        y.t().select(0, 3).add_(t[1].sum());
        y.diagonal(1).fill_(7);
        y.view({2, 2, 4})[1][0].narrow(0, 1, 2).index_put_({tensor({1})}, 9);
        return std::vector<Tensor>{y, y.sum(0)};
    };
    check(fn, {numbers({4, 4}), numbers({4})}, {numbers({4, 4}), numbers({4})});
}

TEST_CASE("a part is put into a copy", "[ops]") {
    const Tensor x = arange(12, int64).view({3, 4});
    const Tensor selected = select_scatter(x, tensor({7, 8, 9}), 1, -1), sliced = slice_scatter(x, zeros({3, 2}), 1, Slice(1, None, 2));
    CHECK(selected.to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 1, 2, 7, 4, 5, 6, 8, 8, 9, 10, 9});
    CHECK(sliced.to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 0, 2, 0, 4, 0, 6, 0, 8, 0, 10, 0});
    CHECK(diagonal_scatter(x, tensor({-1.5, -2.5, -3.5}), 1).to_vector<std::int64_t>() ==
          std::vector<std::int64_t>{0, -1, 2, 3, 4, 5, -2, 7, 8, 9, 10, -3});
    CHECK(x.to_vector<std::int64_t>() == arange(12, int64).to_vector<std::int64_t>());
    FAILS(ShapeError, "select_scatter: src must be of shape (3,), as the part is, got (4,)", select_scatter(x, zeros({4}), 1, 0));
    FAILS(ShapeError, "slice_scatter: src must be of shape (3, 2), as the part is, got (3,)", slice_scatter(x, zeros({3}), 1, Slice(0, 2)));
    FAILS(ShapeError, "diagonal_scatter: src must be of shape (3,), as the part is, got (2,)", diagonal_scatter(x, zeros({2})));
    FAILS(IndexError, "index 4 is out of range for dimension 1 of shape (3, 4)", select_scatter(x, zeros({3}), 1, 4));
}

TEST_CASE("a graph of embedding_bag checks its bags", "[trace]") {
    manual_seed(4);
    const Tensor weight = randn({5, 3});
    for (const BagMode mode : {BagMode::sum, BagMode::mean, BagMode::max}) {
        const auto fn = [&](const std::vector<Tensor>& t) {
            const EmbeddingBagOptions options{.mode = mode, .include_last_offset = true, .padding_idx = 1};
            return std::vector<Tensor>{embedding_bag(t[0], weight, t[1], options)};
        };
        const Tensor index = tensor({0, 1, 2, 3, 4, 1}), other = tensor({4, 4, 1, 0, 1, 2});
        check(fn, {index, tensor({0, 2, 3, 5})}, {other, tensor({0, 0, 4, 6})});
        const Graph graph = trace(fn, {{"index", index}, {"offsets", tensor({0, 2, 3, 5})}});
        CHECK_THROWS_WITH(graph({other, tensor({1, 2, 3, 5})}),
                          Contains("offsets must rise from 0 to 6; an index is in bag -1 of 4, after one in bag 0"));
        CHECK_THROWS_WITH(graph({other + 1, tensor({0, 2, 3, 5})}), Contains("index 5 is out of range"));
    }
}

TEST_CASE("a graph of indexing holds for other sizes", "[trace]") {
    manual_seed(5);
    const Tensor j = tensor({2, 0, 2});
    const auto fn = [&](const std::vector<Tensor>& t) {
        const Tensor &x = t[0], &i = t[1];  // (batch, 3), (batch,)
        Tensor y = x.clone();
        y.index_put_({i, j[1]}, 0.5);
        y.index_put_({gt(x, 0)}, 2, true);
        Tensor z = x.t().clone();
        z[-1] = i.to(float64);
        return std::vector<Tensor>{x.index({i}),
                                   x.index({Slice(), j}),
                                   x.index({i, 1}),
                                   x[-1],
                                   x.slice(0, Slice(-2, None)),
                                   y,
                                   z,
                                   x.index({i.unsqueeze(1), j}),
                                   x.t().index({j.unsqueeze(1), i}),
                                   gather(x, 0, i.unsqueeze(1)),
                                   index_add(x, 0, i, x),
                                   pad(x, {1, 0, 2, 3}),
                                   flip(x, {0}),
                                   roll(x, {1}, {0}),
                                   cumsum(x, 0),
                                   sort(x, 0).values,
                                   x.unfold(0, 2, 1),
                                   scatter(x, 0, i.unsqueeze(1), 1.5)};
    };
    const auto inputs = [&](std::int64_t n) { return std::vector<Tensor>{randn({n, 3}, float64), remainder(arange(n) * 5 - 3, n)}; };
    const std::vector<Tensor> first = inputs(4);
    const Graph graph = trace(fn, {{"x", first[0], {"batch"}}, {"i", first[1], {"batch"}}});
    INFO(graph.str());
    for (const std::int64_t n : {4, 3, 7}) {
        const std::vector<Tensor> x = inputs(n);
        check_same(graph(x), fn(x));
    }
}

TEST_CASE("a graph repeats and scatters as other numbers say", "[trace]") {
    manual_seed(6);
    using L = std::vector<Tensor>;
    check([](const L& t) { return L{repeat_interleave(t[0], t[1], 0), repeat_interleave(t[0].flatten(), t[1].sum())}; },
          {numbers({3, 2}), tensor({1, 0, 2})}, {numbers({3, 2}), tensor({4, 2, 1})});
    const Tensor x = numbers({3, 4}), z = numbers({3, 4});
    check([](const L& t) { return L{masked_scatter(t[0], t[1], t[2]), index_fill(t[0], 1, t[3], 2), nonzero(t[1])}; },
          {x, gt(x, 0), numbers({12}), tensor({0, 2})}, {z, gt(z, 1), numbers({12}), tensor({-1, 2})});
    check([](const L& t) { return L{unique(t[0], true, true, true).values, unique_consecutive(t[0], true).inverse, bincount(t[0]), histc(t[1], 3)}; },
          {tensor({3, 1, 1, 2}), x}, {tensor({5, 5, 0, 2}), z});
}

TEST_CASE("a graph puts gradients of parts back by name, for other sizes, too", "[trace]") {
    const auto fn = [](const std::vector<Tensor>& t) {
        Tape tape;
        const Tensor x = t[0].clone().requires_grad_();
        const Tensor y = sum(x[-1] * 2) + sum(square(x.slice(0, Slice(1, None, 2)))) + sum(cos(x.select(1, 2))) + sum(x.narrow(1, 1, 2).t() * 3) +
            sum(square(diagonal(x.narrow(0, 0, 1)))) + sum(exp(x.index({Slice(1, None), 1})));
        return std::vector<Tensor>{tape.gradient(y, {x})[0]};
    };
    manual_seed(7);
    const Graph graph = trace(fn, {{"x", numbers({4, 3}), {"batch"}}});
    INFO(graph.str());
    std::set<std::string> ops;
    for (const auto& node : graph.nodes()) ops.emplace(node->op());
    CHECK(ops.count("select_scatter") == 1);
    CHECK(ops.count("slice_scatter") == 1);
    for (const std::int64_t n : {4, 6, 9}) {
        const std::vector<Tensor> x{numbers({n, 3})};
        check_same(graph(x), fn(x));
    }
}
