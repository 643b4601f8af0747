// Pooling.
#include "tapir/ops/pooling/pooling.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/composed_op_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/size_math_impl.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/normalization/channels_impl.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/pooling/pooling_kernels.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/view/view.h"

namespace tapir {
namespace {

using kernels::PoolDim;
using kernels::PoolShape;
using std::int64_t;

void max_pool_rule(Backward& b);
void max_pool_backward_rule(Backward& b);
void avg_pool_rule(Backward& b);
void avg_pool_gradient_rule(Backward& b);

}  // namespace

TAPIR_OP(max_pool, max_pool_rule, "The largest element of each window.",
         TAPIR_SAMPLE_AS("d(2,3,7)", "nn.functional.max_pool1d(x[0], 3, 2, 1)", max_pool1d(x[0], 3, {.stride = 2, .padding = 1})),
         TAPIR_SAMPLE_AS("d(2,2,6,5)", "nn.functional.max_pool2d(x[0], 2)", max_pool2d(x[0], 2)),
         TAPIR_SAMPLE_AS("d(1,2,7,8)", "nn.functional.max_pool2d(x[0], (3, 2), (1, 2), (1, 1), (2, 3), True)",
                         max_pool2d(x[0], {3, 2}, {.stride = {1, 2}, .padding = 1, .dilation = {2, 3}, .ceil_mode = true})),
         TAPIR_SAMPLE_AS("d(2,5,4)", "nn.functional.max_pool2d(x[0], 2, return_indices=True)", max_pool2d_with_indices(x[0], 2)),
         TAPIR_SAMPLE_AS("d(1,2,4,4,5)", "nn.functional.max_pool3d(x[0], 2)", max_pool3d(x[0], 2)),
         TAPIR_SAMPLE_AS("d(2,2,7,5)", "nn.functional.adaptive_max_pool2d(x[0], (3, 4))", adaptive_max_pool2d(x[0], {3, 4})));
TAPIR_OP(avg_pool, avg_pool_rule, "The mean of each window.",
         TAPIR_SAMPLE_AS("f(2,3,7)", "nn.functional.avg_pool1d(x[0], 3, 2, 1)", avg_pool1d(x[0], 3, {.stride = 2, .padding = 1})),
         TAPIR_SAMPLE_AS("f(2,2,6,5)", "nn.functional.avg_pool2d(x[0], 2)", avg_pool2d(x[0], 2)),
         TAPIR_SAMPLE_AS("f(1,2,7,8)", "nn.functional.avg_pool2d(x[0], (3, 2), (2, 3), (1, 1), True, False)",
                         avg_pool2d(x[0], {3, 2}, {.stride = {2, 3}, .padding = 1, .ceil_mode = true, .count_include_pad = false})),
         TAPIR_SAMPLE_AS("f(3,5,4)", "nn.functional.avg_pool2d(x[0], 2, divisor_override=3)", avg_pool2d(x[0], 2, {.divisor_override = 3})),
         TAPIR_SAMPLE_AS("f(1,2,4,4,5)", "nn.functional.avg_pool3d(x[0], 2, ceil_mode=True)", avg_pool3d(x[0], 2, {.ceil_mode = true})),
         TAPIR_SAMPLE_AS("f(2,2,7,5)", "nn.functional.adaptive_avg_pool2d(x[0], (3, 4))", adaptive_avg_pool2d(x[0], {3, 4})),
         TAPIR_SAMPLE_AS("f(2,3,4)", "nn.functional.adaptive_avg_pool1d(x[0], 6)", adaptive_avg_pool1d(x[0], 6)),
         TAPIR_SAMPLE_AS("u(2,2,6)", "nn.functional.lp_pool1d(x[0], 3, 2)", lp_pool1d(x[0], 3, 2)),
         TAPIR_SAMPLE_AS("u(2,2,5)", "nn.functional.lp_pool1d(x[0], 2, 2, ceil_mode=True)", lp_pool1d(x[0], 2, 2, {.ceil_mode = true})),
         TAPIR_SAMPLE_AS("u(2,2,5,6)", "nn.functional.lp_pool2d(x[0], 2, 2, 1)", lp_pool2d(x[0], 2, 2, {.stride = 1})));

namespace {

Tensor spread(const Tensor& g, int64_t rows, int64_t columns);
Tensor to_largest(const Tensor& g, const Tensor& of, const Shape& kernel, const MaxPoolOptions& options);
Tensor to_largest_adaptive(const Tensor& g, const Tensor& of, const Shape& output_size);

}  // namespace

// As an op of its own, the recorded rule of max_pool is one node in the graph of a gradient.
TAPIR_OP(
    max_pool_backward, max_pool_backward_rule, "The gradient of max_pool: to the largest element of each window.",
    TAPIR_SAMPLE_AS("f(2,3,4) i(2,3,7)<200",
                    "torch.autograd.functional.vjp(lambda t: nn.functional.max_pool1d(t, 3, 2, 1), x[1].to(x[0].dtype), x[0])[1]",
                    to_largest(x[0], x[1], 3, {.stride = 2, .padding = 1})),
    TAPIR_SAMPLE_AS("f(2,2,3,2) i(2,2,6,5)<200",
                    "torch.autograd.functional.vjp(lambda t: nn.functional.max_pool2d(t, 2), x[1].to(x[0].dtype), x[0])[1]",
                    to_largest(x[0], x[1], 2, {})),
    TAPIR_SAMPLE_AS(
        "f(1,2,5,4) i(1,2,7,8)<200",
        "torch.autograd.functional.vjp(lambda t: nn.functional.max_pool2d(t, (3, 2), (1, 2), (1, 1), (2, 3), True), x[1].to(x[0].dtype), x[0])[1]",
        to_largest(x[0], x[1], {3, 2}, {.stride = {1, 2}, .padding = 1, .dilation = {2, 3}, .ceil_mode = true})),
    TAPIR_SAMPLE_AS("f(1,2,2,2,2) i(1,2,4,4,5)<200",
                    "torch.autograd.functional.vjp(lambda t: nn.functional.max_pool3d(t, 2), x[1].to(x[0].dtype), x[0])[1]",
                    to_largest(x[0], x[1], 2, {})),
    TAPIR_SAMPLE_AS("f(2,2,3,4) i(2,2,7,5)<200",
                    "torch.autograd.functional.vjp(lambda t: nn.functional.adaptive_max_pool2d(t, (3, 4)), x[1].to(x[0].dtype), x[0])[1]",
                    to_largest_adaptive(x[0], x[1], {3, 4})));
TAPIR_OP(avg_pool_gradient, avg_pool_gradient_rule, "Each element, in equal parts to those of its window.",
         TAPIR_SAMPLE_AS("f(2,2,3,2)", "torch.nn.functional.interpolate(x[0], scale_factor=2) / 4", spread(x[0], 6, 4)));

namespace {

// --- Running -------------------------------------------------------------------------------------------------------------

struct Attrs {
    PoolShape shape;
    std::int32_t dims;
    bool ceil_mode = false;
};

// The arguments of pooling, named as PyTorch does.
struct PoolCall {
    Shape kernel_size, stride, padding = 0, dilation = 1;
    bool ceil_mode = false, count_include_pad = true;
    int64_t divisor_override = 0;
    Shape output_size;  // of adaptive pooling; else empty
    Shape input_size;   // the gradient's: the size of the pooled input
};

PoolCall call_of(const Attrs& attrs) {
    const PoolShape& s = attrs.shape;
    PoolCall call{{}, {}, {}, {}, attrs.ceil_mode, s.counts_padding, s.divisor, {}, {}};
    for (int d = 3 - attrs.dims; d < 3; ++d) {
        const PoolDim& p = s.dims[d];
        call.input_size.push_back(p.in);
        if (p.is_adaptive) {
            call.output_size.push_back(p.out);
            continue;
        }
        call.kernel_size.push_back(p.kernel);
        call.stride.push_back(p.stride);
        call.padding.push_back(p.before);
        call.dilation.push_back(p.dilation);
    }
    return call;
}

// (batch, channels, dims...)
Shape tensor_shape(const Attrs& a, int64_t PoolDim::* size) {
    Shape shape{a.shape.batch, a.shape.channels};
    for (int d = 3 - a.dims; d < 3; ++d) shape.push_back(a.shape.dims[d].*size);
    return shape;
}

enum class Run { max, max_backward, avg, avg_backward };

template <class T>
void run_on_cpu(Run what, const PoolShape& shape, const Tensor& from, const Tensor& to, std::int32_t* index) {
    const bool is_backward = what == Run::max_backward || what == Run::avg_backward;
    kernels::Pool<T> args{shape, static_cast<const T*>(from.raw_data()), static_cast<T*>(to.raw_data()), index, nullptr, {}, {}};
    std::vector<kernels::PoolRange> ranges[3];
    std::vector<double> sizes[3];
    for (int d = 0; d < 3; ++d) {
        const PoolDim& dim = shape.dims[d];
        ranges[d].resize(static_cast<std::size_t>(is_backward ? dim.in : dim.out));
        for (std::size_t i = 0; i < ranges[d].size(); ++i) {
            const auto at = static_cast<int64_t>(i);
            is_backward ? dim.windows_of(at, ranges[d][i].begin, ranges[d][i].end) : dim.window(at, ranges[d][i].begin, ranges[d][i].end);
        }
        args.ranges[d] = ranges[d].data();
        if (what == Run::max || what == Run::max_backward || shape.divisor != 0) continue;
        for (int64_t o = 0; o < dim.out; ++o) sizes[d].push_back(shape.size_of(d, o));
        args.sizes[d] = sizes[d].data();
    }
    const int64_t places = shape.batch * (is_backward ? shape.in_volume() : shape.out_volume());
    parallel_items(places, 4 * 1024 / shape.channels + 1, [&](int64_t begin, int64_t end) {
        std::unique_ptr<T[]> columns;
        kernels::Pool<T> own = args;
        if (what == Run::max && !index) columns = std::make_unique_for_overwrite<T[]>(kernels::kPoolRoom);
        own.columns = columns.get();
        if constexpr (sizeof(T) == 8) {
            switch (what) {
                case Run::max: return kernels::max_pool_f64(own, begin, end);
                case Run::max_backward: return kernels::max_pool_backward_f64(own, begin, end);
                case Run::avg: return kernels::avg_pool_f64(own, begin, end);
                case Run::avg_backward: return kernels::avg_pool_backward_f64(own, begin, end);
            }
        } else {
            switch (what) {
                case Run::max: return kernels::max_pool_f32(own, begin, end);
                case Run::max_backward: return kernels::max_pool_backward_f32(own, begin, end);
                case Run::avg: return kernels::avg_pool_f32(own, begin, end);
                case Run::avg_backward: return kernels::avg_pool_backward_f32(own, begin, end);
            }
        }
    });
}

void run_on_gpu(Run what, const PoolShape& shape, bool channels_last, const Tensor& from, const Tensor& to, const Tensor& index) {
    const kernels::PoolArgs args{shape, to.dtype(), channels_last, on_stream(from), on_stream(to), on_stream<std::int32_t>(index)};
    switch (what) {
        case Run::max: return gpu::max_pool(args);
        case Run::max_backward: return gpu::max_pool_backward(args);
        case Run::avg: return gpu::avg_pool(args);
        case Run::avg_backward: return gpu::avg_pool_backward(args);
    }
}

// Goes from x to y, or back from g. index: written by max, if it is wanted, read by max_backward; in the layout of y. Not recorded.
Tensor run(Run what, const Attrs& attrs, const Tensor& given, Tensor& index, const Loc& loc, bool wants_index = true) {
    const detail::UnrecordedPartsOf parts(loc);
    const DType dtype = given.dtype();
    const bool is_backward = what == Run::max_backward || what == Run::avg_backward;
    const Shape shape = tensor_shape(attrs, is_backward ? &PoolDim::in : &PoolDim::out);
    // A GPU takes x as it is laid out; but gradients in the layout of the indices.
    bool channels_last_here = !on_gpu(given) || (detail::is_channels_last(given.impl()) && !given.is_contiguous());
    if (what == Run::max_backward && on_gpu(given)) channels_last_here = !index.is_contiguous();
    const DType compute = read_in(given);
    const Tensor wide = given.to(compute, loc);
    const Tensor from = channels_last_here ? channels_last(wide, loc) : wide.contiguous(loc);
    const auto make = [&](DType of) { return make_in_layout(shape, of, given.device(), channels_last_here, loc); };
    const Tensor to = make(compute);
    if (what == Run::max && (wants_index || on_gpu(given))) index = make(int32);
    if (to.numel() == 0) return to.to(dtype, loc);
    if (from.numel() == 0) return gradient_ops::zeros(shape, dtype, given.device());
    if (on_gpu(given)) {
        run_on_gpu(what, attrs.shape, channels_last_here, from, to, index);
    } else if (compute == float64) {
        run_on_cpu<double>(what, attrs.shape, from, to, index.defined() ? static_cast<std::int32_t*>(index.raw_data()) : nullptr);
    } else {
        run_on_cpu<float>(what, attrs.shape, from, to, index.defined() ? static_cast<std::int32_t*>(index.raw_data()) : nullptr);
    }
    return to.to(dtype, loc);
}

detail::BatchKey key_of(const Attrs& attrs) {
    detail::BatchKey key = detail::batch_key(attrs.shape.counts_padding, attrs.shape.divisor);
    for (int d = 3 - attrs.dims; d < 3; ++d) {
        const PoolDim& p = attrs.shape.dims[d];
        for (const int64_t number : {p.out, p.kernel, p.stride, p.before, p.dilation}) key.add(number);
        key.add(p.is_adaptive);
    }
    return key;
}

// Those of a group in batch(), whose batches are pooled as one.
Attrs of_all(Attrs attrs, std::int64_t count) {
    attrs.shape.batch *= count;
    return attrs;
}

Tensor run_avg(Run what, const Attrs& attrs, const Tensor& given, const Loc& loc) {
    const OpInfo& op = what == Run::avg ? avg_pool_op : avg_pool_gradient_op;
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) {
            return detail::as_one_batch(in, [&](const Tensor& all) { return run_avg(what, of_all(attrs, in.count()), all, loc); });
        };
        if (Tensor y = detail::in_group({op, loc, {&given}, key_of(attrs)}, of_group); y.defined()) return y;
    }
    detail::begin_op(op.name, given.impl(), loc);
    Tensor none;
    const Tensor out = run(what, attrs, given, none, loc);
    if (detail::is_watched()) [[unlikely]] {
        record(op, loc, {&given}, out, {}, attrs, Told{op, {&given}}, call_of(attrs));
    } else {
        record(op, loc, {&given}, out, {}, attrs);
    }
    return out;
}

