// What the program says before and after training.
#include <unistd.h>

#include "progress.h"
#include "svg.h"
#include "tree_lstm.h"

using namespace tapir;

namespace tree_lstm {
namespace {

std::int64_t node_count(const std::vector<Tree>& trees) {
    std::int64_t nodes = 0;
    for (const Tree& tree : trees) nodes += tree.size();
    return nodes;
}

void draw(Model& model, const Dataset& data, const Options& o) {
    std::vector<Drawing> drawings;
    model.eval();
    for (const Tree& tree : data.test) {
        if (static_cast<int>(drawings.size()) == o.drawn) break;
        if (tree.size() < 5) continue;  // nothing to see
        Drawing drawing{&tree, {}, {}};
        const std::vector<int> classes = model.forward(tree).argmax(1).to_vector<int>();
        for (const Node& node : tree.nodes()) {
            drawing.predicted.push_back(node.has_label() ? classes[static_cast<std::size_t>(node.index)] : kNoLabel);
        }
        drawings.push_back(std::move(drawing));
    }
    if (drawings.empty()) return;
    write_svg(o.drawing, drawings,
              {.title = data.name + ": what the Tree-LSTM says", .class_names = data.class_names, .class_scale = !o.data.empty()});
    fmt::print("test trees drawn in {}\n", o.drawing);
}

}  // namespace

std::int64_t steps_before(const Dataset& data, const Options& o, int epoch) {
    return (epoch - 1) * ((static_cast<std::int64_t>(data.train.size()) + o.batch - 1) / o.batch);
}

void log_graph(nn::SummaryWriter& writer, Model& model, const Dataset& data) {
    model.eval();
    const Tape tape;
    (void)model.forward(data.train.front());
    writer.add_graph(tape);
    model.train();
}

void log_epoch(nn::SummaryWriter& writer, Model& model, const Dataset& data, double dev, std::int64_t step) {
    writer.add_scalar("accuracy/dev", dev, step);
    model.eval();
    std::vector<Tensor> states;
    (void)model.encode(data.train.front().root(), states);
    writer.add_image("states of a tree", (stack(states) + 1) / 2, step, nn::SummaryWriter::kNow, "HW");  // a row a node, in (0, 1)
    model.train();
}

void log_words(nn::SummaryWriter& writer, const Model& model, const Dataset& data) {
    std::vector<std::string> words;
    for (int id = 0; id < data.vocabulary.size(); ++id) words.push_back(data.vocabulary.word(id));
    writer.add_embedding(model.embedding.weight, words, {}, 0, "words");
}

void print_start(const Model& model, const Dataset& data, const Options& o) {
    fmt::print("{}: {} training trees ({} nodes), {} test trees, {} words, {} classes\n", data.name,
               grouped(static_cast<std::int64_t>(data.train.size())), grouped(node_count(data.train)),
               grouped(static_cast<std::int64_t>(data.test.size())), grouped(data.vocabulary.size()), data.classes());
    fmt::print("{}\n{} parameters; {} (lr {}), {} trees a step; loss: summed over a tree's labelled nodes\n", model.str(),
               grouped(model.parameter_count()), o.optimizer, o.lr, o.batch);
    if (o.device != cpu) fmt::print("on {} ({})\n", name(o.device), cuda_device_name(o.device.index));
    fmt::print("\n");
    std::fflush(stdout);
}

void print_results(Model& model, const Dataset& data, const Options& o, const Results& results) {
    fmt::print("\n{:<28}{:>12}\n", "data", data.name);
    fmt::print("{:<28}{:>11.1f}%\n", "dev, root accuracy", 100 * results.best_dev);
    fmt::print("{:<28}{:>11.1f}%\n", "test, root accuracy", 100 * results.test);
    fmt::print("{:<28}{:>12}\n", "of epoch", results.best_epoch);
    if (!o.save.empty()) fmt::print("state saved in {}\n", o.save);
    if (!o.drawing.empty() && o.drawn > 0) draw(model, data, o);
}

}  // namespace tree_lstm
