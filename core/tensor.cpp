// Makes, destroys and reads tensors.
#include "tapir/core/tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "tapir/core/device_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/memory_timeline_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/own_lines_impl.h"
#include "tapir/core/stream.h"
#include "tapir/core/thread_impl.h"
#include "tapir/core/trace_mark_impl.h"

namespace tapir {
namespace detail {
namespace {

// Tensors of up to this many bytes are one block: TensorImpl, Storage, elements.
constexpr std::size_t kInlineBytes = 16 * 1024;
constexpr std::size_t kHeaderBytes = sizeof(TensorImpl) + sizeof(Storage);

void release_block(Storage* storage) { deallocate(storage->data, storage->nbytes); }

// Makes a tensor with its own storage and room for `inline_bytes` behind it.
TensorImpl* new_owner(std::size_t inline_bytes) noexcept {
    const std::size_t bytes = (kHeaderBytes + inline_bytes + kAlignment - 1) & ~(kAlignment - 1);
    auto* block = static_cast<std::byte*>(allocate(bytes));
    if (!block) return nullptr;
    auto* impl = new (block) TensorImpl;
    auto* storage = new (block + sizeof(TensorImpl)) Storage;
    storage->block = static_cast<std::uint16_t>(bytes / kAlignment);
    impl->storage = storage;
    impl->flags = TensorImpl::kOwnBlock;
    return impl;
}

void set_contiguous(TensorImpl* impl, const std::int64_t* sizes, int rank) noexcept {
    impl->rank = static_cast<std::uint8_t>(rank);
    std::int64_t stride = 1;
    for (int d = rank; d-- > 0;) {
        impl->sizes[d] = sizes[d];
        impl->strides[d] = stride;
        __builtin_mul_overflow(stride, sizes[d] > 0 ? sizes[d] : 1, &stride);  // beside a size of 0 it may wrap
    }
    impl->flags |= TensorImpl::kContiguous;
}

// Allocates memory of another device for a tensor that has none yet; frees the tensor if there is none.
[[gnu::noinline]] void take_device_memory(TensorImpl* impl, std::size_t bytes, Device device, const Loc& loc) {
    Storage* storage = impl->storage;
    storage->nbytes = bytes;
    storage->device = device;
    impl->device = device;
    try {
        check_device(thread.op ? thread.op : "tensor", device, loc);
        device_api::select(device);
        if (bytes > 0) device_api::allocate(*storage, loc);
    } catch (...) {
        deallocate(impl, std::size_t{storage->block} * kAlignment);
        throw;
    }
}

[[noreturn]] void fail_memory(std::int64_t numel, DType dtype, const Loc& loc) {
    const Loc line = memory_line(loc);
    const OwnLines chosen;
    at_line(line, [&] {  // there may be no memory for the text either
        fail<OutOfMemory>(line, "no memory for {} elements of {} ({} MiB); {} MiB are in use", numel, name(dtype),
                          numel * static_cast<std::int64_t>(itemsize(dtype)) >> 20, memory_stats().live_bytes >> 20);
    });
    __builtin_unreachable();
}

}  // namespace

constinit std::uint16_t last_trace = 0;
constinit thread_local bool is_outside_trace = false;

namespace {

// Called while ops are watched, after a tensor with elements of its own was made.
[[gnu::noinline]] void note_made(TensorImpl* impl, const Loc& loc) {
    if (!are_ops_watched() && impl->device.type == DeviceType::cpu) return;
    log_placement(impl);
    impl->trace = trace_mark();
    if (watching_memory) note_memory(impl->storage, loc);
}

}  // namespace

std::int64_t bytes_of(const Shape& shape, std::size_t itemsize) noexcept {
    auto bytes = static_cast<std::int64_t>(itemsize);
    bool overflow = false, is_empty = false;
    for (const std::int64_t size : shape) {
        is_empty |= size == 0;
        overflow |= __builtin_mul_overflow(bytes, size == 0 ? 1 : size, &bytes);
    }
    return overflow ? -1 : is_empty ? 0 : bytes;
}

std::int64_t checked_numel(const Shape& shape, DType dtype, const Loc& loc) {
    for (const std::int64_t size : shape) {
        if (size < 0) fail<ValueError>(loc, "a size must not be negative: {}", shape);
    }
    if (bytes_of(shape, itemsize(dtype)) < 0) fail<OutOfMemory>(loc, "a tensor of shape {} is larger than any memory", shape);
    return shape.numel();
}

Tensor make_empty(const Shape& shape, DType dtype, Device device, const Loc& loc) {
    return make_empty(shape.data(), shape.rank(), checked_numel(shape, dtype, loc), dtype, device, loc);
}

Tensor make_empty(const std::int64_t* sizes, int rank, std::int64_t numel, DType dtype, Device device, const Loc& loc) {
    const std::size_t bytes = static_cast<std::size_t>(numel) * itemsize(dtype);
    const bool is_here = device.type == DeviceType::cpu;
    const bool is_small = bytes <= kInlineBytes && is_here;
    TensorImpl* impl = new_owner(is_small ? bytes : 0);
    if (!impl) fail_memory(numel, dtype, loc);
    Storage* storage = impl->storage;
    if (!is_here) [[unlikely]] {
        take_device_memory(impl, bytes, device, loc);
    } else if (is_small) {
        storage->data = reinterpret_cast<std::byte*>(impl) + kHeaderBytes;
    } else {
        storage->data = static_cast<std::byte*>(allocate(bytes));
        if (!storage->data) {
            deallocate(impl, std::size_t{storage->block} * kAlignment);
            fail_memory(numel, dtype, loc);
        }
        storage->release = release_block;
    }
    storage->nbytes = bytes;
    impl->dtype = dtype;
    impl->data = storage->data;
    impl->numel = numel;
    set_contiguous(impl, sizes, rank);
    if (watching_ops) [[unlikely]]
        note_made(impl, loc);
    return Tensor::adopt(impl);
}

Tensor make_row(RowPlace& place, const TensorImpl* block, std::int64_t i, std::int64_t numel, void (*release)(Storage*),
                StorageWhole* context) noexcept {
    auto* const impl = new (&place.tensor) TensorImpl;
    auto* const storage = new (&place.storage) Storage;
    impl->storage = storage;
    impl->flags = TensorImpl::kOwnBlock;
    storage->nbytes = static_cast<std::size_t>(numel) * itemsize(block->dtype);
    storage->data = block->data + static_cast<std::size_t>(i) * storage->nbytes;
    storage->release = release;
    storage->context = context;
    storage->is_part = true;
    storage->stream = block->storage->stream;
    storage->device = impl->device = block->device;
    impl->dtype = block->dtype;
    impl->data = storage->data;
    impl->numel = numel;
    set_contiguous(impl, block->sizes + 1, block->rank - 1);
    return Tensor::adopt(impl);
}

namespace {

// Computes the strides of a tensor without gaps whose dimension 1 comes last.
void channels_last_strides(const std::int64_t* sizes, int rank, std::int64_t* strides) noexcept {
    std::int64_t stride = 1;
    const auto set = [&](int d) {
        strides[d] = stride;
        stride *= sizes[d] > 0 ? sizes[d] : 1;
    };
    set(1);
    for (int d = rank; d-- > 2;) set(d);
    set(0);
}

}  // namespace

Tensor make_channels_last(const Shape& shape, DType dtype, Device device, const Loc& loc) {
    Tensor made = make_empty(shape, dtype, device, loc);
    TensorImpl* impl = made.impl();
    channels_last_strides(impl->sizes, impl->rank, impl->strides);
    if (!compute_contiguous(impl->sizes, impl->strides, impl->rank)) {
        impl->flags &= static_cast<std::uint8_t>(~TensorImpl::kContiguous);
    }
    return made;
}

bool is_channels_last(const TensorImpl* x) noexcept {
    if (x->rank < 3 || x->rank > 5) return false;
    std::int64_t strides[kMaxRank];
    channels_last_strides(x->sizes, x->rank, strides);
    for (int d = 0; d < x->rank; ++d) {
        if (x->sizes[d] > 1 && x->strides[d] != strides[d]) return false;
    }
    return true;
}

Tensor make_pinned_like(const TensorImpl* x, const Loc& loc) {
    TensorImpl* impl = new_owner(0);
    if (!impl) fail_memory(x->numel, x->dtype, loc);
    Storage* storage = impl->storage;
    storage->nbytes = static_cast<std::size_t>(x->numel) * itemsize(x->dtype);
    Tensor t = Tensor::adopt(impl);  // frees the block if the next line throws
    device_api::allocate_pinned(*storage, loc);
    impl->dtype = x->dtype;
    impl->data = storage->data;
    impl->numel = x->numel;
    set_contiguous(impl, x->sizes, x->rank);
    if (watching_ops) [[unlikely]]
        note_made(impl, loc);
    return t;
}

Tensor make_around(void* data, const Shape& shape, const Shape& strides, DType dtype, Device device, std::size_t nbytes, void (*release)(Storage*),
                   void* context, const Loc& loc) {
    const std::int64_t numel = checked_numel(shape, dtype, loc);
    TensorImpl* impl = new_owner(0);
    if (!impl) fail_memory(numel, dtype, loc);
    Storage* storage = impl->storage;
    storage->data = static_cast<std::byte*>(data);
    storage->nbytes = nbytes;
    storage->release = release;
    storage->context = context;
    storage->device = device;
    impl->dtype = dtype;
    impl->device = device;
    impl->data = storage->data;
    impl->numel = numel;
    impl->rank = static_cast<std::uint8_t>(shape.rank());
    std::copy(shape.begin(), shape.end(), impl->sizes);
    std::copy(strides.begin(), strides.end(), impl->strides);
    if (compute_contiguous(impl->sizes, impl->strides, impl->rank)) impl->flags |= TensorImpl::kContiguous;
    return Tensor::adopt(impl);
}

bool compute_contiguous(const std::int64_t* sizes, const std::int64_t* strides, int rank) noexcept {
    std::int64_t expected = 1;
    for (int d = rank; d-- > 0;) {
        if (sizes[d] == 0) return true;
        if (sizes[d] != 1 && strides[d] != expected) return false;
        expected *= sizes[d];
    }
    return true;
}

Tensor make_view(const TensorImpl* x, const Shape& sizes, const Shape& strides, std::int64_t offset) {
    return make_view(x, sizes.rank(), sizes.data(), strides.data(), offset);
}

Tensor make_view(const TensorImpl* x, int rank, const std::int64_t* sizes, const std::int64_t* strides, std::int64_t offset) {
    void* block = allocate(sizeof(TensorImpl));
    if (!block) [[unlikely]]
        fail_no_memory(Loc{});
    auto* impl = new (block) TensorImpl;
    add_ref(x->storage->refs);
    impl->storage = x->storage;
    impl->node_version = x->storage->version_now();
    impl->dtype = x->dtype;
    impl->device = x->device;
    impl->rank = static_cast<std::uint8_t>(rank);
    std::int64_t numel = 1, row_major = 1;
    bool contiguous = true;
    for (int d = rank; d-- > 0;) {
        const std::int64_t size = sizes[d], stride = strides ? strides[d] : row_major;
        impl->sizes[d] = size;
        impl->strides[d] = stride;
        contiguous &= stride == numel || size == 1;
        numel *= size;
        row_major *= size > 0 ? size : 1;
    }
    impl->numel = numel;
    impl->data = x->data + offset * static_cast<std::int64_t>(itemsize(x->dtype));
    impl->flags = static_cast<std::uint8_t>(TensorImpl::kView | (contiguous || numel == 0 ? TensorImpl::kContiguous : 0));
    if (are_ops_watched()) [[unlikely]] {
        log_placement(impl);
        impl->trace = trace_mark();
    }
    return Tensor::adopt(impl);
}

Tensor alias(const TensorImpl* x) { return make_view(x, {x->sizes, x->rank}, {x->strides, x->rank}, 0); }

namespace {

// The storage lies in the block of the tensor that was made with it, right behind that tensor.
void free_block(Storage* storage) noexcept {
    deallocate(reinterpret_cast<std::byte*>(storage) - sizeof(TensorImpl), std::size_t{storage->block} * kAlignment);
}

// Apart from drop(), which so takes fewer instructions for small tensors.
[[gnu::noinline]] void release(Storage* storage) noexcept {
    const bool is_in_row_place = storage->block == 0;
    storage->release(storage);
    if (!is_in_row_place) free_block(storage);  // a row's place may be gone by now
}

void drop(Storage* storage) noexcept {
    if (!drop_ref(storage->refs)) return;
    if (watching_memory) [[unlikely]]
        note_released(storage);
    if (storage->release) [[unlikely]]
        return release(storage);
    free_block(storage);
}

}  // namespace

void destroy(TensorImpl* impl) noexcept {
    if (impl->meta) [[unlikely]]
        destroy_meta(impl->meta);
    Storage* storage = impl->storage;
    if (!(impl->flags & TensorImpl::kOwnBlock)) {
        if (impl->flags & TensorImpl::kMoved) [[unlikely]] {
            drop(reinterpret_cast<Storage*>(impl + 1));
        } else {
            deallocate(impl, sizeof(TensorImpl));
        }
    }
    drop(storage);
}

void become(const Tensor& t, const Tensor& made, const Loc& loc) noexcept {
    TensorImpl* impl = t.impl();
    const TensorImpl* x = made.impl();
    Storage *old = impl->storage, *storage = x->storage;
    storage->version = old->version;  // saved tensors of the old elements count as changed
    storage->mark_written(caller(loc));
    add_ref(storage->refs);
    impl->storage = storage;
    impl->data = x->data;
    impl->dtype = x->dtype;
    impl->device = x->device;
    std::copy_n(x->strides, x->rank, impl->strides);
    const bool owns_block = impl->flags & TensorImpl::kOwnBlock;
    impl->flags = static_cast<std::uint8_t>((impl->flags & (TensorImpl::kRequiresGrad | TensorImpl::kMoved)) | (x->flags & TensorImpl::kContiguous) |
                                            (owns_block ? TensorImpl::kMoved : 0));
    if (!owns_block) return drop(old);
    // The old storage lies in the tensor's own block and stays as long as the tensor. Its elements can be freed, if no others are with them.
    if (__atomic_load_n(&old->refs, __ATOMIC_ACQUIRE) > 1 || !old->release || old->is_part) return;
    if (watching_memory) [[unlikely]]
        note_released(old);
    old->release(old);
    old->release = nullptr;
    old->data = nullptr;
}

void fail_undefined(const char* op, const Loc& loc) {
    std::string hint;
    if (thread.left_out) {
        hint = fmt::format("; if it is {}", thread.left_out);
        if (thread.left_out_at.line() > 0) hint += ", ask for it at " + file_and_line(thread.left_out_at);
    }
    thread.left_out = nullptr;  // the hint is given once
    fail<ValueError>(loc, "{}: the tensor is undefined{}", op, hint);
}

void fail_devices(const char* op, const Tensor& a, const Tensor& b, const Loc& loc) {
    fail<DeviceError>(loc, "{}: operands are on different devices: {} on {} and {} on {}; move the {} with to(cuda({}))", op, a.shape(),
                      name(a.device()), b.shape(), name(b.device()), a.device() == cpu ? "first" : "second",
                      a.device() == cpu ? b.device().index : a.device().index);
}

void check_seen(const char* op, const Tensor& temporary, const Loc& loc) {
    const TensorImpl* x = temporary.impl();
    if (!x) fail_undefined(op, loc);
    if (__atomic_load_n(&x->refs, __ATOMIC_ACQUIRE) > 1 || __atomic_load_n(&x->storage->refs, __ATOMIC_ACQUIRE) > 1) return;
    fail<ValueError>(loc,
                     "{}: on its left is a copy that nothing else holds, as x[mask] and x[indices] are: nothing would see what is "
                     "written; write x.index_put_({{mask}}, value)",
                     op);
}

void fail_dim(std::int64_t dim, int rank, const char* op, const Loc& loc) {
    fail<IndexError>(loc, "{}: dimension {} is out of range for a {}-d tensor", op, dim, rank);
}

double load_double(DType dtype, const void* element) noexcept {
    switch (dtype) {
        case DType::boolean: return *static_cast<const std::uint8_t*>(element) != 0;
        case DType::uint8: return *static_cast<const std::uint8_t*>(element);
        case DType::int32: return *static_cast<const std::int32_t*>(element);
        case DType::int64: return static_cast<double>(*static_cast<const std::int64_t*>(element));
        case DType::float16: return *static_cast<const Half*>(element);
        case DType::bfloat16: return *static_cast<const BFloat16*>(element);
        case DType::float32: return *static_cast<const float*>(element);
        case DType::float64: return *static_cast<const double*>(element);
    }
    return 0;
}

std::int64_t load_int(DType dtype, const void* element) noexcept {
    if (dtype == DType::int64) return *static_cast<const std::int64_t*>(element);
    const double value = load_double(dtype, element);
    if (!(value >= -0x1p63)) return INT64_MIN;  // nan too
    return value >= 0x1p63 ? INT64_MAX : static_cast<std::int64_t>(value);
}

void store(DType dtype, void* element, Scalar value) noexcept {
    switch (dtype) {
        case DType::boolean: *static_cast<std::uint8_t*>(element) = value.as_double() != 0 ? 1 : 0; break;
        case DType::uint8: *static_cast<std::uint8_t*>(element) = static_cast<std::uint8_t>(value.as_int64()); break;
        case DType::int32: *static_cast<std::int32_t*>(element) = static_cast<std::int32_t>(value.as_int64()); break;
        case DType::int64: *static_cast<std::int64_t*>(element) = value.as_int64(); break;
        case DType::float16: *static_cast<Half*>(element) = Half(static_cast<float>(value.as_double())); break;
        case DType::bfloat16: *static_cast<BFloat16*>(element) = BFloat16(static_cast<float>(value.as_double())); break;
        case DType::float32: *static_cast<float*>(element) = static_cast<float>(value.as_double()); break;
        case DType::float64: *static_cast<double*>(element) = value.as_double(); break;
    }
}

}  // namespace detail

void Tensor::fail_undefined(const Loc& loc) { detail::fail_undefined("read", loc); }

std::int64_t Tensor::size(Dim d, Loc loc) const {
    const int wrapped = detail::wrap_dim(d, checked(loc).dim(), "size", loc);
    if (impl_->rank == 0) fail<IndexError>(loc, "size: a 0-d tensor has no dimension {}", d);
    return impl_->sizes[wrapped];
}

std::int64_t Tensor::stride(Dim d, Loc loc) const {
    const int wrapped = detail::wrap_dim(d, checked(loc).dim(), "stride", loc);
    if (impl_->rank == 0) fail<IndexError>(loc, "stride: a 0-d tensor has no dimension {}", d);
    return impl_->strides[wrapped];
}

double Tensor::item_double(std::size_t bytes, const Loc& loc) const {
    if (checked(loc).numel() != 1) fail<ShapeError>(loc, "item: needs exactly one element, got shape {}; to_vector() gives all of them", shape());
    detail::note_read("item", *this, loc);
    if (impl_->device.type != DeviceType::cpu) [[unlikely]]
        return to(tapir::cpu, loc).item_double(bytes, loc);
    const double value = detail::load_double(impl_->dtype, impl_->data);
    if (bytes == sizeof(float) && std::isfinite(value) && std::abs(value) > std::numeric_limits<float>::max()) [[unlikely]]
        fail<ValueError>(loc, "item: the value {} cannot be converted to type float without overflow", value);
    return value;
}

std::int64_t Tensor::item_int(std::size_t bytes, bool is_signed, const Loc& loc) const {
    if (checked(loc).numel() != 1) fail<ShapeError>(loc, "item: needs exactly one element, got shape {}; to_vector() gives all of them", shape());
    detail::note_read("item", *this, loc);
    if (impl_->device.type != DeviceType::cpu) [[unlikely]]
        return to(tapir::cpu, loc).item_int(bytes, is_signed, loc);
    const int bits = static_cast<int>(bytes) * 8;
    const auto overflow = [&](auto value) {
        const std::string type = bits == 32 && is_signed ? "int" : fmt::format("{}int{}_t", is_signed ? "" : "u", bits);
        fail<ValueError>(loc, "item: the value {} cannot be converted to type {} without overflow", value, type);
    };
    if (is_floating(impl_->dtype)) {
        const double value = std::trunc(detail::load_double(impl_->dtype, impl_->data));
        const double above = std::ldexp(1.0, is_signed ? bits - 1 : bits);  // the smallest number that is too large
        if (!(value >= (is_signed ? -above : 0.0) && value < above)) overflow(detail::load_double(impl_->dtype, impl_->data));
        return is_signed ? static_cast<std::int64_t>(value) : static_cast<std::int64_t>(static_cast<std::uint64_t>(value));
    }
    const std::int64_t value = detail::load_int(impl_->dtype, impl_->data);
    if (!is_signed && value < 0) overflow(value);
    if (bits < 64) {
        const std::int64_t above = std::int64_t{1} << (is_signed ? bits - 1 : bits);
        if (value >= above || value < -above) overflow(value);
    }
    return value;
}

void* Tensor::checked_data(DType dtype, bool any_layout, const Loc& loc) const {
    if (checked(loc).dtype() != dtype) {
        fail<DTypeError>(loc, "data: the tensor holds {}, not {}; convert it with to({})", name(impl_->dtype), name(dtype), name(dtype));
    }
    if (!any_layout && !impl_->is_contiguous()) {
        fail<ValueError>(loc,
                         "data: the tensor of shape {} is not contiguous, its strides are {}; contiguous() has the elements in order, "
                         "data<T>(strided) gives the memory as it lies",
                         shape(), strides());
    }
    detail::note_read("data", *this, loc);
    impl_->storage->mark_exposed();
    return impl_->data;
}

void Tensor::read_element(const Shape& position, DType dtype, void* to, const Loc& loc) const {
    if (checked(loc).dtype() != dtype) {
        fail<DTypeError>(loc, "at: the tensor holds {}, not {}; convert it with to({})", name(impl_->dtype), name(dtype), name(dtype));
    }
    const std::byte* base = impl_->data;
    if (position.rank() != dim()) {
        fail<IndexError>(loc, "at: needs an index for each of the {} dimensions of shape {}, got {}", dim(), shape(), position.rank());
    }
    detail::note_read("at", *this, loc);
    std::int64_t offset = 0;
    for (int d = 0; d < dim(); ++d) {
        const std::int64_t i = position.raw(d) < 0 ? position.raw(d) + impl_->sizes[d] : position.raw(d);
        if (i < 0 || i >= impl_->sizes[d]) {
            fail<IndexError>(loc, "at: index {} is out of range for dimension {} of shape {}", position.raw(d), d, shape());
        }
        offset += i * impl_->strides[d];
    }
    const std::byte* from = base + offset * static_cast<std::int64_t>(itemsize(dtype));
    if (impl_->device.type != DeviceType::cpu) [[unlikely]] {
        detail::begin_op("at", impl_, loc);
        device_api::after_other_streams(*impl_->storage, /*wait=*/true, loc);
        device_api::copy(to, tapir::cpu, from, impl_->device, itemsize(dtype), /*wait=*/true);
    } else {
        std::memcpy(to, from, itemsize(dtype));
    }
}

void Tensor::copy_out(DType dtype, void* to, const Loc& loc) const {
    detail::note_read("to_vector", *this, loc);
    const detail::PauseRecording pause;
    const Tensor packed = this->to(tapir::cpu, dtype, /*non_blocking=*/false, loc).contiguous(loc);
    if (packed.numel() > 0) std::memcpy(to, packed.raw_data(), packed.nbytes());
}

std::size_t Tensor::count_of(std::size_t bytes, const Loc& loc) const {
    const std::int64_t count = checked(loc).impl_->numel;
    if (count > PTRDIFF_MAX / static_cast<std::int64_t>(bytes)) {
        fail<OutOfMemory>(loc, "to_vector: no memory for {} elements of {} bytes", count, bytes);
    }
    return static_cast<std::size_t>(count);
}

Tensor::Iterator Tensor::begin(Loc loc) const {
    if (checked(loc).dim() == 0) fail<ShapeError>(loc, "iteration: a 0-d tensor has nothing to go through; item() gives its number");
    return {*this, 0, loc};
}

Tensor::Iterator Tensor::end(Loc loc) const {
    if (checked(loc).dim() == 0) fail<ShapeError>(loc, "iteration: a 0-d tensor has nothing to go through; item() gives its number");
    return {*this, impl_->sizes[0], loc};
}

}  // namespace tapir
