// embedding_bag. On the CPU it is one pass over the rows; "max" remembers the row that each element came from.
// Elsewhere, and for sums of 16-bit floats, embedding gathers the rows, and they are added up bag by bag. Either way the
// gradient is row-sparse.
#include "tapir/ops/index/embedding_bag.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/values_impl.h"
#include "tapir/ops/arrange/counting.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/index/embedding.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/index/index_impl.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/scan/scan.h"
#include "tapir/ops/view/view.h"

namespace tapir {

namespace {

void embedding_bag_rule(Backward& b);

}  // namespace

TAPIR_OP(embedding_bag, embedding_bag_rule, "Sums, means and largest elements of groups of rows.",
         TAPIR_SAMPLE_AS("i(3,4)<5 f(5,2)", "nn.functional.embedding_bag(x[0], x[1])", embedding_bag(x[0], x[1])),
         TAPIR_SAMPLE_AS("i(3,4)<5 d(5,2)", "nn.functional.embedding_bag(x[0], x[1], mode='max')",
                         embedding_bag(x[0], x[1], {}, {.mode = BagMode::max})),
         TAPIR_SAMPLE_AS("i(2,5)<5 f(5,2) f(2,5)", "nn.functional.embedding_bag(x[0], x[1], mode='sum', per_sample_weights=x[2])",
                         embedding_bag(x[0], x[1], {}, {.mode = BagMode::sum, .per_sample_weights = x[2]})),
         TAPIR_SAMPLE_AS("i(7)<5 f(5,3)", "nn.functional.embedding_bag(x[0], x[1], torch.tensor([0, 3, 3]), mode='mean')",
                         embedding_bag(x[0], x[1], tensor({0, 3, 3}, x[0].device()))),
         TAPIR_SAMPLE_AS("i(7)<5 d(5,3)", "nn.functional.embedding_bag(x[0], x[1], torch.tensor([0, 2, 6]), mode='max', padding_idx=1)",
                         embedding_bag(x[0], x[1], tensor({0, 2, 6}, x[0].device()), {.mode = BagMode::max, .padding_idx = 1})),
         TAPIR_SAMPLE_AS("i(7)<3 f(3,2)", "nn.functional.embedding_bag(x[0], x[1], torch.tensor([0, 2, 7]), include_last_offset=True, padding_idx=2)",
                         embedding_bag(x[0], x[1], tensor({0, 2, 7}, x[0].device()), {.include_last_offset = true, .padding_idx = 2})),
         TAPIR_SAMPLE_AS("i(6)<4 f(4,2) f(6)", "nn.functional.embedding_bag(x[0], x[1], torch.tensor([0, 4]), mode='sum', per_sample_weights=x[2])",
                         embedding_bag(x[0], x[1], tensor({0, 4}, x[0].device()), {.mode = BagMode::sum, .per_sample_weights = x[2]})));

using std::int64_t;

namespace {

// Assigns rows to bags.
struct Bags {
    Tensor indices;  // (n,): int64, none negative
    Tensor bag;      // (n,): of each index
    Tensor counts;   // does an index count? (n,) bool; undefined: all do
    int64_t count;   // of bags
};

// offsets: (count,), checked if they can be.
Tensor bag_of_each(const Tensor& offsets, int64_t n, int64_t count) {
    const TensorOptions options(int64, offsets.device());
    if (detail::is_readable(offsets) && count > 0) {
        const Tensor first = offsets.contiguous(), bag = detail::make_empty({n}, int64, cpu, Loc{});
        const auto* begin = static_cast<const int64_t*>(first.raw_data());
        auto* to = static_cast<int64_t*>(bag.raw_data());
        for (int64_t k = 0; k < count; ++k) std::fill(to + begin[k], to + (k + 1 < count ? begin[k + 1] : n), k);
        return bag;
    }
    return count == 0 ? zeros({n}, options) : searchsorted(offsets, arange(n, options), /*right=*/true) - 1;
}

// Checks bags that are not made of checked offsets: the CPU's.
void check_bags(const Bags& bags, const Loc& loc) {
    const detail::PauseRecording pause;
    int64_t before = 0;
    for (const auto bag : bags.bag.to_vector<int64_t>()) {
        if (bag < before || bag >= bags.count) {
            fail<ValueError>(loc, "embedding_bag: offsets must rise from 0 to {}; an index is in bag {} of {}, after one in bag {}",
                             bags.indices.numel(), bag, bags.count, before);
        }
        before = bag;
    }
}

// Returns them as int64, and checks those that can be read.
Tensor checked_offsets(const In& indices, const Tensor& offsets, bool include_last) {
    if (offsets.dim() != 1) fail<ShapeError>(indices.loc, "embedding_bag: offsets need one dimension, got shape {}", offsets.shape());
    if (offsets.dtype() != int64 && offsets.dtype() != int32) {
        fail<DTypeError>(indices.loc, "embedding_bag: offsets must be int64 or int32, not {}", name(offsets.dtype()));
    }
    detail::check_same_device("embedding_bag", indices.tensor, offsets, indices.loc);
    if (include_last && offsets.numel() == 0) fail<ShapeError>(indices.loc, "embedding_bag: there is no last offset");
    const Tensor all = offsets.to(int64);
    if (detail::is_readable(offsets)) {
        int64_t before = 0;
        bool is_first = true;
        for (const auto offset : all.to_vector<int64_t>()) {
            if (is_first ? offset != 0 : offset < before || offset > indices->numel) {
                fail<ValueError>(indices.loc, "embedding_bag: offsets must rise from 0 to {}, got {}{}", indices->numel, offset,
                                 is_first ? " first" : " after " + std::to_string(before));
            }
            before = offset;
            is_first = false;
        }
    }
    return all;
}

// Prefetches a row that is needed soon: rows are far apart in memory.
template <class T>
void prefetch_row(const T* row, int64_t width) {
    const auto* from = reinterpret_cast<const char*>(row);
    for (int64_t byte = 0; byte < width * static_cast<int64_t>(sizeof(T)) && byte < 512; byte += 64) __builtin_prefetch(from + byte);
}
constexpr int64_t kAhead = 8;          // rows
constexpr int64_t kRowsTogether = 32;  // summed up in T; for larger bags these sums are added in float64

// Calls run(first bag, end bag) with whole bags for each thread.
template <class Run>
void for_bags(const Bags& bags, int64_t width, const Run& run) {
    const int64_t per_bag = (width + 1) * (bags.indices.numel() / (bags.count + 1) + 1);
    parallel_items(bags.count, 16 * 1024 / per_bag + 1, run);
}

// The operands of add_rows_of_bags(): weight (rows, width) contiguous, scale (n,) or null.
template <class T>
struct RowSums {
    const T *weight, *scale;
    const int64_t* index;
    const unsigned char* counts;  // true for a row that counts; null: all do
    int64_t n, width;

