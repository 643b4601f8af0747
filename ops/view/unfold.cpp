// Windows of a tensor: as a view, and as the columns that a convolution multiplies (im2col), and the sum of windows (col2im).
#include <algorithm>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/size_math_impl.h"
#include "tapir/ops/arrange/arrange.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/normalization/channels_impl.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/view/unfold.h"
#include "tapir/ops/view/view.h"

namespace tapir {
namespace {

using std::int64_t;

void windows_rule(Backward& b);
void unfold_rule(Backward& b);
void fold_rule(Backward& b);

}  // namespace

TAPIR_OP(windows, windows_rule, "Windows along a dimension, as a view: Tensor::unfold.", TAPIR_SAMPLE("f(7)", x[0].unfold(0, 3, 2)),
         TAPIR_SAMPLE("f(2,5,3)", x[0].unfold(1, 2, 1)), TAPIR_SAMPLE("f(4,6)", x[0].unfold(-1, 2, 3)));
TAPIR_OP(unfold, unfold_rule, "The windows of each image as columns (im2col).", TAPIR_SAMPLE("f(2,3,4,5)", unfold(x[0], 2)),
         TAPIR_SAMPLE_AS("f(2,2,5,6)", "nn.functional.unfold(x[0], (2, 3), (2, 1), (1, 0), (1, 2))",
                         unfold(x[0], {2, 3}, {.dilation = {2, 1}, .padding = {1, 0}, .stride = {1, 2}})),
         TAPIR_SAMPLE("f(3,4,4)", unfold(x[0], 3)));
TAPIR_OP(fold, fold_rule, "Images as the sums of their windows (col2im).",
         TAPIR_SAMPLE_AS("f(2,12,12)", "nn.functional.fold(x[0], (4, 5), 2)", fold(x[0], {4, 5}, 2)),
         TAPIR_SAMPLE_AS("f(2,12,10)", "nn.functional.fold(x[0], (5, 6), (2, 3), (2, 1), (1, 0), (1, 2))",
                         fold(x[0], {5, 6}, {2, 3}, {.dilation = {2, 1}, .padding = {1, 0}, .stride = {1, 2}})),
         TAPIR_SAMPLE_AS("f(8,4)", "nn.functional.fold(x[0], 4, 2, 1, 0, 2)", fold(x[0], 4, 2, {.stride = 2})));

namespace {

// --- Windows as a view -----------------------------------------------------------------------------------------------------

struct WindowAttrs {
    int64_t dim, size, step;
};
// The arguments of unfold() and fold(); output_size is fold's.
struct ColumnsCall {
    Shape output_size, kernel_size, dilation, padding, stride;

