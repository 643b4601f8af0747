// Shapes and dtypes that are seldom met, and have a meaning: tensors without dimensions, sizes of 1 that broadcast, dtypes of results.
// The values and dtypes are PyTorch 2's.
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>

#include "../fails.h"
#include "tapir/autograd/gradcheck.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

using Floats = std::vector<float>;

Floats floats(const Tensor& t) { return t.to_vector<float>(); }

}  // namespace

TEST_CASE("linear takes a weight of one output and any bias that the result takes", "[ops]") {
    const Tensor x = arange(6.0f).reshape({2, 3}), w = tensor({1.0f, 2.0f, 3.0f}), weight = ones({4, 3});
    CHECK(floats(linear(x, w)) == Floats{8, 26});
    CHECK(linear(x, w).shape() == Shape{2});
    CHECK(linear(w, w, tensor(1.0f)).shape() == Shape{});
    CHECK(linear(w, w, tensor(1.0f)).item<float>() == 15);
    for (const Shape& bias : {Shape{}, Shape{1}, Shape{1, 4}, Shape{2, 4}, Shape{2, 1}}) {
        CHECK(floats(linear(x, weight, ones(bias))) == Floats{4, 4, 4, 4, 13, 13, 13, 13});
    }
    const Tensor leaf = ones({3}).requires_grad_(), bias = ones({1}).requires_grad_();
    Tape tape;
    tape.backward(sum(linear(x, leaf)) + sum(linear(x, weight, bias)));
    CHECK(floats(leaf.grad()) == Floats{3, 5, 7});
    CHECK(floats(bias.grad()) == Floats{8});
    FAILS(ShapeError, "linear: a bias of shape (3,) does not fit a weight of shape (4, 3)", linear(x, weight, ones({3})));
    FAILS(ShapeError, "linear: an input of shape (2, 3) does not fit a weight of shape (2,)", linear(x, ones({2}), ones({2})));
}

TEST_CASE("a tensor without dimensions is one slice and one window", "[ops]") {
    const Tensor five = tensor(5.0f), at_0 = tensor({0}), zero = tensor(0), x = arange(6.0f).reshape({2, 3});
    CHECK(index_select(five, 0, at_0).shape() == Shape{});
    CHECK(index_select(five, -1, zero).item<float>() == 5);
    CHECK(index_select(x, 0, tensor(1)).shape() == Shape{1, 3});
    CHECK(floats(index_select(x, 0, tensor(1))) == Floats{3, 4, 5});
    CHECK(index_add(five, 0, at_0, tensor(2.0f)).item<float>() == 7);
    CHECK(index_add(five, 0, zero, tensor(2.0f)).shape() == Shape{});
    CHECK(floats(index_add(ones({3}), 0, tensor(1), tensor({2.0f}))) == Floats{1, 3, 1});
    CHECK(index_copy(five, 0, zero, tensor(2.0f)).shape() == Shape{});
    CHECK(five.unfold(0, 1, 1).shape() == Shape{1});
    CHECK(floats(five.unfold(-1, 1, 1)) == Floats{5});
    CHECK(five.unfold(0, 0, 1).shape() == Shape{0});
    CHECK(gather(ones({4, 0}), 0, zeros({0, 3}, int64)).shape() == Shape{0, 3});
    const Tensor leaf = tensor(2.0f).requires_grad_();
    Tape tape;
    tape.backward(index_select(leaf, 0, at_0) * 3 + index_add(leaf, 0, at_0, leaf) + sum(leaf.unfold(0, 1, 1)));
    CHECK(leaf.grad().item<float>() == 6);
}

