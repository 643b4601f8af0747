// Reading and writing at computed positions on a CUDA device against the CPU: sizes of several blocks, every way that a
// kernel moves a row, equal positions, and mistakes that only the device sees. Elements that are only moved must be the
// same bits.
#include <catch2/catch.hpp>
#include <functional>

#include "compare.h"
#include "tapir/tapir.h"
#ifdef TAPIR_CUDA_EMULATED
#include "cuda_runtime.h"
#endif

using namespace tapir;

namespace {

using Inputs = std::vector<Tensor>;
using Op = std::function<Tensor(const Inputs&)>;

#define NEEDS_DEVICE \
    NEEDS_CUDA;      \
    manual_seed(3)

void check_same(const Tensor& have, const Tensor& want, double limit = 0) { test::check_close(have, want, limit); }

// The result, then the gradients of the floating inputs.
Inputs outcome(const Op& op, const Inputs& inputs, bool with_gradients) {
    Inputs leaves, result;
    for (const Tensor& x : inputs) {
        leaves.push_back(x.detach());
        if (with_gradients && is_floating(x.dtype())) leaves.back().requires_grad_();
    }
    Tape tape;
    result.push_back(op(leaves));
    if (!with_gradients) return result;
    Tensor g;
    {
        const NoGradScope pause;
        g = (arange(result[0].numel()) % 7 + 1).to(result[0].dtype()).reshape(result[0].shape()).to(result[0].device());
    }
    tape.backward(result[0], {.gradient = g});
    for (const Tensor& leaf : leaves) {
        if (leaf.requires_grad()) result.push_back(leaf.grad());
    }
    return result;
}

void compare(const Inputs& inputs, const Op& op, bool with_gradients = true, double limit = 0) {
    Inputs there;
    for (const Tensor& x : inputs) there.push_back(x.to(cuda));
    const Inputs want = outcome(op, inputs, with_gradients), have = outcome(op, there, with_gradients);
    REQUIRE(have.size() == want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
        INFO((i == 0 ? "result" : "gradient ") << i);
        CHECK(have[i].device() == cuda);
        check_same(have[i], want[i], limit);
    }
}

// Whole numbers, whose sums are exact in any order.
Tensor whole(const Shape& shape, DType dtype = float32) { return randint(-8, 9, shape).to(dtype); }
// Whole numbers of which none comes twice.
Tensor counted(const Shape& shape, DType dtype = float32) { return arange(shape.numel()).to(dtype).reshape(shape); }

// What a wait throws after f.
std::string error_of(const std::function<void()>& f) {
    try {
        f();
        synchronize(cuda);
    } catch (const IndexError& error) {
        const std::string what = error.what();
        return what.substr(what.find(": ") + 2);
    }
    return "";
}

}  // namespace

TEST_CASE("gather reads several blocks of every element size", "[cuda]") {
    NEEDS_DEVICE;
    for (const DType dtype : {uint8, int32, float16, float32, float64}) {
        INFO(name(dtype));
        const Tensor x = randint(0, 100, {90, 70}).to(dtype), index = randint(-70, 70, {90, 45});
        compare({x, index}, [](const Inputs& v) { return gather(v[0], 1, v[1]); }, false);
        compare({x, index.to(int32)}, [](const Inputs& v) { return gather(v[0], 1, v[1]); }, false);
        compare({x, index.transpose(0, 1)}, [](const Inputs& v) { return gather(v[0].transpose(0, 1), 0, v[1]); }, false);
    }
    compare({counted({4, 5, 6, 7}), randint(0, 5, {4, 9, 3, 7})}, [](const Inputs& v) { return gather(v[0], 1, v[1]); });
    compare({whole({3000}), randint(0, 3000, {5000})}, [](const Inputs& v) { return gather(v[0], 0, v[1]); });
}

