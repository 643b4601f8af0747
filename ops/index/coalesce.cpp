#include "tapir/ops/index/coalesce_impl.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/arrange/sort.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/kernels/gpu.h"
#include "tapir/ops/kernels/optimizer.h"
#include "tapir/ops/parallel_impl.h"

namespace tapir::detail {
namespace {

// Entries are (row << 32 | position), ascending.
using Order = std::vector<std::uint64_t>;

// Sorts by row; within a row the order of positions, which ascend already, is kept. A radix sort: it counts one digit of the row's number
// after the other, from the lowest.
void sort_by_row(Order& order, std::int64_t row_count) {
    constexpr std::size_t kFew = 256;
    constexpr int kMostBits = 11;  // the counts of one digit stay in the first cache
    if (order.size() < kFew) return std::sort(order.begin(), order.end());
    const int bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(row_count - 1)));
    const int digits = (bits + kMostBits - 1) / kMostBits;
    if (digits == 0) return;
    const int width = (bits + digits - 1) / digits;
    const std::uint64_t mask = (std::uint64_t{1} << width) - 1;
    Order sorted(order.size());
    std::vector<std::uint32_t> next(mask + 1);
    for (int shift = 32; shift < 32 + bits; shift += width) {
        std::fill(next.begin(), next.end(), 0U);
        for (const std::uint64_t entry : order) ++next[entry >> shift & mask];
        std::uint32_t begin = 0;
        for (std::uint32_t& n : next) begin += std::exchange(n, begin);
        for (const std::uint64_t entry : order) sorted[next[entry >> shift & mask]++] = entry;
        order.swap(sorted);
    }
}

// starts[i] is where the i-th distinct row begins in the order. A row is summed by position, so that the sum is the same on any number of threads.
template <class T>
void sum_rows(const Order& order, const std::vector<std::uint32_t>& starts, const T* values, std::int64_t width, std::int64_t* out_index,
              T* out_values) {
    const auto distinct = static_cast<std::int64_t>(starts.size()) - 1;
    parallel_items(distinct, 32 * 1024 / (width + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const std::size_t first = starts[static_cast<std::size_t>(i)], last = starts[static_cast<std::size_t>(i) + 1];
            T* sum = out_values + i * width;
            out_index[i] = static_cast<std::int64_t>(order[first] >> 32);
            const auto row_at = [&](std::size_t at) { return values + static_cast<std::int64_t>(order[at] & 0xFFFFFFFFU) * width; };
            std::copy_n(row_at(first), width, sum);
            for (std::size_t at = first + 1; at < last; ++at) {
                const T* row = row_at(at);
                for (std::int64_t j = 0; j < width; ++j) sum[j] += row[j];
            }
        }
    });
}

constexpr std::int64_t kMostSorted = std::int64_t{1} << 31;  // fits both halves of an Order's entries

bool is_coalesced(const std::int64_t* index, std::int64_t count) {
    if (count > 0 && index[0] < 0) return false;
    for (std::int64_t i = 1; i < count; ++i) {
        if (index[i] <= index[i - 1]) return false;
    }
    return true;
}

SparseRows coalesce_on_gpu(const SparseRows& rows, std::int64_t row_count, const Loc& loc) {
    const Tensor given = rows.indices.to(int64).contiguous();
    const std::int64_t count = given.numel();
    const auto [index, order] = sort(where(given < 0, given + row_count, given));
    SparseRows out{index, make_empty_like(rows.values.impl(), rows.values.dtype(), loc)};
    if (out.values.numel() == 0) return out;
    gpu::row_sums({rows.values.dtype(), count, rows.values.numel() / count, static_cast<const std::int64_t*>(index.raw_data()),
                   static_cast<const std::int64_t*>(order.raw_data()), rows.values.raw_data(), out.values.raw_data()});
    return out;
}

}  // namespace

SparseRows coalesce(const SparseRows& rows, std::int64_t row_count, const Loc& loc) {
    if (on_gpu(rows.values)) return coalesce_on_gpu(rows, row_count, loc);
    const Tensor given = rows.indices.to(int64).contiguous();
    const std::int64_t count = given.numel(), width = count ? rows.values.numel() / count : 0;
    const std::int64_t* index = given.data<std::int64_t>();
    if (is_coalesced(index, count)) return {given.reshape({count}), rows.values};
    if (count > kMostSorted || row_count > kMostSorted) {
        fail<ValueError>(loc, "a gradient of {} rows for {}: at most {} can be summed up", count, row_count, kMostSorted);
    }
    Order order(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < order.size(); ++i) {
        order[i] = static_cast<std::uint64_t>(index[i] < 0 ? index[i] + row_count : index[i]) << 32 | i;
    }
    sort_by_row(order, row_count);
    std::vector<std::uint32_t> starts;
    starts.reserve(order.size() + 1);
    for (std::size_t i = 0; i < order.size(); ++i) {
        if (i == 0 || order[i] >> 32 != order[i - 1] >> 32) starts.push_back(static_cast<std::uint32_t>(i));
    }
    const auto distinct = static_cast<std::int64_t>(starts.size());
    starts.push_back(static_cast<std::uint32_t>(order.size()));
    Shape shape = rows.values.shape();
    shape[0] = distinct;
    SparseRows out{make_empty({distinct}, int64, cpu, loc), make_empty(shape, rows.values.dtype(), cpu, loc)};
    auto* out_index = static_cast<std::int64_t*>(out.indices.raw_data());
    if (rows.values.dtype() == float64) {
        sum_rows(order, starts, static_cast<const double*>(rows.values.raw_data()), width, out_index, static_cast<double*>(out.values.raw_data()));
    } else {
        sum_rows(order, starts, static_cast<const float*>(rows.values.raw_data()), width, out_index, static_cast<float*>(out.values.raw_data()));
    }
    return out;
}

}  // namespace tapir::detail
