// Makes tensors inside the library: new ones, views, and the checks that come first.
#pragma once

#include "tapir/core/allocator.h"
#include "tapir/core/tensor.h"
#include "tapir/core/thread_impl.h"

namespace tapir::detail {

/// Returns the bytes of a tensor; -1 if no memory can hold them.
/// The sizes other than 0 must fit even if another size is 0: a sum along that
/// dimension has them.
std::int64_t bytes_of(const Shape& shape, std::size_t itemsize) noexcept;
/// Returns the number of elements. Throws ValueError for a negative size, OutOfMemory.
std::int64_t checked_numel(const Shape& shape, DType dtype, const Loc& loc);

/// Makes a contiguous tensor with uninitialized elements. Throws OutOfMemory.
Tensor make_empty(const Shape& shape, DType dtype, Device device, const Loc& loc);
/// Overload for sizes that were checked.
Tensor make_empty(const std::int64_t* sizes, int rank, std::int64_t numel, DType dtype, Device device, const Loc& loc);
/// Makes an uninitialized contiguous tensor of x's shape and device.
inline Tensor make_empty_like(const TensorImpl* x, DType dtype, const Loc& loc) {
    return make_empty(x->sizes, x->rank, x->numel, dtype, x->device, loc);
}
inline Tensor make_empty_like(const TensorImpl* x, DType dtype, const Loc& loc, Device device) {
    return make_empty(x->sizes, x->rank, x->numel, dtype, device, loc);
}
/// Makes an uninitialized tensor (batch, channels, spatial...) with the channels side by side in memory: if it has such dimensions,
/// each image is an array of pixels that are arrays of channels.
Tensor make_channels_last(const Shape& shape, DType dtype, Device device, const Loc& loc);
/// True if a tensor of 3 to 5 dimensions has this layout. With sizes of 1 some contiguous tensors have it, too.
bool is_channels_last(const TensorImpl* x) noexcept;
/// Makes an uninitialized tensor of x's shape in page-locked CPU memory.
Tensor make_pinned_like(const TensorImpl* x, const Loc& loc);
/// Makes a tensor around memory that somebody else owns. If not null, release(storage) is called at the end.
Tensor make_around(void* data, const Shape& shape, const Shape& strides, DType dtype, Device device, std::size_t nbytes, void (*release)(Storage*),
                   void* context, const Loc& loc);

/// Makes another view of x's storage, starting `offset` elements after x's first; not recorded.
Tensor make_view(const TensorImpl* x, const Shape& sizes, const Shape& strides, std::int64_t offset);
/// Overload for arrays; strides may be null for row-major.
Tensor make_view(const TensorImpl* x, int rank, const std::int64_t* sizes, const std::int64_t* strides, std::int64_t offset);
/// Returns another handle of the same tensor.
inline Tensor handle_of(TensorImpl* impl) noexcept {
    add_ref(impl->refs);
    return Tensor::adopt(impl);
}
/// Makes a view of exactly x's geometry.
Tensor alias(const TensorImpl* x);

bool compute_contiguous(const std::int64_t* sizes, const std::int64_t* strides, int rank) noexcept;

/// Throws ValueError "op: undefined tensor".
[[noreturn]] void fail_undefined(const char* op, const Loc& loc);
/// Every op calls it first for each of its tensors. On a device, later messages on this thread name `op`.
inline void begin_op(const char* op, const TensorImpl* operand, const Loc& loc) {
    if (operand->device.type != DeviceType::cpu || watching_ops) [[unlikely]]
        begin_watched_op(op, operand, loc);
}
void begin_watched_op(const char* op, Device device, const Loc& loc);
/// Overload for ops without operands, which make a tensor on this device.
inline void begin_op(const char* op, Device device, const Loc& loc) {
    if (device.type != DeviceType::cpu || watching_ops) [[unlikely]]
        begin_watched_op(op, device, loc);
}
/// Where a row and its storage lie, whose Storage::block is 0.
struct RowPlace {
    TensorImpl tensor;
    Storage storage;
};
static_assert(sizeof(RowPlace) == sizeof(TensorImpl) + sizeof(Storage));
/// Returns row i of a contiguous block, (rows, ...), of `numel` elements: a tensor in its memory with a storage of its own. Both lie in `place`, which
/// stays until release(storage) is called, the last use of it. `context` names the block's storage.
Tensor make_row(RowPlace& place, const TensorImpl* block, std::int64_t i, std::int64_t numel, void (*release)(Storage*),
                StorageWhole* context) noexcept;

/// Like begin_op(), but throws ValueError for an undefined tensor.
inline void check_defined(const In& x, const char* op) {
    if (!x.tensor.defined()) [[unlikely]]
        fail_undefined(op, x.loc);
    begin_op(op, x.tensor.impl(), x.loc);
}
/// Throws ValueError if only this temporary sees its elements, so that a write to them would be lost.
void check_seen(const char* op, const Tensor& temporary, const Loc& loc);
/// Throws DeviceError if they are on different devices.
[[noreturn]] void fail_devices(const char* op, const Tensor& a, const Tensor& b, const Loc& loc);
inline void check_same_device(const char* op, const Tensor& a, const Tensor& b, const Loc& loc) {
    if (a.device() != b.device()) [[unlikely]]
        fail_devices(op, a, b, loc);
}

/// Wraps a dimension number into [0, rank). Throws IndexError. 0-d tensors take 0 and -1.
[[noreturn]] void fail_dim(std::int64_t dim, int rank, const char* op, const Loc& loc);
inline int wrap_dim(std::int64_t dim, int rank, const char* op, const Loc& loc) {
    const int range = rank > 0 ? rank : 1;
    if (dim < -range || dim >= range) [[unlikely]]
        fail_dim(dim, rank, op, loc);
    return static_cast<int>(dim < 0 ? dim + range : dim);
}

/// t takes over the elements, dtype, device and strides of `made`, a new tensor of its shape, and stays the same tensor for
/// all who hold it. Views of t keep their old elements. The storage's version goes on.
void become(const Tensor& t, const Tensor& made, const Loc& loc) noexcept;

/// Read or write one element through a double or an int64.
double load_double(DType dtype, const void* element) noexcept;
std::int64_t load_int(DType dtype, const void* element) noexcept;
void store(DType dtype, void* element, Scalar value) noexcept;

/// Frees impl's block; called by Tensor's destructor when the last handle goes.
void destroy(TensorImpl* impl) noexcept;

}  // namespace tapir::detail
