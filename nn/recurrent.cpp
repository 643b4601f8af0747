// Recurrent cells and layers.
#include "tapir/nn/recurrent.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <typeinfo>

#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/sequence_loops_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/nn/input_impl.h"
#include "tapir/nn/parameter_impl.h"
#include "tapir/nn/type_name_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/linear/matmul.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/random/dropout.h"
#include "tapir/ops/recurrent/gru_gates.h"
#include "tapir/ops/recurrent/lstm_gates.h"
#include "tapir/ops/view/view.h"

namespace tapir::nn {
namespace {

using std::int64_t;

// Makes a matrix or bias of all gates, uniform on +-1 / sqrt(hidden), or filled gate by gate.
Tensor made(const Shape& shape, int64_t gates, int64_t hidden, const std::function<void(const Tensor&)>& fill, const Loc& loc) {
    const double bound = hidden > 0 ? 1 / std::sqrt(static_cast<double>(hidden)) : 0;
    Tensor weight = uniform_parameter(shape, bound, loc);
    if (fill) {
        const tapir::detail::PauseRecording pause;
        for (int64_t g = 0; g < gates; ++g) fill(weight.narrow(0, g * hidden, hidden, loc));
    }
    return weight;
}

RecurrentWeights make_weights(int64_t gates, int64_t input, int64_t hidden, bool with_bias, const RecurrentInit& init, const Loc& loc) {
    check_hidden(hidden, loc);
    RecurrentWeights w;
    w.weight_ih = made({gates * hidden, input}, gates, hidden, init.input, loc);
    w.weight_hh = made({gates * hidden, hidden}, gates, hidden, init.recurrent, loc);
    if (!with_bias) return w;
    w.bias_ih = made({gates * hidden}, gates, hidden, init.bias, loc);
    w.bias_hh = made({gates * hidden}, gates, hidden, init.bias, loc);
    return w;
}

Tensor constant_zeros(const Shape& shape, DType dtype, Device device, const Loc& loc) {
    if (tapir::detail::is_tracing()) return zeros(shape, {dtype, device}, loc);
    const tapir::detail::PauseRecording pause;
    tapir::detail::begin_op("zeros", device, loc);
    Tensor made = tapir::detail::make_empty(shape, dtype, device, loc);
    return made.zero_(loc);
}

}  // namespace

// --- Cells -------------------------------------------------------------------------------------------------------------------

RecurrentCell::RecurrentCell(const char* name, int64_t gates, int64_t input_size, int64_t hidden_size, const RecurrentCellOptions& options,
                             const Loc& loc)
    : RecurrentWeights(make_weights(gates, input_size, hidden_size, options.bias, options.init, loc)) {
    if (options.relu && gates != 1) fail<ValueError>(loc, "{}: relu is an option of RNNCell only", name);
}

void RecurrentCell::members(Members& m) { m("weight_ih", weight_ih)("weight_hh", weight_hh)("bias_ih", bias_ih)("bias_hh", bias_hh); }

std::string RecurrentCell::describe() const {
    return fmt::format("{}, {}{}", weight_ih.shape()[1], hidden_size(), bias_ih.defined() ? "" : ", no bias");
}

Tensor RecurrentCell::initial_state(const Tensor& x, const Loc& loc) const {
    if (!x.defined()) tapir::detail::check_defined(In(x, loc), type_name(typeid(*this)).c_str());
    if (x.dim() == 0) {
        const int64_t in = weight_ih.shape()[1];
        fail<ShapeError>(loc, "{}: the input must have shape (batch, {}) or ({},), got ()", type_name(typeid(*this)), in, in);
    }
    Shape shape = x.shape();
    shape[shape.rank() - 1] = hidden_size();
    return constant_zeros(shape, weight_hh.dtype(), x.device(), loc);
}

RNNCell::RNNCell(int64_t input_size, int64_t hidden_size, const RecurrentCellOptions& options, Loc loc)
    : RecurrentCell("RNNCell", 1, input_size, hidden_size, options, loc), relu_(options.relu) {}

Tensor RNNCell::forward(In x, const Tensor& h) const {
    const ModuleScope scope(*this);
    check_floating("RNNCell", x);
    const CallerScope caller(x.loc);
    const Tensor state = h.defined() ? h : initial_state(x.tensor, x.loc);
    const Tensor sum = linear(x, weight_ih, bias_ih) + linear(state, weight_hh, bias_hh);
    return relu_ ? relu(sum) : tanh(sum);
}

GRUCell::GRUCell(int64_t input_size, int64_t hidden_size, const RecurrentCellOptions& options, Loc loc)
    : RecurrentCell("GRUCell", 3, input_size, hidden_size, options, loc) {}

Tensor GRUCell::forward(In x, const Tensor& h) const {
    const ModuleScope scope(*this);
    check_floating("GRUCell", x);
    const CallerScope caller(x.loc);
    const Tensor state = h.defined() ? h : initial_state(x.tensor, x.loc);
    return gru_gates(linear(x, weight_ih, bias_ih), linear(state, weight_hh, bias_hh), state);
}

LSTMCell::LSTMCell(int64_t input_size, int64_t hidden_size, const RecurrentCellOptions& options, Loc loc)
    : RecurrentCell("LSTMCell", 4, input_size, hidden_size, options, loc) {}

LSTMState LSTMCell::forward(In x, const LSTMState& state) const {
    const ModuleScope scope(*this);
    check_floating("LSTMCell", x);
    const CallerScope caller(x.loc);
    const Tensor h = state.h.defined() ? state.h : initial_state(x.tensor, x.loc);
    const Tensor c = state.c.defined() ? state.c : initial_state(x.tensor, x.loc);
    return lstm_gates(linear(x, weight_ih, bias_ih), c, linear(h, weight_hh, bias_hh));
}

// --- Sequences ---------------------------------------------------------------------------------------------------------------

namespace {

// Note [Sequences of several lengths]
// The examples are sorted, the longest first. At time t those that go on are then the first active[t] rows, and the rows of
// all times, one time after the other, hold nothing but what counts: the layers work on these rows. Without lengths they are
// simply x as (time * batch, feature).
struct Rows {
    std::vector<int64_t> active;  // number of examples at each time
    Tensor order, places;         // with lengths: example of each row of the state, and position of each row in x's
    Tensor back_order;            // for each example its row
    Tensor sources;               // for each position in x its row; one past the last row if it has none
};

// Suggests that batch and time are swapped, if the input has as many steps as examples were expected.
std::string layout_hint(const char* name, bool batch_first, int64_t examples, int64_t time, int64_t batch) {
    if (examples != time || time == batch) return {};
    if (batch_first) return fmt::format("; is the input (time, batch, features)? This {} was made with .batch_first = true", name);
    return fmt::format("; is the input (batch, time, features)? Then make the {} with {{.batch_first = true}}", name);
}

void check_lengths(const char* name, const Tensor& lengths, bool batch_first, int64_t time, int64_t batch, const Loc& loc) {
    if (is_floating(lengths.dtype()) || lengths.dtype() == bool_) {
        fail<DTypeError>(loc, "{}: lengths must be integers, not {}", name, tapir::name(lengths.dtype()));
    }
    if (lengths.shape() != Shape{batch}) {
        fail<ShapeError>(loc, "{}: lengths have shape {}, expected {}{}", name, lengths.shape(), Shape{batch},
                         lengths.dim() == 1 ? layout_hint(name, batch_first, lengths.numel(), time, batch) : "");
    }
}

std::vector<int64_t> values_of_lengths(const char* name, const Tensor& lengths, int64_t time, const Loc& loc) {
    const std::vector<int64_t> values = lengths.to_vector<int64_t>(loc);
    for (const int64_t length : values) {
        if (length < 0 || length > time) fail<ValueError>(loc, "{}: length {} of a sequence of {} steps", name, length, time);
    }
    return values;
}

Rows arrange(const std::vector<int64_t>& lengths, int64_t time, Device device) {
    const auto batch = static_cast<int64_t>(lengths.size());
    std::vector<int64_t> order(lengths.size()), back(lengths.size()), places, sources(static_cast<std::size_t>(time * batch));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return lengths[static_cast<std::size_t>(a)] > lengths[static_cast<std::size_t>(b)]; });
    for (int64_t i = 0; i < batch; ++i) back[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])] = i;
    Rows rows;
    for (int64_t t = 0; t < time; ++t) {
        int64_t n = 0;
        while (n < batch && lengths[static_cast<std::size_t>(order[static_cast<std::size_t>(n)])] > t) {
            places.push_back(t * batch + order[static_cast<std::size_t>(n++)]);
        }
        rows.active.push_back(n);
    }
    std::fill(sources.begin(), sources.end(), static_cast<int64_t>(places.size()));
    for (std::size_t i = 0; i < places.size(); ++i) sources[static_cast<std::size_t>(places[i])] = static_cast<int64_t>(i);
    rows.order = tensor(order, {int64, device});
    rows.back_order = tensor(back, {int64, device});
    rows.places = tensor(places, {int64, device});
    rows.sources = tensor(sources, {int64, device});
    return rows;
}

