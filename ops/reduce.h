// Reductions and scans. `dims` names the dimensions that go (negative ones count from the end; none: all of them);
// keepdim leaves them with size 1. Dims out of range or named twice throw IndexError.
//
// Sums of float16, bfloat16 and float32 accumulate in short float32 blocks whose sums are added in float64, so that the
// error does not grow with the length. Results do not depend on the number of threads.
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

struct ValuesIndices {
    Tensor values;
    Tensor indices;  // int64
};

#ifndef TAPIR_RUNTIME_ONLY  // tapir/runtime.h: what it has of these stands behind each #endif
/// Integers and bool sum to int64.
Tensor sum(In x, const Dims& dims = {}, Flag keepdim = false);
/// Floating dtypes only (DTypeError).
Tensor mean(In x, const Dims& dims = {}, Flag keepdim = false);
Tensor prod(In x);
Tensor prod(In x, Dim dim, Flag keepdim = false);
/// Extremes over several dimensions; ties share the gradient equally. nan wins. Empty dimensions throw ShapeError.
Tensor amax(In x, const Dims& dims = {}, Flag keepdim = false);
Tensor amin(In x, const Dims& dims = {}, Flag keepdim = false);
/// The extreme over all elements (ties share the gradient), or along one dimension with the index of the first.
Tensor max(In x);
Tensor min(In x);
ValuesIndices max(In x, Dim dim, Flag keepdim = false);
ValuesIndices min(In x, Dim dim, Flag keepdim = false);
Tensor max(In a, In b);  ///< maximum
Tensor min(In a, In b);  ///< minimum
// The same, a better fit for two Tensors than the templates of these names in std, beside `using namespace std`.
inline Tensor max(const Tensor& a, const Tensor& b, Loc loc = Loc::current()) { return max(In(a, loc), In(b, loc)); }
inline Tensor min(const Tensor& a, const Tensor& b, Loc loc = Loc::current()) { return min(In(a, loc), In(b, loc)); }
#endif

/// int64 index of the first extreme; nan counts as the extreme. Without dim: into the flattened tensor. Nothing to choose
/// from throws ShapeError.
Tensor argmax(In x);
Tensor argmin(In x);
Tensor argmax(In x, Dim dim, Flag keepdim = false);
Tensor argmin(In x, Dim dim, Flag keepdim = false);
#ifndef TAPIR_RUNTIME_ONLY
/// bool: nothing is 0, something is not 0. true and false for empty ones.
Tensor all(In x, const Dims& dims = {}, Flag keepdim = false);
Tensor any(In x, const Dims& dims = {}, Flag keepdim = false);
/// Variance and standard deviation, divided by n - correction (1: unbiased). Beside `using namespace tapir` write x.std() or
/// tapir::std(x): std alone is the namespace's name too.
Tensor var(In x, const Dims& dims = {}, int correction = 1, Flag keepdim = false);
Tensor std(In x, const Dims& dims = {}, int correction = 1, Flag keepdim = false);
/// The same of all elements, as PyTorch's var(x, unbiased): by n - 1, or by n.
template <class Bool>
    requires(std::is_same_v<Bool, bool>)
Tensor var(In x, Bool unbiased) {
    return var(x, Dims(), unbiased ? 1 : 0);
}
template <class Bool>
    requires(std::is_same_v<Bool, bool>)
Tensor std(In x, Bool unbiased) {
    return std(x, Dims(), unbiased ? 1 : 0);
}
/// (sum |x|^p)^(1/p); p may be infinity (largest), -infinity (smallest), 0 (how many are not 0). In float64. All derivatives are 0 where it is:
/// for the second one of norm(x)^2 at 0, which is 2, take sum(square(x)). PyTorch: nan, and inf for a norm of 5e200.
Tensor norm(In x, double p = 2, const Dims& dims = {}, Flag keepdim = false);
/// log(sum(exp(x))) without overflow.
Tensor logsumexp(In x, const Dims& dims, Flag keepdim = false);
/// Running sums and products along one dimension, of x's shape. Integers give int64.
Tensor cumsum(In x, Dim dim);
Tensor cumprod(In x, Dim dim);
/// The largest (smallest) element so far along dim, and its index: of equal ones the last. nan wins, and of several the last. The
/// gradient goes to the elements that are named. Throws IndexError for a dim out of range.
ValuesIndices cummax(In x, Dim dim);
ValuesIndices cummin(In x, Dim dim);

/// The logarithm of softmax(), without overflow.
Tensor log_softmax(In x, Dim dim);
/// Sorted along dim; nan last in ascending order, first in descending. Equal elements keep their order.
ValuesIndices sort(In x, Dim dim = -1, bool descending = false);
#endif

/// exp(x) / sum(exp(x)) along dim, without overflow.
Tensor softmax(In x, Dim dim);
/// int64: where the elements of sort() come from.
Tensor argsort(In x, Dim dim = -1, bool descending = false);
/// The k largest (or smallest) along dim, sorted. Throws ValueError when k exceeds the size.
ValuesIndices topk(In x, std::int64_t k, Dim dim = -1, bool largest = true);

#ifndef TAPIR_RUNTIME_ONLY
struct UniqueResult {
    Tensor values;   // (distinct,), in ascending order
    Tensor inverse;  // int64, x's shape: where in values each element is; undefined unless asked for
    Tensor counts;   // int64 (distinct,): how often each occurs; undefined unless asked for
};
/// The distinct elements of x, of any shape, as one dimension; always sorted. nan differs from nan. Waits for a device: the
/// result's size is data. Not differentiable.
UniqueResult unique(In x, bool sorted = true, bool return_inverse = false, bool return_counts = false);
/// The same of runs of equal neighbours in the flattened x, which is not sorted: a value comes again where it begins a new run.
UniqueResult unique_consecutive(In x, bool return_inverse = false, bool return_counts = false);
#endif

}  // namespace tapir