TEST_CASE("sizes of 1 broadcast", "[ops]") {
    const Tensor x = arange(6.0f).reshape({2, 3}), row = tensor({0.0f, 1.0f, 3.0f});
    CHECK(floats(trapezoid(x, row.reshape({1, 3}))) == Floats{3.5f, 12.5f});
    CHECK(floats(trapezoid(ones({1, 3}), x)) == Floats{2, 2});
    CHECK(floats(trapezoid(x, tensor({1.0f, 3.0f}).reshape({2, 1}), 0)) == Floats{3, 5, 7});
    CHECK(trapezoid(ones({2, 3, 4}), arange(12.0f).reshape({3, 4})).shape() == Shape{2, 3});
    FAILS(ShapeError, "trapezoid: places of shape (2, 3) for y of shape (3,)", trapezoid(row, x));

    CHECK(floats(einsum("ij,jk->ik", {ones({2, 1}), ones({3, 4})})) == Floats(8, 3));
    CHECK(floats(einsum("i,i->", {ones({1}), row})) == Floats{4});
    CHECK(einsum("ij,ij->ij", {ones({2, 1}), ones({1, 3})}).shape() == Shape{2, 3});
    CHECK(einsum("i,ij->ij", {ones({0}), ones({1, 3})}).shape() == Shape{0, 3});
    FAILS(ShapeError, "einsum: the sizes of 'j' differ: 2 and 3", einsum("ij,jk->ik", {ones({2, 2}), ones({3, 4})}));
    CHECK(floats(tensordot(ones({2, 1}), ones({3, 4}), 1)) == Floats(8, 3));

    const Tensor mask = tensor({true, false, true, false, true, false}).reshape({2, 3}), source = arange(10.0f, 20.0f, 1.0f);
    CHECK(floats(masked_scatter(tensor({1.0f, 2.0f, 3.0f}), mask, source)) == Floats{10, 2, 11, 1, 12, 3});
    CHECK(floats(masked_scatter(tensor(5.0f), mask, source)) == Floats{10, 5, 11, 5, 12, 5});
    const Tensor leaf = ones({2, 1}).requires_grad_();
    Tape tape;
    tape.backward(sum(masked_scatter(leaf, tensor({true, false, false}), source)));
    CHECK(floats(leaf.grad()) == Floats{2, 2});
}

TEST_CASE("sizes of 1 and no sizes have the gradients of what they stand for", "[ops]") {
    const auto check = [](const char* what, const std::function<Tensor(const std::vector<Tensor>&)>& fn, const std::vector<Shape>& shapes) {
        INFO(what);
        manual_seed(2);
        std::vector<Tensor> inputs;
        for (const Shape& shape : shapes) inputs.push_back(rand(shape, float64) + 0.5);
        CHECK(gradcheck(fn, inputs, {.raise_exception = false}).message == "");
        CHECK(gradgradcheck(fn, inputs, {.raise_exception = false}).message == "");
    };
    using In = const std::vector<Tensor>&;
    check("einsum", [](In x) { return einsum("ij,jk->ik", {x[0], x[1]}); }, {{2, 1}, {3, 4}});
    check("einsum of one", [](In x) { return einsum("i,i->", {x[0], x[1]}); }, {{1}, {3}});
    check("einsum diagonal", [](In x) { return einsum("ii,i->i", {x[0], x[1]}); }, {{1, 1}, {3}});
    check("einsum kept", [](In x) { return einsum("ij,ij->ij", {x[0], x[1]}); }, {{2, 1}, {1, 3}});
    check("einsum of three", [](In x) { return einsum("bi,bj,bij->b", {x[0], x[1], x[2]}); }, {{1, 2}, {4, 3}, {4, 1, 3}});
    check("einsum with dots", [](In x) { return einsum("...i,ij->...j", {x[0], x[1]}); }, {{2, 3, 1}, {4, 2}});
    check("einsum summed alone", [](In x) { return einsum("ij,jk->k", {x[0], x[1]}); }, {{2, 1}, {3, 2}});
    check("tensordot", [](In x) { return tensordot(x[0], x[1], 1); }, {{2, 1}, {3, 4}});
    check("trapezoid", [](In x) { return trapezoid(x[0], x[1]); }, {{2, 3}, {1, 3}});
    check("trapezoid of a row", [](In x) { return trapezoid(x[0], x[1]); }, {{1, 3}, {2, 3}});
    check("trapezoid of vectors", [](In x) { return trapezoid(x[0], x[1], 1); }, {{2, 3, 4}, {3}});
    check("linear", [](In x) { return linear(x[0], x[1], x[2]); }, {{2, 3}, {3}, {}});
    check("linear of a vector", [](In x) { return linear(x[0], x[1]); }, {{3}, {3}});
    check("linear, bias of rows", [](In x) { return linear(x[0], x[1], x[2]); }, {{2, 3}, {4, 3}, {2, 1}});
    check("masked_scatter", [](In x) { return masked_scatter(x[0], tensor({true, false, true}), x[1]); }, {{2, 1}, {5}});
    check("masked_scatter of a number", [](In x) { return masked_scatter(x[0], tensor({true, false, true}), x[1]); }, {{}, {5}});
    check("index_select", [](In x) { return index_select(x[0], 0, tensor({0})); }, {{}});
    check("index_add", [](In x) { return index_add(x[0], 0, tensor({0}), x[1]); }, {{}, {}});
    check("unfold", [](In x) { return x[0].unfold(0, 1, 1); }, {{}});
    check("max_pool2d", [](In x) { return max_pool2d(x[0], 2, {.stride = 2, .padding = 1, .dilation = 2, .ceil_mode = true}); }, {{1, 2, 6, 5}});
    check("cosine_similarity", [](In x) { return cosine_similarity(x[0], x[1], 1); }, {{2, 1}, {2, 3}});
    check("pairwise_distance", [](In x) { return pairwise_distance(x[0], x[1]); }, {{1, 3}, {2, 3}});
    check("cross", [](In x) { return cross(x[0], x[1]); }, {{1, 3}, {2, 3}});
    check("take_along_dim", [](In x) { return take_along_dim(x[0], tensor({{1, 0, 2}}), 1); }, {{2, 3}});
    check("masked_fill", [](In x) { return masked_fill(x[0], tensor({{true}, {false}}), x[1]); }, {{1, 3}, {}});
    check("prelu", [](In x) { return prelu(x[0] - 1, x[1]); }, {{4}, {1}});
}

