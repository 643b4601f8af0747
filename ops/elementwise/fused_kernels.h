// Runs several element-wise ops as one pass over tiles that stay in the first-level cache: a small program over registers. Each register
// holds one tile: of numbers of the type that is computed in, or of truth values, a byte each. The loops are those of the ops
// themselves, so the numbers are the same. 16-bit floats are converted when they are read and written, and rounded after each step.
#pragma once

#include <string>

#include "tapir/ops/elementwise/elementwise_kernels.h"

namespace tapir::kernels {

struct FusedStep {
    Loop loop;
    const double* params;
    std::uint8_t count, in[3], out;  // registers
    Elementwise op = {};             // set if the step is one, in kernels for devices
};

struct FusedOperand {
    const void* data;
    DType dtype;              // bool: truth values; other dtypes are converted to numbers
    std::int64_t strides[8];  // in elements; 0 repeats
};

struct FusedArgs {
    static constexpr int kMostInputs = 24, kMostOutputs = 8, kMostRegisters = 40;
    static constexpr std::int64_t kTileBytes = 2048;
    // linear: laid out as the register; filled: one tile of the same number
    enum class Way : std::uint8_t { linear, repeated, strided, filled };

    Compute compute;
    const FusedStep* steps;
    int step_count;
    int registers;
    int inputs;                    // they are the first registers
    FusedOperand in[kMostInputs];  // strides by the sizes below
    Way way[kMostInputs];
    int outputs;
    void* out[kMostOutputs];  // contiguous
    DType out_dtype[kMostOutputs];
    std::uint8_t out_register[kMostOutputs];
    bool overlaps;  // an output overlaps an input that is read after the output was written
    std::int64_t numel;
    int rank;
    std::int64_t sizes[8];  // of the outputs
};

}  // namespace tapir::kernels

/// The loop of where, on truth values and two numbers. The loop that turns truth values into numbers, 0 or 1.
TAPIR_CPU_KERNEL(where_loop, tapir::kernels::Loop(tapir::kernels::Compute compute))
TAPIR_CPU_KERNEL(number_loop, tapir::kernels::Loop(tapir::kernels::Compute compute))
/// The loop that rounds float32 to the nearest float16 or bfloat16.
TAPIR_CPU_KERNEL(rounding_loop, tapir::kernels::Loop(tapir::DType dtype))
/// Computes elements [begin, end).
TAPIR_CPU_KERNEL(run_fused, void(const tapir::kernels::FusedArgs& args, std::int64_t begin, std::int64_t end))

namespace tapir::gpu {
struct FusedKernel;
}
/// True if this build can compile kernels while the program runs.
TAPIR_GPU_KERNEL(can_compile, bool())
/// Returns the kernel that runs these steps (all but sizes, strides and addresses is compared), compiled if there was none yet, for the selected
/// device. Null if there can be none.
TAPIR_GPU_KERNEL(fused_kernel, tapir::gpu::FusedKernel*(const tapir::kernels::FusedArgs& args))
/// Returns the source that NVRTC is given for it.
TAPIR_GPU_KERNEL(fused_source, std::string(const tapir::kernels::FusedArgs& args))
/// Computes all elements. Returns false, without work done, if the kernel cannot take these.
TAPIR_GPU_KERNEL(run_fused_kernel, bool(tapir::gpu::FusedKernel& kernel, const tapir::kernels::FusedArgs& args))
