// The gates of LSTM cells: of sequences, and of trees.
#pragma once

#include "tapir/core/tensor.h"
#include "tapir/ops/join/join.h"

namespace tapir {

/// The state of an LSTM: its output h and its memory cell c.
struct LSTMState {
    Tensor h, c;
};
/// Computes an LSTM step (Hochreiter and Schmidhuber 1997; Gers et al. 2000) from pre-activations in PyTorch's order i, f, g, o:
/// c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c'). gates: (..., 4 h); `more`, if defined, is added.
LSTMState lstm_gates(In gates, In c, const Tensor& more = {});
/// Computes a Tree-LSTM node (Tai et al. 2015, eqs. 9-14) with any number n of children, from pre-activations in the order
/// i, f_1, ..., f_n, o, u: c = sigmoid(i) tanh(u) + sum_k sigmoid(f_k) c_k, h = sigmoid(o) tanh(c).
/// gates: (..., (3 + n) h); without children (..., 3 h).
LSTMState tree_lstm_gates(In gates, TensorList children_c);

}  // namespace tapir