// --- Gradients -----------------------------------------------------------------------------------------------------------

// Returns the indices as the kernels read them: int32, and in one of their layouts.
Tensor plain_index(const Tensor& given, const Loc& loc) {
    const detail::UnrecordedPartsOf parts(loc);
    const Tensor index = given.to(int32, loc);
    if (!on_gpu(index)) return channels_last(index, loc);
    return detail::is_channels_last(index.impl()) ? index : index.contiguous(loc);
}

Tensor run_max_backward(const Attrs& attrs, const Tensor& g, const Tensor& given, const Loc& loc) {
    detail::begin_op(max_pool_backward_op.name, g.impl(), loc);
    Tensor index = plain_index(given, loc);
    const Tensor out = run(Run::max_backward, attrs, g, index, loc);
    if (detail::is_watched()) [[unlikely]] {
        record(max_pool_backward_op, loc, {&g}, out, {&given}, attrs, Told{max_pool_backward_op, {&g, &given}}, call_of(attrs));
    } else {
        record(max_pool_backward_op, loc, {&g}, out, {&given}, attrs);
    }
    return out;
}

// saved: the indices
void max_pool_rule(Backward& b) {
    const auto& attrs = b.attrs<Attrs>();
    Tensor index = b.saved(0);
    if (b.recording()) return b.give(0, run_max_backward(attrs, b.grad(), index, b.record().loc));
    b.give(0, run(Run::max_backward, attrs, b.grad(), index, b.record().loc));
}

