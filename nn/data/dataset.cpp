// What datasets of any type check, and how they are divided.
#include "tapir/nn/data/dataset.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tapir/core/fail_impl.h"
#include "tapir/nn/data/sampler.h"

namespace tapir::data {

using std::int64_t;

namespace detail {

void check_rows(const Tensor* tensors, std::size_t count, const Loc& loc) {
    for (std::size_t i = 0; i < count; ++i) {
        const Tensor& t = tensors[i];
        if (!t.defined()) fail<ValueError>(loc, "TensorDataset: tensor {} is undefined", i);
        if (t.dim() == 0) fail<ShapeError>(loc, "TensorDataset: tensor {} has no dimensions, and so no rows", i);
        if (t.shape()[0] != tensors[0].shape()[0]) {
            fail<ShapeError>(loc, "TensorDataset: tensor {} has {} rows, the first has {}: {} and {}", i, t.shape()[0], tensors[0].shape()[0],
                             t.shape(), tensors[0].shape());
        }
    }
}

void check_index(int64_t index, int64_t size, const char* what, const Loc& loc) {
    if (index < 0 || index >= size) fail<IndexError>(loc, "{}: index {} is not in a dataset of {} items", what, index, size);
}

void check_indices(const std::vector<int64_t>& indices, int64_t size, const char* what, const Loc& loc) {
    for (const int64_t index : indices) check_index(index, size, what, loc);
}

std::vector<int64_t> ends_of(const std::vector<int64_t>& sizes, const Loc& loc) {
    if (sizes.empty()) fail<ValueError>(loc, "ConcatDataset: there are no datasets in the list");
    std::vector<int64_t> ends;
    int64_t end = 0;
    for (const int64_t size : sizes) ends.push_back(end += size);
    return ends;
}

std::size_t part_of(int64_t index, const std::vector<int64_t>& ends) {
    return static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), index) - ends.begin());
}

std::vector<std::vector<int64_t>> split(int64_t n, const std::vector<int64_t>& sizes, Generator& random, const Loc& loc) {
    int64_t sum = 0;
    for (const int64_t size : sizes) {
        if (size < 0) fail<ValueError>(loc, "random_split: a size is negative: {}", size);
        if (__builtin_add_overflow(sum, size, &sum)) {
            fail<ValueError>(loc, "random_split: the sizes add up to more than {}", INT64_MAX);
        }
    }
    if (sum != n) fail<ValueError>(loc, "random_split: the sizes add up to {}, the dataset has {} items", sum, n);
    const std::vector<int64_t> order = RandomSampler(n).indices(random);
    std::vector<std::vector<int64_t>> parts;
    auto next = order.begin();
    for (const int64_t size : sizes) {
        parts.emplace_back(next, next + size);
        next += size;
    }
    return parts;
}

std::vector<int64_t> sizes_of(int64_t n, const std::vector<double>& fractions, const Loc& loc) {
    double total = 0;
    std::vector<int64_t> sizes;
    int64_t left = n;
    for (const double f : fractions) {
        if (!(f >= 0 && f <= 1)) fail<ValueError>(loc, "random_split: the fraction {} is not in [0, 1]", f);
        total += f;
        sizes.push_back(static_cast<int64_t>(std::floor(static_cast<double>(n) * f)));
        left -= sizes.back();
    }
    if (!(std::abs(total - 1) <= 1e-6)) fail<ValueError>(loc, "random_split: the fractions add up to {:.6g}, not 1", total);
    for (std::size_t i = 0; left > 0; ++i, --left) ++sizes[i % sizes.size()];
    return sizes;
}

}  // namespace detail
}  // namespace tapir::data
