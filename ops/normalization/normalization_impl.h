// Shared code of the normalisations: checked inputs, and the layouts that their kernels take.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/parallel.h"
#include "tapir/core/pool_impl.h"
#include "tapir/core/tensor.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/normalization/channels_impl.h"

namespace tapir {

/// Returns x in the dtype, contiguous or with its channels last.
inline Tensor ready(const Tensor& x, DType dtype, const Loc& loc) {
    const Tensor wide = x.to(dtype, loc);
    return detail::is_channels_last(wide.impl()) ? wide : wide.contiguous(loc);
}

/// Returns g in the dtype and layout of x.
inline Tensor ready_like(const Tensor& g, const Tensor& x, const Loc& loc) {
    const Tensor wide = g.to(x.dtype(), loc);
    return x.is_contiguous() ? wide.contiguous(loc) : channels_last(wide, loc);
}

inline Tensor empty_like(const Tensor& x, const Loc& loc) {
    return make_in_layout(x.shape(), x.dtype(), x.device(), /*channels_last=*/!x.is_contiguous(), loc);
}

template <class T>
T* data(const Tensor& t) {
    return t.defined() ? static_cast<T*>(t.raw_data()) : nullptr;
}

/// Calls body(i) for [0, n), on the threads of the pool if n is more than one.
template <class Body>
void parallel_blocks(std::int64_t n, const Body& body) {
    if (n == 1) return body(std::int64_t{0});
    detail::share_parts(n, num_threads(), body);
}

/// Makes zeros (parts, width) in float64 for the sums of a parameter's gradient; add_up() adds the parts up, in order.
inline Tensor zeroed_sums(std::int64_t parts, std::int64_t width) {
    const Tensor sums = detail::make_empty({parts, width}, float64, cpu, Loc{});
    std::fill_n(data<double>(sums), sums.numel(), 0.0);
    return sums;
}
template <class T>
void add_up(const Tensor& total, const Tensor& sums) {
    if (!total.defined()) return;
    const std::int64_t parts = sums.size(0), width = sums.size(1);
    double* all = data<double>(sums);
    for (std::int64_t i = 1; i < parts; ++i) {
        for (std::int64_t j = 0; j < width; ++j) all[j] += all[i * width + j];
    }
    for (std::int64_t j = 0; j < width; ++j) data<T>(total)[j] = static_cast<T>(all[j]);
}

/// A mean and a variance, as the kernels of batch normalisation get them.
struct MeanAndRstd {
    double mean, variance, rstd;
};
/// Computes them for n numbers, at(i), whose squares do not fit T: scales the numbers to [1, 2).
template <class At>
[[gnu::noinline]] MeanAndRstd scaled_stats(std::int64_t n, double eps, const At& at) {
    double largest = 0;
    for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(at(i)));
    const int exponent = largest > 0 && std::isfinite(largest) ? std::clamp(std::ilogb(largest), -1022, 1022) : 0;
    const double scale = std::ldexp(1.0, -exponent), count = static_cast<double>(n), first = at(0) * scale;
    double sum = 0, squares = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += at(i) * scale - first;
    const double from_first = sum / count;
    for (std::int64_t i = 0; i < n; ++i) {
        const double d = (at(i) * scale - first) - from_first;
        squares += d * d;
    }
    const double variance = squares / count;
    return {(first + from_first) / scale, variance / scale / scale, scale / std::sqrt(variance + eps * scale * scale)};
}
/// True if a variance was summed up in T without a loss: without overflow, and eps hides what underflowed
/// to 0.
template <class T>
bool is_in_range(double squares, double variance, double eps) {
    return squares <= static_cast<double>(std::numeric_limits<T>::max()) && variance + eps >= static_cast<double>(std::numeric_limits<T>::min());
}

inline void check_channels(const char* op, const In& x, const Tensor& t, const char* what) {
    if (!t.defined()) return;
    if (t.shape() != Shape(x->sizes[1])) {
        fail<ShapeError>(x.loc, "{}: the {} has shape {}, expected ({},)", op, what, t.shape(), x->sizes[1]);
    }
    const bool is_wide = t.dtype() == float32 && (x->dtype == float16 || x->dtype == bfloat16);
    if (t.dtype() != x->dtype && !is_wide) {
        fail<DTypeError>(x.loc, "{}: the {} has dtype {}, the input has {}", op, what, name(t.dtype()), name(x->dtype));
    }
    detail::check_same_device(op, x.tensor, t, x.loc);
}

inline void check_input(const char* op, const In& x, int least_dims) {
    detail::check_defined(x, op);
    if (!is_floating(x->dtype)) fail<DTypeError>(x.loc, "{}: needs a floating dtype, got {}; convert with to(float32)", op, name(x->dtype));
    if (x.tensor.dim() < least_dims) {
        fail<ShapeError>(x.loc, "{}: needs (n, channels{}), got {}", op, least_dims > 2 ? ", ..." : "", x.tensor.shape());
    }
}

