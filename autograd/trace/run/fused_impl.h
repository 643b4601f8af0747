// Element-wise ops that run as one.
#pragma once

#include <optional>

#include "tapir/ops/elementwise/elementwise_impl.h"

namespace tapir {

/// An op that can be one step of a `fused` node.
struct FusedOp {
    int elementwise;  // -1: none
    int condition;    // the condition operand of where and masked_fill; -1, for neither: a conversion of truth values
};
std::optional<FusedOp> fused_op(const OpForm& form) noexcept;
/// True for the form of `fused`.
bool is_fused_form(const OpForm& form) noexcept;

/// The limits of one `fused` node.
inline constexpr int kMostFusedOps = 32, kMostFusedInputs = 16, kMostFusedOutputs = 8;

}  // namespace tapir
