// Functions of the rows in the instructions of AVX-512, which take a power of two apart and put it back in one: quicker than libmvec's, and
// as near. Without branches, so that an element's result does not depend on its neighbours. In the namespace of the instruction set.
//
// The polynomials are fitted (Lawson's iteration) to the relative error, on the interval that is left of an argument. A sum of x and
// kShift ends with x's nearest whole number in its last bits.
#pragma once

#include "tapir/ops/cpu/vector_impl.h"
#include "tapir/ops/elementwise/elementwise_kernels.h"

#if defined(__AVX512F__)
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
inline __m512 size_of(__m512 x) { return _mm512_abs_ps(x); }
inline __m512d size_of(__m512d x) { return _mm512_abs_pd(x); }
// The nearest of both bounds for what lies outside; nan for nan.
inline __m512 between(float low, __m512 x, float high) { return least(all(high), most(all(low), x)); }
inline __m512d between(double low, __m512d x, double high) { return least(all(high), most(all(low), x)); }
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

// sum x^n + ... + the last one: of numbers, or of vectors.
template <class V, class... T>
[[gnu::always_inline]] inline V polynomial(V x, V sum, T... rest) {
    ((sum = fma(sum, x, all(rest))), ...);
    return sum;
}

inline __m512d line(__m512d x, double slope, double start) { return fma(all(slope), x, all(start)); }

template <class T>
constexpr T kShift = T(0x1.8p23);
template <>
constexpr double kShift<double> = 0x1.8p52;

// e^x = 2^n e^r, |r| <= log(2) / 2. Errs by less than 0.9 units in the last place.
inline __m512 exp_of(__m512 given) {
    const __m512 x = between(-104.0F, given, 89.0F), shifted = fma(x, all(0x1.715476p+0F), all(kShift<float>)), n = shifted - all(kShift<float>);
    const __m512 r = fma(n, all(0x1.05c61p-29F), fma(n, all(-0x1.62e43p-1F), x));
    return times_power(polynomial(r, all(0x1.6a2302p-10F), 0x1.123a9p-7F, 0x1.5558f6p-5F, 0x1.55549p-3F, 0x1.fffffcp-2F, 1.0F, 1.0F), n);
}

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
    const __m512d x = between(-746.0, given, 710.0), shifted = fma(x, all(0x1.71547652b82fep+4), all(kShift<double>));
    const __m512d n = shifted - all(kShift<double>), r = fma(n, all(-0x1.abc9e3b39803fp-60), fma(n, all(-0x1.62e42fefa39efp-5), x)), s = r * r;
    const __m512d upper = polynomial(s, line(r, 0x1.6c185edd4b4c6p-10, 0x1.11123b6dd0c03p-7), line(r, 0x1.555555545d8a5p-5, 0x1.555555548e88ep-3));
    const __m512d less_1 = fma(fma(upper, r, all(0.5)), s, r);
    const __m512d part = _mm512_permutex2var_pd(_mm512_load_pd(kSixteenths), _mm512_castpd_si512(shifted), _mm512_load_pd(kSixteenths + 8));
    return times_power(fma(part, less_1, part), n * all(1.0 / 16));
}

// log(x) = n log(2) + log(m), 3/4 <= m < 3/2. Errs by less than a unit in the last place.
inline __m512 log_of(__m512 x) {
    const __m512 m = _mm512_maskz_getmant_ps(0xffff, x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_nan), r = m - all(1.0F),
                 exponent = _mm512_maskz_getexp_ps(0xffff, x);
    const __m512 n = _mm512_mask_add_ps(exponent, _mm512_cmp_ps_mask(m, all(1.0F), _CMP_LT_OQ), exponent, all(1.0F));
    const __m512 p = polynomial(r, all(-0x1.6fdff2p-5F), 0x1.abf366p-4F, -0x1.0d8fbcp-3F, 0x1.2897e6p-3F, -0x1.54f24ap-3F, 0x1.996858p-3F,
                                -0x1.000024p-2F, 0x1.5555a6p-2F, -0.5F);
    return fma(n, all(0x1.62e43p-1F), fma(p, r * r, r));
}

// Beyond 1 it is pi / 2 - atan(1 / x). Errs by less than 1.9 units in the last place.
inline __m512 atan_of(__m512 x) {
    const __m512 far = size_of(x), bounded = least(all(0x1p100F), far), about = _mm512_maskz_rcp14_ps(0xffff, bounded);
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
    const __m512d half = least(all(40.0), size_of(given)), x = half + half;
    const __m512d n = fma(x, all(0x1.71547652b82fep+0), all(kShift<double>)) - all(kShift<double>);
    const __m512d r = fma(n, all(-0x1.abc9e3b39803fp-56), fma(n, all(-0x1.62e42fefa39efp-1), x)), s = r * r;
    const __m512d p = polynomial(s, all(0x1.1ee87fe624a19p-29), line(r, 0x1.af5f0691ae226p-26, 0x1.27e536739c3ap-22),
                                 line(r, 0x1.71ddf831fbe7fp-19, 0x1.a01a017b858cep-16), line(r, 0x1.a01a01afef6edp-13, 0x1.6c16c16c1f1b2p-10),
                                 line(r, 0x1.111111110f69dp-7, 0x1.555555555553ep-5), line(r, 0x1.5555555555559p-3, 0.5), r);
    const __m512d power = times_power(all(1.0), n), t = fma(p, power, power - all(1.0));
    return copysign(t / (t + all(2.0)), given);
}

#define TAPIR_IN_VECTORS(name, T, load, store)                                                     \
    template <>                                                                                    \
    struct InVectors<name##_forward, T> {                                                          \
        static constexpr bool is_there = true;                                                     \
        static void apply(T* y, const T* x) {                                                      \
            for (int i = 0; i < kLanes; i += 64 / sizeof(T)) store(y + i, name##_of(load(x + i))); \
        }                                                                                          \
    };
TAPIR_IN_VECTORS(exp, float, _mm512_loadu_ps, _mm512_storeu_ps)
TAPIR_IN_VECTORS(exp, double, _mm512_loadu_pd, _mm512_storeu_pd)
TAPIR_IN_VECTORS(log, float, _mm512_loadu_ps, _mm512_storeu_ps)
TAPIR_IN_VECTORS(atan, float, _mm512_loadu_ps, _mm512_storeu_ps)
TAPIR_IN_VECTORS(tanh, double, _mm512_loadu_pd, _mm512_storeu_pd)
#undef TAPIR_IN_VECTORS
#endif

}  // namespace
}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
