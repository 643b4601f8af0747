// Histograms as TensorBoard stores them.
#pragma once

#include <vector>

#include "tapir/core/tensor.h"

namespace tapir::summary {

/// bucket_counts[i] values are above bucket_limits[i - 1] and up to bucket_limits[i]; at the edges as numpy.histogram() has it.
struct Histogram {
    double min = 0, max = 0, num = 0, sum = 0, sum_squares = 0;
    std::vector<double> limits, counts;
};

/// The edges of PyTorch's bins="tensorflow": 0, and ±1e-12 * 1.1^k up to 1e20.
const std::vector<double>& default_edges();

/// Of all finite elements. Without edges the default ones; values beyond them are counted in the outermost buckets, and with edges of
/// one's own nowhere. x is of the CPU; the edges ascend.
Histogram histogram_of(const Tensor& x, const std::vector<double>& edges, const Loc& loc);

}  // namespace tapir::summary
