// The work of work.h on Tapir.
#include <tapir/core/parallel.h>
#include <tapir/tapir.h>

#include <string>
#include <vector>

#include "sst.h"
#include "work.h"

namespace bench {
namespace {

using tapir::Tape;
using tapir::Tensor;

Tensor leaf(const tapir::Shape& shape) { return tapir::randn(shape).requires_grad_(); }

template <class Op>
void time_op(State& state, const Op& op) {
    for (auto _ : state) benchmark::DoNotOptimize(op());
    state.SetItemsProcessed(state.iterations());
}

/// kChain calls on each tape: making and ending the tape is in the time.
template <class Op>
void time_recorded(State& state, const Op& op) {
    for (auto _ : state) {
        const Tape tape;
        for (int i = 0; i < kChain; ++i) benchmark::DoNotOptimize(op());
    }
    state.SetItemsProcessed(state.iterations() * kChain);
}

template <class Op>
void time_backward_of_chain(State& state, const Op& op) {
    Tensor x = leaf({4});
    for (auto _ : state) {
        state.PauseTiming();
        {
            Tape tape;
            Tensor y = x;
            for (int i = 0; i < kChain; ++i) y = op(y);
            const Tensor loss = tapir::sum(y);
            y = Tensor();
            x.zero_grad();
            state.ResumeTiming();
            tape.backward(loss);
            state.PauseTiming();
        }
        state.ResumeTiming();
    }
    state.SetItemsProcessed(state.iterations() * kChain);
}

}  // namespace

void start() { tapir::set_num_threads(1); }

void add_float4(State& state) {
    const Tensor a = tapir::randn({4}), b = tapir::randn({4});
    time_op(state, [&] { return a + b; });
}

void add_float4_recorded(State& state) {
    const Tensor a = tapir::randn({4}), b = leaf({4});
    time_recorded(state, [&] { return a + b; });
}

void backward_add_chain(State& state) {
    const Tensor b = tapir::randn({4});
    time_backward_of_chain(state, [&](const Tensor& y) { return y + b; });
}

void backward_tanh_chain(State& state) {
    time_backward_of_chain(state, [](const Tensor& y) { return tapir::tanh(y); });
}

void linear_1x64_recorded(State& state) {
    const Tensor x = tapir::randn({1, 64}), w = leaf({64, 64}), b = leaf({64});
    time_recorded(state, [&] { return tapir::linear(x, w, b); });
}

void view(State& state) {
    const Tensor x = tapir::randn({4, 4});
    time_op(state, [&] { return x.view({2, 8}); });
}

void narrow(State& state) {
    const Tensor x = tapir::randn({4, 4});
    time_op(state, [&] { return x.narrow(0, 1, 2); });
}

void add_n(State& state, std::int64_t n) {
    const Tensor a = tapir::randn({n}), b = tapir::randn({n});
    time_op(state, [&] { return a + b; });
}

void unary_n(State& state, Unary op, std::int64_t n) {
    const Tensor x = tapir::randn({n});
    switch (op) {
        case Unary::kTanh:
            return time_op(state, [&] { return tapir::tanh(x); });
        case Unary::kSigmoid:
            return time_op(state, [&] { return tapir::sigmoid(x); });
        case Unary::kExp:
            return time_op(state, [&] { return tapir::exp(x); });
    }
}

void sum_n(State& state, std::int64_t n) {
    const Tensor x = tapir::randn({n});
    time_op(state, [&] { return tapir::sum(x); });
}

void softmax_rows(State& state, std::int64_t rows, std::int64_t columns) {
    const Tensor x = tapir::randn({rows, columns});
    time_op(state, [&] { return tapir::softmax(x, /*dim=*/1); });
}

void layer_norm_rows(State& state, std::int64_t rows, std::int64_t columns) {
    const Tensor x = tapir::randn({rows, columns});
    tapir::nn::LayerNorm layer({columns});
    time_op(state, [&] { return layer(x); });
}

void matmul_square(State& state, std::int64_t n) {
    const Tensor a = tapir::randn({n, n}), b = tapir::randn({n, n});
    time_op(state, [&] { return tapir::matmul(a, b); });
}

void mlp_step(State& state) {
    tapir::nn::Linear first(784, 256), second(256, 10);
    std::vector<Tensor> parameters = first.parameters();
    for (const Tensor& p : second.parameters()) parameters.push_back(p);
    tapir::optim::SGD optimizer(parameters, {.lr = 0.01});
    const Tensor x = tapir::randn({64, 784}), target = tapir::randint(0, 10, {64});
    for (auto _ : state) {
        optimizer.zero_grad();
        Tape tape;
        tape.backward(tapir::cross_entropy(second(tapir::relu(first(x))), target));
        optimizer.step();
    }
    state.SetItemsProcessed(state.iterations());
}

// --- Tree-LSTM
// ----------------------------------------------------------------------------------------------------------

namespace {

struct Example {
    const Tree* tree;
    Tensor words;   // (leaves)
    Tensor labels;  // (nodes)
};

/// Empty where there is no data.
const std::vector<Example>& examples(std::size_t* words) {
    static const Treebank bank = read_treebank(sst_dir() + "/train.txt", kTrees);
    static const std::vector<Example> list = [] {
        std::vector<Example> made;
        for (const Tree& tree : bank.trees) {
            std::vector<std::int64_t> leaves, labels;
            for (const Node& node : tree) {
                if (node.word >= 0) leaves.push_back(node.word);
                labels.push_back(node.label);
            }
            made.push_back({&tree, tapir::tensor(leaves), tapir::tensor(labels)});
        }
        return made;
    }();
    *words = bank.words;
    return list;
}

Tensor fixed(const tapir::Shape& shape, std::uint32_t seed) {
    Tensor made = tapir::empty(shape);
    const std::vector<float> weights = fixed_weights(static_cast<std::size_t>(made.numel()), seed);
    std::copy(weights.begin(), weights.end(), made.data<float>());
    return made.requires_grad_();
}

struct TreeLstm {
    TreeLstm(std::int64_t size, std::size_t words)
        : embedding(fixed({static_cast<std::int64_t>(words), size}, 1)),
          leaf_w(fixed({3 * size, size}, 2)),
          leaf_b(fixed({3 * size}, 3)),
          inner_w(fixed({5 * size, 2 * size}, 4)),
          inner_b(fixed({5 * size}, 5)),
          class_w(fixed({5, size}, 6)),
          class_b(fixed({5}, 7)),
          h(size) {}

