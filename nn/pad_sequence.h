// pad_sequence: joins sequences of different lengths in one tensor, for recurrent layers and attention.
#pragma once

#include <string>

#include "tapir/core/arguments.h"
#include "tapir/ops/join/join.h"

namespace tapir::nn {

/// Joins sequences (length_i, ...), at least one, whose other dimensions agree: (longest, batch, ...) or, batch_first, (batch, longest,
/// ...), of the first one's dtype. Shorter sequences are filled up with `padding_value`: behind or, with padding_side "left", in front.
/// Throws ShapeError for shapes that do not agree, ValueError for no sequence, an undefined one and another side, DTypeError for a
/// value that the dtype cannot hold. As torch.nn.utils.rnn.pad_sequence. A loader that pads, with lengths for recurrent layers:
///
///     data::DataLoader loader(data::VectorDataset{sentences}, {.batch_size = 32}, [](const std::vector<Tensor>& items) {
///         std::vector<std::int64_t> lengths;
///         for (const Tensor& t : items) lengths.push_back(t.shape()[0]);
///         return std::pair(nn::pad_sequence(items, /*batch_first=*/true), tensor(lengths));
///     });
Tensor pad_sequence(TensorList sequences, bool batch_first = false, Scalar padding_value = 0, const TextArg& padding_side = "right");

}  // namespace tapir::nn
