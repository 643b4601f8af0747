// Histograms in TensorBoard's form.
#pragma once

#include <vector>

#include "tapir/core/tensor.h"

namespace tapir::summary {

/// bucket_counts[i] values are above bucket_limits[i - 1] and at most bucket_limits[i]; values on edges count as in numpy.histogram().
struct Histogram {
    double min = 0, max = 0, num = 0, sum = 0, sum_squares = 0;
    std::vector<double> limits, counts;
};

/// Returns the edges of PyTorch's bins="tensorflow": 0, and ±1e-12 * 1.1^k up to 1e20.
const std::vector<double>& default_edges();

/// Counts all finite elements. Without edges it uses the default ones and counts values beyond them in the outermost buckets. With given
/// edges it ignores values beyond them. x must be on the CPU; the edges must ascend.
Histogram histogram_of(const Tensor& x, const std::vector<double>& edges, const Loc& loc);

}  // namespace tapir::summary
