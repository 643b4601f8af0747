// What an op gives, known from what it takes: dtypes and shapes, of numbers or of symbolic sizes. Each op states it with its form, beside its code:
//
//     TAPIR_FORM(softmax, 1, SoftmaxAttrs, same(t[0]), softmax(x[0], a.dim), f("dim", a.dim));
//
// They run nothing. A test holds each against what the op gives; graphs will be checked, edited and loaded by them.
#pragma once

#include <initializer_list>
#include <vector>

#include "tapir/autograd/sym_int.h"
#include "tapir/core/device.h"
#include "tapir/core/dtype.h"
#include "tapir/core/shape.h"

namespace tapir {

class Attributes;

/// The type of a value in a graph. A size that no formula gives is the dimension "unknown".
struct ValueType {
    DType dtype;
    Device device;
    std::vector<SymInt> shape;

    int rank() const noexcept { return static_cast<int>(shape.size()); }
    friend bool operator==(const ValueType&, const ValueType&) = default;
};

/// One for each result; none: the op states no rule, or not for this call.
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

    /// Throws ValueError where there is none.
    const ValueType& operator[](int i) const;
    /// Attributes that may depend on named dimensions: in the op's own struct these are 0.
    SymInt size(const char* attribute) const;
    std::vector<SymInt> sizes(const char* attribute) const;
};

