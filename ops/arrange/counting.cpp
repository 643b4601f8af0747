#include "tapir/ops/arrange/counting.h"

#include <algorithm>
#include <limits>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/composed_op_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/arrange/combine.h"
#include "tapir/ops/arrange/sort.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/scan/scan.h"
#include "tapir/ops/told_impl.h"
#include "tapir/ops/view/view.h"

namespace tapir {

TAPIR_OP(bincount, NonDiff, "How often each whole number occurs.", TAPIR_SAMPLE("i(12)<5", bincount(x[0])),
         TAPIR_SAMPLE_AS("i(7)<4", "bincount(x[0], minlength=6)", bincount(x[0], {}, 6)), TAPIR_SAMPLE("i(7)<4 f(7)", bincount(x[0], x[1])));
TAPIR_OP(histc, NonDiff, "How many elements lie in each of equal parts of a range.", TAPIR_SAMPLE("f(20)", histc(x[0], 5, -1, 1)),
         TAPIR_SAMPLE("d(3,4)", histc(x[0], 4)));
TAPIR_OP(histogram, NonDiff, "How many elements lie in each of several bins.", TAPIR_SAMPLE_AS("f(20)", "histogram(x[0], 4)", histogram(x[0], 4)),
         TAPIR_SAMPLE_AS("d(3,4)", "histogram(x[0], 3, range=(-0.25, 0.4))", histogram(x[0], 3, {.range = {{-0.25, 0.4}}})),
         TAPIR_SAMPLE_AS("f(12) u(12)", "histogram(x[0], 3, range=(-1, 2), weight=x[1], density=True)",
                         histogram(x[0], 3, {.range = {{-1.0, 2.0}}, .weight = x[1], .density = true})),
         TAPIR_SAMPLE_AS("f(20) d(4)", "histogram(x[0], sort(x[1])[0])", histogram(x[0], sort(x[1]).values)),
         TAPIR_SAMPLE_AS("f(2,6) d(5) f(2,6)", "histogram(x[0], sort(x[1])[0], weight=x[2])", histogram(x[0], sort(x[1]).values, {.weight = x[2]})));
TAPIR_OP(count_nonzero, NonDiff, "How many elements are not 0.", TAPIR_SAMPLE("i(3,4)<3", count_nonzero(x[0])),
         TAPIR_SAMPLE("i(3,4)<3", count_nonzero(x[0], {1})));
TAPIR_OP(searchsorted, NonDiff, "Places of values in a sorted sequence.",
         TAPIR_SAMPLE_AS("i(9)<6 i(2,4)<7", "searchsorted(sort(x[0])[0], x[1])", searchsorted(sort(x[0]).values, x[1])),
         TAPIR_SAMPLE_AS("f(2,5) f(2,3)", "searchsorted(sort(x[0])[0], x[1], right=True)", searchsorted(sort(x[0]).values, x[1], true)),
         TAPIR_SAMPLE_AS("i(3,4)<6 i(5)<6", "bucketize(x[0], sort(x[1])[0], right=True)", bucketize(x[0], sort(x[1]).values, true)));
TAPIR_OP(isin, NonDiff, "Which elements are among others.", TAPIR_SAMPLE("i(3,4)<9 i(4)<9", isin(x[0], x[1])),
         TAPIR_SAMPLE_AS("i(5)<5 i(2,2)<5", "isin(x[0], x[1], invert=True)", isin(x[0], x[1], true)));

using std::int64_t;

// --- Calls, as graphs know them ------------------------------------------------------------------------------------------

namespace {

struct HistcCall {
    int64_t bins = 100;
    double min = 0, max = 0;
};
struct HistogramCall {
    int64_t bins = 100;
    bool has_range = false;
    double low = 0, high = 0;
    bool density = false, has_edges = false;
};

// Returns parts() without a record of its ops; messages name the op that has begun.
template <class Parts>
auto made_of(const Parts& parts) {
    const detail::UnrecordedParts unrecorded;
    return parts();
}

}  // namespace

// --- Counting ------------------------------------------------------------------------------------------------------------

namespace {

// Counts numbers in [0, length). Neighbours that are equal would wait for each other's count, so that four tables take turns.
Tensor counts_of(const Tensor& index, int64_t length, const Loc& loc) {
    constexpr int tables = 4;
    constexpr int64_t small = 8192;  // tables that stay in the cache
    const Tensor packed = index.contiguous(loc), out = zeros({length}, {int64, cpu});
    const auto* x = static_cast<const int64_t*>(packed.raw_data());
    auto* counts = static_cast<int64_t*>(out.raw_data());
    int64_t i = 0;
    if (length <= small && index.numel() > tables * length) {
        std::vector<int64_t> more(static_cast<std::size_t>((tables - 1) * length));
        for (; i + tables <= index.numel(); i += tables) {
            ++counts[x[i]];
            for (int t = 1; t < tables; ++t) ++more[static_cast<std::size_t>((t - 1) * length + x[i + t])];
        }
        for (std::size_t k = 0; k < more.size(); ++k) counts[static_cast<int64_t>(k) % length] += more[k];
    }
    for (; i < index.numel(); ++i) ++counts[x[i]];
    return out;
}

}  // namespace

Tensor bincount(In x, const Tensor& weights, int64_t minlength) {
    detail::check_defined(x, "bincount");
    const DType dtype = x->dtype;
    if (is_floating(dtype) || dtype == bool_) fail<DTypeError>(x.loc, "bincount: needs whole numbers, got {}", name(dtype));
    if (x.tensor.dim() != 1) fail<ShapeError>(x.loc, "bincount: needs one dimension, got shape {}", x.tensor.shape());
    if (minlength < 0) fail<ValueError>(x.loc, "bincount: minlength must not be negative, got {}", minlength);
    if (weights.defined()) {
        detail::check_same_device("bincount", x.tensor, weights, x.loc);
        if (weights.shape() != x.tensor.shape()) {
            fail<ShapeError>(x.loc, "bincount: weights of shape {} for elements of shape {}", weights.shape(), x.tensor.shape());
        }
    }
    const CallerScope caller(x.loc);
    const Tensor out = made_of([&] {
        const Tensor index = x.tensor.to(int64);
        int64_t length = minlength;
        if (x->numel > 0) {
            const Tensor ends = stack({amin(index), amax(index)}).to(cpu);
            if (ends[0].item<int64_t>() < 0) {
                fail<ValueError>(x.loc, "bincount: numbers must not be negative, got {}", ends[0].item<int64_t>());
            }
            const auto largest = ends[1].item<int64_t>();
            detail::checked_numel({largest}, int64, x.loc);
            length = std::max(length, largest + 1);
        }
        if (!weights.defined() && x->device == cpu && x->numel > 0) return counts_of(index, length, x.loc);
        const DType of = !weights.defined() ? int64 : is_floating(weights.dtype()) ? weights.dtype() : float64;
        const Tensor values = weights.defined() ? weights.to(of) : ones(x.tensor.shape(), {int64, x->device});
        return index_add(zeros({length}, {of, x->device}), 0, index, values);
    });
    if (weights.defined()) {
        record(bincount_op, x.loc, {&x.tensor, &weights}, out, {}, minlength);
    } else {
        record(bincount_op, x.loc, {&x.tensor}, out, {}, minlength);
    }
    return out;
}

Tensor histc(In x, int64_t bins, double min, double max) {
    detail::check_defined(x, "histc");
    const DType dtype = x->dtype;
    if (!is_floating(dtype)) fail<DTypeError>(x.loc, "histc: needs a floating dtype, got {}; convert with to(float32)", name(dtype));
    if (bins < 1) fail<ValueError>(x.loc, "histc: needs at least one bin, got {}", bins);
    detail::checked_numel({bins}, int64, x.loc);
    if (!(min <= max)) fail<ValueError>(x.loc, "histc: the range from {} to {} is empty", min, max);
    const CallerScope caller(x.loc);
    const HistcCall call{bins, min, max};
    const Tensor out = made_of([&] {
        const Tensor flat = reshape(x, {-1}).to(computed_in(dtype));
        if (min == max && x->numel > 0) {
            min = amin(flat).item();
            max = amax(flat).item();
        }
        if (min == max) {
            min -= 1;
            max += 1;
        }
        if (!(max - min < std::numeric_limits<double>::infinity())) fail<ValueError>(x.loc, "histc: the range from {} to {} is not finite", min, max);
        const Tensor place = minimum(floor((flat - min) / (max - min) * static_cast<double>(bins)), static_cast<double>(bins - 1));
        const Tensor is_inside = logical_and(ge(flat, min), le(flat, max));
        const Tensor bin = where(is_inside, place, static_cast<double>(bins)).to(int64);  // one more bin for the others
        const Tensor counts = index_add(zeros({bins + 1}, {int64, x->device}), 0, bin, ones_like(bin));
        return narrow(counts, 0, 0, bins).to(dtype);
    });
    record(histc_op, x.loc, {&x.tensor}, out, {}, call);
    return out;
}

namespace {

void check_weight(const In& x, const Tensor& weight) {
    if (!weight.defined()) return;
    detail::check_same_device("histogram", x.tensor, weight, x.loc);
    if (weight.dtype() != x->dtype) {
        fail<DTypeError>(x.loc, "histogram: weights of {} for elements of {}", name(weight.dtype()), name(x->dtype));
    }
    if (!(weight.shape() == x.tensor.shape())) {
        fail<ShapeError>(x.loc, "histogram: weights of shape {} for elements of shape {}", weight.shape(), x.tensor.shape());
    }
}

void check_histogram(const In& x, const HistogramOptions& options) {
    detail::check_defined(x, "histogram");
    if (!is_floating(x->dtype)) fail<DTypeError>(x.loc, "histogram: needs a floating dtype, got {}; convert with to(float32)", name(x->dtype));
    check_weight(x, options.weight);
}

// Counts between `edges` (bins + 1,), which are sorted and of the dtype that is computed in.
HistogramResult count_between(const In& x, const Tensor& edges, const HistogramOptions& options) {
    const int64_t bins = edges.numel() - 1;
    const Tensor flat = reshape(x, {-1}).to(edges.dtype());
    const Tensor place = minimum(searchsorted(edges, flat, /*right=*/true) - 1, bins - 1);
    const Tensor is_inside = logical_and(ge(flat, edges[0]), le(flat, edges[-1]));
    const Tensor bin = where(is_inside, place, bins);  // one more bin for the others
    const Tensor weights = options.weight.defined() ? reshape(options.weight, {-1}).to(float64) : ones_like(bin);
    Tensor hist = index_add(zeros({bins + 1}, {weights.dtype(), x->device}), 0, bin, weights).narrow(0, 0, bins).to(float64);
    if (options.density) hist = hist / sum(hist) / diff(edges.to(float64));
    return {hist.to(x->dtype), edges.to(x->dtype)};
}

// Returns the range: from the smallest to the largest element unless given.
std::pair<double, double> range_of(const In& x, const HistogramOptions& options) {
    auto [min, max] = options.range.value_or(std::pair(0.0, 1.0));
    if (!options.range && x->numel > 0) {
        min = amin(x).item();
        max = amax(x).item();
    }
    if (!(max - min < std::numeric_limits<double>::infinity())) {
        fail<ValueError>(x.loc, "histogram: the range from {} to {} is not finite", min, max);
    }
    if (min > max) fail<ValueError>(x.loc, "histogram: the range from {} to {} is empty", min, max);
    return min < max ? std::pair(min, max) : std::pair(min - 0.5, max + 0.5);
}

}  // namespace

namespace {

// edges: undefined if a number of bins was given.
void record_histogram(const In& x, const Tensor& edges, const HistogramResult& result, const HistogramOptions& options, int64_t bins) {
    if (!detail::is_watched()) return;
    const auto [low, high] = options.range.value_or(std::pair(0.0, 0.0));
    std::vector<Tensor> operands{x.tensor};
    if (edges.defined()) operands.push_back(edges);
    if (options.weight.defined()) operands.push_back(options.weight);
    tell_of(histogram_op, x.loc, operands, {result.hist, result.bin_edges},
            HistogramCall{bins, options.range.has_value(), low, high, options.density, edges.defined()});
}

// Operands: elements, then edges and weights, if there are any.
HistogramResult histogram_again(const FormCall& x, const HistogramCall& call) {
    const int before_weight = call.has_edges ? 2 : 1;
    HistogramOptions options{.density = call.density};
    if (call.has_range) options.range = {call.low, call.high};
    if (x.count > before_weight) options.weight = x[before_weight];
    return call.has_edges ? histogram(x[0], x[1], options) : histogram(x[0], call.bins, options);
}

}  // namespace

HistogramResult histogram(In x, int64_t bins, const HistogramOptions& options) {
    check_histogram(x, options);
    constexpr int64_t most = int64_t{1} << 48;  // beyond any memory
    if (bins < 1 || bins > most) fail<ValueError>(x.loc, "histogram: the number of bins must be in [1, 2^48], got {}", bins);
    const CallerScope caller(x.loc);
    const HistogramResult result = made_of([&] {
        const auto [min, max] = range_of(x, options);
        return count_between(x, linspace(min, max, bins + 1, {computed_in(x->dtype), x->device}), options);
    });
    record_histogram(x, {}, result, options, bins);
    return result;
}

HistogramResult histogram(In x, In bin_edges, const HistogramOptions& options) {
    check_histogram(x, options);
    detail::check_defined(bin_edges, "histogram");
    const Tensor& edges = bin_edges.tensor;
    detail::check_same_device("histogram", x.tensor, edges, x.loc);
    if (edges.dtype() != x->dtype) {
        fail<DTypeError>(x.loc, "histogram: edges of {} for elements of {}", name(edges.dtype()), name(x->dtype));
    }
    if (edges.dim() != 1) fail<ShapeError>(x.loc, "histogram: the edges need one dimension, got shape {}", edges.shape());
    if (edges.numel() == 0) fail<ValueError>(x.loc, "histogram: needs at least one edge");
    if (options.range) fail<ValueError>(x.loc, "histogram: a range is for a number of bins, not for edges");
    const CallerScope caller(x.loc);
    const HistogramResult counted = made_of([&] {
        const Tensor wide = edges.to(computed_in(x->dtype));
        if (!all(ge(diff(wide), 0)).item<bool>()) fail<ValueError>(x.loc, "histogram: the edges must be sorted, and not nan");
        HistogramResult result = count_between(x, wide, options);
        result.bin_edges = clone(edges);
        return result;
    });
    record_histogram(x, edges, counted, options, 0);
    return counted;
}

Tensor count_nonzero(In x, const Dims& dims) {
    const detail::ComposedOp composed("count_nonzero");
    detail::check_defined(x, "count_nonzero");
    const CallerScope caller(x.loc);
    if (detail::in_batch() && x.tensor.dim() > 0) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) {
            Dims of;
            for (int i = 0; i < dims.rank(); ++i) of.push_back(detail::wrap_dim(dims[i], x.tensor.dim(), "count_nonzero", x.loc) + 1);
            for (int d = 1; dims.empty() && d < in[0].dim(); ++d) of.push_back(d);
            return count_nonzero(In(in[0], x.loc), of);
        };
        detail::BatchKey key;
        for (int i = 0; i < dims.rank(); ++i) key.add(dims[i]);
        if (Tensor y = detail::in_group({count_nonzero_op, x.loc, {&x.tensor}, key}, of_group); y.defined()) return y;
    }
    const Tensor out = made_of([&] { return sum(ne(x, 0), dims); });
    record(count_nonzero_op, x.loc, {&x.tensor}, out, {}, dims);
    return out;
}

