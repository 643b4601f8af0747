// Linear algebra on a CUDA device against the CPU: single matrices and batches small and large, which go to different routines,
// gradients, and what the device finds wrong with a matrix. Vectors are compared up to their signs.
#include "tapir/ops/linalg/linalg_kernels.h"

#include "../fails.h"
#include "compare.h"
#ifdef TAPIR_CUDA_EMULATED
#include <cuda_runtime.h>
#endif

using namespace tapir;
using namespace tapir::test;

#define NEEDS_LINALG \
    NEEDS_CUDA;      \
    if (!linalg::is_available()) return /* nothing to compare with */

namespace {

Tensor t(const Tensor& x) { return transpose(x, -1, -2); }
Tensor definite(const Tensor& x) { return matmul(x, t(x)) + eye(x.size(-2), -1, {x.dtype(), x.device()}); }
Tensor symmetric(const Tensor& x) { return x + t(x); }
Tensor flat(std::initializer_list<Tensor> parts) {
    std::vector<Tensor> all;
    for (const Tensor& part : parts) all.push_back(reshape(part, {-1}));
    return cat(all);
}
// Far from singular.
Tensor regular(const Shape& batch, std::int64_t n, DType dtype) {
    Shape shape = batch;
    shape.push_back(n);
    shape.push_back(n);
    return randn(shape, dtype) + eye(n, -1, dtype) * 2 * std::sqrt(static_cast<double>(n));
}
Tensor matrices_of(const Shape& batch, std::int64_t n, std::int64_t m, DType dtype) {
    Shape shape = batch;
    shape.push_back(n);
    shape.push_back(m);
    return randn(shape, dtype);
}

double limit_for(DType dtype) { return dtype == float64 ? 1e-8 : 2e-3; }

const Shape batches[] = {Shape(), Shape{1}, Shape{5}, Shape{2, 3}};

}  // namespace

TEST_CASE("systems of equations and determinants on the device", "[cuda]") {
    NEEDS_LINALG;
    manual_seed(1);
    for (const DType dtype : {float32, float64}) {
        const double limit = limit_for(dtype);
        for (const Shape& batch : batches) {
            for (const std::int64_t n : {1, 4, 40}) {
                INFO(name(dtype) << ", batch " << batch << ", " << n);
                const Tensor a = regular(batch, n, dtype), b = matrices_of(batch, n, 3, dtype);
                compare({a, b}, limit, [](const auto& x) { return linalg::solve(x[0], x[1]); });
                compare({a, matrices_of({}, n, 2, dtype)}, limit, [](const auto& x) { return linalg::solve(x[0], x[1]); });
                compare({a}, limit, [](const auto& x) { return linalg::inv(t(x[0])); });
                compare({a * 0.2}, limit, [](const auto& x) { return linalg::slogdet(x[0]).logabsdet; });
                compare({a}, limit, [](const auto& x) { return linalg::slogdet(-x[0]).sign; });
                if (n < 40) compare({a}, limit, [](const auto& x) { return linalg::det(x[0]); });
                for (const bool upper : {false, true}) {
                    const auto solved = [upper](const auto& x) { return linalg::solve_triangular(x[0], x[1], upper); };
                    compare({a, b}, limit, solved);
                    compare({a, b}, limit, [upper](const auto& x) {
                        return linalg::solve_triangular(x[0] * 0.05, t(x[1]), upper, /*left=*/false, /*unitriangular=*/true);
                    });
                }
            }
        }
    }
    for (const std::int64_t n : {513, 520}) {  // too large for the batched routines
        const Tensor a = regular({2}, n, float64), b = matrices_of({2}, n, 2, float64);
        const NoGradScope pause;
        check_close(linalg::solve(a.to(cuda), b.to(cuda)), linalg::solve(a, b), 1e-9);
        check_close(linalg::solve_triangular(a.to(cuda), b.to(cuda), true), linalg::solve_triangular(a, b, true), 1e-9);
    }
    compare({regular({}, 4, float64), randn({4}, float64)}, 1e-9, [](const auto& x) { return linalg::solve(x[0], x[1]); });
    compare({randn({4, 4}, float64)}, 1e-9, [](const auto& x) { return linalg::matrix_power(x[0], -3); });
    compare_twice({regular({2}, 3, float64), randn({2, 3, 2}, float64)}, 1e-8, [](const auto& x) { return linalg::solve(x[0], x[1]); });
    compare_twice({regular({2}, 3, float64)}, 1e-8, [](const auto& x) { return linalg::det(x[0]); });
}

