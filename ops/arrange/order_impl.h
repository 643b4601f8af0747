// Ops that pick elements along one dimension and return their indices: max, min, sort, topk. They share one backward rule.
#pragma once

#include "tapir/autograd/backward_impl.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"

namespace tapir {

/// The attributes of such an op's record. Its input is x, its output the values, its saved tensor the int64 indices.
struct PickAttrs {
    int dim;
    bool dropped;  // the outputs do not have the dimension
};

/// The call of such an op. kthvalue counts k from 1 on.
struct PickCall {
    std::int64_t k;
    int dim;
    bool keepdim;
};

/// Sends each value's gradient to the element that it was picked from.
void pick_rule(Backward& b);

/// Returns the size along a dimension; a 0-d tensor is one element.
inline std::int64_t size_along(const Tensor& x, int dim) { return x.dim() == 0 ? 1 : x.impl()->sizes[dim]; }

/// Returns the element at this place (from 0 on) of each sorted line, and its index; equal elements stay in sort()'s order. nan_wins: if a
/// line has nan, returns the first one. Records `op`, whose rule is pick_rule.
ValuesIndices pick_at(const OpInfo& op, const In& x, int dim, std::int64_t place, bool nan_wins, bool keepdim);

}  // namespace tapir
