// Tensor: an 8-byte handle to an n-dimensional array of one element type. Copying a handle shares the array, as in
// PyTorch; clone() copies the elements. Ops are free functions (tapir/ops/*.h) and, most of them, methods too.
//
//     Tensor a = tensor({{1.0, 2.0}, {3.0, 4.0}});
//     Tensor b = (a * 2 + 1)[0];
//     float v = b[1].item<float>();       // 5
//
// Every method that can fail takes the caller's line as a last, defaulted argument and names it in its errors.
//
// TAPIR_RUNTIME_ONLY is defined in programs that link Tapir::runtime (tapir/runtime.h). They see only the methods that it provides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>
#include <vector>

#include "tapir/core/arguments.h"
#include "tapir/core/device.h"
#include "tapir/core/dtype.h"
#include "tapir/core/error.h"
#include "tapir/core/index.h"
#include "tapir/core/shape.h"
#include "tapir/core/std_function.h"
#include "tapir/core/storage.h"

namespace tapir {

struct AutogradMeta;  // gradient, hooks, name of a leaf: autograd/meta_impl.h
namespace detail {
void destroy_meta(AutogradMeta* meta) noexcept;
}
struct HookState;
struct In;
struct Index;
struct NumberIn;
struct ValuesIndices;  // ops/reduce.h
struct UniqueResult;
class Generator;

/// Tag that asks Tensor::data() for the memory in any layout: x.data<float>(strided).
struct StridedType {};
inline constexpr StridedType strided;

/// Identifies the record that made a tensor: the tape's number (0: none; numbers repeat after 2^31 tapes) and the record's index.
/// kElsewhere: no record made it, though it depends on a tensor that requires a gradient; see note_elsewhere() in autograd/elsewhere.cpp.
struct NodeRef {
    static constexpr std::uint32_t kElsewhere = 0x80000000u;
    std::uint32_t tape = 0;
    std::uint32_t index = 0;
};

/// The last write to a storage that a tape has recorded: see Note [Views of what is written] in autograd/log.cpp.
struct RecordedWrite {
    std::uint32_t tape = 0;     // as in NodeRef
    std::uint32_t version = 0;  // the storage's version after the write
};

/// The array itself. A small one is a single block: this, its Storage, and the elements.
struct TensorImpl {
    enum Flag : std::uint8_t {
        kContiguous = 1,    // row-major without gaps
        kRequiresGrad = 2,  // a leaf whose gradient is wanted
        kView = 4,          // made by a view op, and not written to on a tape as the storage's only owner since
        kOwnBlock = 8,      // its block also holds its storage, and is freed with that
        kMoved = 16,        // like kOwnBlock, but it has left that storage for another: see detail::become()
        kConverted = 32,    // to() made it from a leaf that requires a gradient, and requires_grad_() was not called since
    };

    std::uint32_t refs = 1;
    DType dtype;
    std::uint8_t rank = 0;
    std::uint8_t flags = 0;
    std::uint8_t spare = 0;
    Storage* storage = nullptr;
    std::byte* data = nullptr;  // the first element
    std::int64_t numel = 0;
    NodeRef node;
    std::uint32_t node_version = 0;  // the storage's version when `node` was set; without a node, when this was made
    Device device;
    std::uint16_t trace = 0;  // number of the trace it was made in; 0: made in none, or it is a number that was passed to an op
    AutogradMeta* meta = nullptr;
    RecordedWrite write;  // to the storage in this tensor's block, whichever tensor uses that storage by now
    std::int64_t sizes[kMaxRank];
    std::int64_t strides[kMaxRank];  // in elements

    bool is_contiguous() const noexcept { return flags & kContiguous; }
};
static_assert(sizeof(TensorImpl) == 192, "three cache lines; with its Storage four");

namespace detail {
void destroy(TensorImpl* impl) noexcept;

/// A storage lies right behind the tensor that it was made with. That tensor's memory stays valid as long as the storage does.
inline RecordedWrite& recorded_write(const Storage* storage) noexcept {
    return (reinterpret_cast<TensorImpl*>(const_cast<Storage*>(storage)) - 1)->write;
}
}  // namespace detail

/// Returned by register_hook(); removes the hook. Copies refer to the same hook. Destroying a handle does not remove the hook.
class RemovableHandle {
 public:
    RemovableHandle() noexcept = default;
    RemovableHandle(const RemovableHandle& other) noexcept;
    RemovableHandle(RemovableHandle&& other) noexcept : state_(other.state_) { other.state_ = nullptr; }
    RemovableHandle& operator=(RemovableHandle other) noexcept {
        HookState* mine = state_;
        state_ = other.state_;
        other.state_ = mine;
        return *this;
    }
    ~RemovableHandle();
    /// Removes the hook and releases what it holds. A second call does nothing. Must not be called while another thread's
    /// backward may call the hook.
    void remove() noexcept;

