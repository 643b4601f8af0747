// Reductions and scans on a CUDA device against the CPU's: each way that the kernels take, by size, layout and dtype.
#include "tapir/ops/reduce/reduce.h"
#include "check.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/scan/scan.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "tapir/autograd/tape.h"
#include "tapir/core/stream.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/view/view.h"

using namespace tapir;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

// Numbers in [-1, 1), or integers, the same every time.
Tensor numbers(const Shape& shape, DType dtype = float32, unsigned seed = 1) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> value(-1, 1);
    std::vector<double> values(static_cast<std::size_t>(shape.numel()));
    const double scale = is_floating(dtype) ? 1 : dtype == uint8 ? 200 : dtype == bool_ ? 1.5 : 1000;
    for (double& v : values) {
        v = value(random) * scale;
        if (dtype == uint8 || dtype == bool_) v = std::abs(v);
        if (!is_floating(dtype)) v = std::trunc(v);
    }
    return tensor(values).reshape(shape).to(dtype);
}

double tolerance(DType dtype) {
    switch (dtype) {
        case DType::float64: return 1e-12;
        case DType::float32: return 1e-5;
        case DType::float16: return 2e-3;
        case DType::bfloat16: return 2e-2;
        default: return 0;
    }
}

void check_same(const Tensor& have, const Tensor& want) {
    REQUIRE(have.shape() == want.shape());
    REQUIRE(have.dtype() == want.dtype());
    const double limit = tolerance(want.dtype());
    const std::vector<double> a = have.to_vector<double>(), b = want.to_vector<double>();
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
        if (std::abs(a[i] - b[i]) <= limit * (1 + std::abs(b[i]))) continue;
        INFO("element " << i << ": " << a[i] << ", the CPU has " << b[i]);
        CHECK(false);
        return;
    }
}

using View = Tensor (*)(const Tensor&);
Tensor whole(const Tensor& x) { return x; }

// fn of a view of x, on both devices.
template <class Fn>
void compare(const Tensor& x, View view, const Fn& fn) {
    const Tensor host = view(x);
    INFO(name(x.dtype()) << " " << host.shape().str() << " strides " << host.strides().str());
    check_same(fn(view(x.to(cuda))), fn(host));
}

void compare_reductions(const Tensor& x, View view, const Dims& dims) {
    INFO("over " << dims.str());
    compare(x, view, [&](const Tensor& t) { return sum(t, dims); });
    compare(x, view, [&](const Tensor& t) { return amax(t, dims); });
    if (dims.size() == 1) {
        compare(x, view, [&](const Tensor& t) { return argmin(t, static_cast<int>(dims[0])); });
        compare(x, view, [&](const Tensor& t) { return max(t, static_cast<int>(dims[0])).values; });
    }
    if (is_floating(x.dtype())) compare(x, view, [&](const Tensor& t) { return var(t, dims); });
}

}  // namespace

TEST_CASE("reductions of rows on a device", "[cuda][reduce]") {
    NEEDS_CUDA;
    struct Case {
        Shape shape;
        View view;
    };
    const Case cases[] = {
        {{1000, 5}, whole},  // several rows a warp
        {{100, 33}, whole},  // a warp, elements one by one
        {{40, 300}, whole},  // a warp
        {{3, 5003}, whole},  // a block; rows begin anywhere
        {{5, 40}, [](const Tensor& x) { return x.narrow(1, 1, 37); }},
        {{6, 1003}, [](const Tensor& x) { return x.narrow(1, 3, 999); }},
        {{4, 2000}, [](const Tensor& x) { return x.slice(1, {0, 2000, 3}); }},  // gaps
        {{1, 600}, [](const Tensor& x) { return x.expand({7, 600}); }},
        {{600, 1}, [](const Tensor& x) { return x.expand({600, 9}); }},
    };
    for (const Case& c : cases) compare_reductions(numbers(c.shape), c.view, {1});
    compare(numbers({66000, 2}), whole, [](const Tensor& x) { return sum(x, {1}); });
}

