// What a tensor's elements are like, for messages.
#pragma once

#include <cstdint>
#include <string>

#include "tapir/core/tensor.h"

namespace tapir::detail {

struct Values {
    std::int64_t numel = 0, nan = 0, inf = 0, zeros = 0, negatives = 0;
    double min = 0, max = 0, mean = 0;  // of the finite elements

    std::int64_t finite() const noexcept { return numel - nan - inf; }
};

/// The largest finite number of a floating dtype.
double largest_of(DType dtype) noexcept;

/// Reads every element.
Values values_of(const Tensor& x);
/// "float32 (2, 3): min -1, max 2, mean 0.5, 2 zeros, 1 nan of 6 elements"
std::string describe(const Tensor& x, const Values& values);

}  // namespace tapir::detail
