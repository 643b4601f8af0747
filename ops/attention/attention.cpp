// scaled_dot_product_attention: products and a softmax, in pieces if the scores would be many.
#include "tapir/ops/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tapir/autograd/checkpoint.h"
#include "tapir/autograd/op.h"
#include "tapir/core/broadcast_impl.h"
#include "tapir/core/composed_op_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/arrange/arrange.h"
#include "tapir/ops/attention/attention_impl.h"
#include "tapir/ops/autocast_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/kernels/gpu.h"
#include "tapir/ops/linear/matmul.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/random/dropout.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/reduce/softmax.h"
#include "tapir/ops/view/view.h"

namespace tapir {

TAPIR_OP(scaled_dot_product_attention, Composed, "softmax(q k^T / sqrt(E) + mask) v.",
         TAPIR_SAMPLE_AS("f(2,3,4) f(2,5,4) f(2,5,2)", "torch.softmax(x[0] @ x[1].transpose(1, 2) / 2, 2) @ x[2]",
                         scaled_dot_product_attention(x[0], x[1], x[2])),
         TAPIR_SAMPLE_AS("f(2,2,3,4) f(2,1,5,4) f(5,2) f(3,5)", "torch.softmax(x[0] @ x[1].transpose(2, 3) * 0.3 + x[3], 3) @ x[2]",
                         scaled_dot_product_attention(x[0], x[1], x[2], x[3], 0, false, 0.3)),
         TAPIR_SAMPLE_AS("f(4,3) f(4,3) f(4,2)",
                         "torch.softmax((x[0] @ x[1].T / 3 ** 0.5).masked_fill(torch.ones(4, 4).triu(1) > 0, -1e4), 1) @ x[2]",
                         scaled_dot_product_attention(x[0], x[1], x[2], {}, 0, true)));

namespace {

using std::int64_t;

// Number of scores computed at once. On the CPU as many as fit a core's own cache; more if each piece adds to the gradients of all keys
// and values.
int64_t scores_at_once(const Tensor& x, bool recorded) { return int64_t{1} << (on_gpu(x) ? 26 : recorded ? 20 : 18); }
// Number of scores that are kept for backward rather than computed again.
int64_t scores_kept(const Tensor& x) { return int64_t{1} << (on_gpu(x) ? 27 : 22); }

// Added to a masked score: far below all others, but finite, so that a row of only masked scores has no nan.
double masked_score(DType dtype) { return dtype == DType::float16 ? -32752.0 : -static_cast<double>(std::numeric_limits<float>::max()) / 2; }

struct Attention {
    double dropout_p;
    bool is_causal;

    // Returns the tensor added to the scores: the mask, with the limit to keys up to the query if there is one. first_query: the number
    // of the first row's query. Undefined if nothing is added: causal_softmax has the limit itself.
    Tensor bias(const Tensor& query, const Tensor& key, const Tensor& mask, int64_t first_query) const {
        if (!mask.defined()) return {};
        const DType dtype = mask.dtype() != bool_ ? mask.dtype() : query.dtype();
        const double closed = masked_score(dtype);
        if (!is_causal) return mask.dtype() == bool_ ? where(mask, zeros({}, {dtype, query.device()}), closed) : clamp(mask, closed);
        const int64_t rows = query.shape()[query.dim() - 2], keys = key.shape()[key.dim() - 2];
        const TensorOptions places(int64, query.device());
        const Tensor seen = le(arange(keys, places), unsqueeze(arange(first_query, first_query + rows, places), 1));
        if (mask.dtype() != bool_) return where(seen, clamp(mask, closed), closed);
        return where(logical_and(seen, mask), zeros({}, {dtype, query.device()}), closed);
    }

    // query is scaled.
    Tensor weights(const Tensor& query, const Tensor& key, const Tensor& added, int64_t first_query) const {
        const Tensor products = matmul(query, transpose(key, -1, -2));
        const Tensor p = added.defined() ? softmax(products + added, -1) : is_causal ? causal_softmax(products, first_query) : softmax(products, -1);
        return dropout_p > 0 ? dropout(p, dropout_p, true) : p;
    }

    // Sets rows of queries that may look at no key to zeros.
    static Tensor closed_rows_zero(const Tensor& rows, const Tensor& added) {
        if (!added.defined() || added.shape().back() == 0) return rows;
        const Tensor closed = le(amax(added.detach(), {-1}, true), masked_score(added.dtype()));
        return masked_fill(rows, closed, 0);
    }

