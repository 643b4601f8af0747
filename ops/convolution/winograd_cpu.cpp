#include "tapir/ops/convolution/winograd_kernels.h"

#include "tapir/ops/cpu/vector_impl.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

// One dimension of B^T d, of G g and of A^T m.
#define TAPIR_WINOGRAD_INPUT(r, d0, d1, d2, d3) const float r##0 = d0 - d2, r##1 = d1 + d2, r##2 = d2 - d1, r##3 = d1 - d3
#define TAPIR_WINOGRAD_WEIGHT(r, g0, g1, g2) const float r##0 = g0, r##1 = 0.5F * (g0 + g1 + g2), r##2 = 0.5F * (g0 - g1 + g2), r##3 = g2
#define TAPIR_WINOGRAD_OUTPUT(r, m0, m1, m2, m3) const float r##0 = m0 + m1 + m2, r##1 = m1 - m2 - m3
#define TAPIR_WINOGRAD_GRADIENT(r, d0, d1) const float r##0 = d0, r##1 = d0 + d1, r##2 = d0 - d1, r##3 = -(d1)
#define TAPIR_WINOGRAD_WEIGHT_GRADIENT(r, m0, m1, m2, m3) \
    const float r##0 = m0 + 0.5F * (m1 + m2), r##1 = 0.5F * (m1 - m2), r##2 = 0.5F * (m1 + m2) + m3

// Writes the rows p, q, r, s of a tile's 16 numbers to their planes.
#define TAPIR_WINOGRAD_STORE(to)                                                                      \
    to[i] = p0, to[plane + i] = p1, to[2 * plane + i] = p2, to[3 * plane + i] = p3;                   \
    to[4 * plane + i] = q0, to[5 * plane + i] = q1, to[6 * plane + i] = q2, to[7 * plane + i] = q3;   \
    to[8 * plane + i] = r0, to[9 * plane + i] = r1, to[10 * plane + i] = r2, to[11 * plane + i] = r3; \
    to[12 * plane + i] = s0, to[13 * plane + i] = s1, to[14 * plane + i] = s2, to[15 * plane + i] = s3

// Where the results of a tile lie. Those outside of the image are where the tile's first one is.
template <class T>
struct Places {
    T *first, *right, *below, *last;
    bool has_right, has_below;
    Places(const WinogradImages& images, T* y, i64 tile) {
        const i64 image = tile / (images.down * images.across), top = tile / images.across % images.down * 2, left = tile % images.across * 2;
        has_right = left + 1 < images.width, has_below = top + 1 < images.height;
        first = y + ((image * images.height + top) * images.width + left) * images.channels;
        right = has_right ? first + images.channels : first;
        below = has_below ? first + images.width * images.channels : first;
        last = has_right && has_below ? below + images.channels : first;
    }
};

template <bool kHasAddend, bool kHasRelu>
bool write_output(const WinogradOutput& w, i64 begin, i64 count) {
    const i64 channels = w.channels, plane = w.plane;
    const float* const bias = w.bias ? w.bias + w.first : nullptr;
    const auto ended = [](float y) { return kHasRelu && y < 0 ? 0 : y; };
    float strange = 0;
    for (i64 t = 0; t < count; ++t) {
        const Places<float> y(w.images, w.y + w.first, begin + t);
        const Places<const float> z(w.images, kHasAddend ? w.addend + w.first : w.y + w.first, begin + t);
        float *const first = y.first, *const right = y.right, *const below = y.below, *const last = y.last;
        const float* const m = w.m + t * channels;
#pragma omp simd reduction(+ : strange)
        for (i64 i = 0; i < channels; ++i) {
            TAPIR_WINOGRAD_OUTPUT(a, m[i], m[4 * plane + i], m[8 * plane + i], m[12 * plane + i]);
            TAPIR_WINOGRAD_OUTPUT(b, m[plane + i], m[5 * plane + i], m[9 * plane + i], m[13 * plane + i]);
            TAPIR_WINOGRAD_OUTPUT(c, m[2 * plane + i], m[6 * plane + i], m[10 * plane + i], m[14 * plane + i]);
            TAPIR_WINOGRAD_OUTPUT(e, m[3 * plane + i], m[7 * plane + i], m[11 * plane + i], m[15 * plane + i]);
            TAPIR_WINOGRAD_OUTPUT(p, a0, b0, c0, e0);
            TAPIR_WINOGRAD_OUTPUT(q, a1, b1, c1, e1);
            const float add = bias ? bias[i] : 0;
            float y0 = p0 + add, y1 = p1 + add, y2 = q0 + add, y3 = q1 + add;
            if constexpr (kHasAddend) y0 += z.first[i], y1 += z.right[i], y2 += z.below[i], y3 += z.last[i];
            last[i] = ended(y3);  // the first one last, as others may lie there
            below[i] = ended(y2);
            right[i] = ended(y1);
            first[i] = ended(y0);
            strange += 0 * ((p0 + p1) + (q0 + q1));
        }
    }
    return strange == 0;
}

}  // namespace

