// Symmetric matrices to tridiagonal ones of the same eigenvalues.
#pragma once

#include <cstdint>

#include "tapir/ops/cpu/isa.h"

namespace tapir::kernels {

/// n > 0. The squares of a's elements must not overflow.
template <class T>
struct Tridiagonal {
    std::int64_t n;
    std::int64_t step;  // elements from a column of a to the next: whole vectors, see kRowsAtOnce
    T* a;               // its lower triangle is read, and zeros behind each column's n elements; all is written over, and finite
    T* vectors;         // three times `step` zeros, of the algorithm's own; written over
    T* diagonal;        // n: the result's
    T* beside;          // n - 1: the elements beside it
};

/// a is aligned to 64 bytes, and `step` is a multiple of as many elements: those of a vector of any instruction set.
inline constexpr std::int64_t kRowsAtOnce = 16;

}  // namespace tapir::kernels

TAPIR_CPU_KERNEL(tridiagonal_f32, void(const tapir::kernels::Tridiagonal<float>& t))
TAPIR_CPU_KERNEL(tridiagonal_f64, void(const tapir::kernels::Tridiagonal<double>& t))

namespace tapir::kernels {

inline void reduce_to_tridiagonal(const Tridiagonal<float>& t) { tridiagonal_f32(t); }
inline void reduce_to_tridiagonal(const Tridiagonal<double>& t) { tridiagonal_f64(t); }

}  // namespace tapir::kernels
