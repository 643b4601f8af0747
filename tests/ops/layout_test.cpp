// Element-wise ops and copies of tensors in every layout: the kernels for rows, transposed operands and short rows against plain loops.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tapir/tapir.h"

using namespace tapir;

namespace {

// Reads the elements in row-major order, one after the other.
template <class T>
std::vector<T> elements(const Tensor& x) {
    const Shape shape = x.shape(), strides = x.strides();
    const auto* data = reinterpret_cast<const T*>(x.raw_data());
    std::vector<T> all(static_cast<std::size_t>(x.numel()));
    std::vector<int64_t> index(static_cast<std::size_t>(shape.rank()));
    for (T& one : all) {
        int64_t offset = 0;
        for (int d = 0; d < shape.rank(); ++d) offset += index[static_cast<std::size_t>(d)] * strides[d];
        one = data[offset];
        for (int d = shape.rank(); d-- > 0;) {
            if (++index[static_cast<std::size_t>(d)] < shape[d]) break;
            index[static_cast<std::size_t>(d)] = 0;
        }
    }
    return all;
}

// A view of shape (rows, columns) or (2, rows, columns) in each layout.
struct Layout {
    const char* name;
    std::function<Tensor(int64_t, int64_t)> make;
};

std::vector<Layout> layouts() {
    return {
        {"contiguous", [](int64_t n, int64_t m) { return randn({n, m}); }},
        {"transposed", [](int64_t n, int64_t m) { return randn({m, n}).t(); }},
        {"a row", [](int64_t, int64_t m) { return randn({m}); }},
        {"a column", [](int64_t n, int64_t) { return randn({n, 1}); }},
        {"a number", [](int64_t, int64_t) { return randn({1, 1}); }},
        {"every second column", [](int64_t n, int64_t m) { return randn({n, m, 2}).select(2, 1); }},
        {"columns of a wider one", [](int64_t n, int64_t m) { return randn({n, m + 5}).narrow(1, 3, m); }},
        {"rows of a transposed one", [](int64_t n, int64_t m) { return randn({m, n + 3}).narrow(1, 2, n).t(); }},
        {"a stack of transposed ones", [](int64_t n, int64_t m) { return randn({2, m, n}).transpose(1, 2); }},
        {"channels last", [](int64_t n, int64_t m) { return randn({2, m, n}).permute({0, 2, 1}).contiguous().permute({0, 2, 1}).transpose(1, 2); }},
        {"the same for all of a stack", [](int64_t n, int64_t m) { return randn({1, n, m}).expand({2, n, m}); }},
    };
}

Tensor packed(const Tensor& x, const Shape& shape) { return tensor(elements<float>(x.expand(shape))).reshape(shape); }

}  // namespace

TEST_CASE("two operands in any two layouts", "[layout]") {
    manual_seed(1);
    const std::pair<int64_t, int64_t> sizes[] = {{3, 64}, {17, 80}, {33, 256}, {5, 300}, {40, 1027}};
    for (const auto& [n, m] : sizes) {
        for (const Layout& one : layouts()) {
            for (const Layout& other : layouts()) {
                INFO(n << " x " << m << ": " << one.name << " and " << other.name);
                const Tensor a = one.make(n, m), b = other.make(n, m);
                const Tensor y = a - b;
                const Tensor plain_a = packed(a, y.shape()), plain_b = packed(b, y.shape());  // these take the fast path
                CHECK(elements<float>(y) == elements<float>(plain_a - plain_b));
                CHECK(elements<std::uint8_t>(a < b) == elements<std::uint8_t>(plain_a < plain_b));
            }
        }
    }
}

TEST_CASE("arithmetic with a number for each row", "[layout]") {
    manual_seed(4);
    for (const DType dtype : {float32, float64}) {
        for (const int64_t m : {64, 80, 301, 1027}) {
            const Tensor column = randn({35, 1}, dtype), row = randn({m}, dtype), wide = randn({35, m + 3}, dtype).narrow(1, 2, m);
            for (const Tensor& x : {row, wide}) {
                INFO(name(dtype) << ", " << m << (x.dim() == 1 ? ", outer" : ", of a matrix"));
                const Tensor a = x.expand({35, m}).contiguous(), b = column.expand({35, m}).contiguous();  // these take the fast path
                CHECK(equal(x + column, a + b));
                CHECK(equal(x - column, a - b));
                CHECK(equal(column - x, b - a));
                CHECK(equal(x * column, a * b));
                CHECK(equal(x / column, a / b));
                CHECK(equal(column / x, b / a));
            }
            Tensor y = wide.clone();
            y.narrow(0, 1, 34).sub_(column.narrow(0, 1, 34));
            CHECK(equal(y[0], wide[0]));
            CHECK(equal(y.narrow(0, 1, 34), (wide - column).narrow(0, 1, 34)));
        }
    }
}

TEST_CASE("operands in other layouts, converted", "[layout]") {
    manual_seed(2);
    for (const DType dtype : {float64, int64, bfloat16, float16, int32, uint8}) {
        for (const Layout& layout : layouts()) {
            INFO(name(dtype) << ", " << layout.name);
            const Tensor values = layout.make(35, 130);
            const Tensor a = clamp(round(values * 10), 0, 9), turned = a.dim() == 2 && a.size(0) == 35 ? a.t().to(dtype).t() : a.to(dtype);
            const Tensor y = turned + ones({35, 130}, dtype);
            CHECK(y.dtype() == dtype);
            CHECK(elements<double>(y.to(float64)) == elements<double>((a + 1.0).expand(y.shape()).to(float64)));
        }
    }
}

