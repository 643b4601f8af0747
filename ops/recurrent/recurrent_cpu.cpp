// The gate kernels of recurrent cells.
//
// A row is processed in blocks of columns that stay in the first-level cache. A width that is no multiple of the
// vector ends with a whole vector that overlaps the one before it: the outputs never alias the inputs, so writing some
// of them twice does no harm, and no scalar tail is left.
#include "tapir/ops/recurrent/recurrent_kernels.h"

#include "tapir/ops/cpu/math_impl.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

using i64 = std::int64_t;

constexpr i64 kVector = 16;  // columns
constexpr i64 kBlock = 128;  // columns, a multiple of kVector

// --- sigmoid and tanh, inline: a gate kernel is nothing but these, and a call spills every vector register ---------------

// e^x for x <= 0, to 1.5 units in the last place, at least e^-87; nan stays nan. Cody and Waite's reduction to
// |r| <= ln(2) / 2, then the polynomial of Cephes' expf.
inline float exp_of_negative(float x) {
    x = -87.0f > x ? -87.0f : x;
    const float shifted = x * 1.44269504088896341f + 12582912.0f;  // 1.5 * 2^23: the integer is in the low bits
    const float n = shifted - 12582912.0f;
    float r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const std::uint32_t exponent = __builtin_bit_cast(std::uint32_t, shifted) << 23;
    return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, p) + exponent);
}

