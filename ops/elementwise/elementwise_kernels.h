// The element-wise kernels and their driver: one table of loops per instruction set, made from elementwise.def.
//
// A loop only handles n numbers of one type, n a multiple of kLanes. The driver around it takes care of the rest:
// tails, strides, broadcasting, other element types (converted block by block, in cache).
#pragma once

#include <cstdint>

#include "tapir/core/dtype.h"
#include "tapir/ops/cpu/isa.h"
#include "tapir/ops/kernels/gpu.h"

namespace tapir {

/// The rows of elementwise.def.
enum class Elementwise : std::uint16_t {
#define TAPIR_UNARY0(name, ...) name,
#define TAPIR_UNARY1(name, ...) name,
#define TAPIR_UNARY2(name, ...) name,
#define TAPIR_PREDICATE(name, ...) name,
#define TAPIR_BINARY(name, ...) name,
#define TAPIR_COMPARE(name, ...) name,
#define TAPIR_TERNARY(name, ...) name,
#define TAPIR_RULE_ROWS
#include "tapir/core/elementwise_rows.inc"
    count
};
inline constexpr int kElementwiseOps = static_cast<int>(Elementwise::count);

/// The values of the forward pass that a rule reads; the operands a, b, c (a is also called x), and the result y.
enum Saves : std::uint8_t {
    SaveNone = 0,
    SaveA = 1,
    SaveB = 2,
    SaveC = 4,
    SaveY = 8,
    SaveX = SaveA,
    SaveXY = SaveA | SaveY,
    SaveAY = SaveXY,
    SaveAB = SaveA | SaveB,
    SaveBY = SaveB | SaveY,
    SaveABY = SaveA | SaveB | SaveY,
    SaveABC = SaveA | SaveB | SaveC,
    SaveBC = SaveB | SaveC,
};

enum class ElementTypes : std::uint8_t { Float, Number, Integral, Bool };

namespace kernels {

inline constexpr int kLanes = 16;
inline constexpr int kMaxOperands = 5;  // of a loop: g, a, b, c, y
/// Rows that run_rows computes side by side, for operands that are transposed: a band.
inline constexpr std::int64_t kBandRows = 16;
constexpr std::int64_t bands_of_rows(std::int64_t rows) { return (rows + kBandRows - 1) / kBandRows; }

/// out[i] = f(in[0][i], in[1][i], ...) for n elements, n a multiple of kLanes.
using Loop = void (*)(std::int64_t n, void* out, const void* const* in, const double* params);
/// out[i] = f(x[i], number) or f(number, x[i]) for any n elements.
using NumberLoop = void (*)(std::int64_t n, void* out, const void* x, const void* number);
/// out[i] = f(x[i], y[i]) for any n elements.
using HalfLoop = void (*)(std::int64_t n, void* out, const void* x, const void* y);

/// The types that loops compute in; others are converted.
enum class Compute : std::uint8_t { i32, i64, f32, f64 };
constexpr Compute compute_of(DType dtype) noexcept {
    switch (dtype) {
        case DType::int64: return Compute::i64;
        case DType::float64: return Compute::f64;
        case DType::float16:
        case DType::bfloat16:
        case DType::float32: return Compute::f32;
        default: return Compute::i32;
    }
}
constexpr DType stored_as(Compute compute) noexcept {
    constexpr DType dtypes[] = {DType::int32, DType::int64, DType::float32, DType::float64};
    return dtypes[static_cast<int>(compute)];
}

struct ForwardTable {
    Loop loop[kElementwiseOps][4];  // by Compute; null where the op does not have that type
};
struct BackwardTable {
    Loop loop[kElementwiseOps][3][2];  // by operand and f32 or f64; reads g, then what the op saves in the order a, b, c, y
};

/// One operand as the driver sees it. Strides are in elements; 0 repeats.
struct Operand {
    const void* data;  // may be null on a device: then the number below counts
    DType dtype;
    std::int64_t strides[8];
    std::uint64_t number = 0;  // of the type that the loop computes in
};

/// Selects the computation: the value of an op, or the gradient of one of its operands.
struct ElementwiseKernel {
    Elementwise op;
    std::int8_t gradient_of = -1;  // operand 0 to 2; reads g, then what the op saves in the order a, b, c, y
    Compute compute;
    bool to_bool = false;  // the result is bool
    const double* params = nullptr;
};

struct ElementwiseArgs {
    ElementwiseKernel kernel;
    Loop loop;  // the loop of this kernel, on the CPU
    int operands;
    Operand in[kMaxOperands];
    void* out;
    DType out_dtype;
    std::int64_t numel;  // not 0
    int rank;
    std::int64_t sizes[8];
    std::int64_t out_strides[8];
};

/// Fills with elements of 1, 2, 4 or 8 bytes.
struct FillArgs {
    std::size_t size;
    std::uint64_t value;
    void* out;
    std::int64_t numel;
    int rank;  // 0: contiguous
    std::int64_t sizes[8], strides[8];
};

}  // namespace kernels
}  // namespace tapir

