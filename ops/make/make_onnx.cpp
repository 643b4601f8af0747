// Writes make.cpp, random.cpp, dropout.cpp and copy.cpp as ONNX.
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/onnx_form.h"
#include "tapir/ops/random/random.h"

namespace tapir {
namespace {

OnnxValue filled(const OnnxCall& x, Scalar value) { return x.filled(x.result_shape(), value, x.result_dtype()); }

// start + i * step
OnnxValue spaced(const OnnxCall& x, const OnnxValue& start, const OnnxValue& step) {
    return x.cast(x.range(x.result_shape()[0]), start.dtype()) * step + start;
}
OnnxValue range_of(const OnnxCall& x) {
    const DType dtype = x.result_dtype() == bool_ || x.result_dtype() == DType::uint8 ? DType::int64 : x.result_dtype();
    return spaced(x, x.number_as("start", dtype), x.number_as("step", dtype));
}
OnnxValue linspace_of(const OnnxCall& x) {
    const double start = x.real("start"), end = x.real("end");
    const DType dtype = x.result_dtype();
    const SymInt steps = x.size("steps");
    const OnnxValue gaps = x.node("Max", {x.size_as(steps + SymInt(-1), dtype), x.scalar(1, dtype)});
    return spaced(x, x.scalar(start, dtype), x.scalar(end - start, dtype) / gaps);
}

OnnxValue eye_of(const OnnxCall& x) {
    const auto& shape = x.result_shape();
    return x.cast(x.unsqueeze(x.range(shape[0]), {1}) == x.range(shape[1]), x.result_dtype());
}

OnnxValue number_of(const OnnxCall& x) {
    const double factor = x.real("factor");
    if (factor == 1 && !x.flag("is_reciprocal")) return x.size_as(x.size("value"), x.result_dtype());
    const OnnxValue value = x.size_as(x.size("value"), DType::float64);  // full() computes it in this way
    return x.cast(x.flag("is_reciprocal") ? factor / value : factor * value, x.result_dtype());
}

// Draws in the result's shape and dtype, by an operator that takes these from a tensor.
OnnxValue drawn(const OnnxCall& x, const char* op, const OnnxAttributes& attributes) {
    const DType dtype = is_floating(x.result_dtype()) ? x.result_dtype() : DType::float32;
    return x.node(op, {x.filled(x.result_shape(), 0, dtype)}, attributes);
}
OnnxValue uniform_of(const OnnxCall& x, double low, double high) { return drawn(x, "RandomUniformLike", {{"low", low}, {"high", high}}); }
OnnxValue integers_of(const OnnxCall& x) {
    const double low = static_cast<double>(x.integer("low")), high = static_cast<double>(x.integer("high"));
    const OnnxValue drawn_in = x.filled(x.result_shape(), 0, DType::float64);
    return floor(x.node("RandomUniformLike", {drawn_in}, {{"low", 0.0}, {"high", 1.0}}) * (high - low)) + low;
}
OnnxValue permutation_of(const OnnxCall& x) {
    const OnnxValue keys = x.node("RandomUniformLike", {x.filled(x.result_shape(), 0, DType::float32)});
    return x.nodes("TopK", {DType::float32, DType::int64}, {keys, x.size_1d(x.result_shape()[0])})[1];
}
OnnxValue bernoulli_of(const OnnxCall& x) {
    const OnnxValue p = x.count() > 0 ? x[0] : OnnxValue(x.real("p"));
    const DType dtype = x.count() > 0 && is_floating(x.dtype()) ? x.dtype() : DType::float32;
    const OnnxValue u = x.node("RandomUniformLike", {x.filled(x.result_shape(), 0, dtype)});
    return u < p;
}
OnnxValue multinomial_of(const OnnxCall& x) {
    const auto count = x.integer("num_samples");
    const int rank = x.rank();
    const OnnxValue weights = rank == 1 ? x.unsqueeze(x[0], {0}) : x[0];
    OnnxValue picked;
    if (x.flag("replacement")) {
        picked = x.node("Multinomial", DType::int64, {log(weights)}, {{"sample_size", count}, {"dtype", static_cast<std::int64_t>(DType::int64)}});
    } else {  // the largest of u^(1/w), after Efraimidis and Spirakis
        const OnnxValue keys = log(x.node("RandomUniformLike", {weights})) / weights;
        picked = x.nodes("TopK", {x.dtype(), DType::int64}, {keys, x.ints({count})})[1];
    }
    return rank == 1 ? x.squeeze(picked, {0}) : picked;
}

OnnxValues dropout_of(const OnnxCall& x) {
    const double p = x.real("p"), scale = p < 1 ? 1 / (1 - p) : 0;
    if (x.count() > 1) return {where(x[1], x[0] * scale, 0)};
    const OnnxValue mask = x.node("RandomUniformLike", {x.filled(x.result_shape(), 0, x.dtype())}) >= p;
    return {where(mask, x[0] * scale, 0), mask};
}

// Returns a side of the matrix whose indices are stored in the model.
std::int64_t indices_in(const OnnxCall& x, const char* side) {
    x.need_room({x.integer("rows"), x.integer("columns")});
    return x.integer(side);
}

OnnxValue overwritten(const OnnxCall& x) { return x.expand(x.as_result(1), x.result_shape()); }

}  // namespace

TAPIR_ONNX(empty, filled(x, 0));
TAPIR_ONNX(zeros, filled(x, 0));
TAPIR_ONNX(ones, filled(x, 1));
TAPIR_ONNX(full, x.expand(x.number_as("value", x.result_dtype()), x.result_shape()));
TAPIR_ONNX(empty_like, filled(x, 0));
TAPIR_ONNX(zeros_like, filled(x, 0));
TAPIR_ONNX(full_like, x.expand(x.number_as("value", x.result_dtype()), x.result_shape()));
TAPIR_ONNX(arange, range_of(x));
TAPIR_ONNX(linspace, linspace_of(x));
TAPIR_ONNX(logspace, pow(x.scalar(x.real("base"), x.result_dtype()), linspace_of(x)));
TAPIR_ONNX(tril_indices, x.constant(tril_indices(indices_in(x, "rows"), indices_in(x, "columns"), x.moderate("offset"), {x.result_dtype()})));
TAPIR_ONNX(triu_indices, x.constant(triu_indices(indices_in(x, "rows"), indices_in(x, "columns"), x.moderate("offset"), {x.result_dtype()})));
TAPIR_ONNX(eye, eye_of(x));
TAPIR_ONNX(number, number_of(x));

TAPIR_ONNX(rand, uniform_of(x, 0, 1));
TAPIR_ONNX(randn, drawn(x, "RandomNormalLike", {}));
TAPIR_ONNX(rand_like, uniform_of(x, 0, 1));
TAPIR_ONNX(randn_like, drawn(x, "RandomNormalLike", {}));
TAPIR_ONNX(randint, integers_of(x));
TAPIR_ONNX(randint_like, integers_of(x));
TAPIR_ONNX(randperm, permutation_of(x));
TAPIR_ONNX(bernoulli, bernoulli_of(x));
TAPIR_ONNX(multinomial, multinomial_of(x));
TAPIR_ONNX(uniform, uniform_of(x, x.real("low"), x.real("high")));
TAPIR_ONNX(normal, drawn(x, "RandomNormalLike", {}) * x.real("std") + x.real("mean"));
TAPIR_ONNX(bernoulli_fill, uniform_of(x, 0, 1) < x.real("p"));
TAPIR_ONNX(dropout, dropout_of(x));

TAPIR_ONNX(clone, x[0]);
TAPIR_ONNX(to_dtype, x.as_result(0));
TAPIR_ONNX(to_device, x[0]);
TAPIR_ONNX(copy, overwritten(x));
TAPIR_ONNX(fill, overwritten(x));

}  // namespace tapir
