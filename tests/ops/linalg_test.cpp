// Linear algebra: batches, layouts, errors, forms that the op table's samples leave out. Values and gradients: the table's test,
// against PyTorch.
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "../fails.h"
#include "tapir/ops/linalg/openblas_impl.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {
Tensor t(const Tensor& x) { return transpose(x, -1, -2); }
const double inf = std::numeric_limits<double>::infinity();
}  // namespace

#define NEEDS_LAPACK \
    if (!linalg::is_available()) return

TEST_CASE("OpenBLAS has kernels for this processor, also where it is older") {
    const char* const kernels = openblas::kernels();
#ifdef __x86_64__
    if (!kernels || std::getenv("OPENBLAS_CORETYPE") || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return;
    CHECK(kernels != std::string_view("Prescott"));
#endif
}

TEST_CASE("factors multiply to what was factored") {
    NEEDS_LAPACK;
    manual_seed(1);
    for (const Shape& shape : {Shape{5, 3}, Shape{3, 5}, Shape{2, 4, 4}, Shape{130, 120}, Shape{300, 4, 3}, Shape{0, 3, 2}, Shape{3, 0}}) {
        INFO(shape);
        for (const DType dtype : {float64, float32}) {
            const double eps = dtype == float64 ? 1e-10 : 1e-3;
            const Tensor a = randn(shape, dtype);
            for (const char* mode : {"reduced", "complete"}) {
                const auto [q, r] = linalg::qr(a, mode);
                CHECK(allclose(matmul(q, r), a, eps, eps));
                CHECK(allclose(matmul(t(q), q), expand(eye(q.size(-1), -1, dtype), matmul(t(q), q).shape()), eps, eps));
                CHECK(allclose(triu(r), r));
            }
            CHECK(allclose(linalg::qr(a, "r").r, linalg::qr(a).r));
            const auto [u, s, vh] = linalg::svd(a, false);
            CHECK(allclose(matmul(u * unsqueeze(s, -2), vh), a, eps, eps));
            const auto full = linalg::svd(a);
            CHECK(full.u.size(-1) == a.size(-2));
            CHECK(allclose(matmul(full.vh, t(full.vh)), expand(eye(a.size(-1), -1, dtype), full.vh.shape()), eps, eps));
            CHECK(allclose(linalg::svdvals(a), s, eps, eps));
            const Tensor symmetric = matmul(a, t(a)) + eye(a.size(-2), -1, dtype);
            const auto [w, v] = linalg::eigh(symmetric);
            CHECK(allclose(matmul(v * unsqueeze(w, -2), t(v)), symmetric, eps, 10 * eps));
            CHECK(allclose(linalg::eigvalsh(symmetric, "U"), w, 10 * eps, 10 * eps));
            const Tensor l = linalg::cholesky(symmetric);
            CHECK(allclose(matmul(l, t(l)), symmetric, eps, eps));
            CHECK(allclose(linalg::cholesky(symmetric, true), t(l), eps, eps));
            const Tensor one = expand(eye(a.size(-2), -1, dtype), symmetric.shape());
            CHECK(allclose(matmul(linalg::inv(symmetric), symmetric), one, eps, 10 * eps));
        }
    }
}

TEST_CASE("solutions of many systems, and other layouts") {
    NEEDS_LAPACK;
    manual_seed(2);
    const Tensor a = randn({200, 6, 6}, float64) + eye(6, -1, float64) * 4, b = randn({200, 6, 3}, float64);
    const Tensor x = linalg::solve(a, b);
    CHECK(allclose(matmul(a, x), b));
    const int threads = num_threads();
    set_num_threads(1);
    CHECK(equal(linalg::solve(a, b), x));
    set_num_threads(threads);
    CHECK(allclose(linalg::solve(t(t(a).contiguous()), b), x));
    CHECK(allclose(linalg::solve(a[0], b), linalg::solve(expand(a[0], {200, 6, 6}), b)));
    CHECK(allclose(linalg::lstsq(a, b), x));
    CHECK(allclose(linalg::pinv(a), linalg::inv(a)));
    CHECK(allclose(linalg::det(a), linalg::slogdet(a).sign * exp(linalg::slogdet(a).logabsdet)));
    CHECK(allclose(linalg::matrix_power(a[0], -2), linalg::inv(matmul(a[0], a[0]))));
    CHECK(allclose(linalg::matrix_power(a, 0), expand(eye(6, -1, float64), a.shape())));
    const Tensor l = tril(a), upper = triu(a);
    CHECK(allclose(matmul(l, linalg::solve_triangular(a, b, false)), b));
    CHECK(allclose(matmul(linalg::solve_triangular(a, t(b), true, false), upper), t(b)));
}

TEST_CASE("systems that are computed in blocks") {
    NEEDS_LAPACK;
    manual_seed(3);
    const int threads = num_threads();
    for (const int n : {31, 33, 47, 64, 131, 300}) {
        INFO(n);
        for (const DType dtype : {float64, float32}) {
            const double eps = dtype == float64 ? 1e-9 : 2e-2;
            const Tensor a = randn({n, n}, dtype), one = eye(n, -1, dtype);
            const Tensor well = a / std::sqrt(n) + one * 3, lower = tril(well), upper = triu(well);
            CHECK(allclose(matmul(linalg::inv(a), a), one, eps, eps));
            CHECK(allclose(matmul(a, linalg::inv(a)), one, eps, eps));
            CHECK(linalg::slogdet(a).logabsdet.item() == Approx(sum(log(linalg::svdvals(a))).item()).epsilon(1e-4));
            for (const int columns : {1, 15, 16, 70}) {
                INFO(columns);
                const Tensor b = randn({n, columns}, dtype);
                for (const int count : {1, 3}) {
                    set_num_threads(count);
                    CHECK(allclose(matmul(a, linalg::solve(a, b)), b, eps, eps));
                    CHECK(allclose(matmul(lower, linalg::solve_triangular(well, b, false)), b, eps, eps));
                    CHECK(allclose(matmul(upper, linalg::solve_triangular(well, b, true)), b, eps, eps));
                    const Tensor ones_below = lower - diag(diagonal(lower)) + one, small = ones_below / n + one * (1 - 1.0 / n);
                    CHECK(allclose(matmul(small, linalg::solve_triangular(small * (1 - one) + one * 7, b, false, true, true)), b, eps, eps));
                }
                set_num_threads(threads);
            }
            // The rows of a triangle in reverse: n (n - 1) / 2 rows change places with their neighbours.
            const Tensor turned = flip(upper, {0});
            CHECK(linalg::slogdet(turned).sign.item() == (n * (n - 1) / 2 % 2 ? -1 : 1));
            CHECK(linalg::slogdet(turned).logabsdet.item() == Approx(sum(log(diagonal(upper))).item()).epsilon(1e-4));
            CHECK(allclose(matmul(linalg::inv(turned), turned), one, eps, eps));
            for (const int zero : {0, n / 2, n - 1}) {
                Tensor singular = a.clone();
                singular.narrow(1, zero, 1).zero_();
                FAILS(ValueError, "linalg::inv: the matrix is singular", linalg::inv(singular));
                FAILS(ValueError, "linalg::solve: the matrix is singular", linalg::solve(singular, one));
                CHECK(linalg::det(singular).item() == 0);
            }
        }
    }
}

static bool are_orthogonal(const Tensor& columns, double precision) {
    return amax(abs(matmul(columns.t(), columns) - eye(columns.size(1), columns.dtype()))).item() <= precision;
}

TEST_CASE("eigenvalues and vectors of matrices that are made from them") {
    NEEDS_LAPACK;
    for (const DType dtype : {float32, float64}) {
        const double precision = dtype == float32 ? 1e-5 : 1e-13;
        for (const std::int64_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 18, 31, 33, 64, 67, 130}) {
            INFO(name(dtype) << " " << n);
            manual_seed(static_cast<std::uint64_t>(n));
            const Tensor q = linalg::qr(randn({n, n}, float64)).q;
            const auto check = [&](const Tensor& values) {  // ascending
                const Tensor a = matmul(q * values, q.t()).to(dtype);
                const double largest = amax(abs(values)).item();
                CHECK(amax(abs(linalg::eigvalsh(a).to(float64) - values)).item() <= precision * largest * std::sqrt(static_cast<double>(n)));
                // Of the upper triangle, and with the other one unread.
                const Tensor upper = linalg::eigvalsh(triu(a) + tril(full({n, n}, 1e9, dtype), -1), "U");
                CHECK(amax(abs(upper.to(float64) - values)).item() <= precision * largest * std::sqrt(static_cast<double>(n)));
                const auto all = linalg::eigh(a);
                CHECK(amax(abs(all.eigenvalues.to(float64) - values)).item() <= precision * largest * std::sqrt(static_cast<double>(n)));
                CHECK(amax(abs(matmul(all.eigenvectors * all.eigenvalues, all.eigenvectors.t()) - a)).item() <= 3 * precision * largest);
                CHECK(are_orthogonal(all.eigenvectors, 3 * precision));
            };
            check(linspace(-1, 2, n, float64));
            check(full({n}, -3.0, float64));                                                     // all alike
            check(where(arange(n) < n / 2, 0, 1).to(float64));                                   // many zeros
            for (const double scale : {1e-30, 1e30}) check(linspace(1, 3, n, float64) * scale);  // whose squares are not float32 numbers
        }
        // The second difference has 2 - 2 cos(k pi / (n + 1)); and matrices that are nearly reduced.
        const std::int64_t n = 50;
        const Tensor exact = 2 - 2 * cos(arange(1, n + 1, float64) * (std::acos(-1.0) / (n + 1)));
        const Tensor second = (2 * eye(n, float64) - diag(ones({n - 1}, float64), 1) - diag(ones({n - 1}, float64), -1)).to(dtype);
        CHECK(amax(abs(linalg::eigvalsh(second).to(float64) - exact)).item() < precision * 10);
        CHECK(linalg::eigvalsh(diag(tensor({3.0, -1.0, 2.0, 0.0}).to(dtype))).to_vector<double>() == std::vector<double>{-1, 0, 2, 3});
        CHECK(linalg::eigvalsh(zeros({20, 20}, dtype)).to_vector<double>() == std::vector<double>(20));
        const Tensor many = randn({6, 12, 12}, dtype), symmetric = many + many.transpose(1, 2);
        CHECK(amax(abs(linalg::eigvalsh(symmetric) - linalg::eigh(symmetric).eigenvalues)).item() < precision * 100);
    }
}

