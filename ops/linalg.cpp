// Linear algebra through LAPACK. Each op copies its matrices to the host, column after column, lets a routine write over them, and
// gives the result back as the user's device and layout have it. The gradients are formulas of public ops, after Giles 2008 ("An
// extended collection of matrix derivative results"), Walter & Lehmann 2010 (QR), Murray 2016 (Cholesky) and Townsend 2016 (SVD).
#include "tapir/ops/linalg.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tapir/autograd/backward_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/arrange.h"
#include "tapir/ops/copy.h"
#include "tapir/ops/elementwise.h"
#include "tapir/ops/elementwise_impl.h"
#include "tapir/ops/indexing.h"
#include "tapir/ops/make.h"
#include "tapir/ops/matmul.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/reduce.h"
#include "tapir/ops/view.h"
#ifdef TAPIR_HAVE_LAPACK
#include "tapir/ops/lapack_impl.h"
#endif

namespace tapir {
namespace {

using std::int64_t;

void solve_rule(Backward& b);
void solve_triangular_rule(Backward& b);
void inv_rule(Backward& b);
void det_rule(Backward& b);
void slogdet_rule(Backward& b);
void cholesky_rule(Backward& b);
void qr_rule(Backward& b);
void eigh_rule(Backward& b);
void eigvalsh_rule(Backward& b);
void svd_rule(Backward& b);
void svdvals_rule(Backward& b);
void pinv_rule(Backward& b);

// For samples: matrices that are symmetric, and definite.
Tensor symmetric(const Tensor& x) { return x + transpose(x, -1, -2); }
Tensor definite(const Tensor& x) { return matmul(x, transpose(x, -1, -2)) + eye(x.size(-2), -1, {x.dtype(), x.device()}); }
#define TAPIR_SYMMETRIC "(x[0] + x[0].mT)"
#define TAPIR_DEFINITE "(x[0] @ x[0].mT + eye(x[0].shape[-2], dtype=x[0].dtype))"

std::vector<Tensor> list(const linalg::SlogdetResult& r) { return {r.sign, r.logabsdet}; }
std::vector<Tensor> list(const linalg::QRResult& r) { return r.q.defined() ? std::vector{r.q, r.r} : std::vector{r.r}; }
// Vectors are determined up to their signs: of a matrix and its vectors, what does not depend on them.
std::vector<Tensor> without_signs(const linalg::EighResult& r) { return {r.eigenvalues, square(r.eigenvectors)}; }
std::vector<Tensor> without_signs(const linalg::SVDResult& r) {
    return {r.s, square(r.u), square(r.vh), matmul(r.u * unsqueeze(r.s * r.s, -2), r.vh)};
}

}  // namespace

TAPIR_OP(linalg_solve, NoOnnx("custom"), solve_rule, "The x with a x = b.",
         TAPIR_SAMPLE_AS("f(3,3) f(3,2)", "linalg.solve(x[0], x[1])", linalg::solve(x[0], x[1])),
         TAPIR_SAMPLE_AS("f(2,3,3) f(2,3)", "linalg.solve(x[0], x[1])", linalg::solve(x[0], x[1])),
         TAPIR_SAMPLE_AS("f(2,1,2,2) f(3,2,4)", "linalg.solve(x[0], x[1])", linalg::solve(x[0], x[1])),
         TAPIR_SAMPLE_AS("f(3,3) f(3)", "linalg.solve(x[0], x[1])", linalg::solve(x[0], x[1])));
TAPIR_OP(linalg_solve_triangular, NoOnnx("custom"), solve_triangular_rule, "The x with a x = b for a triangular a.",
         TAPIR_SAMPLE_AS("u(3,3) f(3,2)", "linalg.solve_triangular(x[0], x[1], upper=True)", linalg::solve_triangular(x[0], x[1], true)),
         TAPIR_SAMPLE_AS("u(2,3,3) f(2,3)", "linalg.solve_triangular(x[0], x[1], upper=False, left=False)",
                         linalg::solve_triangular(x[0], x[1], false, false)),
         TAPIR_SAMPLE_AS("f(3,3) f(3,2)", "linalg.solve_triangular(x[0], x[1], upper=False, unitriangular=True)",
                         linalg::solve_triangular(x[0], x[1], false, true, true)));
TAPIR_OP(linalg_inv, NoOnnx("custom"), inv_rule, "The inverse.", TAPIR_SAMPLE_AS("f(3,3)", "linalg.inv(x[0])", linalg::inv(x[0])),
         TAPIR_SAMPLE_AS("f(2,2,2)", "linalg.inv(x[0])", linalg::inv(x[0])),
         TAPIR_SAMPLE_AS("f(3,3)", "linalg.matrix_power(x[0], 5)", linalg::matrix_power(x[0], 5)),
         TAPIR_SAMPLE_AS("f(2,2)", "linalg.matrix_power(x[0], -3)", linalg::matrix_power(x[0], -3)));
TAPIR_OP(linalg_det, "Det", det_rule, "The determinant.", TAPIR_SAMPLE_AS("f(3,3)", "linalg.det(x[0])", linalg::det(x[0])),
         TAPIR_SAMPLE_AS("f(2,2,4,4)", "linalg.det(x[0])", linalg::det(x[0])));
TAPIR_OP(linalg_slogdet, NoOnnx("Det, Sign, Abs, Log"), slogdet_rule, "The sign of the determinant, and log |det|.",
         TAPIR_SAMPLE_AS("f(3,3)", "linalg.slogdet(x[0])", list(linalg::slogdet(x[0]))),
         TAPIR_SAMPLE_AS("f(2,3,3)", "linalg.slogdet(x[0])", list(linalg::slogdet(x[0]))));
TAPIR_OP(linalg_cholesky, NoOnnx("custom"), cholesky_rule, "The triangular l with l l^T = a.",
         TAPIR_SAMPLE_AS("f(3,4)", "linalg.cholesky(" TAPIR_DEFINITE ")", linalg::cholesky(definite(x[0]))),
         TAPIR_SAMPLE_AS("f(2,3,3)", "linalg.cholesky(" TAPIR_DEFINITE ", upper=True)", linalg::cholesky(definite(x[0]), true)),
         TAPIR_SAMPLE_AS("f(3,2) u(3,3)", "cholesky_solve(x[0], x[1].tril())", linalg::cholesky_solve(x[0], tril(x[1]))));
TAPIR_OP(linalg_qr, NoOnnx("custom"), qr_rule, "Orthogonal columns times an upper triangle.",
         TAPIR_SAMPLE_AS("f(4,3)", "linalg.qr(x[0])", list(linalg::qr(x[0]))),
         TAPIR_SAMPLE_AS("f(2,2,4)", "linalg.qr(x[0])", list(linalg::qr(x[0]))),
         TAPIR_SAMPLE_AS("f(5,2) f(5,3)", "linalg.lstsq(x[0], x[1])[0]", linalg::lstsq(x[0], x[1])),
         TAPIR_SAMPLE_AS("f(2,4) f(2,1)", "linalg.lstsq(x[0], x[1])[0]", linalg::lstsq(x[0], x[1])));
TAPIR_OP(linalg_eigh, NoOnnx("custom"), eigh_rule, "Eigenvalues and eigenvectors of symmetric matrices.",
         TAPIR_SAMPLE_AS("f(3,3)", "(lambda r: (r[0], r[1] ** 2))(linalg.eigh(" TAPIR_SYMMETRIC "))",
                         without_signs(linalg::eigh(symmetric(x[0])))));
TAPIR_OP(linalg_eigvalsh, NoOnnx("custom"), eigvalsh_rule, "Eigenvalues of symmetric matrices.",
         TAPIR_SAMPLE_AS("f(2,4,4)", "linalg.eigvalsh(" TAPIR_SYMMETRIC ")", linalg::eigvalsh(symmetric(x[0]))));
TAPIR_OP(linalg_svd, NoOnnx("custom"), svd_rule, "Singular values and vectors.",
         TAPIR_SAMPLE_AS(
             "f(4,3)",
             "(lambda r: (r[1], r[0] ** 2, r[2] ** 2, r[0] @ (r[1] ** 2).diag_embed() @ r[2]))(linalg.svd(x[0], full_matrices=False))",
             without_signs(linalg::svd(x[0], false))),
         TAPIR_SAMPLE_AS(
             "f(2,2,3)",
             "(lambda r: (r[1], r[0] ** 2, r[2] ** 2, r[0] @ (r[1] ** 2).diag_embed() @ r[2]))(linalg.svd(x[0], full_matrices=False))",
             without_signs(linalg::svd(x[0], false))));
TAPIR_OP(linalg_svdvals, NoOnnx("custom"), svdvals_rule, "Singular values.",
         TAPIR_SAMPLE_AS("f(3,4)", "linalg.svdvals(x[0])", linalg::svdvals(x[0])),
         TAPIR_SAMPLE_AS("f(2,3,4)", "linalg.matrix_norm(x[0], 'nuc')", linalg::matrix_norm(x[0], "nuc")),
         TAPIR_SAMPLE_AS("f(2,3,4)", "linalg.matrix_norm(x[0], 2)", linalg::matrix_norm(x[0], 2)),
         TAPIR_SAMPLE_AS("f(2,3,4)", "linalg.matrix_norm(x[0], -1)", linalg::matrix_norm(x[0], -1)),
         TAPIR_SAMPLE_AS("f(2,3,4)", "linalg.matrix_norm(x[0])", linalg::matrix_norm(x[0])));
TAPIR_OP(linalg_pinv, NoOnnx("custom"), pinv_rule, "The Moore-Penrose inverse.",
         TAPIR_SAMPLE_AS("f(4,3)", "linalg.pinv(x[0])", linalg::pinv(x[0])),
         TAPIR_SAMPLE_AS("f(2,2,3)", "linalg.pinv(x[0])", linalg::pinv(x[0])));
TAPIR_OP(linalg_matrix_rank, NoOnnx("custom"), NonDiff, "How many singular values are not 0.",
         TAPIR_SAMPLE_AS("f(3,4)", "linalg.matrix_rank(x[0])", linalg::matrix_rank(x[0])),
         TAPIR_SAMPLE_AS("f(2,3,1)", "linalg.matrix_rank(x[0] @ x[0].mT)",
                         linalg::matrix_rank(matmul(x[0], transpose(x[0], -1, -2)), 1e-4)));

namespace {

// --- Matrices ----------------------------------------------------------------------------------------------------------------

Tensor mt(const Tensor& x) { return transpose(x, -1, -2); }

// The matrices of an op's operand.
struct Matrices {
    int64_t rows, columns, count;  // count: in the batch
    explicit Matrices(const Tensor& x) : rows(x.size(-2)), columns(x.size(-1)), count(1) {
        for (int d = 0; d + 2 < x.dim(); ++d) count *= x.size(d);
    }
};

Shape batch_of(const Tensor& x, int without = 2) { return {x.impl()->sizes, x.dim() - without}; }
Shape with_sizes(Shape batch, std::initializer_list<int64_t> sizes) {
    for (const int64_t size : sizes) batch.push_back(size);
    return batch;
}

void check_matrices(const char* op, const In& x, bool square) {
    detail::check_defined(x, op);
    if (x.tensor.dim() < 2) fail<ShapeError>(x.loc, "{}: needs matrices, got shape {}", op, x.tensor.shape());
    if (square && x.tensor.size(-1) != x.tensor.size(-2))
        fail<ShapeError>(x.loc, "{}: needs square matrices, got shape {}", op, x.tensor.shape());
    if (x->dtype != float32 && x->dtype != float64) fail<DTypeError>(x.loc, "{}: needs float32 or float64, got {}", op, name(x->dtype));
    if (std::max(x.tensor.size(-1), x.tensor.size(-2)) >= INT32_MAX / 4)
        fail<ShapeError>(x.loc, "{}: matrices of shape {} are too large", op, x.tensor.shape());
}
void check_alike(const char* op, const In& a, const In& b) {
    detail::check_same_device(op, a.tensor, b.tensor, a.loc);
    if (a->dtype != b->dtype)
        fail<DTypeError>(a.loc, "{}: operands must have one dtype, got {} and {}", op, name(a->dtype), name(b->dtype));
}

// "matrix 3 of the batch", "the matrix"
std::string which(const Tensor& x, int64_t index) {
    return x.dim() > 2 ? "matrix " + std::to_string(index) + " of the batch" : "the matrix";
}

// A copy on the host whose matrices lie column after column: (batch..., columns, rows).
Tensor columns_of(const Tensor& x) {
    const Tensor turned = mt(x).to(cpu), packed = turned.contiguous();
    return packed.shares_storage(x) ? clone(packed) : packed;
}
// Matrices that lie column after column, as the op's result on a device.
Tensor result_of(const Tensor& columns, Device device) { return mt(columns).contiguous().to(device); }

Tensor make_on_host(const Shape& shape, DType dtype, const Loc& loc) { return detail::make_empty(shape, dtype, cpu, loc); }

#ifdef TAPIR_HAVE_LAPACK

constexpr bool kHaveLapack = true;
using lapack::Int;

// Calls f(k, its place in a worker's room) for each matrix of a batch: on several threads where they are small, one after the other
// where the library may use threads itself.
template <class F>
void for_matrices(int64_t count, int64_t size, const F& f) {
    if (size > 96 || count < 2) {
        for (int64_t k = 0; k < count; ++k) f(k);
        return;
    }
    const int64_t work = size * size * size + 1;  // parallel_for cuts at multiples of 64
    parallel_for(count * 64, 64 * (32 * 1024 / work + 1), [&](int64_t begin, int64_t end) {
        for (int64_t k = begin / 64; k < end / 64; ++k) f(k);
    });
}

template <class T>
T* matrix(const Tensor& batch, int64_t k) {
    return static_cast<T*>(batch.raw_data()) + k * batch.size(-1) * batch.size(-2);
}
template <class T>
T* row(const Tensor& batch, int64_t k) {
    return static_cast<T*>(batch.raw_data()) + k * batch.size(-1);
}
Int as_int(int64_t n) { return static_cast<Int>(n); }
Int leading(int64_t n) { return static_cast<Int>(std::max<int64_t>(n, 1)); }

// The first matrix that a routine stopped at.
class Stopped {
 public:
    void at(int64_t k) {
        int64_t seen = first_;
        while (k < seen && !__atomic_compare_exchange_n(&first_, &seen, k, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        }
    }
    bool any() const { return first_ != INT64_MAX; }
    int64_t first() const { return first_; }

 private:
    int64_t first_ = INT64_MAX;
};

template <class F>
void with_type(DType dtype, const F& f) {
    dtype == float64 ? f.template operator()<double>() : f.template operator()<float>();
}

// lu, columns: (batch..., n, n), becomes the factors; b (batch..., k, n) the solutions. Returns where a matrix is singular.
Stopped lu_solve(const Tensor& lu, const Tensor& b) {
    const Matrices a(lu);
    Stopped stopped;
    with_type(lu.dtype(), [&]<class T>() {
        for_matrices(a.count, a.rows, [&](int64_t k) {
            std::vector<Int> pivots(static_cast<std::size_t>(a.rows));
            const Int n = as_int(a.rows), lda = leading(a.rows), nrhs = as_int(b.size(-2));
            Int info = 0;
            lapack::call<T>(lapack::sgetrf_, lapack::dgetrf_)(&n, &n, matrix<T>(lu, k), &lda, pivots.data(), &info);
            if (info != 0) return stopped.at(k);
            lapack::call<T>(lapack::sgetrs_, lapack::dgetrs_)("N", &n, &nrhs, matrix<T>(lu, k), &lda, pivots.data(), matrix<T>(b, k), &lda,
                                                              &info, 1);
        });
    });
    return stopped;
}

// The sign and the logarithm of |det|, and det itself, of each matrix; lu becomes the factors.
void determinants(const Tensor& lu, const Tensor& sign, const Tensor& logarithm, const Tensor& det) {
    const Matrices a(lu);
    with_type(lu.dtype(), [&]<class T>() {
        for_matrices(a.count, a.rows, [&](int64_t k) {
            std::vector<Int> pivots(static_cast<std::size_t>(a.rows));
            const Int n = as_int(a.rows), lda = leading(a.rows);
            Int info = 0;
            T* m = matrix<T>(lu, k);
            lapack::call<T>(lapack::sgetrf_, lapack::dgetrf_)(&n, &n, m, &lda, pivots.data(), &info);
            T s = 1, l = 0, d = 1;
            for (int64_t i = 0; i < a.rows; ++i) {
                const T x = m[i * a.rows + i];
                const bool is_swapped = pivots[static_cast<std::size_t>(i)] != i + 1;
                s *= (is_swapped ? T(-1) : T(1)) * (x > 0 ? T(1) : x < 0 ? T(-1) : x);
                l += std::log(std::abs(x));
                d *= is_swapped ? -x : x;
            }
            static_cast<T*>(sign.raw_data())[k] = s;
            static_cast<T*>(logarithm.raw_data())[k] = l;
            static_cast<T*>(det.raw_data())[k] = d;
        });
    });
}

// The lower triangles, the rest 0, in the place of a.
Stopped factor_definite(const Tensor& a) {
    const Matrices size(a);
    Stopped stopped;
    with_type(a.dtype(), [&]<class T>() {
        for_matrices(size.count, size.rows, [&](int64_t k) {
            const Int n = as_int(size.rows), lda = leading(size.rows);
            Int info = 0;
            T* m = matrix<T>(a, k);
            lapack::call<T>(lapack::spotrf_, lapack::dpotrf_)("L", &n, m, &lda, &info, 1);
            if (info != 0) return stopped.at(k);
            for (int64_t column = 1; column < size.rows; ++column) std::fill(m + column * size.rows, m + column * size.rows + column, T(0));
        });
    });
    return stopped;
}

// b becomes a^-1 b.
void triangular_solve(const Tensor& a, const Tensor& b, bool upper, bool unit) {
    const Matrices size(a);
    with_type(a.dtype(), [&]<class T>() {
        for_matrices(size.count, size.rows, [&](int64_t k) {
            const Int n = as_int(size.rows), nrhs = as_int(b.size(-2)), lda = leading(size.rows);
            const T one = 1;
            lapack::call<T>(lapack::strsm_, lapack::dtrsm_)("L", upper ? "U" : "L", "N", unit ? "U" : "N", &n, &nrhs, &one, matrix<T>(a, k),
                                                            &lda, matrix<T>(b, k), &lda, 1, 1, 1, 1);
        });
    });
}

// a (batch..., m, n), columns of n elements. q: (batch..., q columns, n), its first columns; r (batch..., m, rows of r).
void factor_orthogonal(const Tensor& a, const Tensor& q, const Tensor& r) {
    const Matrices size(a);
    const int64_t m = size.rows, n = size.columns, least = std::min(n, m);
    with_type(a.dtype(), [&]<class T>() {
        for_matrices(size.count, std::max(n, m), [&](int64_t k) {
            const Int rows = as_int(n), columns = as_int(m), lda = leading(n), count = as_int(least);
            const Int q_columns = q.defined() ? as_int(q.size(-2)) : 0;
            Int info = 0, lwork = -1;
            std::vector<T> tau(static_cast<std::size_t>(std::max<int64_t>(least, 1)));
            T wish = 0, wish_q = 0;
            T* from = matrix<T>(a, k);
            lapack::call<T>(lapack::sgeqrf_, lapack::dgeqrf_)(&rows, &columns, from, &lda, tau.data(), &wish, &lwork, &info);
            if (q.defined())
                lapack::call<T>(lapack::sorgqr_, lapack::dorgqr_)(&rows, &q_columns, &count, from, &lda, tau.data(), &wish_q, &lwork,
                                                                  &info);
            lwork = std::max(1, static_cast<Int>(std::max(wish, wish_q)));
            std::vector<T> work(static_cast<std::size_t>(lwork));
            lapack::call<T>(lapack::sgeqrf_, lapack::dgeqrf_)(&rows, &columns, from, &lda, tau.data(), work.data(), &lwork, &info);
            const int64_t r_rows = r.size(-1);
            T* to = matrix<T>(r, k);
            for (int64_t j = 0; j < m; ++j) {
                for (int64_t i = 0; i < r_rows; ++i) to[j * r_rows + i] = i <= j && i < n ? from[j * n + i] : T(0);
            }
            if (!q.defined()) return;
            T* of_q = matrix<T>(q, k);
            std::copy(from, from + std::min<int64_t>(m, q_columns) * n, of_q);
            lapack::call<T>(lapack::sorgqr_, lapack::dorgqr_)(&rows, &q_columns, &count, of_q, &lda, tau.data(), work.data(), &lwork,
                                                              &info);
        });
    });
}

// a becomes the eigenvectors, if wanted.
Stopped eigen(const Tensor& a, const Tensor& values, bool vectors) {
    const Matrices size(a);
    Stopped stopped;
    with_type(a.dtype(), [&]<class T>() {
        for_matrices(size.count, size.rows, [&](int64_t k) {
            const Int n = as_int(size.rows), lda = leading(size.rows);
            Int info = 0, lwork = -1, liwork = -1, iwish = 0;
            T wish = 0;
            const auto run = [&](T* work, Int* iwork) {
                lapack::call<T>(lapack::ssyevd_, lapack::dsyevd_)(vectors ? "V" : "N", "L", &n, matrix<T>(a, k), &lda, row<T>(values, k),
                                                                  work, &lwork, iwork, &liwork, &info, 1, 1);
            };
            run(&wish, &iwish);
            lwork = std::max(1, static_cast<Int>(wish));
            liwork = std::max(1, iwish);
            std::vector<T> work(static_cast<std::size_t>(lwork));
            std::vector<Int> iwork(static_cast<std::size_t>(liwork));
            run(work.data(), iwork.data());
            if (info != 0) stopped.at(k);
        });
    });
    return stopped;
}

// a (batch..., m, n) is lost. job: 'N' values alone, 'S' u (batch..., k, n) and vt (batch..., m, k), 'A' whole ones.
Stopped singular_values(const Tensor& a, const Tensor& u, const Tensor& s, const Tensor& vt, char job) {
    const Matrices size(a);
    const int64_t m = size.rows, n = size.columns;
    Stopped stopped;
    with_type(a.dtype(), [&]<class T>() {
        for_matrices(size.count, std::max(n, m), [&](int64_t k) {
            const Int rows = as_int(n), columns = as_int(m), lda = leading(n), ldvt = leading(vt.defined() ? vt.size(-1) : 1);
            Int info = 0, lwork = -1;
            T wish = 0, none = 0;
            std::vector<Int> iwork(static_cast<std::size_t>(8 * std::max<int64_t>(std::min(m, n), 1)));
            const auto run = [&](T* work) {
                lapack::call<T>(lapack::sgesdd_, lapack::dgesdd_)(
                    &job, &rows, &columns, matrix<T>(a, k), &lda, row<T>(s, k), u.defined() ? matrix<T>(u, k) : &none, &lda,
                    vt.defined() ? matrix<T>(vt, k) : &none, &ldvt, work, &lwork, iwork.data(), &info, 1);
            };
            run(&wish);
            lwork = std::max(1, static_cast<Int>(wish));
            std::vector<T> work(static_cast<std::size_t>(lwork));
            run(work.data());
            if (info != 0) stopped.at(k);
        });
    });
    return stopped;
}

#else

constexpr bool kHaveLapack = false;
struct Stopped {
    static bool any() { return false; }
    static int64_t first() { return 0; }
};
Stopped lu_solve(const Tensor&, const Tensor&) { return {}; }
void determinants(const Tensor&, const Tensor&, const Tensor&, const Tensor&) {}
Stopped factor_definite(const Tensor&) { return {}; }
void triangular_solve(const Tensor&, const Tensor&, bool, bool) {}
void factor_orthogonal(const Tensor&, const Tensor&, const Tensor&) {}
Stopped eigen(const Tensor&, const Tensor&, bool) { return {}; }
Stopped singular_values(const Tensor&, const Tensor&, const Tensor&, const Tensor&, char) { return {}; }

#endif

// What each op does first.
void begin(const OpInfo& op, const In& a) {
    if (!kHaveLapack) {
        fail<DeviceError>(a.loc, "{}: the library was built without LAPACK; install liblapack-dev and build with -DTAPIR_LAPACK=ON",
                          op.name);
    }
    detail::begin_op(op.name, a.tensor.impl(), a.loc);
}

[[noreturn]] void fail_singular(const char* op, const Tensor& a, int64_t index, const Loc& loc) {
    fail<ValueError>(loc, "{}: {} is singular", op, which(a, index));
}
[[noreturn]] void fail_to_converge(const char* op, const Tensor& a, int64_t index, const Loc& loc) {
    fail<ValueError>(loc, "{}: the algorithm did not converge for {}, which may hold nan or infinities", op, which(a, index));
}

// Both with one batch.
void broadcast_batches(const char* op, Tensor& a, Tensor& b, const Loc& loc) {
    const Shape batch = broadcast_shapes(batch_of(a), batch_of(b), op, loc);
    a = expand(a, with_sizes(batch, {a.size(-2), a.size(-1)}));
    b = expand(b, with_sizes(batch, {b.size(-2), b.size(-1)}));
}

// --- Systems of equations ------------------------------------------------------------------------------------------------------

Tensor solve_matrices(const In& a, const In& b) {
    begin(linalg_solve_op, a);
    Tensor x;
    {
        const detail::UnrecordedParts parts;
        Tensor left = a.tensor, right = b.tensor;
        broadcast_batches("linalg::solve", left, right, a.loc);
        const Tensor columns = columns_of(right);
        if (const Stopped stopped = lu_solve(columns_of(left), columns); stopped.any()) {
            fail_singular("linalg::solve", left, stopped.first(), a.loc);
        }
        x = result_of(columns, a->device);
    }
    record(linalg_solve_op, a.loc, {&a.tensor, &b.tensor}, x, {&a.tensor, &x});
    return x;
}

// dx = a^-1 (db - da x)
void solve_rule(Backward& b) {
    const Tensor a = b.saved(0), x = b.saved(1);
    const Tensor g = linalg::solve(In(mt(a), b.record().loc), b.grad());
    b.give(1, g);
    if (b.needs(0)) b.give(0, -matmul(g, mt(x)));
}

struct TriangularAttrs {
    bool upper, unit;
};

Tensor solve_triangles(const In& a, const In& b, const TriangularAttrs& attrs) {
    begin(linalg_solve_triangular_op, a);
    Tensor x;
    {
        const detail::UnrecordedParts parts;
        Tensor left = a.tensor, right = b.tensor;
        broadcast_batches("linalg::solve_triangular", left, right, a.loc);
        const Tensor columns = columns_of(right);
        triangular_solve(columns_of(left), columns, attrs.upper, attrs.unit);
        x = result_of(columns, a->device);
    }
    record(linalg_solve_triangular_op, a.loc, {&a.tensor, &b.tensor}, x, {&a.tensor, &x}, attrs);
    return x;
}

void solve_triangular_rule(Backward& b) {
    const auto attrs = b.attrs<TriangularAttrs>();
    const Tensor a = b.saved(0), x = b.saved(1), turned = mt(a);
    const Tensor g = solve_triangles(In(turned, b.record().loc), In(b.grad(), b.record().loc), {!attrs.upper, attrs.unit});
    b.give(1, g);
    if (!b.needs(0)) return;
    const Tensor of_a = -matmul(g, mt(x));
    const int64_t diagonal = attrs.unit ? 1 : 0;
    b.give(0, attrs.upper ? triu(of_a, diagonal) : tril(of_a, -diagonal));
}

// d(a^-1) = -a^-1 da a^-1
void inv_rule(Backward& b) {
    const Tensor x = mt(b.saved(0));
    b.give(0, -matmul(x, matmul(b.grad(), x)));
}

// --- Determinants --------------------------------------------------------------------------------------------------------------

struct Determinants {
    Tensor sign, logarithm, det;
    explicit Determinants(const Tensor& a, const Loc& loc) {
        const Shape batch = batch_of(a);
        for (Tensor* t : {&sign, &logarithm, &det}) *t = make_on_host(batch, a.dtype(), loc);
        determinants(columns_of(a), sign, logarithm, det);
        for (Tensor* t : {&sign, &logarithm, &det}) *t = t->to(a.device());
    }
};

// d det = det tr(a^-1 da)
Tensor times_inverse(const Tensor& g, const Tensor& a, const Loc& loc) {
    return unsqueeze(unsqueeze(g, -1), -1) * mt(linalg::inv(In(a, loc)));
}
// The transposed adjugate, for singular matrices too: of u diag(s) vh, det(u) det(vh) u diag(products of the other s) vh.
Tensor cofactors(const Tensor& a, const Loc& loc) {
    const auto [u, s, vh] = linalg::svd(In(a, loc), /*full_matrices=*/false);
    const Tensor is_own = eye(s.size(-1), -1, {bool_, s.device()});
    const Tensor others = prod(where(is_own, 1, unsqueeze(s, -2)), -1);
    const Tensor sign = linalg::det(In(u, loc)) * linalg::det(In(vh, loc));
    return unsqueeze(unsqueeze(sign, -1), -1) * matmul(u * unsqueeze(others, -2), vh);
}
void det_rule(Backward& b) {
    if (!b.needs(0)) return;
    const Tensor a = b.saved(0), det = b.saved(1), &g = b.grad();
    if (!b.recording() && any(eq(det, 0)).item<bool>()) return b.give(0, unsqueeze(unsqueeze(g, -1), -1) * cofactors(a, b.record().loc));
    b.give(0, times_inverse(g * det, a, b.record().loc));
}
void slogdet_rule(Backward& b) {
    if (b.needs(0) && b.grad(1).defined()) b.give(0, times_inverse(b.grad(1), b.saved(0), b.record().loc));
}

// --- Factors -------------------------------------------------------------------------------------------------------------------

// The lower triangle with half the diagonal.
Tensor halved(const Tensor& x) { return tril(x) - diag_embed(diagonal(x, 0, -2, -1)) * 0.5; }

// Murray 2016, equation 10.
void cholesky_rule(Backward& b) {
    if (!b.needs(0)) return;
    const Tensor l = b.saved(0), lt = mt(l);
    const Loc& loc = b.record().loc;
    const Tensor p = halved(matmul(lt, b.grad()));
    const Tensor left = linalg::solve_triangular(In(lt, loc), In(p, loc), /*upper=*/true);                  // l^-T p
    const Tensor s = linalg::solve_triangular(In(l, loc), In(left, loc), /*upper=*/false, /*left=*/false);  // l^-T p l^-1
    b.give(0, (s + mt(s)) * 0.5);
}

enum class QRMode : std::int32_t { reduced, complete, r };

// Walter & Lehmann 2010 for q r = a with square r.
Tensor gradient_of_qr(const Tensor& q, const Tensor& r, const Tensor& gq, const Tensor& gr, const Loc& loc) {
    const Tensor m = matmul(r, mt(gr)) - matmul(mt(gq), q);
    const Tensor lower = tril(m, -1), symmetric_m = lower + mt(lower) + diag_embed(diagonal(m, 0, -2, -1));
    const Tensor sum_of = gq + matmul(q, symmetric_m), rt = mt(r);
    return linalg::solve_triangular(In(rt, loc), In(sum_of, loc), /*upper=*/false, /*left=*/false);
}

void qr_rule(Backward& b) {
    if (!b.needs(0)) return;
    const Loc& loc = b.record().loc;
    const Tensor q = b.saved(0), r = b.saved(1);
    const int64_t n = q.size(-2), m = r.size(-1);
    const auto mode = b.attrs<QRMode>();
    if (mode == QRMode::r) fail<ValueError>(loc, "linalg::qr: there is no gradient in mode \"r\"; use \"reduced\"");
    if (mode == QRMode::complete && n > m)
        fail<ValueError>(loc, "linalg::qr: there is no gradient in mode \"complete\" of more rows than columns; use \"reduced\"");
    const Tensor gq = b.grad_or_zeros(0), gr = b.grad_or_zeros(1);
    if (n >= m) return b.give(0, gradient_of_qr(q, r, gq, gr, loc));
    // a = [x | y], q r = [q u | q v]: y = q v
    const auto first = [&](const Tensor& t) { return narrow(t, -1, 0, n); };
    const auto rest = [&](const Tensor& t) { return narrow(t, -1, n, m - n); };
    const Tensor y = matmul(q, rest(r)), gv = rest(gr);
    const Tensor gx = gradient_of_qr(q, first(r), gq + matmul(y, mt(gv)), first(gr), loc);
    b.give(0, cat({gx, matmul(q, gv)}, -1));
}

// 1 / (x_j - x_i), 0 on the diagonal; x (..., n)
Tensor inverse_differences(const Tensor& x) {
    const Tensor is_diagonal = eye(x.size(-1), -1, {bool_, x.device()});
    const Tensor differences = unsqueeze(x, -2) - unsqueeze(x, -1);
    return where(is_diagonal, 0, reciprocal(where(is_diagonal, 1, differences)));
}

// Giles 2008, section 3.1.
void eigh_rule(Backward& b) {
    if (!b.needs(0)) return;
    const Tensor w = b.saved(0), v = b.saved(1), vt = mt(v);
    Tensor inner;
    if (b.grad(1).defined()) inner = matmul(vt, b.grad(1)) * inverse_differences(w);
    if (b.grad(0).defined()) inner = inner.defined() ? inner + diag_embed(b.grad(0)) : diag_embed(b.grad(0));
    if (inner.defined()) b.give(0, matmul(v, matmul(inner, vt)));
}

void eigvalsh_rule(Backward& b) {
    if (!b.needs(0)) return;
    const Tensor v = linalg::eigh(In(b.saved(0), b.record().loc)).eigenvectors;
    b.give(0, matmul(v * unsqueeze(b.grad(), -2), mt(v)));
}
void svdvals_rule(Backward& b) {
    if (!b.needs(0)) return;
    const auto [u, s, vh] = linalg::svd(In(b.saved(0), b.record().loc), /*full_matrices=*/false);
    b.give(0, matmul(u * unsqueeze(b.grad(), -2), vh));
}

// Townsend 2016.
void svd_rule(Backward& b) {
    if (!b.needs(0)) return;
    const Tensor u = b.saved(0), s = b.saved(1), vh = b.saved(2);
    const Tensor &gu = b.grad(0), &gs = b.grad(1), &gvh = b.grad(2);
    const int64_t n = u.size(-2), m = vh.size(-1), k = s.size(-1);
    if ((gu.defined() || gvh.defined()) && (u.size(-1) > k || vh.size(-2) > k)) {
        fail<ValueError>(b.record().loc, "linalg::svd: there is no gradient of u and vh with full_matrices; use full_matrices = false");
    }
    const auto few = [&](const Tensor& t, int d) { return t.size(d) > k ? narrow(t, d, 0, k) : t; };
    const Tensor u_k = few(u, -1), vh_k = few(vh, -2), column = unsqueeze(s, -1), line = unsqueeze(s, -2);
    Tensor inner = gs.defined() ? diag_embed(gs) : zeros(with_sizes(batch_of(s, 1), {k, k}), {s.dtype(), s.device()});
    const auto skew = [](const Tensor& t) { return t - mt(t); };
    Tensor factor;
    if (gu.defined() || gvh.defined()) factor = inverse_differences(square(s));
    if (gu.defined()) inner = inner + skew(matmul(mt(u), gu)) * factor * line;
    if (gvh.defined()) inner = inner + column * (skew(matmul(vh, mt(gvh))) * factor);
    Tensor left = matmul(u_k, inner);
    if (gu.defined() && n > k) left = left + (gu - matmul(u, matmul(mt(u), gu))) / line;
    Tensor g = matmul(left, vh_k);
    if (gvh.defined() && m > k) g = g + matmul(u / line, gvh - matmul(matmul(gvh, mt(vh)), vh));
    b.give(0, g);
}

// Golub & Pereyra 1973, equation 4.12, transposed.
void pinv_rule(Backward& b) {
    if (!b.needs(0)) return;
    const Tensor a = b.saved(0), p = b.saved(1), pt = mt(p), gt = mt(b.grad());
    if (a.size(-2) <= a.size(-1)) {
        const Tensor k = matmul(gt, p), kpt = matmul(k, pt);
        b.give(0, kpt - mt(matmul(p, k)) - matmul(matmul(a, p), kpt) + matmul(matmul(pt, p), gt - matmul(k, a)));
    } else {
        const Tensor k = matmul(p, gt), ptk = matmul(pt, k);
        b.give(0, ptk - mt(matmul(k, p)) + matmul(matmul(gt - matmul(a, k), p), pt) - matmul(matmul(ptk, p), a));
    }
}

}  // namespace

namespace linalg {

bool is_available() noexcept { return kHaveLapack; }

Tensor solve(In a, In b) {
    check_matrices("linalg::solve", a, true);
    detail::check_defined(b, "linalg::solve");
    check_alike("linalg::solve", a, b);
    const bool is_vector = b.tensor.dim() == 1 || (b.tensor.dim() + 1 == a.tensor.dim() && b.tensor.shape() == batch_of(a.tensor, 1));
    if (b.tensor.dim() < 1 || b.tensor.size(is_vector ? -1 : -2) != a.tensor.size(-1)) {
        fail<ShapeError>(a.loc, "linalg::solve: a of shape {} does not fit b of shape {}", a.tensor.shape(), b.tensor.shape());
    }
    if (!is_vector) return solve_matrices(a, b);
    const detail::RecordedParts parts(a.loc);
    const Tensor columns = unsqueeze(b, -1);
    return squeeze(solve_matrices(a, In(columns, a.loc)), -1);
}

Tensor solve_triangular(In a, In b, bool upper, bool left, bool unitriangular) {
    check_matrices("linalg::solve_triangular", a, true);
    check_matrices("linalg::solve_triangular", b, false);
    check_alike("linalg::solve_triangular", a, b);
    if (b.tensor.size(left ? -2 : -1) != a.tensor.size(-1)) {
        fail<ShapeError>(a.loc, "linalg::solve_triangular: a of shape {} does not fit b of shape {}", a.tensor.shape(), b.tensor.shape());
    }
    if (left) return solve_triangles(a, b, {upper, unitriangular});
    const detail::RecordedParts parts(a.loc);
    const Tensor at = mt(a.tensor), bt = mt(b.tensor);  // a^T x^T = b^T
    return mt(solve_triangles(In(at, a.loc), In(bt, a.loc), {!upper, unitriangular}));
}

Tensor inv(In a) {
    check_matrices("linalg::inv", a, true);
    begin(linalg_inv_op, a);
    Tensor x;
    {
        const detail::UnrecordedParts parts;
        const Tensor one = eye(a.tensor.size(-1), -1, {a->dtype, cpu}), columns = clone(expand(one, a.tensor.shape()));
        if (const Stopped stopped = lu_solve(columns_of(a.tensor), columns); stopped.any()) {
            fail_singular("linalg::inv", a.tensor, stopped.first(), a.loc);
        }
        x = result_of(columns, a->device);
    }
    record(linalg_inv_op, a.loc, {&a.tensor}, x, {&x});
    return x;
}

Tensor det(In a) {
    check_matrices("linalg::det", a, true);
    begin(linalg_det_op, a);
    Tensor d;
    {
        const detail::UnrecordedParts parts;
        d = Determinants(a.tensor, a.loc).det;
    }
    record(linalg_det_op, a.loc, {&a.tensor}, d, {&a.tensor, &d});
    return d;
}

SlogdetResult slogdet(In a) {
    check_matrices("linalg::slogdet", a, true);
    begin(linalg_slogdet_op, a);
    SlogdetResult result;
    {
        const detail::UnrecordedParts parts;
        const Determinants all(a.tensor, a.loc);
        result = {all.sign, all.logarithm};
    }
    record_many(linalg_slogdet_op, a.loc, {a.tensor}, {result.sign, result.logabsdet}, {a.tensor});
    return result;
}

Tensor cholesky(In a, bool upper) {
    check_matrices("linalg::cholesky", a, true);
    if (upper) {
        const detail::RecordedParts parts(a.loc);
        const Tensor turned = mt(a.tensor);
        return mt(cholesky(In(turned, a.loc)));
    }
    begin(linalg_cholesky_op, a);
    Tensor l;
    {
        const detail::UnrecordedParts parts;
        const Tensor columns = columns_of(a.tensor);
        if (const Stopped stopped = factor_definite(columns); stopped.any()) {
            fail<ValueError>(a.loc, "linalg::cholesky: {} is not positive definite", which(a.tensor, stopped.first()));
        }
        l = result_of(columns, a->device);
    }
    record(linalg_cholesky_op, a.loc, {&a.tensor}, l, {&l});
    return l;
}

Tensor cholesky_solve(In b, In l, bool upper) {
    check_matrices("linalg::cholesky_solve", l, true);
    check_matrices("linalg::cholesky_solve", b, false);
    const detail::RecordedParts parts(b.loc);
    const Tensor turned = mt(l.tensor);
    const In lower = upper ? In(turned, b.loc) : l, higher = upper ? l : In(turned, b.loc);
    return solve_triangular(higher, solve_triangular(lower, b, false), true);
}

QRResult qr(In a, const char* mode) {
    check_matrices("linalg::qr", a, false);
    const std::string word = mode;
    if (word != "reduced" && word != "complete" && word != "r") {
        fail<ValueError>(a.loc, "linalg::qr: mode is \"reduced\", \"complete\" or \"r\", not \"{}\"", word);
    }
    const QRMode attrs = word == "reduced" ? QRMode::reduced : word == "complete" ? QRMode::complete : QRMode::r;
    begin(linalg_qr_op, a);
    QRResult result;
    {
        const detail::UnrecordedParts parts;
        const int64_t n = a.tensor.size(-2), m = a.tensor.size(-1), k = attrs == QRMode::complete ? n : std::min(n, m);
        const Tensor r = make_on_host(with_sizes(batch_of(a.tensor), {m, k}), a->dtype, a.loc);
        Tensor q;
        if (attrs != QRMode::r) q = make_on_host(with_sizes(batch_of(a.tensor), {k, n}), a->dtype, a.loc);
        factor_orthogonal(columns_of(a.tensor), q, r);
        result = {q.defined() ? result_of(q, a->device) : q, result_of(r, a->device)};
    }
    if (attrs == QRMode::r) {
        record_many(linalg_qr_op, a.loc, {a.tensor}, {result.r}, {result.r, result.r}, attrs);
    } else {
        record_many(linalg_qr_op, a.loc, {a.tensor}, {result.q, result.r}, {result.q, result.r}, attrs);
    }
    return result;
}

namespace {

// Without vectors the values alone, which differ from those beside vectors in the last digits.
EighResult eigh_of(const In& a, const char* uplo, bool vectors) {
    const std::string word = uplo;
    if (word != "L" && word != "U") fail<ValueError>(a.loc, "linalg::eigh: uplo is \"L\" or \"U\", not \"{}\"", word);
    if (word == "U") {
        const detail::RecordedParts parts(a.loc);
        const Tensor turned = mt(a.tensor);
        return eigh_of(In(turned, a.loc), "L", vectors);
    }
    begin(vectors ? linalg_eigh_op : linalg_eigvalsh_op, a);
    EighResult result;
    {
        const detail::UnrecordedParts parts;
        const Tensor columns = columns_of(a.tensor), values = make_on_host(batch_of(a.tensor, 1), a->dtype, a.loc);
        if (const Stopped stopped = eigen(columns, values, vectors); stopped.any())
            fail_to_converge("linalg::eigh", a.tensor, stopped.first(), a.loc);
        result.eigenvalues = values.to(a->device);
        if (vectors) result.eigenvectors = result_of(columns, a->device);
    }
    if (vectors) {
        record_many(linalg_eigh_op, a.loc, {a.tensor}, {result.eigenvalues, result.eigenvectors},
                    {result.eigenvalues, result.eigenvectors});
    } else {
        record(linalg_eigvalsh_op, a.loc, {&a.tensor}, result.eigenvalues, {&a.tensor});
    }
    return result;
}

SVDResult svd_of(const In& a, char job) {
    begin(job == 'N' ? linalg_svdvals_op : linalg_svd_op, a);
    SVDResult result;
    {
        const detail::UnrecordedParts parts;
        const int64_t n = a.tensor.size(-2), m = a.tensor.size(-1), k = std::min(n, m);
        const Shape batch = batch_of(a.tensor);
        const Tensor s = make_on_host(with_sizes(batch, {k}), a->dtype, a.loc);
        Tensor u, vt;
        if (job != 'N') {
            u = make_on_host(with_sizes(batch, {job == 'A' ? n : k, n}), a->dtype, a.loc);
            vt = make_on_host(with_sizes(batch, {m, job == 'A' ? m : k}), a->dtype, a.loc);
        }
        if (k > 0) {
            const Stopped stopped = singular_values(columns_of(a.tensor), u, s, vt, job);
            if (stopped.any()) fail_to_converge("linalg::svd", a.tensor, stopped.first(), a.loc);
        } else if (job == 'A') {  // no routine takes it: any orthogonal matrices do
            u.copy_(eye(n, -1, {a->dtype, cpu}));
            vt.copy_(eye(m, -1, {a->dtype, cpu}));
        }
        result.s = s.to(a->device);
        if (job != 'N') {
            result.u = result_of(u, a->device);
            result.vh = result_of(vt, a->device);
        }
    }
    if (job != 'N') {
        record_many(linalg_svd_op, a.loc, {a.tensor}, {result.u, result.s, result.vh}, {result.u, result.s, result.vh});
    } else {
        record(linalg_svdvals_op, a.loc, {&a.tensor}, result.s, {&a.tensor});
    }
    return result;
}

double default_tolerance(const Tensor& a) {
    const double epsilon = a.dtype() == float64 ? 0x1p-52 : 0x1p-23;
    return static_cast<double>(std::max(a.size(-1), a.size(-2))) * epsilon;
}

// 1 where a singular value counts, else 0.
Tensor is_counted(const Tensor& s, double rtol) {
    if (s.size(-1) == 0) return ones_like(s, {bool_});
    return gt(s, amax(s, {-1}, true) * rtol);
}

}  // namespace

EighResult eigh(In a, const char* uplo) {
    check_matrices("linalg::eigh", a, true);
    return eigh_of(a, uplo, true);
}

Tensor eigvalsh(In a, const char* uplo) {
    check_matrices("linalg::eigvalsh", a, true);
    return eigh_of(a, uplo, false).eigenvalues;
}

SVDResult svd(In a, bool full_matrices) {
    check_matrices("linalg::svd", a, false);
    return svd_of(a, full_matrices ? 'A' : 'S');
}

Tensor svdvals(In a) {
    check_matrices("linalg::svdvals", a, false);
    return svd_of(a, 'N').s;
}

Tensor lstsq(In a, In b) {
    check_matrices("linalg::lstsq", a, false);
    check_matrices("linalg::lstsq", b, false);
    check_alike("linalg::lstsq", a, b);
    if (b.tensor.size(-2) != a.tensor.size(-2)) {
        fail<ShapeError>(a.loc, "linalg::lstsq: a of shape {} does not fit b of shape {}", a.tensor.shape(), b.tensor.shape());
    }
    const detail::RecordedParts parts(a.loc);
    if (a.tensor.size(-2) >= a.tensor.size(-1)) {  // r x = q^T b
        const auto [q, r] = qr(a);
        return solve_triangular(In(r, a.loc), In(matmul(mt(q), b), a.loc), true);
    }
    const Tensor turned = mt(a.tensor);  // a = r^T q^T: x = q r^-T b
    const auto [q, r] = qr(In(turned, a.loc));
    return matmul(q, solve_triangular(In(mt(r), a.loc), b, false));
}

Tensor pinv(In a, double rtol) {
    check_matrices("linalg::pinv", a, false);
    begin(linalg_pinv_op, a);
    Tensor p;
    {
        const detail::UnrecordedParts parts;
        const auto [u, s, vh] = svd_of(a, 'S');
        const Tensor counted = is_counted(s, rtol < 0 ? default_tolerance(a.tensor) : rtol);
        const Tensor inverse = where(counted, reciprocal(where(counted, s, 1)), 0);
        p = matmul(mt(vh) * unsqueeze(inverse, -2), mt(u));
    }
    record(linalg_pinv_op, a.loc, {&a.tensor}, p, {&a.tensor, &p});
    return p;
}

Tensor matrix_rank(In a, double rtol) {
    check_matrices("linalg::matrix_rank", a, false);
    begin(linalg_matrix_rank_op, a);
    const CallerScope caller(a.loc);
    const detail::UnrecordedParts parts;
    const Tensor s = svd_of(a, 'N').s;
    return sum(is_counted(s, rtol < 0 ? default_tolerance(a.tensor) : rtol), {-1});
}

Tensor matrix_power(In a, int64_t n) {
    detail::check_defined(a, "linalg::matrix_power");
    if (a.tensor.dim() < 2 || a.tensor.size(-1) != a.tensor.size(-2)) {
        fail<ShapeError>(a.loc, "linalg::matrix_power: needs square matrices, got shape {}", a.tensor.shape());
    }
    const detail::RecordedParts parts(a.loc);
    if (n == 0) return clone(expand(eye(a.tensor.size(-1), -1, {a->dtype, a->device}), a.tensor.shape()));
    Tensor square = n < 0 ? inv(a) : a.tensor, product;
    for (auto left = static_cast<std::uint64_t>(n < 0 ? -n : n);;) {
        if (left & 1) product = product.defined() ? matmul(product, square) : square;
        left >>= 1;
        if (left == 0) break;
        square = matmul(square, square);
    }
    return product.is_same(a.tensor) ? clone(product) : product;
}

Tensor vector_norm(In x, double p, const Dims& dims, bool keepdim) { return tapir::norm(x, p, dims, keepdim); }
Tensor norm(In x) { return tapir::norm(x, 2); }

Tensor matrix_norm(In a, const char* ord) {
    check_matrices("linalg::matrix_norm", a, false);
    const std::string word = ord;
    if (word != "fro" && word != "nuc")
        fail<ValueError>(a.loc, "linalg::matrix_norm: ord is \"fro\", \"nuc\" or a number, not \"{}\"", word);
    const detail::RecordedParts parts(a.loc);
    return word == "fro" ? tapir::norm(a, 2, {-2, -1}) : sum(svdvals(a), {-1});
}

Tensor matrix_norm(In a, double ord) {
    check_matrices("linalg::matrix_norm", a, false);
    const double size = std::abs(ord);
    if (size != 1 && size != 2 && !std::isinf(size))
        fail<ValueError>(a.loc, "linalg::matrix_norm: ord is 1, 2, infinity or minus these, not {}", ord);
    const detail::RecordedParts parts(a.loc);
    const Tensor values = size == 2 ? svdvals(a) : sum(abs(a), {size == 1 ? -2 : -1});
    return ord > 0 ? amax(values, {-1}) : amin(values, {-1});
}

}  // namespace linalg
}  // namespace tapir
