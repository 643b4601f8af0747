// Joining tensors, and reading and writing them at computed positions. Index tensors are int64 or int32; an index out of
// range throws IndexError before anything is written; on CUDA at the next call that waits for the device, and
// another element is read or written in its place. Negative indices count from the end. Where sums are made at computed
// positions on CUDA, their order varies unless set_deterministic() says otherwise.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tapir/core/arguments.h"
#include "tapir/core/tensor.h"

namespace tapir {

/// Several tensors as an argument, with the line of the call.
struct TensorList {
    TensorList(const std::vector<Tensor>& list, Loc line = Loc::current()) noexcept  // NOLINT: implicit by design
        : data(list.data()), size(list.size()), loc(line) {}
    TensorList(std::initializer_list<Tensor> list, Loc line = Loc::current()) noexcept  // NOLINT
        : data(list.end() - list.size()), size(list.size()), loc(line) {}
    TensorList(const Tensor* first, std::size_t count, Loc line) noexcept : data(first), size(count), loc(line) {}
    const Tensor* begin() const noexcept { return data; }
    const Tensor* end() const noexcept { return data + size; }
    const Tensor& operator[](std::size_t i) const noexcept { return data[i]; }
    const Tensor* data;
    std::size_t size;
    Loc loc;
};

/// Joined along an existing dimension; other sizes must agree (ShapeError). Dtypes promote. 1-d tensors of size 0 are
/// skipped, as in PyTorch.
Tensor cat(TensorList tensors, Dim dim = 0);
inline Tensor concat(TensorList tensors, Dim dim = 0) { return cat(tensors, dim); }  ///< cat() by its other name
/// Joined along a new dimension; shapes must be equal.
Tensor stack(TensorList tensors, Dim dim = 0);

/// out[i][j] = x[index[i][j]][j] for dim 0, and so on. index has x's number of dimensions.
Tensor gather(In x, Dim dim, In index);
/// A copy of x with src written (or a number, or added) where gather would read.
Tensor scatter(In x, Dim dim, In index, In src);
Tensor scatter(In x, Dim dim, In index, Scalar value);
Tensor scatter_add(In x, Dim dim, In index, In src);
/// x with src's elements combined where scatter_add would add them: "sum", "prod", "mean", "amax" or "amin" of them and, with
/// include_self, of what x has there; other elements are x's. index has x's number of dimensions and is not larger than src, nor, but
/// along dim, than x (ShapeError); src is of x's dtype (DTypeError). The mean of integers is rounded down; nan is the largest and the
/// smallest. Equal extremes share the gradient; the second derivative of "prod" is refused where several zeros of src meet (ValueError).
/// Throws ValueError for another word, DeviceError for "prod" of floats on CUDA under set_deterministic().
///     Tensor largest = scatter_reduce(zeros({3}), 0, index, src, "amax", /*include_self=*/false);
Tensor scatter_reduce(In x, Dim dim, In index, In src, const char* reduce, Flag include_self = true);
/// The slices of x at the positions in index (1-d).
Tensor index_select(In x, Dim dim, In index);
/// A copy of x with alpha * src's slices added at these positions.
Tensor index_add(In x, Dim dim, In index, In src, Scalar alpha = 1);
/// x with value (a number or a 0-d tensor) in the slices at these positions.
Tensor index_fill(In x, Dim dim, In index, Scalar value);
Tensor index_fill(In x, Dim dim, In index, In value);
/// x with value where the mask (bool, broadcast) holds.
Tensor masked_fill(In x, In mask, Scalar value);
Tensor masked_fill(In x, In mask, In value);
/// The elements where the mask holds, 1-d.
Tensor masked_select(In x, In mask);
/// Positions of what is not 0: int64 (n, dim).
Tensor nonzero(In x);
Tensor argwhere(In x);  ///< nonzero

/// Rows of the weight: weight (n, d), indices (...) -> (..., d). padding_idx's row (-1: the last) gets no gradient. Throws IndexError
/// unless all indices are in [0, n): as in PyTorch, negative ones do not count from the end here.
Tensor embedding(In indices, In weight, std::optional<std::int64_t> padding_idx = {});
/// int64 (..., classes). classes -1: the largest index + 1.
Tensor one_hot(In indices, std::int64_t classes = -1);

/// Lower and upper triangles of the last two dimensions; the rest is 0.
Tensor tril(In x, std::int64_t diagonal = 0);
Tensor triu(In x, std::int64_t diagonal = 0);
Tensor flip(In x, const Dims& dims);
/// Elements moved around by shifts[i] along dims[i]; without dims over the flattened tensor.
Tensor roll(In x, const Shape& shifts, const Dims& dims = {});
/// Copies side by side, as torch.Tensor.repeat.
Tensor repeat(In x, const Shape& times);

/// What stands in the elements that pad adds: a constant ("constant", or "zeros"), the elements that are as far
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

/// Elements put around x. `widths`: before and after for the last dimension, then for the one before it, and so on, as in
/// torch.nn.functional.pad. Negative widths cut. Throws ValueError for an odd number of widths, ShapeError for more than x has
/// dimensions and where more is cut off than there is.
Tensor pad(In x, const std::vector<std::int64_t>& widths, Scalar value = 0);
/// The same in any mode, for any number of dimensions; negative widths cut first. "reflect" takes widths below the dimension's
/// size, "circular" up to it (ShapeError). A channels-last x gives a channels-last result.
Tensor pad(In x, const std::vector<std::int64_t>& widths, const PadMode& mode, Scalar value = 0);

}  // namespace tapir
