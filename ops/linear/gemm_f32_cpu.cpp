// The float matrix product, once per instruction set.
#include "tapir/ops/linear/gemm_kernels_cpu.h"

namespace tapir::kernels::TAPIR_ISA {

GemmMethod gemm_method_f32(const Gemm<float>& g) { return method_of(as_given(g)); }

void gemm_f32(const Gemm<float>& g) {
    const Product<float> p = as_given(g);
    run(p, method_of(p));
}

void gemm_part_f32(const Gemm<float>& g, GemmMethod method) { run(as_given(g), method); }

bool gemm_batch_f32(const GemmBatch<float>& g) { return run_batch(g); }

}  // namespace tapir::kernels::TAPIR_ISA
