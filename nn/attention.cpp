// Attention and transformer layers.
#include "tapir/nn/attention.h"

#include <limits>

#include "tapir/core/fail_impl.h"
#include "tapir/nn/init.h"
#include "tapir/nn/input_impl.h"
#include "tapir/nn/parameter_impl.h"
#include "tapir/ops/arrange/arrange.h"
#include "tapir/ops/attention/attention_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/linear/matmul.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/random/dropout.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/view/view.h"

namespace tapir::nn {
namespace {

using std::int64_t;

Tensor xavier(const Shape& shape, const Loc& loc) { return init::xavier_uniform_(empty_parameter(shape, loc), 1, loc); }

// Returns block `i` of three, of the weight or the bias.
Tensor third(const Tensor& t, int64_t i, int64_t size) { return t.defined() ? narrow(t, 0, i * size, size) : t; }

// Converts a mask of an attention module to floats to be added, or to bools that are true where attention is allowed.
Tensor allowed(const Tensor& mask) { return mask.dtype() == bool_ ? logical_not(mask) : mask; }

// Combines two masks of bools or floats, so that both apply.
Tensor both(const Tensor& a, const Tensor& b) {
    if (!a.defined() || !b.defined()) return a.defined() ? a : b;
    if (a.dtype() == bool_ && b.dtype() == bool_) return logical_and(a, b);
    const auto added = [](const Tensor& m, const Tensor& other) {  // converts to floats that are added to scores
        if (m.dtype() != bool_) return m;
        return where(m, zeros({}, {other.dtype(), m.device()}), full({}, -std::numeric_limits<double>::infinity(), {other.dtype(), m.device()}));
    };
    return added(a, b) + added(b, a);
}

Tensor activated(const In& x, TransformerActivation activation) { return activation == TransformerActivation::relu ? relu(x) : gelu(x); }

}  // namespace

MultiheadAttention::MultiheadAttention(int64_t embed_dim, int64_t num_heads, const MultiheadAttentionOptions& options, Loc loc)
    : out_proj(embed_dim, embed_dim, options.bias, loc), heads_(num_heads), options_(options) {
    const CallerScope caller(loc);
    if (num_heads < 1 || embed_dim < 1 || embed_dim % num_heads != 0) {
        fail<ValueError>(loc, "MultiheadAttention: {} heads do not divide embed_dim {}", num_heads, embed_dim);
    }
    if (!(options.dropout >= 0 && options.dropout <= 1)) {
        fail<ValueError>(loc, "MultiheadAttention: dropout must be in [0, 1], got {}", options.dropout);
    }
    if (options_.kdim == 0) options_.kdim = embed_dim;
    if (options_.vdim == 0) options_.vdim = embed_dim;
    if (options_.kdim == embed_dim && options_.vdim == embed_dim) {
        in_proj_weight = xavier({3 * embed_dim, embed_dim}, loc);
    } else {
        q_proj_weight = xavier({embed_dim, embed_dim}, loc);
        k_proj_weight = xavier({embed_dim, options_.kdim}, loc);
        v_proj_weight = xavier({embed_dim, options_.vdim}, loc);
    }
    if (!options.bias) return;
    in_proj_bias = init::zeros_(empty_parameter({3 * embed_dim}, loc), loc);
    init::zeros_(out_proj.bias, loc);
}

void MultiheadAttention::members(Members& m) {
    m("in_proj_weight", in_proj_weight)("q_proj_weight", q_proj_weight)("k_proj_weight", k_proj_weight);
    m("v_proj_weight", v_proj_weight)("in_proj_bias", in_proj_bias)("out_proj", out_proj);
}

std::string MultiheadAttention::describe() const {
    return fmt::format("{}, heads {}{}{}", out_proj.weight.shape()[0], heads_, options_.batch_first ? ", batch first" : "",
                       options_.dropout > 0 ? fmt::format(", dropout {}", options_.dropout) : "");
}

AttentionResult MultiheadAttention::forward(In query, const Tensor& key, const Tensor& value, const AttentionMasks& masks) const {
    const ModuleScope scope(*this);
    const char* const op = "MultiheadAttention";
    const Loc& loc = query.loc;
    for (const In& x : {query, In(key, loc), In(value, loc)}) tapir::detail::check_defined(x, op);
    if (tapir::detail::thread.caller.line() == 0) {  // not within a transformer, whose caller sees no weights
        tapir::detail::thread.left_out = masks.need_weights ? nullptr : "the weights of MultiheadAttention ({.need_weights = true})";
        tapir::detail::thread.left_out_at = loc;
    }
    if (!masks.average_attn_weights && !masks.need_weights) {
        fail<ValueError>(loc,
                         "{}: .average_attn_weights = false asks for the weights of each head, but .need_weights is false, as it is "
                         "unless given: then there are no weights",
                         op);
    }
    const int64_t embed = out_proj.weight.shape()[0], head = embed / heads_;
    const int rank = query.tensor.dim();
    const auto wrong = [&] {
        const bool lack_time = query.tensor.shape() == Shape{embed} && key.shape() == Shape{options_.kdim} && value.shape() == Shape{options_.vdim};
        fail<ShapeError>(loc, "{}: query {}, key {} and value {} do not fit: they need to be ({}) with {}, {} and {} features{}", op,
                         query.tensor.shape(), key.shape(), value.shape(), options_.batch_first ? "batch, time, features" : "time, batch, features",
                         embed, options_.kdim, options_.vdim, tapir::detail::missing_hint(lack_time, "time's"));
    };
    if ((rank != 2 && rank != 3) || key.dim() != rank || value.dim() != rank) wrong();
    if (query.tensor.shape().back() != embed || key.shape().back() != options_.kdim || value.shape().back() != options_.vdim) wrong();
    const int batch_dim = rank == 2 ? -1 : options_.batch_first ? 0 : 1, time_dim = rank == 3 && options_.batch_first ? 1 : 0;
    for (const Tensor* t : {&key, &value}) {
        if (batch_dim >= 0 && t->shape()[batch_dim] != query.tensor.shape()[batch_dim]) wrong();
    }
    if (key.shape()[time_dim] != value.shape()[time_dim]) wrong();
    const int64_t batch = batch_dim >= 0 ? query.tensor.shape()[batch_dim] : 1;
    const int64_t queries = query.tensor.shape()[time_dim], keys = key.shape()[time_dim];
    const auto check_mask = [&](const char* called, const Tensor& mask) {
        if (!mask.defined() || mask.dtype() == bool_ || is_floating(mask.dtype())) return;
        fail<DTypeError>(loc, "{}: {} must hold bools (true: not looked at) or floats, not {}: convert it with mask.to(bool_)", op, called,
                         name(mask.dtype()));
    };
    check_mask("attn_mask", masks.attn_mask);
    check_mask("key_padding_mask", masks.key_padding_mask);
    const CallerScope caller(loc);

    // View (time, batch, ...) or (batch, time, ...) as (batch, heads, time, head).
    const auto in_heads = [&](const Tensor& t) {
        const bool batch_first = options_.batch_first && rank == 3;
        const int64_t time = t.numel() / std::max<int64_t>(batch * embed, 1);
        const Shape shape = batch_first ? Shape{batch, time, heads_, head} : Shape{time, batch, heads_, head};
        return permute(reshape(t, shape), batch_first ? Dims{0, 2, 1, 3} : Dims{1, 2, 0, 3});
    };
    Tensor q, k, v;
    const bool same_source = query.tensor.is_same(key) && key.is_same(value) && in_proj_weight.defined();
    if (same_source) {
        const Tensor projected = linear(query, in_proj_weight, in_proj_bias);
        const std::vector<Tensor> three = chunk(projected, 3, -1);
        q = three[0], k = three[1], v = three[2];
    } else {
        const auto weight = [&](const Tensor& own, int64_t i) { return own.defined() ? own : third(in_proj_weight, i, embed); };
        q = linear(query, weight(q_proj_weight, 0), third(in_proj_bias, 0, embed));
        k = linear(key, weight(k_proj_weight, 1), third(in_proj_bias, 1, embed));
        v = linear(value, weight(v_proj_weight, 2), third(in_proj_bias, 2, embed));
    }
    q = in_heads(q), k = in_heads(k), v = in_heads(v);

    Tensor mask;
    if (masks.attn_mask.defined()) {
        mask = allowed(masks.attn_mask);
        if (mask.dim() == 3 && mask.shape()[0] == batch * heads_) mask = reshape(mask, {batch, heads_, mask.shape()[1], mask.shape()[2]});
        if (mask.shape() != Shape{queries, keys} && mask.shape() != Shape{batch, heads_, queries, keys}) {
            fail<ShapeError>(loc, "{}: attn_mask has shape {}, expected {} or {}", op, masks.attn_mask.shape(), Shape{queries, keys},
                             Shape{batch * heads_, queries, keys});
        }
    }
    if (const Tensor& padding = masks.key_padding_mask; padding.defined()) {
        if (padding.shape() != (rank == 2 ? Shape{keys} : Shape{batch, keys})) {
            fail<ShapeError>(loc, "{}: key_padding_mask has shape {}, expected {}", op, padding.shape(),
                             rank == 2 ? Shape{keys} : Shape{batch, keys});
        }
        mask = both(mask, reshape(allowed(padding), {batch, 1, 1, keys}));
    }
    const double dropout_p = is_training() ? options_.dropout : 0;
    AttentionResult result;
    Tensor mixed;
    if (masks.need_weights) {
        const Tensor weights = attention_weights(q, k, mask, dropout_p, masks.is_causal);
        mixed = matmul(weights, v);
        result.weights = masks.average_attn_weights ? mean(weights, {1}) : weights;
        if (rank == 2) result.weights = squeeze(result.weights, 0);
    } else {
        mixed = scaled_dot_product_attention(q, k, v, mask, dropout_p, masks.is_causal);
    }
    const bool batch_first = options_.batch_first && rank == 3;
    Shape shape = query.tensor.shape();
    shape[shape.rank() - 1] = embed;
    result.output = linear(reshape(permute(mixed, batch_first ? Dims{0, 2, 1, 3} : Dims{2, 0, 1, 3}), shape), out_proj.weight, out_proj.bias);
    return result;
}

// --- Transformer layers ------------------------------------------------------------------------------------------------------

namespace {

MultiheadAttention attention_of(int64_t d_model, int64_t nhead, const TransformerOptions& options, const Loc& loc) {
    return {d_model, nhead, {.dropout = options.dropout, .bias = options.bias, .batch_first = options.batch_first}, loc};
}

LayerNorm norm_of(int64_t d_model, const TransformerOptions& options, const Loc& loc) {
    return LayerNorm({d_model}, {.eps = options.layer_norm_eps, .bias = options.bias}, loc);
}

}  // namespace

TransformerLayer::TransformerLayer(int64_t d_model, int64_t nhead, const TransformerOptions& options, const Loc& loc)
    : self_attn(attention_of(d_model, nhead, options, loc)), linear1(d_model, options.dim_feedforward, options.bias, loc),
      linear2(options.dim_feedforward, d_model, options.bias, loc), norm1(norm_of(d_model, options, loc)), norm2(norm_of(d_model, options, loc)),
      options_(options) {}

Tensor TransformerLayer::drop(const Tensor& x) const { return dropout(x, options_.dropout, is_training()); }

Tensor TransformerLayer::attend(const Tensor& x, const TransformerMasks& masks) const {
    const AttentionMasks own{.key_padding_mask = masks.key_padding_mask, .attn_mask = masks.mask, .is_causal = masks.is_causal};
    return drop(self_attn(x, x, x, own).output);
}

Tensor TransformerLayer::feed(const Tensor& x) const { return drop(linear2(drop(activated(linear1(x), options_.activation)))); }

TransformerEncoderLayer::TransformerEncoderLayer(int64_t d_model, int64_t nhead, const TransformerOptions& options, Loc loc)
    : TransformerLayer(d_model, nhead, options, loc) {}

Tensor TransformerEncoderLayer::forward(In in, const TransformerMasks& masks) const {
    const ModuleScope scope(*this);
    tapir::detail::check_defined(in, "TransformerEncoderLayer");
    const CallerScope caller(in.loc);
    Tensor x = in.tensor;
    if (options_.norm_first) {
        x = x + attend(norm1(x), masks);
        return x + feed(norm2(x));
    }
    x = norm1(x + attend(x, masks));
    return norm2(x + feed(x));
}

void TransformerEncoderLayer::members(Members& m) {
    m("self_attn", self_attn)("linear1", linear1)("linear2", linear2)("norm1", norm1)("norm2", norm2);
}

TransformerDecoderLayer::TransformerDecoderLayer(int64_t d_model, int64_t nhead, const TransformerOptions& options, Loc loc)
    : TransformerLayer(d_model, nhead, options, loc), multihead_attn(attention_of(d_model, nhead, options, loc)),
      norm3(norm_of(d_model, options, loc)) {}

Tensor TransformerDecoderLayer::look(const Tensor& x, const Tensor& memory, const TransformerMasks& masks) const {
    const AttentionMasks others{.key_padding_mask = masks.memory_key_padding_mask, .attn_mask = masks.memory_mask};
    return drop(multihead_attn(x, memory, memory, others).output);
}

Tensor TransformerDecoderLayer::forward(In in, const Tensor& memory, const TransformerMasks& masks) const {
    const ModuleScope scope(*this);
    tapir::detail::check_defined(in, "TransformerDecoderLayer");
    const CallerScope caller(in.loc);
    Tensor x = in.tensor;
    if (options_.norm_first) {
        x = x + attend(norm1(x), masks);
        x = x + look(norm2(x), memory, masks);
        return x + feed(norm3(x));
    }
    x = norm1(x + attend(x, masks));
    x = norm2(x + look(x, memory, masks));
    return norm3(x + feed(x));
}

void TransformerDecoderLayer::members(Members& m) {
    m("self_attn", self_attn)("multihead_attn", multihead_attn)("linear1", linear1)("linear2", linear2);
    m("norm1", norm1)("norm2", norm2)("norm3", norm3);
}

namespace {

template <class Stack>
void fill_stack(Stack& stack, const char* name, int64_t d_model, int64_t nhead, int64_t count, const TransformerOptions& options, bool final_norm,
                const Loc& loc) {
    if (count < 1) fail<ValueError>(loc, "{}: num_layers must be at least 1, got {}", name, count);
    if (count > kMostLayers) fail<ValueError>(loc, "{}: num_layers must be at most {}, got {}", name, kMostLayers, count);
    for (int64_t i = 0; i < count; ++i) stack.layers.emplace_back(d_model, nhead, options, loc);
    if (final_norm) stack.norm.emplace_back(Shape{d_model}, LayerNormOptions{.eps = options.layer_norm_eps, .bias = options.bias}, loc);
}

template <class Stack>
void stack_members(Stack& stack, Members& m) {
    m("layers", stack.layers);
    if (!stack.norm.empty()) m("norm", stack.norm[0]);
}

}  // namespace

TransformerEncoder::TransformerEncoder(int64_t d_model, int64_t nhead, int64_t num_layers, const TransformerOptions& options, bool final_norm,
                                       Loc loc) {
    const CallerScope caller(loc);
    fill_stack(*this, "TransformerEncoder", d_model, nhead, num_layers, options, final_norm, loc);
}

Tensor TransformerEncoder::forward(In x, const TransformerMasks& masks) const {
    const ModuleScope scope(*this);
    const CallerScope caller(x.loc);
    Tensor y = x.tensor;
    for (const TransformerEncoderLayer& layer : layers) y = layer(y, masks);
    return norm.empty() ? y : norm[0](y);
}

void TransformerEncoder::members(Members& m) { stack_members(*this, m); }

TransformerDecoder::TransformerDecoder(int64_t d_model, int64_t nhead, int64_t num_layers, const TransformerOptions& options, bool final_norm,
                                       Loc loc) {
    const CallerScope caller(loc);
    fill_stack(*this, "TransformerDecoder", d_model, nhead, num_layers, options, final_norm, loc);
}

Tensor TransformerDecoder::forward(In x, const Tensor& memory, const TransformerMasks& masks) const {
    const ModuleScope scope(*this);
    const CallerScope caller(x.loc);
    Tensor y = x.tensor;
    for (const TransformerDecoderLayer& layer : layers) y = layer(y, memory, masks);
    return norm.empty() ? y : norm[0](y);
}

void TransformerDecoder::members(Members& m) { stack_members(*this, m); }

Transformer::Transformer(const TransformerModelOptions& options, Loc loc)
    : encoder(options.d_model, options.nhead, options.num_encoder_layers, options.layer, true, loc),
      decoder(options.d_model, options.nhead, options.num_decoder_layers, options.layer, true, loc) {
    const CallerScope caller(loc);
    for (const Tensor& p : parameters()) {
        if (p.dim() > 1) init::xavier_uniform_(p);
    }
}

Tensor Transformer::forward(In src, const Tensor& tgt, const TransformerModelMasks& masks) const {
    const ModuleScope scope(*this);
    const CallerScope caller(src.loc);
    const Tensor memory = encoder(src, {.mask = masks.src_mask, .key_padding_mask = masks.src_key_padding_mask, .is_causal = masks.src_is_causal});
    return decoder(tgt, memory,
                   {.mask = masks.tgt_mask,
                    .key_padding_mask = masks.tgt_key_padding_mask,
                    .is_causal = masks.tgt_is_causal,
                    .memory_mask = masks.memory_mask,
                    .memory_key_padding_mask = masks.memory_key_padding_mask});
}

void Transformer::members(Members& m) { m("encoder", encoder)("decoder", decoder); }

Tensor Transformer::generate_square_subsequent_mask(int64_t size, Loc loc) {
    const CallerScope caller(loc);
    return triu(full({size, size}, -std::numeric_limits<double>::infinity(), {}, loc), 1);
}

}  // namespace tapir::nn
