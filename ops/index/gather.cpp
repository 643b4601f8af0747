// gather, scatter and scatter_add, which take one position for each element; index_select and index_add, which take one for each slice.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tapir/autograd/op_form.h"
#include "tapir/core/composed_op_impl.h"
#include "tapir/core/deterministic.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/values_impl.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/index/index_impl.h"
#include "tapir/ops/into_impl.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/view/view.h"
#include "tapir/ops/view/view_impl.h"

namespace tapir {
namespace {

using std::int64_t;

// For ops with one index tensor, which is saved as it was checked: int64, not negative. In a trace the op's own operand is
// saved, since the graph knows only that; is_given says so.
struct AlongAttrs {
    int dim;
    bool is_given;
};

AlongAttrs along(int dim) { return {dim, detail::is_tracing()}; }
const Tensor& kept_index(const Tensor& given, const Tensor& checked) { return detail::is_tracing() ? given : checked; }

void gather_rule(Backward& b);
void scatter_rule(Backward& b);
void scatter_add_rule(Backward& b);
void scatter_reduce_rule(Backward& b);
void index_select_rule(Backward& b);
void index_add_rule(Backward& b);

}  // namespace

TAPIR_OP(gather, gather_rule, "Elements picked along a dimension, one index for each.", TAPIR_SAMPLE("f(4,3) i(2,3)<4", gather(x[0], 0, x[1])),
         TAPIR_SAMPLE("f(4,3) i(4,5)<3", gather(x[0], 1, x[1])), TAPIR_SAMPLE("f(4,3) i(2,2)<3", gather(x[0], -1, x[1])),
         TAPIR_SAMPLE("f(2,4,3) i(2,5,2)<4", gather(x[0], 1, x[1])), TAPIR_SAMPLE("f(6) i(4)<6", gather(x[0], 0, x[1])),
         TAPIR_SAMPLE("f(4,3) i(0,3)<4", gather(x[0], 0, x[1])));
TAPIR_OP(scatter, scatter_rule, "A tensor overwritten where gather would read.",
         TAPIR_SAMPLE_AS("f(4,3) i(2,3)<4 f(2,3)", "", scatter(x[0], 0, x[1], x[2])),
         TAPIR_SAMPLE_AS("f(4,3) i(4,2)<3 f(4,4)", "", scatter(x[0], 1, x[1], x[2])),
         TAPIR_SAMPLE("f(4,3) i(4,1)<3 f(4,1)", scatter(x[0], 1, x[1], x[2])), TAPIR_SAMPLE("f(4,3) i(4,2)<3", scatter(x[0], 1, x[1], 2.5)),
         TAPIR_SAMPLE_AS("f(2,4,3) i(2,5,2)<4 f(2,5,2)", "", scatter(x[0], 1, x[1], x[2])));
TAPIR_OP(scatter_add, scatter_add_rule, "A tensor added to where gather would read.",
         TAPIR_SAMPLE("f(4,3) i(2,3)<4 f(2,3)", scatter_add(x[0], 0, x[1], x[2])),
         TAPIR_SAMPLE("f(4,3) i(4,5)<3 f(4,5)", scatter_add(x[0], -1, x[1], x[2])),
         TAPIR_SAMPLE("f(2,4,3) i(2,5,2)<4 f(3,5,2)", scatter_add(x[0], 1, x[1], x[2])),
         TAPIR_SAMPLE("f(5) i(7)<5 f(7)", scatter_add(x[0], 0, x[1], x[2])));
TAPIR_OP(scatter_reduce, scatter_reduce_rule, "A tensor combined with another where gather would read.",
         TAPIR_SAMPLE_AS("f(4,3) i(6,3)<4 f(6,3)", "scatter_reduce(x[0], 0, x[1], x[2], 'sum')", scatter_reduce(x[0], 0, x[1], x[2], "sum")),
         TAPIR_SAMPLE_AS("f(4,3) i(4,5)<3 f(4,5)", "scatter_reduce(x[0], 1, x[1], x[2], 'prod')", scatter_reduce(x[0], 1, x[1], x[2], "prod")),
         TAPIR_SAMPLE_AS("f(4,3) i(4,5)<3 f(4,6)", "scatter_reduce(x[0], 1, x[1], x[2], 'prod', include_self=False)",
                         scatter_reduce(x[0], 1, x[1], x[2], "prod", false)),
         TAPIR_SAMPLE_AS("f(2,4,3) i(2,5,2)<4 f(3,5,2)", "scatter_reduce(x[0], 1, x[1], x[2], 'mean')", scatter_reduce(x[0], 1, x[1], x[2], "mean")),
         TAPIR_SAMPLE_AS("f(5) i(7)<5 f(7)", "scatter_reduce(x[0], 0, x[1], x[2], 'mean', include_self=False)",
                         scatter_reduce(x[0], 0, x[1], x[2], "mean", false)),
         TAPIR_SAMPLE_AS("f(4,3) i(6,2)<4 f(6,3)", "scatter_reduce(x[0], 0, x[1], x[2], 'amax')", scatter_reduce(x[0], 0, x[1], x[2], "amax")),
         TAPIR_SAMPLE_AS("f(4,3) i(3,3)<4 f(3,3)", "scatter_reduce(x[0], -2, x[1], x[2], 'amax', include_self=False)",
                         scatter_reduce(x[0], -2, x[1], x[2], "amax", false)),
         TAPIR_SAMPLE_AS("f(2,4,3) i(2,4,9)<3 f(2,4,9)", "scatter_reduce(x[0], 2, x[1], x[2], 'amin')", scatter_reduce(x[0], 2, x[1], x[2], "amin")),
         TAPIR_SAMPLE_AS("f(5) i(7)<5 f(7)", "scatter_reduce(x[0], 0, x[1], x[2], 'amin', include_self=False)",
                         scatter_reduce(x[0], 0, x[1], x[2], "amin", false)),
         TAPIR_SAMPLE_AS("f(6) i(9)<3 f(9)", "scatter_reduce(torch.relu(x[0]), 0, x[1], x[2], 'prod')",
                         scatter_reduce(relu(x[0]), 0, x[1], x[2], "prod")));
TAPIR_OP(index_select, index_select_rule, "Slices picked along a dimension.", TAPIR_SAMPLE("f(4,3) i(5)<4", index_select(x[0], 0, x[1])),
         TAPIR_SAMPLE("f(4,3) i(2)<3", index_select(x[0], -1, x[1])), TAPIR_SAMPLE("f(2,4,3) i(5)<4", index_select(x[0], 1, x[1])),
         TAPIR_SAMPLE("f(4,3) i(0)<3", index_select(x[0], 1, x[1])));
TAPIR_OP(index_fill, Composed, "A tensor with slices filled with a number.", TAPIR_SAMPLE("f(3,4) i(2)<4", index_fill(x[0], 1, x[1], 2)),
         TAPIR_SAMPLE("f(3,4) i(2)<3 f()", index_fill(x[0], 0, x[1], x[2])), TAPIR_SAMPLE("f(3,4) i()<3 f()", index_fill(x[0], 0, x[1], x[2])),
         TAPIR_SAMPLE("f() i(2)<1", index_fill(x[0], 0, x[1], 2)));
TAPIR_OP(index_add, index_add_rule, "A tensor with slices added to it.", TAPIR_SAMPLE("f(4,3) i(5)<4 f(5,3)", index_add(x[0], 0, x[1], x[2])),
         TAPIR_SAMPLE_AS("f(4,3) i(2)<3 f(4,2)", "x[0].index_add(1, x[1], x[2], alpha=2)", index_add(x[0], 1, x[1], x[2], 2)),
         TAPIR_SAMPLE("f(2,4,3) i(5)<4 f(2,5,3)", index_add(x[0], -2, x[1], x[2])));

// --- Loops -----------------------------------------------------------------------------------------------------------

namespace {

constexpr int64_t kParallelElements = 32 * 1024;

// A row along the last dimension of the index tensor.
struct IndexRow {
    const int64_t* index;
    int64_t n;
    int64_t x;      // offset in x of index 0 of the row
    int64_t other;  // offset of the row in the tensor that is read or written beside x
    int64_t place;  // elements of the index before it
};

// The loops of gather and its kin. Rows that may meet in x, since they differ in the indexed dimension, form one
// group, which stays on one thread.
class ElementLoop {
 public:
    ElementLoop(const Tensor& index, int dim, const Shape& x_strides, const Shape& other_strides)
        : index_(static_cast<const int64_t*>(index.raw_data())), sizes_(index.shape()), dim_(dim), x_(x_strides), other_(other_strides) {
        for (int d = 0; d < sizes_.rank(); ++d) (d < dim ? groups_ : group_numel_) *= sizes_.raw(d);
    }