bool winograd_weight(const WinogradWeight& w, i64 begin, i64 end) {
    const float* g[9];
    for (int k = 0; k < 9; ++k) g[k] = w.g + (w.flipped ? 8 - k : k) * w.count;
    float* const u = w.u;
    const i64 plane = w.plane;
    float strange = 0;  // 0, or nan
#pragma omp simd reduction(+ : strange)
    for (i64 i = begin; i < end; ++i) {
        TAPIR_WINOGRAD_WEIGHT(a, g[0][i], g[3][i], g[6][i]);
        TAPIR_WINOGRAD_WEIGHT(b, g[1][i], g[4][i], g[7][i]);
        TAPIR_WINOGRAD_WEIGHT(c, g[2][i], g[5][i], g[8][i]);
        TAPIR_WINOGRAD_WEIGHT(p, a0, b0, c0);
        TAPIR_WINOGRAD_WEIGHT(q, a1, b1, c1);
        TAPIR_WINOGRAD_WEIGHT(r, a2, b2, c2);
        TAPIR_WINOGRAD_WEIGHT(s, a3, b3, c3);
        TAPIR_WINOGRAD_STORE(u);
        strange += 0 * (p1 + p2 + q1 + q2 + r1 + r2 + s1 + s2 + p0 + p3 + s0 + s3);
    }
    return strange == 0;
}

bool winograd_input(const WinogradInput& w, i64 begin, i64 count) {
    const WinogradImages& images = w.images;
    const i64 channels = images.channels, plane = w.plane;
    float strange = 0;
    for (i64 t = 0; t < count; ++t) {
        const i64 tile = begin + t, image = tile / (images.down * images.across);
        const i64 top = tile / images.across % images.down * 2 - w.before[0], left = tile % images.across * 2 - w.before[1];
        const float* d[16];
        for (int k = 0; k < 16; ++k) {
            const i64 y = top + k / 4, x = left + k % 4;
            const bool is_inside = y >= 0 && y < images.height && x >= 0 && x < images.width;
            d[k] = is_inside ? w.x + ((image * images.height + y) * images.width + x) * channels : w.zeros;
        }
        float* const v = w.v + t * channels;
#pragma omp simd reduction(+ : strange)
        for (i64 i = 0; i < channels; ++i) {
            TAPIR_WINOGRAD_INPUT(a, d[0][i], d[4][i], d[8][i], d[12][i]);
            TAPIR_WINOGRAD_INPUT(b, d[1][i], d[5][i], d[9][i], d[13][i]);
            TAPIR_WINOGRAD_INPUT(c, d[2][i], d[6][i], d[10][i], d[14][i]);
            TAPIR_WINOGRAD_INPUT(e, d[3][i], d[7][i], d[11][i], d[15][i]);
            TAPIR_WINOGRAD_INPUT(p, a0, b0, c0, e0);
            TAPIR_WINOGRAD_INPUT(q, a1, b1, c1, e1);
            TAPIR_WINOGRAD_INPUT(r, a2, b2, c2, e2);
            TAPIR_WINOGRAD_INPUT(s, a3, b3, c3, e3);
            TAPIR_WINOGRAD_STORE(v);
            strange += 0 * ((p0 + p1 + p2 + p3) + (q0 + q1 + q2 + q3) + (r0 + r1 + r2 + r3) + (s0 + s1 + s2 + s3));
        }
    }
    return strange == 0;
}

