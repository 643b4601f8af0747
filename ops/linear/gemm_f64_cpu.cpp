// The double matrix product, once per instruction set.
#include "tapir/ops/linear/gemm_kernels_cpu.h"

namespace tapir::kernels::TAPIR_ISA {

GemmMethod gemm_method_f64(const Gemm<double>& g) { return method_of(as_given(g)); }

void gemm_f64(const Gemm<double>& g) {
    const Product<double> p = as_given(g);
    run(p, method_of(p));
}

void gemm_part_f64(const Gemm<double>& g, GemmMethod method) { run(as_given(g), method); }

bool gemm_batch_f64(const GemmBatch<double>& g) { return run_batch(g); }

}  // namespace tapir::kernels::TAPIR_ISA
