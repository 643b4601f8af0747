// The routines of LAPACK and BLAS that the linalg routines call, and the emulated cuSOLVER of the tests, for float and double. They store
// matrices column after column. The Fortran interface (Anderson et al. 1999): all arguments are addresses; the lengths of texts come last,
// and are not read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tapir::lapack {

using Int = int;

#define TAPIR_LAPACK_ROUTINES(T, x)                                                                                                                  \
    void x##getrf_(const Int* m, const Int* n, T* a, const Int* lda, Int* pivots, Int* info);                                                        \
    void x##laswp_(const Int* n, T* a, const Int* lda, const Int* first, const Int* last, const Int* pivots, const Int* step);                       \
    void x##getrs_(const char* trans, const Int* n, const Int* nrhs, const T* a, const Int* lda, const Int* pivots, T* b, const Int* ldb, Int* info, \
                   std::size_t);                                                                                                                     \
    void x##potrf_(const char* uplo, const Int* n, T* a, const Int* lda, Int* info, std::size_t);                                                    \
    void x##trsm_(const char* side, const char* uplo, const char* trans, const char* diag, const Int* m, const Int* n, const T* alpha, const T* a,   \
                  const Int* lda, T* b, const Int* ldb, std::size_t, std::size_t, std::size_t, std::size_t);                                         \
    void x##geqrf_(const Int* m, const Int* n, T* a, const Int* lda, T* tau, T* work, const Int* lwork, Int* info);                                  \
    void x##orgqr_(const Int* m, const Int* n, const Int* k, T* a, const Int* lda, const T* tau, T* work, const Int* lwork, Int* info);              \
    void x##syevd_(const char* jobz, const char* uplo, const Int* n, T* a, const Int* lda, T* w, T* work, const Int* lwork, Int* iwork,              \
                   const Int* liwork, Int* info, std::size_t, std::size_t);                                                                          \
    void x##sterf_(const Int* n, T* diagonal, T* beside, Int* info);                                                                                 \
    void x##stedc_(const char* compz, const Int* n, T* diagonal, T* beside, T* z, const Int* ldz, T* work, const Int* lwork, Int* iwork,             \
                   const Int* liwork, Int* info, std::size_t);                                                                                       \
    void x##ormtr_(const char* side, const char* uplo, const char* trans, const Int* m, const Int* n, const T* a, const Int* lda, const T* tau,      \
                   T* c, const Int* ldc, T* work, const Int* lwork, Int* info, std::size_t, std::size_t, std::size_t);                               \
    void x##bdsqr_(const char* uplo, const Int* n, const Int* ncvt, const Int* nru, const Int* ncc, T* diagonal, T* above, T* vt, const Int* ldvt,   \
                   T* u, const Int* ldu, T* c, const Int* ldc, T* work, Int* info, std::size_t);                                                     \
    void x##bdsdc_(const char* uplo, const char* compq, const Int* n, T* diagonal, T* above, T* u, const Int* ldu, T* vt, const Int* ldvt, T* q,     \
                   Int* iq, T* work, Int* iwork, Int* info, std::size_t, std::size_t);                                                               \
    void x##ormbr_(const char* vect, const char* side, const char* trans, const Int* m, const Int* n, const Int* k, const T* a, const Int* lda,      \
                   const T* tau, T* c, const Int* ldc, T* work, const Int* lwork, Int* info, std::size_t, std::size_t, std::size_t);                 \
    void x##gesdd_(const char* jobz, const Int* m, const Int* n, T* a, const Int* lda, T* s, T* u, const Int* ldu, T* vt, const Int* ldvt, T* work,  \
                   const Int* lwork, Int* iwork, Int* info, std::size_t);
extern "C" {
TAPIR_LAPACK_ROUTINES(float, s)
TAPIR_LAPACK_ROUTINES(double, d)
}
#undef TAPIR_LAPACK_ROUTINES

// One name for both types: lapack::call<T>(sgetrf_, dgetrf_)(...).
template <class T, class F, class D>
constexpr auto call(F* of_float, D* of_double) {
    if constexpr (sizeof(T) == 4) {
        static_cast<void>(of_double);
        return of_float;
    } else {
        static_cast<void>(of_float);
        return of_double;
    }
}

// Calls f(work, &lwork) for the length of its work first. Routines that apply reflections ask for too little to do so in blocks: they forget what
// ormqr has for the blocks' triangles.
template <class T, class F>
void with_work(const F& f) {
    constexpr Int triangle = 65 * 64;
    T wish = 0;
    Int lwork = -1;
    f(&wish, &lwork);
    lwork = std::max(1, static_cast<Int>(wish)) + triangle;
    std::vector<T> work(static_cast<std::size_t>(lwork));
    f(work.data(), &lwork);
}

}  // namespace tapir::lapack