Tensor first_rows(const Tensor& x, int64_t n) { return x.defined() && x.shape()[0] > n ? narrow(x, 0, 0, n) : x; }
Tensor rows_from(const Tensor& x, int64_t begin, int64_t end) { return x.defined() ? narrow(x, 0, begin, end - begin) : x; }
Tensor joined(const Tensor& above, const Tensor& below) { return above.defined() ? cat({above, below}) : above; }

// Joins the last first.
Tensor joined_reversed(const std::vector<LSTMState>& states, Tensor LSTMState::* part) {
    std::vector<Tensor> parts;
    for (std::size_t i = states.size(); i-- > 0;) parts.push_back(states[i].*part);
    return parts.size() == 1 ? parts[0] : parts[0].defined() ? cat(parts) : Tensor();
}

// Results of one direction: the state of each step, and the last.
struct Steps {
    Tensor outputs;
    LSTMState last;
};

// Runs all steps of one cell as a scan. `gates` are the input's (time, batch, gates). `counts` (time, batch, 1), or undefined, is true for
// the steps that an example has; in others its state does not change, and its output is 0.
template <class Step>
Steps scan_direction(const Tensor& gates, const Tensor& counts, const LSTMState& initial, bool reverse, const Step& step, const Loc& loc) {
    const bool has_c = initial.c.defined();
    const std::size_t carries = has_c ? 2 : 1;
    const auto one = [&](const std::vector<Tensor>& now) {
        const LSTMState state{now[0], has_c ? now[1] : Tensor()};
        LSTMState next = step(now[carries], state);
        Tensor output = next.h;
        if (counts.defined()) {
            const Tensor& is_on = now.back();
            output = where(is_on, next.h, 0);
            next = {where(is_on, next.h, state.h), has_c ? where(is_on, next.c, state.c) : Tensor()};
        }
        return has_c ? std::vector{next.h, next.c, output} : std::vector{next.h, output};
    };
    std::vector<Tensor> carry{initial.h}, xs{gates};
    if (has_c) carry.push_back(initial.c);
    if (counts.defined()) xs.push_back(counts);
    const ScanResult all = scan(one, carry, xs, {.reverse = reverse}, loc);
    return {all.outputs[0], {all.carry[0], has_c ? all.carry[1] : Tensor()}};
}