    // Number i of a row is at x + index[i] * stride() + i * step().
    int64_t stride() const { return x_.raw(dim_); }
    int64_t step() const { return dim_ == last() ? 0 : x_.raw(last()); }
    int64_t other_step() const { return other_.raw(last()); }

    template <bool Backwards = false, class Body>
    void rows(const Body& body) const {
        if (groups_ * group_numel_ == 0) return;
        const int64_t rows = group_numel_ / sizes_.raw(last());
        const auto part = [&](int64_t begin, int64_t end) {
            for (int64_t i = begin * rows; i < end * rows; ++i) body(row(Backwards ? (begin + end) * rows - 1 - i : i));
        };
        if (groups_ * group_numel_ < 2 * kParallelElements) return part(0, groups_);
        parallel_for(groups_, kParallelElements / group_numel_ + 1, part);
    }

 private:
    int last() const { return sizes_.rank() - 1; }

    IndexRow row(int64_t number) const {
        const int64_t width = sizes_.raw(last());
        IndexRow result{index_ + number * width, width, 0, 0, number * width};
        for (int d = last(); d-- > 0;) {
            const int64_t place = number % sizes_.raw(d);
            number /= sizes_.raw(d);
            if (d != dim_) result.x += place * x_.raw(d);
            result.other += place * other_.raw(d);
        }
        return result;
    }

