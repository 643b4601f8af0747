// A function of one example, for all along the first dimension.
#pragma once

#include <utility>
#include <vector>

#include "tapir/core/tensor.h"
#include "tapir/ops/batch/batch.h"

namespace tapir {

namespace detail {
/// The rows of each, of which all have the same number. Throws ShapeError.
std::vector<std::vector<Tensor>> rows_of_all(const std::vector<Tensor>& tensors, const Loc& loc);
Tensor stacked(const std::vector<Tensor>& results, const Loc& loc);
std::vector<Tensor> stacked(const std::vector<std::vector<Tensor>>& results, const Loc& loc);
}  // namespace detail

/// Returns a function of (n, ...) tensors that calls fn for row i of each, i in [0, n), as batch() does, and stacks the results: fn returns a
/// tensor, or a vector of tensors. Unlike torch.vmap's, fn may read values and branch on them. All instances run at the same time, whatever
/// options.most says. The function throws ShapeError if a tensor has no dimension, the tensors have different numbers of rows, or results have
/// different shapes; ValueError for n = 0, of which no result's shape is known.
///
///     const Tensor norms = vmap([](const Tensor& row) { return row.sum().item() > 0 ? norm(row) : -norm(row); })(x);
template <class Fn>
auto vmap(Fn fn, BatchOptions options = {}, Loc loc = Loc::current()) {
    return [fn = std::move(fn), options, loc](const auto&... tensors) {
        const std::vector<std::vector<Tensor>> rows = detail::rows_of_all({tensors...}, loc);
        std::vector<std::size_t> numbers(rows[0].size());
        for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
        BatchOptions all = options;
        all.most = static_cast<int>(numbers.size());
        const auto call = [&]<std::size_t... k>(std::size_t i, std::index_sequence<k...>) { return fn(rows[k][i]...); };
        return detail::stacked(batch(numbers, [&](std::size_t i) { return call(i, std::make_index_sequence<sizeof...(tensors)>()); }, all, loc), loc);
    };
}

}  // namespace tapir
