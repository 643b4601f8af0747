// Attention.
#pragma once

#include <optional>

#include "tapir/core/tensor.h"

namespace tapir {

/// Returns softmax(query key^T * scale + mask) value (Vaswani et al. 2017, eq. 1), as PyTorch's function of that name.
///
/// query (..., L, E), key (..., S, E), value (..., S, V) -> (..., L, V); leading dimensions broadcast. scale: 1 / sqrt(E)
/// unless given. attn_mask broadcasts to (..., L, S): of bools, true where a query may look at a key; of floats, added to the
/// scores. is_causal: query i looks at keys 0 to i only (together with a mask: where both allow it). A query that may look at
/// nothing gets zeros. dropout_p is applied to the probabilities in training and evaluation alike, pass 0 for the latter.
///
/// If the (L, S) scores of all examples are many they are computed in pieces and not kept: backward computes each piece
/// again, so that memory grows with L + S and not with their product.
///
/// Throws ShapeError if sizes do not agree, DTypeError unless all operands have one floating dtype, ValueError for a
/// dropout_p outside [0, 1].
Tensor scaled_dot_product_attention(In query, In key, In value, const Tensor& attn_mask = {}, double dropout_p = 0, bool is_causal = false,
                                    std::optional<double> scale = {});

}  // namespace tapir
