// Sums, means, products and extremes over any dimensions.
#include "tapir/ops/reduce.h"

#include <cmath>
#include <limits>

#include "tapir/core/fail_impl.h"
#include "tapir/ops/copy.h"
#include "tapir/ops/elementwise_impl.h"
#include "tapir/ops/reduce_impl.h"
#include "tapir/ops/view.h"

namespace tapir {

using kernels::Finish;
using kernels::Map;
using kernels::Reduction;
using reduction::Over;
using reduction::Plan;

// --- Shared by all reductions ------------------------------------------------------------------------------------------

namespace reduction {

Over over(const char* op, const Dims& dims, int rank, bool keepdim, const Loc& loc) {
    if (dims.empty()) return {(1u << rank) - 1, keepdim};
    Over result{0, keepdim};
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

void fill(const Tensor& out, Scalar value) {
    const detail::PauseRecording pause;
    Tensor(out).fill_(value);
}

namespace {

// Appends a dimension to a list, merged with the last one where both lie behind each other in memory.
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

void describe(const TensorImpl* x, Over dims, kernels::ReduceArgs& args) {
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
    args.columns = args.kept > 0 && (args.reduced == 0 || args.kept_strides[args.kept - 1] <
                                                              args.reduced_strides[args.reduced - 1]);
}

// How many positions of the outermost reduced dimension make one part, when the work is to be shared out along it: few
// results, each of many elements. The cut depends on the sizes only, so that the result does not depend on the threads.
constexpr std::int64_t kPartElements = 64 * 1024;
std::int64_t part_rows(const kernels::ReduceArgs& args, std::int64_t numel, std::int64_t outputs) {
    if (args.reduced == 0 || numel < 2 * kPartElements || outputs > (args.columns ? 8192 : 64)) return 0;
    const std::int64_t per_row = numel / args.reduced_sizes[0];
    const std::int64_t rows = std::max(std::max(kPartElements, 16 * outputs) / per_row, std::int64_t{1});
    return rows * 2 <= args.reduced_sizes[0] ? rows : 0;
}

// Reduces parts of the outermost reduced dimension into a (parts, outputs) buffer, then that.
void run_in_parts(kernels::ReduceArgs args, std::int64_t rows, std::int64_t numel, std::int64_t outputs) {
    const std::int64_t all_rows = args.reduced_sizes[0], parts = (all_rows + rows - 1) / rows;
    const Tensor partial = detail::make_empty({parts, outputs}, args.compute, Device{}, Loc{});
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

void run(const TensorImpl* x, Over dims, const Plan& plan, const TensorImpl* out) {
    kernels::ReduceArgs args;
    args.reduction = plan.reduction;
    args.map = plan.map;
    args.finish = plan.finish;
    args.compute = plan.compute;
    args.divisor = plan.divisor;
    args.exponent = plan.exponent;
    args.out = out->data;
    args.out_dtype = out->dtype;
    describe(x, dims, args);
    const std::int64_t rows = part_rows(args, x->numel, out->numel);
    if (rows > 0) return run_in_parts(args, rows, x->numel, out->numel);
    share_out(out->numel, x->numel / out->numel,
              [&](std::int64_t begin, std::int64_t end) { kernels::reduce(args, begin, end); });
}

Tensor with_ones(const Tensor& g, const Shape& shape, Over dims) {
    if (dims.keepdim) return g;
    Shape sizes = shape;
    for (int d = 0; d < shape.rank(); ++d) {
        if (dims.has(d)) sizes[d] = 1;
    }
    return reshape(g, sizes);
}

Tensor spread(const Tensor& g, const Shape& shape, Over dims) {
    if (detail::thread.log) return expand(with_ones(g, shape, dims), shape);
    Shape strides = shape;
    for (int d = 0, own = 0; d < shape.rank(); ++d) {
        strides[d] = dims.has(d) ? 0 : g.impl()->strides[own];
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

TAPIR_OP(sum, "ReduceSum", sum_rule, "The sum over dimensions.", TAPIR_SAMPLE("f(3,4)", sum(x[0])),
         TAPIR_SAMPLE("f(3,4)", sum(x[0], {0})), TAPIR_SAMPLE("f(3,4)", sum(x[0], {-1}, true)),
         TAPIR_SAMPLE("f(2,3,4)", sum(x[0], {2, 0})), TAPIR_SAMPLE("f(2,3,4)", sum(x[0], {1})),
         TAPIR_SAMPLE("f(2,3,4,2)", sum(x[0], {1, 3}, true)), TAPIR_SAMPLE("f(1,4)", sum(x[0], {0})),
         TAPIR_SAMPLE("f()", sum(x[0])), TAPIR_SAMPLE("f(5,70)", sum(x[0], {1})),
         TAPIR_SAMPLE("f(33,3)", sum(x[0], {0})), TAPIR_SAMPLE("i(3,4)<9", sum(x[0], {1})),
         TAPIR_SAMPLE("b(3,4)", sum(x[0], {0})));

Tensor sum(In x, const Dims& dims, bool keepdim) {
    detail::check_defined(x, "sum");
    const TensorImpl* impl = x.tensor.impl();
    const Over o = over("sum", dims, impl->rank, keepdim, x.loc);
    const DType dtype = is_floating(impl->dtype) ? impl->dtype : int64;
    Tensor out = make_result(impl, o, dtype, x.loc);
    const std::int64_t outputs = out.impl()->numel;
    if (outputs == 1 && impl->dtype == float32 && impl->is_contiguous() && impl->numel < kParallelWork) {
        *static_cast<float*>(out.raw_data()) =
            static_cast<float>(kernels::sum_floats(static_cast<const float*>(static_cast<void*>(impl->data)), impl->numel));
    } else if (impl->numel > 0) {
        run(impl, o, {Reduction::sum, compute_type(dtype)}, out.impl());
    } else if (outputs > 0) {
        fill(out, 0);
    }
    if (detail::thread.log) record(sum_op, x.loc, {&x.tensor}, out, {}, o);
    return out;
}

Tensor Tensor::sum(Loc loc) const { return tapir::sum(In(*this, loc)); }
Tensor Tensor::sum(const Dims& dims, bool keepdim, Loc loc) const { return tapir::sum(In(*this, loc), dims, keepdim); }

}  // namespace tapir