// With e = exp(-|x|) nothing overflows, and small results keep their relative precision.
inline float gate_sigmoid(float x) {
    const float e = exp_of_negative(-__builtin_fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

// A quotient of polynomials, odd over even, to 5 units in the last place (the coefficients are Eigen's ptanh); beyond
// the clamp tanh is 1 in float.
inline float gate_tanh(float x) {
    float y = __builtin_fabsf(x);
    y = 7.90531110763549805f < y ? 7.90531110763549805f : y;
    const float s = y * y;
    float p = -2.76076847742355e-16f;
    p = p * s + 2.00018790482477e-13f;
    p = p * s + -8.60467152213735e-11f;
    p = p * s + 5.12229709037114e-08f;
    p = p * s + 1.48572235717979e-05f;
    p = p * s + 6.37261928875436e-04f;
    p = p * s + 4.89352455891786e-03f;
    float q = 1.19825839466702e-06f;
    q = q * s + 1.18534705686654e-04f;
    q = q * s + 2.26843463243900e-03f;
    q = q * s + 4.89352518554385e-03f;
    return __builtin_copysignf(y * p / q, x);
}

inline double gate_sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
inline double gate_tanh(double x) { return tanh(x); }

// Calls body(first column, columns) for blocks of whole vectors that cover [0, width). Narrow rows are one short block.
template <class Body>
void for_blocks(i64 width, const Body& body) {
    const i64 whole = width / kVector * kVector;
    for (i64 j = 0; j < whole; j += kBlock) body(j, whole - j < kBlock ? whole - j : kBlock);
    if (whole < width) {
        if (width >= kVector) {
            body(width - kVector, kVector);
        } else {
            body(0, width);
        }
    }
}

// --- LSTM ----------------------------------------------------------------------------------------------------------------

// Computes columns [j, j + n) of one row.
template <class T, bool keep>
void lstm_block(const LstmGates<T>& args, i64 row, i64 j, i64 n) {
    using Gate = typename LstmGates<T>::Gate;
    const i64 width = args.width;
    const int children = args.children;
    T* kept = keep ? args.activations + row * (children + 4) * width + j : nullptr;
    alignas(64) T cell[kBlock], gate[kBlock], gate_u[kBlock];
    const auto a_of = [&](const Gate& g) { return g.a + row * g.a_row + j; };
    const auto b_of = [&](const Gate& g) -> const T* { return g.b ? g.b + row * g.b_row + j : nullptr; };
    // pre-activations of two places are summed beforehand
    const auto pre = [&](const Gate& g, T* buffer) -> const T* {
        const T *a = a_of(g), *b = b_of(g);
        if (!b) return a;
#pragma omp simd
        for (i64 t = 0; t < n; ++t) buffer[t] = a[t] + b[t];
        return buffer;
    };
    const T* i = pre(args.gates[0], gate);
    const T* u = pre(args.gates[children + 2], gate_u);
#pragma omp simd
    for (i64 t = 0; t < n; ++t) {
        const T si = gate_sigmoid(i[t]), tu = gate_tanh(u[t]);
        cell[t] = si * tu;
        if constexpr (keep) {
            kept[t] = si;
            kept[(children + 2) * width + t] = tu;
        }
    }
    for (int k = 0; k < children; ++k) {
        const T* f = pre(args.gates[1 + k], gate);
        const T* c = args.child[k].c + row * args.child[k].row + j;
        T* kept_f = keep ? kept + (1 + k) * width : nullptr;
#pragma omp simd
        for (i64 t = 0; t < n; ++t) {
            const T sf = gate_sigmoid(f[t]);
            cell[t] += sf * c[t];
            if constexpr (keep) kept_f[t] = sf;
        }
    }
    const T* o = pre(args.gates[children + 1], gate);
    T* h = args.h ? args.h + row * width + j : gate_u;
    T* c = args.c ? args.c + row * width + j : cell;
#pragma omp simd
    for (i64 t = 0; t < n; ++t) {
        const T so = gate_sigmoid(o[t]), tc = gate_tanh(cell[t]);
        c[t] = cell[t];
        h[t] = so * tc;
        if constexpr (keep) {
            kept[(children + 1) * width + t] = so;
            kept[(children + 3) * width + t] = tc;
        }
    }
}

template <class T>
void lstm(const LstmGates<T>& args, i64 begin, i64 end) {
    for (i64 row = begin; row < end; ++row) {
        if (args.activations) {
            for_blocks(args.width, [&](i64 j, i64 n) { lstm_block<T, true>(args, row, j, n); });
        } else {
            for_blocks(args.width, [&](i64 j, i64 n) { lstm_block<T, false>(args, row, j, n); });
        }
    }
}

// --- GRU -------------------------------------------------------------------------------------------------------------------

template <class T>
void gru_block(const GruGates<T>& args, i64 row, i64 j, i64 n) {
    const i64 width = args.width;
    const T *x = args.x + row * 3 * width + j, *y = args.y + row * 3 * width + j, *h = args.h + row * width + j;
    T* out = args.out + row * width + j;
    alignas(64) T r[kBlock], z[kBlock], m[kBlock];
#pragma omp simd
    for (i64 t = 0; t < n; ++t) r[t] = gate_sigmoid(x[t] + y[t]);
#pragma omp simd
    for (i64 t = 0; t < n; ++t) z[t] = gate_sigmoid(x[width + t] + y[width + t]);
#pragma omp simd
    for (i64 t = 0; t < n; ++t) {
        m[t] = gate_tanh(x[2 * width + t] + r[t] * y[2 * width + t]);
        out[t] = (T(1) - z[t]) * m[t] + z[t] * h[t];
    }
    if (!args.activations) return;
    T* kept = args.activations + row * 3 * width + j;
#pragma omp simd
    for (i64 t = 0; t < n; ++t) {
        kept[t] = r[t];
        kept[width + t] = z[t];
        kept[2 * width + t] = m[t];
    }
}

template <class T>
void gru(const GruGates<T>& args, i64 begin, i64 end) {
    for (i64 row = begin; row < end; ++row) {
        for_blocks(args.width, [&](i64 j, i64 n) { gru_block(args, row, j, n); });
    }
}

}  // namespace

void lstm_gates_f32(const LstmGates<float>& args, i64 begin, i64 end) { lstm(args, begin, end); }
void lstm_gates_f64(const LstmGates<double>& args, i64 begin, i64 end) { lstm(args, begin, end); }
void gru_gates_f32(const GruGates<float>& args, i64 begin, i64 end) { gru(args, begin, end); }
void gru_gates_f64(const GruGates<double>& args, i64 begin, i64 end) { gru(args, begin, end); }

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