// --- Searching -----------------------------------------------------------------------------------------------------------

namespace {

// Searches sequences (rows, n) for values (rows, m). nan is above all numbers.
template <class T>
void search_on_cpu(const Tensor& sequences, const Tensor& values, const Tensor& out, bool right) {
    const int64_t n = sequences.size(-1), m = values.numel() / (sequences.numel() / n);
    const auto* first = static_cast<const T*>(sequences.raw_data());
    const auto* value = static_cast<const T*>(values.raw_data());
    auto* place = static_cast<int64_t*>(out.raw_data());
    parallel_for(values.numel(), 2 * 1024, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const T* row = first + i / m * n;
            int64_t low = 0, high = n;
            while (low < high) {
                const int64_t middle = low + (high - low) / 2;
                const T here = row[middle], wanted = value[i];
                const bool is_nan = wanted != wanted;
                const bool is_before = right ? here <= wanted || is_nan : here < wanted || (is_nan && here == here);
                is_before ? low = middle + 1 : high = middle;
            }
            place[i] = low;
        }
    });
}

// Searches (rows, n) for (rows, m): sorts both together, so that values come before equal elements (right: behind them). Then it counts
// the elements before each value.
Tensor search_by_sorting(const Tensor& sequence, const Tensor& values, bool right) {
    const int64_t n = sequence.size(1), m = values.size(1);
    const Tensor order = argsort(right ? cat({sequence, values}, 1) : cat({values, sequence}, 1), 1);
    const Tensor is_element = right ? lt(order, n) : ge(order, m);
    const Tensor before = cumsum(is_element, 1);
    const Tensor places = scatter(zeros_like(before), 1, order, before);
    return narrow(places, 1, right ? n : 0, m);
}

}  // namespace