 private:
    friend class Tensor;
    explicit RemovableHandle(HookState* state) noexcept : state_(state) {}
    HookState* state_ = nullptr;
};

class Tensor {
 public:
    /// Makes an undefined tensor: defined() is false, and ops refuse it.
    Tensor() noexcept = default;
    Tensor(const Tensor& other) noexcept : impl_(other.impl_) {
        if (impl_) detail::add_ref(impl_->refs);
    }
    Tensor(Tensor&& other) noexcept : impl_(other.impl_) { other.impl_ = nullptr; }
    Tensor& operator=(const Tensor& other) & noexcept {
        Tensor(other).swap(*this);
        return *this;
    }
    Tensor& operator=(Tensor&& other) & noexcept {
        Tensor(static_cast<Tensor&&>(other)).swap(*this);
        return *this;
    }
    /// x[0] = y and x[Slice(1, 3)] = 0 write to the elements of a view that an expression returns (copy_(), fill_()). Assigning to a
    /// variable makes it refer to the other tensor. Throws ValueError for a copy with no other owner, such as x[mask]: nobody would see
    /// the write. Use x.index_put_({mask}, y) for that. Only the copy itself is noticed: x[mask][0] = y and x.to(float64)[0] = y write
    /// to views of copies that last as long as the statement, so the write is lost.
    void operator=(In value) &&;
    void operator=(NumberIn value) &&;
    ~Tensor() {
        if (impl_ && detail::drop_ref(impl_->refs)) detail::destroy(impl_);
    }
    void swap(Tensor& other) noexcept {
        TensorImpl* mine = impl_;
        impl_ = other.impl_;
        other.impl_ = mine;
    }

    // --- What it is -------------------------------------------------------------------------------------------------

    bool defined() const noexcept { return impl_ != nullptr; }
    // All other methods throw ValueError for an undefined tensor.

    /// Returns the number of dimensions.
    int dim(Loc loc = Loc::current()) const { return checked(loc).impl_->rank; }
    int ndim(Loc loc = Loc::current()) const { return dim(loc); }
    Shape shape(Loc loc = Loc::current()) const { return {checked(loc).impl_->sizes, impl_->rank}; }
    Shape sizes(Loc loc = Loc::current()) const { return shape(loc); }
    /// Returns the size of dimension d, which may be negative. Throws IndexError.
    std::int64_t size(Dim d, Loc loc = Loc::current()) const;
    /// Returns the strides in elements.
    Shape strides(Loc loc = Loc::current()) const { return {checked(loc).impl_->strides, impl_->rank}; }
    /// Returns the stride of dimension d, which may be negative. Throws IndexError.
    std::int64_t stride(Dim d, Loc loc = Loc::current()) const;
    std::int64_t numel(Loc loc = Loc::current()) const { return checked(loc).impl_->numel; }
    DType dtype(Loc loc = Loc::current()) const { return checked(loc).impl_->dtype; }
    Device device(Loc loc = Loc::current()) const { return checked(loc).impl_->device; }
    /// True for float16, bfloat16, float32, float64.
    bool is_floating_point(Loc loc = Loc::current()) const { return is_floating(checked(loc).impl_->dtype); }
    /// Returns the bytes of one element.
    std::size_t element_size(Loc loc = Loc::current()) const { return itemsize(checked(loc).impl_->dtype); }
    std::size_t nbytes(Loc loc = Loc::current()) const { return static_cast<std::size_t>(numel(loc)) * itemsize(impl_->dtype); }
    /// True if the elements lie in row-major order, without gaps.
    bool is_contiguous(Loc loc = Loc::current()) const { return checked(loc).impl_->is_contiguous(); }
    /// True if both are the same array, not only equal in value.
    bool is_same(const Tensor& other) const noexcept { return impl_ == other.impl_; }
    /// True if both use the same storage.
    bool shares_storage(const Tensor& other) const noexcept { return impl_ && other.impl_ && impl_->storage == other.impl_->storage; }
    TensorImpl* impl() const noexcept { return impl_; }

    // --- Reading ----------------------------------------------------------------------------------------------------

    /// Returns the value of a tensor with exactly one element, converted to T. Fractions are cut off for integers; for bool it is value != 0.
    /// Throws ShapeError for any other tensor, ValueError for a value that T cannot hold (for integers nan too).
    template <class T = double>
    T item(Loc loc = Loc::current()) const {
        if constexpr (std::is_same_v<T, bool>) {
            return item_double(sizeof(double), loc) != 0;
        } else if constexpr (std::is_integral_v<T>) {
            return static_cast<T>(item_int(sizeof(T), std::is_signed_v<T>, loc));
        } else {
            return static_cast<T>(item_double(sizeof(T), loc));
        }
    }
    /// Returns one element, bounds-checked: x.at<float>({1, 2}). T must match the dtype (DTypeError). Throws IndexError outside.
    template <class T>
    T at(const Shape& position, Loc loc = Loc::current()) const {
        T value;
        read_element(position, dtype_of<T>, &value, loc);
        return value;
    }
    /// Returns the address of the first element, in the memory of the tensor's device; the others follow in row-major order. T must match
    /// the dtype (DTypeError). Throws ValueError for a tensor that is not contiguous, such as a transposed one or a convolution's result:
    /// x.contiguous() puts the elements in order. The tape's checks do not see writes through this pointer.
    template <class T>
    T* data(Loc loc = Loc::current()) const {
        return static_cast<T*>(checked_data(dtype_of<T>, /*any_layout=*/false, loc));
    }
    /// x.data<float>(strided): overload for tensors of any layout. Element (i, j, ...) is at i * stride(0) + j * stride(1) + ...
    template <class T>
    T* data(StridedType, Loc loc = Loc::current()) const {
        return static_cast<T*>(checked_data(dtype_of<T>, /*any_layout=*/true, loc));
    }
    /// float(x) does not compile: a tensor is not a number, so the value must be asked for by name.
    template <class Number>
        requires(std::is_arithmetic_v<Number> && !std::is_same_v<Number, bool>)
    explicit operator Number() const {
        static_assert(!std::is_same_v<Number, Number>, "a Tensor is not a number: x.item<float>() reads the value of one element");
        return {};
    }
    void* raw_data() const noexcept { return impl_ ? impl_->data : nullptr; }
    /// Returns all elements in row-major order, converted to T. Unlike item() it does not check that T can hold them. Throws
    /// OutOfMemory if they do not fit into memory.
    template <class T>
    std::vector<T> to_vector(Loc loc = Loc::current()) const {
        const CallerScope caller(loc);
        std::vector<T> values(count_of(sizeof(T), loc));
        if constexpr (std::is_same_v<T, bool>) {
            const Tensor bytes = to(uint8, loc).to(tapir::cpu, loc).contiguous(loc);
            for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<unsigned char*>(bytes.raw_data())[i];
        } else {
            copy_out(dtype_of<T>, values.data(), loc);
        }
        return values;
    }
    /// Prints in NumPy's layout; see set_print_options().
    std::string str() const;

