// Ops that pick elements along one dimension and say which: max and min with indices, sort, topk. One backward rule.
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

/// How such an op was called. Of kthvalue: k from 1 on.
struct PickCall {
    std::int64_t k;
    int dim;
    bool keepdim;
};

/// Sends each value's gradient to the element that it was picked from.
void pick_rule(Backward& b);

/// The size along a dimension; a 0-d tensor is one element.
inline std::int64_t size_along(const Tensor& x, int dim) { return x.dim() == 0 ? 1 : x.impl()->sizes[dim]; }

/// The element at this place (from 0 on) of each sorted line, and its index: of equal elements as sort() has them. nan_wins: where a line
/// has nan, the first of them. Records `op`, whose rule is pick_rule.
ValuesIndices pick_at(const OpInfo& op, const In& x, int dim, std::int64_t place, bool nan_wins, bool keepdim);

}  // namespace tapir