TEST_CASE("operations in place on a view of any layout", "[layout]") {
    manual_seed(3);
    for (const Layout& layout : layouts()) {
        const Tensor row = randn({130}), column = randn({35, 1});
        Tensor x = layout.make(35, 130);
        if (x.shape() != Shape{35, 130}) continue;
        INFO(layout.name);
        const Tensor expected = packed(x, x.shape()) * packed(row, x.shape()) + packed(column, x.shape());
        x.mul_(row).add_(column);
        CHECK(elements<float>(x) == elements<float>(expected));
    }
}

namespace {

template <class T>
void check_copies(DType dtype) {
    for (const auto& [a, b, c] : {std::tuple{3, 7, 5}, {1, 16, 16}, {2, 33, 67}, {16, 64, 17}, {5, 130, 1}, {4, 1, 129}, {70, 65, 2}, {2, 28, 28}}) {
        const Tensor x = randint(0, 200, {a + 1, b + 2, c + 3}, int64).to(dtype);
        for (const auto& order : {std::vector<int>{0, 2, 1}, {1, 0, 2}, {2, 1, 0}, {1, 2, 0}, {2, 0, 1}, {0, 1, 2}}) {
            INFO(name(dtype) << " " << a << " x " << b << " x " << c << ", order " << order[0] << order[1] << order[2]);
            const Tensor part = x.narrow(0, 1, a).narrow(1, 1, b).narrow(2, 2, c);
            const Tensor view = part.permute({order[0], order[1], order[2]});
            const Tensor copy = view.clone();
            CHECK(copy.is_contiguous());
            CHECK(elements<T>(copy) == elements<T>(view));
            Tensor into = zeros({c + 1, a + 1, b + 1}, dtype);
            into.narrow(0, 1, c).narrow(1, 0, a).narrow(2, 1, b).copy_(part.permute({2, 0, 1}));
            CHECK(elements<T>(into.narrow(0, 1, c).narrow(1, 0, a).narrow(2, 1, b)) == elements<T>(part.permute({2, 0, 1})));
            CHECK(into.select(0, 0).to(float64).sum().item() + into.select(2, 0).to(float64).sum().item() == 0);  // what lies around it
            CHECK(into.select(1, a).to(float64).sum().item() == 0);
        }
        CHECK(elements<T>(flip(x, {2})) == elements<T>(x.index_select(2, arange(c + 2, -1, -1))));
        CHECK(elements<T>(roll(x, {2}, {2})) == elements<T>(cat({x.narrow(2, c + 1, 2), x.narrow(2, 0, c + 1)}, 2)));
    }
}

}  // namespace

TEST_CASE("copies of transposed, cut and turned tensors, of elements of every size", "[layout]") {
    manual_seed(4);
    check_copies<std::uint8_t>(uint8);
    check_copies<std::uint16_t>(bfloat16);
    check_copies<float>(float32);
    check_copies<std::int64_t>(int64);
}

TEST_CASE("cat of images with their channels last gives such images", "[layout]") {
    const auto last = [](const Tensor& x) { return permute(permute(x, {0, 2, 3, 1}).contiguous(), {0, 3, 1, 2}); };
    for (const int dim : {0, 1, 2, 3, -1}) {
        const Tensor a = randn({2, 3, 4, 5}), b = randn({dim == 0 ? 4 : 2, dim == 1 ? 1 : 3, dim == 2 ? 7 : 4, dim == 3 || dim == -1 ? 1 : 5});
        const Tensor y = cat({last(a), last(b), last(a)}, dim), wanted = cat({a, b, a}, dim);
        CHECK(y.shape() == wanted.shape());
        CHECK(equal(y, wanted));
        CHECK(y.strides() == last(wanted).strides());
        CHECK(equal(cat({last(a), b, last(a)}, dim), wanted));                                 // layouts that differ
        CHECK(equal(cat({last(a), last(b).to(float64)}, dim), cat({a, b.to(float64)}, dim)));  // dtypes that differ
    }
    const Tensor video = randn({2, 3, 2, 4, 5}), turned = permute(permute(video, {0, 2, 3, 4, 1}).contiguous(), {0, 4, 1, 2, 3});
    CHECK(equal(cat({turned, turned}, 1), cat({video, video}, 1)));
    const Tensor none = last(zeros({2, 0, 4, 5})), some = last(randn({2, 3, 4, 5}));
    CHECK(equal(cat({some, none, some}, 1), cat({some.contiguous(), some.contiguous()}, 1)));
    // Gradients go to each part.
    Tensor w = last(randn({2, 3, 4, 5})).requires_grad_(), v = last(randn({2, 1, 4, 5})).requires_grad_();
    const Tensor weights = randn({2, 4, 4, 5});
    Tape tape;
    tape.backward(sum(cat({w, v}, 1) * weights));
    CHECK(equal(w.grad(), weights.narrow(1, 0, 3)));
    CHECK(equal(v.grad(), weights.narrow(1, 3, 1)));
}
