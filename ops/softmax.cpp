// softmax, log_softmax and logsumexp: each one fused kernel forward, and backward one where it is not recorded.
#include <limits>

#include "tapir/core/fail_impl.h"
#include "tapir/ops/copy.h"
#include "tapir/ops/kernels/softmax.h"
#include "tapir/ops/elementwise.h"
#include "tapir/ops/reduce.h"
#include "tapir/ops/reduce_impl.h"
#include "tapir/ops/view.h"

namespace tapir {

using namespace reduction;

namespace {

void softmax_rule(Backward& b);
void log_softmax_rule(Backward& b);
void logsumexp_rule(Backward& b);

}  // namespace

TAPIR_OP(softmax, "Softmax", softmax_rule, "exp(x) / sum(exp(x)) along a dimension.",
         TAPIR_SAMPLE("f(5)", softmax(x[0], 0)), TAPIR_SAMPLE("f(1,5)", softmax(x[0], 1)),
         TAPIR_SAMPLE("f(3,4)", softmax(x[0], 0)), TAPIR_SAMPLE("f(3,4)", softmax(x[0], -1)),
         TAPIR_SAMPLE("f(2,3,4)", softmax(x[0], 1)), TAPIR_SAMPLE("f(3,37)", softmax(x[0], 1)),
         TAPIR_SAMPLE("f()", softmax(x[0], 0)), TAPIR_SAMPLE("f(3,1)", softmax(x[0], 1)));
TAPIR_OP(log_softmax, "LogSoftmax", log_softmax_rule, "The logarithm of softmax along a dimension, without overflow.",
         TAPIR_SAMPLE("f(5)", log_softmax(x[0], 0)), TAPIR_SAMPLE("f(1,5)", log_softmax(x[0], 1)),
         TAPIR_SAMPLE("f(3,4)", log_softmax(x[0], 0)), TAPIR_SAMPLE("f(3,4)", log_softmax(x[0], -1)),
         TAPIR_SAMPLE("f(2,3,4)", log_softmax(x[0], 1)), TAPIR_SAMPLE("f(3,37)", log_softmax(x[0], 1)),
         TAPIR_SAMPLE("f()", log_softmax(x[0], 0)), TAPIR_SAMPLE("f(3,1)", log_softmax(x[0], 1)));
TAPIR_OP(logsumexp, "ReduceLogSumExp", logsumexp_rule, "log(sum(exp(x))) over dimensions, without overflow.",
         TAPIR_SAMPLE("f(5)", logsumexp(x[0], {0})), TAPIR_SAMPLE("f(3,4)", logsumexp(x[0], {0})),
         TAPIR_SAMPLE("f(3,4)", logsumexp(x[0], {-1}, true)), TAPIR_SAMPLE("f(2,3,4)", logsumexp(x[0], {0, 2})),
         TAPIR_SAMPLE("f(2,3,20)", logsumexp(x[0], {2})), TAPIR_SAMPLE("f(2,3,4)", logsumexp(x[0], {1}, true)));

namespace {

struct SoftmaxAttrs {
    int dim;
};

// 16-bit floats are computed in float32.
bool is_computed_directly(const TensorImpl* x) noexcept {
    return (x->dtype == float32 || x->dtype == float64) && x->is_contiguous();
}

void run_softmax(const TensorImpl* x, const TensorImpl* g, const TensorImpl* out, int dim, bool log) {
    if (x->numel == 0) return;
    const Lines lines(x, dim);
    const kernels::SoftmaxArgs args{x->dtype, log, lines.size, lines.inner, x->data, g ? g->data : nullptr, out->data};
    share_out(lines.outer * lines.inner, lines.size, [&](std::int64_t begin, std::int64_t end) {
        if (g) {
            kernels::softmax_backward(args, begin, end);
        } else {
            kernels::softmax(args, begin, end);
        }
    });
}

Tensor softmax_along(const OpInfo& op, const In& x, int dim, bool log) {
    detail::check_defined(x, op.name);
    const TensorImpl* impl = x.tensor.impl();
    if (!is_floating(impl->dtype)) [[unlikely]]
        fail<DTypeError>(x.loc, "{}: needs a floating dtype, got {}; convert with to(float32)", op.name, name(impl->dtype));
    const SoftmaxAttrs attrs{detail::wrap_dim(dim, impl->rank, op.name, x.loc)};
    Tensor out;
    if (is_computed_directly(impl)) [[likely]] {
        out = detail::make_empty_like(impl, impl->dtype, x.loc);
        run_softmax(impl, nullptr, out.impl(), attrs.dim, log);
    } else {
        const detail::PauseRecording pause;
        const Tensor in = as_computed(x.tensor);
        const Tensor result = detail::make_empty_like(in.impl(), in.dtype(), x.loc);
        run_softmax(in.impl(), nullptr, result.impl(), attrs.dim, log);
        out = to(result, impl->dtype);
    }
    if (detail::thread.log) record(op, x.loc, {&x.tensor}, out, {&out}, attrs);
    return out;
}

Tensor softmax_gradient(const Tensor& y, const Tensor& g, int dim, bool log) {
    const Tensor result = as_computed(y), from = as_computed(g);
    Tensor out = detail::make_empty_like(result.impl(), result.dtype(), Loc{});
    run_softmax(result.impl(), from.impl(), out.impl(), dim, log);
    return out;
}

void softmax_rule(Backward& b) {
    if (!b.needs(0)) return;
    const int dim = b.attrs<SoftmaxAttrs>().dim;
    const Tensor y = b.saved(0), &g = b.grad();
    b.give(0, b.recording() ? y * (g - sum(y * g, {dim}, true)) : softmax_gradient(y, g, dim, false));
}

void log_softmax_rule(Backward& b) {
    if (!b.needs(0)) return;
    const int dim = b.attrs<SoftmaxAttrs>().dim;
    const Tensor y = b.saved(0), &g = b.grad();
    b.give(0, b.recording() ? g - exp(y) * sum(g, {dim}, true) : softmax_gradient(y, g, dim, true));
}

// dy / dx = exp(x - y): the softmax; 0 where all of x is -inf.
void logsumexp_rule(Backward& b) {
    if (!b.needs(0)) return;
    const Over o = b.attrs<Over>();
    const Tensor x = b.saved(0), y = with_ones(b.saved(1), x.shape(), o);
    const Tensor finite_y = where(eq(y, -std::numeric_limits<double>::infinity()), 0.0, y);
    b.give(0, with_ones(b.grad(), x.shape(), o) * exp(x - finite_y));
}

// x with the reduced dimensions last, contiguous.
Tensor reduced_last(const Tensor& x, Over o) {
    Dims order;
    for (int d = 0; d < x.dim(); ++d) {
        if (!o.has(d)) order.push_back(d);
    }
    if (o.dims >> order.rank() == (1u << (x.dim() - order.rank())) - 1) return as_computed(x);  // they are last
    for (int d = 0; d < x.dim(); ++d) {
        if (o.has(d)) order.push_back(d);
    }
    return as_computed(permute(x, order));
}

}  // namespace

Tensor softmax(In x, int dim) { return softmax_along(softmax_op, x, dim, false); }
Tensor log_softmax(In x, int dim) { return softmax_along(log_softmax_op, x, dim, true); }

Tensor logsumexp(In x, const Dims& dims, bool keepdim) {
    detail::check_defined(x, "logsumexp");
    const DType dtype = x.tensor.dtype();
    if (!is_floating(dtype)) return logsumexp(In(to(x, default_dtype()), x.loc), dims, keepdim);
    const Over o = over("logsumexp", dims, x.tensor.dim(), keepdim, x.loc);
    Tensor out;
    {
        const detail::PauseRecording pause;
        const Tensor result = make_result(x.tensor.impl(), o, compute_type(dtype), x.loc);
        if (x.tensor.numel() > 0) {
            const Tensor in = reduced_last(x.tensor, o);
            const std::int64_t size = in.numel() / result.numel();
            const kernels::SoftmaxArgs args{in.dtype(), true, size, 1, in.raw_data(), nullptr, result.raw_data()};
            share_out(result.numel(), size,
                      [&](std::int64_t begin, std::int64_t end) { kernels::logsumexp(args, begin, end); });
        } else if (result.numel() > 0) {
            fill(result, -std::numeric_limits<double>::infinity());
        }
        out = to(result, dtype);
    }
    if (detail::thread.log) record(logsumexp_op, x.loc, {&x.tensor}, out, {&x.tensor, &out}, o);
    return out;
}

Tensor Tensor::softmax(int dim, Loc loc) const { return tapir::softmax(In(*this, loc), dim); }
Tensor Tensor::log_softmax(int dim, Loc loc) const { return tapir::log_softmax(In(*this, loc), dim); }

}  // namespace tapir
