// Matrices to ones of few diagonals: symmetric ones to tridiagonal ones of the same eigenvalues, others to bidiagonal ones of the same singular values.
#pragma once

#include <cstdint>

#include "tapir/ops/cpu/isa.h"

namespace tapir::kernels {

/// n > 0. The squares of a's elements must not overflow, nor those of Bidiagonal's.
template <class T>
struct Tridiagonal {
    std::int64_t n;
    std::int64_t step;  // elements from a column of a to the next: whole vectors, see kRowsAtOnce
    T* a;               // its lower triangle is read, and zeros behind each column's n elements; all is written over, and finite
    T* vectors;         // four times `step` zeros, of the algorithm's own; written over
    T* diagonal;        // n: the result's
    T* beside;          // n - 1: the elements beside it
    T* tau =
        nullptr;  // n - 1: the reflections' factors; a keeps their vectors, as LAPACK's sytrd does for a lower triangle. Null: they are not wanted
};

/// rows >= columns > 0.
template <class T>
struct Bidiagonal {
    std::int64_t rows, columns;
    std::int64_t step;                            // elements from a column of a to the next: whole vectors
    T* a;                                         // zeros behind each column's rows; written over
    T* vectors;                                   // four times `step` zeros, and twice `columns`, of the algorithm's own; written over
    T* diagonal;                                  // columns: the result's
    T* above;                                     // columns - 1: the elements above it
    T *tau_left = nullptr, *tau_right = nullptr;  // columns: as tau of Tridiagonal, kept as gebrd does
};

/// Both are aligned to 64 bytes, and `step` is a multiple of as many elements: those of a vector of any instruction set.
inline constexpr std::int64_t kRowsAtOnce = 16;

}  // namespace tapir::kernels

TAPIR_CPU_KERNEL(tridiagonal_f32, void(const tapir::kernels::Tridiagonal<float>& t))
TAPIR_CPU_KERNEL(tridiagonal_f64, void(const tapir::kernels::Tridiagonal<double>& t))
TAPIR_CPU_KERNEL(bidiagonal_f32, void(const tapir::kernels::Bidiagonal<float>& b))
TAPIR_CPU_KERNEL(bidiagonal_f64, void(const tapir::kernels::Bidiagonal<double>& b))

namespace tapir::kernels {

inline void reduce_matrix(const Tridiagonal<float>& t) { tridiagonal_f32(t); }
inline void reduce_matrix(const Tridiagonal<double>& t) { tridiagonal_f64(t); }
inline void reduce_matrix(const Bidiagonal<float>& b) { bidiagonal_f32(b); }
inline void reduce_matrix(const Bidiagonal<double>& b) { bidiagonal_f64(b); }

}  // namespace tapir::kernels
