// A stand-in for cuSOLVER's dense routines on LAPACK, for what cuda/linalg.cpp asks for. See cuda_runtime.h.
//
// They run in the order of the handle's stream and give info in device memory, as the real ones. What the real ones are free to
// lose, these do: workspaces are filled with nan up to the size that was asked for, so one that is too small shows; so are matrices
// that are given up, and triangles that no one may count on. Arguments that the real library refuses are refused.
#pragma once

#include "cublas_v2.h"

enum cusolverStatus_t { CUSOLVER_STATUS_SUCCESS = 0, CUSOLVER_STATUS_INVALID_VALUE = 3, CUSOLVER_STATUS_NOT_SUPPORTED = 9 };
enum cusolverEigMode_t { CUSOLVER_EIG_MODE_NOVECTOR = 0, CUSOLVER_EIG_MODE_VECTOR = 1 };
struct EmulatedSolverHandle;
using cusolverDnHandle_t = EmulatedSolverHandle*;
struct EmulatedJacobi;
using gesvdjInfo_t = EmulatedJacobi*;
using syevjInfo_t = EmulatedJacobi*;

cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t* handle);
cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t handle, cudaStream_t stream);
cusolverStatus_t cusolverDnCreateGesvdjInfo(gesvdjInfo_t* info);
cusolverStatus_t cusolverDnCreateSyevjInfo(syevjInfo_t* info);

// For float and double, under cuSOLVER's names below.
namespace emulated {

template <class T>
cusolverStatus_t getrf_bufferSize(cusolverDnHandle_t handle, int m, int n, T* a, int lda, int* lwork);
template <class T>
cusolverStatus_t getrf(cusolverDnHandle_t handle, int m, int n, T* a, int lda, T* work, int* pivots, int* info);
template <class T>
cusolverStatus_t getrs(cusolverDnHandle_t handle, cublasOperation_t trans, int n, int nrhs, const T* a, int lda, const int* pivots, T* b, int ldb,
                       int* info);
template <class T>
cusolverStatus_t potrf_bufferSize(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n, T* a, int lda, int* lwork);
template <class T>
cusolverStatus_t potrf(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n, T* a, int lda, T* work, int lwork, int* info);
template <class T>
cusolverStatus_t potrfBatched(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n, T* a[], int lda, int* info, int count);
template <class T>
cusolverStatus_t geqrf_bufferSize(cusolverDnHandle_t handle, int m, int n, T* a, int lda, int* lwork);
template <class T>
cusolverStatus_t geqrf(cusolverDnHandle_t handle, int m, int n, T* a, int lda, T* tau, T* work, int lwork, int* info);
template <class T>
cusolverStatus_t orgqr_bufferSize(cusolverDnHandle_t handle, int m, int n, int k, const T* a, int lda, const T* tau, int* lwork);
template <class T>
cusolverStatus_t orgqr(cusolverDnHandle_t handle, int m, int n, int k, T* a, int lda, const T* tau, T* work, int lwork, int* info);
template <class T>
cusolverStatus_t syevd_bufferSize(cusolverDnHandle_t handle, cusolverEigMode_t mode, cublasFillMode_t uplo, int n, const T* a, int lda, const T* w,
                                  int* lwork);
template <class T>
cusolverStatus_t syevd(cusolverDnHandle_t handle, cusolverEigMode_t mode, cublasFillMode_t uplo, int n, T* a, int lda, T* w, T* work, int lwork,
                       int* info);
template <class T>
cusolverStatus_t syevjBatched_bufferSize(cusolverDnHandle_t handle, cusolverEigMode_t mode, cublasFillMode_t uplo, int n, const T* a, int lda,
                                         const T* w, int* lwork, syevjInfo_t options, int count);
template <class T>
cusolverStatus_t syevjBatched(cusolverDnHandle_t handle, cusolverEigMode_t mode, cublasFillMode_t uplo, int n, T* a, int lda, T* w, T* work,
                              int lwork, int* info, syevjInfo_t options, int count);
template <class T>
cusolverStatus_t gesvdj_bufferSize(cusolverDnHandle_t handle, cusolverEigMode_t mode, int economy, int m, int n, const T* a, int lda, const T* s,
                                   const T* u, int ldu, const T* v, int ldv, int* lwork, gesvdjInfo_t options);
template <class T>
cusolverStatus_t gesvdj(cusolverDnHandle_t handle, cusolverEigMode_t mode, int economy, int m, int n, T* a, int lda, T* s, T* u, int ldu, T* v,
                        int ldv, T* work, int lwork, int* info, gesvdjInfo_t options);
template <class T>
cusolverStatus_t gesvdjBatched_bufferSize(cusolverDnHandle_t handle, cusolverEigMode_t mode, int m, int n, const T* a, int lda, const T* s,
                                          const T* u, int ldu, const T* v, int ldv, int* lwork, gesvdjInfo_t options, int count);
template <class T>
cusolverStatus_t gesvdjBatched(cusolverDnHandle_t handle, cusolverEigMode_t mode, int m, int n, T* a, int lda, T* s, T* u, int ldu, T* v, int ldv,
                               T* work, int lwork, int* info, gesvdjInfo_t options, int count);

}  // namespace emulated