    FoldOptions options() const { return {.dilation = dilation, .padding = padding, .stride = stride}; }
};

// Element k of window w is element w * step + k.
void windows_rule(Backward& b) {
    if (!b.needs(0)) return;
    const auto& [dim, size, step] = b.attrs<WindowAttrs>();
    const int d = static_cast<int>(dim), rank = b.grad().dim();
    const Tensor& g = b.grad();  // (..., windows, ..., size)
    Dims order;
    for (int k = 0; k < rank - 1; ++k) {
        order.push_back(k);
        if (k == d) order.push_back(rank - 1);  // the elements beside their windows
    }
    const Tensor beside = permute(g, order);
    Shape flat = b.input_shape(0);
    flat[d] = g.size(d) * size;
    const TensorOptions options(int64, g.device());
    const Tensor places = reshape(unsqueeze(arange(g.size(d), options) * step, 1) + arange(size, options), {-1});
    b.give(0, index_add(gradient_ops::zeros(b.input_shape(0), g.dtype(), g.device()), d, places, reshape(beside, flat)));
}

}  // namespace

Tensor Tensor::unfold(Dim dim, int64_t size, int64_t step, Loc loc) const {
    const In x(*this, loc);
    detail::check_defined(x, "unfold");
    const int rank = this->dim();
    const int d = detail::wrap_dim(dim, rank, "unfold", loc);
    if (rank == 0) {  // as if it had one element; all of it is one window
        const detail::RecordedParts parts(loc);
        return tapir::select(In(tapir::reshape(x, {1}).unfold(0, size, step, loc), loc), 0, 0);
    }
    if (size < 0 || step < 1) fail<ValueError>(loc, "unfold: there are no windows of {} elements, one every {}", size, step);
    if (size > x->sizes[d]) {
        fail<ShapeError>(loc, "unfold: a window of {} elements does not fit into dimension {} of shape {}", size, d, shape());
    }
    Shape sizes = shape(), strides = this->strides();
    sizes.push_back(size, loc);
    strides.push_back(strides[d], loc);
    sizes[d] = detail::window_count(sizes[d], size, step);
    if (sizes[d] > 1) strides[d] *= step;  // a single window has no next one, however far that would be
    detail::checked_numel(sizes, dtype(), loc);
    Tensor view = detail::at_line(loc, [&] { return detail::make_view(impl_, sizes, strides, 0); });
    record(windows_op, loc, {this}, view, {}, WindowAttrs{d, size, step});
    return view;
}

// --- Columns -----------------------------------------------------------------------------------------------------------------

namespace {

// Images of `size` (height, width), where each kernel position makes a row of out[0] * out[1] columns.
struct Columns {
    int64_t size[2], kernel[2], dilation[2], padding[2], stride[2], out[2];

    int64_t window() const { return kernel[0] * kernel[1]; }
    int64_t count() const { return out[0] * out[1]; }
    ColumnsCall call() const { return {Shape(size, 2), Shape(kernel, 2), Shape(dilation, 2), Shape(padding, 2), Shape(stride, 2)}; }
    // inside() finds the windows [begin, end) of dimension d whose kernel position k meets the image: window w reads w * stride + shift.
    int64_t shift(int d, int64_t k) const { return k * dilation[d] - padding[d]; }
    void inside(int d, int64_t k, int64_t& begin, int64_t& end) const {
        const int64_t at = shift(d, k);
        begin = at >= 0 ? 0 : std::min((-at + stride[d] - 1) / stride[d], out[d]);
        end = std::clamp<int64_t>(at >= size[d] ? 0 : (size[d] - 1 - at) / stride[d] + 1, begin, out[d]);
    }
};

Tensor run_unfold(const Tensor& x, const Columns& c, const Loc& loc);
Tensor run_fold(const Tensor& columns, const Columns& c, const Loc& loc);

void unfold_rule(Backward& b) {
    if (b.needs(0)) b.give(0, run_fold(b.grad(), b.attrs<Columns>(), b.record().loc));
}
void fold_rule(Backward& b) {
    if (b.needs(0)) b.give(0, run_unfold(b.grad(), b.attrs<Columns>(), b.record().loc));
}

// The result, if the op was computed together with its peers in batch().
template <class Run>
Tensor columns_in_group(const OpInfo& op, const Tensor& x, const Columns& c, const Loc& loc, const Run& run) {
    detail::BatchKey key;
    for (int d = 0; d < 2; ++d) {
        for (const int64_t number : {c.size[d], c.kernel[d], c.dilation[d], c.padding[d], c.stride[d]}) key.add(number);
    }
    const auto of_group = [&](const detail::Batched& in) { return detail::as_one_batch(in, [&](const Tensor& all) { return run(all, c, loc); }); };
    return detail::in_group({op, loc, {&x}, key}, of_group);
}

// x (n, channels, height, width) -> (n, channels * window, count)
Tensor run_unfold(const Tensor& x, const Columns& c, const Loc& loc) {
    if (detail::in_batch()) [[unlikely]] {
        if (Tensor y = columns_in_group(unfold_op, x, c, loc, run_unfold); y.defined()) return y;
    }
    detail::begin_op("unfold", x.impl(), loc);
    Tensor out;
    {
        const detail::UnrecordedPartsOf parts(loc);
        const int64_t after[2] = {c.padding[0], c.padding[1]};
        const bool is_padded = c.padding[0] > 0 || c.padding[1] > 0;
        const Tensor whole = is_padded ? pad(x, {c.padding[1], after[1], c.padding[0], after[0]}) : x;
        const Shape strides = whole.strides();
        const Tensor view = detail::make_view(
            whole.impl(), {x.size(0), x.size(1), c.kernel[0], c.kernel[1], c.out[0], c.out[1]},
            {strides[0], strides[1], c.dilation[0] * strides[2], c.dilation[1] * strides[3], c.stride[0] * strides[2], c.stride[1] * strides[3]}, 0);
        out = detail::make_empty({x.size(0), x.size(1) * c.window(), c.count()}, x.dtype(), x.device(), loc);
        if (out.numel() > 0) copy_elements(reshape(out, view.shape()), view);
    }
    if (detail::thread.observed) record(unfold_op, loc, {&x}, out, {}, c, Told{unfold_op, {&x}}, c.call());
    return out;
}

// image (height, width) = the sums of its windows; columns (window, count).
template <class T>
void add_windows(T* image, const T* columns, const Columns& c) {
    std::fill(image, image + c.size[0] * c.size[1], T(0));
    for (int64_t i = 0; i < c.kernel[0]; ++i) {
        int64_t first_row, end_row;
        c.inside(0, i, first_row, end_row);
        for (int64_t j = 0; j < c.kernel[1]; ++j, columns += c.count()) {
            int64_t first, end;
            c.inside(1, j, first, end);
            for (int64_t row = first_row; row < end_row; ++row) {
                T* to = image + (row * c.stride[0] + c.shift(0, i)) * c.size[1] + c.shift(1, j);
                const T* from = columns + row * c.out[1];
                if (c.stride[1] == 1) {
#pragma omp simd
                    for (int64_t k = first; k < end; ++k) to[k] += from[k];
                } else {
                    for (int64_t k = first; k < end; ++k) to[k * c.stride[1]] += from[k];
                }
            }
        }
    }
}

template <class T>
void fold_on_cpu(const Tensor& columns, const Tensor& out, const Columns& c) {
    const int64_t images = out.size(0) * out.size(1), volume = c.size[0] * c.size[1];
    auto* to = static_cast<T*>(out.raw_data());
    const auto* from = static_cast<const T*>(columns.raw_data());
    const int64_t work = c.window() * c.count();
    parallel_items(images, std::max<int64_t>(1, 16 * 1024 / (work + 1)), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) add_windows(to + i * volume, from + i * work, c);
    });
}

