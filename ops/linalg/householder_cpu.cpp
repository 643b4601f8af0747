// See householder_kernels.h. Householder's reductions (Golub & Van Loan 2013, algorithms 8.3.1 and 5.4.2): each step reflects what is left of the
// matrix so that a column, and for bidiagonal ones a row, is 0 but for two elements. One pass over the matrix subtracts what the step before has
// found, and multiplies by the vectors of this one: LAPACK's routines take two, and memory bounds them. For bidiagonal ones see Howell, Demmel,
// Fulton, Hammarling and Marmol 2008 (Cache efficient bidiagonalization using BLAS 2.5 operators).
#include "tapir/ops/linalg/householder_kernels.h"

#include "tapir/ops/cpu/math_impl.h"
#include "tapir/ops/reduce/reduce_simd_cpu.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

// Makes elements (left, 0, 0, ...) of those that it was made for, by 1 - tau v v'. v is 1, and then the elements times `scale`.
template <class T>
struct Reflection {
    T left, tau, scale;
};

// Sets v[first] to v[end - 1] for the elements there, of which it may be the array.
template <class T>
Reflection<T> reflection(const T* elements, i64 first, i64 end, T* v) {
    const T top = elements[first];
    double squares = 0;
#pragma omp simd reduction(+ : squares)
    for (i64 i = first + 1; i < end; ++i) squares += static_cast<double>(elements[i]) * static_cast<double>(elements[i]);
    Reflection<T> made{top, 0, 0};
    if (squares > 0) {
        const T length = static_cast<T>(sqrt(static_cast<double>(top) * static_cast<double>(top) + squares));
        made.left = top >= 0 ? -length : length;
        made.tau = (made.left - top) / made.left;
        made.scale = T(1) / (top - made.left);
    }
    v[first] = 1;
#pragma omp simd
    for (i64 i = first + 1; i < end; ++i) v[i] = elements[i] * made.scale;
    return made;
}

// --- Tridiagonal -----------------------------------------------------------------------------------------------------------------

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

template <class T>
void reduce(const Tridiagonal<T>& t) {
    const i64 n = t.n;
    Update<T> last{t.vectors, t.vectors + t.step};
    T *x = t.vectors + 2 * t.step, *const products = t.vectors + 3 * t.step;
    for (i64 k = 0; k < n; ++k) {
        T* column = t.a + k * t.step;
        const T v_k = last.v[k], w_k = last.w[k];
#pragma omp simd
        for (i64 i = k; i < n; ++i) column[i] -= last.v[i] * w_k + last.w[i] * v_k;
        t.diagonal[k] = column[k];
        if (k + 1 == n) return;
        if (k > 0) x[k - 1] = 0;  // of the step that x was made for
        x[k] = 0;
        const Reflection<T> made = reflection(column, k + 1, n, x);
        const T tau = made.tau;
        t.beside[k] = made.left;
        if (t.tau) {
            t.tau[k] = tau;
            for (i64 i = k + 2; i < n; ++i) column[i] = x[i];
        }
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

// --- Bidiagonal ------------------------------------------------------------------------------------------------------------------

// A step's a -= u y' + x v'. u and x are 0 above the rows that it changes.
template <class T>
struct TwoSided {
    T *u, *y, *x, *v;
};

// Brings `count` columns from j on up to date below row k, and finds what the step that reflects column k by u makes of them: y, what is left of
// them in row k (in v), and, added to `products`, the matrix times that row.
template <int count, class T>
void pass(const Bidiagonal<T>& b, const TwoSided<T>& last, i64 k, i64 j, const T* u, T tau, T* products) {
    Vector<T> sums[count] = {};
    T* column[count];
    T y[count], v[count];
    for (int c = 0; c < count; ++c) column[c] = b.a + (j + c) * b.step, y[c] = last.y[j + c], v[c] = last.v[j + c];
    const i64 first = k / kWidth<T> * kWidth<T>;
    for (i64 i = first; i < b.step; i += kWidth<T>) {
        const Vector<T> last_u = load(last.u + i), last_x = load(last.x + i), u_i = load(u + i);
#pragma GCC unroll 4
        for (int c = 0; c < count; ++c) {
            const Vector<T> a = load(column[c] + i) - last_u * y[c] - last_x * v[c];
            store(column[c] + i, a);
            sums[c] += a * u_i;
        }
    }
    for (int c = 0; c < count; ++c) {
        y[c] = tau * across<Sum, T>(sums[c]);
        v[c] = column[c][k] - y[c];
        last.y[j + c] = y[c];
        last.v[j + c] = v[c];
    }
    for (i64 i = first; i < b.step; i += kWidth<T>) {
        Vector<T> products_i = load(products + i);
#pragma GCC unroll 4
        for (int c = 0; c < count; ++c) products_i += load(column[c] + i) * v[c];
        store(products + i, products_i);
    }
}

template <class T>
void reduce(const Bidiagonal<T>& b) {
    const i64 m = b.rows, n = b.columns;
    TwoSided<T> last{b.vectors, b.vectors + 4 * b.step, b.vectors + b.step, b.vectors + 4 * b.step + n};
    T *u = b.vectors + 2 * b.step, *const products = b.vectors + 3 * b.step;
    for (i64 j = 0; j < n; ++j) last.y[j] = last.v[j] = 0;
    for (i64 k = 0; k < n; ++k) {
        T* column = b.a + k * b.step;
        const T y_k = last.y[k], v_k = last.v[k];
#pragma omp simd
        for (i64 i = k; i < m; ++i) column[i] -= last.u[i] * y_k + last.x[i] * v_k;
        if (k > 0) u[k - 1] = 0;  // of the step that u was made for
        const Reflection<T> left = reflection(column, k, m, u);
        b.diagonal[k] = left.left;
        if (b.tau_left) {
            b.tau_left[k] = left.tau;
            for (i64 i = k + 1; i < m; ++i) column[i] = u[i];
        }
        if (k + 1 == n) break;
        for (i64 i = 0; i < b.step; ++i) products[i] = 0;
        i64 j = k + 1;
        for (; j + 4 <= n; j += 4) pass<4>(b, last, k, j, u, left.tau, products);
        for (; j < n; ++j) pass<1>(b, last, k, j, u, left.tau, products);
        // x = tau (a v - u y' v): a times the row is known, and v the row but for its first element.
        const Reflection<T> right = reflection(last.v, k + 1, n, last.v);
        b.above[k] = right.left;
        T along = 0;
#pragma omp simd reduction(+ : along)
        for (i64 i = k + 1; i < n; ++i) along += last.y[i] * last.v[i];
        const T* next = column + b.step;
        last.x[k] = u[k] = 0;  // row k is done
#pragma omp simd
        for (i64 i = k + 1; i < m; ++i) last.x[i] = right.tau * ((products[i] - right.left * next[i]) * right.scale - u[i] * along);
        if (b.tau_right) {
            b.tau_right[k] = right.tau;
            for (i64 i = k + 2; i < n; ++i) b.a[i * b.step + k] = last.v[i];
        }
        T* const free = last.u;
        last.u = u;
        u = free;
    }
    if (b.tau_right) b.tau_right[n - 1] = 0;
}

}  // namespace

void tridiagonal_f32(const Tridiagonal<float>& t) { reduce(t); }
void tridiagonal_f64(const Tridiagonal<double>& t) { reduce(t); }
void bidiagonal_f32(const Bidiagonal<float>& b) { reduce(b); }
void bidiagonal_f64(const Bidiagonal<double>& b) { reduce(b); }

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