TEST_CASE("factors on the device", "[cuda]") {
    NEEDS_LINALG;
    manual_seed(2);
    for (const DType dtype : {float32, float64}) {
        const double limit = limit_for(dtype);
        for (const Shape& batch : batches) {
            for (const auto& [n, m] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {4, 4}, {6, 3}, {3, 5}, {40, 35}, {20, 36}}) {
                INFO(name(dtype) << ", batch " << batch << ", " << n << " x " << m);
                const Tensor a = matrices_of(batch, n, m, dtype);
                for (const bool upper : {false, true}) {
                    compare({a}, limit, [upper](const auto& x) { return linalg::cholesky(definite(x[0]), upper); });
                }
                compare({a}, limit, [](const auto& x) {
                    const auto [q, r] = linalg::qr(x[0]);
                    return flat({square(q), abs(r)});
                });
                const NoGradScope pause;
                for (const char* mode : {"reduced", "complete", "r"}) {
                    const auto [q, r] = linalg::qr(a.to(cuda), mode);
                    check_close(abs(r), abs(linalg::qr(a, mode).r), limit);
                    if (!q.defined()) continue;
                    check_close(matmul(q, r), a, limit);
                    check_close(matmul(t(q), q), expand(eye(q.size(-1), -1, dtype), matmul(t(q), q).shape()).contiguous(), limit);
                }
                for (const bool whole : {false, true}) {
                    const auto [u, s, vh] = linalg::svd(a.to(cuda), whole);
                    const auto want = linalg::svd(a, whole);
                    REQUIRE(u.shape() == want.u.shape());
                    REQUIRE(vh.shape() == want.vh.shape());
                    check_close(s, want.s, limit);
                    const std::int64_t k = s.size(-1);
                    check_close(matmul(narrow(u, -1, 0, k) * unsqueeze(s, -2), narrow(vh, -2, 0, k)), a, limit);
                    check_close(matmul(t(u), u), expand(eye(u.size(-1), -1, dtype), matmul(t(u), u).shape()).contiguous(), limit);
                    check_close(matmul(vh, t(vh)), expand(eye(vh.size(-2), -1, dtype), matmul(vh, t(vh)).shape()).contiguous(), limit);
                }
                check_close(linalg::svdvals(a.to(cuda)), linalg::svdvals(a), limit);
                check_close(linalg::pinv(a.to(cuda)), linalg::pinv(a), 10 * limit);
                check_close(linalg::matrix_rank(a.to(cuda)), linalg::matrix_rank(a), 0);
                const Tensor whole = matmul(a, t(a)), on_device = whole.to(cuda);
                for (const char* uplo : {"L", "U"}) {
                    const Tensor half = uplo[0] == 'L' ? tril(on_device) : triu(on_device);  // the other half is not read
                    const auto [w, v] = linalg::eigh(half, uplo);
                    check_close(w, linalg::eigh(whole).eigenvalues, 10 * limit);
                    check_close(matmul(v * unsqueeze(w, -2), t(v)), whole, 10 * limit);
                    check_close(linalg::eigvalsh(half, uplo), w, 10 * limit);
                }
            }
        }
    }
}

TEST_CASE("gradients of factors on the device", "[cuda]") {
    NEEDS_LINALG;
    manual_seed(3);
    for (const Shape& batch : {Shape(), Shape{3}}) {
        const Tensor a = matrices_of(batch, 4, 3, float64), wide = matrices_of(batch, 3, 5, float64), b = matrices_of(batch, 4, 2, float64);
        const auto of_svd = [](const auto& x) {
            const auto [u, s, vh] = linalg::svd(x[0], false);
            return flat({s, square(u), square(vh), matmul(u * unsqueeze(s * s, -2), vh)});
        };
        compare({a}, 1e-7, of_svd);
        compare({wide}, 1e-7, of_svd);
        compare({a}, 1e-7, [](const auto& x) {
            const auto [w, v] = linalg::eigh(symmetric(narrow(x[0], -2, 0, 3)));
            return flat({w, square(v)});
        });
        compare({a}, 1e-8, [](const auto& x) { return linalg::svdvals(x[0]); });
        compare({a}, 1e-8, [](const auto& x) { return linalg::eigvalsh(definite(x[0])); });
        compare({a, b}, 1e-8, [](const auto& x) { return linalg::lstsq(x[0], x[1]); });
        compare({a}, 1e-8, [](const auto& x) { return linalg::pinv(x[0]); });
        compare({a}, 1e-8, [](const auto& x) { return linalg::matrix_norm(x[0], "nuc"); });
        compare_twice({a}, 1e-6, [](const auto& x) { return linalg::cholesky(definite(x[0])); });
        compare_twice({a}, 1e-6, [](const auto& x) { return linalg::qr(x[0]).r; });
    }
}