// Handles one kernel position after the other, since windows overlap.
void fold_on_gpu(const Tensor& columns, const Tensor& out, const Columns& c) {
    zero_elements(out);
    const int64_t n = out.size(0), channels = out.size(1), plane = c.size[0] * c.size[1];
    for (int64_t i = 0; i < c.kernel[0]; ++i) {
        for (int64_t j = 0; j < c.kernel[1]; ++j) {
            int64_t begin[2], end[2];
            c.inside(0, i, begin[0], end[0]);
            c.inside(1, j, begin[1], end[1]);
            const Shape sizes{n, channels, end[0] - begin[0], end[1] - begin[1]};
            if (sizes.numel() == 0) continue;
            const int64_t to = (begin[0] * c.stride[0] + c.shift(0, i)) * c.size[1] + begin[1] * c.stride[1] + c.shift(1, j);
            const int64_t from = (i * c.kernel[1] + j) * c.count() + begin[0] * c.out[1] + begin[1];
            gradient_ops::add_into(
                detail::make_view(out.impl(), sizes, {channels * plane, plane, c.stride[0] * c.size[1], c.stride[1]}, to),
                detail::make_view(columns.impl(), sizes, {channels * c.window() * c.count(), c.window() * c.count(), c.out[1], 1}, from));
        }
    }
}