    const int64_t* index_;
    Shape sizes_;
    int dim_;
    Shape x_, other_;
    int64_t groups_ = 1, group_numel_ = 1;
};

unsigned size_of(const Tensor& t) { return static_cast<unsigned>(itemsize(t.dtype())); }

// Makes the same loops for the GPU, but for x and the other tensor: leaves out dimensions of size 1, and merges those that are evenly
// spaced in both.
kernels::ElementArgs element_args(const Tensor& x, int dim, const Shape& sizes, const Shape& other_strides) {
    kernels::ElementArgs args{};
    const Shape x_strides = x.strides();
    device_api::select(x.device());
    args.size = size_of(x);
    args.numel = sizes.numel();
    args.stride = x_strides.raw(dim);
    args.extent = 1;
    for (int d = 0; d < x.dim(); ++d) args.extent += (x.impl()->sizes[d] - 1) * x_strides.raw(d);
    args.x = on_stream(x.impl());
    for (int d = 0; d < sizes.rank(); ++d) {
        if (sizes.raw(d) == 1) continue;
        const int64_t step = d == dim ? 0 : x_strides.raw(d);
        const int last = args.rank - 1;
        const bool merge =
            last >= 0 && args.x_strides[last] == step * sizes.raw(d) && args.other_strides[last] == other_strides.raw(d) * sizes.raw(d);
        const int to = merge ? last : args.rank++;
        args.sizes[to] = (merge ? args.sizes[last] : 1) * sizes.raw(d);
        args.x_strides[to] = step;
        args.other_strides[to] = other_strides.raw(d);
    }
    return args;
}

void gather_on_gpu(const Tensor& out, const Tensor& x, int dim, const PickedIndex& index) {
    if (out.numel() == 0) return;
    kernels::ElementArgs args = element_args(x, dim, index.checked.shape(), out.strides());
    args.index = index.source();
    args.other = on_stream(out.impl());
    gpu::gather(args);
}

// out = x at the indices; out is contiguous and of the index's shape.
void gather_elements(const Tensor& out, const Tensor& x, int dim, const PickedIndex& index) {
    if (on_gpu(x)) return gather_on_gpu(out, x, dim, index);
    const ElementLoop loop(index.checked, dim, x.strides(), out.strides());
    const unsigned size = size_of(x);
    loop.rows([&](const IndexRow& row) {
        kernels::gather_run(size, row.n, out.impl()->data + row.place * size, x.impl()->data + row.x * size, row.index, loop.stride(), loop.step());
    });
}

// x at the indices = src, of the index's shape and x's dtype. The last of equal indices wins.
void scatter_elements(const Tensor& x, int dim, const Tensor& index, const Tensor& src) {
    if (on_gpu(x)) {
        if (index.numel() == 0) return;
        kernels::ElementArgs args = element_args(x, dim, index.shape(), src.strides());
        args.index = {on_stream(index.impl())};
        if (on_gpu(src)) {
            args.other = on_stream(src.impl());
        } else {
            args.number = number_bits(src.impl());
        }
        return gpu::scatter(args);
    }
    const ElementLoop loop(index, dim, x.strides(), src.strides());
    const unsigned size = size_of(x);
    loop.rows([&](const IndexRow& row) {
        kernels::scatter_run(size, row.n, x.impl()->data + row.x * size, row.index, loop.stride(), loop.step(), src.impl()->data + row.other * size,
                             loop.other_step());
    });
}

// Undoes scatter_elements: out = x at the indices, zero but for the last of equal ones; x is 0 there afterwards.
void take_elements(const Tensor& out, const Tensor& x, int dim, const Tensor& index) {
    if (on_gpu(x)) {
        if (index.numel() == 0) return;
        kernels::ElementArgs args = element_args(x, dim, index.shape(), out.strides());
        args.index = {on_stream(index.impl())};
        args.other = on_stream(out.impl());
        return gpu::take(args);
    }
    const ElementLoop loop(index, dim, x.strides(), out.strides());
    const unsigned size = size_of(x);
    loop.rows<true>([&](const IndexRow& row) {
        kernels::take_run(size, row.n, out.impl()->data + row.place * size, x.impl()->data + row.x * size, row.index, loop.stride(), loop.step());
    });
}

// As add_elements for bytes, without a wider copy of x: sums wrap, and a sum of bools is true if any is.
void add_bytes(const Tensor& x, int dim, const Tensor& index, const Tensor& values) {
    const ElementLoop loop(index, dim, x.strides(), values.strides());
    const bool is_bool = x.dtype() == bool_;
    loop.rows([&](const IndexRow& row) {
        auto* const to = reinterpret_cast<std::uint8_t*>(x.impl()->data) + row.x;
        const auto* const from = reinterpret_cast<const std::uint8_t*>(values.impl()->data) + row.other;
        for (int64_t i = 0; i < row.n; ++i) {
            std::uint8_t& sum = to[row.index[i] * loop.stride() + i * loop.step()];
            const std::uint8_t more = from[i * loop.other_step()];
            sum = static_cast<std::uint8_t>(is_bool ? sum | more : sum + more);
        }
    });
}

// As add_elements for 16-bit floats, summed in float32: it goes part by part along dim, and only over parts that an index names, so that it
// never makes a wider copy of all of x. The passes over the indices take no longer than one over x. False, without work done: one part only.
bool add_in_parts(const Tensor& x, int dim, const Tensor& index, const Tensor& values) {
    constexpr int64_t kPart = 64 * 1024;
    const int64_t size = x.size(dim), others = x.numel() / size;
    const int64_t length = std::max<int64_t>(std::max(kPart, index.numel()) / others, 1), parts = (size + length - 1) / length;
    if (parts == 1) return false;
    const auto* const places = static_cast<const int64_t*>(index.raw_data());
    std::vector<bool> is_named(static_cast<std::size_t>(parts));
    for (int64_t i = 0; i < index.numel(); ++i) is_named[static_cast<std::size_t>(places[i] / length)] = true;
    for (int64_t part = 0; part < parts; ++part) {
        if (!is_named[static_cast<std::size_t>(part)]) continue;
        const int64_t first = part * length, count = std::min(length, size - first);
        const Tensor there = x.narrow(dim, first, count), wide = there.to(float32);
        const ElementLoop loop(index, dim, wide.strides(), values.strides());
        loop.rows([&](const IndexRow& row) {
            auto* const to = static_cast<float*>(wide.raw_data()) + row.x;
            const auto* const from = static_cast<const float*>(values.raw_data()) + row.other;
            for (int64_t i = 0; i < row.n; ++i) {
                const int64_t at = row.index[i] - first;
                if (at >= 0 && at < count) to[at * loop.stride() + i * loop.step()] += from[i * loop.other_step()];
            }
        });
        copy_elements(there, wide);
    }
    return true;
}

// x at the indices += src.
void add_elements(const Tensor& x, int dim, const Tensor& index, const Tensor& src) {
    const kernels::Compute type = kernels::compute_of(x.dtype());
    const DType dtype = kernels::stored_as(type);
    const detail::UnrecordedParts parts;
    if (itemsize(x.dtype()) == 1 && !on_gpu(x)) return add_bytes(x, dim, index, src.to(x.dtype()));
    if (x.dtype() != dtype) {  // sums of many small numbers need the wider type
        if (!on_gpu(x) && dtype == float32 && index.numel() > 0 && add_in_parts(x, dim, index, src.to(dtype))) return;
        const Tensor wide = x.to(dtype);
        add_elements(wide, dim, index, src);
        copy_elements(x, wide);
        return;
    }
    const Tensor values = src.to(dtype);
    if (on_gpu(x)) {
        if (index.numel() == 0) return;
        kernels::ElementArgs args = element_args(x, dim, index.shape(), values.strides());
        args.index = {on_stream(index.impl())};
        args.other = on_stream(values.impl());
        return gpu::scatter_add(args, dtype);
    }
    const ElementLoop loop(index, dim, x.strides(), values.strides());
    const unsigned size = size_of(x);
    loop.rows([&](const IndexRow& row) {
        kernels::scatter_add_run(type, row.n, x.impl()->data + row.x * size, row.index, loop.stride(), loop.step(),
                                 values.impl()->data + row.other * size, loop.other_step());
    });
}

// x at the indices = their products with src, or the larger or smaller of both; x and src have one of the dtypes that are computed in.
void combine_elements(const Tensor& x, int dim, const Tensor& index, const Tensor& src, kernels::Combine how) {
    if (index.numel() == 0) return;
    if (on_gpu(x)) {
        kernels::ElementArgs args = element_args(x, dim, index.shape(), src.strides());
        args.index = {on_stream(index.impl())};
        args.other = on_stream(src.impl());
        return gpu::scatter_combine(args, how, x.dtype());
    }
    const ElementLoop loop(index, dim, x.strides(), src.strides());
    const unsigned size = size_of(x);
    loop.rows([&](const IndexRow& row) {
        kernels::scatter_combine_run(how, kernels::compute_of(x.dtype()), row.n, x.impl()->data + row.x * size, row.index, loop.stride(), loop.step(),
                                     src.impl()->data + row.other * size, loop.other_step());
    });
}

// --- gather, scatter, scatter_add ------------------------------------------------------------------------------------

// Checks x, dim and index; returns the wrapped dimension.
int check_gather(const char* op, const In& x, int dim, const In& index) {
    detail::check_defined(x, op);
    detail::check_defined(index, op);
    detail::check_same_device(op, x.tensor, index.tensor, x.loc);
    const int d = detail::wrap_dim(dim, x.tensor.dim(), op, x.loc);
    bool fits = index.tensor.dim() == x.tensor.dim() || (x.tensor.dim() == 0 && index.tensor.dim() == 1);
    for (int k = 0; k < x.tensor.dim() && fits; ++k) fits = k == d || index->sizes[k] <= x->sizes[k] || index->numel == 0;
    if (!fits) {
        fail<ShapeError>(x.loc, "{}: an index of shape {} does not fit shape {} along dimension {}", op, index.tensor.shape(), x.tensor.shape(), d);
    }
    return d;
}

// Returns the part of src that the index covers.
Tensor check_source(const char* op, const In& x, const In& index, const In& src) {
    detail::check_defined(src, op);
    detail::check_same_device(op, x.tensor, src.tensor, x.loc);
    if (src->dtype != x->dtype) {
        fail<DTypeError>(x.loc, "{}: src is {}, but x is {}", op, name(src->dtype), name(x->dtype));
    }
    bool fits = index.tensor.dim() == src.tensor.dim();
    for (int k = 0; k < src.tensor.dim() && fits; ++k) fits = index->sizes[k] <= src->sizes[k];
    if (!fits) {
        fail<ShapeError>(x.loc, "{}: an index of shape {} does not fit src of shape {}", op, index.tensor.shape(), src.tensor.shape());
    }
    if (index.tensor.shape() == src.tensor.shape()) return src.tensor;
    Tensor used = src.tensor;
    for (int k = 0; k < src.tensor.dim(); ++k) {
        if (index->sizes[k] < src->sizes[k]) used = narrow(In(used, x.loc), k, 0, index->sizes[k]);
    }
    detail::begin_op(op, used.impl(), x.loc);  // after those
    return used;
}

Tensor clone_unrecorded(const Tensor& x, const Loc& loc) {
    const detail::UnrecordedPartsOf parts(loc);
    return x.clone(loc);
}

// Handles a 0-d tensor as one element in one dimension.
Tensor in_1d(const In& x) { return x.tensor.dim() == 1 ? x.tensor : reshape(x, {1}); }

// Expands one element to this shape.
Tensor repeated(const Tensor& one, const Shape& shape) {
    Shape none = shape;
    for (int64_t& stride : none) stride = 0;
    return detail::make_view(one.impl(), shape, none, 0);
}

// given: the values, or the number that they repeat.
Tensor scatter_values(const In& x, int d, const In& index, const Tensor& values, const Tensor& given) {
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return scatter_values(In(in[0], x.loc), d + 1, In(in[1], x.loc), in[2], in[2]); };
        if (Tensor y = detail::in_group({scatter_op, x.loc, {&x.tensor, &index.tensor, &values}, detail::batch_key(d)}, of_group); y.defined())
            return y;
    }
    const Tensor checked = checked_index("scatter", index.tensor, x.tensor.shape(), d, x.loc);
    Tensor out = clone_unrecorded(x.tensor, x.loc);
    scatter_elements(out, d, checked, values);
    const Tensor& kept = kept_index(index.tensor, checked);
    record(scatter_op, x.loc, {&x.tensor, &index.tensor, &values}, out, {&kept}, along(d), Told{scatter_op, {&x.tensor, &index.tensor, &given}},
           along(d));
    return out;
}

// --- Rules -----------------------------------------------------------------------------------------------------------

// Returns the record's index for code that reads its memory, into a tensor of this shape.
Tensor index_to_read(const Backward& b, const Shape& shape) {
    const auto [dim, is_given] = b.attrs<AlongAttrs>();
    return is_given ? checked_index(b.record().op->name, b.saved(0), shape, dim, b.record().loc) : b.saved(0);
}

