// clone, to, contiguous, copy_, fill_.
#include "tapir/ops/copy.h"

#include <cstring>

#include "tapir/core/device_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/stream.h"
#include "tapir/ops/elementwise_impl.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/parallel_impl.h"

namespace tapir {
namespace {

void clone_rule(Backward& b) { b.give(0, b.grad()); }
void to_dtype_rule(Backward& b) { b.give(0, b.grad()); }  // give() converts to the input's dtype
void to_device_rule(Backward& b) { b.give(0, b.grad().to(b.attrs<Device>(), b.record().loc)); }
// The destination's old values are gone.
void copy_rule(Backward& b) { b.give(1, b.grad().to(b.attrs<Device>(), b.record().loc)); }
void fill_rule(Backward&) {}

}  // namespace

TAPIR_OP(clone, "Identity", clone_rule, "A contiguous copy.", TAPIR_SAMPLE("f(3,4)", clone(x[0])));
TAPIR_OP(to_dtype, "Cast", to_dtype_rule, "Another element type.",
         TAPIR_SAMPLE_AS("i(3,4)<9", "x[0].to(torch.float64)", to(x[0], float64)));
TAPIR_OP(to_device, "Identity", to_device_rule, "The same values on another device.",
         TAPIR_SAMPLE_AS("f(3,4)", "x[0].to('cpu')", to(x[0], cpu)));
TAPIR_OP(copy, NoOnnx("Identity, Expand"), copy_rule, "Overwrites a tensor with another, broadcast and converted.",
         TAPIR_SAMPLE_AS("f(3,4) f(4)", "x[0].clone().copy_(x[1])", clone(x[0]).copy_(x[1])));
TAPIR_OP(fill, NoOnnx("Expand"), fill_rule, "Overwrites a tensor with a number.",
         TAPIR_SAMPLE_AS("f(3,4)", "x[0].clone().fill_(2.5)", clone(x[0]).fill_(2.5)));

namespace {

// The bytes of a contiguous tensor to another device's, or to and from a device.
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

// What is read elsewhere is read when all of its streams have written it.
void complete(const TensorImpl* x, bool wait, const Loc& loc) {
    if (x->device.type == DeviceType::cpu) return;
    device_api::select(x->device);
    device_api::after_other_streams(*x->storage, wait, loc);
}

// Between devices: made contiguous where it is, copied over, and spread out there.
void copy_across(const Tensor& to, const Tensor& from, const Loc& loc) {
    const detail::UnrecordedParts parts;
    const TensorImpl* y = to.impl();
    complete(from.impl(), y->device.type == DeviceType::cpu, loc);
    const Tensor packed = from.contiguous();
    const bool is_direct = y->is_contiguous() && y->dtype == packed.dtype() && y->numel == packed.numel();
    const Tensor there = is_direct ? to : detail::make_empty_like(packed.impl(), packed.dtype(), Loc{}, y->device);
    copy_bytes(there.impl(), packed.impl(), y->device.type == DeviceType::cpu);
    if (!is_direct) copy_elements(to, there);
}

}  // namespace

// A strided copy with conversion, row by row of the destination.
void copy_elements(const Tensor& to, const Tensor& from) {
    const TensorImpl *y = to.impl(), *x = from.impl();
    if (y->numel == 0) return;
    if (x->device != y->device) [[unlikely]]
        return copy_across(to, from, detail::thread.op_loc);
    if (on_gpu(y)) return elementwise::copy_on_gpu(to, from);
    if (x->dtype == y->dtype && x->is_contiguous() && y->is_contiguous() && x->numel == y->numel) {
        const std::size_t bytes = static_cast<std::size_t>(y->numel) * itemsize(y->dtype);
        constexpr std::int64_t grain = 1 << 20;
        if (bytes < 2 * grain) {
            std::memcpy(y->data, x->data, bytes);
        } else {
            parallel_for(static_cast<std::int64_t>(bytes), grain, [&](std::int64_t begin, std::int64_t end) {
                std::memcpy(y->data + begin, x->data + begin, static_cast<std::size_t>(end - begin));
            });
        }
        return;
    }
    // The innermost loop runs along the last dimension; the others are counted up.
    std::int64_t from_strides[kMaxRank];
    for (int d = 0; d < y->rank; ++d) {
        const int own = d - (y->rank - x->rank);
        from_strides[d] = own < 0 || (x->sizes[own] == 1 && y->sizes[d] != 1) ? 0 : x->strides[own];
    }
    const int last = y->rank - 1;
    const std::int64_t width = y->rank ? y->sizes[last] : 1;
    const std::int64_t y_step = y->rank ? y->strides[last] : 0, x_step = y->rank ? from_strides[last] : 0;
    const auto y_size = static_cast<std::int64_t>(itemsize(y->dtype)), x_size = static_cast<std::int64_t>(itemsize(x->dtype));
    const std::int64_t rows = y->numel / width;
    parallel_for(rows, (32 * 1024) / width + 1, [&](std::int64_t begin, std::int64_t end) {
        std::int64_t index[kMaxRank] = {}, y_offset = 0, x_offset = 0, rest = begin;
        for (int d = last; d-- > 0;) {
            index[d] = rest % y->sizes[d];
            rest /= y->sizes[d];
            y_offset += index[d] * y->strides[d];
            x_offset += index[d] * from_strides[d];
        }
        for (std::int64_t row = begin; row < end; ++row) {
            kernels::convert(x->dtype, x->data + x_offset * x_size, x_step, y->dtype, y->data + y_offset * y_size, y_step, width);
            for (int d = last; d-- > 0;) {
                y_offset += y->strides[d];
                x_offset += from_strides[d];
                if (++index[d] < y->sizes[d]) break;
                y_offset -= y->strides[d] * y->sizes[d];
                x_offset -= from_strides[d] * y->sizes[d];
                index[d] = 0;
            }
        }
    });
}

Tensor clone(In x) {
    detail::check_defined(x, "clone");
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

Tensor to(In x, DType dtype) {
    detail::check_defined(x, "to");
    if (x.tensor.dtype() == dtype) return x.tensor;
    Tensor out = detail::make_empty_like(x.tensor.impl(), dtype, x.loc);
    copy_elements(out, x.tensor);
    if (is_floating(dtype)) record(to_dtype_op, x.loc, {&x.tensor}, out, {});
    return out;
}

Tensor to(In x, Device device, bool non_blocking) {
    detail::check_defined(x, "to");
    if (x.tensor.device() == device) return x.tensor;
    detail::check_device("to", device, x.loc);
    detail::begin_op("to", device, x.loc);
    const bool to_cpu = device.type == DeviceType::cpu;
    Tensor out;
    {
        const detail::UnrecordedParts parts;
        complete(x.tensor.impl(), to_cpu && !non_blocking, x.loc);
        out = to_cpu && non_blocking ? detail::make_pinned_like(x.tensor.impl(), x.loc)
                                     : detail::make_empty_like(x.tensor.impl(), x->dtype, x.loc, device);
        const Tensor packed = contiguous(x);
        const bool may_change = !to_cpu && device_api::is_pinned(*packed.impl()->storage);  // while it is being read
        copy_bytes(out.impl(), packed.impl(), !non_blocking && (to_cpu || may_change));
    }
    if (is_floating(x->dtype)) record(to_device_op, x.loc, {&x.tensor}, out, {}, x->device);
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
    // Fewer bytes are sent; but what the CPU converts must have come.
    const bool is_smaller = defined() && itemsize(dtype) < itemsize(impl_->dtype);
    return device == tapir::cpu || is_smaller ? to(dtype, loc).to(device, non_blocking, loc) : to(device, non_blocking, loc).to(dtype, loc);
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

Tensor& Tensor::copy_(const Tensor& source, Loc loc) {
    detail::check_defined(In(*this, loc), "copy_");
    detail::check_defined(In(source, loc), "copy_");
    if (!(broadcast_shapes(shape(), source.shape(), "copy_", loc) == shape())) {
        fail<ShapeError>(loc, "copy_: shape {} does not broadcast to {}", source.shape(), shape());
    }
    const Device from_device = source.impl()->device;
    check_in_place("copy", *this, {&source}, loc);
    Log* log = detail::thread.log;
    const bool record_it = log && (tracked(impl_, *log, loc) || tracked(source.impl(), *log, loc));
    Tensor copy;  // of a source that is overwritten while it is read
    if (source.shares_storage(*this) && !source.is_same(*this)) copy = copy_before_write(source, loc);
    const Tensor& from = copy.defined() ? copy : source;
    copy_elements(*this, from);
    mark_written(*this, loc);
    if (record_it) record(copy_op, loc, {this, &from}, *this, {}, from_device);
    return *this;
}

Tensor& Tensor::fill_(Scalar value, Loc loc) {
    detail::check_defined(In(*this, loc), "fill_");
    check_in_place("fill", *this, {}, loc);
    alignas(8) std::byte element[8];
    detail::store(dtype(), element, value);
    fill_elements(*this, element);
    mark_written(*this, loc);
    record(fill_op, loc, {this}, *this, {});
    return *this;
}

Tensor& Tensor::zero_(Loc loc) { return fill_(0, loc); }

}  // namespace tapir