Tensor searchsorted(In sorted_sequence, In values, bool right) {
    detail::check_defined(values, "searchsorted");
    detail::check_defined(sorted_sequence, "searchsorted");
    const In& s = sorted_sequence;
    const int rank = s.tensor.dim();
    detail::check_same_device("searchsorted", s.tensor, values.tensor, s.loc);
    bool fits = rank >= 1 && (rank == 1 || rank == values.tensor.dim());
    for (int d = 0; fits && d + 1 < rank; ++d) fits = s->sizes[d] == values->sizes[d];
    if (!fits) {
        fail<ShapeError>(s.loc, "searchsorted: a sequence of shape {} does not fit values of shape {}", s.tensor.shape(), values.tensor.shape());
    }
    if (detail::in_batch()) [[unlikely]] {
        // One sequence serves values of any shape; where each instance has its own, these are rows.
        const bool is_row = rank == 1 && values.tensor.dim() != 1;
        const auto of_group = [&](const detail::Batched& in) {
            const Tensor wanted = in.is_block(0) && is_row ? reshape(in[1], {in.count(), -1}) : in[1];
            return reshape(searchsorted(In(in[0], s.loc), wanted, right), in[1].shape());
        };
        const detail::Grouping grouping{.shared = rank == 1 ? 0b1u : 0u};
        const detail::BatchCall call(searchsorted_op, s.loc, {&s.tensor, &values.tensor}, detail::batch_key(right), grouping);
        if (Tensor y = detail::in_group(call, of_group); y.defined()) return y;
    }
    const CallerScope caller(s.loc);
    const Tensor places = made_of([&] {
        DType dtype = promote(s->dtype, values->dtype);
        if (dtype == float16 || dtype == bfloat16) dtype = float32;
        if (dtype != float32 && dtype != float64) dtype = int64;
        const Tensor sequence = s.tensor.to(dtype).contiguous(), wanted = values.tensor.to(dtype).contiguous();
        Tensor out = detail::make_empty_like(wanted.impl(), int64, s.loc);
        if (out.numel() == 0) return out;
        const int64_t n = s->sizes[rank - 1];
        if (n == 0) return zeros_like(out);
        if (on_gpu(out)) {
            const int64_t rows = sequence.numel() / n;
            return reshape(search_by_sorting(reshape(sequence, {rows, n}), reshape(wanted, {rows, -1}), right), out.shape());
        }
        if (dtype == float32) {
            search_on_cpu<float>(sequence, wanted, out, right);
        } else if (dtype == float64) {
            search_on_cpu<double>(sequence, wanted, out, right);
        } else {
            search_on_cpu<int64_t>(sequence, wanted, out, right);
        }
        return out;
    });
    record(searchsorted_op, s.loc, {&s.tensor, &values.tensor}, places, {}, right);
    return places;
}