TEST_CASE("scatter: of equal positions the last wins", "[cuda]") {
    NEEDS_DEVICE;
    const Op op = [](const Inputs& v) { return scatter(v[0], 0, v[1], v[2]); };
    // Few items; a table by key; a hash table, with many and with all items at one place.
    for (const auto& [size, n, highest] : {std::tuple(50, 1000, 50), std::tuple(50, 1024, 50), std::tuple(700, 5000, 700),
                                           std::tuple(60000, 3000, 60000), std::tuple(60000, 3000, 300), std::tuple(60000, 2000, 1)}) {
        INFO(size << ", " << n << ", " << highest);
        compare({whole({size}), randint(0, highest, {n}), counted({n})}, op);
        compare({whole({size}), randint(0, highest, {n})}, [](const Inputs& v) { return scatter(v[0], 0, v[1], -2.5); });
    }
    compare({whole({40, 50}), randint(0, 50, {40, 60}), counted({41, 61})}, [](const Inputs& v) { return scatter(v[0], 1, v[1], v[2]); });
    compare({whole({40, 50}, bfloat16), randint(0, 40, {60, 50}), whole({60, 50}, bfloat16)}, op);
    compare({randint(0, 100, {9, 5}).to(uint8), randint(0, 9, {30, 5}), randint(0, 100, {30, 5}).to(uint8)}, op, false);
}

TEST_CASE("scatter_add adds all of them", "[cuda]") {
    NEEDS_DEVICE;
    for (const DType dtype : {int32, int64, float16, float32, float64}) {
        INFO(name(dtype));
        compare(
            {whole({50, 9}, dtype), randint(0, 50, {300, 9}), randint(0, 3, {301, 9}).to(dtype)},
            [](const Inputs& v) { return scatter_add(v[0], 0, v[1], v[2]); }, is_floating(dtype));
    }
    compare(
        {randint(0, 9, {5}).to(uint8), randint(0, 5, {40}), randint(0, 200, {40}).to(uint8)},
        [](const Inputs& v) { return scatter_add(v[0], 0, v[1], v[2]); }, false);
}

TEST_CASE("rows of every length are read, overwritten and added to", "[cuda]") {
    NEEDS_DEVICE;
    for (const int width : {1, 2, 3, 7, 8, 9, 37, 64, 300, 1024, 1025, 9000}) {
        INFO("width " << width);
        const int rows = width < 100 ? 40 : 6, n = width < 100 ? 130 : 9;
        const Tensor x = whole({rows, width}), index = randint(-rows, rows, {n}), values = counted({n, width});
        compare({x, index}, [](const Inputs& v) { return index_select(v[0], 0, v[1]); });
        compare({x, index}, [](const Inputs& v) { return v[0][v[1]]; });
        compare({index.remainder(rows), x}, [](const Inputs& v) { return embedding(v[0], v[1]); });
        compare({x, index, whole({n, width})}, [](const Inputs& v) { return index_add(v[0], 0, v[1], v[2]); });
        compare({x, index, values}, [](const Inputs& v) { return clone(v[0]).index_put_({v[1]}, v[2]); });
        compare({x, index}, [](const Inputs& v) { return clone(v[0]).index_put_({v[1]}, 0.5); });
        // Rows that do not begin at multiples of 16 bytes.
        compare({whole({rows, width + 1}), index}, [](const Inputs& v) { return v[0].index({Slice(), Slice(1)})[v[1]]; });
        // Columns: positions behind another dimension, and elements that are not side by side.
        compare({x, randint(0, width, {5})}, [](const Inputs& v) { return index_select(v[0], 1, v[1]); });
        compare({x, randint(0, width, {5})}, [](const Inputs& v) { return v[0].transpose(0, 1)[v[1]]; });
    }
}

