// The matrix-product kernels, for float and double. Included by ops/cpu/gemm_f32.cpp and gemm_f64.cpp only.
//
// Three ways to sum a product (GemmMethod):
//
// dots   y = W x with W's rows contiguous, the case of a batch of one: several rows of W at once, each in its own
//        accumulator (independent FMA chains and memory streams), then all accumulators summed across their lanes by
//        one transposing tree. W is read once; nothing is packed. A W beyond the first-level cache is read in fewer
//        streams, and fetched from front to back.
// rows   y = x W, again a batch of one: W's rows, weighted and added up, eight at a time. W is read once, from front to
//        back; y stays in L1.
// tiles  C in register tiles of `rows` x `vectors` (8 x 3 vectors with AVX-512). A step broadcasts one element of A
//        per row and loads one row of B: A may have any strides, B must be contiguous along n. When it is not but
//        A is contiguous along m, the transposed product is computed and each finished tile transposed on its way to
//        C (free beside k steps). When neither holds, or the product is large, the operand is packed first.
//
// Note [Order of summation]: an element of C depends only on its row of A, its column of B, k, and the method; never
// on where its tile begins, on packing or on transposition. So splitting C over threads does not change the result.
// For the same reason every store applies alpha, then bias, then beta, alpha in a branch of its own: in one expression
// the compiler would fuse the multiplication and the addition in some kernels and not in others.
//
// Note [Back and forth]: a batch of one reads a matrix that may not fit the second-level cache, and a recurrent model reads
// it again and again: if it always began at the front, the cache would hold nothing that it needs next. So every second sweep over a
// large matrix goes from its end to its front and finds the elements read last (measured: 20% less time for 750 x 300
// float32 with 1 MB of cache). The sums are the same.
#pragma once

#include "tapir/ops/linear/gemm_cpu.h"
#include "tapir/ops/linear/gemm_simd_cpu.h"