TEST_CASE("singular values and vectors of matrices that are made from them") {
    NEEDS_LAPACK;
    for (const DType dtype : {float32, float64}) {
        const double precision = dtype == float32 ? 1e-5 : 1e-13;
        for (const std::int64_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 18, 31, 33, 64, 67, 130}) {
            for (const std::int64_t more : {0, 1, 3, 14}) {  // rows, or columns
                INFO(name(dtype) << " " << n << " " << more);
                manual_seed(static_cast<std::uint64_t>(n));
                const Tensor left = linalg::qr(randn({n + more, n}, float64)).q, right = linalg::qr(randn({n, n}, float64)).q;
                const auto check = [&](const Tensor& values) {  // descending
                    const Tensor a = matmul(left * values, right).to(dtype);
                    const double most = precision * values[0].item() * std::sqrt(static_cast<double>(n));
                    for (const Tensor& x : {a, a.t()}) {
                        CHECK(amax(abs(linalg::svdvals(x).to(float64) - values)).item() <= most);
                        for (const bool full : {false, true}) {
                            const auto all = linalg::svd(x, full);
                            CHECK(amax(abs(all.s.to(float64) - values)).item() <= most);
                            CHECK(amax(abs(matmul(all.u.narrow(1, 0, n) * all.s, all.vh.narrow(0, 0, n)) - x)).item() <= 3 * most);
                            CHECK((are_orthogonal(all.u, 3 * precision) && are_orthogonal(all.vh.t(), 3 * precision)));
                        }
                    }
                };
                check(linspace(3, 1, n, float64));
                check(full({n}, 3.0, float64));                                                      // all alike
                check(where(arange(n) <= n / 2, 1, 0).to(float64));                                  // many zeros
                check(pow(10.0, linspace(0, -12, n, float64)));                                      // far apart
                for (const double scale : {1e-30, 1e30}) check(linspace(3, 1, n, float64) * scale);  // whose squares are not float32 numbers
            }
        }
        // Matrices that are nearly reduced; that of first differences has 2 cos(k pi / (2 n + 1)).
        CHECK(linalg::svdvals(diag(tensor({3.0, -1.0, 2.0, 0.0}).to(dtype))).to_vector<double>() == std::vector<double>{3, 2, 1, 0});
        CHECK(linalg::svdvals(zeros({20, 20}, dtype)).to_vector<double>() == std::vector<double>(20));
        const std::int64_t n = 50;
        const Tensor first = eye(n, dtype) - diag(ones({n - 1}, dtype), 1);
        const Tensor exact = 2 * cos(arange(1, n + 1, float64) * (std::acos(-1.0) / (2 * n + 1)));
        CHECK(amax(abs(linalg::svdvals(first).to(float64) - exact)).item() < precision * 10);
        const Tensor many = randn({6, 12, 9}, dtype);
        CHECK(amax(abs(linalg::svdvals(many) - linalg::svd(many).s)).item() < precision * 100);
    }
}

