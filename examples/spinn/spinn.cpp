// SPINN, a stack machine that reads a tree as a sequence of two moves (Bowman et al. 2016, "A fast unified model for parsing and
// sentence understanding"): shift puts the next word on a stack, reduce joins its two uppermost entries. A tracking LSTM watches the
// stack, takes part in each joining, and learns to foretell the next move, so that in the end the machine parses for itself.
// The trees are ListOps expressions, made from a seed.
//
// In training, too, some moves are the machine's own: it reads its scores, and branches on them. So no two expressions take the same way,
// and yet batch() computes those of a step together.
#include <fmt/format.h>
#include <tapir/nn/data/data.h>
#include <tapir/tapir.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <numeric>
#include <random>
#include <span>

#include "../common/show.h"
#include "../tree_lstm/listops.h"

using namespace tapir;
using tree_lstm::Node;
using tree_lstm::Tree;

namespace {

struct Options {
    std::int64_t hidden = 96, tracking = 48;
    int trees = 10000, test_trees = 500, max_length = 40, epochs = 6, batch = 25;
    double lr = 2e-3, parse_weight = 0.5, own = 0.3;
    bool together = true, report = false;
    std::uint64_t seed = 1;
    std::string chart = "spinn.svg";
};

constexpr std::int64_t kShift = 0, kReduce = 1;  // the moves

// Of each node, by its index; the root has none.
std::vector<const Node*> parents_of(const Tree& tree) {
    std::vector<const Node*> parents(static_cast<std::size_t>(tree.size()));
    for (const Node& node : tree.nodes()) {
        if (node.is_leaf()) continue;
        for (const Node* child : {node.left, node.right}) parents[static_cast<std::size_t>(child->index)] = &node;
    }
    return parents;
}

struct Spinn : nn::Module {
    nn::Embedding embedding;
    nn::Linear encode, project, classify, foretell;
    nn::LSTMCell tracker;
    nn::NaryTreeLSTMCell compose;
    std::int64_t hidden;

    Spinn(std::int64_t words, std::int64_t classes, const Options& o)
        : embedding(words, o.hidden), encode(o.hidden, 2 * o.hidden), project(o.tracking, o.hidden), classify(o.hidden, classes),
          foretell(o.tracking, 2), tracker(3 * o.hidden, o.tracking), compose(o.hidden, o.hidden, 2, {.inner_input = true}), hidden(o.hidden) {}
    void members(nn::Members& m) override {
        m("embedding", embedding)("encode", encode)("project", project)("classify", classify)("foretell", foretell);
        m("tracker", tracker)("compose", compose);
    }

    struct Entry {
        LSTMState state;
        const Node* node;  // which it stands for; null if the tree has no such node
    };
    struct Result {
        Tensor scores;                          // of the classes
        std::vector<Tensor> foretold;           // scores of both moves before each
        std::vector<std::int64_t> made, right;  // the moves, and those that the tree would have made in their place
    };

