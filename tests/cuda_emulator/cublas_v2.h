// A stand-in for what cuda/linalg.cpp asks of cuBLAS, on LAPACK and BLAS. See cusolverDn.h.
#pragma once

#include "cublasLt.h"

enum cublasFillMode_t { CUBLAS_FILL_MODE_LOWER = 0, CUBLAS_FILL_MODE_UPPER = 1 };
enum cublasDiagType_t { CUBLAS_DIAG_NON_UNIT = 0, CUBLAS_DIAG_UNIT = 1 };
enum cublasSideMode_t { CUBLAS_SIDE_LEFT = 0, CUBLAS_SIDE_RIGHT = 1 };
struct EmulatedBlasHandle;
using cublasHandle_t = EmulatedBlasHandle*;

cublasStatus_t cublasCreate(cublasHandle_t* handle);
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream);

// For float and double, under cuBLAS's names below.
namespace emulated {

template <class T>
cublasStatus_t getrfBatched(cublasHandle_t handle, int n, T* const a[], int lda, int* pivots, int* info, int count);
template <class T>
cublasStatus_t getrsBatched(cublasHandle_t handle, cublasOperation_t trans, int n, int nrhs, const T* const a[], int lda, const int* pivots,
                            T* const b[], int ldb, int* info, int count);
template <class T>
cublasStatus_t trsm(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t uplo, cublasOperation_t trans, cublasDiagType_t diag, int m, int n,
                    const T* alpha, const T* a, int lda, T* b, int ldb);
template <class T>
cublasStatus_t trsmBatched(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t uplo, cublasOperation_t trans, cublasDiagType_t diag, int m,
                           int n, const T* alpha, const T* const a[], int lda, T* const b[], int ldb, int count);

}  // namespace emulated

inline constexpr auto& cublasSgetrfBatched = emulated::getrfBatched<float>;
inline constexpr auto& cublasDgetrfBatched = emulated::getrfBatched<double>;
inline constexpr auto& cublasSgetrsBatched = emulated::getrsBatched<float>;
inline constexpr auto& cublasDgetrsBatched = emulated::getrsBatched<double>;
inline constexpr auto& cublasStrsm = emulated::trsm<float>;
inline constexpr auto& cublasDtrsm = emulated::trsm<double>;
inline constexpr auto& cublasStrsmBatched = emulated::trsmBatched<float>;
inline constexpr auto& cublasDtrsmBatched = emulated::trsmBatched<double>;
