// Factors of matrices by cuSOLVER's dense routines and cuBLAS. Optional: without TAPIR_CUSOLVER linalg computes on the host.
//
// Several small matrices go to the batched routines, which process them at once; otherwise there is a call for each.
#include "tapir/ops/linalg/linalg_kernels.h"

#ifdef TAPIR_HAVE_CUSOLVER
#include <cublas_v2.h>
#include <cusolverDn.h>

#include <algorithm>
#include <optional>

#include "tapir/core/device_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/cuda/addresses.h"
#include "tapir/cuda/allocator.h"
#include "tapir/cuda/capture.h"
#include "tapir/cuda/thread_own.h"
#endif

namespace tapir::gpu {

using kernels::MatrixBatch;

#ifdef TAPIR_HAVE_CUSOLVER

namespace {

using std::int64_t;

// --- Calls -------------------------------------------------------------------------------------------------------------------

[[noreturn]] void fail_call(const char* library, int status, const char* call) {
    const char* op = detail::thread.op ? detail::thread.op : "linalg";
    fail<DeviceError>(detail::thread.op_loc, "{}: {}: {} status {}", op, call, library, status);
}
void check(cusolverStatus_t status, const char* call) {
    if (status != CUSOLVER_STATUS_SUCCESS) fail_call("cuSOLVER", static_cast<int>(status), call);
}
void check(cublasStatus_t status, const char* call) {
    if (status != CUBLAS_STATUS_SUCCESS) fail_call("cuBLAS", static_cast<int>(status), call);
}

struct Handles {
    cusolverDnHandle_t solver;
    cublasHandle_t blas;
    gesvdjInfo_t svd_options;
    syevjInfo_t eigen_options;
    bool are_made;
};
struct HandlesOfThread {
    Handles of[kMaxDevices];
};

// Returns the thread's handles, set to its current stream.
const Handles& handles() {
    device_api::refuse_capture();  // these libraries keep memory for a handle that does not belong to the capture
    Handles& own = thread_own<HandlesOfThread>().of[selected_device()];
    if (!own.are_made) {
        check(cusolverDnCreate(&own.solver), "cusolverDnCreate");
        check(cublasCreate(&own.blas), "cublasCreate");
        check(cusolverDnCreateGesvdjInfo(&own.svd_options), "cusolverDnCreateGesvdjInfo");
        check(cusolverDnCreateSyevjInfo(&own.eigen_options), "cusolverDnCreateSyevjInfo");
        own.are_made = true;
    }
    check(cusolverDnSetStream(own.solver, current().handle), "cusolverDnSetStream");
    check(cublasSetStream(own.blas, current().handle), "cublasSetStream");
    return own;
}

// Picks the function of the type.
template <class T, class F, class D>
constexpr auto pick(F* of_float, D* of_double) {
    if constexpr (sizeof(T) == 4) {
        static_cast<void>(of_double);
        return of_float;
    } else {
        static_cast<void>(of_float);
        return of_double;
    }
}
#define TAPIR_CALL(prefix, routine) pick<T>(prefix##S##routine, prefix##D##routine)

template <class F>
void with_type(DType dtype, const F& f) {
    dtype == DType::float64 ? f.template operator()<double>() : f.template operator()<float>();
    launched(current(), cudaSuccess);
}

int as_int(int64_t n) { return static_cast<int>(n); }

template <class T>
struct Batch {
    T* data;
    int64_t count, step;  // step: elements of a matrix
    int rows, columns;
    explicit Batch(const MatrixBatch& b)
        : data(static_cast<T*>(b.data)), count(b.count), step(b.rows * b.columns), rows(as_int(b.rows)), columns(as_int(b.columns)) {}
    T* matrix(int64_t k) const { return data + k * step; }
};

// The addresses of `count` matrices of a batch from `first` on.
template <class T>
class Addresses {
 public:
    Addresses(const Batch<T>& b, int64_t first, int64_t count) : list_(static_cast<std::size_t>(count) * sizeof(T*)) {
        list_addresses(list_.as<void*>(), b.matrix(first), b.step * static_cast<int64_t>(sizeof(T)), count);
    }
    T** get() const { return list_.as<T*>(); }

 private:
    Scratch list_;
};

template <class T>
class Workspace {
 public:
    explicit Workspace(int elements) : size_(elements), room_(static_cast<std::size_t>(std::max(elements, 1)) * sizeof(T)) {}
    T* get() const { return room_.as<T>(); }
    int size() const { return size_; }

