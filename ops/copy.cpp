// clone, to, contiguous, copy_, fill_.
#include "tapir/ops/copy.h"

#include <cstring>

#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/elementwise_impl.h"
#include "tapir/ops/parallel_impl.h"

namespace tapir {
namespace {

void clone_rule(Backward& b) { b.give(0, b.grad()); }
void to_dtype_rule(Backward& b) { b.give(0, b.grad()); }  // give() converts to the input's dtype
void copy_rule(Backward& b) { b.give(1, b.grad()); }      // the destination's old values are gone
void fill_rule(Backward&) {}

}  // namespace

TAPIR_OP(clone, "Identity", clone_rule, "A contiguous copy.", TAPIR_SAMPLE("f(3,4)", clone(x[0])));
TAPIR_OP(to_dtype, "Cast", to_dtype_rule, "Another element type.",
         TAPIR_SAMPLE_AS("i(3,4)<9", "x[0].to(torch.float64)", to(x[0], float64)));
TAPIR_OP(copy, NoOnnx("Identity, Expand"), copy_rule, "Overwrites a tensor with another, broadcast and converted.",
         TAPIR_SAMPLE_AS("f(3,4) f(4)", "x[0].clone().copy_(x[1])", clone(x[0]).copy_(x[1])));
TAPIR_OP(fill, NoOnnx("Expand"), fill_rule, "Overwrites a tensor with a number.",
         TAPIR_SAMPLE_AS("f(3,4)", "x[0].clone().fill_(2.5)", clone(x[0]).fill_(2.5)));

// A strided copy with conversion, row by row of the destination.
void copy_elements(const Tensor& to, const Tensor& from) {
    const TensorImpl *y = to.impl(), *x = from.impl();
    if (y->numel == 0) return;
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
    return x.tensor.is_contiguous() ? x.tensor : clone(x);
}

Tensor to(In x, DType dtype) {
    detail::check_defined(x, "to");
    if (x.tensor.dtype() == dtype) return x.tensor;
    Tensor out = detail::make_empty_like(x.tensor.impl(), dtype, x.loc);
    copy_elements(out, x.tensor);
    if (is_floating(dtype)) record(to_dtype_op, x.loc, {&x.tensor}, out, {});
    return out;
}

Tensor to(In x, Device device) {
    detail::check_defined(x, "to");
    if (x.tensor.device() == device) return x.tensor;
    fail<DeviceError>(x.loc, "to: cuda:{}: this build of tapir has no CUDA", device.index);
}

Tensor Tensor::clone(Loc loc) const { return tapir::clone(In(*this, loc)); }
Tensor Tensor::contiguous(Loc loc) const { return tapir::contiguous(In(*this, loc)); }
Tensor Tensor::to(DType dtype, Loc loc) const { return tapir::to(In(*this, loc), dtype); }
Tensor Tensor::to(Device device, Loc loc) const { return tapir::to(In(*this, loc), device); }

Tensor& Tensor::copy_(const Tensor& source, Loc loc) {
    detail::check_defined(In(*this, loc), "copy_");
    detail::check_defined(In(source, loc), "copy_");
    if (!(broadcast_shapes(shape(), source.shape(), "copy_", loc) == shape())) {
        fail<ShapeError>(loc, "copy_: shape {} does not broadcast to {}", source.shape(), shape());
    }
    check_in_place("copy", *this, {&source}, loc);
    Log* log = detail::thread.log;
    const bool record_it = log && (tracked(impl_, *log, loc) || tracked(source.impl(), *log, loc));
    Tensor copy;  // of a source that is overwritten while it is read
    if (source.shares_storage(*this) && !source.is_same(*this)) copy = copy_before_write(source, loc);
    const Tensor& from = copy.defined() ? copy : source;
    copy_elements(*this, from);
    mark_written(*this, loc);
    if (record_it) record(copy_op, loc, {this, &from}, *this, {});
    return *this;
}

Tensor& Tensor::fill_(Scalar value, Loc loc) {
    detail::check_defined(In(*this, loc), "fill_");
    check_in_place("fill", *this, {}, loc);
    alignas(8) std::byte element[8];
    detail::store(dtype(), element, value);
    const Tensor number = detail::make_around(element, {}, {}, dtype(), device(), sizeof(element), nullptr, nullptr, loc);
    copy_elements(*this, number);
    mark_written(*this, loc);
    record(fill_op, loc, {this}, *this, {});
    return *this;
}

Tensor& Tensor::zero_(Loc loc) { return fill_(0, loc); }

}  // namespace tapir
