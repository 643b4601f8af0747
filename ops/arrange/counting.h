// Ops that count elements, and that search sorted ones.
#pragma once

#include <optional>
#include <utility>

#include "tapir/core/tensor.h"

namespace tapir {

/// Counts how often each whole number from 0 on occurs in x (n,), int64 or int32: (max(largest + 1, minlength),), int64. With weights (n,)
/// it returns their sums instead, in their dtype (float64 unless they are floating). Waits for a device. Throws ValueError
/// for negative numbers.
Tensor bincount(In x, const Tensor& weights = {}, std::int64_t minlength = 0);
/// Counts the elements of x in each of `bins` equal parts of [min, max], in x's dtype. Elements outside and nan do not count; for
/// min == max the ends are the smallest and the largest element. Throws ValueError for bins < 1 and max < min.
Tensor histc(In x, std::int64_t bins = 100, double min = 0, double max = 0);
struct HistogramOptions {
    std::optional<std::pair<double, double>> range = {};  ///< unless given: from the smallest to the largest element
    Tensor weight = {};                                   ///< of x's shape and dtype: sums of it in place of counts
    bool density = false;                                 ///< divided by the sum and the bins' widths, so that the integral is 1
};
struct HistogramResult {
    Tensor hist;       // (bins,), x's dtype
    Tensor bin_edges;  // (bins + 1,), x's dtype
};
/// Counts the elements of x, of any shape, in each of `bins` equal parts of the range, or between neighbours of the edges (n,).
/// The last edge belongs to the last bin.
///     auto [hist, bin_edges] = histogram(x, 10, {.range = {{0.0, 1.0}}});
/// Elements outside and nan do not count; an empty range is widened by 0.5 on both sides. Waits for a device. Not differentiable.
/// Throws ValueError for bins < 1, a range that is not finite or is reversed, edges that are not sorted or are undefined, and a range
/// beside edges; DTypeError for x that is not floating and for edges or weights of other dtypes; ShapeError for their shapes.
HistogramResult histogram(In x, std::int64_t bins = 100, const HistogramOptions& options = {});
HistogramResult histogram(In x, In bin_edges, const HistogramOptions& options = {});
/// Counts the elements that are not 0: int64.
Tensor count_nonzero(In x, const Dims& dims = {});

/// Returns the position at which each value can be inserted into the sorted sequence: the number of elements below it (right: not above
/// it). sorted_sequence (n,), or (..., n) with the values' leading dimensions; int64, of the values' shape. Throws ShapeError.
Tensor searchsorted(In sorted_sequence, In values, bool right = false);
Tensor searchsorted(In sorted_sequence, Scalar value, bool right = false);
/// Overload for x of any shape and boundaries (n,): returns the number of the interval that each element is in.
Tensor bucketize(In x, In boundaries, bool right = false);
/// True where an element of x is one of the test elements; `invert`: where it is not.
Tensor isin(In x, In test_elements, bool invert = false);

}  // namespace tapir