void gather_rule(Backward& b) {
    const int dim = b.attrs<AlongAttrs>().dim;
    const Tensor index = b.saved(0);
    if (const Tensor whole = b.grad_to_write(0); whole.defined()) {
        add_elements(whole, dim, index_to_read(b, whole.shape()), b.grad());
    } else if (b.needs(0)) {
        const Tensor zeros = gradient_ops::zeros(b.input_shape(0), b.grad().dtype(), b.grad().device());
        b.give(0, scatter_add(zeros, dim, index, b.grad()));
    }
}

// src gets the gradient where it was the last to be written; overwritten elements of x get none.
void scatter_rule(Backward& b) {
    const int dim = b.attrs<AlongAttrs>().dim;
    Tensor index = b.saved(0);
    const Tensor g = contiguous(b.take_grad());
    if (!b.recording()) {
        index = index_to_read(b, g.shape());
        const Tensor rest = only_owner(g) ? g : clone(g);
        const Tensor values = detail::make_empty(index.shape(), g.dtype(), g.device(), Loc{});
        take_elements(values, rest, dim, index);
        b.give(2, values);
        b.give(0, rest);
        return;
    }
    if (b.needs(0)) b.give(0, scatter(g, dim, index, 0));
    if (b.needs(2)) {
        const Tensor numbers = reshape(arange(index.numel(), {int64, g.device()}), index.shape());
        const Tensor none = gradient_ops::zeros(g.shape(), int64, g.device());
        const Tensor last = scatter(none, dim, index, numbers);  // the last one written to each place
        b.give(2, where(eq(gather(last, dim, index), numbers), gather(g, dim, index), 0));
    }
}

void scatter_add_rule(Backward& b) {
    b.give(0, b.grad());
    if (b.needs(2)) b.give(2, gather(b.grad(), b.attrs<AlongAttrs>().dim, b.saved(0)));
}

// Returns the slices of a tensor of this shape and these strides at the positions along d.
Region slices(Shape sizes, Shape strides, int d) {
    const int64_t stride = strides.raw(d);
    sizes.erase(d);
    strides.erase(d);
    return {sizes, strides, 0, d, stride};
}

void index_select_rule(Backward& b) {
    const int dim = b.attrs<AlongAttrs>().dim;
    const Tensor index = b.saved(0);
    if (const Tensor whole = b.grad_to_write(0); whole.defined()) {
        add_region(whole.impl(), slices(whole.shape(), whole.strides(), dim), index_to_read(b, whole.shape()), b.grad());
    } else if (b.needs(0)) {
        const Tensor zeros = gradient_ops::zeros(b.input_shape(0), b.grad().dtype(), b.grad().device());
        const int64_t rows = rows_that_share(b, 0), each = rows > 0 ? index.numel() / rows : 0;
        if (rows == 0 || each * rows != index.numel()) return b.give(0, index_add(zeros, dim, index, b.grad()));
        std::vector<Tensor> of_rows;
        for (int64_t r = 0; r < rows; ++r) {
            of_rows.push_back(index_add(zeros, dim, narrow(index, 0, r * each, each), narrow(b.grad(), dim, r * each, each)));
        }
        b.give(0, gradient_ops::stacked(of_rows));
    }
}

void index_add_rule(Backward& b) {
    b.give(0, b.grad());
    if (b.needs(2)) b.give(2, index_select(b.grad(), b.attrs<AlongAttrs>().dim, b.saved(0)));
}

}  // namespace

Tensor gather(In x, Dim dim, In index) {
    const int d = check_gather("gather", x, dim, index);
    if (x.tensor.dim() == 0) return reshape(gather(In(in_1d(x), x.loc), 0, In(in_1d(index), x.loc)), index.tensor.shape());
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return gather(In(in[0], x.loc), d + 1, In(in[1], x.loc)); };
        if (Tensor y = detail::in_group({gather_op, x.loc, {&x.tensor, &index.tensor}, detail::batch_key(d)}, of_group); y.defined()) return y;
    }
    const PickedIndex picked = picked_index("gather", index.tensor, x.tensor.shape(), d, x.loc);
    Tensor out = detail::make_empty(index.tensor.shape(), x->dtype, x->device, x.loc);
    gather_elements(out, x.tensor, d, picked);
    record(gather_op, x.loc, {&x.tensor, &index.tensor}, out, {&kept_index(index.tensor, picked.checked)}, along(d));
    return out;
}

Tensor scatter(In x, Dim dim, In index, In src) {
    const int d = check_gather("scatter", x, dim, index);
    const Tensor values = check_source("scatter", x, index, src);
    if (x.tensor.dim() == 0) {
        return reshape(scatter(In(in_1d(x), x.loc), 0, In(in_1d(index), x.loc), in_1d(In(values, x.loc))), {});
    }
    return scatter_values(x, d, index, values, values);
}

Tensor scatter(In x, Dim dim, In index, Scalar value) {
    const int d = check_gather("scatter", x, dim, index);
    if (x.tensor.dim() == 0) return reshape(scatter(In(in_1d(x), x.loc), 0, In(in_1d(index), x.loc), value), {});
    const detail::CallLine call(x.loc);
    const Tensor number = number_as("scatter", value, x->dtype, x.loc);
    return scatter_values(x, d, index, repeated(number, index.tensor.shape()), number);
}

Tensor scatter_add(In x, Dim dim, In index, In src) {
    const int d = check_gather("scatter_add", x, dim, index);
    const Tensor values = check_source("scatter_add", x, index, src);
    if (x.tensor.dim() == 0) {
        return reshape(scatter_add(In(in_1d(x), x.loc), 0, In(in_1d(index), x.loc), in_1d(In(values, x.loc))), {});
    }
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return scatter_add(In(in[0], x.loc), d + 1, In(in[1], x.loc), in[2]); };
        if (Tensor y = detail::in_group({scatter_add_op, x.loc, {&x.tensor, &index.tensor, &values}, detail::batch_key(d)}, of_group); y.defined()) {
            return y;
        }
    }
    const Tensor checked = checked_index("scatter_add", index.tensor, x.tensor.shape(), d, x.loc);
    Tensor out = clone_unrecorded(x.tensor, x.loc);
    const CallerScope caller(x.loc);
    add_elements(out, d, checked, values);
    record(scatter_add_op, x.loc, {&x.tensor, &index.tensor, &values}, out, {&kept_index(index.tensor, checked)}, along(d));
    return out;
}

// --- scatter_reduce --------------------------------------------------------------------------------------------------