// Runs all steps of one cell. `gates` are the input's, row by row for all times. Stores the states of all times in `outputs`.
template <class Step>
LSTMState run_direction(const Tensor& gates, const std::vector<int64_t>& active, const LSTMState& initial, bool reverse, std::vector<Tensor>& outputs,
                        const Step& step) {
    const std::vector<Tensor> parts = split(gates, active);
    const std::size_t times = active.size();
    outputs.assign(times, Tensor());
    std::vector<LSTMState> ended;  // the shortest examples first
    const int64_t batch = initial.h.shape()[0];
    int64_t rows = times == 0 ? batch : reverse ? active.back() : batch;
    LSTMState state{first_rows(initial.h, rows), first_rows(initial.c, rows)};
    if (gates.shape()[0] == 0) {  // runs one step of no examples, so that the weights are used and get a gradient of zeros
        const LSTMState none = step(gates, {narrow(initial.h, 0, 0, 0), initial.c.defined() ? narrow(initial.c, 0, 0, 0) : Tensor()});
        outputs.assign(1, none.h);
        return batch == 0 ? none : initial;
    }
    for (std::size_t i = 0; i < times; ++i) {
        const std::size_t t = reverse ? times - 1 - i : i;
        if (active[t] < rows) {
            ended.push_back({rows_from(state.h, active[t], rows), rows_from(state.c, active[t], rows)});
            state = {first_rows(state.h, active[t]), first_rows(state.c, active[t])};
        } else if (active[t] > rows) {  // backward direction: the examples that end here begin
            state = {joined(state.h, rows_from(initial.h, rows, active[t])), joined(state.c, rows_from(initial.c, rows, active[t]))};
        }
        rows = active[t];
        if (rows > 0) state = step(parts[t], state);
        outputs[t] = state.h;
    }
    if (rows < batch && reverse) {  // examples without a step
        ended.push_back({rows_from(initial.h, rows, batch), rows_from(initial.c, rows, batch)});
    }
    ended.push_back(state);
    return {joined_reversed(ended, &LSTMState::h), joined_reversed(ended, &LSTMState::c)};
}

