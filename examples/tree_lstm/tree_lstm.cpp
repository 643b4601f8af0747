// A Tree-LSTM that reads trees from the leaves up, in plain C++: `encode` below is the model. Change it, set a
// breakpoint in it, run again.
//
// Tai, Socher and Manning 2015, "Improved semantic representations from tree-structured long short-term memory networks".
#include <tapir/tapir.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>

#include "dataset.h"
#include "glove.h"
#include "listops.h"
#include "options.h"
#include "progress.h"
#include "ptb.h"
#include "svg.h"

using namespace tapir;
using namespace tree_lstm;

namespace {

struct Model : nn::Module {
    nn::Embedding embedding;
    nn::NaryTreeLSTMCell cell;
    nn::Linear classifier;
    nn::Dropout dropout;

    Model(const Dataset& data, const Options& o)
        : embedding(data.vocabulary.size(), o.embedding),
          cell(o.embedding, o.hidden, /*children=*/2),
          classifier(o.hidden, data.classes()),
          dropout(o.dropout) {}
    void members(nn::Members& m) override { m("embedding", embedding)("cell", cell)("classifier", classifier)("dropout", dropout); }

    /// The state of a node from those of its children; `states` collects the outputs of all nodes below, children first.
    nn::LSTMState encode(const Node& node, std::vector<Tensor>& states) const {
        nn::LSTMState state;
        if (node.is_leaf()) {
            state = cell.leaf(dropout(embedding(tensor(node.token))));
        } else {
            const nn::LSTMState left = encode(*node.left, states), right = encode(*node.right, states);
            state = cell({left, right});
        }
        states.push_back(state.h);
        return state;
    }

    /// Scores of every node: (nodes, classes), in the order of tree.nodes().
    Tensor forward(const Tree& tree) const {
        std::vector<Tensor> states;
        encode(tree.root(), states);
        return classifier(dropout(stack(states)));
    }
};

/// Summed over the nodes that have a label.
Tensor loss_of(const Tensor& scores, const Tree& tree) {
    std::vector<std::int64_t> labels;
    for (const Node& node : tree.nodes()) labels.push_back(node.label);
    return cross_entropy(scores, tensor(labels), {.ignore_index = kNoLabel, .reduction = Reduction::sum});
}

struct Score {
    std::int64_t trees = 0, right = 0;
    void add(const Tree& tree, int predicted) {
        ++trees;
        right += tree.root().label == predicted;
    }
    double accuracy() const { return trees == 0 ? 0 : static_cast<double>(right) / static_cast<double>(trees); }
};

Score evaluate(Model& model, const std::vector<Tree>& trees) {
    model.eval();
    Score score;
    for (const Tree& tree : trees) score.add(tree, model.forward(tree)[-1].argmax().item<int>());
    model.train();
    return score;
}

optim::AnyOptimizer make_optimizer(Model& model, const Options& o) {
    std::vector<Tensor> weights = model.cell.parameters();
    for (const Tensor& t : model.classifier.parameters()) weights.push_back(t);
    auto optimizer = optim::make(o.optimizer, weights, {.lr = o.lr, .weight_decay = o.weight_decay});
    if (o.embedding_lr > 0) optimizer.add_group(model.embedding.parameters(), {.lr = o.embedding_lr});
    return optimizer;
}

void run(const Options& o) {
    manual_seed(o.seed);
    set_num_threads(o.threads);
    Dataset data = o.is_treebank() ? read_treebank(o.data, {.vocabulary_from_all_splits = !o.glove.empty()})
                                   : make_listops({.train = o.trees, .test = o.test_trees, .max_depth = o.max_depth,
                                                   .max_length = o.max_length, .seed = o.seed});
    data.require_depth_at_most(5000);  // encode() uses one stack frame a level
    Model model(data, o);
}

}  // namespace
