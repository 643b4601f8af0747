// What tensors are made of: shapes, dtype promotion against PyTorch's, sharing, reading, the allocator.
#include <cmath>
#include <sstream>
#include <string>
#include <thread>

#include "../fails.h"
#include "tapir/core/allocator.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

// The letters of the tables below.
const std::string kLetters = "builhgfd";
const DType kDTypesInOrder[] = {bool_, uint8, int32, int64, float16, bfloat16, float32, float64};

char letter(DType dtype) {
    for (std::size_t i = 0; i < kLetters.size(); ++i) {
        if (kDTypesInOrder[i] == dtype) return kLetters[i];
    }
    return '?';
}

Tensor vector_of(DType dtype) { return ones({2}, dtype); }
Tensor number_of(DType dtype) { return ones({}, dtype); }

template <class A, class B, class Op>
std::string table(const A& a, const B& b, const Op& op) {
    std::string result;
    for (const DType x : kDTypesInOrder) {
        for (const DType y : kDTypesInOrder) result += letter(op(a(x), b(y)).dtype());
        result += ' ';
    }
    result.pop_back();
    return result;
}

}  // namespace

// The expected strings were printed by PyTorch 1.13: a row a left operand, a letter a right one, as in kLetters.
TEST_CASE("dtypes promote as PyTorch's") {
    const auto plus = [](const Tensor& a, const Tensor& b) { return a + b; };
    CHECK(table(vector_of, vector_of, plus) == "builhgfd uuilhgfd iiilhgfd llllhgfd hhhhhffd ggggfgfd fffffffd dddddddd");
    CHECK(table(vector_of, number_of, plus) == "builhgfd uuuuhgfd iiiihgfd llllhgfd hhhhhhhh gggggggg ffffffff dddddddd");
    CHECK(table(number_of, vector_of, plus) == "builhgfd uuilhgfd iuilhgfd luilhgfd hhhhhgfd gggghgfd ffffhgfd ddddhgfd");
    CHECK(table(vector_of, vector_of, [](const Tensor& a, const Tensor& b) { return a / b; }) ==
          "ffffhgfd ffffhgfd ffffhgfd ffffhgfd hhhhhffd ggggfgfd fffffffd dddddddd");
    std::string with_numbers;
    for (const DType dtype : kDTypesInOrder) {
        const Tensor x = vector_of(dtype);
        with_numbers += {letter((x + true).dtype()), letter((x + 1).dtype()), letter((x + 1.5).dtype()), ' '};
    }
    with_numbers.pop_back();
    CHECK(with_numbers == "blf uuf iif llf hhh ggg fff ddd");
    std::string of_exp;
    for (const DType dtype : kDTypesInOrder) of_exp += letter(exp(vector_of(dtype)).dtype());
    CHECK(of_exp == "ffffhgfd");
}

TEST_CASE("a shape is a short list") {
    Shape shape{2, 3};
    shape.push_back(4);
    CHECK(shape == Shape(2, 3, 4));
    CHECK(shape.numel() == 24);
    CHECK(shape.str() == "(2, 3, 4)");
    shape.insert(1, 7);
    shape.erase(0);
    CHECK(shape == Shape(7, 3, 4));
    CHECK(shape.to_vector() == std::vector<std::int64_t>{7, 3, 4});
    CHECK(Shape().numel() == 1);
    CHECK(Shape(5, 0).numel() == 0);
    CHECK_THROWS_AS(Shape(std::vector<std::int64_t>(9, 1)), ShapeError);
    CHECK(broadcast_shapes({4, 1, 3}, {2, 1}) == Shape(4, 2, 3));
    CHECK(broadcast_shapes({}, {0}) == Shape(0));
    CHECK_THROWS_AS(broadcast_shapes({2}, {3}), ShapeError);
}

TEST_CASE("a shape whose sizes multiply past all memory is refused, also where another size is 0") {
    constexpr std::int64_t kHalf = std::int64_t{1} << 62;
    CHECK_THROWS_AS(empty({0, kHalf, 8}), OutOfMemory);
    CHECK_THROWS_AS(zeros({kHalf, 0, kHalf}), OutOfMemory);
    CHECK_THROWS_AS(zeros({0}).view({0, kHalf, 8}), OutOfMemory);
    CHECK_THROWS_AS(zeros({0}).reshape({kHalf, 8, 0}), ShapeError);
    CHECK_THROWS_AS(zeros({0, 1}).expand({0, kHalf}), OutOfMemory);
    CHECK_THROWS_AS(zeros({8}).view({kHalf + 2, 4}), ShapeError);  // 8 modulo 2^64
    CHECK_THROWS_AS(zeros({8}).unflatten(0, {kHalf + 2, 4}), ShapeError);
    CHECK(zeros({0, 3}).view({-1, 3}).shape() == Shape{0, 3});
}

