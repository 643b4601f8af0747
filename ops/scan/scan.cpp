// Running sums, products, extremes and logarithms of sums of exponentials, and products over dimensions (their gradients are running products).
#include <limits>

#include "tapir/autograd/op_form.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/arrange/arrange.h"
#include "tapir/ops/autocast_impl.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/elementwise/rounded_once_impl.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/reduce/reduce_impl.h"
#include "tapir/ops/scan/scan.h"
#include "tapir/ops/scan/scan_kernels.h"
#include "tapir/ops/view/view.h"

namespace tapir {

using kernels::Reduction;
using kernels::Scan;
using namespace reduction;

namespace {

struct ScanAttrs {
    int dim;
    Scan scan;
};

void cumsum_rule(Backward& b);
void cumprod_rule(Backward& b);
void prod_rule(Backward& b);
void logcumsumexp_rule(Backward& b);
void cummax_rule(Backward& b);
struct WeightedExpsAttrs {
    int dim;
    bool reverse;
};
void weighted_exps_rule(Backward& back);
Tensor weighted_exps(const Tensor& a, const Tensor& b, const Tensor& g, const WeightedExpsAttrs& attrs, const Loc& loc);

}  // namespace

TAPIR_HAZARDS(cumsum, hazard::differences);
TAPIR_OP(cumsum, cumsum_rule, "Running sums along a dimension.", TAPIR_SAMPLE("f(5)", cumsum(x[0], 0)), TAPIR_SAMPLE("f(3,4)", cumsum(x[0], 0)),
         TAPIR_SAMPLE("f(3,4)", cumsum(x[0], -1)), TAPIR_SAMPLE("f(2,3,4)", cumsum(x[0], 1)), TAPIR_SAMPLE("f()", cumsum(x[0], 0)),
         TAPIR_SAMPLE("i(3,4)<9", cumsum(x[0], 1)));
TAPIR_OP(cumprod, cumprod_rule, "Running products along a dimension.", TAPIR_SAMPLE("f(5)", cumprod(x[0], 0)),
         TAPIR_SAMPLE("f(3,4)", cumprod(x[0], 0)), TAPIR_SAMPLE("f(3,4)", cumprod(x[0], -1)), TAPIR_SAMPLE("f(2,3,4)", cumprod(x[0], 1)),
         TAPIR_SAMPLE("f(3,5)", cumprod(relu(x[0]), 1)), TAPIR_SAMPLE("i(3,4)<9", cumprod(x[0], 1)));
TAPIR_OP(cummax, cummax_rule, "The largest element so far along a dimension, and its index.", TAPIR_SAMPLE("d(6)", cummax(x[0], 0).values),
         TAPIR_SAMPLE("d(3,4)", cummax(x[0], 0).values), TAPIR_SAMPLE("d(2,3,4)", cummax(x[0], 1).values),
         TAPIR_SAMPLE("d(3,7)", cummax(x[0], -1).indices), TAPIR_SAMPLE("i(3,40)<5", cummax(x[0], 1).indices),
         TAPIR_SAMPLE("f()", cummax(x[0], 0).values),
         TAPIR_SAMPLE_AS("f(4,3)", "cummax(torch.where(x[0] > 0.7, nan, x[0]), 0).indices",
                         cummax(where(x[0] > 0.7, std::numeric_limits<double>::quiet_NaN(), x[0]), 0).indices));
TAPIR_OP(cummin, cummax_rule, "The smallest element so far along a dimension, and its index.", TAPIR_SAMPLE("d(6)", cummin(x[0], 0).values),
         TAPIR_SAMPLE("d(2,3,4)", cummin(x[0], 1).values), TAPIR_SAMPLE("d(5,3)", cummin(x[0], 0).indices),
         TAPIR_SAMPLE("i(3,40)<5", cummin(x[0], 1).indices),
         TAPIR_SAMPLE_AS("f(4,3)", "cummin(torch.where(x[0] > 0.7, nan, x[0]), 0).indices",
                         cummin(where(x[0] > 0.7, std::numeric_limits<double>::quiet_NaN(), x[0]), 0).indices));
TAPIR_OP(logcumsumexp, logcumsumexp_rule, "Running log(sum(exp(x))) along a dimension.", TAPIR_SAMPLE("f(7)", logcumsumexp(x[0], 0)),
         TAPIR_SAMPLE("f(3,4)", logcumsumexp(x[0] * 100, 0)), TAPIR_SAMPLE("f(2,5)", logcumsumexp(x[0], -1)),
         TAPIR_SAMPLE("f(2,3,4)", logcumsumexp(x[0], 1)), TAPIR_SAMPLE("f()", logcumsumexp(x[0], 0)));
TAPIR_OP(weighted_exps, weighted_exps_rule, "Running weighted sums of exponentials.",
         TAPIR_SAMPLE_AS("f(5) f(5) f(5)", "torch.exp(x[0]) * cumsum(torch.exp(x[1]) * x[2], 0)",
                         weighted_exps(x[0], x[1], x[2] * 1.0, {0, false}, Loc::current())),
         TAPIR_SAMPLE_AS("f(2,4) f(2,4) d(2,4)", "torch.exp(x[0]) * (torch.exp(x[1]) * x[2]).flip(1).cumsum(1).flip(1)",
                         weighted_exps(x[0], x[1], x[2] * 1.0, {1, true}, Loc::current())));
TAPIR_OP(prod, prod_rule, "The product over all elements or along a dimension.", TAPIR_SAMPLE("f(3,4)", prod(x[0])),
         TAPIR_SAMPLE("f(3,4)", prod(x[0], 0)), TAPIR_SAMPLE("f(3,4)", prod(x[0], -1, true)), TAPIR_SAMPLE("f(2,3,4)", prod(x[0], 1)),
         TAPIR_SAMPLE("f(7)", prod(x[0], 0)), TAPIR_SAMPLE("f()", prod(x[0])), TAPIR_SAMPLE("i(3,4)<9", prod(x[0], 1)),
         TAPIR_SAMPLE("f(3,4)", prod(relu(x[0]), 1)));

namespace {

// --- Running sums ----------------------------------------------------------------------------------------------------------

Tensor scanned(const Tensor& x, const ScanAttrs& attrs, const Loc& loc) {
    const detail::UnrecordedPartsOf parts(loc);
    const DType dtype = is_floating(x.dtype()) ? x.dtype() : int64;
    const Tensor in = for_kernel(x, loc);
    const bool is_copy = !on_gpu(in) && !in.shares_storage(x);  // it is overwritten in place
    const Tensor out = is_copy ? in : detail::make_empty_like(in.impl(), on_gpu(in) ? dtype : in.dtype(), loc);
    if (x.numel() > 0) {
        const Lines lines(in.impl(), attrs.dim);
        const kernels::LineArgs args{in.dtype(), lines.size, lines.inner, in.raw_data(), out.raw_data()};
        TAPIR_LAUNCH(in, lines.count(), lines.size, scan, args, attrs.scan);
    }
    return to(out, dtype);
}

// Returns true if a scan was computed together with its peers in batch(): scan(block, attrs) scans a block.
template <class ScanBlock>
bool scanned_in_group(const OpInfo& op, const In& x, const ScanAttrs& attrs, const ScanBlock& scan, Tensor& out) {
    if (x.tensor.dim() == 0) return false;
    const auto rule = [&](const detail::Batched& in, Tensor* made) { made[0] = scan(In(in[0], x.loc), ScanAttrs{attrs.dim + 1, attrs.scan}); };
    return detail::batched({op, x.loc, {&x.tensor}, detail::batch_key(attrs.dim, attrs.scan.kind, attrs.scan.reverse)}, rule, {&out});
}

Tensor scan_sum(const In& x, const ScanAttrs& attrs) {
    if (detail::in_batch()) [[unlikely]] {
        if (Tensor made; scanned_in_group(cumsum_op, x, attrs, scan_sum, made)) return made;
    }
    Tensor out = scanned(x.tensor, attrs, x.loc);
    if (detail::thread.observed) record(cumsum_op, x.loc, {&x.tensor}, out, {}, attrs);
    return out;
}

// The gradient of running sums is the running sum of the gradient, from the other end.
void cumsum_rule(Backward& b) {
    if (!b.needs(0)) return;
    const auto& [dim, scan] = b.attrs<ScanAttrs>();
    b.give(0, scan_sum(b.grad(), {dim, {Scan::sum, !scan.reverse}}));
}

Tensor scan_of_exps(const Tensor& x, bool reverse, int dim) { return scanned(x, {dim, {Scan::log_of_exps, reverse}}, Loc{}); }

// out[i] = exp(a[i]) * (the sum of g[k] exp(b[k]) for k up to i, or from i on): the gradient of logcumsumexp is made of it, and so is
// its own gradient. It takes running logarithms of the positive and of the negative terms, so that nothing overflows; a nan in g stays.
Tensor weighted_exps(const Tensor& a, const Tensor& b, const Tensor& g, const WeightedExpsAttrs& attrs, const Loc& loc) {
    for (const Tensor* t : {&a, &b, &g}) detail::begin_op("weighted_exps", t->impl(), loc);
    Tensor out;
    {
        const detail::UnrecordedPartsOf parts(loc);
        const RoundedOnce once({&a, &b, &g});
        const auto in = [&](const Tensor& t) { return once.is_needed() ? once.wide(t) : t; };
        const Tensor before = in(a), logs = in(b), weights = in(g);
        const auto part = [&](const Tensor& weight) {
            const Tensor counts = logical_not(le(weight, 0));
            const Tensor terms = where(counts, log(where(counts, weight, 1)) + logs, -std::numeric_limits<double>::infinity());
            return exp(scan_of_exps(terms, attrs.reverse, attrs.dim) + before);
        };
        out = part(weights) - part(-weights);
        if (once.is_needed()) out = once.result(out);
    }
    if (detail::thread.observed) record(weighted_exps_op, loc, {&a, &b, &g}, out, {&a, &b, &g, &out}, attrs);
    return out;
}

// The sum runs the other way for g, and d out / d a = out.
void weighted_exps_rule(Backward& back) {
    const WeightedExpsAttrs attrs = back.attrs<WeightedExpsAttrs>();
    const Tensor a = back.saved(0), b = back.saved(1), g = back.saved(2);
    const Tensor of_g = weighted_exps(b, a, back.grad(), {attrs.dim, !attrs.reverse}, back.record().loc);
    if (back.needs(0)) back.give(0, back.grad() * back.saved(3));
    if (back.needs(1)) back.give(1, g * of_g);
    if (back.needs(2)) back.give(2, of_g);
}

// With y the result: dx[j] = sum over k >= j of g[k] exp(x[j] - y[k]).
void logcumsumexp_rule(Backward& b) {
    if (!b.needs(0)) return;
    const Tensor y = b.saved(1), finite_y = where(eq(y, -std::numeric_limits<double>::infinity()), 0, y);
    b.give(0, weighted_exps(b.saved(0), -finite_y, b.grad(), {b.attrs<ScanAttrs>().dim, true}, b.record().loc));
}

// --- Running extremes ------------------------------------------------------------------------------------------------------

// Each element gets the gradients of all results whose index names it.
void cummax_rule(Backward& b) {
    if (!b.needs(0)) return;
    const Tensor g = b.grad();
    if (g.dim() == 0) return b.give(0, g);
    b.give(0, scatter_add(gradient_ops::zeros(g.shape(), g.dtype(), g.device()), b.attrs<int>(), b.saved(0), g));
}

ValuesIndices running_extreme(const OpInfo& op, const In& x, Dim dim, bool largest) {
    detail::check_defined(x, op.name);
    const int along = detail::wrap_dim(dim, x.tensor.dim(), op.name, x.loc);
    const DType dtype = x->dtype;
    ValuesIndices out;
    if (detail::in_batch() && x.tensor.dim() > 0) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return running_extreme(op, In(in[0], x.loc), along + 1, largest); };
        if (detail::in_group({op, x.loc, {&x.tensor}, detail::batch_key(along)}, of_group, out)) return out;
    }
    {
        detail::begin_op(op.name, x.tensor.impl(), x.loc);
        const detail::UnrecordedPartsOf parts(x.loc);
        const Tensor in = for_kernel(x.tensor);
        out.values = on_gpu(in) || in.shares_storage(x.tensor) ? detail::make_empty_like(in.impl(), in.dtype(), x.loc) : in;
        out.indices = detail::make_empty_like(in.impl(), int64, x.loc);
        if (in.numel() > 0) {
            const Lines lines(in.impl(), along);
            const kernels::LineArgs args{in.dtype(), lines.size, lines.inner, in.raw_data(), out.values.raw_data()};
            auto* indices = static_cast<std::int64_t*>(out.indices.raw_data());
            TAPIR_LAUNCH(in, lines.count(), lines.size, scan_extreme, args, largest, indices);
        }
        out.values = to(out.values, dtype);
    }
    if (detail::thread.observed) {
        record(op, x.loc, {&x.tensor}, out.values, {&out.indices}, along, Told{op, {&x.tensor}, {&out.values, &out.indices}}, along);
    }
    return out;
}

