// Ops that make tensors: constants, ranges, literals, and tensors around existing memory.
//
// Shapes are given as in zeros({2, 3}). `dtype` defaults to default_dtype() for real numbers and to int64 for whole ones.
// Negative sizes throw ValueError. Random tensors are in tapir/ops/random/random.h.
#pragma once

#include <initializer_list>
#include <optional>
#include <type_traits>
#include <vector>

#include "tapir/core/generator.h"
#include "tapir/core/std_function.h"
#include "tapir/core/tensor.h"

namespace tapir {

/// zeros({2}, float64), zeros({2}, cuda(0)), zeros({2}, {float64, cpu, true}). Throws DTypeError if integers shall
/// require a gradient, DeviceError for a device that does not exist.
struct TensorOptions {
    std::optional<DType> dtype;    // unless given: the function's default
    std::optional<Device> device;  // unless given: default_device()
    bool requires_grad = false;
    TensorOptions() = default;
    TensorOptions(DType d) : dtype(d) {}  // NOLINT: implicit by design
    TensorOptions(DType d, Device where, bool gradient = false) : dtype(d), device(where), requires_grad(gradient) {}
    TensorOptions(Device where, bool gradient = false) : device(where), requires_grad(gradient) {}  // NOLINT
};

Tensor empty(const Shape& shape, TensorOptions options = {}, Loc loc = Loc::current());  ///< not filled
template <class... I>
    requires SizesOnly<I...>
Tensor empty(IndexArg first, IndexArg second, I... rest) {
    return empty(Shape(first.value, second.value, rest...), {}, first.loc);
}
Tensor zeros(const Shape& shape, TensorOptions options = {}, Loc loc = Loc::current());  ///< default_dtype() unless given
template <class... I>
    requires SizesOnly<I...>
Tensor zeros(IndexArg first, IndexArg second, I... rest) {
    return zeros(Shape(first.value, second.value, rest...), {}, first.loc);
}
Tensor ones(const Shape& shape, TensorOptions options = {}, Loc loc = Loc::current());  ///< default_dtype() unless given
template <class... I>
    requires SizesOnly<I...>
Tensor ones(IndexArg first, IndexArg second, I... rest) {
    return ones(Shape(first.value, second.value, rest...), {}, first.loc);
}
/// The dtype is the value's, unless given.
Tensor full(const Shape& shape, Scalar value, TensorOptions options = {}, Loc loc = Loc::current());
/// These take x's shape, device and, unless the options name another, dtype.
Tensor empty_like(In x, TensorOptions options = {});
Tensor zeros_like(In x, TensorOptions options = {});
Tensor ones_like(In x, TensorOptions options = {});
Tensor full_like(In x, Scalar value, TensorOptions options = {});

/// Returns start, start + step, ... below end. int64 when all are integers. Throws ValueError for step 0 or of the wrong sign.
Tensor arange(Scalar end, TensorOptions options = {}, Loc loc = Loc::current());
Tensor arange(Scalar start, Scalar end, TensorOptions options = {}, Loc loc = Loc::current());
Tensor arange(Scalar start, Scalar end, Scalar step, TensorOptions options = {}, Loc loc = Loc::current());
/// Returns `steps` numbers from start to end, both included.
Tensor linspace(double start, double end, std::int64_t steps, TensorOptions options = {}, Loc loc = Loc::current());
/// Returns `steps` powers of the base, with exponents from start to end.
Tensor logspace(double start, double end, std::int64_t steps, double base = 10, TensorOptions options = {}, Loc loc = Loc::current());
/// Returns the positions in the lower (upper) triangle of a matrix (rows, columns), row by row: int64 (2, count), rows and columns. Throws
/// ValueError for negative sizes.
Tensor tril_indices(std::int64_t rows, std::int64_t columns, std::int64_t offset = 0, TensorOptions options = {}, Loc loc = Loc::current());
Tensor triu_indices(std::int64_t rows, std::int64_t columns, std::int64_t offset = 0, TensorOptions options = {}, Loc loc = Loc::current());
/// Puts ones on the diagonal. (n, m), m = n unless given.
Tensor eye(std::int64_t n, std::int64_t m = -1, TensorOptions options = {}, Loc loc = Loc::current());
inline Tensor eye(std::int64_t n, TensorOptions options, Loc loc = Loc::current()) { return eye(n, -1, options, loc); }

/// A nested list of numbers, of any depth: tensor({{1, 2}, {3, 4}}).
class Literal {
 public:
    template <class T>
        requires(std::is_arithmetic_v<T>)
    Literal(T value) noexcept : value_(value) {}  // NOLINT: implicit by design
    Literal(std::initializer_list<Literal> list) noexcept : value_(0), list_(list.end() - list.size()), size_(list.size()), is_list_(true) {}

