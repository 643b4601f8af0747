// The Tree-LSTM of work.h on PyTorch.
#include <torch/torch.h>

#include <vector>

#include "sst.h"
#include "work.h"

namespace bench {

void start() {
    set_threads(1);
    torch::set_num_interop_threads(1);
}
void set_threads(int count) { torch::set_num_threads(count); }

namespace {

using torch::Tensor;
namespace F = torch::nn::functional;

using Example = ExampleOf<Tensor>;

/// Empty where there is no data.
const std::vector<Example>& examples(std::size_t* words) {
    return examples_of<Tensor>([](const std::vector<std::int64_t>& v) { return torch::tensor(v); }, words);
}

Tensor fixed(std::vector<std::int64_t> sizes, std::uint32_t seed) {
    std::vector<float> weights = fixed_weights(static_cast<std::size_t>(c10::multiply_integers(sizes)), seed);
    return torch::from_blob(weights.data(), sizes).clone().requires_grad_();
}

/// States are 1-d: a matrix-vector product is faster here than a (1, n) matrix product.
struct TreeLstm {
    TreeLstm(std::int64_t size, std::size_t words)
        : h(size), embedding(fixed({static_cast<std::int64_t>(words), size}, 1)), leaf_w(fixed({3 * size, size}, 2)), leaf_b(fixed({3 * size}, 3)),
          inner_w(fixed({5 * size, 2 * size}, 4)), inner_b(fixed({5 * size}, 5)), class_w(fixed({5, size}, 6)), class_b(fixed({5}, 7)) {}

    struct State {
        Tensor hidden, cell;
    };

    /// x: the tree's leaves, (leaves, h). Returns the logits of all nodes, (nodes, 5).
    Tensor logits(const Tree& tree, const Tensor& x, bool leaves_together) const {
        const auto inner = [this](const State& left, const State& right) { return inner_state(left, right); };
        std::vector<State> states;
        if (leaves_together) {
            const State all = leaf_state(torch::linear(x, leaf_w, leaf_b));
            const std::vector<Tensor> hidden_of = all.hidden.unbind(), cell_of = all.cell.unbind();
            states = states_of<State>(tree, [&](std::size_t k) { return State{hidden_of[k], cell_of[k]}; }, inner);
        } else {
            const std::vector<Tensor> inputs = x.unbind();
            const auto leaf = [&](std::size_t k) { return leaf_state(torch::addmv(leaf_b, leaf_w, inputs[k])); };
            states = states_of<State>(tree, leaf, inner);
        }
        std::vector<Tensor> hidden;
        hidden.reserve(states.size());
        for (const State& state : states) hidden.push_back(state.hidden);
        return torch::linear(torch::stack(hidden), class_w, class_b);
    }

    State leaf_state(const Tensor& gates) const {
        const std::vector<Tensor> parts = gates.split_with_sizes({2 * h, h}, -1);
        const std::vector<Tensor> io = torch::sigmoid(parts[0]).chunk(2, -1);
        const Tensor cell = io[0] * torch::tanh(parts[1]);
        return {io[1] * torch::tanh(cell), cell};
    }

    State inner_state(const State& left, const State& right) const {
        const Tensor gates = torch::addmv(inner_b, inner_w, torch::cat({left.hidden, right.hidden}));
        const std::vector<Tensor> parts = gates.split_with_sizes({4 * h, h});
        const std::vector<Tensor> s = torch::sigmoid(parts[0]).chunk(4);  // i, f_l, f_r, o
        const Tensor cell = s[0] * torch::tanh(parts[1]) + s[1] * left.cell + s[2] * right.cell;
        return {s[3] * torch::tanh(cell), cell};
    }

    std::int64_t h;
    Tensor embedding, leaf_w, leaf_b, inner_w, inner_b, class_w, class_b;
};

/// Trains a pass over the examples. The embedding's rows are leaves of each tree's own graph; their gradients become
/// one sparse gradient for the step, so neither backward nor Adagrad touches the whole table.
void train(const TreeLstm& model, torch::optim::Adagrad& optimizer, const std::vector<Example>& list, bool leaves_together, double* loss_first,
           double* loss_pass) {
    std::vector<Tensor> words, gradients;
    *loss_pass = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
        const Example& example = list[i];
        const Tensor x = model.embedding.detach().index_select(0, example.words).requires_grad_();
        const Tensor loss =
            F::cross_entropy(model.logits(*example.tree, x, leaves_together), example.labels, F::CrossEntropyFuncOptions().reduction(torch::kSum));
        loss.backward();
        *loss_pass += loss.item<double>();
        words.push_back(example.words);
        gradients.push_back(x.grad());
        if ((i + 1) % kTreesPerStep != 0) continue;
        if (i + 1 == kTreesPerStep) *loss_first = *loss_pass;
        Tensor table = model.embedding;
        table.mutable_grad() = torch::sparse_coo_tensor(torch::cat(words).unsqueeze(0), torch::cat(gradients), table.sizes());
        optimizer.step();
        optimizer.zero_grad();
        words.clear();
        gradients.clear();
    }
}

}  // namespace

void tree_lstm_train(State& state, int hidden, How how) {
    if (how == How::branching) return state.SkipWithError("only to compare it with batch()");
    if (how == How::plain_ops) return state.SkipWithError("PyTorch has no others: compare it with tree_lstm_train");
    std::size_t words = 0;
    const std::vector<Example>& list = examples(&words);
    if (list.empty()) return state.SkipWithError("no SST data: set TAPIR_SST_DIR");
    const TreeLstm model(hidden, words);
    torch::optim::Adagrad optimizer({model.embedding, model.leaf_w, model.leaf_b, model.inner_w, model.inner_b, model.class_w, model.class_b},
                                    torch::optim::AdagradOptions(kAdagradRate));
    bool first_pass = true;
    double loss_first = 0, loss_epoch = 0;
    for (auto _ : state) {
        double first = 0, pass = 0;
        train(model, optimizer, list, how == How::leaves_together, &first, &pass);
        if (first_pass) loss_first = first, loss_epoch = pass;
        first_pass = false;
    }
    state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(list.size()));
    state.counters["loss_first"] = loss_first;
    state.counters["loss_epoch"] = loss_epoch;
}

void tree_lstm_train_batched(State& state, int, How, std::size_t) { state.SkipWithError("PyTorch has no automatic batching"); }

void tree_lstm_infer(State& state, int hidden, bool batched) {
    if (batched) return state.SkipWithError("PyTorch has no automatic batching");
    const c10::InferenceMode guard;
    std::size_t words = 0;
    const std::vector<Example>& list = examples(&words);
    if (list.empty()) return state.SkipWithError("no SST data: set TAPIR_SST_DIR");
    const TreeLstm model(hidden, words);
    for (auto _ : state) {
        for (const Example& example : list) {
            const Tensor x = model.embedding.index_select(0, example.words);
            benchmark::DoNotOptimize(model.logits(*example.tree, x, /*leaves_together=*/false));
        }
    }
    state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(list.size()));
}

}  // namespace bench