Tensor packed_outputs(const std::vector<Tensor>& outputs) {
    std::vector<Tensor> parts;
    for (const Tensor& t : outputs) {
        if (t.shape()[0] > 0) parts.push_back(t);
    }
    return parts.empty() ? outputs[0] : cat(parts);
}

}  // namespace

RecurrentLayers::RecurrentLayers(const char* name, int64_t gates, int64_t input_size, int64_t hidden_size, const RecurrentOptions& options,
                                 const Loc& loc)
    : options_(options), name_(name) {
    if (input_size < 1 || hidden_size < 1 || options.num_layers < 1) {
        fail<ValueError>(loc, "{}: sizes and num_layers must be at least 1, got {}, {} and {}", name, input_size, hidden_size, options.num_layers);
    }
    if (options.num_layers > kMostLayers) {
        fail<ValueError>(loc, "{}: num_layers must be at most {}, got {}", name, kMostLayers, options.num_layers);
    }
    if (!(options.dropout >= 0 && options.dropout <= 1)) {
        fail<ValueError>(loc, "{}: dropout must be in [0, 1], got {}", name, options.dropout);
    }
    if (options.relu && gates != 1) fail<ValueError>(loc, "{}: relu is an option of RNN only", name);
    for (int64_t i = 0; i < options.num_layers * directions(); ++i) {
        const int64_t input = i < directions() ? input_size : hidden_size * directions();
        weights.push_back(make_weights(gates, input, hidden_size, options.bias, options.init, loc));
    }
    options_.init = {};
}

void RecurrentLayers::members(Members& m) {
    for (std::size_t i = 0; i < weights.size(); ++i) {
        const auto d = static_cast<std::size_t>(directions());
        const std::string end = fmt::format("_l{}{}", i / d, i % d == 1 ? "_reverse" : "");
        RecurrentWeights& w = weights[i];
        m(("weight_ih" + end).c_str(), w.weight_ih)(("weight_hh" + end).c_str(), w.weight_hh);
        m(("bias_ih" + end).c_str(), w.bias_ih)(("bias_hh" + end).c_str(), w.bias_hh);
    }
}

std::string RecurrentLayers::describe() const {
    std::string text = fmt::format("{}, {}", input_size(), hidden_size());
    if (options_.num_layers > 1) text += fmt::format(", layers {}", options_.num_layers);
    if (!options_.bias) text += ", no bias";
    if (options_.batch_first) text += ", batch first";
    if (options_.dropout > 0) text += fmt::format(", dropout {}{}", options_.dropout, options_.num_layers == 1 ? " (none: one layer)" : "");
    if (options_.bidirectional) text += ", bidirectional";
    return text;
}

// Checks for (layers * directions, batch, hidden); makes zeros if undefined.
Tensor RecurrentLayers::checked_state(const Tensor& state, const char* what, const Tensor& x, bool unbatched) const {
    const Loc& loc = tapir::detail::thread.caller;
    Shape shape{static_cast<int64_t>(weights.size()), x.shape()[1], hidden_size()};
    if (!state.defined()) return constant_zeros(shape, weights[0].weight_hh.dtype(), x.device(), loc);
    const Tensor given = unbatched && state.dim() == 2 ? unsqueeze(state, 1) : state;
    if (given.shape() != shape) {
        if (unbatched) shape.erase(1);
        const std::string hint =
            state.dim() == 3 && !unbatched ? layout_hint(name_, options_.batch_first, state.shape()[1], x.shape()[0], x.shape()[1]) : "";
        fail<ShapeError>(loc, "{}: the state {} has shape {}, expected {}{}", name_, what, state.shape(), shape, hint);
    }
    return given;
}

