// The ops of statistics.h: they are made of sorting, reductions and products, which are recorded in their place.
#include "tapir/ops/reduce/statistics.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/broadcast_impl.h"
#include "tapir/core/composed_op_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/core/values_impl.h"
#include "tapir/ops/arrange/order_impl.h"
#include "tapir/ops/arrange/sort.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/elementwise/rounded_once_impl.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/linear/matmul.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/reduce/reduce_impl.h"
#include "tapir/ops/view/view.h"

namespace tapir {
namespace {

std::vector<Tensor> list(const std::pair<Tensor, Tensor>& pair) { return {pair.first, pair.second}; }

}  // namespace

TAPIR_OP(quantile, Composed, "Quantiles.", TAPIR_SAMPLE("d(3,5)", quantile(x[0], 0.3)),
         TAPIR_SAMPLE_AS("d(3,4)", "quantile(x[0], 0.6, 1, True, interpolation='nearest')", quantile(x[0], 0.6, 1, true, "nearest")),
         TAPIR_SAMPLE_AS("d(3,4)", "quantile(x[0], 0.4, 0, interpolation='midpoint')", quantile(x[0], 0.4, 0, false, "midpoint")),
         TAPIR_SAMPLE_AS("d(4,3)", "quantile(x[0], torch.tensor([0, 0.25, 1], dtype=x[0].dtype), 0)",
                         quantile(x[0], tensor({0, 0.25, 1}, {x[0].dtype(), x[0].device()}), 0)));
TAPIR_OP(median, pick_rule, "The middle element.", TAPIR_SAMPLE("d(3,4)", median(x[0])), TAPIR_SAMPLE("d(3,4)", median(x[0], 1)),
         TAPIR_SAMPLE("d(5,2)", median(x[0], 0, true)));
TAPIR_OP(var_mean, Composed, "Variance or standard deviation, and mean.", TAPIR_SAMPLE_AS("f(3,4)", "var_mean(x[0])", list(var_mean(x[0]))),
         TAPIR_SAMPLE_AS("f(3,4)", "std_mean(x[0], 1, unbiased=False)[0]", std_mean(x[0], {1}, 0).first));
TAPIR_OP(aminmax, Composed, "The smallest and the largest element.", TAPIR_SAMPLE_AS("d(3,4)", "aminmax(x[0])", list(aminmax(x[0]))),
         TAPIR_SAMPLE_AS("d(3,4)", "aminmax(x[0], dim=1, keepdim=True)", list(aminmax(x[0], 1, true))));
TAPIR_OP(cov, Composed, "Covariances.", TAPIR_SAMPLE("f(3,5)", cov(x[0])), TAPIR_SAMPLE("f(5)", cov(x[0])),
         TAPIR_SAMPLE_AS("f(3,5)", "cov(x[0], correction=0)", cov(x[0], 0)));
TAPIR_OP(corrcoef, Composed, "Correlation coefficients.", TAPIR_SAMPLE("f(3,5)", corrcoef(x[0])));
TAPIR_OP(trapezoid, Composed, "The area by the trapezoidal rule.",
         TAPIR_SAMPLE_AS("f(3,4)", "trapezoid(x[0], dx=0.5, dim=0)", trapezoid(x[0], 0.5, 0)), TAPIR_SAMPLE("f(3,4) f(3,4)", trapezoid(x[0], x[1])),
         TAPIR_SAMPLE("f(3,4) f(4)", trapezoid(x[0], x[1])),
         TAPIR_SAMPLE_AS("f(3,4) f(3)", "trapezoid(x[0], x[1], dim=0)", trapezoid(x[0], x[1], 0)));
TAPIR_OP(dist, Composed, "norm(a - b, p).", TAPIR_SAMPLE("f(3,4) f(4)", dist(x[0], x[1])), TAPIR_SAMPLE("f(3) f(3)", dist(x[0], x[1], 1)));
TAPIR_OP(pdist, Composed, "Distances of all pairs of rows.", TAPIR_SAMPLE("f(4,3)", pdist(x[0])), TAPIR_SAMPLE("f(4,3)", pdist(x[0], 1.5)));
TAPIR_OP(cdist, Composed, "Distances between rows.", TAPIR_SAMPLE("f(3,4) f(2,4)", cdist(x[0], x[1])),
         TAPIR_SAMPLE("f(2,3,2) f(2,2,2)", cdist(x[0], x[1], 1)), TAPIR_SAMPLE("f(3,4) f(2,4)", cdist(x[0], x[1], 3.5)),
         TAPIR_SAMPLE_AS("f(3,4) f(2,4)", "cdist(x[0], x[1], inf)", cdist(x[0], x[1], __builtin_inf())),
         TAPIR_SAMPLE_AS("i(3,4)<2 i(2,4)<2", "cdist(x[0].double(), x[1].double(), 0)", cdist(x[0].to(float64), x[1].to(float64), 0)),
         TAPIR_SAMPLE("f(26,2) f(2,2)", cdist(x[0], x[1])));
TAPIR_OP(normalize, Composed, "Vectors of length 1.", TAPIR_SAMPLE("f(3,4)", normalize(x[0])), TAPIR_SAMPLE("f(2,3,2)", normalize(x[0], 1, 2)),
         TAPIR_SAMPLE("f(3,4)", normalize(x[0], 2, 0, 1.5)));

TAPIR_OP(kthvalue, pick_rule, "The k-th smallest element.", TAPIR_SAMPLE("d(3,4)", kthvalue(x[0], 2)),
         TAPIR_SAMPLE("d(3,4)", kthvalue(x[0], 3, 0, true)));
TAPIR_OP(nansum, Composed, "The sum of what is not nan.", TAPIR_SAMPLE("f(3,4)", nansum(x[0])),
         TAPIR_SAMPLE_AS("f(3,4)", "nansum(torch.where(x[0] > 0.5, nan, x[0]), 1, keepdim=True)",
                         nansum(where(x[0] > 0.5, std::nan(""), x[0]), {1}, true)));
TAPIR_OP(nanmean, Composed, "The mean of what is not nan.", TAPIR_SAMPLE("f(3,4)", nanmean(x[0])),
         TAPIR_SAMPLE_AS("f(3,4)", "nanmean(torch.where(x[0] > 0.5, nan, x[0]), 0)", nanmean(where(x[0] > 0.5, std::nan(""), x[0]), {0})));

using std::int64_t;

// --- Places among sorted elements --------------------------------------------------------------------------------------------

namespace {

enum class Between { linear, lower, higher, nearest, midpoint };

Between between_of(const char* word, const Loc& loc) {
    static_cast<void>(detail::checked_word("quantile", word, loc));
    constexpr const char* words[] = {"linear", "lower", "higher", "nearest", "midpoint"};
    for (int i = 0; i < 5; ++i) {
        if (std::string(words[i]) == word) return static_cast<Between>(i);
    }
    fail<ValueError>(loc, "quantile: interpolation is \"linear\", \"lower\", \"higher\", \"nearest\" or \"midpoint\", not \"{}\"", word);
}

struct Place {
    int64_t below, above;
    double weight;  // of the element above
};

Place place_of(double q, int64_t n, Between how, const Loc& loc) {
    if (!(q >= 0 && q <= 1)) fail<ValueError>(loc, "quantile: q must be in [0, 1], got {}", q);
    double at = q * static_cast<double>(n - 1);
    switch (how) {
        case Between::lower: at = std::floor(at); break;
        case Between::higher: at = std::ceil(at); break;
        case Between::nearest: at = std::nearbyint(at); break;
        default: break;
    }
    const double below = std::floor(at), above = std::ceil(at);
    const double weight = how == Between::midpoint && above > below ? 0.5 : at - below;
    return {static_cast<int64_t>(below), static_cast<int64_t>(above), weight};
}

// x sorted along d, and nan where the largest element of its line is nan (a nan would be last).
struct Sorted {
    Tensor values, is_nan;  // is_nan: of size 1 along d
    Sorted(const Tensor& x, int d) : values(sort(x, d).values), is_nan(isnan(narrow(values, d, x.size(d) - 1, 1))) {}
};

void check_quantile(const In& x) {
    detail::check_defined(x, "quantile");
    if (x->dtype != float32 && x->dtype != float64) fail<DTypeError>(x.loc, "quantile: needs float32 or float64, got {}", name(x->dtype));
    if (x->numel == 0) fail<ShapeError>(x.loc, "quantile: there are no elements in shape {}", x.tensor.shape());
}

// Each result has size 1 along d.
std::vector<Tensor> quantiles(const In& x, const std::vector<double>& qs, int d, Interpolation interpolation) {
    const Between how = between_of(interpolation.word(), x.loc);
    const int64_t n = x.tensor.size(d);
    std::vector<Place> places;
    for (const double q : qs) places.push_back(place_of(q, n, how, x.loc));
    const Sorted sorted(x.tensor, d);
    std::vector<Tensor> results;
    for (const Place& place : places) {
        const Tensor below = narrow(sorted.values, d, place.below, 1);
        Tensor value = below;
        if (place.above > place.below) value = lerp(below, narrow(sorted.values, d, place.above, 1), place.weight);
        results.push_back(where(sorted.is_nan, std::nan(""), value));
    }
    return results;
}

std::vector<double> numbers_of(const In& q, const In& x) {
    detail::check_defined(q, "quantile");
    if (q.tensor.dim() > 1) fail<ShapeError>(x.loc, "quantile: q needs at most one dimension, got shape {}", q.tensor.shape());
    if (q->dtype != x->dtype) fail<DTypeError>(x.loc, "quantile: q is {}, x is {}", name(q->dtype), name(x->dtype));
    detail::note_read("quantile", q.tensor, x.loc);
    const detail::PauseRecording pause;
    return q.tensor.detach().to_vector<double>();
}

}  // namespace

Tensor quantile(In x, double q, Dim dim, Flag keepdim, Interpolation interpolation) {
    check_quantile(x);
    const int d = detail::wrap_dim(dim, x.tensor.dim(), "quantile", x.loc);
    const detail::RecordedParts parts(x.loc);
    if (x.tensor.dim() == 0) return reshape(quantiles(reshape(x, {1}), {q}, 0, interpolation)[0], {});
    const Tensor result = quantiles(x, {q}, d, interpolation)[0];
    return keepdim ? result : squeeze(result, d);
}

Tensor quantile(In x, double q, Interpolation interpolation) {
    check_quantile(x);
    const detail::RecordedParts parts(x.loc);
    return quantile(reshape(x, {-1}), q, 0, false, interpolation);
}

Tensor quantile(In x, In q, Dim dim, Flag keepdim, Interpolation interpolation) {
    check_quantile(x);
    const int d = detail::wrap_dim(dim, x.tensor.dim(), "quantile", x.loc);
    const detail::RecordedParts parts(x.loc);
    const std::vector<double> qs = numbers_of(q, x);
    if (q.tensor.dim() == 0) return quantile(x, qs[0], dim, keepdim, interpolation);
    const Tensor lines = x.tensor.dim() == 0 ? reshape(x, {1}) : x.tensor;
    std::vector<Tensor> results = quantiles(In(lines, x.loc), qs, d, interpolation);
    for (Tensor& result : results) {
        if (!keepdim || x.tensor.dim() == 0) result = squeeze(result, d);
    }
    if (results.empty()) {
        Shape shape = sum(lines, {d}, keepdim && x.tensor.dim() > 0).shape();
        shape.insert(0, 0);
        return empty(shape, {x->dtype, x->device});
    }
    return stack(results, 0);
}

Tensor quantile(In x, In q, Interpolation interpolation) {
    check_quantile(x);
    const detail::RecordedParts parts(x.loc);
    return quantile(reshape(x, {-1}), q, 0, false, interpolation);
}

ValuesIndices median(In x, Dim dim, Flag keepdim) {
    detail::check_defined(x, "median");
    const int d = detail::wrap_dim(dim, x.tensor.dim(), "median", x.loc);
    const int64_t n = size_along(x.tensor, d);
    if (n == 0) fail<ShapeError>(x.loc, "median: there are no elements along dimension {} of shape {}", dim, x.tensor.shape());
    return pick_at(median_op, x, d, (n - 1) / 2, /*nan_wins=*/true, keepdim);
}

Tensor median(In x) {
    detail::check_defined(x, "median");
    if (x->numel == 0) fail<ShapeError>(x.loc, "median: there are no elements in shape {}", x.tensor.shape());
    const detail::RecordedParts parts(x.loc);
    return median(reshape(x, {-1}), 0).values;
}

ValuesIndices kthvalue(In x, int64_t k, Dim dim, Flag keepdim) {
    detail::check_defined(x, "kthvalue");
    const int d = detail::wrap_dim(dim, x.tensor.dim(), "kthvalue", x.loc);
    const int64_t n = size_along(x.tensor, d);
    if (k < 1 || k > n) fail<ValueError>(x.loc, "kthvalue: k = {} of {} elements along dimension {}", k, n, d);
    return pick_at(kthvalue_op, x, d, k - 1, /*nan_wins=*/false, keepdim);
}

// --- Moments ------------------------------------------------------------------------------------------------------------------

std::pair<Tensor, Tensor> var_mean(In x, const Dims& dims, int correction, Flag keepdim) {
    detail::check_defined(x, "var_mean");
    const detail::RecordedParts parts(x.loc);
    return {reduction::var_of("var_mean", x, dims, correction, keepdim), mean(x, dims, keepdim)};
}
std::pair<Tensor, Tensor> std_mean(In x, const Dims& dims, int correction, Flag keepdim) {
    detail::check_defined(x, "std_mean");
    const detail::RecordedParts parts(x.loc);
    return {reduction::std_of("std_mean", x, dims, correction, keepdim), mean(x, dims, keepdim)};
}

Tensor nansum(In x, const Dims& dims, Flag keepdim) {
    const detail::ComposedOp composed("nansum");
    detail::check_defined(x, "nansum");
    const detail::RecordedParts parts(x.loc);
    return sum(is_floating(x->dtype) ? masked_fill(x, isnan(x), 0) : x.tensor, dims, keepdim);
}

Tensor nanmean(In x, const Dims& dims, Flag keepdim) {
    const detail::ComposedOp composed("nanmean");
    detail::check_defined(x, "nanmean");
    if (!is_floating(x->dtype)) fail<DTypeError>(x.loc, "nanmean: needs a floating dtype, got {}; convert with to(float32)", name(x->dtype));
    const detail::RecordedParts parts(x.loc);
    return nansum(x, dims, keepdim) / sum(logical_not(isnan(x)), dims, keepdim);
}

std::pair<Tensor, Tensor> aminmax(In x) {
    const detail::ComposedOp composed("aminmax");
    detail::check_defined(x, "aminmax");
    const detail::RecordedParts parts(x.loc);
    return {amin(x), amax(x)};
}
std::pair<Tensor, Tensor> aminmax(In x, Dim dim, Flag keepdim) {
    const detail::ComposedOp composed("aminmax");
    detail::check_defined(x, "aminmax");
    const detail::RecordedParts parts(x.loc);
    const Dims dims{static_cast<int>(dim)};
    return {amin(x, dims, keepdim), amax(x, dims, keepdim)};
}

namespace {

void check_observations(const char* op, const In& x) {
    detail::check_defined(x, op);
    if (x.tensor.dim() > 2) fail<ShapeError>(x.loc, "{}: needs (variables, observations), got shape {}", op, x.tensor.shape());
}

}  // namespace

Tensor cov(In x, int correction) {
    check_observations("cov", x);
    const detail::RecordedParts parts(x.loc);
    if (const RoundedOnce once({&x.tensor}); once.is_needed()) {
        const Tensor wide = once.wide(x.tensor);
        return once.result(cov(In(wide, x.loc), correction));
    }
    const int64_t n = x.tensor.dim() == 0 ? 1 : x.tensor.size(-1);
    const Tensor numbers = is_floating(x->dtype) ? x.tensor : to(x, default_dtype());
    const Tensor rows = numbers.dim() == 2 ? numbers : reshape(numbers, {1, n}), centred = rows - mean(rows, {1}, true);
    const Tensor c = matmul(centred, transpose(centred, 0, 1)) / std::max(static_cast<double>(n - correction), 0.0);
    return c.numel() == 1 ? reshape(c, {}) : c;
}

Tensor corrcoef(In x) {
    check_observations("corrcoef", x);
    const detail::RecordedParts parts(x.loc);
    if (const RoundedOnce once({&x.tensor}); once.is_needed()) {
        const Tensor wide = once.wide(x.tensor);
        return once.result(corrcoef(In(wide, x.loc)));
    }
    const Tensor c = cov(x);
    if (c.dim() == 0) return c / c;
    const Tensor deviation = sqrt(diagonal(c));
    return clamp(c / unsqueeze(deviation, 1) / deviation, -1, 1);
}

namespace {

// Returns the sum of neighbours along d.
Tensor sums_of_neighbours(const Tensor& y, int d) {
    const int64_t n = std::max<int64_t>(y.size(d) - 1, 0);
    return narrow(y, d, y.size(d) - n, n) + narrow(y, d, 0, n);
}

}  // namespace

Tensor trapezoid(In y, double dx, Dim dim) {
    const detail::ComposedOp composed("trapezoid");
    detail::check_defined(y, "trapezoid");
    if (y.tensor.dim() == 0) fail<ShapeError>(y.loc, "trapezoid: y has no dimensions");
    const int d = detail::wrap_dim(dim, y.tensor.dim(), "trapezoid", y.loc);
    const detail::RecordedParts parts(y.loc);
    if (const RoundedOnce once({&y.tensor}); once.is_needed()) {
        const Tensor wide = once.wide(y.tensor);
        return once.result(trapezoid(In(wide, y.loc), dx, d));
    }
    return sum(sums_of_neighbours(y.tensor, d), {d}) * (dx / 2);
}

Tensor trapezoid(In y, In x, Dim dim) {
    const detail::ComposedOp composed("trapezoid");
    detail::check_defined(y, "trapezoid");
    detail::check_defined(x, "trapezoid");
    if (y.tensor.dim() == 0) fail<ShapeError>(y.loc, "trapezoid: y has no dimensions");
    const int d = detail::wrap_dim(dim, y.tensor.dim(), "trapezoid", y.loc);
    const int64_t n = y->sizes[d];
    // Positions of shape (n,) lie along the dimension; others broadcast with y.
    Shape along;
    const bool is_line = x.tensor.dim() == 1;
    const int rank = y.tensor.dim(), missing = rank - x.tensor.dim();
    for (int k = 0; k < rank; ++k) along.push_back(is_line ? (k == d ? x->sizes[0] : 1) : k < missing ? 1 : x->sizes[k - missing]);
    if (x.tensor.dim() == 0 || missing < 0 || along[d] != n || !detail::do_broadcast(along, y.tensor.shape())) {
        fail<ShapeError>(y.loc, "trapezoid: places of shape {} for y of shape {}, dimension {}", x.tensor.shape(), y.tensor.shape(), dim);
    }
    const detail::RecordedParts parts(y.loc);
    if (const RoundedOnce once({&y.tensor, &x.tensor}); once.is_needed()) {
        const Tensor wide = once.wide(y.tensor), at = once.wide(x.tensor);
        return once.result(trapezoid(In(wide, y.loc), In(at, y.loc), d));
    }
    const Tensor places = reshape(x, along);
    const int64_t steps = std::max<int64_t>(n - 1, 0);
    const Tensor widths = narrow(places, d, n - steps, steps) - narrow(places, d, 0, steps);
    return sum(sums_of_neighbours(y.tensor, d) * widths, {d}) / 2;
}

// --- Distances -----------------------------------------------------------------------------------------------------------------

namespace {

// The sums of the squares of rows, (..., rows, 1).
Tensor squares_of(const Tensor& x) { return sum(square(x), {-1}, true); }

// |a|^2 - 2 a b + |b|^2, by one product of (-2 a, |a|^2, 1) and (b, 1, |b|^2).
Tensor euclidean_by_products(const Tensor& a, const Tensor& of_a, const Tensor& b, const Tensor& of_b) {
    const Tensor left = cat({a * -2, of_a, ones_like(of_a)}, -1), right = cat({b, ones_like(of_b), of_b}, -1);
    Tensor squared = matmul(left, transpose(right, -1, -2));
    if (!squared.requires_grad()) return squared.clamp_(0, std::numeric_limits<double>::infinity()).sqrt_();
    const Tensor is_apart = logical_not(le(squared, 0));  // or nan; the square root's gradient at 0 would be infinite
    return where(is_apart, sqrt(where(is_apart, squared, 1)), 0);
}

double largest_of(const Tensor& a, const Tensor& b) { return std::max(max(a).item<double>(), max(b).item<double>()); }

// True if sums of products of these numbers neither overflow nor lose all of their digits to underflow. Assumed if the numbers must not be read.
// of_a, of_b: the sums of their squares, or undefined.
bool are_squares_in_range(const Tensor& a, const Tensor& of_a, const Tensor& b, const Tensor& of_b) {
    if (a.numel() == 0 || b.numel() == 0 || !detail::is_readable(a)) return true;
    const detail::UnrecordedParts parts;
    const double most = a.dtype() == float64 ? 1e150 : a.dtype() == float16 ? 60 : 1e17;
    if (of_a.defined()) {  // these tell mostly; not if they are 0 or infinite
        const double squares = largest_of(of_a, of_b);
        if (squares <= most * most && squares >= static_cast<double>(a.size(-1)) / (most * most)) return true;
    }
    const double largest = largest_of(abs(a), abs(b));
    return !(largest > most || (largest > 0 && largest < 1 / most));
}

}  // namespace

Tensor cdist(In a, In b, double p) {
    const detail::ComposedOp composed("cdist");
    detail::check_defined(a, "cdist");
    detail::check_defined(b, "cdist");
    const int rank = a.tensor.dim();
    detail::check_same_device("cdist", a.tensor, b.tensor, a.loc);
    if (!is_floating(a->dtype) || !is_floating(b->dtype)) {
        fail<DTypeError>(a.loc, "cdist: needs floating dtypes, got {} and {}", name(a->dtype), name(b->dtype));
    }
    if (rank < 2 || b.tensor.dim() < 2 || a->sizes[rank - 1] != b->sizes[b.tensor.dim() - 1]) {
        fail<ShapeError>(a.loc, "cdist: needs rows of the same length, got shapes {} and {}", a.tensor.shape(), b.tensor.shape());
    }
    if (!(p >= 0)) fail<ValueError>(a.loc, "cdist: p must not be negative, got {}", p);
    const detail::RecordedParts parts(a.loc);
    const int64_t n = a->sizes[rank - 2], m = b->sizes[b.tensor.dim() - 2];
    detail::checked_numel({n, m}, a->dtype, a.loc);  // checked before all elements are read
    if (p == 2 && (n > 25 || m > 25) && a->sizes[rank - 1] > 0) {
        const RoundedOnce once({&a.tensor, &b.tensor});
        // Made before it is known whether they are used, they would be seen by watchers, and stay on tapes.
        const bool are_early = !once.is_needed() && !detail::thread.observed;
        const Tensor of_a = are_early ? squares_of(a.tensor) : Tensor(), of_b = are_early ? squares_of(b.tensor) : Tensor();
        if (are_squares_in_range(a.tensor, of_a, b.tensor, of_b)) {
            if (are_early) return euclidean_by_products(a.tensor, of_a, b.tensor, of_b);
            const Tensor x = once.is_needed() ? once.wide(a.tensor) : a.tensor, y = once.is_needed() ? once.wide(b.tensor) : b.tensor;
            const Tensor distances = euclidean_by_products(x, squares_of(x), y, squares_of(y));
            return once.is_needed() ? once.result(distances) : distances;
        }
    }
    const Tensor difference = unsqueeze(a, -2) - unsqueeze(b, -3);
    if (a->sizes[rank - 1] == 0) return sum(difference, {-1});
    return norm(difference, p, {-1});
}

Tensor dist(In a, In b, double p) {
    const detail::ComposedOp composed("dist");
    detail::check_defined(a, "dist");
    detail::check_defined(b, "dist");
    const detail::RecordedParts parts(a.loc);
    return norm(a.tensor - b.tensor, p);
}

Tensor pdist(In x, double p) {
    detail::check_defined(x, "pdist");
    if (x.tensor.dim() != 2) fail<ShapeError>(x.loc, "pdist: needs (n, d), got shape {}", x.tensor.shape());
    if (!is_floating(x->dtype)) fail<DTypeError>(x.loc, "pdist: needs a floating dtype, got {}; convert with to(float32)", name(x->dtype));
    if (!(p >= 0)) fail<ValueError>(x.loc, "pdist: p must not be negative, got {}", p);
    const detail::RecordedParts parts(x.loc);
    const Tensor pairs = triu_indices(x->sizes[0], x->sizes[0], 1, {int64, x->device});
    const Tensor difference = index_select(x, 0, pairs[0]) - index_select(x, 0, pairs[1]);
    return x->sizes[1] == 0 ? sum(difference, {1}) : norm(difference, p, {1});
}

Tensor normalize(In x, double p, Dim dim, double eps) {
    const detail::ComposedOp composed("normalize");
    detail::check_defined(x, "normalize");
    if (!is_floating(x->dtype)) fail<DTypeError>(x.loc, "normalize: needs a floating dtype, got {}; convert with to(float32)", name(x->dtype));
    const detail::RecordedParts parts(x.loc);
    return x.tensor / clamp_min(norm(x, p, {static_cast<int>(dim)}, true), eps);
}

// --- Methods -----------------------------------------------------------------------------------------------------------

ValuesIndices Tensor::kthvalue(int64_t k, Dim dim, Flag keepdim, Loc loc) const { return tapir::kthvalue(In(*this, loc), k, dim, keepdim); }
Tensor Tensor::nansum(const Dims& dims, Flag keepdim, Loc loc) const { return tapir::nansum(In(*this, loc), dims, keepdim); }
Tensor Tensor::nanmean(const Dims& dims, Flag keepdim, Loc loc) const { return tapir::nanmean(In(*this, loc), dims, keepdim); }
Tensor Tensor::median(Loc loc) const { return tapir::median(In(*this, loc)); }
ValuesIndices Tensor::median(Dim dim, Flag keepdim, Loc loc) const { return tapir::median(In(*this, loc), dim, keepdim); }
Tensor Tensor::quantile(double q, Loc loc) const { return tapir::quantile(In(*this, loc), q); }
Tensor Tensor::quantile(double q, Dim dim, Flag keepdim, Loc loc) const { return tapir::quantile(In(*this, loc), q, dim, keepdim); }

// --- Forms -------------------------------------------------------------------------------------------------------------------

// Returns the operand, if it has an element k in order.
[[maybe_unused]] static const ValueType& with_place(const TypeCall& t, int dim) {
    const SymInt k = t.size("k"), size = t[0].rank() == 0 ? SymInt(1) : types::size_of(t[0], dim);
    types::need<ValueError>(!k.is_number() || !size.is_number() || (k.number() >= 1 && k.number() <= size.number()), "there is no such place");
    return t[0];
}

TAPIR_FORM(median, 1, PickCall, picked(chosen(t[0], {a.dim}), a.dim, a.keepdim), detail::outputs(median(x[0], a.dim, a.keepdim)),
           f("dim", a.dim)("keepdim", a.keepdim));
TAPIR_FORM(kthvalue, 1, PickCall, picked(with_place(t, a.dim), a.dim, a.keepdim), detail::outputs(kthvalue(x[0], a.k, a.dim, a.keepdim)),
           f("k", a.k)("dim", a.dim)("keepdim", a.keepdim));

}  // namespace tapir