    /// Iterates over dimension 0: `for (Tensor row : x)`.
    class Iterator;
    Iterator begin(Loc loc = Loc::current()) const;
    Iterator end(Loc loc = Loc::current()) const;

    // --- Views: the result shares the elements ------------------------------------------------------------------------

    /// x[i], x[Slice(1, 3)], x[None], x[mask]: integers, slices, None and Ellipsis return views; bool and integer tensors
    /// return copies. Throws IndexError.
    Tensor operator[](const Index& index) const;
    /// x.index({0, Slice(), Ellipsis, None, mask}) is NumPy's x[0, :, ..., None, mask].
    Tensor index(std::initializer_list<Index> indices, Loc loc = Loc::current()) const;
    /// Overload for an index that is made at run time: std::vector<Index> v(x.dim(), Slice()); v[d] = i; x.index(v).
    Tensor index(const std::vector<Index>& indices, Loc loc = Loc::current()) const;
    /// Writes `value` (broadcast) where index(indices) would read. With `accumulate` it adds instead, once for each time a position occurs.
    Tensor& index_put_(std::initializer_list<Index> indices, const Tensor& value, Flag accumulate = false, Loc loc = Loc::current());
    Tensor& index_put_(std::initializer_list<Index> indices, Scalar value, Flag accumulate = false, Loc loc = Loc::current());
    Tensor& index_put_(const std::vector<Index>& indices, const Tensor& value, Flag accumulate = false, Loc loc = Loc::current());
    Tensor& index_put_(const std::vector<Index>& indices, Scalar value, Flag accumulate = false, Loc loc = Loc::current());
#ifndef TAPIR_RUNTIME_ONLY
    /// Like index_put_(), but writes to a copy.
    Tensor index_put(std::initializer_list<Index> indices, const Tensor& value, Flag accumulate = false, Loc loc = Loc::current()) const;
    Tensor index_put(std::initializer_list<Index> indices, Scalar value, Flag accumulate = false, Loc loc = Loc::current()) const;
    Tensor index_put(const std::vector<Index>& indices, const Tensor& value, Flag accumulate = false, Loc loc = Loc::current()) const;
    Tensor index_put(const std::vector<Index>& indices, Scalar value, Flag accumulate = false, Loc loc = Loc::current()) const;
#endif

    /// Returns the same elements in another shape; one size may be -1. This is a view() where possible, else a copy.
    Tensor reshape(const Shape& shape, Loc loc = Loc::current()) const;
    template <class... I>
        requires SizesOnly<I...>
    Tensor reshape(IndexArg first, IndexArg second, I... rest) const {
        return reshape(Shape(first.value, second.value, rest...), first.loc);
    }
    Tensor reshape_as(const Tensor& other, Loc loc = Loc::current()) const { return reshape(other.shape(loc), loc); }
    Tensor transpose(Dim dim0, Dim dim1, Loc loc = Loc::current()) const;
    Tensor swapaxes(Dim dim0, Dim dim1, Loc loc = Loc::current()) const { return transpose(dim0, dim1, loc); }
    /// Transposes a matrix; takes at most 2 dimensions.
    Tensor t(Loc loc = Loc::current()) const;
    Tensor T(Loc loc = Loc::current()) const { return t(loc); }
    Tensor permute(const Dims& dims, Loc loc = Loc::current()) const;
    template <class... I>
        requires SizesOnly<I...>
    Tensor permute(IndexArg first, IndexArg second, I... rest) const {
        return permute(Shape(first.value, second.value, rest...), first.loc);
    }
    Tensor squeeze(Loc loc = Loc::current()) const;
    Tensor squeeze(Dim dim, Loc loc = Loc::current()) const;
    Tensor unsqueeze(Dim dim, Loc loc = Loc::current()) const;
    Tensor narrow(Dim dim, std::int64_t start, std::int64_t length, Loc loc = Loc::current()) const;
    Tensor select(Dim dim, std::int64_t index, Loc loc = Loc::current()) const;
#ifndef TAPIR_RUNTIME_ONLY
    /// Returns the same elements in another shape; one size may be -1. Throws ShapeError when the strides do not allow it.
    Tensor view(const Shape& shape, Loc loc = Loc::current()) const;
    // Overloads for bare integers, here and below, as PyTorch's x.view(2, 3).
    template <class... I>
        requires SizesOnly<I...>
    Tensor view(IndexArg first, IndexArg second, I... rest) const {
        return view(Shape(first.value, second.value, rest...), first.loc);
    }
    Tensor view_as(const Tensor& other, Loc loc = Loc::current()) const { return view(other.shape(loc), loc); }
    Tensor flatten(Dim start_dim = 0, Dim end_dim = -1, Loc loc = Loc::current()) const;
    /// Returns all elements in one dimension: flatten().
    Tensor ravel(Loc loc = Loc::current()) const { return flatten(0, -1, loc); }
    Tensor unflatten(Dim dim, const Shape& sizes, Loc loc = Loc::current()) const;
    Tensor movedim(const Dims& source, const Dims& destination, Loc loc = Loc::current()) const;
    /// Repeats dimensions of size 1 without copying; -1 keeps a size.
    Tensor expand(const Shape& shape, Loc loc = Loc::current()) const;
    template <class... I>
        requires SizesOnly<I...>
    Tensor expand(IndexArg first, IndexArg second, I... rest) const {
        return expand(Shape(first.value, second.value, rest...), first.loc);
    }
    Tensor expand_as(const Tensor& other, Loc loc = Loc::current()) const { return expand(other.shape(loc), loc); }
    Tensor broadcast_to(const Shape& shape, Loc loc = Loc::current()) const { return expand(shape, loc); }
    Tensor slice(Dim dim, Slice slice, Loc loc = Loc::current()) const;
    std::vector<Tensor> split(std::int64_t split_size, Dim dim = 0, Loc loc = Loc::current()) const;
    std::vector<Tensor> split(const std::vector<std::int64_t>& sizes, Dim dim = 0, Loc loc = Loc::current()) const;
    std::vector<Tensor> chunk(int chunks, Dim dim = 0, Loc loc = Loc::current()) const;
    std::vector<Tensor> unbind(Dim dim = 0, Loc loc = Loc::current()) const;
    Tensor diagonal(std::int64_t offset = 0, Dim dim1 = 0, Dim dim2 = 1, Loc loc = Loc::current()) const;
    /// Returns windows of `size` elements along dim, one every `step`: (..., n, ...) -> (..., (n - size) / step + 1, ..., size). Throws
    /// ShapeError if size is above n, ValueError if step is below 1.
    Tensor unfold(Dim dim, std::int64_t size, std::int64_t step, Loc loc = Loc::current()) const;
#endif

