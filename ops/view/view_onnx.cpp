// Writes view.cpp, view_scatter.cpp, join.cpp, arrange.cpp and unfold.cpp as ONNX.
#include <algorithm>

#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/onnx_form.h"

namespace tapir {
namespace {

using std::int64_t;

OnnxValue transposed(const OnnxCall& x) {
    const auto pair = x.integers("dims");
    OnnxInts dims;
    for (int d = 0; d < x.rank(); ++d) dims.push_back(d);
    if (x.rank() > 0) std::swap(dims[pair[0]], dims[pair[1]]);
    return x.permute(x[0], dims);
}

// Orders the dimensions so that these two are last.
OnnxInts with_last(int rank, int64_t d1, int64_t d2) {
    OnnxInts dims;
    for (int d = 0; d < rank; ++d) {
        if (d != d1 && d != d2) dims.push_back(d);
    }
    dims.push_back(d1);
    dims.push_back(d2);
    return dims;
}
OnnxInts inverse_of(const OnnxInts& dims) {
    OnnxInts back = OnnxInts::of(dims.count(), 0);
    for (int d = 0; d < dims.count(); ++d) back[dims[d]] = d;
    return back;
}

OnnxValue diagonal_of(const OnnxCall& x) {
    const int64_t offset = x.moderate("offset"), below = std::max<int64_t>(-offset, 0), right = std::max<int64_t>(offset, 0);
    const int64_t d1 = x.small("dim1"), d2 = x.small("dim2");
    OnnxInts order = {d1, d2}, last_first;
    for (int d = 0; d < x.rank(); ++d) {
        if (d != d1 && d != d2) order.push_back(d);
    }
    for (int d = 1; d < x.rank() - 1; ++d) last_first.push_back(d);
    last_first.push_back(0);
    // Counts the remaining rows or columns, whichever are fewer.
    const SymInt rows = x.shape()[d1] + SymInt(-below), columns = x.shape()[d2] + SymInt(-right), more = rows - columns;
    const OnnxValue count = !more.is_number() ? x.node("Min", {x.size_0d(rows), x.size_0d(columns)}) : x.size_0d(more.number() < 0 ? rows : columns);
    const OnnxValue k = x.node("Range", int64, {x.scalar(0, int64), count, x.scalar(1, int64)});
    return x.permute(x.node("GatherND", {x.permute(x[0], order), x.unsqueeze(k, {1}) + x.ints({below, right})}), last_first);
}

OnnxValue diagonal_scatter_of(const OnnxCall& x) {
    const int64_t offset = x.moderate("offset"), d1 = x.small("dim1"), d2 = x.small("dim2");
    const OnnxInts order = with_last(x.rank(), d1, d2);
    const OnnxValue whole = x.permute(x.as_result(0), order), diagonal = x.as_result(1);
    const OnnxValue rows = x.unsqueeze(x.range(x.shape()[d1]), {1}), columns = x.range(x.shape()[d2]);
    // element k of the diagonal is in row k, or in column k where it is below
    const int last = x.rank(1) - 1;
    const OnnxValue most = x.size_as(x.shape(1).last() + SymInt(-1), int64);
    const OnnxValue k = x.node("Min", {offset >= 0 ? x.range(x.shape()[d1]) : columns, most});
    const OnnxValue spread = x.unsqueeze(x.gather(diagonal, k, last), {offset >= 0 ? last + 1 : last});
    return x.permute(where(columns - rows == offset, spread, whole), inverse_of(order));
}

// 0, 1, ... along a dimension.
OnnxValue along(const OnnxCall& x, int dim) {
    OnnxInts after;
    for (int d = dim + 1; d < x.rank(); ++d) after.push_back(d - dim);
    return x.unsqueeze(x.range(x.shape()[dim]), after);
}

OnnxValue select_scatter_of(const OnnxCall& x) {
    const int dim = x.small("dim");
    return where(along(x, dim) == x.number_as("index", int64), x.unsqueeze(x.as_result(1), {dim}), x[0]);
}

OnnxValue slice_scatter_of(const OnnxCall& x) {
    const int dim = x.small("dim");
    const SymInt start = x.size("start"), end = x.size("end");
    const int64_t step = x.moderate("step");
    const OnnxValue part = x.as_result(1);
    const SymInt size = x.shape()[dim];
    // True for bounds that lie between 0 and the size, one behind the other, whatever the size is.
    const auto is_place = [&](const SymInt& bound) {
        return bound == SymInt(0) || bound == size ||
            (bound.is_number() ? size.is_number() && bound.number() >= 0 && bound.number() <= size.number() : true);
    };
    const bool in_order =
        start == SymInt(0) || end == size || (start.is_number() && end.is_number() && start.number() <= end.number()) || !end.is_number();
    if (step == 1 && is_place(start) && is_place(end) && in_order) {
        OnnxValues parts;
        if (!(start == SymInt(0))) parts.push_back(x.slice(x[0], dim, 0, start));
        parts.push_back(part);
        if (!(end == size)) parts.push_back(x.slice(x[0], dim, end, OnnxCall::kEnd));
        return parts.size() == 1 ? parts[0] : x.concat(parts, dim);
    }
    const auto resolved = [&](const SymInt& bound) {
        const OnnxValue whole = x.size_as(size, int64), given = x.size_as(bound, int64);
        const OnnxValue from_begin = bound.is_number() && bound.number() < 0 ? given + whole : given;
        return is_place(bound) ? given : x.node("Min", {x.node("Max", {from_begin, x.scalar(0, int64)}), whole});
    };
    const OnnxValue i = x.range(size), first = resolved(start), last = resolved(end);
    const OnnxValue most = x.node("Sub", {x.squeeze(x.slice(x.shape_of(part), 0, dim, dim + 1), {0}), x.scalar(1, int64)});
    const OnnxValue k =
        x.node("Max", {x.node("Min", {x.node("Max", {floor_divide(i - first, step), x.scalar(0, int64)}), most}), x.scalar(0, int64)});
    const OnnxValue j = along(x, dim);
    const OnnxValue in_part = (j >= first) & (j < last) & (remainder(j - first, step) == 0);
    // An empty part has no element to gather.
    const SymInt length = x.shape(1)[dim];
    const OnnxValue padded = length.is_number() && length.number() > 0 ? part : x.concat({part, x[0]}, dim);
    return where(in_part, x.gather(padded, k, dim), x[0]);
}

// Returns the positions of a part's elements in the whole, in row-major order.
OnnxValue places_of(const OnnxCall& x) {
    const auto sizes = x.sizes("sizes");
    const auto strides = x.sizes("strides");
    OnnxValue places = x.number_as("offset", int64);
    for (int d = 0; d < sizes.count(); ++d) {
        OnnxInts after;
        for (int k = d + 1; k < sizes.count(); ++k) after.push_back(k - d);
        places = places + x.unsqueeze(x.range(sizes[d]) * x.size_as(strides[d], int64), after);
    }
    return places;
}
OnnxValue place_of(const OnnxCall& x) {
    const auto shape = x.sizes("shape");
    const OnnxValue zeros = x.filled({numel(shape)}, 0, x.dtype());
    const OnnxValue put =
        x.node("ScatterElements", {zeros, x.reshape(places_of(x), {numel(x.shape())}), x.reshape(x[0], {numel(x.shape())})}, {{"axis", 0}});
    return x.reshape(put, shape);
}

OnnxValues pieces_of(const OnnxCall& x) {
    const int dim = x.small("dim");
    OnnxSizes sizes;
    const bool drop = x.flag("drop");
    for (int i = 0; i < x.result_count(); ++i) sizes.push_back(drop ? SymInt(1) : x.result_shape(i)[dim]);
    OnnxValues parts = x.nodes("Split", OnnxDTypes::of(sizes.count(), x.dtype()), {x[0], x.sizes(sizes)}, {{"axis", dim}});
    if (drop) {
        for (OnnxValue& part : parts) part = x.squeeze(part, {dim});
    }
    return parts;
}

OnnxValue cat_of(const OnnxCall& x) {
    OnnxValues parts;
    const int rank = x.result_shape().count();
    for (int i = 0; i < x.count(); ++i) {
        if (x.rank(i) == rank) parts.push_back(x.as_result(i));  // (0,) joins with anything
    }
    return x.concat(parts, x.small("dim"));
}
OnnxValue stack_of(const OnnxCall& x) {
    OnnxValues parts;
    const int dim = x.small("dim");
    for (int i = 0; i < x.count(); ++i) {
        const OnnxValue part = x[i].is_number() ? x.scalar(x[i].number(), x.result_dtype()) : x.as_result(i);
        parts.push_back(x.unsqueeze(part, {dim}));
    }
    return x.concat(parts, dim);
}

OnnxValue triangle_of(const OnnxCall& x, bool upper) {
    const OnnxValue v = x.dtype() == DType::uint8 ? x.cast(x[0], DType::int32) : x[0];
    return x.node("Trilu", {v, x.number_as("diagonal", int64)}, {{"upper", upper}});
}

OnnxValue flip_of(const OnnxCall& x) {
    auto dims = x.integers("dims");
    if (x.rank() == 0 || dims.empty()) return x[0];
    for (int64_t& d : dims) d = d < 0 ? d + x.rank() : d;
    const OnnxInts ones = OnnxInts::of(dims.count(), -1), ends = OnnxInts::of(dims.count(), INT64_MIN);
    return x.node("Slice", {x[0], x.ints(ones), x.ints(ends), x.ints(dims), x.ints(ones)});
}

OnnxValue rolled(const OnnxCall& x, const OnnxValue& t, int dim, const SymInt& shift, const SymInt& size) {
    if (size.is_number() && size.number() < 1) return t;
    if (!size.is_number() || !shift.is_number()) {
        const OnnxValue n = x.size_1d(size), cut = n - remainder(x.size_1d(shift), n), axes = x.ints({dim});
        return x.concat({x.node("Slice", {t, cut, x.ints({OnnxCall::kEnd}), axes}), x.node("Slice", {t, x.ints({0}), cut, axes})}, dim);
    }
    const int64_t by = shift.number() % size.number();
    if (by == 0) return t;
    return x.concat({x.slice(t, dim, -by, OnnxCall::kEnd), x.slice(t, dim, 0, -by)}, dim);
}
OnnxValue roll_of(const OnnxCall& x) {
    const auto shifts = x.sizes("shifts");
    const auto dims = x.integers("dims");
    if (x.rank() == 0) return x[0];
    if (dims.empty()) {
        const SymInt n = numel(x.shape());
        return x.reshape(rolled(x, x.reshape(x[0], {n}), 0, shifts[0], n), x.shape());
    }
    OnnxValue y = x[0];
    for (int i = 0; i < dims.count(); ++i) {
        const int d = static_cast<int>(dims[i] < 0 ? dims[i] + x.rank() : dims[i]);
        y = rolled(x, y, d, shifts[i], x.shape()[d]);
    }
    return y;
}

OnnxValue repeat_of(const OnnxCall& x) {
    const auto repeats = x.sizes("repeats");
    OnnxInts front;
    for (int d = x.rank(); d < repeats.count(); ++d) front.push_back(d - x.rank());
    return repeats.empty() ? x[0] : x.node("Tile", {x.unsqueeze(x[0], front), x.sizes(repeats)});
}

OnnxValue pad_of(const OnnxCall& x) {
    const auto widths = x.sizes("pad");  // of the last dimension, of the one before ...
    const int rank = x.rank();
    OnnxSizes pads = OnnxSizes::of(2 * rank, SymInt(0));
    for (int i = 0; i + 1 < widths.count(); i += 2) {
        const int d = rank - 1 - i / 2;
        if (d < 0) x.refuse("it has more widths than two for each dimension");
        pads[d] = widths[i];
        pads[rank + d] = widths[i + 1];
    }
    if (rank == 0) return x[0];
    const DType dtype = x.dtype() == bool_ || x.dtype() == DType::uint8 ? DType::int32 : x.dtype();
    return x.node("Pad", {x.cast(x[0], dtype), x.sizes(pads), x.scalar(x.real("value"), dtype)}, {{"mode", "constant"}});
}

// Turns dimension `dim` into (windows, size), with elements at `first + window * step + k * dilation`.
OnnxValue windows_along(const OnnxCall& x, const OnnxValue& t, int dim, const SymInt& count, int64_t size, int64_t step, int64_t dilation,
                        bool elements_first) {
    const OnnxValue window = x.range(count) * step, k = x.range(size) * dilation;
    const OnnxValue places = elements_first ? x.unsqueeze(k, {1}) + window : x.unsqueeze(window, {1}) + k;
    return x.gather(t, places, dim);
}

OnnxValue windows_of(const OnnxCall& x) {
    const int dim = x.small("dim"), rank = x.rank();
    const OnnxValue beside = windows_along(x, x[0], dim, x.result_shape()[dim], x.integer("size"), x.integer("step"), 1, false);
    OnnxInts order;
    for (int d = 0; d <= rank; ++d) {
        if (d != dim + 1) order.push_back(d);
    }
    order.push_back(dim + 1);
    return x.permute(beside, order);
}

struct OnnxColumns {
    int64_t kernel[2], dilation[2], padding[2], stride[2];
    explicit OnnxColumns(const OnnxCall& x) {
        const auto put = [&](const char* name, int64_t* to) {
            const auto numbers = x.integers(name);
            for (int d = 0; d < 2; ++d) to[d] = numbers.size() == 1 ? numbers[0] : numbers[d];
        };
        put("kernel_size", kernel);
        put("dilation", dilation);
        put("padding", padding);
        put("stride", stride);
        if (stride[0] < 1 || stride[1] < 1) x.refuse("its stride is not above 0");
    }
    SymInt windows(int d, const SymInt& size) const {
        return (size + SymInt(2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1)).floor_div(stride[d]) + SymInt(1);
    }
};

OnnxValue unfold_of(const OnnxCall& x) {
    const OnnxColumns c(x);
    const bool is_single = x.rank() == 3;
    const OnnxValue images = is_single ? x.unsqueeze(x[0], {0}) : x[0];
    const OnnxValue padded = x.node("Pad", {images, x.ints({0, 0, c.padding[0], c.padding[1], 0, 0, c.padding[0], c.padding[1]})});
    const auto& shape = x.shape();
    OnnxValue y = padded;
    for (int d = 0; d < 2; ++d) {  // (n, c, kh, oh, w), then (n, c, kh, oh, kw, ow)
        y = windows_along(x, y, 2 + 2 * d, c.windows(d, shape.last(2 - d)), c.kernel[d], c.stride[d], c.dilation[d], true);
    }
    return x.reshape(x.permute(y, {0, 1, 2, 4, 3, 5}), x.result_shape());
}

// Makes the matrix that adds up the elements of each place: (size, kernel * windows).
Tensor sums_of(int64_t size, int64_t windows, int64_t kernel, int64_t stride, int64_t dilation, int64_t padding, DType dtype) {
    OnnxCall::need_room({size, kernel, windows});
    std::vector<double> m(static_cast<std::size_t>(size * kernel * windows));
    for (int64_t k = 0; k < kernel; ++k) {
        for (int64_t w = 0; w < windows; ++w) {
            const int64_t at = w * stride + k * dilation - padding;
            if (at >= 0 && at < size) m[at * kernel * windows + k * windows + w] = 1;
        }
    }
    return tensor(m, dtype).reshape({size, kernel * windows});
}

OnnxValue fold_of(const OnnxCall& x) {
    const OnnxColumns c(x);
    const auto size = x.integers("output_size");
    const bool is_single = x.rank() == 2;
    const auto& result = x.result_shape();
    const SymInt batch = is_single ? SymInt(1) : result[0], channels = result.last(3);
    int64_t windows[2];
    for (int d = 0; d < 2; ++d) windows[d] = c.windows(d, size.size() == 1 ? size[0] : size[d]).number();
    const OnnxValue columns = x.reshape(x[0], {batch, channels, c.kernel[0], c.kernel[1], windows[0], windows[1]});
    const OnnxValue beside = x.reshape(x.permute(columns, {0, 1, 2, 4, 3, 5}),
                                       {batch, channels, SymInt(c.kernel[0]) * SymInt(windows[0]), SymInt(c.kernel[1]) * SymInt(windows[1])});
    const auto sums = [&](int d) {
        return sums_of(size.size() == 1 ? size[0] : size[d], windows[d], c.kernel[d], c.stride[d], c.dilation[d], c.padding[d], x.dtype());
    };
    const OnnxValue rows = x.node("MatMul", {x.constant(sums(0)), beside});
    return x.reshape(x.node("MatMul", {rows, x.constant(sums(1).t().contiguous())}), result);
}

// A size that is kept is 1 in Expand's shape: it need not be known.
OnnxValue expand_of(const OnnxCall& x) {
    OnnxSizes shape = x.result_shape();
    const int extra = shape.count() - x.rank();
    for (int d = 0; d < x.rank(); ++d) {
        if (shape[extra + d] == x.shape()[d]) shape[extra + d] = SymInt(1);
    }
    return x.expand(x[0], shape);
}

}  // namespace

TAPIR_ONNX(reshape, x.reshape(x[0], x.result_shape()));
TAPIR_ONNX(expand, expand_of(x));
TAPIR_ONNX(transpose, transposed(x));
TAPIR_ONNX(permute, x.permute(x[0], x.integers("dims")));
TAPIR_ONNX(select, x.gather(x[0], x.number_as("index", int64), x.small("dim")));
TAPIR_ONNX(slice, x.slice(x[0], x.small("dim"), x.size("start"), x.size("end"), x.integer("step")));
TAPIR_ONNX(diagonal, diagonal_of(x));
TAPIR_ONNX(part, x.node("Gather", {x.reshape(x[0], {numel(x.shape())}), places_of(x)}, {{"axis", 0}}));
TAPIR_ONNX(place, place_of(x));
TAPIR_ONNX(pieces, pieces_of(x));
TAPIR_ONNX(select_scatter, select_scatter_of(x));
TAPIR_ONNX(slice_scatter, slice_scatter_of(x));
TAPIR_ONNX(diagonal_scatter, diagonal_scatter_of(x));

TAPIR_ONNX(cat, cat_of(x));
TAPIR_ONNX(stack, stack_of(x));

TAPIR_ONNX(tril, triangle_of(x, false));
TAPIR_ONNX(triu, triangle_of(x, true));
TAPIR_ONNX(flip, flip_of(x));
TAPIR_ONNX(roll, roll_of(x));
TAPIR_ONNX(repeat, repeat_of(x));
TAPIR_ONNX(pad, pad_of(x));

TAPIR_ONNX(windows, windows_of(x));
TAPIR_ONNX(unfold, unfold_of(x));
TAPIR_ONNX(fold, fold_of(x));

}  // namespace tapir