// saved: the indices. Picks for each window the element that its gradient went to.
void max_pool_backward_rule(Backward& b) {
    const Tensor index = b.saved(0), places = flatten(maximum(index.to(int64), 0), 2);
    const Shape shape = tensor_shape(b.attrs<Attrs>(), &PoolDim::out);
    b.give(0, where(index >= 0, reshape(gather(flatten(b.grad(), 2), 2, places), shape), 0));
}

void avg_pool_rule(Backward& b) { b.give(0, run_avg(Run::avg_backward, b.attrs<Attrs>(), b.grad(), b.record().loc)); }
void avg_pool_gradient_rule(Backward& b) { b.give(0, run_avg(Run::avg, b.attrs<Attrs>(), b.grad(), b.record().loc)); }

// --- Arguments -----------------------------------------------------------------------------------------------------------

// Sets the last `count` of three.
void set(PoolDim (&dims)[3], int64_t PoolDim::* to, const Shape& given, int64_t least, const char* what, int count, const char* op, const Loc& loc) {
    for_spatial(given, least, what, count, op, loc, [&](int d, int64_t number) { dims[3 - count + d].*to = number; });
}

// Checks x, and takes it as (batch, channels, dims...).
Attrs attrs_of(const char* op, int dims, const In& x) {
    if (x.tensor.dim() != dims + 2) {
        fail<ShapeError>(x.loc, "{}: needs {} or {} dimensions, got {}{}", op, dims + 1, dims + 2, x.tensor.shape(),
                         detail::missing_hint(x.tensor.dim() == dims, "channels'"));
    }
    if (!is_floating(x.tensor.dtype())) {
        fail<DTypeError>(x.loc, "{}: needs a floating dtype, got {}; convert with to(float32)", op, name(x.tensor.dtype()));
    }
    Attrs attrs{{}, dims};
    attrs.shape.batch = x->sizes[0];
    attrs.shape.channels = x->sizes[1];
    for (int d = 0; d < dims; ++d) attrs.shape.dims[3 - dims + d].in = x->sizes[2 + d];
    if (attrs.shape.in_volume() > std::numeric_limits<std::int32_t>::max()) {
        fail<ShapeError>(x.loc, "{}: more than 2^31 elements in a channel: {}", op, x.tensor.shape());
    }
    return attrs;
}

