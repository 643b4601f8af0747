// Functions of the rows that are quicker than libmvec's, and as near: with AVX-512, whose instructions take a number's power of two apart and
// put it back, and two of them with AVX2. An element's result does not depend on its neighbours. In the namespace of the instruction set.
//
// The polynomials are fitted (Lawson's iteration) to the relative error, on the interval that is left of an argument. A sum of x and
// kShift ends with x's nearest whole number in its last bits.
#pragma once

#include "tapir/ops/cpu/vector_impl.h"
#include "tapir/ops/elementwise/elementwise_kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

// The functions of the rows, which elementwise_forward_cpu.cpp makes.
struct exp_forward;
struct log_forward;
struct atan_forward;
struct tanh_forward;

// InVectors<F, T>: is_there; and kLanes numbers, y = F(x).
template <class F, class T>
struct InVectors {
    static constexpr bool is_there = false;
};

#if defined(__AVX512F__)
using Floats = __m512;
inline __m512 all(float x) { return _mm512_set1_ps(x); }
inline __m512d all(double x) { return _mm512_set1_pd(x); }
inline __m512d all(__m512d x) { return x; }
inline __m512 fma(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
inline __m512d fma(__m512d a, __m512d b, __m512d c) { return _mm512_fmadd_pd(a, b, c); }
// With masks that take all: of the intrinsics without one gcc 12 warns that they read an uninitialised variable. For nan these give b.
inline __m512 least(__m512 a, __m512 b) { return _mm512_maskz_min_ps(0xffff, a, b); }
inline __m512d least(__m512d a, __m512d b) { return _mm512_maskz_min_pd(0xff, a, b); }
inline __m512 most(__m512 a, __m512 b) { return _mm512_maskz_max_ps(0xffff, a, b); }
inline __m512d most(__m512d a, __m512d b) { return _mm512_maskz_max_pd(0xff, a, b); }
inline __m512 times_power(__m512 a, __m512 n) { return _mm512_maskz_scalef_ps(0xffff, a, n); }  // a 2^floor(n)
inline __m512d times_power(__m512d a, __m512d n) { return _mm512_maskz_scalef_pd(0xff, a, n); }
constexpr bool powers_are_short(__m512) { return false; }  // no need to tell
inline __m512 times_short_power(__m512 a, __m512) { return a; }
// x = m 2^n with 3/4 <= m < 3/2: returns m.
inline __m512 parts_of(__m512 x, __m512& n) {
    const __m512 m = _mm512_maskz_getmant_ps(0xffff, x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_nan), exponent = _mm512_maskz_getexp_ps(0xffff, x);
    n = _mm512_mask_add_ps(exponent, _mm512_cmp_ps_mask(m, all(1.0F), _CMP_LT_OQ), exponent, all(1.0F));
    return m;
}
inline __m512 with_ends_of_log(__m512 y, __m512) { return y; }  // the parts of 0, infinities and nan lead to what is right
inline __m512 copysign(__m512 size, __m512 sign) {
    constexpr int kSelect = 0xd8;  // where the third operand's bit is set, the second's; else the first's
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(_mm512_castps_si512(sign), _mm512_castps_si512(size), _mm512_set1_epi32(INT32_MAX), kSelect));
}
inline __m512d copysign(__m512d size, __m512d sign) {
    constexpr int kSelect = 0xd8;
    return _mm512_castsi512_pd(
        _mm512_ternarylogic_epi64(_mm512_castpd_si512(sign), _mm512_castpd_si512(size), _mm512_set1_epi64(INT64_MAX), kSelect));
}

