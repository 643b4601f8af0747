// Sums, means, products and extremes over any dimensions.
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/reduce/extreme.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tapir/core/fail_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/autocast_impl.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/into_impl.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/reduce/reduce_impl.h"
#include "tapir/ops/view/view.h"

namespace tapir {

using kernels::Finish;
using kernels::Map;
using kernels::Reduction;
using reduction::Over;
using reduction::Plan;

// --- Shared by all reductions ------------------------------------------------------------------------------------------

namespace reduction {

Dims dims_of(Over o, int rank) {
    Dims dims;
    for (int d = 0; d < rank; ++d) {
        if (o.has(d)) dims.push_back(d);
    }
    return dims;
}

void over_fields(Fields& f, Over& o) {
    Shape dims = dims_of(o);
    f("dims", dims)("keepdim", o.keepdim);
    o.dims = 0;
    for (int i = 0; i < dims.rank(); ++i) {
        const int64_t dim = dims.raw(i);
        if (dim < 0 || dim >= kMaxRank) fail<IndexError>(Loc::current(), "a graph's reduction: {} is no dimension", dim);
        o.dims |= 1u << dim;
    }
}

Over over(const char* op, const Dims& dims, int rank, bool keepdim, const Loc& loc) {
    if (dims.empty()) return {(1u << rank) - 1, keepdim};
    Over result{0, keepdim};
    if (rank == 0 && dims.rank() > 1) {  // both dimensions are the one that a 0-d tensor has
        for (const std::int64_t dim : dims) detail::wrap_dim(dim, rank, op, loc);
        fail<IndexError>(loc, "{}: a 0-d tensor has one dimension to name, not those of {}", op, dims);
    }
    for (const std::int64_t dim : dims) {
        const int d = detail::wrap_dim(dim, rank, op, loc);
        if (rank == 0) continue;
        if (result.has(d)) fail<IndexError>(loc, "{}: dimension {} is named twice in {}", op, d, dims);
        result.dims |= 1u << d;
    }
    return result;
}

Over over(const char* op, int dim, int rank, bool keepdim, const Loc& loc) {
    const int d = detail::wrap_dim(dim, rank, op, loc);
    return {rank == 0 ? 0 : 1u << d, keepdim};
}

std::int64_t reduced_numel(const TensorImpl* x, Over dims) noexcept {
    std::int64_t n = 1;
    for (int d = 0; d < x->rank; ++d) {
        if (dims.has(d)) n *= x->sizes[d];
    }
    return n;
}

Tensor make_result(const TensorImpl* x, Over dims, DType dtype, const Loc& loc) {
    std::int64_t sizes[kMaxRank], numel = 1;
    int rank = 0;
    for (int d = 0; d < x->rank; ++d) {
        if (!dims.has(d)) {
            numel *= sizes[rank++] = x->sizes[d];
        } else if (dims.keepdim) {
            sizes[rank++] = 1;
        }
    }
    return detail::make_empty(sizes, rank, numel, dtype, x->device, loc);
}

void fill(const Tensor& out, Scalar value, const Loc& loc) {
    const detail::UnrecordedPartsOf parts(loc);
    Tensor(out).fill_(value);
}

Tensor as_computed(const Tensor& x, const Loc& loc) {
    const detail::UnrecordedPartsOf parts(loc);
    return contiguous(to(x, compute_type(x.dtype())));
}

Tensor for_kernel(const Tensor& x, const Loc& loc) {
    if (!on_gpu(x)) return as_computed(x, loc);
    const detail::UnrecordedPartsOf parts(loc);
    return contiguous(x);
}

namespace {

// Appends a dimension to a list, and merges it with the last one if both lie behind each other in memory.
void append(std::int64_t size, std::int64_t stride, int& count, std::int64_t* sizes, std::int64_t* strides) {
    if (size == 1) return;
    if (count > 0 && strides[count - 1] == size * stride) {
        sizes[count - 1] *= size;
        strides[count - 1] = stride;
    } else {
        sizes[count] = size;
        strides[count++] = stride;
    }
}

}  // namespace

kernels::ReduceArgs arguments(const TensorImpl* x, Over dims, const Plan& plan, const TensorImpl* out) noexcept {
    kernels::ReduceArgs args;
    args.reduction = plan.reduction;
    args.map = plan.map;
    args.finish = plan.finish;
    args.compute = plan.compute;
    args.divisor = plan.divisor;
    args.exponent = plan.exponent;
    args.out = out ? out->data : nullptr;
    args.out_dtype = out ? out->dtype : x->dtype;
    args.x = x->data;
    args.dtype = x->dtype;
    int order[kMaxRank], count = 0;  // the reduced dimensions, by falling stride
    args.kept = args.reduced = 0;
    for (int d = 0; d < x->rank; ++d) {
        if (!dims.has(d)) {
            append(x->sizes[d], x->strides[d], args.kept, args.kept_sizes, args.kept_strides);
            continue;
        }
        int at = count++;
        for (; at > 0 && x->strides[order[at - 1]] < x->strides[d]; --at) order[at] = order[at - 1];
        order[at] = d;
    }
    for (int i = 0; i < count; ++i) {
        append(x->sizes[order[i]], x->strides[order[i]], args.reduced, args.reduced_sizes, args.reduced_strides);
    }
    args.columns = args.kept > 0 && (args.reduced == 0 || args.kept_strides[args.kept - 1] < args.reduced_strides[args.reduced - 1]);
    return args;
}

namespace {

// Returns how many positions of the outermost reduced dimension make one part, if the work is to be shared out along it: few
// results, each of many elements. The cut depends on the sizes only, so that the result does not depend on the threads.
constexpr std::int64_t kPartElements = 64 * 1024;
std::int64_t part_rows(const kernels::ReduceArgs& args, std::int64_t numel, std::int64_t outputs) {
    if (args.reduced == 0 || numel < 2 * kPartElements || outputs > (args.columns ? 8192 : 64)) return 0;
    const std::int64_t per_row = numel / args.reduced_sizes[0];
    const std::int64_t rows = std::max(std::max(kPartElements, 16 * outputs) / per_row, std::int64_t{1});
    return rows * 2 <= args.reduced_sizes[0] ? rows : 0;
}

// Reduces parts of the outermost reduced dimension into a (parts, outputs) buffer, then that.
void run_in_parts(kernels::ReduceArgs args, std::int64_t rows, std::int64_t numel, std::int64_t outputs, const Loc& loc) {
    const std::int64_t all_rows = args.reduced_sizes[0], parts = (all_rows + rows - 1) / rows;
    const Tensor partial = detail::make_empty({parts, outputs}, args.compute, Device{}, loc);
    kernels::ReduceArgs last = args;
    last.x = partial.raw_data();
    last.dtype = args.compute;
    last.map = Map::none;
    last.columns = outputs > 1;
    last.kept = outputs > 1 ? 1 : 0;
    last.kept_sizes[0] = outputs;
    last.kept_strides[0] = 1;
    last.reduced = 1;
    last.reduced_sizes[0] = parts;
    last.reduced_strides[0] = outputs;

    args.finish = Finish::none;
    args.out_dtype = args.compute;
    share_out(parts, rows * (numel / all_rows), [&](std::int64_t begin, std::int64_t end) {
        kernels::ReduceArgs part = args;
        for (std::int64_t i = begin; i < end; ++i) {
            const auto offset = i * rows * args.reduced_strides[0] * static_cast<std::int64_t>(itemsize(args.dtype));
            part.x = static_cast<const std::byte*>(args.x) + offset;
            part.reduced_sizes[0] = std::min(rows, all_rows - i * rows);
            const auto place = i * outputs * static_cast<std::int64_t>(itemsize(args.compute));
            part.out = static_cast<std::byte*>(partial.raw_data()) + place;
            kernels::reduce(part, 0, outputs);
        }
    });
    kernels::reduce(last, 0, outputs);
}

}  // namespace

void run(const TensorImpl* x, Over dims, const Plan& plan, const TensorImpl* out, const Loc& loc) {
    const kernels::ReduceArgs args = arguments(x, dims, plan, out);
    const std::int64_t rows = on_gpu(x) ? 0 : part_rows(args, x->numel, out->numel);
    if (rows > 0) return run_in_parts(args, rows, x->numel, out->numel, loc);
    TAPIR_LAUNCH(x, out->numel, x->numel / out->numel, reduce, args);
}

void run_moments(const TensorImpl* x, Over dims, const Plan& plan, const TensorImpl* out) {
    const kernels::ReduceArgs args = arguments(x, dims, plan, out);
    TAPIR_LAUNCH(x, out->numel, x->numel / out->numel, moments, args);
}

Tensor with_ones(const Tensor& g, const Shape& shape, Over dims) {
    if (dims.keepdim) return g;
    Shape sizes = shape;
    for (int d = 0; d < shape.rank(); ++d) {
        if (dims.has(d)) sizes.raw(d) = 1;
    }
    return reshape(g, sizes);
}

Tensor spread(const Tensor& g, const Shape& shape, Over dims) {
    if (detail::thread.log) return expand(with_ones(g, shape, dims), shape);
    Shape strides = shape;
    for (int d = 0, own = 0; d < shape.rank(); ++d) {
        strides.raw(d) = dims.has(d) ? 0 : g.impl()->strides[own];
        own += !dims.has(d) || dims.keepdim;
    }
    return detail::make_view(g.impl(), shape, strides, 0);
}

}  // namespace reduction

// --- Sum and mean --------------------------------------------------------------------------------------------------------

namespace {

using namespace reduction;

void sum_rule(Backward& b) {
    if (b.needs(0)) b.give(0, spread(b.grad(), b.input_shape(0), b.attrs<Over>()));
}

}  // namespace

TAPIR_HAZARDS(sum, hazard::differences);
TAPIR_OP(sum, sum_rule, "The sum over dimensions.", TAPIR_SAMPLE("f(3,4)", sum(x[0])), TAPIR_SAMPLE("f(3,4)", sum(x[0], {0})),
         TAPIR_SAMPLE("f(3,4)", sum(x[0], {-1}, true)), TAPIR_SAMPLE("f(2,3,4)", sum(x[0], {2, 0})), TAPIR_SAMPLE("f(2,3,4)", sum(x[0], {1})),
         TAPIR_SAMPLE("f(2,3,4,2)", sum(x[0], {1, 3}, true)), TAPIR_SAMPLE("f(1,4)", sum(x[0], {0})), TAPIR_SAMPLE("f()", sum(x[0])),
         TAPIR_SAMPLE("f(5,70)", sum(x[0], {1})), TAPIR_SAMPLE("f(33,3)", sum(x[0], {0})), TAPIR_SAMPLE("i(3,4)<9", sum(x[0], {1})),
         TAPIR_SAMPLE("b(3,4)", sum(x[0], {0})));

Tensor sum(In x, const Dims& dims, Flag keepdim) {
    detail::check_defined(x, "sum");
    if (const Tensor wide = detail::autocast_wide(x); wide.defined()) return sum(In(wide, x.loc), dims, keepdim);
    const TensorImpl* impl = x.tensor.impl();
    const Over o = over("sum", dims, impl->rank, keepdim, x.loc);
    if (detail::in_batch()) [[unlikely]] {
        const auto reduce = [&](const In& block, const Dims& of) { return sum(block, of, keepdim); };
        if (Tensor made; reduced_in_group(sum_op, x, o, reduce, made)) return made;
    }
    const DType dtype = is_floating(impl->dtype) ? impl->dtype : int64;
    Tensor out = make_result(impl, o, dtype, x.loc);
    const std::int64_t outputs = out.impl()->numel;
    if (outputs == 1 && impl->dtype == float32 && impl->is_contiguous() && impl->numel < kParallelWork && !on_gpu(impl)) {
        *static_cast<float*>(out.raw_data()) =
            static_cast<float>(kernels::sum_floats(static_cast<const float*>(static_cast<void*>(impl->data)), impl->numel));
    } else if (impl->numel > 0) {
        run(impl, o, {Reduction::sum, compute_type(dtype)}, out.impl(), x.loc);
    } else if (outputs > 0) {
        fill(out, 0, x.loc);
    }
    if (detail::thread.observed) record(sum_op, x.loc, {&x.tensor}, out, {}, o);
    return out;
}

namespace {

void mean_rule(Backward& b) {
    if (!b.needs(0)) return;
    const Shape shape = b.input_shape(0);
    const auto o = b.attrs<Over>();
    std::int64_t n = 1;
    for (int d = 0; d < shape.rank(); ++d) n *= o.has(d) ? shape.raw(d) : 1;
    b.give(0, spread(b.grad() / static_cast<double>(n), shape, o));
}

// Throws DTypeError unless x has a floating dtype.
void check_floating(const In& x, const char* op) {
    if (!is_floating(x.tensor.dtype())) {
        fail<DTypeError>(x.loc, "{}: needs a floating dtype, got {}; convert with to(float32)", op, name(x.tensor.dtype()));
    }
}

// Throws ShapeError if there is no element to take an extreme of.
void check_not_empty(const In& x, const char* op, Over o) {
    if (reduced_numel(x.tensor.impl(), o) == 0) {
        fail<ShapeError>(x.loc, "{}: no elements to choose from in shape {}", op, x.tensor.shape());
    }
}

// Returns the result of a plan, or `empty` if there are no elements to reduce.
Tensor reduced(const In& x, Over o, const Plan& plan, DType dtype, Scalar empty) {
    const TensorImpl* impl = x.tensor.impl();
    Tensor out = make_result(impl, o, dtype, x.loc);
    if (out.impl()->numel == 0) return out;
    if (impl->numel == 0) {
        fill(out, empty, x.loc);
    } else {
        run(impl, o, plan, out.impl(), x.loc);
    }
    return out;
}

}  // namespace

TAPIR_HAZARDS(mean, hazard::differences | hazard::average);
TAPIR_OP(mean, mean_rule, "The mean over dimensions.", TAPIR_SAMPLE("f(3,4)", mean(x[0])), TAPIR_SAMPLE("f(3,4)", mean(x[0], {0})),
         TAPIR_SAMPLE("f(3,4)", mean(x[0], {-1}, true)), TAPIR_SAMPLE("f(2,3,4)", mean(x[0], {0, 2})), TAPIR_SAMPLE("f(1,4)", mean(x[0], {0})),
         TAPIR_SAMPLE("f()", mean(x[0])));

Tensor mean(In x, const Dims& dims, Flag keepdim) {
    detail::check_defined(x, "mean");
    check_floating(x, "mean");
    const TensorImpl* impl = x.tensor.impl();
    const Over o = over("mean", dims, impl->rank, keepdim, x.loc);
    if (detail::in_batch()) [[unlikely]] {
        const auto reduce = [&](const In& block, const Dims& of) { return mean(block, of, keepdim); };
        if (Tensor made; reduced_in_group(mean_op, x, o, reduce, made)) return made;
    }
    Plan plan{Reduction::sum, compute_type(impl->dtype)};
    plan.finish = Finish::divide;
    plan.divisor = static_cast<double>(reduced_numel(impl, o));
    Tensor out = reduced(x, o, plan, impl->dtype, std::numeric_limits<double>::quiet_NaN());
    if (detail::thread.observed) record(mean_op, x.loc, {&x.tensor}, out, {}, o);
    return out;
}

// --- Extremes ------------------------------------------------------------------------------------------------------------

namespace {

// Gives g to the elements that equal the result, in equal shares.
Tensor to_equal(const Tensor& x, const Tensor& y, const Tensor& g, Over o) {
    const Shape shape = x.shape();
    const Tensor mask = to(eq(x, with_ones(y, shape, o)), g.dtype());
    return mask * (with_ones(g, shape, o) / sum(mask, dims_of(o, shape.rank()), true));
}

void amax_rule(Backward& b) {
    if (b.needs(0)) b.give(0, to_equal(b.saved(0), b.saved(1), b.grad(), b.attrs<Over>()));
}
void amin_rule(Backward& b) { amax_rule(b); }

// called: the user's name of the op.
Tensor extreme_over(const OpInfo& op, const char* called, Reduction kind, const In& x, const Dims& dims, bool keepdim) {
    detail::check_defined(x, called);
    const DType dtype = x.tensor.dtype();
    const Over o = over(called, dims, x.tensor.dim(), keepdim, x.loc);
    check_not_empty(x, called, o);
    if (detail::in_batch()) [[unlikely]] {
        const auto reduce = [&](const In& block, const Dims& of) { return extreme_over(op, called, kind, block, of, keepdim); };
        if (Tensor made; reduced_in_group(op, x, o, reduce, made)) return made;
    }
    Tensor out = reduced(x, o, {kind, compute_type(dtype)}, dtype, 0);
    if (detail::thread.observed) record(op, x.loc, {&x.tensor}, out, {&x.tensor, &out}, o);
    return out;
}

}  // namespace

TAPIR_OP(amax, amax_rule, "The largest element over dimensions; ties share the gradient.", TAPIR_SAMPLE("d(3,4)", amax(x[0])),
         TAPIR_SAMPLE("d(3,4)", amax(x[0], {0})), TAPIR_SAMPLE("d(3,4)", amax(x[0], {-1}, true)), TAPIR_SAMPLE("d(2,3,4)", amax(x[0], {0, 2})),
         TAPIR_SAMPLE("d(40,3)", amax(x[0], {0})), TAPIR_SAMPLE("d(3,4)", max(x[0])), TAPIR_SAMPLE("i(3,4)<9", amax(x[0], {1})));
TAPIR_OP(amin, amin_rule, "The smallest element over dimensions; ties share the gradient.", TAPIR_SAMPLE("d(3,4)", amin(x[0])),
         TAPIR_SAMPLE("d(3,4)", amin(x[0], {0})), TAPIR_SAMPLE("d(3,4)", amin(x[0], {-1}, true)), TAPIR_SAMPLE("d(2,3,4)", amin(x[0], {2, 1})),
         TAPIR_SAMPLE("d(3,4)", min(x[0])), TAPIR_SAMPLE("i(3,4)<9", amin(x[0], {0})));

Tensor amax(In x, const Dims& dims, Flag keepdim) { return extreme_over(amax_op, "amax", Reduction::max, x, dims, keepdim); }
Tensor amin(In x, const Dims& dims, Flag keepdim) { return extreme_over(amin_op, "amin", Reduction::min, x, dims, keepdim); }
Tensor max(In x) { return extreme_over(amax_op, "max", Reduction::max, x, {}, false); }
Tensor min(In x) { return extreme_over(amin_op, "min", Reduction::min, x, {}, false); }
Tensor max(In a, In b) { return maximum(a, b); }
Tensor min(In a, In b) { return minimum(a, b); }

// --- Truth -----------------------------------------------------------------------------------------------------------------

TAPIR_OP(all, NonDiff, "Whether no element over the dimensions is 0.", TAPIR_SAMPLE("b(3,4)", all(x[0])),
         TAPIR_SAMPLE_AS("b(3,4)", "all(x[0], 1)", all(x[0], {1})), TAPIR_SAMPLE_AS("i(3,4)<3", "all(x[0], 0, True)", all(x[0], {0}, true)));
TAPIR_OP(any, NonDiff, "Whether an element over the dimensions is not 0.", TAPIR_SAMPLE("b(3,4)", any(x[0])),
         TAPIR_SAMPLE_AS("b(3,4)", "any(x[0], -1)", any(x[0], {-1})), TAPIR_SAMPLE_AS("i(3,4)<2", "any(x[0], 0, True)", any(x[0], {0}, true)));

Tensor all(In x, const Dims& dims, Flag keepdim) {
    detail::check_defined(x, "all");
    const Over o = over("all", dims, x.tensor.dim(), keepdim, x.loc);
    if (detail::in_batch()) [[unlikely]] {
        const auto reduce = [&](const In& block, const Dims& of) { return all(block, of, keepdim); };
        if (Tensor made; reduced_in_group(all_op, x, o, reduce, made)) return made;
    }
    Tensor out = reduced(x, o, {Reduction::all, bool_}, bool_, true);
    if (detail::thread.observed) record(all_op, x.loc, {&x.tensor}, out, {}, o);
    return out;
}

Tensor any(In x, const Dims& dims, Flag keepdim) {
    detail::check_defined(x, "any");
    const Over o = over("any", dims, x.tensor.dim(), keepdim, x.loc);
    if (detail::in_batch()) [[unlikely]] {
        const auto reduce = [&](const In& block, const Dims& of) { return any(block, of, keepdim); };
        if (Tensor made; reduced_in_group(any_op, x, o, reduce, made)) return made;
    }
    Tensor out = reduced(x, o, {Reduction::any, bool_}, bool_, false);
    if (detail::thread.observed) record(any_op, x.loc, {&x.tensor}, out, {}, o);
    return out;
}

// --- Norms -----------------------------------------------------------------------------------------------------------------

namespace {

struct NormAttrs {
    double p;
    Over over;
};

// Returns a / b, and 0 where b is 0, with derivatives of 0 there too.
Tensor divide_or_zero(const Tensor& a, const Tensor& b) {
    const Tensor zero = eq(b, 0.0);
    return where(zero, 0.0, a / where(zero, 1.0, b));
}

// At 0 the norm has no derivative; the gradient is 0: a subgradient.
void norm_rule(Backward& b) {
    if (!b.needs(0)) return;
    const auto& [p, o] = b.attrs<NormAttrs>();
    const Tensor x = b.saved(0), y = with_ones(b.saved(1), x.shape(), o), g = with_ones(b.grad(), x.shape(), o);
    const Over kept{o.dims, true};
    if (p == 0) {
        b.give(0, spread(g * 0.0, x.shape(), kept));
    } else if (p == 1) {
        b.give(0, sign(x) * g);
    } else if (p == 2) {
        b.give(0, x * divide_or_zero(g, y));
    } else if (std::isinf(p)) {
        b.give(0, sign(x) * to_equal(abs(x), y, g, kept));
    } else {
        // (|x| / y)^(p - 1): the powers alone may overflow
        const Tensor size = abs(x), zero = eq(size, 0.0), length = where(eq(y, 0.0), 1.0, y);
        const Tensor power = where(zero, 0.0, pow(where(zero, 1.0, size) / length, p - 1));
        b.give(0, sign(x) * power * to(ne(y, 0.0), y.dtype()) * g);
    }
}

Plan norm_plan(double p) {
    Plan plan{Reduction::sum, float64};
    if (p == 0) {
        plan.map = Map::not_zero;
    } else if (std::isinf(p)) {
        plan.map = Map::abs;
        plan.reduction = p > 0 ? Reduction::max : Reduction::min;
    } else if (p == 1) {
        plan.map = Map::abs;
    } else if (p == 2) {
        plan.map = Map::square;
        plan.finish = Finish::sqrt;
    } else {
        plan.map = Map::power;
        plan.finish = Finish::root;
        plan.exponent = p;
    }
    return plan;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// True if the sum of powers behind a norm may have left the range of float64, in which it is computed, or lost digits
// below it.
bool may_be_out_of_range(double norm, double p) {
    const double powers = p * std::log2(norm);  // the sum's logarithm; infinite for norms of 0 and infinity, and nan for nan
    return !(powers > -960 && powers < 1023);
}

// Computes norms, or deviations (p = 2), again for the lines whose sums of powers leave the range: compute(size) of
// elements divided by a power of two near the largest, or for p < 0 the smallest, of their line.
template <class Compute>
void mend_range(const In& x, double p, Over o, const Tensor& out, const Compute& compute) {
    const Tensor rough = out.to(float64, x.loc);
    const auto* norms = static_cast<const double*>(rough.raw_data());
    if (std::none_of(norms, norms + rough.numel(), [p](double norm) { return may_be_out_of_range(norm, p); })) return;
    const Dims dims = dims_of(o, x.tensor.dim());
    const Tensor size = abs(x).to(float64, x.loc), scale = (p > 0 ? amax(size, dims, true) : amin(size, dims, true)).contiguous(x.loc);
    auto* scales = static_cast<double*>(scale.raw_data());
    std::vector<double> undo;
    for (std::int64_t i = 0; i < scale.numel(); ++i) {
        const bool is_number = scales[i] > 0 && std::isfinite(scales[i]);
        scales[i] = is_number && may_be_out_of_range(norms[i], p) ? std::ldexp(1.0, -std::clamp(std::ilogb(scales[i]), -1022, 1022)) : 1;
        undo.push_back(1 / scales[i]);
    }
    const Tensor scaled = compute(In(mul(x.tensor.to(float64, x.loc), scale), x.loc));
    auto* to = static_cast<double*>(scaled.raw_data());
    for (std::int64_t i = 0; i < scaled.numel(); ++i) to[i] *= undo[static_cast<std::size_t>(i)];
    copy_elements(out, scaled);
}

}  // namespace

TAPIR_HAZARDS(norm, hazard::steep_at_zero);
TAPIR_OP(norm, norm_rule, "The p-norm over dimensions.", TAPIR_SAMPLE("f(3,4)", norm(x[0])), TAPIR_SAMPLE("f(3,4)", norm(x[0], 2, {1})),
         TAPIR_SAMPLE("f(3,4)", norm(x[0], 1, {0}, true)), TAPIR_SAMPLE("f(2,3,4)", norm(x[0], 2, {0, 2})),
         TAPIR_SAMPLE("f(3,4)", norm(x[0], 3, {1})), TAPIR_SAMPLE("f(3,4)", norm(x[0], 1.5, {-1})), TAPIR_SAMPLE("u(3,4)", norm(x[0], 0.5, {1})),
         TAPIR_SAMPLE("u(3,4)", norm(x[0], -2, {1})), TAPIR_SAMPLE("f(3,4)", norm(x[0], 0, {1})),
         TAPIR_SAMPLE_AS("d(3,4)", "norm(x[0], float('inf'), 1)", norm(x[0], kInfinity, {1})),
         TAPIR_SAMPLE_AS("d(3,4)", "norm(x[0], float('-inf'), 0)", norm(x[0], -kInfinity, {0})));

Tensor reduction::norm_of(const char* op, const In& x, double p, const Dims& dims, bool keepdim) {
    detail::check_defined(x, op);
    if (const Tensor wide = detail::autocast_wide(x); wide.defined()) return norm_of(op, In(wide, x.loc), p, dims, keepdim);
    check_floating(x, op);
    if (std::isnan(p)) fail<ValueError>(x.loc, "{}: p must not be nan", op);
    const Over o = over(op, dims, x.tensor.dim(), keepdim, x.loc);
    if (std::isinf(p) || p < 0) check_not_empty(x, op, o);
    if (detail::in_batch()) [[unlikely]] {
        const auto reduce = [&](const In& block, const Dims& of) { return norm_of(op, block, p, of, keepdim); };
        if (Tensor made; reduced_in_group(norm_op, x, o, reduce, made, p)) return made;
    }
    Tensor out = reduced(x, o, norm_plan(p), x.tensor.dtype(), 0);
    // In float64 there is room for powers of narrower floats, unless p is large.
    const bool has_room = p == 0 || p == 1 || std::isinf(p) || (x->dtype != float64 && std::abs(p) <= 4);
    if (!has_room && !on_gpu(x.tensor) && x->numel > 0) [[unlikely]] {
        const detail::UnrecordedPartsOf parts(x.loc);
        mend_range(x, p, o, out, [&](const In& scaled) { return reduced(scaled, o, norm_plan(p), float64, 0); });
    }
    if (detail::thread.observed) record(norm_op, x.loc, {&x.tensor}, out, {&x.tensor, &out}, NormAttrs{p, o});
    return out;
}

Tensor norm(In x, double p, const Dims& dims, Flag keepdim) { return reduction::norm_of("norm", x, p, dims, keepdim); }

// --- Variance --------------------------------------------------------------------------------------------------------------

namespace {

struct VarAttrs {
    Over over;
    int correction;
};

// d var / dx = 2 (x - mean) / (n - correction)
Tensor var_gradient(const Tensor& x, const Tensor& g, const VarAttrs& attrs) {
    const Over o = attrs.over;
    const auto n = static_cast<double>(reduced_numel(x.impl(), o));
    const Tensor distance = x - mean(x, dims_of(o, x.dim()), true);
    return distance * (with_ones(g, x.shape(), o) * (2 / std::max(n - attrs.correction, 0.0)));
}

void var_rule(Backward& b) {
    if (b.needs(0)) b.give(0, var_gradient(b.saved(0), b.grad(), b.attrs<VarAttrs>()));
}
// d sqrt(v) = dv / (2 sqrt(v)), and 0 where the deviation is 0
void std_rule(Backward& b) {
    if (!b.needs(0)) return;
    const auto& attrs = b.attrs<VarAttrs>();
    b.give(0, var_gradient(b.saved(0), divide_or_zero(b.grad() * 0.5, b.saved(1)), attrs));
}

Tensor variance(const In& x, const char* op, Over o, int correction, Finish finish) {
    detail::check_defined(x, op);
    check_floating(x, op);
    const TensorImpl* impl = x.tensor.impl();
    Tensor out = make_result(impl, o, impl->dtype, x.loc);
    if (out.impl()->numel == 0) return out;
    if (impl->numel == 0) {
        fill(out, std::numeric_limits<double>::quiet_NaN());
        return out;
    }
    Plan plan{Reduction::sum, float64};
    plan.finish = finish;
    plan.divisor = std::max(static_cast<double>(reduced_numel(impl, o)) - correction, 0.0);
    run_moments(impl, o, plan, out.impl());
    if (finish == Finish::sqrt && impl->dtype == float64 && !on_gpu(x.tensor)) {
        const detail::UnrecordedPartsOf parts(x.loc);
        mend_range(x, 2, o, out, [&](const In& scaled) {
            const Tensor made = make_result(scaled.tensor.impl(), o, float64, x.loc);
            run_moments(scaled.tensor.impl(), o, plan, made.impl());
            return made;
        });
    }
    return out;
}

}  // namespace

TAPIR_HAZARDS(var, hazard::average | hazard::correction);
TAPIR_OP(var, var_rule, "The variance over dimensions.", TAPIR_SAMPLE_AS("f(3,4)", "var(x[0])", var(x[0])),
         TAPIR_SAMPLE_AS("f(3,4)", "var(x[0], 1, unbiased=False)", var(x[0], {1}, 0)),
         TAPIR_SAMPLE_AS("f(3,4)", "var(x[0], 0, unbiased=True, keepdim=True)", var(x[0], {0}, 1, true)),
         TAPIR_SAMPLE_AS("f(2,3,4)", "var(x[0], (0, 2), unbiased=True)", var(x[0], {0, 2})),
         TAPIR_SAMPLE_AS("f(2,3,4)", "var(x[0], -1, unbiased=True)", var(x[0], {-1})));
TAPIR_HAZARDS(std, hazard::average | hazard::correction | hazard::steep_at_zero);
TAPIR_OP(std, std_rule, "The standard deviation over dimensions.", TAPIR_SAMPLE_AS("f(3,4)", "std(x[0])", std(x[0])),
         TAPIR_SAMPLE_AS("f(3,4)", "std(x[0], 1, unbiased=False)", std(x[0], {1}, 0)),
         TAPIR_SAMPLE_AS("f(3,4)", "std(x[0], 0, unbiased=True, keepdim=True)", std(x[0], {0}, 1, true)),
         TAPIR_SAMPLE_AS("f(2,3,4)", "std(x[0], (0, 2), unbiased=True)", std(x[0], {0, 2})));

Tensor reduction::var_of(const char* op, const In& x, const Dims& dims, int correction, bool keepdim) {
    detail::check_defined(x, op);
    const Over o = over(op, dims, x.tensor.dim(), keepdim, x.loc);
    if (detail::in_batch()) [[unlikely]] {
        const auto reduce = [&](const In& block, const Dims& of) { return var_of(op, block, of, correction, keepdim); };
        if (Tensor made; reduced_in_group(var_op, x, o, reduce, made, correction)) return made;
    }
    Tensor out = variance(x, op, o, correction, Finish::none);
    if (detail::thread.observed) {
        record(var_op, x.loc, {&x.tensor}, out, {&x.tensor}, VarAttrs{o, correction}, {static_cast<double>(correction)});
    }
    return out;
}

Tensor reduction::std_of(const char* op, const In& x, const Dims& dims, int correction, bool keepdim) {
    detail::check_defined(x, op);
    const Over o = over(op, dims, x.tensor.dim(), keepdim, x.loc);
    if (detail::in_batch()) [[unlikely]] {
        const auto reduce = [&](const In& block, const Dims& of) { return std_of(op, block, of, correction, keepdim); };
        if (Tensor made; reduced_in_group(std_op, x, o, reduce, made, correction)) return made;
    }
    Tensor out = variance(x, op, o, correction, Finish::sqrt);
    if (detail::thread.observed) {
        record(std_op, x.loc, {&x.tensor}, out, {&x.tensor, &out}, VarAttrs{o, correction}, {static_cast<double>(correction)});
    }
    return out;
}

Tensor var(In x, const Dims& dims, int correction, Flag keepdim) { return reduction::var_of("var", x, dims, correction, keepdim); }
Tensor std(In x, const Dims& dims, int correction, Flag keepdim) { return reduction::std_of("std", x, dims, correction, keepdim); }

// --- Methods ---------------------------------------------------------------------------------------------------------------

Tensor Tensor::sum(Loc loc) const { return tapir::sum(In(*this, loc)); }
Tensor Tensor::sum(const Dims& dims, Flag keepdim, Loc loc) const { return tapir::sum(In(*this, loc), dims, keepdim); }
Tensor Tensor::mean(Loc loc) const { return tapir::mean(In(*this, loc)); }
Tensor Tensor::mean(const Dims& dims, Flag keepdim, Loc loc) const { return tapir::mean(In(*this, loc), dims, keepdim); }
Tensor Tensor::amax(const Dims& dims, Flag keepdim, Loc loc) const { return tapir::amax(In(*this, loc), dims, keepdim); }
Tensor Tensor::amin(const Dims& dims, Flag keepdim, Loc loc) const { return tapir::amin(In(*this, loc), dims, keepdim); }
Tensor Tensor::all(Loc loc) const { return tapir::all(In(*this, loc)); }
Tensor Tensor::any(Loc loc) const { return tapir::any(In(*this, loc)); }
Tensor Tensor::max(Loc loc) const { return tapir::max(In(*this, loc)); }
Tensor Tensor::min(Loc loc) const { return tapir::min(In(*this, loc)); }
Tensor Tensor::max(const Tensor& other, Loc loc) const { return tapir::max(In(*this, loc), In(other, loc)); }
Tensor Tensor::min(const Tensor& other, Loc loc) const { return tapir::min(In(*this, loc), In(other, loc)); }
Tensor Tensor::all(const Dims& dims, Flag keepdim, Loc loc) const { return tapir::all(In(*this, loc), dims, keepdim); }
Tensor Tensor::any(const Dims& dims, Flag keepdim, Loc loc) const { return tapir::any(In(*this, loc), dims, keepdim); }
Tensor Tensor::var(const Dims& dims, int correction, Flag keepdim, Loc loc) const { return tapir::var(In(*this, loc), dims, correction, keepdim); }
Tensor Tensor::std(const Dims& dims, int correction, Flag keepdim, Loc loc) const { return tapir::std(In(*this, loc), dims, correction, keepdim); }
Tensor Tensor::norm(double p, const Dims& dims, Flag keepdim, Loc loc) const { return tapir::norm(In(*this, loc), p, dims, keepdim); }

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

bool reduced_into(const FormCall& x, const Tensor& out, Finish finish) {
    const TensorImpl *in = x[0].impl(), *y = out.impl();
    const Over given = *static_cast<const Over*>(x.attrs), o{given.dims ? given.dims : (1u << in->rank) - 1, given.keepdim};
    if (in->device != cpu || y->device != cpu || in->dtype != y->dtype || !is_floating(in->dtype) || in->numel == 0 || (o.dims >> in->rank))
        return false;
    const std::int64_t count = reduced_numel(in, o);
    if (y->numel * count != in->numel) return false;
    if (finish == Finish::none && y->numel == 1 && in->dtype == float32 && in->is_contiguous() && in->numel < kParallelWork) {
        const auto* elements = static_cast<const float*>(static_cast<void*>(in->data));
        *static_cast<float*>(static_cast<void*>(y->data)) = static_cast<float>(kernels::sum_floats(elements, in->numel));
        return true;
    }
    Plan plan{Reduction::sum, compute_type(in->dtype)};
    plan.finish = finish;
    plan.divisor = static_cast<double>(count);
    run(in, o, plan, y);
    return true;
}

bool sum_into(const FormCall& x, const Tensor& out) { return reduced_into(x, out, Finish::none); }
bool mean_into(const FormCall& x, const Tensor& out) { return reduced_into(x, out, Finish::divide); }

}  // namespace

TAPIR_INTO_FORM(sum, 1, Over, reduced(t[0], dims_of(a), a.keepdim, summed(t[0].dtype)), sum(x[0], dims_of(a), a.keepdim), sum_into,
                over_fields(f, a));
TAPIR_INTO_FORM(mean, 1, Over, reduced(t[0], dims_of(a), a.keepdim, floating(t[0].dtype)), mean(x[0], dims_of(a), a.keepdim), mean_into,
                over_fields(f, a));
TAPIR_FORM(amax, 1, Over, reduced(chosen(t[0], dims_of(a)), dims_of(a), a.keepdim, t[0].dtype), amax(x[0], dims_of(a), a.keepdim), over_fields(f, a));
TAPIR_FORM(amin, 1, Over, reduced(chosen(t[0], dims_of(a)), dims_of(a), a.keepdim, t[0].dtype), amin(x[0], dims_of(a), a.keepdim), over_fields(f, a));
TAPIR_FORM(all, 1, Over, reduced(t[0], dims_of(a), a.keepdim, DType::boolean), all(x[0], dims_of(a), a.keepdim), over_fields(f, a));
TAPIR_FORM(any, 1, Over, reduced(t[0], dims_of(a), a.keepdim, DType::boolean), any(x[0], dims_of(a), a.keepdim), over_fields(f, a));
TAPIR_FORM(norm, 1, NormAttrs,
           reduced(std::isinf(a.p) || a.p < 0 ? chosen(t[0], dims_of(a.over)) : t[0], dims_of(a.over), a.over.keepdim, floating(t[0].dtype)),
           norm(x[0], a.p, dims_of(a.over), a.over.keepdim), f("p", a.p);
           over_fields(f, a.over));
TAPIR_FORM(var, 1, VarAttrs, reduced(t[0], dims_of(a.over), a.over.keepdim, floating(t[0].dtype)),
           var(x[0], dims_of(a.over), a.correction, a.over.keepdim), over_fields(f, a.over);
           f("correction", a.correction));
TAPIR_FORM(std, 1, VarAttrs, reduced(t[0], dims_of(a.over), a.over.keepdim, floating(t[0].dtype)),
           std(x[0], dims_of(a.over), a.correction, a.over.keepdim), over_fields(f, a.over);
           f("correction", a.correction));

}  // namespace tapir
