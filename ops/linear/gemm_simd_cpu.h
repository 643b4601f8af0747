// Vectors for the matrix-product kernels: GCC vector extensions as wide as TAPIR_ISA allows, loads and stores of a
// vector's first lanes, and the transposing tree that sums or transposes a square of vectors in registers.
// For ops/cpu/gemm_*.cpp only: everything is in an anonymous namespace, one copy per instruction set.
#pragma once

#include <cstdint>
#include <utility>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace tapir::kernels::TAPIR_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int vector_bytes = 64;
constexpr int vector_registers = 32;
#elif defined(__AVX2__)
constexpr int vector_bytes = 32;
constexpr int vector_registers = 16;
#else
constexpr int vector_bytes = 16;
constexpr int vector_registers = 16;
#endif

#define TAPIR_ALWAYS_INLINE [[gnu::always_inline]] inline

template <class T>
struct VecOf {
    typedef T type __attribute__((vector_size(vector_bytes)));
};
template <class T>
using Vec = typename VecOf<T>::type;
template <class T>
constexpr int lanes = vector_bytes / int{sizeof(T)};

constexpr int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }
constexpr int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

template <class T>
TAPIR_ALWAYS_INLINE Vec<T> load(const T* p) {
    Vec<T> v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

template <class T>
TAPIR_ALWAYS_INLINE void store(T* p, Vec<T> v) {
    __builtin_memcpy(p, &v, sizeof v);
}

// First<T> handles the first `count` lanes of a vector (0 <= count <= lanes<T>).
// load_first fills the other lanes with zero; neither function touches memory beyond the count.
#if defined(__AVX512F__)
template <class T>
struct First {
    uint32_t bits;
    TAPIR_ALWAYS_INLINE explicit First(int64_t count) : bits((uint32_t{1} << count) - 1) {}
};
TAPIR_ALWAYS_INLINE Vec<float> load_first(const float* p, First<float> f) {
    return (Vec<float>)_mm512_maskz_loadu_ps(static_cast<__mmask16>(f.bits), p);
}
TAPIR_ALWAYS_INLINE Vec<double> load_first(const double* p, First<double> f) {
    return (Vec<double>)_mm512_maskz_loadu_pd(static_cast<__mmask8>(f.bits), p);
}
TAPIR_ALWAYS_INLINE void store_first(float* p, Vec<float> v, First<float> f) { _mm512_mask_storeu_ps(p, static_cast<__mmask16>(f.bits), (__m512)v); }
TAPIR_ALWAYS_INLINE void store_first(double* p, Vec<double> v, First<double> f) {
    _mm512_mask_storeu_pd(p, static_cast<__mmask8>(f.bits), (__m512d)v);
}
#elif defined(__AVX2__)
alignas(32) constexpr int32_t lane_flags[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
template <class T>
struct First {
    __m256i mask;
    TAPIR_ALWAYS_INLINE explicit First(int64_t count)
        : mask(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(lane_flags + 8 - count * int64_t{sizeof(T) / sizeof(int32_t)}))) {}
};
TAPIR_ALWAYS_INLINE Vec<float> load_first(const float* p, First<float> f) { return (Vec<float>)_mm256_maskload_ps(p, f.mask); }
TAPIR_ALWAYS_INLINE Vec<double> load_first(const double* p, First<double> f) { return (Vec<double>)_mm256_maskload_pd(p, f.mask); }
TAPIR_ALWAYS_INLINE void store_first(float* p, Vec<float> v, First<float> f) { _mm256_maskstore_ps(p, f.mask, (__m256)v); }
TAPIR_ALWAYS_INLINE void store_first(double* p, Vec<double> v, First<double> f) { _mm256_maskstore_pd(p, f.mask, (__m256d)v); }
#else
template <class T>
struct First {
    int64_t count;
    TAPIR_ALWAYS_INLINE explicit First(int64_t n) : count(n) {}
};
template <class T>
TAPIR_ALWAYS_INLINE Vec<T> load_first(const T* p, First<T> f) {
    Vec<T> v = {};
    for (int i = 0; i < lanes<T>; ++i)
        if (i < f.count) v[i] = p[i];
    return v;
}
template <class T>
TAPIR_ALWAYS_INLINE void store_first(T* p, Vec<T> v, First<T> f) {
    for (int i = 0; i < lanes<T>; ++i)
        if (i < f.count) p[i] = v[i];
}
#endif

// One step of the transposing tree, over lane distance D (a power of two). By bit D of the lane number i:
//   blend    clear: a[i]      set: b[i]           cross    clear: a[i + D]  set: b[i - D]
//   lows     clear: a[i]      set: b[i - D]       highs    clear: a[i + D]  set: b[i]
template <int D, class T, int... I>
TAPIR_ALWAYS_INLINE Vec<T> blend(Vec<T> a, Vec<T> b, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(a, b, ((I & D) ? lanes<T> + I : I)...);
}
template <int D, class T, int... I>
TAPIR_ALWAYS_INLINE Vec<T> cross(Vec<T> a, Vec<T> b, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(a, b, ((I & D) ? lanes<T> + I - D : I + D)...);
}
template <int D, class T, int... I>
TAPIR_ALWAYS_INLINE Vec<T> lows(Vec<T> a, Vec<T> b, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(a, b, ((I & D) ? lanes<T> + I - D : I)...);
}
template <int D, class T, int... I>
TAPIR_ALWAYS_INLINE Vec<T> highs(Vec<T> a, Vec<T> b, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(a, b, ((I & D) ? lanes<T> + I : I + D)...);
}
template <class T>
using LaneIndices = std::make_integer_sequence<int, lanes<T>>;

/// Sums `Count` vectors (a power of two, at most lanes<T>): lane i of the result is the sum of all lanes of v[i],
/// for i < Count. The order of each sum is the same for every i and Count. Overwrites v.
template <int Count, class T, int D = 1>
TAPIR_ALWAYS_INLINE Vec<T> sum_lanes(Vec<T>* v) {
    if constexpr (D < lanes<T>) {
        constexpr int pairs = Count > 1 ? Count / 2 : 1;
#pragma GCC unroll 16
        for (int i = 0; i < pairs; ++i) {
            const Vec<T> a = v[Count > 1 ? 2 * i : i], b = v[Count > 1 ? 2 * i + 1 : i];
            v[i] = blend<D, T>(a, b, LaneIndices<T>{}) + cross<D, T>(a, b, LaneIndices<T>{});
        }
        return sum_lanes<pairs, T, 2 * D>(v);
    } else {
        return v[0];
    }
}

/// Transposes the square of lanes<T> vectors.
template <class T, int D = 1>
TAPIR_ALWAYS_INLINE void transpose(Vec<T>* v) {
    if constexpr (D < lanes<T>) {
#pragma GCC unroll 16
        for (int i = 0; i < lanes<T>; ++i) {
            if (i & D) continue;
            const Vec<T> a = v[i], b = v[i + D];
            v[i] = lows<D, T>(a, b, LaneIndices<T>{});
            v[i + D] = highs<D, T>(a, b, LaneIndices<T>{});
        }
        transpose<T, 2 * D>(v);
    }
}

}  // namespace
}  // namespace tapir::kernels::TAPIR_ISA
