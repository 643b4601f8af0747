// Indexing while a graph is traced. See index_traced.cpp.
#pragma once

#include <cstddef>

#include "tapir/core/tensor.h"

namespace tapir {

struct Index;

/// x.index(indices), for indices that have been checked.
Tensor traced_index(const Tensor& x, const Index* indices, std::size_t count, const Loc& loc);
/// Returns x after x.index_put_(indices, value, accumulate); for indices and a value that have been checked.
Tensor traced_index_put(const Tensor& x, const Index* indices, std::size_t count, const Tensor& value, bool accumulate, const Loc& loc);

}  // namespace tapir
