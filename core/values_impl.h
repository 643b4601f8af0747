// Reading a tensor's elements: whether that is possible, and summaries of them for messages.
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

/// Returns the largest finite number of a floating dtype.
double largest_of(DType dtype) noexcept;

/// True if an op may read the elements to decide what to do. Those on a device would have to be waited for, and those in a trace differ in
/// later runs of the graph.
bool is_readable(const Tensor& x) noexcept;

/// Reads every element.
Values values_of(const Tensor& x);
/// "float32 (2, 3): min -1, max 2, mean 0.5, 2 zeros, 1 nan of 6 elements"
std::string describe(const Tensor& x, const Values& values);

/// Throws ValueError if `value` does not fit into an element of this dtype: "full: 300 does not fit into
/// uint8". Fractions are cut off for integers. As in PyTorch, uint8 takes whole numbers from -255 on, which wrap around; infinity and
/// nan do not fit into integers.
void check_fits(const char* op, Scalar value, DType dtype, const Loc& loc);

/// True if the value fits, as check_fits() tests it.
bool fits(Scalar value, DType dtype) noexcept;

/// Returns a word that selects an option, such as "floor". Throws ValueError for a null pointer.
std::string checked_word(const char* op, const char* word, const Loc& loc);

}  // namespace tapir::detail
