// Recurrent cells that make one step, and layers that run them over whole sequences. Weight names, layouts, initialisation (uniform on
// +-1 / sqrt(hidden)) and gate orders are PyTorch's, so its weights load as they are.
#pragma once

#include <concepts>

#include "tapir/nn/module.h"
#include "tapir/ops/recurrent/lstm_gates.h"

namespace tapir::nn {

/// Initialisers of a cell's matrices; matrices without one keep the uniform numbers. Each is called once for each gate, with its
/// (hidden, input) or (hidden, hidden) matrix or its (hidden,) bias to be filled in place:
///     {.recurrent = [](const Tensor& w) { nn::init::orthogonal_(w); }}
struct RecurrentInit {
    std::function<void(const Tensor&)> input{}, recurrent{}, bias{};
};

/// The weights of a cell: weight_ih (gates * hidden, input), weight_hh (gates * hidden, hidden) and, unless it has none,
/// biases (gates * hidden,).
struct RecurrentWeights {
    Parameter weight_ih, weight_hh, bias_ih, bias_hh;
};

// --- Cells -------------------------------------------------------------------------------------------------------------------
// x: (batch, input) or (input,); states (batch, hidden) or (hidden,), zeros when undefined.

/// Options of a cell by name, in place of PyTorch's positional ones: nn::LSTMCell(3, 4, {.bias = false}).
struct RecurrentCellOptions {
    bool bias = true;
    bool relu = false;  ///< RNNCell: relu instead of tanh
    RecurrentInit init{};
};

/// Common base of the three cells. Throws DTypeError for an x of integers, ValueError for relu in a cell that lacks this option.
class RecurrentCell : public Module, public RecurrentWeights {
 public:
    void members(Members& m) override;
    std::string describe() const override;
    std::int64_t hidden_size() const noexcept { return weight_hh.shape()[1]; }

 protected:
    RecurrentCell(const char* name, std::int64_t gates, std::int64_t input_size, std::int64_t hidden_size, const RecurrentCellOptions& options,
                  const Loc& loc);
    /// Returns zeros in the shape of the state that belongs to x.
    Tensor initial_state(const Tensor& x, const Loc& loc) const;
};

/// h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu (Elman 1990).
class RNNCell : public RecurrentCell {
 public:
    RNNCell(std::int64_t input_size, std::int64_t hidden_size, const RecurrentCellOptions& options = {}, Loc loc = Loc::current());
    template <std::same_as<bool> Bool>
    RNNCell(std::int64_t input_size, std::int64_t hidden_size, Bool bias, bool relu = false, const RecurrentInit& init = {}, Loc loc = Loc::current())
        : RNNCell(input_size, hidden_size, RecurrentCellOptions{bias, relu, init}, loc) {}
    Tensor forward(In x, const Tensor& h = {}) const;
    Tensor operator()(In x, const Tensor& h = {}) const { return forward(x, h); }

 private:
    bool relu_;
};

/// Gates in the order r, z, n (Cho et al. 2014); the reset gate acts on W_hn h + b_hn.
class GRUCell : public RecurrentCell {
 public:
    GRUCell(std::int64_t input_size, std::int64_t hidden_size, const RecurrentCellOptions& options = {}, Loc loc = Loc::current());
    template <std::same_as<bool> Bool>
    GRUCell(std::int64_t input_size, std::int64_t hidden_size, Bool bias, const RecurrentInit& init = {}, Loc loc = Loc::current())
        : GRUCell(input_size, hidden_size, RecurrentCellOptions{bias, false, init}, loc) {}
    Tensor forward(In x, const Tensor& h = {}) const;
    Tensor operator()(In x, const Tensor& h = {}) const { return forward(x, h); }
};

/// Gates in the order i, f, g, o (Hochreiter and Schmidhuber 1997; Gers et al. 2000).
class LSTMCell : public RecurrentCell {
 public:
    LSTMCell(std::int64_t input_size, std::int64_t hidden_size, const RecurrentCellOptions& options = {}, Loc loc = Loc::current());
    template <std::same_as<bool> Bool>
    LSTMCell(std::int64_t input_size, std::int64_t hidden_size, Bool bias, const RecurrentInit& init = {}, Loc loc = Loc::current())
        : LSTMCell(input_size, hidden_size, RecurrentCellOptions{bias, false, init}, loc) {}
    LSTMState forward(In x, const LSTMState& state = {}) const;
    LSTMState operator()(In x, const LSTMState& state = {}) const { return forward(x, state); }
};

// --- Sequences ---------------------------------------------------------------------------------------------------------------

struct RecurrentOptions {
    std::int64_t num_layers = 1;  ///< each reads the outputs of the one before
    bool bias = true;
    bool batch_first = false;    ///< sequences are (batch, time, feature) instead of (time, batch, feature)
    double dropout = 0;          ///< of one layer's outputs to the next layer, while training; unused with one layer (PyTorch warns)
    bool bidirectional = false;  ///< a second cell in each layer reads from the end; outputs are joined: 2 hidden features
    bool relu = false;           ///< RNN: relu instead of tanh
    RecurrentInit init{};
};

/// Common base of the three layers. Their arguments:
/// - x (time, batch, input), or (batch, time, input) with batch_first, or one sequence (time, input).
/// - The initial state (num_layers * directions, batch, hidden), layer by layer, forward before backward, without `batch`
///   if x has none; zeros when undefined.
/// - lengths (batch,), integers from 0 to time: how many steps of each sequence count; all when undefined. An example's state
///   stops where it ends (the backward direction begins there), no work is done for the rest, and its outputs are zeros.
/// Results: the outputs (time, batch, directions * hidden) of the last layer, in the layout of x, and the last state.
/// Throws ShapeError and DTypeError if these do not fit together, ValueError for a length out of range. Waits for lengths on a CUDA
/// device.
///
/// The input's products of all time steps are one product; a step is then one product and the gates.
///
/// A graph (trace.h) has each step. If time has a name, or lengths are an input, a direction is a scan. Lengths are then not checked: more
/// than time counts as time, less than 0 as 0.
class RecurrentLayers : public Module {
 public:
    /// One entry for each layer and direction: layer 0 forward, layer 0 backward, layer 1 forward, ... .
    /// Named "weight_ih_l0", "weight_ih_l0_reverse", "weight_ih_l1", ... .
    std::vector<RecurrentWeights> weights;

