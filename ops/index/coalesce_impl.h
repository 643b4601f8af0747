// Gradients of rows, each row once.
#pragma once

#include "tapir/autograd/meta_impl.h"

namespace tapir::detail {

/// Sums repeated rows: afterwards the indices ascend, without repeats. `rows` is the parameter's number of rows, from which negative
/// indices count. Works on contiguous float32 or float64; rows that are in this form already are shared. On a device, repeats stay, as
/// zeros, and the first of equal indices has the sum: so nobody has to wait for their number. Sums in the order of the rows: whoever
/// has the same rows gets the same bits. Throws ValueError for more than 2^31 rows on the CPU.
SparseRows coalesce(const SparseRows& rows, std::int64_t row_count, const Loc& loc);

}  // namespace tapir::detail