// --- Gradients of products -------------------------------------------------------------------------------------------------

// Moves x by `steps` along dim, towards the end (or the beginning, for negative steps), and fills up with a constant.
Tensor shifted(const Tensor& x, int dim, std::int64_t steps, bool ones) {
    const std::int64_t n = x.size(dim), gap = std::min(steps < 0 ? -steps : steps, n);
    Shape shape = x.shape();
    shape.raw(dim) = gap;
    const Tensor filling = ones ? gradient_ops::ones(shape, x.dtype(), x.device()) : gradient_ops::zeros(shape, x.dtype(), x.device());
    const Tensor rest = narrow(x, dim, steps < 0 ? gap : 0, n - gap);
    return gradient_ops::concatenate(steps < 0 ? std::vector{rest, filling} : std::vector{filling, rest}, dim);
}

// before[k] = x[0] ... x[k-1], by doubling: log(n) steps of differentiable ops, right for zeros to any order.
Tensor product_before(const Tensor& x, int dim) {
    Tensor p = shifted(x, dim, 1, true);
    for (std::int64_t s = 1; s < x.size(dim); s *= 2) p = p * shifted(p, dim, s, true);
    return p;
}

// after[k] = g[k] + x[k+1] after[k+1], by doubling the affine maps.
Tensor recurrence_after(const Tensor& x, Tensor g, int dim) {
    Tensor a = shifted(x, dim, -1, true);
    for (std::int64_t s = 1; s < x.size(dim); s *= 2) {
        g = g + a * shifted(g, dim, -s, false);
        a = a * shifted(a, dim, -s, true);
    }
    return g;
}

