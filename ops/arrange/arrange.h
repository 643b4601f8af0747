// Ops that repeat, flip and move elements, take triangles, and pad.
#pragma once

#include <type_traits>
#include <vector>

#include "tapir/core/arguments.h"
#include "tapir/core/tensor.h"

namespace tapir {

/// Returns the lower and upper triangles of the last two dimensions; the rest is 0.
Tensor tril(In x, std::int64_t diagonal = 0);
Tensor triu(In x, std::int64_t diagonal = 0);
Tensor flip(In x, const Dims& dims);  ///< reverses these dimensions; IndexError for one that does not exist or is named twice
/// Moves elements by shifts[i] along dims[i]; without dims over the flattened tensor.
Tensor roll(In x, const Shape& shifts, const Dims& dims = {});
/// Repeats x side by side, as torch.Tensor.repeat.
Tensor repeat(In x, const Shape& times);
/// Selects the values of the elements that pad adds: a constant ("constant", or "zeros"), the elements that are as far
/// on the other side of the edge ("reflect"), the one at the edge ("replicate"), or those of the other end ("circular").
class PadMode {
 public:
    enum class Kind : std::uint8_t { constant, reflect, replicate, circular };

    PadMode() = default;
    /// Throws ValueError for another word.
    PadMode(const TextArg& word, Loc loc = Loc::current());  // NOLINT: implicit by design
    template <class S>
        requires std::is_convertible_v<const S&, TextArg>
    PadMode(const S& word, Loc loc = Loc::current()) : PadMode(TextArg(word, loc), loc) {}  // NOLINT

    Kind kind() const noexcept { return kind_; }
    const char* str() const noexcept;

 private:
    Kind kind_ = Kind::constant;
};
/// Adds elements around x. `widths`: before and after for the last dimension, then for the one before it, and so on, as in
/// torch.nn.functional.pad. Negative widths cut. Throws ValueError for an odd number of widths, ShapeError for more pairs than x has
/// dimensions and if more is cut off than there is.
Tensor pad(In x, const std::vector<std::int64_t>& widths, Scalar value = 0);
/// Overload for any mode and any number of dimensions; negative widths cut first. "reflect" takes widths below the dimension's
/// size, "circular" up to it (ShapeError). A channels-last x gives a channels-last result.
Tensor pad(In x, const std::vector<std::int64_t>& widths, const PadMode& mode, Scalar value = 0);

}  // namespace tapir