TEST_CASE("singular matrices") {
    NEEDS_LAPACK;
    Tensor a = expand(eye(3, -1, float64), {4, 3, 3}).clone();
    a.index_put_({2, 1, 1}, 0);
    FAILS(ValueError, "linalg::solve: matrix 2 of the batch is singular", linalg::solve(a, ones({4, 3, 1}, float64)));
    FAILS(ValueError, "linalg::inv: the matrix is singular", linalg::inv(a[2]));
    FAILS(ValueError, "linalg::cholesky: matrix 2 of the batch is not positive definite", linalg::cholesky(a));
    CHECK(linalg::det(a).to_vector<double>() == std::vector<double>{1, 1, 0, 1});
    CHECK(linalg::slogdet(a[2]).sign.item() == 0);
    CHECK(linalg::slogdet(a[2]).logabsdet.item() == -inf);
    CHECK(linalg::matrix_rank(a).to_vector<int>() == std::vector<int>{3, 3, 2, 3});
    CHECK(equal(linalg::pinv(a[2]), a[2]));
    CHECK(linalg::det(zeros({0, 0})).item() == 1);
}

TEST_CASE("linear algebra refuses") {
    NEEDS_LAPACK;
    const Tensor a = ones({2, 3});
    FAILS(ShapeError, "linalg::inv: needs square matrices, got shape (2, 3)", linalg::inv(a));
    FAILS(ShapeError, "linalg::svd: needs matrices, got shape (3,)", linalg::svd(a[0]));
    FAILS(DTypeError, "linalg::qr: needs float32 or float64, got float16", linalg::qr(a.to(float16)));
    FAILS(DTypeError, "linalg::solve: operands must have one dtype, got float32 and float64", linalg::solve(eye(2), ones({2, 1}, float64)));
    FAILS(ShapeError, "linalg::solve: a of shape (2, 2) does not fit b of shape (3, 1)", linalg::solve(eye(2), ones({3, 1})));
    FAILS(ValueError, "mode is \"reduced\", \"complete\" or \"r\", not \"full\"", linalg::qr(a, "full"));
    FAILS(ValueError, "uplo is \"L\" or \"U\", not \"l\"", linalg::eigh(eye(2), "l"));
    FAILS(ValueError, "linalg::matrix_norm: of matrices, ord is \"fro\", \"nuc\", 1, 2, infinity or minus these, not 3", linalg::matrix_norm(a, 3));
    FAILS(ValueError, "not \"max\"", linalg::norm(a, "max"));
    FAILS(ValueError, "linalg::norm: \"nuc\" is a norm of matrices, but this is one of vectors", linalg::norm(a, "nuc", {0}));
    FAILS(ShapeError, "linalg::norm: needs a vector or a matrix", linalg::norm(ones({2, 2, 2}), 1));
    FAILS(ShapeError, "linalg::norm: needs a vector or a matrix", linalg::norm(ones({2, 2, 2}), 1, {0, 1, 2}));
    FAILS(ShapeError, "linalg::matrix_norm: the norm of matrices is over two dimensions, got (0,)", linalg::matrix_norm(a, 1, {0}));
    FAILS(IndexError, "linalg::norm: dimension 1 is named twice", linalg::norm(a, 1, {1, -1}));
    CHECK(linalg::norm(tensor({0.0, 3.0, -4.0}), 0).item() == 2);
    CHECK(linalg::norm(tensor({0.0, 3.0, -4.0}), 2, {}, true).shape() == Shape(1));
    Tensor leaf = randn({3, 2}).requires_grad_();
    Tape tape({.persistent = true});
    FAILS(ValueError, "there is no gradient in mode \"complete\"", tape.backward(sum(linalg::qr(leaf, "complete").q)));
    FAILS(ValueError, "there is no gradient in mode \"r\"", tape.backward(sum(linalg::qr(leaf, "r").r)));
    FAILS(ValueError, "there is no gradient of u and vh with full_matrices", tape.backward(sum(linalg::svd(leaf).u)));
}

