// ONNX ops of language models: attention with a cache, rotated positions, recurrent forms of attention.
#include <cmath>
#include <limits>

#include "tapir/autograd/trace/onnx/import_impl.h"
#include "tapir/ops/arrange/arrange.h"
#include "tapir/ops/arrange/combine.h"
#include "tapir/ops/attention/attention.h"
#include "tapir/ops/convolution/convolution.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/linear/matmul.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/reduce/softmax.h"
#include "tapir/ops/view/view.h"

namespace tapir::detail {
namespace {

using Call = OnnxCall;
using std::int64_t;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// (batch, length, heads * size) -> (batch, heads, length, size)
Tensor by_heads(Call& c, const Tensor& x, int64_t heads) {
    if (x.dim() != 3 || heads < 1 || x.size(2) % heads != 0) c.reject("{} heads in a shape {}", heads, x.shape());
    return transpose(reshape(x, {x.size(0), x.size(1), heads, x.size(2) / heads}), 1, 2);
}
// The inverse of by_heads().
Tensor without_heads(const Tensor& x) { return reshape(transpose(x, 1, 2), {x.size(0), x.size(2), x.size(1) * x.size(3)}); }

// --- Attention ----------------------------------------------------------------------------------------------------------------------

// The operands of an Attention, with the cache prepended to keys and values.
struct Attending {
    Tensor query, key, value;  // (batch, heads, length, size)
    int64_t past = 0;          // the number of keys from the cache
};

Attending attending(Call& c) {
    Attending a{c.x(0), c.x(1), c.x(2)};
    const bool is_flat = a.query.dim() == 3;
    if (!is_flat && a.query.dim() != 4) c.reject("its query has shape {}", a.query.shape());
    if (is_flat) {
        const int64_t heads = c.integer("kv_num_heads", 0);
        a.query = by_heads(c, a.query, c.integer("q_num_heads", 0));
        a.key = by_heads(c, a.key, heads);
        a.value = by_heads(c, a.value, heads);
    }
    if (a.key.dim() != 4 || a.value.dim() != 4) c.reject("keys of shape {} and values of shape {}", a.key.shape(), a.value.shape());
    if (c.has(4) != c.has(5)) c.reject("it has only one of past_key and past_value");
    if (c.has(4)) {
        a.past = c.size(4, 2);
        a.key = cat({c.x(4), a.key}, 2);
        a.value = cat({c.x(5), a.value}, 2);
    }
    return a;
}

// The keys that each query sees, by its position; undefined: all. A query at i stands at the key i + offset.
Tensor seen_by_position(Call& c, const Attending& a, const Tensor& filled) {
    const bool causal = c.flag("is_causal", false);
    const int64_t left = c.integer("left_window_size", -1), right = c.integer("right_window_size", -1);
    if (left < -1 || right < -1) c.reject("windows of {} to the left and {} to the right", left, right);
    const int64_t queries = a.query.size(2), keys = a.key.size(2);
    Tensor seen;
    const auto restrict = [&](const Tensor& to) { seen = seen.defined() ? logical_and(seen, to) : to; };
    const Tensor key = reshape(arange(keys, int64), {1, keys});
    if (causal || left >= 0 || right >= 0) {
        Tensor at = reshape(arange(queries, int64), {queries, 1});
        if (filled.defined()) {  // one for each entry of the batch
            at = at + reshape(filled.to(int64) - queries, {-1, 1, 1, 1});
        } else if (a.past > 0) {
            at = at + a.past;
        }
        if (causal) restrict(key <= at);
        if (left >= 0) restrict(key >= at - left);
        if (right >= 0) restrict(key <= at + right);
    }
    if (filled.defined()) restrict(key < reshape(filled.to(int64), {-1, 1, 1, 1}));
    return seen;
}

// The bias that is added to the products, in their dtype; undefined: none.
Tensor bias_of_mask(Call& c, const Attending& a, DType dtype) {
    const Tensor seen = seen_by_position(c, a, c.maybe(6));
    const auto as_bias = [&](const Tensor& mask) { return where(mask, zeros({}, dtype), full({}, kMinusInfinity, dtype)); };
    if (!c.has(3)) return seen.defined() ? as_bias(seen) : Tensor();
    Tensor mask = c.x(3);
    const bool is_bool = mask.dtype() == bool_;
    mask = is_bool ? as_bias(mask) : mask.to(dtype);
    const int64_t more = a.key.size(2) - mask.size(-1);  // keys that a short mask lacks are not seen
    if (more > 0) mask = pad(mask, {0, more}, kMinusInfinity);
    return seen.defined() ? where(seen, mask, full({}, kMinusInfinity, dtype)) : mask;
}

void attention(Call& c) {
    const Attending a = attending(c);
    const int64_t heads = a.query.size(1), shared = a.key.size(1);
    if (shared < 1 || heads % shared != 0) c.reject("{} heads of queries, {} of keys", heads, shared);
    const auto each_head = [&](const Tensor& x) { return heads == shared ? x : repeat_interleave(x, heads / shared, 1); };
    const double scale = c.real("scale", 1 / std::sqrt(static_cast<double>(a.query.size(3)))), cap = c.real("softcap", 0);
    if (scale < 0) c.reject("its scale is {}", scale);
    const DType dtype = a.query.dtype();
    const Tensor key = each_head(a.key), value = each_head(a.value).to(dtype), bias = bias_of_mask(c, a, dtype);
    // Puts half of the scale on each side, so that narrow types do not overflow.
    const double half = std::sqrt(scale);
    const Tensor products = matmul(a.query * half, transpose(key, 2, 3).to(dtype) * half);
    const Tensor capped = cap > 0 ? tanh(products / cap) * cap : products;
    const Tensor biased = bias.defined() ? capped + bias : capped;
    const auto wanted = static_cast<int>(c.integer("softmax_precision", 0));
    const std::optional<DType> precision = wanted == 0 ? dtype : dtype_for_onnx(wanted);
    if (!precision || !is_floating(*precision)) c.reject("its softmax_precision is {}", onnx_type_name(wanted));
    Tensor weights = softmax(biased.to(*precision), -1);
    if (bias.defined()) {  // a query that sees no key gives zeros
        const Tensor sees = ne(amax(bias, {-1}, true), kMinusInfinity);
        weights = where(sees, weights, zeros({}, weights.dtype()));
    }
    const Tensor y = matmul(weights.to(dtype), value);
    c.give(c.rank(0) == 3 ? without_heads(y) : y);
    c.give(a.key.clone());
    c.give(a.value.clone());
    if (!c.wants(3)) return;
    const int64_t mode = c.integer("qk_matmul_output_mode", 0);
    if (mode < 0 || mode > 3) c.reject("its qk_matmul_output_mode is {}", mode);
    // In opset 23 the mask was added before softcap, and the modes were counted in that order.
    c.give(mode == 0 ? products : mode == 3 ? weights.to(dtype) : mode == 1 ? capped : biased.clone());
}

// --- Positions ----------------------------------------------------------------------------------------------------------------------

void rotary_embedding(Call& c) {
    const Tensor given = c.x(0);
    const bool is_flat = given.dim() == 3;
    const Tensor x = is_flat ? by_heads(c, given, c.integer("num_heads", 0)) : given;  // (batch, heads, length, size)
    if (x.dim() != 4) c.reject("its operand has shape {}", given.shape());
    const int64_t size = x.size(3), wanted = c.integer("rotary_embedding_dim", 0), turned = wanted == 0 ? size : wanted, half = turned / 2;
    if (turned < 2 || turned > size || turned % 2 != 0) c.reject("it turns {} of {} elements", turned, size);
    const auto table = [&](int operand) {
        Tensor values = c.x(operand);
        if (c.has(3)) {
            const Tensor places = c.x(3);
            values = reshape(index_select(values, 0, reshape(places, {-1})), {places.size(0), places.size(1), -1});
        }
        if (values.dim() != 3 || values.size(2) != half) c.reject("a table of shape {} for {} elements", values.shape(), turned);
        return unsqueeze(values, 1);  // (batch, 1, length, half)
    };
    const Tensor cosines = table(1), sines = table(2), part = narrow(x, 3, 0, turned);
    const bool interleaved = c.flag("interleaved", false);
    const Tensor pairs = interleaved ? reshape(part, {x.size(0), x.size(1), x.size(2), half, 2}) : Tensor();
    const Tensor first = interleaved ? select(pairs, 4, 0) : narrow(part, 3, 0, half);
    const Tensor second = interleaved ? select(pairs, 4, 1) : narrow(part, 3, half, half);
    const Tensor real = cosines * first - sines * second, imaginary = sines * first + cosines * second;
    Tensor y = interleaved ? reshape(stack({real, imaginary}, 4), part.shape()) : cat({real, imaginary}, 3);
    if (turned < size) y = cat({y, narrow(x, 3, turned, size - turned)}, 3);
    c.give(is_flat ? without_heads(y) : y);
}

// --- Caches -------------------------------------------------------------------------------------------------------------------------

// Writes an update into a cache (batch, ..., length, ...), from an index for each entry of the batch on.
void tensor_scatter(Call& c) {
    const Tensor cache = c.x(0), update = c.x(1);
    const int axis = c.axis("axis", -2, cache.dim());
    if (axis == 0 || update.dim() != cache.dim())
        c.reject("an update of shape {} of a cache of shape {} along {}", update.shape(), cache.shape(), axis);
    const std::string mode = c.text("mode", "linear");
    if (mode != "linear" && mode != "circular") c.reject("its mode is \"{}\"", mode);
    const int64_t count = update.size(axis), length = cache.size(axis);
    Shape row, column;
    for (int d = 0; d < cache.dim(); ++d) {
        row.push_back(d == axis ? count : 1);
        column.push_back(d == 0 ? cache.size(0) : 1);
    }
    Tensor places = reshape(arange(count, int64), row);
    if (c.has(2)) places = places + reshape(c.x(2).to(int64), column);
    if (mode == "circular") places = remainder(places, length);
    c.give(scatter(cache, axis, expand(places, update.shape()), update));
}

void causal_conv_with_state(Call& c) {
    const Tensor x = c.x(0), w = c.x(1);  // (batch, channels, length), (channels, 1, k)
    if (x.dim() != 3 || w.dim() != 3) c.reject("a weight of shape {} for an operand of shape {}", w.shape(), x.shape());
    const std::string activation = c.text("activation", "none");
    if (activation != "none" && activation != "silu" && activation != "swish") c.reject("its activation is \"{}\"", activation);
    const int64_t before = w.size(2) - 1;
    const Tensor whole = c.has(3) ? cat({c.x(3), x}, 2) : pad(x, {before, 0});
    const Tensor y = conv1d(whole, w, c.maybe(2), {.groups = x.size(1)});
    c.give(activation == "none" ? y : silu(y));
    c.give(narrow(whole, 2, whole.size(2) - before, before).clone());
}

// --- Linear attention -----------------------------------------------------------------------------------------------------------------

constexpr int64_t kMostSteps = 4096;  // the graph has a few ops for each

// Updates a state (batch, heads, size, value size): each step decays, corrects and reads it.
void linear_attention(Call& c) {
    const std::string rule = c.text("update_rule", "gated_delta");
    const bool is_gated = rule == "gated" || rule == "gated_delta", is_delta = rule == "delta" || rule == "gated_delta";
    if (!is_gated && !is_delta && rule != "linear") c.reject("its update_rule is \"{}\"", rule);
    if (is_gated != c.has(4) || is_delta != c.has(5)) c.reject("its operands decay and beta do not fit its update_rule \"{}\"", rule);
    const int64_t heads = c.integer("q_num_heads", 0), shared = c.integer("kv_num_heads", 0);
    if (shared < 1 || heads < 1 || heads % shared != 0) c.reject("{} heads of queries, {} of keys", heads, shared);
    const Tensor given = c.x(0);
    const DType dtype = given.dtype();
    const auto wide = [&](int operand, int64_t by) { return by_heads(c, c.x(operand).to(float32), by); };
    const Tensor query = wide(0, heads), key = wide(1, shared), value = wide(2, shared);
    const Tensor decay = is_gated ? exp(wide(4, shared)) : Tensor(), beta = is_delta ? wide(5, c.size(5, 2) == 1 ? 1 : shared) : Tensor();
    const int64_t steps = query.size(2), size = key.size(3), group = heads / shared;
    if (steps > kMostSteps) c.reject("{} steps; up to {} are supported", steps, kMostSteps);
    const double asked = c.real("scale", 0), scale = asked == 0 ? 1 / std::sqrt(static_cast<double>(size)) : asked;
    Tensor state = c.has(3) ? c.x(3).to(float32) : zeros({query.size(0), shared, size, value.size(3)}, float32);
    std::vector<Tensor> read;
    for (int64_t t = 0; t < steps; ++t) {
        if (is_gated) state = state * unsqueeze(select(decay, 2, t), -1);
        const Tensor k = unsqueeze(select(key, 2, t), -1);  // (batch, heads, size, 1)
        Tensor v = unsqueeze(select(value, 2, t), 2);       // (batch, heads, 1, value size)
        if (is_delta) v = unsqueeze(select(beta, 2, t), 2) * (v - sum(state * k, {2}, true));
        state = state + k * v;
        const Tensor seen = group == 1 ? state : repeat_interleave(state, group, 1);
        read.push_back(sum(unsqueeze(select(query, 2, t), -1) * seen, {2}) * scale);
    }
    const Tensor y = read.empty() ? zeros({query.size(0), heads, 0, value.size(3)}, float32) : stack(read, 2);
    c.give(without_heads(y).to(dtype));
    c.give(state.to(c.has(3) ? c.dtype(3) : dtype));
}

constexpr OnnxOp kAttentionOps[] = {
    {"Attention", 23, attention},
    {"RotaryEmbedding", 23, rotary_embedding},
    {"TensorScatter", 24, tensor_scatter},
    {"CausalConvWithState", 27, causal_conv_with_state},
    {"LinearAttention", 27, linear_attention},
};

}  // namespace

std::span<const OnnxOp> onnx_attention_ops() { return kAttentionOps; }

}  // namespace tapir::detail
