// Ops that pick elements along one dimension and say which: max and min with indices, sort, topk. One backward rule.
#pragma once

#include "tapir/autograd/backward_impl.h"

namespace tapir {

/// The attributes of such an op's record. Its input is x, its output the values, its saved tensor the int64 indices.
struct PickAttrs {
    int dim;
    bool dropped;  // the outputs do not have the dimension
};

/// Sends each value's gradient to the element that it was picked from.
void pick_rule(Backward& b);

}  // namespace tapir
