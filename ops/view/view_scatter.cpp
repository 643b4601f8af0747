// Copies of a tensor with another tensor in place of a part.
#include "tapir/ops/view/view_scatter.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/composed_op_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/into_impl.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/view/view.h"
#include "tapir/ops/view/view_impl.h"

namespace tapir {
namespace {

void select_scatter_rule(Backward& b);
void slice_scatter_rule(Backward& b);
void diagonal_scatter_rule(Backward& b);

}  // namespace

TAPIR_OP(select_scatter, select_scatter_rule, "A tensor with another in place of one element along a dimension.",
         TAPIR_SAMPLE("f(3,4) f(3)", select_scatter(x[0], x[1], 1, -2)), TAPIR_SAMPLE("f(2,3,4) f(3,4)", select_scatter(x[0], x[1], 0, 1)),
         TAPIR_SAMPLE("f(3) f()", select_scatter(x[0], x[1], 0, 2)));
TAPIR_OP(slice_scatter, slice_scatter_rule, "A tensor with another in place of a range along a dimension.",
         TAPIR_SAMPLE_AS("f(5,2) f(2,2)", "slice_scatter(x[0], x[1], 0, 1, 5, 2)", slice_scatter(x[0], x[1], 0, Slice(1, 5, 2))),
         TAPIR_SAMPLE_AS("f(2,4) f(2,3)", "slice_scatter(x[0], x[1], -1, -3, 4, 1)", slice_scatter(x[0], x[1], -1, Slice(-3, None))),
         TAPIR_SAMPLE_AS("f(3,2) f(3,2)", "slice_scatter(x[0], x[1], 0, 0, 3, 1)", slice_scatter(x[0], x[1])));
TAPIR_OP(diagonal_scatter, diagonal_scatter_rule, "A tensor with another in place of a diagonal.",
         TAPIR_SAMPLE("f(3,4) f(3)", diagonal_scatter(x[0], x[1])), TAPIR_SAMPLE("f(2,3,4) f(3,2)", diagonal_scatter(x[0], x[1], -1, 2, 0)));

namespace {

// take(x) returns the part; key: what calls that batch() computes together have in common, of_group(x, src): their result.
template <class Call, class Take, class OfGroup>
Tensor put_part(const OpInfo& op, const In& x, const In& src, const Call& call, const Take& take, const detail::BatchKey& key,
                const OfGroup& of_group) {
    detail::check_same_device(op.name, x.tensor, src.tensor, x.loc);
    if (detail::in_batch()) [[unlikely]] {
        const auto rule = [&](const detail::Batched& in) { return of_group(In(in[0], x.loc), In(in[1], src.loc)); };
        if (Tensor y = detail::in_group({op, x.loc, {&x.tensor, &src.tensor}, key}, rule); y.defined()) return y;
    }
    Tensor out;
    {
        const detail::UnrecordedPartsOf parts(x.loc);
        const Shape shape = take(x).shape();
        if (!(src.tensor.shape() == shape)) {
            fail<ShapeError>(x.loc, "{}: src must be of shape {}, as the part is, got {}", op.name, shape, src.tensor.shape());
        }
        out = clone(x);
        copy_elements(take(In(out, x.loc)), src.tensor);
    }
    record(op, x.loc, {&x.tensor, &src.tensor}, out, {}, call);
    return out;
}

// Writes to `out`, where x may lie already: then only the part is written.
template <class Take>
bool put_part_into(const FormCall& x, const Tensor& out, const Take& take) {
    if (x.count < 2 || out.device() != cpu || x[0].dtype() != out.dtype() || x[1].device() != cpu) return false;
    if (may_overlap(x[1], out)) return false;  // the source may overlap the part
    const Tensor part = take(In(out, Loc{}));
    if (!(x[1].shape() == part.shape())) return false;
    if (!begin_as(out, x[0])) return false;
    copy_elements(part, x[1]);
    return true;
}

// src gets the part's gradient; the replaced elements get none.
template <class Take, class Put>
void put_part_rule(Backward& b, const Take& take, const Put& put) {
    const Tensor g = b.grad(), part = take(g);
    if (b.needs(0)) b.give(0, put(g, gradient_ops::zeros(part.shape(), g.dtype(), g.device())));
    b.give(1, part);
}

void select_scatter_rule(Backward& b) {
    const auto [dim, index] = b.attrs<SelectCall>();
    put_part_rule(
        b, [&](const Tensor& g) { return select(g, dim, index); },
        [&](const Tensor& g, const Tensor& zeros) { return select_scatter(g, zeros, dim, index); });
}
void slice_scatter_rule(Backward& b) {
    const auto [dim, start, end, step] = b.attrs<SliceCall>();
    const Slice range(start, end, step);
    put_part_rule(
        b, [&](const Tensor& g) { return slice(g, dim, range); },
        [&](const Tensor& g, const Tensor& zeros) { return slice_scatter(g, zeros, dim, range); });
}
void diagonal_scatter_rule(Backward& b) {
    const auto [offset, dim1, dim2] = b.attrs<DiagonalCall>();
    put_part_rule(
        b, [&](const Tensor& g) { return diagonal(g, offset, dim1, dim2); },
        [&](const Tensor& g, const Tensor& zeros) { return diagonal_scatter(g, zeros, offset, dim1, dim2); });
}

void check_both(const char* op, const In& x, const In& src) {
    detail::check_defined(x, op);
    detail::check_defined(src, op);
}

}  // namespace

Tensor select_scatter(In x, In src, Dim dim, std::int64_t index) {
    const detail::ComposedOp composed("select_scatter");
    check_both("select_scatter", x, src);
    const int d = detail::wrap_dim(dim, x.tensor.dim(), "select_scatter", x.loc);
    const std::int64_t place = index < 0 && x->rank > 0 ? index + x->sizes[d] : index;
    return put_part(
        select_scatter_op, x, src, SelectCall{d, place}, [&](const In& of) { return select(of, dim, index); }, detail::batch_key(d, place),
        [&](const In& xs, const In& srcs) { return select_scatter(xs, srcs, d + 1, place); });
}

Tensor slice_scatter(In x, In src, Dim dim, Slice range) {
    const detail::ComposedOp composed("slice_scatter");
    check_both("slice_scatter", x, src);
    const SliceCall call = slice_call(x, dim, range);
    return put_part(
        slice_scatter_op, x, src, call, [&](const In& of) { return slice(of, dim, range); },
        detail::batch_key(call.dim, call.start, call.end, call.step),
        [&](const In& xs, const In& srcs) { return slice_scatter(xs, srcs, call.dim + 1, Slice(call.start, call.end, call.step)); });
}

Tensor diagonal_scatter(In x, In src, std::int64_t offset, Dim dim1, Dim dim2) {
    const detail::ComposedOp composed("diagonal_scatter");
    check_both("diagonal_scatter", x, src);
    const int rank = x.tensor.dim();
    const int a = detail::wrap_dim(dim1, rank, "diagonal_scatter", x.loc);
    const int b = detail::wrap_dim(dim2, rank, "diagonal_scatter", x.loc);
    return put_part(
        diagonal_scatter_op, x, src, DiagonalCall{offset, a, b}, [&](const In& of) { return diagonal(of, offset, dim1, dim2); },
        detail::batch_key(offset, a, b), [&](const In& xs, const In& srcs) { return diagonal_scatter(xs, srcs, offset, a + 1, b + 1); });
}

namespace {

bool select_scatter_into(const FormCall& x, const Tensor& out) {
    const auto& a = *static_cast<const SelectCall*>(x.attrs);
    return put_part_into(x, out, [&](const In& of) { return select(of, a.dim, a.index); });
}
bool slice_scatter_into(const FormCall& x, const Tensor& out) {
    const auto& a = *static_cast<const SliceCall*>(x.attrs);
    return put_part_into(x, out, [&](const In& of) { return slice(of, a.dim, Slice(a.start, a.end, a.step)); });
}
bool diagonal_scatter_into(const FormCall& x, const Tensor& out) {
    const auto& a = *static_cast<const DiagonalCall*>(x.attrs);
    return put_part_into(x, out, [&](const In& of) { return diagonal(of, a.offset, a.dim1, a.dim2); });
}

}  // namespace

// --- Forms -------------------------------------------------------------------------------------------------------------------

// Returns the first operand, if the second has the part's shape.
[[maybe_unused]] static ValueType with_part(const TypeCall& t, const ValueType& part) {
    types::need(may_equal(t[1].shape, part.shape), "the source has not the part's shape");
    return t[0];
}

TAPIR_PART_FORM(select_scatter, 2, SelectCall, with_part(t, selected(t[0], a.dim, t.size("index"))), select_scatter(x[0], x[1], a.dim, a.index),
                select_scatter_into, "select", f("dim", a.dim)("index", a.index));
TAPIR_PART_FORM(slice_scatter, 2, SliceCall, with_part(t, sliced(t[0], a.dim, t.size("start"), t.size("end"), a.step)),
                slice_scatter(x[0], x[1], a.dim, Slice(a.start, a.end, a.step)), slice_scatter_into, "slice",
                f("dim", a.dim)("start", a.start)("end", a.end)("step", a.step));
TAPIR_PART_FORM(diagonal_scatter, 2, DiagonalCall, with_part(t, diagonal(t[0], t.size("offset"), a.dim1, a.dim2)),
                diagonal_scatter(x[0], x[1], a.offset, a.dim1, a.dim2), diagonal_scatter_into, "diagonal",
                f("offset", a.offset)("dim1", a.dim1)("dim2", a.dim2));

}  // namespace tapir
