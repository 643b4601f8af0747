// Shared code of the reductions: reduced dimensions, the result's shape, spreading gradients, and sharing out work.
#pragma once

#include <algorithm>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/kernels/launch.h"
#include "tapir/ops/reduce/reduce_kernels.h"

namespace tapir::reduction {

/// The reduced dimensions as bits, and true if they stay with size 1: the attributes of every reduction's record.
struct Over {
    std::uint32_t dims;
    bool keepdim;
    bool has(int d) const noexcept { return dims >> d & 1; }
};

/// Checks a list of dimensions; an empty one stands for all. Throws IndexError.
Over over(const char* op, const Dims& dims, int rank, bool keepdim, const Loc& loc);
/// Checks one dimension. Throws IndexError.
Over over(const char* op, int dim, int rank, bool keepdim, const Loc& loc);

/// norm(), var() and std() with messages that begin with `op`.
Tensor norm_of(const char* op, const In& x, double p, const Dims& dims, bool keepdim);
Tensor var_of(const char* op, const In& x, const Dims& dims, int correction, bool keepdim);
Tensor std_of(const char* op, const In& x, const Dims& dims, int correction, bool keepdim);
/// Returns the dimensions as a list.
Dims dims_of(Over o, int rank = kMaxRank);
/// States them as attributes of a graph.
void over_fields(Fields& f, Over& o);

/// Returns the number of elements that one result is made of.
std::int64_t reduced_numel(const TensorImpl* x, Over dims) noexcept;
/// Makes a fresh tensor of the result's shape.
Tensor make_result(const TensorImpl* x, Over dims, DType dtype, const Loc& loc);

/// Returns the type that reductions of this dtype are computed in.
constexpr DType compute_type(DType dtype) noexcept { return is_floating(dtype) ? computed_in(dtype) : DType::int64; }
/// Writes one number everywhere; not recorded.
void fill(const Tensor& out, Scalar value, const Loc& loc = {});

struct Plan {
    kernels::Reduction reduction;
    DType compute;
    kernels::Map map = kernels::Map::none;
    kernels::Finish finish = kernels::Finish::none;
    double divisor = 1, exponent = 1;
};
/// Makes a kernel's arguments. If `out` is null, so is args.out.
kernels::ReduceArgs arguments(const TensorImpl* x, Over dims, const Plan& plan, const TensorImpl* out) noexcept;
/// Reduces into `out`. Both have elements.
void run(const TensorImpl* x, Over dims, const Plan& plan, const TensorImpl* out, const Loc& loc = {});
/// Computes variances (Finish::none) or deviations (Finish::sqrt), divided by plan.divisor.
void run_moments(const TensorImpl* x, Over dims, const Plan& plan, const TensorImpl* out);

/// Repeats a gradient (or a result) of the reduced shape along the reduced dimensions to the input's shape: a view.
Tensor spread(const Tensor& g, const Shape& shape, Over dims);
/// Returns it with reduced dimensions of size 1.
Tensor with_ones(const Tensor& g, const Shape& shape, Over dims);

/// One dimension of a contiguous tensor, as (outer, size, inner).
struct Lines {
    std::int64_t outer = 1, size = 1, inner = 1;
    Lines(const TensorImpl* x, int dim) noexcept {
        for (int d = 0; d < x->rank; ++d) (d < dim ? outer : d == dim ? size : inner) *= x->sizes[d];
    }
    std::int64_t count() const noexcept { return outer * inner; }
};

/// Returns true if a reduction was computed together with its peers in batch(): reduce(block, dims) reduces a block. more: its other arguments.
template <class Reduce, class... More>
bool reduced_in_group(const OpInfo& op, const In& x, Over o, const Reduce& reduce, Tensor& out, const More&... more) {
    const int rank = x.tensor.dim();
    if (rank == 0) return false;  // no dimensions would mean all
    const auto rule = [&](const detail::Batched& in, Tensor* made) {
        Dims dims;
        for (int d = 0; d < rank; ++d) {
            if (o.has(d)) dims.push_back(d + 1);
        }
        made[0] = dims.rank() > 0 ? reduce(In(in[0], x.loc), dims) : in[0].clone(x.loc);
    };
    return detail::batched({op, x.loc, {&x.tensor}, detail::batch_key(o.dims, o.keepdim, more...)}, rule, {&out});
}

/// Returns x as contiguous float32, float64 or int64, for kernels that know only these; not recorded.
Tensor as_computed(const Tensor& x, const Loc& loc = {});
/// Returns x for kernels that know only these on the CPU, and all dtypes on a GPU.
Tensor for_kernel(const Tensor& x, const Loc& loc = {});

}  // namespace tapir::reduction
