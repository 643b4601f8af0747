// The loops of indexing: one run of elements at a time; callers handle dimensions, checks and dtypes.
// Elements are told apart by their size in bytes (1, 2, 4 or 8) unless they are added. Steps are in elements.
#pragma once

#include <cstdint>

#include "tapir/ops/elementwise/elementwise_kernels.h"

namespace tapir::kernels {
enum class Combine : std::uint8_t { prod, max, min };
}

/// to[i] = mask[i] ? a[i] : b[i]
TAPIR_CPU_KERNEL(choose_run,
                 void(unsigned size, std::int64_t n, const std::uint8_t* mask, std::int64_t mask_step, const void* a, std::int64_t a_step,
                      const void* b, std::int64_t b_step, void* to))

// These handle elements at computed positions: number i is at index[i] * stride + i * step.

/// to[i] = from[position(i)]
TAPIR_CPU_KERNEL(gather_run,
                 void(unsigned size, std::int64_t n, void* to, const void* from, const std::int64_t* index, std::int64_t stride, std::int64_t step))
/// to[position(i)] = from[i], in order: the last of equal positions wins.
TAPIR_CPU_KERNEL(scatter_run,
                 void(unsigned size, std::int64_t n, void* to, const std::int64_t* index, std::int64_t stride, std::int64_t step, const void* from,
                      std::int64_t from_step))
/// Reverts scatter_run: from the last to the first, to[i] = from[position(i)], which becomes 0. So the last of
/// equal positions gets the value, the others 0.
TAPIR_CPU_KERNEL(take_run,
                 void(unsigned size, std::int64_t n, void* to, void* from, const std::int64_t* index, std::int64_t stride, std::int64_t step))
/// to[position(i)] += from[i], in order.
TAPIR_CPU_KERNEL(scatter_add_run,
                 void(tapir::kernels::Compute type, std::int64_t n, void* to, const std::int64_t* index, std::int64_t stride, std::int64_t step,
                      const void* from, std::int64_t from_step))
/// to[position(i)] = its product with from[i], or the larger or smaller of both, where nan is both.
TAPIR_CPU_KERNEL(scatter_combine_run,
                 void(tapir::kernels::Combine how, tapir::kernels::Compute type, std::int64_t n, void* to, const std::int64_t* index,
                      std::int64_t stride, std::int64_t step, const void* from, std::int64_t from_step))
/// to[i] += from[i]
TAPIR_CPU_KERNEL(add_run,
                 void(tapir::kernels::Compute type, std::int64_t n, void* to, std::int64_t to_step, const void* from, std::int64_t from_step))
/// Finds the smallest and the largest of n > 0 indices.
TAPIR_CPU_KERNEL(index_range, void(const std::int64_t* index, std::int64_t n, std::int64_t* low, std::int64_t* high))

namespace tapir::kernels {

/// Indices as a GPU kernel gets them.
struct IndexSource {
    const void* data;            // contiguous
    DType dtype = DType::int64;  // or int32
    // True if they are int64, not negative and in range. If not, the kernel that reads them checks them, and writes
    // the corrected ones to `checked`; see Note [Errors of a stream] in cuda/context.h.
    bool is_checked = true;
    std::int64_t* checked = nullptr;
    int dim = 0;           // they index this dimension,
    Shape shape{};         // of a tensor of this shape
    bool from_end = true;  // negative ones count from the end; else they are out of range
};

/// One index for each element, as in gather. Element number i of the index refers to x's element at
/// index[i] * stride + (its coordinates) . x_strides, and of the other tensor's at (its coordinates) . other_strides.
struct ElementArgs {
    unsigned size;       // of an element, in bytes
    std::int64_t numel;  // of the index; not 0
    int rank = 0;
    std::int64_t sizes[8], x_strides[8], other_strides[8];  // of the index; x's is 0 in the indexed dimension
    std::int64_t stride;
    std::int64_t extent;  // number of elements of x's memory, from the first to the last
    void* x;
    void* other;  // null: the number
    std::uint64_t number = 0;
    IndexSource index;
};

/// A region (see index_impl.h). Its elements, in row-major order, are those of `other`; the one at coordinates c is x's
/// at c . strides + positions[c[place]] * scale.
struct RegionArgs {
    unsigned size;
    std::int64_t numel;  // not 0
    int rank = 0;
    std::int64_t sizes[8], strides[8];
    int place = -1;               // the dimension of the positions, whose stride is 0; -1: there is one position
    std::int64_t count, scale;    // positions
    bool distinct;                // no two of them are equal
    void* x;                      // the region's offset included
    void* other;                  // null: the number
    std::int64_t other_step = 1;  // 0: one element for all
    std::uint64_t number = 0;
    IndexSource positions;
};

/// Adds rows to the rows of a matrix: x[index[r]] += values[r], in several parts.
struct AddRowsArgs {
    static constexpr int kMaxParts = 32;
    DType dtype;
    void* x;
    std::int64_t rows, width;  // x's; negative indices count from the end
    int parts = 0;
    struct Part {
        const std::int64_t* index;
        const void* values;  // contiguous
        std::int64_t rows;
    } part[kMaxParts];
};

/// Adds to ranges of a tensor's elements, which do not overlap: x[start + i] += from[i].
struct AddPartsArgs {
    static constexpr int kMaxParts = 64;
    DType dtype;
    void* x;
    bool writes;  // x[start + i] = from[i] instead
    int parts = 0;
    struct Part {
        const void* from;
        std::int64_t start, numel;
    } part[kMaxParts];
};

/// out = mask ? a : b, broadcast. Strides of the result, the mask, a and b.
struct ChooseArgs {
    unsigned size;
    std::int64_t numel;  // not 0
    int rank;
    std::int64_t sizes[8], strides[4][8];
    void* out;
    const std::uint8_t* mask;
    const void* value[2];  // null: the number
    std::uint64_t number[2];
};

/// Finds the positions where a contiguous mask holds. It works in parts, each with a place where its positions begin.
struct MaskArgs {
    const std::uint8_t* mask;
    std::int64_t numel;    // not 0
    std::int64_t* starts;  // mask_parts(numel), then the number of positions
    std::int64_t* out;
    int rank;
    std::int64_t sizes[8], strides[8];
    bool coordinates;  // out gets `rank` numbers for each; else one, the sum of coordinates * strides
};

/// Joins contiguous inputs into a contiguous result: each input is `outer` runs, and the result has them side by side. In
/// bytes.
struct JoinArgs {
    static constexpr int kMaxParts = 64;
    void* out;
    std::int64_t outer, row;  // of the result
    int parts = 0;
    struct Part {
        const void* from;
        std::int64_t start, run;
    } part[kMaxParts];
};

/// Keeps the part of matrices on one side of a diagonal; the rest becomes 0. Row r keeps its columns below r + first (lower),
/// or from there on.
struct TriangleArgs {
    unsigned size;
    std::int64_t rows, columns;  // of a matrix
    std::int64_t first;
    bool lower;
    const void* x;
    void* out;
};

}  // namespace tapir::kernels