TEST_CASE("whole numbers go into integers, however they are written", "[ops]") {
    const Tensor x = arange(3);
    CHECK(pad(x, {1, 1}, 1.0).to_vector<int>() == std::vector<int>{1, 0, 1, 2, 1});
    CHECK(pad(x, {1, 1}, 1.0).dtype() == int64);
    CHECK(masked_fill(x, tensor({true, false, true}), 7.0).to_vector<int>() == std::vector<int>{7, 1, 7});
    CHECK(index_fill(x, 0, tensor({1}), 4.0).to_vector<int>() == std::vector<int>{0, 4, 2});
    FAILS(DTypeError, "pad: a floating-point value cannot be written into int64", pad(x, {1, 1}, 0.5));
    FAILS(DTypeError, "pad: a floating-point value cannot be written into int64", pad(x, {1, 1}, 1e30));
    FAILS(DTypeError, "pad: a floating-point value cannot be written into int64", pad(x, {1, 1}, std::nan("")));
}

TEST_CASE("a pooling window may end behind the input where their number is rounded up", "[ops]") {
    const Tensor x = arange(16.0f).reshape({1, 1, 4, 4});
    CHECK(floats(max_pool2d(x, 2, {.stride = 3, .dilation = 3, .ceil_mode = true})) == Floats{15});
    CHECK(floats(max_pool1d(arange(3.0f).reshape({1, 1, 3}), 2, {.stride = 2, .dilation = 3, .ceil_mode = true})) == Floats{0});
    // Windows that lie beside the input are -inf, and give nothing a gradient.
    const Tensor leaf = ones({1, 2, 7, 1}).requires_grad_();
    Tape tape;
    const Tensor y = max_pool2d(leaf, {3, 2}, {.stride = {1, 2}, .padding = {1, 1}, .dilation = {2, 3}, .ceil_mode = true});
    CHECK(y.shape() == Shape{1, 2, 5, 1});
    CHECK(floats(y) == Floats(10, -std::numeric_limits<float>::infinity()));
    tape.backward(sum(y));
    CHECK(floats(leaf.grad()) == Floats(14, 0));
}

TEST_CASE("powers, squares and ldexp have PyTorch's dtypes", "[ops]") {
    const Tensor i = tensor({2, 1, -1, 0});
    // A number as exponent is refused where it is negative, tensors are not, with or without dimensions.
    FAILS(ValueError, "pow: integers to negative integer powers are not allowed", pow(tensor(2), -1));
    CHECK(pow(i, tensor(-1)).to_vector<int>() == std::vector<int>{0, 1, -1, 0});
    CHECK(pow(i, tensor({-1})).to_vector<int>() == std::vector<int>{0, 1, -1, 0});
    CHECK(pow(tensor(2), tensor(-1)).item<int>() == 0);
    CHECK(pow(tensor(2), tensor({-1, 2})).to_vector<int>() == std::vector<int>{0, 4});
    CHECK(pow(2, tensor(-1)).item<int>() == 0);
    for (const Tensor& yes : {tensor({true, true}), tensor(true)}) {
        CHECK(square(yes).dtype() == int64);
        CHECK(square(yes).to_vector<int>() == std::vector<int>(static_cast<std::size_t>(yes.numel()), 1));
    }
    CHECK(square(ones({2}, uint8)).dtype() == uint8);
    for (const DType dtype : {float16, bfloat16, float32, float64}) {
        for (const DType whole : {uint8, int32, int64}) {
            CHECK(ldexp(ones({2}, dtype), ones({2}, whole)).dtype() == dtype);
            CHECK(ldexp(tensor(1).to(dtype), ones({2}, whole)).dtype() == dtype);
        }
    }
    CHECK(ldexp(ones({2}, int32), ones({2}, int64)).dtype() == float32);
    CHECK(ldexp(ones({2}, int32), ones({2}, float16)).dtype() == float16);
    CHECK(ldexp(tensor({0x1p-20}).to(float16), tensor({20})).item<float>() == 1);  // 2^20 is no float16
}