TEST_CASE("gradients of a determinant and of eigenvalues are those of the closed forms") {
    NEEDS_LAPACK;
    manual_seed(3);
    Tensor a = randn({4, 4}, float64);
    a = (matmul(a, t(a)) + eye(4, -1, float64)).detach().requires_grad_();
    {
        Tape tape;
        tape.backward(linalg::slogdet(a).logabsdet);
        CHECK(allclose(a.grad(), t(linalg::inv(a.detach()))));
    }
    a.zero_grad();
    {
        Tape tape;
        tape.backward(sum(linalg::eigvalsh(a)));  // the trace
        CHECK(allclose(a.grad(), eye(4, -1, float64), 1e-8, 1e-10));
    }
}

TEST_CASE("a singular matrix's determinant has a gradient") {
    NEEDS_LAPACK;
    manual_seed(5);
    Tensor a = zeros({4, 3, 3}, float64);
    a.index_put_({0}, diag(tensor({1.0, 2.0, 0.0}, float64)));
    a.index_put_({1, 0, 0}, 3);  // of rank 1
    a.index_put_({2}, randn({3, 3}, float64));
    a.requires_grad_();
    Tape tape;
    tape.backward(sum(linalg::det(a)));
    CHECK(allclose(a.grad()[0], diag(tensor({0.0, 0.0, 2.0}, float64))));
    CHECK(allclose(a.grad()[1], zeros({3, 3}, float64)));
    CHECK(allclose(a.grad()[2], linalg::det(a[2].detach()) * t(linalg::inv(a[2].detach()))));
    CHECK(allclose(a.grad()[3], zeros({3, 3}, float64)));
}

