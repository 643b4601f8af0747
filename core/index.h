// What may stand between the brackets: x.index({0, Slice(1, 3), Ellipsis, None, mask}).
#pragma once

#include <cstdint>
#include <type_traits>

#include "tapir/core/error.h"

namespace tapir {

class Tensor;

/// A new dimension of size 1 (numpy.newaxis).
struct NoneType {};
inline constexpr NoneType None{};

/// Python's start:stop:step. `Slice()` is the whole dimension; negative positions count from the end; step > 0. None leaves an end
/// open: Slice(None, -1), Slice(2, None).
struct Slice {
    static constexpr std::int64_t kOpen = INT64_MIN;  ///< that end is open
    std::int64_t start = kOpen;
    std::int64_t stop = kOpen;
    std::int64_t step = 1;
    constexpr Slice() = default;
    constexpr Slice(std::int64_t from, std::int64_t to = kOpen, std::int64_t by = 1) : start(from), stop(to), step(by) {}
    constexpr Slice(std::int64_t from, NoneType, std::int64_t by = 1) : start(from), step(by) {}
    constexpr Slice(NoneType, std::int64_t to, std::int64_t by = 1) : stop(to), step(by) {}
    constexpr Slice(NoneType, NoneType, std::int64_t by = 1) : step(by) {}
};

/// As many whole dimensions as are left.
struct EllipsisType {};
inline constexpr EllipsisType Ellipsis{};

/// One entry of an index; converts from integers, Slice, None, Ellipsis, and bool or integer tensors.
struct Index {
    enum class Kind : std::uint8_t { integer, slice, none, ellipsis, tensor };

    template <class I>
        requires(std::is_integral_v<I> && !std::is_same_v<I, bool>)
    Index(I i, Loc line = Loc::current()) noexcept : kind(Kind::integer), loc(line) {
        slice.start = static_cast<std::int64_t>(i);
    }
    Index(Slice s, Loc line = Loc::current()) noexcept : kind(Kind::slice), slice(s), loc(line) {}
    Index(NoneType, Loc line = Loc::current()) noexcept : kind(Kind::none), loc(line) {}
    Index(EllipsisType, Loc line = Loc::current()) noexcept : kind(Kind::ellipsis), loc(line) {}
    Index(const Tensor& t, Loc line = Loc::current()) noexcept : kind(Kind::tensor), tensor(&t), loc(line) {}

    Kind kind;
    Slice slice;                     // an integer index is in slice.start
    const Tensor* tensor = nullptr;  // lives as long as the full expression that made the Index
    Loc loc;
};

}  // namespace tapir
