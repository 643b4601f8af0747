// Ops that look up rows of a table.
#pragma once

#include <optional>

#include "tapir/core/tensor.h"

namespace tapir {

/// Returns rows of the weight: weight (n, d), indices (...) -> (..., d). padding_idx's row (-1: the last) gets no gradient. Throws IndexError
/// unless all indices are in [0, n): as in PyTorch, negative ones do not count from the end here.
Tensor embedding(In indices, In weight, std::optional<std::int64_t> padding_idx = {});
/// Returns int64 (..., classes). classes -1: the largest index + 1.
Tensor one_hot(In indices, std::int64_t classes = -1);

}  // namespace tapir