    Tensor operator()(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask, int64_t first_query) const {
        const Tensor added = bias(query, key, mask, first_query);
        const Tensor mixed = matmul(weights(query, key, added, first_query), value);
        return mask.defined() ? closed_rows_zero(mixed, added) : mixed;  // without a mask, each query sees the first key
    }
};

// Returns elements begin ... begin + count of dimension dim of the broadcast shape (rank: its dimensions); t itself if it is
// broadcast along it.
Tensor part_of(const Tensor& t, int rank, int dim, int64_t begin, int64_t count) {
    const int own = t.defined() ? dim - (rank - t.dim()) : -1;
    if (own < 0 || t.shape()[own] == 1 || t.shape()[own] == count) return t;
    return narrow(t, own, begin, count);
}

Tensor scaled(const In& query, std::optional<double> scale) {
    const auto width = static_cast<double>(std::max<int64_t>(query->sizes[query->rank - 1], 1));
    return mul(query, scale.value_or(1 / std::sqrt(width)));
}

// The operands in float32, if they are 16-bit floats on the CPU, or become such under an AutocastScope: scores and
// weights are not rounded on the way to the result. GPUs multiply 16-bit floats as they are.
struct Widened {
    Tensor x[3];
    DType dtype = float32;  // the result's; float32: nothing needs to be done

