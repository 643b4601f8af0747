// An op on a CUDA device against the same op on the CPU: the result and the gradients of all floating inputs.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "check.h"

namespace tapir::test {

using OpCall = std::function<Tensor(const std::vector<Tensor>&)>;

inline bool is_close(double have, double want, double limit) {
    if (std::isnan(want)) return std::isnan(have);
    if (std::isinf(want) || std::isinf(have)) return have == want;
    return std::abs(have - want) <= limit * (1 + std::abs(want));
}

inline void check_close(const Tensor& have, const Tensor& want, double limit) {
    REQUIRE(have.defined() == want.defined());
    if (!want.defined()) return;
    REQUIRE(have.shape() == want.shape());
    REQUIRE(have.dtype() == want.dtype());
    const std::vector<double> a = have.to_vector<double>(), b = want.to_vector<double>();
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (is_close(a[i], b[i], limit)) continue;
        INFO("element " << i << ": " << a[i] << ", the CPU has " << b[i]);
        CHECK(false);
        return;
    }
}

inline Tensor some_gradient(const Tensor& y) {
    const NoGradScope pause;
    return (arange(y.numel(), float64) % 5 * 0.25 + 0.5).to(y.dtype()).view(y.shape()).to(y.device());
}

/// The result of f, then the gradient of each input (undefined for integers).
inline std::vector<Tensor> outcome(const OpCall& f, const std::vector<Tensor>& inputs) {
    std::vector<Tensor> leaves, result;
    for (const Tensor& x : inputs) {
        leaves.push_back(x.detach());
        if (is_floating(x.dtype())) leaves.back().requires_grad_();
    }
    Tape tape;
    const Tensor y = f(leaves);
    result.push_back(y);
    if (!is_floating(y.dtype()) || !y.requires_grad()) return result;
    tape.backward(y, {.gradient = some_gradient(y)});
    for (const Tensor& leaf : leaves) result.push_back(leaf.requires_grad() ? leaf.grad() : Tensor());
    return result;
}

inline void compare_on(const std::vector<Tensor>& inputs, const std::vector<Tensor>& on_device, double limit, const OpCall& f) {
    const std::vector<Tensor> want = outcome(f, inputs), have = outcome(f, on_device);
    REQUIRE(have.size() == want.size());
    for (std::size_t k = 0; k < want.size(); ++k) {
        INFO((k == 0 ? std::string("the result") : "the gradient of input " + std::to_string(k - 1)));
        check_close(have[k], want[k], limit);
    }
}

inline void compare(const std::vector<Tensor>& inputs, double limit, const OpCall& f) {
    std::vector<Tensor> on_device;
    for (const Tensor& x : inputs) on_device.push_back(x.to(cuda));
    compare_on(inputs, on_device, limit, f);
}

/// The gradient of the first input by the rules that are recorded, and its gradient.
inline void compare_twice(const std::vector<Tensor>& inputs, double limit, const OpCall& f) {
    std::vector<Tensor> first, second;
    for (const Device device : {cpu, Device(cuda)}) {
        std::vector<Tensor> leaves;
        for (const Tensor& x : inputs) leaves.push_back(x.detach().to(device));
        leaves[0].requires_grad_();
        Tape tape;
        const Tensor y = f(leaves);
        first.push_back(tape.gradient(y, {leaves[0]}, {.gradient = some_gradient(y), .create_graph = true})[0]);
        second.push_back(tape.gradient(first.back(), {leaves[0]}, {.gradient = some_gradient(first.back())})[0]);
    }
    check_close(first[1], first[0], limit);
    check_close(second[1], second[0], limit);
}

inline double limit_of(DType dtype) { return dtype == float64 ? 1e-12 : dtype == float32 ? 1e-5 : dtype == float16 ? 4e-3 : 3e-2; }

/// The same values on the device, contiguous but one element off from where memory is aligned.
inline Tensor shifted(const Tensor& x) {
    Tensor t = narrow(zeros({x.numel() + 1}, {x.dtype(), cuda}), 0, 1, x.numel());
    t.copy_(x.reshape({x.numel()}).to(cuda));
    return t.view(x.shape());
}

}  // namespace tapir::test
