// ONNX ops that reduce, scan and normalise along dimensions.
#include <limits>

#include "tapir/autograd/trace/onnx/import_impl.h"
#include "tapir/ops/arrange/arrange.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/reduce/softmax.h"
#include "tapir/ops/scan/scan.h"
#include "tapir/ops/view/view.h"

namespace tapir::detail {
namespace {

using Call = OnnxCall;
using std::int64_t;

// Axes became an operand in opset 13 for ReduceSum and in 18 for the others.
template <Tensor (*Fn)(const Tensor&, const Dims&, bool), int OperandSince>
void reduce(Call& c) {
    const Tensor x = c.x(0);
    std::vector<int64_t> axes = c.opset() < OperandSince ? c.integers("axes") : c.has(1) ? c.integers(1, "axes") : std::vector<int64_t>();
    if (axes.empty() && c.flag("noop_with_empty_axes", false))
        return c.give(Fn(unsqueeze(x, -1), {x.dim()}, false), c.type(0));  // reduces each element alone
    Dims dims;
    if (axes.empty()) {
        for (int d = 0; d < x.dim(); ++d) dims.push_back(d);
    }
    for (const int64_t axis : axes) dims.push_back(c.axis(axis, x.dim()));
    c.give(x.dim() == 0 ? Fn(reshape(x, {1}), {0}, false) : Fn(x, dims, c.flag("keepdims", true)), c.type(0));
}

Tensor sum_of(const Tensor& x, const Dims& dims, bool keep) { return sum(x, dims, keep).to(x.dtype()); }
Tensor mean_of(const Tensor& x, const Dims& dims, bool keep) {
    if (is_floating(x.dtype())) return mean(x, dims, keep);
    return mean(x.to(float64), dims, keep).to(x.dtype());
}
// Without elements: the least or the largest number of the dtype.
template <bool IsMax>
Tensor extreme_of(const Tensor& x, const Dims& dims, bool keep) {
    bool is_of_none = false;
    for (const int64_t d : dims) is_of_none |= x.size(d) == 0;
    if (!is_of_none) return IsMax ? amax(x, dims, keep) : amin(x, dims, keep);
    const Shape shape = sum(x, dims, keep).shape();
    if (x.dtype() == bool_) return full(shape, !IsMax, bool_);
    if (is_floating(x.dtype())) return full(shape, (IsMax ? -1 : 1) * std::numeric_limits<double>::infinity(), x.dtype());
    const bool is_wide = x.dtype() == int64, is_byte = x.dtype() == uint8;
    const int64_t least = is_wide ? INT64_MIN : is_byte ? 0 : INT32_MIN, largest = is_wide ? INT64_MAX : is_byte ? 255 : INT32_MAX;
    return full(shape, IsMax ? least : largest, x.dtype());
}
Tensor product_of(const Tensor& x, const Dims& dims, bool keep) {
    Tensor result = x;
    for (const int64_t d : dims) result = prod(result, d, true);
    if (keep) return result.to(x.dtype());
    Shape shape;
    for (int d = 0; d < x.dim(); ++d) {
        bool is_reduced = false;
        for (const int64_t reduced : dims) is_reduced |= reduced == d;
        if (!is_reduced) shape.push_back(x.size(d));
    }
    return reshape(result, shape).to(x.dtype());
}
Tensor l1_of(const Tensor& x, const Dims& dims, bool keep) { return sum_of(abs(x), dims, keep); }
Tensor l2_of(const Tensor& x, const Dims& dims, bool keep) {
    if (is_floating(x.dtype())) return norm(x, 2, dims, keep);
    return norm(x.to(float64), 2, dims, keep).to(x.dtype());
}
Tensor squares_of(const Tensor& x, const Dims& dims, bool keep) { return sum_of(square(x), dims, keep); }
Tensor log_sum_of(const Tensor& x, const Dims& dims, bool keep) { return log(sum(x, dims, keep)); }
Tensor log_sum_exp_of(const Tensor& x, const Dims& dims, bool keep) { return logsumexp(x, dims, keep); }

// Among equal extremes: the first, or the last.
template <bool IsMax>
void arg_extreme(Call& c) {
    const Tensor x = c.x(0);
    const int axis = c.axis("axis", 0, x.dim());
    const bool keep = c.flag("keepdims", true);
    const auto first = [&](const Tensor& t) { return IsMax ? argmax(t, axis, keep) : argmin(t, axis, keep); };
    c.give(c.flag("select_last_index", false) ? x.size(axis) - 1 - first(flip(x, {axis})) : first(x));
}

// Before opset 13, softmax and the like treated the operand as a matrix: dimensions before the axis, and those from it on.
template <Tensor (*Fn)(In, Dim)>
void along(Call& c) {
    const Tensor x = c.x(0);
    if (c.opset() >= 13) return c.give(Fn(x, c.axis("axis", -1, x.dim())));
    const int axis = c.axis("axis", 1, x.dim());
    if (axis == x.dim() - 1) return c.give(Fn(x, axis));
    int64_t front = 1, back = 1;
    for (int d = 0; d < x.dim(); ++d) (d < axis ? front : back) *= x.size(d);
    c.give(reshape(Fn(reshape(x, {front, back}), 1), x.shape()));
}
Tensor hard_max(In x, Dim dim) {
    const Tensor position = argmax(x, dim, true);
    return scatter(zeros_like(x), dim, position, 1);
}

template <bool IsSum>
void cumulative(Call& c) {
    const int axis = c.axis(c.integer(1, "axis"), c.rank(0));
    const Tensor x = c.x(0);
    const bool reverse = c.flag("reverse", false);
    const Tensor ordered = reverse ? flip(x, {axis}) : x;
    Tensor y = (IsSum ? cumsum(ordered, axis) : cumprod(ordered, axis)).to(x.dtype());
    if (c.flag("exclusive", false) && x.size(axis) > 0) {  // shifted by one
        const Tensor last = narrow(y, axis, 0, x.size(axis) - 1), part = narrow(y, axis, 0, 1);
        y = cat({IsSum ? zeros_like(part) : ones_like(part), last}, axis);
    }
    c.give(reverse ? flip(y, {axis}) : y);
}

constexpr OnnxOp kReduceOps[] = {
    {"ReduceSum", 1, reduce<sum_of, 13>},
    {"ReduceMean", 1, reduce<mean_of, 18>},
    {"ReduceMax", 1, reduce<extreme_of<true>, 18>},
    {"ReduceMin", 1, reduce<extreme_of<false>, 18>},
    {"ReduceProd", 1, reduce<product_of, 18>},
    {"ReduceL1", 1, reduce<l1_of, 18>},
    {"ReduceL2", 1, reduce<l2_of, 18>},
    {"ReduceSumSquare", 1, reduce<squares_of, 18>},
    {"ReduceLogSum", 1, reduce<log_sum_of, 18>},
    {"ReduceLogSumExp", 1, reduce<log_sum_exp_of, 18>},
    {"ArgMax", 1, arg_extreme<true>},
    {"ArgMin", 1, arg_extreme<false>},
    {"Softmax", 1, along<softmax>},
    {"LogSoftmax", 1, along<log_softmax>},
    {"Hardmax", 1, along<hard_max>},
    {"CumSum", 11, cumulative<true>},
    {"CumProd", 26, cumulative<false>},
};

}  // namespace

std::span<const OnnxOp> onnx_reduce_ops() { return kReduceOps; }

}  // namespace tapir::detail