Tensor searchsorted(In sorted_sequence, Scalar value, bool right) {
    detail::check_defined(sorted_sequence, "searchsorted");
    const Tensor values = full({}, value, {sorted_sequence->device});
    return searchsorted(sorted_sequence, In(values, sorted_sequence.loc), right);
}

Tensor bucketize(In x, In boundaries, bool right) {
    detail::check_defined(x, "bucketize");
    detail::check_defined(boundaries, "bucketize");
    if (boundaries.tensor.dim() != 1) {
        fail<ShapeError>(x.loc, "bucketize: the boundaries need one dimension, got shape {}", boundaries.tensor.shape());
    }
    const detail::RecordedParts parts(x.loc);
    return searchsorted(boundaries, x, right);
}

namespace {

// Looks for x, (rows, ...), among the test elements of its row, (rows, ...).
Tensor found_in_rows(const Tensor& x, const Tensor& test_elements, int64_t rows, bool invert) {
    if (x.numel() == 0 || test_elements.numel() == 0) return full(x.shape(), invert, {bool_, x.device()});
    const DType dtype = promote(x.dtype(), test_elements.dtype());
    const Tensor tests = sort(reshape(test_elements, {rows, -1}).to(dtype), 1).values, wanted = reshape(x, {rows, -1}).to(dtype);
    const Tensor place = minimum(searchsorted(tests, wanted), tests.size(1) - 1);
    const Tensor is_found = eq(gather(tests, 1, place), wanted);
    return reshape(invert ? logical_not(is_found) : is_found, x.shape());
}

}  // namespace