TEST_CASE("singular matrices on the device", "[cuda]") {
    NEEDS_LINALG;
    Tensor host = expand(eye(3, -1, float64), {4, 3, 3}).clone();
    host.index_put_({2, 1, 1}, 0);
    const Tensor a = host.to(cuda), before = a.clone(), b = ones({4, 3, 1}, {float64, cuda});
    FAILS(ValueError, "linalg::solve: matrix 2 of the batch is singular", linalg::solve(a, b));
    FAILS(ValueError, "linalg::solve: the matrix is singular", linalg::solve(a[2], b[0]));
    FAILS(ValueError, "linalg::inv: matrix 2 of the batch is singular", linalg::inv(a));
    FAILS(ValueError, "linalg::inv: the matrix is singular", linalg::inv(a[2]));
    FAILS(ValueError, "linalg::cholesky: matrix 2 of the batch is not positive definite", linalg::cholesky(a));
    FAILS(ValueError, "linalg::cholesky: the matrix is not positive definite", linalg::cholesky(-a[0]));
    Tensor with_nan = a.clone();
    with_nan.index_put_({1, 0, 0}, std::nan(""));
    FAILS(ValueError, "linalg::svd: the algorithm did not converge for matrix 1 of the batch", linalg::svd(with_nan));
    CHECK(equal(a, before));
    CHECK(linalg::det(a).to_vector<double>() == std::vector<double>{1, 1, 0, 1});
    CHECK(linalg::slogdet(a[2]).sign.item() == 0);
    CHECK(linalg::slogdet(a[2]).logabsdet.item() == -std::numeric_limits<double>::infinity());
    CHECK(linalg::matrix_rank(a).to_vector<int>() == std::vector<int>{3, 3, 2, 3});
    compare({host}, 1e-12, [](const auto& x) { return linalg::det(x[0]); });  // its gradient by way of singular values
    const Tensor swapped = tensor({{0.0, 1.0, 0.0}, {1.0, 0.0, 0.0}, {0.0, 0.0, 2.0}}).to(float64).to(cuda);
    CHECK(linalg::det(swapped).item() == -2);
    CHECK(linalg::slogdet(swapped).sign.item() == -1);
}

TEST_CASE("matrices without elements on the device", "[cuda]") {
    NEEDS_LINALG;
    const Tensor none = zeros({0, 0}, cuda), no_batch = zeros({0, 3, 3}, cuda);
    CHECK(linalg::det(none).item() == 1);
    CHECK(linalg::slogdet(none).logabsdet.item() == 0);
    CHECK(linalg::inv(none).shape() == Shape{0, 0});
    CHECK(linalg::cholesky(none).shape() == Shape{0, 0});
    CHECK(linalg::eigh(none).eigenvalues.shape() == Shape{0});
    CHECK(linalg::solve(eye(3, -1, {float32, cuda}), zeros({3, 0}, cuda)).shape() == Shape{3, 0});
    CHECK(linalg::det(no_batch).shape() == Shape{0});
    CHECK(linalg::solve(no_batch, no_batch).shape() == Shape{0, 3, 3});
    CHECK(linalg::svd(no_batch).s.shape() == Shape{0, 3});
    CHECK(linalg::qr(no_batch).q.shape() == Shape{0, 3, 3});
    for (const Shape& shape : {Shape{3, 0}, Shape{0, 3}, Shape{2, 3, 0}}) {
        const Tensor x = zeros(shape), on_device = x.to(cuda);
        const auto [u, s, vh] = linalg::svd(on_device);
        CHECK(u.device() == Device(cuda));
        check_close(u, linalg::svd(x).u, 0);
        check_close(vh, linalg::svd(x).vh, 0);
        check_close(linalg::svd(on_device, false).u, linalg::svd(x, false).u, 0);
        for (const char* mode : {"reduced", "complete"}) {
            check_close(linalg::qr(on_device, mode).q, linalg::qr(x, mode).q, 0);
            check_close(linalg::qr(on_device, mode).r, linalg::qr(x, mode).r, 0);
        }
    }
}

#ifdef TAPIR_CUDA_EMULATED
TEST_CASE("linear algebra is computed on the device, in the order of its stream", "[cuda]") {
    NEEDS_LINALG;
    if (!gpu::has_cusolver()) return;
    const Stream stream(cuda(0));
    const StreamScope scope(stream);
    const Tensor a = regular({2}, 4, float64), b = ones({2, 4, 1}, float64), x = a.to(cuda), y = b.to(cuda);
    linalg::det(x);
    const auto native = static_cast<cudaStream_t>(stream.native_handle());
    emulator::hold(native);
    const Tensor det = linalg::det(x * 2), solved = linalg::solve_triangular(x * 2, y, true), q = linalg::qr(x).q;  // nothing waits
    emulator::release(native);
    check_close(det, linalg::det(a * 2), 1e-9);
    check_close(solved, linalg::solve_triangular(a * 2, b, true), 1e-9);
    check_close(matmul(t(q), q), expand(eye(4, -1, float64), {2, 4, 4}).contiguous(), 1e-9);
}
#endif
