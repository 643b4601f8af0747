// ONNX's recurrent layers: few steps are unrolled; many, or a number that may differ from run to run, become a scan.
#include <algorithm>

#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/onnx/import_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/linear/matmul.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/recurrent/lstm_gates.h"
#include "tapir/ops/view/view.h"

namespace tapir::detail {
namespace {

using Call = OnnxCall;
using std::int64_t;

constexpr int64_t kMostUnrolled = 32;  // limit for unrolling

// --- Activations by name --------------------------------------------------------------------------------------------------------------

struct Activation {
    std::string name;
    double alpha, beta;
};

Tensor activated(Call& c, const Activation& f, const Tensor& x) {
    if (f.name == "sigmoid") return sigmoid(x);
    if (f.name == "tanh") return tanh(x);
    if (f.name == "relu") return relu(x);
    if (f.name == "affine") return x * f.alpha + f.beta;
    if (f.name == "leakyrelu") return leaky_relu(x, f.alpha);
    if (f.name == "thresholdedrelu") return where(x > f.alpha, x, 0);
    if (f.name == "scaledtanh") return tanh(x * f.beta) * f.alpha;
    if (f.name == "hardsigmoid") return clamp(x * f.alpha + f.beta, 0, 1);
    if (f.name == "elu") return elu(x, f.alpha);
    if (f.name == "softsign") return softsign(x);
    if (f.name == "softplus") return softplus(x);
    c.reject("there is no activation {}", f.name);
}

// The defaults of ONNX's own ops with these names.
std::pair<double, double> defaults_of(const std::string& name) {
    if (name == "leakyrelu") return {0.01, 0};
    if (name == "thresholdedrelu") return {1, 0};
    if (name == "hardsigmoid") return {0.2, 0.5};
    return {1, name == "scaledtanh" ? 1 : 0};
}

// --- A layer: one or two directions ---------------------------------------------------------------------------------------------------

struct State {
    Tensor h, c;  // (batch, hidden)
};

// Operands and attributes, shared by all kinds.
class Layer {
 public:
    // gates: rows of weights for each hidden unit; functions: the activations of one direction.
    Layer(Call& c, int gates, std::vector<std::string> functions) : call(c), gates_(gates) {
        const std::string direction = c.text("direction", "forward");
        directions = direction == "bidirectional" ? 2 : 1;
        is_reverse_ = direction == "reverse";
        is_batch_first = c.flag("layout", false);
        x = c.x(0);
        if (x.dim() != 3) c.reject("its operand has shape {}", x.shape());
        if (is_batch_first) x = transpose(x, 0, 1);
        w = c.x(1);
        r = c.x(2);
        if (w.dim() != 3 || r.dim() != 3 || w.size(0) != directions || r.size(0) != directions) {
            c.reject("weights of shapes {} and {} for {} directions", w.shape(), r.shape(), directions);
        }
        hidden = r.size(2);
        if (c.has(3)) bias = c.x(3);
        if (c.has(4)) lengths = c.x(4);
        clip = c.real("clip", 0);
        read_activations(std::move(functions));
    }

    Tensor first_state(int operand, int direction) const {
        if (!call.has(operand)) return zeros({x.size(1), hidden}, x.dtype());
        const Tensor states = call.x(operand);
        return select(states, is_batch_first ? 1 : 0, direction);
    }
    // The first or the second half of the biases: for the input, or for the state; undefined if there is none.
    Tensor bias_of(int direction, int half) const {
        if (!bias.defined()) return {};
        return narrow(select(bias, 0, direction), 0, half * gates_ * hidden, gates_ * hidden);
    }
    const Activation& activation(int direction, int i) const { return activations_[static_cast<std::size_t>(direction * per_direction_ + i)]; }
    Tensor apply(int direction, int i, const Tensor& z) const {
        return activated(call, activation(direction, i), clip > 0 ? clamp(z, -clip, clip) : z);
    }
    bool has_default_activations() const { return is_default_ && clip == 0; }

    // After its end a sequence's state stays, and its outputs are 0. lives: (batch,), or undefined if all have the same length.
    static std::pair<State, Tensor> ended(State next, const State& before, const Tensor& lives, bool has_c) {
        if (!lives.defined()) return {next, next.h};
        const Tensor column = unsqueeze(lives, 1), output = where(column, next.h, zeros_like(next.h));
        next.h = where(column, next.h, before.h);
        if (has_c) next.c = where(column, next.c, before.c);
        return {next, output};
    }