    void members(Members& m) override;
    std::string describe() const override;
    std::int64_t input_size() const noexcept { return weights[0].weight_ih.shape()[1]; }
    std::int64_t hidden_size() const noexcept { return weights[0].weight_hh.shape()[1]; }
    int directions() const noexcept { return options_.bidirectional ? 2 : 1; }

 protected:
    RecurrentLayers(const char* name, std::int64_t gates, std::int64_t input_size, std::int64_t hidden_size, const RecurrentOptions& options,
                    const Loc& loc);

    struct Result {
        Tensor output;
        LSTMState state;  // c is undefined where cells have none
    };
    /// step(input gates of the step, state, weights) returns the next state.
    template <class Step>
    Result run(const In& x, const LSTMState& initial, const Tensor& lengths, bool has_c, bool sums_biases, const Step& step) const;

    RecurrentOptions options_;

 private:
    template <class Step>
    Result run_scans(const Tensor& x, const LSTMState& states, const Tensor& lengths, bool sums_biases, const Step& step, const Loc& loc) const;
    template <class Step>
    Result run_rows(Tensor x, LSTMState states, const Tensor& lengths, bool sums_biases, const Step& step, const Loc& loc) const;
    template <class Direction>
    Result run_layers(Tensor x, const LSTMState& states, bool sums_biases, const Direction& steps) const;
    Tensor checked_state(const Tensor& state, const char* what, const Tensor& x, bool unbatched) const;
    const char* name_;
};

struct RecurrentResult {
    Tensor output, h;
};
struct LSTMResult {
    Tensor output;
    LSTMState state;
};

/// Elman's network: `auto [output, h] = rnn(x);`
class RNN : public RecurrentLayers {
 public:
    RNN(std::int64_t input_size, std::int64_t hidden_size, const RecurrentOptions& options = {}, Loc loc = Loc::current());
    RecurrentResult forward(In x, const Tensor& h = {}, const Tensor& lengths = {}) const;
    RecurrentResult operator()(In x, const Tensor& h = {}, const Tensor& lengths = {}) const { return forward(x, h, lengths); }
};

/// Gated recurrent units, see GRUCell.
class GRU : public RecurrentLayers {
 public:
    GRU(std::int64_t input_size, std::int64_t hidden_size, const RecurrentOptions& options = {}, Loc loc = Loc::current());
    RecurrentResult forward(In x, const Tensor& h = {}, const Tensor& lengths = {}) const;
    RecurrentResult operator()(In x, const Tensor& h = {}, const Tensor& lengths = {}) const { return forward(x, h, lengths); }
};

/// Long short-term memory, see LSTMCell: `auto [output, state] = lstm(x, {}, lengths);`, state.h and state.c.
class LSTM : public RecurrentLayers {
 public:
    LSTM(std::int64_t input_size, std::int64_t hidden_size, const RecurrentOptions& options = {}, Loc loc = Loc::current());
    LSTMResult forward(In x, const LSTMState& state = {}, const Tensor& lengths = {}) const;
    LSTMResult operator()(In x, const LSTMState& state = {}, const Tensor& lengths = {}) const { return forward(x, state, lengths); }
};

}  // namespace tapir::nn
