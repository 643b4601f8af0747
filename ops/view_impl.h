// Parts of tensors, for the ops that make views of their own.
#pragma once

#include "tapir/autograd/backward_impl.h"

namespace tapir {

/// Where a part lies in the tensor it was taken from: enough to take it again, from a gradient.
struct Part {
    Shape sizes, strides;  // strides as in a contiguous tensor of the input's shape
    std::int64_t offset;
};

extern const OpInfo part_op;

/// The strides of a contiguous tensor of x's shape.
Shape contiguous_strides(const TensorImpl* x);

/// Records that `view` is this part of x, and returns it.
Tensor record_part(const In& x, Tensor view, const Part& part);
/// The same, where watchers are told that `op` was called so.
template <class Call>
Tensor record_part(const In& x, Tensor view, const Part& part, const OpInfo& op, const Call& call) {
    record(part_op, x.loc, {&x.tensor}, view, {}, part, Told{op, {&x.tensor}}, call);
    return view;
}

}  // namespace tapir