 private:
    int size_;
    Scratch room_;
};

// Singular vectors of `count` matrices of a batch from `first` on. Where the caller wants none, room for them: cuSOLVER writes to it even
// where it is told to compute none.
template <class T>
class Vectors {
 public:
    Vectors(void* all, int64_t step, int64_t first, int count) {
        if (!all) room_.emplace(static_cast<std::size_t>(std::max<int64_t>(step * count, 1)) * sizeof(T));
        first_ = all ? static_cast<T*>(all) + first * step : room_->template as<T>();
    }
    T* get() const { return first_; }

 private:
    std::optional<Scratch> room_;
    T* first_;
};

constexpr int64_t kMostInCall = 65535;         // matrices that a batched routine accepts
constexpr int64_t kMostWithoutVectors = 4096;  // 64 MB of room for their vectors

// Calls f(first, count) for at most so many matrices at a time.
template <class F>
void at_once(int64_t count, int64_t most, const F& f) {
    for (int64_t first = 0; first < count; first += most) f(first, as_int(std::min(most, count - first)));
}
template <class F>
void at_once(int64_t count, const F& f) {
    at_once(count, kMostInCall, f);
}

constexpr int kMostInBatch = 512;  // rows of LU factors and triangles; not measured
constexpr int kMostOfJacobi = 32;  // rows and columns, the limit of gesvdjBatched

bool goes_by_jacobi(const MatrixBatch& a) { return a.count > 1 && std::max(a.rows, a.columns) <= kMostOfJacobi; }

}  // namespace

bool has_cusolver() { return true; }

// --- Systems of equations ----------------------------------------------------------------------------------------------------

void factor_lu(const MatrixBatch& batch, int* pivots, int* info) {
    with_type(batch.dtype, [&]<class T>() {
        const Batch<T> a(batch);
        const Handles& own = handles();
        if (a.count > 1 && a.rows <= kMostInBatch) {
            return at_once(a.count, [&](int64_t first, int count) {
                const Addresses<T> matrices(a, first, count);
                check(TAPIR_CALL(cublas, getrfBatched)(own.blas, a.rows, matrices.get(), a.rows, pivots + first * a.rows, info + first, count),
                      "getrfBatched");
            });
        }
        int wanted = 0;
        check(TAPIR_CALL(cusolverDn, getrf_bufferSize)(own.solver, a.rows, a.rows, a.data, a.rows, &wanted), "getrf_bufferSize");
        const Workspace<T> work(wanted);
        for (int64_t k = 0; k < a.count; ++k) {
            check(TAPIR_CALL(cusolverDn, getrf)(own.solver, a.rows, a.rows, a.matrix(k), a.rows, work.get(), pivots + k * a.rows, info + k), "getrf");
        }
    });
}

void solve_lu(const MatrixBatch& factors, const int* pivots, const MatrixBatch& right) {
    with_type(factors.dtype, [&]<class T>() {
        const Batch<T> lu(factors), b(right);
        const Handles& own = handles();
        if (lu.count > 1 && lu.rows <= kMostInBatch) {
            return at_once(lu.count, [&](int64_t first, int count) {
                const Addresses<T> matrices(lu, first, count), sides(b, first, count);
                int wrong = 0;  // an argument, in host memory
                check(TAPIR_CALL(cublas, getrsBatched)(own.blas, CUBLAS_OP_N, lu.rows, b.columns, matrices.get(), lu.rows, pivots + first * lu.rows,
                                                       sides.get(), b.rows, &wrong, count),
                      "getrsBatched");
            });
        }
        const Scratch info(sizeof(int));  // reports only wrong arguments
        for (int64_t k = 0; k < lu.count; ++k) {
            check(TAPIR_CALL(cusolverDn, getrs)(own.solver, CUBLAS_OP_N, lu.rows, b.columns, lu.matrix(k), lu.rows, pivots + k * lu.rows, b.matrix(k),
                                                b.rows, info.as<int>()),
                  "getrs");
        }
    });
}

void solve_triangular(const MatrixBatch& triangles, const MatrixBatch& right, bool upper, bool unit) {
    with_type(triangles.dtype, [&]<class T>() {
        const Batch<T> a(triangles), b(right);
        const Handles& own = handles();
        const T one = 1;
        const cublasFillMode_t side = upper ? CUBLAS_FILL_MODE_UPPER : CUBLAS_FILL_MODE_LOWER;
        const cublasDiagType_t diagonal = unit ? CUBLAS_DIAG_UNIT : CUBLAS_DIAG_NON_UNIT;
        if (a.count > 1 && a.rows <= kMostInBatch) {
            return at_once(a.count, [&](int64_t first, int count) {
                const Addresses<T> matrices(a, first, count), sides(b, first, count);
                check(TAPIR_CALL(cublas, trsmBatched)(own.blas, CUBLAS_SIDE_LEFT, side, CUBLAS_OP_N, diagonal, b.rows, b.columns, &one,
                                                      matrices.get(), a.rows, sides.get(), b.rows, count),
                      "trsmBatched");
            });
        }
        for (int64_t k = 0; k < a.count; ++k) {
            check(TAPIR_CALL(cublas, trsm)(own.blas, CUBLAS_SIDE_LEFT, side, CUBLAS_OP_N, diagonal, b.rows, b.columns, &one, a.matrix(k), a.rows,
                                           b.matrix(k), b.rows),
                  "trsm");
        }
    });
}

// --- Factors -----------------------------------------------------------------------------------------------------------------

void factor_cholesky(const MatrixBatch& batch, int* info) {
    with_type(batch.dtype, [&]<class T>() {
        const Batch<T> a(batch);
        const Handles& own = handles();
        if (a.count > 1) {
            return at_once(a.count, [&](int64_t first, int count) {
                const Addresses<T> matrices(a, first, count);
                check(TAPIR_CALL(cusolverDn, potrfBatched)(own.solver, CUBLAS_FILL_MODE_LOWER, a.rows, matrices.get(), a.rows, info + first, count),
                      "potrfBatched");
            });
        }
        int wanted = 0;
        check(TAPIR_CALL(cusolverDn, potrf_bufferSize)(own.solver, CUBLAS_FILL_MODE_LOWER, a.rows, a.data, a.rows, &wanted), "potrf_bufferSize");
        const Workspace<T> work(wanted);
        check(TAPIR_CALL(cusolverDn, potrf)(own.solver, CUBLAS_FILL_MODE_LOWER, a.rows, a.data, a.rows, work.get(), work.size(), info), "potrf");
    });
}

void factor_qr(const MatrixBatch& batch, void* tau) {
    with_type(batch.dtype, [&]<class T>() {
        const Batch<T> a(batch);
        const Handles& own = handles();
        int wanted = 0;
        check(TAPIR_CALL(cusolverDn, geqrf_bufferSize)(own.solver, a.rows, a.columns, a.data, a.rows, &wanted), "geqrf_bufferSize");
        const Workspace<T> work(wanted);
        const Scratch info(sizeof(int));  // reports only wrong arguments
        for (int64_t k = 0; k < a.count; ++k) {
            check(TAPIR_CALL(cusolverDn, geqrf)(own.solver, a.rows, a.columns, a.matrix(k), a.rows,
                                                static_cast<T*>(tau) + k * std::min(a.rows, a.columns), work.get(), work.size(), info.as<int>()),
                  "geqrf");
        }
    });
}

void form_q(const MatrixBatch& batch, int64_t reflectors, const void* tau) {
    with_type(batch.dtype, [&]<class T>() {
        const Batch<T> q(batch);
        const Handles& own = handles();
        const auto* factors = static_cast<const T*>(tau);
        const int count = as_int(reflectors);
        int wanted = 0;
        check(TAPIR_CALL(cusolverDn, orgqr_bufferSize)(own.solver, q.rows, q.columns, count, q.data, q.rows, factors, &wanted), "orgqr_bufferSize");
        const Workspace<T> work(wanted);
        const Scratch info(sizeof(int));
        for (int64_t k = 0; k < q.count; ++k) {
            check(TAPIR_CALL(cusolverDn, orgqr)(own.solver, q.rows, q.columns, count, q.matrix(k), q.rows, factors + k * reflectors, work.get(),
                                                work.size(), info.as<int>()),
                  "orgqr");
        }
    });
}

void eigen(const MatrixBatch& batch, void* values, bool vectors, int* info) {
    with_type(batch.dtype, [&]<class T>() {
        const Batch<T> a(batch);
        const Handles& own = handles();
        const cusolverEigMode_t mode = vectors ? CUSOLVER_EIG_MODE_VECTOR : CUSOLVER_EIG_MODE_NOVECTOR;
        const cublasFillMode_t lower = CUBLAS_FILL_MODE_LOWER;
        auto* w = static_cast<T*>(values);
        int wanted = 0;
        if (goes_by_jacobi(batch)) {
            return at_once(a.count, [&](int64_t first, int count) {
                check(TAPIR_CALL(cusolverDn, syevjBatched_bufferSize)(own.solver, mode, lower, a.rows, a.matrix(first), a.rows, w + first * a.rows,
                                                                      &wanted, own.eigen_options, count),
                      "syevjBatched_bufferSize");
                const Workspace<T> work(wanted);
                check(TAPIR_CALL(cusolverDn, syevjBatched)(own.solver, mode, lower, a.rows, a.matrix(first), a.rows, w + first * a.rows, work.get(),
                                                           work.size(), info + first, own.eigen_options, count),
                      "syevjBatched");
            });
        }
        check(TAPIR_CALL(cusolverDn, syevd_bufferSize)(own.solver, mode, lower, a.rows, a.data, a.rows, w, &wanted), "syevd_bufferSize");
        const Workspace<T> work(wanted);
        for (int64_t k = 0; k < a.count; ++k) {
            check(TAPIR_CALL(cusolverDn, syevd)(own.solver, mode, lower, a.rows, a.matrix(k), a.rows, w + k * a.rows, work.get(), work.size(),
                                                info + k),
                  "syevd");
        }
    });
}

bool has_whole_vectors(const MatrixBatch& a) { return goes_by_jacobi(a); }

// Uses Jacobi's method, which takes matrices of any shape (gesvd needs rows >= columns) and can leave out the whole ones.
void singular_values(const MatrixBatch& batch, void* left, void* values, void* right, bool whole, int* info) {
    with_type(batch.dtype, [&]<class T>() {
        const Batch<T> a(batch);
        const Handles& own = handles();
        const cusolverEigMode_t mode = left ? CUSOLVER_EIG_MODE_VECTOR : CUSOLVER_EIG_MODE_NOVECTOR;
        const int least = std::min(a.rows, a.columns);
        const bool have_all = whole || (!left && goes_by_jacobi(batch));  // gesvdjBatched knows no others
        const int64_t u_step = int64_t{a.rows} * (have_all ? a.rows : least), v_step = int64_t{a.columns} * (have_all ? a.columns : least);
        auto* s = static_cast<T*>(values);
        int wanted = 0;
        if (goes_by_jacobi(batch)) {
            return at_once(a.count, left ? kMostInCall : kMostWithoutVectors, [&](int64_t first, int count) {
                const Vectors<T> u(left, u_step, first, count), v(right, v_step, first, count);
                T* s_first = s + first * least;
                check(TAPIR_CALL(cusolverDn, gesvdjBatched_bufferSize)(own.solver, mode, a.rows, a.columns, a.matrix(first), a.rows, s_first, u.get(),
                                                                       a.rows, v.get(), a.columns, &wanted, own.svd_options, count),
                      "gesvdjBatched_bufferSize");
                const Workspace<T> work(wanted);
                check(TAPIR_CALL(cusolverDn, gesvdjBatched)(own.solver, mode, a.rows, a.columns, a.matrix(first), a.rows, s_first, u.get(), a.rows,
                                                            v.get(), a.columns, work.get(), work.size(), info + first, own.svd_options, count),
                      "gesvdjBatched");
            });
        }
        const int economy = whole ? 0 : 1;
        for (int64_t k = 0; k < a.count; ++k) {
            const Vectors<T> u(left, u_step, k, 1), v(right, v_step, k, 1);
            if (k == 0) {
                check(TAPIR_CALL(cusolverDn, gesvdj_bufferSize)(own.solver, mode, economy, a.rows, a.columns, a.data, a.rows, s, u.get(), a.rows,
                                                                v.get(), a.columns, &wanted, own.svd_options),
                      "gesvdj_bufferSize");
            }
            const Workspace<T> work(wanted);
            check(TAPIR_CALL(cusolverDn, gesvdj)(own.solver, mode, economy, a.rows, a.columns, a.matrix(k), a.rows, s + k * least, u.get(), a.rows,
                                                 v.get(), a.columns, work.get(), work.size(), info + k, own.svd_options),
                  "gesvdj");
        }
    });
}

#undef TAPIR_CALL

#else

bool has_cusolver() { return false; }
void factor_lu(const MatrixBatch&, int*, int*) {}
void solve_lu(const MatrixBatch&, const int*, const MatrixBatch&) {}
void solve_triangular(const MatrixBatch&, const MatrixBatch&, bool, bool) {}
void factor_cholesky(const MatrixBatch&, int*) {}
void factor_qr(const MatrixBatch&, void*) {}
void form_q(const MatrixBatch&, std::int64_t, const void*) {}
void eigen(const MatrixBatch&, void*, bool, int*) {}
bool has_whole_vectors(const MatrixBatch&) { return false; }
void singular_values(const MatrixBatch&, void*, void*, void*, bool, int*) {}

#endif

}  // namespace tapir::gpu