namespace {

enum class ScatterReduce : std::uint8_t { sum, prod, mean, amax, amin };

struct ScatterReduceAttrs {
    int dim;
    ScatterReduce how;
    bool include_self;
};

ScatterReduce reduce_of(const char* op, const char* given, const Loc& loc) {
    const std::string word = detail::checked_word(op, given, loc);
    constexpr const char* words[] = {"sum", "prod", "mean", "amax", "amin"};
    for (int i = 0; i < 5; ++i) {
        if (word == words[i]) return static_cast<ScatterReduce>(i);
    }
    fail<ValueError>(loc, "{}: reduce is \"sum\", \"prod\", \"mean\", \"amax\" or \"amin\", not \"{}\"", op, word);
}

// Returns the identity of the combination, in a dtype that is computed in.
Scalar identity_of(ScatterReduce how, DType dtype) {
    if (how == ScatterReduce::sum || how == ScatterReduce::mean) return 0;
    if (how == ScatterReduce::prod) return 1;
    const bool is_lowest = how == ScatterReduce::amax;
    if (is_floating(dtype)) return is_lowest ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
    if (dtype == int32) return is_lowest ? INT32_MIN : INT32_MAX;
    return is_lowest ? INT64_MIN : INT64_MAX;
}

// Returns the dtype in which counts and shares of 16-bit floats are computed.
DType counted_in(DType dtype) { return kernels::stored_as(kernels::compute_of(dtype)); }

// Returns the number of elements combined at each place of a tensor of this shape, 1 at least.
Tensor counts_of(const Shape& shape, const ScatterReduceAttrs& attrs, const Tensor& index, DType dtype) {
    Tensor counts = attrs.include_self ? gradient_ops::ones(shape, dtype, index.device()) : gradient_ops::zeros(shape, dtype, index.device());
    counts.scatter_add_(attrs.dim, index, expand(gradient_ops::ones({}, dtype, index.device()), index.shape()));
    return clamp_min(counts, 1);
}

void check_order(const Tensor& x, const ScatterReduceAttrs& attrs, const Loc& loc) {
    if (attrs.how == ScatterReduce::prod && on_gpu(x) && is_floating(x.dtype()) && is_deterministic()) {
        fail<DeviceError>(loc, "scatter_reduce: on CUDA products of floats are made in any order, and set_deterministic() asks for one");
    }
}

// Writes into out, of a dtype that is computed in; for a mean only the sums.
void reduce_into(Tensor& out, const Tensor& index, const Tensor& values, const ScatterReduceAttrs& attrs, const Loc& loc) {
    const DType dtype = out.dtype();
    if (!attrs.include_self) {
        const Tensor identity = number_as("scatter_reduce", identity_of(attrs.how, dtype), dtype, loc);
        scatter_elements(out, attrs.dim, index, repeated(identity, index.shape()));
    }
    switch (attrs.how) {
        case ScatterReduce::sum:
        case ScatterReduce::mean: add_elements(out, attrs.dim, index, values); break;
        case ScatterReduce::prod: combine_elements(out, attrs.dim, index, values, kernels::Combine::prod); break;
        case ScatterReduce::amax: combine_elements(out, attrs.dim, index, values, kernels::Combine::max); break;
        case ScatterReduce::amin: combine_elements(out, attrs.dim, index, values, kernels::Combine::min); break;
    }
}

Tensor scatter_reduced(const Tensor& x, const Tensor& index, const Tensor& src, const ScatterReduceAttrs& attrs, const Loc& loc) {
    check_order(x, attrs, loc);
    const detail::UnrecordedPartsOf parts(loc);
    const DType dtype = counted_in(x.dtype());
    Tensor out = x.to(dtype);
    if (out.shares_storage(x)) out = clone(x);
    reduce_into(out, index, src.to(dtype), attrs, loc);
    if (attrs.how == ScatterReduce::mean) {
        const Tensor counts = counts_of(out.shape(), attrs, index, dtype);
        out = is_floating(dtype) ? out / counts : floor_divide(out, counts);
    }
    return out.to(x.dtype());
}

// Gives the gradients of x and of src for products: the product of the others, by division; a single 0 among them is
// left out of the product instead.
void scatter_prod_rule(Backward& b, const ScatterReduceAttrs& attrs) {
    const Tensor g = b.grad(), index = b.saved(0), x = b.saved(1), src = b.saved(2), out = b.saved(3);
    const auto product = [&](const Tensor& of, const Tensor& with) { return scatter_reduce(of, attrs.dim, index, with, "prod", attrs.include_self); };
    if (b.needs(0)) {
        const Tensor others = masked_fill(x, eq(x, 0), 1);
        const Tensor g_x = g * product(others, src) / others;
        b.give(0, attrs.include_self ? g_x : scatter(g_x, attrs.dim, index, 0));
    }
    if (!b.needs(2)) return;
    const Tensor is_zero = eq(src, 0);
    const Tensor none = gradient_ops::zeros(x.shape(), src.dtype(), src.device());
    // Counts zeros among the elements of src that have the same place.
    const Tensor zeros = gather(scatter_add(none, attrs.dim, index, is_zero.to(src.dtype())), attrs.dim, index);
    // A graph has first derivatives only, unless the program asks for more.
    if (b.recording() && !detail::is_tracing() && logical_and(gt(zeros, 1), is_zero).any().item<bool>()) {
        fail<ValueError>(b.record().loc, "scatter_reduce: the second derivative of \"prod\" is not there where several zeros meet");
    }
    const Tensor is_single = logical_and(is_zero, eq(zeros, 1));
    const Tensor without = product(x, masked_fill(src, is_single, 1));
    b.give(2, where(is_single, gather(g * without, attrs.dim, index), gather(g * out, attrs.dim, index) / masked_fill(src, is_zero, 1)));
}

// Equal extremes share the gradient.
void scatter_extreme_rule(Backward& b, const ScatterReduceAttrs& attrs) {
    const Tensor g = b.grad(), index = b.saved(0), x = b.saved(1), src = b.saved(2), out = b.saved(3);
    Tensor of_x = eq(x, out).to(counted_in(g.dtype()));  // no gradient flows through these
    if (!attrs.include_self) of_x = scatter(of_x, attrs.dim, index, 0);
    const Tensor of_src = eq(src, gather(out, attrs.dim, index)).to(of_x.dtype());
    const Tensor counts = scatter_add(of_x, attrs.dim, index, of_src);
    const Tensor share = g.to(counts.dtype()) / counts;  // it is given in the dtypes of x and src
    if (b.needs(0)) b.give(0, of_x * share);
    if (b.needs(2)) b.give(2, of_src * gather(share, attrs.dim, index));
}

void scatter_reduce_rule(Backward& b) {
    const auto attrs = b.attrs<ScatterReduceAttrs>();
    if (attrs.how == ScatterReduce::prod) return scatter_prod_rule(b, attrs);
    if (attrs.how == ScatterReduce::amax || attrs.how == ScatterReduce::amin) return scatter_extreme_rule(b, attrs);
    const Tensor index = b.saved(0);
    Tensor g = b.grad();
    if (attrs.how == ScatterReduce::mean) {
        const DType dtype = counted_in(g.dtype());
        g = g.to(dtype) / counts_of(g.shape(), attrs, index, dtype);
    }
    if (b.needs(0)) b.give(0, attrs.include_self ? g : scatter(g, attrs.dim, index, 0));
    if (b.needs(2)) b.give(2, gather(g, attrs.dim, index));
}

Tensor scatter_reduce_as(const char* op, const In& x, Dim dim, const In& index, const In& src, const char* reduce, bool include_self) {
    const int d = check_gather(op, x, dim, index);
    const ScatterReduceAttrs attrs{d, reduce_of(op, reduce, x.loc), include_self};
    const Tensor values = check_source(op, x, index, src);
    if (x.tensor.dim() == 0) {
        const Tensor one = in_1d(x), place = in_1d(index), value = in_1d(In(values, x.loc));
        return reshape(scatter_reduce_as(op, In(one, x.loc), 0, In(place, x.loc), In(value, x.loc), reduce, include_self), {});
    }
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) {
            return scatter_reduce_as(op, In(in[0], x.loc), d + 1, In(in[1], x.loc), in[2], reduce, include_self);
        };
        const detail::BatchKey key = detail::batch_key(d, attrs.how, include_self);
        if (Tensor y = detail::in_group({scatter_reduce_op, x.loc, {&x.tensor, &index.tensor, &values}, key}, of_group); y.defined()) return y;
    }
    const Tensor checked = checked_index(op, index.tensor, x.tensor.shape(), d, x.loc);
    const Tensor out = scatter_reduced(x.tensor, checked, values, attrs, x.loc);
    const Tensor& kept = kept_index(index.tensor, checked);  // the rule passes it to ops that check it
    if (attrs.how == ScatterReduce::sum || attrs.how == ScatterReduce::mean) {
        record(scatter_reduce_op, x.loc, {&x.tensor, &index.tensor, &values}, out, {&kept}, attrs);
    } else {
        record(scatter_reduce_op, x.loc, {&x.tensor, &index.tensor, &values}, out, {&kept, &x.tensor, &values, &out}, attrs);
    }
    return out;
}