TEST_CASE("reductions of long rows on a device", "[cuda][reduce]") {
    NEEDS_CUDA;
    compare(numbers({2, 20001}), whole, [](const Tensor& x) { return sum(x, {1}); });    // 1024 threads each
    compare(numbers({10, 17000}), whole, [](const Tensor& x) { return amin(x, {1}); });  // 512
    // Parts:
    compare(numbers({2, 70001}), whole, [](const Tensor& x) { return sum(x, {1}); });
    compare(numbers({2, 70001}), whole, [](const Tensor& x) { return var(x, {1}); });
    compare(numbers({2, 70001}), whole, [](const Tensor& x) { return max(x, 1).indices; });
    compare(numbers({140003}, bfloat16), [](const Tensor& x) { return x.narrow(0, 3, 140000); }, [](const Tensor& x) { return mean(x); });
    compare(numbers({140003}, uint8), whole, [](const Tensor& x) { return sum(x); });
    compare(numbers({140003}, uint8), whole, [](const Tensor& x) { return min(x, 0).indices; });
    compare(numbers({34000, 2}), [](const Tensor& x) { return x.select(1, 1); }, [](const Tensor& x) { return norm(x); });
}

TEST_CASE("reductions of columns on a device", "[cuda][reduce]") {
    NEEDS_CUDA;
    struct Case {
        Shape shape;
        View view;
    };
    const Case cases[] = {
        {{3, 9000}, whole},   // one thread a column
        {{2, 70001}, whole},  // more columns than 2^16, one by one
        {{300, 64}, whole},   // packs
        {{300, 65}, whole},
        {{4000, 3}, whole},  // parts
        {{4000, 4}, whole},
        {{2500, 40}, whole},
        {{1, 100}, whole},
        {{200, 41}, [](const Tensor& x) { return x.narrow(1, 1, 40); }},
        {{200, 44}, [](const Tensor& x) { return x.narrow(1, 4, 40); }},
        {{200, 40}, [](const Tensor& x) { return x.slice(1, {0, 40, 2}); }},
        {{70, 90}, [](const Tensor& x) { return x.transpose(0, 1); }},
    };
    for (const Case& c : cases) compare_reductions(numbers(c.shape), c.view, {0});
}

TEST_CASE("reductions over several dimensions on a device", "[cuda][reduce]") {
    NEEDS_CUDA;
    const View permuted = [](const Tensor& x) { return x.permute({2, 0, 1}); };
    for (const Shape& shape : {Shape{5, 6, 32}, Shape{5, 6, 7}, Shape{40, 3, 50}}) {
        for (const Dims& dims : {Dims{}, Dims{0}, Dims{1}, Dims{2}, Dims{0, 2}, Dims{0, 1}, Dims{1, 2}}) {
            compare_reductions(numbers(shape), whole, dims);
            compare_reductions(numbers(shape), permuted, dims);
        }
    }
    compare_reductions(numbers({3, 4, 5, 6, 8}), [](const Tensor& x) { return x.permute({4, 2, 0, 3, 1}); }, {0, 2, 4});
    compare_reductions(numbers({3, 4, 5, 6, 8}), whole, {1, 3});
    compare_reductions(numbers({}), whole, {});
}

TEST_CASE("reductions of every dtype on a device", "[cuda][reduce]") {
    NEEDS_CUDA;
    for (const DType dtype : {bool_, uint8, int32, int64, float16, bfloat16, float32, float64}) {
        for (const Shape& shape : {Shape{9, 272}, Shape{7, 45}}) {
            for (const int dim : {0, 1}) {
                const Tensor x = numbers(shape, dtype);
                INFO("dimension " << dim);
                compare_reductions(x, whole, {dim});
                compare(x, whole, [&](const Tensor& t) { return amin(t, {dim}); });
                compare(x, whole, [&](const Tensor& t) { return prod(t, dim); });
                compare(x, whole, [&](const Tensor& t) { return all(t, {dim}); });
                compare(x, whole, [&](const Tensor& t) { return any(t, {dim}); });
                compare(x, whole, [&](const Tensor& t) { return cumsum(t, dim); });
                compare(x, whole, [&](const Tensor& t) { return cumprod(t, dim); });
                if (!is_floating(dtype)) continue;
                compare(x, whole, [&](const Tensor& t) { return mean(t, {dim}); });
                for (const double p : {0.0, 1.0, 2.0, 3.0, -1.5, kInf, -kInf}) {
                    compare(x, whole, [&](const Tensor& t) { return norm(t, p, {dim}); });
                }
            }
        }
    }
}