    // Adds the rows [begin, end), four at once: fewer roundings, and fewer passes over `to`.
    void add(int64_t begin, int64_t end, T* to) const {
        const T* rows[4];
        T s[4];
        int have = 0;
        for (int64_t i = begin; i < end; ++i) {
            if (counts && !counts[i]) continue;
            if (i + kAhead < n) prefetch_row(weight + index[i + kAhead] * width, width);
            rows[have] = weight + index[i] * width;
            s[have] = scale ? scale[i] : T(1);
            if (++have < 4) continue;
            have = 0;
#pragma omp simd
            for (int64_t k = 0; k < width; ++k) {
                to[k] += (s[0] * rows[0][k] + s[1] * rows[1][k]) + (s[2] * rows[2][k] + s[3] * rows[3][k]);
            }
        }
        for (int j = 0; j < have; ++j) {
#pragma omp simd
            for (int64_t k = 0; k < width; ++k) to[k] += s[j] * rows[j][k];
        }
    }
    // Adds many rows into zeros. before: scratch memory.
    void add_many(int64_t begin, int64_t end, T* to, std::vector<double>& before) const {
        before.assign(static_cast<std::size_t>(width), 0.0);
        for (int64_t i = begin; i < end; i += kRowsTogether) {
            add(i, std::min(i + kRowsTogether, end), to);
            for (int64_t k = 0; k < width; ++k) before[static_cast<std::size_t>(k)] += static_cast<double>(std::exchange(to[k], T(0)));
        }
        for (int64_t k = 0; k < width; ++k) to[k] = static_cast<T>(before[static_cast<std::size_t>(k)]);
    }
};

// Sums whole bags, each on one thread: weight (rows, width) contiguous, scale (n,) or null, out (bags, width).
template <class T>
void add_rows_of_bags(const Bags& bags, const T* weight, int64_t width, const T* scale, T* out) {
    const auto* bag = static_cast<const int64_t*>(bags.bag.raw_data());
    const auto* counts = bags.counts.defined() ? static_cast<const unsigned char*>(bags.counts.raw_data()) : nullptr;
    const int64_t n = bags.indices.numel();
    const RowSums<T> sums{weight, scale, static_cast<const int64_t*>(bags.indices.raw_data()), counts, n, width};
    for_bags(bags, width, [&](int64_t first_bag, int64_t end_bag) {  // the indices' bags are in ascending order
        std::fill(out + first_bag * width, out + end_bag * width, T(0));
        std::vector<double> before;
        for (int64_t i = std::lower_bound(bag, bag + n, first_bag) - bag, end = i; i < n && bag[i] < end_bag; i = end) {
            while (end < n && bag[end] == bag[i]) ++end;
            T* to = out + bag[i] * width;
            end - i <= kRowsTogether ? sums.add(i, end, to) : sums.add_many(i, end, to, before);
        }
    });
}

// Finds the largest elements of each bag, the first of equal ones and nan above all, and the rows they come from: weight (rows, width)
// contiguous, out (bags, width), from (bags, width) in [0, n), n in empty bags; null: not wanted.
template <class T>
void largest_of_bags(const Bags& bags, const T* weight, int64_t width, T* out, int64_t* from) {
    const auto* index = static_cast<const int64_t*>(bags.indices.raw_data());
    const auto* bag = static_cast<const int64_t*>(bags.bag.raw_data());
    const auto* counts = bags.counts.defined() ? static_cast<const unsigned char*>(bags.counts.raw_data()) : nullptr;
    const int64_t n = bags.indices.numel();
    for_bags(bags, width, [&](int64_t first_bag, int64_t end_bag) {
        std::fill(out + first_bag * width, out + end_bag * width, T(0));
        if (from) std::fill(from + first_bag * width, from + end_bag * width, n);
        int64_t begun = -1;  // the bag that has a row already
        for (int64_t i = std::lower_bound(bag, bag + n, first_bag) - bag; i < n && bag[i] < end_bag; ++i) {
            if (counts && !counts[i]) continue;
            const T* row = weight + index[i] * width;
            T* to = out + bag[i] * width;
            int64_t* at = from ? from + bag[i] * width : nullptr;
            if (i + kAhead < n) prefetch_row(weight + index[i + kAhead] * width, width);
            if (bag[i] != begun) {
                begun = bag[i];
                std::copy_n(row, width, to);
                if (at) std::fill_n(at, width, i);
                continue;
            }
            if (at) {
#pragma omp simd
                for (int64_t k = 0; k < width; ++k) at[k] = !(row[k] <= to[k]) && to[k] == to[k] ? i : at[k];
            }
#pragma omp simd
            for (int64_t k = 0; k < width; ++k) to[k] = !(row[k] <= to[k]) && to[k] == to[k] ? row[k] : to[k];
        }
    });
}

// Returns 1 / the number of rows that count, (bags, 1); 1 for empty bags.
Tensor shares_of(const Bags& bags, DType dtype) {
    const TensorOptions options(dtype, bags.bag.device());
    const Tensor counted = bags.counts.defined() ? bags.counts.to(dtype) : ones({bags.bag.numel()}, options);
    return unsqueeze(reciprocal(maximum(index_add(zeros({bags.count}, options), 0, bags.bag, counted), 1)), 1);
}

struct BagAttrs {
    int64_t padding_idx;
    bool is_scaled, is_mean, is_max;
};

// The op as a graph knows it: operands are the weight, the rows to read, (n,), and the bag of each, (n,), ascending; then the rows'
// factors, if there are any. It also returns what the rule reads: for means 1 / the number of rows, for largest elements
// their positions in the (n,) rows.
struct BagCall {
    BagMode mode = BagMode::sum;
    int64_t num_bags = 0, padding_idx = -1;
};

// Computes sums and means of float32 and float64 on the CPU; scale: (n,) or undefined.
Tensor fused(const In& weight, const Tensor& scale, const Bags& bags, BagMode mode, int64_t padding_idx, const Loc& loc,
             Tensor* used_shares = nullptr) {
    Tensor out, shares;
    {
        const detail::UnrecordedPartsOf parts(loc);
        const Tensor table = weight.tensor.contiguous(loc), scales = scale.defined() ? scale.contiguous(loc) : scale;
        const int64_t width = table.size(1);
        out = detail::make_empty({bags.count, width}, table.dtype(), cpu, loc);
        if (table.dtype() == float64) {
            add_rows_of_bags(bags, static_cast<const double*>(table.raw_data()), width, static_cast<const double*>(scales.raw_data()),
                             static_cast<double*>(out.raw_data()));
        } else {
            add_rows_of_bags(bags, static_cast<const float*>(table.raw_data()), width, static_cast<const float*>(scales.raw_data()),
                             static_cast<float*>(out.raw_data()));
        }
        if (mode == BagMode::mean) {
            shares = shares_of(bags, table.dtype());
            out.mul_(shares);
        }
    }
    // Saved: the indices, the bags, then the scale and the weight, or the shares.
    const BagAttrs attrs{padding_idx, scale.defined(), mode == BagMode::mean, false};
    const BagCall call{mode, bags.count, padding_idx};
    if (scale.defined()) {
        record(embedding_bag_op, loc, {&weight.tensor, &scale}, out, {&bags.indices, &bags.bag, &scale, &weight.tensor}, attrs,
               Told{embedding_bag_op, {&weight.tensor, &bags.indices, &bags.bag, &scale}}, call);
    } else if (mode == BagMode::mean) {
        record(embedding_bag_op, loc, {&weight.tensor}, out, {&bags.indices, &bags.bag, &shares}, attrs,
               Told{embedding_bag_op, {&weight.tensor, &bags.indices, &bags.bag}, {&out, &shares}}, call);
        if (used_shares) *used_shares = shares;
    } else {
        record(embedding_bag_op, loc, {&weight.tensor}, out, {&bags.indices, &bags.bag}, attrs,
               Told{embedding_bag_op, {&weight.tensor, &bags.indices, &bags.bag}}, call);
    }
    return out;
}

// Returns the rows that elements come from, and positions in these rows instead of positions in bags.indices (n: none).
Tensor rows_of_largest(const Bags& bags, const Tensor& from, const Loc& loc) {
    const int64_t n = bags.indices.numel();
    auto* at = static_cast<int64_t*>(from.raw_data());
    std::vector<int64_t> place(static_cast<std::size_t>(n) + 1, 0);
    for (int64_t i = 0; i < from.numel(); ++i) place[static_cast<std::size_t>(at[i])] = 1;
    place.back() = 0;
    int64_t count = 0;
    for (auto& p : place) p = p != 0 ? count++ : -1;
    const Tensor rows = detail::make_empty({count}, int64, cpu, loc);
    for (int64_t i = 0; i < n; ++i) {
        const int64_t p = place[static_cast<std::size_t>(i)];
        if (p >= 0) static_cast<int64_t*>(rows.raw_data())[p] = static_cast<const int64_t*>(bags.indices.raw_data())[i];
    }
    place.back() = count;
    for (int64_t i = 0; i < from.numel(); ++i) at[i] = place[static_cast<std::size_t>(at[i])];
    return rows;
}

// Computes largest elements of floats on the CPU.
Tensor fused_max(const In& weight, const Bags& bags, int64_t padding_idx, bool is_traced, const Loc& loc, Tensor* places = nullptr) {
    Tensor out, from, rows = bags.indices;
    const bool record_it = is_traced || recording(loc, {&weight.tensor}) != nullptr;
    {
        const detail::UnrecordedPartsOf parts(loc);
        const DType dtype = weight.tensor.dtype();
        const int64_t width = weight.tensor.size(1);
        Bags here = bags;
        Tensor table = weight.tensor;
        if (const DType compute = computed_in(dtype); compute != dtype) {  // the table may be far larger than the rows that are read
            table = index_select(table, 0, bags.indices).to(compute);
            here.indices = arange(bags.indices.numel());
        }
        table = table.contiguous(loc);
        out = detail::make_empty({bags.count, width}, table.dtype(), cpu, loc);
        if (record_it) from = detail::make_empty({bags.count, width}, int64, cpu, loc);
        auto* at = from.defined() ? static_cast<int64_t*>(from.raw_data()) : nullptr;
        if (table.dtype() == float64) {
            largest_of_bags(here, static_cast<const double*>(table.raw_data()), width, static_cast<double*>(out.raw_data()), at);
        } else {
            largest_of_bags(here, static_cast<const float*>(table.raw_data()), width, static_cast<float*>(out.raw_data()), at);
        }
        out = out.to(dtype);
        if (record_it && !is_traced) rows = rows_of_largest(bags, from, loc);  // their number differs from run to run
    }
    const BagAttrs attrs{padding_idx, false, false, true};
    if (is_traced) {
        record(embedding_bag_op, loc, {&weight.tensor}, out, {&rows, &from}, attrs,
               Told{embedding_bag_op, {&weight.tensor, &bags.indices, &bags.bag}, {&out, &from}}, BagCall{BagMode::max, bags.count, padding_idx});
        if (places) *places = from;
    } else {
        record(embedding_bag_op, loc, {&weight.tensor}, out, {&rows, &from}, attrs);
    }
    return out;
}

// saved: the rows (m,) that elements come from, and the position of each element's row among them, (bags, width): m for empty bags.
void largest_rule(Backward& b) {
    const Tensor rows = b.saved(0), &g = b.grad();
    const int64_t m = rows.numel();
    const Tensor of_rows = scatter(zeros({m + 1, g.size(1)}, {g.dtype(), g.device()}), 0, b.saved(1), g);
    b.give_rows(0, rows, narrow(of_rows, 0, 0, m));
}

void embedding_bag_rule(Backward& b) {
    const auto& attrs = b.attrs<BagAttrs>();
    if (attrs.is_max) return largest_rule(b);
    const Tensor index = b.saved(0), bag = b.saved(1), &g = b.grad();
    if (b.needs(0)) {
        Tensor kept_index = index, kept_bag = bag, scale = attrs.is_scaled ? b.saved(2) : Tensor();
        if (attrs.padding_idx >= 0) {
            const Tensor kept = select(nonzero(ne(index, attrs.padding_idx)), 1, 0);
            kept_index = index_select(index, 0, kept);
            kept_bag = index_select(bag, 0, kept);
            if (scale.defined()) scale = index_select(scale, 0, kept);
        }
        Tensor rows = index_select(g, 0, kept_bag);
        if (scale.defined()) rows = rows * unsqueeze(scale, 1);
        if (attrs.is_mean) rows = rows * index_select(b.saved(2), 0, kept_bag);
        b.give_rows(0, kept_index, rows);
    }
    if (!attrs.is_scaled || !b.needs(1)) return;
    const Tensor products = sum(index_select(g, 0, bag) * embedding(index, b.saved(3)), {-1});
    b.give(1, attrs.padding_idx < 0 ? products : where(ne(index, attrs.padding_idx), products, 0));
}

// Takes rows (n, width), returns (bags, width): sums, or means over the rows that count.
Tensor sum_bags(const Tensor& rows, const Bags& bags, BagMode mode) {
    Tensor counted = rows;
    if (bags.counts.defined()) counted = where(unsqueeze(bags.counts, 1), rows, 0);
    const TensorOptions options(rows.dtype(), rows.device());
    const Tensor sums = index_add(zeros({bags.count, rows.size(1)}, options), 0, bags.bag, counted);
    if (mode == BagMode::sum) return sums;
    const Tensor ones_of = bags.counts.defined() ? bags.counts.to(rows.dtype()) : ones({rows.size(0)}, options);
    const Tensor sizes = maximum(index_add(zeros({bags.count}, options), 0, bags.bag, ones_of), 1);  // no gradient flows through it
    return sums / unsqueeze(sizes, 1);
}

// Widens all bags to the size of the largest, filled up with -infinity.
Tensor max_bags(const Tensor& rows, const Bags& bags) {
    const double inf = std::numeric_limits<double>::infinity();
    if (detail::is_tracing()) {  // the largest bag's size may differ from run to run
        const Tensor counted = bags.counts.defined() ? where(unsqueeze(bags.counts, 1), rows, -inf) : rows;
        const Tensor least = full({bags.count, rows.size(1)}, -inf, {rows.dtype(), rows.device()});
        const Tensor largest = scatter_reduce(least, 0, expand(unsqueeze(bags.bag, 1), rows.shape()), counted, "amax");
        const Tensor ones_of = bags.counts.defined() ? bags.counts.to(int64) : ones({rows.size(0)}, {int64, rows.device()});
        const Tensor sizes = index_add(zeros({bags.count}, {int64, rows.device()}), 0, bags.bag, ones_of);
        return where(unsqueeze(eq(sizes, 0), 1), 0, largest);
    }
    Tensor places, is_row, is_empty;
    const int64_t n = rows.size(0);
    {
        const detail::PauseRecording pause;
        const TensorOptions options(int64, rows.device());
        const Tensor sizes = index_add(zeros({bags.count}, options), 0, bags.bag, ones({n}, options));
        const int64_t most = n > 0 ? amax(sizes).item<int64_t>() : 0;
        if (most == 0) return zeros({bags.count, rows.size(1)}, {rows.dtype(), rows.device()});
        const Tensor at = arange(most, options), first = unsqueeze(cumsum(sizes, 0) - sizes, 1);
        is_row = lt(at, unsqueeze(sizes, 1));  // (bags, most)
        places = reshape(where(is_row, first + at, 0), {-1});
        if (bags.counts.defined()) is_row = logical_and(is_row, reshape(index_select(bags.counts, 0, places), is_row.shape()));
        is_empty = logical_not(any(is_row, {1}, true));
    }
    const Tensor padded = reshape(index_select(rows, 0, places), {bags.count, is_row.size(1), rows.size(1)});
    const Tensor largest = max(where(unsqueeze(is_row, 2), padded, -inf), 1).values;
    return where(is_empty, 0, largest);
}

// In an instance of batch(): computes the bags of all peers as those of one call. Undefined where the call goes on alone.
Tensor in_group(const In& indices, const In& weight, const Tensor& offsets, const EmbeddingBagOptions& options) {
    if (options.include_last_offset || indices->numel == 0) return {};
    if (offsets.defined()) checked_offsets(indices, offsets, false);  // together, a wrong one could look like a right one of the next instance
    const auto of_group = [&](const detail::Batched& in) {
        EmbeddingBagOptions of_all = options;
        if (in[3].defined()) of_all.per_sample_weights = detail::folded(in[3]);
        Tensor begins;
        if (in[2].defined()) begins = detail::folded(in[2] + unsqueeze(arange(in.count(), {int64, in[2].device()}) * in[0].size(1), 1));
        return detail::as_one_batch(in, [&](const Tensor& all) { return embedding_bag(In(all, indices.loc), in[1], begins, of_all); });
    };
    const detail::BatchKey key = detail::batch_key(options.mode, options.padding_idx.value_or(0), options.padding_idx.has_value());
    return detail::in_group(
        {embedding_bag_op, indices.loc, {&indices.tensor, &weight.tensor, &offsets, &options.per_sample_weights}, key, {.same = 0b10}}, of_group);
}

}  // namespace

Tensor embedding_bag(In indices, In weight, const Tensor& offsets, const EmbeddingBagOptions& options) {
    detail::check_defined(indices, "embedding_bag");
    detail::check_defined(weight, "embedding_bag");
    const int rank = indices.tensor.dim();
    const Loc& loc = indices.loc;
    if (rank != 1 && rank != 2) fail<ShapeError>(loc, "embedding_bag: needs indices of one or two dimensions, got {}", indices.tensor.shape());
    if (weight.tensor.dim() != 2) fail<ShapeError>(loc, "embedding_bag: the weight must be (rows, width), got shape {}", weight.tensor.shape());
    if (!is_floating(weight.tensor.dtype()))
        fail<DTypeError>(loc, "embedding_bag: the weight must be floating, got {}; convert it with to(float32)", weight.tensor.dtype());
    if (offsets.defined() != (rank == 1)) {
        fail<ValueError>(loc, "embedding_bag: offsets go with indices of one dimension, which need them; got shape {}", indices.tensor.shape());
    }
    const Tensor& scale = options.per_sample_weights;
    if (scale.defined() && options.mode != BagMode::sum) fail<ValueError>(loc, "embedding_bag: per_sample_weights are for mode sum");
    if (scale.defined() && scale.shape() != indices.tensor.shape()) {
        fail<ShapeError>(loc, "embedding_bag: per_sample_weights of shape {} for indices of shape {}", scale.shape(), indices.tensor.shape());
    }
    const int64_t padding = options.padding_idx ? detail::padding_row("embedding_bag", *options.padding_idx, weight->sizes[0], loc) : -1;
    detail::check_same_device("embedding_bag", indices.tensor, weight.tensor, loc);
    if (detail::in_batch()) [[unlikely]] {
        if (Tensor y = in_group(indices, weight, offsets, options); y.defined()) return y;
    }
    const detail::RecordedParts parts(loc);
    int64_t n = indices->numel, after = 0;
    const Tensor flat = reshape(indices, {n});
    Bags bags{checked_index("embedding_bag", flat, weight.tensor.shape(), 0, loc, Negative::refused), {}, {}, 0};
    if (detail::is_tracing()) bags.indices = contiguous(to(flat, int64));  // the same indices, as a graph knows them
    Tensor scales = scale.defined() ? reshape(scale, {n}) : scale;
    if (rank == 1) {
        Tensor first = checked_offsets(indices, offsets, options.include_last_offset);
        if (options.include_last_offset && detail::is_readable(first)) {
            n = first[-1].item<int64_t>();
            first = narrow(first, 0, 0, first.numel() - 1);
            bags.indices = narrow(bags.indices, 0, 0, n);
            if (scale.defined()) scales = narrow(scales, 0, 0, n);
        } else if (options.include_last_offset) {
            after = 1;  // one bag more, for the indices beyond the last offset: their number must not be read
        }
        bags.count = first.numel();
        bags.bag = bag_of_each(first, n, bags.count);
        if (bags.count == 0 && n > 0) fail<ValueError>(loc, "embedding_bag: {} indices for no bags", n);
    } else {
        bags.count = indices->sizes[0];
        const TensorOptions whole(int64, indices->device);
        bags.bag = reshape(expand(unsqueeze(arange(bags.count, whole), 1), indices.tensor.shape()), {n}).contiguous();  // one bag: a view
    }
    if (padding >= 0) bags.counts = ne(bags.indices, padding);
    detail::begin_op("embedding_bag", weight.tensor.impl(), loc);  // after the ops that made the bags
    const bool is_wide = (weight->dtype == float32 || weight->dtype == float64) && (!scale.defined() || scale.dtype() == weight->dtype);
    const bool on_cpu = weight->device == cpu;
    const bool is_traced = detail::is_tracing() && detail::is_watched();
    if (on_cpu && detail::is_tracing()) check_bags(bags, loc);
    Tensor out;
    if (on_cpu && options.mode == BagMode::max && is_floating(weight->dtype)) {
        out = fused_max(weight, bags, padding, is_traced, loc);
    } else if (on_cpu && options.mode != BagMode::max && is_wide) {
        out = fused(weight, scales, bags, options.mode, padding, loc);
    } else {
        Tensor rows = embedding(bags.indices, weight, options.padding_idx);
        const bool is_half = weight->dtype == float16 || weight->dtype == bfloat16;
        if (scale.defined()) rows = (is_half ? rows.to(float32, loc) : rows) * unsqueeze(scales, 1);  // 16 bits: rounded once, at the end
        out = options.mode == BagMode::max ? max_bags(rows, bags) : sum_bags(rows, bags, options.mode);
        if (scale.defined() && is_half) out = out.to(promote(weight->dtype, scale.dtype()), loc);
    }
    return after > 0 ? narrow(out, 0, 0, bags.count - after) : out;
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

std::vector<Tensor> bags_again(const FormCall& x, const BagCall& call) {
    const Loc loc = Loc::current();
    const In weight(x[0], loc);
    const bool scaled = x.count > 3;
    if (x[1].dim() != 1 || x[2].shape() != x[1].shape() || x[2].dtype() != int64 || (scaled && x[3].shape() != x[1].shape()) ||
        weight.tensor.dim() != 2 || call.num_bags < 0) {
        fail<ShapeError>(loc, "embedding_bag: indices {} and bags {} of a weight {} do not fit", x[1].shape(), x[2].shape(), weight.tensor.shape());
    }
    Bags bags{checked_index("embedding_bag", x[1], x[0].shape(), 0, loc, Negative::refused), x[2].contiguous(), {}, call.num_bags};
    if (call.padding_idx >= 0) bags.counts = ne(bags.indices, call.padding_idx);
    check_bags(bags, loc);
    Tensor out, read_again;
    if (call.mode == BagMode::max) {
        out = fused_max(weight, bags, call.padding_idx, /*is_traced=*/true, loc, &read_again);
    } else {
        out = fused(weight, scaled ? x[3] : Tensor(), bags, call.mode, call.padding_idx, loc, &read_again);
    }
    return {out, read_again};
}

// Returns the types of the bags, and of what the rule reads.
ResultTypes types_of(const TypeCall& t, const BagCall& a) {
    using namespace types;
    const ValueType &weight = ranked(t[0], 2, 2), &indices = ranked(t[1], 1, 1);
    for (int i = 2; i < t.count; ++i) need(may_equal(t[i].shape, indices.shape), "needs a bag, and a weight, for each index");
    const SymInt bags = t.size("num_bags");
    const ValueType all = shaped(weight, {bags, weight.shape[1]});
    if (a.mode == BagMode::sum) return all;
    if (a.mode == BagMode::mean) return {all, shaped(weight, {bags, 1})};
    return {all, same(all, DType::int64)};
}

}  // namespace

TAPIR_FORM(embedding_bag, Operands(3, 4), BagCall, types_of(t, a), bags_again(x, a),
           f("mode", a.mode, {"sum", "mean", "max"})("num_bags", a.num_bags)("padding_idx", a.padding_idx));

}  // namespace tapir
