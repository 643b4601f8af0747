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

/// Throws ValueError where `value`, which is to be an element of this dtype, does not fit into it: "full: 300 does not fit into
/// uint8". Fractions are cut for integers. As in PyTorch a uint8 takes whole numbers from -255 on, which wrap around; infinity and
/// nan are no integers.
void check_fits(const char* op, Scalar value, DType dtype, const Loc& loc);

/// Whether it does.
bool fits(Scalar value, DType dtype) noexcept;

/// A word that the user chooses something by, as "floor"; throws ValueError for a null pointer.
std::string checked_word(const char* op, const char* word, const Loc& loc);

}  // namespace tapir::detail