/// Runs on contiguous operands of the computed type: the fast path. Sizes are bytes per element.
TAPIR_CPU_KERNEL(run_contiguous,
                 void(tapir::kernels::Loop loop, std::int64_t n, void* out, unsigned out_size, const void* const* in, unsigned in_size, int operands,
                      const double* params))
/// As run_contiguous, but the operands in the bit mask `repeated` have one element, which stands for all.
TAPIR_CPU_KERNEL(run_repeated,
                 void(tapir::kernels::Loop loop, std::int64_t n, void* out, unsigned out_size, const void* const* in, unsigned in_size, int operands,
                      const double* params, unsigned repeated))
/// Handles operands of at least two dimensions whose rows are long. Bands [begin, end) of kBandRows rows; each matrix of the last two
/// dimensions begins with a new band.
TAPIR_CPU_KERNEL(run_rows, void(const tapir::kernels::ElementwiseArgs& args, std::int64_t begin, std::int64_t end))
/// Handles everything else. Elements [begin, end) in row-major order of the result.
TAPIR_CPU_KERNEL(run_general, void(const tapir::kernels::ElementwiseArgs& args, std::int64_t begin, std::int64_t end))
/// Converts n elements from `from` (stride in elements) to `to`.
TAPIR_CPU_KERNEL(convert,
                 void(tapir::DType from_type, const void* from, std::int64_t from_stride, tapir::DType to_type, void* to, std::int64_t to_stride,
                      std::int64_t n))

TAPIR_CPU_KERNEL(elementwise_forward, const tapir::kernels::ForwardTable*())
TAPIR_CPU_KERNEL(elementwise_backward, const tapir::kernels::BackwardTable*())
/// Returns the loop of add, sub, mul or div in float32 or float64; null for others. is_first: the number is the first operand.
TAPIR_CPU_KERNEL(arithmetic_with_number, tapir::kernels::NumberLoop(tapir::Elementwise op, tapir::DType dtype, bool is_first))
/// Returns the loop of add, sub, mul or div in float16 or bfloat16, which computes in float32; null for others.
TAPIR_CPU_KERNEL(arithmetic_of_halves, tapir::kernels::HalfLoop(tapir::Elementwise op, tapir::DType dtype))

/// Computes all elements.
TAPIR_GPU_KERNEL(elementwise, void(const tapir::kernels::ElementwiseArgs& args))
/// out = in[0], converted.
TAPIR_GPU_KERNEL(copy, void(const tapir::kernels::ElementwiseArgs& args))
TAPIR_GPU_KERNEL(fill, void(const tapir::kernels::FillArgs& args))
/// True if there is a kernel for this.
TAPIR_GPU_KERNEL(has_elementwise, bool(const tapir::kernels::ElementwiseKernel& kernel))
