// Element types: the DType enum, the 16-bit float types, and Scalar, a C++ number handed to an op.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tapir/core/error.h"

namespace tapir {

enum class DType : std::uint8_t { boolean, uint8, int32, int64, float16, bfloat16, float32, float64 };
inline constexpr int kDTypes = 8;

inline constexpr DType float32 = DType::float32;
inline constexpr DType float64 = DType::float64;
inline constexpr DType float16 = DType::float16;
inline constexpr DType bfloat16 = DType::bfloat16;
inline constexpr DType int32 = DType::int32;
inline constexpr DType int64 = DType::int64;
inline constexpr DType uint8 = DType::uint8;
inline constexpr DType bool_ = DType::boolean;

// libtorch's names.
inline constexpr DType kFloat32 = float32, kFloat = float32, kFloat64 = float64, kDouble = float64;
inline constexpr DType kFloat16 = float16, kHalf = float16, kBFloat16 = bfloat16;
inline constexpr DType kInt32 = int32, kInt = int32, kInt64 = int64, kLong = int64, kUInt8 = uint8, kByte = uint8, kBool = bool_;

/// IEEE 754 binary16: 1 sign, 5 exponent and 10 fraction bits. Storage only; arithmetic happens in float.
struct Half {
    std::uint16_t bits = 0;
    Half() = default;
    /// Rounds to nearest even; values beyond 65504 become infinite.
    explicit Half(float value) noexcept;
    operator float() const noexcept;
};

/// The upper half of a float32: 1 sign, 8 exponent and 7 fraction bits. Storage only; arithmetic happens in float.
struct BFloat16 {
    std::uint16_t bits = 0;
    BFloat16() = default;
    /// Rounds to nearest even.
    explicit BFloat16(float value) noexcept;
    operator float() const noexcept;
};

/// The DType of a C++ type: dtype_of<float> == float32.
template <class T>
inline constexpr DType dtype_of = [] {
    static_assert(!std::is_same_v<T, T>, "tapir has no dtype for this C++ type");
    return DType::float32;
}();
template <>
inline constexpr DType dtype_of<float> = DType::float32;
template <>
inline constexpr DType dtype_of<double> = DType::float64;
template <>
inline constexpr DType dtype_of<Half> = DType::float16;
template <>
inline constexpr DType dtype_of<BFloat16> = DType::bfloat16;
template <>
inline constexpr DType dtype_of<int> = DType::int32;
template <>
inline constexpr DType dtype_of<long> = sizeof(long) == 8 ? DType::int64 : DType::int32;
template <>
inline constexpr DType dtype_of<long long> = DType::int64;
template <>
inline constexpr DType dtype_of<unsigned char> = DType::uint8;
template <>
inline constexpr DType dtype_of<bool> = DType::boolean;

/// Returns the bytes of one element.
constexpr std::size_t itemsize(DType dtype) noexcept {
    constexpr std::uint8_t sizes[kDTypes] = {1, 1, 4, 8, 2, 2, 4, 8};
    return sizes[static_cast<int>(dtype)];
}

constexpr bool is_floating(DType dtype) noexcept { return dtype >= DType::float16; }

/// Returns the dtype for computations that 16 bits, or an integer, are too few for: float32 for all but float64. So the CPU computes
/// with 16-bit floats, which it has no arithmetic for.
constexpr DType computed_in(DType dtype) noexcept { return dtype == DType::float64 ? DType::float64 : DType::float32; }

/// Returns "float32", "int64", "bool", ...
const char* name(DType dtype) noexcept;

/// Returns the dtype that holds both, as PyTorch's torch.promote_types: int64 and float16 give float16, float16 and bfloat16
/// give float32.
DType promote(DType a, DType b) noexcept;

/// Get or set the dtype of tensors made from floating-point literals and of int / int: float32 until set otherwise.
/// Only float32 and float64 are accepted; others throw DTypeError.
DType default_dtype() noexcept;
void set_default_dtype(DType dtype, const Loc& loc = Loc::current());

/// A C++ number handed to an op. Keeps its category (bool, integer, floating), which is all that counts in promotion.
class Scalar {
 public:
    enum class Kind : std::uint8_t { boolean, integer, floating };

    template <class T>
        requires(std::is_arithmetic_v<T> && !std::is_same_v<T, char>)
    constexpr Scalar(T value) noexcept {  // NOLINT: implicit by design, so that `x + 1` works
        if constexpr (std::is_same_v<T, bool>) {
            kind_ = Kind::boolean;
            integer_ = value ? 1 : 0;
        } else if constexpr (std::is_integral_v<T>) {
            kind_ = Kind::integer;
            integer_ = static_cast<std::int64_t>(value);
        } else {
            kind_ = Kind::floating;
            floating_ = static_cast<double>(value);
        }
    }

    constexpr Kind kind() const noexcept { return kind_; }
    constexpr double as_double() const noexcept { return kind_ == Kind::floating ? floating_ : static_cast<double>(integer_); }
    constexpr std::int64_t as_int64() const noexcept {
        if (kind_ != Kind::floating) return integer_;
        // Values out of range saturate; nan becomes 0.
        if (!(floating_ > -0x1p63)) return floating_ <= -0x1p63 ? INT64_MIN : 0;
        return floating_ < 0x1p63 ? static_cast<std::int64_t>(floating_) : INT64_MAX;
    }
    /// Returns the dtype of a 0-d tensor made from it: bool, int64 or the default dtype.
    DType dtype() const noexcept { return kind_ == Kind::boolean ? DType::boolean : kind_ == Kind::integer ? DType::int64 : default_dtype(); }

 private:
    union {
        double floating_;
        std::int64_t integer_;
    };
    Kind kind_;
};

}  // namespace tapir