TEST_CASE("copies of a tensor share, clones do not") {
    const Tensor a = zeros({3}), b = a, c = a.clone();
    a.data<float>()[0] = 5;
    CHECK(b.at<float>({0}) == 5);
    CHECK(c.at<float>({0}) == 0);
    CHECK(a.is_same(b));
    CHECK_FALSE(a.is_same(c));
    const Tensor view = a.view({3, 1});
    CHECK(view.data<float>() == a.data<float>());
}

TEST_CASE("elements are read in C++ types") {
    const Tensor x = tensor({{1, 2}, {3, 4}});
    CHECK(x[1][0].item<int>() == 3);
    CHECK(x.at<std::int64_t>({-1, -1}) == 4);
    CHECK(x.to_vector<double>() == std::vector<double>{1, 2, 3, 4});
    CHECK(x.t().to_vector<int>() == std::vector<int>{1, 3, 2, 4});
    std::int64_t sum_of_rows = 0;
    for (const Tensor& row : x) sum_of_rows += sum(row).item<std::int64_t>();
    CHECK(sum_of_rows == 10);
    CHECK_THROWS_AS(x.data<float>(), DTypeError);
    CHECK_THROWS_AS(x.at<float>({0, 0}), DTypeError);
    CHECK_THROWS_AS(x.at<std::int64_t>({2, 0}), IndexError);
    CHECK_THROWS_AS(x.item<int>(), Error);
    for (const Tensor& row : zeros({0, 3})) FAIL(row.shape().str());
}

TEST_CASE("data() is in row-major order, unless asked for as it lies") {
    const Tensor x = tensor({{1.0f, 2.0f, 3.0f}, {4.0f, 5.0f, 6.0f}}), t = x.t();
    CHECK(x.data<float>()[1] == 2);
    CHECK(x[1].data<float>()[0] == 4);
    FAILS(ValueError, "data: the tensor of shape (3, 2) is not contiguous, its strides are (1, 3); contiguous() has the elements in order",
          t.data<float>());
    CHECK(t.data<float>(strided)[t.stride(0)] == 2);
    CHECK(t.contiguous().data<float>()[1] == 4);
    FAILS(DTypeError, "data: the tensor holds float32, not float64", t.data<double>(strided));
    const Tensor image = conv2d(ones({1, 2, 4, 4}), ones({3, 2, 3, 3}));
    CHECK(image.is_contiguous() == !TAPIR_ONEDNN);
    if (image.is_contiguous()) return;
    FAILS(ValueError, "data: the tensor of shape (1, 3, 2, 2) is not contiguous", image.data<float>());
}

TEST_CASE("names that users of PyTorch write") {
    const Tensor x = zeros({2, 3});
    CHECK(x.sizes() == Shape{2, 3});
    CHECK(x.ndim() == 2);
    CHECK(zeros({1}, kFloat64).dtype() == float64);
    CHECK(zeros({1}, kLong).dtype() == int64);
    CHECK(zeros({1}, kBool).dtype() == bool_);
    CHECK(zeros({1}, kHalf).dtype() == float16);
    // item() is to be asked: a cast says so at compile time.
    CHECK(!std::is_convertible_v<Tensor, float>);
    CHECK(!std::is_convertible_v<Tensor, bool>);
}