template <class Step>
RecurrentLayers::Result RecurrentLayers::run(const In& in, const LSTMState& initial, const Tensor& lengths, bool has_c, bool sums_biases,
                                             const Step& step) const {
    tapir::detail::check_defined(in, name_);
    const Loc& loc = in.loc;
    const CallerScope caller(loc);
    Tensor x = in.tensor;
    const bool unbatched = x.dim() == 2;
    check_floating(name_, in);
    if ((x.dim() != 2 && x.dim() != 3) || x.shape().back() != input_size()) {
        const bool is_turned = x.dim() == 3 && x.shape()[1] == input_size();
        const bool lacks_time = x.dim() == 1 && x.shape()[0] == input_size();
        fail<ShapeError>(
            loc, "{}: the input must have shape ({}, {}) or (time, {}), got {}{}", name_, options_.batch_first ? "batch, time" : "time, batch",
            input_size(), input_size(), x.shape(),
            is_turned ? "; are its features in dimension 1? x.transpose(1, 2) has them last" : tapir::detail::missing_hint(lacks_time, "time's"));
    }
    if (unbatched) {
        x = unsqueeze(x, 1);
    } else if (options_.batch_first) {
        x = transpose(x, 0, 1);
    }
    const int64_t time = x.shape()[0], batch = x.shape()[1];
    LSTMState states{checked_state(initial.h, "h", x, unbatched), has_c ? checked_state(initial.c, "c", x, unbatched) : Tensor()};

    const Tensor of_batch = unbatched && lengths.defined() && lengths.dim() == 0 ? unsqueeze(lengths, 0) : lengths;
    if (of_batch.defined()) check_lengths(name_, of_batch, options_.batch_first, time, batch, loc);
    const bool is_traced = tapir::detail::is_tracing();
    tapir::detail::sequence_loops.were_met |= is_traced;
    const Result all = is_traced && tapir::detail::sequence_loops.are_scans ? run_scans(x, states, of_batch, sums_biases, step, loc)
                                                                            : run_rows(x, states, of_batch, sums_biases, step, loc);
    if (unbatched) return {squeeze(all.output, 1), {squeeze(all.state.h, 1), has_c ? squeeze(all.state.c, 1) : Tensor()}};
    return {options_.batch_first ? transpose(all.output, 0, 1) : all.output, all.state};
}

// x: (time, batch, features).
template <class Step>
RecurrentLayers::Result RecurrentLayers::run_scans(const Tensor& x, const LSTMState& states, const Tensor& lengths, bool sums_biases,
                                                   const Step& step, const Loc& loc) const {
    Tensor counts;  // (time, batch, 1)
    if (lengths.defined()) counts = unsqueeze(unsqueeze(arange(x.shape()[0], {int64, x.device()}), 1) < lengths.to(x.device()), 2);
    return run_layers(x, states, sums_biases, [&](const Tensor& gates, const LSTMState& first, bool reverse, const RecurrentWeights& w) {
        return scan_direction(gates, counts, first, reverse, [&](const Tensor& part, const LSTMState& state) { return step(part, state, w); }, loc);
    });
}

// Works only on the rows that count, see Note [Sequences of several lengths].
template <class Step>
RecurrentLayers::Result RecurrentLayers::run_rows(Tensor x, LSTMState states, const Tensor& lengths, bool sums_biases, const Step& step,
                                                  const Loc& loc) const {
    const int64_t time = x.shape()[0], batch = x.shape()[1];
    const auto reordered = [](const LSTMState& all, const Tensor& order) {
        return LSTMState{index_select(all.h, 1, order), all.c.defined() ? index_select(all.c, 1, order) : Tensor()};
    };
    x = reshape(x, {time * batch, input_size()});
    Rows rows;
    if (lengths.defined()) {
        rows = arrange(values_of_lengths(name_, lengths, time, loc), time, x.device());
        x = index_select(x, 0, rows.places);
        states = reordered(states, rows.order);
    } else {
        rows.active.assign(static_cast<std::size_t>(time), batch);
    }
    std::vector<Tensor> outputs;
    auto [output, last] =
        run_layers(x, states, sums_biases, [&](const Tensor& gates, const LSTMState& first, bool reverse, const RecurrentWeights& w) {
            const LSTMState end = run_direction(gates, rows.active, first, reverse, outputs,
                                                [&](const Tensor& part, const LSTMState& state) { return step(part, state, w); });
            return Steps{packed_outputs(outputs), end};
        });
    if (lengths.defined()) {
        last = reordered(last, rows.back_order);
        output = index_select(cat({output, constant_zeros({1, output.shape()[1]}, output.dtype(), output.device(), loc)}), 0, rows.sources);
    }
    return {reshape(output, {time, batch, directions() * hidden_size()}), last};
}

