// A Tree-LSTM that reads trees from the leaves up, in plain C++: `encode` below is the model. Change it, set a
// breakpoint in it, run again.
//
// Tai, Socher and Manning 2015, "Improved semantic representations from tree-structured long short-term memory networks".
#include "tree_lstm.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>

#include "listops.h"
#include "progress.h"
#include "tapir/nn/parallel/parallel.h"

using namespace tapir;
using namespace tree_lstm;

LSTMState Model::encode(const Node& node, std::vector<Tensor>& states) const {
    LSTMState state;
    if (node.is_leaf()) {
        state = cell(dropout(embedding(tensor(node.token))));
    } else {
        const LSTMState left = encode(*node.left, states), right = encode(*node.right, states);
        state = cell(left, right);
    }
    states.push_back(state.h);
    return state;
}

Tensor Model::forward(const Tree& tree) const {
    std::vector<Tensor> states;
    states.reserve(static_cast<std::size_t>(tree.size()));
    encode(tree.root(), states);
    return classifier(dropout(stack(states)));
}

namespace {

// Summed over the nodes that have a label.
Tensor loss_of(const Tensor& scores, const Tree& tree) {
    std::vector<std::int64_t> labels;
    for (const Node& node : tree.nodes()) labels.push_back(node.label);
    return cross_entropy(scores, tensor(labels), {.ignore_index = kNoLabel, .reduction = Reduction::sum});
}

// How many trees have their root classified right. The scores stay on their device until somebody asks, so that a GPU is
// waited for once, not at each tree.
class Count {
 public:
    void add(const Tensor& scores, const Tree& tree) {
        const NoGradScope pause;
        roots_.push_back(scores[-1]);  // the root is the last node
        labels_.push_back(tree.root().label);
        if (roots_.size() == 500) read();
    }
    std::int64_t trees() const { return trees_ + static_cast<std::int64_t>(roots_.size()); }
    double accuracy() {
        read();
        return trees_ > 0 ? static_cast<double>(right_) / static_cast<double>(trees_) : 0;
    }

 private:
    void read() {
        if (roots_.empty()) return;
        const NoGradScope pause;
        const std::vector<int> classes = stack(roots_).argmax(1).to_vector<int>();
        for (std::size_t i = 0; i < classes.size(); ++i) right_ += classes[i] == labels_[i];
        trees_ += static_cast<std::int64_t>(classes.size());
        roots_.clear();
        labels_.clear();
    }

    std::vector<Tensor> roots_;  // scores
    std::vector<int> labels_;
    std::int64_t trees_ = 0, right_ = 0;  // of those that were read
};

double accuracy(Model& model, const std::vector<Tree>& trees) {
    model.eval();
    Count count;
    for (const Tree& tree : trees) count.add(model.forward(tree), tree);
    model.train();
    return count.accuracy();
}

// One pass over the training trees in a random order: a tape and a step for every batch, of which each process has its part.
void train_epoch(Model& model, parallel::Replicas& replicas, optim::Optimizer& optimizer, const Dataset& data, const Options& o, int epoch,
                 Progress& progress, show::TrainingLog& log, BatchReport* report) {
    const auto rank = static_cast<std::size_t>(replicas.group().rank()), ranks = static_cast<std::size_t>(replicas.group().size());
    std::vector<std::size_t> order(data.train.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), std::mt19937_64(o.seed * 1000 + static_cast<std::uint64_t>(epoch)));
    double loss_sum = 0;
    Count count;
    for (std::size_t start = 0; start < order.size(); start += static_cast<std::size_t>(o.batch)) {
        const std::size_t end = std::min(order.size(), start + static_cast<std::size_t>(o.batch));
        set_rates(optimizer, o, (epoch - 1 + static_cast<double>(start) / static_cast<double>(order.size())) / o.epochs);
        const std::size_t size = end - start, first = start + size * rank / ranks, last = start + size * (rank + 1) / ranks;
        if (first == last) {  // of the last batch, which has fewer trees than there are processes
            replicas.backward(Tensor(), 0);
            optimizer.step();
            optimizer.zero_grad();
            continue;
        }
        Tape tape;
        const std::vector<Tensor> losses = batch(std::span(order).subspan(first, last - first),
                                                 [&](std::size_t i) {
                                                     const Tree& tree = data.train[i];
                                                     const Tensor scores = model.forward(tree);
                                                     count.add(scores, tree);
                                                     return loss_of(scores, tree);
                                                 },
                                                 {.together = *o.together, .report = report});
        const Tensor loss = sum(stack(losses));
        replicas.backward(loss / static_cast<double>(last - first), static_cast<std::int64_t>(last - first));
        if (log) {
            const std::int64_t step = steps_before(data, o, epoch) + static_cast<std::int64_t>(start) / o.batch;
            log.step(model, optimizer, loss.item() / static_cast<double>(last - first), step);
        }
        optimizer.step();
        optimizer.zero_grad();
        loss_sum += loss.item();  // last: here a GPU is waited for
        progress.update(static_cast<std::int64_t>(end), loss_sum / static_cast<double>(count.trees()), count.accuracy());
    }
}

