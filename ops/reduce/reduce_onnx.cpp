// Writes reduce.cpp, scan.cpp, extreme.cpp, sort.cpp, statistics.cpp, counting.cpp, unique.cpp and compare.cpp as ONNX.
#include <algorithm>
#include <cmath>

#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/onnx_form.h"

namespace tapir {
namespace {

using std::int64_t;

// Returns the reduced dimensions: those in `dims` that x has; all if `dims` is empty.
OnnxInts dims_of(const OnnxCall& x) {
    OnnxInts dims;
    const OnnxInts given = x.integers("dims");
    for (int64_t d = 0; given.empty() && d < x.rank(); ++d) dims.push_back(d);
    for (const int64_t d : given) {
        if (d < x.rank()) dims.push_back(d < 0 ? d + x.rank() : d);
    }
    return dims;
}
SymInt reduced_numel(const OnnxCall& x, const OnnxInts& dims) {
    SymInt n = 1;
    for (const int64_t d : dims) n = n * x.shape()[d];
    return n;
}
OnnxValue over(const OnnxCall& x, const char* op, const OnnxValue& value) { return x.reduce(op, value, dims_of(x), x.flag("keepdim")); }

// Converts an operand: operators know few small integers.
OnnxValue wide(const OnnxCall& x) { return x.dtype() == bool_ || x.dtype() == DType::uint8 ? x.cast(x[0], DType::int32) : x[0]; }

OnnxValue norm_of(const OnnxCall& x) {
    const double p = x.real("p");
    const OnnxValue v = x.as_result(0);
    if (p == 2) return over(x, "ReduceL2", v);
    if (p == 1) return over(x, "ReduceL1", v);
    if (std::isinf(p)) return x.extreme(p > 0, abs(v), dims_of(x), x.flag("keepdim"));
    if (p == 0) return over(x, "ReduceSum", x.cast(v != 0, x.result_dtype()));
    return pow(over(x, "ReduceSum", pow(abs(v), p)), 1 / p);
}

// The mean of no elements is nan; ReduceMean does not specify it.
OnnxValue mean_of(const OnnxCall& x) {
    const SymInt n = reduced_numel(x, dims_of(x));
    if (n == SymInt(0)) return over(x, "ReduceSum", x.as_result(0)) / 0.0;
    const OnnxValue mean = over(x, "ReduceMean", x.as_result(0));
    return n.is_number() ? mean : where(x.size_0d(n) == 0, NAN, mean);
}

OnnxValue var_of(const OnnxCall& x) {
    const OnnxInts dims = dims_of(x);
    const SymInt n = reduced_numel(x, dims);
    const int64_t correction = x.moderate("correction");
    const OnnxValue away = x[0] - x.reduce("ReduceMean", x[0], dims, true);
    const OnnxValue sum = x.reduce("ReduceSum", away * away, dims, x.flag("keepdim"));
    if (n.is_number()) return sum / static_cast<double>(std::max<int64_t>(0, (n + SymInt(-correction)).number()));
    return sum / x.node("Max", {x.size_as(n + SymInt(-correction), x.dtype()), x.scalar(0, x.dtype())});
}

int dim_of(const OnnxCall& x, const char* name = "dim") {
    const int dim = x.small(name);
    return dim < 0 ? dim + x.rank() : dim;
}

// --- Running ----------------------------------------------------------------------------------------------------------------------

// Returns (..., n, n, ...): true for elements that count for a result along `dim`: those up to it, or from it on.
OnnxValue reaches(const OnnxCall& x, int dim, bool reverse) {
    const OnnxValue n = x.range(x.shape()[dim]);
    const OnnxValue mask = reverse ? n >= x.unsqueeze(n, {1}) : n <= x.unsqueeze(n, {1});
    OnnxInts after;
    for (int d = dim + 1; d < x.rank(); ++d) after.push_back(d - dim + 1);
    return x.unsqueeze(mask, after);
}

// Applies f to where(reaches, x, other) over dimension dim + 1.
OnnxValue running(const OnnxCall& x, const char* op, double other, DType dtype) {
    const int dim = dim_of(x);
    if (x.rank() == 0) return x.cast(x[0], dtype);
    const OnnxValue values = x.unsqueeze(x.cast(x[0], dtype), {dim});
    return x.reduce(op, where(reaches(x, dim, false), values, other), {dim + 1}, false);
}

OnnxValue cumsum_of(const OnnxCall& x) {
    if (x.rank() == 0) return x.as_result(0);
    return x.node("CumSum", {x.as_result(0), x.scalar(dim_of(x), int64)}, {{"reverse", x.flag("reverse")}});
}

OnnxValues running_extreme(const OnnxCall& x, bool largest) {
    const int dim = dim_of(x);
    if (x.rank() == 0) return {x[0], x.scalar(0, int64)};
    const DType dtype = x.dtype() == bool_ || x.dtype() == DType::uint8 ? DType::int32 : x.dtype();
    const OnnxValue values = x.unsqueeze(x.cast(x[0], dtype), {dim}), mask = reaches(x, dim, false);
    const OnnxValue found = x.extreme(largest, where(mask, values, x.end_of(dtype, !largest)), {dim + 1}, false);
    OnnxValue is_it = values == x.unsqueeze(found, {dim + 1});  // the last equal one; nan equals nothing
    if (is_floating(dtype)) is_it = is_it | is_nan(values);
    is_it = mask & is_it;
    OnnxInts after;
    for (int d = dim + 1; d < x.rank(); ++d) after.push_back(d - dim);
    const OnnxValue at = where(is_it, x.unsqueeze(x.range(x.shape()[dim]), after), -1);
    return {found, x.reduce("ReduceMax", at, {dim + 1}, false)};
}

// Exponents are at most 0 where they matter: the running sums that they belong to are at least as large.
OnnxValue weighted_exps_of(const OnnxCall& x) {
    const OnnxValue one = x.as_result(0), other = x.as_result(1), weight = x.as_result(2);
    if (x.rank() == 0) return where(weight == 0, 0, weight * exp(one + other));
    const int dim = dim_of(x);
    const OnnxValue a = x.unsqueeze(one, {dim + 1}), b = x.unsqueeze(other, {dim}), g = x.unsqueeze(weight, {dim});
    const OnnxValue terms = exp(where(reaches(x, dim, x.flag("reverse")) & (g != 0), a + b, -INFINITY)) * g;
    return x.reduce("ReduceSum", terms, {dim + 1}, false);
}

// --- Extremes and order -----------------------------------------------------------------------------------------------------------

// Returns the index of the largest or smallest: the first nan, if there is one, which runtimes may leave out.
OnnxValue place_of_extreme(const OnnxCall& x, bool largest, const OnnxValue& v, int64_t dim, bool keepdim) {
    const OnnxAttributes attributes = {{"axis", dim}, {"keepdims", keepdim}};
    const OnnxValue place = x.node(largest ? "ArgMax" : "ArgMin", int64, {v}, attributes);
    if (!is_floating(v.dtype())) return place;
    const OnnxValue nans = x.cast(is_nan(v), DType::int32), any = x.reduce("ReduceMax", nans, {dim}, keepdim) > 0;
    return where(any, x.node("ArgMax", int64, {nans}, attributes), place);
}

OnnxValues extreme_of(const OnnxCall& x, bool largest) {
    if (x.rank() == 0) return {x[0], x.scalar(0, int64)};
    const int dim = dim_of(x);
    const bool keepdim = x.flag("keepdim");
    const OnnxValue v = wide(x);
    return {x.extreme(largest, v, {dim}, keepdim), place_of_extreme(x, largest, v, dim, keepdim)};
}

OnnxValue arg_of(const OnnxCall& x, bool largest) {
    const auto dims = x.integers("dim");
    if (x.rank() == 0) return x.scalar(0, int64);
    const OnnxValue v = wide(x);
    if (dims.empty()) return place_of_extreme(x, largest, x.node("Reshape", {v, x.ints({-1})}), 0, false);
    return place_of_extreme(x, largest, v, dims[0] < 0 ? dims[0] + x.rank() : dims[0], x.flag("keepdim"));
}

OnnxValues top(const OnnxCall& x, int dim, const OnnxValue& k, bool largest) {
    const OnnxValue v = wide(x);
    return x.nodes("TopK", {v.dtype(), int64}, {v, k}, {{"axis", dim}, {"largest", largest}, {"sorted", 1}});
}
OnnxValues sort_of(const OnnxCall& x) {
    if (x.rank() == 0) return {x[0], x.scalar(0, int64)};
    const int dim = dim_of(x);
    return top(x, dim, x.size_1d(x.shape()[dim]), x.flag("descending"));
}
OnnxValues topk_of(const OnnxCall& x) {
    if (x.rank() == 0) return {x[0], x.scalar(0, int64)};
    return top(x, dim_of(x), x.size_1d(x.size("k")), x.flag("largest"));
}
// Returns the k-th smallest, k from 1 on.
OnnxValues ranked(const OnnxCall& x, const SymInt& k) {
    if (x.rank() == 0) return {x[0], x.scalar(0, int64)};
    const int dim = dim_of(x);
    OnnxValues found = top(x, dim, x.size_1d(k), false);
    for (OnnxValue& part : found) {
        part = x.slice(part, dim, -1, OnnxCall::kEnd);
        if (!x.flag("keepdim")) part = x.squeeze(part, {dim});
    }
    return found;
}
OnnxValues median_of(const OnnxCall& x) {
    if (x.rank() == 0) return {x[0], x.scalar(0, int64)};
    const int dim = dim_of(x);
    const SymInt n = x.shape()[dim];
    OnnxValues found = ranked(x, (n + SymInt(1)).floor_div(2));
    if (is_floating(x.dtype())) {  // nan, and the index of the first one, if any
        const OnnxValue is_nan = x.cast(x[0] != x[0], DType::int32);
        const OnnxValue any = x.cast(x.reduce("ReduceMax", is_nan, {dim}, x.flag("keepdim")), bool_);
        found[0] = where(any, NAN, found[0]);
        found[1] = where(any, x.node("ArgMax", int64, {is_nan}, {{"axis", dim}, {"keepdims", x.flag("keepdim")}}), found[1]);
    }
    return found;
}

// --- Counting ---------------------------------------------------------------------------------------------------------------------

OnnxValue flat(const OnnxCall& x, const OnnxValue& v) { return x.node("Reshape", {v, x.ints({-1})}); }

// Returns the dtype that both operands are compared in.
DType compared(const OnnxCall& x) {
    const DType dtype = promote(x.dtype(0), x.dtype(1));
    return dtype == DType::uint8 || dtype == bool_ ? DType::int32 : dtype;
}

OnnxValue searchsorted_of(const OnnxCall& x) {
    const DType dtype = compared(x);
    const OnnxValue values = x.unsqueeze(x.cast(x[1].is_number() ? x.scalar(x[1].number(), dtype) : x[1], dtype), {x.rank(1)});
    OnnxValue sorted = x.cast(x[0], dtype);
    if (x.rank(0) > 1) sorted = x.unsqueeze(sorted, {x.rank(0) - 1});
    OnnxValue before = x.flag("right") ? sorted <= values : sorted < values;
    if (is_floating(dtype)) before = before | ((values != values) & (sorted == sorted));  // nan comes last
    return x.reduce("ReduceSum", x.cast(before, int64), {x.rank(1)}, false);
}

OnnxValue isin_of(const OnnxCall& x) {
    const DType dtype = compared(x);
    const OnnxValue v = x[0].is_number() ? x.scalar(x[0].number(), dtype) : x.cast(x[0], dtype);
    const OnnxValue test = x[1].is_number() ? x.scalar(x[1].number(), dtype) : x.cast(x[1], dtype);
    const OnnxValue count = x.reduce("ReduceSum", x.cast(x.unsqueeze(v, {x.rank()}) == flat(x, test), int64), {x.rank()}, false);
    return x.flag("invert") ? count == 0 : count != 0;
}

OnnxValue bincount_of(const OnnxCall& x) {
    x.builder().note_data_dependent();
    const OnnxValue v = x.cast(x[0], int64);
    const OnnxValue most = x.reduce("ReduceMax", x.concat({v, x.ints({-1})}, 0), {0}, false) + 1;
    const OnnxValue n = x.node("Max", {most, x.scalar(x.integer("minlength"), int64)});
    const OnnxValue bins = x.node("Range", int64, {x.scalar(0, int64), n, x.scalar(1, int64)});
    const OnnxValue hits = x.cast(x.unsqueeze(v, {1}) == bins, x.result_dtype());
    return x.reduce("ReduceSum", x.count() > 1 ? hits * x.unsqueeze(x.as_result(1), {1}) : hits, {0}, false);
}

// Returns the number (or the weight) of the elements of a flat v in each bin between edges of shape (bins + 1,).
OnnxValue binned(const OnnxCall& x, const OnnxValue& v, const OnnxValue& edges, const OnnxValue& weights, DType dtype) {
    const OnnxValue low = x.slice(edges, 0, 0, -1), high = x.slice(edges, 0, 1, OnnxCall::kEnd), last = x.slice(edges, 0, -1, OnnxCall::kEnd);
    const OnnxValue each = x.unsqueeze(v, {1});
    const OnnxValue is_in = (each >= low) & ((each < high) | ((each == high) & (high == last)));
    const OnnxValue hits = x.cast(is_in, dtype);
    return x.reduce("ReduceSum", weights.is_left_out() ? hits : hits * x.unsqueeze(weights, {1}), {0}, false);
}
OnnxValue edges_of(const OnnxCall& x, const OnnxValue& v, int64_t bins, double low, double high, bool from_data) {
    OnnxValue a = x.scalar(low, v.dtype()), b = x.scalar(high, v.dtype());
    if (from_data) {
        const OnnxValue least = x.reduce("ReduceMin", v, {0}, false), most = x.reduce("ReduceMax", v, {0}, false);
        a = where(least == most, least - 1, least);
        b = where(least == most, most + 1, most);
        if (v.dtype() == DType::float32 || v.dtype() == DType::float64) {
            a = where(least == most, least - 0.5, least);
            b = where(least == most, most + 0.5, most);
        }
    }
    const OnnxValue i = x.cast(x.range(bins), v.dtype());
    return x.concat({a + i * ((b - a) / static_cast<double>(bins)), x.unsqueeze(b, {0})}, 0);
}
OnnxValue histc_of(const OnnxCall& x) {
    const double low = x.real("min"), high = x.real("max");
    const auto bins = x.integer("bins");
    const OnnxValue v = flat(x, x.as_result(0));
    return binned(x, v, edges_of(x, v, bins, low, high, low == 0 && high == 0), {}, x.result_dtype());
}
OnnxValues histogram_of(const OnnxCall& x) {
    const bool has_edges = x.flag("has_edges"), has_weight = x.count() > 1 + has_edges;
    const OnnxValue v = flat(x, x.as_result(0));
    const OnnxValue edges = has_edges ? x.as_result(1) : edges_of(x, v, x.integer("bins"), x.real("low"), x.real("high"), !x.flag("has_range"));
    const OnnxValue weights = has_weight ? flat(x, x.as_result(1 + has_edges)) : OnnxValue();
    OnnxValue counts = binned(x, v, edges, weights, x.result_dtype());
    if (x.flag("density")) {
        const OnnxValue widths = x.slice(edges, 0, 1, OnnxCall::kEnd) - x.slice(edges, 0, 0, -1);
        counts = counts / x.reduce("ReduceSum", counts, {0}, true) / widths;
    }
    return {counts, edges};
}

OnnxValues unique_of(const OnnxCall& x) {
    x.builder().note_data_dependent();
    const DType dtype = x.dtype() == bool_ || x.dtype() == DType::uint8 || x.dtype() == DType::int32 ? int64 : x.dtype();
    const OnnxValues found = x.nodes("Unique", {dtype, int64, int64, int64}, {flat(x, x.cast(x[0], dtype))}, {{"sorted", 1}});
    OnnxValues results = {found[0]};
    if (x.flag("return_inverse")) results.push_back(x.reshape(found[2], x.shape()));
    if (x.flag("return_counts")) results.push_back(found[3]);
    return results;
}
OnnxValues unique_consecutive_of(const OnnxCall& x) {
    x.builder().note_data_dependent();
    const DType dtype = x.dtype() == bool_ || x.dtype() == DType::uint8 ? DType::int32 : x.dtype();
    const OnnxValue v = flat(x, x.cast(x[0], dtype));
    const OnnxValue changes = x.slice(v, 0, 1, OnnxCall::kEnd) != x.slice(v, 0, 0, -1);
    const OnnxValue starts = x.concat({x.slice(v, 0, 0, 1) == x.slice(v, 0, 0, 1), changes}, 0);
    OnnxValues results = {x.node("Compress", {v, starts}, {{"axis", 0}})};
    if (x.flag("return_inverse")) {
        results.push_back(x.reshape(x.node("CumSum", {x.cast(starts, int64), x.scalar(0, int64)}) - 1, x.shape()));
    }
    if (x.flag("return_counts")) {
        const OnnxValue at = x.squeeze(x.node("NonZero", int64, {starts}), {0});
        const OnnxValue ends = x.concat({x.slice(at, 0, 1, OnnxCall::kEnd), x.shape_of(v)}, 0);
        results.push_back(ends - at);
    }
    return results;
}

OnnxValue isclose_of(const OnnxCall& x) {
    const DType common = promote(x.dtype(0), x.dtype(1)), dtype = is_floating(common) ? common : DType::float64;
    const OnnxValue a = x[0].is_number() ? x.scalar(x[0].number(), dtype) : x.cast(x[0], dtype);
    const OnnxValue b = x[1].is_number() ? x.scalar(x[1].number(), dtype) : x.cast(x[1], dtype);
    OnnxValue close = (a == b) | (is_finite(b) & (abs(a - b) <= abs(b) * x.real("rtol") + x.real("atol")));
    if (x.flag("equal_nan")) close = close | ((a != a) & (b != b));
    return close;
}

// Returns index i, counts[i] times.
OnnxValue repeated_indices_of(const OnnxCall& x) {
    x.builder().note_data_dependent();
    const OnnxValue counts = x.cast(x[0], int64), ends = x.node("CumSum", {counts, x.scalar(0, int64)});
    const OnnxValue total = x.reduce("ReduceSum", counts, {0}, false);
    const OnnxValue places = x.node("Range", int64, {x.scalar(0, int64), total, x.scalar(1, int64)});
    return x.reduce("ReduceSum", x.cast(x.unsqueeze(places, {1}) >= ends, int64), {1}, false);
}

OnnxValue softmax_of(const OnnxCall& x, const char* op) {
    if (x.rank() == 0) return op[0] == 'L' ? x[0] - x[0] : x[0] - x[0] + 1;
    return x.node(op, {x[0]}, {{"axis", dim_of(x)}});
}
// Takes a gradient and the result.
OnnxValue softmax_backward_of(const OnnxCall& x, bool log) {
    const OnnxValue &g = x[0], &y = x[1];
    if (x.rank() == 0) return g - g;
    const auto total = [&](const OnnxValue& v) { return x.reduce("ReduceSum", v, {dim_of(x)}, true); };
    return log ? g - exp(y) * total(g) : y * (g - total(y * g));
}
// Row i sees the columns up to first_query + i; a row that sees none is 0.
OnnxValue causal_softmax_of(const OnnxCall& x) {
    const auto& shape = x.shape();
    const OnnxValue rows = x.unsqueeze(x.range(shape.last(2)), {1}) + x.number_as("first_query", int64);
    return x.node("Softmax", {where(x.range(shape.last()) <= rows, x[0], -INFINITY)}, {{"axis", -1}});
}

}  // namespace

TAPIR_ONNX(sum, over(x, "ReduceSum", x.as_result(0)));
TAPIR_ONNX(mean, mean_of(x));
TAPIR_ONNX(amax, x.extreme(true, wide(x), dims_of(x), x.flag("keepdim")));
TAPIR_ONNX(amin, x.extreme(false, wide(x), dims_of(x), x.flag("keepdim")));
TAPIR_ONNX(all, over(x, "ReduceMin", x.cast(x.cast(x[0], bool_), DType::int32)) != 0);
TAPIR_ONNX(any, over(x, "ReduceMax", x.cast(x.cast(x[0], bool_), DType::int32)) > 0);
TAPIR_ONNX(norm, norm_of(x));
TAPIR_ONNX(var, var_of(x));
TAPIR_ONNX(std, sqrt(var_of(x)));
TAPIR_ONNX(prod, over(x, "ReduceProd", x.as_result(0)));
TAPIR_ONNX(logsumexp, over(x, "ReduceLogSumExp", x.as_result(0)));

TAPIR_ONNX(cumsum, cumsum_of(x));
TAPIR_ONNX(cumprod, running(x, "ReduceProd", 1, x.result_dtype()));
TAPIR_ONNX(logcumsumexp, running(x, "ReduceLogSumExp", -INFINITY, x.result_dtype()));
TAPIR_ONNX(cummax, running_extreme(x, true));
TAPIR_ONNX(cummin, running_extreme(x, false));
TAPIR_ONNX(weighted_exps, weighted_exps_of(x));

TAPIR_ONNX(softmax, softmax_of(x, "Softmax"));
TAPIR_ONNX(log_softmax, softmax_of(x, "LogSoftmax"));
TAPIR_ONNX(softmax_backward, softmax_backward_of(x, false));
TAPIR_ONNX(log_softmax_backward, softmax_backward_of(x, true));
TAPIR_ONNX(causal_softmax, causal_softmax_of(x));

TAPIR_ONNX(max, extreme_of(x, true));
TAPIR_ONNX(min, extreme_of(x, false));
TAPIR_ONNX(argmax, arg_of(x, true));
TAPIR_ONNX(argmin, arg_of(x, false));
TAPIR_ONNX(sort, sort_of(x));
TAPIR_ONNX(argsort, sort_of(x)[1]);
TAPIR_ONNX(topk, topk_of(x));
TAPIR_ONNX(median, median_of(x));
TAPIR_ONNX(kthvalue, ranked(x, x.size("k")));

TAPIR_ONNX(searchsorted, searchsorted_of(x));
TAPIR_ONNX(isin, isin_of(x));
TAPIR_ONNX(bincount, bincount_of(x));
TAPIR_ONNX(histc, histc_of(x));
TAPIR_ONNX(histogram, histogram_of(x));
TAPIR_ONNX(count_nonzero, x.reduce("ReduceSum", x.cast(x.cast(x[0], bool_), int64), dims_of(x), false));
TAPIR_ONNX(unique, unique_of(x));
TAPIR_ONNX(unique_consecutive, unique_consecutive_of(x));
TAPIR_ONNX(isclose, isclose_of(x));
TAPIR_ONNX(repeated_indices, repeated_indices_of(x));

}  // namespace tapir
