// softmax, log_softmax and logsumexp: forward each is one fused kernel; backward is one if it is not recorded.
#include <limits>

#include "tapir/autograd/op_form.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/attention/attention_impl.h"
#include "tapir/ops/autocast_impl.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/into_impl.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/reduce/reduce_impl.h"
#include "tapir/ops/reduce/softmax.h"
#include "tapir/ops/reduce/softmax_kernels.h"
#include "tapir/ops/view/view.h"

namespace tapir {

using namespace reduction;

namespace {

void softmax_rule(Backward& b);
void log_softmax_rule(Backward& b);
void logsumexp_rule(Backward& b);
void softmax_backward_rule(Backward& b);
void log_softmax_backward_rule(Backward& b);
Tensor softmax_backward(const In& g, const In& y, int dim);
Tensor log_softmax_backward(const In& g, const In& y, int dim);

}  // namespace

TAPIR_HAZARDS(softmax, hazard::rows_of_exponentials);
TAPIR_OP(softmax, softmax_rule, "exp(x) / sum(exp(x)) along a dimension.", TAPIR_SAMPLE("f(5)", softmax(x[0], 0)),
         TAPIR_SAMPLE("f(1,5)", softmax(x[0], 1)), TAPIR_SAMPLE("f(3,4)", softmax(x[0], 0)), TAPIR_SAMPLE("f(3,4)", softmax(x[0], -1)),
         TAPIR_SAMPLE("f(2,3,4)", softmax(x[0], 1)), TAPIR_SAMPLE("f(3,37)", softmax(x[0], 1)), TAPIR_SAMPLE("f()", softmax(x[0], 0)),
         TAPIR_SAMPLE("f(3,1)", softmax(x[0], 1)));
TAPIR_OP(causal_softmax, softmax_rule, "softmax over the first elements of each row, one more in each.",
         TAPIR_SAMPLE_AS("f(5,5)", "torch.softmax(x[0].masked_fill(torch.ones(5, 5).triu(1) > 0, -float('inf')), 1)", causal_softmax(x[0], 0)),
         TAPIR_SAMPLE_AS("f(2,3,6)", "torch.softmax(x[0].masked_fill(torch.ones(3, 6).triu(3) > 0, -float('inf')), 2)", causal_softmax(x[0], 2)),
         TAPIR_SAMPLE_AS("f(4,2)", "torch.softmax(x[0].masked_fill(torch.ones(4, 2).triu(1) > 0, -float('inf')), 1)", causal_softmax(x[0], 0)),
         TAPIR_SAMPLE_AS("f(2,90)", "torch.softmax(x[0].masked_fill(torch.ones(2, 90).triu(88) > 0, -float('inf')), 1)", causal_softmax(x[0], 87)));
TAPIR_HAZARDS(log_softmax, hazard::rows_of_exponentials);
TAPIR_OP(log_softmax, log_softmax_rule, "The logarithm of softmax along a dimension, without overflow.", TAPIR_SAMPLE("f(5)", log_softmax(x[0], 0)),
         TAPIR_SAMPLE("f(1,5)", log_softmax(x[0], 1)), TAPIR_SAMPLE("f(3,4)", log_softmax(x[0], 0)), TAPIR_SAMPLE("f(3,4)", log_softmax(x[0], -1)),
         TAPIR_SAMPLE("f(2,3,4)", log_softmax(x[0], 1)), TAPIR_SAMPLE("f(3,37)", log_softmax(x[0], 1)), TAPIR_SAMPLE("f()", log_softmax(x[0], 0)),
         TAPIR_SAMPLE("f(3,1)", log_softmax(x[0], 1)));
TAPIR_HAZARDS(logsumexp, hazard::rows_of_exponentials);
TAPIR_OP(logsumexp, logsumexp_rule, "log(sum(exp(x))) over dimensions, without overflow.", TAPIR_SAMPLE("f(5)", logsumexp(x[0], {0})),
         TAPIR_SAMPLE("f(3,4)", logsumexp(x[0], {0})), TAPIR_SAMPLE("f(3,4)", logsumexp(x[0], {-1}, true)),
         TAPIR_SAMPLE("f(2,3,4)", logsumexp(x[0], {0, 2})), TAPIR_SAMPLE("f(2,3,20)", logsumexp(x[0], {2})),
         TAPIR_SAMPLE("f(2,3,4)", logsumexp(x[0], {1}, true)));
// As ops of their own, the recorded rules are one node each in the graph of a gradient.
TAPIR_OP(softmax_backward, softmax_backward_rule, "The gradient of softmax, of its result y: y (g - sum(y g)).",
         TAPIR_SAMPLE_AS("f(5) f(5)", "torch._softmax_backward_data(x[0], x[1], 0, x[0].dtype)", softmax_backward(x[0], x[1], 0)),
         TAPIR_SAMPLE_AS("f(2,3,4) f(2,3,4)", "torch._softmax_backward_data(x[0], x[1], 1, x[0].dtype)", softmax_backward(x[0], x[1], 1)),
         TAPIR_SAMPLE_AS("f(3,37) f(3,37)", "torch._softmax_backward_data(x[0], x[1], -1, x[0].dtype)", softmax_backward(x[0], x[1], -1)));
TAPIR_OP(log_softmax_backward, log_softmax_backward_rule, "The gradient of log_softmax, of its result y: g - exp(y) sum(g).",
         TAPIR_SAMPLE_AS("f(5) f(5)", "torch._log_softmax_backward_data(x[0], x[1], 0, x[0].dtype)", log_softmax_backward(x[0], x[1], 0)),
         TAPIR_SAMPLE_AS("f(2,3,4) f(2,3,4)", "torch._log_softmax_backward_data(x[0], x[1], 1, x[0].dtype)", log_softmax_backward(x[0], x[1], 1)),
         TAPIR_SAMPLE_AS("f(3,37) f(3,37)", "torch._log_softmax_backward_data(x[0], x[1], -1, x[0].dtype)", log_softmax_backward(x[0], x[1], -1)));

namespace {

struct SoftmaxAttrs {
    int dim;
    int unused = 0;                 // fills bytes that would otherwise be uninitialised: debuggers show them all
    std::int64_t first_query = -1;  // of causal_softmax
};

// g: undefined for the forward pass. A template, so that what runs no backward pass does not link its kernels.
template <bool is_backward = false>
void run_softmax(const Tensor& input, const Tensor& g, const Tensor& out, const SoftmaxAttrs& attrs, bool log) {
    const TensorImpl* x = input.impl();
    if (x->numel == 0) return;
    const Lines lines(x, attrs.dim);
    kernels::SoftmaxArgs args{x->dtype, log, lines.size, lines.inner, kernel_data(x), kernel_data(g), kernel_data(out)};
    if (!is_backward && attrs.first_query >= 0) {
        args.queries = x->sizes[x->rank - 2];
        args.first = std::min(attrs.first_query, lines.size);  // from there on all elements are in the row
    }
    if constexpr (is_backward) {
        TAPIR_LAUNCH(x, lines.count(), lines.size, softmax_backward, args);
    } else {
        TAPIR_LAUNCH(x, lines.count(), lines.size, softmax, args);
    }
}

Tensor softmax_along(const OpInfo& op, const In& x, int dim, bool log, std::int64_t first_query = -1) {
    detail::check_defined(x, op.name);
    if (const Tensor wide = detail::autocast_wide(x); wide.defined()) {
        return softmax_along(op, In(wide, x.loc), dim, log, first_query);
    }
    const TensorImpl* impl = x.tensor.impl();
    if (!is_floating(impl->dtype)) [[unlikely]]
        fail<DTypeError>(x.loc, "{}: needs a floating dtype, got {}; convert with to(float32)", op.name, name(impl->dtype));
    const SoftmaxAttrs attrs{detail::wrap_dim(dim, impl->rank, op.name, x.loc), 0, first_query};
    Tensor out;
    if (detail::in_batch()) [[unlikely]] {
        const auto rule = [&](const detail::Batched& in, Tensor* made) {
            made[0] = softmax_along(op, In(in[0], x.loc), attrs.dim + 1, log, first_query);
        };
        if (impl->rank > 0 && detail::batched({op, x.loc, {&x.tensor}, detail::batch_key(attrs.dim, log, first_query)}, rule, {&out})) return out;
    }
    if (read_in(impl) == impl->dtype && impl->is_contiguous()) [[likely]] {
        out = detail::make_empty_like(impl, impl->dtype, x.loc);
        run_softmax(x.tensor, Tensor(), out, attrs, log);
    } else {
        const detail::UnrecordedPartsOf parts(x.loc);
        const Tensor in = for_kernel(x.tensor);
        detail::begin_op(op.name, in.impl(), x.loc);
        const Tensor result = detail::make_empty_like(in.impl(), in.dtype(), x.loc);
        run_softmax(in, Tensor(), result, attrs, log);
        out = to(result, impl->dtype);
    }
    if (detail::thread.observed) record(op, x.loc, {&x.tensor}, out, {&out}, attrs);
    return out;
}

Tensor softmax_gradient(const Tensor& y, const Tensor& g, int dim, bool log) {
    const Tensor result = for_kernel(y), from = for_kernel(g);
    Tensor out = detail::make_empty_like(result.impl(), result.dtype(), Loc{});
    run_softmax<true>(result, from, out, {dim}, log);
    return out;
}

Tensor recorded_gradient(const OpInfo& op, const In& g, const In& y, int dim, bool log) {
    detail::check_defined(g, op.name);
    detail::check_defined(y, op.name);
    const TensorImpl *from = g.tensor.impl(), *result = y.tensor.impl();
    if (!is_floating(result->dtype) || from->dtype != result->dtype || g.tensor.shape() != y.tensor.shape()) {
        fail<ShapeError>(y.loc, "{}: needs a gradient and a result of one shape and floating dtype, got {} of {} and {} of {}", op.name,
                         g.tensor.shape(), name(from->dtype), y.tensor.shape(), name(result->dtype));
    }
    detail::check_same_device(op.name, y.tensor, g.tensor, y.loc);
    const SoftmaxAttrs attrs{detail::wrap_dim(dim, result->rank, op.name, y.loc)};
    detail::begin_op(op.name, result, y.loc);
    Tensor out;
    {
        const detail::UnrecordedPartsOf parts(g.loc);
        out = to(softmax_gradient(y.tensor, g.tensor, attrs.dim, log), result->dtype);
    }
    if (detail::thread.observed) record(op, y.loc, {&g.tensor, &y.tensor}, out, {&g.tensor, &y.tensor}, attrs);
    return out;
}

Tensor softmax_backward(const In& g, const In& y, int dim) { return recorded_gradient(softmax_backward_op, g, y, dim, false); }
Tensor log_softmax_backward(const In& g, const In& y, int dim) { return recorded_gradient(log_softmax_backward_op, g, y, dim, true); }

void softmax_rule(Backward& b) {
    if (!b.needs(0)) return;
    const int dim = b.attrs<SoftmaxAttrs>().dim;
    const Tensor y = b.saved(0), &g = b.grad();
    b.give(0, b.recording() ? softmax_backward(g, y, dim) : softmax_gradient(y, g, dim, false));
}

void log_softmax_rule(Backward& b) {
    if (!b.needs(0)) return;
    const int dim = b.attrs<SoftmaxAttrs>().dim;
    const Tensor y = b.saved(0), &g = b.grad();
    b.give(0, b.recording() ? log_softmax_backward(g, y, dim) : softmax_gradient(y, g, dim, true));
}

void softmax_backward_rule(Backward& b) {
    const int dim = b.attrs<SoftmaxAttrs>().dim;
    const Tensor g = b.saved(0), y = b.saved(1), &v = b.grad();
    if (b.needs(0)) b.give(0, softmax_backward(v, y, dim));
    if (b.needs(1)) b.give(1, v * (g - sum(y * g, {dim}, true)) - g * sum(v * y, {dim}, true));
}

void log_softmax_backward_rule(Backward& b) {
    const int dim = b.attrs<SoftmaxAttrs>().dim;
    const Tensor g = b.saved(0), y = b.saved(1), &v = b.grad();
    if (b.needs(0)) b.give(0, v - sum(v * exp(y), {dim}, true));
    if (b.needs(1)) b.give(1, -v * exp(y) * sum(g, {dim}, true));
}

// A contiguous tensor whose reduced dimensions are adjacent: (outer, size, inner).
struct Reduced {
    Tensor x;
    std::int64_t size = 1, inner = 1;
    Dims order{};  // of the dimensions, if x is permuted
};

// The CPU's kernel needs inner 1.
Reduced reduced_together(const Tensor& x, Over o) {
    Dims order;
    int runs = 0;  // runs of neighbouring dimensions that are reduced
    bool was_reduced = false;
    Reduced result;
    for (int d = 0; d < x.dim(); ++d) {
        const std::int64_t size = x.shape().raw(d);
        (o.has(d) ? result.size : result.inner) *= size;
        if (!o.has(d)) order.push_back(d);
        if (size == 1) continue;
        if (o.has(d) && !was_reduced) ++runs;
        if (o.has(d)) result.inner = 1;
        was_reduced = o.has(d);
    }
    if (runs <= 1 && (result.inner == 1 || on_gpu(x))) {
        result.x = for_kernel(x);
        return result;
    }
    for (int d = 0; d < x.dim(); ++d) {
        if (o.has(d)) order.push_back(d);
    }
    result.x = for_kernel(permute(x, order));
    result.inner = 1;
    result.order = order;
    return result;
}

// g exp(x - y), in the dtype of the kernel.
Tensor logsumexp_gradient(const Tensor& x, const Tensor& result, const Tensor& grad, Over o) {
    const Reduced in = reduced_together(x, o);
    const Tensor g = for_kernel(grad), y = for_kernel(result);
    const Tensor out = detail::make_empty_like(in.x.impl(), in.x.dtype(), Loc{});
    const kernels::SoftmaxArgs args{in.x.dtype(), true, in.size, in.inner, kernel_data(in.x), kernel_data(g), kernel_data(out)};
    TAPIR_LAUNCH(in.x, y.numel(), in.size, logsumexp_backward, args, kernel_data(y));
    if (in.order.empty()) return out;
    Dims back = in.order;
    for (int d = 0; d < back.rank(); ++d) back.raw(static_cast<int>(in.order.raw(d))) = d;
    return permute(out, back);
}

// dy / dx = exp(x - y): the softmax; 0 where all of x is -inf.
void logsumexp_rule(Backward& b) {
    if (!b.needs(0)) return;
    const Over o = b.attrs<Over>();
    const Tensor x = b.saved(0);
    if (!b.recording() && x.numel() > 0) return b.give(0, to(logsumexp_gradient(x, b.saved(1), b.grad(), o), x.dtype()));
    const Tensor y = with_ones(b.saved(1), x.shape(), o);
    const Tensor finite_y = where(eq(y, -std::numeric_limits<double>::infinity()), 0.0, y);
    b.give(0, with_ones(b.grad(), x.shape(), o) * exp(x - finite_y));
}

void run_logsumexp(const Reduced& in, const Tensor& out) {
    const kernels::SoftmaxArgs args{in.x.dtype(), true, in.size, in.inner, kernel_data(in.x), nullptr, kernel_data(out)};
    TAPIR_LAUNCH(in.x, out.numel(), in.size, logsumexp, args);
}

}  // namespace

Tensor softmax(In x, Dim dim) { return softmax_along(softmax_op, x, dim, false); }
Tensor causal_softmax(In scores, std::int64_t first_query) {
    detail::check_defined(scores, "causal_softmax");
    if (scores.tensor.dim() < 2) fail<ShapeError>(scores.loc, "causal_softmax: needs 2 dimensions, got shape {}", scores.tensor.shape());
    return softmax_along(causal_softmax_op, scores, -1, false, first_query);
}
Tensor log_softmax(In x, Dim dim) { return softmax_along(log_softmax_op, x, dim, true); }

Tensor logsumexp(In x, const Dims& dims, Flag keepdim) {
    detail::check_defined(x, "logsumexp");
    if (const Tensor wide = detail::autocast_wide(x); wide.defined()) return logsumexp(In(wide, x.loc), dims, keepdim);
    const DType dtype = x.tensor.dtype();
    if (!is_floating(dtype)) return logsumexp(In(to(x, default_dtype()), x.loc), dims, keepdim);
    const Over o = over("logsumexp", dims, x.tensor.dim(), keepdim, x.loc);
    Tensor out;
    if (detail::in_batch()) [[unlikely]] {
        const auto reduce = [&](const In& block, const Dims& of) { return logsumexp(block, of, keepdim); };
        if (reduced_in_group(logsumexp_op, x, o, reduce, out)) return out;
    }
    {
        const detail::UnrecordedPartsOf parts(x.loc);
        Reduced in;
        if (x.tensor.numel() > 0) in = reduced_together(x.tensor, o);
        detail::begin_op("logsumexp", x.tensor.impl(), x.loc);
        const Tensor result = make_result(x.tensor.impl(), o, read_in(x.tensor), x.loc);
        if (x.tensor.numel() > 0) {
            run_logsumexp(in, result);
        } else if (result.numel() > 0) {
            fill(result, -std::numeric_limits<double>::infinity());
        }
        out = to(result, dtype);
    }
    if (detail::thread.observed) record(logsumexp_op, x.loc, {&x.tensor}, out, {&x.tensor, &out}, o);
    return out;
}

Tensor Tensor::softmax(Dim dim, Loc loc) const { return tapir::softmax(In(*this, loc), dim); }
Tensor Tensor::log_softmax(Dim dim, Loc loc) const { return tapir::log_softmax(In(*this, loc), dim); }
Tensor Tensor::logsumexp(const Dims& dims, Flag keepdim, Loc loc) const { return tapir::logsumexp(In(*this, loc), dims, keepdim); }

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

// Takes x; or a gradient and x, which is then a result.
template <bool is_backward = false>
bool softmax_along_into(const FormCall& x, const Tensor& out, bool log) {
    const Tensor &in = x[is_backward ? 1 : 0], g = is_backward ? x[0] : Tensor();
    const TensorImpl *from = in.impl(), *y = out.impl();
    SoftmaxAttrs attrs = *static_cast<const SoftmaxAttrs*>(x.attrs);
    const int range = std::max<int>(from->rank, 1);
    if (attrs.dim < 0) attrs.dim += range;
    if (attrs.dim < 0 || attrs.dim >= range || read_in(from) != from->dtype) return false;
    const auto fits = [&](const TensorImpl* t) { return detail::is_plain(t, y->dtype) && t->numel == y->numel; };
    if (!fits(from) || (is_backward && !fits(g.impl()))) return false;
    run_softmax<is_backward>(in, g, out, {attrs.dim}, log);
    return true;
}

bool softmax_into(const FormCall& x, const Tensor& out) { return softmax_along_into(x, out, false); }
bool log_softmax_into(const FormCall& x, const Tensor& out) { return softmax_along_into(x, out, true); }
bool softmax_backward_into(const FormCall& x, const Tensor& out) { return softmax_along_into<true>(x, out, false); }
bool log_softmax_backward_into(const FormCall& x, const Tensor& out) { return softmax_along_into<true>(x, out, true); }

}  // namespace