// Returns the gradient for x of shape (..., n, ...), where g has x's shape, or (`whole`) size 1 along dim.
Tensor product_gradient(const Tensor& x, const Tensor& g, int dim, bool whole, bool recording) {
    if (x.numel() == 0) return gradient_ops::zeros(x.shape(), x.dtype(), x.device());
    if (recording) {
        if (x.dim() == 0) return product_gradient(reshape(x, {1}), reshape(g, {1}), 0, whole, true);
        Tensor tail = g;
        if (whole && x.size(dim) > 1) {  // g at the last position, 0 before it
            Shape shape = x.shape();
            shape.raw(dim) -= 1;
            tail = gradient_ops::concatenate({gradient_ops::zeros(shape, g.dtype(), g.device()), g}, dim);
        }
        return product_before(x, dim) * recurrence_after(x, tail, dim);
    }
    const Tensor in = as_computed(x), from = as_computed(g);
    const Tensor out = detail::make_empty_like(in.impl(), in.dtype(), Loc{});
    const Lines lines(in.impl(), dim);
    const kernels::LineArgs args{in.dtype(), lines.size, lines.inner, in.raw_data(), out.raw_data()};
    TAPIR_LAUNCH(x, lines.count(), lines.size, prod_gradient, args, from.raw_data(), whole);
    return out;
}

