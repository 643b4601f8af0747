// The gates of a GRU cell.
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

/// Computes a GRU step (Cho et al. 2014, as in cuDNN and PyTorch) from the input's and the state's pre-activations, both
/// (..., 3 h) in the order r, z, n: n = tanh(x_n + sigmoid(r) h_n), h' = (1 - sigmoid(z)) n + sigmoid(z) h.
Tensor gru_gates(In x_gates, In h_gates, In h);

}  // namespace tapir