/// Checks the operands of a norm's gradient. Throws ShapeError unless both have one shape and floating dtype.
[[gnu::noinline]] inline void check_gradient(const char* op, const In& g, const In& x) {
    detail::check_defined(g, op);
    detail::check_defined(x, op);
    const DType dtype = x->dtype;
    if (!is_floating(dtype) || g->dtype != dtype || g.tensor.shape() != x.tensor.shape()) {
        fail<ShapeError>(x.loc, "{}: needs a gradient and an input of one shape and floating dtype, got {} of {} and {} of {}", op, g.tensor.shape(),
                         name(g->dtype), x.tensor.shape(), name(dtype));
    }
    detail::check_same_device(op, x.tensor, g.tensor, x.loc);
}

/// Throws ShapeError unless x ends with these dimensions, at least one.
inline void check_last_dims(const char* op, const In& x, const Shape& normalized_shape) {
    const Shape shape = x.tensor.shape();
    const int dims = normalized_shape.rank(), leading = shape.rank() - dims;
    bool fits = dims > 0 && leading >= 0;
    for (int d = 0; fits && d < dims; ++d) fits = shape[leading + d] == normalized_shape[d];
    if (!fits) fail<ShapeError>(x.loc, "{}: the last dimensions of {} must be {}", op, shape, normalized_shape);
}

/// In rules: returns x (n, channels, ...), and checks that the operands from t[from] on have its channels.
inline const ValueType& type_with_channels(const TypeCall& t, const ValueType& x, int from) {
    static_cast<void>(types::ranked(x, 2));
    for (int i = from; i < t.count; ++i) types::need(may_equal(t[i].shape, {x.shape[1]}), "needs a number for each channel");
    return x;
}

/// In rules: returns x, and checks that it and the operands from t[from] on end with these dimensions, at least one.
inline const ValueType& type_with_last(const TypeCall& t, const ValueType& x, int from) {
    const std::vector<SymInt> last = t.sizes("normalized_shape");
    const auto dims = static_cast<int>(last.size());
    types::need(dims > 0 && dims <= x.rank() && may_equal({x.shape.end() - dims, x.shape.end()}, last), "the last dimensions are others");
    for (int i = from; i < t.count; ++i) types::need(may_equal(t[i].shape, last), "a parameter has not the shape of the last dimensions");
    return x;
}

/// In rules: returns the gradients of x, and of the existing parameters.
inline ResultTypes gradient_types(const ValueType& x, const ValueType& parameter, bool has_weight, bool has_bias) {
    ResultTypes results{x};
    for (int i = has_weight + has_bias; i-- > 0;) results.push_back(parameter);
    return results;
}

/// Records y = op(x, weight, bias), where weight and bias may be undefined. Saved: stats, x, the weight if there is one. Watchers
/// are told of `told` if it is not null.
template <class Attrs>
void record_norm(const OpInfo& op, const Loc& loc, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y, const Tensor& stats,
                 const Attrs& attrs, const RecordArgs* told) {
    if (!detail::thread.observed) return;
    const Tensor* const inputs[] = {&x, weight.defined() ? &weight : &bias, &bias};
    const Tensor* const saved[] = {&stats, &x, &weight};
    TensorImpl* const out = y.impl();
    RecordArgs ran{op, loc, inputs, 1 + weight.defined() + bias.defined(), &out, 1, saved, weight.defined() ? 3 : 2, &attrs, sizeof attrs};
    ran.told = told;
    finish_op(ran, recording(loc, {&x, &weight, &bias}));
}
/// Overload that tells watchers of these operands, and of the op's arguments, which make_call() returns.
template <class Attrs, class MakeCall>
    requires std::is_invocable_v<MakeCall>
void record_norm(const OpInfo& op, const Loc& loc, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y, const Tensor& stats,
                 const Attrs& attrs, const MakeCall& make_call) {
    if (!detail::is_watched()) [[likely]]
        return record_norm(op, loc, x, weight, bias, y, stats, attrs, nullptr);
    const Tensor* const inputs[] = {&x, weight.defined() ? &weight : &bias, &bias};
    TensorImpl* const out = y.impl();
    const auto call = make_call();
    RecordArgs told{op, loc, inputs, 1 + weight.defined() + bias.defined(), &out, 1, nullptr, 0, &call, sizeof call};
    told.numbers = &attrs.eps;
    told.number_count = 1;
    record_norm(op, loc, x, weight, bias, y, stats, attrs, &told);
}

/// Returns x[i], the next operand of a form, if the op has one.
inline Tensor operand_if(bool has, const FormCall& x, int& i) { return has ? x[i++] : Tensor(); }

/// Returns the normalised x if it has no elements: empty, and the parameters' gradients are zeros.
inline Tensor empty_norm(const Tensor& x, const Tensor& weight, const Tensor& bias) {
    Tensor y = clone(x);
    if (weight.defined()) y = (y * beside_channels(weight, x)).to(x.dtype());
    if (bias.defined()) y = (y + beside_channels(bias, x)).to(x.dtype());
    return y;
}

}  // namespace tapir
