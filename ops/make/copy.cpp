// clone, to, contiguous, copy_, fill_.
#include "tapir/ops/make/copy.h"
#include "tapir/autograd/op_form.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tapir/core/device_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/stream.h"
#include "tapir/core/values_impl.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/kernels/launch.h"
#include "tapir/ops/make/copy_kernels.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/view/view.h"

namespace tapir {
namespace {

using std::int64_t;

void clone_rule(Backward& b) { b.give(0, b.grad()); }
void to_dtype_rule(Backward& b) { b.give(0, b.grad()); }  // give() converts to the input's dtype
void to_device_rule(Backward& b) { b.give(0, b.grad().to(b.attrs<Device>(), b.record().loc)); }
// The destination's old values are lost.
void copy_rule(Backward& b) { b.give(1, b.grad().to(b.attrs<Device>(), b.record().loc)); }

}  // namespace

TAPIR_OP(clone, clone_rule, "A contiguous copy.", TAPIR_SAMPLE("f(3,4)", clone(x[0])));
TAPIR_OP(to_dtype, to_dtype_rule, "Another element type.", TAPIR_SAMPLE_AS("i(3,4)<9", "x[0].to(torch.float64)", to(x[0], float64)));
TAPIR_OP(to_device, to_device_rule, "The same values on another device.", TAPIR_SAMPLE_AS("f(3,4)", "x[0].to('cpu')", to(x[0], cpu)));
TAPIR_OP(copy, copy_rule, "Overwrites a tensor with another, broadcast and converted.",
         TAPIR_SAMPLE_AS("f(3,4) f(4)", "x[0].clone().copy_(x[1])", clone(x[0]).copy_(x[1])));
TAPIR_OP(fill, Overwritten, "Overwrites a tensor with a number.", TAPIR_SAMPLE_AS("f(3,4)", "x[0].clone().fill_(2.5)", clone(x[0]).fill_(2.5)));

namespace {

// Copies the bytes of a contiguous tensor to another device's, or to and from a device.
void copy_bytes(const TensorImpl* y, const TensorImpl* x, bool wait) {
    if (y->numel == 0) return;
    const Device device = y->device.type == DeviceType::cuda ? y->device : x->device;
    device_api::select(device);
    if (x->device == device) device_api::used_here(*x->storage);
    if (y->device == device) device_api::used_here(*y->storage);
    device_api::copy(y->data, y->device, x->data, x->device, static_cast<std::size_t>(y->numel) * itemsize(y->dtype), wait);
    for (const TensorImpl* t : {x, y}) {
        if (!wait && device_api::is_pinned(*t->storage)) device_api::pinned_used(*t->storage, device);
    }
}

// Before another device reads x, waits until all of x's streams have written it.
void complete(const TensorImpl* x, bool wait, const Loc& loc) {
    if (x->device.type == DeviceType::cpu) return;
    device_api::select(x->device);
    device_api::after_other_streams(*x->storage, wait, loc);
}

// Copies between devices: makes x contiguous on its own device, copies it over, and spreads it out there.
void copy_across(const Tensor& to, const Tensor& from, const Loc& loc) {
    const detail::UnrecordedPartsOf parts(loc);
    const TensorImpl* y = to.impl();
    complete(from.impl(), y->device.type == DeviceType::cpu, loc);
    const Tensor packed = from.contiguous();
    const bool is_direct = y->is_contiguous() && y->dtype == packed.dtype() && y->numel == packed.numel();
    const Tensor there = is_direct ? to : detail::make_empty_like(packed.impl(), packed.dtype(), Loc{}, y->device);
    copy_bytes(there.impl(), packed.impl(), y->device.type == DeviceType::cpu);
    if (!is_direct) copy_elements(to, there);
}

}  // namespace

namespace {

// Loops over both tensors' dimensions in the order of the destination's memory, merged where both are contiguous.
struct CopyLoop {
    int rank = 0;
    int64_t sizes[kMaxRank], to[kMaxRank], from[kMaxRank];  // strides