TEST_CASE("rows of every element size", "[cuda]") {
    NEEDS_DEVICE;
    for (const DType dtype : {bool_, uint8, int32, int64, float16, bfloat16, float64}) {
        INFO(name(dtype));
        const Tensor x = randint(0, 2, {30, 64}).to(dtype), index = randint(0, 30, {50});
        compare({x, index}, [](const Inputs& v) { return v[0][v[1]]; }, is_floating(dtype));
        compare(
            {x, index, randint(0, 2, {50, 64}).to(dtype)}, [](const Inputs& v) { return clone(v[0]).index_put_({v[1]}, v[2]); }, is_floating(dtype));
        if (dtype == bool_) continue;
        compare({x, index, randint(0, 2, {50, 64}).to(dtype)}, [](const Inputs& v) { return index_add(v[0], 0, v[1], v[2]); }, is_floating(dtype));
    }
}

TEST_CASE("many equal positions are overwritten by the last", "[cuda]") {
    NEEDS_DEVICE;
    const Op op = [](const Inputs& v) { return clone(v[0]).index_put_({v[1]}, v[2]); };
    compare({whole({500}), randint(0, 500, {3000}), counted({3000})}, op);
    compare({whole({500, 3}), randint(0, 5, {2000}), counted({2000, 3})}, op);
    compare({whole({500, 16}), randint(0, 500, {1500}), counted({1500, 16})}, op);
    compare({whole({500, 16}), randint(0, 500, {1500}), counted({16})}, op);
}

TEST_CASE("several index tensors, masks and slices together", "[cuda]") {
    NEEDS_DEVICE;
    const Tensor x = counted({7, 6, 5, 9}), i = randint(-7, 7, {4, 1}), j = randint(0, 5, {3}), mask = rand({6, 5}) < 0.5;
    compare({x, i, j}, [](const Inputs& v) { return v[0].index({v[1], Slice(), v[2]}); });
    compare({x, i, j}, [](const Inputs& v) { return v[0].index({v[1], Slice(1, 6, 2), v[2], Slice(1)}); });
    compare({x, j}, [](const Inputs& v) { return v[0].index({Ellipsis, v[1], Slice()}); });
    compare({x, mask}, [](const Inputs& v) { return v[0].index({Slice(), v[1]}); });
    compare({x, mask}, [](const Inputs& v) { return v[0].index({2, v[1], 1}); });
    compare({x, mask, i.select(1, 0).slice(0, Slice(0, 1))}, [](const Inputs& v) { return v[0].index({v[2], v[1]}); });
    compare({x, i}, [](const Inputs& v) { return v[0].permute({3, 0, 2, 1}).index({Slice(), v[1]}); });
    compare({x, tensor(3)}, [](const Inputs& v) { return v[0][v[1]]; });
    compare({x, i, j, whole({4, 3, 6, 9})}, [](const Inputs& v) { return clone(v[0]).index_put_({v[1], Slice(), v[2]}, v[3]); });
    compare({x, mask, whole({9})}, [](const Inputs& v) { return clone(v[0]).index_put_({Slice(), v[1]}, v[2]); });
    compare({x, whole({})}, [](const Inputs& v) { return clone(v[0]).index_put_({1, Slice(), -1}, v[1]); });
    compare({x}, [](const Inputs& v) { return clone(v[0]).index_put_({Slice(), 2}, 7); });
    compare({x, randint(0, 7, {0})}, [](const Inputs& v) { return v[0][v[1]]; });
    compare({x, randint(0, 7, {0}), whole({0, 6, 5, 9})}, [](const Inputs& v) { return clone(v[0]).index_put_({v[1]}, v[2]); });
}

