// Recurrent cells: one step each. Weight names, layouts, initialisation (uniform on +-1 / sqrt(hidden)) and gate orders are
// PyTorch's, so its weights load as they are. x: (batch, input) or (input,); states (batch, hidden) or (hidden,), zeros when
// undefined.
#pragma once

#include "tapir/nn/module.h"
#include "tapir/ops/recurrent.h"

namespace tapir::nn {

/// What the three cells have in common: weight_ih (gates * hidden, input), weight_hh (gates * hidden, hidden), and biases.
class RecurrentCell : public Module {
 public:
    Tensor weight_ih, weight_hh, bias_ih, bias_hh;

    void members(Members& m) override;
    std::string describe() const override;
    std::int64_t hidden_size() const noexcept { return weight_hh.shape()[1]; }

 protected:
    RecurrentCell(std::int64_t gates, std::int64_t input_size, std::int64_t hidden_size, bool with_bias, const Loc& loc);
    /// Zeros shaped as the state that belongs to x.
    Tensor initial_state(const Tensor& x, const Loc& loc) const;
};

/// h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu (Elman 1990).
class RNNCell : public RecurrentCell {
 public:
    RNNCell(std::int64_t input_size, std::int64_t hidden_size, bool with_bias = true, bool relu = false,
            Loc loc = Loc::current());
    Tensor forward(In x, const Tensor& h = {}) const;
    Tensor operator()(In x, const Tensor& h = {}) const { return forward(x, h); }

 private:
    bool relu_;
};

/// Gates in the order r, z, n (Cho et al. 2014); the reset gate acts on W_hn h + b_hn.
class GRUCell : public RecurrentCell {
 public:
    GRUCell(std::int64_t input_size, std::int64_t hidden_size, bool with_bias = true, Loc loc = Loc::current());
    Tensor forward(In x, const Tensor& h = {}) const;
    Tensor operator()(In x, const Tensor& h = {}) const { return forward(x, h); }
};

/// Gates in the order i, f, g, o (Hochreiter and Schmidhuber 1997; Gers et al. 2000).
class LSTMCell : public RecurrentCell {
 public:
    LSTMCell(std::int64_t input_size, std::int64_t hidden_size, bool with_bias = true, Loc loc = Loc::current());
    LSTMState forward(In x, const LSTMState& state = {}) const;
    LSTMState operator()(In x, const LSTMState& state = {}) const { return forward(x, state); }
};

}  // namespace tapir::nn
