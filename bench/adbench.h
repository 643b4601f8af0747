// ADBench's objectives and their derivatives, of tensors of float64, for both libraries. The formulas are those of the paper (see
// adbench_data.h), the LSTM's those of ADBench's repository.
#pragma once

#include <numbers>

#include "adbench_data.h"
#include "both.h"

namespace bench {

inline Tensor tensor_of(const Numbers& values, const Shape& shape) { return lib::tensor(values, kFloat64).reshape(shape); }

/// d (sum of seed * y) / dx for each of `xs`, y = f(), for each seed: a backward pass each over one recording.
template <class F>
std::vector<Tensors> pulled_back(const Tensors& xs, const Tensors& seeds, const F& f) {
    std::vector<Tensors> made;
#ifdef TAPIR_BENCH_TORCH
    const Tensor y = f();
    for (const Tensor& seed : seeds) made.push_back(torch::autograd::grad({y}, xs, {seed}, /*retain_graph=*/true));
#else
    tapir::Tape tape;
    const Tensor y = f();
    for (const Tensor& seed : seeds) made.push_back(tape.gradient(y, xs, {.gradient = seed, .retain_graph = true}));
#endif
    return made;
}

/// The logarithm of the multivariate gamma function of p dimensions at a.
inline double log_gamma(double a, std::int64_t p) {
    double sum = 0.25 * static_cast<double>(p * (p - 1)) * std::log(std::numbers::pi);
    for (std::int64_t j = 0; j < p; ++j) sum += std::lgamma(a - 0.5 * static_cast<double>(j));
    return sum;
}

/// The log-likelihood of points under a mixture of Gaussians with a Wishart prior on the inverse covariances (the paper's section on
/// Gaussian mixtures). Gaussian j has mean mu_j and inverse covariance Q_j^T Q_j, Q_j lower triangular: the first d numbers of its icf are
/// the logarithms of Q_j's diagonal, their sum is log |Q_j|; the others are what lies below, column by column.
///     sum_i logsumexp_j (alpha_j + log |Q_j| - |Q_j (x_i - mu_j)|^2 / 2) - n logsumexp(alpha) - n d / 2 log(2 pi)
///     + sum_j (gamma^2 / 2 |Q_j|_F^2 - m log |Q_j|) - k c,  c = (d + m + 1) d log(gamma / sqrt 2) - log Gamma_d((d + m + 1) / 2)
struct Gmm {
    explicit Gmm(const GmmData& data)
        : d(data.d), k(data.k), n(data.n), gamma(data.gamma), m(data.m), alphas(leaf(tensor_of(data.alphas, {k}))),
          means(leaf(tensor_of(data.means, {k, d}))), icf(leaf(tensor_of(data.icf, {k, d * (d + 1) / 2}))), x(tensor_of(data.x, {n, d})),
          places(lib::tensor(places_of(d))), zero(tensor_of(Numbers(static_cast<std::size_t>(k)), {k, 1})) {
        const double freedom = static_cast<double>(d) + m + 1, size = static_cast<double>(d);
        const double prior = freedom * size * std::log(gamma / std::numbers::sqrt2) - log_gamma(freedom / 2, d);
        constant = -0.5 * static_cast<double>(n) * size * std::log(2 * std::numbers::pi) - static_cast<double>(k) * prior;
    }
    Tensors parameters() const { return {alphas, means, icf}; }

    /// ().
    Tensor operator()() const {
        const Tensor logs = icf.narrow(1, 0, d), below = icf.narrow(1, d, d * (d - 1) / 2), diagonal = lib::exp(logs);
        const Tensor q = lib::cat({zero, diagonal, below}, 1).index_select(1, places).view({k, d, d}), log_q = logs.sum(1);
        const Tensor shift = lib::matmul(q, means.unsqueeze(2)).reshape({-1});           // (k d): Q_j mu_j
        const Tensor y = lib::linear(x, q.reshape({k * d, d}), -shift).view({n, k, d});  // Q_j x_i - Q_j mu_j, by one product
        const Tensor terms = alphas + log_q - 0.5 * lib::square(y).sum(2);
        const Tensor prior = (lib::square(diagonal).sum() + lib::square(below).sum()) * (0.5 * gamma * gamma) - log_q.sum() * m;
        return lib::logsumexp(terms, 1).sum() - lib::logsumexp(alphas, 0) * static_cast<double>(n) + prior + constant;
    }

    std::int64_t d, k, n;
    double gamma, m, constant = 0;
    Tensor alphas, means, icf, x, places, zero;

 private:
    /// Where each number of a (d, d) matrix Q, row by row, comes from in {0, its diagonal, what lies below}.
    static std::vector<std::int64_t> places_of(std::int64_t d) {
        std::vector<std::int64_t> made(static_cast<std::size_t>(d * d), 0);
        std::int64_t next = d + 1;
        for (std::int64_t column = 0; column < d; ++column) {
            made[static_cast<std::size_t>(column * d + column)] = column + 1;
            for (std::int64_t row = column + 1; row < d; ++row) made[static_cast<std::size_t>(row * d + column)] = next++;
        }
        return made;
    }
};

/// The mean loss of an LSTM that foretells each character's bits from those before. Its gates are vectors of a cell each, without matrices:
///     f = sigmoid(wf x + bf), i = sigmoid(wi h + bi), o = sigmoid(wo x + bo), g = tanh(wg h + bg), c' = c f + i g, h' = o tanh(c')
/// x, the first layer's input, is a character times the input's weights; y = h' w + b of the last layer's h'; the loss of a character is
/// -sum(next (y - log(2 + sum(exp(y))))) / b. ADBench has this 2.
struct Lstm {
    explicit Lstm(const LstmData& data)
        : l(data.l), c(data.c), b(data.b), main(leaf(tensor_of(data.main, {l, 2, 4 * b}))), extra(leaf(tensor_of(data.extra, {3, b}))),
          state(tensor_of(data.state, {l, 2, b})), sequence(tensor_of(data.sequence, {c, b})) {}
    Tensors parameters() const { return {main, extra}; }

