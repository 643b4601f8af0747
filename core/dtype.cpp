// Names, promotion and the 16-bit float conversions.
#include "tapir/core/dtype.h"

#include <atomic>
#include <bit>

#include "tapir/core/fail_impl.h"

namespace tapir {
namespace {

std::atomic<DType> g_default_dtype{DType::float32};

std::uint16_t half_bits(float value) noexcept {
    const auto f = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>((f >> 16) & 0x8000u);
    const std::uint32_t magnitude = f & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);   // nan
    if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds to infinity
    if (magnitude < 0x38800000u) {                                                    // subnormal half or zero
        // Adding 0.5 aligns the value's bits with the fraction of a half subnormal and rounds to nearest even.
        const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
        return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(aligned) - 0x3f000000u));
    }
    const std::uint32_t odd = (magnitude >> 13) & 1u;
    return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

float half_value(std::uint16_t bits) noexcept {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude < 0x0400u) {
        const float value = static_cast<float>(magnitude) * 0x1p-24f;
        return sign ? -value : value;
    }
    return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
}

std::uint16_t bfloat16_bits(float value) noexcept {
    const auto f = std::bit_cast<std::uint32_t>(value);
    if ((f & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((f >> 16) | 0x40u);  // a quiet nan
    return static_cast<std::uint16_t>((f + 0x7fffu + ((f >> 16) & 1u)) >> 16);
}

}  // namespace

Half::Half(float value) noexcept : bits(half_bits(value)) {}
Half::operator float() const noexcept { return half_value(bits); }
BFloat16::BFloat16(float value) noexcept : bits(bfloat16_bits(value)) {}
BFloat16::operator float() const noexcept { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

const char* name(DType dtype) noexcept {
    constexpr const char* names[kDTypes] = {"bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"};
    return names[static_cast<int>(dtype)];
}

DType promote(DType a, DType b) noexcept {
    if (a == b) return a;
    const bool both_half = (a == DType::float16 && b == DType::bfloat16) || (a == DType::bfloat16 && b == DType::float16);
    if (both_half) return DType::float32;
    return a > b ? a : b;  // the enum is in promotion order
}

DType default_dtype() noexcept { return g_default_dtype.load(std::memory_order_relaxed); }

void set_default_dtype(DType dtype, const Loc& loc) {
    if (dtype != float32 && dtype != float64) {
        fail<DTypeError>(loc, "set_default_dtype: must be float32 or float64, got {}", name(dtype));
    }
    g_default_dtype.store(dtype, std::memory_order_relaxed);
}

}  // namespace tapir
