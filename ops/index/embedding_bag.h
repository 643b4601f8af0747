// Sums, means and largest elements of groups of a table's rows.
#pragma once

#include <optional>

#include "tapir/core/tensor.h"

namespace tapir {

enum class BagMode : std::uint8_t { sum, mean, max };

struct EmbeddingBagOptions {
    BagMode mode = BagMode::mean;
    Tensor per_sample_weights = {};                ///< of the indices' shape, for sums: rows are multiplied by these
    bool include_last_offset = false;              ///< offsets (bags + 1,): indices from the last one on are not read
    std::optional<std::int64_t> padding_idx = {};  ///< a row that counts for nothing; -1: the last
};

/// A row for each bag of indices. indices (bags, size), or (n,) with offsets (bags,), where each bag begins; weight (rows, width) ->
/// (bags, width). An empty bag gives zeros. The gradient of a leaf that asks for it is row-sparse, as embedding's. Throws
/// ShapeError, DTypeError, IndexError, and ValueError for offsets that do not rise from 0 and for weights beside another mode than
/// sum.
Tensor embedding_bag(In indices, In weight, const Tensor& offsets = {}, const EmbeddingBagOptions& options = {});

}  // namespace tapir
