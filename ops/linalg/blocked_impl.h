// LU factors and triangular systems whose work is in products of Tapir's own kernels: LAPACK's routines compute blocks of kBlock columns. The
// methods are recursive (Toledo 1997, "Locality of reference in LU decomposition with partial pivoting"). OpenBLAS 0.3.21 takes
// 1.3 times as long for 256 columns, 1.6 times for 512.
//
// Matrices are stored column after column, `ld` elements apart. All run on the CPU, and write over what they are given.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tapir/ops/linalg/lapack_impl.h"
#include "tapir/ops/linear/gemm_impl.h"
#include "tapir/ops/parallel_impl.h"

namespace tapir::lapack {

constexpr Int kBlock = 32;  // measured: 16 to 64 take the same time

/// A matrix, or a part of one. The addresses of parts are as those of LAPACK's arguments.
template <class T>
struct Columns {
    T* first;
    Int ld;
    T* at(Int row, Int column) const { return first + std::int64_t{column} * ld + row; }
    Columns from(Int row, Int column) const { return {at(row, column), ld}; }
};

/// Where to cut n columns, of which there are more than kBlock, in two.
constexpr Int half_of(Int n) { return (n / 2 + 8) / 16 * 16; }

/// c (m, n) -= a (m, k) b (k, n)
template <class T>
void subtract_product(Int m, Int n, Int k, Columns<T> a, Columns<T> b, Columns<T> c) {
    // In the order of rows: c^T -= b^T a^T.
    kernels::gemm(kernels::Gemm<T>{.m = n,
                                   .n = m,
                                   .k = k,
                                   .a = b.first,
                                   .a_row = b.ld,
                                   .a_col = 1,
                                   .b = a.first,
                                   .b_row = a.ld,
                                   .b_col = 1,
                                   .c = c.first,
                                   .c_row = c.ld,
                                   .beta = 1,
                                   .alpha = -1});
}

/// b (n, count) becomes a^-1 b, for a triangle a (n, n) of which the other half is not read; unit: nor is its diagonal, which is 1.
template <class T>
void solve_triangle(bool upper, bool unit, Int n, Int count, Columns<T> a, Columns<T> b) {
    if (n <= kBlock || count < kBlock / 2) {  // as few columns are not worth cutting up
        const T one = 1;
        call<T>(strsm_, dtrsm_)("L", upper ? "U" : "L", "N", unit ? "U" : "N", &n, &count, &one, a.first, &a.ld, b.first, &b.ld, 1, 1, 1, 1);
        return;
    }
    const Int half = half_of(n), rest = n - half;
    if (upper) {
        solve_triangle(upper, unit, rest, count, a.from(half, half), b.from(half, 0));
        subtract_product(half, count, rest, a.from(0, half), b.from(half, 0), b);
        solve_triangle(upper, unit, half, count, a, b);
    } else {
        solve_triangle(upper, unit, half, count, a, b);
        subtract_product(rest, count, half, a.from(half, 0), b, b.from(half, 0));
        solve_triangle(upper, unit, rest, count, a.from(half, half), b.from(half, 0));
    }
}

/// Calls solve(columns of b, how many) in parts, on several threads where they pay: a part has 4 million products with a triangle of n.
template <class T, class F>
void in_parts(Int n, Int count, Columns<T> b, const F& solve) {
    const std::int64_t least = 4'000'000 / (std::int64_t{n} * n + 1);
    parallel_items(count, std::max<std::int64_t>(least, kBlock),
                   [&](std::int64_t begin, std::int64_t end) { solve(b.from(0, static_cast<Int>(begin)), static_cast<Int>(end - begin)); });
}

/// a (m, n), m >= n, becomes its factors, as of getrf. Returns its info: 0, or the number of the first pivot that is 0, from 1.
template <class T>
Int factor_lu(Int m, Int n, Columns<T> a, Int* pivots) {
    Int info = 0;
    if (n <= kBlock) {
        call<T>(sgetrf_, dgetrf_)(&m, &n, a.first, &a.ld, pivots, &info);
        return info;
    }
    const Int half = half_of(n), rest = n - half, one = 1, second = half + 1;
    const Columns<T> right = a.from(0, half), below = a.from(half, half);
    info = factor_lu(m, half, a, pivots);
    call<T>(slaswp_, dlaswp_)(&rest, right.first, &a.ld, &one, &half, pivots, &one);
    solve_triangle(/*upper=*/false, /*unit=*/true, half, rest, a, right);
    subtract_product(m - half, rest, half, a.from(half, 0), right, below);
    const Int info_below = factor_lu(m - half, rest, below, pivots + half);
    for (Int i = half; i < n; ++i) pivots[i] += half;
    call<T>(slaswp_, dlaswp_)(&half, a.first, &a.ld, &second, &n, pivots, &one);
    return info != 0 || info_below == 0 ? info : info_below + half;
}

/// Of the factors and pivots of factor_lu(): b (n, count) becomes a^-1 b for what was factored.
template <class T>
void solve_lu(Int n, Int count, Columns<T> lu, const Int* pivots, Columns<T> b) {
    in_parts(n, count, b, [&](Columns<T> part, Int columns) {
        const Int one = 1;
        call<T>(slaswp_, dlaswp_)(&columns, part.first, &part.ld, &one, &n, pivots, &one);
        solve_triangle(/*upper=*/false, /*unit=*/true, n, columns, lu, part);
        solve_triangle(/*upper=*/true, /*unit=*/false, n, columns, lu, part);
    });
}

/// y (n, n), of zeros, becomes the inverse of the lower triangle with ones on the diagonal that lies in a.
template <class T>
void invert_unit_lower(Int n, Columns<T> a, Columns<T> y) {
    if (n <= kBlock) {
        for (Int j = 0; j < n; ++j) *y.at(j, j) = 1;
        return solve_triangle(/*upper=*/false, /*unit=*/true, n, n, a, y);
    }
    const Int half = half_of(n), rest = n - half;
    invert_unit_lower(half, a, y);
    invert_unit_lower(rest, a.from(half, half), y.from(half, half));
    subtract_product(rest, half, half, a.from(half, 0), y, y.from(half, 0));
    solve_triangle(/*upper=*/false, /*unit=*/true, rest, half, a.from(half, half), y.from(half, 0));
}

/// The same for the inverse: x (n, n), of zeros, becomes a^-1.
template <class T>
void invert_lu(Int n, Columns<T> lu, const Int* pivots, Columns<T> x) {
    invert_unit_lower(n, lu, x);
    in_parts(n, n, x, [&](Columns<T> part, Int columns) { solve_triangle(/*upper=*/true, /*unit=*/false, n, columns, lu, part); });
    for (Int i = n; i-- > 0;) {
        if (pivots[i] != i + 1) std::swap_ranges(x.at(0, i), x.at(0, i) + n, x.at(0, pivots[i] - 1));
    }
}

}  // namespace tapir::lapack
