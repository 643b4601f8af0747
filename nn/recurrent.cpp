// Recurrent cells.
#include "tapir/nn/recurrent.h"

#include <cmath>

#include "tapir/core/fail_impl.h"
#include "tapir/nn/parameter_impl.h"
#include "tapir/ops/elementwise.h"
#include "tapir/ops/matmul.h"

namespace tapir::nn {

RecurrentCell::RecurrentCell(std::int64_t gates, std::int64_t input_size, std::int64_t hidden_size, bool with_bias,
                             const Loc& loc) {
    const double bound = hidden_size > 0 ? 1 / std::sqrt(static_cast<double>(hidden_size)) : 0;
    weight_ih = uniform_parameter({gates * hidden_size, input_size}, bound, loc);
    weight_hh = uniform_parameter({gates * hidden_size, hidden_size}, bound, loc);
    if (!with_bias) return;
    bias_ih = uniform_parameter({gates * hidden_size}, bound, loc);
    bias_hh = uniform_parameter({gates * hidden_size}, bound, loc);
}

void RecurrentCell::members(Members& m) {
    m("weight_ih", weight_ih)("weight_hh", weight_hh)("bias_ih", bias_ih)("bias_hh", bias_hh);
}

std::string RecurrentCell::describe() const {
    return fmt::format("{}, {}{}", weight_ih.shape()[1], hidden_size(), bias_ih.defined() ? "" : ", no bias");
}

Tensor RecurrentCell::initial_state(const Tensor& x, const Loc& loc) const {
    tapir::detail::check_defined(In(x, loc), "RecurrentCell");
    if (x.dim() == 0) fail<ShapeError>(loc, "RecurrentCell: the input must have shape (batch, input) or (input,)");
    Shape shape = x.shape();
    shape[shape.rank() - 1] = hidden_size();
    const tapir::detail::PauseRecording pause;
    Tensor zeros = tapir::detail::make_empty(shape, weight_hh.dtype(), x.device(), loc);
    return zeros.zero_(loc);
}

RNNCell::RNNCell(std::int64_t input_size, std::int64_t hidden_size, bool with_bias, bool relu, Loc loc)
    : RecurrentCell(1, input_size, hidden_size, with_bias, loc), relu_(relu) {}

Tensor RNNCell::forward(In x, const Tensor& h) const {
    const CallerScope caller(x.loc);
    const Tensor state = h.defined() ? h : initial_state(x.tensor, x.loc);
    const Tensor sum = linear(x, weight_ih, bias_ih) + linear(state, weight_hh, bias_hh);
    return relu_ ? relu(sum) : tanh(sum);
}

GRUCell::GRUCell(std::int64_t input_size, std::int64_t hidden_size, bool with_bias, Loc loc)
    : RecurrentCell(3, input_size, hidden_size, with_bias, loc) {}

Tensor GRUCell::forward(In x, const Tensor& h) const {
    const CallerScope caller(x.loc);
    const Tensor state = h.defined() ? h : initial_state(x.tensor, x.loc);
    return gru_gates(linear(x, weight_ih, bias_ih), linear(state, weight_hh, bias_hh), state);
}

LSTMCell::LSTMCell(std::int64_t input_size, std::int64_t hidden_size, bool with_bias, Loc loc)
    : RecurrentCell(4, input_size, hidden_size, with_bias, loc) {}

LSTMState LSTMCell::forward(In x, const LSTMState& state) const {
    const CallerScope caller(x.loc);
    const Tensor h = state.h.defined() ? state.h : initial_state(x.tensor, x.loc);
    const Tensor c = state.c.defined() ? state.c : initial_state(x.tensor, x.loc);
    return lstm_gates(linear(x, weight_ih, bias_ih), c, linear(h, weight_hh, bias_hh));
}

}  // namespace tapir::nn