void set_windows(const char* op, Attrs& attrs, const Shape& kernel, const Shape& stride, const Shape& padding, const Shape& dilation, bool ceil_mode,
                 const Loc& loc) {
    const int dims = attrs.dims;
    attrs.ceil_mode = ceil_mode;
    PoolDim(&all)[3] = attrs.shape.dims;
    set(all, &PoolDim::kernel, kernel, 1, "kernel_size", dims, op, loc);
    set(all, &PoolDim::stride, stride.empty() ? kernel : stride, 1, "stride", dims, op, loc);
    set(all, &PoolDim::before, padding, 0, "padding", dims, op, loc);
    set(all, &PoolDim::dilation, dilation, 1, "dilation", dims, op, loc);
    for (int d = 3 - dims; d < 3; ++d) {
        PoolDim& p = all[d];
        const int64_t reach = detail::window_reach(p.kernel, p.dilation), room = p.in + 2 * p.before;
        if (2 * p.before > reach) {
            fail<ValueError>(loc, "{}: padding {} is above half of the kernel's reach {}", op, p.before, reach);
        }
        if (room < (ceil_mode ? reach + 1 - p.stride : reach) || p.in == 0) {
            fail<ShapeError>(loc, "{}: a window that reaches over {} elements does not fit into the input's {} with padding {}", op, reach, p.in,
                             p.before);
        }
        p.out = ceil_mode ? detail::window_count_up(p.in, p.before, reach, p.stride) : detail::window_count(room, reach, p.stride);
    }
}

