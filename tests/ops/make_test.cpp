// Making tensors: values, dtypes, shapes, distributions, ownership of foreign memory, and what is refused.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "tapir/core/parallel.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

constexpr DType all_dtypes[] = {bool_, uint8, int32, int64, float16, bfloat16, float32, float64};
constexpr DType floats[] = {float16, bfloat16, float32, float64};

// Runs f, which must throw E from the line `line` of this file.
template <class E, class F>
void throws_here(int line, const std::string& text, const F& f) {
    CAPTURE(line, text);
    try {
        f();
        FAIL_CHECK("no error");
    } catch (const E& e) {
        CHECK_THAT(e.what(), Catch::StartsWith("make_test.cpp:" + std::to_string(line) + ": "));
        CHECK_THAT(e.what(), Catch::Contains(text));
    }
}
#define THROWS(Type, text, ...) throws_here<Type>(__LINE__, text, [&] { static_cast<void>(__VA_ARGS__); })

std::vector<double> values(const Tensor& t) { return t.to_vector<double>(); }
using V = std::vector<double>;

struct Moments {
    double mean, variance, skew, kurtosis;
};
Moments moments(const std::vector<double>& x) {
    const auto n = static_cast<double>(x.size());
    Moments m{};
    m.mean = std::accumulate(x.begin(), x.end(), 0.0) / n;
    for (const double v : x) {
        const double d = v - m.mean;
        m.variance += d * d / n;
        m.skew += d * d * d / n;
        m.kurtosis += d * d * d * d / n;
    }
    m.skew /= std::pow(m.variance, 1.5);
    m.kurtosis /= m.variance * m.variance;
    return m;
}

}  // namespace

TEST_CASE("constants in every dtype") {
    for (const DType dtype : all_dtypes) {
        CAPTURE(name(dtype));
        const Tensor z = zeros({2, 3}, dtype), o = ones({2, 3}, dtype);
        CHECK(z.dtype() == dtype);
        CHECK(z.shape() == Shape{2, 3});
        CHECK(z.is_contiguous());
        CHECK(values(z) == V(6, 0));
        CHECK(values(o) == V(6, 1));
        CHECK(values(full({3}, 7, dtype)) == V(3, dtype == bool_ ? 1 : 7));
        CHECK(empty({4, 0}, dtype).numel() == 0);
        CHECK(values(zeros({}, dtype)) == V{0});
        CHECK(values(ones_like(z)) == V(6, 1));
        CHECK(values(zeros_like(o)) == V(6, 0));
        CHECK(values(full_like(z, 2)) == V(6, dtype == bool_ ? 1 : 2));
        CHECK(ones_like(z).dtype() == dtype);
        CHECK(empty_like(z).shape() == z.shape());
        CHECK(values(eye(2, 3, dtype)) == V{1, 0, 0, 0, 1, 0});
    }
    CHECK(zeros({2}).dtype() == float32);
    CHECK(values(eye(2)) == V{1, 0, 0, 1});
    CHECK(values(eye(3, 2)) == V{1, 0, 0, 1, 0, 0});
    CHECK(eye(2, float64).dtype() == float64);
    CHECK(values(eye(2, int64)) == V{1, 0, 0, 1});
    CHECK(eye(0).shape() == Shape{0, 0});
    CHECK(full({2}, 3).dtype() == int64);
    CHECK(full({2}, true).dtype() == bool_);
    CHECK(full({2}, 3.5).dtype() == float32);
    CHECK(zeros_like(arange(6).view({2, 3}).t()).is_contiguous());
    const Tensor large = full({1000, 1001}, 0.5);
    CHECK(values(large) == V(1001000, 0.5));
    CHECK(values(zeros({3000, 1000}, float64)) == V(3000000, 0));
}

TEST_CASE("the default dtype is asked at every call") {
    set_default_dtype(float64);
    CHECK(zeros({2}).dtype() == float64);
    CHECK(tensor({1.5}).dtype() == float64);
    CHECK(arange(2.0).dtype() == float64);
    CHECK(randn({2}).dtype() == float64);
    set_default_dtype(float32);
    CHECK(zeros({2}).dtype() == float32);
}