#elif defined(__AVX2__)
using Floats = __m256;
inline __m256 all(float x) { return _mm256_set1_ps(x); }
inline __m256 fma(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
inline __m256 least(__m256 a, __m256 b) { return _mm256_min_ps(a, b); }  // for nan: b
inline __m256 most(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }
// Whether the results of exp are normal numbers.
inline bool powers_are_short(__m256 x) {
    return _mm256_movemask_ps(_mm256_cmp_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0F), x), _mm256_set1_ps(87.0F), _CMP_LT_OQ)) == 0xff;
}
// n: in the last bits of `shifted`; adds it to the exponents.
inline __m256 times_short_power(__m256 a, __m256 shifted) {
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(_mm256_castps_si256(shifted), 23)));
}
// In two steps, of which each is a number: n lies between -150 and 128.
inline __m256 times_power(__m256 a, __m256 n) {
    const auto power = [](__m256i of) { return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(of, 23), _mm256_set1_epi32(0x3f800000))); };
    const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    return a * power(half) * power(_mm256_sub_epi32(whole, half));
}
// Of normal numbers above 0.
inline __m256 parts_of(__m256 x, __m256& n) {
    const __m256i bits = _mm256_castps_si256(x), whole = _mm256_srai_epi32(_mm256_sub_epi32(bits, _mm256_set1_epi32(0x3f400000)), 23);
    n = _mm256_cvtepi32_ps(whole);
    return _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(whole, 23)));
}
// Computes y = log(x) anew where x is no normal number above 0.
inline __m256 with_ends_of_log(__m256 y, __m256 x) {
    const __m256i below_normal = _mm256_add_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(0x7f800000));
    const int others = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(below_normal, _mm256_set1_epi32(-0x1000001))));
    if (others == 0) [[likely]]
        return y;
    float results[8], numbers[8];
    _mm256_storeu_ps(results, y);
    _mm256_storeu_ps(numbers, x);
    for (int i = 0; i < 8; ++i) {
        if (others >> i & 1) results[i] = ::logf(numbers[i]);
    }
    return _mm256_loadu_ps(results);
}
#endif

#if defined(__AVX2__)
// sum x^n + ... + the last one: of numbers, or of vectors.
template <class V, class... T>
[[gnu::always_inline]] inline V polynomial(V x, V sum, T... rest) {
    ((sum = fma(sum, x, all(rest))), ...);
    return sum;
}

template <class T>
constexpr T kShift = T(0x1.8p23);
template <>
constexpr double kShift<double> = 0x1.8p52;

// e^x = 2^n e^r, |r| <= log(2) / 2. Errs by less than 0.9 units in the last place.
inline Floats exp_of(Floats given) {
    const bool is_short = powers_are_short(given);
    const Floats x = is_short ? given : least(all(89.0F), most(all(-104.0F), given));
    const Floats shifted = fma(x, all(0x1.715476p+0F), all(kShift<float>)), n = shifted - all(kShift<float>);
    const Floats r = fma(n, all(0x1.05c61p-29F), fma(n, all(-0x1.62e43p-1F), x));
    const Floats p = polynomial(r, all(0x1.6a2302p-10F), 0x1.123a9p-7F, 0x1.5558f6p-5F, 0x1.55549p-3F, 0x1.fffffcp-2F, 1.0F, 1.0F);
    return is_short ? times_short_power(p, shifted) : times_power(p, n);
}

// log(x) = n log(2) + log(m). Errs by less than a unit in the last place.
inline Floats log_of(Floats x) {
    Floats n;
    const Floats r = parts_of(x, n) - all(1.0F);
    const Floats p = polynomial(r, all(-0x1.6fdff2p-5F), 0x1.abf366p-4F, -0x1.0d8fbcp-3F, 0x1.2897e6p-3F, -0x1.54f24ap-3F, 0x1.996858p-3F,
                                -0x1.000024p-2F, 0x1.5555a6p-2F, -0.5F);
    return with_ends_of_log(fma(n, all(0x1.62e43p-1F), fma(p, r * r, r)), x);
}
#endif

#if defined(__AVX512F__)
inline __m512d line(__m512d x, double slope, double start) { return fma(all(slope), x, all(start)); }

// 2^(k / 16) for k = 0, 1, ..., 15.
// clang-format off
alignas(64) constexpr double kSixteenths[16] = {
    0x1p+0, 0x1.0b5586cf9890fp+0, 0x1.172b83c7d517bp+0, 0x1.2387a6e756238p+0,
    0x1.306fe0a31b715p+0, 0x1.3dea64c123422p+0, 0x1.4bfdad5362a27p+0, 0x1.5ab07dd485429p+0,
    0x1.6a09e667f3bcdp+0, 0x1.7a11473eb0187p+0, 0x1.8ace5422aa0dbp+0, 0x1.9c49182a3f09p+0,
    0x1.ae89f995ad3adp+0, 0x1.c199bdd85529cp+0, 0x1.d5818dcfba487p+0, 0x1.ea4afa2a490dap+0,
};
// clang-format on

