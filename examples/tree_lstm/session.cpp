// What surrounds training: word vectors, optimizer, saved states.
#include <stdexcept>

#include "glove.h"
#include "tree_lstm.h"

using namespace tapir;

namespace tree_lstm {
namespace {

template <class O, class Options>
std::unique_ptr<optim::Optimizer> two_groups(Model& model, Options weights, Options words) {
    std::vector<Tensor> parameters = model.cell.parameters();
    for (const Tensor& t : model.classifier.parameters()) parameters.push_back(t);
    auto optimizer = std::make_unique<O>(parameters, weights);
    optimizer->add_param_group(model.embedding.parameters(), words);
    return optimizer;
}

void append(NamedTensors& to, const std::string& prefix, const NamedTensors& from) {
    for (const NamedTensor& t : from) to.push_back({prefix + t.name, t.tensor});
}

NamedTensors part(const NamedTensors& all, const std::string& prefix) {
    NamedTensors result;
    for (const NamedTensor& t : all) {
        if (t.name.compare(0, prefix.size(), prefix) == 0) result.push_back({t.name.substr(prefix.size()), t.tensor});
    }
    return result;
}

}  // namespace

void load_word_vectors(Model& model, const Dataset& data, const Options& o) {
    const WordVectors vectors = read_glove(o.glove, data.vocabulary, o.embedding);
    for (int id = 0; id < data.vocabulary.size(); ++id) {
        if (!vectors.found[static_cast<std::size_t>(id)]) continue;
        const auto row = vectors.row(id);
        const NoGradScope pause;
        model.embedding.weight[id].copy_(tensor(std::vector<float>(row.begin(), row.end())));
    }
    fmt::print("word vectors: {} of {} words found in {}\n", vectors.found_count, data.vocabulary.size(), o.glove);
}

std::unique_ptr<optim::Optimizer> make_optimizer(Model& model, const Options& o) {
    const double lr = o.lr, words = o.embedding_lr, decay = o.weight_decay;
    if (o.optimizer == "sgd") {
        return two_groups<optim::SGD, optim::SGDOptions>(model, {.lr = lr, .weight_decay = decay}, {.lr = words});
    }
    if (o.optimizer == "adagrad") {
        return two_groups<optim::Adagrad, optim::AdagradOptions>(model, {.lr = lr, .weight_decay = decay}, {.lr = words});
    }
    if (o.optimizer == "adam") {
        return two_groups<optim::Adam, optim::AdamOptions>(model, {.lr = lr, .weight_decay = decay}, {.lr = words});
    }
    return two_groups<optim::AdamW, optim::AdamWOptions>(model, {.lr = lr, .weight_decay = decay}, {.lr = words, .weight_decay = 0});
}

void set_rates(optim::Optimizer& optimizer, const Options& o, double done) {
    const double factor = o.lr_decay == "linear" ? 1 - done : 1;
    optimizer.set_lr(factor * o.lr, 0);
    optimizer.set_lr(factor * o.embedding_lr, 1);
}

void save(const std::string& path, const Model& model, const optim::Optimizer& optimizer, int epoch) {
    NamedTensors all;
    append(all, "model.", model.state_dict());
    append(all, "optimizer.", optimizer.state_dict());
    const Generator::State random = default_generator().state();
    save_safetensors(path, all, {{"epoch", std::to_string(epoch)}, {"seed", std::to_string(random.seed)}, {"offset", std::to_string(random.offset)}});
}

int resume(const std::string& path, Model& model, optim::Optimizer& optimizer) {
    FileMetadata metadata;
    const NamedTensors all = load_safetensors(path, &metadata);
    int epoch = -1;
    Generator::State random;
    for (const auto& [key, value] : metadata) {
        if (key == "epoch") epoch = std::stoi(value);
        if (key == "seed") random.seed = std::stoull(value);
        if (key == "offset") random.offset = std::stoull(value);
    }
    if (epoch < 0) throw std::runtime_error(path + ": not a state that this program saved");
    model.load_state_dict(part(all, "model."));
    optimizer.load_state_dict(part(all, "optimizer."));
    default_generator().set_state(random);
    return epoch;
}

}  // namespace tree_lstm
