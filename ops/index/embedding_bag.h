// Sums, means and maxima over groups of a table's rows.
#pragma once

#include <optional>

#include "tapir/core/tensor.h"

namespace tapir {

enum class BagMode : std::uint8_t { sum, mean, max };

struct EmbeddingBagOptions {
    BagMode mode = BagMode::mean;
    Tensor per_sample_weights = {};                ///< of the indices' shape, for sums: rows are multiplied by them
    bool include_last_offset = false;              ///< offsets (bags + 1,): indices from the last one on are not read
    std::optional<std::int64_t> padding_idx = {};  ///< a row that is left out; -1: the last
};

/// Returns one row per bag of indices. indices (bags, size), or (n,) with offsets (bags,), where each bag begins; weight (rows, width) ->
/// (bags, width). An empty bag gives zeros. A leaf gets a row-sparse gradient if it asks for it, as with embedding. Throws
/// ShapeError, DTypeError, IndexError, and ValueError for offsets that do not rise from 0 and for weights with a mode other than
/// sum.
Tensor embedding_bag(In indices, In weight, const Tensor& offsets = {}, const EmbeddingBagOptions& options = {});

}  // namespace tapir
