// Matrix products for which a small kernel starts sooner, and is no slower, than cuBLAS's: one to four rows
// times a matrix, which is what a cell of a dynamic model computes, and sums of one to four outer products, which are
// the gradients of its weights. All are as fast as the matrix can be read.
#include "tapir/cuda/device.cuh"
#include "tapir/cuda/small_products.h"

namespace tapir::gpu {
namespace {

constexpr i64 kMostRows = 4;
constexpr i64 kMostOfColumns = i64{1} << 20;  // elements of a matrix that columns_kernel reads: cuBLAS is better at large ones

template <class T>
struct Operands {
    i64 m, n, k;
    const T* a;
    i64 a_row, a_col;
    const T* b;
    i64 b_row, b_col;
    T* c;
    i64 c_row;
    const T* bias;
    bool accumulate;
};

template <class T>
Operands<T> operands_of(const MatrixProduct& p) {
    return {p.m,
            p.n,
            p.k,
            static_cast<const T*>(p.a),
            p.a_row,
            p.a_col,
            static_cast<const T*>(p.b),
            p.b_row,
            p.b_col,
            static_cast<T*>(p.c),
            p.c_row,
            static_cast<const T*>(p.bias),
            p.accumulate};
}

template <class T, class C>
__device__ __forceinline__ void finish(const Operands<T>& p, i64 i, i64 j, C sum) {
    if (p.bias) sum += convert<C>(p.bias[j]);
    T& place = p.c[i * p.c_row + j];
    if (p.accumulate) sum += convert<C>(place);
    place = convert<T>(sum);
}

// For columns of b without gaps (b_row 1), as in x W^T: a warp for each, with 16-byte loads if they are aligned.
template <class T, int M>
__global__ void __launch_bounds__(kThreads) dots_kernel(Operands<T> p, bool aligned) {
    using C = Computed<T>;
    constexpr int V = 16 / sizeof(T);
    const unsigned lane = threadIdx.x % 32;
    const i64 j = (static_cast<i64>(blockIdx.x) * kThreads + threadIdx.x) / 32;
    if (j >= p.n) return;
    const T* column = p.b + j * p.b_col;
    C sum[M] = {};
    i64 q = 0;
    if (aligned) {
        for (q = lane * V; q + V <= p.k; q += 32 * V) {
            const auto w = *reinterpret_cast<const Pack<T, V>*>(column + q);
            for (int i = 0; i < M; ++i) {
                const auto x = *reinterpret_cast<const Pack<T, V>*>(p.a + i * p.a_row + q);
                for (int v = 0; v < V; ++v) sum[i] += convert<C>(x.value[v]) * convert<C>(w.value[v]);
            }
        }
        q = p.k / V * V;
    }
    for (i64 r = q + lane; r < p.k; r += 32) {
        for (int i = 0; i < M; ++i) sum[i] += convert<C>(p.a[i * p.a_row + r * p.a_col]) * convert<C>(column[r]);
    }
    for (int i = 0; i < M; ++i) {
        const C whole = warp_reduce(sum[i], Sum());
        if (lane == 0) finish(p, i, j, whole);
    }
}

// For rows of b without gaps (b_col 1), as in g W: a thread for each column and slice of the rows.
constexpr unsigned kSlices = 32;
template <class T, int M>
__global__ void __launch_bounds__(32 * kSlices) columns_kernel(Operands<T> p) {
    using C = Computed<T>;
    __shared__ C part[kSlices][M][32];
    const i64 j = static_cast<i64>(blockIdx.x) * 32 + threadIdx.x;
    C sum[M] = {};
    if (j < p.n) {
        for (i64 q = threadIdx.y; q < p.k; q += kSlices) {
            const C w = convert<C>(p.b[q * p.b_row + j]);
            for (int i = 0; i < M; ++i) sum[i] += convert<C>(p.a[i * p.a_row + q * p.a_col]) * w;
        }
    }
    for (int i = 0; i < M; ++i) part[threadIdx.y][i][threadIdx.x] = sum[i];
    __syncthreads();
    const int i = static_cast<int>(threadIdx.y);
    if (i >= M || j >= p.n) return;
    C whole = 0;
    for (unsigned s = 0; s < kSlices; ++s) whole += part[s][i][threadIdx.x];
    finish(p, i, j, whole);
}

// k outer products: a thread for each element of c, along its rows.
template <class T>
__global__ void __launch_bounds__(kThreads) outer_kernel(Operands<T> p) {
    using C = Computed<T>;
    const i64 j = static_cast<i64>(blockIdx.x) * kThreads + threadIdx.x;
    if (j >= p.n) return;
    C x[kMostRows];
    for (int q = 0; q < kMostRows; ++q) x[q] = q < p.k ? convert<C>(p.b[q * p.b_row + j * p.b_col]) : C(0);
    for (i64 i = blockIdx.y; i < p.m; i += gridDim.y) {
        C sum = 0;
        for (int q = 0; q < kMostRows; ++q) {
            if (q < p.k) sum += convert<C>(p.a[i * p.a_row + q * p.a_col]) * x[q];
        }
        finish(p, i, j, sum);
    }
}

template <class T, int M>
void launch_rows(const MatrixProduct& p) {
    const Operands<T> args = operands_of<T>(p);
    if (p.b_row == 1) {
        constexpr i64 V = 16 / sizeof(T);
        const bool aligned = p.a_col == 1 && is_aligned(p.a, 16) && is_aligned(p.b, 16) && p.b_col % V == 0 && (M == 1 || p.a_row % V == 0);
        return launch(dots_kernel<T, M>, blocks_for(p.n, kThreads / 32), kThreads, args, aligned);
    }
    launch(columns_kernel<T, M>, blocks_for(p.n, 32), dim3(32, kSlices), args);
}

template <class T>
void launch_rows(const MatrixProduct& p) {
    switch (p.m) {
        case 1: return launch_rows<T, 1>(p);
        case 2: return launch_rows<T, 2>(p);
        case 3: return launch_rows<T, 3>(p);
        default: return launch_rows<T, 4>(p);
    }
}

template <class T>
__global__ void __launch_bounds__(kThreads) integer_kernel(Operands<T> p, i64 a_batch, i64 b_batch, i64 c_batch) {
    using U = std::make_unsigned_t<T>;  // wraps
    const i64 j = static_cast<i64>(blockIdx.x) * kThreads + threadIdx.x;
    if (j >= p.n) return;
    const T *a = p.a + blockIdx.z * a_batch, *b = p.b + blockIdx.z * b_batch;
    for (i64 i = blockIdx.y; i < p.m; i += gridDim.y) {
        U sum = 0;
        for (i64 q = 0; q < p.k; ++q) {
            sum += static_cast<U>(a[i * p.a_row + q * p.a_col]) * static_cast<U>(b[q * p.b_row + j * p.b_col]);
        }
        p.c[blockIdx.z * c_batch + i * p.c_row + j] = static_cast<T>(sum);
    }
}

constexpr i64 kMostBlocksY = 65535;
unsigned few(i64 n) { return static_cast<unsigned>(n < kMostBlocksY ? n : kMostBlocksY); }

template <class T>
void launch_integers(MatrixProduct p) {
    for (i64 done = 0; done < p.batch; done += kMostBlocksY) {
        const i64 count = p.batch - done < kMostBlocksY ? p.batch - done : kMostBlocksY;
        launch(integer_kernel<T>, dim3(blocks_for(p.n, kThreads), few(p.m), static_cast<unsigned>(count)), kThreads, operands_of<T>(p), p.a_batch,
               p.b_batch, p.c_batch);
        p.a = static_cast<const T*>(p.a) + count * p.a_batch;
        p.b = static_cast<const T*>(p.b) + count * p.b_batch;
        p.c = static_cast<T*>(p.c) + count * p.c_batch;
    }
}

}  // namespace

bool multiply_small(const MatrixProduct& p) {
    if (p.k == 0) {  // no terms: zeros or the bias
        MatrixProduct one = p;
        for (i64 i = 0; i < p.batch; ++i) {
            with_floating(p.dtype,
                          [&]<class T>() { launch(outer_kernel<T>, dim3(blocks_for(p.n, kThreads), few(p.m)), kThreads, operands_of<T>(one)); });
            one.c = static_cast<std::byte*>(one.c) + p.c_batch * static_cast<i64>(itemsize(p.dtype));
        }
        return true;
    }
    if (p.batch != 1) return false;
    if (p.m <= kMostRows && (p.b_row == 1 || (p.b_col == 1 && p.n * p.k <= kMostOfColumns))) {
        with_floating(p.dtype, [&]<class T>() { launch_rows<T>(p); });
        return true;
    }
    if (p.k <= kMostRows && p.b_col == 1) {
        with_floating(p.dtype, [&]<class T>() { launch(outer_kernel<T>, dim3(blocks_for(p.n, kThreads), few(p.m)), kThreads, operands_of<T>(p)); });
        return true;
    }
    return false;
}

void multiply_integers(const MatrixProduct& p) {
    if (p.dtype == int32) {
        launch_integers<i32>(p);
    } else {
        launch_integers<i64>(p);
    }
}

}  // namespace tapir::gpu
