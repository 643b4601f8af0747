// Index entries beside integers and tensors: x.index({0, Slice(1, 3), Ellipsis, None, mask}).
#pragma once

#include <cstdint>

namespace tapir {

/// A new dimension of size 1 (numpy.newaxis).
struct NoneType {};
inline constexpr NoneType None{};

/// Python's start:stop:step. `Slice()` is the whole dimension; negative positions count from the end; step > 0. None leaves an end
/// open: Slice(None, -1), Slice(2, None).
struct Slice {
    static constexpr std::int64_t kOpen =
        INT64_MIN;  ///< marks an open end; a start given as this number is not open: it lies as far before the first element
    std::int64_t start = kOpen;
    std::int64_t stop = kOpen;
    std::int64_t step = 1;
    constexpr Slice() = default;
    constexpr explicit Slice(NoneType) {}
    constexpr Slice(std::int64_t from, std::int64_t to = kOpen, std::int64_t by = 1) : start(number(from)), stop(to), step(by) {}
    constexpr Slice(std::int64_t from, NoneType, std::int64_t by = 1) : start(number(from)), step(by) {}
    constexpr Slice(NoneType, std::int64_t to, std::int64_t by = 1) : stop(number(to)), step(by) {}
    constexpr Slice(NoneType, NoneType, std::int64_t by = 1) : step(by) {}

 private:
    static constexpr std::int64_t number(std::int64_t end) { return end == kOpen ? kOpen + 1 : end; }  // lies as far before the first element
};

/// Stands for all dimensions that the other entries leave.
struct EllipsisType {};
inline constexpr EllipsisType Ellipsis{};

}  // namespace tapir