TEST_CASE("nan, infinity and ties on a device", "[cuda][reduce]") {
    NEEDS_CUDA;
    const double values[][5] = {{1, kNan, 3, kNan, 2}, {-kInf, -kInf, -kInf, -kInf, -kInf}, {kInf, 1, kInf, -kInf, 0}, {0, -0.0, 0, -0.0, 0},
                                {2, 2, 1, 1, 2},       {kInf, kNan, 1, -kInf, kNan}};
    for (const auto& row : values) {
        for (const std::int64_t length : {5, 150}) {  // repeated
            std::vector<double> line(static_cast<std::size_t>(length));
            for (std::size_t i = 0; i < line.size(); ++i) line[i] = row[i % 5];
            for (const DType dtype : {float16, float32}) {
                const Tensor x = tensor(line).to(dtype);
                for (const Tensor& t : {x.reshape({1, length}), x.reshape({length, 1}).expand({length, 3}).contiguous().transpose(0, 1)}) {
                    compare_reductions(t, whole, {1});
                    compare(t, whole, [&](const Tensor& u) { return amin(u, {1}); });
                    compare(t, whole, [&](const Tensor& u) { return argmax(u, 1); });
                    compare(t, whole, [&](const Tensor& u) { return all(u, {1}); });
                    compare(t, whole, [&](const Tensor& u) { return norm(u, -kInf, {1}); });
                }
            }
        }
    }
    const Tensor big = full({3}, std::numeric_limits<std::int64_t>::max(), int64);
    compare(big, whole, [](const Tensor& t) { return sum(t); });
    compare(big, whole, [](const Tensor& t) { return cumprod(t, 0); });
    compare(-big - 1, whole, [](const Tensor& t) { return argmax(t); });
    compare(-big - 1, whole, [](const Tensor& t) { return amin(t); });
}

TEST_CASE("long sums on a device are accurate", "[cuda][reduce]") {
    NEEDS_CUDA;
    const Tensor x = (numbers({1000000}) * 0.5 + 1).to(float32);
    const double want = sum(x.to(float64)).item<double>();
    CHECK(std::abs(sum(x.to(cuda)).item<double>() - want) < 1e-6 * want);
    const Tensor columns = sum(x.reshape({500000, 2}).to(cuda), {0}), exact = sum(x.reshape({500000, 2}).to(float64), {0});
    for (const int c : {0, 1}) {
        CHECK(std::abs(columns.select(0, c).item<double>() - exact.select(0, c).item<double>()) < 1e-6 * want);
    }
    // Far from 0, as for the CPU.
    const Tensor far = numbers({40000}, float64) + 1e6;
    CHECK(std::abs(var(far.to(cuda)).item<double>() - var(far).item<double>()) < 1e-9);
}

TEST_CASE("running extremes on a device", "[cuda][reduce]") {
    NEEDS_CUDA;
    const auto both = [](const Tensor& whole_numbers, int dim, const auto& layout) {
        const Tensor x = layout(whole_numbers), there = layout(whole_numbers.to(cuda));
        for (const bool largest : {true, false}) {
            const ValuesIndices want = largest ? cummax(x, dim) : cummin(x, dim), have = largest ? cummax(there, dim) : cummin(there, dim);
            CHECK(have.values.dtype() == want.values.dtype());
            CHECK(have.indices.to_vector<int>() == want.indices.to_vector<int>());
            const auto a = have.values.template to_vector<double>(), b = want.values.template to_vector<double>();
            for (std::size_t i = 0; i < a.size(); ++i) REQUIRE((a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))));
        }
    };
    for (const Shape& shape : {Shape{40003}, Shape{9000, 3}, Shape{60, 129}, Shape{50, 40}, Shape{700, 40}, Shape{5, 90, 4}}) {
        for (int dim = 0; dim < shape.rank(); ++dim) {
            const Tensor ties = (numbers(shape) * 6).round();
            both(ties, dim, whole);
            both(where(numbers(shape, float32, 2) > 0.999, kNan, ties), dim, whole);
        }
    }
    for (const DType dtype : {bool_, uint8, int32, int64, float16, bfloat16, float64}) both(numbers({33, 70}, dtype), 1, whole);
    both(numbers({20, 30}), 0, [](const Tensor& x) { return x.transpose(0, 1); });
}