    // --- Copies -----------------------------------------------------------------------------------------------------

    /// Returns itself if it is contiguous already, else a contiguous copy.
    Tensor contiguous(Loc loc = Loc::current()) const;
    Tensor clone(Loc loc = Loc::current()) const;
    /// Returns itself if it has this dtype already, else a converted copy.
    Tensor to(DType dtype, Loc loc = Loc::current()) const;
    /// Moves to another device. Copies to and from a device are put on its current stream. A copy to the CPU is waited for, unless
    /// `non_blocking`: that returns a page-locked tensor, which is filled when the stream gets there. A page-locked source must
    /// not change until then.
    Tensor to(Device device, bool non_blocking = false, Loc loc = Loc::current()) const;
    Tensor to(Device device, Loc loc) const { return to(device, false, loc); }
    /// Changes both the device and the dtype.
    Tensor to(Device device, DType dtype, bool non_blocking = false, Loc loc = Loc::current()) const;
    /// Converts to the other's dtype and device.
    Tensor type_as(const Tensor& other, Loc loc = Loc::current()) const { return to(other.device(loc), other.dtype(loc), false, loc); }
    Tensor half(Loc loc = Loc::current()) const { return to(float16, loc); }  ///< to(float16)
    bool is_cuda(Loc loc = Loc::current()) const { return checked(loc).impl_->device.type == DeviceType::cuda; }
    Tensor cpu(Loc loc = Loc::current()) const { return to(tapir::cpu, false, loc); }                          ///< to(tapir::cpu)
    Tensor cuda(int index = 0, Loc loc = Loc::current()) const { return to(tapir::cuda(index), false, loc); }  ///< x.cuda(1)
#ifndef TAPIR_RUNTIME_ONLY
    /// Returns a copy in page-locked CPU memory, from which devices copy while the CPU goes on; itself if it is page-locked already.
    /// Throws DeviceError if there is no CUDA device.
    Tensor pin_memory(Loc loc = Loc::current()) const;
    bool is_pinned(Loc loc = Loc::current()) const;
    /// Tells the allocator that the elements are used on a stream. Ops do so themselves; call this for work that you put on a
    /// stream by hand.
    void record_stream(const class Stream& stream, Loc loc = Loc::current()) const;
    /// Make new tensors of this dtype, on this device.
    Tensor new_empty(const Shape& shape, Loc loc = Loc::current()) const;
    Tensor new_zeros(const Shape& shape, Loc loc = Loc::current()) const;
    Tensor new_ones(const Shape& shape, Loc loc = Loc::current()) const;
    Tensor new_full(const Shape& shape, Scalar value, Loc loc = Loc::current()) const;

