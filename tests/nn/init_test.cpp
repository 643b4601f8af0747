// Initialisers: moments, bounds, orthogonality.
#include <algorithm>

#include "../fails.h"
#include "check.h"

using namespace tapir;
namespace init = nn::init;

namespace {

struct Moments {
    double mean, std, low, high;
};

Moments moments(const Tensor& t) {
    const std::vector<double> v = t.to_vector<double>();
    double sum = 0, squares = 0, low = v[0], high = v[0];
    for (const double x : v) {
        sum += x;
        squares += x * x;
        low = std::min(low, x);
        high = std::max(high, x);
    }
    const auto n = static_cast<double>(v.size());
    return {sum / n, std::sqrt(squares / n - sum * sum / n / n), low, high};
}

}  // namespace

TEST_CASE("initialisers have the moments of their papers") {
    manual_seed(5);
    const Tensor w = empty({300, 200, 3});  // fans 600 and 900
    const auto is_uniform = [&](double bound) {
        const Moments m = moments(w);
        CHECK(std::abs(m.mean) < bound * 0.01);
        CHECK(m.std == Approx(bound / std::sqrt(3.0)).epsilon(0.01));
        CHECK(m.high <= bound);
        CHECK(m.low >= -bound);
        CHECK(m.high > 0.99 * bound);
    };
    const auto is_normal = [&](double std) {
        const Moments m = moments(w);
        CHECK(std::abs(m.mean) < std * 0.02);
        CHECK(m.std == Approx(std).epsilon(0.01));
        CHECK(m.high > 3.5 * std);
    };
    init::xavier_uniform_(w, 2);
    is_uniform(2 * std::sqrt(6.0 / 1500));
    init::xavier_normal_(w);
    is_normal(std::sqrt(2.0 / 1500));
    init::kaiming_uniform_(w, {.slope = std::sqrt(5.0)});
    is_uniform(1 / std::sqrt(600.0));
    init::kaiming_normal_(w, {.fan = init::Fan::out, .nonlinearity = init::Nonlinearity::relu});
    is_normal(std::sqrt(2.0 / 900));
    init::uniform_(w, -2, 2);
    is_uniform(2);
    init::normal_(w, 0, 0.3);
    is_normal(0.3);
    init::constant_(w, 0.25);
    CHECK(moments(w).low == 0.25);
    init::ones_(w);
    CHECK(moments(w).high == 1);
    init::zeros_(w);
    CHECK(moments(w).high == 0);
}

TEST_CASE("orthogonal_ gives orthonormal rows or columns") {
    for (const Shape& shape : {Shape(5, 5), Shape(7, 3), Shape(3, 7), Shape(1, 4), Shape(4, 1), Shape(4, 3, 2), Shape(40, 30)}) {
        INFO(shape.str());
        const Tensor w = init::orthogonal_(empty(shape, float64), 2).reshape({shape[0], -1});
        const Tensor small = w.shape()[0] <= w.shape()[1] ? matmul(w, w.t()) : matmul(w.t(), w);
        const Tensor identity = eye(small.shape()[0], -1, float64) * 4;
        CHECK(amax(abs(small - identity)).item() < 1e-12);
    }
    // Uniformly distributed: the corner of a 2 x 2 rotation has mean 0.
    double corner = 0;
    for (int i = 0; i < 400; ++i) corner += init::orthogonal_(empty({2, 2})).at<float>({0, 0});
    CHECK(std::abs(corner / 400) < 0.15);
}

TEST_CASE("initialisers are not recorded, and write every dtype and layout") {
    Tensor w = empty({4, 3}).requires_grad_();
    const Tape tape;
    init::xavier_uniform_(w);
    CHECK(tape.size() == 0);
    CHECK(w.is_leaf());
    init::normal_(empty({3, 4}, float16));
    const Tensor wide = zeros({4, 6});
    init::ones_(wide.narrow(1, 2, 2));
    CHECK(wide.sum().item() == 8);
    init::kaiming_normal_(empty({0, 3}));
    init::orthogonal_(empty({3, 0}));
}