    /// ().
    Tensor operator()() const {
        struct Layer {
            Tensor weight, bias, h, c;
        };
        std::vector<Layer> layers;
        for (std::int64_t i = 0; i < l; ++i) layers.push_back({main[i][0], main[i][1], state[i][0], state[i][1]});
        Tensors outputs;
        for (Tensor x : (sequence.narrow(0, 0, c - 1) * extra[0]).unbind(0)) {
            for (Layer& layer : layers) {
                const Tensor gates = lib::cat({x, layer.h, x, layer.h}) * layer.weight + layer.bias;
                const auto opened = lib::sigmoid(gates.narrow(0, 0, 3 * b)).chunk(3);  // forget, in, out
                layer.c = layer.c * opened[0] + opened[1] * lib::tanh(gates.narrow(0, 3 * b, b));
                x = layer.h = opened[2] * lib::tanh(layer.c);
            }
            outputs.push_back(x);
        }
        const Tensor y = lib::stack(outputs) * extra[1] + extra[2];
        const Tensor logs = y - lib::log(lib::exp(y).sum(1, /*keepdim=*/true) + 2);
        return -(sequence.narrow(0, 1, c - 1) * logs).mean();
    }

    std::int64_t l, c, b;
    Tensor main, extra, state, sequence;
};

/// Bundle adjustment: a point X that a camera sees is projected (the paper's section on bundle adjustment),
///     Y = R (X - C), R the rotation by the angle |r| about the axis r,  z = (Y_1, Y_2) / Y_3
///     projected = f (1 + k1 |z|^2 + k2 |z|^4) z + principal point
/// An observation's error is w (projected - feature), its weight's error 1 - w^2. r must not be 0. Each row of a tensor is one quantity of
/// all cameras, points or observations, so that the ops read it in one go.
struct Bundle {
    explicit Bundle(const BundleData& data)
        : p(data.p), cameras(by_quantity(data.cameras, data.n)), points(by_quantity(data.points, data.m)),
          weights(leaf(by_quantity(data.weights, p))), features(by_quantity(data.features, p)),  // where the points were seen
          camera_of(counted(data.n)), point_of(counted(data.m)), seeds{seed_of(0), seed_of(1)} {}

    /// Of each observation, from its own camera (11, p), point (3, p) and weight (1, p): (2, p).
    Tensor projection_errors(const Tensor& camera, const Tensor& point, const Tensor& weight) const {
        const auto part = camera.split(std::vector<std::int64_t>{3, 3, 1, 2, 1, 1});
        const Tensor &r = part[0], &center = part[1], &focal = part[2], &principal = part[3], &k1 = part[4], &k2 = part[5];
        const Tensor angle = lib::sqrt(lib::square(r).sum(0)), cosine = lib::cos(angle), axis = r / angle, v = point - center;
        const Tensor along = (axis * v).sum(0) * (1 - cosine);
        const Tensor turned = v * cosine + lib::cross(axis, v, 0) * lib::sin(angle) + axis * along;
        const Tensor z = turned.narrow(0, 0, 2) / turned[2], radius = lib::square(z).sum(0);
        const Tensor projected = z * ((1 + k1 * radius + k2 * lib::square(radius)) * focal) + principal;
        return weight * (projected - features);
    }
    static Tensor weight_errors(const Tensor& weight) { return 1 - lib::square(weight); }

    /// (3, p): the projections' errors and the weights'.
    Tensor operator()() const {
        const Tensor errors = projection_errors(cameras.index_select(1, camera_of), points.index_select(1, point_of), weights);
        return lib::cat({errors, weight_errors(weights)});
    }

    /// The numbers of the sparse Jacobian of operator(), (31 p): of each observation's two errors, by its camera, point and weight
    /// (p, 2, 15); then of the weights' errors (p).
    Tensor jacobian() const {
        const Tensors operands{leaf(cameras.index_select(1, camera_of)), leaf(points.index_select(1, point_of)), weights};
        Tensors rows;
        for (const Tensors& row : pulled_back(operands, seeds, [&] { return projection_errors(operands[0], operands[1], operands[2]); })) {
            rows.push_back(lib::cat(row));
        }
        const Tensor by_weight = pulled_back({weights}, {lib::ones_like(weights)}, [&] { return weight_errors(weights); })[0][0];
        return lib::cat({lib::stack(rows).permute({2, 0, 1}).reshape({-1}), by_weight.reshape({-1})});
    }

    std::int64_t p;
    Tensor cameras, points, weights, features, camera_of, point_of;

 private:
    Tensor counted(std::int64_t end) const {
        std::vector<std::int64_t> made(static_cast<std::size_t>(p));
        for (std::int64_t i = 0; i < p; ++i) made[static_cast<std::size_t>(i)] = i % end;
        return lib::tensor(made);
    }
    /// (count, quantities) as (quantities, count).
    static Tensor by_quantity(const Numbers& values, std::int64_t count) { return tensor_of(values, {count, -1}).t().contiguous(); }
    /// (2, p): 1 for the errors of one coordinate, 0 for the other's.
    Tensor seed_of(std::int64_t coordinate) const {
        Tensor seed = lib::zeros_like(features);
        seed[coordinate].fill_(1);
        return seed;
    }

    Tensors seeds;
};

}  // namespace bench