TAPIR_INTO_FORM(softmax, 1, SoftmaxAttrs, same(along(t[0], a.dim), floating(t[0].dtype)), softmax(x[0], a.dim), softmax_into, f("dim", a.dim));
TAPIR_INTO_FORM(log_softmax, 1, SoftmaxAttrs, same(along(t[0], a.dim), floating(t[0].dtype)), log_softmax(x[0], a.dim), log_softmax_into,
                f("dim", a.dim));
TAPIR_INTO_FORM(softmax_backward, 2, SoftmaxAttrs, alike(along(t[1], a.dim), t[0]), softmax_backward(x[0], x[1], a.dim), softmax_backward_into,
                f("dim", a.dim));
TAPIR_INTO_FORM(log_softmax_backward, 2, SoftmaxAttrs, alike(along(t[1], a.dim), t[0]), log_softmax_backward(x[0], x[1], a.dim),
                log_softmax_backward_into, f("dim", a.dim));
TAPIR_FORM(causal_softmax, 1, SoftmaxAttrs, same(ranked(t[0], 2), floating(t[0].dtype)), causal_softmax(x[0], a.first_query),
           f("first_query", a.first_query));
TAPIR_FORM(logsumexp, 1, Over, reduced(t[0], dims_of(a), a.keepdim, floating(t[0].dtype)), logsumexp(x[0], dims_of(a), a.keepdim), over_fields(f, a));

}  // namespace tapir
