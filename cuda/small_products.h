// Matrix products that are too small or too thin for cuBLAS, and those of integers.
#pragma once

#include "tapir/ops/linear/matmul_impl.h"

namespace tapir::gpu {

/// Computes products with few rows or few terms, and empty ones. Returns false, without effect, for others.
bool multiply_small(const MatrixProduct& product);
/// int32 and int64.
void multiply_integers(const MatrixProduct& product);

}  // namespace tapir::gpu