namespace tapir::kernels::TAPIR_ISA {
namespace {

/// The product as the kernels see it. `transposed`: element (i, j) of the product is stored at c[j * c_row + i], and
/// the bias runs along i. Otherwise it is stored at c[i * c_row + j], and the bias runs along j.
template <class T>
struct Product {
    int64_t m, n, k;
    const T* a;
    int64_t a_row, a_col;
    const T* b;
    int64_t b_row, b_col;
    T* c;
    int64_t c_row;
    T beta, alpha;
    const T* bias;
    bool transposed;
};

/// The stride of a dimension of size 1 is never used: it is set so that only the other dimension can look contiguous.
template <class T>
Product<T> as_given(const Gemm<T>& g) {
    Product<T> p{g.m, g.n, g.k, g.a, g.a_row, g.a_col, g.b, g.b_row, g.b_col, g.c, g.c_row, g.beta, g.alpha, g.bias, false};
    if (g.k == 1) p.a_col = g.a_row == 1 ? g.m : 1;
    if (g.k == 1) p.b_row = g.b_col == 1 ? g.n : 1;
    if (g.m == 1) p.a_row = p.a_col == 1 ? g.k : 1;
    if (g.n == 1) p.b_col = p.b_row == 1 ? g.k : 1;
    return p;
}

/// Returns the transposed product, C^T = B^T A^T.
template <class T>
Product<T> swapped(const Product<T>& p) {
    return {p.n, p.m, p.k, p.b, p.b_col, p.b_row, p.a, p.a_col, p.a_row, p.c, p.c_row, p.beta, p.alpha, p.bias, !p.transposed};
}

/// Cuts `total` into the fewest parts of `at_most`, with sizes that differ by at most one.
struct EvenSplit {
    int64_t parts = 1, size, larger = 0;  // the first `larger` parts have size + 1
    EvenSplit(int64_t total, int64_t at_most) : size(total) {
        if (total <= at_most) return;  // most calls end here: two divisions are dear beside a small product
        parts = ceil_div(total, at_most);
        size = total / parts;
        larger = total - size * parts;
    }
    int64_t operator[](int64_t i) const { return size + (i < larger); }
};

/// True if this sweep over the matrix at `b` goes backwards: see Note [Back and forth]. A bit for each matrix, by address.
inline bool sweeps_backwards(const void* b, int64_t bytes) {
    if (bytes < 256 * 1024) return false;
    static thread_local uint64_t last = 0;
    const uint64_t bit = uint64_t{1} << ((reinterpret_cast<uintptr_t>(b) >> 12) * 0x9E3779B97F4A7C15u >> 58);
    last ^= bit;
    return last & bit && bytes <= 16 * 1024 * 1024;  // of a larger one the cache holds next to nothing
}

// ---------------------------------------------------------------------------------------------------------- dots

constexpr int dot_accumulators = vector_registers / 2;

/// Number of W's rows taken at once with `x_rows` rows of x: x_rows * dot_rows accumulators.
constexpr int dot_rows(int x_rows) { return x_rows == 3 ? dot_rows(4) : dot_accumulators / x_rows; }

constexpr int power_of_two_from(int n) { return n <= 1 ? 1 : 2 * power_of_two_from((n + 1) / 2); }

/// out[i * NW + j] = sum over p of x[i * x_row + p] * w[j * w_row + p], in whole vectors.
/// Prefetch: loads the next NW rows of W early, for a W beyond L1: few rows are streams too short for the hardware's prefetcher.
/// (With one row of x, NW is large and the loads themselves are the limit.)
template <class T, int MX, int NW, bool Prefetch>
TAPIR_ALWAYS_INLINE void dot_sums(int64_t k, const T* x, int64_t x_row, const T* w, int64_t w_row, Vec<T>* out) {
    constexpr int sums = power_of_two_from(MX * NW), group = sums < lanes<T> ? sums : lanes<T>;
    Vec<T> acc[sums] = {};
    const auto step = [&](auto load_vec) {
        Vec<T> xv[MX];
#pragma GCC unroll 16
        for (int i = 0; i < MX; ++i) xv[i] = load_vec(x + i * x_row);
#pragma GCC unroll 16
        for (int j = 0; j < NW; ++j) {
            const Vec<T> wv = load_vec(w + j * w_row);
            if (Prefetch) __builtin_prefetch(w + (NW + j) * w_row);
#pragma GCC unroll 16
            for (int i = 0; i < MX; ++i) acc[i * NW + j] += xv[i] * wv;
        }
    };
    int64_t p = k;
    for (; p >= lanes<T>; p -= lanes<T>, x += lanes<T>, w += lanes<T>) step([](const T* q) { return load(q); });
    if (p > 0) {
        const First<T> rest(p);
        step([rest](const T* q) { return load_first(q, rest); });
    }
#pragma GCC unroll 16
    for (int s = 0; s < sums; s += group) out[s / group] = sum_lanes<group, T>(acc + s);
}

/// Finishes a row of Count sums and stores it at c.
template <int Count, class T>
TAPIR_ALWAYS_INLINE void store_dots(const T* sums, T* c, const T* bias, T alpha, T beta) {
    T y[Count];
    __builtin_memcpy(y, sums, sizeof y);
    if (alpha != 1)
        for (int j = 0; j < Count; ++j) y[j] *= alpha;
    if (bias)
        for (int j = 0; j < Count; ++j) y[j] += bias[j];
    if (beta != 0)
        for (int j = 0; j < Count; ++j) y[j] += beta * c[j];
    __builtin_memcpy(c, y, sizeof y);
}

/// Computes the MX x NW dot products of rows i0... of x and rows j0... of W, and stores them into C.
template <class T, int MX, int NW, bool Prefetch = false>
TAPIR_ALWAYS_INLINE void dot_tile(const Product<T>& d, int64_t i0, int64_t j0) {
    constexpr int vectors = (power_of_two_from(MX * NW) + lanes<T> - 1) / lanes<T>;
    Vec<T> out[vectors];
    dot_sums<T, MX, NW, Prefetch>(d.k, d.a + i0 * d.a_row, d.a_row, d.b + j0 * d.b_col, d.b_col, out);
    alignas(vector_bytes) T sums[vectors * lanes<T>];
    for (int v = 0; v < vectors; ++v) store(sums + v * lanes<T>, out[v]);
    if (!d.transposed) {
        for (int i = 0; i < MX; ++i) store_dots<NW>(sums + i * NW, d.c + (i0 + i) * d.c_row + j0, d.bias ? d.bias + j0 : nullptr, d.alpha, d.beta);
        return;
    }
    for (int i = 0; i < MX; ++i)
        for (int j = 0; j < NW; ++j)
            store_dots<1>(sums + i * NW + j, d.c + (j0 + j) * d.c_row + i0 + i, d.bias ? d.bias + i0 + i : nullptr, d.alpha, d.beta);
}

/// Multiplies rows j0 .. j0 + NW of W with every row of x, four at a time.
template <class T, int NW, bool Prefetch>
void dot_columns(const Product<T>& d, int64_t j0) {
    int64_t i = 0;
    for (; i + 4 <= d.m; i += 4) dot_tile<T, 4, NW, Prefetch>(d, i, j0);
    switch (d.m - i) {
        case 3: return dot_tile<T, 3, NW>(d, i, j0);
        case 2: return dot_tile<T, 2, NW>(d, i, j0);
        case 1: return dot_tile<T, 1, NW>(d, i, j0);
    }
}

/// Sums the lanes of NW dot products of one row of x and stores them.
template <int NW, class T>
TAPIR_ALWAYS_INLINE void store_line_sums(const Product<T>& d, int64_t j0, Vec<T>* acc) {
    constexpr int group = NW < lanes<T> ? NW : lanes<T>;
    alignas(vector_bytes) T sums[(NW / group) * lanes<T>];
    alignas(vector_bytes) T packed[NW];
#pragma GCC unroll 4
    for (int s = 0; s < NW; s += group) {
        store(sums + s / group * lanes<T>, sum_lanes<group, T>(acc + s));
        for (int i = 0; i < group; ++i) packed[s + i] = sums[s / group * lanes<T> + i];
    }
    if (!d.transposed) return store_dots<NW>(packed, d.c + j0, d.bias ? d.bias + j0 : nullptr, d.alpha, d.beta);
    for (int j = 0; j < NW; ++j) store_dots<1>(packed + j, d.c + (j0 + j) * d.c_row, d.bias, d.alpha, d.beta);
}

/// Multiplies one row of x with rows j0 .. j0 + stream_rows of W, and fetches the next ones. The sums are those of dot_tile. Long rows are not fetched,
/// which the hardware does, and which would drive each other out of the cache: the same lines are asked for again and again.
constexpr int stream_rows = 4;
template <class T>
TAPIR_ALWAYS_INLINE void dot_stream(const Product<T>& d, int64_t j0, bool backwards) {
    constexpr int NW = stream_rows;
    const T *x = d.a, *w = d.b + j0 * d.k, *next = backwards ? w - NW * d.k : w + NW * d.k;
    const int64_t step = d.k * int64_t{sizeof(T)} < 4096 ? NW * lanes<T> : 0;
    Vec<T> acc[NW] = {};
    int64_t p = d.k;
    for (; p >= lanes<T>; p -= lanes<T>, x += lanes<T>, w += lanes<T>, next += step) {
        const Vec<T> xv = load(x);
#pragma GCC unroll 4
        for (int j = 0; j < NW; ++j) {
            __builtin_prefetch(next + j * lanes<T>);
            acc[j] += xv * load(w + j * d.k);
        }
    }
    if (p > 0) {
        const First<T> rest(p);
        const Vec<T> xv = load_first(x, rest);
#pragma GCC unroll 4
        for (int j = 0; j < NW; ++j) acc[j] += xv * load_first(w + j * d.k, rest);
    }
    store_line_sums<NW>(d, j0, acc);
}

/// Computes one row of x. W's remaining rows go in halving groups.
template <class T, int NW>
void dots_one(const Product<T>& d, int64_t from, bool backwards) {
    const int64_t end = from + (d.n - from) / NW * NW;
    const auto left_over = [&] {
        if constexpr (NW > 1) {
            if (end < d.n) dots_one<T, NW / 2>(d, end, backwards);
        }
    };
    if (backwards) {
        left_over();
        for (int64_t j = end; j > from; j -= NW) dot_tile<T, 1, NW>(d, 0, j - NW);
    } else {
        for (int64_t j = from; j < end; j += NW) dot_tile<T, 1, NW>(d, 0, j);
        left_over();
    }
}

template <class T>
void dots_one(const Product<T>& d) {
    const int64_t bytes = d.n * d.k * int64_t{sizeof(T)};
    const bool backwards = sweeps_backwards(d.b, bytes);
    if (bytes <= 48 * 1024 || d.b_col != d.k || d.n < stream_rows) return dots_one<T, dot_rows(1)>(d, 0, backwards);
    // W is one piece beyond the first-level cache: few streams at a time, the next ones fetched.
    const int64_t end = d.n / stream_rows * stream_rows;
    if (backwards) {
        if (end < d.n) dots_one<T, stream_rows / 2>(d, end, true);
        for (int64_t j = end; j > 0; j -= stream_rows) dot_stream(d, j - stream_rows, true);
    } else {
        for (int64_t j = 0; j < end; j += stream_rows) dot_stream(d, j, false);
        if (end < d.n) dots_one<T, stream_rows / 2>(d, end, false);
    }
}

template <class T>
void dots_two(const Product<T>& d) {
    constexpr int rows = dot_rows(2);
    int64_t j = 0;
    for (; j + rows <= d.n; j += rows) dot_tile<T, 2, rows>(d, 0, j);
    for (; j < d.n; ++j) dot_tile<T, 2, 1>(d, 0, j);
}

template <class T, bool Prefetch>
void dots_many(const Product<T>& d) {
    constexpr int rows = dot_rows(4);
    int64_t j = 0;
    for (; j + rows <= d.n; j += rows) {
        if (d.m == 3)
            dot_tile<T, 3, rows, Prefetch>(d, 0, j);
        else
            dot_columns<T, rows, Prefetch>(d, j);
    }
    for (; j < d.n; ++j) dot_columns<T, 1, false>(d, j);
}

/// Copies a row of x that is not contiguous first.
template <class T>
void dots_strided_x(Product<T> d) {
    T* x = static_cast<T*>(gemm_workspace(sizeof(T) * static_cast<std::size_t>(d.k)));
    for (int64_t p = 0; p < d.k; ++p) x[p] = d.a[p * d.a_col];
    d.a = x;
    dots_one(d);
}

/// Needs b_row == 1, and a_col == 1 unless m == 1.
template <class T>
void dots(const Product<T>& d) {
    if (d.m == 1) return d.a_col == 1 ? dots_one(d) : dots_strided_x(d);
    if (d.m == 2) return dots_two<T>(d);
    if (d.n * d.k * int64_t{sizeof(T)} > 64 * 1024) return dots_many<T, true>(d);
    dots_many<T, false>(d);
}

// ---------------------------------------------------------------------------------------------------------- rows

constexpr int64_t rows_block_k = 96;        // rows whose sum is taken at once; the blocks' sums are added in order
constexpr int64_t rows_block_bytes = 8192;  // of y: it stays in L1 beside the rows

/// sum = sum over r < Rows of x[r * x_step] * w[r * w_row + ...], n elements, + the old sum unless First. sum has room
/// for whole vectors.
template <int Rows, bool First_, class T>
void add_rows(const T* x, int64_t x_step, const T* w, int64_t w_row, int64_t n, T* sum) {
    Vec<T> weight[Rows];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) weight[r] = Vec<T>{} + x[r * x_step];
    const auto step = [&](int64_t j, auto load_vec) {
        Vec<T> acc = First_ ? Vec<T>{} : load(sum + j);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) acc += weight[r] * load_vec(w + r * w_row + j);
        store(sum + j, acc);
    };
    int64_t j = 0;
    for (; j + lanes<T> <= n; j += lanes<T>) step(j, [](const T* q) { return load(q); });
    if (j < n) {
        const First<T> rest(n - j);
        step(j, [rest](const T* q) { return load_first(q, rest); });
    }
}

