// Shared code of the indexing ops: checked indices, and regions of a tensor.
#pragma once

#include "tapir/autograd/backward_impl.h"
#include "tapir/core/device_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/ops/index/indexing_kernels.h"
#include "tapir/ops/on_stream_impl.h"

namespace tapir {

/// Says how indices below 0 are treated.
enum class Negative : std::uint8_t { from_end, refused };

/// Returns the index tensor as int64, contiguous, and without negative numbers: the tensor itself if it is so already. Throws
/// DTypeError unless it is int64 or int32, IndexError "op: index 7 is out of range for dimension 1 of shape (3, 4)".
Tensor checked_index(const char* op, const Tensor& index, const Shape& shape, int dim, const Loc& loc, Negative negative = Negative::from_end);

/// Overload for an op whose kernel reads each index: on a CUDA device that kernel checks them (one launch less), and it
/// writes `checked`, which must not be read before that.
struct PickedIndex {
    Tensor checked;
    Tensor given;  // contiguous; undefined if `checked` has been checked
    int dim = 0;
    Shape shape;
    Negative negative = Negative::from_end;

    /// Makes the source for a kernel on the GPU.
    kernels::IndexSource source() const;
};
PickedIndex picked_index(const char* op, const Tensor& index, const Shape& shape, int dim, const Loc& loc, Negative negative = Negative::from_end);

namespace detail {

/// Returns the row of a padding_idx, which counts from the end below 0. Throws IndexError.
inline std::int64_t padding_row(const char* op, std::int64_t index, std::int64_t rows, const Loc& loc) {
    if (index < -rows || index >= rows) {
        fail<IndexError>(loc, "{}: padding_idx {} is out of range for {} rows", op, index, rows);
    }
    return index < 0 ? index + rows : index;
}

}  // namespace detail

/// If the record is of a group in batch() whose rows are to be told apart, and these share input i, which is needed, their number; else 0.
inline std::int64_t rows_that_share(const Backward& b, int i) {
    const std::int64_t rows = b.rows_to_tell_apart();
    if (rows == 0) return 0;
    const Log& log = b.walk().log;
    const std::uint32_t value = b.record().inputs()[i];
    const Log::ItemSpan* const maker = log.records[value]->flags & Record::kLeaf ? nullptr : log.span_of(value);
    const bool is_block = maker && log.item_of(*maker, value) == Log::kNoItem;
    return is_block ? 0 : rows;
}

/// The part of a tensor that indexing picks. Its shape is `sizes` with the positions' shape inserted before dimension `at`;
/// the element there is at offset + (its place in `sizes`) . strides + position * scale. Without positions it is a
/// view.
struct Region {
    Shape sizes, strides;
    std::int64_t offset = 0;
    int at = 0;
    std::int64_t scale = 1;
    bool distinct = false;  // no two positions are equal

    Shape shape(const Shape& positions) const;
};

/// out = x[region], contiguous. `positions`: int64, contiguous; times `scale` in elements of x's memory.
void read_region(const Tensor& out, const TensorImpl* x, const Region& region, const Tensor& positions);
void read_region(const Tensor& out, const TensorImpl* x, const Region& region, const PickedIndex& positions);
/// x[region] = value (of the region's shape and x's dtype, contiguous; or one element, which may be on the CPU). The
/// last of equal positions wins.
void write_region(const TensorImpl* x, const Region& region, const Tensor& positions, const Tensor& value);
/// Undoes write_region: out = x[region], zero but for the last of equal positions, and x[region] = 0.
void take_region(const Tensor& out, const TensorImpl* x, const Region& region, const Tensor& positions);
/// x[region] += value (of the region's shape, or one element). x is contiguous.
void add_region(const TensorImpl* x, const Region& region, const Tensor& positions, const Tensor& value);

/// Checks a region from a graph, which may state anything. Throws IndexError if it reaches beyond `numel` elements, and if the positions
/// (undefined: none) are not int64 and contiguous.
void check_region(const char* op, std::int64_t numel, const Region& region, const Tensor& positions);

/// Returns the positions where the mask (bool) holds, as sum of coordinates * strides: int64, 1-d.
Tensor mask_positions(const TensorImpl* mask, const Shape& strides, const Loc& loc);

/// Makes a number a 0-d tensor of this dtype, on the CPU. Throws DTypeError for a fraction that would have to become an
/// integer.
Tensor number_as(const char* op, Scalar value, DType dtype, const Loc& loc);
/// Lets a 0-d tensor of the CPU stand beside tensors of any device, as a number: returns t itself, or moves it there if its gradient
/// is wanted. Throws DeviceError for other tensors that are not on the device of `other`.
Tensor beside(const char* op, const Tensor& t, const Tensor& other, const Loc& loc);
/// Puts an index, which the op's kernels read, on the device of `other` without a copy to wait for. Returns others as
/// they are.
Tensor index_beside(const Tensor& index, const Tensor& other, const Loc& loc);
/// Returns the element of such a number, of 1 to 8 bytes.
std::uint64_t number_bits(const TensorImpl* number);

}  // namespace tapir
