// Philox4x32-10 for many counters at once, and the distributions that use its words.
//
// The four words of a counter's state are in the lower halves of four vectors of 64-bit lanes, where one instruction
// multiplies 32 x 32 -> 64 bits. The content of the upper halves does not matter: multiplications ignore it.
#include "tapir/ops/random/random_kernels.h"

#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tapir/ops/arrange/arrange.h"
#include "tapir/ops/cpu/math_impl.h"
#include "tapir/ops/cpu/vector_impl.h"
#include "tapir/ops/elementwise/elementwise_kernels.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

using u64 = std::uint64_t;
using u32 = std::uint32_t;

constexpr int kWide = kVectorBytes / 8;
using Wide = u64 __attribute__((vector_size(kWide * 8)));

constexpr i64 kBlock = 512;  // words made at a time: they stay in the first-level cache. A multiple of 8 * kWide

inline Wide repeat(u64 x) { return x - Wide{}; }

inline Wide multiply_lower(Wide a, Wide b) {
#if defined(__AVX512F__)
    // _mm512_mul_epu32 is the same, but gcc 12 warns of an uninitialised variable inside it.
    return reinterpret_cast<Wide>(_mm512_maskz_mul_epu32(0xff, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
    return reinterpret_cast<Wide>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
    return reinterpret_cast<Wide>(_mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
    return (a & 0xffffffff) * (b & 0xffffffff);
#endif
}

// Interleaves a and b to the lanes 0, n, 1, n+1, ..., the first and the second half of them.
inline void interleave(Wide a, Wide b, Wide& first, Wide& second) {
#if defined(__AVX512F__)
    first = __builtin_shuffle(a, b, Wide{0, 8, 1, 9, 2, 10, 3, 11});
    second = __builtin_shuffle(a, b, Wide{4, 12, 5, 13, 6, 14, 7, 15});
#elif defined(__AVX2__)
    first = __builtin_shuffle(a, b, Wide{0, 4, 1, 5});
    second = __builtin_shuffle(a, b, Wide{2, 6, 3, 7});
#else
    first = __builtin_shuffle(a, b, Wide{0, 2});
    second = __builtin_shuffle(a, b, Wide{1, 3});
#endif
}

// Makes the words of Groups * kWide counters. Several groups at once, since a round waits for its multiplications.
template <int Groups>
inline void philox(u64 seed, u64 counter, u32* out) {
    Wide c[Groups][4];
    for (int g = 0; g < Groups; ++g) {
        u64 numbers[kWide];
        for (int i = 0; i < kWide; ++i) numbers[i] = counter + static_cast<u64>(g * kWide + i);
        std::memcpy(&c[g][0], numbers, sizeof(numbers));
        c[g][1] = c[g][0] >> 32;
        c[g][2] = c[g][3] = Wide{};
    }
    u32 k0 = static_cast<u32>(seed), k1 = static_cast<u32>(seed >> 32);
    const Wide m0 = repeat(0xD2511F53), m1 = repeat(0xCD9E8D57);
    for (int round = 0; round < 10; ++round) {
        const Wide key0 = repeat(k0), key1 = repeat(k1);
        for (int g = 0; g < Groups; ++g) {
            const Wide p0 = multiply_lower(c[g][0], m0), p1 = multiply_lower(c[g][2], m1);
            c[g][0] = (p1 >> 32) ^ c[g][1] ^ key0;
            c[g][2] = (p0 >> 32) ^ c[g][3] ^ key1;
            c[g][1] = p1;
            c[g][3] = p0;
        }
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    const Wide lower = repeat(0xffffffff);
    for (int g = 0; g < Groups; ++g) {
        Wide halves[2];
        interleave((c[g][0] & lower) | (c[g][1] << 32), (c[g][2] & lower) | (c[g][3] << 32), halves[0], halves[1]);
        std::memcpy(out + g * 4 * kWide, halves, sizeof(halves));
    }
}

constexpr i64 kGroup = 4 * kWide;  // words of one vector of counters

// Makes at least n words, up to a multiple of kGroup.
void words_rounded_up(Draw draw, u32* out, i64 n) {
    i64 i = 0;
    for (; i + kGroup < n; i += 2 * kGroup) {
        philox<2>(draw.seed, draw.counter + static_cast<u64>(i / 4), out + i);
    }
    if (i < n) philox<1>(draw.seed, draw.counter + static_cast<u64>(i / 4), out + i);
}

i64 round_up(i64 n, i64 unit) { return (n + unit - 1) / unit * unit; }

// Makes words block by block and hands them to make(words, first element, elements), which may read up to a multiple of
// 16 elements.
template <int WordsPerElement, class Make>
inline void in_blocks(Draw draw, i64 n, const Make& make) {
    alignas(64) u32 words[kBlock];
    constexpr i64 elements = kBlock / WordsPerElement;
    if (n < elements) std::memset(words, 0, static_cast<std::size_t>(round_up(n, 16) * WordsPerElement) * sizeof(u32));
    for (i64 done = 0; done < n; done += elements) {
        const i64 count = smaller(elements, n - done);
        words_rounded_up(draw, words, count * WordsPerElement);
        draw.counter += kBlock / 4;
        make(words, done, count);
    }
}

template <class Word>
inline u64 word64(const Word* words, i64 i) {
    return words[2 * i] | static_cast<u64>(words[2 * i + 1]) << 32;
}

constexpr float kTwoPi = 6.283185307179586476925F;
constexpr double kTwoPi64 = 6.283185307179586476925;

// Box & Muller: r and t of `pairs` pairs become two numbers each. The loops are separate, because gcc merges the sine and the
// cosine of the same angle into one call, which it cannot vectorise.
template <class T>
inline void rotate(const T* r, const T* t, T* out, i64 pairs) {
    T c[kBlock / 2], s[kBlock / 2];
#pragma omp simd
    for (i64 j = 0; j < pairs; ++j) c[j] = r[j] * cos(t[j]);
#pragma omp simd
    for (i64 j = 0; j < pairs; ++j) s[j] = r[j] * sin(t[j]);
#pragma omp simd
    for (i64 j = 0; j < pairs; ++j) {
        out[2 * j] = c[j];
        out[2 * j + 1] = s[j];
    }
}

inline void normal_block(const u32* words, float* out, i64 pairs) {
    float r[kBlock / 2], t[kBlock / 2];
#pragma omp simd
    for (i64 j = 0; j < pairs; ++j) {
        const float u = (static_cast<float>(static_cast<std::int32_t>(words[2 * j] >> 1)) + 1.0F) * 0x1p-31F;
        r[j] = sqrt(-2.0F * log(u));
        t[j] = static_cast<float>(static_cast<std::int32_t>(words[2 * j + 1] >> 8)) * (kTwoPi * 0x1p-24F);
    }
    rotate(r, t, out, pairs);
}

inline void normal_block(const u32* words, double* out, i64 pairs) {
    double r[kBlock / 4], t[kBlock / 4];
#pragma omp simd
    for (i64 j = 0; j < pairs; ++j) {
        const double u = (static_cast<double>(static_cast<i64>(word64(words, 2 * j) >> 11)) + 1.0) * 0x1p-53;
        r[j] = sqrt(-2.0 * log(u));
        t[j] = static_cast<double>(static_cast<i64>(word64(words, 2 * j + 1) >> 11)) * (kTwoPi64 * 0x1p-53);
    }
    rotate(r, t, out, pairs);
}

template <class T>
void normal(Draw draw, T* out, i64 n) {
    constexpr int words = sizeof(T) / 4;
    in_blocks<words>(draw, n, [&](const u32* from, i64 first, i64 count) {
        alignas(64) T block[kBlock];
        normal_block(from, block, round_up(count, 16) / 2);
        std::memcpy(out + first, block, static_cast<std::size_t>(count) * sizeof(T));
    });
}

}  // namespace

void random_words(Draw draw, u32* out, i64 n) {
    const i64 whole = n / kGroup * kGroup;
    words_rounded_up(draw, out, whole);
    if (whole == n) return;
    u32 rest[kGroup];
    philox<1>(draw.seed, draw.counter + static_cast<u64>(whole / 4), rest);
    std::memcpy(out + whole, rest, static_cast<std::size_t>(n - whole) * sizeof(u32));
}

void random_uniform(Draw draw, DType dtype, void* out, i64 n) {
    if (dtype == DType::float64) {
        in_blocks<2>(draw, n, [&](const u32* words, i64 first, i64 count) {
            double* to = static_cast<double*>(out) + first;
            for (i64 i = 0; i < count; ++i) to[i] = static_cast<double>(static_cast<i64>(word64(words, i) >> 11)) * 0x1p-53;
        });
    } else if (dtype == DType::float32) {
        in_blocks<1>(draw, n, [&](const u32* words, i64 first, i64 count) {
            float* to = static_cast<float*>(out) + first;
            for (i64 i = 0; i < count; ++i) to[i] = static_cast<float>(static_cast<std::int32_t>(words[i] >> 8)) * 0x1p-24F;
        });
    } else {
        const int shift = dtype == DType::float16 ? 21 : 24;
        const float unit = dtype == DType::float16 ? 0x1p-11F : 0x1p-8F;
        in_blocks<1>(draw, n, [&](const u32* words, i64 first, i64 count) {
            float block[kBlock];
            for (i64 i = 0; i < count; ++i) block[i] = static_cast<float>(static_cast<std::int32_t>(words[i] >> shift)) * unit;
            convert(DType::float32, block, 1, dtype, static_cast<char*>(out) + 2 * first, 1, count);
        });
    }
}

void random_normal(Draw draw, DType dtype, void* out, i64 n) {
    if (dtype == DType::float64) return normal(draw, static_cast<double*>(out), n);
    if (dtype == DType::float32) return normal(draw, static_cast<float*>(out), n);
    in_blocks<1>(draw, n, [&](const u32* words, i64 first, i64 count) {
        alignas(64) float block[kBlock];
        normal_block(words, block, round_up(count, 16) / 2);
        convert(DType::float32, block, 1, dtype, static_cast<char*>(out) + 2 * first, 1, count);
    });
}

void random_bernoulli(Draw draw, double p, std::uint8_t* out, i64 n) {
    if (p >= 1) {
        std::memset(out, 1, static_cast<std::size_t>(n));
        return;
    }
    const u32 threshold = static_cast<u32>(p * 0x1p32);
    in_blocks<1>(draw, n, [&](const u32* words, i64 first, i64 count) {
        for (i64 i = 0; i < count; ++i) out[first + i] = words[i] < threshold ? 1 : 0;
    });
}

void random_integers(Draw draw, i64 low, u64 range, i64* out, i64 n) {
    in_blocks<2>(draw, n, [&](const u32* words, i64 first, i64 count) {
        for (i64 i = 0; i < count; ++i) {
            u64 value = word64(words, i);
            if (range != 0) {  // the upper half of value * range, with each factor cut in two
                const u64 a = value >> 32, b = value & 0xffffffff, c = range >> 32, d = range & 0xffffffff;
                const u64 middle = a * d + (b * d >> 32), other = b * c + (middle & 0xffffffff);
                value = a * c + (middle >> 32) + (other >> 32);
            }
            out[first + i] = static_cast<i64>(static_cast<u64>(low) + value);
        }
    });
}

void masked_scale(DType dtype, const void* x, const std::uint8_t* keep, void* y, double scale, i64 begin, i64 end) {
    if (dtype == DType::float64) {
        const auto* from = static_cast<const double*>(x);
        auto* to = static_cast<double*>(y);
        for (i64 i = begin; i < end; ++i) to[i] = keep[i] ? from[i] * scale : 0.0;
        return;
    }
    const auto factor = static_cast<float>(scale);
    if (dtype == DType::float32) {
        const auto* from = static_cast<const float*>(x);
        auto* to = static_cast<float*>(y);
        for (i64 i = begin; i < end; ++i) to[i] = keep[i] ? from[i] * factor : 0.0F;
        return;
    }
    for (i64 done = begin; done < end; done += kBlock) {
        float block[kBlock];
        const i64 count = smaller(kBlock, end - done);
        convert(dtype, static_cast<const char*>(x) + 2 * done, 1, DType::float32, block, 1, count);
        for (i64 i = 0; i < count; ++i) block[i] = keep[done + i] ? block[i] * factor : 0.0F;
        convert(DType::float32, block, 1, dtype, static_cast<char*>(y) + 2 * done, 1, count);
    }
}

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