/// Sums rows [from, to) of B, weighted, into sum.
template <class T>
void sum_rows(const Product<T>& d, int64_t from, int64_t to, int64_t j0, int64_t n, T* sum) {
    const T *x = d.a + from * d.a_col, *w = d.b + from * d.b_row + j0;
    int64_t left = to - from;
    const auto add = [&]<int Rows>(std::integral_constant<int, Rows>, bool first) {
        if (first)
            add_rows<Rows, true>(x, d.a_col, w, d.b_row, n, sum);
        else
            add_rows<Rows, false>(x, d.a_col, w, d.b_row, n, sum);
        x += Rows * d.a_col, w += Rows * d.b_row, left -= Rows;
    };
    bool first = true;
    for (; left >= 8; first = false) add(std::integral_constant<int, 8>{}, first);
    if (left >= 4) add(std::integral_constant<int, 4>{}, first), first = false;
    if (left >= 2) add(std::integral_constant<int, 2>{}, first), first = false;
    if (left >= 1) add(std::integral_constant<int, 1>{}, first);
}

/// Needs m == 1 and b_col == 1.
template <class T>
void weighted_rows(const Product<T>& d) {
    constexpr int64_t width_most = rows_block_bytes / int64_t{sizeof(T)};
    const int64_t blocks = ceil_div(d.k, rows_block_k), width = ceil_div(smaller(d.n, width_most), lanes<T>) * lanes<T>;
    const bool backwards = sweeps_backwards(d.b, d.n * d.k * int64_t{sizeof(T)});
    alignas(vector_bytes) T one_block[width_most];
    T* sums = one_block;
    if (blocks > 1) sums = static_cast<T*>(gemm_workspace(sizeof(T) * static_cast<std::size_t>(blocks * width)));
    for (int64_t j0 = 0; j0 < d.n; j0 += width_most) {
        const int64_t n = smaller(width_most, d.n - j0);
        for (int64_t i = 0; i < blocks; ++i) {
            const int64_t block = backwards ? blocks - 1 - i : i, from = block * rows_block_k;
            sum_rows(d, from, smaller(from + rows_block_k, d.k), j0, n, sums + block * width);
        }
        for (int64_t j = 0; j < n; j += lanes<T>) {
            const First<T> used(smaller(lanes<T>, n - j));
            Vec<T> y = load(sums + j);
            for (int64_t block = 1; block < blocks; ++block) y += load(sums + block * width + j);
            if (d.alpha != 1) y *= d.alpha;
            T* c = d.transposed ? nullptr : d.c + j0 + j;
            if (c) {
                if (d.bias) y += load_first(d.bias + j0 + j, used);
                if (d.beta != 0) y += d.beta * load_first(c, used);
                store_first(c, y, used);
                continue;
            }
            for (int64_t q = 0; q < smaller(lanes<T>, n - j); ++q) {
                T* one = d.c + (j0 + j + q) * d.c_row;
                T value = y[q];
                if (d.bias) value += d.bias[0];
                if (d.beta != 0) value += d.beta * *one;
                *one = value;
            }
        }
    }
}