void set_adaptive(const char* op, Attrs& attrs, const Shape& output_size, const Loc& loc) {
    const int dims = attrs.dims;
    if (output_size.rank() != 1 && output_size.rank() != dims) {
        fail<ValueError>(loc, "{}: output_size needs {}, got {}", op, dims == 1 ? "1 number" : fmt::format("1 number or {}", dims), output_size);
    }
    for (int d = 0; d < dims; ++d) {
        PoolDim& p = attrs.shape.dims[3 - dims + d];
        p.is_adaptive = true;
        p.out = output_size[output_size.rank() == 1 ? 0 : d];
        if (p.out == -1) p.out = p.in;
        if (p.out < 0) fail<ValueError>(loc, "{}: output_size must not be negative, got {}", op, output_size);
        if (p.in == 0 && p.out > 0) fail<ShapeError>(loc, "{}: a dimension of the input has no elements", op);
    }
}

// Calls pool(x with a batch) and takes the batch away again.
template <class F>
Tensor batched(int dims, const In& x, const F& pool) {
    if (x.tensor.dim() != dims + 1) return pool(x);
    const detail::RecordedParts parts(x.loc);
    const Tensor batch = unsqueeze(x, 0);
    return squeeze(pool(In(batch, x.loc)), 0);
}

// The indices are undefined if they are not wanted, and nobody else needs them.
ValuesIndices max_of(const Attrs& attrs, const In& x, bool wants_index = true) {
    if (detail::in_batch()) [[unlikely]] {
        ValuesIndices made;
        const auto of_group = [&](const detail::Batched& in) {
            return detail::as_one_batch(in, [&](const Tensor& all) { return max_of(of_all(attrs, in.count()), In(all, x.loc)); });
        };
        if (detail::in_group({max_pool_op, x.loc, {&x.tensor}, key_of(attrs)}, of_group, made)) return made;
    }
    detail::begin_op("max_pool", x.tensor.impl(), x.loc);
    Tensor index;
    const Tensor y = run(Run::max, attrs, x.tensor, index, x.loc, wants_index || detail::thread.observed);
    if (detail::is_watched()) [[unlikely]] {
        record(max_pool_op, x.loc, {&x.tensor}, y, {&index}, attrs, Told{max_pool_op, {&x.tensor}, {&y, &index}}, call_of(attrs));
    } else {
        record(max_pool_op, x.loc, {&x.tensor}, y, {&index}, attrs);
    }
    return {y, index};
}

template <class SetWindows>
Tensor max_pool(const char* op, int dims, const In& x, Tensor* indices, const SetWindows& set_windows) {
    detail::check_defined(x, op);
    return batched(dims, x, [&](const In& batch) {
        Attrs attrs = attrs_of(op, dims, batch);
        set_windows(attrs, batch.loc);
        const ValuesIndices found = max_of(attrs, batch, /*wants_index=*/indices != nullptr);
        if (indices) *indices = x.tensor.dim() == dims + 1 ? squeeze(found.indices, 0) : found.indices;
        return found.values;
    });
}

Tensor max_pool(const char* op, int dims, const In& x, const Shape& kernel, const MaxPoolOptions& o, Tensor* indices = nullptr) {
    return max_pool(op, dims, x, indices,
                    [&](Attrs& attrs, const Loc& loc) { set_windows(op, attrs, kernel, o.stride, o.padding, o.dilation, o.ceil_mode, loc); });
}

ValuesIndices max_pool_with_indices(const char* op, int dims, const In& x, const Shape& kernel, const MaxPoolOptions& options) {
    Tensor indices;
    const Tensor values = max_pool(op, dims, x, kernel, options, &indices);
    const detail::RecordedParts parts(x.loc);
    return {values, indices.to(int64, x.loc)};
}

