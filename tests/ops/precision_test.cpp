// The digits of float32 results: long rows, large and tiny numbers, ends of intervals, the choice of kernels.
// References: float64 and closed forms.
#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tapir/tapir.h"

using namespace tapir;

namespace {

Tensor wide(const Tensor& t) { return t.to(float64); }

// The largest difference, beside the largest number of the reference.
double error_of(const Tensor& y, const Tensor& exact) {
    const double size = amax(abs(exact)).item();
    return amax(abs(wide(y) - exact)).item() / (size > 0 ? size : 1);
}

using Fn = std::function<Tensor(const Tensor&)>;

// Rows that a sum in one float32 accumulator loses digits of: equal numbers, and such that hardly differ.
std::vector<Tensor> long_rows(int64_t width) {
    manual_seed(3);
    return {full({2, width}, 100.1, float32), 100 + randn({2, width}) * 0.01, randn({2, width})};
}

Tensor nchw(const Tensor& x, int64_t channels) { return reshape(x, {x.size(0), channels, x.size(1) / channels}); }
Tensor turned(const Tensor& x) { return x.permute({0, 2, 1}).contiguous().permute({0, 2, 1}); }

// Before main, and before the library's own global objects where the linker puts this one first.
struct BeforeMain {
    Tensor normalized, reduced;
    static Tensor x() { return sin(arange(8192, float32)).reshape({2, 4096}) * 3 + 100.1; }
    BeforeMain() : normalized(layer_norm(x(), {4096})), reduced(softmax(x(), 1).sum() + exp(x() / 50).mean()) {}
};
const BeforeMain before_main;

}  // namespace

TEST_CASE("what is computed while global objects are made has the digits of main") {
    const BeforeMain now;
    CHECK(before_main.normalized.to_vector<float>() == now.normalized.to_vector<float>());
    CHECK(before_main.reduced.item() == now.reduced.item());
}

// Numbers of all sizes and both signs, and those that have no digits.
template <class T, class Bits>
std::vector<T> all_kinds_of_numbers(Bits step, Bits last) {
    const T inf = std::numeric_limits<T>::infinity(), least = std::numeric_limits<T>::denorm_min();
    std::vector<T> numbers = {0, T(-0.0), 1, -1, inf, -inf, std::numeric_limits<T>::quiet_NaN(), least, -least};
    for (const T x : {T(88.7), T(-87.3), T(-103.9), T(709.7), T(-708.3), T(-745.1), std::numeric_limits<T>::max(), std::numeric_limits<T>::min()}) {
        for (const T near : {std::nextafter(x, T(0)), x, std::nextafter(x, inf)}) numbers.push_back(near);
    }
    for (Bits bits = step; bits < last - step; bits += step) numbers.push_back(std::bit_cast<T>(bits));
    return numbers;
}

// How far y is from exact, in units in the last place of the type T.
template <class T>
double units_apart(T y, long double exact) {
    const T rounded = static_cast<T>(exact);
    if (y == rounded || (std::isnan(y) && std::isnan(rounded))) return std::signbit(y) == std::signbit(rounded) || std::isnan(y) ? 0 : INFINITY;
    if (std::isinf(rounded) || !std::isfinite(y)) return INFINITY;
    int exponent;
    std::frexp(exact, &exponent);
    constexpr int least = std::numeric_limits<T>::min_exponent - std::numeric_limits<T>::digits;
    const int unit = std::max(exponent - std::numeric_limits<T>::digits, least);
    return static_cast<double>(std::fabs(static_cast<long double>(y) - exact) / std::ldexp(1.0L, unit));
}

template <class T>
void check_units(const std::vector<T>& numbers, const char* name, Tensor (*op)(In), long double (*exact)(long double)) {
    const Tensor y = op(tensor(numbers));
    const std::vector<T> results = y.to_vector<T>();
    double most = 0;
    T worst = 0;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        const double apart = units_apart(results[i], exact(numbers[i]));
        if (apart > most) most = apart, worst = numbers[i];
    }
    INFO(name << "(" << worst << ")");
    CHECK(most <= 4);
    // Neighbours do not matter.
    for (std::size_t i = 0; i < numbers.size(); i += i < 40 ? 1 : 997) {
        const Tensor alone = op(tensor(std::vector<T>{numbers[i]}));
        CHECK(units_apart(alone.to_vector<T>()[0], results[i]) == 0);
    }
}

