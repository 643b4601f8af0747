// Reduction kernels: sums, products and extremes over any dimensions, and their variants.
//
// A reduction is described by two sets of dimensions: the kept ones, one output for each of their positions, and the
// reduced ones. The caller has merged dimensions that lie behind each other in memory, so that most problems
// arrive as one long row or as one block of columns.
#pragma once

#include <cstdint>

#include "tapir/core/dtype.h"
#include "tapir/ops/cpu/isa.h"
#include "tapir/ops/kernels/gpu.h"

namespace tapir::kernels {

enum class Reduction : std::uint8_t { sum, prod, max, min, all, any };

/// A function of each element, applied before it is combined.
enum class Map : std::uint8_t { none, not_zero, abs, square, power };

/// A function of the result.
enum class Finish : std::uint8_t { none, divide, sqrt, root };

struct ReduceArgs {
    Reduction reduction;
    Map map = Map::none;
    Finish finish = Finish::none;
    DType compute;        // float32, float64 or int64; boolean for all and any
    double divisor = 1;   // of Finish::divide
    double exponent = 1;  // of Map::power and Finish::root
    const void* x;
    DType dtype;
    void* out;  // contiguous
    DType out_dtype;
    bool columns;  // memory runs along the last kept dimension, not along the last reduced one
    int kept, reduced;
    std::int64_t kept_sizes[8], kept_strides[8];        // in the order of the output
    std::int64_t reduced_sizes[8], reduced_strides[8];  // by falling stride; no size is 0
};

/// One dimension of contiguous tensors of float32, float64 or int64, seen as (outer, size, inner). Kernels work on the
/// lines along it, counted as outer * inner.
struct LineArgs {
    DType dtype;
    std::int64_t size, inner;
    const void* x;
    void* out;
};

/// Elements, (outer, picked, inner), that were picked along one dimension of a tensor, (outer, size, inner). Contiguous.
struct PickedArgs {
    std::size_t bytes;  // of an element
    std::int64_t picked, size, inner;
    const std::int64_t* indices;  // along the dimension
    const void* from;
    void* to;
};

}  // namespace tapir::kernels

/// `count` outputs, counted in row-major order. A GPU reads element types as they are: it ignores args.compute, and the result is of
/// args.out_dtype.
TAPIR_KERNEL(reduce, const tapir::kernels::ReduceArgs& args)
/// The variance, or its square root for Finish::sqrt, of the reduced elements: their squared distances from the mean divided by
/// args.divisor. In float64 inside.
TAPIR_KERNEL(moments, const tapir::kernels::ReduceArgs& args)
/// Sums n contiguous floats: the fast path.
TAPIR_CPU_KERNEL(sum_floats, double(const float* x, std::int64_t n))
/// Finds for lines [begin, end) the largest (or smallest) element, to out unless null, and the index of the first such.
TAPIR_CPU_KERNEL(extreme, void(const tapir::kernels::LineArgs& args, bool largest, std::int64_t* indices, std::int64_t begin, std::int64_t end))
/// With args.reduction max or min: writes the elements, to args.out unless null, and the index of the first such. One dimension is
/// reduced, or none.
TAPIR_GPU_KERNEL(extreme, void(const tapir::kernels::ReduceArgs& args, std::int64_t* indices, std::int64_t outputs))
/// Puts each of the elements, counted as outer * picked * inner, back where it was picked from.
TAPIR_KERNEL(put_picked, const tapir::kernels::PickedArgs& args)
