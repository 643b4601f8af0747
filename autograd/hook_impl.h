// A user's function that sees, and may replace, a gradient.
#pragma once

#include <functional>

#include "tapir/core/tensor.h"

namespace tapir {

struct GradientHook {
    std::function<Tensor(const Tensor&)> fn;
    Loc loc;  // where it was registered

    /// Throws ShapeError when the function gives another shape; another dtype is converted.
    void apply(Tensor& grad) const;
};

}  // namespace tapir