TEST_CASE("item() throws for what its type cannot hold") {
    const auto refuses = [](const std::string& what, const auto& read) {
        try {
            read();
            FAIL("nothing thrown: " << what);
        } catch (const ValueError& error) {
            const std::string text = error.what();
            INFO(text);
            CHECK(text.find("tensor_test.cpp:") != std::string::npos);
            CHECK(text.find(what) != std::string::npos);
        }
    };
    const Tensor big = tensor({3000000000LL});
    refuses("item: the value 3000000000 cannot be converted to type int without overflow", [&] { return big.item<int>(); });
    CHECK(big.item<unsigned>() == 3000000000u);
    CHECK(big.item<std::int64_t>() == 3000000000LL);
    refuses("to type uint8_t", [] { return tensor({300}).item<std::uint8_t>(); });
    refuses("to type uint8_t", [] { return tensor({256}).item<std::uint8_t>(); });
    CHECK(tensor({255}).item<std::uint8_t>() == 255);
    refuses("to type float without overflow", [] { return full({}, -1e300, float64).item<float>(); });
    CHECK(full({}, -1e300, float64).item<double>() == -1e300);
    CHECK(std::isinf(full({}, HUGE_VAL, float64).item<float>()));
    refuses("to type uint32_t", [] { return tensor({-1}).item<unsigned>(); });
    refuses("to type uint64_t", [] { return tensor({-1}).item<std::uint64_t>(); });
    refuses("to type int8_t", [] { return tensor({128}).item<std::int8_t>(); });
    refuses("to type int8_t", [] { return tensor({-129}).item<std::int8_t>(); });
    CHECK(tensor({-128}).item<std::int8_t>() == -128);
    refuses("the value 1e+30", [] { return tensor({1e30}, float64).item<int>(); });
    refuses("the value nan", [] { return tensor({std::nan("")}).item<std::int64_t>(); });
    refuses("the value inf", [] { return tensor({HUGE_VAL}).item<std::int64_t>(); });
    refuses("the value -1", [] { return tensor({-1.0}).item<std::uint64_t>(); });
    refuses("the value 9.22", [] { return tensor({0x1p63}, float64).item<std::int64_t>(); });
    CHECK(tensor({-0x1p63}, float64).item<std::int64_t>() == INT64_MIN);
    CHECK(tensor({0x1p63}, float64).item<std::uint64_t>() == std::uint64_t{1} << 63);
    CHECK(tensor({2147483647.75}, float64).item<int>() == 2147483647);
    CHECK(tensor({-2147483648.75}, float64).item<int>() == -2147483647 - 1);
    refuses("the value 2147483648", [] { return tensor({2147483648.0}, float64).item<int>(); });
    CHECK(tensor({-0.75}).item<unsigned>() == 0);
    CHECK(tensor({0.5}).item<bool>());
    CHECK(tensor({std::nan("")}).item<bool>());
    CHECK_FALSE(tensor({0.0}).item<bool>());
}

TEST_CASE("memory statistics follow tensors") {
    const MemoryStats before = memory_stats();
    {
        const Tensor small = zeros({10}), large = zeros({1 << 20});
        const MemoryStats with = memory_stats();
        CHECK(with.live_bytes - before.live_bytes >= 40 + (4 << 20));
        CHECK(with.allocations - before.allocations >= 2);
        CHECK(with.peak_bytes >= with.live_bytes);
    }
    CHECK(memory_stats().live_bytes == before.live_bytes);
    reset_peak_memory();
    CHECK(memory_stats().peak_bytes == memory_stats().live_bytes);
}

TEST_CASE("bits and truth values") {
    const Tensor yes = tensor({true, false}), six = tensor({6, 3});
    CHECK((~yes).to_vector<bool>() == std::vector<bool>{false, true});
    CHECK((yes & ~yes).to_vector<bool>() == std::vector<bool>{false, false});
    CHECK((six & 5).to_vector<int>() == std::vector<int>{4, 1});
    CHECK((yes | six).to_vector<int>() == std::vector<int>{7, 3});
    CHECK_THROWS_AS(yes & six.to(float32), DTypeError);
}

TEST_CASE("what an expression gives is written to, a variable is bound anew") {
    using V = std::vector<double>;
    const Tensor x = zeros({2, 3});
    x[0] = 5;
    x[1] = tensor({1, 2, 3});
    CHECK(x.to_vector<double>() == V{5, 5, 5, 1, 2, 3});
    x[1][Slice(1, None)] = x[0][Slice(0, 2)] * 2;
    x.index({Ellipsis, 0}) = true;
    CHECK(x.to_vector<double>() == V{1, 5, 5, 1, 10, 10});
    x[0] += 1;
    x[0] -= tensor({1, 2, 3});
    x[1][2] *= 3;
    x[-1][0] /= 4;
    CHECK(x.to_vector<double>() == V{1, 4, 3, 0.25, 10, 30});
    CHECK((x[0] += 1).shares_storage(x));
    Tensor row = x[0];
    row = x[1];
    CHECK(x.to_vector<double>() == V{2, 5, 4, 0.25, 10, 30});
    Tensor w = ones({2}).requires_grad_();
    w.set_grad(tensor({2.0, 4.0}));
    w.grad() *= 0.5;
    CHECK(w.grad().to_vector<double>() == V{1, 2});

    const std::vector<double> before = x.to_vector<double>();
    const Tensor mask = x > 4;
    FAILS(ValueError, "=: on its left is a copy that nothing else holds", x[mask] = 0);
    FAILS(ValueError, "=: on its left is a copy", x[mask] = x);
    FAILS(ValueError, "+=: on its left is a copy that nothing else holds", x[mask] += 1);
    FAILS(ValueError, "*=: on its left is a copy", x[tensor({0})] *= x);
    FAILS(ValueError, "=: on its left is a copy", x + 1 = x);
    FAILS(ValueError, "=: the tensor is undefined", Tensor() = x);
    FAILS(ValueError, "undefined", x[0] = Tensor());
    FAILS(ShapeError, "does not broadcast", x[0] = x);
    FAILS(IndexError, "", x[2] = 0);
    CHECK(x.to_vector<double>() == before);
    {
        Tape tape;
        FAILS(TapeError, "writing into a view", x[0] = sum(w));
        FAILS(TapeError, "writing into a view", x[0] += sum(w));
    }
    CHECK(x.to_vector<double>() == before);
}

