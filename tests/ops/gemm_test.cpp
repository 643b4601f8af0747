// The matrix product against a naive one in higher precision: every layout, odd sizes, alpha, beta and bias, empty
// sizes, batches and thread counts. The allowed error is the worst case of ANY order of summation: (k + 4) roundings
// of the sum of the magnitudes.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "../threads_scope.h"
#include "tapir/ops/linear/gemm_impl.h"

namespace {

using tapir::kernels::Gemm;
using tapir::kernels::GemmBatch;
using tapir::test::ThreadsScope;

/// A matrix of `rows` x `cols` random values in [-1, 1] inside a larger buffer whose other values are NaN, so that a
/// kernel which reads or keeps what is not its own shows it.
template <class T>
struct Matrix {
    int64_t rows, cols, row, col;
    std::vector<T> data;

    Matrix(int64_t r, int64_t c, int64_t row_stride, int64_t col_stride, std::mt19937& random) : rows(r), cols(c), row(row_stride), col(col_stride) {
        data.assign(static_cast<std::size_t>(r * c == 0 ? 0 : (r - 1) * row + (c - 1) * col + 1), std::numeric_limits<T>::quiet_NaN());
        std::uniform_real_distribution<double> value(-1, 1);
        for (int64_t i = 0; i < r; ++i)
            for (int64_t j = 0; j < c; ++j) at(i, j) = static_cast<T>(value(random));
    }
    T& at(int64_t i, int64_t j) { return data[static_cast<std::size_t>(i * row + j * col)]; }
    const T& at(int64_t i, int64_t j) const { return data[static_cast<std::size_t>(i * row + j * col)]; }
};

enum class Layout { rows, columns, padded_rows, padded_columns, strided };
const Layout layouts[] = {Layout::rows, Layout::columns, Layout::padded_rows, Layout::padded_columns, Layout::strided};

template <class T>
Matrix<T> matrix(int64_t r, int64_t c, Layout layout, std::mt19937& random) {
    switch (layout) {
        case Layout::rows: return {r, c, c, 1, random};
        case Layout::columns: return {r, c, 1, r, random};
        case Layout::padded_rows: return {r, c, c + 3, 1, random};
        case Layout::padded_columns: return {r, c, 1, r + 5, random};
        default: return {r, c, 2 * c + 1, 2, random};
    }
}

template <class T>
struct Case {
    int64_t m, n, k;
    Layout a = Layout::rows, b = Layout::rows;
    T alpha = 1, beta = 0;
    bool bias = false;
};

template <class T>
std::string text(const Case<T>& x) {
    return "m n k " + std::to_string(x.m) + " " + std::to_string(x.n) + " " + std::to_string(x.k) + ", layouts " +
        std::to_string(static_cast<int>(x.a)) + " " + std::to_string(static_cast<int>(x.b)) + ", alpha " + std::to_string(x.alpha) + ", beta " +
        std::to_string(x.beta) + (x.bias ? ", bias" : "");
}

/// The worst error of `c` in units of its bound: at most 1 when the product is right; infinite for a NaN.
template <class T>
double worst_error(const Case<T>& x, const Matrix<T>& a, const Matrix<T>& b, const std::vector<T>& bias, const Matrix<T>& before,
                   const Matrix<T>& c) {
    using Wide = std::conditional_t<std::is_same_v<T, float>, double, long double>;
    const Wide roundings = Wide(x.k + 4) * Wide(std::numeric_limits<T>::epsilon()) / 2;
    double worst = 0;
    for (int64_t i = 0; i < x.m; ++i) {
        for (int64_t j = 0; j < x.n; ++j) {
            Wide sum = 0, magnitude = 0;
            for (int64_t p = 0; p < x.k; ++p) {
                const Wide term = Wide(x.alpha) * a.at(i, p) * b.at(p, j);
                sum += term, magnitude += std::abs(term);
            }
            const Wide add = x.bias ? Wide(bias[static_cast<std::size_t>(j)]) : Wide(0);
            const Wide old = x.beta != 0 ? Wide(x.beta) * before.at(i, j) : Wide(0);
            sum += add + old, magnitude += std::abs(add) + std::abs(old);
            const Wide error = std::abs(Wide(c.at(i, j)) - sum);
            const double units = error == 0 ? 0 : static_cast<double>(error / (roundings * magnitude));
            if (!(units <= worst)) worst = std::isnan(units) ? std::numeric_limits<double>::infinity() : units;
        }
    }
    return worst;
}

/// The operands of a case, with C in rows 4 longer than needed, which must keep their NaN.
template <class T>
struct Run {
    Case<T> x;
    Matrix<T> a, b, bias, before, c;

    explicit Run(const Case<T>& of, std::mt19937 random = std::mt19937(1))
        : x(of), a(matrix<T>(x.m, x.k, x.a, random)), b(matrix<T>(x.k, x.n, x.b, random)), bias(matrix<T>(1, x.n, Layout::rows, random)),
          before(x.m, x.n, x.n + 4, 1, random), c(before) {}

