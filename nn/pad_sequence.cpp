#include "tapir/nn/pad_sequence.h"

#include <algorithm>

#include "tapir/core/fail_impl.h"
#include "tapir/ops/arrange/arrange.h"
#include "tapir/ops/join/join.h"

namespace tapir::nn {

Tensor pad_sequence(TensorList sequences, bool batch_first, Scalar padding_value, const TextArg& padding_side) {
    const Loc& loc = sequences.loc;
    const bool is_left = padding_side == "left";
    if (!is_left && padding_side != "right") {
        fail<ValueError>(loc, "pad_sequence: padding_side must be \"left\" or \"right\", got \"{}\"", padding_side);
    }
    if (sequences.size == 0) fail<ValueError>(loc, "pad_sequence: no sequences");
    std::int64_t longest = 0;
    for (std::size_t i = 0; i < sequences.size; ++i) {
        const Tensor &t = sequences.data[i], &first = sequences.data[0];
        if (!t.defined()) fail<ValueError>(loc, "pad_sequence: sequence {} is undefined", i);
        if (t.dim() == 0) fail<ShapeError>(loc, "pad_sequence: sequence {} has no dimensions", i);
        const Shape shape = t.shape(), other = first.shape();
        if (!std::equal(shape.begin() + 1, shape.end(), other.begin() + 1, other.end())) {
            fail<ShapeError>(loc, "pad_sequence: sequence {} has shape {}, the first {}: only the first dimension may differ", i, shape, other);
        }
        longest = std::max(longest, shape[0]);
    }
    const CallerScope caller(loc);
    std::vector<Tensor> padded;
    padded.reserve(sequences.size);
    for (std::size_t i = 0; i < sequences.size; ++i) {
        const Tensor t = sequences.data[i].to(sequences.data[0].dtype());
        const std::int64_t missing = longest - t.shape()[0];
        std::vector<std::int64_t> widths(2 * static_cast<std::size_t>(t.dim()));  // the first dimension's are the last
        widths[widths.size() - (is_left ? 2 : 1)] = missing;
        padded.push_back(missing == 0 ? t : pad(t, widths, padding_value));
    }
    return stack(padded, batch_first ? 0 : 1);
}

}  // namespace tapir::nn
