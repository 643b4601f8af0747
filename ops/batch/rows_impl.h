// The operands of a group as one tensor, and its results as many: see Note [Rows] in scheduler.cpp.
#pragma once

#include <cstdint>

#include "tapir/core/tensor.h"
#include "tapir/ops/batch/batched_impl.h"

namespace tapir::detail {

/// Returns count tensors of one type as (count, ...), recorded as stack(). If they lie behind each other in memory, nothing is copied.
Tensor stacked_rows(const Tensor* rows, std::int64_t count, const Loc& loc);
/// Returns a block whose instances have `rank` dimensions, with sizes of 1 before those that it has.
Tensor with_rank(const Tensor& block, int rank);
/// Returns operand k of a group with as many dimensions in an instance as the largest of `count` operands has, so that they broadcast as in
/// one instance.
Tensor aligned(const Batched& in, int k, int count);
/// Makes the parts of a block, (count, ...), recorded as unbind(). They lie in its memory, and are tensors that may be written to.
void rows_of(const Tensor& block, Tensor* rows, std::int64_t count);

}  // namespace tapir::detail