    // Ops that rearrange, pick and write elements: tapir/ops/indexing.h and tapir/ops/arrange.h.
    Tensor repeat(const Shape& times, Loc loc = Loc::current()) const;
    template <class... I>
        requires SizesOnly<I...>
    Tensor repeat(IndexArg first, IndexArg second, I... rest) const {
        return repeat(Shape(first.value, second.value, rest...), first.loc);
    }
    Tensor tile(const Shape& times, Loc loc = Loc::current()) const;
    Tensor repeat_interleave(std::int64_t repeats, Loc loc = Loc::current()) const;
    Tensor repeat_interleave(std::int64_t repeats, Dim dim, Loc loc = Loc::current()) const;
    Tensor repeat_interleave(const Tensor& repeats, Loc loc = Loc::current()) const;
    Tensor repeat_interleave(const Tensor& repeats, Dim dim, Loc loc = Loc::current()) const;
    Tensor flip(const Dims& dims, Loc loc = Loc::current()) const;
    template <class... I>
        requires SizesOnly<I...>
    Tensor flip(IndexArg first, IndexArg second, I... rest) const {
        return flip(Shape(first.value, second.value, rest...), first.loc);
    }
    Tensor roll(const Shape& shifts, const Dims& dims = {}, Loc loc = Loc::current()) const;
    Tensor tril(std::int64_t diagonal = 0, Loc loc = Loc::current()) const;
    Tensor triu(std::int64_t diagonal = 0, Loc loc = Loc::current()) const;
    Tensor diag(std::int64_t offset = 0, Loc loc = Loc::current()) const;
    Tensor diff(int n = 1, Dim dim = -1, Loc loc = Loc::current()) const;
    Tensor gather(Dim dim, const Tensor& index, Loc loc = Loc::current()) const;
    Tensor scatter(Dim dim, const Tensor& index, const Tensor& src, Loc loc = Loc::current()) const;
    Tensor scatter(Dim dim, const Tensor& index, Scalar value, Loc loc = Loc::current()) const;
    Tensor scatter_add(Dim dim, const Tensor& index, const Tensor& src, Loc loc = Loc::current()) const;
    Tensor scatter_reduce(Dim dim, const Tensor& index, const Tensor& src, const char* reduce, Flag include_self = true,
                          Loc loc = Loc::current()) const;
    Tensor index_select(Dim dim, const Tensor& index, Loc loc = Loc::current()) const;
    Tensor index_add(Dim dim, const Tensor& index, const Tensor& src, Scalar alpha = 1, Loc loc = Loc::current()) const;
    Tensor index_copy(Dim dim, const Tensor& index, const Tensor& src, Loc loc = Loc::current()) const;
    Tensor index_fill(Dim dim, const Tensor& index, Scalar value, Loc loc = Loc::current()) const;
    Tensor index_fill(Dim dim, const Tensor& index, const Tensor& value, Loc loc = Loc::current()) const;
    Tensor masked_fill(const Tensor& mask, Scalar value, Loc loc = Loc::current()) const;
    Tensor masked_fill(const Tensor& mask, const Tensor& value, Loc loc = Loc::current()) const;
    Tensor masked_select(const Tensor& mask, Loc loc = Loc::current()) const;
    Tensor nonzero(Loc loc = Loc::current()) const;
    /// Picks this tensor's element where the condition holds, else the other's: tapir::where(condition, *this, other).
    Tensor where(const Tensor& condition, const Tensor& other, Loc loc = Loc::current()) const;
    Tensor where(const Tensor& condition, Scalar other, Loc loc = Loc::current()) const;

    // --- Gradients (autograd/) --------------------------------------------------------------------------------------

    /// Marks it as a leaf whose gradient backward() collects. Takes floating dtypes only (DTypeError); throws TapeError for the result
    /// of a recorded op.
    Tensor& requires_grad_(bool on = true, Loc loc = Loc::current());
    /// True for a leaf with requires_grad_(), and for a tensor recorded on a tape that is alive on this thread.
    bool requires_grad() const noexcept;
    bool is_leaf() const noexcept;
    /// Returns what backward() collected; undefined before that. A row-sparse gradient is made dense here.
    Tensor grad(Loc loc = Loc::current()) const;
    void set_grad(const Tensor& grad, Loc loc = Loc::current());
    /// Drops the gradient.
    void zero_grad();
    /// Adds the gradient of this scalar to the grad() of every leaf that it depends on. Throws TapeError.
    void backward(Loc loc = Loc::current()) const;
    /// Overload for a tensor of any shape; `gradient` is the gradient of what follows it and has this tensor's shape.
    void backward(const Tensor& gradient, Loc loc = Loc::current()) const;
    /// Returns the same elements, cut off from the tape: a constant, until a recorded op writes to them. Then it must be detached anew.
    /// Shares storage.
    Tensor detach(Loc loc = Loc::current()) const;
    /// Makes backward() add the gradient to grad() for the result of a recorded op, as it does for a leaf; hooks are applied first.
    /// Does nothing for a leaf. Throws TapeError for a tensor that is neither.
    void retain_grad(Loc loc = Loc::current()) const;
    /// Calls hook(gradient) when this tensor's gradient is complete, in backward() and gradient(). If the hook returns a tensor, that
    /// replaces the gradient (another shape throws ShapeError there, with the line of this call). Throws TapeError for a
    /// tensor that is neither a leaf nor recorded.
    template <class Hook>
    RemovableHandle register_hook(Hook hook, Loc loc = Loc::current()) const {
        static_assert(std::is_invocable_v<Hook&, const Tensor&>, "register_hook takes a function of the gradient, a const Tensor&");
        if constexpr (std::is_void_v<std::invoke_result_t<Hook&, const Tensor&>>) {
            if (detail::is_null(hook)) return add_hook({}, loc);  // which refuses it
            return add_hook([watch = static_cast<Hook&&>(hook)](const Tensor& grad) mutable { return watch(grad), Tensor(); }, loc);
        } else {
            return add_hook(static_cast<Hook&&>(hook), loc);
        }
    }