    CopyLoop(const TensorImpl* y, const TensorImpl* x) {
        int order[kMaxRank];
        const int dims = in_order_of_memory(y, order);
        for (int i = 0; i < dims; ++i) {
            const int d = order[i], own = d - (y->rank - x->rank);
            const int64_t size = y->sizes[d], step = own < 0 || x->sizes[own] == 1 ? 0 : x->strides[own];
            const bool merge = rank > 0 && to[rank - 1] == y->strides[d] * size && from[rank - 1] == step * size;
            if (!merge) sizes[rank++] = 1;
            sizes[rank - 1] *= size;
            to[rank - 1] = y->strides[d];
            from[rank - 1] = step;
        }
        if (rank > 0) return;
        rank = 1;
        sizes[0] = to[0] = from[0] = 1;
    }

    // Calls f(offset of the destination, of the source) for the places [begin, end) of all dimensions but the last `inner`.
    template <class F>
    void for_places(int inner, int64_t begin, int64_t end, const F& f) const {
        int64_t index[kMaxRank] = {}, y = 0, x = 0, rest = begin;
        for (int d = rank - inner; d-- > 0;) {
            index[d] = rest % sizes[d];
            rest /= sizes[d];
            y += index[d] * to[d];
            x += index[d] * from[d];
        }
        for (int64_t place = begin; place < end; ++place) {
            f(y, x);
            for (int d = rank - inner; d-- > 0;) {
                y += to[d];
                x += from[d];
                if (++index[d] < sizes[d]) break;
                y -= to[d] * sizes[d];
                x -= from[d] * sizes[d];
                index[d] = 0;
            }
        }
    }
    // Calls f(offset of the destination, of the source, count) for the rows [begin, end), of the last dimension, as many at a time as lie at
    // equal distances.
    template <class F>
    void for_rows(int64_t begin, int64_t end, const F& f) const {
        const int row = rank - 2;
        for (int64_t first = begin; first < end;) {
            const int64_t index = first % sizes[row], count = std::min(sizes[row] - index, end - first);
            for_places(2, first / sizes[row], first / sizes[row] + 1,
                       [&](int64_t y, int64_t x) { f(y + index * to[row], x + index * from[row], count); });
            first += count;
        }
    }
    int64_t places(int inner) const {
        int64_t count = 1;
        for (int d = 0; d < rank - inner; ++d) count *= sizes[d];
        return count;
    }
    // If the source's elements are side by side along another dimension than the destination's, puts that one beside the
    // last. Returns false if they are not.
    bool turn() {
        if (to[rank - 1] != 1 || from[rank - 1] == 1) return false;
        for (int d = 0; d + 1 < rank; ++d) {
            if (from[d] != 1) continue;
            for (int e = d; e + 2 < rank; ++e) {
                std::swap(sizes[e], sizes[e + 1]);
                std::swap(to[e], to[e + 1]);
                std::swap(from[e], from[e + 1]);
            }
            return true;
        }
        return false;
    }
};

void transpose(const CopyLoop& loop, const TensorImpl* y, const TensorImpl* x) {
    const int i = loop.rank - 2, j = loop.rank - 1;
    const int64_t rows = loop.sizes[i], columns = loop.sizes[j], places = loop.places(2);
    const auto size = static_cast<int64_t>(itemsize(y->dtype));
    const auto piece = [&](int64_t to, int64_t from, int64_t first, int64_t count) {
        kernels::transpose_copy(static_cast<unsigned>(size), y->data + (to + first * loop.to[i]) * size, loop.to[i], x->data + (from + first) * size,
                                loop.from[j], count, columns);
    };
    if (places == 1) return share_out(rows, columns, [&](int64_t begin, int64_t end) { piece(0, 0, begin, end - begin); });
    share_out(places, rows * columns,
              [&](int64_t begin, int64_t end) { loop.for_places(2, begin, end, [&](int64_t to, int64_t from) { piece(to, from, 0, rows); }); });
}

void copy_bytes_here(std::byte* to, const std::byte* from, std::size_t bytes) {
    constexpr std::int64_t grain = 1 << 20;
    if (bytes < 2 * grain) {
        std::memcpy(to, from, bytes);
        return;
    }
    parallel_for(static_cast<std::int64_t>(bytes), grain,
                 [&](std::int64_t begin, std::int64_t end) { std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin)); });
}

}  // namespace