    void operator()() {
        c = before;
        if (x.beta == 0)
            for (T& value : c.data) value = std::numeric_limits<T>::quiet_NaN();
        tapir::kernels::gemm(Gemm<T>{x.m, x.n, x.k, a.data.data(), a.row, a.col, b.data.data(), b.row, b.col, c.data.data(), c.row, x.beta, x.alpha,
                                     x.bias ? bias.data.data() : nullptr});
    }
};

template <class T>
void check(const Run<T>& run) {
    const double worst = worst_error(run.x, run.a, run.b, run.bias.data, run.before, run.c);
    if (worst > 1) FAIL_CHECK(text(run.x) << ": error " << worst << " times the bound");
    bool kept = true;
    for (std::size_t i = 0; i < run.c.data.size(); ++i)
        if (static_cast<int64_t>(i) % run.c.row >= run.x.n) kept = kept && std::isnan(run.c.data[i]);
    if (!kept) FAIL_CHECK(text(run.x) << ": wrote between the rows of C");
}

template <class T>
void check(const Case<T>& x) {
    Run<T> run(x);
    run();
    check(run);
}

}  // namespace

TEMPLATE_TEST_CASE("gemm: every layout at odd sizes", "[gemm]", float, double) {
    for (int64_t m : {1, 2, 3, 5, 9, 17, 70})
        for (int64_t n : {1, 2, 7, 16, 17, 50, 97})
            for (int64_t k : {1, 2, 15, 16, 33, 70})
                for (Layout a : layouts)
                    for (Layout b : layouts) check(Case<TestType>{m, n, k, a, b});
    SUCCEED();
}

TEMPLATE_TEST_CASE("gemm: every small size", "[gemm]", float, double) {
    for (int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 16, 19, 65, 130})
        for (int64_t n = 1; n <= 35; ++n) {
            check(Case<TestType>{m, n, 19, Layout::rows, Layout::rows});
            check(Case<TestType>{m, n, 19, Layout::rows, Layout::columns});
            check(Case<TestType>{m, n, 5, Layout::columns, Layout::columns, 1, 1});
        }
    SUCCEED();
}

TEMPLATE_TEST_CASE("gemm: alpha, beta and bias", "[gemm]", float, double) {
    using T = TestType;
    for (int64_t m : {1, 2, 4, 19})
        for (int64_t n : {1, 5, 31, 64})
            for (int64_t k : {0, 1, 18, 40})
                for (Layout a : layouts)
                    for (Layout b : layouts)
                        for (T alpha : {T(1), T(-0.5), T(0)})
                            for (T beta : {T(0), T(1), T(-1.5)})
                                for (bool bias : {false, true}) check(Case<T>{m, n, k, a, b, alpha, beta, bias});
    SUCCEED();
}

TEMPLATE_TEST_CASE("gemm: deep and large products", "[gemm]", float, double) {
    for (Layout a : {Layout::rows, Layout::columns, Layout::strided})
        for (Layout b : {Layout::rows, Layout::columns, Layout::strided}) {
            check(Case<TestType>{1, 300, 750, a, b, 1, 0, true});
            check(Case<TestType>{3, 129, 1201, a, b, 1, 1});
            check(Case<TestType>{301, 1, 801, a, b, 2, -1, true});
            check(Case<TestType>{750, 299, 25, a, b, 1, 1});
            check(Case<TestType>{70, 500, 401, a, b, -1, 0.5, true});
            check(Case<TestType>{203, 141, 900, a, b, 0.5, 1, true});
            check(Case<TestType>{410, 413, 400, a, b, 0.5, a == b ? TestType(0) : TestType(-1), true});
        }
    SUCCEED();
}

TEMPLATE_TEST_CASE("gemm: empty sizes", "[gemm]", float, double) {
    for (int64_t m : {0, 1, 3})
        for (int64_t n : {0, 1, 20})
            for (int64_t k : {0, 1, 20})
                for (TestType beta : {TestType(0), TestType(1), TestType(2)})
                    for (bool bias : {false, true}) check(Case<TestType>{m, n, k, Layout::rows, Layout::columns, 1, beta, bias});
    tapir::kernels::gemm(Gemm<TestType>{0, 0, 0, nullptr, 0, 0, nullptr, 0, 0, nullptr, 0});
    SUCCEED();
}

TEMPLATE_TEST_CASE("gemm: nan and inf in A and B reach C, with no others", "[gemm]", float, double) {
    using T = TestType;
    const T nan = std::numeric_limits<T>::quiet_NaN(), inf = std::numeric_limits<T>::infinity();
    for (int64_t b_columns : {0, 1}) {
        std::vector<T> a(3 * 40, T(1)), b(40 * 21, T(1)), c(3 * 21);
        a[1 * 40 + 39] = nan;                                                      // row 1
        b[static_cast<std::size_t>(b_columns ? 20 * 40 + 7 : 7 * 21 + 20)] = inf;  // column 20
        tapir::kernels::gemm(Gemm<T>{3, 21, 40, a.data(), 40, 1, b.data(), b_columns ? 1 : 21, b_columns ? 40 : 1, c.data(), 21});
        for (std::size_t i = 0; i < 3; ++i)
            for (std::size_t j = 0; j < 21; ++j) {
                const T y = c[i * 21 + j];
                if (i == 1)
                    CHECK(std::isnan(y));
                else
                    CHECK(y == (j == 20 ? inf : T(40)));
            }
    }
}

