// bench/adbench.h: ADBench's objectives against plain loops, their derivatives against central differences; of made-up data, and of
// ADBench's where it is.
#include "../../bench/adbench.h"

#include <array>
#include <catch2/catch.hpp>
#include <numeric>

namespace {

using namespace bench;

double dot(const Numbers& a, const Numbers& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

double log_of_summed_exp(const Numbers& values) {
    const double most = *std::max_element(values.begin(), values.end());
    double sum = 0;
    for (const double v : values) sum += std::exp(v - most);
    return most + std::log(sum);
}

Numbers part(const Numbers& values, std::int64_t row, std::int64_t width) {
    return {values.begin() + row * width, values.begin() + (row + 1) * width};
}

double number(std::int64_t value) { return static_cast<double>(value); }

/// Numbers between -1 and 1, by a formula.
Numbers made_up(std::int64_t count, std::uint32_t seed) {
    const std::vector<float> made = fixed_weights(static_cast<std::size_t>(count), seed, 1);
    return {made.begin(), made.end()};
}

/// A copy of a gradient or Jacobian, flat.
Numbers numbers_of(const Tensor& t) {
    const Tensor flat = t.contiguous();
    return {flat.data<double>(), flat.data<double>() + flat.numel()};
}

/// (f(x + step) - f(x - step)) / (2 step) for element i of x.
template <class F>
double difference(Tensor x, std::size_t i, const F& f, double step = 1e-5) {
    double& value = x.data<double>()[i];
    const double middle = value;
    value = middle + step;
    const double above = f();
    value = middle - step;
    const double below = f();
    value = middle;
    return (above - below) / (2 * step);
}

/// Compares gradients of model() with differences: the first and the last number of each parameter, and some between.
template <class Model>
void check_gradients(const Model& model) {
    gradients(model.parameters(), model);
    for (const Tensor& p : model.parameters()) {
        const Numbers gradient = numbers_of(p.grad());
        const double most =
            std::abs(*std::max_element(gradient.begin(), gradient.end(), [](double a, double b) { return std::abs(a) < std::abs(b); }));
        CHECK(most > 0);
        for (std::size_t i = 0; i < 8; ++i) {
            const std::size_t at = i * (gradient.size() - 1) / 7;
            INFO("number " << at << " of " << gradient.size());
            CHECK(difference(p, at, [&] { return total(model()); }) == Approx(gradient[at]).epsilon(1e-6).margin(1e-7 * most));
        }
    }
}

/// log p of the points by the mixture, and the prior's logarithm.
double plain(const GmmData& data) {
    double sum = 0, prior = 0;
    const std::int64_t count = data.d * (data.d + 1) / 2;
    const double freedom = number(data.d) + data.m + 1;
    for (std::int64_t i = 0; i < data.n; ++i) {
        Numbers terms;
        for (std::int64_t j = 0; j < data.k; ++j) {
            const Numbers icf = part(data.icf, j, count), mean = part(data.means, j, data.d), x = part(data.x, i, data.d);
            Numbers y;
            for (std::size_t row = 0; row < x.size(); ++row) {
                y.push_back(std::exp(icf[row]) * (x[row] - mean[row]));
                for (std::size_t column = 0; column < row; ++column) {  // columns of length d - 1, d - 2, ... follow the diagonal
                    const std::size_t at = x.size() + column * (2 * x.size() - column - 1) / 2 + row - column - 1;
                    y[row] += icf[at] * (x[column] - mean[column]);
                }
            }
            const double log_q = std::accumulate(icf.begin(), icf.begin() + data.d, 0.0);
            terms.push_back(data.alphas[static_cast<std::size_t>(j)] + log_q - dot(y, y) / 2);
        }
        sum += log_of_summed_exp(terms) - log_of_summed_exp(data.alphas) - number(data.d) / 2 * std::log(2 * std::numbers::pi);
    }
    double gammas = number(data.d * (data.d - 1)) / 4 * std::log(std::numbers::pi);
    for (std::int64_t j = 1; j <= data.d; ++j) gammas += std::lgamma(freedom / 2 + number(1 - j) / 2);
    for (std::int64_t j = 0; j < data.k; ++j) {
        Numbers entries = part(data.icf, j, count);
        const double log_q = std::accumulate(entries.begin(), entries.begin() + data.d, 0.0);
        std::transform(entries.begin(), entries.begin() + data.d, entries.begin(), [](double v) { return std::exp(v); });
        prior += data.gamma * data.gamma / 2 * dot(entries, entries) - data.m * log_q;
        prior -= freedom * number(data.d) * (std::log(data.gamma) - std::log(2) / 2) - gammas;
    }
    return sum + prior;
}

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

double plain(const LstmData& data) {
    double sum = 0;
    Numbers state = data.state;
    for (std::int64_t t = 0; t + 1 < data.c; ++t) {
        const Numbers now = part(data.sequence, t, data.b), next = part(data.sequence, t + 1, data.b);
        double exps = 2, matched = 0, nexts = 0;
        for (std::int64_t j = 0; j < data.b; ++j) {  // a bit has nothing to do with the others before the loss
            const auto extra = [&](std::int64_t row) { return data.extra[static_cast<std::size_t>(row * data.b + j)]; };
            double x = now[static_cast<std::size_t>(j)] * extra(0);
            for (std::int64_t layer = 0; layer < data.l; ++layer) {
                const auto weight = [&](std::int64_t gate) { return data.main[static_cast<std::size_t>((layer * 8 + gate) * data.b + j)]; };
                const auto bias = [&](std::int64_t gate) { return weight(4 + gate); };
                double& h = state[static_cast<std::size_t>(layer * 2 * data.b + j)];
                double& c = state[static_cast<std::size_t>((layer * 2 + 1) * data.b + j)];
                const double forget = sigmoid_of(x * weight(0) + bias(0)), in = sigmoid_of(h * weight(1) + bias(1));
                const double out = sigmoid_of(x * weight(2) + bias(2)), change = std::tanh(h * weight(3) + bias(3));
                c = c * forget + in * change;
                x = h = out * std::tanh(c);
            }
            const double y = x * extra(1) + extra(2);
            exps += std::exp(y);
            matched += next[static_cast<std::size_t>(j)] * y;
            nexts += next[static_cast<std::size_t>(j)];
        }
        sum += matched - nexts * std::log(exps);
    }
    return -sum / number((data.c - 1) * data.b);
}

/// The three errors of observation i.
std::array<double, 3> plain(const BundleData& data, std::int64_t i) {
    const Numbers camera = part(data.cameras, i % data.n, 11), point = part(data.points, i % data.m, 3), seen = part(data.features, i, 2);
    const double w = data.weights[static_cast<std::size_t>(i)], angle = std::hypot(camera[0], camera[1], camera[2]);
    Numbers axis, v, y;
    for (std::size_t k = 0; k < 3; ++k) axis.push_back(camera[k] / angle), v.push_back(point[k] - camera[3 + k]);
    for (std::size_t k = 0; k < 3; ++k) {
        const std::size_t a = (k + 1) % 3, b = (k + 2) % 3;
        const double crossed = axis[a] * v[b] - axis[b] * v[a];
        y.push_back(v[k] * std::cos(angle) + crossed * std::sin(angle) + axis[k] * dot(axis, v) * (1 - std::cos(angle)));
    }
    const double radius = (y[0] * y[0] + y[1] * y[1]) / (y[2] * y[2]), bent = 1 + camera[9] * radius + camera[10] * radius * radius;
    std::array<double, 3> errors{0, 0, 1 - w * w};
    for (std::size_t k = 0; k < 2; ++k) errors[k] = w * (camera[6] * bent * y[k] / y[2] + camera[7 + k] - seen[k]);
    return errors;
}

void check(const GmmData& data) {
    const Gmm model(data);
    CHECK(model().item<double>() == Approx(plain(data)).epsilon(1e-12));
    check_gradients(model);
}

void check(const LstmData& data) {
    const Lstm model(data);
    CHECK(model().item<double>() == Approx(plain(data)).epsilon(1e-12));
    check_gradients(model);
}

/// Of observation i: the objective's numbers, and the Jacobian's of it.
void check(const BundleData& data, const Bundle& model, const Numbers& jacobian, std::int64_t i) {
    INFO("observation " << i);
    const auto error_of = [&](std::size_t row) {
        return [&model, at = static_cast<std::int64_t>(row), i] { return model()[at][i].item<double>(); };  // of the objective
    };
    const std::array<double, 3> expected = plain(data, i);
    for (std::size_t row = 0; row < 3; ++row) CHECK(error_of(row)() == Approx(expected[row]).epsilon(1e-9).margin(1e-10));
    struct Operand {
        Tensor numbers;  // (quantities, count)
        std::int64_t column;
    };
    for (std::size_t row = 0; row < 2; ++row) {
        std::size_t at = (static_cast<std::size_t>(i) * 2 + row) * 15;
        for (const Operand& by : {Operand{model.cameras, i % data.n}, Operand{model.points, i % data.m}, Operand{model.weights, i}}) {
            for (std::int64_t quantity = 0; quantity < by.numbers.size(0); ++quantity, ++at) {
                const auto place = static_cast<std::size_t>(quantity * by.numbers.size(1) + by.column);
                INFO("error " << row << ", number " << at % 15);
                CHECK(difference(by.numbers, place, error_of(row), 1e-6) == Approx(jacobian[at]).epsilon(1e-5).margin(1e-5));
            }
        }
    }
    const auto last = static_cast<std::size_t>(30 * data.p + i);
    CHECK(difference(model.weights, static_cast<std::size_t>(i), error_of(2)) == Approx(jacobian[last]).epsilon(1e-7));
}

/// Whether there is data; says so where there is none.
template <class Data>
bool is_there(const std::optional<Data>& data) {
    if (!data) WARN("no ADBench data: set TAPIR_ADBENCH_DIR");
    return data.has_value();
}

TEST_CASE("ADBench's Gaussian mixture and its gradient") {
    for (const std::int64_t d : {1, 2, 5}) {
        INFO("d = " << d);
        const std::int64_t k = 3, n = 7;
        check(GmmData{.d = d,
                      .k = k,
                      .n = n,
                      .alphas = made_up(k, 1),
                      .means = made_up(k * d, 2),
                      .icf = made_up(k * d * (d + 1) / 2, 3),
                      .x = made_up(n * d, 4),
                      .gamma = 1.5,
                      .m = 2});
    }
}

TEST_CASE("ADBench's Gaussian mixture and its gradient, of ADBench's data") {
    for (const std::string name : {"d2_K5", "d10_K25", "d20_K50", "d64_K5"}) {
        INFO(name);
        if (const auto data = read_gmm(name); is_there(data)) check(*data);
    }
}

TEST_CASE("ADBench's LSTM and its gradient") {
    const std::int64_t l = 2, c = 6, b = 3;
    check(LstmData{.l = l,
                   .c = c,
                   .b = b,
                   .main = made_up(l * 8 * b, 1),
                   .extra = made_up(3 * b, 2),
                   .state = made_up(l * 2 * b, 3),
                   .sequence = made_up(c * b, 4)});
    if (const auto data = read_lstm("l2_c1024"); is_there(data)) check(*data);
}

TEST_CASE("ADBench's bundle adjustment and its Jacobian") {
    BundleData data{.n = 3, .m = 4, .p = 7};
    data.cameras = made_up(data.n * 11, 1);
    data.points = made_up(data.m * 3, 2);
    data.weights = made_up(data.p, 3);
    data.features = made_up(data.p * 2, 4);
    for (std::int64_t i = 0; i < data.m; ++i) data.points[static_cast<std::size_t>(3 * i + 2)] += 5;  // in front of the cameras
    const Bundle model(data);
    const Numbers jacobian = numbers_of(model.jacobian());
    CHECK(jacobian.size() == static_cast<std::size_t>(31 * data.p));
    for (std::int64_t i = 0; i < data.p; ++i) check(data, model, jacobian, i);
}

TEST_CASE("ADBench's bundle adjustment and its Jacobian, of ADBench's data") {
    const auto data = read_bundle("ba1_n49_m7776_p31843");
    if (!is_there(data)) return;
    const Bundle model(*data);
    const Numbers jacobian = numbers_of(model.jacobian());
    for (const std::int64_t i : {std::int64_t{0}, std::int64_t{20'000}, data->p - 1}) check(*data, model, jacobian, i);
}

TEST_CASE("ADBench's files that are not there or cut short") {
    CHECK(!read_gmm("of_nothing"));
    CHECK(!read_lstm("of_nothing"));
    CHECK(!read_bundle("of_nothing"));
    CHECK_THROWS_WITH(AdbenchFile("nothing.txt").numbers(2), "nothing.txt: a number is missing");
}

}  // namespace
