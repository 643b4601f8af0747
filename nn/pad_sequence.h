// pad_sequence: sequences of different lengths as one tensor, for recurrent layers and attention.
#pragma once

#include <string>

#include "tapir/core/arguments.h"
#include "tapir/ops/join/join.h"

namespace tapir::nn {

/// Sequences (length_i, ...), at least one, with the other dimensions the same: (longest, batch, ...) or, batch_first, (batch, longest,
/// ...), of the first one's dtype, with `padding_value` where a sequence is shorter: behind it or, padding_side "left", before it.
/// Throws ShapeError for sequences that do not go together, ValueError for none, an undefined one and another side, DTypeError for a
/// value that the dtype does not hold. As torch.nn.utils.rnn.pad_sequence. A loader that pads, with lengths for recurrent layers:
///
///     data::DataLoader loader(data::VectorDataset{sentences}, {.batch_size = 32}, [](const std::vector<Tensor>& items) {
///         std::vector<std::int64_t> lengths;
///         for (const Tensor& t : items) lengths.push_back(t.shape()[0]);
///         return std::pair(nn::pad_sequence(items, /*batch_first=*/true), tensor(lengths));
///     });
Tensor pad_sequence(TensorList sequences, bool batch_first = false, Scalar padding_value = 0, const TextArg& padding_side = "right");

}  // namespace tapir::nn