void cumprod_rule(Backward& b) {
    if (b.needs(0)) b.give(0, product_gradient(b.saved(0), b.grad(), b.attrs<ScanAttrs>().dim, false, b.recording()));
}

void prod_rule(Backward& b) {
    if (!b.needs(0)) return;
    const Tensor x = b.saved(0);
    const Over o = b.attrs<Over>();
    int dim = 0;
    while (dim < x.dim() && !o.has(dim)) ++dim;
    if (x.dim() == 0 || o.dims != 1u << dim) {  // over everything: one line
        b.give(0, reshape(product_gradient(reshape(x, {-1}), reshape(b.grad(), {1}), 0, true, b.recording()), x.shape()));
    } else {
        b.give(0, product_gradient(x, with_ones(b.grad(), x.shape(), o), dim, true, b.recording()));
    }
}

Tensor product(const In& x, Over o) {
    const TensorImpl* impl = x.tensor.impl();
    if (detail::in_batch()) [[unlikely]] {
        const auto reduce = [&](const In& block, const Dims& of) {  // the rule knows one dimension, or all
            return of.rank() == 1 ? prod(block, of[0], o.keepdim) : prod(reshape(block, {block.tensor.size(0), -1}), 1);
        };
        if (Tensor made; reduced_in_group(prod_op, x, o, reduce, made)) return made;
    }
    const DType dtype = is_floating(impl->dtype) ? impl->dtype : int64;
    Tensor out = make_result(impl, o, dtype, x.loc);
    if (impl->numel > 0) {
        run(impl, o, {Reduction::prod, compute_type(dtype)}, out.impl(), x.loc);
    } else if (out.numel() > 0) {
        fill(out, 1);
    }
    if (detail::thread.observed) record(prod_op, x.loc, {&x.tensor}, out, {&x.tensor}, o);
    return out;
}

}  // namespace

