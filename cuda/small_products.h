// Matrix products that are too small or too thin for cuBLAS, or of integers.
#pragma once

#include "tapir/ops/linear/matmul_impl.h"

namespace tapir::gpu {

/// Does products with few rows or few terms, and those without any. False: not done.
bool multiply_small(const MatrixProduct& product);
/// int32 and int64.
void multiply_integers(const MatrixProduct& product);

}  // namespace tapir::gpu
