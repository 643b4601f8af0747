// The weights that scaled_dot_product_attention gives to values.
#pragma once

#include "tapir/ops/attention.h"

namespace tapir {

/// (..., L, S), all at once. The arguments are those of scaled_dot_product_attention, and not checked.
Tensor attention_weights(In query, In key, const Tensor& mask, double dropout_p, bool is_causal);

}  // namespace tapir