// steps(gates of the input, first state, reverse, weights) runs one direction.
template <class Direction>
RecurrentLayers::Result RecurrentLayers::run_layers(Tensor x, const LSTMState& states, bool sums_biases, const Direction& steps) const {
    const bool has_c = states.c.defined();
    std::vector<Tensor> last_h, last_c;
    for (std::size_t i = 0; i < weights.size();) {
        Tensor directions_of_x[2];
        for (int d = 0; d < directions(); ++d, ++i) {
            const RecurrentWeights& w = weights[i];
            const bool one_bias = sums_biases && w.bias_ih.defined();
            const Tensor gates = linear(x, w.weight_ih, one_bias ? w.bias_ih + w.bias_hh : Tensor(w.bias_ih));
            const auto layer = static_cast<int64_t>(i);
            const LSTMState first{select(states.h, 0, layer), has_c ? select(states.c, 0, layer) : Tensor()};
            Steps all = steps(gates, first, d == 1, w);
            last_h.push_back(all.last.h);
            last_c.push_back(all.last.c);
            directions_of_x[d] = std::move(all.outputs);
        }
        x = directions() == 2 ? cat({directions_of_x[0], directions_of_x[1]}, -1) : directions_of_x[0];
        if (i < weights.size() && options_.dropout > 0) x = dropout(x, options_.dropout, is_training());
    }
    return {x, {stack(last_h), has_c ? stack(last_c) : Tensor()}};
}

RNN::RNN(int64_t input_size, int64_t hidden_size, const RecurrentOptions& options, Loc loc)
    : RecurrentLayers("RNN", 1, input_size, hidden_size, options, loc) {}

RecurrentResult RNN::forward(In x, const Tensor& h, const Tensor& lengths) const {
    const ModuleScope scope(*this);
    Result result = run(x, {h, {}}, lengths, false, true, [&](const Tensor& gates, const LSTMState& state, const RecurrentWeights& w) {
        const Tensor sum = gates + linear(state.h, w.weight_hh);
        return LSTMState{options_.relu ? relu(sum) : tanh(sum), {}};
    });
    return {result.output, result.state.h};
}

GRU::GRU(int64_t input_size, int64_t hidden_size, const RecurrentOptions& options, Loc loc)
    : RecurrentLayers("GRU", 3, input_size, hidden_size, options, loc) {}

RecurrentResult GRU::forward(In x, const Tensor& h, const Tensor& lengths) const {
    const ModuleScope scope(*this);
    Result result = run(x, {h, {}}, lengths, false, false, [](const Tensor& gates, const LSTMState& state, const RecurrentWeights& w) {
        return LSTMState{gru_gates(gates, linear(state.h, w.weight_hh, w.bias_hh), state.h), {}};
    });
    return {result.output, result.state.h};
}

LSTM::LSTM(int64_t input_size, int64_t hidden_size, const RecurrentOptions& options, Loc loc)
    : RecurrentLayers("LSTM", 4, input_size, hidden_size, options, loc) {}

LSTMResult LSTM::forward(In x, const LSTMState& state, const Tensor& lengths) const {
    const ModuleScope scope(*this);
    Result result = run(x, state, lengths, true, true, [](const Tensor& gates, const LSTMState& s, const RecurrentWeights& w) {
        return lstm_gates(gates, s.c, linear(s.h, w.weight_hh));
    });
    return {result.output, result.state};
}

}  // namespace tapir::nn