// Works without a copy of all of self if self can hold the result; else returns false, without work done.
bool reduce_in_place(Tensor& self, Dim dim, const In& index, const In& src, const char* reduce, bool include_self) {
    constexpr const char* op = "scatter_reduce_";
    const Loc& loc = index.loc;
    const int d = check_gather(op, In(self, loc), dim, index);
    const ScatterReduceAttrs attrs{d, reduce_of(op, reduce, loc), include_self};
    if (self.dim() == 0 || self.dtype() != counted_in(self.dtype()) || attrs.how == ScatterReduce::mean) return false;
    const auto apart = [&](const Tensor& t) { return t.shares_storage(self) ? t.clone(loc) : t; };
    check_order(self, attrs, loc);
    const detail::UnrecordedPartsOf parts(index.loc);
    const Tensor values = apart(check_source(op, In(self, loc), index, src));
    const Tensor checked = apart(checked_index(op, index.tensor, self.shape(), d, loc));
    reduce_into(self, checked, values, attrs, loc);
    mark_written(self, loc);
    return true;
}

}  // namespace

Tensor scatter_reduce(In x, Dim dim, In index, In src, const char* reduce, Flag include_self) {
    return scatter_reduce_as("scatter_reduce", x, dim, index, src, reduce, include_self);
}

// --- index_select, index_add -----------------------------------------------------------------------------------------

namespace {

// Checks x, dim and index; returns the wrapped dimension.
int check_slices(const char* op, const In& x, int dim, const In& index) {
    detail::check_defined(x, op);
    detail::check_defined(index, op);
    detail::check_same_device(op, x.tensor, index.tensor, x.loc);
    const int d = detail::wrap_dim(dim, x.tensor.dim(), op, x.loc);
    if (index.tensor.dim() != 1) fail<ShapeError>(x.loc, "{}: the index must be 1-d, got shape {}", op, index.tensor.shape());
    return d;
}

// Takes a 0-d tensor as one of a single element.
Tensor line_of(const In& x) { return x->rank == 0 ? reshape(x, {1}) : x.tensor; }
bool has_no_dimensions(const char* op, const In& x, const In& index) {
    detail::check_defined(x, op);
    detail::check_defined(index, op);
    return x->rank == 0 || index->rank == 0;
}
// A 0-d x has one slice, and the index names it once.
void check_one_slice(const char* op, const In& x, int dim, const In& index) {
    detail::wrap_dim(dim, x.tensor.dim(), op, x.loc);
    if (x->rank == 0 && (index->rank > 1 || index->numel != 1)) {
        fail<ShapeError>(x.loc, "{}: an index of shape {} for a 0-d tensor, which has one slice", op, index.tensor.shape());
    }
}

// Checks these, and src.
int check_index_add(const char* op, const In& x, int dim, const In& index, const In& src) {
    const int d = check_slices(op, x, dim, index);
    detail::check_defined(src, op);
    detail::check_same_device(op, x.tensor, src.tensor, x.loc);
    Shape shape = x.tensor.shape();
    shape.raw(d) = index.tensor.numel();
    if (!(src.tensor.shape() == shape)) {
        fail<ShapeError>(x.loc, "{}: src must be of shape {}, got {}", op, shape, src.tensor.shape());
    }
    if (src->dtype != x->dtype) {
        fail<DTypeError>(x.loc, "{}: src is {}, but x is {}", op, name(src->dtype), name(x->dtype));
    }
    return d;
}

// The indices of a group in batch(), (count, n), as (count, 1, ..., n, ..., 1) expanded to the shape of the slices that they name.
Tensor as_wide_as(const Tensor& indices, Shape shape, int d) {
    Shape narrow = shape;
    for (int k = 1; k < shape.rank(); ++k) narrow.raw(k) = 1;
    narrow.raw(d) = shape.raw(d) = indices.size(1);
    return expand(reshape(indices, narrow), shape);
}

// index_select() of a group in batch(): of one tensor, or of a block.
Tensor selected_each(const detail::Batched& in, int d, const Loc& loc) {
    const Tensor &x = in[0], &indices = in[1];
    if (in.is_block(0)) return gather(In(x, loc), d + 1, In(as_wide_as(indices, x.shape(), d + 1), loc));
    const Tensor all = index_select(In(x, loc), d, In(reshape(indices, {-1}), loc));
    Shape shape = x.shape();
    shape.raw(d) = indices.size(1);
    shape.insert(d, in.count());
    return reshape(all, shape).movedim(d, 0);
}

}  // namespace

Tensor index_select(In x, Dim dim, In index) {
    if (has_no_dimensions("index_select", x, index)) {
        check_one_slice("index_select", x, dim, index);
        const detail::RecordedParts parts(x.loc);
        const Tensor picked = index_select(In(line_of(x), x.loc), x->rank == 0 ? Dim(0) : dim, In(line_of(index), x.loc));
        return x->rank == 0 ? reshape(picked, {}) : picked;
    }
    const int d = check_slices("index_select", x, dim, index);
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return selected_each(in, d, x.loc); };
        const detail::BatchCall call(index_select_op, x.loc, {&x.tensor, &index.tensor}, detail::batch_key(d), {.shared = 0b01});
        if (Tensor y = detail::in_group(call, of_group); y.defined()) return y;
    }
    const PickedIndex picked = picked_index("index_select", index.tensor, x.tensor.shape(), d, x.loc);
    Shape shape = x.tensor.shape();
    shape.raw(d) = index.tensor.numel();
    Tensor out = detail::make_empty(shape, x->dtype, x->device, x.loc);
    read_region(out, x.tensor.impl(), slices(x.tensor.shape(), x.tensor.strides(), d), picked);
    record(index_select_op, x.loc, {&x.tensor, &index.tensor}, out, {&kept_index(index.tensor, picked.checked)}, along(d));
    return out;
}

Tensor index_add(In x, Dim dim, In index, In src, Scalar alpha) {
    if (has_no_dimensions("index_add", x, index)) {
        check_one_slice("index_add", x, dim, index);
        detail::check_defined(src, "index_add");
        const detail::RecordedParts parts(x.loc);
        const Tensor added = index_add(In(line_of(x), x.loc), x->rank == 0 ? Dim(0) : dim, In(line_of(index), x.loc),
                                       In(x->rank == 0 ? line_of(src) : src.tensor, x.loc), alpha);
        return x->rank == 0 ? reshape(added, {}) : added;
    }
    const int d = check_index_add("index_add", x, dim, index, src);
    if (alpha.as_double() != 1) {
        const detail::RecordedParts parts(x.loc);
        return index_add(x, dim, index, mul(src, number_as("index_add", alpha, x->dtype, x.loc)), 1);
    }
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) {
            return scatter_add(In(in[0], x.loc), d + 1, In(as_wide_as(in[1], in[0].shape(), d + 1), x.loc), in[2]);
        };
        const detail::BatchCall call(index_add_op, x.loc, {&x.tensor, &index.tensor, &src.tensor}, detail::batch_key(d));
        if (Tensor y = detail::in_group(call, of_group); y.defined()) return y;
    }
    const Tensor checked = checked_index("index_add", index.tensor, x.tensor.shape(), d, x.loc);
    Tensor out = clone_unrecorded(x.tensor, x.loc);
    const CallerScope caller(x.loc);
    add_region(out.impl(), slices(out.shape(), out.strides(), d), checked, src.tensor);
    record(index_add_op, x.loc, {&x.tensor, &index.tensor, &src.tensor}, out, {&kept_index(index.tensor, checked)}, along(d));
    return out;
}

