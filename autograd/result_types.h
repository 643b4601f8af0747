// Result types of ops, from their operands' types: dtypes and shapes, of numbers or symbolic sizes. Each op states its rule in its form:
//
//     TAPIR_FORM(softmax, 1, SoftmaxAttrs, same(t[0]), softmax(x[0], a.dim), f("dim", a.dim));
//
// The rules run nothing. A test compares each with what the op returns; graphs are checked, edited and loaded with them.
#pragma once

#include <initializer_list>
#include <vector>

#include "tapir/autograd/sym_int.h"
#include "tapir/core/device.h"
#include "tapir/core/dtype.h"
#include "tapir/core/shape.h"

namespace tapir {

class Attributes;

/// The type of a value in a graph. A size without a formula is the dimension "unknown".
struct ValueType {
    DType dtype;
    Device device;
    std::vector<SymInt> shape;

    int rank() const noexcept { return static_cast<int>(shape.size()); }
    friend bool operator==(const ValueType&, const ValueType&) = default;
};

/// One type for each result. Empty: the op states no rule, or none for this call.
class ResultTypes : public std::vector<ValueType> {
 public:
    ResultTypes() = default;
    ResultTypes(ValueType only) { push_back(static_cast<ValueType&&>(only)); }  // NOLINT: implicit by design
    ResultTypes(std::initializer_list<ValueType> all) : std::vector<ValueType>(all) {}
};

/// A call of an op, as a rule sees it.
struct TypeCall {
    const ValueType* operands;
    int count;
    const Attributes& attributes;
    Loc loc;