// e^x = 2^(n / 16) e^r, |r| <= log(2) / 32: the permutation reads n's last four bits, scalef its others. Errs by less than 1.2 units in the
// last place.
inline __m512d exp_of(__m512d given) {
    const __m512d x = least(all(710.0), most(all(-746.0), given)), shifted = fma(x, all(0x1.71547652b82fep+4), all(kShift<double>));
    const __m512d n = shifted - all(kShift<double>), r = fma(n, all(-0x1.abc9e3b39803fp-60), fma(n, all(-0x1.62e42fefa39efp-5), x)), s = r * r;
    const __m512d upper = polynomial(s, line(r, 0x1.6c185edd4b4c6p-10, 0x1.11123b6dd0c03p-7), line(r, 0x1.555555545d8a5p-5, 0x1.555555548e88ep-3));
    const __m512d less_1 = fma(fma(upper, r, all(0.5)), s, r);
    const __m512d part = _mm512_permutex2var_pd(_mm512_load_pd(kSixteenths), _mm512_castpd_si512(shifted), _mm512_load_pd(kSixteenths + 8));
    return times_power(fma(part, less_1, part), n * all(1.0 / 16));
}

// Beyond 1 it is pi / 2 - atan(1 / x). Errs by less than 1.9 units in the last place.
inline __m512 atan_of(__m512 x) {
    const __m512 far = _mm512_abs_ps(x), bounded = least(all(0x1p100F), far), about = _mm512_maskz_rcp14_ps(0xffff, bounded);
    const __mmask16 is_beyond = _mm512_cmp_ps_mask(far, all(1.0F), _CMP_GT_OQ);
    const __m512 inverse = fma(_mm512_fnmadd_ps(bounded, about, all(1.0F)), about, about);
    const __m512 z = _mm512_mask_mov_ps(far, is_beyond, inverse), s = z * z;
    const __m512 p = polynomial(s, all(0x1.7ec95ap-9F), -0x1.0c27acp-6F, 0x1.61fa4ap-5F, -0x1.355538p-4F, 0x1.b4e07ap-4F, -0x1.230ac6p-3F,
                                0x1.9978f2p-3F, -0x1.5554dcp-2F);
    const __m512 y = fma(p, s * z, z);
    return copysign(_mm512_mask_sub_ps(y, is_beyond, all(0x1.921fb6p+0F), y), x);
}

// tanh(|x|) = t / (t + 2) with t = e^(2 |x|) - 1 = 2^n (e^r - 1) + 2^n - 1. Errs by less than 2.6 units in the last place.
inline __m512d tanh_of(__m512d given) {
    const __m512d half = least(all(40.0), _mm512_abs_pd(given)), x = half + half;
    const __m512d n = fma(x, all(0x1.71547652b82fep+0), all(kShift<double>)) - all(kShift<double>);
    const __m512d r = fma(n, all(-0x1.abc9e3b39803fp-56), fma(n, all(-0x1.62e42fefa39efp-1), x)), s = r * r;
    const __m512d p = polynomial(s, all(0x1.1ee87fe624a19p-29), line(r, 0x1.af5f0691ae226p-26, 0x1.27e536739c3ap-22),
                                 line(r, 0x1.71ddf831fbe7fp-19, 0x1.a01a017b858cep-16), line(r, 0x1.a01a01afef6edp-13, 0x1.6c16c16c1f1b2p-10),
                                 line(r, 0x1.111111110f69dp-7, 0x1.555555555553ep-5), line(r, 0x1.5555555555559p-3, 0.5), r);
    const __m512d power = times_power(all(1.0), n), t = fma(p, power, power - all(1.0));
    return copysign(t / (t + all(2.0)), given);
}

#endif

#define TAPIR_IN_VECTORS(name, T, load, store)                                                                    \
    template <>                                                                                                   \
    struct InVectors<name##_forward, T> {                                                                         \
        static constexpr bool is_there = true;                                                                    \
        static void apply(T* y, const T* x) {                                                                     \
            for (int i = 0; i < kLanes; i += kVectorBytes / int{sizeof(T)}) store(y + i, name##_of(load(x + i))); \
        }                                                                                                         \
    };
#if defined(__AVX512F__)
TAPIR_IN_VECTORS(exp, float, _mm512_loadu_ps, _mm512_storeu_ps)
TAPIR_IN_VECTORS(log, float, _mm512_loadu_ps, _mm512_storeu_ps)
TAPIR_IN_VECTORS(atan, float, _mm512_loadu_ps, _mm512_storeu_ps)
TAPIR_IN_VECTORS(exp, double, _mm512_loadu_pd, _mm512_storeu_pd)
TAPIR_IN_VECTORS(tanh, double, _mm512_loadu_pd, _mm512_storeu_pd)
#elif defined(__AVX2__)
TAPIR_IN_VECTORS(exp, float, _mm256_loadu_ps, _mm256_storeu_ps)
TAPIR_IN_VECTORS(log, float, _mm256_loadu_ps, _mm256_storeu_ps)
#endif
#undef TAPIR_IN_VECTORS

}  // namespace
}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
