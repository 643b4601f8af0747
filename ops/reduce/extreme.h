// Maxima and minima. nan counts as the extreme.
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

struct ValuesIndices {
    Tensor values;
    Tensor indices;  // int64
};

#ifndef TAPIR_RUNTIME_ONLY  // tapir/runtime.h: what it has of these stands behind the #endif
/// Returns the extreme over all elements (ties share the gradient), or along one dimension with the index of the first.
Tensor max(In x);
Tensor min(In x);
ValuesIndices max(In x, Dim dim, Flag keepdim = false);
ValuesIndices min(In x, Dim dim, Flag keepdim = false);
Tensor max(In a, In b);  ///< maximum
Tensor min(In a, In b);  ///< minimum
// Overloads for two Tensors: they fit better than the templates of these names in std, beside `using namespace std`.
inline Tensor max(const Tensor& a, const Tensor& b, Loc loc = Loc::current()) { return max(In(a, loc), In(b, loc)); }
inline Tensor min(const Tensor& a, const Tensor& b, Loc loc = Loc::current()) { return min(In(a, loc), In(b, loc)); }
#endif

/// Returns the int64 index of the first extreme; nan counts as the extreme. Without dim: into the flattened tensor. An empty
/// choice throws ShapeError.
Tensor argmax(In x);
Tensor argmin(In x);
Tensor argmax(In x, Dim dim, Flag keepdim = false);
Tensor argmin(In x, Dim dim, Flag keepdim = false);

}  // namespace tapir