    // --- In place: write to the elements and raise the storage's version --------------------------------------------

#endif
    /// Copies from `source`, which is broadcast and converted.
    Tensor& copy_(const Tensor& source, Loc loc = Loc::current());
#ifndef TAPIR_RUNTIME_ONLY
    Tensor& fill_(Scalar value, Loc loc = Loc::current());
    Tensor& zero_(Loc loc = Loc::current());
    /// Fill with random numbers: uniform on [low, high), normal, or 1 with probability p (else 0). They come from default_generator() if
    /// none is given. Floating dtypes only, but bernoulli_ takes any (DTypeError).
    Tensor& uniform_(double low = 0, double high = 1, Loc loc = Loc::current());
    Tensor& uniform_(double low, double high, Generator& generator, Loc loc = Loc::current());
    Tensor& normal_(double mean = 0, double std = 1, Loc loc = Loc::current());
    Tensor& normal_(double mean, double std, Generator& generator, Loc loc = Loc::current());
    Tensor& bernoulli_(double p = 0.5, Loc loc = Loc::current());
    Tensor& bernoulli_(double p, Generator& generator, Loc loc = Loc::current());
    /// Write the result of the functions of these names to the tensor itself; its shape and dtype stay (ShapeError, DTypeError).
    Tensor& masked_fill_(const Tensor& mask, Scalar value, Loc loc = Loc::current());
    Tensor& masked_fill_(const Tensor& mask, const Tensor& value, Loc loc = Loc::current());
    Tensor& scatter_(Dim dim, const Tensor& index, const Tensor& src, Loc loc = Loc::current());
    Tensor& scatter_(Dim dim, const Tensor& index, Scalar value, Loc loc = Loc::current());
    Tensor& scatter_add_(Dim dim, const Tensor& index, const Tensor& src, Loc loc = Loc::current());
    Tensor& scatter_reduce_(Dim dim, const Tensor& index, const Tensor& src, const char* reduce, Flag include_self = true, Loc loc = Loc::current());
    Tensor& index_copy_(Dim dim, const Tensor& index, const Tensor& src, Loc loc = Loc::current());
    Tensor& index_fill_(Dim dim, const Tensor& index, Scalar value, Loc loc = Loc::current());
    Tensor& index_add_(Dim dim, const Tensor& index, const Tensor& src, Scalar alpha = 1, Loc loc = Loc::current());

// Arithmetic, from the table: x.tanh(), x.add(y), x.add_(y), ...
#define TAPIR_UNARY0(name, ...)                  \
    Tensor name(Loc loc = Loc::current()) const; \
    Tensor& name##_(Loc loc = Loc::current());
#define TAPIR_UNARY1(name, p0, d0, ...)                          \
    Tensor name(double p0 = d0, Loc loc = Loc::current()) const; \
    Tensor& name##_(double p0 = d0, Loc loc = Loc::current());
#define TAPIR_UNARY2(name, p0, d0, p1, d1, ...)                                  \
    Tensor name(double p0 = d0, double p1 = d1, Loc loc = Loc::current()) const; \
    Tensor& name##_(double p0 = d0, double p1 = d1, Loc loc = Loc::current());
#define TAPIR_PREDICATE(name, ...) Tensor name(Loc loc = Loc::current()) const;
#define TAPIR_BINARY(name, ...)                                       \
    Tensor name(const Tensor& other, Loc loc = Loc::current()) const; \
    Tensor name(Scalar other, Loc loc = Loc::current()) const;        \
    Tensor& name##_(const Tensor& other, Loc loc = Loc::current());   \
    Tensor& name##_(Scalar other, Loc loc = Loc::current());
#define TAPIR_COMPARE(name, ...)                                      \
    Tensor name(const Tensor& other, Loc loc = Loc::current()) const; \
    Tensor name(Scalar other, Loc loc = Loc::current()) const;
#define TAPIR_TERNARY(name, ...)                                                   \
    Tensor name(const Tensor& b, const Tensor& c, Loc loc = Loc::current()) const; \
    Tensor& name##_(const Tensor& b, const Tensor& c, Loc loc = Loc::current());
#include "tapir/core/elementwise_rows.inc"
    /// Divides and rounds as "trunc" or "floor": tapir/ops/elementwise.h.
    Tensor div(const Tensor& other, const char* rounding_mode, Loc loc = Loc::current()) const;
    Tensor div(Scalar other, const char* rounding_mode, Loc loc = Loc::current()) const;
    Tensor lerp(const Tensor& end, Scalar weight, Loc loc = Loc::current()) const;
    Tensor& lerp_(const Tensor& end, Scalar weight, Loc loc = Loc::current());
    Tensor clamp(const Tensor& min, const Tensor& max, Loc loc = Loc::current()) const;
    /// The same as clamp().
    Tensor clip(double min = -__builtin_inf(), double max = __builtin_inf(), Loc loc = Loc::current()) const { return clamp(min, max, loc); }
    Tensor clip(const Tensor& min, const Tensor& max, Loc loc = Loc::current()) const { return clamp(min, max, loc); }
    Tensor& clip_(double min = -__builtin_inf(), double max = __builtin_inf(), Loc loc = Loc::current()) { return clamp_(min, max, loc); }
    Tensor clamp_min(Scalar min, Loc loc = Loc::current()) const;
    Tensor clamp_max(Scalar max, Loc loc = Loc::current()) const;
    Tensor& clamp_min_(Scalar min, Loc loc = Loc::current());
    Tensor& clamp_max_(Scalar max, Loc loc = Loc::current());
    Tensor bitwise_not(Loc loc = Loc::current()) const;
    Tensor ldexp(const Tensor& other, Loc loc = Loc::current()) const;
    Tensor isclose(const Tensor& other, double rtol = 1e-5, double atol = 1e-8, bool equal_nan = false, Loc loc = Loc::current()) const;
    Tensor nan_to_num(double nan = 0, Loc loc = Loc::current()) const;
    Tensor nan_to_num(double nan, double posinf, double neginf, Loc loc = Loc::current()) const;