Tensor cumsum(In x, Dim dim) {
    detail::check_defined(x, "cumsum");
    if (const Tensor wide = detail::autocast_wide(x); wide.defined()) return cumsum(In(wide, x.loc), dim);
    return scan_sum(x, {detail::wrap_dim(dim, x.tensor.dim(), "cumsum", x.loc), {Scan::sum}});
}

Tensor cumprod(In x, Dim dim) {
    detail::check_defined(x, "cumprod");
    if (const Tensor wide = detail::autocast_wide(x); wide.defined()) return cumprod(In(wide, x.loc), dim);
    const ScanAttrs attrs{detail::wrap_dim(dim, x.tensor.dim(), "cumprod", x.loc), {Scan::prod}};
    if (detail::in_batch()) [[unlikely]] {
        const auto scan = [](const In& block, const ScanAttrs& of) { return cumprod(block, of.dim); };
        if (Tensor made; scanned_in_group(cumprod_op, x, attrs, scan, made)) return made;
    }
    Tensor out = scanned(x.tensor, attrs, x.loc);
    if (detail::thread.observed) record(cumprod_op, x.loc, {&x.tensor}, out, {&x.tensor}, attrs);
    return out;
}

ValuesIndices cummax(In x, Dim dim) { return running_extreme(cummax_op, x, dim, true); }
ValuesIndices cummin(In x, Dim dim) { return running_extreme(cummin_op, x, dim, false); }