// --------------------------------------------------------------------------------------------------------- tiles

/// Returns the most vectors of B beside `rows` accumulator rows: rows * vectors accumulators, one row of B and (where the FMA
/// cannot broadcast from memory) one broadcast must fit the registers.
constexpr int tile_vectors(int64_t rows) {
#if defined(__AVX512F__)
    return rows <= 2 ? 8 : rows <= 4 ? 6 : rows <= 6 ? 4 : 3;
#elif defined(__AVX2__)
    return rows <= 1 ? 8 : rows <= 2 ? 4 : rows <= 4 ? 3 : 2;
#else
    return rows <= 1 ? 8 : rows <= 2 ? 4 : 2;
#endif
}
#if defined(__AVX512F__)
constexpr int tile_rows = 8;
#elif defined(__AVX2__)
constexpr int tile_rows = 6;
#else
constexpr int tile_rows = 4;
#endif
constexpr int tile_vectors_most = 8;

enum TileVariant : int { whole, partial, prefetching };
constexpr int prefetch_steps = 4;  // rows of B ahead: about 50 cycles

/// Moves p by `step` elements, counted in bytes: else GCC makes a second copy of every loop for a step of one element.
template <class T>
TAPIR_ALWAYS_INLINE const T* at_bytes(const T* p, int64_t step) {
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(p) + step * int64_t{sizeof(T)});
}

/// One register tile: c[i][j] = alpha * sum over p of a[i * a_row + p * a_col] * b[p * b_row + j] + beta * c + bias[j].
template <class T>
struct Tile {
    int64_t k;
    const T* a;
    int64_t a_row, a_col;
    const T* b;
    int64_t b_row;
    T* c;
    int64_t c_row;
    T beta, alpha;
    const T* bias;
    int64_t last_lanes;  // columns in the last vector
};