inline constexpr auto& cusolverDnSgetrf_bufferSize = emulated::getrf_bufferSize<float>;
inline constexpr auto& cusolverDnDgetrf_bufferSize = emulated::getrf_bufferSize<double>;
inline constexpr auto& cusolverDnSgetrf = emulated::getrf<float>;
inline constexpr auto& cusolverDnDgetrf = emulated::getrf<double>;
inline constexpr auto& cusolverDnSgetrs = emulated::getrs<float>;
inline constexpr auto& cusolverDnDgetrs = emulated::getrs<double>;
inline constexpr auto& cusolverDnSpotrf_bufferSize = emulated::potrf_bufferSize<float>;
inline constexpr auto& cusolverDnDpotrf_bufferSize = emulated::potrf_bufferSize<double>;
inline constexpr auto& cusolverDnSpotrf = emulated::potrf<float>;
inline constexpr auto& cusolverDnDpotrf = emulated::potrf<double>;
inline constexpr auto& cusolverDnSpotrfBatched = emulated::potrfBatched<float>;
inline constexpr auto& cusolverDnDpotrfBatched = emulated::potrfBatched<double>;
inline constexpr auto& cusolverDnSgeqrf_bufferSize = emulated::geqrf_bufferSize<float>;
inline constexpr auto& cusolverDnDgeqrf_bufferSize = emulated::geqrf_bufferSize<double>;
inline constexpr auto& cusolverDnSgeqrf = emulated::geqrf<float>;
inline constexpr auto& cusolverDnDgeqrf = emulated::geqrf<double>;
inline constexpr auto& cusolverDnSorgqr_bufferSize = emulated::orgqr_bufferSize<float>;
inline constexpr auto& cusolverDnDorgqr_bufferSize = emulated::orgqr_bufferSize<double>;
inline constexpr auto& cusolverDnSorgqr = emulated::orgqr<float>;
inline constexpr auto& cusolverDnDorgqr = emulated::orgqr<double>;
inline constexpr auto& cusolverDnSsyevd_bufferSize = emulated::syevd_bufferSize<float>;
inline constexpr auto& cusolverDnDsyevd_bufferSize = emulated::syevd_bufferSize<double>;
inline constexpr auto& cusolverDnSsyevd = emulated::syevd<float>;
inline constexpr auto& cusolverDnDsyevd = emulated::syevd<double>;
inline constexpr auto& cusolverDnSsyevjBatched_bufferSize = emulated::syevjBatched_bufferSize<float>;
inline constexpr auto& cusolverDnDsyevjBatched_bufferSize = emulated::syevjBatched_bufferSize<double>;
inline constexpr auto& cusolverDnSsyevjBatched = emulated::syevjBatched<float>;
inline constexpr auto& cusolverDnDsyevjBatched = emulated::syevjBatched<double>;
inline constexpr auto& cusolverDnSgesvdj_bufferSize = emulated::gesvdj_bufferSize<float>;
inline constexpr auto& cusolverDnDgesvdj_bufferSize = emulated::gesvdj_bufferSize<double>;
inline constexpr auto& cusolverDnSgesvdj = emulated::gesvdj<float>;
inline constexpr auto& cusolverDnDgesvdj = emulated::gesvdj<double>;
inline constexpr auto& cusolverDnSgesvdjBatched_bufferSize = emulated::gesvdjBatched_bufferSize<float>;
inline constexpr auto& cusolverDnDgesvdjBatched_bufferSize = emulated::gesvdjBatched_bufferSize<double>;
inline constexpr auto& cusolverDnSgesvdjBatched = emulated::gesvdjBatched<float>;
inline constexpr auto& cusolverDnDgesvdjBatched = emulated::gesvdjBatched<double>;