// Copies on the CPU row by row of the destination's memory, with conversion.
void copy_elements(const Tensor& to, const Tensor& from) {
    const TensorImpl *y = to.impl(), *x = from.impl();
    if (y->numel == 0) return;
    if (x->device != y->device) [[unlikely]]
        return copy_across(to, from, detail::thread.op_loc);
    if (on_gpu(y)) return elementwise::copy_on_gpu(to, from);
    if (x->dtype == y->dtype && x->is_contiguous() && y->is_contiguous() && x->numel == y->numel) {
        return copy_bytes_here(y->data, x->data, static_cast<std::size_t>(y->numel) * itemsize(y->dtype));
    }
    CopyLoop loop(y, x);
    if (x->dtype == y->dtype && loop.turn()) return transpose(loop, y, x);
    const int last = loop.rank - 1;
    const auto y_size = static_cast<std::int64_t>(itemsize(y->dtype)), x_size = static_cast<std::int64_t>(itemsize(x->dtype));
    const std::int64_t width = loop.sizes[last];
    if (loop.rank == 1 && x->dtype == y->dtype && loop.to[0] == 1 && loop.from[0] == 1) {
        return copy_bytes_here(y->data, x->data, static_cast<std::size_t>(width * y_size));
    }
    const auto convert = [&](std::int64_t to_offset, std::int64_t from_offset, std::int64_t count) {
        kernels::convert(x->dtype, x->data + from_offset * x_size, loop.from[last], y->dtype, y->data + to_offset * y_size, loop.to[last], count);
    };
    constexpr std::int64_t grain = 32 * 1024;
    if (loop.rank == 1) {
        return parallel_for(width, grain,
                            [&](std::int64_t begin, std::int64_t end) { convert(begin * loop.to[0], begin * loop.from[0], end - begin); });
    }
    if (x->dtype == y->dtype && loop.to[last] == 1 && loop.from[last] == 1) {
        const int64_t to_row = loop.to[last - 1] * y_size, from_row = loop.from[last - 1] * y_size;
        return share_out(loop.places(1), width, [&](int64_t begin, int64_t end) {
            loop.for_rows(begin, end, [&](int64_t to_offset, int64_t from_offset, int64_t rows) {
                kernels::copy_rows(y->data + to_offset * y_size, to_row, x->data + from_offset * y_size, from_row, rows, width * y_size);
            });
        });
    }
    parallel_items(loop.places(1), grain / width + 1, [&](std::int64_t begin, std::int64_t end) {
        loop.for_places(1, begin, end, [&](std::int64_t to_offset, std::int64_t from_offset) { convert(to_offset, from_offset, width); });
    });
}

Tensor channels_last(const Tensor& x, const Loc& loc) {
    if (detail::is_channels_last(x.impl())) return x;
    const detail::UnrecordedPartsOf parts(loc);
    const Tensor out = detail::make_channels_last(x.shape(), x.dtype(), x.device(), loc);
    copy_elements(out, x);
    return out;
}

Tensor clone(In x) {
    detail::check_defined(x, "clone");
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return clone(In(in[0], x.loc)); };
        if (Tensor y = detail::in_group({clone_op, x.loc, {&x.tensor}}, of_group); y.defined()) return y;
    }
    Tensor out = detail::make_empty_like(x.tensor.impl(), x.tensor.dtype(), x.loc);
    copy_elements(out, x.tensor);
    record(clone_op, x.loc, {&x.tensor}, out, {});
    return out;
}

Tensor contiguous(In x) {
    detail::check_defined(x, "contiguous");
    if (x.tensor.is_contiguous()) return x.tensor;
    const detail::PartsOfOp parts;
    return clone(x);
}

