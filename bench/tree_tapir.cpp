// The Tree-LSTM of work.h on Tapir.
#include <tapir/core/parallel.h>
#include <tapir/tapir.h>

#include <vector>

#include "tree_lstm.h"
#include "work.h"

namespace bench {

void start() { set_threads(1); }
void set_threads(int count) { tapir::set_num_threads(count); }

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
    if (hidden <= 300) state.counters["loss_epoch"] = loss_epoch;  // of 512, rounding alone moves it by 1e-3
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