/// index.checked = the indices, as checked_index() gives them.
TAPIR_GPU_KERNEL(check_index, void(const tapir::kernels::IndexSource& index, std::int64_t count))

/// other = x at the indices; contiguous. The index may be unchecked.
TAPIR_GPU_KERNEL(gather, void(const tapir::kernels::ElementArgs& args))
/// x at the indices = other. The last of equal positions wins.
TAPIR_GPU_KERNEL(scatter, void(const tapir::kernels::ElementArgs& args))
/// Undoes scatter: other = x at the indices, 0 but for the last of equal ones; x becomes 0 there. other is contiguous.
TAPIR_GPU_KERNEL(take, void(const tapir::kernels::ElementArgs& args))
/// x at the indices += other.
TAPIR_GPU_KERNEL(scatter_add, void(const tapir::kernels::ElementArgs& args, tapir::DType dtype))
/// x at the indices combined with other; int32, int64, float32 or float64.
TAPIR_GPU_KERNEL(scatter_combine, void(const tapir::kernels::ElementArgs& args, tapir::kernels::Combine how, tapir::DType dtype))

/// other = the region. The positions may be unchecked.
TAPIR_GPU_KERNEL(read_region, void(const tapir::kernels::RegionArgs& args))
/// The region = other. The last of equal positions wins.
TAPIR_GPU_KERNEL(write_region, void(const tapir::kernels::RegionArgs& args))
/// Undoes write_region: other = the region, 0 but for the last of equal positions, and the region becomes 0.
TAPIR_GPU_KERNEL(take_region, void(const tapir::kernels::RegionArgs& args))
/// The region += other.
TAPIR_GPU_KERNEL(add_region, void(const tapir::kernels::RegionArgs& args, tapir::DType dtype))
TAPIR_GPU_KERNEL(add_rows, void(const tapir::kernels::AddRowsArgs& args))

TAPIR_GPU_KERNEL(choose, void(const tapir::kernels::ChooseArgs& args))
TAPIR_GPU_KERNEL(mask_parts, std::int64_t(std::int64_t numel))
/// Sets the starts.
TAPIR_GPU_KERNEL(count_mask, void(const tapir::kernels::MaskArgs& args))
/// Writes the positions, in order.
TAPIR_GPU_KERNEL(mask_positions, void(const tapir::kernels::MaskArgs& args))
/// Rows are counted over all matrices.
TAPIR_KERNEL(triangle, const tapir::kernels::TriangleArgs& args)

TAPIR_GPU_KERNEL(join, void(const tapir::kernels::JoinArgs& args))
TAPIR_GPU_KERNEL(add_parts, void(const tapir::kernels::AddPartsArgs& args))
/// out: int64 (count, classes), 1 at each index's class. The index may be unchecked.
TAPIR_GPU_KERNEL(one_hot, void(const tapir::kernels::IndexSource& index, std::int64_t count, std::int64_t classes, std::int64_t* out))
