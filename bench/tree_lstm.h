// The Tree-LSTM of the benches on Tapir: bench_tapir on the CPU, cuda_tapir on a GPU.
#pragma once

#include <tapir/tapir.h>

#include <algorithm>
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
    return made.to(tapir::default_device()).detach().requires_grad_();
}

struct TreeLstm {
    using State = tapir::LSTMState;

    TreeLstm(std::int64_t size, std::size_t words)
        : embedding(fixed({static_cast<std::int64_t>(words), size}, 1)), leaf_w(fixed({3 * size, size}, 2)), leaf_b(fixed({3 * size}, 3)),
          inner_w(fixed({5 * size, 2 * size}, 4)), inner_b(fixed({5 * size}, 5)), class_w(fixed({5, size}, 6)), class_b(fixed({5}, 7)), h(size) {}

    /// Logits of all nodes, (nodes, 5).
    Tensor logits(const Example& example, bool leaves_together) const {
        const Tensor x = tapir::embedding(example.words, embedding);
        const auto inner = [this](const State& left, const State& right) { return inner_state(left, right); };
        std::vector<State> states;
        if (leaves_together) {
            const State all = tapir::tree_lstm_gates(tapir::linear(x, leaf_w, leaf_b), {});
            const std::vector<Tensor> h_of = all.h.unbind(), c_of = all.c.unbind();
            states = states_of<State>(*example.tree, [&](std::size_t k) { return State{h_of[k], c_of[k]}; }, inner);
        } else {
            const std::vector<Tensor> inputs = x.unbind();
            const auto leaf = [&](std::size_t k) { return tapir::tree_lstm_gates(tapir::linear(inputs[k], leaf_w, leaf_b), {}); };
            states = states_of<State>(*example.tree, leaf, inner);
        }
        std::vector<Tensor> hidden;
        hidden.reserve(states.size());
        for (const State& state : states) hidden.push_back(state.h);
        return tapir::linear(tapir::stack(hidden), class_w, class_b);
    }

    // Gates in the order i, f_l, f_r, o, u; of a leaf i, o, u.
    State inner_state(const State& left, const State& right) const {
        const Tensor gates = tapir::linear(tapir::cat({left.h, right.h}), inner_w, inner_b);
        return tapir::tree_lstm_gates(gates, {left.c, right.c});
    }

    Tensor embedding, leaf_w, leaf_b, inner_w, inner_b, class_w, class_b;
    std::int64_t h;
};

/// One pass, with the trees of a step computed together.
inline void train_batched(const TreeLstm& model, tapir::optim::Adagrad& optimizer, const std::vector<Example>& list, std::size_t trees_per_step,
                          double* loss_first, double* loss_pass) {
    *loss_pass = 0;
    for (std::size_t i = 0; i < list.size(); i += trees_per_step) {
        const std::span<const Example> examples(list.data() + i, std::min(trees_per_step, list.size() - i));
        Tape tape;
        const std::vector<Tensor> losses = tapir::batch(examples, [&](const Example& example) {
            return tapir::cross_entropy(model.logits(example, /*leaves_together=*/false), example.labels, {.reduction = tapir::Reduction::sum});
        });
        tape.backward(tapir::sum(tapir::stack(losses)));
        for (std::size_t k = 0; k < losses.size(); ++k) {
            *loss_pass += losses[k].item<double>();
            if (i + k + 1 == kTreesPerStep) *loss_first = *loss_pass;
        }
        optimizer.step();
        optimizer.zero_grad();
    }
}

/// One pass. The losses are read after each step, so that a device need not be waited for after each tree.
inline void train(const TreeLstm& model, tapir::optim::Adagrad& optimizer, const std::vector<Example>& list, bool leaves_together, double* loss_first,
                  double* loss_pass) {
    std::vector<Tensor> losses;
    *loss_pass = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
        const Example& example = list[i];
        Tape tape;
        losses.push_back(tapir::cross_entropy(model.logits(example, leaves_together), example.labels, {.reduction = tapir::Reduction::sum}));
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
