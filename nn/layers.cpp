// Linear, Bilinear, PReLU, Embedding, EmbeddingBag, LayerNorm.
#include "tapir/nn/layers.h"

#include <cmath>

#include "tapir/autograd/meta_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/nn/init.h"
#include "tapir/nn/input_impl.h"
#include "tapir/nn/parameter_impl.h"
#include "tapir/ops/elementwise/activation.h"
#include "tapir/ops/index/embedding.h"
#include "tapir/ops/index/index_impl.h"
#include "tapir/ops/linear/matmul.h"
#include "tapir/ops/loss/loss.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/normalization/layer_norm.h"

namespace tapir::nn {

void fail_not_floating(const char* layer, const In& x) {
    const DType dtype = x.tensor.dtype();
    fail<DTypeError>(x.loc, "{}: the input must be floating, got {} {}; {}", layer, name(dtype), x.tensor.shape(),
                     dtype == uint8       ? "images of bytes become so by x.to(float32) / 255"
                         : dtype == bool_ ? "x.to(float32) makes it so"
                                          : "x.to(float32) makes it so, and nn::Embedding takes indices");
}

Linear::Linear(std::int64_t in_features, std::int64_t out_features, LinearOptions options, Loc loc) {
    const CallerScope caller(loc);
    const double bound = in_features > 0 ? 1 / std::sqrt(static_cast<double>(in_features)) : 0;
    weight = uniform_parameter({out_features, in_features}, bound, loc);
    if (options.bias) bias = uniform_parameter({out_features}, bound, loc);
}

Tensor Linear::forward(In x) const {
    const ModuleScope scope(*this);
    check_floating("Linear", x);
    return linear(x, In(weight, x.loc), bias);
}

void Linear::members(Members& m) { m("weight", weight)("bias", bias); }

std::string Linear::describe() const { return fmt::format("{}, {}{}", weight.shape()[1], weight.shape()[0], bias.defined() ? "" : ", no bias"); }

Bilinear::Bilinear(std::int64_t in1_features, std::int64_t in2_features, std::int64_t out_features, LinearOptions options, Loc loc) {
    const CallerScope caller(loc);
    if (in1_features < 1) fail<ValueError>(loc, "Bilinear: in1_features must be at least 1, got {}", in1_features);
    const double bound = 1 / std::sqrt(static_cast<double>(in1_features));
    weight = uniform_parameter({out_features, in1_features, in2_features}, bound, loc);
    if (options.bias) bias = uniform_parameter({out_features}, bound, loc);
}

Tensor Bilinear::forward(In a, In b) const {
    const ModuleScope scope(*this);
    check_floating("Bilinear", a);
    check_floating("Bilinear", b);
    return bilinear(a, b, In(weight, a.loc), bias);
}

void Bilinear::members(Members& m) { m("weight", weight)("bias", bias); }

std::string Bilinear::describe() const {
    const Shape shape = weight.shape();
    return fmt::format("{}, {}, {}{}", shape[1], shape[2], shape[0], bias.defined() ? "" : ", no bias");
}

PReLU::PReLU(std::int64_t num_parameters, double init, Loc loc) {
    const CallerScope caller(loc);
    if (!std::isfinite(init)) fail<ValueError>(loc, "PReLU: init must be finite, got {}", init);
    weight = init::constant_(empty_parameter({num_parameters}, loc), init, loc);
}

Tensor PReLU::forward(In x) const {
    const ModuleScope scope(*this);
    check_floating("PReLU", x);
    return prelu(x, In(weight, x.loc));
}

void PReLU::members(Members& m) { m("weight", weight); }

std::string PReLU::describe() const { return fmt::format("{}", weight.numel()); }

Embedding::Embedding(std::int64_t count, std::int64_t width, EmbeddingOptions options, Loc loc) {
    const CallerScope caller(loc);
    if (options.padding_idx) options.padding_idx = tapir::detail::padding_row("Embedding", *options.padding_idx, count, loc);
    weight = empty_parameter({count, width}, loc);
    init::normal_(weight, 0, 1, loc);
    if (options.padding_idx) init::zeros_(weight.detach().select(0, *options.padding_idx), loc);
    tapir::detail::meta_of(weight).sparse = options.sparse;
    options_ = options;
}

Embedding Embedding::from_pretrained(const Tensor& table, bool freeze, EmbeddingOptions options, Loc loc) {
    const CallerScope caller(loc);
    if (!table.defined() || table.dim() != 2 || !is_floating(table.dtype())) {
        fail<ShapeError>(loc, "Embedding: a table must be a matrix of floating numbers, got {}",
                         table.defined() ? table.shape().str() + " " + name(table.dtype()) : "an undefined tensor");
    }
    if (options.padding_idx) options.padding_idx = tapir::detail::padding_row("Embedding", *options.padding_idx, table.shape()[0], loc);
    Embedding made;
    made.options_ = options;
    made.weight = table.detach();
    made.weight.requires_grad_(!freeze, loc);
    tapir::detail::meta_of(made.weight).sparse = options.sparse;
    return made;
}

Tensor Embedding::forward(In indices) const {
    const ModuleScope scope(*this);
    return embedding(indices, In(weight, indices.loc), options_.padding_idx);
}

void Embedding::members(Members& m) { m("weight", weight); }

std::string Embedding::describe() const {
    std::string text = fmt::format("{}, {}", weight.shape()[0], weight.shape()[1]);
    if (options_.padding_idx) text += fmt::format(", padding_idx {}", *options_.padding_idx);
    if (!options_.sparse) text += ", dense";
    return text;
}

EmbeddingBag::EmbeddingBag(std::int64_t count, std::int64_t width, EmbeddingBagLayerOptions options, Loc loc) {
    const CallerScope caller(loc);
    if (options.padding_idx) options.padding_idx = tapir::detail::padding_row("EmbeddingBag", *options.padding_idx, count, loc);
    weight = empty_parameter({count, width}, loc);
    init::normal_(weight, 0, 1, loc);
    if (options.padding_idx) init::zeros_(weight.detach().select(0, *options.padding_idx), loc);
    tapir::detail::meta_of(weight).sparse = options.sparse;
    options_ = options;
}

Tensor EmbeddingBag::forward(In indices, const Tensor& offsets, const Tensor& per_sample_weights) const {
    const ModuleScope scope(*this);
    return embedding_bag(indices, In(weight, indices.loc), offsets,
                         {options_.mode, per_sample_weights, options_.include_last_offset, options_.padding_idx});
}

void EmbeddingBag::members(Members& m) { m("weight", weight); }

std::string EmbeddingBag::describe() const {
    constexpr const char* modes[] = {"sum", "mean", "max"};
    std::string text = fmt::format("{}, {}, {}", weight.shape()[0], weight.shape()[1], modes[static_cast<int>(options_.mode)]);
    if (options_.padding_idx) text += fmt::format(", padding_idx {}", *options_.padding_idx);
    if (!options_.sparse) text += ", dense";
    return text;
}

LayerNorm::LayerNorm(const Shape& normalized_shape, LayerNormOptions options, Loc loc) : shape_(normalized_shape), options_(options) {
    const CallerScope caller(loc);
    if (normalized_shape.empty()) fail<ShapeError>(loc, "LayerNorm: needs at least one dimension to normalise over");
    check_eps("LayerNorm", options.eps, loc);
    if (!options.affine) return;
    weight = empty_parameter(normalized_shape, loc);
    init::ones_(weight, loc);
    if (!options.bias) return;
    bias = empty_parameter(normalized_shape, loc);
    init::zeros_(bias, loc);
}

Tensor LayerNorm::forward(In x) const {
    const ModuleScope scope(*this);
    return layer_norm(x, shape_, weight, bias, options_.eps);
}

void LayerNorm::members(Members& m) { m("weight", weight)("bias", bias); }

std::string LayerNorm::describe() const { return fmt::format("{}, eps {}", shape_, options_.eps); }

}  // namespace tapir::nn
