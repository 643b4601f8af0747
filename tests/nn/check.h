// What the tests of nn share: inputs from a formula (tests/goldens/nn.py has the same one), and comparison.
#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "tapir/nn/nn.h"
#include "tapir/tapir.h"

namespace check {

inline void fill(const tapir::Tensor& t, double seed) {
    const std::vector<double> values = [&] {
        std::vector<double> v(static_cast<std::size_t>(t.numel()));
        for (std::size_t i = 0; i < v.size(); ++i) v[i] = 0.8 * std::sin(static_cast<double>(i) * 0.7 + seed);
        return v;
    }();
    tapir::Tensor to = t;
    to.copy_(tapir::tensor(values).reshape(t.shape()));
}

inline tapir::Tensor values(const tapir::Shape& shape, double seed, tapir::DType dtype = tapir::float64) {
    tapir::Tensor t = tapir::empty(shape, dtype);
    fill(t, seed);
    return t;
}

inline void same(const char* what, const tapir::Tensor& t, const std::vector<double>& expected, double tolerance = 1e-10) {
    INFO(what);
    REQUIRE(t.defined());
    const std::vector<double> actual = t.to_vector<double>();
    REQUIRE(actual.size() == expected.size());
    double worst = 0;
    for (std::size_t i = 0; i < actual.size(); ++i) {
        const double error = std::abs(actual[i] - expected[i]) / (1 + std::abs(expected[i]));
        worst = error <= worst ? worst : error;
    }
    CHECK(worst <= tolerance);
}

// Parameters from the formula, in order.
template <class M>
M prepared(M module, tapir::DType dtype) {
    module.to(dtype);
    double seed = 1;
    for (const tapir::Tensor& p : module.parameters()) fill(p, seed++);
    return module;
}

inline void backward_of(tapir::Tape& tape, const std::vector<tapir::Tensor>& outputs) {
    tapir::Tensor loss;
    for (std::size_t k = 0; k < outputs.size(); ++k) {
        const tapir::Tensor part = sum(outputs[k] * values(outputs[k].shape(), 20 + static_cast<double>(k), outputs[k].dtype()));
        loss = loss.defined() ? loss + part : part;
    }
    tape.backward(loss);
}

/// What fn throws, as text; "" when nothing.
template <class E, class Fn>
std::string message(const Fn& fn) {
    try {
        fn();
    } catch (const E& error) {
        return error.what();
    }
    return "";
}

inline bool begins(const std::string& text, const std::string& start) { return text.compare(0, start.size(), start) == 0; }
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Largest difference between the gradients of loss() and central differences, relative to 1 + |gradient|. In float64.
template <class Loss>
double gradient_error(const std::vector<tapir::Tensor>& leaves, const Loss& loss) {
    for (tapir::Tensor leaf : leaves) leaf.zero_grad();
    {
        tapir::Tape tape;
        tape.backward(loss());
    }
    double worst = 0;
    for (const tapir::Tensor& leaf : leaves) {
        const std::vector<double> gradient =
            leaf.grad().defined() ? leaf.grad().to_vector<double>() : std::vector<double>(static_cast<std::size_t>(leaf.numel()));
        double* x = leaf.data<double>();
        for (std::size_t i = 0; i < gradient.size(); ++i) {
            const double at = x[i], step = 1e-6;
            x[i] = at + step;
            const double up = loss().item();
            x[i] = at - step;
            const double down = loss().item();
            x[i] = at;
            const double error = std::abs((up - down) / (2 * step) - gradient[i]) / (1 + std::abs(gradient[i]));
            if (!(error <= worst)) worst = error;
        }
    }
    return worst;
}

}  // namespace check