TEST_CASE("ranges") {
    CHECK(arange(5).dtype() == int64);
    CHECK(values(arange(5)) == V{0, 1, 2, 3, 4});
    CHECK(values(arange(2, 5)) == V{2, 3, 4});
    CHECK(values(arange(5, 0, -2)) == V{5, 3, 1});
    CHECK(values(arange(0)) == V{});
    CHECK(values(arange(3, 3)) == V{});
    CHECK(arange(3.0).dtype() == float32);
    CHECK(values(arange(0, 1, 0.25)) == V{0, 0.25, 0.5, 0.75});
    CHECK(values(arange(1, -0.1, -0.5)) == V{1, 0.5, 0});
    CHECK(arange(0, 1, 0.1).numel() == 10);
    CHECK(values(arange(0, 3, 1, float16)) == V{0, 1, 2});
    CHECK(values(arange(0, 3, 1, uint8)) == V{0, 1, 2});
    CHECK(arange(INT64_MAX - 2, INT64_MAX).to_vector<std::int64_t>() == std::vector<std::int64_t>{INT64_MAX - 2, INT64_MAX - 1});
    CHECK(arange(INT64_MIN, INT64_MAX, INT64_MAX).to_vector<std::int64_t>() == std::vector<std::int64_t>{INT64_MIN, -1, INT64_MAX - 1});
    const std::vector<double> many = values(arange(0, 300000, 1, float64));
    for (std::size_t i = 0; i < many.size(); ++i) REQUIRE(many[i] == static_cast<double>(i));

    for (const std::int64_t count : {1, 3, 4, 5, 7, 8, 30, 200'001}) {
        for (const std::int64_t step : {1, -3, 1'000'000'007}) {
            const Tensor range = arange(11, 11 + count * step, step);
            REQUIRE(range.numel() == count);
            const auto numbers = range.to_vector<std::int64_t>();
            for (std::int64_t i = 0; i < count; ++i) REQUIRE(numbers[static_cast<std::size_t>(i)] == 11 + i * step);
        }
    }

    CHECK(values(linspace(0, 1, 5)) == V{0, 0.25, 0.5, 0.75, 1});
    CHECK(values(linspace(3, 3, 1)) == V{3});
    CHECK(values(linspace(3, 7, 1)) == V{3});
    CHECK(values(linspace(0, 1, 0)) == V{});
    CHECK(values(linspace(1, -1, 3, float16)) == V{1, 0, -1});
    CHECK(values(linspace(0, 10, 5, int64)) == V{0, 2, 5, 7, 10});
    CHECK(values(linspace(0, 0.1, 11, float64)).back() == 0.1);

    THROWS(ValueError, "step is 0", arange(0, 3, 0));
    THROWS(ValueError, "step is 0", arange(0, 3.0, 0));
    THROWS(ValueError, "does not lead", arange(3, 0));
    THROWS(ValueError, "does not lead", arange(0.0, 3, -1));
    THROWS(ValueError, "finite", arange(std::numeric_limits<double>::infinity()));
    THROWS(ValueError, "finite", arange(0.0, std::nan(""), 1));
    THROWS(OutOfMemory, "", arange(0, INT64_MAX));
    THROWS(OutOfMemory, "", arange(0.0, 1e300, 1e-300));
    THROWS(ValueError, "negative", linspace(0, 1, -1));
}

TEST_CASE("literals") {
    CHECK(tensor(3).shape() == Shape{});
    CHECK(tensor(3).dtype() == int64);
    CHECK(tensor(2.5).item<double>() == 2.5);
    CHECK(tensor(true).dtype() == bool_);
    CHECK(tensor({3}).shape() == Shape{1});
    CHECK(tensor({1, 2, 3}).dtype() == int64);
    CHECK(tensor({true, false}).dtype() == bool_);
    CHECK(tensor({true, 2}).dtype() == int64);
    CHECK(tensor({1, 2.5}).dtype() == float32);
    const Tensor m = tensor({{1, 2}, {3, 4}, {5, 6}});
    CHECK(m.shape() == Shape{3, 2});
    CHECK(values(m) == V{1, 2, 3, 4, 5, 6});
    CHECK(values(tensor({{{1.0, 2.0}}, {{3.0, 4.0}}})) == V{1, 2, 3, 4});
    CHECK(tensor({{{1.0, 2.0}}, {{3.0, 4.0}}}).shape() == Shape{2, 1, 2});
    for (const DType dtype : all_dtypes) CHECK(values(tensor({0, 1}, dtype)) == V{0, 1});
    CHECK(tensor({1.0, 2.0}, float16).dtype() == float16);
    CHECK(tensor(7, float64).dtype() == float64);
    CHECK(tensor({INT64_MAX}).item<std::int64_t>() == INT64_MAX);
    CHECK(tensor({{}, {}}).shape() == Shape{2, 0});
    CHECK(tensor({{}, {}}).dtype() == float32);

    THROWS(ShapeError, "side by side", tensor({{1, 2}, {3}}));
    THROWS(ShapeError, "number stands", tensor({{1, 2}, 3}));
    THROWS(ShapeError, "number is due", tensor({1, {2, 3}}));
    THROWS(ShapeError, "side by side", tensor({{}, {1}}));
    THROWS(ShapeError, "8 dimensions", tensor({{{{{{{{{1}}}}}}}}}));
}

TEST_CASE("vectors are copied") {
    std::vector<float> source{1, 2, 3};
    const Tensor t = tensor(source);
    source[0] = 9;
    CHECK(t.dtype() == float32);
    CHECK(values(t) == V{1, 2, 3});
    CHECK(tensor(std::vector<double>{1.5}).dtype() == float64);
    CHECK(tensor(std::vector<std::int64_t>{1}).dtype() == int64);
    CHECK(tensor(std::vector<int>{1}).dtype() == int32);
    CHECK(tensor(std::vector<unsigned char>{200}).item<int>() == 200);
    const Tensor flags = tensor(std::vector<bool>{true, false, true});
    CHECK(flags.dtype() == bool_);
    CHECK(values(flags) == V{1, 0, 1});
    CHECK(tensor(std::vector<float>{}).shape() == Shape{0});
    const float numbers[] = {1, 2, 3, 4, 5, 6};
    CHECK(values(tensor_from(numbers, {2, 3}, float32)) == V{1, 2, 3, 4, 5, 6});
    const unsigned char bytes[] = {0, 1, 7};
    CHECK(tensor_from(bytes, {3}, bool_).to(int64).to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 1, 1});
    THROWS(ValueError, "null", tensor_from(nullptr, {3}, float32));
    CHECK(tensor_from(numbers, {2, 3}, float32, int64).dtype() == int64);
    CHECK(values(tensor(std::vector<int>{1, 2}, float64)) == V{1, 2});
}

TEST_CASE("made like another tensor") {
    const Tensor x = zeros({2, 3}, float64);
    CHECK(ones_like(x).dtype() == float64);
    CHECK(ones_like(x, int64).dtype() == int64);
    CHECK(ones_like(x, int64).shape() == Shape(2, 3));
    CHECK(full_like(x, 7, float32).at<float>({1, 2}) == 7);
    CHECK(rand_like(x, float32).dtype() == float32);
    CHECK(zeros_like(x, {float32, cpu, true}).requires_grad());
    CHECK(randint_like(x, 5).dtype() == float64);
    CHECK(amax(randint_like(x, 2, 5, int32)).item<int>() < 5);
    CHECK(amin(randint_like(x, 2, 5, int32)).item<int>() >= 2);
    THROWS(DTypeError, "zeros_like: only floating", zeros_like(x, {int64, cpu, true}));
}

TEST_CASE("options that name no dtype leave it to the numbers") {
    CHECK(tensor({1, 2}, cpu).dtype() == int64);
    CHECK(tensor(true, cpu).dtype() == bool_);
    CHECK(full({2}, 7, cpu).dtype() == int64);
    CHECK(arange(3, cpu).dtype() == int64);
    CHECK(arange(3, float64).dtype() == float64);
    CHECK(arange(1, 3, float64).dtype() == float64);
    CHECK(randint(3, {2}, cpu).dtype() == int64);
    CHECK(tensor(std::vector<double>{1}, cpu).dtype() == float64);
    CHECK(tensor({1.5, 2.0}, {cpu, true}).requires_grad());
    CHECK(zeros({2}, {float64, cpu, true}).requires_grad());
    THROWS(DTypeError, "tensor: only floating", tensor({1, 2}, {cpu, true}));
}

TEST_CASE("requires_grad is an option") {
    TensorOptions options(float64);
    options.requires_grad = true;
    const Tensor made[] = {zeros({2}, options),      ones({2}, options),      empty({2}, options),         full({2}, 1, options),
                           rand({2}, options),       randn({2}, options),     eye(2, 2, options),          linspace(0, 1, 3, options),
                           arange(0, 3, 1, options), tensor({1, 2}, options), bernoulli({2}, 0.5, options)};
    for (const Tensor& t : made) {
        CHECK(t.requires_grad());
        CHECK(t.is_leaf());
        CHECK(t.dtype() == float64);
    }
    CHECK_FALSE(zeros({2}).requires_grad());
    options.dtype = int64;
    const Generator::State before = default_generator().state();
    THROWS(DTypeError, "zeros: only floating", zeros({2}, options));
    THROWS(DTypeError, "randint: only floating", randint(0, 3, {2}, options));
    THROWS(DTypeError, "tensor: only floating", tensor({1}, options));
    CHECK(default_generator().state().offset == before.offset);
}

TEST_CASE("sizes and devices that cannot be are refused") {
    THROWS(ValueError, "negative", zeros({2, -1}));
    THROWS(ValueError, "negative", randn({-1}));
    THROWS(OutOfMemory, "", empty({1 << 30, 1 << 30, 1 << 30}));
    THROWS(DeviceError, "cuda:99", zeros({2}, cuda(99)));
    THROWS(DeviceError, "cuda:99", tensor({2}, cuda(99)));
    for (int number : {-1, 255, 256, 257}) THROWS(DeviceError, "out of range", zeros({2}, cuda(number)));
    const Tensor none;
    THROWS(ValueError, "undefined", zeros_like(none));
    THROWS(ValueError, "full_like: the tensor is undefined", full_like(none, 1));
    THROWS(ValueError, "ones_like: the tensor is undefined", ones_like(none));
    THROWS(ValueError, "undefined", randn_like(none));
}

TEST_CASE("a seed gives the same numbers again, whatever the number of threads") {
    const int threads = num_threads();
    for (const DType dtype : floats) {
        manual_seed(3);
        set_num_threads(1);
        const Tensor u = rand({100003}, dtype), n = randn({100003}, dtype);
        const Tensor i = randint(-5, 1000, {70001}), b = bernoulli({70001}, 0.25, dtype);
        const Tensor p = randperm(50001);
        manual_seed(3);
        set_num_threads(4);
        CHECK(values(rand({100003}, dtype)) == values(u));
        CHECK(values(randn({100003}, dtype)) == values(n));
        CHECK(values(randint(-5, 1000, {70001})) == values(i));
        CHECK(values(bernoulli({70001}, 0.25, dtype)) == values(b));
        CHECK(values(randperm(50001)) == values(p));
    }
    set_num_threads(threads);
    // A draw takes whole counters, so the next one begins at a fresh one.
    Generator a(5), b(5);
    const Tensor first = rand({5}, a);
    CHECK(a.state().offset == 2);
    const Tensor all = rand({16}, b);
    CHECK(values(rand({8}, a)) == values(all.slice(0, Slice(8, 16))));
    CHECK(values(first) == values(all.slice(0, Slice(0, 5))));
    Generator c(5);
    rand({5}, c, float64);
    CHECK(c.state().offset == 3);
}

TEST_CASE("random functions draw from the generator that is given, and leave the default one alone") {
    const Tensor p = tensor({0.2, 0.5, 0.9}).expand({40, 3}), weights = tensor({1.0, 2.0, 3.0, 4.0, 5.0, 6.0});
    const auto draw = [&](Generator& g) {
        std::vector<Tensor> all{rand({9}, g),
                                randn({9}, g),
                                randint(-5, 1000, {9}, g),
                                randint(1000, {9}, g, int32),
                                randperm(50, g),
                                bernoulli(p, g),
                                bernoulli({99}, 0.5, g, bool_),
                                multinomial(weights, 40, true, g),
                                multinomial(weights, 5, false, g),
                                dropout(ones({99}), 0.5, true, g),
                                zeros({9}).uniform_(-1, 1, g),
                                zeros({9}, float64).normal_(3, 2, g),
                                zeros({99}, uint8).bernoulli_(0.5, g)};
        all.push_back(nn::init::xavier_uniform_(zeros({4, 3}), 1, g));
        all.push_back(nn::init::xavier_normal_(zeros({4, 3}), 1, g));
        all.push_back(nn::init::kaiming_uniform_(zeros({4, 3}), {}, g));
        all.push_back(nn::init::kaiming_normal_(zeros({4, 3}), {}, g));
        all.push_back(nn::init::orthogonal_(zeros({4, 3}), 1, g));
        all.push_back(nn::init::uniform_(zeros({9}), -1, 1, g));
        all.push_back(nn::init::normal_(zeros({9}), 0, 2, g));
        return all;
    };
    const Generator::State before = default_generator().state();
    Generator a(7), b(7), other(8);
    const std::vector<Tensor> first = draw(a), again = draw(b), different = draw(other);
    CHECK(default_generator().state().seed == before.seed);
    CHECK(default_generator().state().offset == before.offset);
    CHECK(a.state().offset == b.state().offset);
    // And the default generator, seeded so, gives the same.
    default_generator().set_state(Generator(7).state());
    const std::vector<Tensor> by_default = draw(default_generator());
    for (std::size_t i = 0; i < first.size(); ++i) {
        CAPTURE(i);
        CHECK(values(first[i]) == values(again[i]));
        CHECK(values(first[i]) == values(by_default[i]));
        CHECK(values(first[i]) != values(different[i]));
    }
    default_generator().set_state(Generator(7).state());
    Generator c(7);
    CHECK(values(randint(1000, {9})) == values(randint(1000, {9}, c)));
    CHECK(values(randperm(9)) == values(randperm(9, c)));
    CHECK(values(bernoulli(p)) == values(bernoulli(p, c)));
    CHECK(values(bernoulli({9}, 0.5)) == values(bernoulli({9}, 0.5, c)));
    CHECK(values(multinomial(weights, 3)) == values(multinomial(weights, 3, false, c)));
    CHECK(values(zeros({9}).uniform_()) == values(zeros({9}).uniform_(0, 1, c)));
    CHECK(values(zeros({9}).normal_()) == values(zeros({9}).normal_(0, 1, c)));
    CHECK(values(zeros({9}).bernoulli_()) == values(zeros({9}).bernoulli_(0.5, c)));
    CHECK(values(nn::init::xavier_normal_(zeros({3, 3}))) == values(nn::init::xavier_normal_(zeros({3, 3}), 1, c)));
    CHECK(default_generator().state().offset == c.state().offset);
}

TEST_CASE("tensors filled with random numbers") {
    manual_seed(4);
    for (const DType dtype : floats) {
        Tensor x = zeros({300, 200}, dtype);
        const Moments u = moments(values(x.uniform_(2, 4)));
        CHECK(u.mean == Approx(3).margin(0.02));
        CHECK(u.variance == Approx(4.0 / 12).margin(0.01));
        const Moments n = moments(values(x.t().normal_(-1, 0.5)));  // a view
        CHECK(n.mean == Approx(-1).margin(0.02));
        CHECK(n.variance == Approx(0.25).margin(0.01));
        CHECK(moments(values(x)).mean == Approx(n.mean));
    }
    for (const DType dtype : all_dtypes) {
        CHECK(moments(values(zeros({20000}, dtype).bernoulli_(0.3))).mean == Approx(0.3).margin(0.02));
    }
    {  // what was overwritten gets no gradient
        Tensor w = ones({3}).requires_grad_();
        Tape tape;
        Tensor h = w * 2;
        h.normal_();
        tape.backward(sum(h) + sum(w));
        CHECK(values(w.grad()) == V{1, 1, 1});
        THROWS(TapeError, "normal_: a leaf that requires a gradient", w.normal_());
        THROWS(TapeError, "uniform_: a leaf that requires a gradient", w.uniform_());
    }
    Tensor x = ones({2});
    const Generator::State before = default_generator().state();
    THROWS(DTypeError, "uniform_: needs a floating dtype", ones({2}, int64).uniform_());
    THROWS(DTypeError, "normal_: needs a floating dtype", ones({2}, int64).normal_());
    THROWS(ValueError, "uniform_: low 2 is above high 1", x.uniform_(2, 1));
    THROWS(ValueError, "normal_: the standard deviation -1 is negative", x.normal_(0, -1));
    THROWS(ValueError, "bernoulli_: p must be in [0, 1]", x.bernoulli_(2));
    THROWS(ValueError, "bernoulli_: several elements", ones({1}).expand({2}).bernoulli_());
    THROWS(ValueError, "normal_: the tensor is undefined", Tensor().normal_());
    CHECK(values(x) == V{1, 1});
    CHECK(default_generator().state().offset == before.offset);
}

TEST_CASE("random numbers have their distributions") {
    manual_seed(1);
    constexpr std::int64_t n = 400000;
    for (const DType dtype : floats) {
        CAPTURE(name(dtype));
        const double grain = dtype == float16 ? 0x1p-12 : dtype == bfloat16 ? 0x1p-9 : 0;  // truncation shifts the mean
        const std::vector<double> u = values(rand({n}, dtype));
        CHECK(*std::min_element(u.begin(), u.end()) >= 0);
        CHECK(*std::max_element(u.begin(), u.end()) < 1);
        CHECK(moments(u).mean == Approx(0.5 - grain).margin(0.002));
        CHECK(moments(u).variance == Approx(1.0 / 12).margin(0.001));
        const Moments m = moments(values(randn({n}, dtype)));
        CHECK(m.mean == Approx(0).margin(0.008));
        CHECK(m.variance == Approx(1).margin(0.015));
        CHECK(m.skew == Approx(0).margin(0.02));
        CHECK(m.kurtosis == Approx(3).margin(0.06));
    }
    std::array<int, 6> counts{};
    for (const double v : values(randint(1, 7, {60000}))) ++counts.at(static_cast<std::size_t>(v - 1));
    for (const int count : counts) CHECK(count == Approx(10000).margin(450));
    CHECK(moments(values(bernoulli({n}, 0.3))).mean == Approx(0.3).margin(0.004));
    CHECK(rand_like(zeros({3, 2}, float16)).dtype() == float16);
    CHECK(randn_like(zeros({3, 2}, float64)).shape() == Shape{3, 2});
}

TEST_CASE("randint fits its dtype") {
    for (const DType dtype : all_dtypes) {
        const Tensor t = randint(0, 2, {100}, dtype);
        CHECK(t.dtype() == dtype);
        for (const double v : values(t)) CHECK((v == 0 || v == 1));
    }
    CHECK(values(randint(5, 6, {3})) == V{5, 5, 5});
    CHECK(randint(10, {2, 2}).shape() == Shape{2, 2});
    CHECK(randint(INT64_MIN, INT64_MAX, {2}).numel() == 2);
    CHECK(randint(0, 256, {2}, uint8).numel() == 2);
    THROWS(ValueError, "no integer", randint(3, 3, {2}));
    THROWS(ValueError, "no integer", randint(0, {2}));
    THROWS(ValueError, "does not hold", randint(0, 257, {2}, uint8));
    THROWS(ValueError, "does not hold", randint(-1, 2, {2}, bool_));
    THROWS(ValueError, "randint: there is no integer", randint(3, 3, {2}));
    THROWS(ValueError, "randint_like: there is no integer", randint_like(ones({2}), 3, 3));
    THROWS(ValueError, "randint_like: bool does not hold", randint_like(ones({2}), -1, 2, bool_));
    THROWS(DTypeError, "floating", rand({2}, int64));
    THROWS(DTypeError, "floating", randn({2}, bool_));
    THROWS(DTypeError, "floating", randn_like(zeros({2}, int64)));
}

TEST_CASE("randperm gives every order equally often") {
    CHECK(values(randperm(0)) == V{});
    CHECK(values(randperm(1)) == V{0});
    std::vector<double> sorted = values(randperm(1000));
    CHECK_FALSE(std::is_sorted(sorted.begin(), sorted.end()));
    std::sort(sorted.begin(), sorted.end());
    CHECK(sorted == values(arange(1000)));
    std::array<int, 27> counts{};
    for (int i = 0; i < 6000; ++i) {
        const std::vector<double> p = values(randperm(3));
        ++counts.at(static_cast<std::size_t>(p[0] * 9 + p[1] * 3 + p[2]));
    }
    for (const int count : counts) CHECK((count == 0 || count == Approx(1000).margin(150)));
    CHECK(std::count(counts.begin(), counts.end(), 0) == 21);
    THROWS(ValueError, "negative", randperm(-1));
}

TEST_CASE("bernoulli takes a probability for each element") {
    for (const DType dtype : floats) {
        const Tensor p = tensor({{0.0, 1.0}, {1.0, 0.0}}, dtype);
        CHECK(values(bernoulli(p)) == V{0, 1, 1, 0});
        CHECK(bernoulli(p).dtype() == dtype);
        CHECK(values(bernoulli(p.t())) == V{0, 1, 1, 0});
    }
    const Tensor column = tensor({0.2, 0.9}).unsqueeze(1).expand({2, 20000});
    const Tensor drawn = bernoulli(column);
    CHECK(moments(values(drawn.select(0, 0))).mean == Approx(0.2).margin(0.015));
    CHECK(moments(values(drawn.select(0, 1))).mean == Approx(0.9).margin(0.015));
    CHECK(values(bernoulli({3}, 0)) == V{0, 0, 0});
    CHECK(values(bernoulli({3}, 1, bool_)) == V{1, 1, 1});
    // The same numbers whether p is one number or a tensor of it.
    manual_seed(8);
    const Tensor one = bernoulli({1000}, 0.5);
    manual_seed(8);
    CHECK(values(bernoulli(full({1000}, 0.5))) == values(one));
    const Generator::State before = default_generator().state();
    THROWS(ValueError, "[0, 1]", bernoulli(tensor({0.5, 1.5})));
    THROWS(ValueError, "[0, 1]", bernoulli(tensor({0.5, std::nan("")})));
    THROWS(ValueError, "[0, 1]", bernoulli({2}, -0.1));
    THROWS(ValueError, "[0, 1]", bernoulli({2}, std::nan("")));
    THROWS(DTypeError, "floating", bernoulli(tensor({0, 1})));
    CHECK(default_generator().state().offset == before.offset);
}

TEST_CASE("multinomial draws by weight") {
    manual_seed(2);
    const Tensor weights = tensor({1.0, 0.0, 3.0, 4.0}, float64);
    std::array<int, 4> counts{};
    for (const double v : values(multinomial(weights, 80000, true))) ++counts.at(static_cast<std::size_t>(v));
    CHECK(counts[0] == Approx(10000).margin(500));
    CHECK(counts[1] == 0);
    CHECK(counts[2] == Approx(30000).margin(700));
    CHECK(counts[3] == Approx(40000).margin(800));

    const Tensor rows = tensor({{1.0, 0.0, 3.0, 4.0}, {0.0, 5.0, 0.5, 0.5}});
    const Tensor drawn = multinomial(rows, 3);
    CHECK(drawn.dtype() == int64);
    CHECK(drawn.shape() == Shape{2, 3});
    std::vector<std::int64_t> first = drawn.select(0, 0).to_vector<std::int64_t>();
    std::sort(first.begin(), first.end());
    CHECK(first == std::vector<std::int64_t>{0, 2, 3});

    // Without replacement the first is drawn by weight, the second by what is left of the weights.
    std::array<int, 16> pairs{};
    for (int i = 0; i < 20000; ++i) {
        const std::vector<double> v = values(multinomial(weights, 2));
        ++pairs.at(static_cast<std::size_t>(v[0] * 4 + v[1]));
    }
    CHECK(pairs[0 * 4 + 2] == Approx(20000 * 1.0 / 8 * 3 / 7).margin(150));
    CHECK(pairs[2 * 4 + 3] == Approx(20000 * 3.0 / 8 * 4 / 5).margin(300));
    CHECK(pairs[3 * 4 + 0] == Approx(20000 * 4.0 / 8 * 1 / 4).margin(250));

    CHECK(multinomial(tensor({1.0}, float16), 0).shape() == Shape{0});
    CHECK(multinomial(zeros({0, 3}), 2).shape() == Shape{0, 2});
    THROWS(ValueError, "without replacement", multinomial(weights, 4));
    THROWS(ValueError, "all weights are 0", multinomial(zeros({3}), 1));
    THROWS(ValueError, "not negative", multinomial(tensor({1.0, -1.0}), 1));
    THROWS(ValueError, "finite", multinomial(tensor({1.0, std::numeric_limits<double>::infinity()}), 1));
    THROWS(ValueError, "finite", multinomial(tensor({1.0, std::nan("")}), 1));
    THROWS(ValueError, "negative", multinomial(weights, -1));
    THROWS(DTypeError, "floating", multinomial(tensor({1, 2}), 1));
    THROWS(ShapeError, "(rows, n)", multinomial(zeros({2, 2, 2}), 1));
}

TEST_CASE("memory of the caller's is used as it is") {
    std::vector<float> memory{0, 1, 2, 3, 4, 5};
    Tensor t = from_blob(memory.data(), {2, 3});
    CHECK(values(t) == V{0, 1, 2, 3, 4, 5});
    t.fill_(7);
    CHECK(memory == std::vector<float>(6, 7));
    memory[1] = 8;
    CHECK(t.at<float>({0, 1}) == 8);
    const Tensor columns = from_blob(memory.data(), {3, 2}, {1, 3}, nullptr);
    CHECK(values(columns) == V{7, 7, 8, 7, 7, 7});
    CHECK_FALSE(columns.is_contiguous());
    CHECK(values(from_blob(memory.data() + 1, {4}, {0}, nullptr)) == V(4, 8));
    std::vector<std::int64_t> whole{1, 2};
    CHECK(values(from_blob(whole.data(), {2}, int64)) == V{1, 2});
    CHECK(from_blob(nullptr, {0, 3}).numel() == 0);
    TensorOptions options;
    options.requires_grad = true;
    CHECK(from_blob(memory.data(), {6}, options).requires_grad());
}

TEST_CASE("a deleter runs once, when the last view is gone") {
    float memory[6] = {0, 1, 2, 3, 4, 5};
    int calls = 0;
    const auto deleter = [&](void* data) {
        CHECK(data == memory);
        ++calls;
    };
    Tensor view;
    {
        const Tensor t = from_blob(memory, {2, 3}, deleter);
        const Tensor copy = t;
        view = copy[1];
    }
    CHECK(calls == 0);
    CHECK(values(view) == V{3, 4, 5});
    view = Tensor();
    CHECK(calls == 1);
    from_blob(memory, {3}, {2}, deleter);
    CHECK(calls == 2);
    from_blob(memory, {0}, deleter);
    CHECK(calls == 3);
    const auto owner = std::make_shared<int>(1);
    {
        const Tensor t = from_blob(memory, {6}, [owner](void*) {});
        CHECK(owner.use_count() == 2);
    }
    CHECK(owner.use_count() == 1);
}

TEST_CASE("what from_blob refuses stays the caller's") {
    alignas(8) float memory[8] = {};
    int calls = 0;
    const auto deleter = [&](void*) { ++calls; };
    TensorOptions integer_leaf(int64);
    integer_leaf.requires_grad = true;
    THROWS(ValueError, "null", from_blob(nullptr, {2}, deleter));
    THROWS(ValueError, "negative", from_blob(memory, {-2}, deleter));
    THROWS(ValueError, "negative", from_blob(memory, {2}, {-1}, deleter));
    THROWS(ShapeError, "strides", from_blob(memory, {2, 2}, {1}, deleter));
    THROWS(ValueError, "aligned", from_blob(reinterpret_cast<std::byte*>(memory) + 1, {2}, deleter));
    THROWS(DeviceError, "from_blob: ", from_blob(memory, {2}, deleter, cuda()));
    THROWS(DTypeError, "floating", from_blob(memory, {2}, deleter, integer_leaf));
    THROWS(ValueError, "memory", from_blob(memory, {3, 3}, {INT64_MAX, INT64_MAX}, deleter));
    CHECK(calls == 0);
}

TEST_CASE("a number that its dtype cannot hold is refused, as in PyTorch") {
    const double inf = INFINITY;
    THROWS(ValueError, "full: 1e+30 does not fit into int32", full({2}, 1e30, int32));
    THROWS(ValueError, "full: 300 does not fit into uint8", full({2}, 300, uint8));
    THROWS(ValueError, "full: -256 does not fit into uint8", full({2}, -256, uint8));
    THROWS(ValueError, "full: nan does not fit into int64", full({2}, NAN, int64));
    THROWS(ValueError, "full: inf does not fit into int64", full({2}, inf, int64));
    THROWS(ValueError, "full: 1e+39 does not fit into float32", full({2}, 1e39));
    THROWS(ValueError, "full: 70000 does not fit into float16", full({2}, 70000, float16));
    THROWS(ValueError, "full_like: 300 does not fit into uint8", full_like(zeros({1}, uint8), 300));
    THROWS(ValueError, "tensor: 70000000000 does not fit into int32", tensor(std::vector<std::int64_t>{1, 70000000000}, int32));
    THROWS(ValueError, "tensor: nan does not fit into int32", tensor(std::vector<double>{NAN}, int32));
    THROWS(ValueError, "tensor: 300 does not fit into uint8", tensor({1, 300}, uint8));
    THROWS(ValueError, "linspace: 300 does not fit into uint8", linspace(0, 300, 3, uint8));
    Tensor x = zeros({2}, uint8);
    THROWS(ValueError, "fill_: 300 does not fit into uint8", x.fill_(300));
    THROWS(ValueError, "masked_fill: 300 does not fit into uint8", masked_fill(x, x == 0, 300));
    THROWS(ValueError, "where: 300 does not fit into uint8", where(x == 0, x, 300));
    THROWS(ValueError, "index_put_: 300 does not fit into uint8", x.index_put_({0}, 300));
    THROWS(ValueError, "300 does not fit into uint8", index_fill(x, 0, tensor({1}), 300));
    THROWS(ValueError, "300 does not fit into uint8", pad(x, {1, 1}, 300));
    THROWS(ValueError, "300 does not fit into uint8", scatter(x, 0, tensor({1}), 300));
    CHECK(all(x == 0).item<bool>());
    CHECK(values(full({2}, -1, uint8)) == V{255, 255});
    CHECK(values(full({1}, 2.7, int64)) == V{2});
    CHECK(full({1}, std::int64_t{9007199254740993}, int64).item<std::int64_t>() == 9007199254740993);
    CHECK(std::isinf(full({1}, inf, float16).item()));
    CHECK(full({1}, 3.4028235e38).item<float>() == std::numeric_limits<float>::max());
    CHECK(values(full({1}, NAN, bool_)) == V{1});
}

TEST_CASE("comparisons with a number beyond the dtype compare with that number") {
    const Tensor x = tensor({44, 255}, uint8), y = tensor({1, -7}, int32);
    CHECK(values(x == 300) == V{0, 0});
    CHECK(values(x < 300) == V{1, 1});
    CHECK(values(x > -1000) == V{1, 1});
    CHECK(values(y < std::int64_t{70000000000}) == V{1, 1});
    CHECK(values(y == std::int64_t{4294967297}) == V{0, 0});
}
