// Eigenvalues and singular values by the reductions of householder_kernels.h, which take a fraction of the time of LAPACK's; the rest, of matrices of
// few diagonals and of reflections, is LAPACK's. Matrices are stored column after column.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "tapir/core/parallel.h"
#include "tapir/core/pool_impl.h"
#include "tapir/ops/linalg/householder_kernels.h"
#include "tapir/ops/linalg/lapack_impl.h"
#include "tapir/ops/make/copy_kernels.h"

namespace tapir::lapack {

// Memory for a matrix that is reduced, and for numbers of the algorithm's own: zeros.
template <class T>
class Reduced {
 public:
    static constexpr std::int64_t kVectors = 4;

    // more: numbers behind the columns and vectors.
    Reduced(std::int64_t rows, std::int64_t columns, std::int64_t more)
        : step((rows + kernels::kRowsAtOnce - 1) / kernels::kRowsAtOnce * kernels::kRowsAtOnce),
          memory_(static_cast<std::size_t>((columns + kVectors + 1) * step + more)) {
        void* start = memory_.data();
        std::size_t room = memory_.size() * sizeof(T);
        a = static_cast<T*>(std::align(64, room - 64, start, room));
        vectors = a + columns * step;
        others = vectors + kVectors * step;
    }

    const std::int64_t step;
    T *a, *vectors, *others;

 private:
    std::vector<T> memory_;
};

// Whether a matrix is to be reduced here: there is one thread, or a cache holds it (LAPACK's routines can use several), and the squares of its
// elements, which are finite, are within the type's range (these scale). first_of(j): the first row that counts in column j.
template <class T, class FirstOf>
bool is_for_reduction(std::int64_t rows, std::int64_t columns, const T* a, const FirstOf& first_of) {
    const bool has_threads = num_threads() > 1 && !detail::in_part();
    const std::int64_t most_bytes = has_threads ? 4 << 20 : 256 << 20;
    if (rows * columns * std::int64_t{sizeof(T)} > most_bytes) return false;
    const T least = std::sqrt(std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon()), most = 1 / least;
    T largest = 0;
    bool fits = true;
    for (std::int64_t j = 0; j < columns; ++j) {
        for (std::int64_t i = first_of(j); i < rows; ++i) {
            const T x = std::abs(a[j * rows + i]);
            largest = std::max(largest, x);
            fits &= x <= most;
        }
    }
    return fits && largest >= least;
}

/// Sets `values` to the eigenvalues of a symmetric matrix, ascending, and the matrix to their vectors if they are wanted. Reads its lower triangle.
/// False, without effect, for one that LAPACK's routine is for.
template <class T>
bool find_eigen(Int n, T* a, T* values, bool vectors, Int& info) {
    if (!is_for_reduction(n, n, a, [](std::int64_t j) { return j; })) return false;
    const std::int64_t size = n;
    const Int lwork = vectors ? 1 + 4 * n + n * n : 0, liwork = 3 + 5 * n;  // as stedc asks for
    const Reduced<T> to(n, n, 2 * size + lwork);
    T *const beside = to.others, *const tau = beside + n, *const work = tau + n;
    for (std::int64_t j = 0; j < n; ++j) std::copy(a + j * n + j, a + j * n + n, to.a + j * to.step + j);
    kernels::reduce_matrix(kernels::Tridiagonal<T>{n, to.step, to.a, to.vectors, values, beside, vectors ? tau : nullptr});
    if (!vectors) {
        call<T>(ssterf_, dsterf_)(&n, values, beside, &info);
        return true;
    }
    const Int lda = static_cast<Int>(to.step);
    std::vector<Int> iwork(static_cast<std::size_t>(liwork));
    call<T>(sstedc_, dstedc_)("I", &n, values, beside, a, &n, work, &lwork, iwork.data(), &liwork, &info, 1);
    if (info != 0) return true;
    with_work<T>(
        [&](T* room, const Int* length) { call<T>(sormtr_, dormtr_)("L", "L", "N", &n, &n, to.a, &lda, tau, a, &n, room, length, &info, 1, 1, 1); });
    return true;
}

template <class T>
void transpose(Int rows, Int columns, const T* from, T* to, std::int64_t step) {
    kernels::transpose_copy(sizeof(T), to, step, from, rows, rows, columns);
}

/// Sets `values` to the singular values of a matrix, descending. u: rows x rows (`all`) or rows x the number of values; vt: columns x columns or values x
/// columns; both null: they are not wanted. False, without effect, for a matrix that LAPACK's routine is for, as one that is much longer than wide.
template <class T>
bool find_singular(Int rows, Int columns, const T* a, T* values, T* u, T* vt, bool all, Int& info) {
    const bool is_turned = rows < columns;
    const Int m = std::max(rows, columns), n = std::min(rows, columns);
    if (6 * std::int64_t{m} > 11 * std::int64_t{n} || !is_for_reduction(rows, columns, a, [](std::int64_t) { return 0; })) return false;
    const std::int64_t size = n;
    const Reduced<T> to(m, n, 5 * size + (u ? 3 * size * size : 0) + 4 * size);  // bdsdc asks for 3 n^2 + 4 n, bdsqr for 4 n
    T *const above = to.others + 2 * n, *const taus = above + n, *const work = taus + 2 * n;
    if (is_turned) {
        transpose(rows, columns, a, to.a, to.step);
    } else {
        for (std::int64_t j = 0; j < n; ++j) std::copy(a + j * m, a + j * m + m, to.a + j * to.step);
    }
    kernels::reduce_matrix(kernels::Bidiagonal<T>{m, n, to.step, to.a, to.vectors, values, above, u ? taus : nullptr, u ? taus + n : nullptr});
    if (!u) {
        const Int none = 0, one = 1;
        call<T>(sbdsqr_, dbdsqr_)("U", &n, &none, &none, &none, values, above, work, &one, work, &one, work, &one, work, &info, 1);
        return true;
    }
    const Int lefts = all ? m : n, lda = static_cast<Int>(to.step);
    std::vector<T> turned(is_turned ? static_cast<std::size_t>(m) * static_cast<std::size_t>(lefts) + static_cast<std::size_t>(size * size) : 0);
    T *const left = is_turned ? turned.data() : u, *const right = is_turned ? left + std::int64_t{m} * lefts : vt;
    std::fill_n(left, std::int64_t{m} * lefts, T(0));
    for (std::int64_t j = n; j < lefts; ++j) left[j * m + j] = 1;
    std::vector<Int> iwork(static_cast<std::size_t>(8 * size));
    call<T>(sbdsdc_, dbdsdc_)("U", "I", &n, values, above, left, &m, right, &n, nullptr, nullptr, work, iwork.data(), &info, 1, 1);
    if (info != 0) return true;
    with_work<T>([&](T* room, const Int* length) {
        call<T>(sormbr_, dormbr_)("Q", "L", "N", &m, &lefts, &n, to.a, &lda, taus, left, &m, room, length, &info, 1, 1, 1);
    });
    with_work<T>([&](T* room, const Int* length) {
        call<T>(sormbr_, dormbr_)("P", "R", "T", &n, &n, &n, to.a, &lda, taus + n, right, &n, room, length, &info, 1, 1, 1);
    });
    if (is_turned) {
        transpose(n, n, right, u, n);
        transpose(m, lefts, left, vt, lefts);
    }
    return true;
}

}  // namespace tapir::lapack
