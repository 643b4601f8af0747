// Element-wise ops that are run as one.
#pragma once

#include <optional>

#include "tapir/ops/elementwise/elementwise_impl.h"

namespace tapir {

/// What can be one step of a `fused` node.
struct FusedOp {
    int elementwise;  // -1: none
    int condition;    // of where and masked_fill: which operand; -1, of neither: a conversion of truth values
};
std::optional<FusedOp> fused_op(const OpForm& form) noexcept;
/// Whether this is the form of `fused`.
bool is_fused_form(const OpForm& form) noexcept;

/// What fits one `fused` node.
inline constexpr int kMostFusedOps = 32, kMostFusedInputs = 16, kMostFusedOutputs = 8;

}  // namespace tapir