Tensor isin(In x, In test_elements, bool invert) {
    detail::check_defined(x, "isin");
    detail::check_defined(test_elements, "isin");
    detail::check_same_device("isin", x.tensor, test_elements.tensor, x.loc);
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) {
            return in.is_block(1) ? found_in_rows(in[0], in[1], in.count(), invert) : isin(In(in[0], x.loc), in[1], invert);
        };
        const detail::BatchCall call(isin_op, x.loc, {&x.tensor, &test_elements.tensor}, detail::batch_key(invert), {.shared = 0b10});
        if (Tensor y = detail::in_group(call, of_group); y.defined()) return y;
    }
    const CallerScope caller(x.loc);
    const Tensor out = made_of([&] { return found_in_rows(x.tensor, test_elements.tensor, 1, invert); });
    record(isin_op, x.loc, {&x.tensor, &test_elements.tensor}, out, {}, invert);
    return out;
}

// --- Methods -----------------------------------------------------------------------------------------------------------

Tensor Tensor::count_nonzero(const Dims& dims, Loc loc) const { return tapir::count_nonzero(In(*this, loc), dims); }

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

ValueType types_of_bincount(const TypeCall& t) {
    const ValueType& x = types::ranked(t[0], 1, 1);
    const DType dtype = t.count < 2 ? DType::int64 : is_floating(types::alike(t[1], x).dtype) ? t[1].dtype : DType::float64;
    return types::shaped(x, {types::unknown()}, dtype);
}