    // A move is that which the machine foretells with the probability `own`, else that of the tree.
    Result forward(const Tree& tree, double own) const {
        const std::vector<const Node*> parents = parents_of(tree);
        const auto parent = [&](const Entry& entry) { return entry.node ? parents[static_cast<std::size_t>(entry.node->index)] : nullptr; };
        std::vector<Entry> buffer, stack;  // the buffer's first word is its last entry
        std::vector<std::int64_t> words;
        for (const Node& node : tree.nodes()) {
            if (!node.is_leaf()) continue;
            words.push_back(node.token);
            buffer.push_back({{}, &node});
        }
        const Tensor encoded = encode(embedding(tensor(words)));
        const Tensor h = tanh(encoded.narrow(1, 0, hidden)), c = encoded.narrow(1, hidden, hidden);
        for (std::size_t i = 0; i < buffer.size(); ++i) {
            const auto word = static_cast<std::int64_t>(i);
            buffer[i].state = {h[word], c[word]};
        }
        std::reverse(buffer.begin(), buffer.end());
        const Tensor nothing = zeros({hidden});
        const auto seen = [&](const std::vector<Entry>& v, std::size_t from_top) {
            return v.size() > from_top ? v[v.size() - 1 - from_top].state.h : nothing;
        };
        LSTMState track;
        Result result;
        while (!buffer.empty() || stack.size() > 1) {
            track = tracker(cat({seen(buffer, 0), seen(stack, 0), seen(stack, 1)}), track);
            const Tensor foretold = foretell(track.h);
            result.foretold.push_back(foretold);
            const bool can_shift = !buffer.empty(), can_reduce = stack.size() > 1;
            const Node* joined = nullptr;  // what the two uppermost entries are together
            if (can_reduce && parent(stack.back()) == parent(stack[stack.size() - 2])) joined = parent(stack.back());
            const bool should_reduce = can_reduce && (joined || !can_shift);
            bool reduces = should_reduce;
            if (rand({}).item() < own) {
                const bool wants_to = foretold[kReduce].item() > foretold[kShift].item();
                reduces = can_reduce && (wants_to || !can_shift);
            }
            result.right.push_back(should_reduce ? kReduce : kShift);
            result.made.push_back(reduces ? kReduce : kShift);
            if (reduces) {
                const LSTMState right = stack.back().state, left = stack[stack.size() - 2].state;
                stack.resize(stack.size() - 2);
                stack.push_back({compose(project(track.h), {left, right}), joined});
            } else {
                stack.push_back(buffer.back());
                buffer.pop_back();
            }
        }
        result.scores = classify(stack.back().state.h);
        return result;
    }
};

struct Score {
    double accuracy = 0, moves = 0;
};

// With moves of its own, or those of the tree.
Score score(const Spinn& model, const std::vector<Tree>& trees, bool own_moves, const BatchOptions& options) {
    const auto forward = [&](const Tree& tree) { return model.forward(tree, own_moves ? 1 : 0); };
    const std::vector<Spinn::Result> results = batch(trees, forward, options);
    Score sum;
    for (std::size_t k = 0; k < trees.size(); ++k) {
        const Spinn::Result& r = results[k];
        sum.accuracy += argmax(r.scores, 0).item<int>() == trees[k].root().label;
        double same = 0;
        for (std::size_t i = 0; i < r.made.size(); ++i) same += r.made[i] == r.right[i];
        sum.moves += same / static_cast<double>(r.made.size());
    }
    const auto n = static_cast<double>(trees.size());
    return {sum.accuracy / n, sum.moves / n};
}

void run(int argc, char** argv) {
    Options o;
    CLI::App app("A shift-reduce parser that learns what expressions are worth");
    app.add_option("--trees", o.trees, "for training")->capture_default_str();
    app.add_option("--test-trees", o.test_trees)->capture_default_str();
    app.add_option("--max-length", o.max_length, "of an expression, in tokens")->capture_default_str();
    app.add_option("--epochs", o.epochs)->capture_default_str();
    app.add_option("--batch", o.batch)->capture_default_str();
    app.add_option("--hidden", o.hidden)->capture_default_str();
    app.add_option("--lr", o.lr, "Adam's; it falls to 0 over the run")->capture_default_str();
    app.add_option("--own", o.own, "how often a move in training is the model's own, not the tree's")
        ->check(CLI::Range(0.0, 1.0))
        ->capture_default_str();
    app.add_flag("--together,!--no-batch", o.together, "compute all expressions of a step at the same time, or not [together]");
    app.add_flag("--report", o.report, "say what was computed together in training");
    app.add_option("--chart", o.chart, "where the picture goes; '' for none")->capture_default_str();
    app.add_option("--seed", o.seed)->capture_default_str();
    show::parse(app, argc, argv);
    manual_seed(o.seed);
    const tree_lstm::Dataset data = tree_lstm::make_listops({.train = o.trees, .test = o.test_trees, .max_length = o.max_length, .seed = o.seed});
    Spinn model(data.vocabulary.size(), 10, o);
    optim::Adam adam(model.parameters(), {.lr = o.lr});
    const std::int64_t steps =
        o.epochs * static_cast<std::int64_t>((data.train.size() + static_cast<std::size_t>(o.batch) - 1) / static_cast<std::size_t>(o.batch));
    optim::CosineAnnealingLR schedule(adam, {.T_max = steps});
    fmt::print("{} expressions, {} parameters\n", o.trees, model.parameter_count());

    show::Progress progress(static_cast<std::int64_t>(o.epochs) * o.trees);
    show::Curve accuracy{"accuracy", {}, {}}, parsing{"moves foretold", {}, {}};
    std::vector<std::size_t> order(data.train.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::mt19937_64 random(o.seed);
    BatchReport report;
    const BatchOptions options{.together = o.together, .report = o.report ? &report : nullptr};
    double loss_mean = 2.3;
    std::int64_t done = 0;
    Score tested;
    for (int epoch = 1; epoch <= o.epochs; ++epoch) {
        std::shuffle(order.begin(), order.end(), random);
        for (std::size_t begin = 0; begin < order.size(); begin += static_cast<std::size_t>(o.batch)) {
            const std::size_t end = std::min(order.size(), begin + static_cast<std::size_t>(o.batch));
            Tape tape;
            const auto forward = [&](std::size_t i) { return model.forward(data.train[i], o.own); };
            const std::vector<Spinn::Result> results = batch(std::span(order).subspan(begin, end - begin), forward, options);
            std::vector<Tensor> scores, foretold;
            std::vector<std::int64_t> classes, moves;
            for (std::size_t i = begin; i < end; ++i) {
                const Spinn::Result& r = results[i - begin];
                scores.push_back(r.scores);
                classes.push_back(data.train[order[i]].root().label);
                foretold.insert(foretold.end(), r.foretold.begin(), r.foretold.end());
                moves.insert(moves.end(), r.right.begin(), r.right.end());
            }
            const Tensor of_class = cross_entropy(stack(scores), tensor(classes));
            const Tensor loss = of_class + o.parse_weight * cross_entropy(stack(foretold), tensor(moves));
            tape.backward(loss);
            if (done == 0) progress.print(fmt::format("loss of the first step {:.6f}", loss.item()));
            optim::clip_grad_norm_(model.parameters(), 5);
            adam.step();
            adam.zero_grad();
            schedule.step();
            done += static_cast<std::int64_t>(end - begin);
            loss_mean += 0.05 * (of_class.item() - loss_mean);
            progress.update(done, fmt::format("epoch {}  loss {:.3f}", epoch, loss_mean));
        }
        tested = score(model, data.test, /*own_moves=*/true, {.together = o.together});
        accuracy.add(epoch, tested.accuracy);
        parsing.add(epoch, tested.moves);
        progress.print(
            fmt::format("epoch {}  loss {:.3f}  test accuracy {:.3f}, {:.3f} of the moves right", epoch, loss_mean, tested.accuracy, tested.moves));
    }
    const Score given = score(model, data.test, /*own_moves=*/false, {.together = o.together});
    show::write_chart(o.chart, {accuracy, parsing},
                      {.title = "SPINN on ListOps, parsing for itself", .x_label = "epoch", .y_label = "of the test expressions"});
    if (o.report) fmt::print("{}", report.str());
    fmt::print("with the trees' own moves: accuracy {:.3f}\nresult {:.4f}\n", given.accuracy, tested.accuracy);
}

}  // namespace

int main(int argc, char** argv) { return show::run("spinn", argc, argv, run); }
