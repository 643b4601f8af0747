// Gate kernels of the recurrent cells: all of a step that follows its matrix products, in one pass.
#pragma once

#include <cstdint>
#include <type_traits>

#include "tapir/core/dtype.h"
#include "tapir/ops/cpu/isa.h"
#include "tapir/ops/kernels/gpu.h"

namespace tapir::kernels {

/// The type that activations are kept in for arrays of T: float for 16-bit floats, which the CPU's kernels do not have.
template <class T>
using Kept = std::conditional_t<sizeof(T) == 2, float, T>;

/// An LSTM step with any number of forget gates, one to a child (or predecessor):
///     i, f_k, o = sigmoid(a + b),  u = tanh(a + b),  c = i u + sum_k f_k c_k,  h = o tanh(c)
/// Gates are numbered i, f_1 ... f_n, o, u. A gate's pre-activation is the sum of one or two places in memory.
template <class T>
struct LstmGates {
    struct Gate {
        const T* a;  // row 0; never null
        const T* b;  // null: a alone
        std::int64_t a_row, b_row;
    };
    struct Child {
        const T* c;
        std::int64_t row;
    };
    std::int64_t rows, width;
    int children;
    const Gate* gates;     // [children + 3]
    const Child* child;    // [children]
    T* h;                  // (rows, width); null: not wanted
    T* c;                  // (rows, width); null: not wanted
    Kept<T>* activations;  // (rows, children + 4, width): the gates in their order, then tanh(c). Null: not wanted
};

template <class T>
struct LstmGatesBackward {
    struct Gate {
        T* a;  // null: not wanted
        T* b;
        std::int64_t a_row, b_row;
        bool a_adds;  // the gate before it has the same a, so its gradient is added
    };
    struct Child {
        const T* c;
        T* grad;  // (rows, width); null: not wanted
        std::int64_t row;
    };
    std::int64_t rows, width;
    int children;
    const Gate* gates;
    const Child* child;
    const Kept<T>* activations;
    const T* grad_h;  // (rows, width); null: zero
    const T* grad_c;
};

/// A GRU step: r, z = sigmoid(x + y), n = tanh(x_n + r y_n), h' = (1 - z) n + z h, with x, y: (rows, 3 width) in the
/// order r, z, n.
template <class T>
struct GruGates {
    std::int64_t rows, width;
    const T *x, *y, *h;
    T* out;                // (rows, width)
    Kept<T>* activations;  // (rows, 3, width): r, z, n. Null: not wanted
};

template <class T>
struct GruGatesBackward {
    std::int64_t rows, width;
    const Kept<T>* activations;
    const T *y, *h, *grad;
    T *grad_x, *grad_y, *grad_h;
};

}  // namespace tapir::kernels

TAPIR_CPU_KERNEL(lstm_gates_f32, void(const tapir::kernels::LstmGates<float>& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(lstm_gates_f64, void(const tapir::kernels::LstmGates<double>& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(lstm_gates_backward_f32, void(const tapir::kernels::LstmGatesBackward<float>& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(lstm_gates_backward_f64, void(const tapir::kernels::LstmGatesBackward<double>& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(gru_gates_f32, void(const tapir::kernels::GruGates<float>& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(gru_gates_f64, void(const tapir::kernels::GruGates<double>& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(gru_gates_backward_f32, void(const tapir::kernels::GruGatesBackward<float>& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(gru_gates_backward_f64, void(const tapir::kernels::GruGatesBackward<double>& args, std::int64_t begin, std::int64_t end))

namespace tapir::kernels {
inline void lstm_gates(const LstmGates<float>& a, std::int64_t begin, std::int64_t end) { lstm_gates_f32(a, begin, end); }
inline void lstm_gates(const LstmGates<double>& a, std::int64_t begin, std::int64_t end) { lstm_gates_f64(a, begin, end); }
inline void lstm_gates_backward(const LstmGatesBackward<float>& a, std::int64_t begin, std::int64_t end) { lstm_gates_backward_f32(a, begin, end); }
inline void lstm_gates_backward(const LstmGatesBackward<double>& a, std::int64_t begin, std::int64_t end) { lstm_gates_backward_f64(a, begin, end); }
inline void gru_gates(const GruGates<float>& a, std::int64_t begin, std::int64_t end) { gru_gates_f32(a, begin, end); }
inline void gru_gates(const GruGates<double>& a, std::int64_t begin, std::int64_t end) { gru_gates_f64(a, begin, end); }
inline void gru_gates_backward(const GruGatesBackward<float>& a, std::int64_t begin, std::int64_t end) { gru_gates_backward_f32(a, begin, end); }
inline void gru_gates_backward(const GruGatesBackward<double>& a, std::int64_t begin, std::int64_t end) { gru_gates_backward_f64(a, begin, end); }
}  // namespace tapir::kernels

// All rows, on a GPU; T: float, double, Half, BFloat16. Defined in cuda/recurrent.cu.
namespace tapir::gpu {
#ifdef TAPIR_WITH_CUDA
template <class T>
void lstm_gates(const kernels::LstmGates<T>& args);
template <class T>
void lstm_gates_backward(const kernels::LstmGatesBackward<T>& args);
template <class T>
void gru_gates(const kernels::GruGates<T>& args);
template <class T>
void gru_gates_backward(const kernels::GruGatesBackward<T>& args);
#else  // never called
template <class Args>
[[noreturn]] void lstm_gates(const Args&) {
    __builtin_unreachable();
}
template <class Args>
[[noreturn]] void lstm_gates_backward(const Args&) {
    __builtin_unreachable();
}
template <class Args>
[[noreturn]] void gru_gates(const Args&) {
    __builtin_unreachable();
}
template <class Args>
[[noreturn]] void gru_gates_backward(const Args&) {
    __builtin_unreachable();
}
#endif
}  // namespace tapir::gpu