namespace {

// True while a graph is made: it must be told of ops without gradients, too.
bool is_told_parts() noexcept { return detail::is_tracing() && detail::is_watched(); }

// True for positions along d that are in the index: of size 1 in x's other dimensions. A 0-d index is one position, and a 0-d x
// has one.
Tensor named_slices(const char* op, const In& x, Dim dim, const In& index) {
    detail::check_defined(x, op);
    detail::check_defined(index, op);
    if (x->rank == 0 || index->rank == 0) {
        const detail::RecordedParts parts(x.loc);
        const Tensor line = x->rank == 0 ? reshape(x, {1}) : x.tensor, places = index->rank == 0 ? reshape(index, {1}) : index.tensor;
        const Tensor mask = named_slices(op, In(line, x.loc), dim, In(places, x.loc));
        return x->rank == 0 ? reshape(mask, {}) : mask;
    }
    const int d = check_slices(op, x, dim, index);
    const Tensor checked = checked_index(op, index.tensor, x.tensor.shape(), d, x.loc);
    Shape shape;
    for (int own = 0; own < x->rank; ++own) shape.push_back(own == d ? x->sizes[d] : 1);
    if (is_told_parts()) {
        const Tensor none = zeros({x->sizes[d]}, {bool_, x->device}, x.loc);
        return reshape(scatter(In(none, x.loc), 0, index, true), shape);
    }
    const detail::PauseRecording pause;
    Tensor mask = zeros({x->sizes[d]}, {bool_, x->device}, x.loc);
    mask.index_put_({checked}, true, false, x.loc);
    return mask.view(shape, x.loc);
}

}  // namespace

Tensor index_fill(In x, Dim dim, In index, Scalar value) {
    const detail::ComposedOp composed("index_fill");
    const Tensor mask = named_slices("index_fill", x, dim, index), number = number_as("index_fill", value, x->dtype, x.loc);
    const detail::RecordedParts parts(x.loc);
    return masked_fill(x, mask, number);
}

Tensor index_fill(In x, Dim dim, In index, In value) {
    const detail::ComposedOp composed("index_fill");
    detail::check_defined(value, "index_fill");
    if (value.tensor.dim() != 0) {
        fail<ShapeError>(x.loc, "index_fill: the value must be a number or a 0-d tensor, got shape {}", value.tensor.shape());
    }
    const Tensor mask = named_slices("index_fill", x, dim, index);
    const detail::RecordedParts parts(x.loc);
    return masked_fill(x, mask, value);
}

// --- Methods -----------------------------------------------------------------------------------------------------------

Tensor Tensor::gather(Dim dim, const Tensor& index, Loc loc) const { return tapir::gather(In(*this, loc), dim, In(index, loc)); }
Tensor Tensor::scatter(Dim dim, const Tensor& index, const Tensor& src, Loc loc) const {
    return tapir::scatter(In(*this, loc), dim, In(index, loc), In(src, loc));
}
Tensor Tensor::scatter(Dim dim, const Tensor& index, Scalar value, Loc loc) const {
    return tapir::scatter(In(*this, loc), dim, In(index, loc), value);
}
Tensor Tensor::scatter_add(Dim dim, const Tensor& index, const Tensor& src, Loc loc) const {
    return tapir::scatter_add(In(*this, loc), dim, In(index, loc), In(src, loc));
}
Tensor Tensor::scatter_reduce(Dim dim, const Tensor& index, const Tensor& src, const char* reduce, Flag include_self, Loc loc) const {
    return tapir::scatter_reduce(In(*this, loc), dim, In(index, loc), In(src, loc), reduce, include_self);
}
Tensor& Tensor::scatter_reduce_(Dim dim, const Tensor& index, const Tensor& src, const char* reduce, Flag include_self, Loc loc) {
    detail::check_defined(In(*this, loc), "scatter_reduce_");
    detail::check_defined(In(src, loc), "scatter_reduce_");
    check_in_place("scatter_reduce", *this, {&src}, loc);
    const bool is_recorded = recording(loc, {this, &src});
    if (!is_recorded && !is_told_parts() && reduce_in_place(*this, dim, In(index, loc), In(src, loc), reduce, include_self)) {
        return *this;
    }
    // The rule reads the old values.
    const Tensor old = is_recorded ? copy_before_write(*this, loc) : *this;
    const Tensor values = is_recorded && src.shares_storage(*this) ? copy_before_write(src, loc) : src;
    return copy_(scatter_reduce_as("scatter_reduce_", In(old, loc), dim, In(index, loc), In(values, loc), reduce, include_self), loc);
}
Tensor Tensor::index_select(Dim dim, const Tensor& index, Loc loc) const { return tapir::index_select(In(*this, loc), dim, In(index, loc)); }
Tensor Tensor::index_fill(Dim dim, const Tensor& index, Scalar value, Loc loc) const {
    return tapir::index_fill(In(*this, loc), dim, In(index, loc), value);
}
Tensor Tensor::index_fill(Dim dim, const Tensor& index, const Tensor& value, Loc loc) const {
    return tapir::index_fill(In(*this, loc), dim, In(index, loc), In(value, loc));
}
Tensor& Tensor::index_fill_(Dim dim, const Tensor& index, Scalar value, Loc loc) {
    const In x(*this, loc), places(index, loc);
    const bool has_dims = impl_ && impl_->rank > 0 && index.defined() && index.dim() > 0;
    if (has_dims && !is_told_parts() && !recording(loc, {this})) {  // only the slices are touched
        const CallerScope caller(loc);
        detail::check_defined(x, "index_fill_");
        detail::check_defined(places, "index_fill_");
        const int d = check_slices("index_fill_", x, dim, places);
        std::vector<Index> at(static_cast<std::size_t>(d), Index(Slice(), loc));
        at.emplace_back(checked_index("index_fill_", index, shape(), d, loc), loc);
        return index_put_(at, number_as("index_fill_", value, dtype(), loc), false, loc);
    }
    const Tensor mask = named_slices("index_fill_", x, dim, places);
    return masked_fill_(mask, number_as("index_fill_", value, dtype(), loc), loc);
}
Tensor Tensor::index_add(Dim dim, const Tensor& index, const Tensor& src, Scalar alpha, Loc loc) const {
    return tapir::index_add(In(*this, loc), dim, In(index, loc), In(src, loc), alpha);
}

namespace {

// Does in x itself what an op does that copies x, changes the copy by `write(copy, index, values)` and records {x, index, values}.
// `checked` is the index as the record keeps it; number: the number that the values repeat, or undefined.
template <class Write>
void write_in_place(const OpInfo& op, const In& self, int d, Tensor index, Tensor checked, const Tensor& values, const Write& write,
                    const Tensor& number = {}) {
    Tensor x = self.tensor;
    check_in_place(op.name, x, {&values}, self.loc);
    Tensor copy;  // copy of values that are overwritten while they are read
    if (values.shares_storage(x)) copy = copy_before_write(values, self.loc);
    if (checked.shares_storage(x)) checked = clone_unrecorded(checked, self.loc);
    if (detail::is_tracing() && index.shares_storage(x)) index = copy_before_write(index, self.loc);
    const Tensor& source = copy.defined() ? copy : values;
    write(x, checked, source);
    mark_written(x, self.loc);
    const Tensor& kept = kept_index(index, checked);
    record(op, self.loc, {&x, &index, &source}, x, {&kept}, along(d), Told{op, {&x, &index, number.defined() ? &number : &source}}, along(d));
}

void scatter_in_place(const In& x, int d, const In& index, const Tensor& values, const Tensor& number) {
    const Tensor checked = checked_index("scatter_", index.tensor, x.tensor.shape(), d, x.loc);
    write_in_place(
        scatter_op, x, d, index.tensor, checked, values,
        [&](const Tensor& out, const Tensor& at, const Tensor& from) { scatter_elements(out, d, at, from); }, number);
}

}  // namespace