TEST_CASE("indices and numbers of the CPU stand beside a CUDA tensor", "[cuda]") {
    NEEDS_DEVICE;
    const Tensor x = counted({5, 4}), there = x.to(cuda), i = tensor({3, -1, 0}), mask = tensor({true, false, false, true, true});
    check_same(there[i], x[i]);
    check_same(there[mask], x[mask]);
    check_same(clone(there).index_put_({i}, tensor(2.5)), clone(x).index_put_({i}, tensor(2.5)));
    CHECK_THROWS_AS(x[i.to(cuda)], DeviceError);
    CHECK_THROWS_AS(clone(there).index_put_({i}, ones({4})), DeviceError);
    CHECK_THROWS_AS(index_select(there, 0, i), DeviceError);
    const Tensor number = tensor(2.0).requires_grad_();
    Tape tape;
    tape.backward(sum(clone(there).index_put_({i}, number)) + sum(where(there > 3, number, 0)));
    CHECK(number.grad().device() == cpu);
    CHECK(number.grad().item() == 12 + 16);
}

TEST_CASE("an index out of range is heard of at the next wait", "[cuda]") {
    NEEDS_DEVICE;
    const Tensor x = counted({3, 4}).to(cuda), i = tensor({0, 5, 1}).to(cuda), grid = tensor({{0, 1}, {-4, 2}}).to(cuda);
    Tensor y = clone(x);
    CHECK(error_of([&] { index_select(x, 0, i); }) == "index_select: index 5 is out of range for dimension 0 of shape (3, 4)");
    CHECK(error_of([&] { gather(x, 0, grid); }) == "gather: index -4 is out of range for dimension 0 of shape (3, 4)");
    CHECK(error_of([&] { scatter(x, 1, i.reshape({3, 1}), 0); }) == "scatter: index 5 is out of range for dimension 1 of shape (3, 4)");
    CHECK(error_of([&] { scatter_add(x, 1, i.reshape({3, 1}), ones({3, 1}, cuda)); }) ==
          "scatter_add: index 5 is out of range for dimension 1 of shape (3, 4)");
    CHECK(error_of([&] { index_add(x, 0, i, x); }) == "index_add: index 5 is out of range for dimension 0 of shape (3, 4)");
    CHECK(error_of([&] { x[i.to(int32)]; }) == "index: index 5 is out of range for dimension 0 of shape (3, 4)");
    CHECK(error_of([&] { x.index({Slice(), i}); }) == "index: index 5 is out of range for dimension 1 of shape (3, 4)");
    CHECK(error_of([&] { y.index_put_({i}, 1); }) == "index_put_: index 5 is out of range for dimension 0 of shape (3, 4)");
    CHECK(error_of([&] { embedding(i, x); }) == "embedding: index 5 is out of range for dimension 0 of shape (3, 4)");
    const Tensor below = tensor({2, -1}).to(cuda);  // the last row elsewhere
    CHECK(error_of([&] { embedding(below, x); }) == "embedding: index -1 is out of range for dimension 0 of shape (3, 4)");
    CHECK(error_of([&] { index_select(x, 0, below); }) == "");
    CHECK(error_of([&] { one_hot(i, 5); }) == "one_hot: class 5 is out of range for 5 classes");
    CHECK(error_of([&] { one_hot(-i.slice(0, Slice(1, 2)), 9); }) == "one_hot: class -5 is out of range for 9 classes");
    const Tensor lowest = tensor({INT64_MIN}).to(cuda);
    CHECK(error_of([&] { one_hot(lowest, 9); }) == "one_hot: class -9223372036854775808 is out of range for 9 classes");
    CHECK(error_of([&] { index_select(zeros({3, 0}, cuda), 0, i); }) == "index_select: index 5 is out of range for dimension 0 of shape (3, 0)");
    // Nothing is in a dimension of size 0.
    CHECK_THROWS_AS(zeros({0, 4}, cuda)[i], IndexError);
    CHECK_THROWS_AS(embedding(i, zeros({0, 4}, cuda)), IndexError);
    CHECK(error_of([&] { x[tensor({2, -3}).to(cuda)]; }) == "");
}