Tensor logcumsumexp(In x, Dim dim) {
    detail::check_defined(x, "logcumsumexp");
    if (const Tensor wide = detail::autocast_wide(x); wide.defined()) return logcumsumexp(In(wide, x.loc), dim);
    if (!is_floating(x->dtype)) fail<DTypeError>(x.loc, "logcumsumexp: needs a floating dtype, got {}; convert with to(float32)", name(x->dtype));
    const ScanAttrs attrs{detail::wrap_dim(dim, x.tensor.dim(), "logcumsumexp", x.loc), {Scan::log_of_exps}};
    if (detail::in_batch()) [[unlikely]] {
        const auto scan = [](const In& block, const ScanAttrs& of) { return logcumsumexp(block, of.dim); };
        if (Tensor made; scanned_in_group(logcumsumexp_op, x, attrs, scan, made)) return made;
    }
    Tensor out = scanned(x.tensor, attrs, x.loc);
    if (detail::thread.observed) record(logcumsumexp_op, x.loc, {&x.tensor}, out, {&x.tensor, &out}, attrs);
    return out;
}

Tensor prod(In x) {
    detail::check_defined(x, "prod");
    if (const Tensor wide = detail::autocast_wide(x); wide.defined()) return prod(In(wide, x.loc));
    return product(x, over("prod", Dims{}, x.tensor.dim(), false, x.loc));
}

Tensor prod(In x, Dim dim, Flag keepdim) {
    detail::check_defined(x, "prod");
    if (const Tensor wide = detail::autocast_wide(x); wide.defined()) return prod(In(wide, x.loc), dim, keepdim);
    return product(x, over("prod", dim, x.tensor.dim(), keepdim, x.loc));
}

// --- Methods -----------------------------------------------------------------------------------------------------------

Tensor Tensor::cumsum(Dim dim, Loc loc) const { return tapir::cumsum(In(*this, loc), dim); }
Tensor Tensor::cumprod(Dim dim, Loc loc) const { return tapir::cumprod(In(*this, loc), dim); }
Tensor Tensor::logcumsumexp(Dim dim, Loc loc) const { return tapir::logcumsumexp(In(*this, loc), dim); }
ValuesIndices Tensor::cummax(Dim dim, Loc loc) const { return tapir::cummax(In(*this, loc), dim); }
ValuesIndices Tensor::cummin(Dim dim, Loc loc) const { return tapir::cummin(In(*this, loc), dim); }
Tensor Tensor::prod(Loc loc) const { return tapir::prod(In(*this, loc)); }
Tensor Tensor::prod(Dim dim, Flag keepdim, Loc loc) const { return tapir::prod(In(*this, loc), dim, keepdim); }

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

Tensor sum_again(const Tensor& x, const ScanAttrs& a) {
    static_cast<void>(detail::wrap_dim(a.dim, x.dim(), "cumsum", Loc::current()));
    return scan_sum(x, a);
}

}  // namespace

TAPIR_FORM(cumsum, 1, ScanAttrs, same(along(t[0], a.dim), summed(t[0].dtype)), sum_again(x[0], a), f("dim", a.dim)("reverse", a.scan.reverse));
TAPIR_FORM(cumprod, 1, ScanAttrs, same(along(t[0], a.dim), summed(t[0].dtype)), cumprod(x[0], a.dim), f("dim", a.dim));
TAPIR_FORM(logcumsumexp, 1, ScanAttrs, same(along(t[0], a.dim), floating(t[0].dtype)), logcumsumexp(x[0], a.dim), f("dim", a.dim));
TAPIR_FORM(cummax, 1, int, several(same(along(t[0], a)), same(t[0], DType::int64)), detail::outputs(cummax(x[0], a)), f("dim", a));
TAPIR_FORM(cummin, 1, int, several(same(along(t[0], a)), same(t[0], DType::int64)), detail::outputs(cummin(x[0], a)), f("dim", a));
TAPIR_FORM(weighted_exps, 3, WeightedExpsAttrs, (along(pointwise(t), a.dim), pointwise(t)), weighted_exps(x[0], x[1], x[2], a, Loc::current()),
           f("dim", a.dim)("reverse", a.reverse));
TAPIR_FORM(prod, 1, Over, reduced(t[0], dims_of(a), a.keepdim, summed(t[0].dtype)),
           product(x[0], over("prod", dims_of(a), x[0].dim(), a.keepdim, Loc::current())), over_fields(f, a));

}  // namespace tapir
