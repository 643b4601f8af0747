// A matrix product on raw memory, for the ops that are made of one.
#pragma once

#include <cstdint>

#include "tapir/core/dtype.h"

namespace tapir {

/// c (m, n), rows c_row apart = a (m, k) b (k, n) + bias, or += with accumulate. Strides in elements.
/// dtype: float32, float64, int32 or int64 (the last two without bias and accumulate).
struct MatrixProduct {
    DType dtype;
    std::int64_t m, n, k;
    const void* a;
    std::int64_t a_row, a_col;
    const void* b;
    std::int64_t b_row, b_col;
    void* c;
    std::int64_t c_row;
    const void* bias = nullptr;
    bool accumulate = false;
};
void multiply(const MatrixProduct& product);

}  // namespace tapir