Tensor avg_pool(const char* op, int dims, const In& x, const Shape& kernel, const AvgPoolOptions& o) {
    detail::check_defined(x, op);
    return batched(dims, x, [&](const In& batch) {
        Attrs attrs = attrs_of(op, dims, batch);
        set_windows(op, attrs, kernel, o.stride, o.padding, 1, o.ceil_mode, batch.loc);
        attrs.shape.counts_padding = o.count_include_pad;
        attrs.shape.divisor = o.divisor_override;
        return run_avg(Run::avg, attrs, batch.tensor, batch.loc);
    });
}

Tensor adaptive_max(const char* op, int dims, const In& x, const Shape& size) {
    return max_pool(op, dims, x, nullptr, [&](Attrs& attrs, const Loc& loc) { set_adaptive(op, attrs, size, loc); });
}

Tensor adaptive_avg(const char* op, int dims, const In& x, const Shape& size) {
    detail::check_defined(x, op);
    return batched(dims, x, [&](const In& batch) {
        Attrs attrs = attrs_of(op, dims, batch);
        set_adaptive(op, attrs, size, batch.loc);
        return run_avg(Run::avg, attrs, batch.tensor, batch.loc);
    });
}

Tensor lp_pool(const char* op, int dims, const In& x, double p, const Shape& kernel, const LpPoolOptions& o) {
    detail::check_defined(x, op);
    if (!(p > 0)) fail<ValueError>(x.loc, "{}: norm_type must be above 0, got {}", op, p);
    const detail::RecordedParts parts(x.loc);
    // Uses the mean: a window that ends outside the input counts as a whole one.
    const Tensor means = avg_pool(op, dims, In(pow(x, p), x.loc), kernel, {.stride = o.stride, .ceil_mode = o.ceil_mode});
    const int64_t window = kernel.rank() == 1 && dims == 2 ? kernel[0] * kernel[0] : kernel.numel();
    // A root has no slope at 0: the gradient of a window of zeros is 0, as norm()'s is.
    const Tensor sums = means * window, is_zero = sums == 0;
    return where(is_zero, 0, pow(where(is_zero, 1, sums), 1 / p));
}

Tensor max_pool_backward(const In& g, const In& index, const PoolCall& call);

// For the samples: returns g to the largest elements of the pooled input.
Tensor to_largest(const Tensor& g, const Tensor& of, const Attrs& attrs) {
    const Tensor index = max_of(attrs, of.to(float64)).indices;
    return max_pool_backward(g, index, call_of(attrs));
}
Tensor to_largest(const Tensor& g, const Tensor& of, const Shape& kernel, const MaxPoolOptions& o) {
    Attrs attrs = attrs_of("max_pool", of.dim() - 2, of.to(float64));
    set_windows("max_pool", attrs, kernel, o.stride, o.padding, o.dilation, o.ceil_mode, Loc::current());
    return to_largest(g, of, attrs);
}
Tensor to_largest_adaptive(const Tensor& g, const Tensor& of, const Shape& output_size) {
    Attrs attrs = attrs_of("max_pool", of.dim() - 2, of.to(float64));
    set_adaptive("max_pool", attrs, output_size, Loc::current());
    return to_largest(g, of, attrs);
}

// Spreads means of windows of 2 x 2 back.
Tensor spread(const Tensor& g, int64_t rows, int64_t columns) {
    Attrs attrs{{}, 2};
    attrs.shape.batch = g.size(0);
    attrs.shape.channels = g.size(1);
    attrs.shape.dims[1] = {.in = rows, .out = g.size(2), .kernel = 2, .stride = 2};
    attrs.shape.dims[2] = {.in = columns, .out = g.size(3), .kernel = 2, .stride = 2};
    return run_avg(Run::avg_backward, attrs, g, Loc::current());
}

}  // namespace

