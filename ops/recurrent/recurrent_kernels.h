// Gate kernels of the recurrent cells: all of a step that follows its matrix products, in one pass.
#pragma once

#include <cstdint>

#include "tapir/core/dtype.h"
#include "tapir/ops/cpu/isa.h"
#include "tapir/ops/kernels/gpu.h"

namespace tapir::kernels {

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
    std::int64_t width;
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
    std::int64_t width;
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
    std::int64_t width;
    const T *x, *y, *h;
    T* out;                // (rows, width)
    Kept<T>* activations;  // (rows, 3, width): r, z, n. Null: not wanted
};

template <class T>
struct GruGatesBackward {
    std::int64_t width;
    const Kept<T>* activations;
    const T *y, *h, *grad;
    T *grad_x, *grad_y, *grad_h;
};

}  // namespace tapir::kernels

// Rows [begin, end), or all `count` rows; T: float, double, and on a GPU Half, BFloat16.
TAPIR_TYPED_KERNEL(lstm_gates, LstmGates)
TAPIR_TYPED_KERNEL(lstm_gates_backward, LstmGatesBackward)
TAPIR_TYPED_KERNEL(gru_gates, GruGates)
TAPIR_TYPED_KERNEL(gru_gates_backward, GruGatesBackward)