// The result of `w.requires_grad_().to(cuda)` is marked: it is not a leaf that a gradient reaches, and optimizers refuse it.
static bool leaves_mark(const Tensor& x) noexcept { return x.impl()->flags & (TensorImpl::kRequiresGrad | TensorImpl::kConverted); }
static void mark_converted(const Tensor& out, const Tensor& x) {
    if (leaves_mark(x)) out.impl()->flags |= TensorImpl::kConverted;
}

Tensor to(In x, DType dtype) {
    detail::check_defined(x, "to");
    if (x.tensor.dtype() == dtype) return x.tensor;
    if (detail::in_batch() && !leaves_mark(x.tensor)) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return to(In(in[0], x.loc), dtype); };
        if (Tensor y = detail::in_group({to_dtype_op, x.loc, {&x.tensor}, detail::batch_key(dtype)}, of_group); y.defined()) return y;
    }
    const bool keeps_order = !x->is_contiguous() && detail::is_channels_last(x.tensor.impl());
    Tensor out =
        keeps_order ? detail::make_channels_last(x.tensor.shape(), dtype, x->device, x.loc) : detail::make_empty_like(x.tensor.impl(), dtype, x.loc);
    mark_converted(out, x.tensor);
    copy_elements(out, x.tensor);
    record(to_dtype_op, x.loc, {&x.tensor}, out, {}, nullptr, Told{to_dtype_op, {&x.tensor}}, dtype);
    return out;
}

Tensor to(In x, Device device, bool non_blocking) {
    detail::check_defined(x, "to");
    if (x.tensor.device() == device) return x.tensor;
    detail::check_device("to", device, x.loc);
    if (detail::in_batch() && !leaves_mark(x.tensor)) [[unlikely]] {  // item() of a value on a device, too: one copy and one wait for all
        const auto of_group = [&](const detail::Batched& in) { return to(In(in[0], x.loc), device, non_blocking); };
        const detail::BatchCall call(to_device_op, x.loc, {&x.tensor}, detail::batch_key(device, non_blocking));
        if (Tensor y = detail::in_group(call, of_group); y.defined()) return y;
    }
    detail::begin_op("to", device, x.loc);
    const bool to_cpu = device.type == DeviceType::cpu;
    Tensor out;
    {
        const detail::UnrecordedPartsOf parts(x.loc);
        complete(x.tensor.impl(), to_cpu && !non_blocking, x.loc);
        out = to_cpu && non_blocking ? detail::make_pinned_like(x.tensor.impl(), x.loc)
                                     : detail::make_empty_like(x.tensor.impl(), x->dtype, x.loc, device);
        const Tensor packed = contiguous(x);
        const bool may_change = !to_cpu && device_api::is_pinned(*packed.impl()->storage);  // while it is being read
        copy_bytes(out.impl(), packed.impl(), !non_blocking && (to_cpu || may_change));
    }
    mark_converted(out, x.tensor);
    record(to_device_op, x.loc, {&x.tensor}, out, {}, x->device, Told{to_device_op, {&x.tensor}}, device);
    return out;
}

Tensor pin_memory(In x) {
    detail::check_defined(x, "pin_memory");
    if (x.tensor.device() != cpu) fail<DeviceError>(x.loc, "pin_memory: the tensor is on {}, not on the CPU", name(x->device));
    if (device_api::is_pinned(*x->storage)) return x.tensor;
    detail::check_device("pin_memory", cuda, x.loc);
    Tensor out = detail::make_pinned_like(x.tensor.impl(), x.loc);
    copy_elements(out, x.tensor);
    record(clone_op, x.loc, {&x.tensor}, out, {});
    return out;
}

Tensor Tensor::to(Device device, bool non_blocking, Loc loc) const { return tapir::to(In(*this, loc), device, non_blocking); }
Tensor Tensor::to(Device device, DType dtype, bool non_blocking, Loc loc) const {
    // A conversion first sends fewer bytes; but the CPU must have received what it converts.
    const bool is_smaller = itemsize(dtype) < itemsize(checked(loc).impl_->dtype);
    if (device != tapir::cpu && !is_smaller) return to(device, non_blocking, loc).to(dtype, loc);
    if (impl_->device != device) complete(impl_, device == tapir::cpu && !non_blocking, loc);
    return to(dtype, loc).to(device, non_blocking, loc);
}
Tensor Tensor::pin_memory(Loc loc) const { return tapir::pin_memory(In(*this, loc)); }
bool Tensor::is_pinned(Loc loc) const { return device_api::is_pinned(*checked(loc).impl_->storage); }