/// The rules that most ops are made of. They throw ShapeError, IndexError and ValueError for what the op refuses.
namespace types {

// --- What an op takes ---------------------------------------------------------------------------------------------------------

/// Throws E where it does not hold: "embedding: the weight must be (rows, width)".
template <class E = ShapeError>
void need(bool holds, const char* what);
/// x, if it has so many dimensions; this one, or these, each once; square matrices; elements to choose from, along these dimensions or at all.
const ValueType& ranked(const ValueType& x, int least, int most = kMaxRank);
const ValueType& along(const ValueType& x, std::int64_t dim);
const ValueType& along(const ValueType& x, const Dims& dims);
const ValueType& square(const ValueType& x);
const ValueType& chosen(const ValueType& x, const Dims& dims);
/// x, if it may have the shape of another, where a number says more than a name; or if that one may be broadcast to its shape.
ValueType alike(const ValueType& x, const ValueType& other);
const ValueType& holding(const ValueType& x, const ValueType& other);
/// Of two sizes that have to be equal.
SymInt agreed(const SymInt& a, const SymInt& b);

// --- Types --------------------------------------------------------------------------------------------------------------------

inline ResultTypes unstated() { return {}; }
/// Of an op with several results.
template <class... T>
ResultTypes several(T... each) {
    return {static_cast<T&&>(each)...};
}
inline SymInt unknown() { return SymInt::dim("unknown"); }

/// As the operand is, or of another dtype, or shape.
inline ValueType same(const ValueType& x) { return x; }
ValueType same(const ValueType& x, DType dtype);
ValueType shaped(const ValueType& x, std::vector<SymInt> shape);
ValueType shaped(const ValueType& x, std::vector<SymInt> shape, DType dtype);
/// The same elements, where a size of -1 is what the others leave of them; repeated, where it is the operand's own.
ValueType reshaped(const ValueType& x, std::vector<SymInt> shape);
ValueType expanded(const ValueType& x, std::vector<SymInt> shape);
/// Of no operand.
inline ValueType made(std::vector<SymInt> shape, DType dtype, Device device) { return {dtype, device, static_cast<std::vector<SymInt>&&>(shape)}; }

/// The dtype that operands promote to, those with dimensions before those without: PyTorch's result_type.
DType promoted(const TypeCall& t, int from = 0, int count = -1);
/// The same for ops whose results are floating: the default dtype for integers.
DType floating(DType dtype) noexcept;
/// What sums and products of whole numbers are: int64.
DType summed(DType dtype) noexcept;
/// What is computed in where 16 bits are too few: float32 for all but float64.
DType computed(DType dtype) noexcept;
/// The common shape of some of the operands. A named size beside a number other than 1 is that number; beside another name it is unknown.
std::vector<SymInt> broadcast(const TypeCall& t, int from = 0, int count = -1);
std::vector<SymInt> broadcast(const std::vector<SymInt>& a, const std::vector<SymInt>& b);
/// Broadcast, and of this dtype or the promoted one. On a device where one operand is.
ValueType pointwise(const TypeCall& t);
ValueType pointwise(const TypeCall& t, DType dtype);

/// Over these dimensions, all where there is none.
ValueType reduced(const ValueType& x, const Dims& dims, bool keepdim, DType dtype);
/// Over one.
ValueType reduced_along(const ValueType& x, std::int64_t dim, bool keepdim, DType dtype);
/// The elements that are picked along a dimension, and their indices.
ResultTypes picked(const ValueType& x, std::int64_t dim, bool keepdim);
/// With another size of a dimension; without it; with one more in front of it.
ValueType resized(const ValueType& x, std::int64_t dim, SymInt size);
ValueType dropped(const ValueType& x, std::int64_t dim);
ValueType inserted(const ValueType& x, std::int64_t dim, SymInt size);
/// Without it, for one of its elements, which has to be there.
ValueType selected(const ValueType& x, std::int64_t dim, const SymInt& index);
/// One size: -1 is the last dimension.
const SymInt& size_of(const ValueType& x, std::int64_t dim);
/// The product of the sizes from one dimension to before another, or of all.
SymInt product(const std::vector<SymInt>& shape, std::size_t from, std::size_t to);
SymInt product(const std::vector<SymInt>& shape);
/// size / by, which has to be whole; the smaller of two sizes; either unknown where it depends on more than SymInt says.
SymInt quotient(const SymInt& size, const SymInt& by);
SymInt smaller(const SymInt& a, const SymInt& b);
/// Of spatial dimension d of so many: the one number that is given for all, or that of its own.
SymInt spatial(const std::vector<SymInt>& given, int d, int dims);
/// How many windows of `kernel` elements, `dilation` apart, fit into a size, one every `stride`.
SymInt windows(const SymInt& size, const SymInt& kernel, const SymInt& stride, const SymInt& dilation = 1);
/// With the dimensions in this order; along one dimension, as cat() does.
ValueType permuted(const ValueType& x, const std::vector<SymInt>& dims);
ValueType joined(const TypeCall& t, std::int64_t dim);
/// All operands along a new dimension.
ValueType stacked(const TypeCall& t, std::int64_t dim);
ValueType swapped(const ValueType& x, std::int64_t a, std::int64_t b);
/// x[start:end:step] along a dimension; of an unknown size where a bound may be clipped to a named one.
ValueType sliced(const ValueType& x, std::int64_t dim, const SymInt& start, const SymInt& end, std::int64_t step);
/// One for each size, or for each place along the dimension, which is dropped.
ResultTypes cut(const ValueType& x, std::int64_t dim, bool drop, const std::vector<SymInt>& sizes);
/// The sizes with more behind them: some, or those of x from one dimension to before another.
std::vector<SymInt> appended(std::vector<SymInt> shape, const std::vector<SymInt>& more);
std::vector<SymInt> appended(std::vector<SymInt> shape, const ValueType& x, int from, int to = -1);
/// The sizes of all but the last dimensions, and then these.
std::vector<SymInt> leading(const ValueType& x, int without, const std::vector<SymInt>& then = {});
/// The matrix product, where a vector is a row or a column that is dropped.
ValueType multiplied(const ValueType& a, const ValueType& b);
/// The diagonal from `offset` on of two dimensions, which becomes the last one.
ValueType diagonal(const ValueType& x, const SymInt& offset, std::int64_t dim1, std::int64_t dim2);
/// An optimizer's parameter and what it keeps for it, after a step: all operands but the gradient.
ResultTypes updated(const TypeCall& t);

}  // namespace types

namespace detail {
/// What the op of these attributes gives for operands of these types; none where it states no rule. Throws ShapeError, IndexError and ValueError.
ResultTypes result_types(const Attributes& attributes, const std::vector<ValueType>& operands, const Loc& loc);
}  // namespace detail

}  // namespace tapir