TEST_CASE("eigh's gradient of a symmetric matrix is symmetric, and that of its vectors") {
    NEEDS_LAPACK;
    Tensor a = tensor({{2.0, 1.0, 0.0}, {1.0, 3.0, 1.0}, {0.0, 1.0, 5.0}}, {float64}).requires_grad_();
    const Tensor weight = arange(9, {float64}).reshape({3, 3});
    Tape tape({.persistent = true});
    const linalg::EighResult of = linalg::eigh(a);
    const Tensor y = sum(square(of.eigenvectors) * weight) + sum(of.eigenvalues * arange(3, {float64}));
    const Tensor g = tape.gradient(y, {a})[0];
    CHECK(allclose(g, g.t(), 0, 1e-12));
    // Differences along symmetric directions.
    const NoGradScope off;
    const auto f = [&](const Tensor& at) {
        const linalg::EighResult r = linalg::eigh(at);
        return (sum(square(r.eigenvectors) * weight) + sum(r.eigenvalues * arange(3, {float64}))).item<double>();
    };
    for (int i = 0; i < 3; ++i) {
        for (int j = 0; j <= i; ++j) {
            Tensor step = zeros({3, 3}, float64);
            step.index_put_({i, j}, 1e-6);
            step.index_put_({j, i}, 1e-6);
            const double difference = (f(a.detach() + step) - f(a.detach() - step)) / 2e-6;
            const double derivative = g[i][j].item<double>() + (i == j ? 0 : g[j][i].item<double>());
            CHECK(difference == Approx(derivative).margin(1e-6));
        }
    }
}

TEST_CASE("iterations refuse matrices with nan or infinite elements, and direct methods end") {
    NEEDS_LAPACK;
    for (const double odd : {std::nan(""), inf, -inf}) {
        for (const int n : {2, 3, 40}) {
            for (const DType dtype : {float32, float64}) {
                for (const int place : {0, n * n - 1}) {
                    INFO(odd << " at " << place << " of " << n << " x " << n);
                    Tensor a = expand(eye(n, -1, dtype), {2, n, n}).clone();
                    a[1].view({-1}).index_put_({place}, odd);
                    const char* const told = "the algorithm did not converge for matrix 1 of the batch, which may hold nan or infinities";
                    FAILS(ValueError, std::string("linalg::svd: ") + told, linalg::svd(a));
                    FAILS(ValueError, std::string("linalg::svdvals: ") + told, linalg::svdvals(a));
                    FAILS(ValueError, std::string("linalg::eigh: ") + told, linalg::eigh(a));
                    FAILS(ValueError, std::string("linalg::eigvalsh: ") + told, linalg::eigvalsh(a));
                    FAILS(ValueError, "did not converge", linalg::matrix_rank(a));
                    FAILS(ValueError, "did not converge", linalg::pinv(a));
                    FAILS(ValueError, "did not converge", linalg::matrix_norm(a, "nuc"));
                    if (odd != inf) FAILS(ValueError, "matrix 1 of the batch is not positive definite", linalg::cholesky(a));
                    static_cast<void>(linalg::qr(a));
                    static_cast<void>(linalg::det(a));
                }
            }
        }
    }
}