// columns (n, channels * window, count) -> (n, channels, height, width)
Tensor run_fold(const Tensor& columns, const Columns& c, const Loc& loc) {
    if (detail::in_batch()) [[unlikely]] {
        if (Tensor y = columns_in_group(fold_op, columns, c, loc, run_fold); y.defined()) return y;
    }
    detail::begin_op("fold", columns.impl(), loc);
    Tensor out;
    {
        const detail::UnrecordedPartsOf parts(loc);
        const DType dtype = columns.dtype(), compute = computed_in(dtype);
        const Tensor from = columns.to(compute, loc).contiguous(loc);
        out = detail::make_empty({columns.size(0), columns.size(1) / c.window(), c.size[0], c.size[1]}, compute, columns.device(), loc);
        if (from.numel() == 0) {
            zero_elements(out);
        } else if (on_gpu(out)) {
            fold_on_gpu(from, out, c);
        } else if (compute == float64) {
            fold_on_cpu<double>(from, out, c);
        } else {
            fold_on_cpu<float>(from, out, c);
        }
        out = out.to(dtype, loc);
    }
    if (detail::thread.observed) record(fold_op, loc, {&columns}, out, {}, c, Told{fold_op, {&columns}}, c.call());
    return out;
}

Columns columns_of(const char* op, int64_t height, int64_t width, const Shape& kernel, const FoldOptions& o, const Loc& loc) {
    Columns c{};
    c.size[0] = height;
    c.size[1] = width;
    for_spatial(kernel, 1, "kernel_size", 2, op, loc, [&](int d, int64_t n) { c.kernel[d] = n; });
    for_spatial(o.dilation, 1, "dilation", 2, op, loc, [&](int d, int64_t n) { c.dilation[d] = n; });
    for_spatial(o.padding, 0, "padding", 2, op, loc, [&](int d, int64_t n) { c.padding[d] = n; });
    for_spatial(o.stride, 1, "stride", 2, op, loc, [&](int d, int64_t n) { c.stride[d] = n; });
    for (int d = 0; d < 2; ++d) {
        const int64_t reach = detail::window_reach(c.kernel[d], c.dilation[d]), room = c.size[d] + 2 * c.padding[d];
        if (room < reach || c.size[d] == 0) {
            fail<ShapeError>(loc, "{}: windows of {} elements do not fit into the input's {} with padding {}", op, reach, c.size[d], c.padding[d]);
        }
        c.out[d] = detail::window_count(room, reach, c.stride[d]);
    }
    return c;
}

void check_floating(const char* op, const In& x, int rank) {
    if (x.tensor.dim() != rank && x.tensor.dim() != rank - 1) {
        fail<ShapeError>(x.loc, "{}: needs {} or {} dimensions, got {}", op, rank - 1, rank, x.tensor.shape());
    }
    if (!is_floating(x->dtype)) fail<DTypeError>(x.loc, "{}: needs a floating dtype, got {}; convert with to(float32)", op, name(x->dtype));
}

}  // namespace

Tensor unfold(In x, const Shape& kernel_size, const FoldOptions& options) {
    detail::check_defined(x, "unfold");
    check_floating("unfold", x, 4);
    const int rank = x.tensor.dim();
    const Columns c = columns_of("unfold", x->sizes[rank - 2], x->sizes[rank - 1], kernel_size, options, x.loc);
    if (rank == 4) return run_unfold(x.tensor, c, x.loc);
    const detail::RecordedParts parts(x.loc);
    return squeeze(run_unfold(unsqueeze(x, 0), c, x.loc), 0);
}