    // --- Reductions and products ------------------------------------------------------------------------------------
    // Without dims they reduce all elements; see tapir/ops/reduce.h, tapir/ops/statistics.h and tapir/ops/matmul.h.

    Tensor sum(Loc loc = Loc::current()) const;
    Tensor sum(const Dims& dims, Flag keepdim = false, Loc loc = Loc::current()) const;
    Tensor mean(Loc loc = Loc::current()) const;
    Tensor mean(const Dims& dims, Flag keepdim = false, Loc loc = Loc::current()) const;
    Tensor nansum(const Dims& dims = {}, Flag keepdim = false, Loc loc = Loc::current()) const;
    Tensor nanmean(const Dims& dims = {}, Flag keepdim = false, Loc loc = Loc::current()) const;
    Tensor amax(const Dims& dims = {}, Flag keepdim = false, Loc loc = Loc::current()) const;
    Tensor amin(const Dims& dims = {}, Flag keepdim = false, Loc loc = Loc::current()) const;
    /// Return the extreme of all elements; along one dimension also the index of the first; for two tensors maximum() and minimum().
    Tensor max(Loc loc = Loc::current()) const;
    Tensor min(Loc loc = Loc::current()) const;
    ValuesIndices max(Dim dim, Flag keepdim = false, Loc loc = Loc::current()) const;
    ValuesIndices min(Dim dim, Flag keepdim = false, Loc loc = Loc::current()) const;
    Tensor max(const Tensor& other, Loc loc = Loc::current()) const;
    Tensor min(const Tensor& other, Loc loc = Loc::current()) const;
    Tensor all(Loc loc = Loc::current()) const;
    Tensor any(Loc loc = Loc::current()) const;
    Tensor all(const Dims& dims, Flag keepdim = false, Loc loc = Loc::current()) const;
    Tensor any(const Dims& dims, Flag keepdim = false, Loc loc = Loc::current()) const;
    Tensor prod(Loc loc = Loc::current()) const;
    Tensor prod(Dim dim, Flag keepdim = false, Loc loc = Loc::current()) const;
    Tensor var(const Dims& dims = {}, int correction = 1, Flag keepdim = false, Loc loc = Loc::current()) const;
    template <class Bool>
        requires(std::is_same_v<Bool, bool>)
    Tensor var(Bool unbiased, Loc loc = Loc::current()) const {
        return var(Dims(), unbiased ? 1 : 0, false, loc);
    }
    /// Needed with `using namespace tapir`, where std(x) would name the namespace.
    Tensor std(const Dims& dims = {}, int correction = 1, Flag keepdim = false, Loc loc = Loc::current()) const;
    template <class Bool>
        requires(std::is_same_v<Bool, bool>)
    Tensor std(Bool unbiased, Loc loc = Loc::current()) const {
        return std(Dims(), unbiased ? 1 : 0, false, loc);
    }
    Tensor norm(double p = 2, const Dims& dims = {}, Flag keepdim = false, Loc loc = Loc::current()) const;
    Tensor logsumexp(const Dims& dims, Flag keepdim = false, Loc loc = Loc::current()) const;
    Tensor median(Loc loc = Loc::current()) const;
    ValuesIndices median(Dim dim, Flag keepdim = false, Loc loc = Loc::current()) const;
    Tensor quantile(double q, Loc loc = Loc::current()) const;
    Tensor quantile(double q, Dim dim, Flag keepdim = false, Loc loc = Loc::current()) const;
    Tensor count_nonzero(const Dims& dims = {}, Loc loc = Loc::current()) const;
    Tensor trace(Loc loc = Loc::current()) const;
    Tensor cumsum(Dim dim, Loc loc = Loc::current()) const;
    Tensor cumprod(Dim dim, Loc loc = Loc::current()) const;
    Tensor logcumsumexp(Dim dim, Loc loc = Loc::current()) const;
    ValuesIndices cummax(Dim dim, Loc loc = Loc::current()) const;
    ValuesIndices cummin(Dim dim, Loc loc = Loc::current()) const;
    ValuesIndices sort(Dim dim = -1, bool descending = false, Loc loc = Loc::current()) const;
    ValuesIndices kthvalue(std::int64_t k, Dim dim = -1, Flag keepdim = false, Loc loc = Loc::current()) const;
    UniqueResult unique(bool sorted = true, bool return_inverse = false, bool return_counts = false, Loc loc = Loc::current()) const;
    Tensor matmul(const Tensor& other, Loc loc = Loc::current()) const;
    Tensor mm(const Tensor& other, Loc loc = Loc::current()) const;
    Tensor bmm(const Tensor& other, Loc loc = Loc::current()) const;
    Tensor mv(const Tensor& vector, Loc loc = Loc::current()) const;
    Tensor dot(const Tensor& other, Loc loc = Loc::current()) const;
    Tensor outer(const Tensor& other, Loc loc = Loc::current()) const;
    Tensor addmm(const Tensor& a, const Tensor& b, Scalar beta = 1, Scalar alpha = 1, Loc loc = Loc::current()) const;
    Tensor log_softmax(Dim dim, Loc loc = Loc::current()) const;

#endif
    // Methods of the two sections above that Tapir::runtime has too.
    bool allclose(const Tensor& other, double rtol = 1e-5, double atol = 1e-8, bool equal_nan = false, Loc loc = Loc::current()) const;
    bool equal(const Tensor& other, Loc loc = Loc::current()) const;
    Tensor argmax(Loc loc = Loc::current()) const;
    Tensor argmin(Loc loc = Loc::current()) const;
    Tensor argmax(Dim dim, Flag keepdim = false, Loc loc = Loc::current()) const;
    Tensor argmin(Dim dim, Flag keepdim = false, Loc loc = Loc::current()) const;
    Tensor argsort(Dim dim = -1, bool descending = false, Loc loc = Loc::current()) const;
    ValuesIndices topk(std::int64_t k, Dim dim = -1, bool largest = true, Loc loc = Loc::current()) const;
    Tensor softmax(Dim dim, Loc loc = Loc::current()) const;

