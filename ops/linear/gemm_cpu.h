// The single-thread matrix-product kernels, per instruction set. Callers use ops/gemm_impl.h.
#pragma once

#include <cstddef>

#include "tapir/ops/cpu/isa.h"
#include "tapir/ops/linear/gemm_impl.h"

namespace tapir::kernels {

/// Scratch memory of this thread, 64-byte aligned, valid until its next call; kept for the thread's life.
void* gemm_workspace(std::size_t bytes);

/// The way a product is summed. A caller that splits one product over threads gives every part the same method, so that
/// the result does not depend on the split. (Within `tiles` the order of the sum depends on k alone.)
enum class GemmMethod : int {
    dots,   // both operands contiguous along k: vector dot products, nothing packed
    rows,   // a batch of one: B's rows weighted and added up
    tiles,  // register tiles of C, one broadcast of A times a vector of B a step
};

}  // namespace tapir::kernels

TAPIR_CPU_KERNEL(gemm_method_f32, GemmMethod(const Gemm<float>& g))
TAPIR_CPU_KERNEL(gemm_method_f64, GemmMethod(const Gemm<double>& g))
/// Compute the product on this thread, and one part of a product for which gemm_method chose. They need m, n, k > 0.
TAPIR_CPU_KERNEL(gemm_f32, void(const Gemm<float>& g))
TAPIR_CPU_KERNEL(gemm_f64, void(const Gemm<double>& g))
TAPIR_CPU_KERNEL(gemm_part_f32, void(const Gemm<float>& g, GemmMethod method))
TAPIR_CPU_KERNEL(gemm_part_f64, void(const Gemm<double>& g, GemmMethod method))
/// Compute a batch on this thread, if its products are small; m, n, k > 0. They return false, without effect, for others.
TAPIR_CPU_KERNEL(gemm_batch_f32, bool(const GemmBatch<float>& g))
TAPIR_CPU_KERNEL(gemm_batch_f64, bool(const GemmBatch<double>& g))
