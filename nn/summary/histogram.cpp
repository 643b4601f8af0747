#include "tapir/nn/summary/histogram_impl.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

namespace tapir::summary {
namespace {

// 1e-12 * 1.1^k, by repeated multiplication, as TensorFlow and PyTorch do.
const std::vector<double>& powers() {
    static const std::vector<double> edges = [] {
        std::vector<double> list;
        for (double v = 1e-12; v < 1e20; v *= 1.1) list.push_back(v);
        return list;
    }();
    return edges;
}

// The highest bits of a number nearly tell between which edges it lies: exponent and five bits of the mantissa make cells that are
// at most 3.2% wide, so that a cell contains at most one edge, and one comparison settles it.
class Buckets {
 public:
    Buckets() : edges_(powers()) {
        edges_.push_back(std::numeric_limits<double>::infinity());
        for (std::size_t cell = 0; cell < kCells; ++cell) {
            const double least = std::bit_cast<double>((kFirst + cell) << kShift);
            below_[cell] = static_cast<std::uint16_t>(std::upper_bound(edges_.begin(), edges_.end(), least) - edges_.begin());
        }
    }
    // Returns how many of powers() are <= x, for x >= 0; or how many are < x, for x > 0. No branches, because signs are hard to predict.
    std::size_t count(double x, bool strictly) const noexcept {
        const std::uint64_t bits = std::bit_cast<std::uint64_t>(x) - strictly;  // the number before x has the same ones below
        const std::uint64_t cell = std::min<std::uint64_t>(std::max(bits >> kShift, kFirst) - kFirst, kCells - 1);
        const std::size_t below = below_[cell];
        return below + (std::bit_cast<double>(bits) >= edges_[below]);
    }

 private:
    static constexpr int kShift = 47;                                       // keeps the exponent and 5 bits
    static constexpr std::uint64_t kFirst = std::uint64_t{1023 - 40} << 5;  // 2^-40, below 1e-12
    static constexpr std::size_t kCells = (40 + 67) << 5;                   // up to 2^67, above 1e20
    std::vector<double> edges_;                                             // and infinity
    std::array<std::uint16_t, kCells> below_{};
};

struct Sums {
    double min = std::numeric_limits<double>::infinity(), max = -min, sum = 0, sum_squares = 0;
    std::int64_t num = 0;

    void add(double x) noexcept {
        min = std::min(min, x);
        max = std::max(max, x);
        sum += x;
        sum_squares += x * x;
        ++num;
    }
};

// Counts by default_edges(): places 0 to n are for negative numbers, from the largest magnitude to the smallest, n + 1 to 2n + 1 for
// the others.
template <class T>
Sums count_default(const T* x, std::int64_t n, std::vector<std::int64_t>& counts) {
    static const Buckets buckets;
    const std::size_t edges = powers().size();
    counts.assign(2 * edges + 2, 0);
    Sums sums;
    for (std::int64_t i = 0; i < n; ++i) {
        const auto value = static_cast<double>(x[i]);
        if (!std::isfinite(value)) continue;
        sums.add(value);
        const bool is_negative = value < 0;
        const std::size_t below = buckets.count(std::abs(value), is_negative);
        ++counts[is_negative ? edges - below : edges + 1 + below];
    }
    return sums;
}

template <class T>
Sums count_between(const T* x, std::int64_t n, const std::vector<double>& edges, std::vector<std::int64_t>& counts) {
    counts.assign(edges.size() - 1, 0);
    Sums sums;
    for (std::int64_t i = 0; i < n; ++i) {
        const auto value = static_cast<double>(x[i]);
        if (!std::isfinite(value)) continue;
        sums.add(value);
        if (value < edges.front() || value > edges.back()) continue;
        const auto above = std::upper_bound(edges.begin(), edges.end(), value) - edges.begin();
        ++counts[std::min(static_cast<std::size_t>(above), edges.size() - 1) - 1];  // the last bucket has its right edge too
    }
    return sums;
}

template <class T>
Sums count(const Tensor& x, const std::vector<double>& edges, std::vector<std::int64_t>& counts) {
    const T* values = static_cast<const T*>(x.raw_data());
    return edges.empty() ? count_default(values, x.numel(), counts) : count_between(values, x.numel(), edges, counts);
}

}  // namespace

const std::vector<double>& default_edges() {
    static const std::vector<double> all = [] {
        std::vector<double> edges(powers().rbegin(), powers().rend());
        for (double& edge : edges) edge = -edge;
        edges.push_back(0);
        edges.insert(edges.end(), powers().begin(), powers().end());
        return edges;
    }();
    return all;
}

Histogram histogram_of(const Tensor& x, const std::vector<double>& edges, const Loc& loc) {
    std::vector<std::int64_t> counts;
    const bool is_wide = x.dtype() == float64 || x.dtype() == int32 || x.dtype() == int64;  // float32 holds the values of all others
    const Sums sums =
        is_wide ? count<double>(x.to(float64, loc).contiguous(loc), edges, counts) : count<float>(x.to(float32, loc).contiguous(loc), edges, counts);
    Histogram result;
    if (sums.num == 0) return result;
    result.min = sums.min;
    result.max = sums.max;
    result.num = static_cast<double>(sums.num);
    result.sum = sums.sum;
    result.sum_squares = sums.sum_squares;
    // limits[i] is the right edge of counts[i], limits[-1] the left one of the first.
    std::vector<double> limits;
    if (edges.empty()) {  // two more buckets than default_edges() have, for values beyond them
        limits = {std::min(sums.min, default_edges().front())};
        limits.insert(limits.end(), default_edges().begin(), default_edges().end());
        limits.push_back(std::max(sums.max, default_edges().back()));
    } else {
        limits = edges;
    }
    std::size_t first = 0, last = counts.size();
    while (first < last && counts[first] == 0) ++first;
    while (last > first && counts[last - 1] == 0) --last;
    if (first == last) return result;  // all are beyond the edges
    // The format stores only right edges: an empty bucket in front holds the left one.
    result.limits.assign(limits.begin() + static_cast<std::ptrdiff_t>(first), limits.begin() + static_cast<std::ptrdiff_t>(last) + 1);
    result.counts.push_back(0);
    for (std::size_t i = first; i < last; ++i) result.counts.push_back(static_cast<double>(counts[i]));
    return result;
}

}  // namespace tapir::summary
