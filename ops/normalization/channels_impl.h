// Tensors of (batch, channels, spatial...): shared code of convolution, pooling and batch normalisation.
#pragma once

#include "tapir/autograd/backward_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/view/view.h"

namespace tapir {

/// Makes a fresh tensor: with its channels last in memory, or contiguous.
inline Tensor make_in_layout(const Shape& shape, DType dtype, Device device, bool channels_last, const Loc& loc) {
    return channels_last ? detail::make_channels_last(shape, dtype, device, loc) : detail::make_empty(shape, dtype, device, loc);
}

/// True if an element-wise result of this shape has its channels last, as behind a convolution: the first operand with as many elements has.
inline bool lies_channels_last(const Shape& shape, const Tensor* const* operands, int count) noexcept {
    for (int k = 0; k < count; ++k) {
        const TensorImpl* x = operands[k]->impl();
        if (x->rank != shape.rank() || x->numel != shape.numel()) continue;
        return !x->is_contiguous() && detail::is_channels_last(x);
    }
    return false;
}

/// Returns all dimensions but the channels'.
inline Dims all_but_channels(const Tensor& x) {
    Dims dims(0);
    for (int d = 2; d < x.dim(); ++d) dims.push_back(d);
    return dims;
}

/// Reshapes (channels,) to (channels, 1...), so that it broadcasts to x.
inline Tensor beside_channels(const Tensor& t, const Tensor& x) {
    Shape shape(t.numel());
    for (int d = 2; d < x.dim(); ++d) shape.push_back(1);
    return reshape(t, shape);
}

/// For gradients of a group in batch() whose rows are to be told apart: t's examples as (rows, examples of a row, ...). Undefined for other gradients.
inline Tensor examples_by_rows(const Backward& b, const Tensor& t) {
    const std::int64_t rows = b.rows_to_tell_apart();
    if (rows == 0 || t.size(0) % rows != 0) return {};
    Shape shape = t.shape();
    shape.raw(0) /= rows;
    shape.insert(0, rows);
    return reshape(t, shape);
}

/// Sums a gradient over all but its channels: (channels,), or (rows, channels) where rows are to be told apart.
inline Tensor sums_of_channels(const Backward& b, const Tensor& g) {
    const Tensor rows = examples_by_rows(b, g);
    if (!rows.defined()) return sum(g, all_but_channels(g));
    Dims dims = {1};
    for (int d = 3; d < rows.dim(); ++d) dims.push_back(d);
    return sum(rows, dims);
}

/// The limit of strides, dilations and paddings of windows: sums and products of two such numbers do not overflow.
inline constexpr std::int64_t kMostSpatial = std::int64_t{1} << 31;
inline void check_spatial(const char* op, const char* what, std::int64_t number, std::int64_t most, const Loc& loc) {
    if (number > most) fail<ValueError>(loc, "{}: {} {} is too large", op, what, number);
}

/// Reads a number for all `dims` spatial dimensions, or one for each: calls set(i, number) for each of them. Throws ValueError for another
/// count, and for numbers below `least` or above `most`.
template <class Set>
void for_spatial(const Shape& given, std::int64_t least, const char* what, int dims, const char* op, const Loc& loc, const Set& set,
                 std::int64_t most = kMostSpatial) {
    if (given.rank() != 1 && given.rank() != dims) {
        fail<ValueError>(loc, "{}: {} needs {}, got {}", op, what, dims == 1 ? "1 number" : fmt::format("1 number or {}", dims), given);
    }
    for (int d = 0; d < dims; ++d) {
        const std::int64_t number = given[given.rank() == 1 ? 0 : d];
        if (number < least) fail<ValueError>(loc, "{}: {} must be at least {}, got {}", op, what, least, given);
        check_spatial(op, what, number, most, loc);
        set(d, number);
    }
}

}  // namespace tapir
