// Matrix products on the CPU: one call for every layout, size and thread count.
//
//     kernels::gemm(kernels::Gemm<float>{.m = 1, .n = out, .k = in, .a = x, .a_row = in, .a_col = 1,
//                                .b = weight, .b_row = 1, .b_col = in, .c = y, .c_row = out, .bias = bias});
//
// A and B are given by two strides each, so a transposed or sliced view needs no copy. The choice among the kernels
// (row dot products, register tiles, packed blocks, oneDNN) and of the number of threads is made inside.
#pragma once

#include <cstdint>

namespace tapir::kernels {

/// C[m, n] = alpha * A[m, k] B[k, n] + beta * C + bias. Strides are in elements; A[i, p] is a[i * a_row + p * a_col],
/// B[p, j] is b[p * b_row + j * b_col], C[i, j] is c[i * c_row + j]. C must not overlap A, B or bias.
/// With beta == 0 C is not read (it may hold NaN). m, n and k may be 0; k == 0 leaves beta * C + bias.
template <class T>
struct Gemm {
    int64_t m, n, k;
    const T* a;
    int64_t a_row, a_col;
    const T* b;
    int64_t b_row, b_col;
    T* c;
    int64_t c_row;
    T beta = 0;
    T alpha = 1;
    const T* bias = nullptr;  // [n], added to every row; null for none
};

void gemm(const Gemm<float>& g);
void gemm(const Gemm<double>& g);

/// Computes `batch` products of one shape. Product i works on a + i * a_batch, b + i * b_batch, c + i * c_batch, and the one
/// bias. A batch stride of 0 shares the operand. The outputs must not overlap.
template <class T>
struct GemmBatch {
    Gemm<T> first;
    int64_t batch;
    int64_t a_batch, b_batch, c_batch;
};

void gemm(const GemmBatch<float>& g);
void gemm(const GemmBatch<double>& g);

}  // namespace tapir::kernels