template <class T, int MR, int NV, TileVariant Variant>
void tile(const Tile<T>& t) {
    const First<T> last(Variant == partial ? t.last_lanes : lanes<T>);
    const auto load_vec = [&](const T* p, int j) {
        return Variant == partial && j == NV - 1 ? load_first(p + j * lanes<T>, last) : load(p + j * lanes<T>);
    };
    Vec<T> acc[MR][NV] = {};
    const T *a = t.a, *b = t.b;
    const int64_t a_row = t.a_row, a_col = t.a_col, b_row = t.b_row;
    for (int64_t p = t.k; p > 0; --p) {
        Vec<T> bv[NV];
#pragma GCC unroll 16
        for (int j = 0; j < NV; ++j) {
            bv[j] = load_vec(b, j);
            if (Variant == prefetching) __builtin_prefetch(b + prefetch_steps * b_row + j * lanes<T>);
        }
#pragma GCC unroll 16
        for (int i = 0; i < MR; ++i) {
            const T x = a[i * a_row];
#pragma GCC unroll 16
            for (int j = 0; j < NV; ++j) acc[i][j] += x * bv[j];
        }
        a = at_bytes(a, a_col), b = at_bytes(b, b_row);
    }
    if (t.alpha != 1) {
        const T alpha = t.alpha;
#pragma GCC unroll 16
        for (int i = 0; i < MR; ++i)
#pragma GCC unroll 16
            for (int j = 0; j < NV; ++j) acc[i][j] *= alpha;
    }
    if (t.bias) {
#pragma GCC unroll 16
        for (int j = 0; j < NV; ++j) {
            const Vec<T> bias = load_vec(t.bias, j);
#pragma GCC unroll 16
            for (int i = 0; i < MR; ++i) acc[i][j] += bias;
        }
    }
    T* c = t.c;
    const int64_t c_row = t.c_row;
    const T beta = t.beta;
    if (beta != 0) {
#pragma GCC unroll 16
        for (int i = 0; i < MR; ++i)
#pragma GCC unroll 16
            for (int j = 0; j < NV; ++j) acc[i][j] += beta * load_vec(c + i * c_row, j);
    }
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i, c += c_row) {
#pragma GCC unroll 16
        for (int j = 0; j < NV; ++j) {
            if (Variant == partial && j == NV - 1)
                store_first(c + j * lanes<T>, acc[i][j], last);
            else
                store(c + j * lanes<T>, acc[i][j]);
        }
    }
}

template <class T>
using TileFn = void (*)(const Tile<T>&);

/// Holds each tile with whole vectors, with a partial last vector, and (wide tiles) with B prefetched.
template <class T>
struct TileTable {
    TileFn<T> fn[3][tile_rows + 1][tile_vectors_most + 1] = {};

    template <int MR, int NV>
    constexpr void fill() {
        fn[whole][MR][NV] = tile<T, MR, NV, whole>;
        fn[partial][MR][NV] = tile<T, MR, NV, partial>;
        constexpr TileVariant third = MR * NV >= 8 && NV + 1 >= tile_vectors(MR) ? prefetching : whole;
        fn[prefetching][MR][NV] = tile<T, MR, NV, third>;
        if constexpr (NV > 1)
            fill<MR, NV - 1>();
        else if constexpr (MR > 1)
            fill<MR - 1, tile_vectors(MR - 1)>();
    }
    constexpr TileTable() { fill<tile_rows, tile_vectors(tile_rows)>(); }
};
template <class T>
constexpr TileTable<T> tile_table;

// Blocks of a large product: a tile's rows of A (block_k deep) stay in L1, B's block (block_k x block_n) in L2.
// Sums are cut at block_k in every product, packed or not: see Note [Order of summation].
template <class T>
constexpr int64_t block_k = 1536 / int64_t{sizeof(T)};
template <class T>
constexpr int64_t block_n = 24 * lanes<T>;
/// Number of A's tiles that are packed together: two cache lines of a row.
template <class T>
constexpr int64_t packed_tiles = 128 / (tile_rows * int64_t{sizeof(T)});

/// Bytes up to which A's columns are packed once for all blocks of B: they still lie in a cache for the last block.
constexpr int64_t most_whole_a = 1 << 20;

/// dst[p * width + j] = src[p * row + j * col] for p < k, j < n; zero for n <= j < width (a multiple of lanes).
template <class T>
void pack_panel(int64_t k, int64_t n, const T* src, int64_t row, int64_t col, T* dst, int64_t width) {
    if (col == 1) {
        for (int64_t p = 0; p < k; ++p, src += row, dst += width) {
            int64_t j = 0;
            for (; j + lanes<T> <= n; j += lanes<T>) store(dst + j, load(src + j));
            if (j < n) store(dst + j, load_first(src + j, First<T>(n - j)));
        }
        return;
    }
    for (int64_t j0 = 0; j0 < n; j0 += lanes<T>) {
        const int64_t columns = smaller(lanes<T>, n - j0);
        const T* s = src + j0 * col;
        int64_t p = 0;
        if (row == 1) {
            for (; p < k; p += lanes<T>) {
                const int64_t steps = smaller(lanes<T>, k - p);
                const First<T> first(steps);
                Vec<T> v[lanes<T>];
#pragma GCC unroll 16
                for (int j = 0; j < lanes<T>; ++j) v[j] = j < columns ? load_first(s + j * col + p, first) : Vec<T>{};
                transpose<T>(v);
                T* d = dst + p * width + j0;
#pragma GCC unroll 16
                for (int q = 0; q < lanes<T>; ++q)
                    if (q < steps) store(d + q * width, v[q]);
            }
            continue;
        }
        for (; p < k; ++p) {
            T* d = dst + p * width + j0;
            for (int64_t j = 0; j < lanes<T>; ++j) d[j] = j < columns ? s[p * row + j * col] : T{0};
        }
    }
}

