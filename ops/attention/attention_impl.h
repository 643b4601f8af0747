// Parts of scaled_dot_product_attention.
#pragma once

#include "tapir/ops/attention/attention.h"

namespace tapir {

/// Returns the softmax over the last dimension of scores (..., L, S), where row r takes elements 0 to first_query + r only; zeros behind
/// them. Neither the rank nor first_query (>= 0) is checked.
Tensor causal_softmax(In scores, std::int64_t first_query);

/// Returns the weights that scaled_dot_product_attention gives to values: (..., L, S), all at once. The arguments are its, and not checked.
Tensor attention_weights(In query, In key, const Tensor& mask, double dropout_p, bool is_causal);

}  // namespace tapir
