// Indexing while a graph is made. See index_traced.cpp.
#pragma once

#include <cstddef>

#include "tapir/core/tensor.h"

namespace tapir {

struct Index;

/// x.index(indices), for indices that have been checked.
Tensor traced_index(const Tensor& x, const Index* indices, std::size_t count, const Loc& loc);
/// What x is after x.index_put_(indices, value, accumulate); for indices and a value that have been checked.
Tensor traced_index_put(const Tensor& x, const Index* indices, std::size_t count, const Tensor& value, bool accumulate, const Loc& loc);

}  // namespace tapir