TEST_CASE("initialisers refuse what they cannot fill") {
    const auto line = [](int n) { return "init_test.cpp:" + std::to_string(n) + ": "; };
    CHECK(check::begins(check::message<ShapeError>([] { init::xavier_uniform_(empty({3})); }), line(__LINE__)));
    CHECK(check::begins(check::message<ShapeError>([] { init::orthogonal_(empty({3})); }), line(__LINE__)));
    CHECK(check::begins(check::message<DTypeError>([] { init::normal_(empty({3}, int64)); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([] { init::uniform_(empty({3}), 1, 0); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([] { init::normal_(empty({3}), 0, -1); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([] { init::zeros_(Tensor()); }), line(__LINE__)));
}

TEST_CASE("truncated normals have the moments of theory, in the middle and in a tail") {
    manual_seed(6);
    const auto density = [](double x) { return std::exp(-x * x / 2) / std::sqrt(2 * 3.14159265358979323846); };
    const auto above = [](double x) { return 0.5 * std::erfc(x / std::sqrt(2.0)); };
    struct Case {
        double mean, std, a, b;
    };
    for (const auto& [mean, std, a, b] : {Case{0, 1, -2, 2}, {0.5, 0.02, 0.49, 0.6}, {0, 1, 4, 5}, {0, 1, -9, -8}, {1, 2, -1e9, 1e9}}) {
        INFO("mean " << mean << " std " << std << " in " << a << ", " << b);
        const Tensor t = empty({100000}, float64);
        init::trunc_normal_(t, mean, std, a, b);
        const double low = (a - mean) / std, high = (b - mean) / std;
        const double mass = low > 0 ? above(low) - above(high) : above(-high) - above(-low);  // without cancellation
        const double shift = (density(low) - density(high)) / mass;
        const Moments m = moments(t);
        CHECK(m.low >= a);
        CHECK(m.high <= b);
        CHECK(std::abs(m.mean - (mean + std * shift)) < 0.01 * std);
    }
    Generator one(3), two(3);
    const Tensor x = init::trunc_normal_(empty({7}), 0, 1, -1, 1, one), y = init::trunc_normal_(empty({7}), 0, 1, -1, 1, two);
    CHECK(equal(x, y));
    // Whatever the number of threads.
    const int threads = num_threads();
    std::vector<std::vector<double>> drawn;
    for (const int count : {1, 2, 3}) {
        set_num_threads(count);
        Generator generator(7);
        drawn.push_back(init::trunc_normal_(empty({5000}, float64), 1, 2, 0, 3, generator).to_vector<double>());
    }
    set_num_threads(threads);
    CHECK(drawn[0] == drawn[1]);
    CHECK(drawn[0] == drawn[2]);
    FAILS(ValueError, "trunc_normal_: needs std above 0 and a < b", init::trunc_normal_(empty({2}), 0, 1, 2, 2));
}

TEST_CASE("initialisers that hand on what they get") {
    CHECK(equal(init::eye_(empty({2, 3})), eye(2, 3)));
    FAILS(ShapeError, "eye_: needs a matrix", init::eye_(empty({2})));
    const Tensor x = randn({2, 4, 5, 6});
    CHECK(allclose(conv2d(x, init::dirac_(empty({4, 4, 3, 3})), {}, {.padding = 1}), x));
    CHECK(allclose(conv2d(x, init::dirac_(empty({4, 2, 3, 3}), 2), {}, {.padding = 1, .groups = 2}), x));
    const Tensor fewer = conv2d(x, init::dirac_(empty({6, 4, 1, 1})));
    CHECK(equal(fewer.narrow(1, 0, 4), x));
    CHECK(equal(fewer.narrow(1, 4, 2), zeros({2, 2, 5, 6})));
    FAILS(ShapeError, "dirac_: needs 3 to 5 dimensions", init::dirac_(empty({2, 2})));
    FAILS(ValueError, "dirac_: 3 outputs are no multiple of 2 groups", init::dirac_(empty({3, 2, 1}), 2));
}