    bool is_list() const noexcept { return is_list_; }
    Scalar value() const noexcept { return value_; }
    const Literal* begin() const noexcept { return list_; }
    const Literal* end() const noexcept { return list_ + size_; }
    std::size_t size() const noexcept { return size_; }

 private:
    Scalar value_;
    const Literal* list_ = nullptr;  // lives as long as the full expression that wrote the list
    std::size_t size_ = 0;
    bool is_list_ = false;
};

/// Makes a tensor from nested lists: int64, bool or default_dtype() by the numbers' widest category, or as given. Throws ShapeError for
/// ragged lists.
Tensor tensor(const Literal& literal, TensorOptions options = {}, Loc loc = Loc::current());

/// Copies `numel` values of the dtype `from` at `values`; to another dtype when the options name one.
Tensor tensor_from(const void* values, const Shape& shape, DType from, TensorOptions options = {}, Loc loc = Loc::current());

/// Copies a vector, 1-d. The vector's element type is the dtype unless one is given.
template <class T>
    requires(std::is_arithmetic_v<T>)
Tensor tensor(const std::vector<T>& values, TensorOptions options = {}, Loc loc = Loc::current()) {
    if constexpr (std::is_same_v<T, bool>) {
        const std::vector<unsigned char> bytes(values.begin(), values.end());
        return tensor_from(bytes.data(), Shape(bytes.size()), bool_, options, loc);
    } else {
        return tensor_from(values.data(), Shape(values.size()), dtype_of<T>, options, loc);
    }
}

namespace detail {

template <class T>
struct NestedNumber {
    using type = T;
};
template <class T>
struct NestedNumber<std::vector<T>> : NestedNumber<T> {};

/// Throws ShapeError.
[[noreturn]] void fail_ragged(std::int64_t size, std::int64_t other, const Loc& loc);

/// Collects sizes from dimension d on (-1: not seen yet), and the numbers row by row.
template <class T, class Number>
void flatten_nested(const std::vector<T>& list, int d, Shape& shape, std::vector<Number>& numbers, const Loc& loc) {
    const auto size = static_cast<std::int64_t>(list.size());
    if (shape.raw(d) >= 0 && shape.raw(d) != size) fail_ragged(shape.raw(d), size, loc);
    shape.raw(d) = size;
    for (const auto& entry : list) {
        if constexpr (std::is_arithmetic_v<T>) {
            numbers.push_back(entry);
        } else {
            flatten_nested(entry, d + 1, shape, numbers, loc);
        }
    }
}

template <class T>
constexpr int nested_depth(const std::vector<T>*) {
    if constexpr (std::is_arithmetic_v<T>) {
        return 1;
    } else {
        return 1 + nested_depth(static_cast<const T*>(nullptr));
    }
}

}  // namespace detail

/// Overload for a vector of vectors, of any depth: {{1, 2}, {3, 4}} -> (2, 2). Throws ShapeError if they differ in length.
template <class T>
    requires(std::is_arithmetic_v<typename detail::NestedNumber<T>::type>)
Tensor tensor(const std::vector<std::vector<T>>& values, TensorOptions options = {}, Loc loc = Loc::current()) {
    using Number = typename detail::NestedNumber<T>::type;
    constexpr int depth = detail::nested_depth(static_cast<const std::vector<std::vector<T>>*>(nullptr));
    static_assert(depth <= kMaxRank, "a tensor has at most 8 dimensions");
    constexpr bool is_bool = std::is_same_v<Number, bool>;
    Shape shape;
    for (int d = 0; d < depth; ++d) shape.push_back(-1, loc);
    std::vector<std::conditional_t<is_bool, unsigned char, Number>> numbers;
    detail::flatten_nested(values, 0, shape, numbers, loc);
    for (std::int64_t& size : shape) size = size < 0 ? 0 : size;  // sizes inside an empty list
    if constexpr (is_bool) {
        return tensor_from(numbers.data(), shape, bool_, options, loc);
    } else {
        return tensor_from(numbers.data(), shape, dtype_of<Number>, options, loc);
    }
}

/// Makes a tensor around memory that stays the caller's, or, with a deleter, becomes the tensor's: deleter(data) runs when
/// the last view is gone, and must not throw. When from_blob itself throws, the memory is still the caller's. Strides are
/// in elements (row-major unless given). Throws ValueError for null or misaligned data and for negative strides, DeviceError
/// for options.device = cuda(i) and data that is not on that device; work that writes it must be done or on the current stream.
Tensor from_blob(void* data, const Shape& shape, TensorOptions options = {}, Loc loc = Loc::current());
Tensor from_blob(void* data, const Shape& shape, std::function<void(void*)> deleter, TensorOptions options = {}, Loc loc = Loc::current());
Tensor from_blob(void* data, const Shape& shape, const Shape& strides, std::function<void(void*)> deleter, TensorOptions options = {},
                 Loc loc = Loc::current());

}  // namespace tapir
