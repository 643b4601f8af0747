// Parts of tensors, for the ops that make views of their own.
#pragma once

#include "tapir/autograd/backward_impl.h"
#include "tapir/core/size_math_impl.h"

namespace tapir {

/// slice() as graphs know it: a dimension from 0 on. Bounds are as the program gave them, but for open ones; slice() resolves negative or large ones.
struct SliceCall {
    int dim = 0;
    std::int64_t start = 0, end = 0, step = 1;
};
/// The place of a part in its tensor: enough to take it again, from a gradient.
struct Part {
    Shape sizes, strides;  // strides as in a contiguous tensor of the input's shape
    std::int64_t offset;
    SliceCall slice = {-1};  // how it was taken; dim -1: not by slice()
};

/// The arguments of ops that take parts, as graphs know them: dimensions from 0 on.
struct SelectCall {
    int dim = 0;
    std::int64_t index = 0;
};
struct DiagonalCall {
    std::int64_t offset = 0;
    int dim1 = 0, dim2 = 1;
};
/// Returns the arguments of slice(x, dim, range). Throws IndexError, ValueError for a step below 1.
SliceCall slice_call(const In& x, Dim dim, const Slice& range);

/// Copies x's elements to `out`, which is contiguous, unless they are there already; returns false, without work done, if both overlap otherwise.
bool begin_as(const Tensor& out, const Tensor& x);

/// True if the bytes from the first element to the end of the last one overlap in one storage; an approximation if there are gaps.
bool may_overlap(const Tensor& a, const Tensor& b);

/// Returns the strides of a contiguous tensor of x's shape.
Shape contiguous_strides(const TensorImpl* x);

/// Records that these are x's parts along dimension 0, without it: at most as many as one record holds.
void record_unbound(const Tensor& x, const Tensor* rows, int count);
/// For rules: adds g[i] to the gradient of each input i. Where inputs are rows of one tensor, as unbind() gives them, straight to its gradient.
void give_rows(Backward& b, const Tensor& g);
/// For rules: an uninitialized tensor of this dtype for the gradient of input i, which is needed; the rule fills it and gives it. Where the input is a
/// piece that split() or unbind() cut along dimension 0, it is the piece's place in the gradient of the whole, given out once.
Tensor room_for_gradient(Backward& b, int i, DType dtype);
/// Records that `view` is this part of x, and returns it.
Tensor record_part(const In& x, Tensor view, const Part& part);
/// Overload for an op that takes such parts by its own arguments.
template <class Call>
Tensor record_part(const In& x, Tensor view, const Part& part, const OpInfo& op, const Call& call) {
    record(op, x.loc, {&x.tensor}, view, {}, part, Told{op, {&x.tensor}}, call);
    return view;
}

}  // namespace tapir
