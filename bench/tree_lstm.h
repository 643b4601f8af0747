// The Tree-LSTM of the benches on Tapir: bench_tapir on the CPU, cuda_tapir on a GPU.
#pragma once

#include <tapir/tapir.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "sst.h"

namespace bench {

using tapir::Tape;
using tapir::Tensor;

using Example = ExampleOf<Tensor>;

/// On the default device. Empty where there is no data.
inline const std::vector<Example>& examples(std::size_t* words) {
    return examples_of<Tensor>([](const std::vector<std::int64_t>& v) { return tapir::tensor(v); }, words);
}

/// A leaf on the default device.
inline Tensor fixed(const tapir::Shape& shape, std::uint32_t seed) {
    Tensor made = tapir::empty(shape, tapir::cpu);
    const std::vector<float> weights = fixed_weights(static_cast<std::size_t>(made.numel()), seed);
    std::copy(weights.begin(), weights.end(), made.data<float>());
    return made.to(tapir::default_device()).clone().detach().requires_grad_();  // a copy, whose address nobody has
}

struct TreeLstm {
    using State = tapir::LSTMState;

    TreeLstm(std::int64_t size, std::size_t words)
        : embedding(fixed({static_cast<std::int64_t>(words), size}, 1)), leaf_w(fixed({3 * size, size}, 2)), leaf_b(fixed({3 * size}, 3)),
          inner_w(fixed({5 * size, 2 * size}, 4)), inner_b(fixed({5 * size}, 5)), class_w(fixed({5, size}, 6)), class_b(fixed({5}, 7)), h(size) {}

    /// Logits of all nodes, (nodes, 5).
    Tensor logits(const Example& example, How how) const {
        const Tensor x = tapir::embedding(example.words, embedding);
        const auto inner = [&](const State& left, const State& right) {
            const State state = how == How::plain_ops ? plain_inner_state(left, right) : inner_state(left, right);
            return how == How::branching && state.h[0].item() > 0 ? inner_state(state, left) : state;
        };
        std::vector<State> states;
        if (how == How::leaves_together) {
            const State all = tapir::tree_lstm_gates(tapir::linear(x, leaf_w, leaf_b), {});
            const std::vector<Tensor> h_of = all.h.unbind(), c_of = all.c.unbind();
            states = states_of<State>(*example.tree, [&](std::size_t k) { return State{h_of[k], c_of[k]}; }, inner);
        } else {
            const std::vector<Tensor> inputs = x.unbind();
            const auto leaf = [&](std::size_t k) {
                const Tensor gates = tapir::linear(inputs[k], leaf_w, leaf_b);
                return how == How::plain_ops ? plain_leaf_state(gates) : tapir::tree_lstm_gates(gates, {});
            };
            states = how == How::forking ? forked_states(*example.tree, leaf, inner) : states_of<State>(*example.tree, leaf, inner);
        }
        std::vector<Tensor> hidden;
        hidden.reserve(states.size());
        for (const State& state : states) hidden.push_back(state.h);
        return tapir::linear(tapir::stack(hidden), class_w, class_b);
    }

    // As states_of(), with the children of a node in a batch() of their own.
    template <class Leaf, class Inner>
    static std::vector<State> forked_states(const Tree& tree, const Leaf& leaf, const Inner& inner) {
        std::vector<State> states(tree.size());
        std::vector<std::size_t> leaf_number(tree.size());
        std::size_t leaves = 0;
        for (std::size_t i = 0; i < tree.size(); ++i) leaf_number[i] = tree[i].word >= 0 ? leaves++ : 0;
        const auto encode = [&](std::size_t i, const auto& self) -> void {
            if (tree[i].word >= 0) {
                states[i] = leaf(leaf_number[i]);
                return;
            }
            const std::array<std::size_t, 2> children = {static_cast<std::size_t>(tree[i].left), static_cast<std::size_t>(tree[i].right)};
            tapir::batch(children, [&](std::size_t child) { self(child, self); });
            states[i] = inner(states[children[0]], states[children[1]]);
        };
        encode(tree.size() - 1, encode);
        return states;
    }

    // Gates in the order i, f_l, f_r, o, u; of a leaf i, o, u.
    State inner_state(const State& left, const State& right) const {
        const Tensor gates = tapir::linear(tapir::cat({left.h, right.h}), inner_w, inner_b);
        return tapir::tree_lstm_gates(gates, {left.c, right.c});
    }

    // The same of ops that every library has.
    State plain_leaf_state(const Tensor& gates) const {
        const Tensor s = tapir::sigmoid(gates.narrow(0, 0, 2 * h));
        const Tensor c = s.narrow(0, 0, h) * tapir::tanh(gates.narrow(0, 2 * h, h));
        return {s.narrow(0, h, h) * tapir::tanh(c), c};
    }
    State plain_inner_state(const State& left, const State& right) const {
        const Tensor gates = tapir::linear(tapir::cat({left.h, right.h}), inner_w, inner_b);
        const Tensor s = tapir::sigmoid(gates.narrow(0, 0, 4 * h));
        const Tensor c = s.narrow(0, 0, h) * tapir::tanh(gates.narrow(0, 4 * h, h)) + s.narrow(0, h, h) * left.c + s.narrow(0, 2 * h, h) * right.c;
        return {s.narrow(0, 3 * h, h) * tapir::tanh(c), c};
    }

    Tensor embedding, leaf_w, leaf_b, inner_w, inner_b, class_w, class_b;
    std::int64_t h;
};

/// One pass, with the trees of a step computed together, on as many threads as tapir::num_threads().
inline void train_batched(const TreeLstm& model, tapir::optim::Adagrad& optimizer, const std::vector<Example>& list, std::size_t trees_per_step,
                          How how, double* loss_first, double* loss_pass) {
    *loss_pass = 0;
    for (std::size_t i = 0; i < list.size(); i += trees_per_step) {
        const std::span<const Example> examples(list.data() + i, std::min(trees_per_step, list.size() - i));
        Tape tape;
        const auto loss_of = [&](const Example& example) {
            return tapir::cross_entropy(model.logits(example, how), example.labels, {.reduction = tapir::Reduction::sum});
        };
        const std::vector<Tensor> losses = tapir::batch(examples, loss_of, {.threads = tapir::num_threads()});
        const Tensor all = tapir::stack(losses);
        tape.backward(tapir::sum(all));
        const std::vector<float> values = all.to_vector<float>();
        for (std::size_t k = 0; k < values.size(); ++k) {
            *loss_pass += double{values[k]};
            if (i + k + 1 == kTreesPerStep) *loss_first = *loss_pass;
        }
        optimizer.step();
        optimizer.zero_grad();
    }
}

/// One pass. The losses are read after each step, so that a device need not be waited for after each tree.
inline void train(const TreeLstm& model, tapir::optim::Adagrad& optimizer, const std::vector<Example>& list, How how, double* loss_first,
                  double* loss_pass) {
    std::vector<Tensor> losses;
    *loss_pass = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
        const Example& example = list[i];
        Tape tape;
        losses.push_back(tapir::cross_entropy(model.logits(example, how), example.labels, {.reduction = tapir::Reduction::sum}));
        tape.backward(losses.back());
        if ((i + 1) % kTreesPerStep != 0 && i + 1 != list.size()) continue;
        for (const Tensor& loss : losses) *loss_pass += loss.item<double>();
        losses.clear();
        if ((i + 1) % kTreesPerStep != 0) continue;
        if (i + 1 == kTreesPerStep) *loss_first = *loss_pass;
        optimizer.step();
        optimizer.zero_grad();
    }
}

}  // namespace bench