/// dst[p * rows + i] = src[i * row + p * col]: a tile's rows of A.
template <class T>
void pack_rows(int64_t k, int64_t rows, const T* src, int64_t row, int64_t col, T* dst) {
    if (row == 1 && rows == tile_rows) {
        for (int64_t p = 0; p < k; ++p, src += col, dst += tile_rows) __builtin_memcpy(dst, src, tile_rows * sizeof(T));
        return;
    }
    for (int64_t p = 0; p < k; ++p, src += col)
        for (int64_t i = 0; i < rows; ++i) *dst++ = src[i * row];
}

/// Runs pack_rows for several tiles, one after the other, from columns of A: each cache line that a step touches is read once and
/// whole. (Lines of other steps, often a power of two apart, would drive it out before the next tile came for the rest.)
template <class T>
void pack_tiles(int64_t k, const EvenSplit& rows, int64_t first, int64_t tiles, const T* src, int64_t col, T* dst) {
    constexpr int64_t ahead = 8;
    for (int64_t p = 0; p < k; ++p, src += col) {
        const T* from = src;
        T* to = dst;
        for (int64_t r = first; r < first + tiles; ++r) {
            const int64_t count = rows[r];
            __builtin_prefetch(from + ahead * col);
            if (count == tile_rows) {
                __builtin_memcpy(to + p * tile_rows, from, tile_rows * sizeof(T));
            } else {
                for (int64_t i = 0; i < count; ++i) to[p * count + i] = from[i];
            }
            from += count;
            to += count * k;
        }
    }
}

/// Stores `rows` x `columns` finished sums (`width` apart, lanes<T> rows of room) transposed: sum (i, j) to
/// c[j * c_row + i], through alpha, beta and the bias along i.
template <class T>
void store_transposed(const T* sums, int64_t width, int64_t rows, int64_t columns, const Tile<T>& t) {
    const First<T> first(rows);
    const Vec<T> bias = t.bias ? load_first(t.bias, first) : Vec<T>{};
    for (int64_t j0 = 0; j0 < columns; j0 += lanes<T>) {
        Vec<T> v[lanes<T>];
#pragma GCC unroll 16
        for (int i = 0; i < lanes<T>; ++i) v[i] = load(sums + i * width + j0);
        if (t.alpha != 1) {
#pragma GCC unroll 16
            for (int i = 0; i < lanes<T>; ++i) v[i] *= t.alpha;
        }
        transpose<T>(v);
        T* c = t.c + j0 * t.c_row;
        const int64_t count = smaller(lanes<T>, columns - j0);
#pragma GCC unroll 16
        for (int j = 0; j < lanes<T>; ++j) {
            if (j >= count) break;
            Vec<T> y = v[j] + bias;
            if (t.beta != 0) y += t.beta * load_first(c, first);
            store_first(c, y, first);
            c += t.c_row;
        }
    }
}

/// Computes one block of C, in tiles.
template <class T>
struct Block {
    Product<T> p;
    T* packed_a;        // room for packed_tiles tiles' rows, or for all; or null: A is used in place
    bool a_whole;       // room for all: they are packed once for all of B's blocks
    bool a_packed;      // they are
    bool b_packed;      // p.b is packed in panels
    bool b_outer;       // one panel of B with all of A's rows, then the next; else one tile's rows with all of B
    bool prefetch_b;    // B is not in L1
    int64_t rows_most;  // of a tile
    EvenSplit panels;   // of B, in vectors

    int64_t width(int64_t v) const { return panels[v] * lanes<T>; }
};

template <class T>
void set_rows(const Block<T>& block, int64_t i, int64_t rows, Tile<T>& t) {
    const Product<T>& p = block.p;
    t.a = p.a + i * p.a_row;
    if (!block.packed_a) return;
    pack_rows(p.k, rows, t.a, p.a_row, p.a_col, block.packed_a);
    t.a = block.packed_a;
    t.a_row = 1;
    t.a_col = rows;
}

template <class T>
void set_panel(const Block<T>& block, int64_t j, int64_t width, Tile<T>& t) {
    const Product<T>& p = block.p;
    t.b = block.b_packed ? p.b + j * p.k : p.b + j;
    t.b_row = block.b_packed ? width : p.b_row;
    t.last_lanes = smaller(lanes<T>, p.n - j - width + lanes<T>);
    t.bias = p.bias ? p.bias + j : nullptr;
}

template <class T>
void run_tile(const Block<T>& block, const Tile<T>& t, int64_t rows, int64_t vectors) {
    const TileVariant variant = t.last_lanes < lanes<T> ? partial : block.prefetch_b ? prefetching : whole;
    tile_table<T>.fn[variant][rows][vectors](t);
}