TEST_CASE("positions in a shape") {
    const Tensor x = zeros({2, 3, 4});
    CHECK(x.shape()[0] == 2);
    CHECK(x.shape()[-1] == 4);
    CHECK(x.shape()[std::size_t{1}] == 3);
    CHECK(x.strides()[-3] == 12);
    CHECK(x.shape().back() == 4);
    FAILS(IndexError, "shape[3]: (2, 3, 4) has 3 dimensions", x.shape()[3]);
    FAILS(IndexError, "shape[7]: ", x.shape()[7]);
    FAILS(IndexError, "shape[-4]: (2, 3, 4) has 3 dimensions", x.shape()[-4]);
    FAILS(IndexError, "shape[4294967296]: ", x.shape()[std::int64_t{1} << 32]);
    FAILS(IndexError, "shape[-2]: (5,) has 1 dimension", Shape(5)[-2]);
    FAILS(IndexError, "shape[-1]: () has 0 dimensions", Shape().back());
    Shape s{2, 3};
    s[-1] = 7;
    CHECK(s == Shape(2, 7));
    FAILS(IndexError, "shape[2]: ", s[2] = 1);
    CHECK(s == Shape(2, 7));
}

TEST_CASE("None leaves an end of a slice open") {
    const Tensor x = arange(6);
    const auto at = [&](Slice slice) { return x[slice].to_vector<int>(); };
    CHECK(at(Slice(2, None)) == std::vector<int>{2, 3, 4, 5});
    CHECK(at(Slice(None, 2)) == std::vector<int>{0, 1});
    CHECK(at(Slice(None)) == std::vector<int>{0, 1, 2, 3, 4, 5});
    CHECK(at(Slice(None, None, 4)) == std::vector<int>{0, 4});
    CHECK(at({None, -4}) == std::vector<int>{0, 1});
    CHECK(x.index({Slice(-2, None)}).to_vector<int>() == std::vector<int>{4, 5});
    CHECK(x.slice(0, {1, None, 3}).to_vector<int>() == std::vector<int>{1, 4});
}

TEST_CASE("shapes, dtypes and devices are written to streams") {
    std::ostringstream out;
    out << Shape(2, 3) << ' ' << float16 << ' ' << zeros({1}).device() << ' ' << Shape();
    CHECK(out.str() == "(2, 3) float16 cpu ()");
}

TEST_CASE("an undefined tensor says so") {
    const Tensor none;
    CHECK_THROWS_AS(none.shape(), ValueError);
    CHECK_THROWS_AS(none.dim(), ValueError);
    CHECK_THROWS_AS(none.numel(), ValueError);
    CHECK_THROWS_AS(none.dtype(), ValueError);
    CHECK_THROWS_AS(zeros({2}).requires_grad_().grad().shape(), ValueError);
    CHECK_FALSE(none.shares_storage(none));
}

TEST_CASE("a thread that only frees keeps the counts right") {
    const std::int64_t before = memory_stats().live_bytes;
    for (int i = 0; i < 100; ++i) {
        Tensor small = zeros({16}), large = zeros({100'000});
        std::thread([small = std::move(small), large = std::move(large)] {}).join();
    }
    CHECK(memory_stats().live_bytes == before);
}

TEST_CASE("a tensor made on one thread ends on another") {
    const std::int64_t before = memory_stats().live_bytes;
    std::vector<Tensor> made;
    std::thread([&] {
        for (int i = 0; i < 1000; ++i) made.push_back(full({16}, i));
    }).join();
    double sum_of_all = 0;
    for (const Tensor& t : made) sum_of_all += sum(t).item<double>();
    CHECK(sum_of_all == 16 * 999 * 1000 / 2.0);
    made.clear();
    CHECK(memory_stats().live_bytes == before);
}

TEST_CASE("shapes are written with braces, with parentheses, and with both") {
    const std::vector<std::int64_t> sizes = {2, 3};
    CHECK(Shape({2, 3}) == Shape{2, 3});
    CHECK(Shape(2, 3) == Shape(sizes));
    CHECK(zeros(sizes).shape() == Shape({2, 3}));
}
