// The model, and what surrounds training: word vectors, optimizer, saved states, reports.
#pragma once

#include <fmt/format.h>
#include <tapir/tapir.h>

#include <memory>

#include "../common/log.h"
#include "dataset.h"
#include "options.h"

namespace tree_lstm {

struct Model : tapir::nn::Module {
    tapir::nn::Embedding embedding;
    tapir::nn::NaryTreeLSTMCell cell;
    tapir::nn::Linear classifier;
    tapir::nn::Dropout dropout;

    Model(const Dataset& data, const Options& o)
        : embedding(data.vocabulary.size(), o.embedding), cell(o.embedding, o.hidden), classifier(o.hidden, data.classes()), dropout(o.dropout) {}
    void members(tapir::nn::Members& m) override { m("embedding", embedding)("cell", cell)("classifier", classifier)("dropout", dropout); }

    /// The state of a node from those of its children. `states` collects the outputs of all nodes, children first.
    tapir::LSTMState encode(const Node& node, std::vector<tapir::Tensor>& states) const;
    /// Scores of every node, in the order of tree.nodes(): (nodes, classes).
    tapir::Tensor forward(const Tree& tree) const;
};

struct Results {
    double best_dev = -1, test = 0;
    int best_epoch = 0;
};

/// Puts the vectors of the words that the file has into the embedding.
void load_word_vectors(Model& model, const Dataset& data, const Options& o);

/// As the options say: the cell and the classifier in one group, the word vectors in another.
std::unique_ptr<tapir::optim::Optimizer> make_optimizer(Model& model, const Options& o);

/// Sets the learning rates for when `done` of all training, 0 to 1, is behind.
void set_rates(tapir::optim::Optimizer& optimizer, const Options& o, double done);

/// Writes model, optimizer, random state and epoch to one file, whole or not at all.
void save(const std::string& path, const Model& model, const tapir::optim::Optimizer& optimizer, int epoch);
/// Takes them back and returns the epoch.
int resume(const std::string& path, Model& model, tapir::optim::Optimizer& optimizer);

/// For TensorBoard: the steps before an epoch; the graph of a tree; accuracy and a picture of that tree's states after an epoch; the
/// words for the projector.
std::int64_t steps_before(const Dataset& data, const Options& o, int epoch);
void log_graph(tapir::nn::SummaryWriter& writer, Model& model, const Dataset& data);
void log_epoch(tapir::nn::SummaryWriter& writer, Model& model, const Dataset& data, double dev, std::int64_t step);
void log_words(tapir::nn::SummaryWriter& writer, const Model& model, const Dataset& data);

void print_start(const Model& model, const Dataset& data, const Options& o);
/// A table of what came out, and the picture of test trees.
void print_results(Model& model, const Dataset& data, const Options& o, const Results& results);

}  // namespace tree_lstm