template <class T>
void run_block(const Block<T>& block) {
    const Product<T>& p = block.p;
    const EvenSplit rows(p.m, block.rows_most), panels = block.panels;
    Tile<T> t{p.k, p.a, p.a_row, p.a_col, p.b, p.b_row, p.c, p.c_row, p.beta, p.alpha, p.bias, lanes<T>};
    if (block.b_outer) {
        for (int64_t v = 0, j = 0; v < panels.parts; j += block.width(v), ++v) {
            set_panel(block, j, block.width(v), t);
            for (int64_t r = 0, i = 0; r < rows.parts; i += rows[r], ++r) {
                set_rows(block, i, rows[r], t);
                t.c = p.c + i * p.c_row + j;
                run_tile(block, t, rows[r], panels[v]);
            }
        }
        return;
    }
    const bool together = block.packed_a && p.a_row == 1;
    int64_t packed = 0, packed_from = 0;  // tiles from this row on
    for (int64_t r = 0, i = 0; r < rows.parts; i += rows[r], ++r) {
        if (!together) {
            set_rows(block, i, rows[r], t);
        } else {
            if (packed == 0) {
                packed = smaller(packed_tiles<T>, rows.parts - r), packed_from = block.a_whole ? 0 : i;
                if (!block.a_packed) pack_tiles(p.k, rows, r, packed, p.a + i, p.a_col, block.packed_a + (i - packed_from) * p.k);
            }
            --packed;
            t.a = block.packed_a + (i - packed_from) * p.k;
            t.a_row = 1, t.a_col = rows[r];
        }
        for (int64_t v = 0, j = 0; v < panels.parts; j += block.width(v), ++v) {
            set_panel(block, j, block.width(v), t);
            t.c = p.c + i * p.c_row + j;
            run_tile(block, t, rows[r], panels[v]);
        }
    }
}

/// As run_block for a transposed product: makes lanes<T> rows of sums at a time, and transposes them into C.
template <class T>
void run_block_transposed(const Block<T>& block) {
    const Product<T>& p = block.p;
    alignas(vector_bytes) T sums[lanes<T> * tile_vectors_most * lanes<T>];
    Tile<T> t{p.k, p.a, p.a_row, p.a_col, p.b, p.b_row, sums, 0, 0, 1, nullptr, lanes<T>};
    Tile<T> out{};
    out.c_row = p.c_row, out.beta = p.beta, out.alpha = p.alpha;
    for (int64_t i0 = 0; i0 < p.m; i0 += lanes<T>) {
        const int64_t group = smaller(lanes<T>, p.m - i0);
        const EvenSplit rows(group, block.rows_most);
        out.bias = p.bias ? p.bias + i0 : nullptr;
        for (int64_t v = 0, j = 0; v < block.panels.parts; j += block.width(v), ++v) {
            const int64_t width = t.c_row = block.width(v);
            set_panel(block, j, width, t);
            t.bias = nullptr;
            for (int64_t r = 0, i = 0; r < rows.parts; i += rows[r], ++r) {
                set_rows(block, i0 + i, rows[r], t);
                t.c = sums + i * width;
                run_tile(block, t, rows[r], block.panels[v]);
            }
            for (int64_t x = group * width; x < lanes<T> * width; ++x) sums[x] = 0;
            out.c = p.c + j * p.c_row + i0;
            store_transposed(sums, width, group, smaller(width, p.n - j), out);
        }
    }
}

/// Packs B's panels, each k x (vectors * lanes), one after the other.
template <class T>
void pack_block(const Product<T>& p, const EvenSplit& panels, T* dst) {
    for (int64_t v = 0, j = 0; v < panels.parts; ++v) {
        const int64_t width = panels[v] * lanes<T>;
        pack_panel(p.k, smaller(width, p.n - j), p.b + j * p.b_col, p.b_row, p.b_col, dst + j * p.k, width);
        j += width;
    }
}

/// Estimates a tiled product's cost beside its memory traffic, in rough quarter-cycles.
template <class T>
int64_t tiles_cost(const Product<T>& p) {
    const int64_t fma = 2 * p.k * p.m * ceil_div(p.n, lanes<T>);
    const int64_t pack = p.b_col == 1 ? 0 : p.k * p.n * (p.b_row == 1 ? 2 : 6);
    return fma + pack + (p.transposed ? 2 * p.m * p.n : 0);
}

template <class T>
Product<T> better_side(const Product<T>& p) {
    if (p.m == 1 && p.b_col == 1) return p;
    const Product<T> s = swapped(p);
    if (tiles_cost(p) <= tiles_cost(s)) return p;
    return s;
}

/// The order in which a tiled product is computed. The limits are measured (in bytes, float32, 32 KB L1 and 1 MB L2).
template <class T>
struct Plan {
    bool pack_b, pack_a, b_outer, prefetch_b;
    int64_t rows_most;

    explicit Plan(const Product<T>& p) {
        const int64_t a_bytes = p.m * p.k * int64_t{sizeof(T)}, b_bytes = p.k * p.n * int64_t{sizeof(T)};
        pack_b = p.b_col != 1 || (p.m >= 128 && b_bytes > 512 * 1024) || (p.m >= 512 && b_bytes > 64 * 1024);
        // A's columns cost a cache line and soon a page per step: packing pays when many panels use them.
        pack_a = p.a_col != 1 && p.k >= 64 && p.n >= 4 * lanes<T> && p.m > 1 && a_bytes >= 64 * 1024 && p.a_col * int64_t{sizeof(T)} >= 1024;
        // With few steps C's traffic dominates, and goes row by row.
        b_outer = !pack_b && !pack_a && p.k > 16;
        prefetch_b = !pack_b && b_bytes > 192 * 1024;
        // A transposed product goes in groups of lanes<T> rows: see run_block_transposed.
        rows_most = EvenSplit(p.transposed ? smaller(p.m, lanes<T>) : p.m, tile_rows)[0];
    }
};

