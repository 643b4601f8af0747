// Checks gradients against finite differences.
#pragma once

#include <string>
#include <vector>

#include "tapir/autograd/traced_function.h"
#include "tapir/core/std_function.h"
#include "tapir/core/tensor.h"

namespace tapir {

struct GradcheckOptions {
    double eps = 1e-6;   ///< step of the central difference
    double atol = 1e-5;  ///< |analytic - numeric| <= atol + rtol |numeric|
    double rtol = 1e-3;
    bool raise_exception = true;  ///< else disagreements are only in the result
};

struct GradcheckResult {
    bool ok = true;
    std::string message;  ///< the elements of the inputs that disagree, and by how much; the worst ones first
    explicit operator bool() const noexcept { return ok; }
};

/// Compares the gradients of fn, a function of its inputs to a tensor of any shape, with central differences
/// (f(x + eps) - f(x - eps)) / 2 eps, for every element of every input and a random weighting of the outputs. Inputs must
/// be float64 (DTypeError); fn must be smooth around them. Throws ValueError that lists all disagreements, like PyTorch's, so that
///
///     gradcheck(fn, {x});
///
/// is a check. With {.raise_exception = false}, look at the result instead. fn takes a list, or up to 8 tensors one by one:
///
///     gradcheck([](const Tensor& x, const Tensor& w) { return tanh(matmul(x, w)); }, {x, w});
GradcheckResult gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& fn, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options = {}, Loc loc = Loc::current());

/// Checks second-order gradients in the same way.
GradcheckResult gradgradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& fn, const std::vector<Tensor>& inputs,
                              const GradcheckOptions& options = {}, Loc loc = Loc::current());

template <detail::FunctionOfTensors Fn>
GradcheckResult gradcheck(const Fn& fn, const std::vector<Tensor>& inputs, const GradcheckOptions& options = {}, Loc loc = Loc::current()) {
    return gradcheck(detail::of_list("gradcheck", fn, loc), inputs, options, loc);
}
template <detail::FunctionOfTensors Fn>
GradcheckResult gradgradcheck(const Fn& fn, const std::vector<Tensor>& inputs, const GradcheckOptions& options = {}, Loc loc = Loc::current()) {
    return gradgradcheck(detail::of_list("gradgradcheck", fn, loc), inputs, options, loc);
}

}  // namespace tapir
