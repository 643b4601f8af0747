// The gradients of the gate kernels of recurrent cells.
#include "tapir/ops/recurrent/recurrent_kernels.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

using i64 = std::int64_t;

constexpr i64 kBlock = 128;  // columns that stay in the first-level cache

// --- LSTM ----------------------------------------------------------------------------------------------------------------

// Distributes a gate's gradient that has not gone to its only place at once. Not inlined: it is rare and would be there four times.
template <class T>
[[gnu::noinline]] void spread(const T* out, T* a, bool adds, T* b, i64 n) {
    const auto bytes = sizeof(T) * static_cast<std::size_t>(n);
    if (a && adds) {
#pragma omp simd
        for (i64 t = 0; t < n; ++t) a[t] += out[t];
    } else if (a) {
        __builtin_memcpy(a, out, bytes);
    }
    if (b) __builtin_memcpy(b, out, bytes);
}

template <class T>
void lstm_backward_block(const LstmGatesBackward<T>& args, i64 row, i64 j, i64 n) {
    const i64 width = args.width;
    const int children = args.children;
    const T* kept = args.activations + row * (children + 4) * width + j;
    const T *i = kept, *o = kept + (children + 1) * width, *u = kept + (children + 2) * width;
    const T* tanh_c = kept + (children + 3) * width;
    alignas(64) T grad_cell[kBlock], buffer[kBlock];
    const T* gh = args.grad_h ? args.grad_h + row * width + j : nullptr;
    const T* gc = args.grad_c ? args.grad_c + row * width + j : nullptr;
    // Calls fill(out), where out is the gate's place, or a buffer.
    const auto write = [&](int gate, const auto& fill) {
        const auto& to = args.gates[gate];
        T* a = to.a ? to.a + row * to.a_row + j : nullptr;
        const bool is_only_place = a && !to.b && !to.a_adds;
        T* out = is_only_place ? a : buffer;
        fill(out);
        if (!is_only_place) spread(out, a, to.a_adds, to.b ? to.b + row * to.b_row + j : nullptr, n);
    };
    const auto bytes = sizeof(T) * static_cast<std::size_t>(n);
    if (gc) {
        __builtin_memcpy(grad_cell, gc, bytes);
    } else {
        __builtin_memset(grad_cell, 0, bytes);
    }
    write(children + 1, [&](T* out) {
        if (!gh) {
            __builtin_memset(out, 0, bytes);
            return;
        }
#pragma omp simd
        for (i64 t = 0; t < n; ++t) {
            grad_cell[t] += gh[t] * o[t] * (T(1) - tanh_c[t] * tanh_c[t]);
            out[t] = gh[t] * tanh_c[t] * o[t] * (T(1) - o[t]);
        }
    });
    write(0, [&](T* out) {
#pragma omp simd
        for (i64 t = 0; t < n; ++t) out[t] = grad_cell[t] * u[t] * i[t] * (T(1) - i[t]);
    });
    for (int k = 0; k < children; ++k) {
        const T* f = kept + (1 + k) * width;
        const T* c = args.child[k].c + row * args.child[k].row + j;
        write(1 + k, [&](T* out) {
#pragma omp simd
            for (i64 t = 0; t < n; ++t) out[t] = grad_cell[t] * c[t] * f[t] * (T(1) - f[t]);
        });
        if (T* grad = args.child[k].grad) {
            grad += row * width + j;
#pragma omp simd
            for (i64 t = 0; t < n; ++t) grad[t] = grad_cell[t] * f[t];
        }
    }
    write(children + 2, [&](T* out) {
#pragma omp simd
        for (i64 t = 0; t < n; ++t) out[t] = grad_cell[t] * i[t] * (T(1) - u[t] * u[t]);
    });
}

// Plain blocks: a place that is added to must not occur twice.
template <class T>
void lstm_backward(const LstmGatesBackward<T>& args, i64 begin, i64 end) {
    for (i64 row = begin; row < end; ++row) {
        for (i64 j = 0; j < args.width; j += kBlock) {
            lstm_backward_block(args, row, j, args.width - j < kBlock ? args.width - j : kBlock);
        }
    }
}

// --- GRU -------------------------------------------------------------------------------------------------------------------

template <class T>
void gru_backward(const GruGatesBackward<T>& args, i64 begin, i64 end) {
    const i64 width = args.width;
    for (i64 row = begin; row < end; ++row) {
        const T *r = args.activations + row * 3 * width, *z = r + width, *m = z + width;
        const T *y_n = args.y + (row * 3 + 2) * width, *h = args.h + row * width, *g = args.grad + row * width;
        T *grad_x = args.grad_x + row * 3 * width, *grad_y = args.grad_y + row * 3 * width, *grad_h = args.grad_h + row * width;
#pragma omp simd
        for (i64 t = 0; t < width; ++t) {
            const T gn = g[t] * (T(1) - z[t]) * (T(1) - m[t] * m[t]);
            const T gz = g[t] * (h[t] - m[t]) * z[t] * (T(1) - z[t]);
            const T gr = gn * y_n[t] * r[t] * (T(1) - r[t]);
            grad_x[t] = grad_y[t] = gr;
            grad_x[width + t] = grad_y[width + t] = gz;
            grad_x[2 * width + t] = gn;
            grad_y[2 * width + t] = gn * r[t];
            grad_h[t] = g[t] * z[t];
        }
    }
}

}  // namespace

void lstm_gates_backward_f32(const LstmGatesBackward<float>& args, i64 begin, i64 end) { lstm_backward(args, begin, end); }
void lstm_gates_backward_f64(const LstmGatesBackward<double>& args, i64 begin, i64 end) { lstm_backward(args, begin, end); }
void gru_gates_backward_f32(const GruGatesBackward<float>& args, i64 begin, i64 end) { gru_backward(args, begin, end); }
void gru_gates_backward_f64(const GruGatesBackward<double>& args, i64 begin, i64 end) { gru_backward(args, begin, end); }

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