template <class T>
void tiles(const Product<T>& given) {
    const Product<T> p = better_side(given);
    const Plan<T> plan(p);
    const EvenSplit depth(p.k, block_k<T>);
    const int64_t vectors = ceil_div(p.n, lanes<T>);
    const EvenSplit columns(vectors, plan.pack_b ? block_n<T> / lanes<T> : vectors);
    const bool a_whole = plan.pack_a && p.a_row == 1 && !p.transposed && columns.parts > 1 && p.m * depth[0] * int64_t{sizeof(T)} <= most_whole_a;
    const int64_t b_room = plan.pack_b ? depth[0] * columns[0] * lanes<T> : 0;
    const int64_t a_room = depth[0] * (a_whole ? p.m : tile_rows * packed_tiles<T>);
    T* scratch = nullptr;
    if (plan.pack_b || plan.pack_a) scratch = static_cast<T*>(gemm_workspace(sizeof(T) * static_cast<std::size_t>(b_room + a_room)));
    Block<T> block{.p = p,
                   .packed_a = plan.pack_a ? scratch + b_room : nullptr,
                   .a_whole = a_whole,
                   .a_packed = false,
                   .b_packed = plan.pack_b,
                   .b_outer = plan.b_outer,
                   .prefetch_b = plan.prefetch_b,
                   .rows_most = plan.rows_most,
                   .panels = EvenSplit(1, 1)};
    for (int64_t d = 0, k0 = 0; d < depth.parts; k0 += depth[d], ++d) {
        for (int64_t v = 0, j0 = 0; v < columns.parts; j0 += columns[v] * lanes<T>, ++v) {
            block.a_packed = a_whole && v > 0;
            Product<T>& q = block.p;
            q.n = smaller(columns[v] * lanes<T>, p.n - j0);
            q.k = depth[d];
            q.a = p.a + k0 * p.a_col;
            q.b = p.b + k0 * p.b_row + j0 * p.b_col;
            q.c = p.c + (p.transposed ? j0 * p.c_row : j0);
            q.bias = d > 0 || !p.bias ? nullptr : p.transposed ? p.bias : p.bias + j0;
            q.beta = d > 0 ? T{1} : p.beta;
            block.panels = EvenSplit(columns[v], tile_vectors(plan.rows_most));
            if (plan.pack_b) {
                pack_block(q, block.panels, scratch);
                q.b = scratch;
            }
            if (p.transposed)
                run_block_transposed(block);
            else
                run_block(block);
        }
    }
}

// -------------------------------------------------------------------------------------------------------- choice

template <class T>
GemmMethod method_of(const Product<T>& p) {
    const bool rows = p.a_col == 1, columns = p.b_row == 1;  // contiguous along k
    if (p.m == 1) return columns ? GemmMethod::dots : p.b_col == 1 ? GemmMethod::rows : GemmMethod::tiles;
    if (p.n == 1) return rows ? GemmMethod::dots : p.a_row == 1 ? GemmMethod::rows : GemmMethod::tiles;
    return rows && columns && (p.m <= 8 || p.n <= 8) && p.k >= 16 ? GemmMethod::dots : GemmMethod::tiles;
}

/// Products of one shape in tiles of which nothing is packed: what they have in common is found once. Returns false, without effect, for others.
template <class T>
bool run_batch(const GemmBatch<T>& g) {
    const Product<T> given = as_given(g.first);
    if (method_of(given) != GemmMethod::tiles) return false;
    const Product<T> p = better_side(given);
    const Plan<T> plan(p);
    if (plan.pack_a || plan.pack_b || p.k > block_k<T>) return false;
    const int64_t a_step = p.transposed ? g.b_batch : g.a_batch, b_step = p.transposed ? g.a_batch : g.b_batch;
    Block<T> block{.p = p,
                   .packed_a = nullptr,
                   .a_whole = false,
                   .a_packed = false,
                   .b_packed = false,
                   .b_outer = plan.b_outer,
                   .prefetch_b = plan.prefetch_b,
                   .rows_most = plan.rows_most,
                   .panels = EvenSplit(ceil_div(p.n, lanes<T>), tile_vectors(plan.rows_most))};
    for (int64_t i = 0; i < g.batch; ++i, block.p.a += a_step, block.p.b += b_step, block.p.c += g.c_batch) {
        if (p.transposed)
            run_block_transposed(block);
        else
            run_block(block);
    }
    return true;
}

template <class T>
void run(const Product<T>& p, GemmMethod method) {
    if (method == GemmMethod::tiles) return tiles(p);
    if (method == GemmMethod::rows) return weighted_rows(p.m == 1 && p.b_col == 1 ? p : swapped(p));
    // One column is one row of the transposed product. It may have any stride: dots copies it.
    if (p.n == 1 && (p.m > 1 || p.b_row != 1)) return dots(swapped(p));
    dots(p);
}

}  // namespace
}  // namespace tapir::kernels::TAPIR_ISA
