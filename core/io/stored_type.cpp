#include "tapir/core/io/stored_type_impl.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "tapir/core/make_impl.h"

namespace tapir::io {
namespace {

template <class Stored, class T>
bool widen(const std::byte* from, void* to, std::int64_t count) {
    bool fits = true;
    for (std::int64_t i = 0; i < count; ++i) {
        Stored value;
        std::memcpy(&value, from + i * static_cast<std::int64_t>(sizeof value), sizeof value);
        fits &= std::in_range<T>(value);
        static_cast<T*>(to)[i] = static_cast<T>(value);
    }
    return fits;
}

// Converts a number of 8 bits: a sign, an exponent with this bias, and a mantissa of kMantissa bits (Micikevicius et al. 2022,
// arXiv:2209.05433). E5M2 has infinities as in IEEE 754; E4M3 (torch.float8_e4m3fn) has only nan, with all bits set.
template <int kMantissa, int kBias, bool kHasInfinity>
float from_float8(unsigned bits) {
    constexpr unsigned kExponents = 0x7FU >> kMantissa;
    const unsigned mantissa = bits & ((1U << kMantissa) - 1), exponent = (bits & 0x7FU) >> kMantissa;
    float value = 0;
    if (kHasInfinity && exponent == kExponents) {
        value = mantissa ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
    } else if (!kHasInfinity && (bits & 0x7FU) == 0x7FU) {
        value = std::numeric_limits<float>::quiet_NaN();
    } else if (exponent == 0) {
        value = std::ldexp(static_cast<float>(mantissa), 1 - kBias - kMantissa);
    } else {
        value = std::ldexp(static_cast<float>(mantissa | 1U << kMantissa), static_cast<int>(exponent) - kBias - kMantissa);
    }
    return bits & 0x80U ? -value : value;
}

template <int kMantissa, int kBias, bool kHasInfinity>
bool widen_float8(const std::byte* from, void* to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
        static_cast<float*>(to)[i] = from_float8<kMantissa, kBias, kHasInfinity>(std::to_integer<unsigned>(from[i]));
    }
    return true;
}

constexpr StoredType kTypes[] = {
    {"f8", "F64", 8, float64, nullptr},
    {"f4", "F32", 4, float32, nullptr},
    {"f2", "F16", 2, float16, nullptr},
    {nullptr, "BF16", 2, bfloat16, nullptr},
    {"i8", "I64", 8, int64, nullptr},
    {"i4", "I32", 4, int32, nullptr},
    {"u1", "U8", 1, uint8, nullptr},
    {"b1", "BOOL", 1, bool_, nullptr},
    {"i1", "I8", 1, int32, widen<std::int8_t, std::int32_t>},
    {"i2", "I16", 2, int32, widen<std::int16_t, std::int32_t>},
    {"u2", "U16", 2, int32, widen<std::uint16_t, std::int32_t>},
    {"u4", "U32", 4, int64, widen<std::uint32_t, std::int64_t>},
    {"u8", "U64", 8, int64, widen<std::uint64_t, std::int64_t>},
    {nullptr, "F8_E4M3", 1, float32, widen_float8<3, 7, false>},
    {nullptr, "F8_E5M2", 1, float32, widen_float8<2, 15, true>},
};

}  // namespace

std::int64_t bytes_in_file(const Shape& shape, const StoredType& type) noexcept {
    return detail::bytes_of(shape, itemsize(type.dtype)) < 0 ? -1 : detail::bytes_of(shape, type.size);
}

std::span<const StoredType> stored_types() noexcept { return kTypes; }

}  // namespace tapir::io