// Returns the types of the counts, and of the edges of the bins, which may be given.
ResultTypes types_of_histogram(const TypeCall& t, const HistogramCall& a) {
    const ValueType& x = t[0];
    const int before_weight = a.has_edges ? 2 : 1;
    if (t.count > before_weight) types::need(may_equal(t[before_weight].shape, x.shape), "needs a weight for each element");
    const SymInt edges = a.has_edges ? types::size_of(types::ranked(t[1], 1, 1), 0) : t.size("bins") + SymInt(1);
    return {types::shaped(x, {edges + SymInt(-1)}), types::shaped(x, {edges})};
}

// Returns the type of the positions: for each row of values those in the row of the sequence, or in its only one.
ValueType types_of_searchsorted(const TypeCall& t) {
    const ValueType &sequence = types::ranked(t[0], 1), &values = t[1];
    const bool is_one = sequence.rank() == 1;
    types::need(is_one || (sequence.rank() == values.rank() && may_equal(types::leading(sequence, 1), types::leading(values, 1))),
                "the sequence does not fit the values");
    return types::same(values, DType::int64);
}

}  // namespace

TAPIR_DATA_SIZED_FORM(bincount, Operands(1, 2), int64_t, types_of_bincount(t), 1, bincount(x[0], x.count > 1 ? x[1] : Tensor(), a),
                      f("minlength", a));
TAPIR_FORM(histc, 1, HistcCall, shaped(t[0], {t.size("bins")}), histc(x[0], a.bins, a.min, a.max), f("bins", a.bins)("min", a.min)("max", a.max));
TAPIR_FORM(histogram, Operands(1, 3), HistogramCall, types_of_histogram(t, a), detail::outputs(histogram_again(x, a)),
           f("bins", a.bins)("has_range", a.has_range)("low", a.low)("high", a.high)("density", a.density)("has_edges", a.has_edges));
TAPIR_FORM(count_nonzero, 1, Dims, reduced(t[0], a, false, DType::int64), count_nonzero(x[0], a), f("dims", a));
TAPIR_FORM(searchsorted, 2, bool, types_of_searchsorted(t), searchsorted(x[0], x[1], a), f("right", a));
TAPIR_FORM(isin, 2, bool, same(t[0], DType::boolean), isin(x[0], x[1], a), f("invert", a));

}  // namespace tapir
