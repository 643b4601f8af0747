// The work of work.h on Tapir.
#include <tapir/core/parallel.h>
#include <tapir/tapir.h>

#include <string>
#include <vector>

#include "tree_lstm.h"
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

void start() { set_threads(1); }
void set_threads(int count) { tapir::set_num_threads(count); }

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
        case Unary::kTanh: return time_op(state, [&] { return tapir::tanh(x); });
        case Unary::kSigmoid: return time_op(state, [&] { return tapir::sigmoid(x); });
        case Unary::kExp: return time_op(state, [&] { return tapir::exp(x); });
        case Unary::kGelu: return time_op(state, [&] { return tapir::gelu(x); });
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

// pass(model, optimizer, examples, &loss_first, &loss_pass) trains on all examples once.
template <class Pass>
void train_trees(State& state, int hidden, const Pass& pass_over) {
    std::size_t words = 0;
    const std::vector<Example>& list = examples(&words);
    if (list.empty()) return state.SkipWithError("no SST data: set TAPIR_SST_DIR");
    const TreeLstm model(hidden, words);
    tapir::optim::Adagrad optimizer({model.embedding, model.leaf_w, model.leaf_b, model.inner_w, model.inner_b, model.class_w, model.class_b},
                                    {.lr = kAdagradRate});
    bool first_pass = true;
    double loss_first = 0, loss_epoch = 0;
    for (auto _ : state) {
        double first = 0, pass = 0;
        pass_over(model, optimizer, list, &first, &pass);
        if (first_pass) loss_first = first, loss_epoch = pass;
        first_pass = false;
    }
    state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(list.size()));
    state.counters["loss_first"] = loss_first;
    state.counters["loss_epoch"] = loss_epoch;
}

}  // namespace

void tree_lstm_train(State& state, int hidden, How how) {
    train_trees(state, hidden,
                [&](const TreeLstm& model, tapir::optim::Adagrad& optimizer, const std::vector<Example>& list, double* first, double* pass) {
                    train(model, optimizer, list, how, first, pass);
                });
}

void tree_lstm_train_batched(State& state, int hidden, How how, std::size_t trees_per_step) {
    train_trees(state, hidden,
                [&](const TreeLstm& model, tapir::optim::Adagrad& optimizer, const std::vector<Example>& list, double* first, double* pass) {
                    train_batched(model, optimizer, list, trees_per_step, how, first, pass);
                });
}

void tree_lstm_infer(State& state, int hidden, bool batched) {
    std::size_t words = 0;
    const std::vector<Example>& list = examples(&words);
    if (list.empty()) return state.SkipWithError("no SST data: set TAPIR_SST_DIR");
    const TreeLstm model(hidden, words);
    const auto logits = [&](const Example& example) { return model.logits(example, How::node_by_node); };
    for (auto _ : state) {
        if (batched) {
            benchmark::DoNotOptimize(tapir::batch(list, logits));
            continue;
        }
        for (const Example& example : list) benchmark::DoNotOptimize(logits(example));
    }
    state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(list.size()));
}

}  // namespace bench
