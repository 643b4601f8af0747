// Variances. See reduce.cuh.
#include "tapir/cuda/reduce.cuh"

namespace tapir::gpu {
void moments(const ReduceArgs&, i64) {}
}  // namespace tapir::gpu