Tensor& Tensor::scatter_(Dim dim, const Tensor& index, const Tensor& src, Loc loc) {
    const In x(*this, loc), places(index, loc);
    const int d = check_gather("scatter_", x, dim, places);
    if (impl_->rank == 0) return copy_(tapir::scatter(x, dim, places, In(src, loc)), loc);
    scatter_in_place(x, d, places, check_source("scatter_", x, places, In(src, loc)), {});
    return *this;
}

Tensor& Tensor::scatter_(Dim dim, const Tensor& index, Scalar value, Loc loc) {
    const In x(*this, loc), places(index, loc);
    const int d = check_gather("scatter_", x, dim, places);
    if (impl_->rank == 0) return copy_(tapir::scatter(x, dim, places, value), loc);
    const detail::CallLine call(loc);
    const Tensor number = number_as("scatter_", value, dtype(), loc);
    scatter_in_place(x, d, places, repeated(number, index.shape()), number);
    return *this;
}

Tensor& Tensor::scatter_add_(Dim dim, const Tensor& index, const Tensor& src, Loc loc) {
    const In x(*this, loc), places(index, loc);
    const int d = check_gather("scatter_add_", x, dim, places);
    if (impl_->rank == 0) return copy_(tapir::scatter_add(x, dim, places, In(src, loc)), loc);
    const Tensor values = check_source("scatter_add_", x, places, In(src, loc));
    const Tensor checked = checked_index("scatter_add_", index, shape(), d, loc);
    write_in_place(scatter_add_op, x, d, index, checked, values,
                   [&](const Tensor& out, const Tensor& at, const Tensor& from) { add_elements(out, d, at, from); });
    return *this;
}

Tensor& Tensor::index_add_(Dim dim, const Tensor& index, const Tensor& src, Scalar alpha, Loc loc) {
    const In x(*this, loc);
    const int d = check_index_add("index_add_", x, dim, In(index, loc), In(src, loc));
    const detail::RecordedParts parts(loc);
    const Tensor values = alpha.as_double() == 1 ? src : tapir::mul(In(src, loc), number_as("index_add_", alpha, dtype(), loc));
    const Tensor checked = checked_index("index_add_", index, shape(), d, loc);
    write_in_place(index_add_op, x, d, index, checked, values, [&](const Tensor& out, const Tensor& at, const Tensor& from) {
        add_region(out.impl(), slices(out.shape(), out.strides(), d), at, from);
    });
    return *this;
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

// A number is scattered wherever the index goes.
Tensor scatter_again(const FormCall& x, int dim) {
    if (x[2].dim() == 0 && x[1].dim() > 0) return scatter(x[0], dim, x[1], expand(x[2], x[1].shape()));
    return scatter(x[0], dim, x[1], x[2]);
}

// Scatters into `out`, where x may lie already: then only the picked elements are written. Calls to be refused are left to scatter().
bool scatter_into(const FormCall& x, const Tensor& out) {
    if (x.count < 3) return false;
    const Tensor &self = x[0], &index = x[1], &src = x[2];
    const int rank = self.dim(), dim = static_cast<const AlongAttrs*>(x.attrs)->dim;
    if (rank == 0 || dim < 0 || dim >= rank || index.dim() != rank || src.dim() != rank || src.dtype() != out.dtype() || self.dtype() != out.dtype())
        return false;
    if ((index.dtype() != int64 && index.dtype() != int32) || self.shape() != out.shape()) return false;
    for (const Tensor* t : {&self, &index, &src, &out}) {
        if (t->device() != cpu) return false;
    }
    for (int d = 0; d < rank; ++d) {
        if (index.size(d) > src.size(d) || (d != dim && index.size(d) > out.size(d))) return false;
    }
    if (may_overlap(index, out) || may_overlap(src, out)) return false;
    const detail::UnrecordedParts parts;
    const Tensor places = index.to(int64).contiguous();
    if (places.numel() > 0) {
        int64_t low, high;
        kernels::index_range(static_cast<const int64_t*>(places.raw_data()), places.numel(), &low, &high);
        if (low < 0 || high >= out.size(dim)) return false;
    }
    if (!begin_as(out, self)) return false;
    scatter_elements(out, dim, places, src);
    return true;
}

Tensor scatter_reduce_again(const FormCall& x, const ScatterReduceAttrs& a) {
    constexpr const char* words[] = {"sum", "prod", "mean", "amax", "amin"};
    return scatter_reduce(x[0], a.dim, x[1], x[2], words[static_cast<int>(a.how)], a.include_self);
}

bool is_within(const SymInt& size, const SymInt& other) { return !size.is_number() || !other.is_number() || size.number() <= other.number(); }

void check_places(const ValueType& x, const ValueType& index, int dim) {
    const int d = types::along(x, dim).rank() > 0 && dim < 0 ? dim + x.rank() : dim;
    bool fits = index.rank() == x.rank() || (x.rank() == 0 && index.rank() == 1);
    const bool is_empty = types::product(index.shape) == SymInt(0);
    for (int k = 0; k < x.rank() && fits; ++k) fits = k == d || is_empty || is_within(types::size_of(index, k), types::size_of(x, k));
    types::need(fits, "the index does not fit");
}

// is_number: the source may be one.
ValueType scattered(const TypeCall& t, int dim, bool may_be_number) {
    const ValueType &x = t[0], &index = t[1], &source = t[2];
    check_places(x, index, dim);
    if (may_be_number && source.rank() == 0) return x;
    bool fits = source.rank() == index.rank();
    for (int k = 0; k < index.rank() && fits; ++k) fits = is_within(types::size_of(index, k), types::size_of(source, k));
    types::need(fits, "the index does not fit the source");
    return x;
}

// Returns the number of slices that are named; a number without dimensions names one.
SymInt count_of(const ValueType& x, const ValueType& index) {
    const SymInt count = types::ranked(index, 0, 1).rank() == 0 ? SymInt(1) : index.shape[0];
    types::need(x.rank() > 0 || may_equal(count, 1), "a 0-d tensor has one slice");
    return count;
}

ValueType types_of_index_add(const TypeCall& t, int dim) {
    const ValueType& x = types::along(t[0], dim);
    const SymInt count = count_of(x, t[1]);
    const std::vector<SymInt> slices = x.rank() == 0 ? std::vector<SymInt>{1} : types::resized(x, dim, count).shape;
    types::need(may_equal(t[2].shape, slices) || (x.rank() == 0 && t[2].rank() == 0), "needs a slice for each position");
    return x;
}

}  // namespace

TAPIR_FORM(gather, 2, AlongAttrs, (check_places(t[0], t[1], a.dim), shaped(t[0], t[1].shape)), gather(x[0], a.dim, x[1]), f("dim", a.dim));
TAPIR_PART_FORM(scatter, 3, AlongAttrs, scattered(t, a.dim, true), scatter_again(x, a.dim), scatter_into, "gather", f("dim", a.dim));
TAPIR_FORM(scatter_add, 3, AlongAttrs, scattered(t, a.dim, false), scatter_add(x[0], a.dim, x[1], x[2]), f("dim", a.dim));
TAPIR_FORM(scatter_reduce, 3, ScatterReduceAttrs, scattered(t, a.dim, false), scatter_reduce_again(x, a),
           f("dim", a.dim)("reduce", a.how, {"sum", "prod", "mean", "amax", "amin"})("include_self", a.include_self));
TAPIR_FORM(index_select, 2, AlongAttrs, resized(t[0], a.dim, count_of(t[0], t[1])), index_select(x[0], a.dim, x[1]), f("dim", a.dim));
TAPIR_FORM(index_add, 3, AlongAttrs, types_of_index_add(t, a.dim), index_add(x[0], a.dim, x[1], x[2]), f("dim", a.dim));

}  // namespace tapir