    /// Internal: takes over one reference.
    static Tensor adopt(TensorImpl* impl) noexcept {
        Tensor result;
        result.impl_ = impl;
        return result;
    }
    /// Internal: gives its reference away.
    TensorImpl* release() noexcept {
        TensorImpl* impl = impl_;
        impl_ = nullptr;
        return impl;
    }

 private:
    const Tensor& checked(const Loc& loc) const {  // throws ValueError when undefined
        if (!impl_) [[unlikely]]
            fail_undefined(loc);
        return *this;
    }
    [[noreturn]] static void fail_undefined(const Loc& loc);
    RemovableHandle add_hook(std::function<Tensor(const Tensor&)> hook, const Loc& loc) const;
    std::int64_t item_int(std::size_t bytes, bool is_signed, const Loc& loc) const;
    double item_double(std::size_t bytes, const Loc& loc) const;
    void read_element(const Shape& position, DType dtype, void* to, const Loc& loc) const;
    void* checked_data(DType dtype, bool any_layout, const Loc& loc) const;
    void copy_out(DType dtype, void* to, const Loc& loc) const;
    std::size_t count_of(std::size_t bytes, const Loc& loc) const;

    TensorImpl* impl_ = nullptr;
};
static_assert(sizeof(Tensor) == 8);

/// Tensor argument of an op, together with the caller's line: the defaulted argument catches the line where a Tensor is
/// converted. `In(x, loc)` passes a line on.
struct In {
    In(const Tensor& t, Loc line = Loc::current()) noexcept : tensor(t), loc(line) {}  // NOLINT: implicit by design
    const Tensor& tensor;
    Loc loc;

    TensorImpl* operator->() const noexcept { return tensor.impl(); }
};

/// One entry of an index. Converts from integers, Slice, None, Ellipsis, and from bool or integer tensors, which it holds.
struct Index {
    enum class Kind : std::uint8_t { integer, slice, none, ellipsis, tensor };

    template <class I>
        requires(std::is_integral_v<I> && !std::is_same_v<I, bool>)
    Index(I i, Loc line = Loc::current()) noexcept : kind(Kind::integer), loc(line) {
        slice.start = static_cast<std::int64_t>(i);
    }
    Index(Slice s, Loc line = Loc::current()) noexcept : kind(Kind::slice), slice(s), loc(line) {}
    Index(NoneType, Loc line = Loc::current()) noexcept : kind(Kind::none), loc(line) {}
    Index(EllipsisType, Loc line = Loc::current()) noexcept : kind(Kind::ellipsis), loc(line) {}
    Index(const Tensor& t, Loc line = Loc::current()) noexcept : kind(Kind::tensor), tensor(t), loc(line) {}

    Kind kind;
    Slice slice;  // an integer index is in slice.start
    Tensor tensor;
    Loc loc;
};

/// x.numel()
inline std::int64_t numel(In x) { return x.tensor.numel(x.loc); }

/// Number argument of an in-place operator, with the line of the call.
struct NumberIn {
    template <class T>
        requires(std::is_arithmetic_v<T> && !std::is_same_v<T, char>)
    NumberIn(T number, Loc line = Loc::current()) noexcept : value(number), loc(line) {}  // NOLINT: implicit by design
    Scalar value;
    Loc loc;
};

class Tensor::Iterator {
 public:
    Iterator(const Tensor& tensor, std::int64_t position, Loc loc) : tensor_(tensor), position_(position), loc_(loc) {}
    Tensor operator*() const { return tensor_.select(0, position_, loc_); }
    Iterator& operator++() {
        ++position_;
        return *this;
    }
    bool operator==(const Iterator& other) const { return position_ == other.position_; }

 private:
    Tensor tensor_;
    std::int64_t position_;
    Loc loc_;
};

std::ostream& operator<<(std::ostream& out, const Tensor& tensor);
std::ostream& operator<<(std::ostream& out, const Shape& shape);  ///< (2, 3)
std::ostream& operator<<(std::ostream& out, DType dtype);         ///< float32
std::ostream& operator<<(std::ostream& out, Device device);       ///< cpu

/// Sets how tensors are printed. As NumPy's set_printoptions, but with 4 digits and 80 columns.
struct PrintOptions {
    int precision = 4;              ///< digits after the point
    std::int64_t threshold = 1000;  ///< more elements than this are elided
    std::int64_t edge_items = 3;    ///< shown at each end of an elided dimension, at least 1
    int line_width = 80;
    bool sci_mode = false;  ///< always use scientific notation
};
/// Sets them for the whole process. Throws ValueError for negative numbers.
void set_print_options(const PrintOptions& options, Loc loc = Loc::current());
PrintOptions print_options();
/// Like Tensor::str(), with other options.
std::string to_string(const Tensor& tensor, const PrintOptions& options);

}  // namespace tapir
