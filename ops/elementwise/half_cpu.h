// The 16-bit types as the CPU's loops see them: computed in float32, then rounded. For ops/cpu/ and files like it: everything is in an
// anonymous namespace, one copy per instruction set.
#pragma once

#include <cstdint>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "tapir/ops/cpu/vector_impl.h"

#ifndef TAPIR_ISA
#error "for files of ops/cpu/ only"
#endif

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

struct F16 {
    std::uint16_t bits;
};
struct BF16 {
    std::uint16_t bits;
};

template <class T>
float to_float(T x) {
    if constexpr (__is_same(T, F16)) {
        return static_cast<float>(__builtin_bit_cast(_Float16, x.bits));
    } else if constexpr (__is_same(T, BF16)) {
        return __builtin_bit_cast(float, static_cast<std::uint32_t>(x.bits) << 16);
    }
}

inline std::uint16_t round_to_bfloat16(float x) {
    const auto f = __builtin_bit_cast(std::uint32_t, x);
    const std::uint32_t rounded = (f + 0x7fffu + ((f >> 16) & 1u)) >> 16;
    return static_cast<std::uint16_t>((f & 0x7fffffffu) > 0x7f800000u ? (f >> 16) | 0x40u : rounded);
}

template <class Half>
Half rounded_to(float x) {
    if constexpr (__is_same(Half, F16)) {
        return F16{__builtin_bit_cast(std::uint16_t, static_cast<_Float16>(x))};
    } else {
        return BF16{round_to_bfloat16(x)};
    }
}

// A vector at a time what compilers do worse: float16, and bfloat16 without AVX-512. (GCC 12 warns of a variable of its own in the forms
// without masks.)
#if defined(__F16C__)
typedef float FloatLanes __attribute__((vector_size(kVectorBytes)));
constexpr i64 kFloatLanes = kVectorBytes / 4;

[[gnu::always_inline]] inline FloatLanes load_halves(const F16* x) {
#if defined(__AVX512F__)
    return (FloatLanes)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
#else
    return (FloatLanes)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
#endif
}

[[gnu::always_inline]] inline void store_halves(F16* to, FloatLanes x) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
#if defined(__AVX512F__)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_maskz_cvtps_ph(0xffff, (__m512)x, nearest));
#else
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph((__m256)x, nearest));
#endif
}

#if !defined(__AVX512F__)
[[gnu::always_inline]] inline FloatLanes load_halves(const BF16* x) {
    return (FloatLanes)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))), 16);
}

[[gnu::always_inline]] inline void store_halves(BF16* to, FloatLanes x) {
    const __m256i bits = (__m256i)x, high = _mm256_srli_epi32(bits, 16), is_odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), is_odd), 16);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40)), is_nan = (__m256i)_mm256_cmp_ps((__m256)x, (__m256)x, _CMP_UNORD_Q);
    const __m256i words = _mm256_blendv_epi8(rounded, quiet, is_nan), packed = _mm256_packus_epi32(words, words);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
}
#endif

template <class Half>
constexpr bool kInVectors = requires(const Half* x) { load_halves(x); };
#else
template <class Half>
constexpr bool kInVectors = false;
#endif

}  // namespace
}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
