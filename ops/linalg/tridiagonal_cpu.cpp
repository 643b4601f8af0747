// See tridiagonal_kernels.h. Householder's reduction (Golub & Van Loan 2013, algorithm 8.3.1): each step reflects what is left of the matrix
// so that its first column is 0 but for two elements, a -= v w' + w v'. One pass over the lower triangle subtracts that, and
// multiplies by the vector of the next step: LAPACK's routine takes two, and memory bounds it.
#include "tapir/ops/linalg/tridiagonal_kernels.h"

#include "tapir/ops/cpu/math_impl.h"
#include "tapir/ops/reduce/reduce_simd_cpu.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

// A step's a -= v w' + w v'. Both are 0 above the rows that it changes.
template <class T>
struct Update {
    T *v, *w;
};

// Brings the lower parts of `count` columns from j on up to date, and adds to products what these elements and their mirror images are times x.
template <int count, class T>
void pass(const Tridiagonal<T>& t, Update<T> last, i64 j, const T* x, T* products) {
    Vector<T> sums[count] = {};
    T* column[count];
    T v[count], w[count], x_j[count];
    for (int c = 0; c < count; ++c) column[c] = t.a + (j + c) * t.step, v[c] = last.v[j + c], w[c] = last.w[j + c], x_j[c] = x[j + c];
    const auto rows = [&](i64 i, auto only) __attribute__((always_inline)) {
        const Vector<T> v_i = load(last.v + i), w_i = load(last.w + i), x_i = load(x + i);
        Vector<T> products_i = load(products + i);
#pragma GCC unroll 4
        for (int c = 0; c < count; ++c) {
            const Vector<T> a = load(column[c] + i) - v_i * w[c] - w_i * v[c];
            store(column[c] + i, a);
            sums[c] += only(a, j + c) * x_i;
            products_i += only(a, j + c + 1) * x_j[c];
        }
        store(products + i, products_i);
    };
    i64 i = j / kWidth<T> * kWidth<T>;
    for (; i < j + count; i += kWidth<T>) {  // elements of the diagonal count once, those above it not at all
        const Vector<MaskInt<T>> row = lane_numbers<T>(std::make_integer_sequence<int, kWidth<T>>{}) + static_cast<MaskInt<T>>(i);
        rows(i, [&](Vector<T> a, i64 from) __attribute__((always_inline)) { return row >= static_cast<MaskInt<T>>(from) ? a : Vector<T>{}; });
    }
    for (; i < t.step; i += kWidth<T>) rows(i, [](Vector<T> a, i64) __attribute__((always_inline)) { return a; });
    for (int c = 0; c < count; ++c) products[j + c] += across<Sum, T>(sums[c]);
}

// Sets x to the reflection's vector for a column's elements below row k: it makes them (beside, 0, 0, ...). Returns tau of 1 - tau x x'.
template <class T>
T reflection(const T* column, i64 k, i64 n, T* x, T& beside) {
    const T top = column[k + 1];
    double squares = 0;
#pragma omp simd reduction(+ : squares)
    for (i64 i = k + 2; i < n; ++i) squares += static_cast<double>(column[i]) * static_cast<double>(column[i]);
    x[k] = 0;
    x[k + 1] = 1;
    beside = top;
    T scale = 0, tau = 0;
    if (squares > 0) {
        const T length = static_cast<T>(sqrt(static_cast<double>(top) * static_cast<double>(top) + squares));
        beside = top > 0 ? -length : length;
        tau = (beside - top) / beside;
        scale = T(1) / (top - beside);
    }
#pragma omp simd
    for (i64 i = k + 2; i < n; ++i) x[i] = column[i] * scale;
    return tau;
}

template <class T>
void reduce(const Tridiagonal<T>& t) {
    const i64 n = t.n;
    Update<T> last{t.vectors, t.vectors + t.step};
    T* x = t.vectors + 2 * t.step;
    for (i64 k = 0; k < n; ++k) {
        T* column = t.a + k * t.step;
        const T v_k = last.v[k], w_k = last.w[k];
#pragma omp simd
        for (i64 i = k; i < n; ++i) column[i] -= last.v[i] * w_k + last.w[i] * v_k;
        t.diagonal[k] = column[k];
        if (k + 1 == n) return;
        if (k > 0) x[k - 1] = 0;  // of the step that x was made for
        const T tau = reflection(column, k, n, x, t.beside[k]);
        T* products = column;  // which is not needed any more
        for (i64 i = 0; i < t.step; ++i) products[i] = 0;
        i64 j = k + 1;
        for (; j < n && j % 4 != 0; ++j) pass<1>(t, last, j, x, products);
        for (; j + 4 <= n; j += 4) pass<4>(t, last, j, x, products);
        for (; j < n; ++j) pass<1>(t, last, j, x, products);
        // w = tau a x - tau^2 / 2 (x' a x) x
        T along = 0;
#pragma omp simd reduction(+ : along)
        for (i64 i = k + 1; i < n; ++i) along += products[i] * x[i];
        along *= tau * tau / T(2);
        last.w[k] = 0;
#pragma omp simd
        for (i64 i = k + 1; i < n; ++i) last.w[i] = tau * products[i] - along * x[i];
        T* const free = last.v;
        last.v = x;
        x = free;
    }
}

}  // namespace

void tridiagonal_f32(const Tridiagonal<float>& t) { reduce(t); }
void tridiagonal_f64(const Tridiagonal<double>& t) { reduce(t); }

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