    // Scans any number of steps. Adds the outputs (steps, batch, hidden) to `all`.
    template <class Step>
    State scan_along(const Tensor& inputs, const State& first, bool has_c, bool goes_back, const Step& step, std::vector<Tensor>& all) const {
        std::vector<Tensor> init{first.h}, xs{inputs};
        if (has_c) init.push_back(first.c);
        if (lengths.defined()) xs.push_back(arange(inputs.size(0), int64));
        const auto combine = [&](const std::vector<Tensor>& t) {
            const State before{t[0], has_c ? t[1] : Tensor()};
            const Tensor lives = lengths.defined() ? lengths > t.back() : Tensor();
            auto [next, output] = ended(step(t[init.size()], before), before, lives, has_c);
            std::vector<Tensor> results{next.h};
            if (has_c) results.push_back(next.c);
            results.push_back(output.is_same(next.h) ? output.clone() : output);
            return results;
        };
        const ScanResult result = scan(combine, init, xs, {.reverse = goes_back});
        all.push_back(result.outputs[0]);
        return {result.carry[0], has_c ? result.carry[1] : Tensor()};
    }

    // Runs step(x of a time (batch, gates * hidden), state) for all times; returns Y, Y_h and, for an LSTM, Y_c.
    template <class Step>
    void run(bool has_c, const Step& step_of) const {
        std::vector<Tensor> all, last_h, last_c;
        const int64_t steps = x.size(0);
        for (int d = 0; d < directions; ++d) {
            const auto step = step_of(d);
            State state{first_state(5, d), has_c ? first_state(6, d) : Tensor()};
            const Tensor inputs = linear(x, select(w, 0, d), bias_of(d, 0));
            const bool goes_back = is_reverse_ || d == 1;
            if (call.interpreter().has_named_dims() || steps > kMostUnrolled) {
                const State last = scan_along(inputs, state, has_c, goes_back, step, all);
                last_h.push_back(last.h);
                last_c.push_back(last.c);
                continue;
            }
            std::vector<Tensor> outputs(static_cast<std::size_t>(steps));
            for (int64_t i = 0; i < steps; ++i) {
                const int64_t t = goes_back ? steps - 1 - i : i;
                auto [next, output] = ended(step(select(inputs, 0, t), state), state, lengths.defined() ? lengths > t : Tensor(), has_c);
                outputs[static_cast<std::size_t>(t)] = output;
                state = std::move(next);
            }
            all.push_back(stack(outputs));  // (steps, batch, hidden)
            last_h.push_back(state.h);
            last_c.push_back(state.c);
        }
        const Tensor y = stack(all, 1);  // (steps, directions, batch, hidden)
        const int place = is_batch_first ? 1 : 0;
        call.give(is_batch_first ? permute(y, {2, 0, 1, 3}) : y);
        call.give(stack(last_h, place));
        if (has_c) call.give(stack(last_c, place));
    }

    Call& call;
    Tensor x, w, r, bias, lengths;  // x: (steps, batch, inputs)
    int directions = 1;
    int64_t hidden = 0;
    double clip = 0;
    bool is_batch_first = false;

 private:
    void read_activations(std::vector<std::string> functions) {
        per_direction_ = static_cast<int>(functions.size());
        std::vector<std::string> names = call.texts("activations");
        is_default_ = names.empty();
        if (names.empty()) {
            for (int d = 0; d < directions; ++d) names.insert(names.end(), functions.begin(), functions.end());
        }
        if (static_cast<int>(names.size()) != directions * per_direction_) call.reject("it has {} activations", names.size());
        const std::vector<double> alphas = call.reals("activation_alpha"), betas = call.reals("activation_beta");
        std::size_t alpha = 0, beta = 0;  // given for activations that have such a number
        for (std::string& name : names) {
            std::transform(name.begin(), name.end(), name.begin(),
                           [](char ch) { return ch >= 'A' && ch <= 'Z' ? static_cast<char>(ch - 'A' + 'a') : ch; });
            auto [a, b] = defaults_of(name);
            const auto is_one_of = [&](std::initializer_list<const char*> list) {
                return std::any_of(list.begin(), list.end(), [&](const char* other) { return name == other; });
            };
            if (is_one_of({"affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"}) && alpha < alphas.size())
                a = alphas[alpha++];
            if (is_one_of({"affine", "scaledtanh", "hardsigmoid"}) && beta < betas.size()) b = betas[beta++];
            activations_.push_back({name, a, b});
        }
    }