TEMPLATE_TEST_CASE("gemm: the number of threads does not change the result", "[gemm]", float, double) {
    for (Layout a : {Layout::rows, Layout::columns})
        for (Layout b : {Layout::rows, Layout::columns})
            for (auto [m, n, k] :
                 {std::array<int64_t, 3>{1, 3000, 1000}, {2500, 1, 1500}, {7, 900, 900}, {260, 300, 400}, {1500, 600, 30}, {3000, 9, 100}}) {
                ThreadsScope scope(1);
                Run<TestType> run(Case<TestType>{m, n, k, a, b, TestType(0.7), TestType(-0.3), true});
                run();
                check(run);
                const Matrix<TestType> c = run.c;
                for (int threads : {2, 3, 7}) {
                    tapir::set_num_threads(threads);
                    run();
                    bool same = true;
                    for (int64_t i = 0; i < m; ++i)
                        for (int64_t j = 0; j < n; ++j) same = same && c.at(i, j) == run.c.at(i, j);
                    if (!same) FAIL_CHECK(text(run.x) << ": differs with " << threads << " threads");
                }
            }
    SUCCEED();
}

TEMPLATE_TEST_CASE("gemm: columns of A that are packed once for several blocks of B", "[gemm]", float, double) {
    using T = TestType;
    const ThreadsScope scope(1);
    for (const int64_t m : {300, 301, 1200})  // of the last all do not find room
        for (const int64_t k : {70, 500}) check(Case<T>{m, 900, k, Layout::columns, Layout::rows, T(0.5), T(-2), true});
}

TEMPLATE_TEST_CASE("gemm: batches", "[gemm]", float, double) {
    using T = TestType;
    struct Shape {
        int64_t batch, m, n, k;
        bool share_b, turned = false;  // turned: the rows of all products first, then the next rows
    };
    for (int threads : {1, 2, 3})
        for (const Shape& s : {Shape{0, 2, 3, 4, false},
                               {1, 2, 3, 4, false},
                               {5, 1, 17, 20, false},
                               {4, 3, 0, 2, false},
                               {6, 7, 19, 23, true},
                               {40, 33, 65, 50, false},
                               {1000, 8, 8, 8, false},
                               {3, 200, 210, 220, false},
                               {17, 60, 70, 80, true},
                               {17, 1, 9, 30, true, true},
                               {90, 4, 70, 80, true, true},
                               {4, 90, 70, 80, true, true},
                               {40, 33, 65, 50, false, true}}) {
            ThreadsScope scope(threads);
            const int64_t a_batch = s.turned ? s.k : s.m * s.k, a_row = s.turned ? s.batch * s.k : s.k;
            std::mt19937 random(3);
            const Matrix<T> a = matrix<T>(s.batch * s.m, s.k, Layout::rows, random);
            const Matrix<T> b = matrix<T>((s.share_b ? 1 : s.batch) * s.k, s.n, Layout::rows, random);
            Matrix<T> c = matrix<T>(s.batch * s.m, s.n, Layout::rows, random);
            const int64_t b_batch = s.share_b ? 0 : s.k * s.n;
            const Gemm<T> first{s.m, s.n, s.k, a.data.data(), a_row, 1, b.data.data(), s.n, 1, c.data.data(), s.n};
            tapir::kernels::gemm(GemmBatch<T>{first, s.batch, a_batch, b_batch, s.m * s.n});
            Matrix<T> expected = c;
            for (T& value : expected.data) value = std::numeric_limits<T>::quiet_NaN();
            for (int64_t i = 0; i < s.batch; ++i) {
                Gemm<T> one = first;
                one.a += i * a_batch, one.b += i * b_batch;
                one.c = expected.data.data() + i * s.m * s.n;
                tapir::kernels::gemm(one);
            }
            double worst = 0;
            for (std::size_t i = 0; i < c.data.size(); ++i) worst = std::max(worst, std::abs(static_cast<double>(c.data[i] - expected.data[i])));
            // Both are right to the bound of `check`; every |a b| is at most 1.
            const double bound = 2. * double(s.k * (s.k + 4)) * double(std::numeric_limits<T>::epsilon());
            CHECK(worst <= bound);
        }
}

TEST_CASE("set_num_threads refuses less than one thread", "[gemm]") {
    const int before = tapir::num_threads();
    CHECK(before >= 1);
    CHECK_THROWS_AS(tapir::set_num_threads(0), tapir::ValueError);
    CHECK_THROWS_AS(tapir::set_num_threads(-3), tapir::ValueError);
    CHECK(tapir::num_threads() == before);
}