    using State = tapir::LSTMState;

    /// Logits of all nodes, (nodes, 5).
    Tensor logits(const Example& example, bool leaves_together) const {
        std::vector<State> states;
        std::vector<Tensor> hidden;
        states.reserve(example.tree->size());
        hidden.reserve(example.tree->size());
        const Tensor x = tapir::embedding(example.words, embedding);
        std::vector<Tensor> inputs, leaf_hidden, leaf_cells;
        if (leaves_together) {
            const State all = tapir::tree_lstm_gates(tapir::linear(x, leaf_w, leaf_b), {});
            leaf_hidden = all.h.unbind();
            leaf_cells = all.c.unbind();
        } else {
            inputs = x.unbind();
        }
        std::size_t leaf = 0;
        for (const Node& node : *example.tree) {
            if (node.word < 0) {
                states.push_back(inner_state(states[static_cast<std::size_t>(node.left)],
                                             states[static_cast<std::size_t>(node.right)]));
            } else if (leaves_together) {
                states.push_back({leaf_hidden[leaf], leaf_cells[leaf]});
                ++leaf;
            } else {
                states.push_back(tapir::tree_lstm_gates(tapir::linear(inputs[leaf++], leaf_w, leaf_b), {}));
            }
            hidden.push_back(states.back().h);
        }
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

void train(const TreeLstm& model, tapir::optim::Adagrad& optimizer, const std::vector<Example>& list,
           bool leaves_together, double* loss_first, double* loss_pass) {
    *loss_pass = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
        const Example& example = list[i];
        Tape tape;
        const Tensor loss = tapir::cross_entropy(model.logits(example, leaves_together), example.labels,
                                                 {.reduction = tapir::Reduction::sum});
        tape.backward(loss);
        *loss_pass += loss.item<double>();
        if ((i + 1) % kTreesPerStep != 0) continue;
        if (i + 1 == kTreesPerStep) *loss_first = *loss_pass;
        optimizer.step();
        optimizer.zero_grad();
    }
}

}  // namespace

void tree_lstm_train(State& state, int hidden, bool leaves_together) {
    std::size_t words = 0;
    const std::vector<Example>& list = examples(&words);
    if (list.empty()) return state.SkipWithError("no SST data: set TAPIR_SST_DIR");
    const TreeLstm model(hidden, words);
    tapir::optim::Adagrad optimizer(
        {model.embedding, model.leaf_w, model.leaf_b, model.inner_w, model.inner_b, model.class_w, model.class_b},
        {.lr = kAdagradRate});
    bool first_pass = true;
    double loss_first = 0, loss_epoch = 0;
    for (auto _ : state) {
        double first = 0, pass = 0;
        train(model, optimizer, list, leaves_together, &first, &pass);
        if (first_pass) loss_first = first, loss_epoch = pass;
        first_pass = false;
    }
    state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(list.size()));
    state.counters["loss_first"] = loss_first;
    state.counters["loss_epoch"] = loss_epoch;
}

void tree_lstm_infer(State& state, int hidden) {
    std::size_t words = 0;
    const std::vector<Example>& list = examples(&words);
    if (list.empty()) return state.SkipWithError("no SST data: set TAPIR_SST_DIR");
    const TreeLstm model(hidden, words);
    for (auto _ : state) {
        for (const Example& example : list) {
            benchmark::DoNotOptimize(model.logits(example, /*leaves_together=*/false));
        }
    }
    state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(list.size()));
}

}  // namespace bench
