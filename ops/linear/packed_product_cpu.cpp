// A packed matrix times one vector. The rows lie in blocks of 8 vectors (4 without AVX-512), the remaining ones in halving blocks; a
// block stores one column after the other. Each row has a sum in its lane, two or more of them in turn, so that at least eight are in flight.
#include "tapir/ops/linear/packed_product_kernels.h"

#include "tapir/ops/linear/gemm_simd_cpu.h"

namespace tapir::kernels::TAPIR_ISA {
namespace {

constexpr int most_vectors = vector_registers / 4;

// Calls block<Vectors>(first row) for all rows.
template <int Vectors, class Block>
void each_block(int64_t from, int64_t n, const Block& block) {
    constexpr int64_t rows = Vectors * int64_t{lanes<float>};
    for (; from + rows <= n || (Vectors == 1 && from < n); from += rows) block(std::integral_constant<int, Vectors>(), from);
    if constexpr (Vectors > 1) each_block<Vectors / 2>(from, n, block);
}

template <int Vectors>
void multiply(const float* w, const float* x, int64_t k, float* sums) {
    constexpr int chains = Vectors >= 4 ? 2 : 8 / Vectors;
    Vec<float> acc[chains][Vectors] = {};
    int64_t p = 0;
    for (; p + chains <= k; p += chains) {
#pragma GCC unroll 8
        for (int c = 0; c < chains; ++c) {
            const Vec<float> xv = Vec<float>{} + x[p + c];
#pragma GCC unroll 8
            for (int v = 0; v < Vectors; ++v, w += lanes<float>) acc[c][v] += xv * load(w);
        }
    }
    for (; p < k; ++p) {
        const Vec<float> xv = Vec<float>{} + x[p];
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v, w += lanes<float>) acc[0][v] += xv * load(w);
    }
    for (int v = 0; v < Vectors; ++v) {
        Vec<float> sum = acc[0][v];
        for (int c = 1; c < chains; ++c) sum += acc[c][v];
        store(sums + v * lanes<float>, sum);
    }
}

}  // namespace

int64_t packed_size(int64_t k, int64_t n) { return ceil_div(n, lanes<float>) * lanes<float> * k; }

void pack_weight(const float* w, int64_t k, int64_t n, float* packed) {
    each_block<most_vectors>(0, n, [&](auto vectors, int64_t from) {
        constexpr int64_t rows = decltype(vectors)::value * int64_t{lanes<float>};
        for (int64_t p = 0; p < k; ++p) {
            for (int64_t j = 0; j < rows; ++j) *packed++ = from + j < n ? w[(from + j) * k + p] : 0.0f;
        }
    });
}

void packed_product(const float* packed, const float* x, const float* bias, int64_t k, int64_t n, float* y) {
    each_block<most_vectors>(0, n, [&](auto vectors, int64_t from) {
        constexpr int count = decltype(vectors)::value;
        constexpr int64_t rows = count * int64_t{lanes<float>};
        alignas(vector_bytes) float sums[rows];
        multiply<count>(packed + from * k, x, k, sums);
        const int64_t here = smaller(rows, n - from);
        if (bias) {
            for (int64_t j = 0; j < here; ++j) sums[j] += bias[from + j];
        }
        __builtin_memcpy(y + from, sums, static_cast<std::size_t>(here) * sizeof(float));
    });
}

}  // namespace tapir::kernels::TAPIR_ISA
