// ONNX ops that create tensors: constants, ranges, random numbers.
#include <cmath>

#include "tapir/autograd/trace/onnx/import_impl.h"
#include "tapir/autograd/trace/outside_trace_impl.h"
#include "tapir/ops/arrange/combine.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/random/dropout.h"
#include "tapir/ops/random/random.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/scan/scan.h"
#include "tapir/ops/view/view.h"

namespace tapir::detail {
namespace {

using Call = OnnxCall;
using std::int64_t;

void constant_op(Call& c) {
    if (c.given("value")) return c.give(c.constant("value"), c.attribute("value")->t().data_type());
    if (c.given("value_float")) return c.give(full({}, c.real("value_float", 0), float32));
    if (c.given("value_int")) return c.give(full({}, c.integer("value_int", 0), int64));
    if (c.given("value_floats")) return c.give(tensor(c.reals("value_floats"), float32));
    if (c.given("value_ints")) return c.give(tensor(c.integers("value_ints"), int64));
    c.reject("it is a sparse tensor or strings, which are not supported");
}

// Fills a tensor in a way that a graph can hold, also if the shape has named dimensions.
Tensor filled(const Shape& shape, const Tensor& value) {
    double number;
    int64_t integer = 0;
    {
        const OutsideTrace outside;
        number = value.to_vector<double>().at(0);
        if (!is_floating(value.dtype())) integer = value.to_vector<int64_t>().at(0);
    }
    if (is_floating(value.dtype())) return full(shape, number, value.dtype());
    if (value.dtype() == bool_) return full(shape, number != 0, bool_);
    return full(shape, integer, value.dtype());
}

void constant_of_shape(Call& c) {
    const Shape shape = c.integers(0, "shape");
    if (!c.given("value")) return c.give(zeros(shape, float32));
    const Tensor value = c.constant("value");
    if (value.numel() != 1) c.reject("its value has {} elements", value.numel());
    c.give(filled(shape, value), c.attribute("value")->t().data_type());
}

// A range of whole numbers whose length depends on data.
void range_of_data(Call& c) {
    const int64_t step = c.integer(2, "delta");
    if (step == 0) c.reject("its delta is 0");
    const Tensor start = reshape(c.x(0), {1}).to(int64), limit = reshape(c.x(1), {1}).to(int64), length = limit - start;
    const Tensor count = step == 1 ? length : floor_divide(length + (step > 0 ? step - 1 : step + 1), step);
    const Tensor each = cumsum(repeat_interleave(full({1}, 1, int64), maximum(count, 0)), 0) - 1;
    c.mark_sized_by_data();
    c.give(((step == 1 ? each : each * step) + start).to(c.dtype(0)), c.type(0));
}

void range(Call& c) {
    const DType dtype = c.dtype(0);
    if (!is_floating(dtype) && c.is_known(2) && !(c.is_known(0) && c.is_known(1))) return range_of_data(c);
    const double start = c.real(0, "start"), limit = c.real(1, "limit"), step = c.real(2, "delta");
    if (step == 0) c.reject("its delta is 0");
    const double count = std::ceil((limit - start) / step);
    if (!(count > 0)) return c.give(zeros({0}, dtype), c.type(0));
    if (is_floating(dtype)) return c.give(arange(static_cast<int64_t>(count), int64).to(dtype) * step + start, c.type(0));
    c.give(arange(c.integer(0, "start"), c.integer(1, "limit"), c.integer(2, "delta"), dtype), c.type(0));
}

DType dtype_given(Call& c, DType otherwise) {
    if (!c.given("dtype")) return otherwise;
    const auto type = static_cast<int>(c.integer("dtype", 0));
    const std::optional<DType> dtype = dtype_for_onnx(type);
    if (!dtype) c.reject("there is no type {} in Tapir", onnx_type_name(type));
    return *dtype;
}

void eye_like(Call& c) {
    const Shape shape = c.shape(0);
    if (shape.rank() != 2) c.reject("its operand has shape {}", shape);
    const int64_t k = c.integer("k", 0);
    const Tensor row = reshape(arange(shape.raw(0), int64), {-1, 1}) + k, column = reshape(arange(shape.raw(1), int64), {1, -1});
    const int type = static_cast<int>(c.integer("dtype", c.type(0)));
    c.give(eq(row, column).to(dtype_given(c, c.dtype(0))), type);
}

Shape shape_given(Call& c) { return c.integers("shape"); }
Tensor uniform(Call& c, const Shape& shape, DType dtype) {
    const double low = c.real("low", 0), high = c.real("high", 1);
    return rand(shape, dtype) * (high - low) + low;
}
Tensor normal(Call& c, const Shape& shape, DType dtype) { return randn(shape, dtype) * c.real("scale", 1) + c.real("mean", 0); }
DType floating(DType dtype) { return is_floating(dtype) ? dtype : float32; }
void random_uniform(Call& c) { c.give(uniform(c, shape_given(c), dtype_given(c, float32))); }
void random_normal(Call& c) { c.give(normal(c, shape_given(c), dtype_given(c, float32))); }
void random_uniform_like(Call& c) { c.give(uniform(c, c.shape(0), floating(dtype_given(c, c.dtype(0))))); }
void random_normal_like(Call& c) { c.give(normal(c, c.shape(0), floating(dtype_given(c, c.dtype(0))))); }
void bernoulli_op(Call& c) {
    const Tensor p = c.x(0);
    c.give(bernoulli(p).to(dtype_given(c, p.dtype())));
}
void multinomial_op(Call& c) { c.give(multinomial(exp(c.x(0)), c.integer("sample_size", 1), true).to(dtype_given(c, int32))); }

// The ratio is an attribute before opset 12. Since opset 7, inference never drops.
void dropout_op(Call& c) {
    const Tensor x = c.x(0);
    const double ratio = c.opset() < 12 ? c.real("ratio", 0.5) : c.has(1) ? c.real(1, "ratio") : 0.5;
    const bool training = c.opset() >= 12 ? c.has(2) && c.integer(2, "training_mode") != 0 : c.opset() < 7 && !c.flag("is_test", false);
    if (!training || ratio == 0) {
        c.give(x.clone());
        if (c.wants(1)) c.give(ones(x.shape(), bool_));
        return;
    }
    if (!c.wants(1)) return c.give(dropout(x, ratio, true));
    const Tensor kept = ge(rand(x.shape(), floating(x.dtype())), ratio);
    c.give(where(kept, x, 0) * (1 / (1 - ratio)));
    c.give(kept);
}

constexpr OnnxOp kMakeOps[] = {
    {"Constant", 1, constant_op},
    {"ConstantOfShape", 9, constant_of_shape},
    {"Range", 11, range},
    {"EyeLike", 9, eye_like},
    {"RandomUniform", 1, random_uniform, OnnxOp::kImpure},
    {"RandomNormal", 1, random_normal, OnnxOp::kImpure},
    {"RandomUniformLike", 1, random_uniform_like, OnnxOp::kImpure},
    {"RandomNormalLike", 1, random_normal_like, OnnxOp::kImpure},
    {"Bernoulli", 15, bernoulli_op, OnnxOp::kImpure},
    {"Multinomial", 7, multinomial_op, OnnxOp::kImpure},
    {"Dropout", 1, dropout_op, OnnxOp::kImpure},
};

}  // namespace

std::span<const OnnxOp> onnx_make_ops() { return kMakeOps; }

}  // namespace tapir::detail