Tensor fold(In x, const Shape& output_size, const Shape& kernel_size, const FoldOptions& options) {
    detail::check_defined(x, "fold");
    check_floating("fold", x, 3);
    int64_t size[2] = {0, 0};
    for_spatial(output_size, 1, "output_size", 2, "fold", x.loc, [&](int d, int64_t n) { size[d] = n; });
    const Columns c = columns_of("fold", size[0], size[1], kernel_size, options, x.loc);
    const int rank = x.tensor.dim();
    if (x->sizes[rank - 2] % c.window() != 0 || x->sizes[rank - 1] != c.count()) {
        fail<ShapeError>(x.loc, "fold: columns of shape {} are not (channels * {}, {}), as images of {} x {} need", x.tensor.shape(), c.window(),
                         c.count(), size[0], size[1]);
    }
    if (rank == 3) return run_fold(x.tensor, c, x.loc);
    const detail::RecordedParts parts(x.loc);
    return squeeze(run_fold(unsqueeze(x, 0), c, x.loc), 0);
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

// Returns the positions of windows, and behind all dimensions the elements of one window.
ValueType windowed(const TypeCall& t, int64_t dim) {
    using namespace types;
    const ValueType& x = t[0];
    const SymInt size = t.size("size"), step = t.size("step");
    if (x.rank() == 0) {  // as a tensor of one element, which is one window
        need(!size.is_number() || size.number() <= 1, "a window does not fit");
        return shaped(along(x, dim), {size});
    }
    need<ValueError>(!step.is_number() || step.number() > 0, "there is less than one element from window to window");
    const SymInt &all = size_of(x, dim), rest = all - size;
    need(!rest.is_number() || rest.number() >= 0, "a window does not fit");
    const ValueType places = resized(x, dim, step.is_number() ? detail::window_count(all, size, step.number()) : unknown());
    return shaped(x, appended(places.shape, {size}));
}

// Counts for (height, width) the elements of a window, and the windows.
struct ColumnSizes {
    SymInt window = 1, count = 1;
};
ColumnSizes column_sizes(const TypeCall& t, const std::vector<SymInt>& image) {
    using namespace types;
    const std::vector<SymInt> kernel = t.sizes("kernel_size"), dilation = t.sizes("dilation"), padding = t.sizes("padding"),
                              stride = t.sizes("stride");
    ColumnSizes c;
    for (int d = 0; d < 2; ++d) {
        const SymInt size = spatial(image, d, 2), room = size + SymInt(2) * spatial(padding, d, 2);
        need(!(size == SymInt(0)), "there are no pixels");
        c.window = c.window * spatial(kernel, d, 2);
        c.count = c.count * windows(room, spatial(kernel, d, 2), spatial(stride, d, 2), spatial(dilation, d, 2));
    }
    return c;
}

// (..., channels, height, width) to (..., channels * window, count)
ValueType unfolded(const TypeCall& t) {
    const ValueType& x = types::ranked(t[0], 3, 4);
    const ColumnSizes c = column_sizes(t, {types::size_of(x, -2), types::size_of(x, -1)});
    return types::shaped(x, types::leading(x, 3, {types::size_of(x, -3) * c.window, c.count}));
}
// Maps (..., channels * window, count) back.
ValueType folded(const TypeCall& t) {
    const ValueType& x = types::ranked(t[0], 2, 3);
    const std::vector<SymInt> image = t.sizes("output_size");
    const ColumnSizes c = column_sizes(t, image);
    types::need(may_equal(types::size_of(x, -1), c.count), "there are more or fewer columns than windows");
    const SymInt channels = types::quotient(types::size_of(x, -2), c.window);
    return types::shaped(x, types::leading(x, 2, {channels, types::spatial(image, 0, 2), types::spatial(image, 1, 2)}));
}

}  // namespace

TAPIR_VIEW_FORM(windows, 1, WindowAttrs, windowed(t, a.dim), x[0].unfold(static_cast<int>(a.dim), a.size, a.step),
                f("dim", a.dim)("size", a.size)("step", a.step));
TAPIR_FORM(unfold, 1, ColumnsCall, unfolded(t), unfold(x[0], a.kernel_size, a.options()),
           f("kernel_size", a.kernel_size)("dilation", a.dilation)("padding", a.padding)("stride", a.stride));
TAPIR_FORM(fold, 1, ColumnsCall, folded(t), fold(x[0], a.output_size, a.kernel_size, a.options()),
           f("output_size", a.output_size)("kernel_size", a.kernel_size)("dilation", a.dilation)("padding", a.padding)("stride", a.stride));

}  // namespace tapir
