// Several element-wise ops as one pass over tiles that stay in the first-level cache: a small program over registers, each of which
// holds one tile. The loops are those of the ops themselves, so the numbers are theirs.
#pragma once

#include "tapir/ops/kernels/elementwise.h"

namespace tapir::kernels {

struct FusedStep {
    Loop loop;
    const double* params;
    std::uint8_t count, in[3], out;  // registers
};

struct FusedOperand {
    const void* data;
    DType dtype;
    std::int64_t strides[8];  // in elements; 0 repeats
};

struct FusedArgs {
    static constexpr int kMostInputs = 24, kMostOutputs = 8, kMostRegisters = 40;
    static constexpr std::int64_t kTileBytes = 2048;
    enum class Way : std::uint8_t { linear, repeated, strided, filled };  // filled: one tile of the same number

    Compute compute;
    const FusedStep* steps;
    int step_count;
    int registers;
    int inputs;                    // the first of them
    FusedOperand in[kMostInputs];  // strides by the sizes below
    Way way[kMostInputs];
    int outputs;
    void* out[kMostOutputs];       // contiguous
    std::uint8_t out_register[kMostOutputs];
    bool overlaps;                 // an output lies where an input does that is read after it was written
    std::int64_t numel;
    int rank;
    std::int64_t sizes[8];         // of the outputs
};

}  // namespace tapir::kernels

/// Elements [begin, end).
TAPIR_CPU_KERNEL(run_fused, void(const tapir::kernels::FusedArgs& args, std::int64_t begin, std::int64_t end))