Tensor max_pool1d(In x, const Shape& kernel, const MaxPoolOptions& options) { return max_pool("max_pool1d", 1, x, kernel, options); }
Tensor max_pool2d(In x, const Shape& kernel, const MaxPoolOptions& options) { return max_pool("max_pool2d", 2, x, kernel, options); }
Tensor max_pool3d(In x, const Shape& kernel, const MaxPoolOptions& options) { return max_pool("max_pool3d", 3, x, kernel, options); }
ValuesIndices max_pool1d_with_indices(In x, const Shape& kernel, const MaxPoolOptions& options) {
    return max_pool_with_indices("max_pool1d", 1, x, kernel, options);
}
ValuesIndices max_pool2d_with_indices(In x, const Shape& kernel, const MaxPoolOptions& options) {
    const detail::ComposedOp composed("max_pool2d_with_indices");
    return max_pool_with_indices("max_pool2d", 2, x, kernel, options);
}
ValuesIndices max_pool3d_with_indices(In x, const Shape& kernel, const MaxPoolOptions& options) {
    return max_pool_with_indices("max_pool3d", 3, x, kernel, options);
}
Tensor avg_pool1d(In x, const Shape& kernel, const AvgPoolOptions& options) { return avg_pool("avg_pool1d", 1, x, kernel, options); }
Tensor avg_pool2d(In x, const Shape& kernel, const AvgPoolOptions& options) { return avg_pool("avg_pool2d", 2, x, kernel, options); }
Tensor avg_pool3d(In x, const Shape& kernel, const AvgPoolOptions& options) { return avg_pool("avg_pool3d", 3, x, kernel, options); }
Tensor adaptive_max_pool1d(In x, const Shape& size) { return adaptive_max("adaptive_max_pool1d", 1, x, size); }
Tensor adaptive_max_pool2d(In x, const Shape& size) { return adaptive_max("adaptive_max_pool2d", 2, x, size); }
Tensor adaptive_max_pool3d(In x, const Shape& size) { return adaptive_max("adaptive_max_pool3d", 3, x, size); }
Tensor adaptive_avg_pool1d(In x, const Shape& size) { return adaptive_avg("adaptive_avg_pool1d", 1, x, size); }
Tensor adaptive_avg_pool2d(In x, const Shape& size) { return adaptive_avg("adaptive_avg_pool2d", 2, x, size); }
Tensor adaptive_avg_pool3d(In x, const Shape& size) { return adaptive_avg("adaptive_avg_pool3d", 3, x, size); }
Tensor lp_pool1d(In x, double norm_type, const Shape& kernel, const LpPoolOptions& options) {
    return lp_pool("lp_pool1d", 1, x, norm_type, kernel, options);
}
Tensor lp_pool2d(In x, double norm_type, const Shape& kernel, const LpPoolOptions& options) {
    return lp_pool("lp_pool2d", 2, x, norm_type, kernel, options);
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

// x: (batch, channels, ...). Sets all but the sizes of windows.
Attrs called_for(const char* op, const In& x, const PoolCall& call) {
    detail::check_defined(x, op);
    Attrs attrs = attrs_of(op, std::clamp(x.tensor.dim() - 2, 1, 3), x);
    attrs.shape.counts_padding = call.count_include_pad;
    attrs.shape.divisor = call.divisor_override;
    return attrs;
}

void set_called(const char* op, Attrs& attrs, const PoolCall& call, const Loc& loc) {
    if (!call.output_size.empty()) return set_adaptive(op, attrs, call.output_size, loc);
    set_windows(op, attrs, call.kernel_size, call.stride, call.padding, call.dilation, call.ceil_mode, loc);
}

std::vector<Tensor> max_pooled(const In& x, const PoolCall& call) {
    Attrs attrs = called_for("max_pool", x, call);
    set_called("max_pool", attrs, call, x.loc);
    const ValuesIndices found = max_of(attrs, x);
    return {found.values, found.indices};
}

Tensor max_pooled_values(const In& x, const PoolCall& call) {
    Attrs attrs = called_for("max_pool", x, call);
    set_called("max_pool", attrs, call, x.loc);
    const detail::PauseRecording pause;
    return max_of(attrs, x, /*wants_index=*/false).values;
}

Tensor avg_pooled(const In& x, const PoolCall& call) {
    Attrs attrs = called_for("avg_pool", x, call);
    set_called("avg_pool", attrs, call, x.loc);
    return run_avg(Run::avg, attrs, x.tensor, x.loc);
}

// Makes the attributes for the gradient of the pooled input: set from g, the result's gradient.
Attrs called_back(const char* op, const In& g, const PoolCall& call) {
    Attrs attrs = called_for(op, g, call);
    set(attrs.shape.dims, &PoolDim::in, call.input_size, 0, "input_size", attrs.dims, op, g.loc);
    set_called(op, attrs, call, g.loc);
    if (tensor_shape(attrs, &PoolDim::out) != g.tensor.shape()) {
        fail<ShapeError>(g.loc, "{}: {} is not what windows of an input of {} give", op, g.tensor.shape(), call.input_size);
    }
    return attrs;
}

Tensor max_pool_backward(const In& g, const In& index, const PoolCall& call) {
    const char* const op = "max_pool_backward";
    detail::check_defined(g, op);
    detail::check_defined(index, op);
    const DType dtype = index.tensor.dtype();
    if ((dtype != int32 && dtype != int64) || index.tensor.shape() != g.tensor.shape()) {
        fail<ShapeError>(g.loc, "{}: needs a gradient and indices of one shape, got {} of {} and {} of {}", op, g.tensor.shape(),
                         name(g.tensor.dtype()), index.tensor.shape(), name(dtype));
    }
    detail::check_same_device(op, g.tensor, index.tensor, g.loc);
    return run_max_backward(called_back(op, g, call), g.tensor, index.tensor, g.loc);
}

Tensor avg_pool_gradient(const In& g, const PoolCall& call) {
    const Attrs attrs = called_back("avg_pool_gradient", g, call);
    return run_avg(Run::avg_backward, attrs, g.tensor, g.loc);
}

void max_fields(Fields& f, PoolCall& a) {
    f("kernel_size", a.kernel_size)("stride", a.stride)("padding", a.padding)("dilation", a.dilation)("ceil_mode", a.ceil_mode);
    f("output_size", a.output_size);
}
void avg_fields(Fields& f, PoolCall& a) {
    f("kernel_size", a.kernel_size)("stride", a.stride)("padding", a.padding)("ceil_mode", a.ceil_mode);
    f("count_include_pad", a.count_include_pad)("divisor_override", a.divisor_override)("output_size", a.output_size);
}

// Returns the number of windows of one dimension.
SymInt windows_in(const SymInt& size, const SymInt& kernel, const SymInt& stride, const SymInt& padding, const SymInt& dilation, bool ceil_mode) {
    const SymInt room = size + SymInt(2) * padding;
    types::need(!(size == SymInt(0)), "a dimension has no elements");
    const SymInt reach = detail::window_reach(kernel, dilation), beyond = SymInt(2) * padding - reach;
    types::need<ValueError>(!beyond.is_number() || beyond.number() <= 0, "the padding is above half of the window");
    if (!ceil_mode) return types::windows(room, kernel, stride, dilation);
    if (!kernel.is_number() || !stride.is_number() || !padding.is_number() || !dilation.is_number()) return types::unknown();
    static_cast<void>(types::windows(room + stride - 1, kernel, stride, dilation));  // refuses a window that does not fit
    return detail::window_count_up(size, padding.number(), reach.number(), stride.number());
}

// x: (batch, channels, ...)
ValueType pooled(const ValueType& x, const TypeCall& t, const PoolCall& a, const std::vector<SymInt>& dilation) {
    using namespace types;
    const int dims = ranked(x, 3, 5).rank() - 2;
    ValueType result = x;
    const std::vector<SymInt> fixed = t.sizes("output_size"), kernel = t.sizes("kernel_size"), padding = t.sizes("padding");
    const std::vector<SymInt> stride = a.stride.empty() ? kernel : t.sizes("stride");
    for (int d = 0; d < dims; ++d) {
        SymInt& size = result.shape[static_cast<std::size_t>(d + 2)];
        if (fixed.empty()) {
            size = windows_in(size, spatial(kernel, d, dims), spatial(stride, d, dims), spatial(padding, d, dims), spatial(dilation, d, dims),
                              a.ceil_mode);
        } else if (const SymInt out = spatial(fixed, d, dims); !(out == SymInt(-1))) {
            need(!(size == SymInt(0)) || out == SymInt(0), "a dimension has no elements");
            size = out;
        }
    }
    return result;
}

ResultTypes max_pooled(const TypeCall& t, const PoolCall& a) {
    const ValueType values = pooled(t[0], t, a, t.sizes("dilation"));
    return {values, types::same(values, DType::int32)};
}

// g: the gradient for windows of an input of `input_size`.
ValueType unpooled(const ValueType& g, const TypeCall& t, const PoolCall& a, const std::vector<SymInt>& dilation) {
    const int dims = types::ranked(g, 3, 5).rank() - 2;
    ValueType result = g;
    for (int d = 0; d < dims; ++d) result.shape[static_cast<std::size_t>(d + 2)] = types::spatial(t.sizes("input_size"), d, dims);
    types::need(may_equal(pooled(result, t, a, dilation).shape, g.shape), "windows of such an input give another shape");
    return result;
}

}  // namespace

TAPIR_FORM(max_pool, 1, PoolCall, max_pooled(t, a), max_pooled(x[0], a), max_fields(f, a));
// max_pool whose indices nobody wants, in a graph that runs: see autograd/trace/passes/pass_pool.cpp.
TAPIR_FORM(max_pool_values, 1, PoolCall, max_pooled(t, a)[0], max_pooled_values(x[0], a), max_fields(f, a));
TAPIR_FORM(max_pool_backward, 2, PoolCall, unpooled(alike(t[0], t[1]), t, a, t.sizes("dilation")), max_pool_backward(x[0], x[1], a),
           f("input_size", a.input_size);
           max_fields(f, a));
TAPIR_FORM(avg_pool, 1, PoolCall, pooled(t[0], t, a, {1}), avg_pooled(x[0], a), avg_fields(f, a));
TAPIR_FORM(avg_pool_gradient, 1, PoolCall, unpooled(t[0], t, a, {1}), avg_pool_gradient(x[0], a), f("input_size", a.input_size); avg_fields(f, a));

}  // namespace tapir
