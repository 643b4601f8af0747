// ONNX's quantised ops: 8-bit integers that stand for real numbers, computed as these.
#include "tapir/autograd/trace/onnx/import_impl.h"
#include "tapir/autograd/trace/onnx/window_impl.h"
#include "tapir/ops/arrange/arrange.h"
#include "tapir/ops/arrange/combine.h"
#include "tapir/ops/convolution/convolution.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/linear/matmul.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/view/view.h"

namespace tapir::detail {
namespace {

using Call = OnnxCall;
using std::int64_t;

// Reshapes (size of a dimension,) so that it broadcasts along that dimension.
Tensor along(const Tensor& values, int axis, int rank) {
    if (values.dim() == 0 || values.numel() == 1) return reshape(values, {});
    Shape shape;
    for (int d = 0; d < rank; ++d) shape.push_back(d == axis ? values.numel() : 1);
    return reshape(values, shape);
}

// Spreads scales or zero points: one for each element of x's dimension, or, with x's rank, one for each block.
Tensor spread(Call& c, const Tensor& values, const Tensor& x, int axis) {
    const int64_t block = c.integer("block_size", 0);
    if (block == 0) {
        if (values.dim() > 1 && values.numel() != 1) c.reject("its scale has {} dimensions, and there is no block_size", values.dim());
        return along(values, axis, x.dim());
    }
    if (block < 0 || values.dim() != x.dim()) c.reject("blocks of {} with a scale of shape {}", block, values.shape());
    const Tensor each = repeat_interleave(values, block, axis);
    if (each.size(axis) < x.size(axis)) c.reject("blocks of {} with a scale of shape {} do not cover shape {}", block, values.shape(), x.shape());
    return narrow(each, axis, 0, x.size(axis));
}

struct Range {
    double low, high;
};
Range range_of(Call& c, int type) {
    const auto range = range_for_onnx(type);
    if (!range || range->second > 65535) c.reject("quantised numbers of type {} are not supported", onnx_type_name(type));
    return {static_cast<double>(range->first), static_cast<double>(range->second)};
}

Tensor quantized(Call& c, const Tensor& x, const Tensor& scale, const Tensor& zero, int type) {
    if (small_float_bits(type)) {
        const Tensor y = x / scale;
        return small_float(zero.defined() ? y + zero.to(y.dtype()) : y, type, c.flag("saturate", true));
    }
    const Range range = range_of(c, type);
    Tensor y = round(x / scale);
    if (zero.defined()) y = y + zero.to(y.dtype());
    return clamp(y, range.low, range.high).to(*dtype_for_onnx(type));
}

void quantize(Call& c) {
    const Tensor x = c.x(0);
    const int axis = x.dim() == 0 ? 0 : c.rank(1) == 0 ? 0 : c.axis("axis", 1, x.dim());
    const auto wanted = static_cast<int>(c.integer("output_dtype", 0));
    const int type = c.has(2) ? c.type(2) : wanted != 0 ? wanted : onnx::TensorProto::UINT8;
    if (wanted != 0 && wanted != type) c.reject("its output_dtype is {}, its zero point {}", onnx_type_name(wanted), onnx_type_name(type));
    const Tensor zero = c.has(2) ? spread(c, c.x(2), x, axis) : Tensor();
    Tensor scale = spread(c, c.x(1), x, axis);
    const auto precision = static_cast<int>(c.integer("precision", 0));  // the precision of the division
    const std::optional<DType> dtype = precision == 0 ? x.dtype() : dtype_for_onnx(precision);
    if (!dtype || (precision != 0 && !is_floating(*dtype))) c.reject("its precision is {}", onnx_type_name(precision));
    const bool is_asked = precision != 0 && *dtype != x.dtype();
    c.give(quantized(c, is_asked ? x.to(*dtype) : x, precision == 0 ? scale : scale.to(*dtype), zero, type), type);
}

void dequantize(Call& c) {
    const Tensor x = c.x(0), scale = c.x(1);
    const int axis = scale.dim() == 0 ? 0 : c.axis("axis", 1, x.dim());
    Tensor y = x.to(scale.dtype());
    if (c.has(2)) y = y - spread(c, c.x(2), x, axis).to(scale.dtype());
    const auto wanted = static_cast<int>(c.integer("output_dtype", 0));
    const std::optional<DType> dtype = wanted == 0 ? scale.dtype() : dtype_for_onnx(wanted);
    if (!dtype || !is_floating(*dtype)) c.reject("its output_dtype is {}", onnx_type_name(wanted));
    c.give((y * spread(c, scale, x, axis)).to(*dtype), onnx_type(*dtype));
}

void dynamic_quantize(Call& c) {
    const Tensor x = c.x(0);
    const Tensor low = clamp_max(amin(x), 0), high = clamp_min(amax(x), 0);
    const Tensor scale = (high - low) / 255;
    const Tensor zero = round(clamp(-low / scale, 0, 255));
    c.give(clamp(round(x / scale) + zero, 0, 255).to(uint8));
    c.give(scale);
    c.give(zero.to(uint8));
}

// Integers minus their zero point, as float64, in which their products are exact.
Tensor centred(Call& c, int operand, int zero, int axis_of_zero) {
    const Tensor x = c.x(operand).to(float64);
    return c.has(zero) ? x - along(c.x(zero), axis_of_zero, x.dim()).to(float64) : x;
}

Tensor convolved(Call& c, Tensor x, const Tensor& w) {
    const Shape shape = w.shape();
    OnnxWindow window = onnx_window(c, x.shape(), {shape.begin() + 2, shape.end()});
    x = pad(x, window.widths());
    ConvOptions options;
    options.stride = window.stride;
    options.dilation = window.dilation;
    options.groups = c.integer("group", 1);
    return window.dims == 1 ? conv1d(x, w, {}, options) : window.dims == 2 ? conv2d(x, w, {}, options) : conv3d(x, w, {}, options);
}

// Zero points: a single one, one for each row of a, or one for each column of b.
void matmul_integer(Call& c) {
    const int a_rank = c.rank(0), b_rank = c.rank(1);
    c.give(matmul(centred(c, 0, 2, a_rank - 2), centred(c, 1, 3, b_rank - 1)).to(int32), onnx::TensorProto::INT32);
}
void conv_integer(Call& c) { c.give(convolved(c, centred(c, 0, 2, 1), centred(c, 1, 3, 0)).to(int32), onnx::TensorProto::INT32); }

Tensor requantized(Call& c, const Tensor& sums, const Tensor& scale_in, int scale_out, int zero_out) {
    const Tensor real = sums * scale_in.to(float64) / along(c.x(scale_out), 0, 1).to(float64);
    const Range range = range_of(c, c.type(zero_out));
    return clamp(round(real) + along(c.x(zero_out), 0, 1).to(float64), range.low, range.high).to(c.dtype(zero_out));
}
void linear_matmul(Call& c) {
    const int a_rank = c.rank(0), b_rank = c.rank(3);
    const Tensor scale = along(c.x(1), a_rank - 2, a_rank) * along(c.x(4), b_rank - 1, b_rank);
    c.give(requantized(c, matmul(centred(c, 0, 2, a_rank - 2), centred(c, 3, 5, b_rank - 1)), scale, 6, 7), c.type(7));
}
void linear_conv(Call& c) {
    const int rank = c.rank(0);
    Tensor sums = convolved(c, centred(c, 0, 2, 1), centred(c, 3, 5, 0));
    if (c.has(8)) sums = sums + along(c.x(8), 1, rank).to(float64);
    c.give(requantized(c, sums, along(c.x(1), 1, rank) * along(c.x(4), 1, rank), 6, 7), c.type(7));
}

constexpr OnnxOp kQuantizeOps[] = {
    {"QuantizeLinear", 10, quantize},      {"DequantizeLinear", 10, dequantize}, {"DynamicQuantizeLinear", 11, dynamic_quantize},
    {"MatMulInteger", 10, matmul_integer}, {"ConvInteger", 10, conv_integer},    {"QLinearMatMul", 10, linear_matmul},
    {"QLinearConv", 10, linear_conv},
};

}  // namespace

std::span<const OnnxOp> onnx_quantize_ops() { return kQuantizeOps; }

}  // namespace tapir::detail