    int gates_, per_direction_ = 1;
    bool is_reverse_ = false, is_default_ = true;
    std::vector<Activation> activations_;
};

void rnn(Call& c) {
    const Layer layer(c, 1, {"tanh"});
    layer.run(false, [&](int d) {
        const Tensor r = select(layer.r, 0, d), bias = layer.bias_of(d, 1);
        return [&layer, r, bias, d](const Tensor& x, const State& state) -> State { return {layer.apply(d, 0, x + linear(state.h, r, bias)), {}}; };
    });
}

// ONNX's order of gates is z, r, h.
void gru(Call& c) {
    const Layer layer(c, 3, {"sigmoid", "tanh"});
    const bool linear_first = c.flag("linear_before_reset", false);
    layer.run(false, [&](int d) {
        const Tensor r = select(layer.r, 0, d), bias = layer.bias_of(d, 1);
        const int64_t n = layer.hidden;
        return [&layer, r, bias, n, d, linear_first](const Tensor& x, const State& state) -> State {
            const auto part = [&](const Tensor& of, int i) { return narrow(of, -1, i * n, n); };
            const auto rows = [&](const Tensor& of, int first, int count) { return of.defined() ? narrow(of, 0, first * n, count * n) : Tensor(); };
            Tensor z, reset, candidate;
            if (linear_first) {
                const Tensor h = linear(state.h, r, bias);
                z = layer.apply(d, 0, part(x, 0) + part(h, 0));
                reset = layer.apply(d, 0, part(x, 1) + part(h, 1));
                candidate = layer.apply(d, 1, part(x, 2) + reset * part(h, 2));
            } else {
                const Tensor h = linear(state.h, rows(r, 0, 2), rows(bias, 0, 2));
                z = layer.apply(d, 0, part(x, 0) + part(h, 0));
                reset = layer.apply(d, 0, part(x, 1) + part(h, 1));
                candidate = layer.apply(d, 1, part(x, 2) + linear(reset * state.h, rows(r, 2, 1), rows(bias, 2, 1)));
            }
            return {(1 - z) * candidate + z * state.h, {}};
        };
    });
}

// ONNX's order of gates is i, o, f, c; Tapir's is i, f, c, o.
Tensor reordered(const Tensor& rows, int64_t n) {
    if (!rows.defined()) return rows;
    const auto part = [&](int i) { return narrow(rows, 0, i * n, n); };
    return cat({part(0), part(2), part(3), part(1)}, 0);
}

void lstm(Call& c) {
    Layer layer(c, 4, {"sigmoid", "tanh", "tanh"});
    const Tensor peepholes = c.maybe(7);
    const bool couples = c.flag("input_forget", false);
    const int64_t n = layer.hidden;
    if (layer.has_default_activations() && !peepholes.defined() && !couples) {
        std::vector<Tensor> w, bias;
        for (int d = 0; d < layer.directions; ++d) {
            w.push_back(reordered(select(layer.w, 0, d), n));
            if (layer.bias.defined()) bias.push_back(cat({reordered(layer.bias_of(d, 0), n), reordered(layer.bias_of(d, 1), n)}, 0));
        }
        layer.w = stack(w);
        if (layer.bias.defined()) layer.bias = stack(bias);
        return layer.run(true, [&](int d) {
            const Tensor r = reordered(select(layer.r, 0, d), n), b = layer.bias_of(d, 1);
            return [r, b](const Tensor& x, const State& state) -> State {
                const LSTMState next = lstm_gates(x, state.c, linear(state.h, r, b));
                return {next.h, next.c};
            };
        });
    }
    layer.run(true, [&](int d) {
        const Tensor r = select(layer.r, 0, d), b = layer.bias_of(d, 1);
        const Tensor p = peepholes.defined() ? select(peepholes, 0, d) : Tensor();
        return [&layer, r, b, p, n, d, couples](const Tensor& x, const State& state) -> State {
            const Tensor gates = x + linear(state.h, r, b);
            const auto part = [&](int i) { return narrow(gates, -1, i * n, n); };
            const auto peep = [&](int i, const Tensor& cell) { return p.defined() ? part(i) + narrow(p, 0, i * n, n) * cell : part(i); };
            const Tensor i = layer.apply(d, 0, peep(0, state.c));
            const Tensor f = couples ? 1 - i : layer.apply(d, 0, peep(2, state.c));
            const Tensor cell = f * state.c + i * layer.apply(d, 1, part(3));
            const Tensor o = layer.apply(d, 0, peep(1, cell));
            return {o * activated(layer.call, layer.activation(d, 2), cell), cell};
        };
    });
}

constexpr OnnxOp kRecurrentOps[] = {
    {"RNN", 1, rnn},
    {"GRU", 1, gru},
    {"LSTM", 1, lstm},
};

}  // namespace

std::span<const OnnxOp> onnx_recurrent_ops() { return kRecurrentOps; }

}  // namespace tapir::detail