void run(const Options& o, const parallel::Group& world) {
    manual_seed(o.seed);
    set_num_threads(o.threads);
    const DeviceScope scope(o.device);  // every tensor that follows is made there
    Dataset data = o.data.empty()
        ? make_listops(
              {.train = o.trees, .dev = o.test_trees, .test = o.test_trees, .max_depth = o.max_depth, .max_length = o.max_length, .seed = o.seed})
        : read_treebank(o.data, {.vocabulary_from_all_splits = !o.glove.empty()});
    data.require_depth_at_most(5000);  // encode() takes a stack frame a level
    Model model(data, o);
    if (!o.glove.empty()) load_word_vectors(model, data, o);
    parallel::Replicas replicas(model, world);
    const auto optimizer = make_optimizer(model, o);
    int epoch = o.resume.empty() ? 0 : resume(o.resume, model, *optimizer);
    if (epoch >= o.epochs) throw std::runtime_error(fmt::format("{}: epoch {} of {} is done", o.resume, epoch, o.epochs));
    print_start(model, data, o);
    show::TrainingLog log(o.log_dir, steps_before(data, o, epoch + 1));
    if (log) log_graph(*log, model, data);

    Results results;
    BatchReport report;
    Progress progress(o.epochs, static_cast<std::int64_t>(data.train.size()));
    while (++epoch <= o.epochs) {
        progress.start_epoch(epoch);
        train_epoch(model, replicas, *optimizer, data, o, epoch, progress, log, o.report ? &report : nullptr);
        const double dev = accuracy(model, data.dev);
        progress.finish_epoch(fmt::format("dev {:.1f}%", 100 * dev));
        if (log) log_epoch(*log, model, data, dev, steps_before(data, o, epoch + 1) - 1);
        if (!o.save.empty()) world.on_rank(0, [&] { save(o.save, model, *optimizer, epoch); });
        if (dev > results.best_dev) {  // the epoch that is best on dev is the one that is tested
            results.best_dev = dev;
            results.best_epoch = epoch;
            results.test = accuracy(model, data.test);
        }
    }
    if (log) log_words(*log, model, data);
    print_results(model, data, o, results);
    if (o.report) fmt::print("{}", report.str());
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const parallel::Group world = parallel::init(argc, argv);  // of one process, unless mpirun or the like has started it
        Options options = parse_options(argc, argv);
        if (world.rank() != 0) {  // the first one tells how it goes
            options.log_dir.clear();
            if (!std::freopen("/dev/null", "w", stdout)) return 1;
        }
        run(options, world);
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "tree_lstm: %s\n", error.what());
        return 1;
    }
}