TEST_CASE("elementary functions err by at most 4 units in the last place, for numbers of all kinds") {
    struct Row {
        const char* name;
        Tensor (*op)(In);
        long double (*exact)(long double);
    };
    const Row rows[] = {{"exp", exp, std::exp},    {"log", log, std::log},       {"atan", atan, std::atan},
                        {"tanh", tanh, std::tanh}, {"expm1", expm1, std::expm1}, {"log1p", log1p, std::log1p}};
    const auto floats = all_kinds_of_numbers<float, std::uint32_t>(65'537, UINT32_MAX);
    const auto doubles = all_kinds_of_numbers<double, std::uint64_t>(0x1'0001'0001'0001, UINT64_MAX);
    for (const Row& row : rows) {
        check_units(floats, row.name, row.op, row.exact);
        check_units(doubles, row.name, row.op, row.exact);
    }
}

TEST_CASE("rows of equal numbers are normalised to zeros") {
    for (const int64_t width : {5, 64, 4096, 32768}) {
        const Tensor x = full({2, width}, 100.1, float32);
        INFO(width);
        CHECK(amax(abs(layer_norm(x, {width}))).item() == 0);
        CHECK(amax(abs(layer_norm(x, {width}, full({width}, 3.0, float32)))).item() == 0);
        CHECK(amax(abs(batch_norm(x.t(), {}, {}, {}, {}, {.training = true}))).item() == 0);
        const Tensor channels = full({2, 2, width}, 100.1, float32);
        for (const Tensor& in : {channels, turned(channels)}) {
            CHECK(amax(abs(group_norm(in, 1))).item() == 0);
            CHECK(amax(abs(instance_norm(in))).item() == 0);
        }
    }
}

TEST_CASE("long rows keep their digits") {
    const double ulp = 0x1p-23;
    struct Row {
        const char* name;
        Fn fn;
        double bound;                        // in units in the last place of the largest result
        double bound_of_both_signs = bound;  // the same for rows whose elements cancel: their errors do not
    };
    const Row rows[] = {
        {"layer_norm", [](const Tensor& x) { return layer_norm(x, {x.size(1)}); }, 4},
        {"rms_norm", [](const Tensor& x) { return rms_norm(x, {x.size(1)}); }, 4},
        {"batch_norm", [](const Tensor& x) { return batch_norm(x.t(), {}, {}, {}, {}, {.training = true}); }, 4},
        {"batch_norm rows", [](const Tensor& x) { return batch_norm(nchw(x, 2), {}, {}, {}, {}, {.training = true}); }, 4},
        {"group_norm", [](const Tensor& x) { return group_norm(nchw(x, 8), 2); }, 4},
        {"group_norm last", [](const Tensor& x) { return group_norm(turned(nchw(x, 8)), 2); }, 4},
        {"instance_norm", [](const Tensor& x) { return instance_norm(nchw(x, 2)); }, 4},
        {"softmax", [](const Tensor& x) { return softmax(x, 1); }, 8},
        {"softmax columns", [](const Tensor& x) { return softmax(x.t().contiguous(), 0); }, 8},
        {"log_softmax", [](const Tensor& x) { return log_softmax(x, 1); }, 4},
        {"log_softmax columns", [](const Tensor& x) { return log_softmax(x.t().contiguous(), 0); }, 4},
        {"logsumexp", [](const Tensor& x) { return logsumexp(x, {1}); }, 2},
        {"cross_entropy", [](const Tensor& x) { return cross_entropy(x, tensor({1, 2})); }, 4},
        {"cross_entropy smoothed", [](const Tensor& x) { return cross_entropy(x, tensor({1, 2}), {.label_smoothing = 0.1}); }, 4},
        {"cross_entropy lanes", [](const Tensor& x) { return cross_entropy(x.t().contiguous().unsqueeze(0), tensor({{1, 2}})); }, 4},
        {"mse_loss", [](const Tensor& x) { return mse_loss(x, zeros_like(x)); }, 2},
        {"l1_loss", [](const Tensor& x) { return l1_loss(x, zeros_like(x)); }, 2},
        {"huber_loss", [](const Tensor& x) { return huber_loss(x, zeros_like(x)); }, 2},
        {"smooth_l1_loss", [](const Tensor& x) { return smooth_l1_loss(x, zeros_like(x), {}); }, 2},
        {"bce_with_logits", [](const Tensor& x) { return binary_cross_entropy_with_logits(x, zeros_like(x)); }, 2},
        {"avg_pool1d", [](const Tensor& x) { return avg_pool1d(x.unsqueeze(0), x.size(1)); }, 8},
        {"avg_pool2d", [](const Tensor& x) { return avg_pool2d(reshape(x, {1, 2, 64, -1}), {64, x.size(1) / 64}); }, 8},
        {"adaptive_avg_pool1d", [](const Tensor& x) { return adaptive_avg_pool1d(x.unsqueeze(0), 1); }, 8},
        {"cosine_similarity", [](const Tensor& x) { return cosine_similarity(x, x.flip({1}), 1); }, 8},
        {"norm", [](const Tensor& x) { return norm(x, 2, {1}); }, 2},
        {"norm 3", [](const Tensor& x) { return norm(x, 3, {1}); }, 2},
        {"normalize", [](const Tensor& x) { return normalize(x, 2, 1); }, 4},
        {"pairwise_distance", [](const Tensor& x) { return pairwise_distance(x, zeros_like(x)); }, 2},
        {"cumsum", [](const Tensor& x) { return cumsum(x, 1); }, 2},
        {"logcumsumexp", [](const Tensor& x) { return logcumsumexp(x, 1); }, 2},
        {"sum", [](const Tensor& x) { return sum(x, {1}); }, 2, 8},
        {"mean", [](const Tensor& x) { return mean(x, {1}); }, 2, 8},
        {"var", [](const Tensor& x) { return var(x + 0, {1}); }, 2},
        {"std", [](const Tensor& x) { return tapir::std(x, {1}); }, 2},
        {"trapezoid", [](const Tensor& x) { return trapezoid(x, 0.5, 1); }, 4},
        {"embedding_bag",
         [](const Tensor& x) { return embedding_bag(arange(x.size(1)).unsqueeze(0), x.t().contiguous(), {}, {.mode = BagMode::mean}); }, 2},
        {"embedding_bag sum",
         [](const Tensor& x) { return embedding_bag(arange(x.size(1)).unsqueeze(0), x.t().contiguous(), {}, {.mode = BagMode::sum}); }, 2},
    };
    for (const int64_t width : {4096, 32768}) {
        for (const Tensor& x : long_rows(width)) {
            for (const Row& row : rows) {
                INFO(row.name << ", rows of " << width << " like " << x[0][0].item());
                CHECK(error_of(row.fn(x), row.fn(wide(x))) <= (x.min().item() < 0 ? row.bound_of_both_signs : row.bound) * ulp);
            }
        }
    }
}

TEST_CASE("lerp ends where it should") {
    manual_seed(4);
    const Tensor a = randn({1000}) * exp(randn({1000}) * 5), b = randn({1000}) * exp(randn({1000}) * 5);
    CHECK(lerp(a, b, 1).to_vector<float>() == b.to_vector<float>());
    CHECK(lerp(a, b, 0).to_vector<float>() == a.to_vector<float>());
    CHECK(lerp(a, b, ones({1000})).to_vector<float>() == b.to_vector<float>());
    CHECK(lerp(tensor({1e8}), tensor({1.0}), 1).item() == 1);
    for (const DType dtype : {float16, bfloat16}) {  // the weight is not rounded to 16 bits
        CHECK(lerp(tensor(2.0, dtype), tensor(-3.0, dtype), 0.4).dtype() == dtype);
        CHECK(std::abs(tensor(2.0, dtype).lerp_(tensor(-3.0, dtype), 0.4).item()) < 1e-6);
        CHECK(std::abs(lerp(tensor({2.0}, dtype), tensor({-3.0}, dtype), 0.4).item()) < 1e-6);
        CHECK(std::abs(tensor({2.0}, dtype).lerp_(tensor({-3.0}, dtype), 0.4).item()) < 1e-6);
    }
    CHECK(lerp(tensor({-3e38}, float32), tensor({3e38}, float32), 1).item<float>() == 3e38f);
    CHECK(lerp(tensor({0.0}), tensor({std::numeric_limits<double>::infinity()}), 1).item() == std::numeric_limits<double>::infinity());
    const std::vector<float> steps = lerp(tensor({1.0}, float32), tensor({1.7}, float32), linspace(0, 1, 10001, float32)).to_vector<float>();
    CHECK(std::is_sorted(steps.begin(), steps.end()));
    CHECK(steps.back() == 1.7f);
}

// What normalising sizes * x gives must be what x gives, where eps is too small to count.
TEST_CASE("normalisation of large and of tiny numbers is that of ordinary ones") {
    manual_seed(5);
    const auto norms = std::vector<std::pair<const char*, Fn>>{
        {"layer_norm", [](const Tensor& x) { return layer_norm(x, {x.size(1)}, {}, {}, 0); }},
        {"rms_norm", [](const Tensor& x) { return rms_norm(x, {x.size(1)}, {}, 0); }},
        {"batch_norm", [](const Tensor& x) { return batch_norm(x.t(), {}, {}, {}, {}, {.training = true, .eps = 0}); }},
        {"batch_norm rows", [](const Tensor& x) { return batch_norm(nchw(x, 4), {}, {}, {}, {}, {.training = true, .eps = 0}); }},
        {"group_norm", [](const Tensor& x) { return group_norm(nchw(x, 4), 2, {}, {}, 0); }},
        {"group_norm last", [](const Tensor& x) { return group_norm(turned(nchw(x, 4)), 2, {}, {}, 0); }},
        {"instance_norm", [](const Tensor& x) { return instance_norm(nchw(x, 4), {}, {}, 0); }},
    };
    for (const DType dtype : {float32, float64}) {
        const std::vector<double> sizes = dtype == float32 ? std::vector<double>{0x1p100, 0x1p-100} : std::vector<double>{0x1p800, 0x1p-800};
        const Tensor x = randn({6, 96}, dtype), weight = randn({6, 96}, dtype);
        for (const double size : sizes) {
            for (const auto& [name, fn] : norms) {
                INFO(name << " times " << size);
                const auto run = [&, &fn = fn](const Tensor& in) {
                    Tensor leaf = in.clone().requires_grad_();
                    Tape tape;
                    const Tensor y = fn(leaf), loss = sum(y * weight.reshape({-1}).narrow(0, 0, y.numel()).reshape(y.shape()));
                    return std::vector<Tensor>{y, tape.gradient(loss, {leaf})[0]};
                };
                const auto scaled = run(x * size), plain = run(x);
                CHECK(error_of(scaled[0], wide(plain[0])) < (dtype == float32 ? 1e-6 : 1e-14));
                CHECK(error_of(scaled[1] * size, wide(plain[1])) < (dtype == float32 ? 1e-5 : 1e-13));
            }
        }
    }
    const Tensor signs = tensor({{1e30, -1e30, 1e30, -1e30}}, float32);
    CHECK(layer_norm(signs, {4}).to_vector<float>() == std::vector<float>{1, -1, 1, -1});
    CHECK(rms_norm(signs, {4}).to_vector<float>() == std::vector<float>{1, -1, 1, -1});
    CHECK(layer_norm(tensor({{3e38, -3e38}}, float32), {2}).to_vector<float>() == std::vector<float>{1, -1});
    CHECK(layer_norm(tensor({{1e-30, -1e-30}}, float32), {2}).to_vector<float>()[0] == Approx(1e-30 / std::sqrt(1e-5)));
}

TEST_CASE("norms and deviations whose squares leave the range") {
    const auto gradient = [](const Fn& fn, const Tensor& x) {
        Tensor leaf = x.clone().requires_grad_();
        Tape tape;
        return tape.gradient(sum(fn(leaf)), {leaf})[0].to_vector<double>();
    };
    for (const double size : {1e200, 1e-200, 1e300, 1e-300}) {
        INFO(size);
        const Tensor x = tensor({3.0, -4.0}, float64) * size;
        CHECK(norm(x).item() == Approx(5 * size));
        CHECK(norm(x, 3).item() == Approx(std::cbrt(91.0) * size));
        CHECK(norm(x, -3).item() == Approx(size / std::cbrt(1 / 27.0 + 1 / 64.0)));
        CHECK(linalg::vector_norm(x, 2).item() == Approx(5 * size));
        CHECK(linalg::norm(x).item() == Approx(5 * size));
        CHECK(linalg::matrix_norm(x.unsqueeze(0)).item() == Approx(5 * size));
        CHECK(tapir::std(x).item() == Approx(7 * size / std::sqrt(2.0)));
        CHECK(hypot(x[0], x[1]).item() == Approx(5 * size));
        CHECK(dist(x, zeros_like(x)).item() == Approx(5 * size));
        CHECK(cdist(x.unsqueeze(0), zeros({1, 2}, float64)).item() == Approx(5 * size));
        CHECK(cdist(x.expand({30, 2}), zeros({30, 2}, float64))[29][29].item() == Approx(5 * size));
        const std::vector<double> g = gradient([](const Tensor& t) { return norm(t); }, x);
        CHECK(g[0] == Approx(0.6));
        CHECK(g[1] == Approx(-0.8));
        const std::vector<double> g3 = gradient([](const Tensor& t) { return norm(t, 3); }, x);
        CHECK(g3[0] == Approx(9 / std::pow(91.0, 2.0 / 3)));
        CHECK(g3[1] == Approx(-16 / std::pow(91.0, 2.0 / 3)));
        if (size > 1) {
            CHECK(normalize(x, 2, 0).to_vector<double>()[1] == Approx(-0.8));
            CHECK(cosine_similarity(x, x, 0).item() == Approx(1));
        }
        Tensor p = zeros({2}, float64).requires_grad_();
        {
            Tape tape;
            tape.backward(sum(p * x));
        }
        CHECK(optim::clip_grad_norm_({p}, 1).item() == Approx(5 * size));
        if (size > 1) CHECK(p.grad().to_vector<double>()[0] == Approx(0.6));
    }
    const std::vector<double> of_rows = norm(tensor({{3e200, 4e200}, {3, 4}, {0, 0}}, float64), 2, {1}).to_vector<double>();
    CHECK(of_rows[0] == Approx(5e200));
    CHECK(of_rows[1] == 5);
    CHECK(of_rows[2] == 0);
    CHECK(std::isinf(norm(tensor({std::numeric_limits<double>::infinity(), 1.0})).item()));
    CHECK(std::isnan(norm(tensor({std::nan(""), 1e300}, float64)).item()));
    CHECK(norm(tensor({3e30, 4e30}, float32), 20).item() == Approx(4e30 * std::pow(1 + std::pow(0.75, 20), 0.05)));
    CHECK(cdist(full({30, 2}, 3e30, float32), zeros({30, 2}))[0][0].item() == Approx(3e30 * std::sqrt(2.0)));
}

TEST_CASE("attention in 16 bits rounds its result only") {
    manual_seed(6);
    for (const DType dtype : {float16, bfloat16}) {
        const double ulp = dtype == float16 ? 0x1p-11 : 0x1p-8;
        const Tensor q = (randn({4, 3, 8}) * 2).to(dtype), k = (randn({4, 3, 8}) * 2).to(dtype), v = randn({4, 3, 8}).to(dtype);
        const Tensor exact = scaled_dot_product_attention(wide(q), wide(k), wide(v));
        CHECK(amax(abs(wide(scaled_dot_product_attention(q, k, v)) - exact) / abs(exact)).item() <= ulp);
        const Tensor mask = randn({3, 3}).to(dtype), masked = scaled_dot_product_attention(wide(q), wide(k), wide(v), wide(mask));
        CHECK(amax(abs(wide(scaled_dot_product_attention(q, k, v, mask)) - masked) / abs(masked)).item() <= ulp * 1.01);
        const AutocastScope autocast(dtype);
        const Tensor y = scaled_dot_product_attention(q.to(float32), k.to(float32), v.to(float32));
        CHECK(y.dtype() == dtype);
        CHECK(amax(abs(wide(y) - exact) / abs(exact)).item() <= ulp);
    }
}
