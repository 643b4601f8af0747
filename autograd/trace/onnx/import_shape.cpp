// ONNX ops that arrange elements: shapes, joining, splitting, padding, dtypes.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "tapir/autograd/trace/graph/detach_impl.h"
#include "tapir/autograd/trace/onnx/import_impl.h"
#include "tapir/autograd/trace/outside_trace_impl.h"
#include "tapir/ops/arrange/arrange.h"
#include "tapir/ops/arrange/combine.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/image/interpolate.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/view/view.h"

namespace tapir::detail {
namespace {

using Call = OnnxCall;
using std::int64_t;

// The shape is known even if the elements are not. It may differ from run to run if dimensions have names.
void give_sizes(Call& c, const std::vector<int64_t>& sizes, bool is_number) {
    const OnnxValuePtr& operand = c.value(0);
    if (operand->sized_by_data) c.reject("the sizes of its operand depend on data: a graph cannot know them");
    const OutsideTrace outside;
    const Tensor known = is_number ? full({}, sizes[0], int64) : tensor(sizes, int64);
    const bool is_fixed = operand->known.defined() && !operand->by_size;
    c.give_known(known, !is_fixed && c.interpreter().has_named_dims());
}

void shape_op(Call& c) {
    const Shape shape = c.shape(0);
    const int64_t rank = shape.rank();
    const auto bound = [&](const char* name, int64_t otherwise) {
        const int64_t at = c.integer(name, otherwise);
        return std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank);
    };
    const int64_t start = bound("start", 0), end = bound("end", rank);
    std::vector<int64_t> sizes;
    for (int64_t d = start; d < end; ++d) sizes.push_back(shape.raw(static_cast<int>(d)));
    give_sizes(c, sizes, false);
}
void size_op(Call& c) { give_sizes(c, {c.shape(0).numel()}, true); }

void reshape_op(Call& c) {
    const std::vector<int64_t> wanted = c.opset() < 5 ? c.integers("shape") : c.integers(1, "shape");
    const Shape have = c.shape(0);
    Shape shape;
    for (std::size_t d = 0; d < wanted.size(); ++d) {
        int64_t size = wanted[d];
        if (size == 0 && !c.flag("allowzero", false)) {
            if (static_cast<int>(d) >= have.rank()) c.reject("0 in its shape stands for a dimension that its operand of shape {} has not", have);
            size = have.raw(static_cast<int>(d));
        }
        shape.push_back(size);
    }
    c.give(reshape(c.x(0), shape));
}

void flatten_op(Call& c) {
    const Shape have = c.shape(0);
    int64_t axis = c.integer("axis", 1);
    if (axis < 0) axis += have.rank();
    if (axis < 0 || axis > have.rank()) c.reject("its axis is {}, of {} dimensions", axis, have.rank());
    int64_t front = 1, back = 1;
    for (int d = 0; d < have.rank(); ++d) (d < axis ? front : back) *= have.raw(d);
    c.give(reshape(c.x(0), {front, back}));
}

void transpose_op(Call& c) {
    std::vector<int64_t> order = c.integers("perm");
    if (order.empty()) {
        order.resize(static_cast<std::size_t>(c.rank(0)));
        std::iota(order.rbegin(), order.rend(), 0);
    }
    c.give(permute(c.x(0), order));
}

std::vector<int64_t> axes_of(Call& c, int operand, int since) {
    if (c.opset() < since) return c.integers("axes");
    return c.has(operand) ? c.integers(operand, "axes") : std::vector<int64_t>();
}

void squeeze_op(Call& c) {
    const Shape have = c.shape(0);
    std::vector<bool> is_gone(have.size(), false);
    const bool is_given = c.opset() < 13 ? c.given("axes") : c.has(1);
    if (is_given) {
        for (const int64_t axis : axes_of(c, 1, 13)) {
            const int d = c.axis(axis, have.rank());
            if (have.raw(d) != 1) c.reject("the dimension {} of a shape {} is not 1", d, have);
            is_gone[static_cast<std::size_t>(d)] = true;
        }
    } else {
        for (int d = 0; d < have.rank(); ++d) is_gone[static_cast<std::size_t>(d)] = have.raw(d) == 1;
    }
    Shape shape;
    for (int d = 0; d < have.rank(); ++d) {
        if (!is_gone[static_cast<std::size_t>(d)]) shape.push_back(have.raw(d));
    }
    c.give(reshape(c.x(0), shape));
}

void unsqueeze_op(Call& c) {
    const Shape have = c.shape(0);
    const std::vector<int64_t> axes = axes_of(c, 1, 13);
    const int rank = have.rank() + static_cast<int>(axes.size());
    if (rank > kMaxRank) c.reject("its result would have {} dimensions", rank);
    std::vector<bool> is_new(static_cast<std::size_t>(rank), false);
    for (const int64_t axis : axes) {
        const auto d = static_cast<std::size_t>(c.axis(axis, rank));
        if (is_new[d]) c.reject("it names a dimension twice");
        is_new[d] = true;
    }
    Shape shape;
    for (int d = 0, from = 0; d < rank; ++d) shape.push_back(is_new[static_cast<std::size_t>(d)] ? 1 : have.raw(from++));
    c.give(reshape(c.x(0), shape));
}

void expand_op(Call& c) {
    const Shape wanted = c.integers(1, "shape");
    const Tensor x = c.x(0);
    c.give(expand(x, broadcast_shapes(x.shape(), wanted, "Expand", c.interpreter().loc())));
}

void concat_op(Call& c) {
    std::vector<Tensor> parts = c.all();
    if (parts.empty()) c.reject("it has no operands");
    const int axis = c.axis("axis", 1, parts[0].dim());
    c.give(cat(parts, axis));
}

void split_op(Call& c) {
    const int axis = c.axis("axis", 0, c.rank(0));
    const int64_t size = c.shape(0).raw(axis);
    std::vector<int64_t> sizes = c.opset() < 13 ? c.integers("split") : c.has(1) ? c.integers(1, "split") : std::vector<int64_t>();
    if (sizes.empty()) {
        const int64_t results = c.node().output_size(), count = c.integer("num_outputs", results);
        if (count != results || results == 0) c.reject("num_outputs is {}, and it has {} results", count, results);
        const int64_t part = (size + count - 1) / count;
        for (int64_t i = 0, left = size; i < count; ++i, left -= part) sizes.push_back(std::clamp<int64_t>(left, 0, part));
    }
    for (const Tensor& part : split(c.x(0), sizes, axis)) c.give(part);
}

// The bounds are attributes before opset 10, and operands since then.
void slice_op(Call& c) {
    const bool by_attributes = c.opset() < 10;
    const std::vector<int64_t> starts = by_attributes ? c.integers("starts") : c.integers(1, "starts");
    const std::vector<int64_t> ends = by_attributes ? c.integers("ends") : c.integers(2, "ends");
    std::vector<int64_t> axes = by_attributes ? c.integers("axes") : c.has(3) ? c.integers(3, "axes") : std::vector<int64_t>();
    const std::vector<int64_t> steps = !by_attributes && c.has(4) ? c.integers(4, "steps") : std::vector<int64_t>(starts.size(), 1);
    if (axes.empty()) {
        axes.resize(starts.size());
        std::iota(axes.begin(), axes.end(), 0);
    }
    if (ends.size() != starts.size() || axes.size() != starts.size() || steps.size() != starts.size()) {
        c.reject("it has {} starts, {} ends, {} axes and {} steps", starts.size(), ends.size(), axes.size(), steps.size());
    }
    Tensor x = c.x(0);
    for (std::size_t i = 0; i < axes.size(); ++i) {
        const int d = c.axis(axes[i], x.dim());
        const int64_t size = x.size(d), step = steps[i];
        if (step == 0) c.reject("a step of it is 0, which leads nowhere");
        if (step > 0) {  // keeps the bounds as given: for other sizes they clip other parts
            constexpr int64_t far = INT32_MAX;
            const int64_t stop = ends[i] >= far ? Slice::kOpen : std::max(ends[i], -far);
            if (starts[i] == 0 && stop == Slice::kOpen && step == 1) continue;
            x = slice(x, d, Slice(std::clamp(starts[i], -far, far), stop, std::min(step, far)));
            continue;
        }
        if (step == -1 && (starts[i] == -1 || starts[i] >= INT32_MAX) && ends[i] <= -INT32_MAX) {  // reverses the whole dimension, whatever its size
            x = flip(x, {d});
            continue;
        }
        const auto from_front = [&](int64_t at) { return at < 0 ? std::max<int64_t>(at + size, -1) : at; };
        int64_t start = from_front(starts[i]), end = ends[i] < -size ? -1 : from_front(ends[i]);
        // Backwards: slices forwards, then flips.
        start = std::clamp<int64_t>(start, -1, size - 1);
        end = std::clamp<int64_t>(end, -1, start);
        const int64_t by = step < -size ? std::max<int64_t>(size, 1) : -step, count = (start - end + by - 1) / by;
        if (count == 0) {
            x = narrow(x, d, 0, 0);
        } else {
            x = flip(slice(x, d, Slice(start - (count - 1) * by, start + 1, by)), {d});
        }
    }
    c.give(x);
}

void tile_op(Call& c) {
    if (c.opset() < 6) {  // tiles along one axis
        Shape times;
        for (int d = 0; d < c.rank(0); ++d) times.push_back(1);
        times.raw(c.axis(c.integer(2, "axis"), c.rank(0))) = c.integer(1, "tiles");
        return c.give(repeat(c.x(0), times));
    }
    c.give(repeat(c.x(0), c.integers(1, "repeats")));
}

void pad_op(Call& c) {
    const int rank = c.rank(0);
    std::vector<int64_t> pads = c.opset() < 2 ? c.integers("paddings") : c.opset() < 11 ? c.integers("pads") : c.integers(1, "pads");
    std::vector<int64_t> axes;
    if (c.opset() >= 18 && c.has(3)) {
        axes = c.integers(3, "axes");
    } else {
        axes.resize(static_cast<std::size_t>(rank));
        std::iota(axes.begin(), axes.end(), 0);
    }
    if (pads.size() != 2 * axes.size()) c.reject("it has {} pads for {} dimensions", pads.size(), axes.size());
    std::vector<int64_t> widths(static_cast<std::size_t>(2 * rank), 0);
    for (std::size_t i = 0; i < axes.size(); ++i) {
        const auto place = static_cast<std::size_t>(2 * (rank - 1 - c.axis(axes[i], rank)));  // counted from the last dimension
        widths[place] = pads[i];
        widths[place + 1] = pads[i + axes.size()];
    }
    while (!widths.empty() && widths[widths.size() - 1] == 0 && widths[widths.size() - 2] == 0) widths.resize(widths.size() - 2);
    const Tensor x = c.x(0);
    if (widths.empty()) return c.give(x.clone());
    const std::string mode = c.text("mode", "constant");
    if (mode == "constant") {
        const double value = c.opset() < 11 ? c.real("value", 0) : c.has(2) ? c.real(2, "value") : 0;
        return c.give(is_floating(x.dtype()) ? pad(x, widths, value) : pad(x, widths, static_cast<int64_t>(value)));
    }
    if (mode == "reflect") return c.give(pad(x, widths, "reflect"));
    if (mode == "edge") return c.give(pad(x, widths, "replicate"));
    if (mode == "wrap") return c.give(pad(x, widths, "circular"));
    c.reject("its mode is \"{}\"", mode);
}

void give_cast(Call& c, int type) {
    const std::optional<DType> dtype = dtype_for_onnx(type);
    if (type == onnx::TensorProto::STRING) c.reject("strings are not supported");
    if (!dtype) c.reject("there is no type {} in Tapir", onnx_type_name(type));
    const Tensor x = c.x(0);
    if (small_float_bits(type) && type != c.type(0)) {
        return c.give(small_float(x, type, c.flag("saturate", true), c.text("round_mode", "up")), type);
    }
    Tensor y = *dtype == bool_ && x.dtype() != bool_ ? ne(x, 0) : x.dtype() == *dtype ? x.clone() : x.to(*dtype);
    if (is_widened(type) && type != c.type(0)) y = wrapped(y, type);
    c.give(y, type);
}
void cast_op(Call& c) { give_cast(c, static_cast<int>(c.integer("to", 0))); }
void cast_like(Call& c) { give_cast(c, c.type(1)); }

// Reinterprets the bits as another type. Those of real numbers can be read only if the elements are known.
void bit_cast(Call& c) {
    const auto type = static_cast<int>(c.integer("to", 0));
    const std::optional<DType> dtype = dtype_for_onnx(type);
    if (!dtype) c.reject("there is no type {} in Tapir", onnx_type_name(type));
    if (small_float_bits(type) || small_float_bits(c.type(0)))
        c.reject("bits of {} as {} are not supported", onnx_type_name(c.type(0)), onnx_type_name(type));
    if (!is_floating(*dtype) && !is_floating(c.dtype(0))) {
        const Tensor x = c.x(0).to(*dtype);  // modulo 2^bits
        return c.give(wrapped(x, type), type);
    }
    const Tensor x = c.known(0, "operand, whose bits are asked for,");
    if (itemsize(x.dtype()) != itemsize(*dtype) || is_widened(c.type(0)) || is_widened(type)) {
        c.reject("bits of {} as {} are not supported", onnx_type_name(c.type(0)), onnx_type_name(type));
    }
    Tensor y;
    {
        const OutsideTrace outside;
        const Tensor from = x.contiguous();
        y = empty(from.shape(), {*dtype, cpu});
        if (from.numel() > 0) std::memcpy(y.raw_data(), from.raw_data(), static_cast<std::size_t>(from.numel()) * itemsize(*dtype));
    }
    c.give(y, type);
}

// Crops, or pads with zeros, evenly at both ends; the odd element is at the end.
void center_crop_pad(Call& c) {
    const int rank = c.rank(0);
    const std::vector<int64_t> sizes = c.integers(1, "shape");
    std::vector<int64_t> axes = c.integers("axes");
    if (!c.given("axes")) {
        axes.resize(static_cast<std::size_t>(rank));
        std::iota(axes.begin(), axes.end(), 0);
    }
    if (axes.size() != sizes.size()) c.reject("it has {} sizes for {} dimensions", sizes.size(), axes.size());
    std::vector<int64_t> widths(static_cast<std::size_t>(2 * rank), 0);
    for (std::size_t i = 0; i < axes.size(); ++i) {
        const int d = c.axis(axes[i], rank);
        const int64_t have = c.shape(0).raw(d), more = sizes[i] - have;
        if (sizes[i] < 0) c.reject("it asks for a dimension of size {}", sizes[i]);
        const auto place = static_cast<std::size_t>(2 * (rank - 1 - d));
        widths[place] = more / 2;
        widths[place + 1] = more - more / 2;
    }
    c.give(pad(c.x(0), widths));
}

// save_onnx() writes "detach_7" for a stopped gradient.
const OpForm* stop_of(Call& c) {
    if (!c.interpreter().is_own()) return nullptr;
    const std::string& name = c.node().name();
    for (const GradientStop stop : {GradientStop::detached, GradientStop::custom_function, GradientStop::written}) {
        const OpForm& form = form_of(stop);
        if (name.starts_with(std::string(form.op) + "_")) return &form;
    }
    return nullptr;
}

void identity(Call& c) {
    const OnnxValuePtr value = c.value(0);
    const OpForm* stop = value->kind == OnnxValue::Kind::tensor && !value->is_constant() ? stop_of(c) : nullptr;
    if (!stop) return c.give(value);
    const Tensor x = c.x(0);
    const Tensor* operands[] = {&x};
    const Attributes none(*stop);
    Tensor y;
    stop->run({operands, 1, none.data()}, &y);
    c.give(y, c.type(0));
}

constexpr int64_t kMostBlock = 1 << 20;  // so that its square, times channels, does not overflow

void depth_to_space(Call& c) {
    const Tensor x = c.x(0);
    const int64_t block = c.integer("blocksize", 0);
    if (x.dim() != 4 || block < 1 || block > kMostBlock || x.size(1) % (block * block) != 0) c.reject("blocks of {} in a shape {}", block, x.shape());
    const int64_t n = x.size(0), depth = x.size(1) / (block * block), h = x.size(2), w = x.size(3);
    if (c.text("mode", "DCR") == "CRD") return c.give(pixel_shuffle(x, block));
    const Tensor blocks = permute(reshape(x, {n, block, block, depth, h, w}), {0, 3, 4, 1, 5, 2});
    c.give(reshape(blocks, {n, depth, h * block, w * block}));
}
void space_to_depth(Call& c) {
    const Tensor x = c.x(0);
    const int64_t block = c.integer("blocksize", 0);
    if (x.dim() != 4 || block < 1 || block > kMostBlock || x.size(2) % block != 0 || x.size(3) % block != 0)
        c.reject("blocks of {} in a shape {}", block, x.shape());
    const int64_t n = x.size(0), depth = x.size(1), h = x.size(2) / block, w = x.size(3) / block;
    if (c.text("mode", "DCR") == "CRD") return c.give(pixel_unshuffle(x, block));
    const Tensor blocks = permute(reshape(x, {n, depth, h, block, w, block}), {0, 3, 5, 1, 2, 4});
    c.give(reshape(blocks, {n, depth * block * block, h, w}));
}

void trilu(Call& c) {
    const int64_t k = c.has(1) ? c.integer(1, "k") : 0;
    const int64_t diagonal = std::clamp<int64_t>(k, -(int64_t{1} << 40), int64_t{1} << 40);
    c.give(c.flag("upper", true) ? triu(c.x(0), diagonal) : tril(c.x(0), diagonal));
}

constexpr OnnxOp kShapeOps[] = {
    {"Shape", 1, shape_op},
    {"Size", 1, size_op},
    {"Reshape", 1, reshape_op},
    {"Flatten", 1, flatten_op},
    {"Transpose", 1, transpose_op},
    {"Squeeze", 1, squeeze_op},
    {"Unsqueeze", 1, unsqueeze_op},
    {"Expand", 8, expand_op},
    {"Concat", 1, concat_op},
    {"Split", 1, split_op},
    {"Slice", 1, slice_op},
    {"Tile", 1, tile_op},
    {"Pad", 1, pad_op},
    {"Cast", 6, cast_op},
    {"CastLike", 15, cast_like},
    {"BitCast", 26, bit_cast},
    {"CenterCropPad", 18, center_crop_pad},
    {"Identity", 1, identity, OnnxOp::kOwn},
    {"DepthToSpace", 1, depth_to_space},
    {"SpaceToDepth", 1, space_to_depth},
    {"Trilu", 14, trilu},
};

}  // namespace

std::span<const OnnxOp> onnx_shape_ops() { return kShapeOps; }

}  // namespace tapir::detail
