// What follows the matrix products in a step of a recurrent or tree-structured cell: all of its gates as one op. The cells
// of nn (LSTMCell, NaryTreeLSTMCell, ...) are made of these; use them directly for cells of your own.
//
// Leading dimensions are free: gates (..., k * h) with state (..., h). Floating dtypes; those of all operands must agree
// (DTypeError), and so must the sizes (ShapeError). Under an AutocastScope a state is converted to the gates' dtype.
#pragma once

#include "tapir/core/tensor.h"
#include "tapir/ops/indexing.h"

namespace tapir {

/// The state of an LSTM: its output h and its memory cell c.
struct LSTMState {
    Tensor h, c;
};

/// An LSTM step (Hochreiter and Schmidhuber 1997; Gers et al. 2000) from pre-activations in PyTorch's order i, f, g, o:
/// c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c'). gates: (..., 4 h); `more`, if defined, is added.
LSTMState lstm_gates(In gates, In c, const Tensor& more = {});

/// A Tree-LSTM node (Tai et al. 2015, eqs. 9-14) with any number n of children, from pre-activations in the order
/// i, f_1, ..., f_n, o, u: c = sigmoid(i) tanh(u) + sum_k sigmoid(f_k) c_k, h = sigmoid(o) tanh(c).
/// gates: (..., (3 + n) h); without children (..., 3 h).
LSTMState tree_lstm_gates(In gates, TensorList children_c);

/// A GRU step (Cho et al. 2014, as in cuDNN and PyTorch) from the input's and the state's pre-activations, both
/// (..., 3 h) in the order r, z, n: n = tanh(x_n + sigmoid(r) h_n), h' = (1 - sigmoid(z)) n + sigmoid(z) h.
Tensor gru_gates(In x_gates, In h_gates, In h);

}  // namespace tapir
