// A matrix product on raw memory, for the ops that use one.
#pragma once

#include <cstdint>

#include "tapir/core/device.h"
#include "tapir/core/dtype.h"
#include "tapir/ops/kernels/gpu.h"

namespace tapir {

/// c (m, n), rows c_row apart, = a (m, k) b (k, n) + bias, or += with accumulate; `batch` times, the matrices that far
/// apart. Strides in elements. dtype: float32, float64, bfloat16, int32 or int64 (the last two without bias and
/// accumulate); on CUDA float16 as well, and one stride of a and one of b is 1.
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
    std::int64_t batch = 1, a_batch = 0, b_batch = 0, c_batch = 0;
};
/// True if this processor multiplies bfloat16 (and oneDNN is built in).
bool has_fast_bfloat16();
/// Multiplies bfloat16 matrices, summed in float32. Returns false, without work done, if oneDNN does not take them.
bool multiply_bfloat16(const MatrixProduct& product);

/// Multiplies on memory of this device. bfloat16 on the CPU: without accumulate.
void multiply(const MatrixProduct& product, Device device);
/// Returns the tensor, or a copy without gaps whose last two dimensions a product on a device can read. Not recorded.
Tensor matrix_for_device(const Tensor& t, const Loc& loc = {});

}  // namespace tapir

TAPIR_GPU_KERNEL(matmul, void(const tapir::MatrixProduct& product))