bool winograd_output(const WinogradOutput& w, i64 begin, i64 count) {
    if (w.addend) return w.has_relu ? write_output<true, true>(w, begin, count) : write_output<true, false>(w, begin, count);
    return w.has_relu ? write_output<false, true>(w, begin, count) : write_output<false, false>(w, begin, count);
}

bool winograd_gradient(const WinogradGradient& w, i64 begin, i64 count) {
    const i64 channels = w.images.channels, plane = w.plane;
    float strange = 0;
    for (i64 t = 0; t < count; ++t) {
        const Places<const float> d(w.images, w.d, begin + t);
        const float right_factor = d.has_right ? 1 : 0, below_factor = d.has_below ? 1 : 0, last_factor = right_factor * below_factor;
        float* const v = w.v + t * channels;
#pragma omp simd reduction(+ : strange)
        for (i64 i = 0; i < channels; ++i) {
            const float d1 = right_factor * d.right[i], d2 = below_factor * d.below[i], d3 = last_factor * d.last[i];
            TAPIR_WINOGRAD_GRADIENT(a, d.first[i], d2);
            TAPIR_WINOGRAD_GRADIENT(b, d1, d3);
            TAPIR_WINOGRAD_GRADIENT(p, a0, b0);
            TAPIR_WINOGRAD_GRADIENT(q, a1, b1);
            TAPIR_WINOGRAD_GRADIENT(r, a2, b2);
            TAPIR_WINOGRAD_GRADIENT(s, a3, b3);
            TAPIR_WINOGRAD_STORE(v);
            strange += 0 * ((p1 + p2) + (q1 + q2) + (r1 + r2) + (s1 + s2));
        }
    }
    return strange == 0;
}

bool winograd_weight_gradient(const WinogradWeightGradient& w, i64 begin, i64 end) {
    const float* const m = w.m;
    float* const g = w.g;
    const i64 plane = w.plane, count = w.count;
    float strange = 0;
#pragma omp simd reduction(+ : strange)
    for (i64 i = begin; i < end; ++i) {
        TAPIR_WINOGRAD_WEIGHT_GRADIENT(a, m[i], m[4 * plane + i], m[8 * plane + i], m[12 * plane + i]);
        TAPIR_WINOGRAD_WEIGHT_GRADIENT(b, m[plane + i], m[5 * plane + i], m[9 * plane + i], m[13 * plane + i]);
        TAPIR_WINOGRAD_WEIGHT_GRADIENT(c, m[2 * plane + i], m[6 * plane + i], m[10 * plane + i], m[14 * plane + i]);
        TAPIR_WINOGRAD_WEIGHT_GRADIENT(e, m[3 * plane + i], m[7 * plane + i], m[11 * plane + i], m[15 * plane + i]);
        TAPIR_WINOGRAD_WEIGHT_GRADIENT(p, a0, b0, c0, e0);
        TAPIR_WINOGRAD_WEIGHT_GRADIENT(q, a1, b1, c1, e1);
        TAPIR_WINOGRAD_WEIGHT_GRADIENT(r, a2, b2, c2, e2);
        g[i] = p0, g[count + i] = p1, g[2 * count + i] = p2;
        g[3 * count + i] = q0, g[4 * count + i] = q1, g[5 * count + i] = q2;
        g[6 * count + i] = r0, g[7 * count + i] = r1, g[8 * count + i] = r2;
        strange += 0 * ((p0 + p1 + p2) + (q0 + q1 + q2) + (r0 + r1 + r2));
    }
    return strange == 0;
}

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
