// Padding in every mode: layouts, limits and what is refused; and the layers. Values and gradients: the op table's test, against
// PyTorch.
#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

TEST_CASE("pad keeps the channels last in every mode") {
    manual_seed(1);
    const Tensor x = randn({2, 3, 5, 4}), turned = x.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2});
    for (const char* mode : {"constant", "reflect", "replicate", "circular"}) {
        INFO(mode);
        const Tensor want = pad(x, {1, 2, -1, 2}, std::string(mode)), have = pad(turned, {1, 2, -1, 2}, std::string(mode));
        CHECK(want.is_contiguous());
        CHECK(have.permute({0, 2, 3, 1}).is_contiguous());
        CHECK(have.to_vector<float>() == want.to_vector<float>());
    }
}

TEST_CASE("pad of any rank and dtype, and of no width") {
    const Tensor x = tensor({1, 2, 3});
    CHECK(pad(x, {2, 1}, "reflect").to_vector<int>() == std::vector<int>{3, 2, 1, 2, 3, 2});
    CHECK(pad(x, {2, 1}, "replicate").to_vector<int>() == std::vector<int>{1, 1, 1, 2, 3, 3});
    CHECK(pad(x, {3, 1}, "circular").to_vector<int>() == std::vector<int>{1, 2, 3, 1, 2, 3, 1});
    CHECK(pad(x, {-1, 2}, "circular").to_vector<int>() == std::vector<int>{2, 3, 2, 3});
    const Tensor same = pad(x, {0, 0}, "reflect");
    CHECK(same.to_vector<int>() == x.to_vector<int>());
    CHECK(!same.shares_storage(x));
    CHECK(!pad(x, {-1, 0}, "reflect").shares_storage(x));
    CHECK(pad(ones({1, 1, 1, 1, 1, 2}), {1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0}, "replicate").shape() == Shape{3, 1, 1, 1, 1, 4});
}

TEST_CASE("pad refuses") {
    const Tensor x = ones({2, 3});
    FAILS(ShapeError, "pad: widths 3 and 0 do not fit dimension 1 of shape (2, 3) in mode \"reflect\"", pad(x, {3, 0}, "reflect"));
    FAILS(ShapeError, "in mode \"circular\"", pad(x, {0, 4}, "circular"));
    FAILS(ShapeError, "in mode \"reflect\"", pad(x, {-2, 1}, "reflect"));
    FAILS(ShapeError, "in mode \"replicate\"", pad(x, {-2, -2}, "replicate"));
    FAILS(ShapeError, "in mode \"replicate\"", pad(ones({2, 0}), {1, 0}, "replicate"));
    FAILS(ShapeError, "pad: 6 widths are too many for shape (2, 3)", pad(x, {1, 1, 1, 1, 1, 1}, "replicate"));
    FAILS(ValueError, "pad: widths come in pairs", pad(x, {1}, "replicate"));
    FAILS(ValueError, "pad: the mode must be \"constant\", \"reflect\", \"replicate\" or \"circular\", not \"mirror\"", pad(x, {1, 1}, "mirror"));
}

TEST_CASE("padding layers") {
    const Tensor x = arange(4, float32).view({1, 1, 2, 2});
    CHECK(nn::ZeroPad2d(1)(x).shape() == Shape{1, 1, 4, 4});
    CHECK(nn::ZeroPad2d({1, 0, 0, 0})(x).to_vector<int>() == std::vector<int>{0, 0, 1, 0, 2, 3});
    CHECK(nn::ConstantPad2d({0, 1, 0, 0}, 7)(x).to_vector<int>() == std::vector<int>{0, 1, 7, 2, 3, 7});
    CHECK(nn::ReflectionPad2d({1, 0, 0, 0})(x).to_vector<int>() == std::vector<int>{1, 0, 1, 3, 2, 3});
    CHECK(nn::ReplicationPad1d(1)(x[0]).to_vector<int>() == std::vector<int>{0, 0, 1, 1, 2, 2, 3, 3});
    CHECK(nn::CircularPad1d({1, 0})(x[0]).to_vector<int>() == std::vector<int>{1, 0, 1, 3, 2, 3});
    CHECK(nn::CircularPad3d(1)(ones({1, 2, 2, 2})).shape() == Shape{1, 4, 4, 4});
    CHECK(nn::ConstantPad1d(2, 0.5).describe() == "(2, 2), value 0.5");
    FAILS(ValueError, "ReflectionPad2d: padding needs 1 number or 4, got (1, 2)", nn::ReflectionPad2d({1, 2}));
}

TEST_CASE("convolution layers pad in other modes than zeros") {
    manual_seed(2);
    const Tensor x = randn({2, 3, 6, 7});
    for (const char* mode : {"reflect", "replicate", "circular"}) {
        INFO(mode);
        nn::Conv2d conv(3, 4, 3, {.padding = {1, 2}, .padding_mode = std::string(mode)});
        const Tensor want = conv2d(pad(x, {2, 2, 1, 1}, std::string(mode)), conv.weight, conv.bias);
        CHECK(allclose(conv(x), want));
        nn::Conv2d same(3, 4, {4, 3}, {.padding = "same", .dilation = {1, 2}, .padding_mode = std::string(mode)});
        const Tensor of_same = conv2d(pad(x, {2, 2, 1, 2}, std::string(mode)), same.weight, same.bias, {.dilation = {1, 2}});
        CHECK(same(x).shape() == Shape{2, 4, 6, 7});
        CHECK(allclose(same(x), of_same));
    }
    CHECK(nn::Conv1d(2, 2, 3, {.padding = 1, .padding_mode = "circular"}).describe() == "weight (2, 2, 3), padding (1,), padding_mode circular");
}
