// The emulator's factors of matrices, by LAPACK on copies in host memory: BLAS may have threads of its own, which must not touch
// the device's. Left out of the build where LAPACK is missing.
#include <algorithm>
#include <limits>
#include <vector>

#include "cusolverDn.h"
#include "tapir/ops/linalg/lapack_impl.h"

namespace lapack = tapir::lapack;

struct EmulatedBlasHandle {
    cudaStream_t stream = nullptr;
};
struct EmulatedSolverHandle {
    cudaStream_t stream = nullptr;
};
struct EmulatedJacobi {};

namespace {

using std::size_t;

// Sizes that depend on everything that the real ones may depend on, and are no one's guess.
int room_for(int m, int n, int more) { return 3 * m + 5 * n + 7 + more; }

template <class T>
void fill_with_nan(T* p, size_t n) {
    if (p) std::fill_n(p, n, std::numeric_limits<T>::quiet_NaN());
}

/// A matrix in device memory, copied to the host.
template <class T>
struct Matrix {
    int rows, columns;
    std::vector<T> values;
    Matrix(int m, int n) : rows(m), columns(n), values(size_t(m) * size_t(n)) {}
    Matrix(int m, int n, const T* from, int ld) : Matrix(m, n) {
        for (int j = 0; j < n; ++j) std::copy_n(from + size_t(j) * size_t(ld), m, values.begin() + j * m);
    }
    void write(T* to, int ld) const {
        for (int j = 0; j < columns; ++j) std::copy_n(values.begin() + j * rows, rows, to + size_t(j) * size_t(ld));
    }
    T& at(int i, int j) { return values[size_t(j) * size_t(rows) + size_t(i)]; }
    T* data() { return values.data(); }
};

template <class T>
void factor_lu(int n, T* a, int lda, int* pivots, int* info) {
    Matrix<T> m(n, n, a, lda);
    std::vector<int> swaps(static_cast<size_t>(n));
    int stopped = 0;
    lapack::call<T>(lapack::sgetrf_, lapack::dgetrf_)(&n, &n, m.data(), &n, swaps.data(), &stopped);
    m.write(a, lda);
    std::copy(swaps.begin(), swaps.end(), pivots);
    *info = stopped;
}

template <class T>
void solve_lu(int n, int nrhs, const T* a, int lda, const int* pivots, T* b, int ldb) {
    Matrix<T> m(n, n, a, lda), right(n, nrhs, b, ldb);
    const std::vector<int> swaps(pivots, pivots + n);
    int stopped = 0;
    lapack::call<T>(lapack::sgetrs_, lapack::dgetrs_)("N", &n, &nrhs, m.data(), &n, swaps.data(), right.data(), &n, &stopped, 1);
    right.write(b, ldb);
}

template <class T>
void solve_triangle(cublasFillMode_t uplo, cublasDiagType_t diag, int m, int n, T alpha, const T* a, int lda, T* b, int ldb) {
    Matrix<T> triangle(m, m, a, lda), right(m, n, b, ldb);
    lapack::call<T>(lapack::strsm_, lapack::dtrsm_)("L", uplo == CUBLAS_FILL_MODE_UPPER ? "U" : "L", "N", diag == CUBLAS_DIAG_UNIT ? "U" : "N", &m,
                                                    &n, &alpha, triangle.data(), &m, right.data(), &m, 1, 1, 1, 1);
    right.write(b, ldb);
}

// The upper triangle becomes nan: it need not stay what it was.
template <class T>
void factor_cholesky(int n, T* a, int lda, int* info) {
    Matrix<T> m(n, n, a, lda);
    int stopped = 0;
    lapack::call<T>(lapack::spotrf_, lapack::dpotrf_)("L", &n, m.data(), &n, &stopped, 1);
    for (int j = 0; j < n; ++j) {
        for (int i = 0; i < j; ++i) m.at(i, j) = std::numeric_limits<T>::quiet_NaN();
    }
    m.write(a, lda);
    *info = stopped;
}

template <class T>
void factor_qr(int m, int n, T* a, int lda, T* tau, int* info) {
    Matrix<T> q(m, n, a, lda);
    std::vector<T> factors(static_cast<size_t>(std::min(m, n))), work(static_cast<size_t>(64 * n));
    const int lwork = 64 * n;
    int stopped = 0;
    lapack::call<T>(lapack::sgeqrf_, lapack::dgeqrf_)(&m, &n, q.data(), &m, factors.data(), work.data(), &lwork, &stopped);
    q.write(a, lda);
    std::copy(factors.begin(), factors.end(), tau);
    *info = stopped;
}

template <class T>
void form_q(int m, int n, int k, T* a, int lda, const T* tau, int* info) {
    Matrix<T> q(m, n, a, lda);
    const std::vector<T> factors(tau, tau + k);
    std::vector<T> work(static_cast<size_t>(64 * n));
    const int lwork = 64 * n;
    int stopped = 0;
    lapack::call<T>(lapack::sorgqr_, lapack::dorgqr_)(&m, &n, &k, q.data(), &m, factors.data(), work.data(), &lwork, &stopped);
    q.write(a, lda);
    *info = stopped;
}

template <class T>
void eigen(bool vectors, int n, T* a, int lda, T* w, int* info) {
    Matrix<T> m(n, n, a, lda);
    std::vector<T> values(static_cast<size_t>(n)), work(static_cast<size_t>(1 + 6 * n + 2 * n * n));
    std::vector<int> iwork(static_cast<size_t>(3 + 5 * n));
    const int lwork = static_cast<int>(work.size()), liwork = static_cast<int>(iwork.size());
    int stopped = 0;
    lapack::call<T>(lapack::ssyevd_, lapack::dsyevd_)(vectors ? "V" : "N", "L", &n, m.data(), &n, values.data(), work.data(), &lwork, iwork.data(),
                                                      &liwork, &stopped, 1, 1);
    if (!vectors) fill_with_nan(m.data(), m.values.size());
    m.write(a, lda);
    std::copy(values.begin(), values.end(), w);
    *info = stopped;
}

// v, not its transpose, is given.
template <class T>
void singular_values(bool vectors, bool economy, int m, int n, T* a, int lda, T* s, T* u, int ldu, T* v, int ldv, int* info) {
    const int k = std::min(m, n), u_columns = economy ? k : m, v_columns = economy ? k : n;
    Matrix<T> from(m, n, a, lda), left(m, u_columns), turned(v_columns, n), right(n, v_columns);
    const char job = !vectors ? 'N' : economy ? 'S' : 'A';
    std::vector<T> values(static_cast<size_t>(k)), work(1);
    std::vector<int> iwork(static_cast<size_t>(8 * k));
    int stopped = 0, lwork = -1;
    const auto run = [&] {
        lapack::call<T>(lapack::sgesdd_, lapack::dgesdd_)(&job, &m, &n, from.data(), &m, values.data(), left.data(), &m, turned.data(), &v_columns,
                                                          work.data(), &lwork, iwork.data(), &stopped, 1);
    };
    run();
    lwork = static_cast<int>(work[0]);
    work.resize(static_cast<size_t>(lwork));
    run();
    *info = stopped == 0 ? 0 : n + 1;  // as where the sweeps do not converge
    std::copy(values.begin(), values.end(), s);
    fill_with_nan(from.data(), from.values.size());
    from.write(a, lda);
    if (!vectors) return;
    for (int j = 0; j < v_columns; ++j) {
        for (int i = 0; i < n; ++i) right.at(i, j) = turned.at(j, i);
    }
    left.write(u, ldu);
    right.write(v, ldv);
}

}  // namespace

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
    *handle = new EmulatedBlasHandle;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t* handle) {
    *handle = new EmulatedSolverHandle;
    return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnCreateGesvdjInfo(gesvdjInfo_t* info) {
    *info = new EmulatedJacobi;
    return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnCreateSyevjInfo(syevjInfo_t* info) { return cusolverDnCreateGesvdjInfo(info); }

#define REFUSE_UNLESS(...) \
    if (!(__VA_ARGS__)) return CUSOLVER_STATUS_INVALID_VALUE
#define REFUSE_BLAS_UNLESS(...) \
    if (!(__VA_ARGS__)) return CUBLAS_STATUS_INVALID_VALUE

template <class T>
cublasStatus_t emulated::getrfBatched(cublasHandle_t handle, int n, T* const a[], int lda, int* pivots, int* info, int count) {
    REFUSE_BLAS_UNLESS(n > 0 && lda >= n && count > 0);
    emulator::enqueue(handle->stream, [=] {
        for (int k = 0; k < count; ++k) factor_lu(n, a[k], lda, pivots + k * n, info + k);
    });
    return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t emulated::getrsBatched(cublasHandle_t handle, cublasOperation_t trans, int n, int nrhs, const T* const a[], int lda, const int* pivots,
                                      T* const b[], int ldb, int* info, int count) {
    *info = 0;
    REFUSE_BLAS_UNLESS(trans == CUBLAS_OP_N && n > 0 && nrhs > 0 && lda >= n && ldb >= n && count > 0);
    emulator::enqueue(handle->stream, [=] {
        for (int k = 0; k < count; ++k) solve_lu(n, nrhs, a[k], lda, pivots + k * n, b[k], ldb);
    });
    return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t emulated::trsm(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t uplo, cublasOperation_t trans, cublasDiagType_t diag,
                              int m, int n, const T* alpha, const T* a, int lda, T* b, int ldb) {
    REFUSE_BLAS_UNLESS(side == CUBLAS_SIDE_LEFT && trans == CUBLAS_OP_N && m > 0 && n > 0 && lda >= m && ldb >= m);
    emulator::enqueue(handle->stream, [=, scale = *alpha] { solve_triangle(uplo, diag, m, n, scale, a, lda, b, ldb); });
    return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t emulated::trsmBatched(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t uplo, cublasOperation_t trans,
                                     cublasDiagType_t diag, int m, int n, const T* alpha, const T* const a[], int lda, T* const b[], int ldb,
                                     int count) {
    REFUSE_BLAS_UNLESS(side == CUBLAS_SIDE_LEFT && trans == CUBLAS_OP_N && m > 0 && n > 0 && lda >= m && ldb >= m && count > 0);
    emulator::enqueue(handle->stream, [=, scale = *alpha] {
        for (int k = 0; k < count; ++k) solve_triangle(uplo, diag, m, n, scale, a[k], lda, b[k], ldb);
    });
    return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cusolverStatus_t emulated::getrf_bufferSize(cusolverDnHandle_t, int m, int n, T*, int lda, int* lwork) {
    REFUSE_UNLESS(m > 0 && n > 0 && lda >= m);
    *lwork = room_for(m, n, 1);
    return CUSOLVER_STATUS_SUCCESS;
}

template <class T>
cusolverStatus_t emulated::getrf(cusolverDnHandle_t handle, int m, int n, T* a, int lda, T* work, int* pivots, int* info) {
    REFUSE_UNLESS(m == n && n > 0 && lda >= m && work);
    emulator::enqueue(handle->stream, [=] {
        fill_with_nan(work, static_cast<size_t>(room_for(m, n, 1)));
        factor_lu(n, a, lda, pivots, info);
    });
    return CUSOLVER_STATUS_SUCCESS;
}

template <class T>
cusolverStatus_t emulated::getrs(cusolverDnHandle_t handle, cublasOperation_t trans, int n, int nrhs, const T* a, int lda, const int* pivots, T* b,
                                 int ldb, int* info) {
    REFUSE_UNLESS(trans == CUBLAS_OP_N && n > 0 && nrhs > 0 && lda >= n && ldb >= n);
    emulator::enqueue(handle->stream, [=] {
        solve_lu(n, nrhs, a, lda, pivots, b, ldb);
        *info = 0;
    });
    return CUSOLVER_STATUS_SUCCESS;
}

template <class T>
cusolverStatus_t emulated::potrf_bufferSize(cusolverDnHandle_t, cublasFillMode_t uplo, int n, T*, int lda, int* lwork) {
    REFUSE_UNLESS(uplo == CUBLAS_FILL_MODE_LOWER && n > 0 && lda >= n);
    *lwork = room_for(n, n, 2);
    return CUSOLVER_STATUS_SUCCESS;
}

template <class T>
cusolverStatus_t emulated::potrf(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n, T* a, int lda, T* work, int lwork, int* info) {
    REFUSE_UNLESS(uplo == CUBLAS_FILL_MODE_LOWER && n > 0 && lda >= n && lwork >= room_for(n, n, 2));
    emulator::enqueue(handle->stream, [=] {
        fill_with_nan(work, static_cast<size_t>(lwork));
        factor_cholesky(n, a, lda, info);
    });
    return CUSOLVER_STATUS_SUCCESS;
}

template <class T>
cusolverStatus_t emulated::potrfBatched(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n, T* a[], int lda, int* info, int count) {
    REFUSE_UNLESS(uplo == CUBLAS_FILL_MODE_LOWER && n > 0 && lda >= n && count > 0);
    emulator::enqueue(handle->stream, [=] {
        for (int k = 0; k < count; ++k) factor_cholesky(n, a[k], lda, info + k);
    });
    return CUSOLVER_STATUS_SUCCESS;
}

template <class T>
cusolverStatus_t emulated::geqrf_bufferSize(cusolverDnHandle_t, int m, int n, T*, int lda, int* lwork) {
    REFUSE_UNLESS(m > 0 && n > 0 && lda >= m);
    *lwork = room_for(m, n, 3);
    return CUSOLVER_STATUS_SUCCESS;
}

template <class T>
cusolverStatus_t emulated::geqrf(cusolverDnHandle_t handle, int m, int n, T* a, int lda, T* tau, T* work, int lwork, int* info) {
    REFUSE_UNLESS(m > 0 && n > 0 && lda >= m && lwork >= room_for(m, n, 3));
    emulator::enqueue(handle->stream, [=] {
        fill_with_nan(work, static_cast<size_t>(lwork));
        factor_qr(m, n, a, lda, tau, info);
    });
    return CUSOLVER_STATUS_SUCCESS;
}

template <class T>
cusolverStatus_t emulated::orgqr_bufferSize(cusolverDnHandle_t, int m, int n, int k, const T*, int lda, const T*, int* lwork) {
    REFUSE_UNLESS(n > 0 && m >= n && k <= n && k > 0 && lda >= m);
    *lwork = room_for(m, n, 4);
    return CUSOLVER_STATUS_SUCCESS;
}

template <class T>
cusolverStatus_t emulated::orgqr(cusolverDnHandle_t handle, int m, int n, int k, T* a, int lda, const T* tau, T* work, int lwork, int* info) {
    REFUSE_UNLESS(n > 0 && m >= n && k <= n && k > 0 && lda >= m && lwork >= room_for(m, n, 4));
    emulator::enqueue(handle->stream, [=] {
        fill_with_nan(work, static_cast<size_t>(lwork));
        form_q(m, n, k, a, lda, tau, info);
    });
    return CUSOLVER_STATUS_SUCCESS;
}

template <class T>
cusolverStatus_t emulated::syevd_bufferSize(cusolverDnHandle_t, cusolverEigMode_t mode, cublasFillMode_t uplo, int n, const T*, int lda, const T*,
                                            int* lwork) {
    REFUSE_UNLESS(uplo == CUBLAS_FILL_MODE_LOWER && n > 0 && lda >= n);
    *lwork = room_for(n, n, mode == CUSOLVER_EIG_MODE_VECTOR ? n : 0);
    return CUSOLVER_STATUS_SUCCESS;
}

template <class T>
cusolverStatus_t emulated::syevd(cusolverDnHandle_t handle, cusolverEigMode_t mode, cublasFillMode_t uplo, int n, T* a, int lda, T* w, T* work,
                                 int lwork, int* info) {
    const bool vectors = mode == CUSOLVER_EIG_MODE_VECTOR;
    REFUSE_UNLESS(uplo == CUBLAS_FILL_MODE_LOWER && n > 0 && lda >= n && lwork >= room_for(n, n, vectors ? n : 0));
    emulator::enqueue(handle->stream, [=] {
        fill_with_nan(work, static_cast<size_t>(lwork));
        eigen(vectors, n, a, lda, w, info);
    });
    return CUSOLVER_STATUS_SUCCESS;
}

template <class T>
cusolverStatus_t emulated::syevjBatched_bufferSize(cusolverDnHandle_t, cusolverEigMode_t, cublasFillMode_t uplo, int n, const T*, int lda, const T*,
                                                   int* lwork, syevjInfo_t options, int count) {
    REFUSE_UNLESS(uplo == CUBLAS_FILL_MODE_LOWER && n > 0 && lda >= n && options && count > 0);
    *lwork = room_for(n, n, 2 * count);
    return CUSOLVER_STATUS_SUCCESS;
}

template <class T>
cusolverStatus_t emulated::syevjBatched(cusolverDnHandle_t handle, cusolverEigMode_t mode, cublasFillMode_t uplo, int n, T* a, int lda, T* w, T* work,
                                        int lwork, int* info, syevjInfo_t options, int count) {
    const bool vectors = mode == CUSOLVER_EIG_MODE_VECTOR;
    REFUSE_UNLESS(uplo == CUBLAS_FILL_MODE_LOWER && n > 0 && lda >= n && options && lwork >= room_for(n, n, 2 * count));
    emulator::enqueue(handle->stream, [=] {
        fill_with_nan(work, static_cast<size_t>(lwork));
        for (int k = 0; k < count; ++k) eigen(vectors, n, a + k * lda * n, lda, w + k * n, info + k);
    });
    return CUSOLVER_STATUS_SUCCESS;
}

template <class T>
cusolverStatus_t emulated::gesvdj_bufferSize(cusolverDnHandle_t, cusolverEigMode_t, int economy, int m, int n, const T*, int lda, const T*, const T*,
                                             int ldu, const T*, int ldv, int* lwork, gesvdjInfo_t options) {
    REFUSE_UNLESS(m > 0 && n > 0 && lda >= m && ldu >= m && ldv >= n && options);
    *lwork = room_for(m, n, economy ? 5 : 6);
    return CUSOLVER_STATUS_SUCCESS;
}

template <class T>
cusolverStatus_t emulated::gesvdj(cusolverDnHandle_t handle, cusolverEigMode_t mode, int economy, int m, int n, T* a, int lda, T* s, T* u, int ldu,
                                  T* v, int ldv, T* work, int lwork, int* info, gesvdjInfo_t options) {
    const bool vectors = mode == CUSOLVER_EIG_MODE_VECTOR;
    REFUSE_UNLESS(m > 0 && n > 0 && lda >= m && ldu >= m && ldv >= n && options && lwork >= room_for(m, n, economy ? 5 : 6));
    emulator::enqueue(handle->stream, [=] {
        fill_with_nan(work, static_cast<size_t>(lwork));
        singular_values(vectors, economy != 0, m, n, a, lda, s, u, ldu, v, ldv, info);
    });
    return CUSOLVER_STATUS_SUCCESS;
}

template <class T>
cusolverStatus_t emulated::gesvdjBatched_bufferSize(cusolverDnHandle_t, cusolverEigMode_t, int m, int n, const T*, int lda, const T*, const T*,
                                                    int ldu, const T*, int ldv, int* lwork, gesvdjInfo_t options, int count) {
    REFUSE_UNLESS(m > 0 && n > 0 && m <= 32 && n <= 32 && lda >= m && ldu >= m && ldv >= n && options && count > 0);
    *lwork = room_for(m, n, 3 * count);
    return CUSOLVER_STATUS_SUCCESS;
}

template <class T>
cusolverStatus_t emulated::gesvdjBatched(cusolverDnHandle_t handle, cusolverEigMode_t mode, int m, int n, T* a, int lda, T* s, T* u, int ldu, T* v,
                                         int ldv, T* work, int lwork, int* info, gesvdjInfo_t options, int count) {
    const bool vectors = mode == CUSOLVER_EIG_MODE_VECTOR;
    REFUSE_UNLESS(m > 0 && n > 0 && m <= 32 && n <= 32 && lda >= m && ldu >= m && ldv >= n && options);
    REFUSE_UNLESS(count > 0 && lwork >= room_for(m, n, 3 * count));
    emulator::enqueue(handle->stream, [=] {
        fill_with_nan(work, static_cast<size_t>(lwork));
        for (int k = 0; k < count; ++k) {
            singular_values(vectors, false, m, n, a + k * lda * n, lda, s + k * std::min(m, n), vectors ? u + k * ldu * m : u, ldu,
                            vectors ? v + k * ldv * n : v, ldv, info + k);
        }
    });
    return CUSOLVER_STATUS_SUCCESS;
}

#define INSTANTIATE(routine)                                              \
    template decltype(emulated::routine<float>) emulated::routine<float>; \
    template decltype(emulated::routine<double>) emulated::routine<double>;
INSTANTIATE(getrfBatched)
INSTANTIATE(getrsBatched)
INSTANTIATE(trsm)
INSTANTIATE(trsmBatched)
INSTANTIATE(getrf_bufferSize)
INSTANTIATE(getrf)
INSTANTIATE(getrs)
INSTANTIATE(potrf_bufferSize)
INSTANTIATE(potrf)
INSTANTIATE(potrfBatched)
INSTANTIATE(geqrf_bufferSize)
INSTANTIATE(geqrf)
INSTANTIATE(orgqr_bufferSize)
INSTANTIATE(orgqr)
INSTANTIATE(syevd_bufferSize)
INSTANTIATE(syevd)
INSTANTIATE(syevjBatched_bufferSize)
INSTANTIATE(syevjBatched)
INSTANTIATE(gesvdj_bufferSize)
INSTANTIATE(gesvdj)
INSTANTIATE(gesvdjBatched_bufferSize)
INSTANTIATE(gesvdjBatched)