TEST_CASE("scans on a device", "[cuda][reduce]") {
    NEEDS_CUDA;
    struct Case {
        Shape shape;
        int dim;
    };
    const Case cases[] = {
        {{1000, 3}, 1}, {{60, 129}, 1},   {{10, 256}, 1}, {{3, 2056}, 1}, {{3, 4099}, 1},  // lines in memory
        {{40000}, 0},   {{40003}, 0},                                                      // in parts
        {{9000, 3}, 0}, {{5, 90, 4}, 1},                                                   // a few columns
        {{50, 40}, 0},  {{3, 21, 70}, 1},                                                  // columns
        {{700, 40}, 0},                                                                    // columns in parts
    };
    for (const Case& c : cases) {
        const Tensor x = numbers(c.shape), y = x * 0.1 + 1;
        compare(x, whole, [&](const Tensor& t) { return cumsum(t, c.dim); });
        compare(y, whole, [&](const Tensor& t) { return cumprod(t, c.dim); });
        compare(x, whole, [&](const Tensor& t) {  // scans from the end
            Tensor leaf = t.detach();
            leaf.requires_grad_();
            Tape tape;
            const Tensor out = cumsum(leaf, c.dim);
            tape.backward(out, {.gradient = t});
            return leaf.grad();
        });
    }
    compare(numbers({66000, 2}), whole, [](const Tensor& x) { return cumsum(x, 1); });
    compare(numbers({70000}, float16), [](const Tensor& x) { return x.narrow(0, 1, 69000); }, [](const Tensor& x) { return cumsum(x, 0); });
    compare(numbers({40000}, uint8), whole, [](const Tensor& x) { return cumsum(x, 0); });
    compare(numbers({20, 30}), [](const Tensor& x) { return x.transpose(0, 1); }, [](const Tensor& x) { return cumsum(x, 0); });
}

TEST_CASE("gradients of products on a device", "[cuda][reduce]") {
    NEEDS_CUDA;
    const auto gradient = [](const Tensor& x, const auto& fn) {
        Tensor leaf = x.detach();
        leaf.requires_grad_();
        Tape tape;
        const Tensor out = fn(leaf);
        tape.backward(out, {.gradient = ones_like(out)});
        return leaf.grad();
    };
    for (const double zero_at : {-1.0, 0.7}) {
        for (const Shape& shape : {Shape{5, 70}, Shape{2, 1100}, Shape{130, 20}}) {
            Tensor x = numbers(shape, float64) * 0.01 + 1;
            if (zero_at >= 0) x = x * ge(abs(numbers(shape, float64) - zero_at), 1e-3).to(float64);  // a few zeros
            for (const int dim : {0, 1}) {
                compare(x, whole, [&](const Tensor& t) { return gradient(t, [&](const Tensor& u) { return prod(u, dim); }); });
                compare(x, whole, [&](const Tensor& t) { return gradient(t, [&](const Tensor& u) { return cumprod(u, dim); }); });
            }
            compare(x, whole, [&](const Tensor& t) { return gradient(t, [](const Tensor& u) { return prod(u); }); });
        }
    }
    compare(numbers({9001}, float64) * 0.01 + 1, whole,  // in parts
            [&](const Tensor& t) { return gradient(t, [](const Tensor& u) { return cumprod(u, 0); }); });
}