    /// Throws ValueError if there is no operand i.
    const ValueType& operator[](int i) const;
    /// Attributes that may depend on named dimensions: the op's own struct holds 0 for these.
    SymInt size(const char* attribute) const;
    std::vector<SymInt> sizes(const char* attribute) const;
};

/// The rules that most ops are made of. They throw ShapeError, IndexError and ValueError for what the op refuses.
namespace types {

// --- What an op takes ---------------------------------------------------------------------------------------------------------

/// Throws E if `holds` is false: "embedding: the weight must be (rows, width)".
template <class E = ShapeError>
void need(bool holds, const char* what);
/// Return x after a check: of its rank; that it has this dimension, or these, each once; that it is square; that the dims are not empty.
const ValueType& ranked(const ValueType& x, int least, int most = kMaxRank);
const ValueType& along(const ValueType& x, std::int64_t dim);
const ValueType& along(const ValueType& x, const Dims& dims);
const ValueType& square(const ValueType& x);
const ValueType& chosen(const ValueType& x, const Dims& dims);
/// Returns x if its shape may equal that of `other`, with numbers in place of names; or x if `other` may be broadcast to its shape.
ValueType alike(const ValueType& x, const ValueType& other);
const ValueType& holding(const ValueType& x, const ValueType& other);
/// Returns the common size of two that must be equal.
SymInt agreed(const SymInt& a, const SymInt& b);

// --- Types --------------------------------------------------------------------------------------------------------------------

inline ResultTypes unstated() { return {}; }
/// For an op with several results.
template <class... T>
ResultTypes several(T... each) {
    return {static_cast<T&&>(each)...};
}
inline SymInt unknown() { return SymInt::dim("unknown"); }

/// The operand's type; or with another dtype or shape.
inline ValueType same(const ValueType& x) { return x; }
ValueType same(const ValueType& x, DType dtype);
ValueType shaped(const ValueType& x, std::vector<SymInt> shape);
ValueType shaped(const ValueType& x, std::vector<SymInt> shape, DType dtype);
/// The same elements in another shape, where one size may be -1; or repeated, where -1 keeps the operand's size.
ValueType reshaped(const ValueType& x, std::vector<SymInt> shape);
ValueType expanded(const ValueType& x, std::vector<SymInt> shape);
/// The type of a tensor that is created without operands.
inline ValueType made(std::vector<SymInt> shape, DType dtype, Device device) { return {dtype, device, static_cast<std::vector<SymInt>&&>(shape)}; }

/// The dtype that operands promote to, those with dimensions before those without, like PyTorch's result_type.
DType promoted(const TypeCall& t, int from = 0, int count = -1);
/// The result dtype of ops with floating results: the default dtype for integers.
DType floating(DType dtype) noexcept;
/// The dtype of sums and products of whole numbers: int64.
DType summed(DType dtype) noexcept;
/// The common shape of some operands. A named size beside a number other than 1 becomes that number; beside another name, unknown.
std::vector<SymInt> broadcast(const TypeCall& t, int from = 0, int count = -1);
std::vector<SymInt> broadcast(const std::vector<SymInt>& a, const std::vector<SymInt>& b);
/// Element-wise: the broadcast shape, this dtype or the promoted one, on a device if one operand is.
ValueType pointwise(const TypeCall& t);
ValueType pointwise(const TypeCall& t, DType dtype);

/// Reduces over these dimensions, or over all if there are none.
ValueType reduced(const ValueType& x, const Dims& dims, bool keepdim, DType dtype);
/// Reduces over one dimension.
ValueType reduced_along(const ValueType& x, std::int64_t dim, bool keepdim, DType dtype);
/// The elements that are picked along a dimension, and their indices.
ResultTypes picked(const ValueType& x, std::int64_t dim, bool keepdim);
/// x with another size of a dimension; without the dimension; with a new one in front of it.
ValueType resized(const ValueType& x, std::int64_t dim, SymInt size);
ValueType dropped(const ValueType& x, std::int64_t dim);
ValueType inserted(const ValueType& x, std::int64_t dim, SymInt size);
/// x without the dimension, for one element of it. Checks that the element exists.
ValueType selected(const ValueType& x, std::int64_t dim, const SymInt& index);
/// The size of one dimension; -1 is the last.
const SymInt& size_of(const ValueType& x, std::int64_t dim);
/// The product of the sizes of dimensions [from, to), or of all.
SymInt product(const std::vector<SymInt>& shape, std::size_t from, std::size_t to);
SymInt product(const std::vector<SymInt>& shape);
/// size / by, which must be whole; the smaller of two sizes. Either is unknown where SymInt cannot express it.
SymInt quotient(const SymInt& size, const SymInt& by);
SymInt smaller(const SymInt& a, const SymInt& b);
/// The entry for spatial dimension d of `dims`: `given` has one number for all, or one for each.
SymInt spatial(const std::vector<SymInt>& given, int d, int dims);
/// The number of windows of `kernel` elements, `dilation` apart, that fit into a size, one every `stride`.
SymInt windows(const SymInt& size, const SymInt& kernel, const SymInt& stride, const SymInt& dilation = 1);
/// x with its dimensions in this order; operands joined along one dimension, like cat().
ValueType permuted(const ValueType& x, const std::vector<SymInt>& dims);
ValueType joined(const TypeCall& t, std::int64_t dim);
/// All operands stacked along a new dimension.
ValueType stacked(const TypeCall& t, std::int64_t dim);
ValueType swapped(const ValueType& x, std::int64_t a, std::int64_t b);
/// x[start:end:step] along a dimension. The size is unknown if a bound may be clipped to a named one.
ValueType sliced(const ValueType& x, std::int64_t dim, const SymInt& start, const SymInt& end, std::int64_t step);
/// One result for each size; or, with `drop`, for each place along the dimension, which is dropped.
ResultTypes cut(const ValueType& x, std::int64_t dim, bool drop, const std::vector<SymInt>& sizes);
/// The shape followed by more sizes: a list, or those of x's dimensions [from, to).
std::vector<SymInt> appended(std::vector<SymInt> shape, const std::vector<SymInt>& more);
std::vector<SymInt> appended(std::vector<SymInt> shape, const ValueType& x, int from, int to = -1);
/// The sizes of x without its last `without` dimensions, followed by `then`.
std::vector<SymInt> leading(const ValueType& x, int without, const std::vector<SymInt>& then = {});
/// The matrix product. A vector is a row or a column that is dropped.
ValueType multiplied(const ValueType& a, const ValueType& b);
/// The diagonal from `offset` on of two dimensions, as a new last dimension.
ValueType diagonal(const ValueType& x, const SymInt& offset, std::int64_t dim1, std::int64_t dim2);
/// The state after an optimizer's step: all operands but the gradient.
ResultTypes updated(const TypeCall& t);

}  // namespace types

namespace detail {
/// Returns the result types of the op of these attributes; empty if it states no rule. Throws ShapeError, IndexError and ValueError.
ResultTypes result_types(const Attributes& attributes, const std::vector<ValueType>& operands, const Loc& loc);
}  // namespace detail

}  // namespace tapir
