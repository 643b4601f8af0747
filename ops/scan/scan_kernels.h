// Scans: running sums, products and extremes, along `count` lines of contiguous tensors. The CPU's know float32, float64 and int64; a
// GPU's take any dtype as it is.
#pragma once

#include "tapir/ops/reduce/reduce_kernels.h"

namespace tapir::kernels {

/// A scan of scan_functions.h, from the first element of a line on, or from the last.
struct Scan {
    enum Kind : std::uint8_t { sum, prod, log_of_exps } kind;  // the last: floating dtypes only
    bool reverse = false;
};

}  // namespace tapir::kernels

/// On a GPU out has x's dtype, or int64 if x has integers.
TAPIR_KERNEL(scan, const tapir::kernels::LineArgs& args, const tapir::kernels::Scan& scan)
/// The largest (or smallest) element so far, and its index; the last of equal ones. nan wins.
TAPIR_KERNEL(scan_extreme, const tapir::kernels::LineArgs& args, bool largest, std::int64_t* indices)
/// The gradient of the running product for g, of x's shape; of the whole product for g with one element a line. Of float32 or float64.
TAPIR_KERNEL(prod_gradient, const tapir::kernels::LineArgs& args, const void* g, bool whole)