TEST_CASE("scatter_reduce and sums at positions that come often", "[cuda]") {
    NEEDS_DEVICE;
    for (const DType dtype : {uint8, int32, int64, float16, bfloat16, float32, float64}) {
        for (const char* reduce : {"sum", "prod", "mean", "amax", "amin"}) {
            for (const bool include_self : {true, false}) {
                INFO(name(dtype) << " " << reduce << " " << include_self);
                // Ones, twos and fours, so that products are exact; 2 of 50 rows are left out.
                const Tensor x = pow(2, randint(0, 3, {50, 9})).to(dtype), src = pow(2, randint(0, 2, {301, 9})).to(dtype);
                compare(
                    {x, randint(0, 48, {300, 9}), src}, [&](const Inputs& v) { return scatter_reduce(v[0], 0, v[1], v[2], reduce, include_self); },
                    is_floating(dtype), dtype == float16 || dtype == bfloat16 ? 2e-2 : 1e-5);
            }
        }
        compare(
            {whole({50, 9}, dtype), randint(0, 50, {300}), randint(0, 3, {300, 9}).to(dtype)},
            [](const Inputs& v) { return v[0].index_put({v[1]}, v[2], true); }, is_floating(dtype));
    }
    const double nan = std::numeric_limits<double>::quiet_NaN();
    compare(
        {tensor({0.0, nan, 3.0}), tensor({0, 1, 0, 2}), tensor({nan, 1.0, 5.0, 7.0})},
        [](const Inputs& v) { return scatter_reduce(v[0], 0, v[1], v[2], "amax"); }, false);
    compare({whole({4, 3}), randint(0, 4, {6})}, [](const Inputs& v) { return v[0].index_put({v[1]}, 2.5, true); });
    const DeterministicScope deterministic;
    CHECK_THROWS_AS(scatter_reduce(ones({3}, cuda), 0, zeros({2}, {int64, cuda}), ones({2}, cuda), "prod"), DeviceError);
}

TEST_CASE("images at computed places", "[cuda]") {
    NEEDS_DEVICE;
    for (const char* padding : {"zeros", "border", "reflection"}) {
        for (const bool is_ordered : {false, true}) {
            INFO(padding << " " << is_ordered);
            const DeterministicScope deterministic(is_ordered);
            for (const DType dtype : {float16, float32, float64}) {
                compare(
                    {randn({2, 5, 17, 30}).to(dtype), (rand({2, 21, 19, 2}) * 3 - 1.5).to(dtype)},
                    [&](const Inputs& v) { return grid_sample(v[0], v[1], {.padding_mode = padding}); }, true,
                    dtype == float16       ? 4e-3
                        : dtype == float32 ? 1e-3
                                           : 1e-10);
            }
        }
    }
}

TEST_CASE("sums in order are the CPU's to the last bit", "[cuda]") {
    NEEDS_DEVICE;
    const DeterministicScope deterministic;
    for (const DType dtype : {float16, float32, float64}) {
        INFO(name(dtype));
        compare({randn({20, 5}).to(dtype), randint(0, 20, {900, 5}), randn({900, 5}).to(dtype)},
                [](const Inputs& v) { return scatter_add(v[0], 0, v[1], v[2]); });
        compare({randn({20, 33}).to(dtype), randint(0, 20, {150}), randn({150, 33}).to(dtype)},
                [](const Inputs& v) { return index_add(v[0], 0, v[1], v[2]); });
        compare({randn({8, 20, 3}).to(dtype), randint(0, 20, {150}), randn({8, 150, 3}).to(dtype)},
                [](const Inputs& v) { return index_add(v[0], 1, v[1], v[2]); });
        compare(
            {randn({20, 33}).to(dtype), randint(0, 20, {150})}, [](const Inputs& v) { return v[0][v[1]] * v[0][v[1]]; }, true,
            dtype == float16 ? 4e-3 : 1e-6);
    }
    compare({randint(0, 20, {150}), randn({20, 33})}, [](const Inputs& v) { return embedding(v[0], v[1]) * 0.3; });
}