    explicit Widened(std::initializer_list<const In*> operands) {
        const TensorImpl* first = (*operands.begin())->tensor.impl();
        if (on_gpu((*operands.begin())->tensor) || (!detail::thread.autocast && !is_16_bit(first->dtype))) return;
        int i = 0;
        bool are_low = true;
        for (const In* operand : operands) {
            x[i] = detail::thread.autocast ? detail::autocast_to_low(*operand) : operand->tensor;
            are_low &= is_16_bit(x[i++].dtype());
        }
        if (!are_low) return;
        dtype = x[0].dtype();
        for (Tensor& t : x) t = t.defined() ? t.to(float32) : t;
    }
    static bool is_16_bit(DType t) { return t == float16 || t == bfloat16; }
};

Shape leading(const In& x) { return Shape(x->sizes, x->rank - 2); }

void check(const In& q, const In& k, const In& v, const Tensor& mask, double dropout_p) {
    const char* const op = "scaled_dot_product_attention";
    for (const In* x : {&q, &k, &v}) detail::check_defined(*x, op);
    const Shape &a = q.tensor.shape(), b = k.tensor.shape(), c = v.tensor.shape();
    const auto shapes = [&] { return fmt::format("query {}, key {}, value {}", a, b, c); };
    if (a.rank() < 2 || b.rank() < 2 || c.rank() < 2) fail<ShapeError>(q.loc, "{}: needs 2 dimensions or more: {}", op, shapes());
    if (a.back() != b.back()) fail<ShapeError>(q.loc, "{}: the last dimensions of query and key differ: {}", op, shapes());
    if (b[b.rank() - 2] != c[c.rank() - 2]) fail<ShapeError>(q.loc, "{}: numbers of keys and values differ: {}", op, shapes());
    if (const Shape of_q = leading(q), of_k = leading(k), of_v = leading(v);
        !detail::do_broadcast(of_q, of_k) || !detail::do_broadcast(of_q, of_v) || !detail::do_broadcast(of_k, of_v)) {
        fail<ShapeError>(q.loc, "{}: batch dimensions do not broadcast: {}", op, shapes());
    }
    const bool one_dtype = q->dtype == k->dtype && k->dtype == v->dtype;
    if (!detail::thread.autocast && (!one_dtype || !is_floating(q->dtype))) {
        fail<DTypeError>(q.loc, "{}: needs one floating dtype, got {}, {} and {}", op, name(q->dtype), name(k->dtype), name(v->dtype));
    }
    if (!(dropout_p >= 0 && dropout_p <= 1)) fail<ValueError>(q.loc, "{}: dropout_p must be in [0, 1], got {}", op, dropout_p);
    if (!mask.defined()) return;
    if (mask.dtype() != bool_ && !is_floating(mask.dtype())) {
        fail<DTypeError>(q.loc, "{}: the mask must hold bools or floats, not {}: convert it with mask.to(bool_)", op, name(mask.dtype()));
    }
}

}  // namespace

Tensor scaled_dot_product_attention(In query, In key, In value, const Tensor& attn_mask, double dropout_p, bool is_causal,
                                    std::optional<double> scale) {
    const char* const op = "scaled_dot_product_attention";
    const detail::ComposedOp composed(op);
    check(query, key, value, attn_mask, dropout_p);
    const int64_t queries = query->sizes[query->rank - 2], keys = key->sizes[key->rank - 2];
    Shape scores = broadcast_shapes(broadcast_shapes(leading(query), leading(key), op, query.loc), leading(value), op, query.loc);
    scores.push_back(queries, query.loc);
    scores.push_back(keys, query.loc);
    if (attn_mask.defined() &&
        (!detail::do_broadcast(scores, attn_mask.shape()) || broadcast_shapes(scores, attn_mask.shape(), op, query.loc) != scores)) {
        fail<ShapeError>(query.loc, "{}: the mask {} does not broadcast to the scores {}", op, attn_mask.shape(), scores);
    }

    const detail::RecordedParts parts(query.loc);
    if (const Widened wide({&query, &key, &value}); wide.dtype != float32) [[unlikely]] {
        const detail::PauseAutocast off;
        const auto in = [&](int i) { return In(wide.x[i], query.loc); };
        return scaled_dot_product_attention(in(0), in(1), in(2), attn_mask, dropout_p, is_causal, scale).to(wide.dtype, query.loc);
    }
    const Tensor q = scaled(query, scale);
    const Tensor &k = key.tensor, &v = value.tensor;
    const Attention attention{dropout_p, is_causal};
    const bool recorded = detail::thread.log != nullptr;
    const int64_t at_once = scores_at_once(q, recorded), all = scores.numel();
    const bool is_whole = all <= (recorded ? scores_kept(q) : at_once) || detail::is_tracing();  // a graph must not depend on sizes
    if (is_whole) return attention(q, k, v, attn_mask, 0);

    // Computes pieces of the first dimension and of the queries.
    const int rank = scores.rank();
    const int64_t examples = rank > 2 ? scores[0] : 1, per_query = std::max<int64_t>(all / (examples * queries), 1);
    int64_t rows = std::clamp<int64_t>(at_once / per_query, std::min<int64_t>(queries, 16), queries);
    if (is_causal) rows = std::min(rows, std::max<int64_t>(queries / 8, 64));  // so that most masked scores are left out
    const int64_t together = rows < queries ? 1 : std::clamp<int64_t>(at_once / (per_query * queries), 1, examples);
    std::vector<Tensor> of_examples;
    for (int64_t e = 0; e < examples; e += together) {
        const int64_t count = std::min(together, examples - e);
        const auto of_example = [&](const Tensor& t) { return rank > 2 ? part_of(t, rank, 0, e, count) : t; };
        std::vector<Tensor> of_rows;
        for (int64_t row = 0; row < queries; row += rows) {
            const int64_t end = std::min(row + rows, queries), seen = is_causal ? std::min(end, keys) : keys;
            const auto of_keys = [&](const Tensor& t, int dim) { return part_of(of_example(t), rank, dim, 0, seen); };
            std::vector<Tensor> inputs = {part_of(of_example(q), rank, rank - 2, row, end - row), of_keys(k, rank - 2), of_keys(v, rank - 2)};
            if (attn_mask.defined()) inputs.push_back(part_of(of_keys(attn_mask, rank - 1), rank, rank - 2, row, end - row));
            const auto piece = [attention, row](const std::vector<Tensor>& x) {
                return attention(x[0], x[1], x[2], x.size() > 3 ? x[3] : Tensor(), row);
            };
            of_rows.push_back(checkpoint(piece, inputs, query.loc));
        }
        of_examples.push_back(of_rows.size() == 1 ? of_rows[0] : cat(of_rows, -2));
    }
    return of_examples.size() == 1 ? of_examples[0] : cat(of_examples, 0);
}

Tensor attention_weights(In query, In key, const Tensor& mask, double dropout_p, bool is_causal) {
    const detail::RecordedParts parts(query.loc);
    if (const Widened wide({&query, &key}); wide.dtype != float32) [[unlikely]] {
        const detail::PauseAutocast off;
        return attention_weights(In(wide.x[0], query.loc), In(wide.x[1], query.loc), mask, dropout_p, is_causal).to(wide.dtype, query.loc);
    }
    const Attention attention{dropout_p, is_causal};
    const Tensor q = scaled(query, {}), added = attention.bias(q, key.tensor, mask, 0);
    const Tensor weights = attention.weights(q, key.tensor, added, 0);
    return mask.defined() ? Attention::closed_rows_zero(weights, added) : weights;
}

}  // namespace tapir
