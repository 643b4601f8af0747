// Statistics, distances and normalisation of vectors. Names and argument orders are PyTorch's.
#pragma once

#include <type_traits>
#include <utility>

#include "tapir/core/tensor.h"
#include "tapir/ops/reduce/extreme.h"

namespace tapir {

/// Selects the value of quantile() between two elements: "linear", "lower", "higher", "nearest" or "midpoint".
class Interpolation {
 public:
    template <class Word>
        requires(std::is_convertible_v<const Word&, const char*>)
    Interpolation(const Word& word) noexcept : word_(word) {}  // NOLINT: implicit by design; not of 0, which is a dimension
    const char* word() const noexcept { return word_; }

 private:
    const char* word_;
};

/// Returns the value below which a part q of the elements lies: the element at place q * (n - 1) of the sorted ones, between two of them
/// as `interpolation` says. Over all elements, or along dim. nan if one element is nan. Throws
/// ValueError for q outside [0, 1], DTypeError for other dtypes than float32 and float64, ShapeError for no elements.
Tensor quantile(In x, double q, Interpolation interpolation = "linear");
Tensor quantile(In x, double q, Dim dim, Flag keepdim = false, Interpolation interpolation = "linear");
/// Overload for several q (1-d, of x's dtype; constants), which become the first dimension of the result. Waits for a device.
Tensor quantile(In x, In q, Interpolation interpolation = "linear");
Tensor quantile(In x, In q, Dim dim, Flag keepdim = false, Interpolation interpolation = "linear");
/// Returns the middle element, the lower of two; nan if one element is nan. Throws ShapeError for no elements.
Tensor median(In x);
ValuesIndices median(In x, Dim dim, Flag keepdim = false);
/// Returns variance (or standard deviation) and mean: auto [variance, average] = var_mean(x).
std::pair<Tensor, Tensor> var_mean(In x, const Dims& dims = {}, int correction = 1, Flag keepdim = false);
std::pair<Tensor, Tensor> std_mean(In x, const Dims& dims = {}, int correction = 1, Flag keepdim = false);
template <class Bool>
    requires(std::is_same_v<Bool, bool>)
std::pair<Tensor, Tensor> var_mean(In x, Bool unbiased) {
    return var_mean(x, Dims(), unbiased ? 1 : 0);
}
template <class Bool>
    requires(std::is_same_v<Bool, bool>)
std::pair<Tensor, Tensor> std_mean(In x, Bool unbiased) {
    return std_mean(x, Dims(), unbiased ? 1 : 0);
}
/// Returns the k-th smallest element along dim, k from 1, and its index; nan counts as the largest. Throws ValueError for k outside [1, size].
ValuesIndices kthvalue(In x, std::int64_t k, Dim dim = -1, Flag keepdim = false);
/// Returns sum() and mean() of the elements that are not nan: 0 and nan if all are. nanmean: floating dtypes only (DTypeError).
Tensor nansum(In x, const Dims& dims = {}, Flag keepdim = false);
Tensor nanmean(In x, const Dims& dims = {}, Flag keepdim = false);

/// Returns the smallest and the largest element, of all or along dim.
std::pair<Tensor, Tensor> aminmax(In x);
std::pair<Tensor, Tensor> aminmax(In x, Dim dim, Flag keepdim = false);
/// Returns covariances of variables, a row each of x (variables, observations): (variables, variables); a variance () of x (observations,).
/// Sums are divided by observations - correction. Throws ShapeError for more dimensions.
Tensor cov(In x, int correction = 1);
/// Returns Pearson's correlation coefficients, of x as for cov.
Tensor corrcoef(In x);
/// Returns the area below y along dim by the trapezoidal rule, dx apart or at the places x, of y's shape or (n,).
Tensor trapezoid(In y, double dx = 1, Dim dim = -1);
Tensor trapezoid(In y, In x, Dim dim = -1);
/// Returns norm(a - b, p).
Tensor dist(In a, In b, double p = 2);
/// Returns distances in the p-norm between the rows of x (n, d), each pair once: (n (n - 1) / 2,), in the order (0, 1), (0, 2), ... (1, 2), ...
/// Exact even for rows near each other, but needs memory for n^2 d elements; where that is too much, use cdist(x, x).
Tensor pdist(In x, double p = 2);
/// Returns distances in the p-norm between all rows of a (..., n, d) and of b (..., m, d): (..., n, m). p >= 0, infinity too. p = 2 with more
/// than 25 rows uses a matrix product, as in PyTorch, which is less exact for rows that are near each other; others need memory
/// for n * m * d elements. The gradient where rows are equal is 0.
Tensor cdist(In a, In b, double p = 2);
/// Computes x / max(norm(x, p, dim), eps): vectors of length 1.
Tensor normalize(In x, double p = 2, Dim dim = 1, double eps = 1e-12);

}  // namespace tapir