#ifdef TAPIR_CUDA_EMULATED
TEST_CASE("indexing takes one launch", "[cuda]") {
    const Tensor x = randn({9, 16}).to(cuda), i = tensor({4, 8, 1}).to(cuda), number = tensor({7}).to(cuda), mask = x > 0;
    const Tensor column = tensor({{1}, {2}}).to(cuda), y = randn({9, 16}).to(cuda);
    const auto launches = [](const std::function<void()>& f) {
        synchronize(cuda);
        const int before = emulator::kernels_launched();
        f();
        return emulator::kernels_launched() - before;
    };
    CHECK(launches([&] { embedding(number, x); }) == 1);
    CHECK(launches([&] { index_select(x, 0, i); }) == 1);
    CHECK(launches([&] { index_select(x, 1, i); }) == 1);
    CHECK(launches([&] { x[i]; }) == 1);
    CHECK(launches([&] { gather(x, 1, column); }) == 1);
    CHECK(launches([&] { where(mask, x, 0.5); }) == 1);
    CHECK(launches([&] { where(mask, x, y); }) == 1);
    CHECK(launches([&] { masked_fill(x, mask, -1); }) == 1);
    CHECK(launches([&] { stack(std::vector<Tensor>(64, x)); }) == 1);
    CHECK(launches([&] { cat(std::vector<Tensor>(65, x), 1); }) == 2);
    CHECK(launches([&] { tril(x); }) == 1);
    CHECK(launches([&] { one_hot(i, 9); }) == 1);
    // A tree's leaves: the gradient of the table is collected, and added to it at once.
    const Tensor table = clone(y).requires_grad_();
    Tape tape;
    Tensor sum = embedding(number, table);
    for (int leaf = 0; leaf < 20; ++leaf) sum = sum + embedding(number, table);
    const Tensor g = ones({1, 16}, cuda);
    tape.backward(sum, {.gradient = g});
    CHECK(launches([&] { table.grad(); }) == 1);
    check_same(table.grad()[7], full({16}, 21).to(float32));
}
#endif

TEST_CASE("methods that write in place on the device", "[cuda]") {
    NEEDS_DEVICE;
    const Tensor x = whole({40, 50}), y = whole({40, 50}), mask = y > 0;
    const Tensor index = randperm(40).unsqueeze(1).expand({40, 50}).contiguous();
    const Tensor equal = randint(40, {40, 50}), rows = randint(40, {40});
    for (const bool is_turned : {false, true}) {  // then the elements written to are not contiguous
        INFO("turned " << is_turned);
        const auto check = [&](const std::function<void(Tensor&, const Inputs&)>& write) {
            compare({x, y, index, equal, rows, mask}, [&](const Inputs& in) {
                Tensor h = in[0] * 2;
                Tensor turned = zeros({50, 40}, h.device()).t();
                if (is_turned) h = turned.copy_(h);
                write(h, in);
                return h + in[1];
            });
        };
        check([](Tensor& h, const Inputs& in) { h.masked_fill_(in[5], 7); });
        check([](Tensor& h, const Inputs& in) { h.masked_fill_(in[5], in[1][0][0]); });
        check([](Tensor& h, const Inputs& in) { h.masked_fill_(in[5], tensor(2.0)); });
        check([](Tensor& h, const Inputs& in) { h.scatter_(0, in[2], in[1]); });
        check([](Tensor& h, const Inputs& in) { h.scatter_(0, in[2], 3); });
        check([](Tensor& h, const Inputs& in) { h.scatter_add_(0, in[3], in[1]); });
        check([](Tensor& h, const Inputs& in) { h.index_add_(0, in[4], in[1], 2); });
        check([](Tensor& h, const Inputs& in) { h.addcmul_(in[1], in[1]); });
        check([](Tensor& h, const Inputs& in) { h.lerp_(in[1], 0.5); });
    }
}