void Tensor::record_stream(const Stream& stream, Loc loc) const {
    if (checked(loc).impl_->device.type == DeviceType::cpu) return;
    const StreamScope scope(stream);
    on_stream(impl_);
}

Tensor Tensor::clone(Loc loc) const { return tapir::clone(In(*this, loc)); }
Tensor Tensor::contiguous(Loc loc) const { return tapir::contiguous(In(*this, loc)); }
Tensor Tensor::to(DType dtype, Loc loc) const { return tapir::to(In(*this, loc), dtype); }

// Makes a number an operand for graphs, whose ops take a tensor instead.
static Tensor number_of(Scalar value, const Tensor& like) {
    Tensor number = detail::make_empty({}, like.dtype(), tapir::cpu, Loc{});
    detail::store(like.dtype(), number.raw_data(), value);
    number.impl()->trace = 0;  // the number belongs to the program, not to the trace
    return number;
}

Tensor& Tensor::copy_(const Tensor& source, Loc loc) {
    detail::check_defined(In(*this, loc), "copy_");
    detail::check_defined(In(source, loc), "copy_");
    if (!(broadcast_shapes(shape(), source.shape(), "copy_", loc) == shape())) {
        fail<ShapeError>(loc, "copy_: shape {} does not broadcast to {}", source.shape(), shape());
    }
    const Device from_device = source.impl()->device;
    check_in_place("copy", *this, {&source}, loc);
    Tensor copy;  // copy of a source that is overwritten while it is read
    if (source.shares_storage(*this) && !source.is_same(*this)) copy = copy_before_write(source, loc);
    const Tensor& from = copy.defined() ? copy : source;
    copy_elements(*this, from);
    mark_written(*this, loc);
    record(copy_op, loc, {this, &from}, *this, {}, from_device);
    return *this;
}

Tensor& Tensor::fill_(Scalar value, Loc loc) {
    detail::check_defined(In(*this, loc), "fill_");
    detail::check_fits("fill_", value, dtype(), loc);
    check_in_place("fill", *this, {}, loc);
    alignas(8) std::byte element[8];
    detail::store(dtype(), element, value);
    fill_elements(*this, element);
    mark_written(*this, loc);
    if (detail::thread.observed) {
        Tensor number;
        if (detail::is_watched()) number = number_of(value, *this);
        record(fill_op, loc, {this}, *this, {}, value, Told{fill_op, {this, &number}});
    }
    return *this;
}

void Tensor::operator=(In value) && {
    detail::check_seen("=", *this, value.loc);
    copy_(value.tensor, value.loc);
}

void Tensor::operator=(NumberIn value) && {
    detail::check_seen("=", *this, value.loc);
    fill_(value.value, value.loc);
}

Tensor& Tensor::zero_(Loc loc) { return fill_(0, loc); }

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

// Returns the first after the second is written to all of it.
Tensor overwritten(const Tensor& self, const Tensor& source) { return clone(source.to(self.device(), self.dtype()).expand(self.shape())); }

}  // namespace

TAPIR_PLAIN_FORM(clone, Operands(1).moved(), same(t[0]), clone(x[0]));
TAPIR_VIEW_FORM(to_dtype, 1, DType, same(t[0], a), to(x[0], a), f("dtype", a));
TAPIR_VIEW_FORM(to_device, 1, Device, (ValueType{t[0].dtype, a, t[0].shape}), to(x[0], a), f("device", a));
TAPIR_PLAIN_FORM(copy, 2, same(holding(t[0], t[1])), overwritten(x[0], x[1]));
TAPIR_PLAIN_FORM(fill, 2, same(holding(t[0], t[1])), overwritten(x[0], x[1]));

}  // namespace tapir
