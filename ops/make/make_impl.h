// Shared code of the functions that make tensors, and the attributes that watchers get.
#pragma once

#include <utility>

#include "tapir/autograd/log_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/make/make.h"

namespace tapir {

// The arguments of the makers: RecordArgs::attrs, enough to make the same again. The result says whether it requires a gradient.

/// The attributes of empty, zeros, ones, eye and the _like functions, and the base of the others. `tensor` and from_blob need none.
struct MakeAttrs {
    Shape shape;
    DType dtype = float32;
    Device device;
};
/// full, full_like (and ones_like)
struct FullAttrs : MakeAttrs {
    Scalar value = 0;
};
/// arange: in whole numbers if all three are whole.
struct RangeAttrs : MakeAttrs {
    Scalar start = 0, end = 0, step = 1;
};
/// linspace, whose base is 0, and logspace
struct SpaceAttrs : MakeAttrs {
    double start, end, base;
    std::int64_t steps;
};
/// tril_indices, triu_indices
struct TriangleAttrs : MakeAttrs {
    std::int64_t rows, columns, offset;
};
/// rand, randn, randperm, and those like a tensor. The generator has drawn; it lives until watchers have been told.
struct RandomAttrs : MakeAttrs {
    Generator* generator = nullptr;
};
/// randint, randint_like: in [low, high)
struct RandintAttrs : RandomAttrs {
    std::int64_t low, high;
};
/// bernoulli: of an input, whose elements are the probabilities, or of p
struct BernoulliAttrs : RandomAttrs {
    double p;
};
struct MultinomialAttrs {
    Generator* generator;
    std::int64_t samples;
    bool replacement;
};
/// Attributes of in-place fills: uniform on [a, b), normal of mean a and standard deviation b, bernoulli_fill with probability a. (fill: its Scalar.)
struct RandomFillAttrs {
    Generator* generator;
    double a, b;
};

}  // namespace tapir

namespace tapir::detail {

[[noreturn]] void fail_gradient(const char* op, DType dtype, const Loc& loc);

/// Returns the device to make it on.
inline Device device_for(const TensorOptions& options) { return options.device.value_or(thread.device); }

/// Returns the dtype to make. Call it before anything is made: throws DTypeError for integers that shall require a gradient.
inline DType dtype_given(const char* op, const TensorOptions& options, DType unless_given, const Loc& loc) {
    const DType dtype = options.dtype.value_or(unless_given);
    if (options.requires_grad && !is_floating(dtype)) [[unlikely]]
        fail_gradient(op, dtype, loc);
    return dtype;
}
/// As dtype_given, for an op that begins with it.
inline DType dtype_for(const char* op, const TensorOptions& options, DType unless_given, const Loc& loc) {
    begin_op(op, device_for(options), loc);
    return dtype_given(op, options, unless_given, loc);
}
/// An op that makes a tensor like x calls this first: the device is x's unless the options name another. Throws ValueError for an
/// undefined tensor.
inline void begin_like(const In& x, const char* op, TensorOptions& options) {
    check_defined(x, op);
    if (options.device && *options.device != x->device) begin_op(op, *options.device, x.loc);
    options.device = options.device.value_or(x->device);
}

/// Moves a tensor made on the CPU to the options' device.
inline Tensor moved_to(Tensor t, const TensorOptions& options, const Loc& loc) {
    const Device device = device_for(options);
    if (device == cpu) [[likely]]
        return t;
    const PauseRecording pause;
    return t.to(device, loc);
}

inline MakeAttrs attrs_of(const Tensor& t) { return {t.shape(), t.dtype(), t.device()}; }

template <class AttrsOf>
[[gnu::noinline, gnu::cold]] void tell_made(const OpInfo& op, const Tensor& t, const Loc& loc, const AttrsOf& attrs, const Tensor* like) {
    if (like) {
        record(op, loc, {like}, t, {}, attrs(attrs_of(t)));
    } else {
        record(op, loc, {}, t, {}, attrs(attrs_of(t)));
    }
}

/// A maker calls this last: t requires a gradient if the options say so, and watchers are told. `attrs(MakeAttrs)` are the arguments
/// of the maker; `like`: the tensor that t was made like.
template <class AttrsOf>
[[gnu::always_inline]] inline void finish_making(const OpInfo& op, Tensor& t, const TensorOptions& options, const Loc& loc, const AttrsOf& attrs,
                                                 const Tensor* like = nullptr) {
    if (options.requires_grad) [[unlikely]]
        t.requires_grad_(true, loc);
    if (is_watched()) [[unlikely]]
        tell_made(op, t, loc, attrs, like);
}
[[gnu::always_inline]] inline void finish_making(const OpInfo& op, Tensor& t, const TensorOptions& options, const Loc& loc,
                                                 const Tensor* like = nullptr) {
    finish_making(op, t, options, loc, [](const MakeAttrs& attrs) { return attrs; }, like);
}
/// Finishes a constant, whose elements are its only attribute.
[[gnu::always_inline]] inline void finish_constant(const OpInfo& op, Tensor& t, const TensorOptions& options, const Loc& loc) {
    finish_making(op, t, options, loc, [](const MakeAttrs&) { return nullptr; });
}

}  // namespace tapir::detail
